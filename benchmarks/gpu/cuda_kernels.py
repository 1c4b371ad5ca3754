"""The CUDA kernels, each beside what serves where it is not chosen; record.py makes the choice of these rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import kernels
import torch
from kernels import milliseconds, where, whole

from fastbert import ops, optim
from fastbert.ops import _cuda, _dispatch

# What `ops._cuda.why_not_measured` asks for.
CHOICES = ("pack", "gather_rows", "lamb", "mlp", "linear")
# Where one of these is chosen a layer is computed op by op, and is not one op of Triton's: both must be faster.
IN_LAYERS = ("mlp", "linear")
SIDES = ("cuda", "other")


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-30))


def _backend(side: str, dry: bool, other: str = "triton"):
    # By name: "auto" would choose by the record of an earlier run.
    on_cpu = where(dry)[0] == "cpu"
    return ops.backend("reference" if on_cpu else "cuda" if side == "cuda" else other)


def _mask(dry: bool) -> torch.Tensor:
    device, _ = where(dry)
    shape = (4, 16) if dry else (256, 512)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)
    return (torch.arange(shape[1])[None] < lengths).to(device)


def pack(side: str, dry: bool) -> dict:
    mask = _mask(dry)
    capacity = mask.numel()
    with _backend(side, dry, "reference"):
        return {"ms": milliseconds(lambda: ops.RoomPacking.from_mask(mask, capacity), dry)}


def gather_rows(side: str, dry: bool) -> dict:
    device, dtype = where(dry)
    mask = _mask(dry)
    with ops.backend("reference"):
        packing = ops.RoomPacking.from_mask(mask, mask.numel())
    x = torch.randn(mask.numel(), 32 if dry else 1024, device=device).to(dtype)
    with _backend(side, dry, "reference"):
        out = _dispatch.call("gather_rows", x, packing.indices, packing.slots)
        taken = milliseconds(lambda: _dispatch.call("gather_rows", x, packing.indices, packing.slots), dry)
    with ops.backend("reference"):
        expected = _dispatch.call("gather_rows", x, packing.indices, packing.slots)
    moved = 2 * x.numel() * x.element_size()
    return {"ms": taken, "GB/s": moved / taken / 1e6, "equal": torch.equal(out, expected)}


def lamb(side: str, dry: bool) -> dict:
    """A step of BERT-large's parameters in bfloat16 with float32 masters."""
    device, dtype = where(dry)
    width, layers = (16, 1) if dry else (1024, 24)
    shapes = [
        (30522 if not dry else 50, width),
        *([(width, width)] * 4 + [(4 * width, width)] * 2 + [(width,)] * 9) * layers,
    ]
    params = [torch.nn.Parameter(torch.randn(shape, device=device).to(dtype)) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    optimizer = optim.Lamb(params, lr=1e-4)
    with _backend(side, dry):
        taken = milliseconds(optimizer.step, dry)
    # Reads p, g, m, v and writes m, v; reads p, m, v again and writes both p; and the norm's pass over g.
    elements = sum(p.numel() for p in params)
    return {"ms": taken, "GB/s": elements * (2 + 4 * 3 + 2 + 4 * 2 + 4 * 3 + 4 + 2) / taken / 1e6}


def mlp(side: str, dry: bool) -> dict:
    """Forward and backward of BERT-large's feed-forward block."""
    device, dtype = where(dry)
    tokens, width = (8, 16) if dry else (32768, 1024)
    shapes = ((tokens, width), (4 * width, width), (4 * width,), (width, 4 * width))
    leaves = [(torch.randn(s, device=device) * 0.05).to(dtype).requires_grad_() for s in shapes]
    dout = torch.randn(tokens, width, device=device).to(dtype)

    def by_parts(x, w1, b1, w2):
        return ops.linear(ops.gelu(ops.linear(x, w1), b1, "tanh"), w2)

    def fused(x, w1, b1, w2):
        return ops.mlp(x, w1, b1, w2, "tanh")

    function = fused if side == "cuda" else by_parts
    with _backend(side, dry):
        if side == "cuda" and device == "cuda":
            by = torch.zeros(8, 8, device=device, dtype=dtype)
            by @ by  # torch loads cuBLASLt with a product
        taken = milliseconds(whole(function, leaves, dout), dry)
        out = function(*leaves).detach()
    with _backend("other", dry):
        expected = by_parts(*leaves).detach()
    arithmetic = 3 * 2 * 2 * tokens * width * 4 * width
    return {"ms": taken, "TFLOP/s": arithmetic / taken / 1e9, "difference": _difference(out, expected)}


def linear(side: str, dry: bool) -> dict:
    device, dtype = where(dry)
    tokens, width = (8, 16) if dry else (32768, 1024)
    x, weight = (torch.randn(rows, width, device=device).to(dtype).requires_grad_() for rows in (tokens, width))
    bias = torch.randn(width, device=device).to(dtype).requires_grad_()
    dout = torch.randn(tokens, width, device=device).to(dtype)
    with _backend(side, dry):
        taken = milliseconds(whole(ops.linear, [x, weight, bias], dout), dry)
    return {"ms": taken, "TFLOP/s": 3 * 2 * tokens * width * width / taken / 1e9}


def layers(side: str, dry: bool) -> dict:
    """Two layers of BERT-large in training, op by op with cuBLASLt's dense layers, or as `ops.encoder` has them."""
    gains = dict.fromkeys(("linear",) if side == "cuda" else (), _cuda.LEAST_GAIN)
    with mock.patch.object(_cuda, "_gains", return_value=gains):
        row = kernels.layers("whole", 32768, dry)
    return {"ms": row["forward + backward ms"], "TFLOP/s": row["TFLOP/s"]}


def measurements(dry: bool) -> Iterator[tuple[str, Callable[[], dict]]]:
    """("cuda NAME SIDE", what measures it)."""
    for function in (lamb, mlp, linear, layers, gather_rows, pack):
        for side in SIDES:
            yield f"cuda {function.__name__} {side}", lambda f=function, s=side: f(s, dry)
