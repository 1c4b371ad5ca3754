"""`encode`, `extract` and `fill-mask` on a column of a table: the same files as the tasks read."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tiny_bert

from fastbert.cli.main import main
from fastbert.errors import DataError, InputError
from fastbert.tasks.column import texts_of

TEXTS = ["the film is good", "a dull, dull book .", "", "it was “poor”"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("model"))


def run(*args) -> int:
    return main([str(arg) for arg in args])


def table(path: Path) -> Path:
    """Writes a table with ids that are not distinct, and with texts in the column ``body``."""
    name = path.name.removesuffix(".gz")
    rows = [{"id": 7, "body": text, "label": label} for text, label in zip(TEXTS, "aabb", strict=True)]
    if name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    if name.endswith(".jsonl"):
        content = "".join(json.dumps(row) + "\n" for row in rows)
    elif name.endswith(".json"):
        content = json.dumps(rows)
    else:
        separator, quote = ("\t", "") if name.endswith(".tsv") else (",", '"')
        lines = [
            ["id", "body", "label"],
            *([str(row["id"]), f"{quote}{row['body']}{quote}", row["label"]] for row in rows),
        ]
        content = "".join(separator.join(line) + "\n" for line in lines)
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(content.encode())
    return path


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.csv.gz", "t.jsonl", "t.json", "t.parquet"])
def test_every_row_has_the_vector_of_its_text(model, tmp_path, name):
    """An empty text too, so that the vectors can be put beside the table."""
    file, lines = table(tmp_path / name), tmp_path / "lines.txt"
    lines.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    for command in (lines, "--out", tmp_path / "a.npy"), (file, "--out", tmp_path / "b.npy", "--column", "body"):
        assert run("encode", "--model", model, *command) == 0
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))
    assert len(np.load(tmp_path / "b.npy")) == len(TEXTS)


def test_columns_without_a_header_have_numbers(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("1\tthe film\n2\ta book\n")
    assert list(texts_of(path, "2")) == [(1, "the film"), (2, "a book")]


@pytest.mark.parametrize(
    ("first", "header"),
    [
        ('"3","Fears for T N pension","Unions are hopeful"', False),  # AG News: its class is no name of a column
        ("2,3,3", False),
        ("1,2,3", True),
        (",0,3", True),  # pandas', with its index
    ],
)
@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_a_class_in_the_first_row_is_no_name_of_a_column(tmp_path, first, header, suffix):
    path, lines = tmp_path / f"t{suffix}", [first, "1,The race,Space is near"]
    if suffix == ".tsv":
        lines = [line.replace('"', "").replace(",", "\t") for line in lines]
    path.write_text("\n".join(lines) + "\n")
    texts = [text for _, text in texts_of(path, "3")]
    assert texts == ([] if header else [first.split(",")[2].strip('"')]) + ["Space is near"]


def test_an_empty_line_of_a_file_with_one_column_is_a_row(tmp_path):
    """TweetEval's texts stand beside labels in a file of their own."""
    path = tmp_path / "t.txt"
    path.write_text("a film\n\na book\n\n")
    assert list(texts_of(path, "1")) == [(1, "a film"), (2, ""), (3, "a book")]


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_a_row_of_empty_fields_is_a_row(tmp_path, suffix):
    """Vectors would stand beside other rows, and predictions have other rows' numbers."""
    rows = [("a film", "x"), ("", ""), ("a book", "y")]
    path = tmp_path / f"t{suffix}"
    path.write_text("".join(("\t" if suffix == ".tsv" else ",").join(row) + "\n" for row in rows))
    assert [text for _, text in texts_of(path, "1")] == ["a film", "", "a book"]


def test_rows_are_read_as_they_are_needed(tmp_path):
    """The bad row at the end is not looked at before."""
    path = tmp_path / "t.csv"
    path.write_text("id,text\n" + "1,the film\n" * 5000 + "1,2,3\n")
    found = texts_of(path, "text")
    assert next(found) == (1, "the film")
    with pytest.raises(ValueError, match="line 5002"):
        list(found)


