"""Tab-separated files with a header or none; rows that cannot be used."""

import re
from dataclasses import replace

import pytest

from fastbert.errors import DataError
from fastbert.tasks import registry, tables
from fastbert.tasks.bad_rows import BadRows

BARE = ("x", "a", "y")


@pytest.fixture
def write(tmp_path):
    def write(content: bytes):
        path = tmp_path / "f.tsv"
        path.write_bytes(content)
        return path

    return write


def read_table(*args, **options):
    """The table with all of its lines read."""
    table = tables.read_table(*args, **options)
    return replace(table, lines=list(table.lines))


def fields(table):
    return [line.fields for line in table.lines]


def test_quotes_and_line_separators_are_text(write):
    table = read_table(write('a\tb\n"x\ty"\n\'\t"\np\u2028q\tr\rs\u0085\n'.encode()), ("a", "b"))
    assert fields(table) == [['"x', 'y"'], ["'", '"'], ["p\u2028q", "r\rs\u0085"]]
    assert [line.number for line in table.lines] == [2, 3, 4]


def test_columns_are_found_by_name_and_others_dropped(write):
    table = read_table(write(b"\xef\xbb\xbfb\tz\t a \tx\r\n1\t2\t3\t4\r\n"), ("a", "b"), ("x", "y"))
    assert table.columns == ("a", "b", "x")
    assert (table.position("b"), table.position("z"), table.position("y")) == (1, None, None)
    assert fields(table) == [["3", "1", "4"]]


def test_a_file_without_header_has_the_columns_of_the_task(write):
    table = read_table(write(b"1\t2\t3\n4\t5\t6\n"), ("a",), ("x", "y"), bare=[BARE])
    assert table.columns == ("a", "x", "y")
    assert [(line.number, line.index, line.fields) for line in table.lines] == [
        (1, 0, ["2", "1", "3"]),
        (2, 1, ["5", "4", "6"]),
    ]
    # The same task's file with a header is told apart by the names.
    assert fields(read_table(write(b"q\ta\n4\t5\n"), ("a",), bare=[BARE])) == [["5"]]


def test_further_columns_only_where_a_task_has_them(write):
    path = write(b"1\t2\t3\n4\t5\t6\t7\t8\n")
    assert len(fields(read_table(path, ("a",), bare=[BARE], extra=True))) == 2
    with pytest.raises(DataError, match=r"line 2: expected 3 tab-separated columns \(x, a, y\), got 5: '4"):
        read_table(path, ("a",), bare=[BARE])
    for content, forms in ((b"a\tb\n1\t2\n3\t4\t5\n", [BARE]), (b"1\t2\n3\t4\t5\n", [BARE, ("a", "b")])):
        with pytest.raises(DataError, match=r"line [23]: expected 2 tab-separated columns \(a, b\), got 3"):
            read_table(write(content), ("a",), bare=forms, extra=True)
    with pytest.raises(DataError, match="line 1: expected the header"):
        read_table(path, ("a",), bare=[BARE], is_bare=lambda fields: fields[1] == "7")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "expected the header of a tab-separated file with the columns 'a', 'b', got an empty file"),
        (b"x\ty\n1\t2\n", "line 1: expected the header of a tab-separated file with the columns 'a', 'b', got 'x"),
        (b"a b\n1\t2\n", "line 1: expected the header"),
        (b"a\tb\n", "expected rows, got none"),
        (b"a\tb\n\n\n", "expected rows, got none"),
        (b"a\tb\n1\t2\n\n1\t2\n", "line 3: expected 2 columns, got an empty line"),
        (b"a\tb\n1\t2\n\n\n1\t2\n", "line 3: expected 2 columns, got an empty line"),
        (b"a\tb\n1\n", "line 2: expected 2 tab-separated columns"),
    ],
)
def test_what_does_not_fit_is_named(write, content, reason):
    path = write(content)
    with pytest.raises(DataError, match=reason) as caught:
        read_table(path, ("a", "b"))
    assert str(path) in str(caught.value)


def test_a_bare_file_of_another_width_names_both_forms(write):
    with pytest.raises(DataError, match=r"'a', or 3 columns without a header \(x, a, y\), got '1"):
        read_table(write(b"1\t2\n"), ("a",), bare=[BARE])


