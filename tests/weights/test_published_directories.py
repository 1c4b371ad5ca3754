"""Directories as hubs and their clients leave them: what cannot be read as it is, is told with what to do."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import tiny_bert
import torch

import fastbert
from fastbert.cli.main import main
from fastbert.errors import CheckpointError, InputError
from fastbert.weights.loading import load_into

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 9081518\n"
QUERY = "bert.encoder.layer.1.attention.self.query"


@pytest.fixture
def directory(tmp_path):
    return tiny_bert.save(tmp_path / "model", "BertModel")


FILES = ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.mark.parametrize("name", [*FILES, "added_tokens.json"])
def test_a_pointer_of_git_lfs_is_named_in_the_place_of_any_file(directory, name):
    (directory / name).write_text(POINTER)
    load = fastbert.BertModel.from_pretrained if name == "config.json" else fastbert.load_tokenizer
    with pytest.raises(InputError, match=f"{name}: expected text in UTF-8, got a pointer of Git LFS to the file: run"):
        load(directory)


@pytest.fixture
def cache(directory, tmp_path) -> tuple[Path, Path]:
    """A hub's cache of the model, whose files are links to blobs, and the directory of its one revision."""
    home = tmp_path / "models--owner--name"
    revision = home / "snapshots" / "0a1b"
    (home / "blobs").mkdir(parents=True)
    revision.mkdir(parents=True)
    for number, path in enumerate(sorted(directory.iterdir())):
        path.rename(home / "blobs" / str(number))
        (revision / path.name).symlink_to(os.path.relpath(home / "blobs" / str(number), revision))
    return home, revision


def test_the_cache_of_a_hub_is_told_where_its_model_is(cache, tmp_path, capsys):
    home, revision = cache
    assert fastbert.BertModel.from_pretrained(revision).config.hidden_size == 32
    assert_told(f"; the model is in {revision}", [home, home / "snapshots"], tmp_path, capsys)
    (home / "snapshots" / "0a1c").symlink_to("0a1b")
    assert_told(f"; models are in {revision}, {revision.with_name('0a1c')}", [home], tmp_path, capsys)


@pytest.mark.parametrize("config", ["config.json", "bert_config.json"])
def test_a_directory_around_an_archive_s_is_told_where_the_model_is(config, tmp_path, capsys):
    around, inner = tmp_path / "download", tmp_path / "download" / "uncased_L-2_H-32_A-4"
    tiny_bert.save(inner)
    (inner / "config.json").rename(inner / config)
    assert_told(f"; the model is in {inner}", [around], tmp_path, capsys)
    (inner / "vocab.txt").unlink()  # not a model, as sentence-transformers' pooling
    with pytest.raises(InputError, match=r"found none$"):
        fastbert.BertModel.from_pretrained(around)


def assert_told(told: str, directories: list[Path], tmp_path: Path, capsys) -> None:
    """Whatever reads one of these directories ends its sentence so."""
    for given in directories:
        for load in (fastbert.BertModel.from_pretrained, fastbert.load_tokenizer):
            with pytest.raises(InputError) as refused:
                load(given)
            assert str(refused.value).endswith(told)
        for command in (["convert", str(given), str(tmp_path / "new")], ["fill-mask", "--model", str(given), "[MASK]"]):
            assert main(command) == 2
            assert capsys.readouterr().err.endswith(f"{told}\n")


def _head(name: str, **changes) -> torch.nn.Module:
    return getattr(fastbert, name)(fastbert.BertConfig.from_hf(tiny_bert.config(**changes)))


def test_parts_of_a_head_that_are_not_used_are_a_warning(caplog):
    """Without its CRF, a tagger gives other tags than the published ones."""
    model = _head("BertForTokenClassification")
    crf = {"crf.transitions": torch.zeros(2, 2), "crf.start_transitions": torch.zeros(2)}
    usual = {"cls.predictions.bias": torch.zeros(5), "bert.pooler.dense.bias": torch.zeros(32)}
    with caplog.at_level(logging.INFO, logger="fastbert"):
        load_into(model, model.state_dict() | usual, source="there")
        load_into(fastbert.BertModel(model.config, add_pooling_layer=False), model.state_dict() | crf, source="there")
        assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
        load_into(model, model.state_dict() | crf, source="there")
    assert caplog.records[-1].levelname == "WARNING"
    assert "2 not used (crf.transitions, crf.start_transitions)" in caplog.text


