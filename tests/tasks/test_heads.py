"""A fine-tuned model that is trained further: the rows of its head belong to the classes of their names, and what its
configuration says of another run is not taken along."""

from __future__ import annotations

import json

import finetune_runs as runs
import pytest
import tiny_bert
import torch

import fastbert
from fastbert.cli.main import main
from fastbert.errors import CheckpointError
from fastbert.gpt_config import GPT2Config
from fastbert.models.gpt import GPTForPreTraining
from fastbert.models.gpt_heads import GPTForSequenceClassification
from fastbert.tasks import registry
from fastbert.tasks.base import OF_FEATURES, SETTLED, Row
from fastbert.tasks.heads import order_of
from fastbert.tasks.trained import load_trained

MNLI = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
TAGS = ["O", "B-MISC", "I-MISC", "B-PER", "I-PER"]
TAGGED = [Row("0", ("a", "film"), ("B-PER", "I-PER")), Row("1", ("it", "is"), ("B-MISC", "I-MISC"))]


def labelled(*labels) -> list[Row]:
    return [Row(str(number), ("a film",), label) for number, label in enumerate(labels)]


# task, training rows, the names of a model's classes, and the class of each name among the task's
RENAMED = [
    ("mnli", [], MNLI, [2, 1, 0]),
    ("wnli", [], ["entailment", "not_entailment"], [1, 0]),
    ("sst2", [], ["1", "0"], [1, 0]),
    ("text-classification", labelled("good", "so", "bad"), ["good", "bad", "so"], [1, 0, 2]),
    ("text-classification", labelled("a", "A", "b"), ["b", "a", "A"], [2, 1, 0]),
    ("text-multilabel", labelled(("joy", "love"), ()), ["Love", "Joy"], [1, 0]),
    ("ner", TAGGED, TAGS, [0, 1, 2, 3, 4]),
    ("ner", TAGGED, ["I-PER", "B-PER", "I-MISC", "B-MISC", "O"], [4, 3, 2, 1, 0]),
    ("ner", [Row("0", ("a", "film"), ("B-_", "I-_"))], ["B", "I", "O"], [1, 2, 0]),
]


@pytest.fixture(scope="module")
def gpt(directory, tmp_path_factory):
    """A tiny GPT-2 over the same words."""
    torch.manual_seed(1)
    model = GPTForPreTraining(GPT2Config(vocab_size=len(tiny_bert.VOCAB), n_embd=12, n_layer=2, n_head=2))
    model.tokenizer_source = directory
    return model.save_pretrained(tmp_path_factory.mktemp("gpt"))


def published(directory, names, where, head=fastbert.BertForSequenceClassification, **options):
    """A model with these classes, as it was written there."""
    head = fastbert.BertForTokenClassification if "O" in names else head
    torch.manual_seed(2)
    model = head.from_pretrained(directory, id2label=dict(enumerate(names)), **options)
    torch.nn.init.normal_(model.classifier.bias)
    model.save_pretrained(where)
    return model


def started(name, rows, where, **options):
    """The task of these training rows, and the model with which it starts."""
    task = registry.get(name)
    task.learn(rows)
    for option, value in options.items():
        setattr(task, option, value)
    return task, task.model(where)


@pytest.mark.parametrize(("name", "rows", "names", "places"), RENAMED)
@pytest.mark.parametrize("bilstm", [None, 4])
def test_every_class_keeps_its_row(directory, tmp_path, caplog, name, rows, names, places, bilstm):
    options = {} if bilstm is None else {"bilstm_units": bilstm}
    old = published(directory, names, tmp_path / "old", **options)
    caplog.clear()
    task, new = started(name, rows, tmp_path / "old", bilstm=bilstm)
    assert torch.equal(new.classifier.weight[places], old.classifier.weight)
    assert torch.equal(new.classifier.bias[places], old.classifier.bias)
    assert new.classifier.weight.requires_grad
    assert new.config.id2label == dict(enumerate(task.classes[0]))
    assert not caplog.messages
    new.save_pretrained(tmp_path / "new")  # as its run does, and reads again
    assert torch.equal(task.model(tmp_path / "new").classifier.weight, new.classifier.weight)


@pytest.mark.parametrize(
    ("name", "names"),
    [*((name, names) for name, _, names, _ in RENAMED), ("mrpc", ["unacceptable", "acceptable"])],
)
def test_a_trained_model_is_used_as_it_is(directory, tmp_path, name, names):
    """In the order of its names; if these are not the task's, `restore` warns, and takes them in the task's order."""
    old = published(directory, names, tmp_path)
    task = registry.get(name)
    if name == "text-multilabel":
        old.config.problem_type = "multi_label_classification"
    task.restore(old.config)
    assert torch.equal(load_trained(task.model, tmp_path).classifier.weight.cpu(), old.classifier.weight)


