"""The corpus of `fastbert bench data` is in any form that `prepare` reads, and is measured as plain text."""

from __future__ import annotations

import gzip
import json

import pytest

from fastbert.bench.data import _make_corpus
from fastbert.errors import DataError

LINES = ["It rains.", "She reads on.", "Même le soir."]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.jsonl.gz", "."])
def test_forms_of_a_corpus(tmp_path, name):
    """A .gz ended in a UnicodeDecodeError of a temporary file; JSON lines were measured with their brackets."""
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / name
    text = "\n".join(LINES) if ".txt" in name or name == "." else json.dumps({"text": "\n".join(LINES)})
    content = text.encode()
    (source / "a.txt" if name == "." else source).write_bytes(gzip.compress(content) if name[-2:] == "gz" else content)
    for size, lines in ((100, [*LINES, "", *LINES, ""]), (30, LINES[:2])):  # repeated, and only its beginning
        written = _make_corpus(source, tmp_path / "corpus.txt", size)
        found = (tmp_path / "corpus.txt").read_bytes()
        assert found.decode().split("\n")[: len(lines)] == lines
        assert written == len(found) <= size


def test_a_corpus_that_cannot_be_read_is_called_by_its_own_name(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"fine\nno\xfft\n")
    with pytest.raises(DataError, match=r"bad\.txt:2: expected UTF-8, got byte 0xff"):
        _make_corpus(tmp_path / "bad.txt", tmp_path / "corpus.txt", 100)
