"""Training steps and inference of whole models: fastbert beside transformers, same sizes, same batches."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from kernels import where

import fastbert
from fastbert import BertConfig, BertForPreTraining, BertModel, PackedBatch
from fastbert.data.budget import BatchShape, StaticBatch, fill_up
from fastbert.data.histogram import pack_histogram, read_lengths
from fastbert.train import flops, graph
from fastbert.train.engine import LocalEngine
from fastbert.train.shaped_steps import ShapedSteps

# Most important first.
TRAINING = [
    ("large", "mix"),
    ("large", "128"),
    ("base", "mix"),
    ("base", "128"),
    ("large", "512"),
    ("base", "512"),
]
SYSTEMS = (
    "fastbert",
    "transformers sdpa",
    "fastbert fp8",
    "fastbert uncaptured",
    "transformers compiled",
    "transformers flash-attention-2",
    "fastbert fp16",
)
FINETUNING = ("fastbert", "transformers sdpa", "fastbert uncaptured")
INFERENCE = ("fastbert", "transformers sdpa", "transformers compiled", "transformers flash-attention-2")
VOCABULARY = 30522
_MASKED = {"128": 20, "512": 80, "mix": None}  # predicted tokens a sequence; of the mix, 15.6 % of its tokens
# Shares of Wikipedia's samples of at most 512 tokens that are no longer than this, for where there is no file.
_QUANTILES = ((0.0, 5), (0.1, 48), (0.2, 70), (0.3, 100), (0.4, 143), (0.5, 204), (0.6, 288), (0.7, 407), (0.77, 512))


def mix_of_lengths(path: Path | None) -> tuple[np.ndarray, str]:
    """A histogram of lengths, and where it is from: a file, or a line through quantiles."""
    if path is not None and path.is_file():
        return read_lengths(path), path.name
    shares, lengths = zip(*_QUANTILES, (1.0, 512), strict=True)
    drawn = np.interp((np.arange(20_000) + 0.5) / 20_000, shares, lengths)
    why = "no file of lengths was given" if path is None else f"{path} is not there"
    return np.bincount(drawn.round().astype(int)), f"a line through quantiles of Wikipedia's, since {why}"


def draw(workload: str, histogram: np.ndarray, tokens: int) -> list[int]:
    """Lengths of the sequences of one batch: full ones, or packs of the mix as training makes them."""
    if workload != "mix":
        return [int(workload)] * max(tokens // int(workload), 1)
    packs = pack_histogram(histogram, 512)
    wanted = max(tokens // 512, 1)
    chosen = random.Random(0).choices(packs, [pack.count for pack in packs], k=wanted)
    return [length for pack in chosen for length, times in pack.content for _ in range(times)]


def make_batch(lengths: list[int], workload: str, tokens: int, device: str):
    """The same sequences as a `StaticBatch` on the host and as transformers' padded tensors on the device."""
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
    longest = 512 if workload == "mix" else int(workload)
    tokens = max(tokens, batch.num_tokens)
    slots = len(lengths) - (batch.num_tokens - tokens) // longest
    shape = BatchShape(tokens, -(-slots // 8) * 8, -(-wanted // 64) * 64, longest)
    return fill_up(batch, shape, 0), shape, {name: value.to(device) for name, value in padded.items()}


def config_of(model: str, dry: bool) -> BertConfig:
    sizes = {"vocab_size": VOCABULARY}
    return BertConfig.from_name("2x128", **sizes) if dry else BertConfig.from_name(model, **sizes)


def built(make: Callable[[], torch.nn.Module], device: str) -> torch.nn.Module:
    """A model whose weights are drawn where they are wanted: on the host BERT-large's take seconds."""
    with torch.device(device):
        return make().to(device)


def peer(kind: str, config: BertConfig, system: str, device: str, dry: bool = False) -> torch.nn.Module:
    import transformers

    flash = system.endswith("flash-attention-2")
    if flash and not dry and importlib.util.find_spec("flash_attn") is None:
        raise ModuleNotFoundError("flash_attn is not installed")
    made = transformers.BertConfig(**{k: v for k, v in config.to_dict().items() if k != "architectures"})
    made._attn_implementation = "flash_attention_2" if flash and not dry else "sdpa"
    model = built(lambda: getattr(transformers, kind)(made), device)
    return (
        torch.compile(model, dynamic=False, backend="eager" if dry else "inductor") if "compiled" in system else model
    )


def median_seconds(step, device: str, dry: bool, seconds: float = 4.0, warm_up: int = 4, together: int = 1) -> float:
    """Median seconds of a step, after a warm-up; the device is waited for after every ``together`` steps."""
    for _ in range(1 if dry else warm_up):
        step()
    taken = []
    deadline = time.perf_counter() + seconds
    while len(taken) < (1 if dry else 5) or (not dry and time.perf_counter() < deadline and len(taken) < 30):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(together):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) / together)
    return statistics.median(taken)


