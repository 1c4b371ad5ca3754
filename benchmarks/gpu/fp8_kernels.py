"""What 8-bit products gain: a dense layer and a feed-forward block beside bf16's, and what LayerNorm pays for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from kernels import DROPOUT, milliseconds, where

from fastbert import fp8, ops
from fastbert.errors import BackendError
from fastbert.train.precision import why_no_fp8

SIDES = ("fp8", "bf16")


def policy(layers: list[torch.nn.Parameter], norm: torch.nn.Parameter | None = None) -> fp8.Policy:
    """The layers, one after another, and a LayerNorm that writes for the first of them; to be warmed up.

    Raises:
        BackendError: the device has no 8-bit products.
    """
    device = layers[0].device
    reason = why_no_fp8(device)
    if reason is not None:
        raise BackendError(f"no 8-bit products here: {reason}")
    scales = fp8.Scales([fp8.E4M3, fp8.E4M3, fp8.E5M2] * len(layers), device)
    slots = [[scales.slot(3 * i + j) for j in range(3)] for i in range(len(layers))]
    sites = [fp8.Site(weight, *own) for weight, own in zip(layers, slots, strict=True)]
    return fp8.Policy(scales, sites, [] if norm is None else [(norm, slots[0][0])])


def block(x: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A feed-forward block as the model has it."""
    given = (x, up, bias, down, "none")
    if ops.is_fused("mlp", *given):
        return ops.mlp(*given)
    return ops.linear(ops.gelu(ops.linear(x, up), bias), down)


def warm(policy: fp8.Policy, function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The function under the policy, after a first step, in which scales are made."""

    def run() -> torch.Tensor:
        with fp8.use(policy):
            return function()

    out = run()
    out.backward(torch.ones_like(out))
    policy.scales.end_step()
    return run


def _sizes(dry: bool) -> tuple[str, torch.dtype, int, int]:
    return *where(dry), *((32, 64) if dry else (32768, 1024))


def _both(run: Callable[[], torch.Tensor], dry: bool) -> dict:
    """Forward with what it keeps for backward, and both."""
    dout = torch.randn_like(run())
    return {
        "forward ms": milliseconds(run, dry),
        "forward + backward ms": milliseconds(lambda: run().backward(dout), dry),
    }


def _products(layers: int, side: str, dry: bool) -> dict:
    """Layers of 4 H x H and H x 4 H; weights are float32, cast in every call, as in a step of one micro-batch."""
    device, dtype, rows, width = _sizes(dry)
    torch.manual_seed(0)
    x = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
    shapes = [(4 * width, width), (width, 4 * width)][:layers]
    weights = [torch.nn.Parameter(0.02 * torch.randn(shape, device=device)) for shape in shapes]
    bias = torch.zeros(4 * width, device=device)

    def layer_or_block() -> torch.Tensor:
        for weight in weights:
            torch.autograd.graph.increment_version(weight)
        if x.grad is not None:
            x.grad = None
        # An input that is new in every step has no 8 bits left with it.
        fresh = x.view_as(x)
        with torch.autocast(device, torch.bfloat16):
            return ops.linear(fresh, weights[0]) if layers == 1 else block(fresh, weights[0], bias, weights[1])

    run = warm(policy(weights), layer_or_block) if side == "fp8" else layer_or_block
    row = _both(run, dry)
    arithmetic = 2 * rows * sum(weight.numel() for weight in weights)
    backward = row["forward + backward ms"] - row["forward ms"]
    return row | {
        "forward TFLOP/s": arithmetic / row["forward ms"] / 1e9,
        "backward TFLOP/s": 2 * arithmetic / max(backward, 1e-9) / 1e9,
    }


def _layer_norm(side: str, dry: bool) -> dict:
    device, dtype, rows, width = _sizes(dry)
    torch.manual_seed(0)
    x, residual = (torch.randn(rows, width, device=device).to(dtype).requires_grad_() for _ in range(2))
    weight, bias = (torch.nn.Parameter(torch.ones(width, device=device)) for _ in range(2))
    after = torch.nn.Parameter(torch.randn(width, width, device=device))

    def norm() -> torch.Tensor:
        return ops.layer_norm(x, weight, bias, 1e-12, residual=residual, dropout=DROPOUT)

    run = warm(policy([after], weight), norm) if side == "fp8" else norm
    row = _both(run, dry)
    # x, residual, what is kept for backward, the result; and its 8 bits.
    moved = (4 * x.element_size() + (side == "fp8")) * x.numel()
    return row | {"forward GB/s": moved / row["forward ms"] / 1e6}


def measurements(dry: bool) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, what measures it): ours in 8 bits first, then in 16."""
    for side in SIDES:
        yield f"8 bits: dense layer {side}", lambda s=side: _products(1, s, dry)
        yield f"8 bits: feed-forward {side}", lambda s=side: _products(2, s, dry)
        yield f"8 bits: layer_norm {side}", lambda s=side: _layer_norm(s, dry)
