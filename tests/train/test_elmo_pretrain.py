"""ELMo through the loop that trains every model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pretraining_runs as runs
import pytest
import torch

from fastbert.data.characters import character_table
from fastbert.data.config import SampleConfig
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.elmo_config import ElmoConfig
from fastbert.errors import InputError
from fastbert.models.elmo import ElmoForPreTraining
from fastbert.train import flops
from fastbert.train.evaluation import evaluate
from fastbert.train.plan import make_plan
from fastbert.train.pretrain import pretrain

SAMPLES = SampleConfig(max_seqlen=32, objective="causal", nsp=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("elmo") / "data")


def config(data, out, **changes):
    return runs.config(
        data, out, **{"model": "elmo-2x32x2", "samples": SAMPLES, "steps": 12, "eval_every": 6, **changes}
    )


def test_a_run_ends_with_a_model_that_evaluates_as_it_says(data, tmp_path):
    result = pretrain(config(data, tmp_path / "run", lr=1e-2, accumulate=1), quiet=True)
    train = [row for row in result.history if row["kind"] == "train"]
    assert train[-1]["mlm_loss"] < train[0]["mlm_loss"] - 0.5
    assert train[-1]["mfu"] > 0
    model = ElmoForPreTraining.from_pretrained(result.model_dir)
    assert model.load_report.missing == model.load_report.unexpected == ()
    shards = ShardSet.open(data, "heldout")
    assert torch.equal(model.elmo.embeddings.characters, torch.from_numpy(character_table(shards.tokenizer())))
    found = evaluate(model, PretrainingData(shards, SAMPLES))
    for name in ("mlm_loss", "mlm_acc", "unigram_entropy", "targets"):
        assert found[name] == pytest.approx(result.heldout[name], rel=1e-6)
    # Both directions' loss, whatever the batch is: worked out from the sequences one by one.
    held = PretrainingData(shards, SAMPLES)
    sums = np.zeros(2)
    with torch.inference_mode():
        for sample in range(len(held.lengths(0))):
            batch = held.collate(0, np.array([sample]))
            sums += float(model(batch).loss) * batch.num_labels, batch.num_labels
    assert found["mlm_loss"] == pytest.approx(sums[0] / sums[1], rel=1e-5)


def test_a_run_in_two_parts_is_the_run_in_one(data, tmp_path):
    pretrain(config(data, tmp_path / "whole"), quiet=True)
    parts = config(data, tmp_path / "parts")
    assert pretrain(parts, callbacks=[runs.stop_after(5)], quiet=True).steps == 5
    pretrain(dataclasses.replace(parts, resume="auto"), quiet=True)
    runs.assert_same_run(tmp_path / "parts", tmp_path / "whole", 12)


def test_a_run_goes_on_from_a_model(data, tmp_path):
    first = pretrain(config(data, tmp_path / "one", steps=4, eval_every=4), quiet=True)
    second = pretrain(config(data, tmp_path / "two", model=str(first.model_dir), steps=1, lr=1e-9), quiet=True)
    assert second.heldout["mlm_loss"] == pytest.approx(first.heldout["mlm_loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": SampleConfig(max_seqlen=32, nsp=False)}, "objective mlm"),
        (
            {"samples": SampleConfig(max_seqlen=32, objective="causal")},
            "of type elmo predicts nothing: set nsp false",
        ),
        ({"cuda_graph": "on"}, "the layers of a ElmoForPreTraining read the lengths of sequences on the host"),
        ({"init": "small"}, "init small is only for a BERT, got .*: expected init bert"),
        ({"model": "elmo-4x100"}, "'elmo-4x100'"),
    ],
)
def test_what_an_elmo_cannot_have(data, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        pretrain(config(data, tmp_path / "run", **changes), quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_checkpointed_and_low_precision_runs(data, tmp_path, precision):
    changes = {"activation_checkpointing": True, "precision": precision, "steps": 3, "eval_every": 3}
    result = pretrain(config(data, tmp_path / "run", **changes), quiet=True)
    assert result.heldout["mlm_loss"] < result.history[0]["mlm_loss"]


def test_plan_and_arithmetic(data):
    plan = make_plan(config(data, "unused"), data=PretrainingData(ShardSet.open(data), SAMPLES))
    assert plan.memory.total > 0
    model = ElmoForPreTraining(plan.model)
    assert plan.parameters == model.num_parameters()
    # Two layers and directions of 2 x 16 -> 4 x 40 gates and 40 -> 16, two softmax layers; twice as much backward.
    settings = ElmoConfig.from_name("elmo-2x32x2", vocab_size=100)
    assert (settings.lstm_size, settings.projection_size) == (40, 16)
    forward = 2 * 4 * (2 * 16 * 4 * 40 + 40 * 16) * 10 + 2 * 2 * 16 * 100 * 8
    assert flops.batch_flops(settings, [6, 4], 8) == 3 * forward
