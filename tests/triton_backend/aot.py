"""Compiles the Triton kernels ahead of time, with no GPU, at every launch setting that they ship with.

``python tests/triton_backend/aot.py [--short] [80 | 90]`` prints the table of what each needs: registers, shared
memory, spilled bytes, matrix instructions, divisions, roots and powers that are not rounded correctly, loads ahead of
their use (asynchronous copies), casts to 8 bits that the assembler may read too early (`torn`), products of matrices
that go on from a sum (`chained`), and how many programs a multiprocessor holds. The test beside it holds the short
table to limits; there matrix instructions are counted in PTX, each of which the assembler turns into some of the
machine's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastbert import fp8
from fastbert.triton_kernels import (
    adamw,
    attention,
    attention_backward,
    attention_dropout,
    common,
    cross_entropy,
    dropout,
    gelu,
    lamb,
    layer_norm,
    linear,
    optimizer,
)
from fastbert.triton_kernels import embedding as embedding_kernels
from fastbert.triton_kernels import fp8 as fp8_kernels

ARCHITECTURES = (80, 90)
_INTS = {
    "site",
    "threshold",
    "bit_blocks",
    "N",
    "M",
    "T",
    "sequences",
    "rows_each",
    "nheads",
    "ignore_index",
    "padding_idx",
    "stride_m",
} | {
    "first_chunk",
    "V",
    "WIDTH",
    "TYPES",
    "P",
    "num_chunks",
    "M_up",
}
_FLOATS = {"eps", "scale", "keep_scale", "softmax_scale", "max_norm", "most_norm"}
_FP32 = {"mean", "rstd", "partial", "lse", "lse2", "delta", "loss", "dloss", "weight", "bias", "x_bias", "total"}
_FP32 |= {"first", "second", "third"}
_FP32 |= {"slot_scale", "rates", "control", "squares", "trusts", "lr", "grad_scale"}
_INT64 = {"rng", "labels", "ids", "types", "order", "places"}
_OTHERS = {
    "cu_seqlens": "i32",
    "maxima": "i32",
    "chunks": "i32",
    "bounds": "i32",
    "hyper": "fp64",
    "bytes": "u8",
    "sorted": "i16",
}

_EIGHT_BITS = {fp8.LARGEST[fp8.E4M3]: "fp8e4nv", fp8.LARGEST[fp8.E5M2]: "fp8e5"}


@dataclass
class Resources:
    """What one kernel needs at one setting."""

    name: str
    arch: int
    registers: int
    shared: int
    spills: int
    hmma: int
    hgmma: int
    approximate: int
    ahead: int
    torn: int
    chained: int
    warps: int

    @property
    def resident(self) -> int:
        """How many programs a multiprocessor holds at a time: by its 65,536 registers, of which a thread takes a
        multiple of 8, its 64 warps, its shared memory, and at most 32.
        """
        registers = -(-self.registers // 8) * 8 * 32 * self.warps
        shared = {80: 164, 90: 228}[self.arch] * 1024 // (self.shared + 1024)
        return min(65536 // registers, 64 // self.warps, shared, 32)

    @property
    def row(self) -> str:
        return (
            f"| {self.name} | sm_{self.arch} | {self.registers} | {self.shared / 1024:.1f} | {self.spills} "
            f"| {self.hmma} | {self.hgmma} | {self.approximate} | {self.ahead} | {self.torn} | {self.chained} "
            f"| {self.resident} |"
        )


def settings(arch: int, short: bool = False):
    """(name, kernel, dtype of the activations, constexprs, options) of every launch that ships for an architecture.

    ``short``: of sm_80 without causal and fp16's, which take the same tiles, and without a length between two others:
    they are compiled for sm_90, and of sm_80 spills are not limited.
    """
    whole = not short or arch == max(ARCHITECTURES)
    yield from layer_settings()
    yield from _bits_settings()
    yield from attention_settings(arch, (32, 64, 128), (64, 128, 256, 512, 1024) if whole else (64, 128, 512, 1024))
    if whole:
        yield from attention_settings(arch, (64,), (128, 512, 1024), causal=True)
        # The other 16 bits take the same tiles; one of each kind shows that they fit.
        yield from attention_settings(arch, (64,), (512,), dtype="fp16")
        yield from attention_settings(arch, (64, 128), (512,), dtype="fp32")
        wanted = ("layer_norm_fwd 1024", "layer_norm_bwd 1024", "gelu_fwd tanh", "gelu_bwd tanh")
        yield from ((f"{name} fp16", *rest) for name, *rest in layer_settings("fp16") if name in wanted)
        wanted = ("cross_entropy_fwd", "cross_entropy_bwd")
        yield from ((f"{name} fp32", *rest) for name, *rest in layer_settings("fp32") if name in wanted)
    yield from optimizer_settings()
    if arch >= 89:  # older ones have no 8-bit floats
        yield from fp8_settings()


def layer_settings(dtype: str = "bf16"):
    plain = {"LIMIT": 0.0, "LANES": fp8.LANES}  # nothing in 8 bits
    for block, numbered in ((256, False), (1024, False), (1024, True), (4096, False)):
        flags = {"HAS_X_BIAS": True, "HAS_RESIDUAL": True, "HAS_DROPOUT": True, "NUMBERED": numbered}
        size = f"{block} numbered" if numbered else str(block)
        tile, launch = _apart(layer_norm.forward_settings(block))
        both = {**flags, **tile, "SAVE_SUM": True, **plain}
        yield f"layer_norm_fwd {size}", layer_norm._layer_norm_fwd_kernel, dtype, both, launch
        tile, launch = _apart(layer_norm.backward_settings(block))
        yield f"layer_norm_bwd {size}", layer_norm._layer_norm_bwd_kernel, dtype, {**flags, **tile}, launch
    tile, launch = _apart(layer_norm.SUM_ROWS)
    yield "sum_rows", layer_norm.sum_rows_kernel, dtype, tile, launch
    tile, launch = _apart(linear.sum_settings(3072))
    yield "partial_sums", linear._partial_sums_kernel, dtype, tile, launch
    for tanh in (False, True):
        flags = {"TANH": tanh, "HAS_BIAS": True}
        kind = "tanh" if tanh else "erf"
        forward = {**flags, "BLOCK_M": 8, "BLOCK_N": gelu._BLOCK_N}
        yield f"gelu_fwd {kind}", gelu._gelu_fwd_kernel, dtype, forward, {}
        tile, launch = _apart(gelu.backward_settings(4096, tanh))
        yield f"gelu_bwd {kind}", gelu._gelu_bwd_kernel, dtype, {**flags, **tile}, launch
    yield "dropout", dropout._dropout_kernel, dtype, {"BLOCK_M": 4, "BLOCK_N": 256, "NUMBERED": False}, {}
    tile, launch = _apart(cross_entropy.forward_settings(30522, 4 if dtype == "fp32" else 2))
    yield "cross_entropy_fwd", cross_entropy._cross_entropy_fwd_kernel, dtype, tile, launch
    block = {"BLOCK": cross_entropy._BLOCK}
    yield "cross_entropy_bwd", cross_entropy._cross_entropy_bwd_kernel, dtype, block, {"num_warps": 8}
    for block in (1024, 4096):
        flags, launch = {"HAS_DROPOUT": True, "BLOCK_N": block}, {"num_warps": layer_norm.warps(block)}
        saved = {**flags, "SAVE": True}
        yield f"embedding_fwd {block}", embedding_kernels._embedding_fwd_kernel, dtype, saved, launch
        yield f"embedding_bwd {block}", embedding_kernels._embedding_bwd_kernel, dtype, flags, launch
    yield "lookup_bwd chunks", embedding_kernels._sum_chunks_kernel, dtype, {"BLOCK_N": 256}, {}
    parts = {"PARTS": embedding_kernels.PARTS}
    yield "lookup_bwd runs", embedding_kernels._sum_runs_kernel, dtype, {**parts, "BLOCK_N": 256}, {}


def attention_settings(arch, head_dims, lengths, *, causal: bool = False, dtype: str = "bf16"):
    """As `settings`: forward at each length, backward at each that it does in one pass, and in two."""
    more = " causal" * causal + (f" {dtype}" if dtype != "bf16" else "")
    for head_dim in head_dims:
        sizes = {"CAUSAL": causal, "HAS_DROPOUT": True, "HEAD_DIM": head_dim, "BLOCK_D": head_dim}
        itemsize, sizes["PRECISION"] = (4, "ieee") if dtype == "fp32" else (2, "tf32")
        for max_seqlen in lengths:
            tiles, launch = _apart(attention.forward_settings(head_dim, max_seqlen, itemsize))
            one_block = max_seqlen <= tiles["BLOCK_N"]
            kernel = attention._attention_fwd_block_kernel if one_block else attention._attention_fwd_kernel
            yield f"attention_fwd d={head_dim} S={max_seqlen}{more}", kernel, dtype, {**sizes, **tiles}, launch
        for max_seqlen in lengths:
            tiles, launch = _apart(attention_backward.backward_settings(head_dim, max_seqlen, itemsize, arch))
            one_pass = max_seqlen <= tiles["BLOCK_M"]
            flags = {**sizes, **tiles}
            both = {**flags, "ONE_PASS": one_pass}
            if one_pass:
                name = f"attention_bwd d={head_dim} S={max_seqlen}{more}"
                yield name, attention_backward._attention_bwd_dq_kernel, dtype, both, launch
        # The last length is of several blocks, and others take the same tiles.
        keys, keys_launch = _apart(attention_backward.keys_settings({**tiles, **launch}, head_dim))
        dkdv = attention_backward._attention_bwd_dkdv_kernel
        yield f"attention_dkdv d={head_dim}{more}", dkdv, dtype, {**sizes, **keys}, keys_launch
        yield f"attention_dq d={head_dim}{more}", attention_backward._attention_bwd_dq_kernel, dtype, both, launch


def _bits_settings():
    tile = {"BLOCK_M": attention_dropout.BLOCK_M, "BLOCK_G": attention_dropout.BLOCK_G}
    yield "dropout bits", attention_dropout._bits_kernel, "bf16", tile, {}


def fp8_settings(dtype: str = "bf16"):
    """As `settings`: what writes 8 bits. Activations are e4m3, gradients e5m2."""
    e4m3, e5m2 = ({"LIMIT": fp8.LARGEST[kind], "LANES": fp8.LANES} for kind in (fp8.E4M3, fp8.E5M2))
    flags = {"HAS_X_BIAS": True, "HAS_RESIDUAL": True, "HAS_DROPOUT": True, "NUMBERED": False, "SAVE_SUM": True, **e4m3}
    for block in (256, 1024):
        tile, launch = _apart(layer_norm.forward_settings(block))
        yield f"layer_norm_fwd {block} e4m3", layer_norm._layer_norm_fwd_kernel, dtype, {**flags, **tile}, launch
    tile = {"BLOCK_M": fp8_kernels.BLOCK, "BLOCK_N": fp8_kernels.BLOCK}
    cast = fp8_kernels._cast_kernel
    yield "cast e4m3", cast, dtype, {**tile, **e4m3, "ACROSS": False, "HAS_SUM": False}, {}
    yield "cast e4m3 of a weight", cast, "fp32", {**tile, **e4m3, "ACROSS": True, "HAS_SUM": False}, {}
    yield "cast e5m2, sums", cast, dtype, {**tile, **e5m2, "ACROSS": True, "HAS_SUM": True}, {}
    yield "transpose of 8 bits", fp8_kernels._transpose_kernel, "u8", tile, {}
    for tanh in (False, True):
        kind = "tanh" if tanh else "erf"
        yield f"gelu_fwd {kind} e4m3", fp8_kernels._gelu_cast_kernel, dtype, {**tile, **e4m3, "TANH": tanh}, {}
        yield f"gelu_bwd {kind} e5m2", fp8_kernels._gelu_bwd_cast_kernel, dtype, {**tile, **e5m2, "TANH": tanh}, {}


def optimizer_settings():
    """As `settings`: narrow parameters with masters, and float32 ones; tensors that begin at multiples of 16 bytes."""
    launch = {"num_warps": optimizer.WARPS}
    flags = {"ALIGNED": True, "BLOCK": optimizer.BLOCK}
    for name, kind in (("bf16", tl.bfloat16), ("fp32", tl.float32)):
        gradient, param = {"GRAD_TYPE": kind}, {"PARAM_TYPE": kind, "HAS_MASTER": kind != tl.float32}
        yield f"square_sums {name}", optimizer._square_sums_kernel, "fp32", {**flags, **gradient}, launch
        both = {**flags, **gradient, **param}
        yield f"adamw {name}", adamw._adamw_kernel, "fp32", both, launch
        yield f"lamb_measure {name}", lamb._lamb_measure_kernel, "fp32", both, launch
        yield f"lamb_move {name}", lamb._lamb_move_kernel, "fp32", {**flags, **param}, launch
    sums = {"SUMS": optimizer.SUMS}
    yield "optimizer control", optimizer._control_kernel, "fp32", sums, {"num_warps": 4}
    yield "lamb_trust", lamb._lamb_trust_kernel, "fp32", sums, {"num_warps": 4}


def _apart(setting: dict) -> tuple[dict, dict]:
    """(constexprs, options) of a launch's setting, without what the launcher alone reads."""
    tiles = {name: value for name, value in setting.items() if name.isupper()}
    return tiles, {name: value for name, value in setting.items() if name.startswith("num_")}


