"""The Triton kernels that write 8-bit floats: the bits of a cast after the plain op, and what products make of them."""

from __future__ import annotations

import os

import interpreter
import pytest
import torch
from close import assert_close

from fastbert import BertConfig, fp8, ops, reference
from fastbert.modules.encoder import BertEncoder
from fastbert.rng import Dropout
from fastbert.train.precision import Precision

pytest.importorskip("triton")
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETING and (not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9)):
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU with 8-bit products", allow_module_level=True)

DEVICE = "cpu" if INTERPRETING else "cuda"
DROPOUT = Dropout(p=0.3, seed=99, offset=7, site=3)
SHAPES = [(5, 16), (70, 48), (64, 128), (1, 16)]


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    """Casts that round, rubbish in what nobody wrote; no other backend."""
    if INTERPRETING:
        interpreter.poison(monkeypatch)
        interpreter.round_casts(monkeypatch)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    with ops.backend("triton"):
        yield
    torch.use_deterministic_algorithms(False)


def slot_of(kind: torch.dtype, largest: float) -> fp8.Slot:
    """One whose last step had this value as its largest."""
    scales = fp8.Scales([kind], torch.device(DEVICE))
    slot = scales.slot(0)
    slot.note(torch.tensor([largest], device=DEVICE))
    scales.end_step()
    return slot


def noted(slot: fp8.Slot) -> float:
    return float(slot.maxima.view(torch.float32).max())


