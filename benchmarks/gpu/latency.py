"""Small batches in inference, as a server has them: from ids on the host to first tokens' states on the host."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from steps import built, config_of, median_seconds, peer, where

from fastbert import BertConfig, BertModel, PackedBatch, ops

SYSTEMS = ("fastbert", "fastbert graphs", "transformers sdpa", "transformers compiled")
LENGTHS = {"1 x 32": (32,), "8 x 32": (32,) * 8, "32 mixed": (8, 12, 16, 20, 24, 32, 48, 96) * 4}


def latency(model: str, workload: str, system: str, dry: bool) -> dict:
    """The encoder in bf16; the host waits for each batch. ``compiled`` has CUDA graphs of its own."""
    device, _ = where(dry)
    config, lengths = config_of(model, dry), LENGTHS[workload]
    if dry:
        config, lengths = BertConfig.from_name("1x64", vocab_size=2000), [min(n, 8) for n in lengths[:4]]
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(1000, config.vocab_size, (n,), generator=generator) for n in lengths]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    torch.manual_seed(0)
    exact = built(lambda: BertModel(config), device).eval()
    with torch.inference_mode():
        expected = exact(PackedBatch.from_sequences(ids).to(device)).last_hidden_state
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0).to(device)
        expected = expected[starts].float().cpu()
    if system.startswith("fastbert"):
        network = exact.bfloat16()
    else:
        network = peer("BertModel", config, "sdpa", device, dry).eval()
        network.load_state_dict(exact.state_dict())
        network = network.bfloat16()
        if system.endswith("compiled"):
            options = {"backend": "eager"} if dry else {"mode": "reduce-overhead"}
            network = torch.compile(network, dynamic=False, **options)

    def first_states() -> torch.Tensor:
        if system.startswith("fastbert"):
            batch = PackedBatch.from_sequences(ids).to(device)
            return network(batch).last_hidden_state[batch.cu_seqlens[:-1]].float().cpu()
        given = {"input_ids": padded.to(device), "attention_mask": mask.to(device)}
        return network(**given).last_hidden_state[:, 0].float().cpu()

    with torch.inference_mode(), ops.cuda_graphs() if system.endswith("graphs") else nullcontext():
        for _ in range(1 if dry else 8):  # the fourth pass is captured
            got = first_states()
        seconds = median_seconds(first_states, device, dry, 1.0, together=1 if dry else 10)
    return {
        "tokens": sum(lengths),
        "ms": 1e3 * seconds,
        "sequences/s": len(lengths) / seconds,
        "largest error": float((got - expected).abs().max()),
    }
