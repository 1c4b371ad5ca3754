"""Plants bugs of one line in copies of the Triton kernels and demands that their tests catch every one.

Use:  python tests/triton_backend/planted_bugs.py [--short] [--only WORD]     (no GPU; about a minute, --short 15 s)
      python tests/triton_backend/planted_bugs.py --check     (only whether every bug has its place, and tests)

The package of kernels is copied to a temporary place, patched there and run in Triton's interpreter by
test_triton_kernels.py and test_triton_fp8.py until the first failure. Without a bug the same tests must pass. Exits
with 1 where a bug was not caught.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pytest  # noqa: E402
import torch  # noqa: E402

from fastbert import triton_kernels  # noqa: E402
from fastbert.ops import _triton_encoder  # noqa: E402


@dataclass(frozen=True)
class Bug:
    what: str
    source: str  # under fastbert/triton_kernels
    old: str  # its first occurrence (after `after`) becomes `new`
    new: str
    words: str  # for pytest -k
    after: str = ""
    short: bool = False  # one of those that a run of the slow tests plants


ATTENTION = "test_attention and dtype0 and "
CAST = "test_cast and shape0 and dtype0"
TESTS = ("test_triton_kernels.py", "test_triton_fp8.py")
BUGS = [
    Bug(
        "attention: keys past the end count (a dropped mask)",
        "attention.py",
        'tl.where(columns < length, 0.0, float("-inf"))',
        "tl.where(columns < length, 0.0, 0.0)",
        ATTENTION + "lengths1",
        short=True,
    ),
    Bug(
        "attention: a causal model sees what comes after",
        "attention.py",
        "columns[None, :] <= rows[:, None]",
        "columns[None, :] <= rows[:, None] + 1",
        ATTENTION + "lengths2",
    ),
    Bug(
        "attention: the last block of keys is left out (an off-by-one tile)",
        "attention.py",
        "range(0, last, BLOCK_N)",
        "range(0, last - BLOCK_N + 1, BLOCK_N)",
        ATTENTION + "lengths3",
    ),
    Bug(
        "attention: causal sums end a block early",
        "attention.py",
        "first_row + BLOCK_M)",
        "first_row + BLOCK_M - BLOCK_N)",
        ATTENTION + "lengths2",
        after="def _attention_fwd_kernel",
    ),
    Bug(
        "attention: scores are scaled twice",
        "attention.py",
        "(softmax_scale * LOG2E)",
        "(softmax_scale * softmax_scale * LOG2E)",
        ATTENTION + "lengths1",
        short=True,
    ),
    Bug(
        "attention: what is kept is not scaled up (a wrong scale)",
        "attention.py",
        "acc *= keep_scale",
        "acc *= 1.0",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention: the running sum is not rescaled",
        "attention.py",
        "total = total * old + ",
        "total = total + ",
        ATTENTION + "lengths4",
    ),
    Bug(
        "attention: later blocks read the bits of the first",
        "attention.py",
        "rows < length, first, bit_blocks",
        "rows < length, first * 0, bit_blocks",
        ATTENTION + "lengths2",
    ),
    Bug(
        "attention backward: the seed is that of another run (a stale seed)",
        "attention_backward.py",
        "seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)",
        "seed, offset = tl.load(rng_ptr) + 1, tl.load(rng_ptr + 1)",
        ATTENTION + "lengths1",
        short=True,
    ),
    Bug(
        "attention backward: the offset is not read",
        "attention_backward.py",
        "seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)",
        "seed, offset = tl.load(rng_ptr), tl.load(rng_ptr)",
        ATTENTION + "lengths1",
        after="def _attention_bwd_dq_kernel",
    ),
    Bug(
        "attention backward: the gradient of K is not scaled",
        "attention_backward.py",
        "dk * (softmax_scale * keep_scale)",
        "dk * keep_scale",
        ATTENTION + "lengths3",
    ),
    Bug(
        "attention backward: causal gradients begin a block late",
        "attention_backward.py",
        "first_column // BLOCK_M * BLOCK_M",
        "(first_column // BLOCK_M + 1) * BLOCK_M",
        ATTENTION + "lengths2",
    ),
    Bug(
        "attention backward: delta is not taken away",
        "attention_backward.py",
        "(dprobs - delta)",
        "dprobs",
        ATTENTION + "lengths3",
    ),
    Bug(
        "attention backward: with dropout delta is that of rows that nothing was dropped of (a wrong scale)",
        "attention_backward.py",
        "delta *= (65536 - threshold) * (1 / 65536)",
        "delta *= 1.0",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention backward: keys past the end are summed over (a dropped mask)",
        "attention_backward.py",
        "first_column + BLOCK_N > length",
        "first_column > length",
        "test_attention_of_scores_far_below_zero",
        short=True,
    ),
    Bug(
        "attention backward: the gradient of V is not scaled up (a wrong scale)",
        "attention_backward.py",
        "dv * keep_scale",
        "dv * 1.0",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention: two columns have the bits of two others",
        "attention_dropout.py",
        "_two(w1, limit, 2)",
        "_two(w2, limit, 2)",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention: the halves of a word change places",
        "attention_dropout.py",
        "(low << bit) | (high << (bit + 1))",
        "(high << bit) | (low << (bit + 1))",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention: the bits are of another run (a stale seed)",
        "attention_dropout.py",
        "seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)",
        "seed, offset = tl.load(rng_ptr) + 1, tl.load(rng_ptr + 1)",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention: bits are drawn of a sequence's first columns alone (an off-by-one tile)",
        "attention_dropout.py",
        "range(0, length, 8 * BLOCK_G)",
        "range(0, length - 8 * BLOCK_G + 1, 8 * BLOCK_G)",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention: a row writes its bits over those of the next sequence (a race)",
        "attention_dropout.py",
        "mask=(rows < length)[:, None])",
        "mask=((rows < length) | ((start == 0) & (rows < T)))[:, None])",
        ATTENTION + "lengths2",
    ),
    Bug(
        "attention backward: keys read the bits of the first block of columns",
        "attention_backward.py",
        "load_keep(bits_ptr, first_bits + rows, rows < length, first_column,",
        "load_keep(bits_ptr, first_bits + rows, rows < length, first_column * 0,",
        ATTENTION + "lengths2",
    ),
    Bug(
        "attention backward: rows past the end hold what was in memory (a missing other=)",
        "attention_backward.py",
        "delta = tl.load(delta_ptr + rows, mask=rows < length, other=0.0)",
        "delta = tl.load(delta_ptr + rows, mask=rows < length)",
        ATTENTION + "lengths6",
    ),
    Bug(
        "attention backward in one pass: the gradient of K is not scaled",
        "attention_backward.py",
        "tl.dot(tl.trans(dscores), q, input_precision=PRECISION) * (softmax_scale * keep_scale)",
        "tl.dot(tl.trans(dscores), q, input_precision=PRECISION) * keep_scale",
        ATTENTION + "lengths1",
        after="def _attention_bwd_dq_kernel",
    ),
    Bug(
        "attention backward in one pass: delta is that of half a row (a wrong scale)",
        "attention_backward.py",
        "tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)",
        "tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1) * 0.5",
        ATTENTION + "lengths1",
    ),
    Bug(
        "attention backward in one pass: a sequence longer than a block takes it",
        "attention_backward.py",
        'max_seqlen <= settings["BLOCK_M"]',
        'max_seqlen <= 3 * settings["BLOCK_M"]',
        ATTENTION + "lengths6",
        short=True,
    ),
    Bug(
        "layer_norm: columns past the end hold what was in memory (a missing other=)",
        "layer_norm.py",
        "z = tl.load(x_ptr + at, mask=inside, other=0.0)",
        "z = tl.load(x_ptr + at, mask=inside)",
        "test_layer_norm and dtype0 and shape0",
        short=True,
    ),
    Bug(
        "layer_norm: columns past the end count in the variance (a dropped mask)",
        "layer_norm.py",
        "centred = tl.where(inside, z - mean[:, None], 0.0)",
        "centred = z - mean[:, None]",
        "test_layer_norm and dtype0 and shape0",
    ),
    Bug(
        "layer_norm backward: dropout draws the bits of the next row",
        "layer_norm.py",
        "threshold, numbers, 0, BLOCK_M, BLOCK_N)",
        "threshold, numbers + 1, 0, BLOCK_M, BLOCK_N)",
        "test_layer_norm and dtype0 and shape0",
        after="def _layer_norm_bwd_kernel",
    ),
    Bug(
        "layer_norm backward: a program leaves out its last row",
        "common.py",
        "return program * BLOCK_M, M.to(tl.int64),",
        "return program * BLOCK_M, M.to(tl.int64) - 1,",
        "test_layer_norm and dtype0 and shape0",
    ),
    Bug(
        "layer_norm backward: the residual gets the dropped gradient",
        "layer_norm.py",
        "tl.store(dresidual_ptr + at, dz.to",
        "tl.store(dresidual_ptr + at, (dz * 0.5).to",
        "test_layer_norm and dtype0 and shape0",
    ),
    Bug(
        "sum_rows: the last block of rows is left out (an off-by-one tile)",
        "layer_norm.py",
        "range(0, M, BLOCK_M,",
        "range(0, M - BLOCK_M + 1, BLOCK_M,",
        "test_gelu and dtype0 and shape0",
        short=True,
    ),
    Bug(
        "sum_rows: every part gets the first one's sums",
        "layer_norm.py",
        "partial_ptr += part * N",
        "partial_ptr += 0 * part * N",
        "test_sums_over_rows",
    ),
    Bug(
        "gelu backward: the bias is forgotten",
        "gelu.py",
        ".to(tl.float32) + bias",
        ".to(tl.float32)",
        "test_gelu and dtype0",
    ),
    Bug(
        "gelu in 16 bits: the tail's polynomial is a little off",
        "gelu.py",
        "p * a - 4.61272168e-01",
        "p * a - 4.60272168e-01",
        "test_the_tail_of_gelu",
    ),
    Bug(
        "gelu: the tanh form's slope lacks a factor (a wrong scale)",
        "gelu.py",
        "x * slope * (2 * _TANH_SCALE)",
        "x * slope * _TANH_SCALE",
        "test_gelu and dtype0",
    ),
    Bug(
        "dropout: columns past the first block get its bits",
        "dropout.py",
        "group = tl.program_id(1) * (BLOCK_N // 8)",
        "group = tl.program_id(1) * 0",
        "dropout_has",
    ),
    Bug("dropout: another site", "common.py", "site.to(tl.uint32)", "site.to(tl.uint32) + 1", "dropout_has"),
    Bug("dropout: the threshold is kept too", "common.py", "threshold << 16", "threshold << 15", "dropout_has"),
    Bug(
        "cross_entropy: logits past the end count as 0 (a wrong other=)",
        "cross_entropy.py",
        'other=float("-inf")',
        "other=0.0",
        "test_cross_entropy and dtype0",
    ),
    Bug(
        "cross_entropy backward: no gradient of the label",
        "cross_entropy.py",
        "tl.where(columns == label, 1.0, 0.0)",
        "0.0",
        "test_cross_entropy and dtype0",
    ),
    Bug(
        "cross_entropy: ignored rows count",
        "cross_entropy.py",
        "tl.where(counts, above + (top - x), 0.0)",
        "above + (top - x)",
        "test_cross_entropy and dtype0",
    ),
    Bug(
        "embedding: the padding token gets a gradient",
        "embedding.py",
        "if here == padding_idx:",
        "if here == -5:",
        "test_embedding and dtype0",
    ),
    Bug(
        "embedding: a long run's chunks count more than once",
        "embedding.py",
        "chunk += PARTS * CHUNK",
        "chunk += CHUNK",
        "test_a_table_of_few_rows",
    ),
    Bug(
        "embedding: a run's later chunks are left out (an off-by-one tile)",
        "embedding.py",
        "chunk = (place // CHUNK + 1) * CHUNK",
        "chunk = (place // CHUNK + 2) * CHUNK",
        "test_embedding and dtype0",
    ),
    Bug(
        "8 bits: what is too large is not clipped (a dropped limit)",
        "common.py",
        "clipped = tl.minimum(tl.maximum(x * scale, -LIMIT), LIMIT)",
        "clipped = x * scale",
        CAST,
        short=True,
    ),
    Bug("8 bits: tensors are cast as they are (a wrong scale)", "common.py", "maximum(x * scale", "maximum(x", CAST),
    Bug("8 bits: the sign counts in the largest magnitude", "common.py", "tl.max(tl.abs(x), 1)", "tl.max(x, 1)", CAST),
    Bug(
        "8 bits: what is not finite is made finite",
        "common.py",
        'tl.where(tl.abs(x) < float("inf"), clipped, float("nan"))',
        "clipped",
        "not_finite",
    ),
    Bug(
        "8 bits: the transpose is not filled up (an off-by-one tile)",
        "fp8.py",
        "(tl.trans(rows) < M_up)",
        "(tl.trans(rows) < M_up - 15)",
        CAST,
    ),
    Bug(
        "8 bits: rows past the end hold the GELU of the bias (a dropped mask)",
        "fp8.py",
        "tl.where(inside, _gelu(x, TANH, EXACT), 0.0)",
        "_gelu(x, TANH, EXACT)",
        "test_gelu and shape0 and True",
    ),
    Bug(
        "8 bits: the gradient of the GELU's input is cast before it is rounded",
        "fp8.py",
        "dx = dx.to(x_ptr.dtype.element_ty).to(tl.float32)",
        "dx = dx.to(tl.float32)",
        "test_gelu and shape2 and True",
    ),
    Bug(
        "8 bits: LayerNorm's are those of another scale",
        "layer_norm.py",
        "to_fp8(wide, tl.load(slot_scale_ptr)",
        "to_fp8(wide, tl.load(slot_scale_ptr) * 2",
        "fp8 and test_layer_norm and shape0",
    ),
    Bug(
        "attention: a sequence's log-sum-exps run on into the next one's (a race)",
        "attention.py",
        "lse, mask=rows < length)",
        "lse, mask=(rows < length) | ((start == 0) & (rows < T)))",
        ATTENTION + "lengths2",
        short=True,
    ),
    Bug(
        "attention: the gradient reads what other threads wrote, with no barrier between (a race)",
        "attention_backward.py",
        "tl.debug_barrier()",
        "pass",
        "test_attention_of_several_blocks_of_keys and dtype0",
        after="def _attention_bwd_dq_kernel",
    ),
    Bug(
        "attention: the gradient reads beside the log-sum-exps what counts for nothing (a dropped mask)",
        "attention_backward.py",
        "lse2 = tl.load(lse_ptr + at, mask=inside, other=0.0) * LOG2E",
        "lse2 = tl.load(lse_ptr + at) * LOG2E",
        ATTENTION + "lengths6",
    ),
]


def use_kernels(directory: Path) -> None:
    """The next launch imports the kernels from there."""
    for name in [name for name in sys.modules if name.startswith("fastbert.triton_kernels.")]:
        del sys.modules[name]
        delattr(triton_kernels, name.rpartition(".")[2])
    _triton_encoder._kernels.cache_clear()
    triton_kernels.__path__ = [str(directory)]
    importlib.invalidate_caches()


class Chosen:
    """How many tests each of these words choose, of one collection: a collection for each takes a second."""

    def __init__(self, words: list[str]) -> None:
        self.counts = dict.fromkeys(words, 0)

    def pytest_collection_modifyitems(self, session, config, items) -> None:
        choose = config.pluginmanager.subset_hook_caller("pytest_collection_modifyitems", remove_plugins=[self])
        for config.option.keyword in self.counts:
            left = list(items)
            choose(session=session, config=config, items=left)
            self.counts[config.option.keyword] = len(left)
        config.option.keyword = ""


def run(words: str, *more: str, plugins: list | None = None) -> tuple[int, str]:
    """pytest's exit code for the tests of these words, and what it said."""
    out = io.StringIO()
    options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", *more)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = pytest.main([*options, "-k", words, *(str(HERE / name) for name in TESTS)], plugins)
    return int(code), out.getvalue()


