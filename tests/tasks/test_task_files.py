"""Reading with line numbers."""

import codecs
import gzip
import re

import pytest

from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row
from fastbert.tasks.files import of_rows, read_lines
from fastbert.tasks.hub_files import Record, read_records
from fastbert.tasks.results import results_name


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\xe2\x80\xa8c\xc2\x85d\n\nlast")
    assert list(read_lines(path)) == [(1, "a"), (2, "b\u2028c\u0085d"), (3, ""), (4, "last")]


def test_carriage_returns_end_lines_where_no_line_feed_does(tmp_path):
    path = tmp_path / "f"
    for end in (b"", b"\r", b"\n", b"\r\n"):
        path.write_bytes(b"\xef\xbb\xbfa\rb c\r\rd" + end)
        assert list(read_lines(path)) == [(1, "a"), (2, "b c"), (3, ""), (4, "d")]
    for end in (b"", b"\n"):
        path.write_bytes(b"a\rb\nc\rd" + end)
        assert list(read_lines(path)) == [(1, "a\rb"), (2, "c\rd")]
    path.write_bytes(b"a\r\n")
    assert list(read_lines(path)) == [(1, "a")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"ok\nbad \xff here\n", "line 2: expected UTF-8, got 0xff at byte 5"),
        (b"ok\n\0\0", "line 2: expected UTF-8, got a NUL byte"),
        ("ok\n".encode("utf-16-le"), "line 1: .*or text in UTF-16"),
    ],
)
def test_bytes_that_are_no_text_are_named(tmp_path, content, reason):
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        list(read_lines(path))
    assert str(path) in str(caught.value)


FORMATS = {
    "UTF-16, as PowerShell's > writes it; iconv -f utf-16 ": lambda text: (
        codecs.BOM_UTF16_LE + text.encode("utf-16-le")
    ),
    "UTF-16; iconv": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "UTF-32": lambda text: codecs.BOM_UTF32_LE + text.encode("utf-32-le"),
    "a file that gzip compressed; gunzip -c unpacks it": lambda text: gzip.compress(text.encode()),
    "Arrow, as datasets' save_to_disk writes it; load_from_disk": lambda text: b"\xff\xff\xff\xffx\0" + text.encode(),
    "a zip archive, or a spreadsheet": lambda text: b"PK\x03\x04" + text.encode(),
}


@pytest.mark.parametrize("said", FORMATS)
@pytest.mark.parametrize(
    ("task", "name", "text"),
    [
        ("sst2", "f.tsv", "sentence\tlabel\nfine\t1\n"),
        ("text-classification", "f.jsonl", '{"text": "fine", "label": "1"}\n'),
        ("squad1", "f.json", '{"data": []}'),
        ("swag", "f.csv", "video-id,fold-ind\n"),
        ("ner", "f", "EU B-ORG\nsays O\n"),
    ],
)
def test_a_file_in_another_form_is_told_as_a_whole(tmp_path, said, task, name, text):
    """No row of it is bad, and none would be left: --skip-bad-rows is no help."""
    path = tmp_path / name
    path.write_bytes(FORMATS[said](text))
    task = registry.get(task)
    task.bad_rows = BadRows(skip=True)
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}: expected text in UTF-8, got {said}')}"):
        task.read(path)
    assert not task.bad_rows.reasons


@pytest.mark.parametrize(
    ("task", "name", "text", "label"),
    [
        ("sst2", "dev.tsv.gz", "sentence\tlabel\nfine\t1\n", "1"),
        ("sst2", "dev.csv.GZ", 'sentence,label\n"fine, good",1\n', "1"),
        ("text-classification", "dev.jsonl.gz", '{"text": "fine", "label": "x"}\n', "x"),
        ("text-classification", "dev.json.gz", '[{"text": "fine", "label": "x"}]', "x"),
        ("ner", "dev.txt.gz", "EU B-ORG\n", ("B-ORG",)),
    ],
)
def test_a_file_that_is_called_gz_is_unpacked(tmp_path, task, name, text, label):
    path, whole = tmp_path / name, gzip.compress(text.encode())
    path.write_bytes(whole)
    [row] = registry.get(task).read(path)
    assert row.label == label
    assert results_name(path) == "dev"
    for damaged in (whole[:-3], text.encode()):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"^{re.escape(str(path))}: expected a whole gzip file, got a damaged one"):
            registry.get(task).read(path)


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(InputError, match="is a directory"):
        list(read_lines(tmp_path))


def test_json_lines_name_the_line(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": 1}\n\n[1]\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 3: expected a JSON object, got list"):
        list(read_records(path))
    # An object of several lines, as JSON is often published.
    path.write_text('{\n  "a": 1\n}\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 1: expected a JSON object in one line, got an error in it: Expecting"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "half \\ud83d"}', r"got a text with the lone surrogate '\\ud83d'"),
        ('{"number": ' + "9" * 5000 + "}", "got Exceeds the limit"),
        ("[" * 100_000, "got .*(recursion|Stack overflow)"),
    ],
)
def test_json_that_python_cannot_use_is_a_bad_row(tmp_path, line, reason):
    path = tmp_path / "f.jsonl"
    path.write_text('{"text": "whole \\ud83d\\ude00"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"line 2: expected a JSON object, {reason}"):
        list(read_records(path))
    bad = BadRows(skip=True)
    assert list(read_records(path, bad)) == [Record(f"{path}, line 1", {"text": "whole \U0001f600"})]
    assert len(bad.reasons) == 1


def test_predictions_by_the_ids_of_rows():
    rows, found = [Row("b", ()), Row("a", ())], {"a": 1, "b": 2, "c": 3}
    with pytest.raises(
        DataError, match=r"^p: expected one prediction for each of 2 rows, got 3; missing none; unknown c"
    ):
        of_rows(found, rows, "p")
    bad = BadRows(skip=True)
    bad.refuse("row c has no label")
    assert of_rows(found, rows, "p", bad) == [2, 1]
    with pytest.raises(DataError, match="missing d"):
        of_rows(found, [*rows, Row("d", ())], "p", bad)


def test_rows_of_one_id_have_no_predictions_of_their_own():
    rows = [Row("3", ("a",), "0"), Row("4", ("b",), "1"), Row("3", ("c",), "1")]
    with pytest.raises(DataError, match=r"^p\.tsv: .* since predictions are matched by id, got 3 twice$"):
        of_rows({"3": "0", "4": "1"}, rows, "p.tsv")
