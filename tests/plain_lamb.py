"""LAMB and AdamW as their papers have them, one whole tensor at a time, in numpy and float64: what shards must come to.

LAMB: You et al. 2020, algorithm 2. The variants: NVIDIA's BERT recipe ("nvlamb": gradients divided by their global norm
where that is above 1, no trust ratio without weight decay), the same with every tensor's trust ratio ("apex"), and
DeepSpeed's ("clamped": no division, no bias correction, trust ratio within [0.01, 0.3]). AdamW: Loshchilov & Hutter
2019, with or without the bias correction of Kingma & Ba 2015.
"""

from __future__ import annotations

import numpy as np
import torch

BETA1, BETA2, EPS = 0.9, 0.99, 1e-6


def _moments(first, second, i: int, g):
    first[i] = BETA1 * first[i] + (1 - BETA1) * g
    second[i] = BETA2 * second[i] + (1 - BETA2) * g**2
    return first[i], second[i]


def lamb(params: list, gradients: list[list], decays: list[float], lr: float, variant: str) -> list[np.ndarray]:
    """The parameters after a step for each entry of gradients, which has an array a parameter."""
    params = [np.asarray(p, dtype=np.float64).copy() for p in params]
    first, second = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    for t, raw in enumerate(gradients, 1):
        raw = [np.asarray(g, dtype=np.float64) for g in raw]
        norm = np.sqrt(sum((g**2).sum() for g in raw))
        divisor = max(norm, 1.0) if variant != "clamped" else 1.0
        for i, g in enumerate(raw):
            m, v = _moments(first, second, i, g / divisor)
            if variant != "clamped":
                m, v = m / (1 - BETA1**t), v / (1 - BETA2**t)
            update = m / (np.sqrt(v) + EPS) + decays[i] * params[i]
            weight, change = np.linalg.norm(params[i]), np.linalg.norm(update)
            trust = 1.0
            if weight > 0 and change > 0 and (variant != "nvlamb" or decays[i]):
                trust = weight / change
                if variant == "clamped":
                    trust = min(max(trust, 0.01), 0.3)
            params[i] = params[i] - lr * trust * update
    return params


def adamw(params: list, gradients: list[list], decays: list[float], lr: float, correct_bias: bool) -> list[np.ndarray]:
    """As `lamb`."""
    params = [np.asarray(p, dtype=np.float64).copy() for p in params]
    first, second = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    for t, raw in enumerate(gradients, 1):
        for i, g in enumerate(raw):
            m, v = _moments(first, second, i, np.asarray(g, dtype=np.float64))
            if correct_bias:
                m, v = m / (1 - BETA1**t), v / (1 - BETA2**t)
            params[i] = params[i] - lr * (m / (np.sqrt(v) + EPS) + decays[i] * params[i])
    return params


def largest_relative(got: list[torch.Tensor], expected: list) -> float:
    """The largest difference of a tensor's, over the tensor's norm."""
    wide = [(g.double(), torch.as_tensor(e).double()) for g, e in zip(got, expected, strict=True)]
    return max(float((g - e).norm() / e.norm()) for g, e in wide)
