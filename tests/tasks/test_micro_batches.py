"""A step in parts, and without kept activations: the same step with less memory."""

from __future__ import annotations

import dataclasses

import finetune_runs as runs
import pytest
import torch
from tiny_bert import rows_of

import fastbert
from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.finetune import finetune

_TEXTS = {"squad2": runs.squad_of, "swag": runs.swag_of, "ner": runs.conll_of, "stsb": runs.stsb_of}


def _longer(row, words: int):
    return dataclasses.replace(row, texts=(row.texts[0] + " very" * words, *row.texts[1:]))


def trained(directory, tmp_path, name="sst2", dropout=0.0, **changes):
    """The history of a training on 21 rows in batches of 8, of which the last has 5; and the model."""
    task = registry.get(name)
    rows = [rows_of(21, 1), rows_of(16, 2)]
    if name in _TEXTS:
        for number, count in enumerate((21, 16)):
            path = tmp_path / f"{number}.txt"
            path.write_text(_TEXTS[name](count, number))
            rows[number] = list(task.read(path))
    if name in ("stsb", "swag"):  # which have texts of one length
        rows = [[_longer(row, at % 5) for at, row in enumerate(part)] for part in rows]
    task.learn(rows[0])
    torch.manual_seed(0)
    model = task.model(directory)
    for module in model.modules():
        if hasattr(module, "p"):  # a dropout
            module.p = dropout
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = dropout
    config = runs.config(epochs=2, **changes)
    result = finetune(task, model, fastbert.load_tokenizer(directory), *rows, config)
    return [{key: row[key] for key in ("train_loss", "dev_loss")} for row in result.history], model


@pytest.mark.parametrize("name", ["sst2", *_TEXTS])
def test_a_batch_in_parts_is_the_same_step(directory, tmp_path, name):
    """Also where the parts have different numbers of labels, as of words with tags."""
    assert_same_in_parts(directory, tmp_path, name)


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag"])
def test_it_is_with_a_gpts_second_loss(still_gpt, tmp_path, name):
    """Which is a mean over the words of a part, of which another has more."""
    assert_same_in_parts(still_gpt, tmp_path, name, auxiliary_lm=0.5)


def assert_same_in_parts(directory, tmp_path, name, **options):
    expected, whole = trained(directory, tmp_path, name, **options)
    got, model = trained(directory, tmp_path, name, accumulate=3, **options)
    for row, other in zip(got, expected, strict=True):
        assert row == {key: pytest.approx(value, rel=1e-4) for key, value in other.items()}
    before = whole.state_dict()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=1e-3, atol=2e-5, msg=lambda told, key=key: f"{key}: {told}")


def test_the_parts_of_a_step(directory, tmp_path, monkeypatch):
    """Rows in each forward pass of training: 8, 8 and 5 rows in threes, an epoch of 3 steps."""
    seen, plain = [], fastbert.BertForSequenceClassification.forward

    def forward(self, batch, *args, **kwargs):
        if self.training:
            seen.append(batch.num_sequences)
        return plain(self, batch, *args, **kwargs)

    monkeypatch.setattr(fastbert.BertForSequenceClassification, "forward", forward)
    trained(directory, tmp_path, accumulate=3)
    assert seen == [3, 3, 2, 3, 3, 2, 2, 2, 1] * 2
    seen.clear()
    trained(directory, tmp_path, accumulate=100)  # no part is empty
    assert seen == [1] * 42


def test_activations_computed_again_give_the_same_bits(directory, tmp_path):
    """With dropout too, whose bits are drawn again."""
    expected, whole = trained(directory, tmp_path, dropout=0.3)
    got, model = trained(directory, tmp_path, dropout=0.3, activation_checkpointing=True)
    assert got == expected
    before = whole.state_dict()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_activations_are_computed_again(directory, tmp_path, monkeypatch):
    calls, plain = [], fastbert.ops.checkpoint

    def checkpoint(*args, **kwargs):
        calls.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(fastbert.ops, "checkpoint", checkpoint)
    trained(directory, tmp_path)
    assert not calls
    _, model = trained(directory, tmp_path, activation_checkpointing=True)
    assert len(calls) == 6 * model.config.num_hidden_layers


def test_a_resumed_run_may_divide_a_step_otherwise(directory, tmp_path, caplog):
    stopped, _ = runs.run(directory, tmp_path / "run", callbacks=runs.stop_after(3))
    result, _ = runs.run(directory, tmp_path / "run", resume="auto", accumulate=2, activation_checkpointing=True)
    assert stopped.interrupted
    assert result.interrupted is None
    assert "its bits will differ from those of an uninterrupted run: micro-batches 2 (1 before)" in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"accumulate": 2}, "a step of several micro-batches is not captured"),
        ({"activation_checkpointing": True}, "activation_checkpointing reads the generator of the host"),
    ],
)
def test_such_steps_are_no_graphs(directory, tmp_path, options, reason):
    with pytest.raises(InputError, match=f"cuda_graph: on is not possible: {reason}"):
        trained(directory, tmp_path, cuda_graph="on", **options)


def test_no_part_is_refused():
    with pytest.raises(InputError, match="accumulate must be at least 1, got 0"):
        runs.config(accumulate=0)