def first_failure(words: str) -> str:
    """The first test that fails among those of these words, or nothing."""
    code, said = run(words)
    if code not in (0, 1):
        sys.exit(f"{said}\nthe tests of {words!r} did not run")
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if code and not failed:
        sys.exit(f"{said}\na test failed without a name")
    return failed[0].split(" - ")[0].partition("::")[2] if code else ""


def planted(bug: Bug, text: str) -> str:
    """The source with the bug in it."""
    at = text.find(bug.old, max(text.find(bug.after), 0))
    if at < 0 or bug.after not in text:
        sys.exit(f"{bug.what}: {bug.source} has no {bug.old!r} any more: adapt the list")
    return text[:at] + bug.new + text[at + len(bug.old) :]


def check(bugs: list[Bug], good: Path) -> None:
    """Ends the process where a bug of the list has no place in the sources, or no test, any more."""
    for bug in bugs:
        planted(bug, (good / bug.source).read_text())
    chosen = Chosen([bug.words for bug in bugs])
    code, said = run("", "--collect-only", plugins=[chosen])
    if code:
        sys.exit(f"{said}\nthe tests cannot be collected")
    for words, count in chosen.counts.items():
        if not count:
            sys.exit(f"no test has the words {words!r} any more: adapt the list")
    print(f"{len(bugs)} bugs have their place and their tests")


