"""The demo: its three parts never mix, and a tiny run of every stage leaves what it promises."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fastbert import BertForPreTraining
from fastbert.data import builtin_corpus
from fastbert.data.config import SampleConfig
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.demo import families, run
from fastbert.demo.recipe import FULL, QUICK
from fastbert.errors import InputError


@pytest.fixture(scope="module")
def documents():
    return list(builtin_corpus.documents())


def test_the_corpus_is_whole_where_python_strips_docstrings(documents):
    code = "from fastbert.data import builtin_corpus as b; print(*(name for name, _ in b.documents()), sep=chr(10))"
    command = [sys.executable, "-OO", "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert told.split() == [name for name, _ in documents]


def test_validation_and_test_are_disjoint_and_of_the_size_asked_for(documents):
    sizes = {name: sum(map(len, sentences)) for name, sentences in documents}
    validation, testing = families.split_documents(sizes.items(), FULL.heldout_share)
    assert not validation & testing
    total = sum(sizes.values())
    for part in (validation, testing):
        assert 0.5 < sum(sizes[name] for name in part) / total / FULL.heldout_share < 2.0
        # Every class of the classifier is in both; where the system's Python has no tkinter, "gui" may be in neither.
        expected = set(families.FAMILIES) - ({"gui"} if importlib.util.find_spec("tkinter") is None else set())
        assert expected <= {families.family_of(name) for name in part}


def test_a_split_is_worked_out_by_hand():
    # By crc32: c 0x06b9df6f, zz 0x24d91ba1, b 0x71beeff9, d 0x98dd4acc, a 0xe8b7be43; all of the class "other".
    # A quarter of 180 is 45: zz is over three quarters of that, two of the others reach it.
    sizes = [("a", 30), ("b", 30), ("c", 30), ("d", 30), ("zz", 60)]
    validation, testing = families.split_documents(sizes, 0.25)
    assert (validation, testing) == (frozenset("cb"), frozenset("ad"))


def test_the_texts_of_the_classifier_keep_to_their_part(documents):
    sizes = [(name, sum(map(len, sentences))) for name, sentences in documents]
    validation, testing = families.split_documents(sizes, FULL.heldout_share)
    train, test = families.labelled_texts(validation, testing)

    def module_of(row):
        return max((name for name, _ in sizes if f"{row.id}.".startswith(f"{name}.")), key=len, default="")

    assert train
    assert test
    assert {module_of(row) for row in test} <= testing
    assert not {module_of(row) for row in train} & (validation | testing)
    assert not {row.texts for row in train} & {row.texts for row in test}


def test_a_family_that_this_python_has_too_little_of_is_no_class(documents):
    sizes = [(name, sum(map(len, sentences))) for name, sentences in documents]
    validation, testing = families.split_documents(sizes, FULL.heldout_share)
    without = frozenset(name for name in testing if families.family_of(name) != "email")
    train, test = families.labelled_texts(validation, without)
    assert families.classes(train) == families.classes(test)
    assert "email" not in families.classes(train)
    assert {"math", "network"} <= set(families.classes(train))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    sizes = {"vocab_size": 1500, "layers": 1, "hidden": 32, "heads": 2, "token_budget": 512, "steps": 8}
    recipe = dataclasses.replace(QUICK, **sizes, max_minutes=9.0, labels=2, epochs=1)  # a busy machine's steps too
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "QUICK", recipe)
        return run.run_demo(out, quick=True)


def test_every_stage_leaves_its_figures(tiny):
    from fastbert.demo.page import write_page

    written = json.loads((tiny.out / "demo.json").read_text())
    assert written["steps"] == 8
    assert 0 < written["test"]["mlm_loss"] < 9
    assert 0 <= written["test"]["nsp_acc"] <= 1
    assert [sentence for sentence, _ in written["masks"]] == list(run.MASKED_SENTENCES)
    assert {len(values) for values in written["classifier"]["accuracies"].values()} == {1}
    page = write_page(tiny).read_text()
    assert page.count("data:image/png;base64,") >= 1
    assert "http" not in page.split("<body")[0]
    assert f"{written['corpus']['test_documents']} more are the test" in page


@pytest.mark.parametrize(("loss", "said"), [(4.48, " 6.000: 1.52 under it\n"), (6.25, " 6.000: 0.25 over it\n")])
def test_a_loss_over_the_entropy_is_called_that(tiny, monkeypatch, capsys, loss, said):
    row = {"unigram_entropy": 6.0, "mlm_loss": loss, "mlm_acc": 0.1, "most_frequent_acc": 0.1, "nsp_acc": 0.5}
    monkeypatch.setattr(run, "evaluate", lambda *_, **__: row)
    run._evaluate(dataclasses.replace(tiny))
    assert said in capsys.readouterr().out


def test_a_pretraining_that_the_clock_ended_is_called_that(tiny):
    from fastbert.demo.page import write_page

    assert not tiny.ended_early
    longer = dataclasses.replace(tiny, recipe=dataclasses.replace(tiny.recipe, steps=100))
    assert "at step 8 of 100" in longer.ended_early
    assert "8 % of its text" in write_page(longer).read_text()


def test_no_test_document_is_in_the_shards_that_pretraining_opens(tiny, documents):
    corpus = tiny.corpus
    parts = {
        "validation_documents": ShardSet.open(tiny.out / "data", "heldout"),
        "test_documents": ShardSet.open(tiny.out / "test", "train"),
    }
    for name, shards in parts.items():
        assert len(shards) == corpus[name] > 0
    training = ShardSet.open(tiny.out / "data", "train")
    assert len(training) == corpus["documents"] - corpus["validation_documents"] - corpus["test_documents"]


def test_the_vocabulary_is_of_the_training_documents_alone(documents, tmp_path, monkeypatch):
    def train(sentences, _size):
        raise LookupError(list(sentences))

    monkeypatch.setattr(run, "train_wordpiece", train)
    with pytest.raises(LookupError) as seen:
        run._prepare(run.DemoResult(tmp_path, QUICK))
    sizes = [(name, sum(map(len, sentences))) for name, sentences in documents]
    kept = frozenset.union(*families.split_documents(sizes, QUICK.heldout_share))
    assert seen.value.args[0] == [s for name, sentences in documents if name not in kept for s in sentences]


def test_the_figures_are_of_the_test_documents(tiny):
    samples = SampleConfig(max_seqlen=tiny.recipe.max_seqlen)
    testing = PretrainingData(ShardSet.open(tiny.out / "test", "train"), samples)
    assert tiny.test["tokens"] == sum(int(testing.lengths(epoch).sum()) for epoch in range(3))


def test_the_classifiers_begin_as_they_are_called_and_the_last_epoch_counts(tiny, monkeypatch):
    """Of the best epoch the figure would be chosen by the very rows that it is of."""
    begun = []

    def finetune(_task, model, _tokenizer, _train, _test, config):
        begun.append((config.seed, {name: tensor.clone() for name, tensor in model.bert.state_dict().items()}))
        return SimpleNamespace(history=[{"accuracy": 0.9}, {"accuracy": 0.25}])

    monkeypatch.setattr(run, "finetune", finetune)
    result = dataclasses.replace(tiny, recipe=dataclasses.replace(tiny.recipe, seeds=2), classifier={})
    run._classify(result, 3)
    assert result.classifier["accuracies"] == {"pre-trained": [0.25, 0.25], "random weights": [0.25, 0.25]}
    trained = BertForPreTraining.from_pretrained(tiny.run.model_dir).bert.state_dict()
    assert [seed for seed, _ in begun] == [3, 3, 4, 4]
    for seed, weights in begun[::2]:
        assert all(torch.equal(weights[name], tensor) for name, tensor in trained.items()), seed
    name = "encoder.layer.0.output.dense.weight"
    first, other = (weights[name] for _, weights in begun[1::2])
    assert not any(torch.equal(*pair) for pair in ((first, other), (first, trained[name]), (other, trained[name])))


def test_a_directory_of_something_else_is_not_removed(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(InputError, match="expected no such path, or the directory of an earlier demo"):
        run.run_demo(tmp_path, quick=True)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("seed", [-1, 2**64 - 2])
def test_a_seed_that_the_last_stage_would_refuse_is_refused_first(tmp_path, seed):
    with pytest.raises(InputError, match=r"seed must be at least 0 and at most 2\^64 - 3, got "):
        run.run_demo(tmp_path / "demo", seed=seed)
    assert not (tmp_path / "demo").exists()
