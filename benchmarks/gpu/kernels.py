"""Single kernels beside torch's, and the two ceilings that their figures are shares of."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from fastbert import ops
from fastbert.rng import Dropout

DROPOUT = Dropout(0.1, seed=1, offset=2, site=3)


def milliseconds(function: Callable, dry: bool, repeats: int = 20) -> float:
    """Median time of a call, the second-level cache flushed before each."""
    if dry:
        began = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - began)
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    for _ in range(3):
        function()
    taken = []
    for _ in range(repeats):
        flush.zero_()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        function()
        last.record()
        torch.cuda.synchronize()
        taken.append(first.elapsed_time(last))
    return statistics.median(taken)


def ceilings(dry: bool) -> dict:
    """A large bf16 product in TFLOP/s and a large copy in GB/s."""
    device, size = ("cpu", 64) if dry else ("cuda", 8192)
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    source = torch.empty(size * size * 4, device=device)
    target = torch.empty_like(source)
    product = milliseconds(lambda: a @ b, dry)
    copy = milliseconds(lambda: target.copy_(source), dry)
    return {"TFLOP/s": 2 * size**3 / product / 1e9, "copy GB/s": 8 * source.numel() / copy / 1e6}


def _both(function: Callable, leaves: list[torch.Tensor], dry: bool) -> dict:
    """Forward alone, and forward with backward."""
    with torch.no_grad():
        forward = milliseconds(lambda: function(*leaves), dry)
    given = [leaf.detach().requires_grad_() for leaf in leaves]
    dout = torch.randn_like(function(*leaves))

    def whole() -> None:
        for leaf in given:
            leaf.grad = None
        function(*given).backward(dout)

    return {"forward ms": forward, "forward + backward ms": milliseconds(whole, dry)}


def _attention(seqlen: int, dropout: Dropout | None, ours: bool, dry: bool) -> dict:
    device, tokens, nheads = ("cpu", 2 * seqlen, 2) if dry else ("cuda", 32768, 16)
    sequences = tokens // seqlen
    leaves = [
        torch.randn(tokens, nheads, 64, device=device).to(torch.float32 if dry else torch.bfloat16) for _ in "qkv"
    ]
    bounds = torch.arange(0, tokens + 1, seqlen, dtype=torch.int32, device=device)

    def packed(q, k, v):
        return ops.attention(q, k, v, bounds, seqlen, dropout=dropout)

    def padded(q, k, v):
        q, k, v = (x.unflatten(0, (sequences, seqlen)).transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout.p if dropout else 0.0)
        return out.transpose(1, 2).flatten(0, 1)

    row = _both(packed if ours else padded, leaves, dry)
    arithmetic = 4 * tokens * seqlen * nheads * 64
    backward = row["forward + backward ms"] - row["forward ms"]
    return row | {
        "forward TFLOP/s": arithmetic / row["forward ms"] / 1e9,
        "backward TFLOP/s": 2.5 * arithmetic / max(backward, 1e-9) / 1e9,
    }


def _layer_norm(ours: bool, dry: bool) -> dict:
    device, shape = ("cpu", (16, 64)) if dry else ("cuda", (32768, 1024))
    dtype = torch.float32 if dry else torch.bfloat16
    x, residual = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[1], device=device) for _ in range(2))

    def fused(x, residual):
        return ops.layer_norm(x, weight, bias, 1e-12, residual=residual, dropout=DROPOUT)

    def eager(x, residual):
        z = residual + F.dropout(x, 0.1)
        return F.layer_norm(z, shape[1:], weight.to(dtype), bias.to(dtype), 1e-12)

    row = _both(fused if ours else eager, [x, residual], dry)
    return row | {"forward GB/s": 3 * x.numel() * x.element_size() / row["forward ms"] / 1e6}


def _gelu(ours: bool, dry: bool) -> dict:
    device, shape = ("cpu", (16, 64)) if dry else ("cuda", (32768, 4096))
    x = torch.randn(shape, device=device).to(torch.float32 if dry else torch.bfloat16)
    bias = torch.randn(shape[1], device=device).to(x.dtype)
    row = _both((lambda x: ops.gelu(x, bias)) if ours else (lambda x: F.gelu(x + bias)), [x], dry)
    return row | {"forward GB/s": 2 * x.numel() * x.element_size() / row["forward ms"] / 1e6}


def _cross_entropy(ours: bool, dry: bool) -> dict:
    device, rows, columns = ("cpu", 8, 100) if dry else ("cuda", 5120, 30522)
    logits = torch.randn(rows, columns, device=device).to(torch.float32 if dry else torch.bfloat16)
    labels = torch.randint(columns, (rows,), device=device)
    row = _both(
        (lambda x: ops.cross_entropy(x, labels)) if ours else (lambda x: F.cross_entropy(x, labels)), [logits], dry
    )
    return row | {"forward GB/s": logits.numel() * logits.element_size() / row["forward ms"] / 1e6}


def measurements(dry: bool) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, what measures it), ours and torch's in turn."""
    for who, ours in (("fastbert", True), ("torch", False)):
        for seqlen in (512, 128):
            for dropout in (DROPOUT, None):
                name = f"attention S={seqlen} {'dropout' if dropout else 'plain'} {who}"
                yield name, lambda s=seqlen, d=dropout, o=ours: _attention(s, d, o, dry)
        yield f"layer_norm {who}", lambda o=ours: _layer_norm(o, dry)
        yield f"gelu {who}", lambda o=ours: _gelu(o, dry)
        yield f"cross_entropy {who}", lambda o=ours: _cross_entropy(o, dry)
