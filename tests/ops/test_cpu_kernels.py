"""The CPU kernels against their references by the one tolerance rule, at every instruction-set level that runs here."""

from __future__ import annotations

import itertools

import pytest
import torch
from close import assert_close
from levels import LEVELS, Guarded, at_level
from numbered_rows import check_numbered_rows

from fastbert import _native, ops, reference
from fastbert.errors import BackendError, InputError
from fastbert.ops import _cpu, _dropout_schema
from fastbert.ops._cpu_dropout import keep_mask
from fastbert.rng import Dropout

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

# Lengths below, at and off the vector widths (8, 16), over the 1,024 columns whose keep bits are held at a time.
SHAPES = [(1, 1), (1, 24), (37, 1), (5, 13), (3, 17), (64, 768), (33, 100), (2, 2500), (1100, 16)]
DROPOUT = Dropout(p=0.1, seed=(0x1234 << 40) + 99, offset=7, site=3)
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=LEVELS)
def level(request):
    with at_level(request.param), ops.backend("cpu"):
        yield request.param


def run(function, leaves, dout, dtype):
    """[output, gradients of the leaves] with everything in one dtype."""
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    out = function(*leaves)
    out.backward(dout.to(out.dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


_DRAWS: dict[tuple, list[tuple]] = {}


def drawn(case, make, truth, dtype):
    """Inputs, the truth in float64 and the reference in ``dtype``, as often as it takes; shared by all levels.

    A rounding error is a matter of luck where there are few elements: tiny shapes are drawn often and judged together.
    """
    if case not in _DRAWS:
        draws = []
        while len(draws) < 400 and sum(draw[3][-1].numel() for draw in draws) < 400:
            leaves, dout = make()
            leaves, dout = [leaf.to(dtype) for leaf in leaves], dout.to(dtype)
            draws.append((leaves, dout, run(truth, leaves, dout, torch.float64), run(truth, leaves, dout, dtype)))
        _DRAWS[case] = draws
    return _DRAWS[case]


def compare(case, make, kernel, truth, dtype, names):
    """Holds a kernel's output and gradients to the rule; ``case`` is all that inputs and reference follow from."""
    draws = [(run(kernel, leaves, dout, dtype), *known) for leaves, dout, *known in drawn(case, make, truth, dtype)]
    for i, name in enumerate(names):
        got, true, same = (torch.cat([draw[k][i].reshape(-1) for draw in draws]) for k in range(3))
        assert_close(got, true, same, gradient=i > 0, what=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu(level, shape, approximate, dtype):
    rows, columns = shape

    def make():
        return [3 * torch.randn(rows, columns), torch.randn(columns)], torch.randn(rows, columns)

    compare(
        ("gelu", shape, approximate, dtype),
        make,
        lambda x, bias: ops.gelu(x, bias, approximate),
        lambda x, bias: reference.gelu(x, bias, approximate),
        dtype,
        ["gelu", "dx", "dbias"],
    )


@pytest.mark.parametrize("write", [lambda b: b.mul_(3), lambda b: b.data.mul_(3), lambda b: setattr(b, "data", 3 * b)])
def test_gelus_bias_may_be_written_before_the_backward_pass(write):
    """As torch's, which saves the sum: a step of the optimiser between the backward passes of two losses."""
    x, bias = torch.randn(5, 20, requires_grad=True), torch.nn.Parameter(torch.randn(20))
    expected = torch.autograd.grad(reference.gelu(x, bias, "none").sin().sum(), [x, bias])
    out = ops.gelu(x, bias, "none")
    with torch.no_grad():
        write(bias)
    got = torch.autograd.grad(out.sin().sum(), [x, bias])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_without_bias_and_at_the_ends(level, approximate):
    x = torch.cat([torch.linspace(-20, 20, 9001), torch.tensor([0.0, -0.0, 1e-30, 3e4, float("inf"), float("nan")])])
    leaf = x.clone().requires_grad_()
    out = ops.gelu(leaf, None, approximate)
    out.sum().backward()
    truth = x.double().requires_grad_()
    expected = reference.gelu(truth, None, approximate)
    expected.sum().backward()
    assert torch.equal(out.isnan(), x.isnan())
    assert out[-2] == float("inf")
    assert leaf.grad[-2] == 1
    # Judged where the largest value is 5, so that the unit in the last place that the rule allows is a small one.
    near = (x.abs() <= 5) & x.isfinite()
    same = x.clone().requires_grad_()
    by_torch = reference.gelu(same, None, approximate)
    by_torch.sum().backward()
    assert_close(out.detach()[near], expected.detach()[near], by_torch.detach()[near])
    assert_close(leaf.grad[near], truth.grad[near], same.grad[near], gradient=True)
    # The tail keeps its relative precision, which 1 + erf(x) has lost: rounding t costs e^-t t units, and t is at most
    # x^2 / 2 = 18, or 2 sqrt(2/pi) (x + 0.044715 x^3) = 25, here.
    tail = (x < -1) & (x > -6)
    rtol = (18 if approximate == "none" else 25) * 2**-23
    torch.testing.assert_close(out.detach()[tail].double(), expected.detach()[tail], rtol=rtol, atol=0.0)


LAYER_NORM_FORMS = list(itertools.product([False, True], [False, True], [None, DROPOUT]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("x_bias", "residual", "dropout"), LAYER_NORM_FORMS)
# Beside rows of variance 1 BERT's 1e-12 is lost: one that is not is large enough to be missed.
@pytest.mark.parametrize(
    ("shape", "eps"), [((1, 24), 1e-12), ((5, 13), 0.5), ((64, 768), 1e-12), ((2, 2500), 1e-12), ((1100, 16), 1e-12)]
)
def test_layer_norm(level, shape, eps, x_bias, residual, dropout, dtype):
    rows, columns = shape

    def make():
        leaves = [torch.randn(rows, columns) + 0.5, 1 + 0.2 * torch.randn(columns), torch.randn(columns)]
        leaves += [torch.randn(columns)] if x_bias else []
        leaves += [torch.randn(rows, columns)] if residual else []
        return leaves, torch.randn(rows, columns)

    def call(function):
        def with_options(x, weight, bias, *rest):
            rest = list(rest)
            options = {"x_bias": rest.pop(0) if x_bias else None, "residual": rest.pop(0) if residual else None}
            return function(x, weight, bias, eps, dropout=dropout, **options)

        return with_options

    names = ["layer_norm", "dx", "dweight", "dbias", *["dx_bias"] * x_bias, *["dresidual"] * residual]
    case = ("layer_norm", shape, x_bias, residual, dropout, dtype)
    compare(case, make, call(ops.layer_norm), call(reference.layer_norm), dtype, names)


def test_layer_norm_without_gradient_keeps_no_sum(level):
    x, weight, bias = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    residual = torch.randn(6, 40)
    with torch.no_grad():
        out = ops.layer_norm(x, weight, bias, 1e-12, residual=residual)
    torch.testing.assert_close(out, reference.layer_norm(x, weight, bias, 1e-12, residual=residual))


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("columns", [1, 7, 8, 24, 31, 64, 100, 512, 1025])
def test_masks_have_the_bits_of_the_reference(level, p, columns):
    dropout = Dropout(p, seed=(1 << 63) + 12345, offset=2**32 - 1, site=1 << 20)
    rows = torch.tensor([0, 5, 2**31, 2**32 - 1, 77, 78, 79, 80, 81])
    assert torch.equal(keep_mask(rows, columns, dropout), reference.keep_mask(rows, columns, dropout))
    x = torch.randn(9, columns)
    assert torch.equal(ops.dropout(x, dropout), reference.dropout(x, dropout))
    half = x.bfloat16()
    assert torch.equal(ops.dropout(half, dropout), reference.dropout(half, dropout))


def test_what_is_dropped_is_0_whatever_it_was(level):
    kept = reference.keep_mask(torch.arange(4), 300, DROPOUT)
    for backend in ("reference", "cpu"):
        x = torch.full((4, 300), float("nan"), requires_grad=True)
        with ops.backend(backend):
            out = ops.dropout(x, DROPOUT)
            out.backward(torch.full((4, 300), float("inf")))
        assert torch.equal(out.isnan(), kept), backend
        assert torch.equal(x.grad, torch.where(kept, float("inf"), 0.0)), backend


def test_dropout_is_its_own_gradient(level):
    x = torch.randn(4, 300, requires_grad=True)
    ops.dropout(x, DROPOUT).backward(torch.ones(4, 300))
    keep = reference.keep_mask(torch.arange(4), 300, DROPOUT)
    assert torch.equal(x.grad, keep * torch.tensor(DROPOUT.scale, dtype=torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_rows_drop_what_they_drop_among_all(level, dtype):
    check_numbered_rows(dtype)


@pytest.mark.parametrize(
    "rows", [torch.arange(3), torch.arange(4).int(), torch.arange(4)[None], torch.arange(4, device="meta")]
)
def test_numbers_that_are_not_those_of_the_rows_are_refused(rows):
    """The kernels read them from raw memory."""
    x, weight = torch.randn(4, 8), torch.ones(8)
    for call in (lambda: ops.dropout(x, DROPOUT, rows), lambda: ops.layer_norm(x, weight, weight, 1e-5, rows=rows)):
        with pytest.raises(InputError, match="rows must be the numbers of the 4 rows of x, int64 on cpu, got"):
            call()


@pytest.mark.parametrize("op", ["dropout", "layer_norm"])
def test_numbers_of_rows_that_are_written_before_the_backward_pass_are_told(op):
    x, weight, rows = torch.randn(4, 8, requires_grad=True), torch.ones(8), torch.arange(4)
    options = {"dropout": DROPOUT, "rows": rows}
    out = ops.dropout(x, DROPOUT, rows) if op == "dropout" else ops.layer_norm(x, weight, weight, 1e-5, **options)
    rows += 100
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(7, 2), (5, 13), (40, 100), (6, 3001)])
def test_cross_entropy(level, shape, reduction, dtype):
    labels = torch.randint(shape[1], shape[:1])
    labels[1] = -100

    def make():
        return [4 * torch.randn(shape)], torch.randn(shape[:1] if reduction == "none" else ())

    compare(
        ("cross_entropy", shape, reduction, dtype),
        make,
        lambda x: ops.cross_entropy(x, labels, reduction=reduction),
        lambda x: reference.cross_entropy(x, labels, reduction=reduction),
        dtype,
        ["loss", "dlogits"],
    )


def test_cross_entropy_at_the_ends(level):
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor([[1e4, -1e4, 0], [-inf, 0, 0], [nan, 0, 0], [3, 3, 3], [0, 0, 0]]).repeat(1, 9)
    logits[4, 26] = 1e4  # the largest one in the last, partial vector
    labels = torch.tensor([0, 1, 1, -1, 2])
    leaf = logits.clone().requires_grad_()
    loss = ops.cross_entropy(leaf, labels, ignore_index=-1, reduction="none")
    loss.sum().backward()
    expected = reference.cross_entropy(logits.double(), labels, ignore_index=-1, reduction="none").float()
    torch.testing.assert_close(loss, expected, equal_nan=True)
    assert not leaf.grad[3].any()
    assert not leaf.grad[1, ::3].any()
    assert leaf.grad[2].isnan().all()
    with pytest.raises(InputError, match="got 27 at 1"):
        ops.cross_entropy(logits, torch.tensor([0, 27, 0, 0, 0]))
    with pytest.raises(InputError, match="got -5 at 2"):
        ops.cross_entropy(logits, torch.tensor([0, 0, -5, 0, 0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 13, 24, 100])
def test_nothing_is_written_beside_the_results(level, columns, dtype):
    rows, native, guarded = 5, _native.extension(), Guarded()
    dropout, code = _cpu.native_dropout(*_dropout_schema.arguments(DROPOUT)), _cpu.code_of(dtype)
    x, residual, dout = (torch.randn(rows, columns).to(dtype) for _ in range(3))
    weight, bias, dloss = torch.randn(columns), torch.randn(columns), torch.randn(rows)
    labels, row_numbers, results = torch.arange(rows) % columns, torch.arange(rows), []

    def at(*tensors):
        return [t.data_ptr() for t in tensors]

    def fresh(*shape, dtype=torch.float32):
        results.append(guarded(torch.full(shape, float("nan")).to(dtype)))
        return results[-1].data_ptr()

    def matrix():
        return fresh(rows, columns, dtype=dtype)

    def workspace(parts):
        return fresh(native.reduction_chunks(rows), parts * columns)

    size = rows, columns
    native.gelu_forward(code, False, *at(x, bias), matrix(), *size)
    native.gelu_forward(code, False, x.data_ptr(), 0, matrix(), *size)
    native.gelu_backward(code, False, *at(dout, x, bias), matrix(), fresh(columns), workspace(1), *size)
    given = at(x, bias, residual, weight, bias)
    kept = fresh(rows, columns), fresh(rows), fresh(rows)  # sum, mean, rstd
    native.layer_norm_forward(code, *given, 1e-5, dropout, matrix(), *kept, *size)
    native.layer_norm_forward(code, *given, 1e-5, dropout, matrix(), 0, *kept[1:], *size)
    gradients = matrix(), matrix(), fresh(columns), fresh(columns), fresh(columns), workspace(3)
    native.layer_norm_backward(code, dout.data_ptr(), *kept, weight.data_ptr(), dropout, *gradients, *size)
    native.dropout(code, x.data_ptr(), matrix(), *size, dropout)
    native.keep_mask(row_numbers.data_ptr(), *size, dropout, fresh(rows, columns, dtype=torch.bool))
    loss, statistics = fresh(rows), fresh(rows, 2)
    assert native.cross_entropy_forward(code, *at(x, labels), -100, loss, statistics, *size) == -1
    given = at(dloss, x, labels)
    assert native.cross_entropy_backward(code, *given, statistics, -100, matrix(), *size) == -1
    guarded.check()
    assert all(result.isfinite().all() for result in results)  # written all over


def _every_op(shape=(131, 200)):
    rows, columns = shape
    generator = torch.Generator().manual_seed(5)
    x, residual, dout = (torch.randn(shape, generator=generator) for _ in range(3))
    weight, bias = torch.randn(columns, generator=generator), torch.randn(columns, generator=generator)
    labels = torch.arange(rows) % columns
    results = run(ops.gelu, [x, bias], dout, torch.float32)
    results += run(
        lambda a, w, b, xb, r: ops.layer_norm(a, w, b, 1e-12, x_bias=xb, residual=r, dropout=DROPOUT),
        [x, weight, bias, bias, residual],
        dout,
        torch.float32,
    )
    results += run(lambda a: ops.cross_entropy(a, labels, reduction="none"), [x], dout[:, 0], torch.float32)
    return [*results, ops.dropout(x, DROPOUT), keep_mask(torch.arange(rows), columns, DROPOUT)]


def test_bits_do_not_depend_on_threads_or_repetition(level):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        once = _every_op()
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            for a, b in zip(once, _every_op(), strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(threads)


def test_levels_agree():
    results, before = {}, _native.isa()
    for name in LEVELS:
        _native.extension().set_isa(name)
        with ops.backend("cpu"):
            results[name] = _every_op()
    _native.extension().set_isa(before)
    for other in results.values():
        for a, b in zip(results[LEVELS[-1]], other, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-5)


def test_non_contiguous_and_empty(level):
    x, residual = torch.randn(16, 40).t(), torch.randn(40, 32)[:, ::2]
    weight, bias = torch.randn(32)[::2], torch.randn(16)
    expected = reference.layer_norm(x, weight, bias, 1e-5, residual=residual, dropout=DROPOUT)
    torch.testing.assert_close(ops.layer_norm(x, weight, bias, 1e-5, residual=residual, dropout=DROPOUT), expected)
    torch.testing.assert_close(ops.gelu(x, bias), reference.gelu(x, bias))
    assert torch.equal(ops.dropout(x, DROPOUT), reference.dropout(x, DROPOUT))
    for shape in ((0, 16), (2, 0, 16)):
        empty = torch.empty(shape, requires_grad=True)
        parameters = [torch.randn(16, requires_grad=True) for _ in range(3)]
        out = (
            ops.gelu(empty, parameters[0]) + ops.layer_norm(empty, *parameters[1:], 1e-5) + ops.dropout(empty, DROPOUT)
        )
        assert out.shape == shape
        out.sum().backward()
        assert all(not p.grad.any() for p in parameters)
    assert ops.cross_entropy(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), reduction="sum") == 0


def test_what_the_kernels_refuse():
    with ops.backend("cpu"):
        with pytest.raises(BackendError, match="float64"):
            ops.gelu(torch.randn(2, 3, dtype=torch.float64))
        with pytest.raises(BackendError, match="one dtype"):
            ops.layer_norm(torch.randn(2, 3), torch.ones(3), torch.ones(3), 1e-5, residual=torch.randn(2, 3).bfloat16())
    assert ops.gelu(torch.randn(2, 3, dtype=torch.float64)).dtype == torch.float64


TABLES = torch.randn(4, 8), torch.randn(4, 8), torch.randn(4, 8), torch.ones(8), torch.zeros(8), 1e-5
ROWS = torch.arange(3)
AWAY = {
    "labels": lambda away: ops.cross_entropy(torch.randn(3, 4), away(ROWS)),
    "ids": lambda away: ops.embedding(away(ROWS), ROWS, ROWS, *TABLES),
    "types": lambda away: ops.embedding(ROWS, away(ROWS), ROWS, *TABLES),
    "positions": lambda away: ops.embedding(ROWS, ROWS, away(ROWS), *TABLES),
    "a mask": lambda away: ops.read_mask(away(torch.ones(2, 3)), first_column=True),
}


@pytest.mark.parametrize("which", AWAY)
def test_numbers_on_another_device_are_not_read(which):
    """Their address means nothing here."""
    AWAY[which](lambda x: x)
    with pytest.raises(InputError, match="on the meta device"):
        AWAY[which](lambda x: x.to("meta"))


def test_the_span_of_a_tensor_is_from_its_first_number_to_its_last():
    x = torch.zeros(5, 4)
    for part, numbers in (
        *((x, 20), (x.t(), 20), (x[:, :2], 18), (x[::2, ::3], 20), (x[1:3, 1], 5), (x[:0], 0), (x[0, 0], 1)),
        (x[0].expand(9, 4), 4),
    ):
        assert _cpu.span(part) == 4 * numbers
    assert _cpu.span(x.bfloat16()) == 40
