"""Feature-based tagging: the frozen BERT below, the file of features, the BiLSTM, and the commands."""

import errno
import json
import os

import numpy as np
import pytest
import tiny_bert
import torch

import fastbert
from fastbert.cli import _features
from fastbert.cli._finetune_options import Finetune
from fastbert.cli._finetune_training import Inputs
from fastbert.cli.main import main
from fastbert.tasks import on_features, registry
from fastbert.tasks.config import FEATURE_RECIPE, FinetuneConfig
from fastbert.tasks.feature_files import Cached
from fastbert.tasks.features import LAYERS, token_features
from fastbert.tasks.finetune import finetune
from fastbert.tasks.predict import predict, run_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("features"), "BertModel", num_hidden_layers=4)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """768 units are too slow for a test; one test asks for them."""
    monkeypatch.setattr(on_features, "UNITS", 16)


def task_for(layers, rows):
    task = registry.get("ner")
    task.learn(rows)
    task.features = layers
    return task


@pytest.mark.parametrize("layers", LAYERS)
def test_features_in_the_file_are_extracts(directory, tmp_path, layers):
    rows, tokenizer = tiny_bert.tagged_rows(9, 1), fastbert.load_tokenizer(directory)
    task = task_for(layers, rows)
    model = task.model(directory)
    plain = task.encode(rows, tokenizer, 32)
    task.cache = Cached(model, tmp_path / "cache")
    cached = task.encode(rows, tokenizer, 32)
    (file,) = task.cache.files
    assert isinstance(file.rows(0), np.memmap)
    bert = fastbert.BertModel.from_pretrained(directory, add_pooling_layer=False)
    expected = token_features(bert, tokenizer, [" ".join(row.texts) for row in rows], layers)
    for number, features in enumerate(expected):
        np.testing.assert_allclose(file.rows(number), features.values, atol=1e-5)
    # The same tags with the file and without it.
    model.eval()
    for one, two in zip(run_model(task, model, plain).values, run_model(task, model, cached).values, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve room")
def test_the_disks_room_is_taken_before_the_model_runs(directory, tmp_path, monkeypatch):
    """A page of a mapped file for which a full disk has no room is a signal, SIGBUS, that ends the process."""
    rows = tiny_bert.tagged_rows(40, 1)
    task = task_for("last4-concat", rows)
    model, path = task.model(directory), tmp_path / "cache" / "features-0.npy"
    stored, taken = model.stored, []

    def watched(batch):
        taken.append(path.stat().st_blocks * 512)
        return stored(batch)

    monkeypatch.setattr(model, "stored", watched)
    task.cache = Cached(model, path.parent)
    task.encode(rows, fastbert.load_tokenizer(directory), 32)
    assert taken[0] >= path.stat().st_size > 40 * 4 * 4 * 32

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: .*features-1\.npy"):
        task.encode(rows, fastbert.load_tokenizer(directory), 32)


def test_the_network_is_two_bilstm_layers_of_768(directory, monkeypatch):
    monkeypatch.setattr(on_features, "UNITS", 768)
    model = task_for("last4-concat", tiny_bert.tagged_rows(3, 1)).model(directory)
    sizes = {name: tuple(p.shape) for name, p in model.named_parameters() if name.startswith("lstm.weight_ih")}
    assert sizes == {
        "lstm.weight_ih_l0": (4 * 768, 4 * 32),
        "lstm.weight_ih_l0_reverse": (4 * 768, 4 * 32),
        "lstm.weight_ih_l1": (4 * 768, 2 * 768),
        "lstm.weight_ih_l1_reverse": (4 * 768, 2 * 768),
    }


def test_logits_are_those_of_a_lstm_on_each_sentence_alone(directory):
    rows = tiny_bert.tagged_rows(6, 2)
    task = task_for("last", rows)
    model = task.model(directory).eval()
    examples = task.encode(rows, fastbert.load_tokenizer(directory), 32)
    for example, found in zip(examples, run_model(task, model, examples).values, strict=True):
        with torch.inference_mode():
            ids = torch.as_tensor(example.input_ids, dtype=torch.int64)[None]
            hidden, _ = model.lstm(model.bert(ids).last_hidden_state[0])
            np.testing.assert_allclose(found, model.classifier(hidden).numpy(), atol=1e-5)


def test_learns_above_a_frozen_model(directory, tmp_path):
    train, dev = tiny_bert.tagged_rows(128, 1), tiny_bert.tagged_rows(32, 2)
    # Of the layers of a model of chance only the first says which word it is.
    task, tokenizer = task_for("embeddings", train), fastbert.load_tokenizer(directory)
    torch.manual_seed(0)
    model = task.model(directory)
    before = {name: value.clone() for name, value in model.bert.state_dict().items()}
    task.cache = Cached(model, tmp_path / "cache")
    config = FinetuneConfig(epochs=4, batch_size=8, lr=3e-2, max_seqlen=32)
    result = finetune(task, model, tokenizer, train, dev, config, out=tmp_path / "run")
    assert result.best["f1"] > 0.95
    assert all(torch.equal(before[name], value.cpu()) for name, value in model.bert.state_dict().items())
    # What was written says what it is, and needs no file of features.
    again = registry.get("ner")
    again.restore(fastbert.BertConfig.from_pretrained(result.model_dir))
    assert again.features == "embeddings"
    loaded = again.model(result.model_dir)
    assert loaded.load_report.missing == ()
    assert predict(again, loaded, dev, again.encode(dev, tokenizer, 32)) == result.predictions


@pytest.mark.parametrize(("name", "lr"), [("ner", 5e-5), ("sst2", 2e-5)])
def test_the_whole_model_is_trained_by_the_recipe_of_its_task(name, lr, tmp_path, monkeypatch):
    """And not by that of features, which the rest of the table has."""
    found = []
    monkeypatch.setattr(_features.training, "train", lambda args, inputs, configs: found.extend([args, *configs]))
    args = Finetune(task=name, model=tmp_path, train=(tmp_path,), out=tmp_path, features="all", **FEATURE_RECIPE)
    _features._train_whole(args, Inputs(registry.get(name), tmp_path, [], [], {}), args.recipe())
    assert [(recipe.lr, recipe.epochs) for recipe in found] == [(lr, 3)] * 2
    assert (found[0].features, found[0].out) == (None, tmp_path / "fine-tuning")


def test_the_working_directory_takes_the_run(directory, tmp_path, monkeypatch):
    """The file of features is not in it, but beside it."""
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "f.txt").write_text("Paris B-LOC\nwas O\n\nfilm O\n")
    monkeypatch.chdir(run)
    given = ["--model", str(directory), "--train", "../f.txt", "--dev", "../f.txt", "--out", ".", "--features", "last"]
    assert main(["finetune", "ner", *given, "--max-seqlen", "16", "--epochs", "1"]) == 0
    assert (run / "model" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.txt", "run"]


def test_all_rows_of_the_table_in_one_command(directory, tmp_path, capsys):
    data, out = tmp_path / "f.txt", tmp_path / "all"
    rows = tiny_bert.tagged_rows(16, 1)
    sentences = ("\n".join(f"{w} {t}" for w, t in zip(r.texts, r.label, strict=True)) for r in rows)
    data.write_text("\n\n".join(sentences) + "\n")
    given = ["--model", str(directory), "--train", str(data), "--dev", str(data), "--out", str(out)]
    options = ["--max-seqlen", "16", "--epochs", "1", "--feature-units", "6"]
    assert main(["finetune", "ner", *given, *options]) == 2
    sentence = "--feature-units is a number between 1 and 65536 and belongs to --features, got"
    assert f"{sentence} 6" in capsys.readouterr().err
    assert main(["finetune", "ner", *given, "--features", "last", "--feature-units", "1000000000000"]) == 2
    assert f"{sentence} 1000000000000" in capsys.readouterr().err
    assert main(["finetune", "ner", *given, *options, "--features", "all"]) == 0
    table = [line.split("\t") for line in (out / "features.tsv").read_text().splitlines()]
    assert [line[0] for line in table] == ["features", *LAYERS, "fine-tuning"]
    metrics = json.loads((out / "last4-sum" / "dev_metrics.json").read_text())
    assert table[4][1] == f"{metrics['f1']:.4f}"
    assert json.loads((out / "last4-sum" / "model" / "config.json").read_text())["feature_units"] == 6
    assert not list(tmp_path.rglob("*.npy"))
    capsys.readouterr()
    assert main(["evaluate", "ner", "--model", str(out / "last4-sum"), "--data", str(data)]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] == pytest.approx(metrics["f1"])
    assert main(["finetune", "swag", *given, "--features", "last"]) == 2
    assert "--features belongs to ner and to tasks of texts, got the task swag" in capsys.readouterr().err
