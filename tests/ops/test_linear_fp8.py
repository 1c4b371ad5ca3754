"""Dense layers in 8 bits: against the fp64 reference that rounds the same operands, and against numbers by hand."""

from __future__ import annotations

import pytest
import torch
from close import assert_close
from levels import needs_eight_bits

from fastbert import fp8, ops, reference
from fastbert.errors import BackendError, InputError

SHAPES = [(5, 16, 32), (33, 48, 16), (1, 16, 16), (64, 32, 64)]


def a_site(weight: torch.Tensor) -> fp8.Site:
    scales = fp8.Scales([fp8.E4M3, fp8.E4M3, fp8.E5M2], weight.device)
    return fp8.Site(weight, *(scales.slot(i) for i in range(3)))


def run(function, leaves, dout):
    given = [leaf.detach().requires_grad_() for leaf in leaves]
    out = function(*given)
    out.backward(dout.to(out.dtype))
    return [out.detach(), *(leaf.grad for leaf in given)]


@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=needs_eight_bits), "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns", "features"), SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_result_and_all_gradients_follow_the_reference(backend, dtype, rows, columns, features, has_bias):
    torch.manual_seed(rows)
    leaves = [torch.randn(rows, columns) * 3, torch.randn(features, columns) * 0.02, torch.randn(features)]
    leaves = [leaf.to(dtype) for leaf in leaves[: 2 + has_bias]]
    dout = (torch.randn(rows, features) * 1e-6).to(dtype)
    sites = []

    def ours(x, weight, bias=None):
        sites.append(a_site(weight))
        return ops.linear_fp8(x, weight, bias, sites[-1])

    with ops.backend(backend):
        got, again = run(ours, leaves, dout), run(ours, leaves, dout)
    scales = [slot.scale for slot in (sites[0].x, sites[0].own, sites[0].grad)]

    def truth(x, weight, bias=None):
        return reference.linear_fp8(x, weight, bias, *scales)

    true, same = run(truth, [leaf.double() for leaf in leaves], dout), run(truth, leaves, dout)
    for i, (g, a, t, s) in enumerate(zip(got, again, true, same, strict=True)):
        assert torch.equal(g, a)
        assert_close(g, t, s, gradient=i > 0, what=f"result {i}")
    # What the cast loses is what 4 and 3 bits lose: a wrong scale would lose more.
    plain = run(torch.nn.functional.linear, [leaf.double() for leaf in leaves], dout)
    for g, t in zip(true[:3], plain, strict=False):
        assert (g - t).norm() < 0.08 * t.norm()


@needs_eight_bits
@pytest.mark.parametrize("loss", [lambda out: out.square().sum(), torch.sum])  # a sum's gradient is constant
def test_a_second_derivative_is_refused(loss):
    x, weight = torch.randn(4, 16, requires_grad=True), torch.randn(32, 16)
    with ops.backend("cpu"):
        out = ops.linear_fp8(x, weight, None, a_site(weight))
    with pytest.raises(BackendError, match="gradients in 8 bits cannot be differentiated"):
        torch.autograd.grad(loss(out), x, create_graph=True)


@needs_eight_bits
def test_no_second_derivative_is_taken_for_zero():
    """The gradient of the upper weight depends on the lower one only by the cast that was saved."""
    x, lower, upper = torch.randn(4, 16), torch.randn(32, 16), torch.randn(16, 32)

    def loss(lower, upper):
        return ops.linear_fp8(ops.linear_fp8(x, lower, None, a_site(lower)), upper, None, a_site(upper)).sum()

    with ops.backend("cpu"), pytest.raises(BackendError, match="gradients in 8 bits cannot be differentiated"):
        torch.autograd.functional.hessian(loss, (lower, upper))


