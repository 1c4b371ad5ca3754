"""Single kernels beside torch's, and the two ceilings that their figures are shares of."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastbert import BertConfig, ops
from fastbert.modules.encoder import BertEncoder
from fastbert.modules.layout import PackedLayout
from fastbert.rng import Dropout, DropoutKey

DROPOUT = Dropout(0.1, seed=1, offset=2, site=3)
SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


# A second of the fastest clock, by which `torch.cuda._sleep` counts.
_CYCLES = 2e9
# Seconds of work after which an idle device's clock has risen; what is measured first is what the rest is a share of.
_RISE = 0.05


def where(dry: bool) -> tuple[str, torch.dtype]:
    """The device and what numbers are on it: a GPU's bf16. A rehearsal without a GPU is on the CPU, in fp32."""
    return ("cuda", torch.bfloat16) if torch.cuda.is_available() or not dry else ("cpu", torch.float32)


def milliseconds(function: Callable, dry: bool, repeats: int = 20) -> float:
    """Median time of the device for a call, the second-level cache flushed before each."""
    if where(dry)[0] == "cpu":
        began = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - began)
    flush = torch.empty(1 << 10 if dry else 64 << 20, dtype=torch.int32, device="cuda")
    host = 0.0
    for _ in range(0 if dry else 4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        function()
        host = time.perf_counter() - began
    # The device is kept busy until all of a call is on its way, so that it never waits for the host in between.
    ahead = int(min(1.5 * host, 0.2) * _CYCLES)
    torch.cuda._sleep(int((0.0 if dry else _RISE) * _CYCLES))
    taken = []
    for _ in range(1 if dry else repeats):
        flush.zero_()
        torch.cuda._sleep(ahead)
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        function()
        last.record()
        torch.cuda.synchronize()
        taken.append(first.elapsed_time(last))
    return statistics.median(taken)


def ceilings(dry: bool) -> dict:
    """A large bf16 product in TFLOP/s and a large copy in GB/s."""
    device, size = where(dry)[0], 64 if dry else 8192
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    source = torch.empty(size * size * 4, device=device)
    target = torch.empty_like(source)
    product = milliseconds(lambda: a @ b, dry)
    copy = milliseconds(lambda: target.copy_(source), dry)
    return {"TFLOP/s": 2 * size**3 / product / 1e9, "copy GB/s": 8 * source.numel() / copy / 1e6}


def whole(function: Callable, leaves: list[torch.Tensor], dout: torch.Tensor) -> Callable[[], None]:
    """Forward and backward of a function, as in a step whose gradients were cleared."""

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        function(*leaves).backward(dout)

    return run


def _both(function: Callable, leaves: list[torch.Tensor], dry: bool) -> dict:
    """Forward alone, and forward with backward."""
    with torch.no_grad():
        forward = milliseconds(lambda: function(*leaves), dry)
    given = [leaf.detach().requires_grad_() for leaf in leaves]
    both = whole(function, given, torch.randn_like(function(*leaves)))
    return {"forward ms": forward, "forward + backward ms": milliseconds(both, dry)}


def _compiled(function: Callable, dry: bool) -> Callable:
    return torch.compile(function, backend="eager" if dry else "inductor", dynamic=False)


def _attention(seqlen: int, dropout: Dropout | None, who: str, dry: bool) -> dict:
    device, dtype = where(dry)
    tokens, nheads = (seqlen, 1) if dry else (32768, 16)
    sequences = tokens // seqlen
    leaves = [torch.randn(tokens, nheads, 64, device=device).to(dtype) for _ in "qkv"]
    bounds = torch.arange(0, tokens + 1, seqlen, dtype=torch.int32, device=device)

    def ours(q, k, v):
        return ops.attention(q, k, v, bounds, seqlen, dropout=dropout)

    def sdpa(q, k, v):
        q, k, v = (x.unflatten(0, (sequences, seqlen)).transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.MATH if dry else SDPA[who]):
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout.p if dropout else 0.0)
        return out.transpose(1, 2).flatten(0, 1)

    def varlen(q, k, v):
        from torch.nn.attention.varlen import varlen_attn

        return sdpa(q, k, v) if dry else varlen_attn(q, k, v, bounds, bounds, seqlen, seqlen)

    function = {"fastbert": ours, "varlen": varlen}.get(who, sdpa)
    row = _both(function, leaves, dry)
    arithmetic = 4 * tokens * seqlen * nheads * 64
    backward = row["forward + backward ms"] - row["forward ms"]
    return row | {
        "forward TFLOP/s": arithmetic / row["forward ms"] / 1e9,
        "backward TFLOP/s": 2.5 * arithmetic / max(backward, 1e-9) / 1e9,
    }


