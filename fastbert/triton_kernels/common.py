"""What the kernels share: how they are started, the dropout's bits, and how launchers choose sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial

import torch
import triton
import triton.language as tl

# What differs between the calls of one model: its layers' dropouts, and how many rows there are. Triton would compile a
# kernel anew for multiples of 16 and for 1, which it makes a constant.
_VARIES = ["site", "threshold", "T", "M", "V", "rows_each", "bit_blocks"]
# Kernels that `kernel` keeps of one function, of which a model has a few.
_MOST_COMPILED = 256
# A product and a sum become a multiply-add. Triton's own default: up to 3.9 that they do, there with a warning to the
# user, and from 3.10 on that they do not.
OPTIONS = {"enable_fp_fusion": True}


def differences(x: torch.Tensor) -> dict:
    """Options of a kernel that subtracts from products what it made of them, as LayerNorm's gradient does. In fp32 they
    are rounded as they were then: a product that is not has a difference from its own mean. 16 bits do not see it.
    """
    return {"enable_fp_fusion": x.dtype != torch.float32}


class kernel:  # as a decorator is named
    """`triton.jit` for what the host starts, the first argument being a tensor: on that tensor's device, where Triton
    takes the current one; compiled once for all sizes that differ from call to call.

    Most of the time that Triton takes for a launch goes into finding out for which kind of arguments a kernel must be
    compiled. Here a compiled kernel is found again by what is at least as exact, and started as Triton itself lets one
    start it. Pointers (``_ptr``) must come first and constants last.
    """

    is_direct = True  # False: every launch is Triton's own, for those who look on there

    def __init__(self, function: Callable) -> None:
        self.jitted = triton.jit(function, do_not_specialize=_VARIES)
        parameters = inspect.signature(function).parameters
        of_constants = ("tl.constexpr", tl.constexpr)
        self._constants = [name for name, parameter in parameters.items() if parameter.annotation in of_constants]
        given = [name for name in parameters if name not in self._constants]
        self._pointers = sum(name.endswith("_ptr") for name in given)
        scalars = range(self._pointers, len(given))
        self._exact = [at for at in scalars if given[at] not in _VARIES]
        self._varying = [at for at in scalars if given[at] in _VARIES]
        self._compiled: dict[tuple, tuple] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable:
        return partial(self._start, grid)

    def _start(self, grid: tuple[int, ...], x: torch.Tensor, *arguments, **options) -> None:
        options, device = {**OPTIONS, **options}, x.get_device()  # -1, of the host
        if device < 0 or device == torch.cuda.current_device():  # to set it again takes as long as some launches
            self._launch(grid, device, (x, *arguments), options)
        else:
            with torch.cuda.device(device):
                self._launch(grid, device, (x, *arguments), options)

    def _launch(self, grid: tuple[int, ...], device: int, arguments: tuple, options: dict) -> None:
        key = self._key(device, arguments, options) if self.is_direct else None
        found = self._compiled.get(key)
        if found is not None:
            compiled, constants = found
            compiled[(*grid, 1, 1)[:3]](*arguments, *constants)
            return
        compiled = self.jitted[grid](*arguments, **options)
        if key is not None and compiled is not None:  # the interpreter compiles nothing
            if len(self._compiled) >= _MOST_COMPILED:
                self._compiled.clear()
            self._compiled[key] = compiled, [options[name] for name in self._constants]

    def _key(self, device: int, arguments: tuple, options: dict) -> tuple | None:
        """What decides for Triton which kernel it is; None where a number does not fit into 32 bits."""
        for at in self._varying:
            if arguments[at] >> 31:
                return None
        return (
            device,
            *map(type, arguments),  # 1, 1.0 and True are equal
            *[(x.dtype, x.data_ptr() & 15) for x in arguments[: self._pointers]],
            *[arguments[at] for at in self._exact],
            *options.items(),
        )


@triton.jit
def keep_bits(
    seed,
    offset,
    site,
    threshold,
    rows,
    first_group,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """(BLOCK_M, BLOCK_N) bool: which elements are kept in columns 8 first_group and on (fastbert.reference.dropout).
    Where all are dropped, threshold 65536, it is anything: their factor is zero.

    One Philox call feeds eight elements: its four words hold eight halves, low half first, and half j of group g is for
    column 8 g + j. Words, and not bits, move from the threads that draw them to those that use them: once, since
    Triton finds one joining of tensors and then one broadcast on their way.
    """
    groups = (first_group + tl.arange(0, BLOCK_N // 8)).to(tl.uint32)[None, :]
    w0, w1, w2, w3 = _philox(seed, groups, rows.to(tl.uint32)[:, None], site.to(tl.uint32), offset.to(tl.uint32))
    words = tl.join(w0.to(tl.uint64) | (w1.to(tl.uint64) << 32), w2.to(tl.uint64) | (w3.to(tl.uint64) << 32))
    words = tl.broadcast_to(words[:, :, :, None], (BLOCK_M, BLOCK_N // 8, 2, 4))
    half = tl.arange(0, 4)[None, None, None, :]
    # To the upper half of 32 bits; what is below does not matter. A thread of a product has both halves of a word, for
    # which it chooses the word once.
    chosen = tl.where(half < 2, words.to(tl.uint32), (words >> 32).to(tl.uint32))
    halves = chosen << (16 - 16 * (half & 1)).to(tl.uint32)
    return tl.reshape(halves >= (threshold << 16).to(tl.uint32), (BLOCK_M, BLOCK_N))


@triton.jit
def _philox(seed, c0, c1, c2, c3):
    """Philox 4x32-10 of uint32 counters whose shapes broadcast: `tl.philox`, but both halves of a product are one
    multiplication, and what depends on a row or a column alone is computed once for it.
    """
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        first, second = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c2 = (second >> 32).to(tl.uint32) ^ c1 ^ k0, (first >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = second.to(tl.uint32), first.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def exp2(x, PRECISION: tl.constexpr):
    """2^x for x up to 127; zero below -126. The GPU's own instruction is up to two units off, which 16 bits do not see;
    for what is computed in fp32 it is a polynomial within one unit: 2^x is 2^whole 2^part, part within half of 0.
    """
    if PRECISION != "ieee":
        return tl.exp2(x)
    # Not a maximum, which on a GPU would make a number of NaN.
    inside = tl.where(x < -126, 0.0, x)
    whole = tl.floor(inside + 0.5)
    part = inside - whole
    power = tl.fma(part, 0.00015345812425948679, 0.0013399930903688073)
    power = tl.fma(power, part, 0.009618489071726799)
    power = tl.fma(power, part, 0.05550328642129898)
    power = tl.fma(power, part, 0.24022646248340607)
    power = tl.fma(power, part, 0.6931471824645996)
    power = tl.fma(power, part, 1.0)
    scale = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -126, 0.0, power * scale)


@triton.jit
def exp(x, PRECISION: tl.constexpr):
    """e^x for x up to 88, zero below -87; by PRECISION as `exp2`. `tl.exp` is 2^(x log2(e)) of a rounded product, whose
    error grows with x. Here e^x is 2^whole e^part, part within log(2) / 2 of 0; whole times the first of the two parts
    of log(2), of 9 bits, is exact.
    """
    if PRECISION != "ieee":
        return tl.exp(x)
    inside = tl.where(x < -87, 0.0, x)
    whole = tl.floor(inside * 1.4426950408889634 + 0.5)
    part = inside - whole * 0.693359375
    part = part + whole * 0.00021219444005469057
    power = tl.fma(part, 0.00019875691500, 0.0013981999507)
    power = tl.fma(power, part, 0.0083334519073)
    power = tl.fma(power, part, 0.041665795894)
    power = tl.fma(power, part, 0.16666665459)
    power = tl.fma(power, part, 0.50000001201)
    power = tl.fma(power, part * part, part) + 1.0
    scale = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87, 0.0, power * scale)


@triton.jit
def log(x, PRECISION: tl.constexpr):
    """The natural logarithm; by PRECISION as `exp2`. The GPU's instruction is off by 2^-22 whatever the result, and so
    are probabilities. Here x is 2^whole f, f within a root of 2 of 1, and log f the series of artanh.
    """
    if PRECISION != "ieee":
        return tl.log(x)
    bits = x.to(tl.int32, bitcast=True)
    whole = (bits - 0x3F3504F3) >> 23
    f = (bits - (whole << 23)).to(tl.float32, bitcast=True)
    s = tl.div_rn(f - 1.0, f + 1.0)
    square = s * s
    series = tl.fma(square, 0.11111111111111111, 0.14285714285714285)
    series = tl.fma(series, square, 0.2)
    series = tl.fma(series, square, 0.3333333333333333)
    twice = s + s
    part = tl.fma(series * square, twice, twice)
    result = whole * 0.693359375 + (part - whole * 0.00021219444005469057)
    return tl.where((x > 0) & (x < float("inf")), result, tl.log(x))


@triton.jit
def quotient(x, y, PRECISION: tl.constexpr):
    """x / y, by an instruction that is up to two units off or, as `exp2`, correctly rounded."""
    if PRECISION != "ieee":
        return x / y
    return tl.div_rn(x, y)


@triton.jit
def add_product(acc, product, PRECISION: tl.constexpr):
    """acc + product, of one tile of what is summed. In fp32 the tile is summed apart from acc: Triton makes a sum and a
    product one that goes on from acc term after term, and over 385 queries that was off by 7 times as much. It does not
    know a multiply-add by 1 for a sum.
    """
    if PRECISION != "ieee":
        return acc + product
    return tl.fma(product, 1.0, acc)


@cache
def arch(device: torch.device) -> int:
    """The compute capability, as 80 for 8.0; 90 where there is no GPU, as in the interpreter."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


