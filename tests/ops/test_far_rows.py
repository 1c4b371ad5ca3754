"""Matrices whose last rows lie more than 2^31 elements behind the first, at every instruction-set level.

No 32-bit offset reaches them. The rows lie far apart, and the operating system gives a process memory only for what it
touches: everything here is small.
"""

from __future__ import annotations

import contextlib
import mmap
import sys

import pytest
import torch
from gemm_calls import CODE, DTYPES, gemm, pack
from levels import ALL_LEVELS, INT8_LEVELS, LEVELS, at_level

from fastbert import _native, ops
from fastbert.ops import _cpu, _dropout_schema

pytestmark = [
    pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing())),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is taken that nobody touches"),
]

# The second half of the rows is beyond 2^31, none is beyond 2^32: an offset that has wrapped lies before the first row.
ROWS, APART = 56, 72_000_000
NO_RESERVE = 0x4000  # Python names it from 3.13 on


@pytest.fixture(params=ALL_LEVELS)
def level(request):
    with at_level(request.param):
        yield request.param


def zeros(elements, dtype):
    """Behind as many as an offset that has wrapped reaches back."""
    size = (2**31 + elements) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)[2**31 :]


def far(matrix, apart=APART):
    """A copy with rows far apart."""
    rows, columns = matrix.shape
    return zeros((rows - 1) * apart + columns + 64, matrix.dtype).as_strided(matrix.shape, (apart, 1)).copy_(matrix)


def near(matrix, _=None):
    return matrix.clone()


def forms(dtype):
    """Codes of the forms in which this level takes a weight (DType in csrc/include/types.h)."""
    if dtype == torch.bfloat16:
        return [CODE[dtype]]
    extension = _native.extension()
    return [CODE[dtype], *[2] * extension.has_bf16x2(), *[3] * extension.has_winograd()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(level, dtype):
    a, w, residual = (torch.randn(*shape).to(dtype) for shape in ((ROWS, 40), (20, 40), (ROWS, 20)))
    for form in forms(dtype):
        packed, found = pack(w, dtype, form=form), []
        for place in (near, far):
            out = place(torch.zeros(ROWS, 20, dtype=dtype))
            gemm(place(a), packed, 20, out, None, "none", place(residual), form)
            found.append(out)
        assert found[0].any()
        assert torch.equal(*found), form


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "apart"), [(ROWS, APART), (2060, 2**20)])  # 2,048 tokens are taken at a time
def test_gradients_of_weights(level, tokens, apart, dtype):
    dy, x, found = torch.randn(tokens, ROWS).to(dtype), torch.randn(tokens, 40).to(dtype), []
    for place in (near, far):
        matrices, db = [place(dy, apart), place(x, apart), place(torch.zeros(ROWS, 40, dtype=dtype))], torch.empty(ROWS)
        pointers = [number for t in matrices for number in (t.data_ptr(), t.stride(0))]
        _native.extension().weight_grad(CODE[dtype], *pointers, CODE[dtype], db.data_ptr(), tokens, ROWS, 40)
        found.append((matrices[2], db))
    assert found[0][0].any()
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", DTYPES)
def test_packing(level, dtype):
    for form in forms(dtype):
        for transposed in (False, True):
            w = torch.randn(ROWS, 40)
            for source in (w, w.to(dtype)):
                given = dtype, transposed, form
                assert torch.equal(pack(far(source), *given), pack(source, *given)), given


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(level, dtype):
    q, k, v, dout = torch.randn(4, ROWS, 16).to(dtype).unbind()
    bounds, found, extension = torch.tensor([0, 40, ROWS], dtype=torch.int32), [], _native.extension()
    no_dropout = _cpu.native_dropout(*_dropout_schema.arguments(None))
    for place in (near, far):
        given, lse = [place(t) for t in (q, k, v, dout)], torch.empty(1, ROWS)
        out, *gradients = (place(torch.zeros(ROWS, 16, dtype=dtype)) for _ in range(4))
        arguments = extension.AttentionArgs(
            dtype=CODE[dtype], qkv=[t.data_ptr() for t in given[:3]], strides=[t.stride(0) for t in given[:3]],
            out=out.data_ptr(), out_stride=out.stride(0), lse=lse.data_ptr(), cu_seqlens=bounds.data_ptr(),
            batch_size=2, max_seqlen=40, nheads=1, head_dim=16, softmax_scale=0.25, causal=False, dropout=no_dropout,
        )  # fmt: skip
        extension.attention_forward(arguments)
        places = [t.data_ptr() for t in gradients], [t.stride(0) for t in gradients]
        extension.attention_backward(arguments, given[3].data_ptr(), given[3].stride(0), *places)
        found.append((out, *gradients, lse))
    assert all(t.any() for t in found[0])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("name", INT8_LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_products(name, dtype):
    a, w, residual = torch.randn(ROWS, 40).to(dtype), torch.randn(20, 40), torch.randn(ROWS, 20).to(dtype)
    packed, found = ops.pack_int8(w), []
    shift = -packed.data_ptr() % 64
    aligned = torch.zeros(packed.numel() + 64, dtype=torch.uint8)
    aligned = aligned[-aligned.data_ptr() % 64 :][: packed.numel()].copy_(packed) if shift else packed
    with at_level(name):
        for place in (near, far):
            given, beside, out = place(a), place(residual), place(torch.zeros(ROWS, 20, dtype=dtype))
            places = given.data_ptr(), given.stride(0), aligned.data_ptr(), 0, 0, beside.data_ptr()
            result = out.data_ptr(), out.stride(0), CODE[dtype]
            _native.extension().gemm_int8(CODE[dtype], *places, *result, ROWS, 20, 40, 0)
            found.append(out)
    assert found[0].any()
    assert torch.equal(*found)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cross_entropy_of_the_last_of_many_rows(name, dtype):
    rows, columns = 2**16 + 1, 2**15
    logits, labels = zeros(rows * columns, dtype), torch.full((rows,), -100)
    last = logits[-columns:].copy_(torch.randn(columns)).double()
    labels[-1] = columns - 1
    loss, statistics = torch.empty(rows), torch.empty(rows, 2)
    with at_level(name):
        places = logits.data_ptr(), labels.data_ptr(), -100, loss.data_ptr(), statistics.data_ptr()
        assert _native.extension().cross_entropy_forward(CODE[dtype], *places, rows, columns) == -1
    torch.testing.assert_close(loss[-1], (last.logsumexp(0) - last[-1]).float())
    assert not loss[:-1].any()