def test_numbers_by_hand():
    """e4m3 has 3 bits behind the point and 448 as its largest, e5m2 has 2 and 57,344."""
    weight = torch.nn.Parameter(torch.eye(16))
    site = a_site(weight)
    x = torch.zeros(2, 16)
    # 1.0625 and 1.1875 lie halfway between eighths, and the even one is taken; 2**-9 is the least number.
    x[0, :7] = torch.tensor([1.0, 1.0625, 1.1875, 1.2, 2**-9, 2**-11, -1.95])
    site.x.scales.cold = False  # scale 1
    x.requires_grad_()
    out = ops.linear_fp8(x, weight, None, site)
    assert out[0, :7].tolist() == [1.0, 1.0, 1.25, 1.25, 2**-9, 0.0, -2.0]
    gradient = torch.zeros(2, 16)
    gradient[1, :5] = torch.tensor([1.0, 1.1, 1.125, 1.375, 1e6])
    out.backward(gradient)
    assert x.grad[1, :5].tolist() == [1.0, 1.0, 1.0, 1.5, 57344.0]
    largest = site.x.scales.maxima.view(torch.float32).amax(1)
    assert largest.tolist() == pytest.approx([1.95, 1.0, 1e6])


def test_what_is_too_large_is_clipped_and_what_is_not_finite_stays_so():
    weight = torch.nn.Parameter(torch.eye(16))
    site = a_site(weight)
    site.x.scales.cold = False
    x = torch.zeros(3, 16)
    x[0, 0], x[1, 0], x[2, 0] = 1e5, -500.0, float("inf")
    out = ops.linear_fp8(x, weight, None, site)
    assert out[:2, 0].tolist() == [448.0, -448.0]
    assert out[2].isnan().all()


def test_scales_follow_the_largest_of_the_last_sixteen_steps():
    scales = fp8.Scales([fp8.E4M3, fp8.E5M2], torch.device("cpu"))
    slot = scales.slot(0)
    for step, value in enumerate([1.0, 100.0, *[3.0] * fp8.WINDOW]):
        slot.note(torch.tensor([value / 2, -value]))
        scales.end_step()
        largest = 1.0 if step == 0 else 100.0 if step <= fp8.WINDOW else 3.0
        scale = float(slot.scale)
        assert scale * largest <= 448 < 2 * scale * largest
        assert float(slot.inverse) == 1 / scale
    assert not scales.maxima.any()
    assert float(scales.slot(1).scale) == 1.0, "a tensor that never came"
    # A step that is skipped leaves no trace, and a tensor that a step does not have keeps its last value.
    before = float(slot.scale)
    slot.note(torch.tensor([float("nan"), 1.0]))
    scales.end_step()
    scales.end_step()
    assert float(slot.scale) == before
    assert scales.history[0, :3].tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("largest", [0.0, 1e-30, 448.0, 448.1, 447.9, 3e38])
def test_scales_are_powers_of_two_that_fit(largest):
    scale = float(fp8.power_of_two(torch.tensor([largest]), 448.0))
    assert torch.frexp(torch.tensor(scale)).mantissa == 0.5
    assert scale * largest <= 448.0
    assert scale == 1.0 if largest == 0 else scale == 2.0**60 or 2 * scale * largest > 448.0


@needs_eight_bits
def test_one_input_is_cast_once_for_all_who_read_it_and_a_weight_once_a_step():
    torch.manual_seed(0)
    scales = fp8.Scales([fp8.E4M3] * 3 + [fp8.E5M2] * 2, torch.device("cpu"))
    weights = [torch.nn.Parameter(torch.randn(16, 16)) for _ in range(2)]
    slots = [scales.slot(i) for i in range(5)]
    sites = [fp8.Site(weights[i], slots[0], slots[1 + i], slots[3 + i]) for i in range(2)]
    x = torch.randn(8, 16)
    outs = [ops.linear_fp8(x, site.weight, None, site) for site in sites]
    data = fp8.attached(x)
    assert data.dtype == fp8.E4M3
    outs[1].sum().backward()
    across = data.fastbert_transposed
    outs[0].sum().backward()
    assert data.fastbert_transposed is across, "the transpose is shared too"
    own, _ = copies = sites[0].copies(None)  # nothing to cast
    with torch.no_grad():
        weights[0] += 1
        x += 1
    assert fp8.attached(x) is None, "x is not what it was"
    ops.linear_fp8(x, weights[0], None, sites[0])
    assert sites[0].copies(None)[0] is own, "always in the same memory, as captured steps want it"
    assert torch.equal(copies[1], own.t())
    expected = reference.dequantize_fp8(own, sites[0].own.scale, torch.float32)
    torch.testing.assert_close(expected, weights[0].detach(), rtol=2**-4, atol=1e-2)


