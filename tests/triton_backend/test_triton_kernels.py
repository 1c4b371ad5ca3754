"""The Triton kernels in Triton's interpreter, on the CPU, against their references by the one tolerance rule.

The interpreter is chosen when triton is imported, so these tests run in a process of their own
(tests/triton_backend/test_triton_in_ci.py starts it); on a machine with a GPU they run on it as they are.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
from types import SimpleNamespace

import interpreter
import pytest
import torch
from close import assert_close
from numbered_rows import check_numbered_rows

from fastbert import ops, reference
from fastbert.reference.dropout import keep_mask
from fastbert.rng import Dropout

pytest.importorskip("triton")
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETING and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)

DEVICE = "cpu" if INTERPRETING else "cuda"
# In the interpreter bf16 has a few cases, below.
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETING else [torch.bfloat16])
DROPOUT = Dropout(p=0.3, seed=(0x9234 << 48) + 99, offset=7, site=3)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    if INTERPRETING:
        for name in ("poison", "round_casts", "multiply_bf16", "approximate", "contract"):
            getattr(interpreter, name)(monkeypatch)


@pytest.fixture(autouse=True)
def triton():
    """NaN in every new tensor, so that what is not written shows; no other backend."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    with ops.backend("triton"):
        yield
    torch.use_deterministic_algorithms(False)


def apart(x):
    """The same numbers with others between them, also those of a row."""
    return torch.stack([x, x.flip(0)], -1)[..., 0] if x.dim() else x


def check(function, same_function, leaves, dtype, fixed=()):
    """Result and every gradient of a Triton op against the reference in fp64; on a GPU twice to the same bits: in the
    interpreter programs follow each other, and what one run left behind shows in the next test's. In float16 what is
    given, the gradient from above too, lies apart in memory."""
    leaves, laid = [leaf.to(DEVICE) for leaf in leaves], apart if dtype == torch.float16 else torch.Tensor.detach

    def run(f, kind):
        given = [laid(leaf.detach().to(kind)).requires_grad_() for leaf in leaves]
        out = f(*given)
        torch.manual_seed(1)
        dout = torch.randn(out.shape, dtype=torch.float64).to(DEVICE)
        out.backward(laid(dout.to(out.dtype)))
        return [out.detach(), *(leaf.grad for leaf in given)]

    with ops.backend("reference"):
        # The gradient from above is the one that the tested dtype holds.
        truth = run_truth(same_function, leaves, dtype)
        same = run(same_function, dtype)
    got = run(function, dtype)
    again = got if INTERPRETING else run(function, dtype)
    for i, (ours, twin, true, rounded) in enumerate(zip(got, again, truth, same, strict=True)):
        assert torch.equal(ours, twin), f"result {i} differs between two runs"
        assert_close(ours, true, rounded, gradient=i > 0, what=f"result {i}")


def run_truth(f, leaves, dtype):
    given = [leaf.detach().to(dtype).double().requires_grad_() for leaf in leaves]
    out = f(*given)
    torch.manual_seed(1)
    dout = torch.randn(out.shape, dtype=torch.float64).to(DEVICE)
    out.backward(dout.to(torch.float32 if dtype == torch.float32 or out.dim() == 0 else dtype).double())
    return [out.detach(), *(leaf.grad for leaf in given)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_rows_drop_what_they_drop_among_all(dtype):
    check_numbered_rows(dtype, DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "approximate", "bias"), [((5, 13), "none", True), ((33, 300), "tanh", True), ((1, 1), "none", False)]
)
def test_gelu(dtype, shape, approximate, bias):
    leaves = [torch.randn(shape) * 2, *([torch.randn(shape[-1])] if bias else [])]

    def gelu(x, b=None):
        return ops.gelu(x, b, approximate)

    check(gelu, gelu, leaves, dtype)


def test_the_tail_of_gelu_in_16_bits_is_as_exact_as_the_rest():
    x = torch.linspace(-9, 9, 1801).to(DEVICE, torch.float16).requires_grad_()
    out = ops.gelu(x)
    out.sum().backward()
    wide = x.detach().double().requires_grad_()
    true = 0.5 * wide * torch.special.erfc(-wide * 0.5**0.5)  # exact at -9 too
    true.sum().backward()
    # Half a unit in the last place and a fifth of that; the slope, a difference, passes through zero.
    for ours, exact, floor in ((out.detach(), true.detach(), 2**-24), (x.grad, wide.grad, 3e-6)):
        assert float(((ours.double() - exact).abs() - 1.2 * 2**-11 * exact.abs()).max()) < floor


def test_gelu_of_what_is_not_finite():
    x = torch.tensor([float("nan"), float("inf")], device=DEVICE, dtype=torch.float16).requires_grad_()
    out = ops.gelu(x)
    out.sum().backward()
    assert out.isnan().tolist() == x.grad.isnan().tolist() == [True, False]
    assert out[1] == float("inf")
    assert x.grad[1] == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 13), (3, 100), (1, 1), (2, 4, 32)])
