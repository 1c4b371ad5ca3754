"""Fixtures of the tasks."""

from __future__ import annotations

import finetune_runs as runs
import pytest
import tiny_bert
import torch
import transformers
from tiny_bert import VOCAB


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny BERT to fine-tune."""
    return tiny_bert.save(tmp_path_factory.mktemp("pretrained"), "BertModel")


@pytest.fixture(scope="module")
def word_directory(tmp_path_factory):
    """A GPT-2 of transformers over a BERT's vocabulary of words, as one that was pre-trained on its shards."""
    return _save_gpt(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def still_gpt(tmp_path_factory):
    """The same one without dropout."""
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return _save_gpt(tmp_path_factory.mktemp("still"), **rates)


def _save_gpt(directory, **options):
    torch.manual_seed(1)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "initializer_range": 0.1}
    options |= {"bos_token_id": VOCAB.index("[CLS]"), "eos_token_id": VOCAB.index("[SEP]")}
    config = transformers.GPT2Config(vocab_size=len(VOCAB), **sizes, **options)
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def whole(directory, tmp_path_factory):
    """The run that was left alone, and its result."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, runs.run(directory, out)[0]
