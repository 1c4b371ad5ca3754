"""RELIABILITY 26: 1,000 steps of a mini model, three seeds, learn as in transformers.

tests/train/test_convergence.py holds single losses together for 200 steps without dropout; here dropout is on, each
side draws its own, and what is compared is where training arrives.
"""

from __future__ import annotations

import statistics
from itertools import islice, pairwise

import pytest
import torch

from fastbert import BertConfig, optim
from fastbert.data import builtin_corpus
from fastbert.data.config import SampleConfig
from fastbert.data.loader import make_loader
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.data.tokenizer import train_wordpiece
from fastbert.models import BertForPreTraining
from fastbert.train.engine import LocalEngine

STEPS, LR, LAST = 1000, 2e-3, 200


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PretrainingData:
    """Real text, on which the loss falls smoothly.

    On sentences of a few rules it stays on a plateau until the rules are found, sooner or later by a hundred steps with
    each draw of the dropout; with that the final losses of one side alone lie 15 % apart.
    """
    documents = list(islice(builtin_corpus.documents(), 300))
    directory = tmp_path_factory.mktemp("convergence") / "data"
    prepare(documents, train_wordpiece((s for _, text in documents for s in text), 1000), directory)
    return PretrainingData(ShardSet.open(directory), SampleConfig(max_seqlen=48, nsp=False))


def padded(batch) -> dict[str, torch.Tensor]:
    """The rectangle that transformers takes."""
    bounds, size = batch.cu_seqlens.tolist(), (batch.num_sequences, batch.max_seqlen)
    ids, mask, labels = torch.zeros(size, dtype=torch.int64), torch.zeros(size), torch.full(size, -100)
    flat = torch.full((batch.num_tokens,), -100)
    flat[batch.mlm_positions] = batch.mlm_labels
    for row, (start, end) in enumerate(pairwise(bounds)):
        ids[row, : end - start], mask[row, : end - start] = batch.input_ids[start:end], 1
        labels[row, : end - start] = flat[start:end]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def train(seed: int, data: PretrainingData, ours: bool) -> float:
    """The mean masked-LM loss of the last 200 of 1,000 steps."""
    import transformers

    config = BertConfig(
        vocab_size=data.shards.manifest.vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
        max_position_embeddings=48,
        initializer_range=0.05,
    )
    torch.manual_seed(seed)
    start = BertForPreTraining(config).state_dict()
    if ours:
        model = BertForPreTraining(config)
        model.load_state_dict(start)
    else:
        fields = {name: value for name, value in config.to_dict().items() if name not in ("architectures", "dtype")}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**fields))
        model.load_state_dict(start, strict=False)
        model.tie_weights()
    model.train()
    groups = optim.param_groups(model, 0.01)
    if ours:
        optimizer = optim.AdamW(groups, lr=LR, eps=1e-6, correct_bias=True)
    else:
        optimizer = torch.optim.AdamW(groups, lr=LR, eps=1e-6)
    engine = LocalEngine(model, optimizer, seed=seed)
    losses = []
    loader = make_loader(data, 512, start=(100 * seed, 0))
    for step, (_, _, batch) in enumerate(islice(loader, STEPS)):
        loss = (lambda b=batch: model(b).mlm_loss) if ours else (lambda b=batch: model(**padded(b)).loss)
        losses.append(engine.backward(loss).item())
        engine.step(LR * optim.schedules.linear(step / STEPS, 0.1))
    assert statistics.fmean(losses[-LAST:]) < losses[0] - 1.2, "the model learns"
    return statistics.fmean(losses[-LAST:])


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_1000_steps_come_to_the_same_loss(data):
    ours = [train(seed, data, True) for seed in (1, 2, 3)]
    theirs = [train(seed, data, False) for seed in (1, 2, 3)]
    gap = abs(statistics.fmean(ours) / statistics.fmean(theirs) - 1)
    print(f"ours {[round(x, 4) for x in ours]}, transformers {[round(x, 4) for x in theirs]}, gap {100 * gap:.3f} %")
    assert gap <= 0.005
    assert abs(statistics.fmean(ours) - statistics.fmean(theirs)) <= max(theirs) - min(theirs)