@pytest.mark.parametrize(("kind", "task"), [("Token", "text-classification"), ("Sequence", "ner")])
def test_a_classifier_of_tokens_is_not_one_of_texts(kind, task, tmp_path, capsys):
    """Both are called classifier, and dslim/bert-base-NER has the pooler that the other needs."""
    names = {0: "O", 1: "B-PER", 2: "I-PER"}
    model = tiny_bert.save(tmp_path / "model", "BertForSequenceClassification", id2label=names)
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**values, "architectures": [f"BertFor{kind}Classification"]}))
    (tmp_path / "words.txt").write_text("film\nbook\n")
    command = ["predict", task, "--model", str(model), "--data", str(tmp_path / "words.txt"), "--max-seqlen", "32"]
    command += ["--text-columns", "1"] if kind == "Token" else []
    assert main(command) == 2
    own = {"Token": "Sequence", "Sequence": "Token"}[kind]
    said = f"model: expected a trained BertFor{own}Classification, got a BertFor{kind}Classification by its config.json"
    assert said in capsys.readouterr().err
    for given in (["BertForMaskedLM"], f"BertFor{own}Classification", 5):  # out of date, or no list
        (model / "config.json").write_text(json.dumps({**values, "architectures": given}))
        assert main(command) == 0


def test_a_head_of_more_labels_than_its_config_tells_is_read_by_convert(tmp_path, capsys):
    model = tiny_bert.save(tmp_path / "model", "BertForSequenceClassification", num_labels=3)
    values = json.loads((model / "config.json").read_text())
    kept = {name: value for name, value in values.items() if name not in ("id2label", "label2id")}
    (model / "config.json").write_text(json.dumps(kept))
    (tmp_path / "texts.tsv").write_text("text\nfilm\nbook\n")
    with pytest.raises(
        CheckpointError, match="from_pretrained reads this head with num_labels=3, and starts a head of"
    ):
        fastbert.BertForSequenceClassification.from_pretrained(model)
    assert fastbert.BertForSequenceClassification.from_pretrained(model, num_labels=3).num_labels == 3
    options = ["--data", str(tmp_path / "texts.tsv"), "--max-seqlen", "32"]
    assert main(["predict", "text-classification", "--model", str(model), *options]) == 2
    told = f"one of size 3 (classifier.weight): config.json tells no number of labels, `fastbert convert {model} NEW`"
    assert told in capsys.readouterr().err
    assert main(["convert", str(model), str(tmp_path / "new")]) == 0
    assert main(["predict", "text-classification", "--model", str(tmp_path / "new"), *options]) == 0


def test_predict_cuts_texts_to_what_a_model_of_few_positions_reads(tmp_path, capsys):
    """It asked for the 128 tokens of finetune, which nobody had given, and ended in an error about them."""
    model = tiny_bert.save(tmp_path / "model", "BertForSequenceClassification", num_labels=3)
    (tmp_path / "texts.tsv").write_text("text\n" + "a good film " * 50 + "\n")
    command = ["predict", "text-classification", "--model", str(model), "--data", str(tmp_path / "texts.tsv")]
    predicted = []
    for options in ([], ["--max-seqlen", "32"]):
        assert main(command + options) == 0
        predicted.append(capsys.readouterr().out)
    assert predicted[0] == predicted[1]
    assert main([*command, "--max-seqlen", "33"]) == 2  # what was asked for is not changed
    assert "between 3 and the model's max_position_embeddings, 32, got 33" in capsys.readouterr().err


def test_pruned_heads_are_told():
    model = _head("BertForTokenClassification")
    state = model.state_dict()
    for name in ("weight", "bias"):
        for part in ("query", "key", "value"):
            place = f"{QUERY.removesuffix('query')}{part}.{name}"
            state[place] = state[place][8:]
    with pytest.raises(CheckpointError, match=r"6 mismatched .*: heads were pruned from its layers, and"):
        load_into(model, state, source="there")


def test_a_model_with_code_of_its_own_is_told(directory):
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, "auto_map": {"AutoModel": "own.Model"}}))
    fastbert.BertModel.from_pretrained(directory)  # it may compute what a BERT does
    state = {n: t for n, t in fastbert.BertModel.from_pretrained(directory).state_dict().items() if ".key." not in n}
    (directory / "model.safetensors").unlink()
    torch.save(state, directory / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"by its config\.json it is computed by code of its own \(auto_map\)"):
        fastbert.BertModel.from_pretrained(directory)


def test_the_modules_of_a_cross_encoder_are_told(directory):
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    (directory / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    (directory / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    with pytest.raises(InputError, match=r"got Transformer: a cross-encoder has no sentence vectors, its scores are"):
        fastbert.SentenceEncoder.from_pretrained(directory)
