"""Products with packed weights against the reference by the one tolerance rule, at every instruction-set level."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from close import assert_close
from gemm_calls import (
    CODE,
    DTYPES,
    SHAPES,
    check_by_the_rule,
    draws,
    gemm,
    guarded,
    linear_in_two_parts,
    pack,
    strided,
    truth,
    two_parts,
)
from levels import ALL_LEVELS, TILES, at_level, threads
from torch._dynamo.testing import CompileCounterWithBackend

import fastbert
from fastbert import _native, hardware, ops, reference
from fastbert.errors import InputError
from fastbert.ops import _cpu_linear

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

TWO_PARTS = 2


@pytest.fixture(params=ALL_LEVELS)
def level(request):
    with at_level(request.param):
        yield request.param


def whole(matrix):
    """Without gaps: torch's bfloat16 product on AMX multiplies what lies between rows of an odd length by zero."""
    return matrix.contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("activation", "bias", "residual"),
    [("none", False, False), ("none", True, True), ("gelu", True, False), ("gelu_tanh", True, True)],
)
def test_gemm(level, shape, dtype, activation, bias, residual):
    m, n, k = shape
    results = []
    for _ in range(draws(*shape)):
        a, w = strided(torch.randn(m, k).to(dtype)), strided(torch.randn(n, k).to(dtype))
        b = torch.randn(n) if bias else None
        out, check = guarded(m, n, dtype)
        r, _ = guarded(m, n, dtype)
        r.copy_(torch.randn(m, n))
        r = r if residual else None
        gemm(a, pack(w, dtype), n, out, b, activation, r)
        check()
        wide = [None if t is None else t.double() for t in (a, w, b, r)]
        exact = truth(*wide[:3], activation, wide[3])
        same = truth(whole(a), whole(w), None if b is None else b.to(dtype), activation, r)
        results.append((out.clone(), exact, same))
    assert_close(*(torch.cat([result[i].reshape(-1) for result in results]) for i in range(3)), what="gemm")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(level, shape, dtype):
    """dX = dY W with the weight packed as it lies, dW = dY^T X, dB = sums of dY's columns."""
    m, n, k = shape
    results = []
    for _ in range(draws(*shape)):
        dy, x, w = (strided(torch.randn(*s).to(dtype)) for s in ((m, n), (m, k), (n, k)))
        dx, check_dx = guarded(m, k, dtype)
        dw, check_dw = guarded(n, k, dtype)
        db = torch.full((n,), float("nan"))
        gemm(dy, pack(w, dtype, transposed=True), k, dx)
        _native.extension().weight_grad(
            *(CODE[dtype], dy.data_ptr(), dy.stride(0), x.data_ptr(), x.stride(0)),
            *(dw.data_ptr(), dw.stride(0), CODE[dtype], db.data_ptr(), m, n, k),
        )
        check_dx()
        check_dw()
        same = tuple(map(whole, (dy, w, dy, x)))
        grads = [(t @ s, u.t() @ v, u.sum(0)) for t, s, u, v in (same, [d.double() for d in same])]
        results.append([(dx.clone(), dw.clone(), db), grads[1], grads[0]])
    for i, name in enumerate(("dx", "dw", "db")):
        got, exact, same = (torch.cat([result[j][i].reshape(-1) for result in results]) for j in range(3))
        if exact.numel():
            assert_close(got.to(same.dtype), exact, same, gradient=True, what=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packing_has_one_layout(level, dtype):
    """[n / 16][k][16], in bfloat16 with pairs of k side by side and k padded to 32; zero where there is no weight."""
    for n, k in ((16, 32), (33, 7), (20, 64), (47, 50)):
        w = torch.randn(n, k).to(dtype)
        padded = torch.zeros(-(-n // 16) * 16, -(-k // 32) * 32 if dtype == torch.bfloat16 else k, dtype=dtype)
        padded[:n, :k] = w
        pair = 2 if dtype == torch.bfloat16 else 1
        expected = padded.view(-1, 16, padded.shape[1] // pair, pair).permute(0, 2, 1, 3).reshape(-1)
        for source in (w, strided(w)):
            assert torch.equal(pack(source, dtype).view(dtype), expected)
        assert torch.equal(pack(w.t().contiguous(), dtype, transposed=True).view(dtype), expected)
        assert torch.equal(pack(w.float(), dtype).view(dtype), expected)
        rounded = w.bfloat16()  # bfloat16 numbers go through loops of their own
        for source, transposed in ((rounded, False), (rounded.t().contiguous(), True)):
            assert torch.equal(pack(source, dtype, transposed), pack(source.to(dtype), dtype, transposed))


def test_packing_rounds_to_bfloat16_as_torch_does(level):
    """Ties, what is too large, and NaN, which a rounding up of its bits would make zero."""
    ties = 1 + torch.arange(16) / 256
    strange = torch.tensor([3.4e38, math.inf, -math.inf, math.nan, 1e-40])
    nan = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    w = torch.cat([ties, -ties, strange, nan, torch.randn(600)])[:608].view(16, 38)
    for source, transposed in ((w, False), (w.t().contiguous(), True)):
        got = pack(source, torch.bfloat16, transposed).view(torch.bfloat16).view(32, 16, 2)
        got = got.permute(1, 0, 2).reshape(16, 64)[:, :38]
        torch.testing.assert_close(got, w.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_bfloat16_at_an_address_that_no_word_may_have(level):
    """Kernels move two such numbers as one; tests/native/sanitize.sh reports an access that is not at its place."""

    def odd(x):
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)

    def results(x, w, dout):
        with ops.backend("cpu"):
            x, w = x.requires_grad_(), w.requires_grad_()
            out = ops.linear(x, w)
            return out, *torch.autograd.grad(out, (x, w), dout)

    x, w, dout = (torch.randn(*shape).bfloat16() for shape in ((24, 40), (64, 40), (24, 64)))
    shifted = [odd(t) for t in (x, w, dout)]
    assert all(t.data_ptr() % 4 for t in shifted)
    assert all(map(torch.equal, results(*shifted), results(x, w, dout)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_an_earlier_product_held_shows_nowhere(level, dtype):
    """A thread's memory is used again, and an odd K is filled up to whole pairs."""
    m, n, k = 11, 20, 7
    spoilt = torch.full((64, 64), math.nan).to(dtype)
    a, w, dy = (torch.randn(*s).to(dtype) for s in ((m, k), (n, k), (m, n)))
    weight_grad, ignored, found = _native.extension().weight_grad, torch.empty(64, 64), []
    for before in (spoilt, torch.ones_like(spoilt)):
        out, dw = torch.empty(m, n), torch.empty(n, k)
        gemm(before, pack(before, dtype), 64, ignored)
        gemm(a, pack(w, dtype), n, out)
        pointer = before.data_ptr()
        weight_grad(CODE[dtype], pointer, 64, pointer, 64, ignored.data_ptr(), 64, 0, 0, 64, 64, 64)
        weight_grad(CODE[dtype], dy.data_ptr(), n, a.data_ptr(), k, dw.data_ptr(), k, 0, 0, m, n, k)
        found.append((out, dw))
    assert found[0][0].isfinite().all()
    assert found[0][1].isfinite().all()
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_no_tokens_is_zero(level, dtype):
    dw, check = guarded(20, 30, dtype)
    nothing, db = torch.empty(0, 50, dtype=dtype), torch.full((20,), math.nan)
    pointers = nothing.data_ptr(), 50, nothing.data_ptr(), 50, dw.data_ptr(), dw.stride(0)
    _native.extension().weight_grad(CODE[dtype], *pointers, CODE[dtype], db.data_ptr(), 0, 20, 30)
    check()
    assert not dw.any()
    assert not db.any()


def test_a_bfloat16_gradient_is_the_float32_one_rounded(level):
    """Once, however many times 2,048 tokens there are."""
    dy, x, found = torch.randn(4200, 20).bfloat16(), torch.randn(4200, 24).bfloat16(), []
    for dtype in DTYPES:
        found.append(torch.empty(20, 24, dtype=dtype))
        pointers = dy.data_ptr(), 20, x.data_ptr(), 24, found[-1].data_ptr(), 24
        _native.extension().weight_grad(CODE[torch.bfloat16], *pointers, CODE[dtype], 0, 4200, 20, 24)
    assert torch.equal(found[0].bfloat16(), found[1])


def test_tiles_of_four_threads_have_the_bits_of_one(tiles):
    """Two parts of the rows times two of the columns."""
    m, n, k = 512, 100, 260
    a, w, found = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16(), []
    for count in (1, 4):
        found.append(torch.full((m, n), math.nan))
        with threads(count):
            gemm(a, pack(w, torch.bfloat16), n, found[-1])
    assert torch.equal(*found)


@pytest.mark.parametrize("sizes", [(70, 300, 200), (12, 300, 800)])  # of four threads by rows alone, and by both
def test_bits_depend_on_neither_threads_nor_rows(level, sizes):
    """Every element is summed in an order that k alone decides: one row, many rows, one thread, four: the same bits."""
    m, n, k = sizes
    before = torch.get_num_threads()
    for dtype in DTYPES:
        a, w, dy = (torch.randn(*s).to(dtype) for s in ((m, k), (n, k), (m, n)))
        packed, results = pack(w, dtype), []
        try:
            for count in (1, 2, 3, 4, 1):
                torch.set_num_threads(count)
                out, dw, db = torch.empty(m, n), torch.empty(n, k), torch.empty(n)
                gemm(a, packed, n, out)
                _native.extension().weight_grad(
                    *(CODE[dtype], dy.data_ptr(), n, a.data_ptr(), k, dw.data_ptr(), k, 0, db.data_ptr(), m, n, k)
                )
                results.append((out, dw, db))
        finally:
            torch.set_num_threads(before)
        for other in results[1:]:
            assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))
        one = torch.empty(1, n)
        gemm(a[7:8], packed, n, one)
        assert torch.equal(one[0], results[0][0][7])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere OpenMP's library has other names")
def test_fewer_threads_than_were_asked_for(level):
    """OMP_DYNAMIC and OMP_THREAD_LIMIT hold a process to so few: those that are there share all of the work."""
    m, n, k = 64, 512, 512  # worth 17 threads
    asked = len(os.sched_getaffinity(0)) + 2
    if asked > 17:
        pytest.skip("as many threads as would be of use have a processor each")
    a, w, found = torch.randn(m, k), torch.randn(n, k), []
    packed, openmp = pack(w, torch.float32), ctypes.CDLL("libgomp.so.1")  # it is loaded
    for dynamic in (0, 1):
        found.append(torch.full((m, n), math.nan))
        with threads(asked):
            openmp.omp_set_dynamic(dynamic)
            gemm(a, packed, n, found[-1])
            openmp.omp_set_dynamic(0)
    assert torch.equal(*found)


@pytest.fixture
def tiles():
    """A level with tiles: AMX's where it runs, and in plain C++ otherwise."""
    before = _native.isa()
    _native.extension().set_isa(TILES)
    yield
    _native.extension().set_isa(before)


def in_two_parts(a, w, out, *epilogue):
    gemm(a, pack(w, torch.float32, form=TWO_PARTS), w.shape[0], out, *epilogue, form=TWO_PARTS)
    return out


@pytest.mark.parametrize("shape", [*SHAPES, (33, 40, 768)])
@pytest.mark.parametrize(("activation", "extras"), [("none", False), ("gelu", True)])
def test_float32_in_two_parts(tiles, shape, activation, extras):
    """By the rule, with the three products of rounded parts, added up in float32, as the reference."""
    check_by_the_rule(in_two_parts, shape, activation, extras, "two parts", linear_in_two_parts)


def weight_grad(form, dy, x, dw, db=None):
    _native.extension().weight_grad(
        *(form, dy.data_ptr(), dy.stride(0), x.data_ptr(), x.stride(0), dw.data_ptr(), dw.stride(0), CODE[dw.dtype]),
        *(0 if db is None else db.data_ptr(), *dy.shape, x.shape[1]),
    )


@pytest.mark.parametrize("shape", [*SHAPES, (33, 40, 768)])
def test_float32_gradients_in_two_parts(tiles, shape):
    """dX = dY W and dW = dY^T X by the rule as above; dB is a sum of floats."""
    m, n, k = shape
    results = []
    for _ in range(draws(*shape)):
        dy, x, w = (strided(torch.randn(*s)) for s in ((m, n), (m, k), (n, k)))
        (dx, check_dx), (dw, check_dw), db = guarded(m, k, torch.float32), guarded(n, k, torch.float32), torch.empty(n)
        gemm(dy, pack(w, torch.float32, transposed=True, form=TWO_PARTS), k, dx, form=TWO_PARTS)
        weight_grad(TWO_PARTS, dy, x, dw, db)
        check_dx()
        check_dw()
        wide = [t.double() for t in (dy, w, x)]
        exact = wide[0] @ wide[1], wide[0].t() @ wide[2], wide[0].sum(0)
        same = linear_in_two_parts(dy, w.t()), linear_in_two_parts(dy.t(), x.t()), dy.sum(0)
        results.append(((dx.clone(), dw.clone(), db), exact, same))
    for i, name in enumerate(("dx", "dw", "db")):
        got, exact, same = (torch.cat([result[j][i].reshape(-1) for result in results]) for j in range(3))
        if exact.numel():
            assert_close(got, exact, same, gradient=True, what=name)


def test_gradients_in_two_parts_depend_on_nothing_else(tiles):
    """Not on the number of threads, nor on what the thread's memory held; of no tokens the gradient is zero; a NaN
    stays in its column."""
    dy, x, found = torch.randn(75, 50), torch.randn(75, 300), []
    for count in (1, 2, 3, 4, 1):
        with threads(count):
            weight_grad(TWO_PARTS, torch.full((64, 64), math.nan), torch.full((64, 64), math.nan), torch.empty(64, 64))
            found.append(torch.full((50, 300), math.nan))
            weight_grad(TWO_PARTS, dy, x, found[-1])
    assert found[0].isfinite().all()
    assert all(torch.equal(other, found[0]) for other in found[1:])
    weight_grad(TWO_PARTS, dy[:0], x[:0], found[1])
    assert not found[1].any()
    for strange in (math.nan, math.inf):
        dy[7, 20] = strange
        weight_grad(TWO_PARTS, dy, x, found[1])
        assert not found[1][20].isfinite().any()
        found[1][20] = found[0][20]
        assert torch.equal(found[1], found[0])


def test_two_parts_are_packed_alike_from_both_sides(tiles):
    """A weight and its transpose, whole panels and rests."""
    for n, k in ((16, 32), (33, 7), (20, 64), (47, 50), (1, 1), (40, 1)):
        w = torch.randn(n, k)
        packed = pack(w, torch.float32, form=TWO_PARTS)
        for source, transposed in ((strided(w), False), (w.t().contiguous(), True), (strided(w.t()), True)):
            assert torch.equal(pack(source, torch.float32, transposed, form=TWO_PARTS), packed)
        wide = torch.zeros(2, -(-n // 16) * 16, -(-k // 32) * 32)
        wide[:, :n, :k] = torch.stack(two_parts(w))
        expected = wide.view(2, -1, 16, wide.shape[2] // 2, 2).transpose(2, 3).bfloat16().flatten()
        assert torch.equal(packed.view(torch.bfloat16), expected)


def test_two_parts_of_any_float32(tiles):
    """Each is rounded, also in a tie; next to the largest, where that would overflow, the first part is cut off.
    What is not finite stays in its row and column."""
    a, w = torch.randn(20, 50) * torch.logspace(-30, 30, 20)[:, None], torch.randn(17, 50)
    w[:16, 3] = 1 + torch.arange(16) / 256
    packed = pack(w, torch.float32, form=TWO_PARTS).view(torch.bfloat16).view(2, 2, 32, 16, 2)  # panels, pairs of k
    for part, expected in zip(packed.float(), two_parts(w), strict=True):
        assert torch.equal(part[0, :25].transpose(1, 2).reshape(50, 16).t(), expected[:16])
    limit = 2.0**-16 * (a.double().abs() @ w.double().abs().t())
    assert ((in_two_parts(a, w, torch.empty(20, 17)).double() - a.double() @ w.double().t()).abs() <= limit).all()
    largest = torch.full((1, 1), torch.finfo(torch.float32).max)
    for sign in (1, -1):
        got = in_two_parts(sign * largest, torch.full((1, 1), 0.5), torch.empty(1, 1))
        torch.testing.assert_close(got, sign * 0.5 * largest, rtol=2.0**-16, atol=0)
    expected = in_two_parts(a, w, torch.empty(20, 17))
    for strange in (float("nan"), float("inf"), float("-inf")):
        spoilt = a.clone()
        spoilt[5, 2] = strange
        out = in_two_parts(spoilt, w, torch.empty(20, 17))
        assert not out[5].isfinite().any()
        assert out[5].isnan().all() or not math.isnan(strange)
        out[5] = expected[5]
        assert torch.equal(out, expected)


def test_two_parts_are_multiplied_on_tiles_alone(level):
    assert _native.extension().has_bf16x2() == level.startswith("amx")
    if not level.startswith("amx"):
        dy, x, dw = torch.randn(2, 4), torch.randn(2, 3), torch.empty(4, 3)
        with pytest.raises(ValueError, match="no tiles"):
            pack(dw, torch.float32, form=TWO_PARTS)
        with pytest.raises(ValueError, match="no tiles"):
            gemm(x, torch.empty(4096, dtype=torch.uint8), 4, torch.empty(2, 4), form=TWO_PARTS)
        with pytest.raises(ValueError, match="no tiles"):
            weight_grad(TWO_PARTS, dy, x, dw)


@pytest.fixture
def high():
    torch.set_float32_matmul_precision("high")


def test_torchs_own_switch_or_ours_chooses_two_parts(tiles, high, monkeypatch):
    """`torch.set_float32_matmul_precision("high")`: many rows; or a block of one thread."""
    forms = []
    true = _cpu_linear.packed_weight
    monkeypatch.setattr(_cpu_linear, "packed_weight", lambda w, form, *rest: forms.append(form) or true(w, form, *rest))
    x, weight, bias = torch.randn(80, 40), torch.randn(48, 40), torch.randn(48)
    same = linear_in_two_parts(x, weight, bias)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    with ops.backend("cpu"):
        assert_close(ops.linear(x, weight, bias), exact, same)
        assert forms.pop() == TWO_PARTS
        ops.linear(x[:20], weight, bias)  # few rows: what takes time is reading the weights
        torch.set_float32_matmul_precision("highest")
        ops.linear(x, weight, bias)
        with ops.products_in_two_parts():
            assert_close(ops.linear(x, weight, bias), exact, same)
            assert forms.pop() == TWO_PARTS
            with ThreadPoolExecutor(1) as pool:  # of this thread alone
                pool.submit(ops.linear, x, weight, bias).result()
            with fastbert.batch_invariant():
                ops.linear(x, weight, bias)
        torch.set_float32_matmul_precision("high")
        with fastbert.batch_invariant():
            ops.linear(x, weight, bias)
        ops.linear(x, weight.clone().requires_grad_(), bias)  # a weight that trains is packed in every step
    assert TWO_PARTS not in forms


@pytest.mark.parametrize(
    ("rows", "sizes", "ours"),
    [
        (127, (384, 384), False),
        (128, (384, 384), True),
        (4096, (2, 384), False),
        (4096, (384, 31), False),
        (1023, (30522, 384), False),
        (1024, (30522, 384), True),
    ],
)
def test_which_products_of_training_are_in_two_parts(tiles, high, monkeypatch, rows, sizes, ours):
    """A vocabulary's weight takes long to pack, and a narrow one fills no tiles. Inference packs once."""
    monkeypatch.setattr(hardware, "is_amd", lambda: False)
    x, weight = torch.empty(rows, sizes[1]), torch.empty(sizes)
    assert _cpu_linear._is_ours(x, weight.requires_grad_(), None) == ours
    with torch.no_grad():
        assert _cpu_linear._is_ours(x, weight, None)


def test_a_bfloat16_weight_has_no_two_parts(tiles):
    with pytest.raises(ValueError, match="expected a float32 weight"):
        pack(torch.randn(20, 40).bfloat16(), torch.bfloat16, form=TWO_PARTS)


@pytest.mark.parametrize("compiled", [False, True])
def test_training_in_two_parts(tiles, high, compiled):
    """All three products of a layer, in torch's own switch or in a block around both passes; in a graph too."""
    rows = _cpu_linear.TWO_PARTS_TRAINING_ROWS
    leaves, dout = layer(rows, 50, 70, torch.float32), torch.randn(rows, 50)
    linear = torch.compile(ops.linear, fullgraph=True, backend="aot_eager") if compiled else ops.linear

    def results():
        with ops.backend("cpu"):
            out = linear(*leaves)
            return out.detach(), *torch.autograd.grad(out, leaves, dout)

    x, weight, bias = (t.detach() for t in leaves)
    same = linear_in_two_parts(x, weight, bias), linear_in_two_parts(dout, weight.t())
    same = *same, linear_in_two_parts(dout.t(), x.t()), dout.sum(0)
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    out = reference.linear(*wide)
    exact = out.detach(), *torch.autograd.grad(out, wide, dout.double())
    in_parts = results()
    for i, true in enumerate(exact):
        assert_close(in_parts[i], true, same[i], gradient=i > 0)
    torch.set_float32_matmul_precision("highest")
    in_float32 = results()
    assert not any(map(torch.equal, in_float32[:3], in_parts[:3]))
    with ops.products_in_two_parts():
        assert all(map(torch.equal, results(), in_parts))


@pytest.mark.parametrize("form", ["bfloat16", "two parts", "a graph's float32"])
def test_a_frozen_layer_does_not_keep_its_input(request, form):
    """As torch's own does not: with LoRA or BitFit that may be most of what a step keeps."""
    if form == "two parts":
        request.getfixturevalue("tiles")
        request.getfixturevalue("high")
    torch.compiler.reset()
    dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
    x, weight, bias = layer(_cpu_linear.TWO_PARTS_TRAINING_ROWS, 50, 70, dtype)
    in_graph = form == "a graph's float32"
    linear = torch.compile(ops.linear, fullgraph=True, backend="aot_eager") if in_graph else ops.linear
    found = {}
    for frozen in (False, True):
        weight.requires_grad_(not frozen)
        kept = []
        with ops.backend("cpu"), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # noqa: B023
            out = linear(x, weight, bias)
        assert out.grad_fn.name() != torch.nn.functional.linear(x, weight, bias).grad_fn.name(), "it is torch's"
        assert any(t.data_ptr() == x.data_ptr() for t in kept) is not frozen
        found[frozen] = torch.autograd.grad(out.square().sum(), (x, bias))
    torch.testing.assert_close(found[True], found[False])


def test_two_python_threads(level):
    dtype = torch.bfloat16
    a, w = torch.randn(40, 90).to(dtype), torch.randn(50, 90).to(dtype)
    packed, expected = pack(w, dtype), torch.empty(40, 50)
    gemm(a, packed, 50, expected)

    def work(_):
        out = torch.full((40, 50), float("nan"))
        gemm(a, packed, 50, out)
        return out

    with ThreadPoolExecutor(2) as pool:
        assert all(torch.equal(out, expected) for out in pool.map(work, range(100)))


def layer(m, n, k, dtype=torch.bfloat16):
    return [torch.randn(*s).to(dtype).requires_grad_() for s in ((m, k), (n, k), (n,))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_and_its_gradients(level, dtype, monkeypatch):
    """Float32's too, as AMD's processors take it where there is enough of it."""
    monkeypatch.setattr(hardware, "is_amd", lambda: True)
    monkeypatch.setattr(_cpu_linear, "TRAINING_ROWS", 0)
    monkeypatch.setattr(_cpu_linear, "TRAINING_PRODUCTS", 0)
    leaves = layer(37, 50, 70, dtype)
    dout = torch.randn(37, 50).to(dtype)
    with ops.backend("cpu"):
        out = ops.linear(*leaves)
        grads = torch.autograd.grad(out, leaves, dout)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    exact = reference.linear(*wide)
    same = reference.linear(*leaves)
    assert_close(out.detach(), exact.detach(), same.detach())
    truths, sames = torch.autograd.grad(exact, wide, dout.double()), torch.autograd.grad(same, leaves, dout)
    for got, true, by_torch in zip(grads, truths, sames, strict=True):
        assert_close(got, true, by_torch, gradient=True)


def test_float32_training_keeps_no_packed_weights(monkeypatch):
    """They change with every step. Those of frozen layers (LoRA), and of inference, are kept."""
    monkeypatch.setattr(hardware, "is_amd", lambda: True)
    monkeypatch.setattr(_cpu_linear, "TRAINING_PRODUCTS", 0)
    x, weight, _ = layer(80, 50, 70, torch.float32)
    frozen = weight.detach().clone()
    with ops.backend("cpu"):
        for w in (weight, frozen):
            ops.linear(x, w).sum().backward()
        kept = [sorted(_cpu_linear._packed.find(w)) for w in (weight, frozen)]
        own = _native.isa().startswith("avx512")
        form = _cpu_linear.packed_form(torch.float32, 80)
        assert kept == [[], [(form, False), (form, True)] if own else []]
        with torch.no_grad():
            ops.linear(x, weight)
        assert list(_cpu_linear._packed.find(weight)) == [(form, False)] * own


@pytest.mark.parametrize(
    ("rows", "sizes", "ours"),
    [(23, (768, 3072), False), (24, (768, 3072), True), (80, (128, 512), False), (256, (128, 512), True)],
)
def test_amds_float32_products_of_little_are_torchs_in_training(monkeypatch, rows, sizes, ours):
    """Of 16 tokens a step took 1.65 times transformers' time. Inference and frozen layers keep what is packed once."""
    monkeypatch.setattr(hardware, "is_amd", lambda: True)
    monkeypatch.setattr(_native, "isa", lambda: "avx512")
    x, weight = torch.empty(rows, sizes[0]), torch.empty(sizes[1], sizes[0])
    assert _cpu_linear._is_ours(x.requires_grad_(), weight, None)
    weight.requires_grad_()
    assert _cpu_linear._is_ours(x, weight, None) == ours
    with torch.no_grad():
        assert _cpu_linear._is_ours(x, weight, None)


@pytest.mark.parametrize("rows", [_cpu_linear.FLOAT32_ROWS, _cpu_linear.FLOAT32_ROWS + 1])
@pytest.mark.parametrize(
    ("isa", "few"),
    [
        ("scalar", False),
        ("neon_dot", False),
        ("avx2", False),
        ("avx2_vnni", False),
        ("avx512", True),
        ("avx512_vnni", True),
    ],
)
def test_which_float32_products_are_torchs_on_intel(monkeypatch, isa, few, rows):
    """All of many rows, and below AVX-512 those of few, too."""
    monkeypatch.setattr(hardware, "is_amd", lambda: False)
    monkeypatch.setattr(_native, "isa", lambda: isa)
    with torch.no_grad():
        ours = _cpu_linear._is_ours(torch.empty(rows, 8), torch.empty(4, 8), None)
    assert ours == (few and rows <= _cpu_linear.FLOAT32_ROWS)


def test_autocast_keeps_the_parameters_gradients_in_float32():
    x, weight, bias = layer(9, 20, 30, torch.float32)
    with ops.backend("cpu"), torch.autocast("cpu", torch.bfloat16):
        out = ops.linear(x, weight, bias)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype == weight.grad.dtype == bias.grad.dtype == torch.float32
    rounded = x.detach().bfloat16().double()
    torch.testing.assert_close(weight.grad.double(), rounded.sum(0).expand(20, 30), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True])
def test_autocast_to_float16_multiplies_in_float16(grad):
    """By torch, on every processor: those with AVX-512 passed it over and multiplied in float32."""
    x, weight, bias = layer(9, 20, 30, torch.float32)
    with ops.backend("cpu"), torch.autocast("cpu", torch.float16), torch.set_grad_enabled(grad):
        out = ops.linear(x, weight, bias)
    assert out.dtype == torch.float16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["optimizer", "data", "swapped", "inference"])
def test_a_changed_parameter_is_packed_again(how, dtype):
    """Infer, change the weight, infer again: what was packed before must not be used."""
    linear = torch.nn.Linear(24, 40).to(dtype)
    x = torch.randn(5, 24).to(dtype)

    def infer():
        with torch.no_grad(), ops.backend("cpu"):
            return ops.linear(x, linear.weight, linear.bias)

    before = infer()
    assert torch.equal(before, infer())
    if how == "optimizer":
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.5)
        with ops.backend("cpu"):
            ops.linear(x, linear.weight, linear.bias).float().square().sum().backward()
        optimizer.step()
    elif how == "data":
        linear.weight.data.mul_(-1.5)
    elif how == "swapped":
        linear.weight.data = torch.randn(40, 24).to(dtype)
    else:
        with torch.inference_mode():
            linear.weight = torch.nn.Parameter(torch.randn(40, 24).to(dtype), requires_grad=False)
    after, expected = infer(), reference.linear(x.double(), linear.weight.double(), linear.bias.double())
    assert (after.double() - before.double()).abs().max() > 0.1
    torch.testing.assert_close(after.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_a_transposed_weight_that_changes_is_packed_again(dtype):
    """The fingerprint of a large matrix says nothing about one row, but the version does."""
    weight, x = torch.randn(300, 257).to(dtype).t(), torch.randn(5, 300).to(dtype)
    with torch.no_grad(), ops.backend("cpu"):
        for row in range(20):
            before = ops.linear(x, weight)
            weight[row] += 1
            assert not torch.equal(ops.linear(x, weight)[:, row], before[:, row])


def test_two_dtypes_are_refused():
    with pytest.raises(InputError, match="must have the dtype of the weights, float32, got bfloat16: convert one"):
        ops.linear(torch.ones(2, 12).bfloat16(), torch.randn(8, 12))


def test_autocast_makes_no_states_of_ids():
    """Torch refuses to multiply them; our kernels would convert them."""
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="dtype"):
        ops.linear(torch.ones(2, 12).long(), torch.randn(8, 12))


def test_linear_is_a_torch_op():
    for bias in (None, torch.randn(8).bfloat16().requires_grad_()):
        x, weight, _ = layer(5, 8, 12)
        results = torch.library.opcheck(torch.ops.fastbert.linear, (x, weight, bias, True))
        assert set(results.values()) == {"SUCCESS"}


def test_linear_of_no_rows_and_of_strided_rows():
    x, weight, bias = layer(6, 8, 12)
    with torch.no_grad(), ops.backend("cpu"):
        assert ops.linear(x[:0], weight, bias).shape == (0, 8)
        wide = torch.randn(6, 2, 24).bfloat16()
        assert torch.equal(ops.linear(wide[:, 0, :12], weight), ops.linear(wide[:, 0, :12].clone(), weight))
        assert torch.equal(ops.linear(x, weight.t().contiguous().t()), ops.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_nothing_is_read_beyond_a_shorter_bias_or_weight(backend, dtype):
    x, weight, bias = torch.randn(5, 12).to(dtype), torch.randn(8, 12).to(dtype), torch.randn(3).to(dtype)
    with torch.no_grad(), ops.backend(backend):
        with pytest.raises(InputError, match=r"bias must have shape \(8,\), got \(3,\)"):
            ops.linear(x, weight, bias)
        with pytest.raises(InputError, match=r"weight \(N, K\), got \(5, 12\) and \(8, 11\)"):
            ops.linear(x, weight[:, :11])


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("which", [1, 2])
def test_a_weight_or_bias_without_numbers_is_refused(which, gradients):
    given = [torch.randn(5, 12), torch.randn(8, 12), torch.randn(8)]
    given[which] = given[which].to("meta").requires_grad_()
    with torch.set_grad_enabled(gradients), pytest.raises(InputError, match=r"^linear: .* on the meta device"):
        ops.linear(*given)


def test_a_compilers_graph_has_bfloat16_products_too():
    torch.compiler.reset()
    given = [t.bfloat16() for t in (torch.randn(5, 12), torch.randn(8, 12), torch.randn(8))]
    with torch.no_grad(), ops.backend("cpu"):
        compiled = torch.compile(ops.linear, backend="eager", fullgraph=True)
        assert torch.equal(compiled(*given), ops.linear(*given))


def test_in_a_compilers_graph_who_multiplies_is_decided_when_it_runs(monkeypatch):
    """One graph serves any number of rows, with and without gradients."""
    asked = []

    def at_least_six_rows(rows, weight, trains, records):
        asked.append((rows, trains, records))
        return rows >= 6

    monkeypatch.setattr(_cpu_linear, "_is_quicker", at_least_six_rows)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ops.linear, fullgraph=True, dynamic=True, backend=counter)
    weight, bias = torch.randn(24, 16, requires_grad=True), torch.randn(24, requires_grad=True)
    for rows in (3, 8, 5, 9):
        x = torch.randn(rows, 16, requires_grad=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, weight, bias), F.linear(x, weight, bias))
        asked.clear()
        found = []
        for linear in (compiled, F.linear):
            out = linear(x, weight, bias)
            found.append([out, *torch.autograd.grad(out.square().sum(), (x, weight, bias))])
        for got, wanted in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted)
        assert asked == [(rows, True, True)] * 2
    assert counter.frame_count == 2


@pytest.mark.parametrize("rows", [1, 40])
def test_opcheck_of_the_float32_linear(rows):
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((rows, 2, 16), (24, 16), (24,)))
    assert set(torch.library.opcheck(torch.ops.fastbert.linear_float32, (x, weight, bias, True, True)).values()) == {
        "SUCCESS"
    }
