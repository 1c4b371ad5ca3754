"""Questions as MRQA publishes them: lines of a context with its questions, compressed by gzip; and the same on hubs."""

import gzip
import json
import re

import pytest
import tiny_bert
from hub_files import parquet

from fastbert.cli.main import main
from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row
from fastbert.tasks.squad_answers import Answers, span

CONTEXT = "the capital of france is paris . a great book is in paris ."
HEADER = {"header": {"dataset": "Made", "split": "dev"}}


def question(qid, *answers, spans):
    """One of MRQA's, whose answers may be written in another way in the context; the ends are the last characters'."""
    detected = [{"text": answers[0], "char_spans": [[a, b - 1] for a, b in spans], "token_spans": [[0, 0]]}]
    return {
        "qid": qid,
        "id": "",
        "question": "was it good ?",
        "question_tokens": [["was", 0]],
        "answers": list(answers),
        "detected_answers": detected,
    }


def places(text):
    return [found.span() for found in re.finditer(text, CONTEXT)]


def line(*questions, **more):
    return {"id": "", "context": CONTEXT, "context_tokens": [["the", 0]], "qas": list(questions), **more}


def write(path, *values):
    text = "".join(json.dumps(value) + "\n" for value in values).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


QUESTIONS = [
    question("a1", "Paris", "the Paris", spans=places("paris")),
    question("a2", "great book", spans=places("great book")),
]


@pytest.mark.parametrize("name", ["Made.jsonl.gz", "Made.jsonl", "Made.json"])
def test_questions_about_a_context(tmp_path, name):
    rows = registry.get("squad1").read(
        write(tmp_path / name, HEADER, line(*QUESTIONS), line(question("b", "x", spans=[])))
    )
    assert [row.id for row in rows] == ["a1", "a2", "b"]
    assert rows[0] == Row(
        "a1", ("was it good ?", CONTEXT), Answers(("Paris", "the Paris"), (-1, -1), (*places("paris"),))
    )
    begin, end = span(CONTEXT, rows[0].label)
    assert (begin, CONTEXT[begin:end]) == (CONTEXT.index("paris"), "paris")
    assert span(CONTEXT, rows[2].label) is None


def test_the_same_on_hubs(tmp_path):
    detected = {
        "text": ["Paris"],
        "char_spans": [{"start": [a for a, _ in places("paris")], "end": [b - 1 for _, b in places("paris")]}],
        "token_spans": [{"start": [5], "end": [5]}],
    }
    row = {"subset": "Made", "context": CONTEXT, "qid": "a1", "question": "was it good ?"}
    row |= {"detected_answers": detected, "answers": ["Paris", "the Paris"]}
    expected = registry.get("squad1").read(write(tmp_path / "a.jsonl", line(QUESTIONS[0])))
    assert registry.get("squad1").read(write(tmp_path / "b.jsonl", row)) == expected
    (tmp_path / "c.parquet").write_bytes(parquet([row]))
    assert registry.get("squad1").read(tmp_path / "c.parquet") == expected


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (line({"qid": "q", "answers": ["x"]}), "line 2, question 1: expected a text as the question, got None"),
        (line(QUESTIONS[0], "q"), "line 2, question 2: expected a text as the question, got None"),
        (line(QUESTIONS[0], QUESTIONS[0]), "line 2, question 2: expected every id once, got a1 again"),
        (line(QUESTIONS[0] | {"answers": [1]}), r"line 2, question 1: expected answers with a text each, got \[1\]"),
        ({"context": CONTEXT, "qas": None}, "line 2: expected a text as the question, got None"),
        ({"header": 1, "context": CONTEXT}, "line 2: expected a text as the question, got None"),
    ],
)
def test_bad_questions(tmp_path, values, reason):
    with pytest.raises(DataError, match=reason):
        registry.get("squad1").read(write(tmp_path / "a.jsonl", HEADER, values))


