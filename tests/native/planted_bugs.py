"""Plants bugs of one line in copies of the kernels and demands that their tests catch every one.

Use:  python tests/native/planted_bugs.py [--only WORD]     (minutes; a C++ compiler, cmake and ninja as for an install)

The tree is copied to a temporary place and built once. Each bug is built at the best of the levels avx512, avx2 and
scalar, where its tests then run until the first failure. Without a bug the same tests must pass. Exits with 1 where
a bug was not caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


SHARED = "_C"  # what is compiled once, for all levels


@dataclass(frozen=True)
class Bug:
    what: str
    source: str  # the file to patch, under csrc/cpu, or of the level SHARED under csrc
    old: str  # its first occurrence (after `after`) becomes `new`
    new: str
    tests: str  # a file of tests, and the words for -k
    words: str = ""
    after: str = ""
    compiled: str = ""  # the file to compile, where `source` is a header
    level: str = ""  # another level than the tree's, or SHARED; then `words` say which tests are of it

    def path(self, root: Path, level: str) -> Path:
        return root / "csrc" / ("" if self.level == SHARED else "cpu") / self.source.format(level=level)

    def planted(self, text: str) -> str | None:
        """The source with the bug in it; None where what becomes the bug is not there."""
        start = text.find(self.after)
        at = text.find(self.old, start) if start >= 0 else -1
        return None if at < 0 else text[:at] + self.new + text[at + len(self.old) :]


OPS, OPTIM = "tests/ops/test_cpu_kernels.py", "tests/optim/test_native_optimizers.py"
FEW_ROWS = "tests/ops/test_few_rows.py"
ATTENTION, EMBEDDING, GEMM = (f"tests/ops/test_cpu_{name}.py" for name in ("attention", "embedding", "gemm"))
ENCODER, MASK, WALK = (f"tests/ops/test_{name}.py" for name in ("cpu_encoder", "read_mask", "module_walk"))
WINOGRAD, INT8 = "tests/ops/test_cpu_winograd.py", "tests/ops/test_cpu_int8.py"
BY_NAME, NO_MEMORY, FAR = (f"tests/ops/test_{name}.py" for name in ("ops_by_name", "no_memory", "far_rows"))
BUGS = [
    Bug(
        "gelu: the last chunk's bias gradient is lost",
        "gelu.cpp",
        "workspace, reduction_chunks(rows),",
        "workspace, reduction_chunks(rows) - 1,",
        OPS,
        "gelu",
    ),
    Bug(
        "gelu: backward forgets the bias",
        "gelu.cpp",
        "if (args.bias) v = v + load",
        "if (false) v = v + load",
        OPS,
        "gelu",
        after="void backward",
    ),
    Bug(
        "layer_norm: kept elements are not scaled",
        "philox.h",
        "keep(v * scale, ",
        "keep(v, ",
        OPS,
        "layer_norm",
        compiled="layer_norm.cpp",
    ),
    Bug(
        "layer_norm: lanes past the end count in the variance",
        "columns.h",
        "only(load(z + c, lanes) - m, lanes)",
        "load(z + c, lanes) - m",
        OPS,
        "layer_norm",
        compiled="layer_norm.cpp",
    ),
    Bug(
        "layer_norm: epsilon is forgotten",
        "columns.h",
        "square / cols + eps",
        "square / cols",
        OPS,
        "layer_norm",
        compiled="layer_norm.cpp",
    ),
    Bug(
        "dropout: columns past 1,024 get the bits of the first",
        "philox.h",
        "bits(d.number(row), c0, n, d)",
        "bits(d.number(row), 0, n, d)",
        OPS,
        "masks",
        compiled="dropout.cpp",
    ),
    Bug(
        "layer_norm: some rows of a tensor drop what its first rows drop",
        "philox.h",
        "bits(d.number(row), c0, n, d)",
        "bits(row, c0, n, d)",
        OPS,
        "some_rows",
        compiled="layer_norm.cpp",
    ),
    Bug("dropout: another site", "vec_{level}.h", "d.site", "(d.site ^ 1)", OPS, "masks", compiled="dropout.cpp"),
    Bug(
        "cross_entropy: the tail is padded with zeros",
        "cross_entropy.cpp",
        ": lowest;",
        ": 0.0f;",
        OPS,
        "cross_entropy",
    ),
    Bug(
        "cross_entropy: no gradient of the label",
        "cross_entropy.cpp",
        "- set(1.0f)",
        "- set(0.0f)",
        OPS,
        "cross_entropy",
    ),
    Bug(
        "optimizer: each thread skips its first chunk", "optimizer.cpp", "at >= first", "at > first", OPTIM, "algorithm"
    ),
    Bug("optimizer: gradients are not scaled", "optimizer.cpp", "lanes) * rates.scale", "lanes)", OPTIM, "scale"),
    Bug(
        "optimizer: a chunk where two threads meet is updated by both",
        "optimizer.cpp",
        "at < last",
        "at <= last",
        OPTIM,
    ),
    Bug(
        "lamb: the norm is that of the last chunk",
        "optimizer.cpp",
        "updates += squares->updates",
        "updates = squares->updates",
        OPTIM,
        "lamb",
    ),
    Bug(
        "lamb: the norm is not that of the update",
        "optimizer.cpp",
        "only(advance<G>(t, rates, i, p, lanes), lanes)",
        "advance<G>(t, rates, i, p, lanes) + set(1e-3f)",
        OPTIM,
        "lamb",
    ),
    Bug(
        "embedding: the padding row gets a gradient",
        "embedding.cpp",
        "if (id == skipped) continue;",
        "",
        EMBEDDING,
        "rows",
    ),
    Bug(
        "embedding: epsilon is forgotten",
        "columns.h",
        "square / cols + eps",
        "square / cols",
        EMBEDDING,
        "formula",
        compiled="embedding.cpp",
    ),
    Bug(
        "embedding: of a word's tokens only 32 count",
        "embedding.cpp",
        "first < count; first += RUN",
        "first < RUN; first += RUN",
        EMBEDDING,
        "reference",
        after="void add_strip",
    ),
    Bug("embedding: a negative id is read", "embedding.cpp", "a.ids[i][token] < 0 || ", "", EMBEDDING, "range"),
    Bug(
        "attention: the causal mask is dropped",
        "attention_common.h",
        "a.causal ? query + 1 - key : count",
        "count",
        ATTENTION,
        "reference",
        compiled="attention_forward.cpp",
    ),
    Bug(
        "attention: the bias of a key is that of its mirror image",
        "attention_common.h",
        "a.bias.zero + key - query",
        "a.bias.zero + query - key",
        ATTENTION,
        "bias",
        compiled="attention_forward.cpp",
    ),
    Bug(
        "attention: the bias of the first head is every head's",
        "attention_common.h",
        "a.bias.rows + head * a.bias.stride",
        "a.bias.rows",
        ATTENTION,
        "bias",
        compiled="attention_forward.cpp",
    ),
    Bug(
        "attention: the gradient's scores have no bias",
        "attention_backward.cpp",
        "if (a_.bias.rows) add_row(probs",
        "if (false) add_row(probs",
        ATTENTION,
        "bias",
    ),
    Bug(
        "attention: one sequence's gradient of the bias is every sequence's",
        "attention_backward.cpp",
        "(sequence * a_.nheads + head) * a_.bias.stride",
        "head * a_.bias.stride",
        ATTENTION,
        "bias and batch",
    ),
    Bug(
        "attention: blocks of keys are joined without their scale",
        "attention_forward.cpp",
        "l[r] *= shrink;",
        "",
        ATTENTION,
        "reference or far",
    ),
    Bug(
        "attention: dk of the first block of queries only",
        "attention_backward.cpp",
        "block < blocks; ++block",
        "block < 1; ++block",
        ATTENTION,
        "reference",
    ),
    Bug(
        "attention: dv misses the dropout's scale",
        "attention_backward.cpp",
        "set(a_.dropout.active() ? a_.dropout.scale : 1.0f)",
        "set(1.0f)",
        ATTENTION,
        "reference",
    ),
    Bug(
        "gemm: only the last block of K counts",
        "gemm_kernel.h",
        "first ? acc[m][v] : load(to) + acc[m][v]",
        "acc[m][v]",
        GEMM,
        "test_gemm",
        compiled="gemm.cpp",
    ),
    Bug(
        "gemm: the bias comes after the activation",
        "gemm_epilogue.h",
        "v = activate<ACT>(v);",
        "v = activate<ACT>(load(sums + i, lanes)) + (g.bias ? load(g.bias + column + i, lanes) : set(0.0f));",
        GEMM,
        "test_gemm",
        compiled="gemm.cpp",
    ),
    Bug(
        "packing: the odd last step of a bfloat16 weight is lost",
        "gemm_pack.cpp",
        "i + 1 < k ? from.at(first, i + 1)",
        "i + 2 < k ? from.at(first, i + 1)",
        GEMM,
        "packing",
    ),
    Bug(
        "packing: the last rows of a weight (k, n) are lost where they are no whole band",
        "gemm_pack.cpp",
        "for (int64_t k0 = 0; k0 < padded; k0 += band)",
        "for (int64_t k0 = 0; k0 + band <= padded; k0 += band)",
        GEMM,
        "packing",
    ),
    Bug(
        "packing: rows past the end of a weight (k, n) are read in its last band",
        "gemm_pack.cpp",
        "inside = g.k - k0 < steps ? g.k - k0 : steps",
        "inside = steps",
        GEMM,
        "packing",
    ),
    Bug(
        "packing: a rounded NaN is an infinity",
        "gemm_pack.cpp",
        "& ~nan) | ((bits | 0x400000) & nan)",
        "& ~nan) | (0x7f800000 & nan)",
        GEMM,
        "packing",
    ),
    Bug(
        "tiles: a weight's gradient loses an odd last pair of tokens",
        "gemm_tile.h",
        "r + 1 < rows ? x",
        "r + 2 < rows ? x",
        GEMM,
        "gradients and amx_emulated",
        compiled="gemm_train.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: one of three products of parts is left out",
        "gemm_tile.h",
        "if (PARTS == 2) load_b(b + f.part_b), add_products();",
        "",
        GEMM,
        "float32_in_two_parts",
        compiled="gemm_tile.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: the second part of a float32 number is cut off, not rounded",
        "gemm_pack.h",
        "uint16_t(rounded(rest_bits) >> 16)",
        "uint16_t(rest_bits >> 16)",
        GEMM,
        "float32_in_two_parts",
        compiled="gemm_tile.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: a gradient in two parts takes even tokens for odd ones",
        "gemm_train.cpp",
        "x + (r + 1) * ldx",
        "x + r * ldx",
        GEMM,
        "gradients_in_two_parts",
        compiled="gemm_train.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: the first of 512 tokens do not add to a gradient in two parts",
        "gemm_train.cpp",
        "columns, token == 0);",
        "columns, true);",
        GEMM,
        "gradients_in_two_parts",
        compiled="gemm_train.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: the second parts of a transposed weight lie where those of its neighbour do",
        "gemm_pack.cpp",
        "as_words(out + part + i * PANEL)",
        "as_words(out + part + i * PANEL + PANEL)",
        GEMM,
        "gradients_in_two_parts or from_both_sides",
        compiled="gemm_pack.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: what is beyond the last step of a weight in two parts is not zero",
        "gemm_pack.cpp",
        "const int64_t inside = g.k - k0 < PARTS_STEP ? g.k - k0 : PARTS_STEP;",
        "const int64_t inside = PARTS_STEP;",
        GEMM,
        "from_both_sides",
        compiled="gemm_pack.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: the sums of the last rows are left as they are",
        "gemm_tile.h",
        "        work.rest();\n    }",
        "    }",
        GEMM,
        "test_gemm and amx_emulated",
        compiled="gemm_tile.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: the next sums take the place of those that wait to be finished",
        "gemm_tile.h",
        "    work.rest();\n    tile_store",
        "    tile_store",
        GEMM,
        "(test_gemm or float32_in_two_parts) and amx_emulated",
        compiled="gemm_tile.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: wide activations keep what lay in the padding of their columns",
        "gemm_tile.cpp",
        "float x[STRIP] = {};",
        "float x[STRIP]; std::memset(x, 0xff, sizeof x);",
        ENCODER,
        "as_tiles",
        compiled="gemm_tile.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: the second row tile of wide activations is a row too far",
        "gemm_tile.cpp",
        "row / EDGE * (EDGE * depth)",
        "row / EDGE * (EDGE * depth + STEP)",
        ENCODER,
        "as_tiles",
        compiled="gemm_tile.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: sums that wait for the next steps are begun anew",
        "gemm_tile.h",
        "steps, k0 == 0, sums",
        "steps, true, sums",
        GEMM,
        "float32_in_two_parts or (test_gemm and amx_emulated)",
        compiled="gemm_tile.cpp",
        level="amx_emulated",
    ),
    Bug(
        "tiles: attention's result of the first 512 keys is not shrunk to the new maximum",
        "attention_amx.cpp",
        "store(to, load(to) * set(lanes[0]));",
        "store(to, load(to));",
        ATTENTION,
        "amx_emulated and odd",
        level="amx_emulated",
    ),
    Bug(
        "tiles: attention's weights past the last key stay what they were",
        "attention_amx.cpp",
        "c < STRIP; c += W) store(to + c, set(0.0f));",
        "c < 0; c += W) store(to + c, set(0.0f));",
        ATTENTION,
        "amx_emulated and (odd or short)",
        level="amx_emulated",
    ),
    Bug(
        "tiles: attention's keys under a causal mask begin again at every block of queries",
        "attention_amx_backward.cpp",
        "a_.causal && b.key + k >= b.first",
        "a_.causal && b.key + k >= 0",
        ATTENTION,
        "amx_emulated and odd and True",
        level="amx_emulated",
    ),
    Bug(
        "tiles: attention's odd queries drop what the even ones beside them do",
        "attention_amx_backward.cpp",
        "DROP ? Joined(keep(x, even_bits + c / 8), keep(y, odd_bits + c / 8)) : Joined(x, y)",
        "DROP ? Joined(keep(x, even_bits + c / 8), keep(y, even_bits + c / 8)) : Joined(x, y)",
        ATTENTION,
        "amx_emulated and equal",
        level="amx_emulated",
    ),
    Bug(
        "products in pairs: rows are taken to begin at whole words",
        "gemm_pack.h",
        "ld % 2 == 0",
        "ld > 0",
        GEMM,
        "pairs",
        compiled="gemm.cpp",
        level="avx512_bf16_pairs",
    ),
    Bug(
        "dw in pairs: every second token is lost",
        "gemm_train.cpp",
        "t + 1 < tokens ?",
        "false ?",
        GEMM,
        "pairs",
        level="avx512_bf16_pairs",
    ),
    Bug(
        "winograd: the products of a row's pairs are not subtracted",
        "gemm_winograd.h",
        "_mm512_set1_ps(products[m]));",
        "_mm512_setzero_ps());",
        WINOGRAD,
        compiled="gemm.cpp",
        level="avx512_winograd",
    ),
    Bug(
        "winograd: numbers are not brought to like size",
        "gemm_winograd.h",
        "if ((middling & first_lanes(width)) == first_lanes(width)) return half;",
        "return _mm512_setzero_ps();",
        WINOGRAD,
        compiled="gemm.cpp",
        level="avx512_winograd",
    ),
    Bug(
        "winograd: what is subtracted is summed in another order than what was added",
        "gemm_winograd.h",
        "products = fma(even, odd, products);",
        "products = products + even * odd;",
        WINOGRAD,
        "zeros",
        compiled="gemm_train.cpp",
        level="avx512_winograd",
    ),
    Bug(
        "winograd: squares beyond float32's range give no scale",
        "gemm_winograd.h",
        "_mm512_mask_mov_ps(bounded, middling, half)",
        "half",
        WINOGRAD,
        "smallest",
        compiled="gemm.cpp",
        level="avx512_winograd",
    ),
    Bug(
        "winograd: of three broadcasts the last is the second again",
        "gemm_winograd.h",
        "third(broadcast(row + 2 * M))",
        "third(broadcast(row + M))",
        WINOGRAD,
        compiled="gemm.cpp",
        level="avx512_winograd_registers",
    ),
    Bug(
        "int8 by AVX-VNNI: the upper eight outputs of a panel take the weights of the lower",
        "int8_dot.h",
        "high = _mm256_load_si256(b + 1)",
        "high = _mm256_load_si256(b)",
        INT8,
        "avx2_vnni_evex",
        compiled="gemm_int8.cpp",
        level="avx2_vnni_evex",
    ),
    Bug(
        "int8: groups of eight rounded inputs change places",
        "int8_dot.h",
        "_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)",
        "_mm256_setr_epi32(0, 1, 4, 5, 2, 6, 3, 7)",
        INT8,
        "avx2_vnni_evex",
        compiled="gemm_int8.cpp",
        level="avx2_vnni_evex",
    ),
    Bug(
        "int8 by AVX-512's VNNI: every panel takes the sums of the first",
        "int8_dot.h",
        "_mm512_cvtepi32_ps(acc[r][p])",
        "_mm512_cvtepi32_ps(acc[r][0])",
        INT8,
        "avx512_vnni",
        compiled="gemm_int8.cpp",
        level="avx512_vnni",
    ),
    Bug(
        "int8 by AVX-512's VNNI: a row's unquantised inputs are those of the first of its tile",
        "int8_pass.h",
        "set(x[r * count + o])",
        "set(x[o])",
        INT8,
        "avx512_vnni",
        compiled="gemm_int8.cpp",
        level="avx512_vnni",
    ),
    Bug(
        "int8: GELU's table ends after its first half",
        "gelu_table.h",
        "_mm256_load_ps(table + 8)",
        "_mm256_load_ps(table)",
        INT8,
        "avx2 and not avx2_",
        compiled="gemm_int8.cpp",
        level="avx2",
    ),
    Bug(
        "attention: of a wide head only the last sums remain",
        "attention_tile.h",
        "        add = true;\n",
        "",
        ATTENTION,
        "head_dims",
        compiled="attention_forward.cpp",
    ),
    Bug(
        "optimizer: lists of any length are read",
        "bindings.cpp",
        "if (places.size() % 8 || rates.size() != places.size() / 8 * 10)",
        "if (places.size() % 8)",
        OPTIM,
        "lists",
        level=SHARED,
    ),
    Bug(
        "dw: the bfloat16 gradients of 2,048 tokens each are rounded before they are added up",
        "gemm_train.cpp",
        "if (g.m <= TOKENS<T>) return",
        "return",
        GEMM,
        "one_rounded",
    ),
    Bug(
        "int8: threads do not wait for each other's rows",
        "gemm_int8.cpp",
        "#pragma omp barrier",
        "",
        INT8,
        "same_bits",
    ),
    Bug(
        "read_mask: a negative zero keeps",
        "mask.cpp",
        "Word(~sign)",
        "Word(~Word(0))",
        MASK,
        "zero",
        level=SHARED,
    ),
    Bug(
        "read_mask: the sign of a whole number is ignored too",
        "mask.cpp",
        "m.is_float ?",
        "true ?",
        MASK,
        "whole_number",
        level=SHARED,
    ),
    Bug(
        "read_mask: a masked first token of any row but the last is forgotten",
        "mask.cpp",
        "first_masked |= ",
        "first_masked = ",
        MASK,
        "dtype",
        level=SHARED,
    ),
    Bug(
        "read_mask: the shortest sequence is that of the last rows",
        "mask.cpp",
        "std::min(kept.shortest, length)",
        "length",
        MASK,
        "dtype or sizes",
        level=SHARED,
    ),
    Bug(
        "gelu: whole vectors are written at the end",
        "gelu.cpp",
        "gelu<TANH>(v), lanes);",
        "gelu<TANH>(v));",
        OPS,
        "nothing_is_written",
    ),
    Bug(
        "layer_norm: whole vectors are written at the end",
        "layer_norm.cpp",
        "load(a.bias + c, lanes)), lanes);",
        "load(a.bias + c, lanes)));",
        OPS,
        "nothing_is_written",
    ),
    Bug(
        "dropout: whole vectors are written at the end",
        "dropout.cpp",
        "dropped(load(x + row * cols + c, lanes)), lanes);",
        "dropped(load(x + row * cols + c, lanes)));",
        OPS,
        "nothing_is_written",
    ),
    Bug(
        "cross_entropy: whole vectors are written at the end",
        "cross_entropy.cpp",
        "g * probability(c, lanes), lanes);",
        "g * probability(c, lanes));",
        OPS,
        "nothing_is_written",
    ),
    Bug(
        "gemm: every block of rows is the first",
        "gemm_core.h",
        "pack_block<B>(a, rows.begin + part.begin,",
        "pack_block<B>(a, rows.begin,",
        GEMM,
        "test_gemm",
        compiled="gemm.cpp",
    ),
    Bug(
        "int8: a second block of rows begins where a second pass does",
        "gemm_int8.cpp",
        "task / job.widths * job.block_rows",
        "task / job.widths * PASS_ROWS",
        INT8,
        "sums",
    ),
    Bug(
        "int8: a weight's scale may be too small to be one",
        "pack_int8.cpp",
        ">= 0x1p-120f",
        "> 0.0f",
        INT8,
        "too_small",
        level=SHARED,
    ),
    Bug(
        "int8: outliers of a packed weight need not ascend",
        "pack_int8.cpp",
        "column <= before ||",
        "column < 0 ||",
        BY_NAME,
        "damaged",
        level=SHARED,
    ),
    Bug(
        "encoder: the feed-forward block writes every 512 rows to the first",
        "encoder.cpp",
        "none, a, w.sum + first * row,",
        "none, a, w.sum,",
        ENCODER,
        "longer_than",
        level=SHARED,
    ),
    Bug(
        "scratch: a buffer that is gone keeps its size",
        "scratch.cpp",
        "        buffer.bytes = 0;\n",
        "",
        NO_MEMORY,
        "scratch",
        level=SHARED,
    ),
    Bug(
        "read_mask: the first bound is left as it was",
        "mask.cpp",
        "    bounds[0] = 0;\n",
        "",
        MASK,
        "dtype",
        level=SHARED,
    ),
    Bug(
        "fingerprints: of the last buffer alone",
        "fingerprint.cpp",
        "all = mixed(all, one)",
        "all = one",
        ENCODER,
        "packed_again or data",
        level=SHARED,
    ),
    Bug(
        "modules: a forward of its own is not seen",
        "bindings_modules.cpp",
        "if (look_up(dict, names().forward.ptr())) return nullptr;",
        "",
        WALK,
        "as_it_was_made",
        level=SHARED,
    ),
    Bug(
        "modules: hooks are not seen",
        "bindings_modules.cpp",
        " || PyDict_Size(value) != 0",
        "",
        WALK,
        "as_it_was_made",
        level=SHARED,
    ),
    Bug(
        "modules: other attributes are not seen",
        "bindings_modules.cpp",
        "if (!equal) return nullptr;",
        "",
        WALK,
        "as_it_was_made",
        level=SHARED,
    ),
    Bug(
        "modules: a class that inherits is taken",
        "bindings_modules.cpp",
        "reinterpret_cast<PyObject*>(Py_TYPE(module)) != part.type.ptr()",
        "!PyObject_IsInstance(module, part.type.ptr())",
        WALK,
        "as_it_was_made",
        level=SHARED,
    ),
    Bug(
        "modules: one tensor that is another goes unnoticed",
        "bindings_modules.cpp",
        "same = same && place",
        "same = place",
        WALK,
        "same",
        level=SHARED,
    ),
    Bug(
        "gemm: a tile's rows begin at an offset of 32 bits",
        "gemm.cpp",
        "rows_to_columns(a + row * g.lda",
        "rows_to_columns(a + int32_t(row * g.lda)",
        FAR,
        "products",
    ),
    Bug(
        "products in pairs: a tile's rows begin at an offset of 32 bits",
        "gemm.cpp",
        "pairs_to_columns(a + row * g.lda",
        "pairs_to_columns(a + int32_t(row * g.lda)",
        FAR,
        "products and pairs",
        level="avx512_bf16_pairs",
    ),
    Bug(
        "gemm: a result's rows are at offsets of 32 bits",
        "gemm_epilogue.h",
        "at = row * g.ldc + column;",
        "at = int32_t(row * g.ldc + column);",
        FAR,
        "products",
        compiled="gemm.cpp",
    ),
    Bug(
        "dw: tokens are at offsets of 32 bits",
        "gemm_train.cpp",
        "load(dy + (k0 + t) * g.ldy",
        "load(dy + int32_t((k0 + t) * g.ldy)",
        FAR,
        "gradients",
        after="#else\n    const auto pack",
    ),
    Bug(
        "dw: 2,048 tokens begin at an offset of 32 bits",
        "gemm_train.cpp",
        "static_cast<const T*>(g.x) + token * g.ldx",
        "static_cast<const T*>(g.x) + int32_t(token * g.ldx)",
        FAR,
        "gradients",
    ),
    Bug(
        "cross_entropy: rows are at offsets of 32 bits",
        "cross_entropy.cpp",
        "logits + row * a.cols",
        "logits + int32_t(row * a.cols)",
        FAR,
        "cross_entropy",
    ),
    Bug(
        "gemm: work is shared among threads that were asked for and not given",
        "vec.h",
        "int64_t(omp_get_num_threads())",
        "int64_t(threads)",
        GEMM,
        "fewer",
        compiled="gemm.cpp",
    ),
    Bug(
        "winograd: the scale of the smallest numbers is infinite",
        "gemm_winograd.h",
        "_mm512_max_ps(_mm512_min_ps(exponent, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit))",
        "_mm512_min_ps(exponent, limit)",
        WINOGRAD,
        "smallest",
        compiled="gemm.cpp",
        level="avx512_winograd",
    ),
    Bug(
        "winograd: a weight of bfloat16 is read as float32",
        "gemm_pack.cpp",
        "(from_half ? pack_scaled<bf16> : pack_scaled<float>)(g)",
        "pack_scaled<float>(g)",
        WINOGRAD,
        "packed_form",
        level="avx512_winograd",
    ),
    Bug(
        "optimizer: what beta leaves of a moment is rounded as a number near one",
        "optimizer.cpp",
        "fma(set(0.0f) - rates.rate2, square, square)",
        "(set(1.0f) - rates.rate2) * square",
        OPTIM,
        "fades",
    ),
    Bug(
        "optimizer: moments stand still where the gradient is known to be zero",
        "optimizer.cpp",
        "if (!zero || any_bit(before) || any_bit(square))",
        "if (!zero)",
        FEW_ROWS,
        "same_bits",
    ),
    Bug(
        "optimizer: moments that never moved are written",
        "optimizer.cpp",
        "if (!zero || any_bit(before) || any_bit(square))",
        "if (true)",
        FEW_ROWS,
        "no_memory",
    ),
    Bug(
        "optimizer: a gradient is read where it is known to be zero",
        "optimizer.cpp",
        "return !t.written || t.written[begin / CHUNK];",
        "return true;",
        FEW_ROWS,
        "not_read",
    ),
    Bug(
        "optimizer: threads count chunks by what they cost in one pass alone",
        "optimizer.cpp",
        "at += cost(t, begin, end);",
        "at += end - begin;",
        FEW_ROWS,
        "same_bits",
    ),
    Bug(
        "optimizer: the norm adds up its chunks in float32",
        "optimizer.cpp",
        "double total = 0",
        "float total = 0",
        OPTIM,
        "norm_of",
    ),
    Bug(
        "encoder: a group of sequences takes chosen rows by their places in the batch",
        "encoder.cpp",
        "token -= first;",
        "(void)token;",
        ENCODER,
        "chosen_rows",
        level=SHARED,
    ),
    Bug(
        "encoder: layers that come twice are thought to be the last ones",
        "encoder.cpp",
        "std::max(layers_.size(), size_t(number) + 1)",
        "size_t(number) + 1",
        ENCODER,
        "comes_twice",
        level=SHARED,
    ),
    Bug(
        "encoder: a thread that finds no memory goes unnoticed",
        "encoder.cpp",
        "    attempt.end();\n",
        "",
        NO_MEMORY,
        level=SHARED,
    ),
]


def run(command: list, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def must(command: list, **options) -> str:
    done = run(command, **options)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command[:3]))} ... failed")
    return done.stdout


class Tree:
    """A copy of the repository with a build of its own."""

    def __init__(self, place: Path) -> None:
        self.root, self.build = place / "tree", place / "build"
        for name in must(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT).split("\n"):
            if name.startswith(("csrc/", "fastbert/", "tests/", "CMakeLists", "pyproject")) and (ROOT / name).is_file():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        import pybind11

        must(
            [
                "cmake",
                "-S",
                self.root,
                "-B",
                self.build,
                "-G",
                "Ninja",
                f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={self.build}",
                f"-DPython_EXECUTABLE={sys.executable}",
                f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            ]
        )
        must(["ninja", "-C", self.build])
        self.link = must(["ninja", "-C", self.build, "-t", "commands", "_C"]).strip().split("\n")[-1]
        self.install()
        python = "from fastbert import _native; print(*_native.extension().supported_isas())"
        levels = must([sys.executable, "-c", python], env=self.environment(), cwd=self.root).split()
        self.level = next(level for level in ("avx512", "avx2", "scalar") if level in levels)
        self.levels = {*levels, *(["avx2_vnni_evex"] if "avx512_vnni" in levels else []), "amx_emulated", SHARED, ""}

    def environment(self) -> dict[str, str]:
        # On a processor with AMX the tests of tiles would else take its own.
        tiles = {"FASTBERT_TEST_TILES": "amx_emulated"}
        return {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", **tiles}

    def install(self) -> None:
        (library,) = self.build.glob("_C.*.so")
        target = self.root / "fastbert" / library.name
        target.unlink(missing_ok=True)
        shutil.copy2(library, target)

    def object_of(self, source: str, level: str) -> Path:
        if level == SHARED:
            return self.build / f"CMakeFiles/_C.dir/csrc/{source}.o"
        return self.build / f"CMakeFiles/fastbert_{level or self.level}.dir/csrc/cpu/{source}.o"

    def make(self, source: str, level: str) -> None:
        """Compiles one file at one level and links; other levels keep what they had."""
        must(["ninja", "-C", self.build, str(self.object_of(source, level).relative_to(self.build))])
        must(["sh", "-c", self.link], cwd=self.build)
        self.install()

    def tests_pass(self, tests: str, words: str, level: str) -> tuple[bool, str]:
        ours = f"{self.level} and not {self.level}_"
        chosen = words if level else f"({words}) and {ours}" if words else ours
        done = run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", tests, "-k", chosen],
            env=self.environment(),
            cwd=self.root,
        )
        if done.returncode not in (0, 1):
            sys.exit(f"{done.stdout}\nthe tests of {tests} did not run")
        failed = [line for line in done.stdout.split("\n") if line.startswith(("FAILED", "ERROR"))]
        return done.returncode == 0, failed[0].split(" - ")[0].partition(" ")[2] if failed else ""

    def caught(self, bug: Bug) -> str:
        """The test that caught it, or nothing."""
        path = bug.path(self.root, self.level)
        before, compiled = path.read_text(), bug.compiled or bug.source
        planted = bug.planted(before)
        if planted is None:
            sys.exit(f"{bug.what}: {path.name} has no {bug.old!r} any more: adapt the list")
        good = self.object_of(compiled, bug.level).read_bytes()
        path.write_text(planted)
        self.make(compiled, bug.level)
        test = self.tests_pass(bug.tests, bug.words, bug.level)[1]
        # The next bug is linked with the good object.
        path.write_text(before)
        self.object_of(compiled, bug.level).write_bytes(good)
        return test


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--only", default="", help="only the bugs whose description has this word")
    bugs = [bug for bug in BUGS if arguments.parse_args().only in bug.what]
    with tempfile.TemporaryDirectory(prefix="planted_bugs.") as place:
        tree = Tree(Path(place))
        for bug in [bug for bug in bugs if bug.level not in tree.levels]:
            print(f"left out, as this processor has no {bug.level}: {bug.what}", flush=True)
            bugs.remove(bug)
        for tests, words, level in dict.fromkeys((bug.tests, bug.words, bug.level) for bug in bugs):
            passed, test = tree.tests_pass(tests, words, level)
            if not passed:
                sys.exit(f"without a bug {test} must pass")
        print(
            f"{len(bugs)} bugs, one at a time, at level {tree.level}\n\n| bug | caught by | s |\n|---|---|---|",
            flush=True,
        )
        missed = 0
        for bug in bugs:
            begin, test = time.monotonic(), tree.caught(bug)
            missed += not test
            print(f"| {bug.what} | {test or '**nothing**'} | {time.monotonic() - begin:.0f} |", flush=True)
    print(f"\n{len(bugs) - missed} of {len(bugs)} caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