@pytest.mark.parametrize("name", ["rte", "ner"])
@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"features": "last", "feature_units": 16}, {}, "a head on the model itself, got one on a BiLSTM on features"),
        ({}, {"features": "last", "feature_units": 16}, "a head on a BiLSTM on features, got one on the model itself"),
        ({}, {"bilstm": 16}, "a head on a BiLSTM on the model, got one on the model itself"),
    ],
)
def test_a_head_on_something_else_is_not_taken(directory, tmp_path, caplog, name, first, second, said):
    """The BiLSTM's two times 16 units are as many as the model's; a text's states on features are more, where the bias
    would still fit."""
    rows = tiny_bert.tagged_rows(9, 1) if name == "ner" else []
    _, old = started(name, rows, directory, **first)
    torch.nn.init.normal_(old.classifier.bias)
    old.save_pretrained(tmp_path)
    caplog.clear()
    _, new = started(name, rows, tmp_path, **second)
    fits = new.classifier.weight.shape == old.classifier.weight.shape
    assert fits == (name == "ner" or "bilstm" in second)
    assert not fits or not torch.equal(new.classifier.weight, old.classifier.weight)
    assert not new.classifier.bias.any()
    assert {"classifier.weight", "classifier.bias"} <= set(new.load_report.missing)
    assert f"expected {said}: the classifier is newly initialised" in caplog.text
    caplog.clear()
    _, again = started(name, rows, tmp_path, **first)
    assert torch.equal(again.classifier.weight, old.classifier.weight)
    assert "newly initialised" not in caplog.text


def test_a_gpts_head_and_one_on_features_keep_their_rows(directory, gpt, tmp_path):
    old = published(gpt, MNLI, tmp_path / "gpt", GPTForSequenceClassification)
    _, new = started("mnli", [], tmp_path / "gpt")
    assert torch.equal(new.classifier.weight, old.classifier.weight.flip(0))
    features = {"features": "last", "feature_units": 4}
    _, old = started("rte", [], directory, **features)
    old.save_pretrained(tmp_path / "features")
    _, new = started("wnli", [], tmp_path / "features", **features)
    assert torch.equal(new.classifier.weight, old.classifier.weight.flip(0))
    assert torch.equal(new.lstm.weight_hh_l0, old.lstm.weight_hh_l0)


@pytest.mark.parametrize(
    ("name", "rows", "names"),
    [
        ("mnli", [], ["negative", "neutral", "positive"]),
        ("mrpc", [], ["unacceptable", "acceptable"]),
        ("ner", TAGGED, ["O", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]),
    ],
)
def test_the_head_of_another_question_is_not_used(directory, tmp_path, caplog, name, rows, names):
    old = published(directory, names, tmp_path)
    caplog.clear()
    torch.manual_seed(0)
    task, new = started(name, rows, tmp_path)
    own = ", ".join(task.classes[0])
    assert caplog.messages[-1] == (
        f"{tmp_path}: expected a head whose classes are {own}, got one of {', '.join(names)}, which answers another "
        "question: the classifier is newly initialised"
    )
    assert not torch.isclose(new.classifier.weight, old.classifier.weight).any()
    assert not new.classifier.bias.any()
    assert torch.equal(new.bert.encoder.layer[0].output.dense.weight, old.bert.encoder.layer[0].output.dense.weight)
    torch.manual_seed(0)
    assert torch.equal(started(name, rows, tmp_path)[1].classifier.weight, new.classifier.weight), "as it is seeded"
    with pytest.raises(CheckpointError, match=r"no weights for classifier\.weight, classifier\.bias"):
        load_trained(task.model, tmp_path)  # no model to predict with