@pytest.mark.parametrize(("x_bias", "residual", "dropout"), [(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 1), (0, 1, 1)])
def test_layer_norm(dtype, shape, x_bias, residual, dropout):
    columns = shape[-1]
    leaves = [torch.randn(shape), torch.randn(columns), torch.randn(columns)]
    leaves += [torch.randn(columns)] if x_bias else []
    leaves += [torch.randn(shape)] if residual else []

    def layer_norm(x, weight, bias, *rest):
        rest = list(rest)
        options = {"x_bias": rest.pop(0)} if x_bias else {}
        options |= {"residual": rest.pop(0)} if residual else {}
        return ops.layer_norm(x, weight, bias, 1e-5, dropout=DROPOUT if dropout else None, **options)

    check(layer_norm, layer_norm, leaves, dtype)


def test_numbers_of_a_vector_may_lie_apart():
    """Parameters of interleaved files, and bounds that are a column."""
    weight, bias = (torch.randn(16, device=DEVICE) for _ in range(2))
    bounds = torch.tensor([0, 2, 5], dtype=torch.int32, device=DEVICE)
    ids = torch.tensor([1, 0, 1, 1, 0], device=DEVICE)
    tables = [torch.randn(2, 16, device=DEVICE) for _ in range(3)]

    def everything(laid):
        x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
        vectors = [laid(vector).detach().requires_grad_() for vector in (weight, bias, bias)]
        y = ops.layer_norm(x, *vectors[:2], 1e-5, x_bias=vectors[2])
        y = ops.gelu(y, vectors[1]) + ops.embedding(ids, ids, ids, *tables, *vectors[:2], 1e-5)
        q = y.view(5, 1, 16)
        out = ops.attention(q, q, q, laid(bounds), 3)
        out.square().sum().backward()
        return [out, x.grad, *(vector.grad for vector in vectors)]

    for one, other in zip(everything(apart), everything(torch.clone), strict=True):
        assert torch.equal(one, other)


def test_parameters_have_gradients_where_what_they_are_applied_to_has_none():
    """As above an embedding that is not trained."""
    x, residual = (torch.randn(5, 16, device=DEVICE) for _ in range(2))
    weight, bias = (torch.randn(16, device=DEVICE, requires_grad=True) for _ in range(2))
    ids, tables = torch.tensor([1, 0, 1, 1, 0], device=DEVICE), [torch.randn(2, 16, device=DEVICE) for _ in range(3)]

    def gradients(trained: bool) -> list[list[torch.Tensor]]:
        given = [leaf.detach().requires_grad_(trained) for leaf in (x, residual)]
        outs = [
            ops.layer_norm(given[0], weight, bias, 1e-5, x_bias=bias, residual=given[1], dropout=DROPOUT),
            ops.gelu(given[0], bias) * weight,
            ops.embedding(ids, ids, ids, *(t.requires_grad_(trained) for t in tables), weight, bias, 1e-5),
        ]
        return [torch.autograd.grad(out.square().sum(), (weight, bias)) for out in outs]

    for one, other in zip(gradients(False), gradients(True), strict=True):
        assert all(map(torch.equal, one, other))


def test_a_layer_norm_of_no_rows_has_gradients():
    x, weight = (torch.randn(shape, device=DEVICE, requires_grad=True) for shape in ((0, 8), (8,)))
    residual = torch.randn(0, 8, device=DEVICE, requires_grad=True)
    ops.layer_norm(x, weight, weight, 1e-5, x_bias=weight, residual=residual, dropout=DROPOUT).sum().backward()
    assert x.grad.shape == residual.grad.shape == (0, 8)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_a_compiled_kernel_is_found_by_all_that_decides_which_it_is():
    """And by nothing else: layers and batches differ in sites and rows. launches.py asks Triton; it has one device."""
    from triton import language as tl

    from fastbert.triton_kernels.common import kernel

    def function(x_ptr, y_ptr, n, T, scale, site, BLOCK: tl.constexpr): ...

    x, y = (torch.zeros(64, dtype=torch.float16) for _ in range(2))
    given, options = [x[:32], y[:32], 5, 100, 1.0, 3], {"BLOCK": 16, "num_warps": 4}
    same = [(0, {}, {}), (0, {3: 2**31 - 1}, {}), (0, {3: 1}, {}), (0, {5: 16}, {}), (0, {0: x[32:], 1: x[8:]}, {})]
    different = [
        (1, {}, {}),  # another device
        (0, {0: x[1:]}, {}),
        (0, {1: y[7:]}, {}),
        (0, {1: y.float()}, {}),
        (0, {0: x.bfloat16()}, {}),
        (0, {2: 16}, {}),
        (0, {2: 1}, {}),
        (0, {2: True}, {}),
        (0, {4: 2.0}, {}),
        (0, {4: 1}, {}),
        (0, {}, {"BLOCK": 32}),
        (0, {}, {"num_warps": 8}),
        (0, {}, {"num_stages": 2}),
    ]

    def key(device, changes, more):
        return kernel(function)._key(device, [changes.get(at, one) for at, one in enumerate(given)], options | more)

    known = key(0, {}, {})
    assert all(key(*case) == known for case in same)
    keys = [key(*case) for case in different]
    assert len({known, *keys}) == 1 + len(keys)
    for wide in (2**31, 2**40):
        assert key(0, {3: wide}, {}) is key(0, {5: wide}, {}) is None, "such a number is of 64 bits to the kernel"


