"""Parameter groups with and without weight decay, and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .base import MasterWeightOptimizer, clip_factor, global_norm

# LayerNorms of other libraries are not nn.LayerNorm, but have such names.
_NORM_NAMES = ("layernorm", "layer_norm")


def param_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    without_decay: Iterable[Tensor] = (),
    lr_scales: Mapping[Tensor, float] | None = None,
) -> list[dict[str, Any]]:
    """Makes two groups for an optimiser: weights, which decay, and biases and LayerNorm parameters, which do not.

    A tied parameter is listed once; one that requires no gradient is left out.

    Args:
        model: any module; LayerNorms are recognised by their class, and by their names in BERT's layers.
        weight_decay: that of the first group; the second has 0.
        without_decay: further parameters for the second group.
        lr_scales: factors on the learning rate of some parameters; these have groups of their own.

    Returns:
        two dictionaries with "params" and "weight_decay", for `AdamW`, `Lamb` or an optimiser of torch; and two for
        every factor other than 1, which is their "lr_scale": whoever sets "lr" multiplies it by that.

    Ref:
        Devlin et al. 2019, appendix A.2; the exceptions are those of google-research/bert.
    """
    kept = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters(recurse=False)}
    kept |= set(map(id, without_decay))
    groups: dict[tuple[float, bool], list[Tensor]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owner, _, last = name.lower().rpartition(".")
            # "bias" is a part of the names of torch's LSTM (bias_ih_l0) and MultiheadAttention (in_proj_bias).
            still = id(parameter) in kept or "bias" in last or owner.endswith(_NORM_NAMES)
            scale = 1.0 if lr_scales is None else lr_scales.get(parameter, 1.0)
            groups.setdefault((scale, not still), []).append(parameter)
    made = []
    for (scale, decays), params in groups.items():
        group = {"params": params, "weight_decay": weight_decay if decays else 0.0}
        made.append(group if scale == 1 else {**group, "lr_scale": scale})
    return made


@torch.no_grad()
def clip_grad_norm(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scales all gradients, in place, so that their common L2 norm is at most max_norm.

    Args:
        parameters: one or several, of any shapes and floating dtypes; those without a gradient are skipped.
        max_norm: the largest norm allowed; infinity scales nothing.

    Returns:
        the norm before scaling, a () float32 tensor (float64 for float64 gradients). If it is not finite, nothing is
        scaled.

    Raises:
        InputError: max_norm is not above 0.
    """
    _check_max_norm(max_norm)
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters  # iterating a tensor gives rows
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    total = global_norm(gradients)
    factor = clip_factor(total, max_norm)
    # A factor of 1 changes nothing. It is only checked on a CPU: elsewhere, reading it would wait for the device.
    if factor.device.type != "cpu" or factor != 1:
        torch._foreach_mul_(gradients, factor)
    return total


def _check_max_norm(max_norm: float) -> None:
    # 0 would make no step at all (other libraries mean no clipping by it), and a negative norm would reverse the step.
    if not max_norm > 0:
        raise InputError(f"max_norm must be above 0 (infinity clips nothing), got {max_norm}")


@torch.no_grad()
def clipped_step(optimizer: torch.optim.Optimizer, max_norm: float, *, grad_scale: float = 1.0) -> Tensor:
    """`clip_grad_norm` of all parameters, then the optimiser's step; a norm that is not finite changes nothing.

    `AdamW` and `Lamb` scale gradients while they read them, and leave the tensors unchanged.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        max_norm: the largest norm allowed; infinity clips nothing.
        grad_scale: a factor for all gradients, and so for the norm: the inverse of a loss scale.

    Returns:
        the norm before clipping, as `clip_grad_norm` does.

    Raises:
        InputError: max_norm is not above 0.
    """
    _check_max_norm(max_norm)
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not isinstance(optimizer, MasterWeightOptimizer):
        if grad_scale != 1.0 and parameters:
            torch._foreach_mul_([p.grad for p in parameters], grad_scale)
        norm = clip_grad_norm(parameters, max_norm)
        if torch.isfinite(norm):
            optimizer.step()
        return norm
    norm = global_norm([p.grad for p in parameters]) * grad_scale if parameters else torch.zeros(())
    if torch.isfinite(norm):
        optimizer.step(grad_scale=grad_scale * float(clip_factor(norm, max_norm)))
    return norm
