"""The columns that a study's rows are read from: those that its fine-tuning names, for each row of the table."""

from __future__ import annotations

import json

import pytest
import study_runs

from fastbert.errors import InputError
from fastbert.study import cells, plan, run

OWN = "text_columns: [words], label_column: kind"


@pytest.fixture
def study_of(place):
    """Makes a study of a task of texts, with these rows of the table and these options of the task, and reads it."""
    lines = (json.loads(line) for line in (place / "texts.jsonl").read_text().splitlines())
    rows = [
        {"text": "red", "label": "a" if n % 2 else "b", "words": line["text"], "kind": f"{line['label']} {n % 3}"}
        for n, line in enumerate(lines)
    ]
    (place / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "named.jsonl").write_text(
        "".join(json.dumps({name: row[name] for name in ("words", "kind")}) + "\n" for row in rows)
    )

    def made(rows: str, options: str) -> run.Work:
        head = study_runs.TINY[: study_runs.TINY.index("rows:")].replace("[0, 1]", "[0]")
        text = f"{head}rows: [{rows}]\ntasks: {{own: {{dev_share: 0.25, {options}}}}}\n"
        (place / "columns.yaml").write_text(text)
        return run.work_of(study_runs.read(place, "columns.yaml"), place / "cache")

    return made


def read(cell: cells.Cell) -> tuple[set, set]:
    """The texts and the labels of a cell's rows."""
    _, train, dev = cells.rows_of(cell)
    return {row.texts for row in (*train, *dev)}, {row.label for row in train}


def test_rows_are_of_the_columns_that_the_fine_tuning_names(study_of):
    """Two rows of the table may read one file in two ways."""
    rows = f"{{name: usual}}, {{name: own, task: {{finetune: {{{OWN}}}}}}}"
    usual, own = study_of(rows, "task: text-classification, train: both.jsonl").cells
    assert read(usual) == ({("red",)}, {"a", "b"})
    texts, labels = read(own)
    assert len(texts) > 30
    assert labels == {f"{label} {n}" for label in (False, True) for n in range(3)}


def test_labels_are_separated_as_the_fine_tuning_says(study_of):
    options = f"task: text-multilabel, train: both.jsonl, finetune: {{{OWN}, label_separator: ' '}}"
    (cell,) = study_of("{name: own}", options).cells
    task, *_ = cells.rows_of(cell)
    assert set(task.labels) == {"False", "True", "0", "1", "2"}


def test_what_was_read_from_other_columns_is_not_taken_from_a_cache(study_of, monkeypatch):
    """Earlier versions computed cells with these options from the task's usual columns."""

    def keys_of(options: str) -> set[str]:
        return {cell.key for cell in study_of("{name: r}", f"task: text-classification, train: {options}").cells}

    asked = {"both.jsonl": False, f"both.jsonl, finetune: {{{OWN}}}": True}
    now = {options: keys_of(options) for options in asked}
    monkeypatch.setattr(cells, "_COLUMNS", ())
    assert {options: keys_of(options) != keys for options, keys in now.items()} == asked


def test_what_lies_beside_a_file_is_in_the_key(study_of, place):
    """Labels are read from there; a correction of them is another result."""

    def keys_now() -> frozenset[str]:
        (cell,) = study_of("{name: r}", "task: text-classification, train: both.jsonl").cells
        return cell.key

    found = [keys_now()]
    for text in ("1\n", "0\n"):
        (place / "both-labels.lst").write_text(text)
        found.append(keys_now())
    for name in ("both.ans", "label.json"):
        (place / name).write_text("A")
        found.append(keys_now())
    assert len(set(found)) == 5
    for name in ("both-labels.lst", "both.ans", "label.json"):
        (place / name).unlink()
    assert keys_now() == found[0]


def test_classes_are_those_of_the_whole_file(study_of):
    """As in `finetune`, also where the rows to train on do not have all of them."""
    options = f"task: text-classification, train: both.jsonl, train_rows: 2, finetune: {{{OWN}}}"
    (cell,) = study_of("{name: own}", options).cells
    task, train, _ = cells.rows_of(cell)
    assert len(train) == 2
    assert len(task.labels) == 6


def test_columns_on_features_are_those_of_the_features_recipe(study_of):
    """Also in the plan, whose rows must be those that are trained on, cut at the same length."""
    task = f"task: text-classification, train: named.jsonl, features: last, feature_finetune: {{{OWN}, max_seqlen: 4}}"
    work = study_of("{name: on features}", task)
    texts, labels = read(work.cells[0])
    assert len(texts) > 30
    assert len(labels) == 6
    _, train, dev = cells.rows_of(work.cells[0])
    assert plan._tokens(work.cells[0], work.data) == (4 * len(train), 4 * len(dev))


def test_columns_that_do_not_fit_the_task_are_told_before_anything_is_computed(study_of):
    with pytest.raises(InputError, match=r"^task own: text_columns of the task sst2 must be 1 in number, got a, b$"):
        study_of("{name: r}", "task: sst2, train: both.jsonl, dev: null, finetune: {text_columns: [a, b]}")
