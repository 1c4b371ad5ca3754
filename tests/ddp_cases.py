"""What each process of train/test_ddp.py runs."""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import pretraining_runs
import torch

from fastbert import BertConfig
from fastbert.data.config import SampleConfig
from fastbert.models import BertForPreTraining
from fastbert.optim import AdamW, param_groups
from fastbert.packing import PackedBatch
from fastbert.train import distributed, engines, flops
from fastbert.train.config import PretrainConfig
from fastbert.train.pretrain import pretrain


def model(dropout: float = 0.1) -> BertForPreTraining:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForPreTraining(config).double().train()


def micro_batches(count: int) -> list[PackedBatch]:
    """With 1, 4, 7, ... labels: a mean of the ranks' means would be another gradient."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for number in range(count):
        lengths, labels = [9, 5 + number], 1 + 3 * number
        tokens = sum(lengths)
        batches.append(
            PackedBatch(
                input_ids=torch.randint(50, (tokens,), generator=generator),
                token_type_ids=torch.zeros(tokens, dtype=torch.int64),
                position_ids=torch.cat([torch.arange(n) for n in lengths]),
                cu_seqlens=torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32),
                max_seqlen=max(lengths),
                mlm_positions=torch.randperm(tokens, generator=generator)[:labels].sort().values,
                mlm_labels=torch.randint(50, (labels,), generator=generator),
                nsp_labels=torch.randint(2, (2,), generator=generator),
            )
        )
    return batches


def train(
    world: distributed.World,
    batches: list[PackedBatch],
    steps: int = 2,
    poison: tuple | None = None,
    dtype: torch.dtype = torch.float64,
) -> dict:
    """Steps over all batches, this rank's share of them; what came of it.

    Args:
        poison: (step, rank) whose gradient gets a NaN.
        dtype: of the model; float64 is computed by the reference, float32 by the kernels.
    """
    bert = model().to(dtype)
    engine = engines.make(bert, AdamW(param_groups(bert, 0.01), lr=0.01), world, clip=0.5, seed=5)
    own = batches[world.rank :: world.size]
    labels = int(engine.reduce([sum(b.mlm_labels.numel() for b in own)])[0])
    result = {"norms": [], "skipped": [], "labels": labels}
    for step in range(steps):
        for number, batch in enumerate(own, 1):

            def loss(batch=batch, step=step):
                out = engine.forward(batch)
                total = out.mlm_loss * (batch.mlm_labels.numel() / labels) + out.nsp_loss / len(batches)
                return total * math.nan if (step, world.rank) == poison else total

            engine.backward(loss, last=number == len(own))
        if step == 0:
            result["gradients"] = {name: p.grad.clone() for name, p in bert.named_parameters()}
        result["norms"].append(engine.step(0.01))
        result["skipped"].append(engine.skipped)
        result[f"weights{step}"] = {name: p.detach().clone() for name, p in bert.named_parameters()}
    return result


class SmallBuckets(torch.nn.parallel.DistributedDataParallel):
    """Sums each tensor's gradient as soon as it is there, as those of a model larger than DDP's buckets are."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options, bucket_cap_mb=1e-6)


def eight_bits(world: distributed.World) -> dict[str, torch.Tensor]:
    """The largest values of this rank's tensors in a step, and those that its next scales are made of."""
    bert = model().float()
    engine = engines.make(bert, AdamW(param_groups(bert, 0.01), lr=0.01), world, precision="fp8")
    batch = micro_batches(world.size)[world.rank]
    engine.backward(lambda: engine.forward(batch).loss)
    scales = engine.policy.fp8.scales
    own = scales.maxima.view(torch.float32).amax(1)
    engine.step(0.01)
    return {"own": own, "history": scales.history.clone()}


def without_pairs(data: Path, out: Path, accumulate: int) -> PretrainConfig:
    """Of which the pooler and the next-sentence head get no gradient."""
    samples = SampleConfig(max_seqlen=32, nsp=False)
    return pretraining_runs.config(data, out, steps=3, accumulate=accumulate, eval_every=3, samples=samples)


def of_elmo(data: Path, out: Path, accumulate: int) -> PretrainConfig:
    samples = SampleConfig(max_seqlen=32, objective="causal", nsp=False)
    options = {"model": "elmo-1x16x2", "steps": 2, "accumulate": accumulate, "samples": samples, "warmup": 0.0}
    return pretraining_runs.config(data, out, **options)


def main(directory: Path) -> dict:
    flops.measured_peak = lambda *_: (1e9, "made up")
    with distributed.joined() as world:
        poison = (1, world.size - 1)
        result = {"plain": train(world, micro_batches(6)), "nan": train(world, micro_batches(6), 4, poison)}
        with mock.patch.object(torch.nn.parallel, "DistributedDataParallel", SmallBuckets):
            result["float32"] = train(world, micro_batches(6), steps=3, dtype=torch.float32)
        result["gathered"] = engines.make(model(), AdamW([torch.nn.Parameter(torch.ones(1))]), world).gather(
            [world.rank, 10.0 * world.rank]
        )
        result["fp8"] = eight_bits(world)
        options = {"steps": 6, "accumulate": 6 // world.size, "eval_every": 4, "save_every": 3}
        run = pretrain(pretraining_runs.config(directory / "data", directory / "run", **options), quiet=True)
        pretrain(without_pairs(directory / "data", directory / "unpaired", 6 // world.size), quiet=True)
        pretrain(of_elmo(directory / "data", directory / "elmo", 6 // world.size), quiet=True)
    return result | {"steps": run.steps, "tokens": run.tokens}
