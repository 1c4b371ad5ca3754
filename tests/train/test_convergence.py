"""Training is real training: the same model, data, masks and optimiser in transformers give the same losses."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from fastbert import BertConfig, ops, optim
from fastbert.data.config import SampleConfig
from fastbert.data.loader import make_loader
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.data.tokenizer import train_wordpiece
from fastbert.models import BertForPreTraining
from fastbert.train.engine import LocalEngine

STEPS, LR, CLIP = 200, 2e-3, 1.0


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PretrainingData:
    """Sentences of a small grammar, so that there is something to learn."""
    draw = random.Random(0)
    nouns, verbs = ["cat", "dog", "bird", "fish"], ["sees", "eats", "likes", "finds"]
    ends = ["today", "here", "now", "again"]
    documents = [
        (
            f"document {d}",
            [
                f"the {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)} {ends[d % 4]}"
                for _ in range(20)
            ],
        )
        for d in range(40)
    ]
    directory = tmp_path_factory.mktemp("convergence") / "data"
    tokenizer = train_wordpiece((s for _, sentences in documents for s in sentences), 120)
    prepare(documents, tokenizer, directory)
    return PretrainingData(ShardSet.open(directory), SampleConfig(max_seqlen=32))


def _padded(batch):
    """The rectangle that transformers takes, from a packed batch."""
    bounds, size = batch.cu_seqlens.tolist(), (batch.num_sequences, batch.max_seqlen)
    ids, types, mask = (torch.zeros(size, dtype=torch.int64) for _ in range(3))
    labels = torch.full(size, -100)
    flat = torch.full((batch.num_tokens,), -100)
    flat[batch.mlm_positions] = batch.mlm_labels
    for b, (start, end) in enumerate(pairwise(bounds)):
        ids[b, : end - start], types[b, : end - start] = batch.input_ids[start:end], batch.token_type_ids[start:end]
        mask[b, : end - start], labels[b, : end - start] = 1, flat[start:end]
    return {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": mask,
        "labels": labels,
        "next_sentence_label": batch.nsp_labels,
    }


def _schedule(step: int) -> float:
    return optim.schedules.linear(step / STEPS, 0.1)


def _train_transformers(weights, config, batches, *, bf16: bool = False) -> list[float]:
    import transformers

    fields = {name: value for name, value in config.to_dict().items() if name not in ("architectures", "dtype")}
    model = transformers.BertForPreTraining(transformers.BertConfig(**fields)).train()
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    decay = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    still = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": still, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, eps=1e-6)
    losses = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = LR * _schedule(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**_padded(batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _train_ours(weights, config, batches, precision: str = "fp32") -> list[float]:
    model = BertForPreTraining(config).train()
    model.load_state_dict(weights)
    optimizer = optim.AdamW(optim.param_groups(model, 0.01), lr=LR, eps=1e-6, correct_bias=True)
    engine = LocalEngine(model, optimizer, clip=CLIP, precision=precision)
    losses = []
    for step, batch in enumerate(batches):
        losses.append(engine.backward(lambda batch=batch: engine.forward(batch).loss).item())
        engine.step(LR * _schedule(step))
    return losses


@pytest.fixture(scope="module")
def start(data):
    """Weights, configuration and batches, which both sides begin from."""
    config = BertConfig(
        vocab_size=data.shards.manifest.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )
    torch.manual_seed(1)
    weights = BertForPreTraining(config).state_dict()
    loader = make_loader(data, 512)
    return weights, config, [next(loader)[2] for _ in range(STEPS)]


@pytest.fixture(scope="module")
def expected(start) -> list[float]:
    return _train_transformers(*start)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_losses_of_200_steps_equal_those_of_transformers(start, expected, backend):
    with ops.backend(backend):
        losses = _train_ours(*start)
    difference = [abs(ours - theirs) / theirs for ours, theirs in zip(losses, expected, strict=True)]
    assert max(difference) < 1e-4, f"step {difference.index(max(difference))}: {max(difference):.1e} relative"
    # The run has learned something, so equal losses mean equal learning.
    assert expected[-1] < 0.6 * expected[0]


def test_bfloat16_strays_no_further_than_torchs_own(start, expected):
    """200 steps of each beside float32: how far the losses are off, root mean square; twice is the rule of rounding."""

    def off(losses: list[float]) -> float:
        relative = torch.tensor(losses, dtype=torch.float64) / torch.tensor(expected, dtype=torch.float64) - 1
        return float(relative.pow(2).mean().sqrt())

    theirs = off(_train_transformers(*start, bf16=True))
    ours = off(_train_ours(*start, precision="bf16"))
    assert ours > 1e-5, "nothing was rounded to bfloat16"
    assert ours < 2 * theirs < 0.01, f"off by {ours:.1e}, torch by {theirs:.1e}"
