"""examples/semantic_search.py as a user runs it."""

from __future__ import annotations

import importlib.util
import io
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_bert import save

from fastbert import SentenceEncoder

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "semantic_search.py"
TEXTS = ["the film is good", "", "a book of the capital of france", "the film is bad and dull", "paris , in france !"]


spec = importlib.util.spec_from_file_location("semantic_search_example", SCRIPT)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "model", "BertModel")
    (tmp_path / "texts.txt").write_text("\ufeff" + "\r\n".join(TEXTS) + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def search(monkeypatch, capsys):
    """Runs the program with words of a command line; a model of the desk's unless they name another."""

    def run(*words, stdin: str = "") -> SimpleNamespace:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        try:
            code = example.main(["--model", "model", *map(str, words)])
        except SystemExit as done:
            code = done.code
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return run


def nearest(desk: Path, question: str) -> list[tuple[int, str]]:
    """The lines by cosine, from the vectors themselves."""
    encoder = SentenceEncoder.from_pretrained(desk / "model")
    lines = [(number, text) for number, text in enumerate(TEXTS, 1) if text]
    vectors = encoder.encode([question, *(text for _, text in lines)]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [lines[i] for i in np.argsort(-(vectors[1:] @ vectors[0]))]


def test_the_nearest_lines_come_first(desk, search):
    done = search("texts.txt", "the film is good", "france", "--top", 3)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "? the film is good"
    assert lines[1] == " 1.0000  line 1: the film is good"
    for start, question in ((0, "the film is good"), (4, "france")):
        found = [line.split("line ")[1] for line in lines[start + 1 : start + 4]]
        assert found == [f"{number}: {text}" for number, text in nearest(desk, question)[:3]]
    # More than there are, and questions on standard input: one search each.
    again = search("texts.txt", "--top", 9, stdin="france\n\nparis\n")
    assert again.stdout.count("line ") == 8
    assert again.stdout.count("? ") == 2


@pytest.mark.parametrize("top", [1, 2, 5, 40, 41, 99])
def test_of_equally_near_lines_the_first_come_first(top):
    scores = np.random.default_rng(0).integers(0, 6, 40).astype(np.float32)
    assert example.nearest(scores, top).tolist() == np.argsort(-scores, kind="stable")[:top].tolist()


@pytest.mark.parametrize("place", [".", "model"], ids=["beside the texts", "beside the model"])
def test_the_index_is_kept_and_made_anew_when_the_text_changes(desk, search, monkeypatch, place):
    words = ("texts.txt", "paris", "--index", f"{place}/texts.npy")
    first = search(*words)
    assert first.returncode == 0, first.stderr
    assert np.load(desk / place / "texts.npy").shape == (4, 32)
    assert sorted(path.name for path in desk.rglob("texts*")) == ["texts.npy", "texts.npy.json", "texts.txt"]
    with monkeypatch.context() as patched:
        patched.setattr(example, "encode_all", lambda *_: pytest.fail("it encoded the texts again"))
        assert search(*words).stdout == first.stdout
    with open(desk / "texts.txt", "a", encoding="utf-8") as file:
        file.write("paris\n")
    changed = search(*words, "--top", 1)
    assert changed.stdout.splitlines()[1] == " 1.0000  line 6: paris"


def test_the_index_is_made_anew_when_it_is_damaged_or_another_model_lies_there(desk, search):
    words = ("texts.txt", "the film is good", "--index", "texts.npy")
    first = search(*words)
    for name in ("texts.npy", "texts.npy.json"):
        (desk / name).write_bytes(b"{ damaged")
        assert search(*words).stdout == first.stdout
    save(desk / "model", "BertModel", hidden_size=16)
    again = search(*words)
    assert again.returncode == 0, again.stderr
    assert np.load(desk / "texts.npy").shape == (4, 16)


def test_vectors_of_another_program_in_place_of_the_index_are_not_taken(desk, search):
    first = search("texts.txt", "paris", "--index", "texts.npy")
    np.save(desk / "texts.npy", np.load(desk / "texts.npy")[::-1])
    assert search("texts.txt", "paris", "--index", "texts.npy").stdout == first.stdout


def test_the_texts_are_not_overwritten_by_their_index(desk, search):
    (desk / "texts.npy").write_text("paris\n")
    done = search("texts.npy", "paris", "--index", "../" + desk.name + "/texts.npy")
    assert done.returncode == 2
    assert "--index must be another file than the texts" in done.stderr
    assert (desk / "texts.npy").read_text() == "paris\n"


def test_options_between_the_file_and_the_questions(desk, search):
    done = search("texts.txt", "--top", 1, "france", "paris")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("?")] == ["? france", "? paris"]


def test_the_index_is_made_anew_for_another_precision(desk, search):
    search("texts.txt", "paris", "--index", "texts.npy")
    kept = np.load(desk / "texts.npy")
    done = search("texts.txt", "paris", "--index", "texts.npy", "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    assert not np.array_equal(np.load(desk / "texts.npy"), kept)


def test_of_lines_that_are_equally_near_the_first_come_first():
    vectors = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [1, 0]], dtype=np.float32)
    encoder = SimpleNamespace(encode=lambda questions, **_: np.array([[1, 0]] * len(questions), dtype=np.float32))
    for top in (3, 9):
        [found] = example.search(encoder, vectors, ["a question"], top)
        assert found == [(1.0, 1), (1.0, 3), (1.0, 4), (0.0, 0), (0.0, 2)][:top]
    [found] = example.search(encoder, np.tile(vectors[:2], (30, 1)), ["a question"], 5)
    assert found == [(1.0, 1), (1.0, 3), (1.0, 5), (1.0, 7), (1.0, 9)]


