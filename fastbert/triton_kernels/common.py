"""Shared by the kernels: launching, the random bits of dropout, exact math functions, and sizes for launchers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial

import torch
import triton
import triton.language as tl

# Arguments that differ between the calls of one model: the layers' dropouts, and numbers of rows. By default, Triton
# would compile other kernels for multiples of 16 and for 1, which becomes a constant.
_VARIES = ["site", "threshold", "T", "sequences", "M", "V", "rows_each", "bit_blocks"]
# The most compiled kernels that `kernel` keeps of one function; a model needs a few.
_MOST_COMPILED = 256
# Fuses a product and a sum into a multiply-add. It is the default up to Triton 3.9, which may warn the user about it,
# and no longer from 3.10 on.
OPTIONS = {"enable_fp_fusion": True}


def differences(x: torch.Tensor) -> dict:
    """Options of a kernel that subtracts from products a value computed from the same products, as LayerNorm's gradient
    does. In fp32 multiply-adds are turned off, so that products are rounded in the same way both times: otherwise even
    equal values would differ from their mean. In 16 bits this does not matter.
    """
    return {"enable_fp_fusion": x.dtype != torch.float32}


class kernel:  # lower case, since it is used as a decorator
    """`triton.jit` for kernels that the host launches. It launches on the device of the first argument, a tensor
    (Triton takes the current device), and compiles once for all sizes that differ from call to call.

    Most of the time of Triton's launch is spent on finding the specialisation for the arguments. Here a compiled kernel
    is looked up by a key that is at least as specific, and is started by Triton's own interface for compiled kernels.
    Pointers (``_ptr``) must come first and constants last.
    """

    is_direct = True  # False launches through Triton every time, for tests that observe its launches

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
        options, device = {**OPTIONS, **options}, x.get_device()  # -1 on the CPU
        if device < 0 or device == torch.cuda.current_device():  # setting the device takes as long as some launches
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
        # The interpreter compiles nothing, and while Triton compiles in the background there is nothing to start yet.
        if key is not None and hasattr(type(compiled), "__getitem__"):
            if len(self._compiled) >= _MOST_COMPILED:
                self._compiled.clear()
            self._compiled[key] = compiled, [options[name] for name in self._constants]

    def _key(self, device: int, arguments: tuple, options: dict) -> tuple | None:
        """The key of the compiled kernel: all that Triton specialises on. None for numbers above 32 bits."""
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
    """(BLOCK_M, BLOCK_N) bool: which elements are kept, in columns from 8 first_group on (fastbert.reference.dropout).
    With threshold 65536, where all are dropped, the result is arbitrary, since the factor is zero.

    One Philox call serves eight elements: its four words have eight halves, low half first, and half j of group g is
    for column 8 g + j. The threads that draw the words pass the words, and not the bits, to those that use them, and do
    so only once, since the tensors are joined once and then broadcast once.
    """
    groups = (first_group + tl.arange(0, BLOCK_N // 8)).to(tl.uint32)[None, :]
    w0, w1, w2, w3 = _philox(seed, groups, rows.to(tl.uint32)[:, None], site.to(tl.uint32), offset.to(tl.uint32))
    words = tl.join(w0.to(tl.uint64) | (w1.to(tl.uint64) << 32), w2.to(tl.uint64) | (w3.to(tl.uint64) << 32))
    words = tl.broadcast_to(words[:, :, :, None], (BLOCK_M, BLOCK_N // 8, 2, 4))
    half = tl.arange(0, 4)[None, None, None, :]
    # The bits are moved to the upper half of 32 bits; the lower half does not matter. In the layout of a matrix
    # product, a thread has both halves of a word and selects the word once.
    chosen = tl.where(half < 2, words.to(tl.uint32), (words >> 32).to(tl.uint32))
    halves = chosen << (16 - 16 * (half & 1)).to(tl.uint32)
    return tl.reshape(halves >= (threshold << 16).to(tl.uint32), (BLOCK_M, BLOCK_N))


@triton.jit
def _philox(seed, c0, c1, c2, c3):
    """Philox 4x32-10 of uint32 counters with broadcastable shapes. Unlike in `tl.philox`, both halves of a product come
    from one multiplication, and values that depend only on the row or the column are computed once for it.
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
    """2^x for x up to 127; zero below -126. The GPU's own instruction has an error of up to 2 ulp, which does not
    matter in 16 bits. With PRECISION "ieee", for fp32, it is 2^whole times a polynomial in part, |part| <= 1/2, within
    1 ulp.
    """
    if PRECISION != "ieee":
        return tl.exp2(x)
    # Not a maximum, which on a GPU would turn NaN into a number.
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
    """e^x for x up to 88, zero below -87; PRECISION as in `exp2`. `tl.exp` is 2^(x log2(e)) with a rounded product,
    whose error grows with x. Here e^x is 2^whole e^part, |part| <= log(2) / 2. log(2) is split into two parts, of which
    the first has 9 bits, so that its product with whole is exact.
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
    """The natural logarithm; PRECISION as in `exp2`. The GPU's instruction has an absolute error of 2^-22, which
    becomes a relative error of probabilities. Here x is 2^whole f with f between sqrt(1/2) and sqrt(2), and log f is
    computed by the series of artanh.
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
    """x / y, by an instruction with an error of up to 2 ulp or, with PRECISION "ieee", correctly rounded."""
    if PRECISION != "ieee":
        return x / y
    return tl.div_rn(x, y)


