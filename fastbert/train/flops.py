"""FLOPs of a training step, and the machine's peak.

Model FLOPs, forward and backward (3 x forward, nothing recomputed), of a sequence of s tokens with n predicted ones:

    3 (L (8 h^2 s + 4 h f s + 4 h s^2) + n (2 h^2 + 2 h V))

L layers, h hidden size, f intermediate size (4 h in BERT, which gives 24 h^2 s), V vocabulary size. LayerNorm, GELU,
softmax, embeddings and the optimiser are not counted, and causal attention is counted as if it were bidirectional. A
configuration with ``forward_flops(tokens, squares, predicted)`` counts its own forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from .. import _native
from ..wording import dtype_name

# NVIDIA's dense bfloat16 peaks in FLOP/s, and words in the names of slower variants and of MIG parts of a GPU.
_BF16_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
_OTHERS = ("H100 PCIe", "NVL", "MIG")
# For bfloat16 also float32's rate, to which a library may convert where that is faster.
_LOOPS = {torch.float32: ("fp32",), torch.bfloat16: ("fp32", "bf16", "bf16 tile")}


def sequence_flops(config, seqlen: int, num_predicted: float) -> float:
    """Model FLOPs of a training step on one sequence of ``seqlen`` tokens; ``num_predicted`` may be a mean."""
    return batch_flops(config, (seqlen,), num_predicted)


def batch_flops(config, lengths: Iterable[int], num_predicted: float) -> float:
    """Model FLOPs of a training step on sequences of these lengths with ``num_predicted`` predicted tokens in all."""
    tokens = squares = 0
    for length in map(int, lengths):  # their squares would overflow int32
        tokens += length
        squares += length * length
    if hasattr(config, "forward_flops"):
        return 3.0 * config.forward_flops(tokens, squares, num_predicted)
    h, f = config.hidden_size, config.intermediate_size
    layers = config.num_hidden_layers * ((8 * h * h + 4 * h * f) * tokens + 4 * h * squares)
    return 3.0 * (layers + num_predicted * (2 * h * h + 2 * h * config.vocab_size))


def measured_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> tuple[float, str]:
    """The FLOP/s that MFU is a share of, and where the figure comes from, in words.

    For known GPUs in bfloat16 it is the manufacturer's figure. Otherwise it is measured by a large matrix product, and
    on CPUs also by multiply-adds in registers, since torch's products leave some CPUs half idle; the larger counts.

    Args:
        device, dtype: where and in which type the model computes.
        seconds: how long to repeat the matrix product.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for model, peak in _BF16_PEAKS.items():
            if model in name and not any(word in name for word in _OTHERS):
                return peak, f"stated for {model} in bf16"
    name, size = dtype_name(dtype), 4096 if device.type == "cuda" else 1024
    product_rate = _product_rate(size, device, dtype, seconds)
    loop_rate = max(map(_native.loop_rate, _LOOPS.get(dtype, ())), default=0.0) if device.type == "cpu" else 0.0
    if loop_rate > product_rate:
        return loop_rate, f"measured, {name} multiply-adds in registers"
    return product_rate, f"measured, {name} {size} x {size} product"


def _product_rate(size: int, device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """The FLOP/s of the fastest of many products of two square matrices."""
    # With its own generator: measuring must not advance the one that a run draws from.
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))

    def product() -> float:
        began = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    deadline, best = time.perf_counter() + seconds, product()
    while time.perf_counter() < deadline:
        best = min(best, product())
    return 2 * size**3 / best
