"""Next-word pre-training: the data's labels, the model that goes with them, and one loop for both objectives."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from pretraining_runs import assert_same_run
from static_batches import real

from fastbert import BertConfig, BertForPreTraining, GPTForPreTraining
from fastbert.data.budget import BudgetData
from fastbert.data.config import SampleConfig
from fastbert.data.pretraining import PretrainingData, next_tokens, realised_shares
from fastbert.data.shards import ShardSet
from fastbert.errors import InputError
from fastbert.models import registry
from fastbert.train import plan
from fastbert.train.metrics import read_metrics
from fastbert.train.model_and_data import build_model
from fastbert.train.pretrain import pretrain

CAUSAL = SampleConfig(max_seqlen=32, objective="causal", nsp=False)


def test_next_tokens_worked_by_hand():
    ids = np.array([7, 8, 9, 3, 5, 6])  # three tokens, none, one, two
    positions, labels = next_tokens(ids, np.array([0, 3, 3, 4, 6]))
    assert positions.tolist() == [0, 1, 4]
    assert labels.tolist() == [8, 9, 6]
    assert [len(x) for x in next_tokens(np.array([], dtype=np.int64), np.array([0]))] == [0, 0]


@pytest.mark.parametrize("nsp", [False, True])
def test_a_causal_batch_has_the_text_itself_and_every_next_word(prepared, nsp):
    masked, causal = (
        PretrainingData(ShardSet.open(prepared), SampleConfig(max_seqlen=32, nsp=nsp, objective=objective))
        for objective in ("mlm", "causal")
    )
    samples = np.arange(5)
    a, b = masked.collate(0, samples), causal.collate(0, samples)
    restored = a.input_ids.clone()
    restored[a.mlm_positions] = a.mlm_labels
    assert torch.equal(b.input_ids, restored)
    assert torch.equal(b.cu_seqlens, a.cu_seqlens)
    assert (a.nsp_labels is None) == (b.nsp_labels is None) == (not nsp)
    assert len(b.mlm_positions) == b.num_tokens - 5
    assert not set(b.mlm_positions.tolist()) & set((b.cu_seqlens[1:] - 1).tolist())
    assert torch.equal(b.mlm_labels, b.input_ids[b.mlm_positions + 1])


def test_batches_of_one_shape_hold_all_next_words(prepared):
    data = PretrainingData(ShardSet.open(prepared), CAUSAL)
    budget = BudgetData(data, 96)
    seen = 0
    for sample_ids in budget.batches(0):
        batch = budget.collate(0, sample_ids)
        assert batch.mlm_positions.unique().numel() == batch.mlm_labels.numel() == budget.shape.predictions
        assert torch.equal(real(batch).mlm_labels, data.collate(0, sample_ids).mlm_labels)
        seen += real(batch).mlm_labels.numel()
    assert seen == int((data.lengths(0) - 1).sum())


def test_a_left_to_right_bert_learns_and_is_one(recipe, tmp_path):
    """The words of the corpus are drawn at random, so the entropy of their distribution is what can be reached."""
    config = recipe(model="1x32x2", samples=CAUSAL, steps=15, lr=1e-2, position_embedding_type="sinusoidal")
    pretrain(config, quiet=True)
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (saved["is_decoder"], saved["position_embedding_type"]) == (True, "sinusoidal")
    losses = [row["mlm_loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "lr" in row]
    assert losses[-1] < losses[0] - 0.5
    page = (tmp_path / "run" / "report.html").read_text()
    assert "next-word cross-entropy" in page
    assert "masked-LM" not in page
    model = BertForPreTraining.from_pretrained(tmp_path / "run" / "model")
    ids = torch.randint(5, 30, (1, 12))
    other = ids.clone()
    other[0, -1] += 1
    with torch.no_grad():
        a, b = (model.bert(x).last_hidden_state[0] for x in (ids, other))
    torch.testing.assert_close(a[:-1], b[:-1])


@pytest.mark.parametrize("kind", ["gpt", "gpt2"])
def test_a_gpt_learns_in_the_same_loop_and_resumes_to_the_bit(recipe, tmp_path, kind):
    config = recipe(
        model=f"{kind}-1x32x2", samples=CAUSAL, dropout=0.1, steps=12, lr=1e-2, save_every=6, eval_every=100, keep=5
    )
    result = pretrain(config, quiet=True)
    losses = [row["mlm_loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "lr" in row]
    assert losses[-1] < losses[0] - 0.3
    model = GPTForPreTraining.from_pretrained(result.model_dir)
    special = ShardSet.open(config.data).manifest.special_ids
    assert (model.config.bos_token_id, model.config.eos_token_id) == (special.cls, special.sep)
    assert model.config.attn_pdrop == model.config.embd_pdrop == model.config.resid_pdrop == 0.1
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step_12")
    again = dataclasses.replace(config, out=str(tmp_path / "again"), resume="auto")
    pretrain(again, quiet=True)
    assert_same_run(tmp_path / "again", tmp_path / "run", 12)
    if kind == "gpt":
        return
    # and on from its directory, in bfloat16 and batches of one shape
    more = recipe(model=str(result.model_dir), out=str(tmp_path / "more"), samples=CAUSAL, steps=1, precision="bf16")
    assert pretrain(dataclasses.replace(more, cuda_graph="on"), quiet=True).steps == 1


def test_what_a_gpt_cannot_do_is_said_before_anything_is_written(recipe, tmp_path):
    for changes, said in (
        ({"samples": SampleConfig(max_seqlen=32, nsp=False)}, "expected objective causal"),
        ({"samples": dataclasses.replace(CAUSAL, nsp=True)}, "set nsp false"),
        ({"samples": CAUSAL, "init": "small"}, "init small is only for a BERT"),
        ({"samples": CAUSAL, "position_embedding_type": "sinusoidal"}, "sinusoidal is only for a BERT"),
        ({"samples": CAUSAL, "model": "gpt-huge"}, "gpt-huge"),
    ):
        with pytest.raises(InputError, match=said):
            pretrain(recipe(**{"model": "gpt2-1x32x2", **changes}), quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("objective", "decoder", "said"), [("causal", False, "sees both sides"), ("mlm", True, "only the tokens before")]
)
def test_data_and_model_must_have_one_objective(recipe, tiny_model, tmp_path, objective, decoder, said):
    model = BertForPreTraining.from_pretrained(tiny_model, is_decoder=decoder)
    config = recipe(samples=SampleConfig(max_seqlen=32, objective=objective, nsp=False))
    with pytest.raises(InputError, match=said):
        pretrain(config, model=model, data=PretrainingData(ShardSet.open(config.data), config.samples), quiet=True)
    assert not (tmp_path / "run").exists()


def test_sentence_pairs_need_two_token_types(recipe, tiny_model, tmp_path):
    model = BertForPreTraining(BertConfig.from_pretrained(tiny_model, type_vocab_size=1))
    config = recipe(samples=SampleConfig(max_seqlen=32))
    data = PretrainingData(ShardSet.open(config.data), config.samples)
    with pytest.raises(InputError, match="needs two token types, got one with type_vocab_size 1: set nsp false"):
        pretrain(config, model=model, data=data, quiet=True)
    assert not (tmp_path / "run").exists()


def test_options_that_mask_do_not_go_with_it(prepared):
    for wrong in ({"whole_word": True}, {"max_predictions": 3}):
        with pytest.raises(InputError, match="masks none"):
            SampleConfig(objective="causal", **wrong)
    with pytest.raises(InputError, match="objective must be"):
        SampleConfig(objective="clm")
    with pytest.raises(InputError, match="objective mlm"):
        realised_shares(PretrainingData(ShardSet.open(prepared), CAUSAL))


def test_a_plan_counts_next_words(recipe, prepared):
    for model in ("1x32x2", "gpt2-1x32x2"):
        config = recipe(model=model, samples=CAUSAL, token_budget=128)
        made = plan.make_plan(config, data=PretrainingData(ShardSet.open(prepared), CAUSAL))
        samples = made.phases[0].samples
        assert made.model.is_decoder
        assert samples.labels == pytest.approx(samples.seqlen - 1)
        assert made.parameters == build_model(config, PretrainingData(ShardSet.open(prepared), CAUSAL)).num_parameters()


def test_the_registry_knows_names_and_directories(tiny_model, tmp_path):
    assert registry.of_model("base").model_type == registry.of_model("4x96x3").model_type == "bert"
    assert registry.of_model("gpt-small").model_type == "openai-gpt"
    assert registry.of_model("GPT2-small").model_type == "gpt2"
    assert registry.of_model(tiny_model).pretraining_class is BertForPreTraining
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(InputError, match=r"config\.json: model_type must be one of bert"):
        registry.of_model(tmp_path)
