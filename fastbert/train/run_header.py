"""The lines that a pre-training run prints before it starts."""

from __future__ import annotations

import torch

from .. import ops
from ..wording import counted
from . import phases
from .loop import PretrainLoop


def header(loop: PretrainLoop) -> str:
    """The lines: model, data, length and phases, device, steps, backends."""
    config, bert, shards = loop.config, loop.model.config, loop.batches.data.shards
    length = counted(loop.total_steps, "step") if loop.total_steps else counted(config.max_minutes, "minute")
    plans = [phases.describe(config, phase) for phase in loop.phases]
    peak, source = loop.peak
    heads = counted(bert.num_attention_heads, "head") + ", " if hasattr(bert, "num_attention_heads") else ""
    return "\n".join(
        [
            f"model      {counted(bert.num_hidden_layers, 'layer')} x {bert.hidden_size}, {heads}"
            f"vocabulary {bert.vocab_size}: {loop.num_parameters:,} parameters",
            f"data       {counted(shards.num_documents, 'document')}, {counted(shards.num_tokens, 'token')}",
            f"training   {length}, {config.optimizer}, {config.precision}, seed {config.seed}",
            *(f"           {plan}" for plan in plans),
            f"device     {loop.engine.device}, {counted(torch.get_num_threads(), 'thread')}; peak "
            f"{peak / 1e12:.2f} TFLOP/s ({source})",
            f"steps      {_steps(loop)}",
            f"backends   {ops.served()}",
        ]
    )


def _steps(loop: PretrainLoop) -> str:
    if not loop.fixed_shape:
        return "batches of any shape, without padding; no CUDA graph"
    captured = "captured in CUDA graphs" if loop.engine.device.type == "cuda" else "not captured on a CPU"
    pads = 100 * (1 - loop.batches.data.efficiency(loop.batches.place[0]))
    return f"batches of one shape, {loop.batches.data.shape.tokens} tokens with {pads:.2f} % padding; {captured}"
