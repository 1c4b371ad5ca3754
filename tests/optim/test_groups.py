"""Which parameters decay, and gradient clipping against torch's."""

from __future__ import annotations

import math

import pytest
import tiny_bert
import torch
import transformers
from torch import nn

from fastbert import ops
from fastbert.errors import InputError
from fastbert.optim import AdamW, Lamb, clip_grad_norm, clipped_step, param_groups


def names_of(model: nn.Module, group: dict) -> list[str]:
    by_id = {id(p): name for name, p in model.named_parameters()}
    return sorted(by_id[id(p)] for p in group["params"])


def test_bert_biases_and_layer_norms_do_not_decay():
    model = transformers.BertForPreTraining(tiny_bert.config())
    decay, keep = param_groups(model, 0.01)
    assert (decay["weight_decay"], keep["weight_decay"]) == (0.01, 0.0)
    # The exclusion list of google-research/bert: LayerNorm, layer_norm, bias.
    still = [n for n, _ in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    assert names_of(model, keep) == sorted(still)
    # 3 tables, 6 matrices in each of 4 layers, pooler, transform, NSP; the tied decoder comes once, as the table.
    assert len(decay["params"]) == 3 + 4 * 6 + 3
    everything = decay["params"] + keep["params"]
    assert len({id(p) for p in everything}) == len(everything) == len(list(model.parameters()))


def test_type_and_name_both_count():
    class LlamaNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    model = nn.ModuleDict({"unlikely_name": nn.LayerNorm(3), "input_layernorm": LlamaNorm(), "head": nn.Linear(3, 3)})
    model["LayerNorm"], model["sa_layer_norm"] = LlamaNorm(), LlamaNorm()
    model["frozen"] = nn.Linear(2, 2).requires_grad_(False)
    model["tied"] = nn.Linear(3, 3)
    model["tied"].weight = model["head"].weight
    decay, keep = param_groups(model, 0.5)
    assert names_of(model, decay) == ["head.weight"]
    assert names_of(model, keep) == [
        "LayerNorm.weight", "head.bias", "input_layernorm.weight", "sa_layer_norm.weight", "tied.bias",
        "unlikely_name.bias", "unlikely_name.weight",
    ]  # fmt: skip
    decay, more = param_groups(model, 0.5, without_decay=[model["tied"].weight])
    assert (names_of(model, decay), len(more["params"])) == ([], len(keep["params"]) + 1)


def test_parameters_with_a_rate_of_their_own_have_groups_of_their_own():
    model = nn.ModuleDict({"low": nn.Linear(2, 2), "mid": nn.Linear(2, 2), "top": nn.Linear(2, 2)})
    model["mid"].bias.requires_grad_(False)
    scales = {p: scale for name, scale in (("low", 0.25), ("mid", 0.5)) for p in model[name].parameters()}
    groups = param_groups(model, 0.1, lr_scales=scales)
    assert [(names_of(model, g), g["weight_decay"], g.get("lr_scale")) for g in groups] == [
        (["top.weight"], 0.1, None),
        (["top.bias"], 0.0, None),
        (["low.weight"], 0.1, 0.25),
        (["low.bias"], 0.0, 0.25),
        (["mid.weight"], 0.1, 0.5),
    ]


def test_biases_of_torchs_own_layers_do_not_decay():
    """Whose names only have a bias in them; what google-research/bert leaves out is found so, too."""
    model = nn.ModuleDict({"lstm": nn.LSTM(2, 3, bidirectional=True), "attention": nn.MultiheadAttention(4, 2)})
    decay, keep = param_groups(model, 0.5)
    assert all("weight" in name for name in names_of(model, decay))
    assert len(decay["params"]) == 4 + 2
    assert all("bias" in name for name in names_of(model, keep))
    assert len(keep["params"]) == 4 + 2


def with_gradients(dtype: torch.dtype, scale: float) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    params = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((5, 7), (7,), (1,), (3,))]
    for p in params[:3]:
        p.grad = (scale * torch.randn(p.shape, generator=generator)).to(dtype)
    return params  # the last has no gradient