def _ours(config: BertConfig, batch: StaticBatch, shape: BatchShape, system: str, device: str):
    """(a step, the loss of the last one) of fastbert as `fastbert pretrain` runs it."""
    network = built(lambda: BertForPreTraining(config), device).train()
    network.last_layer = "needed"
    groups = fastbert.optim.param_groups(network, 0.01)
    optimizer = fastbert.optim.AdamW(groups, lr=1e-4, correct_bias=True)  # as the peers' is
    precision = next((name for name in ("fp16", "fp8") if name in system), "bf16")
    engine = LocalEngine(network, optimizer, precision=precision)
    if system == "fastbert uncaptured":
        moved, losses = batch.to(device), []

        def step() -> None:
            losses[:] = [engine.backward(lambda: network(moved).loss)]
            engine.step(1e-4)

        return step, lambda: float(losses[0])
    static = graph.make(engine, shape, pairs=True, accumulate=1)

    def replay() -> None:
        static.take_sums()
        static.run([batch], 1e-4)

    return replay, lambda: float(static.take_sums()[0])


def _theirs(config: BertConfig, padded: dict, system: str, device: str, dry: bool):
    network = peer("BertForPreTraining", config, system, device, dry).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=device == "cuda")
    losses = []

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            losses[:] = [network(**padded).loss]
        losses[0].backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, lambda: float(losses[0].detach())


@dataclasses.dataclass
class TrainingStep:
    """A step of one system on one batch: `run` makes it, `loss` is that of the last one."""

    run: Callable[[], None]
    loss: Callable[[], float]
    executed: int
    lengths: list[int]
    labels: int
    config: BertConfig


def training_step(model: str, workload: str, system: str, histogram: np.ndarray, dry: bool) -> TrainingStep:
    """Forward, backward, clipping and AdamW in bf16 (fp16 or fp8 where it says so) on fp32 weights, dropout 0.1."""
    device, _ = where(dry)
    config = config_of(model, dry)
    tokens = 512 if dry else 32768
    chosen = draw(workload, histogram, tokens)
    batch, shape, padded = make_batch(chosen, workload, tokens, device)
    torch.manual_seed(0)
    if system.startswith("fastbert"):
        run, loss = _ours(config, batch, shape, system, device)
        executed = shape.tokens
    else:
        run, loss = _theirs(config, padded, system, device, dry)
        executed = padded["input_ids"].numel()
    return TrainingStep(run, loss, executed, chosen, batch.num_labels, config)


def training(model: str, workload: str, system: str, histogram: np.ndarray, dry: bool) -> dict:
    """The time of a `training_step`, and what of the device's peak that is."""
    device, dtype = where(dry)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = training_step(model, workload, system, histogram, dry)
    step.run()
    first = step.loss()
    # As training goes on: no loop waits for the device after every step.
    seconds = median_seconds(step.run, device, dry, together=1 if dry else 4)
    arithmetic = flops.batch_flops(step.config, step.lengths, step.labels)
    peak, source = flops.measured_peak(torch.device(device), dtype, 0.01)
    return {
        "sequences": len(step.lengths),
        "tokens": sum(step.lengths),
        "executed tokens": step.executed,
        "ms": 1e3 * seconds,
        "sequences/s": len(step.lengths) / seconds,
        "tokens/s": sum(step.lengths) / seconds,
        "executed tokens/s": step.executed / seconds,
        "TFLOP/s": arithmetic / seconds / 1e12,
        "MFU": arithmetic / seconds / peak,
        "peak": source,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        "first loss": first,
        "loss": step.loss(),
    }