@pytest.mark.parametrize(
    ("name", "rows", "names"),
    [
        ("mnli", [], ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ("mnli", [], ["0", "1", "2"]),
        ("text-classification", labelled("0", "1"), ["negative", "positive"]),
        ("text-regression", labelled(1.0, 2.0), ["score"]),
    ],
)
def test_a_head_without_names_is_taken_in_its_order(directory, tmp_path, caplog, name, rows, names):
    old = published(directory, names, tmp_path)
    caplog.clear()
    assert torch.equal(started(name, rows, tmp_path)[1].classifier.weight, old.classifier.weight)
    assert not caplog.messages


def test_names_that_leave_an_id_out_change_nothing(directory, tmp_path):
    old = published(directory, MNLI, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {"0": "neutral", "2": "entailment", "3": "contradiction"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(started("mnli", [], tmp_path)[1].classifier.weight, old.classifier.weight)


@pytest.mark.parametrize("names", [["positive", "negative"], ["acceptable", "unacceptable"]])
def test_stopped_it_goes_on_with_the_rows_of_its_checkpoint(directory, tmp_path, names):
    """Whether it began with the rows of its classes or with new ones; so is the result that is read again."""
    published(directory, names, tmp_path / "old")
    whole, _ = runs.run(tmp_path / "old", tmp_path / "whole")
    assert runs.run(tmp_path / "old", tmp_path / "run", callbacks=runs.stop_after(5))[0].interrupted
    for _ in range(2):
        result, _ = runs.run(tmp_path / "old", tmp_path / "run", resume="auto")
        assert result.predictions == whole.predictions
        runs.assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_order_by_hand():
    assert order_of(["B", "a"], [("a", "b")]) == [1, 0]
    assert order_of(["1", "0"], [("no", "yes"), ("0", "1")]) == [1, 0]
    assert order_of(["a", "A"], [("A", "a")]) == [1, 0]
    for names in (["a"], ["a", "a"], ["a", "c"], ["a", "b", "b"]):
        assert order_of(names, [("a", "b")]) is None


FILES = {
    "sst2": "sentence\tlabel\n" + "the good film\t1\nthe bad film\t0\n" * 4,
    "rte": "sentence1\tsentence2\tlabel\n" + "a film\ta book\tentailment\nit\ta book\tnot_entailment\n" * 4,
    "ner": "the O\ngood B-PER\nfilm O\n\n" * 8,
    "stsb": "sentence1\tsentence2\tscore\n" + "a film\ta book\t5\nit\ta book\t0\n" * 4,
    "text-regression": "text\tlabel\n" + "the good film\t100\nthe bad film\t3\n" * 4,
    "swag": "sent1,sent2,ending0,ending1,ending2,ending3,label\n" + "the,a,good,bad,film,book,1\n" * 8,
    "squad2": json.dumps(
        [{"id": str(n), "question": "what", "context": "the good film", "answers": []} for n in range(4)]
        + [{"id": "a", "question": "what", "context": "a film", "answers": {"text": ["film"], "answer_start": [2]}}]
    ),
}


@pytest.fixture
def run(tmp_path):
    """What fine-tunes a task from a model, and returns the run's directory."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)

    def run(task, model, out, *options):
        data = ["--train", str(tmp_path / task), "--dev", str(tmp_path / task), "--out", str(tmp_path / out)]
        recipe = ["--epochs", "1", "--max-seqlen", "20", *options]
        assert main(["finetune", task, "--model", str(model), *data, *recipe]) == 0
        return tmp_path / out

    return run


def told(run) -> dict:
    """The configuration of a run's model."""
    return json.loads((run / "model" / "config.json").read_text())


FEATURES = ("--features", "last", "--feature-units", "8")


@pytest.mark.parametrize(
    ("first", "then", "options"),
    [
        ("sst2", "sst2", ()),
        ("rte", "rte", ()),
        ("ner", "ner", ()),
        ("ner", "sst2", ("--bilstm", "8")),
        ("rte", "swag", ()),
        ("sst2", "squad2", ()),
    ],
)
def test_an_ordinary_model_from_one_on_features(directory, run, tmp_path, capsys, first, then, options):
    on_features = run(first, directory, "features", *FEATURES)
    assert told(on_features)["feature_units"] == 8
    ordinary = run(then, on_features, "ordinary", *options)
    assert not told(ordinary).keys() & set(OF_FEATURES)
    capsys.readouterr()
    assert main(["evaluate", then, "--model", str(ordinary), "--data", str(tmp_path / then)]) == 0
    found = json.loads(capsys.readouterr().out)
    best = json.loads((ordinary / "dev_metrics.json").read_text())
    assert found.items() >= {name: best[name] for name in registry.get(then).metrics}.items()
    given = ["--model", str(ordinary / "model"), "--data", str(tmp_path / then), "--out", str(tmp_path / "answers")]
    assert main(["predict", then, *given]) == 0


def test_an_ordinary_gpt_from_one_on_features(gpt, run, tmp_path, capsys):
    ordinary = run("rte", run("rte", gpt, "features", *FEATURES), "ordinary", "--auxiliary-lm", "0.5")
    assert not told(ordinary).keys() & set(OF_FEATURES)
    assert main(["evaluate", "rte", "--model", str(ordinary), "--data", str(tmp_path / "rte")]) == 0


def test_what_an_earlier_task_has_settled_is_not_kept(directory, run):
    numbers = run("text-regression", directory, "numbers")
    assert told(numbers)["label_mean"] == 51.5
    assert not told(run("stsb", numbers, "similar")).keys() & set(SETTLED)
    assert not told(run("sst2", numbers, "features", *FEATURES)).keys() & set(SETTLED)
    questions = run("squad2", numbers, "questions")
    assert told(questions).keys() & set(SETTLED) == {"null_threshold"}
    assert told(run("text-regression", questions, "again")).keys() & set(SETTLED) == {"label_mean", "label_deviation"}
