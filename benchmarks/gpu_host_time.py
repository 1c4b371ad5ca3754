"""What the host does for a step of a model on a GPU, without one: `python benchmarks/gpu_host_time.py`.

Triton's launcher works as on a GPU, beside a driver that starts nothing (tests/triton_backend/launches.py); torch's
products and transformers' model are computed on the CPU, at a size that takes little time. Results are rubbish, times
are the host's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from fastbert import BertConfig, BertModel, PackedBatch, ops

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "triton_backend"))
import launches

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 1, "intermediate_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip


def milliseconds(function: Callable[[], object], calls: int = 10, rounds: int = 9) -> float:
    """The median over rounds of a call's time."""
    taken = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        for _ in range(calls):
            function()
        if number:
            taken.append((time.perf_counter() - began) / calls * 1e3)
    return statistics.median(taken)


def rows(forward: Callable[[], torch.Tensor]) -> str:
    with torch.no_grad():
        alone = milliseconds(forward)
    return f"forward {alone:5.1f} ms, forward and backward {milliseconds(lambda: forward().sum().backward()):5.1f} ms"


def main() -> None:
    torch.set_num_threads(1)
    ids = torch.randint(5, 90, (2, 16))
    theirs = transformers.BertModel(transformers.BertConfig(**SIZES)).train()
    print("transformers, on the CPU  ", rows(lambda: theirs(ids).last_hidden_state))
    launches.stand_in()
    ours, batch = BertModel(BertConfig(**SIZES)).bfloat16().train(), PackedBatch.from_sequences(list(ids))
    with ops.backend("triton"):
        print("fastbert, a layer one node", rows(lambda: ours(batch).last_hidden_state))
        for layer in ours.encoder.layer:
            layer.output.register_forward_hook(lambda *_: None)  # somebody wants the modules themselves
        print("fastbert, op by op        ", rows(lambda: ours(batch).last_hidden_state))


if __name__ == "__main__":
    main()
