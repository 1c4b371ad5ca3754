"""Attention's tiles, warps and stages beside those that ship, which were chosen by registers and on no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from kernels import DROPOUT, milliseconds, where

from fastbert import ops

# (rows, columns, warps, stages) of a tile; None for what ships.
FORWARD = {
    128: (None, (64, 64, 4, 2), (64, 128, 4, 1), (128, 128, 8, 1)),
    512: (None, (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2)),
}
# At 128 tokens one pass where the rows are as many, two where they are fewer.
BACKWARD = {
    128: (None, (128, 64, 8, 1), (128, 32, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (64, 64, 8, 2)),
    512: (None, (64, 64, 4, 1), (64, 32, 4, 2), (32, 64, 4, 2), (64, 64, 8, 2)),
}


def _name(setting: tuple | None) -> str:
    return "shipped" if setting is None else "M={} N={} warps={} stages={}".format(*setting)


@contextmanager
def _in_place(direction: str, setting: tuple | None) -> Iterator[None]:
    """The launches of one direction take this setting: backward the kernel of dQ, and that of dK and dV with rows and
    columns exchanged."""
    if setting is None:
        yield
        return
    from fastbert.triton_kernels import attention, attention_backward

    module, name = {
        "forward": (attention, "forward_settings"),
        "backward": (attention_backward, "backward_settings"),
    }[direction]
    kept = getattr(module, name)
    rows, columns, warps, stages = setting
    made = {"BLOCK_M": rows, "BLOCK_N": columns, "num_warps": warps, "num_stages": stages}
    setattr(module, name, lambda *_: dict(made))
    try:
        yield
    finally:
        setattr(module, name, kept)


def measure(direction: str, seqlen: int, setting: tuple | None, dry: bool) -> dict:
    """With dropout, heads of 64."""
    device, dtype = where(dry)
    tokens, nheads = (16, 1) if dry else (32768, 16)
    length = tokens if dry else seqlen
    q, k, v = (torch.randn(tokens, nheads, 64, device=device).to(dtype).requires_grad_() for _ in "qkv")
    bounds = torch.arange(0, tokens + 1, length, dtype=torch.int32, device=device)
    arithmetic = 4 * tokens * length * nheads * 64

    def forward() -> torch.Tensor:
        return ops.attention(q, k, v, bounds, length, dropout=DROPOUT)

    with _in_place(direction, setting) if device == "cuda" else _in_place(direction, None):
        if direction == "forward":
            with torch.no_grad():
                taken = milliseconds(forward, dry)
        else:
            out = forward()
            dout, arithmetic = torch.randn_like(out), 2.5 * arithmetic
            taken = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), dry)
    return {"ms": taken, "TFLOP/s": arithmetic / taken / 1e9}


def measurements(dry: bool) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, what measures it)."""
    for seqlen, forward in FORWARD.items():
        for direction, settings in (("forward", forward), ("backward", BACKWARD[seqlen])):
            for setting in settings:
                name = f"attention {direction} S={seqlen} {_name(setting)}"
                yield name, lambda d=direction, n=seqlen, s=setting: measure(d, n, s, dry)
