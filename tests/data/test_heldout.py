"""What `prepare` says of held-out documents; a document that is read in parts is one document."""

from __future__ import annotations

import pytest

from fastbert.data import corpus
from fastbert.data import prepare as module
from fastbert.data.prepare import prepare
from fastbert.errors import DataError

LONG = "\n".join(["held line"] * 60)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Prepares a text whose documents are cut into parts of at most 200 characters."""
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_CHARS", 200)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "held", "line", "learnt"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")

    def make(text, heldout):
        (tmp_path / "a.txt").write_text(text)
        return prepare(tmp_path / "a.txt", tmp_path / "vocab.txt", tmp_path / "data", heldout=heldout, overwrite=True)

    return make


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LONG, "expected a document for each of two splits, got 1 in all; give more documents ("),
        (
            f"{LONG}\n\n{LONG} learnt",
            "expected some of the 2 documents for each of two splits, got none for heldout; each is put into a split "
            "by a hash of its text: give a larger share, or more documents (",
        ),
    ],
    ids=["one", "two"],
)
def test_documents_are_counted_and_not_their_parts(made, text, said):
    """The "3 documents" of the message were the parts of one, which no share can divide."""
    with pytest.raises(DataError) as caught:
        made(text, 1e-9)
    assert str(caught.value) == f"heldout = 1e-09: {said}in text, put a blank line between them)"


def test_a_document_that_is_most_of_what_is_held_out_is_told(made, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "is_heldout", lambda lines, share: lines[0].startswith("held"))
    short = f"held {'line ' * 50}".strip()
    made(f"learnt\n\n{LONG}\n\n{short}", 0.02)
    share = 100 * len(LONG.replace("\n", "")) / len(LONG.replace("\n", "") + short)
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path / 'data'}: a single document, {tmp_path / 'a.txt'}:3, is {share:.0f} % of the")
    caplog.clear()
    made(f"learnt\n\n{LONG}\n\n{LONG}", 0.02)
    made(f"learnt\n\n{LONG}", {f"{tmp_path / 'a.txt'}:3"})  # who gives names knows these documents
    assert not caplog.messages
