"""Int8 products: integer sums exact against int64, the rest by the tolerance rule, at every level that runs here."""

from __future__ import annotations

import copy
import functools
from itertools import pairwise

import levels
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from close import assert_close
from levels import EMULATED, INT8_LEVELS, at_level

from fastbert import _native, ops, reference
from fastbert.errors import BackendError, InputError

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

# (T, N, K) off and at: rows (1..6), passes of rows (48), panels (16), blocks of outputs (64), steps (4), chunks (64),
# groups (256).
SHAPES = [(1, 1, 1), (1, 21, 24), (5, 15, 3), (7, 17, 65), (6, 64, 64), (13, 130, 257), (3, 80, 509)]
SHAPES += [(119, 48, 384), (33, 51, 1030), (101, 150, 600), (48, 64, 256)]
# Blocks of 96, 96 and 8 rows: they are cut where more would not fit the cache.
SHAPES += [(200, 20, 8300)]
GUARD = 64


@pytest.fixture(params=INT8_LEVELS)
def level(request):
    with at_level(request.param), ops.backend("cpu"):
        yield request.param


def groups_of(k: int) -> list[slice]:
    """The groups as gemm_int8.h says: equal multiples of 64, at most 256."""
    chunks = -(-k // 64)
    count = -(-chunks // 4)
    size = -(-chunks // count) * 64
    return [slice(begin, min(begin + size, k)) for begin in range(0, k, size)]


def quantised_weight(weight: np.ndarray, outliers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(N, K) int64 and (groups, N) float32, written down again with numpy."""
    rest = weight.copy()
    rest[:, outliers] = 0
    q, scales = np.zeros(weight.shape, np.int64), []
    for part in groups_of(weight.shape[1]):
        scale = np.abs(rest[:, part]).max(1) / np.float32(127)
        scales.append(scale)
        usable = scale > 0
        q[usable, part] = np.rint(rest[usable, part] / scale[usable, None])
    return q, np.stack(scales)


def quantised_rows(x: np.ndarray, outliers: list[int]) -> np.ndarray:
    """q - z, (T, K) int64."""
    rest = x.copy()
    rest[:, outliers] = 0
    q = np.zeros(x.shape, np.int64)
    share = np.float32(1) / np.float32(254)
    for part in groups_of(x.shape[1]):
        low, high = np.minimum(rest[:, part].min(1), 0), np.maximum(rest[:, part].max(1), 0)
        scale = high * share - low * share
        usable = scale > 0
        inverse = (np.float32(1) / scale[usable])[:, None]
        q[usable, part] = np.rint(rest[usable, part] * inverse)
    return q


def run(x, packed, n, *, bias=None, activation=0, residual=None, sums=False, dtype=None, threads=None):
    """The kernel into a buffer with guard bytes around it and gaps between rows; returns (output, sums or None)."""
    dtype = dtype or x.dtype
    m, k = x.shape
    gap = 5
    whole = torch.full((2 * GUARD + m * (n + gap),), 777.0, dtype=dtype)
    out = whole[GUARD : GUARD + m * (n + gap)].view(m, n + gap)
    residual_rows = None
    if residual is not None:
        residual_rows = torch.full((m, n + gap), float("nan"), dtype=dtype)
        residual_rows[:, :n] = residual
    count = len(groups_of(k))
    integers = torch.full((m * count * n + 2 * GUARD,), -77, dtype=torch.int32)
    codes = {torch.float32: 0, torch.bfloat16: 1}
    with levels.threads(threads or torch.get_num_threads()):
        _native.extension().gemm_int8(
            codes[x.dtype], x.data_ptr(), x.stride(0), packed.data_ptr(), 0 if bias is None else bias.data_ptr(),
            activation,
            0 if residual is None else residual_rows.data_ptr(), out.data_ptr(), n + gap, codes[dtype], m, n, k,
            integers[GUARD:].data_ptr() if sums else 0,
        )  # fmt: skip
    guards = torch.cat([whole[:GUARD], whole[GUARD + m * (n + gap) :], out[:, n:].reshape(-1)])
    assert bool((guards == 777.0).all()), "wrote outside its output"
    assert bool((integers[:GUARD] == -77).all() and (integers[GUARD + m * count * n :] == -77).all())
    result = integers[GUARD : GUARD + m * count * n].view(m, count, n) if sums else None
    return out[:, :n].clone(), result


def some_outliers(k: int) -> list[int]:
    return sorted({0, k // 2, k // 2 + 1, k - 1}) if k > 3 else []  # two that share a byte of a mask, and two alone


@functools.cache
def sums_case(shape, extreme):
    """Inputs, the outliers among their columns, and the sums of every group as numpy makes them; shared by all
    levels."""
    m, n, k = shape
    x, weight = torch.randn(m, k), torch.randn(n, k)
    outliers = some_outliers(k)
    if extreme == "ends":  # every weight is 127 of one sign, every input at one end: the largest sums there are
        weight = torch.ones(n, k) * torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0)[:, None]
        x = torch.full((m, k), 3.0) * torch.where(torch.arange(m) % 2 == 0, 1.0, -1.0)[:, None]
        outliers = []
    elif extreme == "equal rows":
        x, weight = x[:1].repeat(m, 1), weight[:1].repeat(n, 1)
    elif extreme == "one-sided":
        x = x.abs() + 1e6
    q_weight, _ = quantised_weight(weight.numpy(), outliers)
    q_rows = quantised_rows(x.numpy(), outliers)
    return x, weight, outliers, [q_rows[:, part] @ q_weight[:, part].T for part in groups_of(k)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("extreme", ["random", "ends", "equal rows", "one-sided"])
def test_sums_are_exact(level, shape, extreme):
    x, weight, outliers, expected = sums_case(shape, extreme)
    _, n, k = shape
    packed = ops.pack_int8(weight, torch.tensor(outliers, dtype=torch.int32))
    _, sums = run(x, packed, n, sums=True)
    for g in range(len(groups_of(k))):
        assert np.array_equal(sums[:, g].numpy(), expected[g])
    if extreme == "ends":
        assert int(sums.abs().max()) == 127 * 254 * max(part.stop - part.start for part in groups_of(k))


def test_packing_is_what_numpy_makes_of_it():
    weight = torch.randn(37, 400) * torch.logspace(-6, 3, 400)
    weight[5] = 0
    outliers = torch.tensor([399, 7, 7, 130])
    got = ops.unpack_int8(ops.pack_int8(weight, outliers))
    q, scale = quantised_weight(weight.numpy(), [7, 130, 399])
    assert np.array_equal(got.q.numpy(), q)
    assert np.array_equal(got.scale.numpy(), scale)
    assert got.outliers.tolist() == [7, 130, 399]
    assert torch.equal(got.outlier_weights, weight[:, [7, 130, 399]].T)


def test_weights_that_are_too_small_for_a_scale_are_zero():
    """Of such a scale 127 steps are not the largest weight any more, and a step more is of the other sign."""
    weight = torch.tensor([[2e-43, -2e-43], [1e-36, 2e-36], [1.0, -1.0]])
    got = ops.unpack_int8(ops.pack_int8(weight))
    assert got.q.tolist() == [[0, 0], [0, 0], [127, -127]]
    assert got.scale[0, :2].tolist() == [0.0, 0.0]


@functools.cache
def output_case(shape, activation, residual, dtype):
    """Some draws of inputs, each with its packed weight, the truth in float64 and the reference; shared by all
    levels."""
    m, n, k = shape
    draws = 400 // (m * n) + 1  # rounding is a matter of luck where there are few elements
    each = min(draws, 20)  # of one weight
    found = []
    for _ in range(-(-draws // each)):
        x, weight, bias = torch.randn(each * m, k).to(dtype), torch.randn(n, k) / k**0.5, torch.randn(n)
        added = torch.randn(each * m, n).to(dtype) if residual else None
        packed = ops.pack_int8(weight, torch.tensor(some_outliers(k), dtype=torch.int32))
        parts = ops.unpack_int8(packed), bias, activation, added
        truth = reference.linear_int8(x, *parts, dtype=torch.float64).flatten()
        same = reference.linear_int8(x, *parts, dtype=torch.float32).to(dtype).flatten()
        found.append((x, weight, bias, added, packed, truth, same))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("activation", "residual"), [(None, False), ("none", False), ("tanh", True), (None, True)])
@pytest.mark.parametrize("shape", SHAPES)
def test_output(level, shape, activation, residual, dtype):
    m, n, k = shape
    code, got = {None: 0, "none": 1, "tanh": 2}[activation], []
    draws = output_case(shape, activation, residual, dtype)
    for x, weight, bias, added, packed, *_ in draws:
        ours = ops.pack_int8(weight, torch.tensor(some_outliers(k), dtype=torch.int32))
        assert torch.equal(ours, packed)  # those of another level
        for i in range(0, len(x), m):
            rows = None if added is None else added[i : i + m]
            got.append(run(x[i : i + m], ours, n, bias=bias, activation=code, residual=rows)[0].flatten())
    *_, truth, same = zip(*draws, strict=True)
    assert_close(torch.cat(got), torch.cat(truth), torch.cat(same))


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_of_every_size(level, form):
    """One input, not quantised, times one: each range of x held to the rule by itself, as small values err less."""
    packed = ops.pack_int8(torch.ones(1, 1), torch.tensor([0]))
    bounds = [-40.0, -8.0, -4.0, -2.0, -0.1, 0.1, 2.0, 4.0, 8.0, 40.0]
    for low, high in pairwise(bounds):
        x = torch.linspace(low, high, 3001)[:, None]
        got, _ = run(x, packed, 1, activation=1 if form == "none" else 2)
        assert_close(got, F.gelu(x.double(), approximate=form), F.gelu(x, approximate=form), what=f"{low}..{high}")
    x = torch.tensor([0.0, float("inf"), -float("inf"), float("nan")])[:, None]
    got = run(x, packed, 1, activation=1 if form == "none" else 2)[0].flatten()
    assert float(got[0]) == 0
    assert float(got[1]) == float("inf")
    assert abs(float(got[2])) < 1e-7
    assert bool(got[3].isnan())


def test_it_is_near_the_float_product(level):
    """The reference itself is right: eight bits on both sides leave about 1 % of the result's spread."""
    x, weight, bias = torch.randn(64, 768), torch.randn(96, 768) / 768**0.5, torch.randn(96)
    x[:, 5] *= 100  # one channel far larger than the others
    exact = F.linear(x.double(), weight.double(), bias.double())
    plain, apart = (
        (ops.linear_int8(x, ops.pack_int8(weight, columns), 96, bias).double() - exact).std()
        for columns in (None, torch.tensor([5]))
    )
    assert apart < 0.02
    assert plain > 3 * apart


def test_activations_are_not_clipped(level):
    """No value is further from what it is quantised to than half a step of its group."""
    x = torch.randn(50, 256) * torch.logspace(-3, 4, 50)[:, None]
    x[::2] = x[::2].abs()
    packed = ops.pack_int8(torch.eye(256))
    out, _ = run(x, packed, 256)
    step = (x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)) / 254
    # The identity's scale, 1/127, costs a rounding of its own.
    assert bool(((out - x).abs() <= step[:, None] * 0.5001 + x.abs() * 1e-6).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_tiny_and_huge_rows(level, dtype):
    weight = torch.randn(20, 130)
    packed = ops.pack_int8(weight)
    x = torch.zeros(5, 130, dtype=dtype)
    x[1] = 1e-41
    x[2, 3], x[2, 4] = 3e38, -3e38
    x[3] = 2e-36
    x[4] = 1e-38  # of such a range the scale has no reciprocal
    bias = torch.randn(20)
    out = ops.linear_int8(x, packed, 20, bias)
    assert torch.equal(out[0], bias.to(dtype))
    assert torch.equal(out[1], bias.to(dtype))
    assert bool(out[2].isfinite().any())
    assert bool((out[2].abs() > 1e36).any())
    torch.testing.assert_close(out[3], bias.to(dtype))
    torch.testing.assert_close(out[4], bias.to(dtype))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_visible(level, dtype, bad):
    x, weight = torch.randn(7, 300).to(dtype), torch.randn(19, 300)
    packed = ops.pack_int8(weight, torch.tensor([8]))
    clean = ops.linear_int8(x, packed, 19)
    x[2, 0], x[4, 299], x[5, 8] = bad, bad, bad
    out = ops.linear_int8(x, packed, 19)
    assert bool(out[[2, 4]].isnan().all())
    assert not bool(out[5].isfinite().any())
    others = [0, 1, 3, 6]
    assert torch.equal(out[others], clean[others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_for_one_and_two_threads_and_again(level, dtype):
    m, n, k = 131, 200, 520
    x, bias = torch.randn(m, k + 5).to(dtype)[:, 2:-3], torch.randn(n)  # threads begin at rows that lie apart
    packed = ops.pack_int8(torch.randn(n, k), torch.tensor([1, 2, 3]))
    one, _ = run(x, packed, n, bias=bias, activation=1, threads=1)
    for _ in range(5 if level in ("scalar", "amx_emulated") else 100):
        run(-2 * x, packed, n, threads=2)  # else a row that is read too early is that of the run before
        two, _ = run(x, packed, n, bias=bias, activation=1, threads=2)
        assert torch.equal(one, two)
    # A row does not depend on the rows beside it.
    for r in (0, 1, 130):
        assert torch.equal(run(x[r : r + 1], packed, n, bias=bias, activation=1)[0], one[r : r + 1])


def test_levels_agree():
    """To the bit among x86's vector levels, and among the others, of which on x86 multiply-add rounds twice."""
    x, bias = torch.randn(37, 700), torch.randn(90)
    packed = ops.pack_int8(torch.randn(90, 700), torch.tensor([3, 600]))
    before, outputs, sums = _native.isa(), {}, {}
    for name in (*INT8_LEVELS, *EMULATED):
        _native.extension().set_isa(name)
        outputs[name], sums[name] = run(x, packed, 90, bias=bias, activation=1, sums=True)
    _native.extension().set_isa(before)
    for name in outputs:
        assert torch.equal(sums[name], sums["scalar"])
        alike = "avx2" if name.startswith("avx") or name == "amx" else "scalar"
        assert torch.equal(outputs[name], outputs[alike]), name


def test_rows_apart_are_read_in_place(level):
    wide = torch.randn(9, 500)
    packed = ops.pack_int8(torch.randn(24, 100))
    part = wide[:, 7:107]
    assert torch.equal(ops.linear_int8(part, packed, 24), ops.linear_int8(part.contiguous(), packed, 24))
    x = torch.randn(100, 9).T
    assert torch.equal(ops.linear_int8(x, packed, 24), ops.linear_int8(x.contiguous(), packed, 24))
    assert ops.linear_int8(torch.randn(2, 3, 100), packed, 24).shape == (2, 3, 24)
    assert ops.linear_int8(torch.randn(0, 100), packed, 24).shape == (0, 24)


@pytest.mark.parametrize("k", [31, 63, 100, 127])  # one short of whole vectors, and elsewhere
def test_nothing_beside_a_row_is_read(level, k):
    x, packed = torch.randn(9, k), ops.pack_int8(torch.randn(24, k))
    wide = torch.full((9, k + 20), float("nan"))
    wide[:, 7 : 7 + k] = x
    assert torch.equal(ops.linear_int8(wide[:, 7 : 7 + k], packed, 24), ops.linear_int8(x, packed, 24))


def test_a_weight_without_inputs(level):
    """Rows of no bytes, by whose length a division ended the process."""
    packed, bias, residual = ops.pack_int8(torch.empty(18, 0)), torch.randn(18), torch.randn(5, 18)
    got = ops.linear_int8(torch.empty(5, 0), packed, 18, bias, residual=residual)
    assert torch.equal(got, bias + residual)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_batch_without_rows(backend):
    packed = ops.pack_int8(torch.randn(18, 40))
    with ops.backend(backend):
        assert ops.linear_int8(torch.empty(2, 0, 40), packed, 18).shape == (2, 0, 18)


@pytest.mark.parametrize("offset", [1, 32])
def test_a_packed_weight_anywhere_in_memory(level, offset):
    x, packed = torch.randn(5, 70), ops.pack_int8(torch.randn(18, 70))
    shifted = torch.empty(packed.numel() + offset, dtype=torch.uint8)[offset:].copy_(packed)
    assert torch.equal(ops.linear_int8(x, shifted, 18), ops.linear_int8(x, packed, 18))
    assert torch.equal(ops.linear_int8(x, copy.deepcopy(packed), 18), ops.linear_int8(x, packed, 18))


def test_reference_backend_computes_the_same():
    x, packed, bias = torch.randn(11, 300), ops.pack_int8(torch.randn(40, 300), torch.tensor([9])), torch.randn(40)
    with ops.backend("cpu"):
        ours = ops.linear_int8(x, packed, 40, bias, activation="none")
    with ops.backend("reference"):
        theirs = ops.linear_int8(x, packed, 40, bias, activation="none")
    torch.testing.assert_close(ours, theirs)


def test_a_packed_weight_that_does_not_lie_together():
    x, packed = torch.randn(5, 70), ops.pack_int8(torch.randn(18, 70))
    apart = torch.stack([packed, packed], 1)[:, 0]
    for backend in ("cpu", "reference"):
        with ops.backend(backend):
            assert torch.equal(ops.linear_int8(x, apart, 18), ops.linear_int8(x, packed, 18))


def test_op_fits_torch():
    x, packed = torch.randn(4, 30), ops.pack_int8(torch.randn(8, 30))
    torch.library.opcheck(torch.ops.fastbert.linear_int8, (x, packed, 8, torch.randn(8), 1, None))
    compiled = torch.compile(lambda x: ops.linear_int8(x, packed, 8) * 2, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), ops.linear_int8(x, packed, 8) * 2)


def test_a_packed_weight_off_the_cpu_is_refused():
    """A quantized model that was moved to a GPU: the host would read a header at an address of the device."""
    packed = ops.pack_int8(torch.randn(8, 30)).to("meta")
    with pytest.raises(InputError, match=r"packed by pack_int8, on the CPU, got uint8 .* on meta"):
        ops.linear_int8(torch.randn(4, 30), packed, 8)


def test_refusals():
    weight = torch.randn(8, 30)
    packed = ops.pack_int8(weight)
    x = torch.randn(4, 30)
    with pytest.raises(InputError, match="no gradient"):
        ops.linear_int8(x.requires_grad_(), packed, 8)
    with torch.no_grad():
        ops.linear_int8(x, packed, 8)
    with pytest.raises(InputError, match=r"\[8, 30\], got \(4, 29\)"):
        ops.linear_int8(torch.randn(4, 29), packed, 8)
    with pytest.raises(InputError, match="got float32 \\(3,\\)"):
        ops.pack_int8(torch.randn(3))
    with pytest.raises(InputError, match="finite"):
        ops.pack_int8(torch.full((2, 2), float("nan")))
    with pytest.raises(InputError, match=r"columns 0\.\.29"):
        ops.pack_int8(weight, torch.tensor([30]))
    with pytest.raises(InputError, match="residual"):
        ops.linear_int8(torch.randn(4, 30), packed, 8, residual=torch.randn(4, 7))
    with pytest.raises(InputError, match=r"bias must have shape \(8,\), got \(3,\)"):
        ops.linear_int8(torch.randn(4, 30), packed, 8, torch.randn(3))
    with ops.backend("cpu"), pytest.raises(BackendError, match="float64"):
        ops.linear_int8(torch.randn(4, 30).double(), packed, 8)
