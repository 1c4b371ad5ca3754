"""SQuAD's metrics against what the official evaluation printed, and by hand."""

import json
import sys

import pytest

from fastbert.tasks.squad_metrics import best_thresholds, exact, f1, figures_v1, figures_v2, normalise, score_v2

# From Python 3.12 on sum() makes up for what rounding loses, in the official script too.
_COMPENSATED = sys.version_info >= (3, 12)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat's-hat.", "cats hat".replace(" ", "")),  # no blank in place of the hyphen
        ("an a the theatre", "theatre"),
        ("a.the b", "athe b"),  # punctuation goes first, and joins an article to what was beside it
        ("A\u2013The B", "\u2013 b"),  # an en dash is no ASCII punctuation: it stays, and parts words
        ("\t\n the ", ""),
        ("L'été", "lété"),
    ],
)
def test_normalise(text, normal):
    assert normalise(text) == normal


def test_f1_counts_a_word_as_often_as_it_occurs():
    # 2 of the 3 predicted words and 2 of the 4 in the reference: P = 2/3, R = 1/2, F1 = 4/7.
    assert f1("x x y z", "x x x", empty_matches=False) == pytest.approx(4 / 7, abs=1e-15)
    assert exact("The cat", "cat!") == 1
    assert f1("the", "", empty_matches=True) == 1
    assert f1("the", "", empty_matches=False) == 0
    assert f1("cat", "", empty_matches=True) == 0


def test_v1_by_hand():
    figures = figures_v1([["cat", "black cat"], ["dog"], ["x"], ["y"]], ["the black cat", "a big dog", None, "y"])
    # Exact: 1, 0, 0, 1. F1: 1, 2 * (1/2) * 1 / (3/2) = 2/3, 0, 1.
    assert figures == {"exact_match": 50.0, "f1": pytest.approx(100 * (8 / 3) / 4)}


def test_v2_by_hand():
    references = [["cat"], ["dog"], [], [], ["owl"]]
    figures = figures_v2(references, ["cat", "big dog", "", "fish", None])
    assert figures["total"] == 4  # a question without a prediction is left out
    assert (figures["exact"], figures["f1"]) == (50.0, pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4))
    assert (figures["HasAns_exact"], figures["HasAns_total"]) == (50.0, 2)
    assert (figures["NoAns_exact"], figures["NoAns_f1"], figures["NoAns_total"]) == (50.0, 50.0, 2)
    # A probability above the threshold is "no answer": the first question is lost, the fourth won.
    figures = figures_v2(references, ["cat", "big dog", "", "fish", None], [1.5, 1.0, 0, 2, 9])
    assert figures["exact"] == 50.0
    assert figures["f1"] == pytest.approx(100 * (0 + 2 / 3 + 1 + 1) / 4)


def test_references_without_words_do_not_count():
    assert score_v2(["the", "cat"], "") == (0, 0)
    assert score_v2(["the"], "") == (1, 1)


def test_best_threshold_by_hand():
    references, predictions = [["cat"], ["dog"], [], []], ["cat", "a bird", "fish", ""]
    # All "no answer": 2 of 4. Taking questions in by rising probability: cat +1 = 3 (0.1), fish -1 = 2 (0.3),
    # bird +0 (0.5), the empty one +0 (0.9).
    figures = best_thresholds(references, predictions, [0.1, 0.5, 0.3, 0.9])
    assert figures == {"best_exact": 75.0, "best_exact_thresh": 0.1, "best_f1": 75.0, "best_f1_thresh": 0.1}
    # Of one probability those that stand first in its file are taken in first.
    assert best_thresholds([["cat"], []], ["cat", "fish"], [0.5, 0.5], [0, 1])["best_exact"] == 100.0
    assert best_thresholds([["cat"], []], ["cat", "fish"], [0.5, 0.5], [1, 0])["best_exact"] == 50.0
    # Nothing is gained: the threshold that no answer passes.
    assert best_thresholds([[], ["x"]], ["y", "z"], [0.2, 0.4])["best_f1_thresh"] == 0.0


def references_of(path):
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    return {q["id"]: [a["text"] for a in q["answers"]] for a in data for p in a["paragraphs"] for q in p["qas"]}


def test_v1_is_the_official_result(shared_data):
    references = references_of(shared_data / "squad" / "dev-v1.1-articles01-36.json")
    predictions = json.loads((shared_data / "squad" / "oracle" / "predictions-v1.1.json").read_text(encoding="utf-8"))
    figures = figures_v1(list(references.values()), [predictions[name] for name in references])
    assert figures == {"exact_match": 86.56900160039395, "f1": 92.3233307610304}


def test_v2_is_the_official_result(shared_data):
    references = references_of(shared_data / "squad" / "dev-v2.0-part.json")
    oracle = shared_data / "squad" / "oracle"
    predictions, na_probs = (
        json.loads((oracle / name).read_text(encoding="utf-8"))
        for name in ("predictions-v2.0.json", "na-prob-v2.0.json")
    )
    given = list(references.values()), [predictions[n] for n in references], [na_probs[n] for n in references]
    assert figures_v2(*given) == {
        "exact": 56.6284342491331,
        "f1": 61.398025941847685 if _COMPENSATED else 61.39802594184766,
        "total": 3749,
        "HasAns_exact": 46.1671469740634,
        "HasAns_f1": 56.47331369221152 if _COMPENSATED else 56.47331369221137,
        "HasAns_total": 1735,
        "NoAns_exact": 65.64051638530287,
        "NoAns_f1": 65.64051638530287,
        "NoAns_total": 2014,
    }
    assert best_thresholds(*given) == {
        "best_exact": 54.20112029874633,
        "best_exact_thresh": 0.44,
        "best_f1": 58.543931516667485,
        "best_f1_thresh": 1.0,
    }
