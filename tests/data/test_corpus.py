"""Documents and sentences out of files; every error in one sentence with file and line."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastbert.data import corpus, corpus_rows
from fastbert.data.corpus import corpus_files, read_documents, read_raw_documents
from fastbert.data.sentences import segment_lines, split_sentences
from fastbert.errors import DataError, InputError


def sentences(*paths, **options):
    return [document.sentences for document in read_documents(paths, **options)]


def test_plain_text_one_sentence_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfOne here.\r\nTwo there.\n\n\n  \nThree.\nno end")
    assert sentences(path) == [["One here.", "Two there."], ["Three.", "no end"]]
    assert [d.name for d in read_documents([path])] == [f"{path}:1", f"{path}:6"]


def test_carriage_returns_alone_end_lines_too(tmp_path, monkeypatch):
    path = tmp_path / "mac.txt"
    path.write_bytes(b"One here.\rTwo.\r\rThree, a longer one.\rFour.")
    for limit in (1 << 20, 21):  # the file at once, and in pieces no longer than its longest line
        monkeypatch.setattr(corpus, "MAX_LINE_BYTES", limit)
        found = [document.sentences for document in read_documents([path])]
        assert found == [["One here.", "Two."], ["Three, a longer one.", "Four."]]
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 12)
    with pytest.raises(DataError, match=r"mac\.txt:4: expected lines of at most 12 bytes"):
        list(read_documents([path]))


def test_paragraphs_jsonl_gzip_directories(tmp_path):
    text = "Mr. Holmes came in. He sat down! “Why?” she asked.\nThen it was 3.5 miles. Off we went.\n"
    cut = ["Mr. Holmes came in.", "He sat down!", "“Why?” she asked.", "Then it was 3.5 miles.", "Off we went."]
    rows = json.dumps({"text": text, "id": 1}) + "\n\n" + json.dumps({"text": "A \ud800 b."}) + "\n"
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text(text, encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "sub" / "c.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "sub" / "d.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "picture.png").write_bytes(b"\0")
    (tmp_path / ".hidden.txt").write_text("no")
    assert [str(path.relative_to(tmp_path)) for path in corpus_files(tmp_path)] == [
        "a.jsonl",
        "b.txt",
        "sub/c.txt.gz",
        "sub/d.jsonl.gz",
    ]
    assert sentences(tmp_path) == [cut, ["A ? b."], cut, cut, cut, ["A ? b."]]


@pytest.mark.parametrize(
    "expected",
    [
        ["He met Dr. Watson at 5 p.m. yesterday.", "It rained."],
        ["J. K. Rowling wrote it.", "So did I.", "You know."],
        ["See Fig. 3 and No. 5 of the list.", "No.", "He left."],
        ['"Stop!" he cried.', "(It was late.)", "The U.S. Army came."],
        ["Wait... what is that?", "1984 was a year."],
        ["e.g. this one, i.e. that one, stays whole."],
    ],
)
def test_english_sentences(expected):
    assert split_sentences(" ".join(expected)) == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["Город основан в 1703 г. и был столицей.", "Население 5 млн. человек!", "Это много… но не всё."],  # noqa: RUF001
        ["Il vit env. à Lyon.", "Été comme hiver.", "“Arrêtez!” écria-t-il."],
        ["Il dit : «\u00a0Oui.\u00a0»", "Puis il partit.", "« Non », dit-elle.", "«Et moi?»", "Bien."],
        ["Hola.", "¿Cómo estás?", "¡Bien!", "Sí."],
        ["Er kam.", "„Ja.“", "Sie ging.", "»Nein.«", "Gut.", "›Komm!‹", "Nun.", "‚So.‘", "„Ab!“, rief er."],  # noqa: RUF001
        ["Han kom.", "”Ja.”", "Hon gick."],
        ["Ήρθε χθες.", "Έφυγε π.μ. αργά! ή όχι.", "Τέλος."],
    ],
    ids=["Russian", "French", "blanks inside quotes", "Spanish", "German", "Swedish", "Greek"],
)
def test_sentences_of_other_languages(expected):
    """None begins with a small letter, of whatever alphabet, and each language has quotes of its own."""
    assert split_sentences(" ".join(expected)) == expected


def test_abbreviations_between_blanks_of_any_kind():
    """Text from word processors has no-break spaces throughout."""
    sentences = ["He saw Dr. Smith and J. Austen.", "It rained."]
    for blank in ("\u00a0", "\t", "\u3000"):
        expected = [sentence.replace(" ", blank) for sentence in sentences]
        assert split_sentences(blank.join(expected)) == expected


@pytest.mark.parametrize(
    "text", ["." * 40_000, "." * 40_000 + " a", "X.\u00a0" * 50_000], ids=["marks", "no boundary", "abbreviations"]
)
def test_the_time_of_a_line_does_not_grow_with_its_square(text):
    """Rows of full stops stand in tables of contents and in web pages: one of 20,000 took five seconds."""
    began = time.process_time()
    assert split_sentences(text) == [text.strip()]
    assert time.process_time() - began < 5


def test_no_word_is_lost(shared_data):
    text = (shared_data / "corpus" / "books.txt").read_text(encoding="utf-8")[:1_000_000]
    for paragraph in text.split("\n"):
        assert " ".join(split_sentences(paragraph)).split() == paragraph.split()


def test_lines_that_are_sentences_stay_whole(shared_data):
    lines = ["A plain sentence.", "Another one.", "It is by A. B. Smith vs. Jones et al. In it he says so."] * 2
    assert segment_lines([*lines[:3], "More.", "And more.", "End."]) == [*lines[:3], "More.", "And more.", "End."]
    path = shared_data / "google_bert" / "sample_text.txt"  # Google's own: one sentence a line
    documents = [[line.strip() for line in part.split("\n") if line.strip()] for part in path.read_text().split("\n\n")]
    assert sentences(path) == [document for document in documents if document]


def refused(path, *words, error=DataError, **options):
    with pytest.raises(error) as caught:
        sentences(path, **options)
    for word in words:
        assert str(word) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("fine\ngrün\n".encode() + b"not \xff so\n")
    refused(path, f"{path}:3", "0xff")
    assert sentences(path, errors="replace") == [["fine", "grün", "not \ufffd so"]]
    path.write_bytes(b"text\nbin\0ary\n")
    refused(path, f"{path}:2", "NUL")
    refused(path, "NUL", errors="replace")
    with pytest.raises(InputError, match="'ignore'"):
        sentences(path, errors="ignore")


def test_other_forms_of_text_are_named(tmp_path):
    path = tmp_path / "a.txt"
    for content, said in (
        ("text\n".encode("utf-16"), "PowerShell"),
        (gzip.compress(b"text\n"), "gunzip"),
        (bz2.compress(b"text\n"), "bunzip2"),
        (lzma.compress(b"text\n"), "unxz"),
        (b"\x28\xb5\x2f\xfd\x24\x05\x29\0\0text\n", "unzstd"),
        (b"PAR1\x15\x04", "Parquet; pandas"),
        (b'<mediawiki xml:lang="en">\n', "WikiExtractor"),
    ):
        path.write_bytes(content)
        refused(path, f"{path}: expected text in UTF-8, got", said)
        refused(path, f"{path}: expected text in UTF-8, got", said, errors="replace")


ARTICLES = (
    '<doc id="12" url="https://xx.wikipedia.org/wiki?curid=12" title="Tea (drink)">\nTea (drink)\n\n'
    "Tea is a drink. It is hot.\nMany like it.\n\n</doc>\n"
    '<doc id="13" revid="7" url="u" title="A "quoted" title">\nA "quoted" title\n\nOne more.\n\nTea (drink)\n</doc>\n'
)


@pytest.mark.parametrize("name", ["wiki_00", "wiki.txt"])
def test_wikiextractors_articles(tmp_path, name):
    """Its tags are no text, and no blank line ends an article; elsewhere the same words are text."""
    path = tmp_path / name
    path.write_text(ARTICLES)
    read = [["Tea is a drink.", "It is hot.", "Many like it."], ["One more.", "Tea (drink)"]]
    assert sentences(path) == read
    assert [d.name for d in read_documents([path])] == [f"{path}:4", f"{path}:11"]
    path.write_text(f"Before.\n{ARTICLES}After.\n\n</doc>\n<doc of the house>\n")
    assert sentences(path) == [["Before."], *read, ["After."], ["</doc>", "<doc of the house>"]]


def test_wikitexts_articles(tmp_path):
    """Headings are no text, and no blank line ends an article; elsewhere the same words are text."""
    path = tmp_path / "wiki.train.tokens"
    text = " \n = Tea = \n \n Tea is a drink . \n \n = = History = = \n \n It is old . \n"
    text += " = = = In = 2 = = = \n \n It = hot . \n"
    path.write_text(f"{text} \n = A = B = \n \n One more . \n")
    assert sentences(path) == [["Tea is a drink .", "It is old .", "It = hot ."], ["One more ."]]
    assert [d.name for d in read_documents([path])] == [f"{path}:4", f"{path}:15"]
    path.write_text(f"Before.\n{text}")
    assert len(sentences(path)) > 5


def test_wikitexts_own_file_has_sixty_articles(shared_data):
    assert len(list(read_raw_documents([shared_data / "corpus" / "wikitext2_valid.txt"]))) == 60


def test_rows_of_json_under_a_name_without_a_suffix(tmp_path):
    """WikiExtractor's with --json; a text may begin with a brace, too."""
    path = tmp_path / "wiki_00"
    rows = [{"id": "12", "title": "Tea", "text": "Tea is a drink.\nMany like it."}, {"id": "13", "text": "One more."}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sentences(path) == [["Tea is a drink.", "Many like it."], ["One more."]]
    refused_rows = path.read_text() + "no row\n"
    path.write_text(refused_rows)
    refused(path, f"{path}:3", "expected a JSON object")
    for text in ("{1, 2} is a set.", '{"word": "text"}', "{" * 100_000):
        path.write_text(text + "\n")
        assert sentences(path) == [[text]]
        path.write_text(text + "\n\nNo row.\n")
        assert sentences(path) == [[text], ["No row."]]


@pytest.mark.parametrize("blank", ["", "\n \n"], ids=["at once", "after blank lines"])
@pytest.mark.parametrize(
    ("rows", "got"),
    [
        ([{"body": "Tea."}, {"body": "Rain."}], "['body']"),
        ([{"id": 1, "text": None}], "['id', 'text' (NoneType)]"),
        ([{"id": 1}, {"id": 2, "text": "Rain."}], "['id']"),
    ],
    ids=["another field", "null", "missing in the first"],
)
def test_rows_without_a_text_are_not_taken_for_text(tmp_path, rows, got, blank):
    """As `xzcat rows.jsonl.xz | fastbert prepare -` gives them, without a suffix that says what they are."""
    path = tmp_path / "rows"
    path.write_text(blank + "".join(json.dumps(row) + "\n" for row in rows))
    refused(path, f"{path}:{1 + blank.count(chr(10))}", f"a string field 'text', got fields {got}")


def test_rows_after_blank_lines(tmp_path):
    path = tmp_path / "rows"
    path.write_text('\n{"text": "Tea."}\n\n{"text": "Rain."}\n')
    assert sentences(path) == [["Tea."], ["Rain."]]


def test_a_text_that_is_no_string_is_told_by_its_type(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "text": ["a", "b"]}\n')
    refused(path, f"{path}:1", "a string field 'text', got fields ['id', 'text' (list)]")


def test_rows_of_json_in_files_called_json(tmp_path, caplog):
    """C4's and Dolma's are; beside them may be settings, which are called so too."""
    rows = [{"text": "Two.\nThree.", "url": "u"}, {"text": ""}, {"text": "Four."}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "c4-train.00001-of-01024.json.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "bom.json").write_text("\ufeff" + lines)
    (tmp_path / "state.json").write_text('{"text": 1}')
    (tmp_path / "info.json").write_text('{\n  "text": "a"\n}')
    with caplog.at_level("WARNING", logger="fastbert"):
        assert sentences(tmp_path) == [["Two.", "Three."], ["Four."]] * 2
    assert "2 files left out (info.json, state.json)" in caplog.text
    assert sentences(tmp_path / "c4-train.00001-of-01024.json.gz") == [["Two.", "Three."], ["Four."]]
    for name in ("state.json", "info.json"):
        refused(tmp_path / name, f"{tmp_path / name}: expected text, or JSON with an object", error=InputError)
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        sentences(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    writer = threading.Thread(target=(tmp_path / "pipe.json").write_text, args=(lines,), daemon=True)
    writer.start()
    assert sentences(tmp_path / "pipe.json") == [["Two.", "Three."], ["Four."]]


@pytest.mark.parametrize("name", ["content", "raw_content"])
def test_texts_by_the_names_that_oscar_and_redpajama_have_for_them(tmp_path, name):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({name: "One.\nTwo.", "text": None}) + "\n" + json.dumps({"text": "Three.", name: "No."}))
    assert sentences(path) == [["One.", "Two."], ["Three."]]


def parquet(path, texts, name="text"):
    table = pa.table({"id": list(range(len(texts))), name: pa.array(texts, pa.binary())})
    pq.write_table(table.set_column(1, name, table[name].cast(pa.string(), safe=False)), path)


def test_parquet(tmp_path, monkeypatch):
    path = tmp_path / "train-00000-of-00001.parquet"
    parquet(path, [b"One.\n\n Two. \n", b"", "Drei \u00e4.".encode()])
    assert sentences(tmp_path) == [["One.", "Two."], ["Drei \u00e4."]]
    assert [document.name for document in read_raw_documents([path])] == [f"{path}:1", f"{path}:3"]
    for count in (1, 2, 3):
        monkeypatch.setattr(corpus_rows, "_ROWS", count)
        assert len(sentences(path)) == 2
    seen = []
    list(read_raw_documents([path], on_bytes=seen.append))
    assert sum(seen) >= len("One.\n\n Two. \nDrei \u00e4.".encode())
    parquet(path, [b"fine", b"not \xff so"])
    refused(path, f"{path}:2: expected UTF-8, got byte 0xff at column 5 of the text")
    assert sentences(path, errors="replace") == [["fine"], ["not \ufffd so"]]
    parquet(path, [b"fine", None])
    refused(path, f"{path}:2: expected a text in the column 'text', got none")
    parquet(path, [b"fine"], "content")
    assert sentences(path) == [["fine"]]
    parquet(path, [b"fine"], "title")
    refused(path, f"{path}: expected a column 'text' of texts, got id, title")
    path.write_bytes(b"PAR1 and nothing more")
    refused(path, f"{path}: expected a Parquet file")


def test_a_column_of_parquet_has_texts_if_its_type_says_so(tmp_path):
    path = tmp_path / "a.parquet"

    def write(**columns):
        pq.write_table(pa.table(columns), path)

    write(text=pa.array(["a", "b", "a"]).dictionary_encode())  # pandas' categories
    assert sentences(path) == [["a"], ["b"], ["a"]]
    write(text=pa.array(["a"], pa.large_string()), content=["c"])
    assert sentences(path) == [["a"]]
    for other in ([1.5], [["a"]], [{"en": "a"}]):  # which is no text in JSON either
        write(text=other, raw_content=["c"])
        assert sentences(path) == [["c"]]
    write(id=[1], text=[2])
    refused(path, f"{path}: expected a column 'text' of texts, got id, text (int64)")


@pytest.mark.parametrize("content", [b"", b"\n\n \n", b"\xef\xbb\xbf"])
def test_empty(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    refused(path, path, "empty corpus")


def test_nothing_there(tmp_path):
    refused(tmp_path / "no.txt", "no.txt", error=InputError)
    refused(tmp_path, tmp_path, "got none")
    with pytest.raises(InputError, match="got none"):
        sentences()


@pytest.mark.parametrize("row", ["{", "[1]", '{"txt": "a"}', '{"text": 5}', "[" * 100_000, "null"])
def test_bad_rows(tmp_path, row):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + row + "\n")
    refused(path, f"{path}:2", "JSON")


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"plain", lambda b: b[:60] + b"????" + b[64:]])
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "a.txt.gz"
    whole = gzip.compress("\n".join(f"line {n * n}" for n in range(2000)).encode())
    path.write_bytes(damage(whole))
    refused(path, path, "gzip")


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_CHARS", 30)
    path = tmp_path / "a.txt"
    path.write_text("x" * 99 + "\n" + "y" * 101 + "\n")
    refused(path, f"{path}:2", "100 bytes")
    path.write_text("\n".join(f"number {n}." for n in range(10)) + "\n\nother.\n")
    documents = list(read_raw_documents([path]))
    assert [document.part for document in documents] == [0, 1, 2, 3, 0]
    assert [line for document in documents for line in document.lines] == [
        *(f"number {n}." for n in range(10)),
        "other.",
    ]
    assert all(sum(map(len, document.lines)) <= 30 for document in documents)


