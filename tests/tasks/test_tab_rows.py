"""Tab-separated files of CSV writers, which quote a text with a tab or a line end in it."""

from __future__ import annotations

import csv

import pytest

from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.config import TaskOptions

TEXTS = ["plain", "two\nlines", "three\n\nlines, ", "a\ttab", 'a "quote"\nand a line', '"all quoted"', "last"]


def rows_of(path, name: str = "text-classification", skip: bool = False, **options) -> list[tuple]:
    task = registry.get(name)
    task.configure(TaskOptions(**options))
    task.bad_rows = BadRows(skip=skip, hint="", encoding=None)
    return [(row.id, *row.texts, row.label) for row in task.read(path)]


@pytest.mark.parametrize(
    "columns", [("text", "label"), ("label", "text"), ("id", "label", "text"), ("sentence", "label")]
)
def test_texts_of_several_lines_are_rows(tmp_path, columns):
    """Also with columns that are named by the user, and without a header."""
    path = tmp_path / "rows.tsv"
    values = [dict(zip(("id", "label"), (f"r{i}", "good" if i % 2 else "bad"), strict=True)) for i in range(len(TEXTS))]
    rows = [
        [{"text": text, "sentence": text, **one}[name] for name in columns]
        for one, text in zip(values, TEXTS, strict=True)
    ]
    expected = [
        (one["id"] if "id" in columns else str(i), text.strip(), one["label"])
        for i, (one, text) in enumerate(zip(values, TEXTS, strict=True))
    ]
    for header in (True, False):
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerows([columns, *rows] if header else rows)
        named = {"text_columns": ("sentence",)} if columns[0] == "sentence" else {}
        places = {"text_columns": (str(len(columns) if columns[-1] == "text" else 1),)}
        places["label_column"] = str(columns.index("label") + 1)
        got = rows_of(path, **(named if header else places))
        assert [row[1:] for row in got] == [row[1:] for row in expected]
        if header:
            assert got == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('label\ttext\n1\t"I said\n0\tthe end."\n', [("0", '"I said', "1"), ("1", 'the end."', "0")]),
        ('text\tlabel\n"I said\t1\nthe end."\t0\n', [("0", '"I said', "1"), ("1", 'the end."', "0")]),
        ('label\ttext\n1\t"odd\n', [("0", '"odd', "1")]),
        ('label\ttext\n1\t"whole"\n', [("0", '"whole"', "1")]),
    ],
)
def test_quotes_that_are_part_of_a_text_join_no_rows(tmp_path, content, expected):
    path = tmp_path / "rows.tsv"
    path.write_text(content)
    assert rows_of(path) == expected


def test_quotes_are_plain_in_the_files_of_glue(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text('sentence\tlabel\n"a film\nthat is good"\t1\nbad\t0\n')
    with pytest.raises(DataError, match="line 2: expected 2 tab-separated columns"):
        rows_of(path, "sst2")


def test_a_row_of_which_a_line_is_no_utf8_is_left_out_whole(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_bytes(b'text\tlabel\nab\xff\tgood\n"First\nsecond\xff\nthird"\tbad\nok\tgood\n')
    assert rows_of(path, skip=True) == [("2", "ok", "good")]


def test_numbers_of_rows_do_not_depend_on_their_lines(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text('text\tlabel\n"a\nb"\tgood\nno label\nlast\tbad\n')
    assert rows_of(path, skip=True) == [("0", "a\nb", "good"), ("2", "last", "bad")]


@pytest.mark.parametrize("name", ["text-regression", "text-multilabel"])
def test_all_tasks_of_own_files_read_them(tmp_path, name):
    path = tmp_path / "rows.tsv"
    path.write_text('text\tlabel\n"a\nb"\t1.5\nc\t2\n')
    assert [row[1] for row in rows_of(path, name)] == ["a\nb", "c"]


def test_a_csv_without_a_header_may_have_a_tab_in_its_first_text(tmp_path):
    path = tmp_path / "dbpedia.csv"
    path.write_text('1,"Abbott"," Abbott of\tFarnham"\n2,"Abeking","built, ships"\n')
    got = rows_of(path, text_columns=("2", "3"), label_column="1")
    assert got == [("0", "Abbott", "Abbott of\tFarnham", "1"), ("1", "Abeking", "built, ships", "2")]