@pytest.mark.parametrize(
    "spans", [None, [[0]], [[0, "1"]], [[-1, 3]], [[0, 99]], [[24, 24]], [7], {"start": [0]}, {"start": 1, "end": 2}]
)
def test_places_that_are_none_are_not_trained_on(tmp_path, spans):
    odd = QUESTIONS[0] | {"detected_answers": [{"text": "Paris", "char_spans": spans}]}
    task = registry.get("squad1")
    task.bad_rows = BadRows(skip=True)
    rows = task.read(write(tmp_path / "a.jsonl", HEADER, line(odd)))
    assert task.for_training(rows, "a.jsonl") == []
    assert "expected the character where 'Paris' begins" in task.bad_rows.reasons[0]


def labels_of(text):
    """Places as lucadiliello's copies of MRQA's sets have them: the ends are the last characters'."""
    return [{"start": [a for a, _ in places(text)], "end": [b - 1 for _, b in places(text)]}]


def test_places_under_labels_count_where_they_agree_with_an_answer(tmp_path):
    row = {"context": CONTEXT, "question": "was it good ?", "answers": ["the Paris"], "key": "a1"}
    twice = row | {"key": "a2", "labels": labels_of("france") + labels_of("paris")}
    values = row | {"labels": labels_of("paris")}, twice, row | {"key": "a3"}
    expected = [Answers(("the Paris",), (-1,), (*places("paris"),))] * 2 + [Answers(("the Paris",), (-1,))]
    (tmp_path / "b.parquet").write_bytes(parquet(list(values[:2])))
    for name, count in (("a.jsonl", 3), ("b.parquet", 2)):
        path = write(tmp_path / name, *values) if name == "a.jsonl" else tmp_path / name
        rows = registry.get("squad1").read(path)
        assert [(found.id, found.label) for found in rows] == [(f"a{n + 1}", expected[n]) for n in range(count)]
    begin, end = span(CONTEXT, rows[0].label)
    assert CONTEXT[begin:end] == "paris"


@pytest.mark.parametrize(
    "labels",
    [
        labels_of("france"),
        [{"start": [a for a, _ in places("paris")], "end": [b for _, b in places("paris")]}],
        [{"start": ["25"], "end": ["29"]}],
        [{"start": [-1], "end": [4]}],
        [{"start": None, "end": [4]}],
    ],
)
def test_places_under_labels_that_agree_with_no_answer_are_refused(tmp_path, labels):
    """Ends that are not inclusive, for one, which nothing in the file tells."""
    task = registry.get("squad1")
    for context in (CONTEXT, CONTEXT.replace("paris ", "paris.")):
        row = {"context": context, "question": "?", "answers": ["Paris", "the"], "key": "a1", "labels": labels}
        path = write(tmp_path / "a.jsonl", row)
        with pytest.raises(DataError, match="line 1: expected labels with the first and the last character of 'Paris'"):
            registry.get("squad1").read(path)
        task.predicting = True
        assert [found.label for found in task.read(path)] == [None]


def test_from_training_to_official_figures(tmp_path, capsys):
    """The figures are of all the answers, as MRQA's own evaluation has it, and of them alone."""
    model = tiny_bert.save(tmp_path / "model", num_hidden_layers=1, max_position_embeddings=64)
    data, run = write(tmp_path / "Made.jsonl.gz", HEADER, line(*QUESTIONS)), tmp_path / "run"
    given = ["--train", str(data), "--dev", str(data), "--out", str(run), "--epochs", "1", "--max-seqlen", "64"]
    assert main(["finetune", "squad1", "--model", str(model), *given]) == 0
    assert main(["predict", "squad1", "--model", str(run), "--data", str(data), "--out", str(tmp_path / "p.json")]) == 0
    assert set(json.loads((tmp_path / "p.json").read_text())) == {"a1", "a2"}
    (tmp_path / "own.json").write_text(json.dumps({"a1": "PARIS", "a2": "a great film"}))
    capsys.readouterr()
    assert main(["evaluate", "squad1", "--data", str(data), "--predictions", str(tmp_path / "own.json")]) == 0
    assert json.loads(capsys.readouterr().out) == {"task": "squad1", "rows": 2, "exact_match": 50.0, "f1": 75.0}
