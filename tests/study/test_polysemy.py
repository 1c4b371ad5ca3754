"""The polysemy test on vectors whose answers are known, and on a model."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import tiny_bert

import fastbert
from fastbert.errors import DataError, InputError
from fastbert.study import polysemy
from fastbert.study.polysemy import Use


def uses(senses: str, word: str = "bank") -> list[Use]:
    return [Use(word, sense, f"{number} the {word}") for number, sense in enumerate(senses)]


def test_sentences_are_eight_for_each_of_two_senses_and_all_different():
    found = polysemy.read_uses()
    counts = Counter((use.word, use.sense) for use in found)
    assert set(counts.values()) == {8}
    words = Counter(word for word, _ in counts)
    assert len(words) >= 6
    assert set(words.values()) == {2}
    assert {"bank", "play", "spring"} <= set(words)
    assert len({use.sentence for use in found}) == len(found)


def test_figures_by_hand():
    """Unit vectors at 0, 90, 0 and 180 degrees; a, a, b, b."""
    vectors = np.array([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0], [-1.0, 0.0]])
    found = polysemy.separate("by hand", uses("aabb"), vectors)
    # Nearest of the 1st is the 3rd (b, wrong), of the 2nd all three alike (1 of 3 is an a), of the 3rd the 1st (wrong),
    # of the 4th the 2nd (wrong).
    assert found.accuracy == pytest.approx((0 + 1 / 3 + 0 + 0) / 4)
    assert found.chance == pytest.approx(1 / 3)
    # Distances 1st: a 1; b mean(0, 2) = 1 -> 0.  2nd: 1; mean(1, 1) -> 0.  3rd: 2; mean(0, 1) = 1/2 -> -3/4.
    # 4th: 2; mean(2, 1) = 3/2 -> -1/4.
    assert found.silhouette == pytest.approx((0 + 0 - 0.75 - 0.25) / 4)
    first = found.neighbours[0]
    assert (first.nearest, first.nearest_sense, first.cosine) == ("2 the bank", "b", pytest.approx(1.0))


def test_senses_that_stand_apart_and_a_vector_that_never_changes():
    own = uses("aaaaaaaabbbbbbbb")
    apart = np.array([[1.0, 0.01 * n, 0.0] if n < 8 else [0.0, 0.01 * n, 1.0] for n in range(16)])
    found = polysemy.separate("knows", own, apart)
    assert found.accuracy == 1.0
    assert found.silhouette > 0.9
    points = np.array(found.points)
    assert max(points[:8, 0]) < min(points[8:, 0]) or min(points[:8, 0]) > max(points[8:, 0])
    # Sums in another order leave other last bits; they say nothing of a sense.
    noise = 1e-7 * np.random.default_rng(0).standard_normal((16, 3))
    static = polysemy.separate("static", own, np.array([[3.0, -1.0, 2.0]]) + noise)
    assert static.accuracy == pytest.approx(7 / 15)
    assert static.chance == pytest.approx(7 / 15)
    assert static.silhouette == 0.0
    assert np.abs(static.points).max() == 0.0


def test_report_and_picture(tmp_path):
    def knows(sentences, word):
        senses = {use.sentence: use.sense for use in polysemy.read_uses() if use.word == word}
        kinds = sorted(set(senses.values()))
        return np.eye(2)[[kinds.index(senses[sentence]) for sentence in sentences]]

    models = {"static": lambda sentences, word: np.ones((len(sentences), 4)), "oracle": knows}
    found = polysemy.compare(models, tmp_path / "out", words=["bank", "play"])
    assert found.means()["oracle"] == {"accuracy": 1.0, "chance": pytest.approx(7 / 15), "silhouette": 1.0}
    assert found.means()["static"]["accuracy"] == pytest.approx(7 / 15)
    assert [path.name for path in found.paths] == ["polysemy.json", "polysemy.tsv", "polysemy.png"]
    assert found.paths[2].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in found.paths)
    lines = found.paths[1].read_text().splitlines()
    assert lines[0].split("\t") == ["word", "static 1-NN", "static silhouette", "oracle 1-NN", "oracle silhouette"]
    assert lines[-1].split("\t") == ["mean", "0.4667", "0.0000", "1.0000", "1.0000"]
    written = json.loads(found.paths[0].read_text())
    assert written["means"] == found.means()
    assert len(written["separations"]) == 4
    assert len(written["separations"][0]["neighbours"]) == 16


def test_what_does_not_fit():
    knows_nothing = {"m": lambda sentences, word: np.ones((len(sentences), 2))}
    with pytest.raises(InputError, match="word must be one of bank"):
        polysemy.compare(knows_nothing, words=["zebra"])
    with pytest.raises(InputError, match="expected models to compare, got none"):
        polysemy.compare({})
    for senses, said in (("aaaa", "got a 4"), ("aab", "got a 2, b 1")):
        with pytest.raises(InputError, match=f"two senses of 'bank' with at least two sentences each, {said}"):
            polysemy.compare(knows_nothing, uses=uses(senses))
    with pytest.raises(InputError, match=r"m must give 16 finite vectors for 'bank', got shape \(1, 2\)"):
        polysemy.compare({"m": lambda sentences, word: np.ones((1, 2))}, words=["bank"])
    with pytest.raises(DataError, match="expected the word 'bank' once in a sentence, got 2"):
        polysemy.word_span("from bank to bank", "bank")
    assert polysemy.word_span("Spring: the springs", "spring") == (0, 6)
    assert polysemy.word_span("is C++, and not ObjC++", "C++") == (3, 6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        ("\ufeffword\tsense\tsentence\n\nC++\ta\tuse C++ now\n\n", None),
        ("wort\tsense\tsentence\nbank\ta\tthe bank\n", r"line 1: expected the header \['word', 'sense', 'sentence'\]"),
        ("word\tsense\tsentence\nbank\ta\n", "line 2: expected 3 columns, separated by tabs, got"),
        ("word\tsense\tsentence\nbank\ta\tthe bank\tx\n", "line 2: expected 3 columns"),
        ("word\tsense\tsentence\nbank\ta\tthe river\n", "expected the word 'bank' once"),
    ],
)
def test_a_file_of_ones_own_words(tmp_path, text, said):
    path = tmp_path / "mine.tsv"
    path.write_text(text)
    if said is None:
        assert [use.word for use in polysemy.read_uses(path)] == ["C++"] * bool(text)
        return
    with pytest.raises(DataError, match=said):
        polysemy.read_uses(path)


def test_a_file_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "mine.tsv").write_bytes(b"word\tsense\tsentence\ncaf\xe9\ta\tcaf\xe9\n")
    with pytest.raises(DataError, match=r"mine.tsv, line 2: expected UTF-8, got 0xe9"):
        polysemy.read_uses(tmp_path / "mine.tsv")


def test_every_sense_is_in_the_picture(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, scatter = [], Axes.scatter
    monkeypatch.setattr(
        Axes, "scatter", lambda self, *args, **more: drawn.append(more["label"]) or scatter(self, *args, **more)
    )
    polysemy.compare({"m": lambda sentences, word: np.eye(len(sentences))}, tmp_path / "out", uses=uses("abcdefgh" * 2))
    assert drawn == list("abcdefgh")


def test_a_models_vector_of_a_word_is_the_mean_of_its_pieces(tmp_path):
    vocabulary = [*tiny_bert.VOCAB, "bo", "##ok"]
    vocabulary.remove("book")
    directory = tiny_bert.save(tmp_path, "BertModel", vocab=vocabulary)
    model = fastbert.BertModel.from_pretrained(directory, add_pooling_layer=False)
    embed = polysemy.word_embedder(model, fastbert.load_tokenizer(directory))
    sentences = ["the book is good .", "very bad ,book."]  # a mark is no piece of the word beside it
    found = embed(sentences, "book")
    ids = [[vocabulary.index(t) for t in ("[CLS]", *text.split(), "[SEP]")] for text in
           ("the bo ##ok is good .", "very bad , bo ##ok .")]  # fmt: skip
    for vector, row, at in zip(found, ids, (2, 4), strict=True):
        hidden = model(fastbert.PackedBatch.from_sequences([row])).last_hidden_state.detach().numpy()
        np.testing.assert_allclose(vector, hidden[at : at + 2].mean(0), atol=1e-5)