@triton.jit
def add_product(acc, product, PRECISION: tl.constexpr):
    """acc + product, where product is a tile's part of a long sum. In fp32 the tile must be summed separately: Triton
    fuses a matrix product and a sum into one that continues from acc term by term, whose error over 385 queries was 7
    times as large. It does not recognise a multiply-add by 1 as a sum.
    """
    if PRECISION != "ieee":
        return acc + product
    return tl.fma(product, 1.0, acc)


@cache
def arch(device: torch.device) -> int:
    """The compute capability, such as 80 for 8.0; 90 without a GPU, in the interpreter."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


# `triton.cdiv` and `triton.next_power_of_2` also work in kernels, and take ten times as long on the host.
def cdiv(n: int, divisor: int) -> int:
    return -(-n // divisor)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# That of a Hopper GPU, by which sums over rows are split on every GPU.
MULTIPROCESSORS = 132


def rows_per_program(rows: int, programs: int = 4 * MULTIPROCESSORS, tile: int = 1) -> int:
    """The rows that one program of a reduction sums, in whole tiles. It depends only on sizes, so bits are the same on
    every GPU."""
    return max(cdiv(cdiv(rows, programs), tile), 1) * tile


@triton.jit
def own_rows(program, programs, rows_each, M, BLOCK_M: tl.constexpr, INTERLEAVED: tl.constexpr):
    """(first row of a program's first tile, end, stride of its tiles). INTERLEAVED: concurrent programs take adjacent
    tiles, so that they read adjacent memory; otherwise each program takes consecutive rows.
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
    """Contiguous vectors, since kernels take no stride for them; None stays None."""
    return [None if x is None else x.contiguous() for x in vectors]


def empty_rng(x: torch.Tensor) -> torch.Tensor:
    """A placeholder for the random state, for kernels without dropout."""
    return x.new_empty(0, dtype=torch.int64)


@triton.jit
def to_fp8(x, scale, LIMIT: tl.constexpr, KIND: tl.constexpr):
    """x (fp32) times scale in 8 bits; values that are too large are clipped, infinities and NaN become NaN."""
    clipped = tl.minimum(tl.maximum(x * scale, -LIMIT), LIMIT)
    return tl.where(tl.abs(x) < float("inf"), clipped, float("nan")).to(KIND)


@triton.jit
def note_largest(maxima_ptr, x, LANES: tl.constexpr):
    """Records the largest magnitude of a tile, for the scales of later steps (fastbert.fp8).

    A maximum of integers is the same in any order, so these atomics are repeatable. Positive floats are ordered like
    their bits.
    """
    largest = tl.max(tl.max(tl.abs(x), 1), 0)
    lane = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) % LANES
    tl.atomic_max(maxima_ptr + lane, largest.to(tl.int32, bitcast=True), sem="relaxed")
