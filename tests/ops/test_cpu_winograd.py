"""Float32 products by Winograd's inner product: by the rule of float32, and what only they could get wrong.

What every level must do (gradients, threads, the encoder) is in test_cpu_gemm.py and test_cpu_encoder.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from close import assert_close
from gemm_calls import SHAPES, check_by_the_rule, gemm, pack, strided
from levels import LEVELS

from fastbert import _native, hardware, ops
from fastbert.ops import _cpu_linear

WINOGRAD_LEVELS = ["avx512_winograd", "avx512_winograd_registers"]  # one arithmetic in two loops
WINOGRAD = 3
CHUNK = 96  # the most steps of k before sums are closed (csrc/include/gemm.h)

here = pytest.mark.skipif(not set(WINOGRAD_LEVELS) <= set(LEVELS), reason="this processor lacks AVX-512 with BF16")


@pytest.fixture(params=WINOGRAD_LEVELS)
def winograd(request):
    before = _native.isa()
    _native.extension().set_isa(request.param)
    yield
    _native.extension().set_isa(before)


def multiply(a, w, out=None, *epilogue):
    out = torch.empty(a.shape[0], w.shape[0]) if out is None else out
    gemm(a, pack(w, torch.float32, form=WINOGRAD), w.shape[0], out, *epilogue, form=WINOGRAD)
    return out


@here
@pytest.mark.parametrize("shape", [*SHAPES, (33, 40, 768), (25, 33, 96), (11, 16, 97), (12, 32, 98), (7, 15, 2)])
@pytest.mark.parametrize(("activation", "extras"), [("none", False), ("gelu", True)])
def test_by_the_rule_of_float32(winograd, shape, activation, extras):
    check_by_the_rule(multiply, shape, activation, extras, "winograd")


@here
@pytest.mark.parametrize(("rows", "columns"), [(1.0, 0.02), (1e-6, 1.0), (1.0, 1e-12), (1e15, 1e-15), (1e-25, 1e20)])
def test_factors_of_unlike_size(winograd, rows, columns):
    """The error is of the product's size, whatever the factors' sizes: unscaled, the larger one drowns the other."""
    a, w = rows * torch.randn(50, 200), columns * torch.randn(48, 200)
    assert_close(multiply(a, w), a.double() @ w.double().t(), a @ w.t())


@here
def test_rows_columns_and_chunks_of_unlike_size(winograd):
    """Each has a scale of its own, so a small one keeps its digits beside a large one."""
    a, w = torch.randn(40, 3 * CHUNK), torch.randn(48, 3 * CHUNK)
    tall, wide = torch.logspace(-12, 12, 40)[:, None], torch.logspace(-9, 9, 48)[:, None]
    deep = torch.tensor([1e-3, 1.0, 1e4]).repeat_interleave(CHUNK)
    a, w = a * tall * deep, w * wide / deep
    scale = tall.double() @ wide.double().t()
    got, exact, same = multiply(a, w), a.double() @ w.double().t(), a @ w.t()
    assert_close((got.double() / scale).float(), exact / scale, (same.double() / scale).float())


@here
def test_outliers_of_a_row(winograd):
    """As hidden states have them: two numbers of a row are fifty times the others."""
    a, w = torch.randn(60, 384), 0.05 * torch.randn(64, 384)
    a[:, [7, 200]] *= 50
    assert_close(multiply(a, w), a.double() @ w.double().t(), a @ w.t())


@here
def test_outliers_that_make_a_pair(winograd):
    """The one thing that the inner product is worse at: their product, which is subtracted again, is large.

    What holds then is a bound by the factors' norms (Higham, "Accuracy and Stability of Numerical Algorithms", 23.2.1).
    """
    a, w = torch.randn(60, 384), 0.05 * torch.randn(64, 384)
    a[:, [7, 8]] *= 50  # steps 7 and 8 of a chunk: six are two groups of three, the seventh stands alone
    exact = a.double() @ w.double().t()
    norms = a.double().norm(dim=1)[:, None] * w.double().norm(dim=1)
    error = ((multiply(a, w).double() - exact).abs() / norms).max()
    assert 2.0**-24 < error < 8 * 2.0**-24
    plain = torch.empty(60, 64)
    gemm(a, pack(w, torch.float32), 64, plain)
    assert ((plain.double() - exact).abs() / norms).max() < error  # else this test shows nothing


@here
@pytest.mark.parametrize("k", [3, 50, CHUNK, 2 * CHUNK + 7])
def test_zeros_give_zeros(winograd, k):
    """A row or a column of zeros: what is subtracted is to the bit what was added."""
    a, w = torch.randn(30, k), torch.randn(40, k)
    a[[0, 17]], w[[3, 39]] = 0.0, 0.0
    out = multiply(a, w)
    assert (out[[0, 17]] == 0).all()
    assert (out[:, [3, 39]] == 0).all()
    assert (out != 0).sum() == 28 * 38
    dw = torch.empty(40, 30)
    dy, x = w.t().contiguous(), a.t().contiguous()
    pointers = dy.data_ptr(), 40, x.data_ptr(), 30, dw.data_ptr(), 30, 0, 0
    _native.extension().weight_grad(0, *pointers, k, 40, 30)
    assert (dw[[3, 39]] == 0).all()
    assert (dw[:, [0, 17]] == 0).all()


@here
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(winograd, strange):
    a, w = torch.randn(30, 150), torch.randn(40, 150)
    expected = multiply(a, w)
    for place in (0, 1, 2, 149):
        spoilt = a.clone()
        spoilt[5, place] = strange
        out = multiply(spoilt, w)
        assert not out[5].isfinite().any()
        out[5] = expected[5]
        assert torch.equal(out, expected)
        spoilt = w.clone()
        spoilt[21, place] = strange
        out = multiply(a, spoilt)
        assert not out[:, 21].isfinite().any()
        out[:, 21] = expected[:, 21]
        assert torch.equal(out, expected)


@here
def test_the_smallest_and_the_largest_numbers(winograd):
    """Their squares are no numbers of float32: the largest of a row or a column gives the scale."""
    a, w = torch.randn(24, 100).clamp(-2, 2), torch.randn(32, 100).clamp(-2, 2)
    expected = multiply(a, w)
    for factor, other in ((2.0**-120, 1.0), (2.0**120, 2.0**-20), (2.0**-100, 2.0**90)):
        exact = (a * factor).double() @ (w * other).double().t()
        got = multiply(a * factor, w * other).double()
        assert ((got - exact).abs().max() / exact.abs().max()) < 1e-6
    assert torch.equal(multiply(a * 2.0**20, w * 2.0**-30), expected * 2.0**-10)  # scales are powers of two
    for factor, other in ((2.0**-130, 1.0), (1.0, 2.0**-130)):  # below float32's normal numbers digits are lost
        exact = (a * factor).double() @ (w * other).double().t()
        assert (multiply(a * factor, w * other).double() - exact).abs().max() < 2.0**-120


@here
@pytest.mark.parametrize("k", [50, CHUNK, 2 * CHUNK + 7])
@pytest.mark.parametrize(("rows", "columns"), [(-100, 125), (-20, 124), (-126, 126), (125, -100), (126, -126)])
def test_a_factor_at_the_edge_times_a_small_one(winograd, rows, columns, k):
    """The sums times the large scale alone are beyond float32; the results are not. And both keep their digits."""
    a, w = 2.0**rows * torch.randn(30, k).clamp(-1.9, 1.9), 2.0**columns * torch.randn(40, k).clamp(-1.9, 1.9)
    exact, same = a.double() @ w.double().t(), a @ w.t()
    assert same.isfinite().all()
    assert_close(multiply(a, w), exact, same)


@here
def test_bits_depend_on_neither_threads_nor_rows(winograd):
    a, w = torch.randn(70, 200), torch.randn(300, 200)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 4, 1):
            torch.set_num_threads(count)
            results.append(multiply(a, w))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])
    for row in (0, 11, 41, 69):
        assert torch.equal(multiply(a[row : row + 1], w)[0], results[0][row])
    assert torch.equal(multiply(a, w[:17]), results[0][:, :17])


@here
def test_the_packed_form(winograd):
    """[n / 16][k][16] in chunks, with two rows behind each: the products of its pairs, and the scale to take out."""
    n, k, length = 33, CHUNK + 50, 75  # two chunks, as equal as multiples of three are
    w = torch.randn(n, k) * torch.logspace(-5, 5, n)[:, None]
    for source, transposed in ((w, False), (strided(w), False), (w.t().contiguous(), True)):
        panels = pack(source, torch.float32, transposed, WINOGRAD).view(torch.float32).view(3, k + 4, 16)
        first, second = panels[:, : length + 2], panels[:, length + 2 :]
        unpacked = []
        for chunk in (first, second):
            numbers, products, back = chunk[:, :-2], chunk[:, -2], chunk[:, -1]
            mean = numbers[:2].square().mean(1)
            assert ((mean >= 0.499) & (mean < 2.001)).all()
            assert (torch.frexp(back)[0] == 0.5).all()
            groups = numbers[:, : numbers.shape[1] // 3 * 3].unflatten(1, (-1, 3)).double()
            sums = (groups[:, :, 1] * groups[:, :, 2]).sum(1).float()
            torch.testing.assert_close(products, sums, atol=1e-4, rtol=1e-5)
            unpacked.append(numbers * back[:, None])
        whole = torch.cat(unpacked, 1).transpose(1, 2).reshape(48, k)
        assert torch.equal(whole[:n], w)
        assert not whole[n:].any()
    half = w.bfloat16()
    assert torch.equal(pack(half, torch.float32, form=WINOGRAD), pack(half.float(), torch.float32, form=WINOGRAD))


@here
@pytest.mark.parametrize("shape", [(70, 90, 200), (21, 40, 97), (10, 32, 96), (1, 17, 50), (9, 16, 2)])
def test_both_loops_have_the_same_bits(shape):
    rows, columns, k = shape
    a, w, dy = torch.randn(rows, k), torch.randn(columns, k), torch.randn(k, columns)
    x, before, results = a.t().contiguous(), _native.isa(), []
    try:
        for level in WINOGRAD_LEVELS:
            _native.extension().set_isa(level)
            dw = torch.empty(columns, rows)
            pointers = dy.data_ptr(), columns, x.data_ptr(), rows, dw.data_ptr(), rows, 0, 0
            _native.extension().weight_grad(0, *pointers, k, columns, rows)
            results.append((multiply(a, w), dw))
    finally:
        _native.extension().set_isa(before)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
def test_other_levels_refuse_it():
    before = _native.isa()
    try:
        for level in sorted(set(LEVELS) - set(WINOGRAD_LEVELS)):
            _native.extension().set_isa(level)
            assert not _native.extension().has_winograd()
            with pytest.raises(ValueError, match="no Winograd"):
                pack(torch.randn(4, 3), torch.float32, form=WINOGRAD)
            packed = torch.zeros(16 * 5, dtype=torch.float32)
            with pytest.raises(ValueError, match="no Winograd"):
                gemm(torch.randn(2, 3), packed, 4, torch.empty(2, 4), form=WINOGRAD)
    finally:
        _native.extension().set_isa(before)


@here
def test_linear_takes_it_where_the_level_has_it(winograd, monkeypatch):
    monkeypatch.setattr(hardware, "is_amd", lambda: True)
    forms = []
    true = _cpu_linear.packed_weight
    monkeypatch.setattr(_cpu_linear, "packed_weight", lambda w, form, *rest: forms.append(form) or true(w, form, *rest))
    x, w = torch.randn(80, 40), torch.randn(48, 40)
    with ops.backend("cpu"):
        ops.linear(x, w)
        ops.linear(x[:1], w)
        ops.linear(x.bfloat16(), w.bfloat16())
    assert forms == [WINOGRAD, WINOGRAD, 1]
    _native.extension().set_isa("avx512")
    with ops.backend("cpu"):  # what is packed for one level is not taken for another's
        torch.testing.assert_close(ops.linear(x, w), x @ w.t(), rtol=1e-5, atol=1e-5)
    assert forms[3] == 0


@pytest.mark.parametrize(
    ("vendor", "version", "best"),
    [
        ("AuthenticAMD", 0xA10F11, "avx512_winograd"),  # Genoa, Zen 4
        ("AuthenticAMD", 0xA60F12, "avx512_winograd"),  # Raphael, Zen 4
        ("AuthenticAMD", 0xB00F21, "avx512_winograd_registers"),  # Turin, Zen 5
        ("AuthenticAMD", 0xB10F10, "avx512_winograd_registers"),  # Turin Dense, Zen 5c
        ("AuthenticAMD", 0xB40F40, "avx512_winograd_registers"),  # Granite Ridge, Zen 5
        ("AuthenticAMD", 0xB20F40, "avx512_bf16_pairs"),  # Strix Point, Zen 5 with half of its width
        ("GenuineIntel", 0x806F8, "avx512_bf16"),
    ],
)
def test_which_processors_are_given_it(monkeypatch, vendor, version, best):
    name = [int.from_bytes(vendor[i : i + 4].encode(), "little") for i in (0, 4, 8)]
    told = {0: (0x10, name[0], name[2], name[1]), 1: (version, 0, 0, 0)}
    monkeypatch.setattr(hardware, "cpuid", lambda leaf, sub: told[leaf])
    monkeypatch.setattr(hardware, "saved_state", lambda: 0xE7)
    wanted = ("avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16")
    monkeypatch.setattr(hardware, "features", lambda: wanted)
    hardware.is_amd.cache_clear()
    try:
        assert hardware.isa() == best
    finally:
        hardware.is_amd.cache_clear()