def test_other_columns_do_not_matter(tmp_path):
    """Labels and ids may come twice."""
    for name, content in (
        ("t.csv", "id,label,text,id,label\n1,a,the film,2,b\n"),
        ("t.tsv", "id\ttext\tid\n1\tthe film\t2\n"),
    ):
        (tmp_path / name).write_text(content)
        assert list(texts_of(tmp_path / name, "text")) == [(1, "the film")]
        with pytest.raises(DataError, match=r"with the column 'body', got '"):
            list(texts_of(tmp_path / name, "body"))
    with pytest.raises(InputError, match="column must be the name or the number of one, got ' '"):
        texts_of(tmp_path / "t.csv", " ")
    (tmp_path / "pos").mkdir()
    (tmp_path / "pos" / "0_9.txt").write_text("A review of IMDB's, whose directories only the tasks read")
    with pytest.raises(InputError, match="is a directory, expected a file"):
        next(texts_of(tmp_path, "text"))


def test_a_column_may_have_the_name_of_one_of_labels_or_ids(tmp_path):
    path = tmp_path / "t.tsv"
    for name in ("label", "id"):
        path.write_text(f"n\t{name}\n1\tthe film\n1\t\n")
        assert list(texts_of(path, name)) == [(1, "the film"), (2, "")]


def test_extract_numbers_the_rows(model, tmp_path, capsys):
    """`|||` is text in a table: only lines of text have the form of google-research/bert."""
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\nthe film\ta\na ||| book\ta\n" + "it " * 200 + "\tb\n")
    options = ["--model", model, "--out", tmp_path / "out", "--layers", "last", "--column", "text", path]
    assert run("extract", *options) == 2
    assert f"{path}, row 3: expected at most" in capsys.readouterr().err
    assert run("extract", *options, "--truncate") == 0
    index = [json.loads(line) for line in (tmp_path / "out" / "tokens.jsonl").read_text().splitlines()]
    assert [row["line"] for row in index] == [1, 2, 3]
    assert index[1]["tokens"].count("[SEP]") == 1


def test_fill_mask_reads_a_table_from_standard_input(model, monkeypatch, capsys):
    def answer(raw: bytes, *options) -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
        assert run("fill-mask", "--model", model, "--json", "-", *options) == 0
        return capsys.readouterr().out

    wanted = answer(b"the [MASK] is good\na [MASK] book\n")
    assert answer(b"id\ttext\n1\tthe [MASK] is good\n2\ta [MASK] book\n", "--column", "text") == wanted
    rows = b'{"text": "the [MASK] is good"}\n{"text": "a [MASK] book"}\n'
    assert answer(rows, "--column", "text") == wanted
    assert run("fill-mask", "--model", model, "a [MASK]", "--column", "text") == 2
    assert "--column belongs to standard input" in capsys.readouterr().err
    for options, place in ((), "line 2"), (("--column", "text [MASK]"), "row 1"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"text [MASK]\nno mask\n")))
        assert run("fill-mask", "--model", model, "-", *options) == 2
        assert f"standard input, {place}: expected at least one [MASK]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id\ttext\n1\tthe film\n", r"t\.tsv, line 1: expected the header .* with the column 'body'.*--column names"),
        ("sentence\nthe film\n", "with the column 'body'"),
        ("id\tbody\n1\tthe film\ta\n", "line 2: expected 2 tab-separated columns"),
        ("body\n", "expected rows"),
    ],
)
def test_a_table_without_the_column_is_refused(model, tmp_path, capsys, content, said):
    path = tmp_path / "t.tsv"
    path.write_text(content)
    assert run("encode", "--model", model, "--out", tmp_path / "v.npy", path, "--column", "body") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(said, error), error
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize("column", ["text", "body"])
def test_standard_input_needs_the_header(model, tmp_path, monkeypatch, capsys, column):
    """Otherwise the header of another column would be a text."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"sentence\nthe film\n")))
    assert run("encode", "--model", model, "--out", tmp_path / "v.npy", "-", "--column", column) == 2
    assert f"with the column '{column}'" in capsys.readouterr().err
