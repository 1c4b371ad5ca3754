"""Which parameters decay, and how large a gradient may be."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .base import global_norm

# LayerNorms of other libraries are no nn.LayerNorm, but are called so.
_NORM_NAMES = ("layernorm", "layer_norm")


def param_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups for an optimiser: weights that decay, and biases and LayerNorm parameters that do not.

    A tied parameter comes once; one that needs no gradient is left out.
    """
    norms = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters(recurse=False)}
    decay, keep = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owner, _, last = name.lower().rpartition(".")
            still = id(parameter) in norms or last == "bias" or owner.endswith(_NORM_NAMES)
            (keep if still else decay).append(parameter)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": keep, "weight_decay": 0.0}]


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scales all gradients so that their common L2 norm is at most max_norm.

    Returns:
        the norm before, a () float32 tensor (float64 for float64 gradients). A norm that is not finite is returned
        and nothing is scaled.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    total = global_norm(gradients)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    # No branch on the device's value: a factor of one or of a broken norm becomes one.
    torch._foreach_mul_(gradients, torch.where(torch.isfinite(total), factor, torch.ones_like(factor)))
    return total