@needs_eight_bits
def test_a_weight_that_stays_is_cast_again_when_its_scale_changes():
    """As in a step that is left out, 16 steps after one in which the weight was larger."""
    weight, x = torch.nn.Parameter(torch.randn(32, 16)), torch.randn(8, 16)
    site, scales = a_site(weight), []
    for step in range(18):
        with ops.backend("cpu"):
            got = ops.linear_fp8(x.clone(), weight, None, site)
        torch.testing.assert_close(got, x @ weight.T, rtol=2**-4, atol=float(weight.detach().abs().max()))
        scales.append(float(site.own.scale))
        site.own.scales.end_step()
        if step == 0:
            with torch.no_grad():
                weight *= 0.01
    assert scales[-1] > scales[1]


@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=needs_eight_bits), "reference"])
def test_two_passes_before_the_first_scales_are_known(backend):
    """Each is measured, and the second one's scale is not that of the first one's gradient."""
    weight = torch.nn.Parameter(torch.randn(32, 16))
    site, x = a_site(weight), torch.randn(8, 16)
    with ops.backend(backend):
        out = ops.linear_fp8(x, weight, None, site)
        ops.linear_fp8(100 * x, weight, None, site)
        assert torch.equal(ops.linear_fp8(x, weight, None, site), out)
    out.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(32, 16), rtol=2**-4, atol=0.2)


@needs_eight_bits
def test_a_weight_that_got_other_memory_is_cast_again():
    site = a_site(torch.nn.Parameter(torch.randn(16, 16)))
    x = torch.randn(4, 16)
    before = ops.linear_fp8(x, site.weight, None, site)
    site.weight.data = site.weight.data * 0.5  # which leaves the version as it was
    assert torch.equal(ops.linear_fp8(x, site.weight, None, site), before * 0.5)


def test_a_weight_on_another_device_is_not_read():
    weight = torch.nn.Parameter(torch.randn(16, 16, device="meta"))
    with pytest.raises(InputError, match="on the meta device"):
        ops.linear_fp8(torch.randn(4, 16), weight, None, a_site(weight))


@needs_eight_bits
def test_a_weight_that_changed_before_backward_is_found_out():
    weight = torch.nn.Parameter(torch.randn(16, 16))
    site = a_site(weight)
    x = torch.randn(4, 16, requires_grad=True)
    out = ops.linear_fp8(x, weight, None, site)
    with torch.no_grad():
        weight.mul_(2)
    ops.linear_fp8(x, weight, None, site)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_no_rows_and_wrong_sizes():
    weight = torch.nn.Parameter(torch.randn(32, 16))
    x = torch.randn(0, 16, requires_grad=True)
    out = ops.linear_fp8(x, weight, None, a_site(weight))
    out.sum().backward()
    assert out.shape == (0, 32)
    assert x.grad.shape == (0, 16)
    assert not weight.grad.any()
    with pytest.raises(InputError, match="multiples of 16"):
        ops.linear_fp8(torch.randn(2, 8), weight, None, a_site(weight))
    narrow = torch.nn.Parameter(torch.randn(8, 16))
    with pytest.raises(InputError, match="multiples of 16"):
        ops.linear_fp8(torch.randn(2, 16), narrow, None, a_site(narrow))
