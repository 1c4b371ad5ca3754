"""The ten numbers that the update of a tensor needs, ordered as in csrc/include/optimizer.h and the Triton kernels."""

from __future__ import annotations

import math


def is_corrected(kind: str, group: dict) -> bool:
    """Whether moments are divided by 1 - beta^step; kind is "adamw" or "lamb"."""
    return group["correct_bias"] if kind == "adamw" else group["variant"] != "clamped"


def has_trust(group: dict) -> bool:
    """Whether LAMB scales the tensors of this group by |p| / |u|."""
    return group["variant"] != "nvlamb" or bool(group["weight_decay"])


def divides_by_norm(group: dict) -> bool:
    """Whether LAMB divides all gradients by their global norm first."""
    return group["variant"] != "clamped" and bool(group["max_grad_norm"])


def lr_scale(group: dict) -> float:
    """The factor on the learning rate of a group."""
    return group.get("lr_scale", 1.0)


def rates(kind: str, group: dict, step: int) -> tuple[float, ...]:
    """(lr, eps, weight decay, 1 - beta1, 1 - beta2, both bias corrections, whether there is a trust ratio, its minimum,
    its maximum)."""
    beta1, beta2 = group["betas"]
    corrections = 1.0, 1.0
    if is_corrected(kind, group):
        corrections = 1 / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)
    common = (group["lr"], group["eps"], group["weight_decay"], 1 - beta1, 1 - beta2, *corrections)
    if kind == "adamw":
        return (*common, 0.0, 1.0, 1.0)
    between = group["trust_range"] if group["variant"] == "clamped" else (0.0, math.inf)
    return (*common, float(has_trust(group)), *between)