def caught(bug: Bug, number: int, good: Path, place: Path) -> str:
    """The test that caught it, or nothing."""
    # A name of its own: Python would take bytecode of the same second and size for that of the new file.
    directory = place / f"bug{number}"
    shutil.copytree(good, directory, ignore=shutil.ignore_patterns("__pycache__"))
    path = directory / bug.source
    path.write_text(planted(bug, path.read_text()))
    use_kernels(directory)
    return first_failure(bug.words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="one bug of each kind")
    parser.add_argument("--only", default="", help="only the bugs whose description has this word")
    parser.add_argument("--check", action="store_true", help="plant none, and look whether the list fits the sources")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS if options.only in bug.what and (bug.short or not options.short)]
    torch.set_num_threads(1)
    good = Path(triton_kernels.__file__).parent
    if options.check:
        check(bugs, good)
        return
    # In a test run the tests themselves have just passed.
    for words in dict.fromkeys(bug.words for bug in bugs if not options.short):
        failed = first_failure(words)
        if failed:
            sys.exit(f"without a bug {failed} must pass")
    print(f"{len(bugs)} bugs, one at a time\n\n| bug | caught by | s |\n|---|---|---|", flush=True)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="planted_bugs.") as place:
        for number, bug in enumerate(bugs):
            begin, test = time.monotonic(), caught(bug, number, good, Path(place))
            missed += not test
            print(f"| {bug.what} | {test or '**nothing**'} | {time.monotonic() - begin:.1f} |", flush=True)
    print(f"\n{len(bugs) - missed} of {len(bugs)} caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