def _signature(kernel, dtype: str, constexprs: dict) -> dict[str, str]:
    types = {}
    for name in kernel.arg_names:
        if name in constexprs:
            types[name] = "constexpr"
        elif name.endswith("_ptr"):
            what = name.removesuffix("_ptr")
            kind = _EIGHT_BITS.get(constexprs.get("LIMIT")) if what in ("data", "across") else None
            if what == "bits":  # words of the attention's dropout
                kind = "i32" if constexprs["BLOCK_N"] >= 32 else "i16"
            kind = kind or _OTHERS.get(what) or ("i64" if what in _INT64 else "fp32" if what in _FP32 else dtype)
            types[name] = f"*{kind}"
        elif name in _FLOATS:
            types[name] = "fp32"
        elif name in _INTS or name.startswith("stride_"):
            types[name] = "i32"
        else:
            raise AssertionError(f"{kernel.__name__}: argument {name} has no type here")
    return types


def compile_one(
    name: str, kernel, dtype: str, constexprs: dict, launch: dict, arch: int, *, short: bool = False
) -> Resources:
    """Compiles for one architecture and reads the machine code; ``short``: of matrix instructions the PTX."""
    kernel = kernel.jitted
    source = ASTSource(
        fn=kernel,
        signature=_signature(kernel, dtype, constexprs),
        constexprs={(kernel.arg_names.index(key),): value for key, value in constexprs.items()},
        # torch's tensors begin at multiples of 16 bytes, and BERT's widths are multiples of 16.
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, argument in enumerate(kernel.arg_names)
            if argument.endswith("_ptr") or argument in ("N", "M_up", "WIDTH") or argument.startswith("stride_")
        },
    )
    built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={**common.OPTIONS, **launch})
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()

        def told(*command) -> str:
            return subprocess.run([*command, file.name], capture_output=True, text=True, check=True).stdout

        usage = told(tools / "cuobjdump", "-res-usage")
        # A third to half of the time, and all of it where Triton has compiled the kernel before; only what multiplies
        # matrices has their instructions.
        ptx = built.asm["ptx"]
        code = told(tools / "nvdisasm", "-c") if "mma" in ptx and not short else ""
    return Resources(
        name,
        arch,
        registers=int(re.search(r"REG:(\d+)", usage)[1]),
        shared=built.metadata.shared,
        spills=int(re.search(r"STACK:(\d+)", usage)[1]),
        hmma=len(re.findall(r"\bmma\.sync" if short else r"\bHMMA", ptx if short else code)),
        hgmma=len(re.findall(r"\bwgmma\.mma_async" if short else r"\bHGMMA", ptx if short else code)),
        approximate=len(re.findall(r"\b(?:div\.full|(?:sqrt|rsqrt|rcp|ex2|lg2)\.approx)", ptx)),
        ahead=ptx.count("cp.async.c"),
        torn=torn(ptx),
        chained=chained(built.asm["ttgir"]),
        warps=built.metadata.num_warps,
    )