def test_an_index_of_other_sizes_is_made_anew(desk, search):
    first = search("texts.txt", "paris", "--index", "texts.npy")
    np.save(desk / "texts.npy", np.zeros((4, 5), dtype=np.float32))
    assert search("texts.txt", "paris", "--index", "texts.npy").stdout == first.stdout
    assert np.load(desk / "texts.npy").shape == (4, 32)


@pytest.mark.parametrize(("document", "default"), [("the book : ", None), ("", "query")])
def test_prompts_for_questions_and_texts(desk, search, document, default):
    """A model that was trained with them: the cosines are those of sentence-transformers' two ways to encode."""
    library = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    model = library.SentenceTransformer(str(desk / "model"), device="cpu")
    model.prompts = {"query": "is it good , ", "document": document}
    model.default_prompt_name = default
    model.save(str(desk / "prompted"))
    done = search("texts.txt", "france", "--top", 9, "--model", "prompted")
    lines = [text for text in TEXTS if text]
    scores = model.encode_document(lines, normalize_embeddings=True) @ model.encode_query(
        "france", normalize_embeddings=True
    )
    got = [(float(line[:8]), line.split(": ", 1)[1]) for line in done.stdout.splitlines()[1:]]
    assert [text for _, text in got] == [lines[i] for i in np.argsort(-scores)]
    np.testing.assert_allclose([score for score, _ in got], -np.sort(-scores), atol=1e-4)


def test_letters_that_the_output_cannot_write(desk, monkeypatch):
    (desk / "texts.txt").write_text("the café\n", encoding="utf-8")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    assert example.main(["--model", "model", "texts.txt", "é"]) == 0
    out.flush()
    question, answer = out.buffer.getvalue().splitlines()
    assert question == rb"? \xe9"
    assert answer.endswith(rb"line 1: the caf\xe9")


def test_a_file_of_the_users_beside_the_index_stays(desk, search):
    (desk / "texts.json").write_text("the film is good\n")
    for _ in range(2):
        assert search("texts.json", "paris", "--index", "texts.npy").returncode == 0
    assert (desk / "texts.json").read_text() == "the film is good\n"


@pytest.mark.parametrize(("encoding", "errors"), [("utf-8", "strict"), ("utf-8", "surrogateescape"), ("latin-1", None)])
def test_questions_that_are_no_utf8_are_one_sentence(desk, monkeypatch, capsys, encoding, errors):
    """Whatever Python makes of standard input in the user's locale; without one (C) it lets other bytes pass."""
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding=encoding, errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)
    assert example.main(["--model", "model", "texts.txt"]) == 2
    assert capsys.readouterr().err.startswith("error: standard input: expected UTF-8, got ")


def test_questions_with_a_byte_order_mark_or_of_a_closed_input(desk, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfparis\n"), encoding="latin-1"))
    assert example.main(["--model", "model", "texts.txt"]) == 0
    assert capsys.readouterr().out.startswith("? paris\n")
    monkeypatch.setattr("sys.stdin", None)
    assert example.main(["--model", "model", "texts.txt"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.txt", "x"], "error: missing.txt: No such file or directory\n"),
        (["empty.txt", "x"], "expected lines of text, got none"),
        (["texts.txt", "x", "--model", "nowhere"], "nowhere"),
        (["texts.txt", "x", "--top", 0], "--top must be at least 1"),
        (["texts.txt", "x", "--index", "nowhere/texts.npy"], "No such file or directory: 'nowhere"),
    ],
)
def test_bad_input_is_one_sentence(desk, search, words, said):
    (desk / "empty.txt").write_text("\n\n")
    done = search(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_index_that_cannot_be_written_is_told_before_the_long_work(desk, search, monkeypatch):
    monkeypatch.setattr(example, "encode_all", lambda *_: pytest.fail("it encoded all texts first"))
    (desk / "there.npy").mkdir()
    for path, said in (("nowhere/texts.npy", "No such file or directory"), ("there.npy", "got a directory")):
        done = search("texts.txt", "x", "--index", path)
        assert done.returncode == 2
        assert said in done.stderr


def test_work_that_is_interrupted_leaves_the_index(desk, search, monkeypatch):
    search("texts.txt", "x", "--index", "texts.npy")
    before = {path.name: path.read_bytes() for path in desk.glob("*.npy*")}
    (desk / "texts.txt").write_text("paris\n")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(example, "encode_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search("texts.txt", "x", "--index", "texts.npy")
    assert {path.name: path.read_bytes() for path in desk.glob("*.npy*")} == before


def test_a_reader_that_has_gone_is_no_error(desk, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert example.main(["--model", "model", "texts.txt", "a good film"]) == 141
    assert capsys.readouterr().err == ""