def layers(who: str, tokens: int, dry: bool) -> dict:
    """Two layers of BERT-large in training under autocast: as one op, or module by module as where one has a hook.

    The host's time is what a step that is not captured waits for where there are few tokens.
    """
    device, dtype = where(dry)
    seqlen, size = (8, 64) if dry else (128, 1024)
    tokens = 16 if dry else tokens
    config = BertConfig(
        vocab_size=8, hidden_size=size, num_attention_heads=size // 64, intermediate_size=4 * size, num_hidden_layers=2
    )
    encoder = BertEncoder(config).to(device).train()
    if who == "apart":
        for layer in encoder.layer:
            layer.output.register_forward_hook(lambda *_: None)
    bounds = torch.arange(0, tokens + 1, seqlen, dtype=torch.int32, device=device)
    x, key = torch.randn(tokens, size, device=device).to(dtype), DropoutKey(1, 2)

    def run(x):
        with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return encoder.run(x, PackedLayout(bounds, seqlen), key)[0]

    row = _both(run, [x], dry)
    leaf, began = x.detach().requires_grad_(), time.perf_counter()
    run(leaf).sum().backward()
    host = time.perf_counter() - began
    arithmetic = 2 * tokens * (24 * size * size + 4 * seqlen * size)
    done = row["forward + backward ms"]
    return row | {"host ms": 1e3 * host, "TFLOP/s": 3 * arithmetic / done / 1e9}


def _rows(who: str, ours: Callable, eager: Callable, leaves: list[torch.Tensor], moved: int, dry: bool) -> dict:
    """A kernel bound by memory: ``moved`` elements that forward must read or write."""
    functions = {"fastbert": lambda: ours, "torch": lambda: eager, "compiled": lambda: _compiled(eager, dry)}
    row = _both(functions[who](), leaves, dry)
    return row | {"forward GB/s": moved * leaves[0].element_size() / row["forward ms"] / 1e6}


def _layer_norm(who: str, dry: bool) -> dict:
    device, dtype = where(dry)
    shape = (16, 64) if dry else (32768, 1024)
    x, residual = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[1], device=device) for _ in range(2))

    def fused(x, residual):
        return ops.layer_norm(x, weight, bias, 1e-12, residual=residual, dropout=DROPOUT)

    def eager(x, residual):
        z = residual + F.dropout(x, 0.1)
        return F.layer_norm(z, shape[1:], weight.to(dtype), bias.to(dtype), 1e-12)

    return _rows(who, fused, eager, [x, residual], 3 * x.numel(), dry)


def _gelu(who: str, dry: bool) -> dict:
    device, dtype = where(dry)
    shape = (16, 64) if dry else (32768, 4096)
    x = torch.randn(shape, device=device).to(dtype)
    bias = torch.randn(shape[1], device=device).to(x.dtype)
    return _rows(who, lambda x: ops.gelu(x, bias), lambda x: F.gelu(x + bias), [x], 2 * x.numel(), dry)


def _cross_entropy(who: str, dry: bool) -> dict:
    device, dtype = where(dry)
    rows, columns = (8, 100) if dry else (5120, 30522)
    logits = torch.randn(rows, columns, device=device).to(dtype)
    labels = torch.randint(columns, (rows,), device=device)
    ours, eager = (lambda x: ops.cross_entropy(x, labels)), (lambda x: F.cross_entropy(x, labels))
    return _rows(who, ours, eager, [logits], logits.numel(), dry)


def _adamw(who: str, dry: bool) -> dict:
    """One clipped update of 84 M parameters, or what the optimiser and clip of torch take for it."""
    from fastbert import optim

    device, _ = where(dry)
    rows, count = (8, 2) if dry else (1024, 80)
    params = [torch.nn.Parameter(torch.randn(rows, 1024, device=device)) for _ in range(count)]
    for p in params:
        p.grad = torch.randn_like(p)
    size = sum(p.numel() for p in params)
    if who == "fastbert":
        optimizer, lr = optim.AdamW(params, lr=1e-4), torch.full((1,), 1e-4, device=device)

        def step() -> None:
            optim.device_step(optimizer, lr, max_norm=1.0)
    else:
        optimizer = torch.optim.AdamW(params, lr=1e-4, fused=device == "cuda")

        def step() -> None:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()

    taken = milliseconds(step, dry)
    # Gradients are read twice; weights and two moments are read and written.
    return {"forward ms": taken, "forward GB/s": 8 * 4 * size / taken / 1e6}


def measurements(dry: bool) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, what measures it): ours first, then the peers."""
    for seqlen in (512, 128):
        for dropout in (DROPOUT, None):
            # torch's varlen attention has no dropout.
            peers = ("fastbert", *SDPA, *(() if dropout else ("varlen",)))
            for who in peers:
                name = f"attention S={seqlen} {'dropout' if dropout else 'plain'} {who}"
                yield name, lambda s=seqlen, d=dropout, w=who: _attention(s, d, w, dry)
    for tokens, who in itertools.product((32768, 512), ("whole", "apart")):
        yield f"layers T={tokens} {who}", lambda t=tokens, w=who: layers(w, t, dry)
    for name, function in (("layer_norm", _layer_norm), ("gelu", _gelu), ("cross_entropy", _cross_entropy)):
        for who in ("fastbert", "torch", "compiled"):
            yield f"{name} {who}", lambda f=function, w=who: f(w, dry)
    for who in ("fastbert", "torch"):
        yield f"adamw {who}", lambda w=who: _adamw(w, dry)
