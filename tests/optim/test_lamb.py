"""LAMB against a per-tensor computation in numpy (float64), for each of its three variants."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from fastbert.errors import InputError
from fastbert.optim import Lamb, device_step

LR, BETA1, BETA2, EPS = 0.02, 0.9, 0.99, 1e-6
SHAPES = [(4, 3), (3,), (5, 2), (2,)]  # the last two without weight decay; the last starts at zero, as biases do
DECAYS = [0.1, 0.1, 0.0, 0.0]
STEPS = 5


def start_and_gradients(scale: float) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    random = np.random.default_rng(0)
    params = [random.standard_normal(shape) for shape in SHAPES]
    params[3][:] = 0.0
    return params, [[scale * random.standard_normal(shape) for shape in SHAPES] for _ in range(STEPS)]


def by_hand(variant: str, scale: float, max_norm: float = 1.0, trust_range=(0.01, 0.3)) -> list[np.ndarray]:
    """You et al. 2020, algorithm 2, one tensor at a time."""
    params, gradients = start_and_gradients(scale)
    first, second = [np.zeros(s) for s in SHAPES], [np.zeros(s) for s in SHAPES]
    for t, step in enumerate(gradients, start=1):
        norm = np.sqrt(sum((g**2).sum() for g in step))
        divisor = 1.0 if variant == "clamped" or norm <= max_norm else norm / max_norm
        for i, raw in enumerate(step):
            g = raw / divisor
            first[i] = BETA1 * first[i] + (1 - BETA1) * g
            second[i] = BETA2 * second[i] + (1 - BETA2) * g**2
            m, v = first[i], second[i]
            if variant != "clamped":
                m, v = m / (1 - BETA1**t), v / (1 - BETA2**t)
            update = m / (np.sqrt(v) + EPS) + DECAYS[i] * params[i]
            weight_norm, update_norm = np.linalg.norm(params[i]), np.linalg.norm(update)
            trust = 1.0
            if weight_norm > 0 and update_norm > 0 and (variant != "nvlamb" or DECAYS[i] != 0):
                trust = weight_norm / update_norm
                if variant == "clamped":
                    trust = min(max(trust, trust_range[0]), trust_range[1])
            params[i] = params[i] - LR * trust * update
    return params


def run(variant: str, scale: float, dtype=torch.float64, **settings) -> tuple[list[torch.nn.Parameter], Lamb]:
    arrays, gradients = start_and_gradients(scale)
    params = [torch.nn.Parameter(torch.tensor(a, dtype=dtype)) for a in arrays]
    groups = [{"params": params[:2], "weight_decay": 0.1}, {"params": params[2:], "weight_decay": 0.0}]
    optimizer = Lamb(groups, LR, (BETA1, BETA2), EPS, variant=variant, **settings)
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    return params, optimizer


# Scale 10 is over max_grad_norm and 0.01 is under it.
@pytest.mark.parametrize("scale", [10.0, 0.01])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("variant", ["nvlamb", "apex", "clamped"])
def test_is_the_algorithm(variant, dtype, rtol, scale):
    params, _ = run(variant, scale, dtype)
    for p, expected in zip(params, by_hand(variant, scale), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("scale", [10.0, 0.01])
@pytest.mark.parametrize("variant", ["nvlamb", "apex", "clamped"])
def test_a_step_on_the_device_is_the_algorithm(variant, scale):
    def steps(max_norm):
        arrays, gradients = start_and_gradients(scale)
        params = [torch.nn.Parameter(torch.tensor(a)) for a in arrays]
        groups = [{"params": params[:2], "weight_decay": 0.1}, {"params": params[2:], "weight_decay": 0.0}]
        optimizer = Lamb(groups, 9.0, (BETA1, BETA2), EPS, variant=variant)
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = torch.tensor(g)
            device_step(optimizer, torch.tensor([LR]), max_norm=max_norm)
        return params

    # The rate is a float32. A clip to two leaves what LAMB divides by to be two; the clamped variant has none.
    for max_norm in (None, 2.0)[: 1 if variant == "clamped" else 2]:
        for p, expected in zip(steps(max_norm), by_hand(variant, scale), strict=True):
            np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-5, atol=1e-7)


def test_the_variants_differ_where_they_should():
    nvlamb, apex, clamped = (by_hand(variant, 10.0) for variant in ("nvlamb", "apex", "clamped"))
    assert np.allclose(nvlamb[0], apex[0])
    assert not np.allclose(nvlamb[2], apex[2])
    assert not np.allclose(nvlamb[0], clamped[0])


@pytest.mark.parametrize("variant", ["nvlamb", "apex"])
def test_settings_reach_the_step(variant):
    params, _ = run(variant, 10.0, max_grad_norm=3.0)
    for p, expected in zip(params, by_hand(variant, 10.0, max_norm=3.0), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_trust_range_reaches_the_step():
    params, _ = run("clamped", 10.0, trust_range=(0.05, 0.1))
    for p, expected in zip(params, by_hand("clamped", 10.0, trust_range=(0.05, 0.1)), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_step_has_the_length_of_lr_times_the_weights():
    # With trust |p| / |u| a step is lr |p| long, whatever the gradient: what LAMB is for.
    for scale in (1e-3, 1e3):
        p = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
        p.grad = scale * torch.tensor([1.0, -2.0], dtype=torch.float64)
        Lamb([p], lr=0.1, weight_decay=0.01).step()
        moved = (p.detach() - torch.tensor([3.0, 4.0], dtype=torch.float64)).norm().item()
        assert moved == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("variant", ["nvlamb", "apex", "clamped"])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_tensor_of_zeros_and_an_update_of_zeros_have_trust_one(variant, on_device):
    zeros, still = (torch.nn.Parameter(f(4, dtype=torch.float64)) for f in (torch.zeros, torch.ones))
    zeros.grad, still.grad = torch.ones_like(zeros), torch.zeros_like(still)
    # Without memory the update is the sign of the gradient.
    optimizer = Lamb([zeros, still], lr=0.5, betas=(0.0, 0.0), eps=1e-12, weight_decay=0.0, variant=variant)
    device_step(optimizer, torch.tensor(0.5)) if on_device else optimizer.step()
    torch.testing.assert_close(zeros.detach(), torch.full_like(zeros, -0.5))
    assert torch.equal(still.detach(), torch.ones_like(still))


@pytest.mark.parametrize("variant", ["nvlamb", "clamped"])
def test_bfloat16_is_the_float32_run_rounded(variant):
    arrays, gradients = start_and_gradients(1.0)
    narrow = [torch.nn.Parameter(torch.tensor(a).bfloat16()) for a in arrays]
    wide = [torch.nn.Parameter(p.detach().float()) for p in narrow]
    optimizers = [Lamb(params, 1e-3, variant=variant) for params in (narrow, wide)]
    for step in gradients:
        for p, q, g in zip(narrow, wide, step, strict=True):
            p.grad = torch.tensor(g).bfloat16()
            q.grad = p.grad.float()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(narrow, wide, strict=True):
        torch.testing.assert_close(optimizers[0].state[p]["master"], q.detach(), rtol=1e-6, atol=1e-8)
        assert torch.equal(p.detach(), optimizers[0].state[p]["master"].bfloat16())


@pytest.mark.parametrize("variant", ["nvlamb", "apex", "clamped"])
def test_state_dict_and_copies_go_on_bit_for_bit(variant):
    straight, optimizer = run(variant, 10.0, torch.float32)
    copied_params, copied = copy.deepcopy((straight, optimizer))
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in straight]
    # A groups' shape must fit; every setting of it comes from the saved state.
    other = Lamb([{"params": resumed[:2]}, {"params": resumed[2:]}], lr=9.0, variant="apex", max_grad_norm=7.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _, gradients = start_and_gradients(5.0)
    for step in gradients:
        for params, each in ((straight, optimizer), (copied_params, copied), (resumed, other)):
            for p, g in zip(params, step, strict=True):
                p.grad = torch.tensor(g, dtype=torch.float32)
            each.step()
    for p, q, r in zip(straight, copied_params, resumed, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p, r)


def test_defaults_are_those_of_nvidias_recipe():
    group = Lamb([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-3, (0.9, 0.999), 1e-6, 0.01)
    assert (group["variant"], group["max_grad_norm"], group["trust_range"]) == ("nvlamb", 1.0, (0.01, 0.3))


def test_another_variant_is_refused():
    with pytest.raises(InputError, match="variant must be one of nvlamb, apex, clamped, got 'lars'"):
        Lamb([torch.nn.Parameter(torch.zeros(1))], variant="lars")


@pytest.mark.parametrize("between", [(0.3, 0.01), (-1.0, 0.3), (0.0, float("nan")), (0.1,)])
def test_what_is_no_range_of_trust_is_refused(between):
    """torch's clamp would set every trust to the maximum, and negative ones would go uphill."""
    with pytest.raises(InputError, match="trust_range must be two numbers, at least 0 and the smaller one first, got"):
        Lamb([torch.nn.Parameter(torch.zeros(1))], variant="clamped", trust_range=between)


@pytest.mark.parametrize("between", [(0.0, 0.3), (0.3, 0.3)])
def test_a_range_of_trust_may_begin_at_zero_or_be_one_number(between):
    Lamb([torch.nn.Parameter(torch.zeros(1))], variant="clamped", trust_range=between)


@pytest.mark.parametrize("variant", ["nvlamb", "apex"])
@pytest.mark.parametrize("none", [None, 0.0])
@pytest.mark.parametrize("on_device", [False, True])
def test_without_a_largest_norm_nothing_is_divided(variant, none, on_device):
    def after(max_grad_norm):
        start, (step, *_) = start_and_gradients(5.0)
        params = [torch.nn.Parameter(torch.tensor(p, dtype=torch.float32)) for p in start]
        for p, g in zip(params, step, strict=True):
            p.grad = torch.tensor(g, dtype=torch.float32)
        optimizer = Lamb(params, variant=variant, max_grad_norm=max_grad_norm)
        if on_device:
            device_step(optimizer, torch.tensor(1e-3))
        else:
            optimizer.step()
        return params

    for p, q in zip(after(none), after(1e9), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(InputError, match="max_grad_norm must be at least 0, got nan"):
        after(float("nan"))
