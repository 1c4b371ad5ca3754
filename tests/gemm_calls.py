"""Calls of the extension's products on tensors, and what surrounds their results to tell where they wrote."""

from __future__ import annotations

import torch
from close import assert_close

from fastbert import _native, reference

DTYPES = [torch.float32, torch.bfloat16]
CODE = {torch.float32: 0, torch.bfloat16: 1}
ACTIVATIONS = ["none", "gelu", "gelu_tanh"]
# (M, N, K): single elements, odd everything, one tile and its neighbours, several blocks of K, no K at all.
SHAPES = [(1, 1, 1), (1, 40, 768), (5, 17, 33), (13, 47, 300), (31, 33, 31), (32, 64, 64), (70, 48, 545), (3, 5, 0)]
# Blocks of K whose sums wait for the next, beside more columns than a strip; more tokens than a gradient takes at once.
SHAPES += [(20, 100, 1700), (2100, 20, 40)]
# More rows than a block of A holds.
SHAPES += [(400, 20, 700)]
GUARD = 64


def guarded(rows, columns, dtype):
    """A NaN-filled matrix with wide rows inside a buffer of guards; check() tells whether they are untouched."""
    stride = columns + 3
    buffer = torch.full((2 * GUARD + rows * stride,), float("nan"), dtype=dtype)
    matrix = buffer[GUARD : GUARD + rows * stride].view(rows, stride)[:, :columns]

    def check():
        outside = torch.ones_like(buffer, dtype=torch.bool)
        outside[GUARD : GUARD + rows * stride].view(rows, stride)[:, :columns] = False
        assert buffer[outside].isnan().all(), "written outside of the result"

    return matrix, check


def strided(matrix):
    """The same numbers with NaN between the rows."""
    wide = torch.full((matrix.shape[0], matrix.shape[1] + 5), float("nan"), dtype=matrix.dtype)
    wide[:, : matrix.shape[1]] = matrix
    return wide[:, : matrix.shape[1]]


def pack(weight, dtype, transposed=False, form=None):
    """The packed weight at the start of a NaN-filled, aligned buffer, whose end must stay as it was."""
    c = _native.extension()
    n, k = weight.t().shape if transposed else weight.shape
    form = CODE[dtype] if form is None else form
    size = c.packed_size(form, n, k)
    buffer = torch.full((size + 192,), 0xFF, dtype=torch.uint8)
    packed = buffer[-buffer.data_ptr() % 64 :]
    c.pack_weight(form, weight.data_ptr(), CODE[weight.dtype], weight.stride(0), n, k, transposed, packed.data_ptr())
    assert (packed[size:] == 0xFF).all(), "written outside of the packed weight"
    return packed[:size]


def gemm(a, packed, n, out, bias=None, activation="none", residual=None, form=None):
    if residual is not None:
        assert residual.stride(0) == out.stride(0)
    pointers = [0 if t is None else t.data_ptr() for t in (bias, residual)]
    _native.extension().gemm(
        CODE[a.dtype] if form is None else form,
        a.data_ptr(),
        a.stride(0),
        packed.data_ptr(),
        pointers[0],
        ACTIVATIONS.index(activation),
        pointers[1],
        out.data_ptr(),
        out.stride(0),
        CODE[out.dtype],
        a.shape[0],
        n,
        a.shape[1],
    )


def two_parts(x):
    """float32 numbers as two bfloat16 ones, in float32: each rounded, and what that left, rounded."""
    first = x.bfloat16().float()
    return first, (x - first).bfloat16().float()


def linear_in_two_parts(x, weight, bias=None):
    """torch's "bfloat16_3x", which its float32 precision "high" may compute: three products of rounded parts."""
    (x1, x2), (w1, w2) = two_parts(x), two_parts(weight)
    out = x2 @ w1.t() + x1 @ w2.t() + x1 @ w1.t()
    return out if bias is None else out + bias


def truth(a, w, bias, activation, residual, linear=reference.linear):
    out = linear(a, w, bias)
    if activation != "none":
        out = reference.gelu(out, None, "tanh" if activation == "gelu_tanh" else "none")
    return out if residual is None else out + residual


def draws(m, n, k):
    """How often a shape is drawn: luck rules the largest error of few elements."""
    return max(1, min(50, 400 // (m * n)))


def check_by_the_rule(multiply, shape, activation, extras, what, linear=reference.linear):
    """Holds float32 products to the tolerance rule. multiply(a, w, out, bias, activation, residual) is the product;
    ``extras`` are bias and residual; ``linear`` is the reference that rounds as the product does."""
    m, n, k = shape
    results = []
    for _ in range(draws(*shape)):
        a, w, b = strided(torch.randn(m, k)), strided(torch.randn(n, k)), torch.randn(n) if extras else None
        out, check = guarded(m, n, torch.float32)
        r, _ = guarded(m, n, torch.float32)
        r.copy_(torch.randn(m, n))
        r = r if extras else None
        multiply(a, w, out, b, activation, r)
        check()
        wide = [None if t is None else t.double() for t in (a, w, b, r)]
        results.append((out.clone(), truth(*wide[:3], activation, wide[3]), truth(a, w, b, activation, r, linear)))
    assert_close(*(torch.cat([result[i].reshape(-1) for result in results]) for i in range(3)), what=what)