def test_three_four_five():
    p, q = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))
    p.grad, q.grad = torch.tensor([3.0]), torch.tensor([0.0, 4.0])
    norm = clip_grad_norm([p, q], 1.0)
    assert norm.shape == ()
    assert norm.dtype == torch.float32
    assert norm.item() == 5.0
    torch.testing.assert_close(p.grad, torch.tensor([0.6]))
    torch.testing.assert_close(q.grad, torch.tensor([0.0, 0.8]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [100.0, 1e-3])
def test_is_torch(dtype, scale):
    mine, theirs = with_gradients(dtype, scale), with_gradients(dtype, scale)
    before = [p.grad.clone() for p in mine[:3]]
    norm = clip_grad_norm(iter(mine), 1.0)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    exact = math.sqrt(sum(float(g.double().square().sum()) for g in before))
    assert norm.item() == pytest.approx(exact, rel=1e-6)
    for p, q, old in zip(mine[:3], theirs[:3], before, strict=True):
        if scale < 1:
            assert torch.equal(p.grad, old)
        # torch's bf16 norm is itself rounded to bf16: 8 bits.
        tight = {} if dtype != torch.bfloat16 else {"rtol": 2**-7, "atol": 1e-6}
        torch.testing.assert_close(p.grad, q.grad, **tight)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6 if dtype != torch.bfloat16 else 2**-7)


def test_a_norm_near_zero_is_torchs_too():
    mine, theirs = with_gradients(torch.float32, 1e-6), with_gradients(torch.float32, 1e-6)
    clip_grad_norm(mine, 1e-7)
    torch.nn.utils.clip_grad_norm_(theirs, 1e-7)
    for p, q in zip(mine[:3], theirs[:3], strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_broken_gradient_is_reported_and_nothing_is_scaled(bad):
    params = with_gradients(torch.float32, 100.0)
    params[1].grad[2] = bad
    before = [p.grad.clone() for p in params[:3]]
    norm = clip_grad_norm(params, 1.0)
    assert not math.isfinite(norm.item())
    assert math.isnan(norm.item()) == math.isnan(bad)
    for p, old in zip(params[:3], before, strict=True):
        torch.testing.assert_close(p.grad, old, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("make", [AdamW, Lamb])
@pytest.mark.parametrize("max_norm", [0.5, math.inf])
def test_a_scale_is_in_the_norm_and_before_the_clip(make, max_norm, backend):
    plain, large = with_gradients(torch.float32, 1.0), with_gradients(torch.float32, 1024.0)  # a power of two
    with ops.backend(backend):
        norm = clipped_step(make(plain, lr=0.1, eps=0.1), max_norm)
        scaled = clipped_step(make(large, lr=0.1, eps=0.1), max_norm, grad_scale=1 / 1024)
    assert torch.equal(scaled, norm)
    assert all(map(torch.equal, plain, large))
    assert plain[0].detach().any()


def test_one_wide_gradient_makes_the_norm_wide():
    narrow, wide = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, dtype=torch.float64))
    narrow.grad, wide.grad = torch.ones(1), torch.full((1,), 1e-9, dtype=torch.float64)
    norm = clip_grad_norm([narrow, wide], 10.0)
    assert norm.dtype == torch.float64
    wide.grad.fill_(1e100)  # which float32 has not
    assert clip_grad_norm([narrow, wide], math.inf).item() == pytest.approx(1e100)


def test_one_parameter_is_not_taken_for_its_rows():
    (p, *_), (q, *_) = with_gradients(torch.float32, 10.0), with_gradients(torch.float32, 10.0)
    torch.testing.assert_close(clip_grad_norm(p, 0.5), nn.utils.clip_grad_norm_(q, 0.5))
    torch.testing.assert_close(p.grad, q.grad)


def test_no_gradients_at_all():
    parameter = nn.Parameter(torch.zeros(2))
    assert clip_grad_norm([parameter], 1.0).item() == clipped_step(AdamW([parameter]), 1.0).item() == 0.0


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan")])
def test_a_largest_norm_that_is_none(max_norm):
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    for call in (lambda: clip_grad_norm([parameter], max_norm), lambda: clipped_step(AdamW([parameter]), max_norm)):
        with pytest.raises(InputError, match="max_norm must be above 0"):
            call()
    assert torch.equal(parameter.detach(), torch.ones(2))
