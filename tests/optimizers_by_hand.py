"""AdamW and LAMB as published, in numpy's float64, and the tensors that every backend is held to them with."""

from __future__ import annotations

import numpy as np
import torch
from close import assert_close

from fastbert import ops
from fastbert.optim import Lamb

BETA1, BETA2, EPS = 0.9, 0.99, 1e-6
# Nothing, at and off vector widths (8, 16) and four of them, and at and off the 16,384 elements of a chunk.
SIZES = [0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 1000, 16383, 16384, 16385, 33000]
STEPS = 4
VARIANTS = ("nvlamb", "apex", "clamped")


def start(sizes=SIZES, scale=1.0):
    """Parameters and the gradients of each step, in float32."""
    generator = torch.Generator().manual_seed(3)
    params = [0.1 * torch.randn(n, generator=generator) for n in sizes]
    gradients = [[scale * torch.randn(n, generator=generator) for n in sizes] for _ in range(STEPS)]
    for step in gradients:
        if len(step) > 2 and step[2].numel():
            step[2][0] = 0.0
    return params, gradients


def groups_of(params, decay=0.1):
    """Every second tensor decays."""
    return [{"params": params[::2], "weight_decay": decay}, {"params": params[1::2], "weight_decay": 0.0}]


def train(make, params, gradients, backend, dtype=torch.float32):
    """[parameters..., first moments..., second moments...] after all steps, and the optimiser."""
    # A copy: were it the caller's, the truth would start where this run ends.
    params = [torch.nn.Parameter(p.to(dtype, copy=True)) for p in params]
    optimizer = make(groups_of(params))
    with ops.backend(backend):
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = g.to(dtype)
            optimizer.step()
    results = [p.detach() for p in params]
    for name in ("exp_avg", "exp_avg_sq"):
        results += [optimizer.state[p][name] for p in params]
    return results, optimizer


def moments(first, second, g):
    return BETA1 * first + (1 - BETA1) * g, BETA2 * second + (1 - BETA2) * g**2


def adamw_by_hand(params, gradients, lr, corrected):
    """Loshchilov & Hutter 2019, algorithm 2, with and without lines 9 and 10."""
    params = [p.double().numpy().copy() for p in params]
    first, second = ([np.zeros_like(p) for p in params] for _ in range(2))
    for t, step in enumerate(gradients, start=1):
        for i, g in enumerate(step):
            first[i], second[i] = moments(first[i], second[i], g.double().numpy())
            m, v = (first[i] / (1 - BETA1**t), second[i] / (1 - BETA2**t)) if corrected else (first[i], second[i])
            params[i] -= lr * (m / (np.sqrt(v) + EPS) + (0.1 if i % 2 == 0 else 0.0) * params[i])
    return [torch.from_numpy(x) for x in (*params, *first, *second)]


def lamb_by_hand(params, gradients, lr, variant):
    """You et al. 2020, algorithm 2, with what the three published recipes change."""
    params = [p.double().numpy().copy() for p in params]
    first, second = ([np.zeros_like(p) for p in params] for _ in range(2))
    for t, step in enumerate(gradients, start=1):
        step = [g.double().numpy() for g in step]
        norm = np.sqrt(sum((g**2).sum() for g in step))
        for i, g in enumerate(step):
            first[i], second[i] = moments(first[i], second[i], g if variant == "clamped" else g / max(norm, 1.0))
            m, v = first[i], second[i]
            if variant != "clamped":
                m, v = m / (1 - BETA1**t), v / (1 - BETA2**t)
            decay = 0.1 if i % 2 == 0 else 0.0
            update = m / (np.sqrt(v) + EPS) + decay * params[i]
            weights, updates = np.linalg.norm(params[i]), np.linalg.norm(update)
            trust = 1.0
            if weights > 0 and updates > 0 and (variant != "nvlamb" or decay):
                trust = weights / updates
                trust = min(max(trust, 0.01), 0.3) if variant == "clamped" else trust
            params[i] -= lr * trust * update
    return [torch.from_numpy(x) for x in (*params, *first, *second)]


def hold_bounds_of_trust(trained):
    """Of "clamped": the trusts of `start` are within them, of these one is far above and one far below. trained(make,
    params, gradients) gives what `train` does."""
    params, gradients = [torch.full((20,), size) for size in (100.0, 1e-4)], [[torch.ones(20)] * 2]

    def make(groups):
        return Lamb(groups, 0.02, (BETA1, BETA2), EPS, variant="clamped")

    got, _ = trained(make, params, gradients)
    for ours, expected in zip(got, lamb_by_hand(params, gradients, 0.02, "clamped"), strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=0.0)


def hold(got, truth, same, sizes=SIZES):
    """The rule, over tensors of all sizes together (few elements are a matter of luck), and over each large one."""
    for k, name in enumerate(("parameters", "exp_avg", "exp_avg_sq")):
        part = slice(k * len(sizes), (k + 1) * len(sizes))
        assert_close(torch.cat(got[part]), torch.cat(truth[part]), torch.cat(same[part]), what=name)
        for i, size in enumerate(sizes):
            if size > 400:
                assert_close(*(x[part][i] for x in (got, truth, same)), what=f"{name} of {size} elements")
