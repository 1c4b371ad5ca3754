"""Training steps and inference of whole models: fastbert beside transformers, same sizes, same batches."""

from __future__ import annotations

import csv
import dataclasses
import random
import statistics
import time
from pathlib import Path

import torch

import fastbert
from fastbert import BertConfig, BertForPreTraining, BertModel, PackedBatch
from fastbert.train import flops

# Most important first.
TRAINING = [
    ("large", "mix"),
    ("large", "128"),
    ("base", "mix"),
    ("base", "128"),
    ("large", "512"),
    ("base", "512"),
]
SYSTEMS = ("fastbert", "transformers sdpa", "transformers compiled")
VOCABULARY = 30522
PEAK = 989e12  # dense bf16 FLOP/s of an H200, as its maker states
_MASKED = {"128": 20, "512": 80, "mix": None}  # predicted tokens a sequence; of the mix, 15.6 % of its tokens


def read_lengths(path: Path | None) -> list[tuple[int, int]]:
    """(length, sequences) of the mix. Without a file: uniform from 5 to 512, whose mean of 258 is near Wikipedia's."""
    if path is None:
        return [(length, 1) for length in range(5, 513)]
    with open(path) as file:
        return [(int(row["length"]), int(row["sequences"])) for row in csv.DictReader(file) if int(row["sequences"])]


def draw(workload: str, lengths, tokens: int) -> list[int]:
    """Lengths of one batch of about so many tokens."""
    if workload != "mix":
        return [int(workload)] * max(tokens // int(workload), 1)
    values, weights = zip(*lengths, strict=True)
    chooser, chosen = random.Random(0), []
    while sum(chosen) < tokens:
        chosen += chooser.choices(values, weights)
    return chosen


def make_batch(lengths: list[int], workload: str, device: str):
    """The same sequences as a `PackedBatch` and as transformers' padded tensors."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(1000, VOCABULARY, (n,), generator=generator) for n in lengths]
    batch = PackedBatch.from_sequences(ids)
    share = 0.156 if _MASKED[workload] is None else _MASKED[workload] / int(workload)
    wanted = max(round(share * batch.num_tokens), 1)
    positions = torch.randperm(batch.num_tokens, generator=generator)[:wanted].sort().values
    labels = torch.randint(1000, VOCABULARY, (wanted,), generator=generator)
    nsp = torch.randint(0, 2, (len(lengths),), generator=generator)
    batch = dataclasses.replace(batch, mlm_positions=positions, mlm_labels=labels, nsp_labels=nsp)
    flat = torch.full((batch.num_tokens,), -100)
    flat[positions] = labels
    pad = torch.nn.utils.rnn.pad_sequence
    padded = {
        "input_ids": pad(ids, batch_first=True),
        "attention_mask": pad([torch.ones(n, dtype=torch.int64) for n in lengths], batch_first=True),
        "labels": pad(list(flat.split(lengths)), batch_first=True, padding_value=-100),
        "next_sentence_label": nsp,
    }
    return batch.to(device), {name: value.to(device) for name, value in padded.items()}, wanted


def config_of(model: str, dry: bool) -> BertConfig:
    sizes = {"vocab_size": VOCABULARY}
    return BertConfig.from_name("2x128", **sizes) if dry else BertConfig.from_name(model, **sizes)


def peer(kind: str, config: BertConfig, system: str, device: str) -> torch.nn.Module:
    import transformers

    made = transformers.BertConfig(**{k: v for k, v in config.to_dict().items() if k != "architectures"})
    made._attn_implementation = "sdpa"
    model = getattr(transformers, kind)(made).to(device)
    return torch.compile(model, dynamic=False) if system.endswith("compiled") else model


def median_seconds(step, device: str, dry: bool, seconds: float = 4.0) -> tuple[float, float]:
    """(median seconds of a step, last loss) after a warm-up."""
    for _ in range(1 if dry else 4):
        loss = step()
    taken = []
    deadline = time.perf_counter() + seconds
    while len(taken) < (1 if dry else 5) or (not dry and time.perf_counter() < deadline and len(taken) < 30):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        loss = step()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), float(loss)


def training(model: str, workload: str, system: str, lengths, dry: bool) -> dict:
    """Forward, backward, clip and optimiser step under bf16 autocast, dropout 0.1."""
    device = "cpu" if dry else "cuda"
    config = config_of(model, dry)
    chosen = draw(workload, lengths, 600 if dry else 16384 if model == "large" else 32768)
    batch, padded, predicted = make_batch(chosen, workload, device)
    torch.manual_seed(0)
    if system == "fastbert":
        network = BertForPreTraining(config).to(device).train()
        network.last_layer = "needed"
        optimizer = fastbert.optim.AdamW(fastbert.optim.param_groups(network, 0.01), lr=1e-4)
    else:
        network = peer("BertForPreTraining", config, system, device).train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=device == "cuda")
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = network(batch).loss if system == "fastbert" else network(**padded).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    seconds, loss = median_seconds(step, device, dry)
    arithmetic = flops.batch_flops(config, chosen, predicted)
    return {
        "sequences": len(chosen),
        "tokens": sum(chosen),
        "ms": 1e3 * seconds,
        "sequences/s": len(chosen) / seconds,
        "tokens/s": sum(chosen) / seconds,
        "TFLOP/s": arithmetic / seconds / 1e12,
        "MFU": arithmetic / seconds / PEAK,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        "loss": loss,
    }


def inference(workload: str, system: str, lengths, dry: bool) -> dict:
    """The encoder of BERT-base in bf16, and its largest difference from fp32."""
    device = "cpu" if dry else "cuda"
    config = config_of("base", dry)
    chosen = draw(workload, lengths, 600 if dry else 32768)
    batch, padded, _ = make_batch(chosen, workload, device)
    batch = dataclasses.replace(batch, mlm_positions=None, mlm_labels=None, nsp_labels=None)
    padded = {name: padded[name] for name in ("input_ids", "attention_mask")}
    torch.manual_seed(0)
    exact = BertModel(config).to(device).eval()
    with torch.no_grad():
        expected = exact(**padded).last_hidden_state[padded["attention_mask"].bool()]
        if system == "fastbert":
            network = exact.bfloat16()
        else:
            network = peer("BertModel", config, "sdpa", device).eval()
            network.load_state_dict(exact.state_dict())
            network = network.bfloat16()
            network = torch.compile(network, dynamic=False) if system.endswith("compiled") else network

        def step() -> torch.Tensor:
            given = (batch,) if system == "fastbert" else ()
            return network(*given, **({} if given else padded)).last_hidden_state

        out = step()
        got = out if system == "fastbert" else out[padded["attention_mask"].bool()]
        error = float((got.float() - expected).abs().max())
        seconds, _ = median_seconds(lambda: step().flatten()[0], device, dry, 2.0)
    return {
        "tokens": sum(chosen),
        "ms": 1e3 * seconds,
        "sequences/s": len(chosen) / seconds,
        "tokens/s": sum(chosen) / seconds,
        "largest error": error,
    }
