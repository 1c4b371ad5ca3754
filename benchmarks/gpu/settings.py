"""Attention's tiles, warps and stages beside those that ship: how those were chosen, and may be on another GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from kernels import DROPOUT, milliseconds, where

from fastbert import ops

# (rows, columns, warps, stages) of a tile, and the most registers of a thread where they are limited; None: what ships.
FORWARD = {
    128: (None, (64, 64, 4, 2), (64, 128, 8, 1)),
    512: (
        None,
        (64, 64, 4, 1),
        (64, 64, 4, 2, 128),
        (64, 64, 4, 3),
        (64, 32, 4, 2),
        (64, 32, 4, 3),
        (64, 128, 4, 2),
        (128, 64, 4, 2),
        (128, 32, 8, 2),
        (128, 64, 8, 2, 128),
    ),
}
# Of the kernel of dQ; at 128 tokens one pass where the rows are as many, two where they are fewer.
QUERIES = {
    128: (None, (128, 32, 8, 2), (128, 64, 8, 1, 128), (64, 64, 4, 2)),
    512: (None, (64, 64, 4, 1), (64, 64, 4, 3), (64, 64, 4, 2, 128), (64, 32, 4, 2), (64, 32, 4, 3), (128, 32, 8, 2)),
}
# Of the kernel of dK and dV: rows are queries, columns keys.
KEYS = {
    512: (
        None,
        (64, 64, 4, 1),
        (64, 64, 4, 3),
        (32, 64, 4, 2),
        (32, 64, 4, 3),
        (32, 64, 4, 2, 128),
        (32, 128, 8, 2),
        (64, 128, 8, 2),
        (32, 128, 8, 2, 128),
    ),
}
DIRECTIONS = {"forward": FORWARD, "queries": QUERIES, "keys": KEYS}


def _name(setting: tuple | None) -> str:
    if setting is None:
        return "shipped"
    limit = f" registers={setting[4]}" if len(setting) > 4 else ""
    return "M={} N={} warps={} stages={}".format(*setting[:4]) + limit


@contextmanager
def _in_place(direction: str, setting: tuple | None) -> Iterator[None]:
    """The launches of one kernel take this setting."""
    if setting is None:
        yield
        return
    from fastbert.triton_kernels import attention, attention_backward

    module, name = {
        "forward": (attention, "forward_settings"),
        "queries": (attention_backward, "backward_settings"),
        "keys": (attention_backward, "keys_settings"),
    }[direction]
    kept = getattr(module, name)
    rows, columns, warps, stages, *limit = setting
    made = {"BLOCK_M": rows, "BLOCK_N": columns, "num_warps": warps, "num_stages": stages}
    made |= {"maxnreg": limit[0]} if limit else {}
    setattr(module, name, lambda *_: dict(made))
    try:
        yield
    finally:
        setattr(module, name, kept)


def measure(direction: str, seqlen: int, setting: tuple | None, dry: bool) -> dict:
    """With dropout, heads of 64: the op forward, or its gradient; the largest difference from what ships."""
    device, dtype = where(dry)
    tokens, nheads = (16, 1) if dry else (32768, 16)
    length = tokens if dry else seqlen
    torch.manual_seed(0)
    q, k, v = (torch.randn(tokens, nheads, 64, device=device).to(dtype).requires_grad_() for _ in "qkv")
    dout = torch.randn(tokens, nheads, 64, device=device).to(dtype)
    bounds = torch.arange(0, tokens + 1, length, dtype=torch.int32, device=device)
    arithmetic = 4 * tokens * length * nheads * 64

    def forward() -> torch.Tensor:
        return ops.attention(q, k, v, bounds, length, dropout=DROPOUT)

    out = forward()

    def run() -> tuple[torch.Tensor, ...]:
        if direction == "forward":
            with torch.no_grad():
                return (forward(),)
        return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    expected = run()
    with _in_place(direction, setting if device == "cuda" else None):
        found = run()
        taken = milliseconds(run, dry)
    difference = max(float((a.float() - b.float()).abs().max()) for a, b in zip(found, expected, strict=True))
    arithmetic *= 1 if direction == "forward" else 2.5
    return {"ms": taken, "TFLOP/s": arithmetic / taken / 1e9, "difference": difference}


def measurements(dry: bool) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, what measures it)."""
    for direction, of_length in DIRECTIONS.items():
        for seqlen, settings in of_length.items():
            for setting in settings:
                name = f"attention {direction} S={seqlen} {_name(setting)}"
                yield name, lambda d=direction, n=seqlen, s=setting: measure(d, n, s, dry)