def up(rows: int) -> int:
    return -(-rows // 16) * 16


def check_across(across: torch.Tensor, data: torch.Tensor) -> None:
    """The transpose, filled up with zeros."""
    rows, columns = data.shape
    assert across.shape == (columns, up(rows))
    assert torch.equal(across[:, :rows].float(), data.t().float())
    assert not across[:, rows:].float().any()


@pytest.mark.parametrize("kind", [fp8.E4M3, fp8.E5M2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_cast(kind, dtype, shape):
    from fastbert.triton_kernels import fp8 as kernels

    x = (torch.randn(shape) * torch.exp(3 * torch.randn(shape))).to(DEVICE, dtype)
    slot = slot_of(kind, float(x.abs().max()) / 4)  # what is larger is clipped
    data, across, sums = kernels.cast(x, slot, across=True, sums=True)
    expected = reference.quantize_fp8(x, slot.scale, kind)
    assert torch.equal(data.float(), expected.float())
    check_across(across, data)
    assert noted(slot) == float(x.abs().max())
    assert_close(sums, x.double().sum(0), x.float().sum(0), gradient=True)
    again = kernels.cast(x, slot)
    assert torch.equal(again[0].float(), data.float())
    assert again[1:] == (None, None)
    check_across(kernels.transpose(data), data)


def test_what_is_not_finite_stays_so():
    from fastbert.triton_kernels import fp8 as kernels

    x = torch.ones(16, 16, device=DEVICE)
    x[3, 4], x[5, 6] = float("inf"), float("nan")
    data = kernels.cast(x, slot_of(fp8.E4M3, 1.0))[0].float()
    assert data.isnan().nonzero().tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu(tanh, shape):
    """The bits of GELU, then cast, forward and backward."""
    from fastbert.triton_kernels import fp8 as kernels
    from fastbert.triton_kernels import gelu

    x, dout = (torch.randn(shape, device=DEVICE).bfloat16() for _ in range(2))
    bias = torch.randn(shape[1], device=DEVICE) * 3
    slot, twin = slot_of(fp8.E4M3, 2.0), slot_of(fp8.E4M3, 2.0)
    data, across = kernels.gelu_cast(x, bias, tanh, slot)
    plain = gelu.gelu_forward(x, bias, tanh)
    assert torch.equal(data.float(), kernels.cast(plain, twin)[0].float())
    assert noted(slot) == noted(twin) == float(plain.abs().max())
    check_across(across, data)
    slot, twin = slot_of(fp8.E5M2, 2.0), slot_of(fp8.E5M2, 2.0)
    data, across, dbias = kernels.gelu_backward_cast(dout, x, bias, tanh, slot)
    dx, expected = gelu.gelu_backward(dout, x, bias, tanh)
    assert torch.equal(data.float(), kernels.cast(dx, twin)[0].float())
    assert noted(slot) == noted(twin) == float(dx.abs().max())
    check_across(across, data)
    torch.testing.assert_close(dbias, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_transposes_of_a_float32_gelu(shape):
    from fastbert.triton_kernels import fp8 as kernels

    x, dout, bias = (torch.randn(size, device=DEVICE) for size in (shape, shape, shape[1:]))
    data, across = kernels.gelu_cast(x, bias, False, slot_of(fp8.E4M3, 2.0))
    check_across(across, data)
    data, across, _ = kernels.gelu_backward_cast(dout, x, bias, False, slot_of(fp8.E5M2, 2.0))
    check_across(across, data)


@pytest.mark.parametrize(
    ("shape", "dtype"),  # the last of more rows than there are places for largest magnitudes
    [((5, 16), torch.float32), ((3, 48), torch.bfloat16), ((2, 13), torch.float32), ((33, 16), torch.float32)],
)
def test_layer_norm(shape, dtype):
    """The bits of LayerNorm, then cast; the gradients are LayerNorm's."""
    columns = shape[1]
    leaves = [torch.randn(size).to(DEVICE, dtype) for size in (shape, (columns,), (columns,), (columns,), shape)]
    leaves[1][0], leaves[4][-1, 0] = 20.0, 1e3  # the largest magnitude is in the last row
    twins = [leaf.clone().requires_grad_() for leaf in leaves]
    x, weight, bias, x_bias, residual = (leaf.requires_grad_() for leaf in leaves)
    slot = slot_of(fp8.E4M3, 2.0)
    policy = fp8.Policy(slot.scales, [], [(weight, slot)])
    rows = torch.arange(shape[0], device=DEVICE).flip(0)
    with fp8.use(policy):
        out = ops.layer_norm(x, weight, bias, 1e-5, x_bias=x_bias, residual=residual, dropout=DROPOUT, rows=rows)
        with torch.no_grad():
            assert fp8.attached(ops.layer_norm(x, weight, bias, 1e-5)) is None
    plain = ops.layer_norm(*twins[:3], 1e-5, x_bias=twins[3], residual=twins[4], dropout=DROPOUT, rows=rows)
    assert fp8.attached(plain) is None
    assert torch.equal(out, plain)
    expected = reference.quantize_fp8(out.detach(), slot.scale, fp8.E4M3)
    assert torch.equal(fp8.attached(out).float(), expected.float())
    assert noted(slot) == float(out.detach().abs().max())
    dout = torch.randn(shape).to(DEVICE, dtype)
    out.backward(dout)
    plain.backward(dout)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(leaves, twins, strict=True))


def lost(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far a GPU's a b^T (M, N) of 8-bit floats may be from the true one, because it does not sum them in float32.

    The matrix units of Hopper align 32 products to the largest exponent of them and of what was summed before, keep 14
    bits of each and cut off the others, and keep as many of the sum (DeepSeek-V3 Technical Report, 2024, section
    3.5.2). A product of two significands is below 4: two of these bits are before the point. Without fast accumulation
    sums are moved to float32 every so many steps, which is after more than these here.
    """
    off, total = 0.0, torch.zeros((), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], 32):
        products = a[:, None, start : start + 32] * b[None, :, start : start + 32]
        largest = torch.maximum(products.abs().amax(-1), total.abs())
        total = total + products.sum(-1)
        off = off + 2.0**-12 * ((products.shape[-1] + 1) * largest + total.abs())
    return off


@pytest.mark.parametrize(("rows", "columns", "features"), [(5, 16, 32), (33, 48, 16)])
def test_linear(rows, columns, features):
    """Against the fp64 reference by the one tolerance rule; twice to the same bits."""
    leaves = [torch.randn(rows, columns), torch.randn(features, columns), torch.randn(features)]
    leaves = [leaf.to(DEVICE) for leaf in leaves]
    dout = (torch.randn(rows, features) * 1e-4).to(DEVICE)
    scales = fp8.Scales([fp8.E4M3, fp8.E4M3, fp8.E5M2], torch.device(DEVICE))
    slots = [scales.slot(i) for i in range(3)]

    def run(function, kind):
        given = [leaf.detach().to(kind).requires_grad_() for leaf in leaves]
        out = function(*given)
        out.backward(dout.to(out.dtype))
        return [out.detach(), *(leaf.grad for leaf in given)]

    def ours(x, weight, bias):
        return ops.linear_fp8(x, weight, bias, fp8.Site(weight, *slots))

    def truth(x, weight, bias):
        return reference.linear_fp8(x, weight, bias, *(slot.scale for slot in slots))

    got, again = run(ours, torch.float32), run(ours, torch.float32)  # the first step, which measures
    true, same = run(truth, torch.float64), run(truth, torch.float32)
    operands = (leaves[0], leaves[1], dout)
    x, w, dy = (
        reference.dequantize_fp8(reference.quantize_fp8(tensor, slot.scale, slot.kind), slot.scale, torch.float64)
        for tensor, slot in zip(operands, slots, strict=True)
    )
    products = ((x, w), (dy, w.t()), (dy.t(), x.t()), None)
    for i, (g, a, t, s, product) in enumerate(zip(got, again, true, same, products, strict=True)):
        assert torch.equal(g, a)
        if product is not None and not INTERPRETING:
            error = g.double() - t
            g = (t + error.sign() * (error.abs() - lost(*product)).clamp(min=0)).float()
        assert_close(g, t, s, gradient=i > 0, what=f"result {i}")


@pytest.mark.parametrize("operation", ["layer_norm", "linear", "mlp"])
def test_tensors_of_any_strides(operation):
    """Three dimensions, numbers that lie apart, transposed weights: the bits of contiguous copies; and a result may be
    written to in place."""
    sizes = {"x": (2, 16, 6), "residual": (2, 16, 6), "dout": (2, 16, 6), "weight1": (16, 32), "weight2": (32, 16)}
    given = {name: torch.randn(size).to(DEVICE).transpose(-1, -2) for name, size in sizes.items()}
    if operation == "linear":
        given["dout"] = torch.randn(2, 32, 6).to(DEVICE).transpose(-1, -2)
    given |= {name: torch.randn(32).to(DEVICE)[::2] for name in ("gain", "shift")} | {
        "bias1": torch.randn(64).to(DEVICE)[::2]
    }

    def run(change, halved=lambda out: out / 2) -> list[torch.Tensor]:
        kinds = [fp8.E4M3, fp8.E4M3, fp8.E5M2] * 2 + [fp8.E4M3]
        scales = fp8.Scales(kinds, torch.device(DEVICE))
        slots = [scales.slot(i) for i in range(len(kinds))]
        for i, slot in enumerate(slots):
            slot.note(torch.tensor([4.0 + i], device=DEVICE))
        scales.end_step()
        t = {name: change(tensor).detach().requires_grad_() for name, tensor in given.items()}
        up, down = fp8.Site(t["weight1"], *slots[:3]), fp8.Site(t["weight2"], *slots[3:6])
        with fp8.use(fp8.Policy(scales, [up, down], [(t["gain"], slots[6])])):
            if operation == "layer_norm":
                out = ops.layer_norm(t["x"], t["gain"], t["shift"], 1e-5, residual=t["residual"])
            elif operation == "linear":
                out = ops.linear_fp8(t["x"], t["weight1"], t["bias1"], up)
            else:
                out = ops.mlp(t["x"], t["weight1"], t["bias1"], t["weight2"])
        out = halved(out)
        out.backward(t["dout"].detach())
        return [out.detach(), *(tensor.grad for tensor in t.values() if tensor.grad is not None)]

    apart, together = run(lambda tensor: tensor), run(torch.Tensor.contiguous)
    written = run(torch.Tensor.contiguous, lambda out: out.div_(2))
    assert len(apart) == {"layer_norm": 5, "linear": 4, "mlp": 5}[operation]
    assert all(map(torch.equal, apart, together))
    assert all(map(torch.equal, written, together))


class OnlyValues:
    """A layout whose attention is the values: the kernels of attention have nothing to do with 8 bits."""

    def attend(self, q, k, v, dropout):
        return v + 0 * (q + k), None


def train(backend: str, precision: str = "fp8", after_step=lambda: None):
    """(output, gradients by name) of two steps of two layers without an optimiser, and the policy."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = BertEncoder(BertConfig(**sizes)).to(DEVICE)
    for layer in encoder.layer:  # so that no two tensors of a layer have the same scale
        layer.intermediate.dense.weight.data *= 8
    encoder.layer[1].intermediate.approximate = "tanh"
    policy = Precision(precision, encoder, torch.device(DEVICE))
    x, dout = (torch.randn(5, 32, device=DEVICE) for _ in range(2))
    dout *= 1e-5  # gradients are so small that without a scale 8 bits would hold little of them
    found = []
    with ops.backend(backend):
        for number in range(2):
            encoder.zero_grad()
            hidden = x * (1 + 0.1 * number)
            with policy.block():
                for layer in encoder.layer:
                    hidden, _ = layer(hidden, OnlyValues(), None)
            hidden.backward(dout.to(hidden.dtype))
            found.append({"out": hidden.detach()} | {name: p.grad for name, p in encoder.named_parameters()})
            policy.end_step(None)
            after_step()
    return found, policy.fp8


def test_a_step_with_operands_that_stay_in_8_bits(monkeypatch):
    """Who casts what, that it makes the bits of plain kernels and casts of their own, and that these are right."""
    from fastbert.triton_kernels import fp8 as kernels

    casts, cast, counts = [], kernels.cast, []
    monkeypatch.setattr(kernels, "cast", lambda x, slot, **more: casts.append(slot) or cast(x, slot, **more))
    fused, policy = train("triton", after_step=lambda: counts.append(len(casts)))
    # Two layers. The first step casts in each what q, k, v read, what attention, LayerNorm and GELU gave; six weights
    # and six gradients.
    assert counts[0] == 2 * (4 + 6 + 6)
    # Later the second layer reads what a LayerNorm left, GELU's output and the gradient of its input are never there in
    # 16 bits. The weights did not change here, but their scales may have.
    assert counts[1] - counts[0] == 1 + 2 * (1 + 6 + 5)
    with monkeypatch.context() as patch:
        patch.setattr(fp8, "output", lambda weight: None)
        patch.setattr(ops, "is_fused", lambda *_: False)
        plain, other = train("triton")
    for one, two in zip(fused, plain, strict=True):
        for name, value in one.items():
            if name.endswith("intermediate.dense.bias"):  # its sums are taken in another order
                torch.testing.assert_close(value, two[name])
            else:
                assert torch.equal(value, two[name]), name
    for table in ("scale", "history"):
        assert torch.equal(getattr(policy.scales, table), getattr(other.scales, table))
    # The reference has numbers in place of bits: as far from float32 as that is, and no further.
    wanted, exact = (train("reference", precision)[0] for precision in ("fp8", "fp32"))
    for got, same, true in zip(fused, wanted, exact, strict=True):
        for name, value in true.items():
            if name.endswith(("query.bias", "query.weight", "key.bias", "key.weight")):
                continue  # nothing comes through them here
            off, allowed = ((t[name].float() - value).norm() for t in (got, same))
            assert off <= 1.5 * allowed + 1e-6 * value.norm(), name
            assert off < 0.2 * value.norm(), name
