"""Published forms of corpora, whose documents are not what blank lines or rows say."""

from __future__ import annotations

import json
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastbert.data.corpus import read_documents
from fastbert.data.prepare import prepare
from fastbert.errors import DataError, InputError

WIKITEXT = [
    "",
    " = Old =\n",
    "",
    " One . It is @-@ y . \n",
    "",
    " = = Part = = \n",
    " Two . \n",
    " = New = \n",
    " X . \n",
]


def sentences(path):
    return [document.sentences for document in read_documents([path])]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("begin", [0, 3])
def test_hubs_have_a_line_of_wikitext_in_a_row(tmp_path, kind, begin):
    """The second part of a set begins within an article."""
    path, rows = tmp_path / f"train.{kind}", WIKITEXT[begin:]
    if kind == "parquet":
        pq.write_table(pa.table({"text": rows}), path)
    else:
        path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    assert sentences(path) == [["One .", "It is @-@ y .", "Two ."], ["X ."]]


def test_documents_end_at_the_marker_of_gpts(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text("One day.\n\nThen.\n<|endoftext|>\n\nOnce.\n\nEnd.\n<|endoftext|>\n")
    assert sentences(path) == [["One day.", "Then."], ["Once.", "End."]]


def test_wikiextractor_writes_as_in_html(tmp_path):
    text, plain = "AT&amp;T is &lt; 5 &amp;gt; here.", "AT&T is < 5 &gt; here."
    (tmp_path / "wiki_00").write_text(f'<doc id="1" url="u" title="A&B">\nA&B\n\n{text}\n\n</doc>\n')
    row = {"id": "1", "revid": "2", "url": "u", "title": "A", "text": text}
    (tmp_path / "wiki_01").write_text(json.dumps(row) + "\n")
    (tmp_path / "other.jsonl").write_text(json.dumps({"text": text}) + "\n")
    assert [sentences(tmp_path / name) for name in ("wiki_00", "wiki_01", "other.jsonl")] == [
        [[plain]],
        [[plain]],
        [[text]],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "यह एक वाक्य है। यह दूसरा है॥ तीसरा।",
        "یہ ایک جملہ ہے۔ کیا یہ دوسرا ہے؟ ہاں۔",  # noqa: RUF001
        "ይህ አንድ ነው። ይህ ሁለት ነው። ሦስት።",
        "ဒါက တစ်ခု။ ဒါက နှစ်ခု။ သုံး။",
    ],
    ids=["Hindi", "Urdu", "Amharic", "Burmese"],
)
def test_full_stops_of_other_scripts(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    assert len(sentences(path)[0]) == 3


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("a.csv", "id,text\n1,Good.\n", InputError, "expected text, got a table of columns by its name"),
        ("a.tsv.gz", "", InputError, "expected text, got a table of columns by its name"),
        ("a.pdf", "%PDF-1.4\n", DataError, "got a PDF; pdftotext makes text of it"),
        ("a.xml", '\ufeff<?xml version="1.0"?>\n<p>A.</p>\n', DataError, "got XML"),
        ("a.html", "<!DOCTYPE html>\n<p>A.</p>\n", DataError, "got HTML"),
        ("a.htm", "\ufeff <!Doctype HTML>\n<p>A.</p>\n", DataError, "got HTML"),
        ("page", "  <HTML lang='en'>\n<p>A.</p>\n", DataError, "got HTML"),
        ("CC-MAIN.warc.wet", "WARC/1.0\r\nWARC-Type: warcinfo\r\n", DataError, "got a web archive"),
    ],
)
def test_what_is_no_text(tmp_path, name, content, kind, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(kind, match=message):
        sentences(tmp_path / name)


@pytest.mark.parametrize(("blank", "warned"), [("\n", True), ("", False)])
def test_documents_of_one_sentence_make_no_pairs(tmp_path, caplog, blank, warned):
    text, vocab = tmp_path / "a.txt", tmp_path / "vocab.txt"
    text.write_text("".join(f"a book .\n{blank}" for _ in range(9)) + "\na book .\na book .\n")
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "book", "."]) + "\n")
    prepare([text], vocab, tmp_path / "data")
    assert ("11 sentences in 10 documents: nearly all pairs" in caplog.text) == warned


@pytest.mark.parametrize("width", [72, 10_000])
def test_lines_that_were_broken_to_fit_a_page_are_told_of(tmp_path, caplog, width):
    """Each would be a sentence, and each paragraph a document."""
    paragraph = "a book and a very long text of more than one line " * 8 + "."
    text, vocab = tmp_path / "a.txt", tmp_path / "vocab.txt"
    text.write_text("\n\n".join(textwrap.fill(paragraph, width) + "\nA book ." for _ in range(100)))
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *set(paragraph.split())]) + "\n")
    prepare([text], vocab, tmp_path / "data")
    found = [message for message in caplog.messages if message.startswith(f"{text}:")]
    assert ["most lines end within a sentence" in message for message in found] == [True] * (width == 72)
