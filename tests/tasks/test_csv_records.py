"""Rows of .csv: quotes within fields, over lines, unclosed; what a broken row costs."""

import csv

import pytest

from fastbert.tasks.csv_records import csv_fields, csv_records

HEADER = ["text", "label"]


def records(text):
    return list(csv_records(list(enumerate(text.split("\n"), 2)), HEADER, before=1))


def rows(text):
    return [(number, *values.values()) for number, values in records(text)]


def test_a_quote_within_a_plain_field_is_a_character():
    text = 'good,1\na 5" nail,0\nbad,0\na 6" nail,0\nend,1'
    assert rows(text) == [
        (2, "good", "1"),
        (3, 'a 5" nail', "0"),
        (4, "bad", "0"),
        (5, 'a 6" nail', "0"),
        (6, "end", "1"),
    ]


def test_a_quote_that_never_closes_costs_its_row():
    text = 'good,1\n"never closed,0\nbad,0\n"nor this,0\nend,1\n'
    assert rows(text) == [(2, "good", "1"), (3,), (4, "bad", "0"), (5,), (6, "end", "1")]


def test_a_field_may_go_over_many_lines():
    lines = "\n".join(f"line {i}, then" for i in range(200))
    assert rows(f'"{lines}",0\nend,1') == [(2, lines, "0"), (202, "end", "1")]


def test_a_row_of_another_width_costs_all_its_lines():
    assert rows('"two\nx,lines",1,2\nend,1') == [(2,), (4, "end", "1")]


def test_quotes_within_quotes():
    assert rows('"He said ""hi""",1') == [(2, 'He said "hi"', "1")]
    assert rows(r'"\"He\" said \"hi\", then \n \\",1') == [(2, r'"He" said "hi", then \n \\', "1")]  # Spark, MySQL
    # Not doubled, as some writers leave them: what every lenient reader makes of it.
    assert rows('"He said "hi" there",1') == [(2, next(csv.reader(['"He said "hi" there",1']))[0], "1")]


def test_a_carriage_return_in_a_plain_field_is_not_the_end_of_its_row():
    assert rows("1,good\rbad\nend,1") == [(2,), (3, "end", "1")]


def test_lines_that_were_refused_before_were_rows():
    lines = [(2, "a,1"), (5, "b,0")]
    assert [(number, values and values["text"]) for number, values in csv_records(lines, HEADER, before=1)] == [
        (2, "a"),
        (3, None),
        (4, None),
        (5, "b"),
    ]


def test_quotes_that_do_not_come_in_pairs_cost_their_line():
    assert rows('"a"b" c,1\nend,1') == [(2,), (3, "end", "1")]


def test_long_fields_and_the_limit_of_others():
    before = csv.field_size_limit(1000)  # not what a call before this test may have left
    try:
        assert rows("x" * 200_000 + ",1") == [(2, "x" * 200_000, "1")]
        assert csv_fields("x" * 200_000, ",") == ["x" * 200_000]
        assert csv.field_size_limit() == 1000
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize("text", ['"a', 'a\rb,"c"'])
def test_a_first_line_that_is_no_csv_has_no_fields(text):
    assert csv_fields(text, ",") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"Hello, world"\n"two\nlines"\nlast', [(2, "Hello, world"), (3, "two\nlines"), (5, "last")]),
        ('commas, and "quotes", as they stand\n 5" nail', [(2, 'commas, and "quotes", as they stand'), (3, '5" nail')]),
        ('"He" said\n"never closed\nlast', [(2, '"He" said'), (3, '"never closed'), (4, "last")]),
        (' "He said ""hi"", twice" \n"a \n b"', [(2, 'He said "hi", twice'), (3, "a \n b")]),
        ('"one","two"\nlast', [(2,), (3, "last")]),
    ],
)
def test_one_column(text, expected):
    found = csv_records(list(enumerate(text.split("\n"), 2)), ["text"], before=1)
    assert [(number, *values.values()) for number, values in found] == expected