def test_a_kernel_that_is_not_compiled_yet_is_launched_by_triton():
    """While Triton compiles in the background, its launch returns what cannot be started itself."""
    from triton import language as tl

    from fastbert.triton_kernels.common import kernel

    class Future:
        def __getattr__(self, name):
            return lambda *_arguments: None

    def function(x_ptr, BLOCK: tl.constexpr): ...

    class Jitted:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launches.append(grid) or Future()

    one, x, launches = kernel(function), torch.zeros(1), []
    one.jitted = Jitted()
    for _ in range(2):
        one[(1,)](x, BLOCK=16)
    assert launches == [(1,)] * 2


def test_sums_over_rows_in_several_blocks():
    from fastbert.triton_kernels import layer_norm as kernels

    partial = torch.randn(2 * kernels.SUM_ROWS["BLOCK_M"] + 3, 3, 40, device=DEVICE)
    for parts in (1, 3):
        got = torch.stack(kernels.sum_rows(partial, parts))
        assert_close(got, partial.double().sum(0)[:parts], partial.sum(0)[:parts])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(0, 16), (5, 13), (37, 1024), (300, 520)])
def test_the_gradient_of_a_bias(dtype, rows, columns):
    from fastbert.triton_kernels import linear as kernels

    x = torch.randn(rows, columns, device=DEVICE).to(dtype)
    got = kernels.sum_over_rows(x)
    assert got.dtype == torch.float32
    assert_close(got, x.double().sum(0), x.float().sum(0))
    assert torch.equal(got, kernels.sum_over_rows(x))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("tile", [1, 8])
@pytest.mark.parametrize("rows", [1, 16, 101])
def test_each_row_of_a_reduction_has_one_program(monkeypatch, rows, tile, interleaved):
    """In several tiles of few programs, of which the last may have less or nothing to do."""
    from fastbert.triton_kernels import linear as kernels

    settings = {"BLOCK_M": tile, "BLOCK_N": 256, "num_warps": 1, "INTERLEAVED": interleaved, "programs": 3}
    monkeypatch.setattr(kernels, "sum_settings", lambda _: dict(settings))
    powers = 2.0 ** (torch.arange(rows, device=DEVICE) % 13)[:, None].expand(rows, 20)  # sums are exact
    assert torch.equal(kernels.sum_over_rows(powers.contiguous()), powers.sum(0))


def test_the_sums_of_a_layer_norm_are_one_launch(monkeypatch):
    from fastbert.triton_kernels import layer_norm as kernels

    launches, kept = [], kernels.sum_rows_kernel

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return kept[grid]

    monkeypatch.setattr(kernels, "sum_rows_kernel", Counted())
    x, bias = torch.randn(2, 9, device=DEVICE, requires_grad=True), torch.randn(9, device=DEVICE)
    ops.layer_norm(x, bias, bias, 1e-5, x_bias=bias).sum().backward()
    assert len(launches) == 1


@pytest.mark.parametrize("shape", [(5, 13), (3, 300), (9, 8)])
def test_dropout_has_the_bits_of_the_reference(shape):
    """In the backward pass too."""
    x, dout = (apart(torch.randn(shape, device=DEVICE)) for _ in range(2))
    for dropout in (DROPOUT, Dropout(0.5, seed=-3, offset=(1 << 32) - 1, site=1 << 20)):
        leaf = x.detach().requires_grad_()
        out = ops.dropout(leaf, dropout)
        out.backward(dout)
        assert torch.equal(out, reference.dropout(x, dropout))
        assert torch.equal(leaf.grad, reference.dropout(dout, dropout))