def finetuning(system: str, dry: bool) -> dict:
    """Steps of fine-tuning BERT-base on batches of 32 pairs as long as MRPC's, each of another size: clipping and AdamW
    in bf16 on fp32 weights.

    With so few tokens the host takes longer than the device, unless a graph is replayed.
    """
    device, _ = where(dry)
    config = config_of("base", dry)
    rows, count = (4, 2) if dry else (32, 8)
    draws, generator = random.Random(0), torch.Generator().manual_seed(0)
    data = []
    for _ in range(count):
        lengths = [min(max(round(draws.gauss(53, 12)), 24), 103) for _ in range(rows)]  # MRPC's mean and range
        ids = [torch.randint(1000, VOCABULARY, (n,), generator=generator) for n in lengths]
        data.append((ids, torch.randint(0, 2, (rows,), generator=generator)))
    torch.manual_seed(0)
    if system.startswith("fastbert"):
        network = built(lambda: fastbert.BertForSequenceClassification(config), device).train()
        groups = fastbert.optim.param_groups(network, 0.01)
        optimizer = fastbert.optim.AdamW(groups, lr=2e-5, correct_bias=True)
        engine = LocalEngine(network, optimizer, precision="bf16")
        shaped = ShapedSteps(engine, rows, config.max_position_embeddings)
        batches = [(PackedBatch.from_sequences(ids), labels) for ids, labels in data]

        def one(batch: PackedBatch, labels: torch.Tensor) -> torch.Tensor:
            if system == "fastbert":
                return shaped.run(batch, {"labels": labels}, 2e-5, {})[0]
            batch, labels = batch.to(device), labels.to(device)
            loss = engine.backward(lambda: network(batch, labels=labels).loss)
            engine.step(2e-5)
            return loss
    else:
        network = peer("BertForSequenceClassification", config, system, device, dry).train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-5, fused=device == "cuda")
        pad = torch.nn.utils.rnn.pad_sequence
        batches = [(pad(ids, batch_first=True), labels) for ids, labels in data]

        def one(padded: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            inputs, mask, labels = (x.to(device) for x in (padded, (padded > 0).long(), labels))
            with torch.autocast(device, torch.bfloat16):
                loss = network(input_ids=inputs, attention_mask=mask, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

    losses: list[torch.Tensor] = []

    def step() -> None:
        losses[:] = [one(*batch) for batch in batches]

    step()
    first = float(sum(losses)) / count
    seconds = median_seconds(step, device, dry) / count
    tokens = sum(len(row) for ids, _ in data for row in ids) / count
    return {
        "ms": 1e3 * seconds,
        "sequences/s": rows / seconds,
        "tokens/s": tokens / seconds,
        "first loss": first,
        "loss": float(sum(losses)) / count,
    }


def inference(model: str, workload: str, system: str, histogram: np.ndarray, dry: bool) -> dict:
    """The encoder in bf16, and its largest difference from fp32."""
    device, _ = where(dry)
    config = config_of(model, dry)
    tokens = 512 if dry else 32768
    chosen = draw(workload, histogram, tokens)
    filled, _, padded = make_batch(chosen, workload, tokens, device)
    kept = ("input_ids", "token_type_ids", "position_ids")
    plain = {name: getattr(filled, name)[: sum(chosen)] for name in kept}
    bounds = filled.cu_seqlens[: len(chosen) + 1]
    batch = PackedBatch(**plain, cu_seqlens=bounds, max_seqlen=max(chosen)).to(device)
    padded = {name: padded[name] for name in ("input_ids", "attention_mask")}
    mask = padded["attention_mask"].bool()
    torch.manual_seed(0)
    exact = built(lambda: BertModel(config), device).eval()
    with torch.no_grad():
        expected = exact(batch).last_hidden_state
        if system == "fastbert":
            network = exact.bfloat16()
        else:
            network = peer("BertModel", config, system.replace("compiled", "sdpa"), device, dry).eval()
            network.load_state_dict(exact.state_dict())
            network = network.bfloat16()
            if system.endswith("compiled"):
                network = torch.compile(network, dynamic=False, backend="eager" if dry else "inductor")

        def step() -> torch.Tensor:
            return (network(batch) if system == "fastbert" else network(**padded)).last_hidden_state

        out = step()
        got = out if system == "fastbert" else out[mask]
        error = float((got.float() - expected).abs().max())
        seconds = median_seconds(step, device, dry, 2.0)
    return {
        "tokens": sum(chosen),
        "ms": 1e3 * seconds,
        "sequences/s": len(chosen) / seconds,
        "tokens/s": sum(chosen) / seconds,
        "TFLOP/s": flops.batch_flops(config, chosen, 0) / 3 / seconds / 1e12,
        "largest error": error,
    }