def test_files_without_header_are_told_apart_by_their_width(write):
    forms = [BARE, ("a",)]
    assert fields(read_table(write(b"1\n2\n"), ("a",), ("y",), bare=forms)) == [["1"], ["2"]]
    assert fields(read_table(write(b"1\t2\t3\n"), ("a",), ("y",), bare=forms)) == [["2", "3"]]
    with pytest.raises(DataError, match=r"line 1: .* or 3 columns without a header .* or 1 column without a header"):
        read_table(write(b"1\t2\n"), ("a",), bare=forms)


def test_empty_lines_at_the_end_are_harmless(write):
    for end in (b"\r\n\n", b"\t\n", b"\t\n\n \t \n"):
        assert len(read_table(write(b"a\tb\n1\t2\n" + end), ("a",)).lines) == 1


def test_tabs_alone_are_a_row_of_empty_fields(write):
    """As spreadsheets write a blank row, and as commas alone are in a .csv."""
    found = read_table(write(b"a\tb\n1\t2\n\t\n3\t4\n"), ("a", "b")).lines
    assert [(line.number, line.index, line.fields) for line in found] == [
        (2, 0, ["1", "2"]),
        (3, 1, ["", ""]),
        (4, 2, ["3", "4"]),
    ]
    with pytest.raises(DataError, match=r"line 3: expected 2 tab-separated columns .*, got 3"):
        read_table(write(b"a\tb\n1\t2\n\t\t\n3\t4\n"), ("a", "b"))


def test_skipped_rows_are_counted_with_their_reasons_and_keep_the_numbers_of_the_others(write):
    bad = BadRows(skip=True)
    path = write(b"a\tb\n0\tx\nbroken\n\n2\tx\n\xff\tx\n4\tx\n1\t2\t3\n6\tx\n")
    table = read_table(path, ("a", "b"), bad_rows=bad)
    # The empty line 4 is no row; the lines 3, 6 and 8 are.
    assert [(line.index, line.fields[0]) for line in table.lines] == [(0, "0"), (2, "2"), (4, "4"), (6, "6")]
    assert [reason.split(", ")[1].split(":")[0] for reason in bad.reasons] == ["line 3", "line 4", "line 6", "line 8"]
    assert all(reason.startswith(str(path)) for reason in bad.reasons)


def test_nothing_but_bad_rows_is_an_error(write):
    with pytest.raises(DataError, match="got none that can be used"):
        read_table(write(b"a\tb\n1\n2\n"), ("a",), bad_rows=BadRows(skip=True))


def test_a_strict_reader_may_say_what_helps(write):
    with pytest.raises(DataError, match=r"line 2: .* \(--skip-bad-rows leaves it out\)$"):
        read_table(write(b"a\tb\n1\n"), ("a",), bad_rows=BadRows(hint="--skip-bad-rows leaves it out"))


SWAG_HEADER = "video-id,sent1,sent2,ending0,ending1,ending2,ending3"


@pytest.mark.parametrize(
    ("task", "name", "header", "rows"),
    [
        ("sst2", "test.tsv", "index\tsentence", ["0\ta film", "1\ta book"]),
        ("text-classification", "train.tsv", "text\tlabel", ["a film\tyes", "a book\tno"]),
        ("text-classification", "train.csv", "text,label", ['"a, film",yes', "a book,no"]),
        ("mrpc", "test.tsv", "sentence1\tsentence2\tidx", ["a\tb\t0", "c\td\t1"]),  # as a hub has it
        ("swag", "test.csv", SWAG_HEADER, [",He sits.,He,a,b,c,d", ",She sits.,She,a,b,c,d"]),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_header_that_comes_again_is_a_bad_row(tmp_path, task, name, header, rows, mark):
    """``cat one.tsv two.tsv``; of a file that began with a byte-order mark this comes along."""
    path = tmp_path / name
    path.write_text("\n".join([header, rows[0], mark + header, rows[1], ""]), encoding="utf-8")
    reason = f"{path}, line 3: expected a row, got the header of line 1 again, as in files that were put together"
    with pytest.raises(DataError, match=f"^{re.escape(reason)}"):
        registry.get(task).read(path)
    lenient = registry.get(task)
    lenient.bad_rows = BadRows(skip=True)
    assert len(lenient.read(path)) == 2
    assert lenient.bad_rows.reasons == [reason]


def test_a_text_that_is_as_its_column_is_a_text(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("sentence\na film\nsentence\n", encoding="utf-8")
    assert [row.texts for row in registry.get("sst2").read(path)] == [("a film",), ("sentence",)]