def test_progress_counts_every_byte(shared_data):
    path, seen = shared_data / "corpus" / "wikitext2_valid.txt", []
    for _ in read_raw_documents([path], on_bytes=seen.append):
        pass
    assert sum(seen) == path.stat().st_size
    assert len(seen) < 100


def test_kinds_are_told_whatever_the_case_and_others_are_named(tmp_path, caplog):
    row = json.dumps({"text": "One here."})
    for name in ("a.ndjson", "b.JSONL"):
        (tmp_path / name).write_text(row)
    (tmp_path / "c.TXT.GZ").write_bytes(gzip.compress(b"Two."))
    (tmp_path / "d.pdf").write_bytes(b"%PDF")
    with caplog.at_level("WARNING", logger="fastbert"):
        assert sentences(tmp_path) == [["One here."], ["One here."], ["Two."]]
    assert f"{tmp_path}: 1 file left out (d.pdf): neither .txt, .jsonl nor .parquet, or a" in caplog.text


def test_a_directory_of_other_files_says_how_they_are_read(tmp_path):
    with pytest.raises(DataError, match=r"in the directory, got none$"):
        corpus_files(tmp_path)
    (tmp_path / "notes.md").write_text("One here.")
    with pytest.raises(DataError, match=r"got none but notes\.md \(text in a file of another name is read if the file"):
        corpus_files(tmp_path)
    assert sentences(tmp_path / "notes.md") == [["One here."]]