def torn(ptx: str) -> int:
    """How many casts to a pair of 8-bit floats are packed into words and also taken apart: ptxas up to CUDA 12.9 reads
    the upper byte of such a pair before it is computed (github.com/triton-lang/triton/issues/11111).
    """
    pairs = set(re.findall(r"\bcvt\.rn\S*\.e[45]m[23]x2\.\S+\s+(%rs\d+)", ptx))
    words = re.findall(r"mov\.b(?:32|64)\s+%r\w+, \{(.*?)\}", ptx)
    packed = {register for word in words for register in word.split(", ")}
    apart = set(re.findall(r"shr\.[us]16\s+%rs\d+, (%rs\d+), 8", ptx))
    return len(pairs & packed & apart)


def chained(ttgir: str) -> int:
    """How many products of matrices go on from a sum, and not from zero."""
    zeros = set(re.findall(r"(%\w+) = arith\.constant dense<0\.0+e\+00>", ttgir))
    return sum(total not in zeros for total in re.findall(r"= tt\.dot %\w+, %\w+, (%\w+)", ttgir))


def _compile_at(place: tuple[int, int, bool]) -> Resources:
    setting, arch, short = place
    return compile_one(*list(settings(arch, short))[setting], arch, short=short)


def table(short: bool, architectures: tuple[int, ...] = ARCHITECTURES) -> list[Resources]:
    places = [(at, arch, short) for arch in architectures for at in range(len(list(settings(arch, short))))]
    with ProcessPoolExecutor() as pool:  # a minute and a half of compiling
        return list(pool.map(_compile_at, places))


if __name__ == "__main__":
    print("| kernel, bf16 if not said | | registers | KiB shared | stack | HMMA | HGMMA ", end="")
    print("| inexact | ahead | torn | chained | resident |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    named = tuple(arch for arch in ARCHITECTURES if str(arch) in sys.argv[1:])
    for one in table("--short" in sys.argv[1:], named or ARCHITECTURES):
        print(one.row)