# `triton.cdiv` and `triton.next_power_of_2` are for kernels too, and take the host ten times as long.
def cdiv(n: int, divisor: int) -> int:
    return -(-n // divisor)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# Of a Hopper GPU. Sums over rows are cut for it on every GPU.
MULTIPROCESSORS = 132


def rows_per_program(rows: int, programs: int = 4 * MULTIPROCESSORS, tile: int = 1) -> int:
    """Rows that one program of a reduction sums, whole tiles: by sizes alone, so the bits do not depend on the GPU."""
    return max(cdiv(cdiv(rows, programs), tile), 1) * tile


@triton.jit
def own_rows(program, programs, rows_each, M, BLOCK_M: tl.constexpr, INTERLEAVED: tl.constexpr):
    """(first row of a program's first tile, end, distance of its tiles). INTERLEAVED: programs that run at a time take
    tiles side by side, so that what they read lies together in memory; or else each takes rows side by side.
    """
    if INTERLEAVED:
        return program * BLOCK_M, M.to(tl.int64), programs.to(tl.int64) * BLOCK_M
    else:
        first = program * rows_each
        return first, tl.minimum(first + rows_each, M), tl.full((), BLOCK_M, tl.int64)


@triton.jit
def own_block(cu_seqlens_ptr, BLOCK: tl.constexpr):
    """(head, first token of its sequence, that sequence's length, first row of its block within the sequence) of an
    attention kernel's program. Their grid is (blocks of the longest sequence, heads, sequences): the kernel itself must
    return where its block begins at or past the end of a shorter sequence.
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    start = tl.load(cu_seqlens_ptr + sequence).to(tl.int64)
    length = (tl.load(cu_seqlens_ptr + sequence + 1) - start).to(tl.int32)
    return head, start, length, tl.program_id(0) * BLOCK


def whole(*vectors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Vectors as kernels read them, which take no stride: numbers side by side."""
    return [None if x is None else x.contiguous() for x in vectors]


def empty_rng(x: torch.Tensor) -> torch.Tensor:
    """What a kernel without dropout takes in the place of the random state."""
    return x.new_empty(0, dtype=torch.int64)


@triton.jit
def to_fp8(x, scale, LIMIT: tl.constexpr, KIND: tl.constexpr):
    """x fp32 times scale in 8 bits; what is too large is clipped, what is not finite becomes NaN."""
    clipped = tl.minimum(tl.maximum(x * scale, -LIMIT), LIMIT)
    return tl.where(tl.abs(x) < float("inf"), clipped, float("nan")).to(KIND)


@triton.jit
def note_largest(maxima_ptr, x, LANES: tl.constexpr):
    """Notes the largest magnitude of a tile for the scales of later steps (fastbert.fp8).

    A maximum of integers is the same in any order: these atomics cost no repeatability. The bits of floats above zero
    are ordered as these are.
    """
    largest = tl.max(tl.max(tl.abs(x), 1), 0)
    lane = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) % LANES
    tl.atomic_max(maxima_ptr + lane, largest.to(tl.int32, bitcast=True), sem="relaxed")