def test_what_is_no_text_of_a_directory(tmp_path, caplog):
    """What fastbert wrote there, what a version control keeps there; links are followed, and not for ever."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "b.txt").write_text("Two.")
    corpus = tmp_path / "corpus"
    for name, text in {
        "a.txt": "One.",
        "words.txt": "[PAD]",
        "vocab.txt": "Three.",
        ".git/HEAD": "ref: refs/heads/main",
        "model/vocab.txt": "[PAD]",
        "model/tokenizer_config.json": "{}",
    }.items():
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_text(text)
    (corpus / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "deep" / "up").symlink_to(corpus)
    with caplog.at_level("WARNING", logger="fastbert"):
        found = corpus_files(corpus, tmp_path / "corpus" / ".." / "corpus" / "words.txt")
    assert [str(path.relative_to(corpus)) for path in found] == ["a.txt", "linked/deep/b.txt", "vocab.txt"]
    assert "3 files" in caplog.text
    assert "(model/tokenizer_config.json, model/vocab.txt, words.txt)" in caplog.text
    assert corpus_files([corpus / "words.txt"], corpus / "words.txt") == [corpus / "words.txt"]  # named by its user


@pytest.mark.parametrize("vocab", [".", "vocab.json", "vocab.txt"])
def test_the_files_of_the_given_vocabulary_are_no_text(tmp_path, vocab):
    """They were if it was given as the directory, or as byte pairs, whose merges are called .txt."""
    for name in ("a.txt", "merges.txt", "vocab.txt"):
        (tmp_path / name).write_text("One.")
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    no_text = {".": {"merges.txt", "vocab.txt"}, "vocab.json": {"merges.txt"}, "vocab.txt": {"vocab.txt"}}[vocab]
    found = {path.name for path in corpus_files(tmp_path, tmp_path / vocab)}
    assert found == {"a.txt", "merges.txt", "vocab.txt"} - no_text


def test_a_pipe_in_a_directory_is_not_waited_for(tmp_path, caplog):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("One.")
    os.mkfifo(corpus / "b")
    (corpus / "c.txt").symlink_to(corpus / "b")
    (corpus / "d.txt").symlink_to(tmp_path / "nowhere")
    assert corpus_files(corpus) == [corpus / "a.txt", corpus / "d.txt"]
    assert "2 files left out (b, c.txt)" in caplog.text
    assert corpus_files(corpus / "b") == [corpus / "b"]  # named by its user, who writes it too: `prepare <(zcat FILE)`


def test_a_file_that_is_found_again_is_left_out(tmp_path, caplog):
    """Whoever named a directory and one inside it had those files twice as often as the others."""
    first, second, link = tmp_path / "a.txt", tmp_path / "sub" / "b.txt", tmp_path / "sub" / "c.txt"
    second.parent.mkdir()
    for file in (first, second):  # the same text, but not the same file
        file.write_text("One.")
    link.symlink_to(first)
    assert sentences(tmp_path, second.parent, tmp_path / "sub" / ".." / "a.txt") == [["One."]] * 2
    assert caplog.messages == [
        f"corpus: 4 files left out ({link}, {second}, {link}, ...): given already, by the same path or another"
    ]


def test_pipes_and_devices_are_read_as_often_as_they_are_given(tmp_path, caplog):
    os.mkfifo(tmp_path / "pipe")
    given = [tmp_path / "pipe", Path("/dev/null")] * 2
    assert corpus_files(given) == given
    assert not caplog.messages


def test_a_directory_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    (tmp_path / "shut").mkdir()
    (tmp_path / "a.txt").write_text("One.")
    scandir = os.scandir

    def refuse(path):  # as for any user but root
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"shut: expected a directory that can be read, got: Permission denied"):
        corpus_files(tmp_path)