def test_a_pass_in_inference_mode_leaves_nothing_that_autograd_cannot_keep():
    """Seeded alike, the next pass finds the same seed in the device's memory."""
    x, dropout = torch.randn(3, 8, device=DEVICE), Dropout(0.5, seed=12, offset=0, site=1)
    with torch.inference_mode():
        expected = ops.dropout(x, dropout)
    assert torch.equal(ops.dropout(x.requires_grad_(), dropout), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(5, 13), (3, 3000), (1, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(dtype, rows, columns, reduction):
    if (rows, dtype) == (1, torch.float32):
        rows = 40  # the rounding of two numbers alone may happen to be none
    labels, ignored = torch.randint(columns, (rows,), device=DEVICE), -100 if dtype == torch.float32 else 7
    labels[0] = ignored if rows > 1 else 0
    if ignored == 7:
        labels = apart(labels)

    def cross_entropy(logits):
        return ops.cross_entropy(logits, labels, ignore_index=ignored, reduction=reduction)

    check(cross_entropy, cross_entropy, [torch.randn(rows, columns) * 5], dtype)


@pytest.mark.parametrize("seed", range(12))
def test_cross_entropy_of_few_numbers_in_float32(seed):
    """What rounding does to one log sum exp, and so to all probabilities of a row, is not lost among other rows."""
    torch.manual_seed(seed)
    labels = torch.randint(13, (4,), device=DEVICE)

    def cross_entropy(logits):
        return ops.cross_entropy(logits, labels, reduction="none")

    check(cross_entropy, cross_entropy, [torch.randn(4, 13) * 5], torch.float32)


def test_the_exponential_of_float32_is_within_one_unit():
    """Which is the gradient of a row whose log sum exp is 0."""
    from fastbert.triton_kernels.cross_entropy import cross_entropy_backward

    x = torch.cat([torch.linspace(*span) for span in ((-87, 3, 49152), (-1, 1, 12288), (-200, -87.001, 4096))])
    x[-4:] = torch.tensor([float("-inf"), float("nan"), 0.0, -1e30])
    x = torch.cat([torch.zeros(64, 1), x.view(64, -1)], 1).to(DEVICE)  # the first columns are the labels
    labels, ones, lse = (torch.zeros(64, *more, device=DEVICE) for more in ((), (), (2,)))
    out = cross_entropy_backward(ones + 1, x, labels.long(), lse, -100)[:, 1:].flatten()
    x = x[:, 1:].flatten()
    assert out[-4:].nan_to_num(7).tolist() == [0.0, 7.0, 1.0, 0.0]
    true = x.double().exp()
    unit = torch.ldexp(torch.ones_like(true), torch.frexp(true).exponent - 24)
    assert float(((out.double() - true) / unit)[x >= -87].abs().max()) < 1
    assert not out[x < -87].any()


def test_the_logarithm_of_float32_is_within_two_units():
    """Which is the loss of logits that are equal, of any number of columns, where the label's is 0."""
    from fastbert.triton_kernels.cross_entropy import cross_entropy_forward

    for columns in (1, 2, 3, 5, 7, 13, 100, 1000, 4099):
        logits, labels = torch.zeros(1, columns, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
        loss, true = float(cross_entropy_forward(logits, labels, -100)[0]), math.log(columns)
        assert abs(loss - true) <= 2 * math.ulp(true) * 2**29, columns


def test_cross_entropy_reads_rows_that_lie_apart():
    """As those of a product that was filled up; between them lies what must not count. Rows that begin at whole 16
    bytes are summed in other groups: the results differ by rounding.
    """
    apart = torch.full((5, 16), float("nan"), device=DEVICE)
    apart[:, :13] = torch.randn(5, 13, device=DEVICE)
    labels, found = torch.tensor([0, 12, -100, 3, 5], device=DEVICE), []
    for given in (apart[:, :13], apart[:, :13].contiguous()):
        logits = given.detach().requires_grad_()
        loss = ops.cross_entropy(logits, labels)
        loss.backward()
        found.append((loss.detach(), logits.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=3e-7, atol=0)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=3e-7, atol=1e-8)


def test_products_with_a_vocabulary_are_of_whole_units():
    """Other sizes are slow ones on a GPU. 1,030 features come out of 1,040, with the gradients of 1,030."""
    leaves = [torch.randn(4, 256, 8), torch.randn(1030, 8), torch.randn(1030)]
    check(ops.linear, ops.linear, leaves, torch.float16)
    leaves[0] = leaves[0].view(1024, 8)
    x, weight, bias = (leaf.to(DEVICE, torch.float16) for leaf in leaves)
    assert ops.linear(x, weight, bias).stride() == (1040, 1)
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = ops.linear(x.float(), weight.float())
    assert (logits.dtype, logits.stride()) == (torch.bfloat16, (1040, 1))
    assert ops.linear(x[:1000], weight, bias).is_contiguous()  # where a copy of the weight would cost
    with torch.device(DEVICE):  # a mode, as torch.set_default_device sets one for good
        assert ops.linear(x, weight, bias).stride() == (1040, 1)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("op", ["layer_norm", "gelu", "dropout", "linear"])
def test_a_result_may_be_written_to_in_place(monkeypatch, op, dimensions):
    """As users write to hidden states and logits. Autograd forbids it of a view that a function of ours returns."""
    monkeypatch.setattr("fastbert.ops._triton_linear._LARGE", 32)
    shapes = [(2, 16, 8) if dimensions == 3 else (32, 8), (8,), (8,), (38, 8)]
    leaves = [torch.randn(shape, device=DEVICE, dtype=torch.float16) for shape in shapes]
    compute = {
        "layer_norm": lambda x, weight, bias, _: ops.layer_norm(x, weight, bias, 1e-5),
        "gelu": lambda x, _weight, bias, _: ops.gelu(x, bias),
        "dropout": lambda x, *_: ops.dropout(x, DROPOUT),
        "linear": lambda x, _weight, _bias, matrix: ops.linear(x, matrix),  # filled up to 48 features
    }[op]

    def run(halved) -> list[torch.Tensor]:
        given = [leaf.detach().requires_grad_() for leaf in leaves]
        out = compute(*given)
        assert op != "linear" or out.stride(-2) == 48
        out = halved(out)
        out.sum().backward()
        return [out.detach(), *(leaf.grad for leaf in given if leaf.grad is not None)]

    found, expected = run(lambda out: out.div_(2)), run(lambda out: out / 2)
    assert len(found) == {"layer_norm": 4, "gelu": 3, "dropout": 2, "linear": 3}[op]
    assert all(map(torch.equal, found, expected))
    with torch.device(DEVICE):  # a mode, as torch.set_default_device sets one for good
        assert torch.equal(run(lambda out: out.div_(2))[0], expected[0])


def test_gradients_of_a_filled_product_are_those_that_are_asked_for(monkeypatch):
    monkeypatch.setattr("fastbert.ops._triton_linear._LARGE", 32)
    leaves = [torch.randn(shape, device=DEVICE, dtype=torch.float16) for shape in ((32, 8), (38, 8), (38,))]

    def gradients(asked: list[int]) -> list[torch.Tensor | None]:
        given = [leaf.detach().requires_grad_(number in asked) for number, leaf in enumerate(leaves)]
        ops.linear(*given).square().sum().backward()
        return [leaf.grad for leaf in given]

    expected = gradients([0, 1, 2])
    for one in range(3):
        found = gradients([one])
        assert [number for number, gradient in enumerate(found) if gradient is not None] == [one]
        assert torch.equal(found[one], expected[one])


def test_the_gradient_of_a_loss_comes_filled_up_to_whole_units(monkeypatch):
    """Nothing is copied between the loss and the products, whose filling holds zeros; others' gradients are filled."""
    monkeypatch.setattr("fastbert.ops._triton_linear._LARGE", 32)
    leaves = [torch.randn(32, 8, device=DEVICE), torch.randn(38, 8, device=DEVICE), torch.randn(38, device=DEVICE)]
    labels = torch.randint(38, (32,), device=DEVICE)
    labels[5:] = 7
    empty = torch.empty  # of floats, with what nobody may take for zeros
    nan = lambda x: x.fill_(float("nan")) if x.is_floating_point() else x  # noqa: E731
    monkeypatch.setattr(torch, "empty", lambda *size, **how: nan(empty(*size, **how)))
    copies, pad = [], torch.nn.functional.pad
    monkeypatch.setattr("fastbert.ops._triton_linear.F.pad", lambda x, *how: (copies.append(x), pad(x, *how))[1])

    def gradients(loss, **how):
        given = [leaf.detach().to(how.get("dtype", torch.float32)).requires_grad_() for leaf in leaves]
        loss(*given).backward()
        return [leaf.grad for leaf in given]

    def ours(x, weight, bias):
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = ops.linear(x, weight, bias)
        logits.register_hook(lambda dout: wholes.append(dout.fastbert_whole))
        return ops.cross_entropy(logits, labels, ignore_index=7)

    def theirs(x, weight, bias):
        return reference.cross_entropy(reference.linear(x, weight, bias), labels, ignore_index=7)

    def squares(x, weight, bias):
        with torch.autocast(DEVICE, torch.bfloat16):
            return ops.linear(x, weight, bias).float().square().mean()

    wholes: list[torch.Tensor] = []
    found, truth = gradients(ours), gradients(theirs, dtype=torch.float64)
    assert not copies
    assert wholes[0].shape == (32, 48)
    assert not wholes[0][:, 38:].any()
    for one, true in zip(found, truth, strict=True):
        assert one.dtype == torch.float32
        assert (one - true).abs().max() < 0.01 * true.abs().max()
    gradients(squares)
    assert len(copies) == 1


def test_a_loss_near_zero_is_not_lost_in_large_logits():
    labels = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    logits = torch.tensor([[40.0 + step, 26.0, 25.0] for step in range(4)], device=DEVICE)
    ours = ops.cross_entropy(logits, labels, reduction="none")
    truth, same = (reference.cross_entropy(x, labels, reduction="none") for x in (logits.double(), logits))
    assert_close(ours, truth, same)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout", [None, DROPOUT])
def test_embedding(dtype, dropout):
    tokens = 41
    ids = torch.randint(0, 7, (tokens,), device=DEVICE)
    types = torch.zeros(tokens, dtype=torch.int64, device=DEVICE)
    types[35:] = 1
    positions = torch.arange(tokens, device=DEVICE) % 31
    if dtype == torch.float16:
        ids, types, positions = map(apart, (ids, types, positions))
    leaves = [torch.randn(9, 20), torch.randn(2, 20), torch.randn(40, 20), torch.randn(20), torch.randn(20)]

    def embedding(*tables):
        padding_idx = 3 if dropout is None else -6  # of nine rows the same one
        return ops.embedding(ids, types, positions, *tables, 1e-5, padding_idx=padding_idx, dropout=dropout)

    check(embedding, embedding, leaves, dtype)


def test_a_table_of_few_rows_gets_the_sums_of_long_runs():
    """Chunks of 32 tokens, 16 at a time: runs that end within, at and beyond them."""
    from fastbert.triton_kernels import embedding as kernels

    whole = kernels.CHUNK.value * kernels.PARTS
    ids = torch.tensor([0] * (whole + 33) + [1] * 70 + [2], device=DEVICE)
    ids = ids[torch.randperm(ids.numel(), device=DEVICE)]
    dout = torch.randn(ids.numel(), 8, device=DEVICE)
    truth, same = (torch.zeros_like(x[:4]).index_add_(0, ids, x) for x in (dout.double(), dout))
    assert_close(kernels.table_gradient(dout, ids, 4), truth, same, gradient=True)


def test_an_id_that_is_no_row_is_noticed_and_reads_nothing():
    tables = [torch.randn(rows, 16, device=DEVICE) for rows in (9, 2, 40)]
    weight, bias = torch.ones(16, device=DEVICE), torch.zeros(16, device=DEVICE)
    ids = [torch.tensor(numbers, device=DEVICE) for numbers in ([1, 9, -1, 2, 3], [0, 0, 1, 2, 1], [0, 1, 2, 3, 39])]
    out = ops.embedding(*ids, *tables, weight, bias, 1e-5)
    assert out.isnan().any(1).tolist() == [False, True, True, True, False]


def test_an_id_that_is_no_row_writes_nothing_behind_the_gradient(monkeypatch):
    from fastbert.triton_kernels import embedding as kernels

    around = torch.zeros(9, 8, device=DEVICE)
    monkeypatch.setattr(kernels.torch, "zeros", lambda *_, **__: around[3:6])
    ids = torch.tensor([1, 3, -1, 5, 1], device=DEVICE)
    kernels.table_gradient(torch.ones(5, 8, device=DEVICE), ids, 3)
    assert around[:, 0].tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("rows", [2**15 - 1, 2**15, 2**16 + 5])  # whose keys have 16 bits, and 32
def test_the_gradient_of_a_large_table(rows):
    from fastbert.triton_kernels import embedding as kernels

    ids = torch.tensor([rows - 1, 0, -1, rows, rows - 1, 2**40, 7], device=DEVICE)
    dout = torch.arange(14.0, device=DEVICE).view(7, 2)
    found = kernels.table_gradient(dout, ids, rows)
    assert found.nonzero()[:, 0].unique().tolist() == [0, 7, rows - 1]
    assert found[[0, 7, rows - 1]].tolist() == [[2, 3], [12, 13], [8, 10]]


def test_a_label_that_is_no_column_is_noticed_and_reads_nothing():
    """Beside a row lie the numbers of others: a label of -1 had the loss of one of theirs."""
    logits = torch.randn(5, 13, device=DEVICE, requires_grad=True)
    labels = torch.tensor([3, -1, 13, -100, 12], device=DEVICE)
    loss = ops.cross_entropy(logits, labels, reduction="none")
    loss.sum().backward()
    assert loss.isnan().tolist() == logits.grad.isnan().all(1).tolist() == [False, True, True, False, False]
    assert not logits.grad[3].any()


LENGTHS = [(1,), (21, 0, 24), (51, 53), (130, 3), (0, 7, 0)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lengths", "head_dim", "causal", "dropout"),
    [
        ((1,), 32, False, True),
        ((21, 0, 24), 64, False, True),
        ((51, 53), 32, True, True),
        ((70, 3), 16, False, False),
        ((67, 40), 64, True, False),
        ((0, 7, 0), 128, False, True),
        ((70,), 24, False, True),
        ((70,), 128, False, True),  # gradients in two passes; in one in 16 bits are those before
    ],
)
def test_attention(dtype, lengths, head_dim, causal, dropout):
    check_attention(dtype, lengths, head_dim, causal, dropout)


def check_attention(dtype, lengths, head_dim, causal, dropout, behind=0):
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
    heads = 2 if sum(lengths) < 200 else 1  # the interpreter takes a block at a time
    leaves = [torch.randn(sum(lengths) + behind, heads, head_dim) for _ in range(3)]

    options = {"causal": causal, "dropout": DROPOUT if dropout else None, "softmax_scale": 0.3 if causal else None}

    def attention(q, k, v):
        return ops.attention(q, k, v, cu_seqlens, max(lengths, default=0), **options)

    check(attention, attention, leaves, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # gradients in two passes, and in one
@pytest.mark.parametrize(
    ("lengths", "behind", "launch"), [((40, 0, 3), 150, 9), ((3, 2, 0, 1), 5, 2), ((0, 0), 3, 9), ((), 3, 9)]
)
def test_attention_of_tokens_behind_the_last_sequence(monkeypatch, dtype, lengths, behind, launch):
    """As a `RoomPacking` has them: zeros, and not what was in that memory, which products of weights would sum over.
    More blocks of them than the longest sequence has; of several launches; where there is no sequence."""
    monkeypatch.setattr("fastbert.triton_kernels.attention.MOST_SEQUENCES", launch)
    check_attention(dtype, lengths, 16, False, True, behind)


# In float32 there are several in the tests above, and in the interpreter these take half a minute.
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=[pytest.mark.slow] * INTERPRETING), *DTYPES[1:]])
@pytest.mark.parametrize(("lengths", "causal", "dropout"), [((260, 0, 129, 3), False, True), ((140, 385), True, False)])
def test_attention_of_several_blocks_of_keys(dtype, lengths, causal, dropout):
    test_attention(dtype, lengths, 32, causal, dropout)


@pytest.mark.parametrize(("tokens", "head_dim"), [(37, 16), (70, 128)])  # gradients in one pass, and in two
def test_attention_of_scores_far_below_zero(tokens, head_dim):
    """Where keys past the end, whose scores are 0, have a probability that is infinite before they are masked."""
    leaves = [torch.randn(tokens + 3, 1, head_dim) / 8 for _ in range(3)]
    away = 10 / head_dim**0.25
    leaves[0] += away
    leaves[1] -= away  # scores of about -100
    cu_seqlens = torch.tensor([0, tokens, tokens + 3], dtype=torch.int32, device=DEVICE)
    for dropout in (None, DROPOUT):

        def attention(q, k, v, dropout=dropout):
            return ops.attention(q, k, v, cu_seqlens, tokens, dropout=dropout)

        check(attention, attention, leaves, torch.float16)


@pytest.mark.parametrize("p", [1.0, 0.75, 1 / 65536, 1e-7])
def test_attention_of_extreme_dropout(p):
    """All are dropped, more than half, one in 65,536, none."""
    leaves = [torch.randn(40, 1, 16) for _ in range(3)]
    cu_seqlens = torch.tensor([0, 37, 40], dtype=torch.int32, device=DEVICE)

    def attention(q, k, v):
        return ops.attention(q, k, v, cu_seqlens, 37, dropout=Dropout(p, seed=99, offset=7, site=3))

    for dtype in [torch.float16] + [torch.float32] * (p == 1):
        check(attention, attention, leaves, dtype)


@pytest.mark.parametrize("column", [0, 3])  # a low half of a word, and a high one
def test_bits_of_attention_at_the_threshold(column):
    """Which is one in 65,536, and in no other test. The second of two launches draws, too."""
    from fastbert.triton_kernels import attention_dropout

    def mask(threshold: int) -> torch.Tensor:
        return keep_mask(torch.arange(42), 13, SimpleNamespace(seed=99, offset=7, site=3, threshold=threshold))

    dropped = bisect.bisect_left(range(65536), True, key=lambda threshold: not mask(threshold)[0, column])
    q = torch.empty(21, 2, 16, device=DEVICE)
    bounds = [torch.tensor(ends, dtype=torch.int32, device=DEVICE) for ends in ([0, 13], [13, 21])]
    for threshold in (dropped - 1, dropped):
        bits = attention_dropout.draw(q, bounds, 13, torch.tensor([99, 7], device=DEVICE), 3, threshold).cpu()
        found = (bits[..., None] >> torch.arange(8) & 1).flatten(-2).bool()
        wanted = mask(threshold).view(21, 2, 13).transpose(0, 1)
        assert torch.equal(found[:, :13, :13], wanted[:, :13])
        assert torch.equal(found[:, 13:, :8], wanted[:, 13:, :8])


@pytest.mark.parametrize(("lengths", "causal"), [((70, 3), False), ((130, 61), True)])  # in one pass, and in two
def test_attention_in_the_tiles_of_other_gpus(monkeypatch, lengths, causal):
    from fastbert.triton_kernels import attention_backward as kernels

    monkeypatch.setattr(kernels, "arch", lambda device: 80)
    test_attention(torch.float16, lengths, 64, causal, True)


def test_gradients_of_attention_in_two_passes_can_be_asked_for_twice():
    """What the pass over queries leaves for the one over keys is not what the forward pass has kept."""
    leaves = [torch.randn(35, 1, 16, device=DEVICE, requires_grad=True) for _ in range(3)]
    out = ops.attention(*leaves, torch.tensor([0, 35], dtype=torch.int32, device=DEVICE), 35)
    first, second = (torch.autograd.grad(out.sum(), leaves, retain_graph=True) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_attention_of_more_sequences_than_a_launch_takes(monkeypatch):
    """Gradients included; launches.py has the number at which CUDA ends."""
    from fastbert.triton_kernels import attention as kernels

    monkeypatch.setattr(kernels, "MOST_SEQUENCES", 4)
    test_attention(torch.float16, (1, 3, 0, 2, 1, 0, 4, 2, 1), 16, False, True)


def test_attention_reads_a_fused_matrix_in_place():
    qkv = torch.randn(30, 3, 2, 32, device=DEVICE)
    cu_seqlens = torch.tensor([0, 11, 30], dtype=torch.int32, device=DEVICE)
    ours = ops.attention(*qkv.unbind(1), cu_seqlens, 19)
    apart = ops.attention(*(x.contiguous() for x in qkv.unbind(1)), cu_seqlens, 19)
    assert torch.equal(ours, apart)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # gradients in two passes, and in one
def test_attention_of_any_strides(dtype):
    """Rows of q, k, v and the gradient lie apart each by its own, with NaN in between."""
    dense = torch.randn(4, 40, 2, 16).to(DEVICE, dtype)
    apart = [torch.full((40, gap, 2, 16), float("nan"), dtype=dtype, device=DEVICE) for gap in (2, 3, 4, 5)]
    for wide, x in zip(apart, dense, strict=True):
        wide[:, 0] = x
    cu_seqlens, found = torch.tensor([0, 3, 40], dtype=torch.int32, device=DEVICE), []
    for tensors in (dense, [wide[:, 0] for wide in apart]):
        *qkv, dout = tensors
        leaves = [x.detach().requires_grad_() for x in qkv]
        out = ops.attention(*leaves, cu_seqlens, 37)
        found.append([out, *torch.autograd.grad(out, leaves, dout)])
    for ours, expected in zip(*found, strict=True):
        assert torch.equal(ours, expected)


def test_heads_that_lie_far_apart_are_brought_together(monkeypatch):
    """The kernels multiply a head's number by the heads' stride in 32 bits, as in a (heads, T, d) tensor of 2^31."""
    from fastbert.ops import _triton_attention
    from fastbert.triton_kernels import attention, attention_backward

    given = []
    monkeypatch.setattr(attention, "attention_forward", lambda *arguments: given.append(arguments[:3]))
    monkeypatch.setattr(attention_backward, "attention_backward", lambda *arguments: given.append(arguments[:4]))
    for heads, stride in ((3, 16), (3, 2**30), (2, 2**30), (1, 2**40)):
        x = torch.empty_strided((4, heads, 16), (16 * heads, stride, 1), device="meta")
        _triton_attention._forward(x, x, x, *(None,) * 8)
        _triton_attention._backward(x, x, x, x, *(None,) * 10)
        expected = 16 if (heads, stride) == (3, 2**30) else stride
        assert [y.stride(1) for y in (*given.pop(), *given.pop())] == [expected] * 7


def test_bfloat16():
    kind = torch.bfloat16
    test_gelu(kind, (5, 13), "tanh", True)
    test_layer_norm(kind, (5, 13), True, True, True)
    test_cross_entropy(kind, 5, 13, "mean")
    test_embedding(kind, DROPOUT)
    test_attention(kind, (21, 0, 24), 64, False, True)
    test_attention(kind, (51, 53), 32, True, True)
    test_attention(kind, (128, 3), 64, True, True)  # the longest whose gradients are made in one pass


def test_opcheck():
    x, bias = torch.randn(4, 16, device=DEVICE, requires_grad=True), torch.randn(16, device=DEVICE)
    utils = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.fastbert.triton_gelu, (x, bias, False), test_utils=utils)
    rng = torch.tensor([1, 2], device=DEVICE)
    arguments = (x, bias, bias, 1e-5, None, x.detach(), rng, 1, 3000, 1.05, None, True)
    torch.library.opcheck(torch.ops.fastbert.triton_layer_norm, arguments, test_utils=utils)
    cu_seqlens = torch.tensor([0, 4], dtype=torch.int32, device=DEVICE)
    q = torch.randn(4, 1, 16, device=DEVICE, requires_grad=True)
    arguments = (q, q.detach(), q.detach(), cu_seqlens, 4, 0.25, False, rng, 1, 3000, 1.05)
    torch.library.opcheck(torch.ops.fastbert.triton_attention, arguments, test_utils=utils)
