"""Bias + GELU (Hendrycks & Gimpel 2016), with the error function or the tanh approximation; forward and backward.

One read and one write of the widest activations of a layer. In the time that an H100 takes to move a number, it can
execute some 35 instructions for it in forward and 53 in backward. In float32 erf is the GPU's own function, with which
there are 41 and 63 instructions. In 16 bits, the result is computed from the small tail Phi(-|x|), by a polynomial.
tanh(u) = 2 sigmoid(2 u) - 1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import MULTIPROCESSORS, cdiv, kernel, own_rows, rows_per_program, whole
from .layer_norm import sum_rows

_BLOCK_N = 256


def backward_settings(columns: int, tanh: bool) -> dict:
    """Backward's tile, and the number of programs over which the rows are distributed. A thread has eight columns, a
    load of 16 bytes, and warps are side by side in the columns, so that rows are summed within a thread. A
    multiprocessor holds 48 warps (40 registers a thread; with tanh 36 warps, 56 registers); the number of programs is
    such that all run at the same time.
    """
    block = next((width for width in (1024, 512) if columns % width == 0), 256)
    warps = block // 256
    programs = MULTIPROCESSORS * (36 if tanh else 48) // (warps * cdiv(columns, block))
    return {"BLOCK_M": 1, "BLOCK_N": block, "num_warps": warps, "INTERLEAVED": True, "programs": max(programs, 1)}


_INV_SQRT2 = tl.constexpr(0.7071067811865476)
_INV_SQRT_2PI = tl.constexpr(0.3989422804014327)
_TANH_SCALE = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
_TANH_CUBE = tl.constexpr(0.044715)
_MINUS_HALF_LOG2E = tl.constexpr(-0.7213475204444817)  # exp(-x^2 / 2) as a power of 2


@triton.jit
def _sigmoid(x):
    """s, the sigmoid of t = 2 sqrt(2 / pi) (x + 0.044715 x^3), and s (1 - s). The latter is computed from exp(-|t|),
    which is small if s is near 1: otherwise the error of 2 ulp of the quotient would be multiplied by x^3.
    """
    t = (x + x * x * x * _TANH_CUBE) * (2 * _TANH_SCALE)
    e = tl.exp(-tl.abs(t))
    s = 1 / (1 + e)
    return tl.where(t < 0, e * s, s), e * s * s


@triton.jit
def _tail(x):
    """a = |x|, at most 14, and Phi(-a), whose binary logarithm is a polynomial: a minimax fit on [0, 6] with a relative
    error of 4.5e-5. Beyond 6, where Phi(-a) is less than 1e-9, the polynomial continues to fall. NaN stays NaN.
    """
    a = tl.minimum(tl.abs(x), 14.0, propagate_nan=tl.PropagateNan.ALL)
    p = 2.29893383e-05 * a - 6.11087176e-04
    p = p * a + 7.19548196e-03
    p = p * a - 5.11851016e-02
    p = p * a - 4.61272168e-01
    p = p * a - 1.15017425e00
    return a, tl.exp2(p * a - 1.00006478e00)


@triton.jit
def _gelu(x, TANH: tl.constexpr, EXACT: tl.constexpr):
    """GELU(x); EXACT for results in float32."""
    if TANH:
        s, _ = _sigmoid(x)
        return x * s
    if EXACT:
        return 0.5 * x * (1 + tl.math.erf(x * _INV_SQRT2))
    a, tail = _tail(x)
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - a * tail


@triton.jit
def _gelu_slope(x, TANH: tl.constexpr, EXACT: tl.constexpr):
    if TANH:
        s, slope = _sigmoid(x)
        return s + x * slope * (2 * _TANH_SCALE) * (1 + x * x * (3 * _TANH_CUBE))
    if EXACT:
        return 0.5 * (1 + tl.math.erf(x * _INV_SQRT2)) + x * _INV_SQRT_2PI * tl.exp(x * x * -0.5)
    a, tail = _tail(x)
    below = tail - a * _INV_SQRT_2PI * tl.exp2(a * a * _MINUS_HALF_LOG2E)  # at -a; the slopes at a and -a add up to 1
    return tl.where(x < 0, below, 1 - below)


@kernel
def _gelu_fwd_kernel(
    x_ptr,  # (M, N)
    bias_ptr,  # (N)
    out_ptr,  # (M, N)
    M,
    N,
    TANH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inside = (rows < M) & (columns < N)
    x = tl.load(x_ptr + rows * N + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    out = _gelu(x, TANH, out_ptr.dtype.element_ty == tl.float32)
    tl.store(out_ptr + rows * N + columns, out.to(out_ptr.dtype.element_ty), mask=inside)


@kernel
def _gelu_bwd_kernel(
    dout_ptr,  # (M, N)
    x_ptr,  # (M, N)
    bias_ptr,  # (N)
    dx_ptr,  # (M, N)
    partial_ptr,  # (programs, N) fp32
    M,
    N,
    rows_each,
    TANH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    program = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    first, last, step = own_rows(program, tl.num_programs(1), rows_each, M, BLOCK_M, INTERLEAVED)
    rows = first + tl.arange(0, BLOCK_M)[:, None]
    inside = (rows < last) & (columns < N)
    at = rows * N + columns
    # A tile is loaded while the one before it is computed. Its first load comes before the bias's: Triton takes the
    # layout of the first load for the tile and converts the other.
    next_x = tl.load(x_ptr + at, mask=inside, other=0.0)
    next_dout = tl.load(dout_ptr + at, mask=inside, other=0.0)
    bias = tl.zeros((1, BLOCK_N), tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    acc = tl.zeros((1, BLOCK_N), tl.float32)
    for begin in tl.range(first, last, step):
        rows = begin + tl.arange(0, BLOCK_M)[:, None]
        inside = (rows < last) & (columns < N)
        at = rows * N + columns
        x, dout = next_x.to(tl.float32) + bias, next_dout.to(tl.float32)
        rows += step
        after = (rows < last) & (columns < N)
        next_x = tl.load(x_ptr + rows * N + columns, mask=after, other=0.0)
        next_dout = tl.load(dout_ptr + rows * N + columns, mask=after, other=0.0)
        dx = dout * _gelu_slope(x, TANH, dx_ptr.dtype.element_ty == tl.float32)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        acc += tl.sum(dx, 0)[None, :]
    if HAS_BIAS:
        at = program * N + columns
        tl.store(partial_ptr + at, acc, mask=columns < N)


def gelu_forward(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    """x (M, N) contiguous -> the same."""
    rows, columns = x.shape
    (bias,) = whole(bias)
    out = torch.empty_like(x)
    if rows:
        grid = (cdiv(rows, 8), cdiv(columns, _BLOCK_N))
        _gelu_fwd_kernel[grid](
            *(x, x if bias is None else bias, out, rows, columns),
            TANH=tanh,
            HAS_BIAS=bias is not None,
            BLOCK_M=8,
            BLOCK_N=_BLOCK_N,
            num_warps=4,
        )
    return out


def gelu_backward(dout: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    """-> dx (M, N), dbias (N) fp32 or empty."""
    rows, columns = x.shape
    (bias,) = whole(bias)
    dx = torch.empty_like(x)
    settings = backward_settings(columns, tanh)
    each = rows_per_program(rows, settings.pop("programs"), settings["BLOCK_M"])
    programs = cdiv(rows, each)
    partial = torch.empty(programs, 1, columns if bias is not None else 0, dtype=torch.float32, device=x.device)
    if rows:
        _gelu_bwd_kernel[(cdiv(columns, settings["BLOCK_N"]), programs)](
            *(dout, x, x if bias is None else bias, dx, partial, rows, columns, each),
            TANH=tanh,
            HAS_BIAS=bias is not None,
            **settings,
        )
    return dx, sum_rows(partial)[0] if bias is not None else partial.new_empty(0)
