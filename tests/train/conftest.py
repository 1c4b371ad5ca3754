"""Small prepared data and a tiny model for the tests of training."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import zero_cases

from fastbert import BertConfig
from fastbert.data.config import SampleConfig
from fastbert.data.prepare import prepare
from fastbert.data.shards import ShardSet
from fastbert.data.tokenizer import train_wordpiece
from fastbert.models import BertForPreTraining
from fastbert.train.config import PretrainConfig

WORDS = "the a cat dog bird fish sees eats likes finds today here now again one two red blue"


@pytest.fixture
def fp16_anywhere(monkeypatch):
    """DeepSpeed asks oneDNN, which has fast products of it on some processors; torch computes it on every one."""
    zero_cases.load()
    import deepspeed

    monkeypatch.setattr(type(deepspeed.get_accelerator()), "is_fp16_supported", lambda _self: True)
    return monkeypatch


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """A data directory: 30 training documents, which make an epoch of 10 to 30 micro-batches of 160 tokens, and 4."""
    draw = random.Random(0)
    words = WORDS.split()
    documents = [
        (f"document {d}", [" ".join(draw.choices(words, k=draw.randint(4, 9))) for _ in range(draw.randint(4, 14))])
        for d in range(34)
    ]
    tokenizer = train_wordpiece((s for _, sentences in documents for s in sentences), 100)
    out = tmp_path_factory.mktemp("prepared") / "data"
    prepare(documents, tokenizer, out, heldout=[f"document {d}" for d in range(30, 34)], num_workers=1)
    return out


@pytest.fixture(scope="session")
def tiny_model(prepared, tmp_path_factory) -> Path:
    """A model directory: 2 layers x 32, for sequences of at most 48 tokens."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=ShardSet.open(prepared).manifest.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=48,
    )
    out = tmp_path_factory.mktemp("models") / "tiny"
    BertForPreTraining(config).save_pretrained(out)
    return out


@pytest.fixture
def recipe(prepared, tiny_model, tmp_path):
    """A function from changes to a `PretrainConfig` of a short run in tmp_path/run."""

    def make(**changes) -> PretrainConfig:
        base = {
            "data": str(prepared),
            "out": str(tmp_path / "run"),
            "model": str(tiny_model),
            "token_budget": 160,
            "steps": 4,
            "lr": 2e-3,
            "warmup": 0.1,
            "dropout": 0.0,
            "eval_every": 1000,
            "eval_tokens": 400,
            "save_every": 1000,
            "log_every": 1,
            "samples": SampleConfig(max_seqlen=32),
        }
        return PretrainConfig(**{**base, **changes})

    return make
