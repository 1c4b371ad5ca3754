"""GLUE's metrics: cases worked by hand, and what is undefined."""

import math
import warnings

import numpy as np
import pytest
from scipy.stats import rankdata

from fastbert import BertConfig
from fastbert.errors import InputError
from fastbert.tasks import metrics, registry
from fastbert.tasks.base import Row


def rows(labels):
    return [Row(str(i), ("a", "b"), label) for i, label in enumerate(labels)]


# Right positives 3, wrong positives 1, missed 2, right negatives 4.
GOLD = ["1"] * 5 + ["0"] * 5
FOUND = ["1", "1", "1", "0", "0", "1", "0", "0", "0", "0"]


def test_by_hand():
    assert metrics.accuracy(GOLD, FOUND) == 7 / 10
    # precision 3/4, recall 3/5
    assert metrics.f1(GOLD, FOUND, "1") == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert metrics.f1(GOLD, FOUND, "0") == pytest.approx(2 * 4 / (2 * 4 + 2 + 1))
    assert metrics.matthews(GOLD, FOUND) == pytest.approx((3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))
    # Deviations (-1.5, -.5, .5, 1.5) and (-2, 0, -1, 3) of (1, 3, 2, 6): 7 over the root of 5 times 14.
    assert metrics.pearson([1, 2, 3, 4], [1, 3, 2, 6]) == pytest.approx(7 / math.sqrt(5 * 14))
    # Rank differences 0, 1, 1, 0: 1 - 6 * 2 / (4 * 15).
    assert metrics.spearman([1, 2, 3, 4], [1, 3, 2, 60]) == pytest.approx(0.8)
    # A tie shares its rank: (1, 2.5, 2.5, 4) against (1, 2, 3, 4) is 4.5 over the root of 5 times 4.5.
    assert metrics.spearman([1, 2, 3, 4], [1, 2, 2, 3]) == pytest.approx(4.5 / math.sqrt(5 * 4.5))


@pytest.mark.parametrize("found", [["1"] * 10, ["0"] * 10])
def test_one_answer_for_all_has_no_matthews_correlation(found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.matthews(GOLD, found) == 0
        assert metrics.matthews(found, GOLD) == 0
        assert metrics.matthews(found, found) == 0


def test_f1_of_a_label_that_never_occurs_is_zero():
    assert metrics.f1(["0", "0"], ["0", "0"], "1") == 0
    assert metrics.f1(["1", "1"], ["0", "0"], "1") == 0


@pytest.mark.parametrize("correlation", [metrics.pearson, metrics.spearman])
@pytest.mark.parametrize(
    ("gold", "found"),
    [
        ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]),
        ([1.0, 1.0], [1.0, 2.0]),
        ([1.0], [2.0]),
        ([1.0, 2.0], [math.nan, 1.0]),
        ([1.0, 2.0, 3.0], [1.0, math.inf, 2.0]),  # which has ranks
    ],
)
def test_an_undefined_correlation_is_zero_and_quiet(correlation, gold, found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert correlation(gold, found) == 0.0
        assert metrics.pearson([1.0, 2.0, 3.0], [1.7e308, 1.6e308, 1.5e308]) == 0.0  # their mean overflows


def test_turned_round_and_perfect():
    values = [0.0, 1.5, 2.0, 5.0]
    for correlation in (metrics.pearson, metrics.spearman):
        assert correlation(values, values) == pytest.approx(1)
        assert correlation(values, [-v for v in values]) == pytest.approx(-1)
    assert metrics.matthews(GOLD, GOLD) == 1
    assert metrics.matthews(GOLD, [{"0": "1", "1": "0"}[g] for g in GOLD]) == -1


def test_spearman_is_pearson_of_ranks():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, (2, 300)).astype(float)
    assert metrics.spearman(a, b + a) == pytest.approx(np.corrcoef(rankdata(a), rankdata(b + a))[0, 1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cola", {"matthews": 10 / math.sqrt(600), "accuracy": 0.7}),
        ("mrpc", {"accuracy": 0.7, "f1": 6 / 9}),
        ("qqp", {"accuracy": 0.7, "f1": 6 / 9}),
        ("sst2", {"accuracy": 0.7}),
        ("wnli", {"accuracy": 0.7}),
    ],
)
def test_each_task_has_its_metrics_the_first_picks_the_best(name, expected):
    task = registry.get(name)
    assert task.metric(rows(GOLD), FOUND) == pytest.approx(expected)
    assert task.metrics == tuple(expected)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("cola", ["unacceptable", "acceptable"]),
        ("sst2", ["negative", "positive"]),
        ("mrpc", ["not_equivalent", "equivalent"]),
        ("qqp", ["not_duplicate", "duplicate"]),
        ("mnli", ["entailment", "neutral", "contradiction"]),
        ("qnli", ["entailment", "not_entailment"]),
        ("rte", ["entailment", "not_entailment"]),
        ("wnli", ["not_entailment", "entailment"]),
    ],
)
def test_classes_have_glues_names_in_glues_order(name, names):
    """What a written model calls its classes, for whoever reads its logits."""
    config = BertConfig.from_name("tiny", **registry.get(name).head())
    assert config.id2label == dict(enumerate(names))
    assert config.label2id == {word: index for index, word in enumerate(names)}


def test_words_for_labels():
    for name in ("rte", "qnli", "mnli"):
        assert registry.get(name).metric(rows(["entailment"] * 4), ["entailment"] * 3 + ["x"]) == {"accuracy": 0.75}


def test_similarity():
    found = registry.get("stsb").metric(rows([1.0, 2.0, 3.0, 4.0]), [1.0, 3.0, 2.0, 6.0])
    assert found == pytest.approx({"pearson": 7 / math.sqrt(70), "spearman": 0.8})


def test_a_model_on_another_scale_is_told_once(caplog):
    """A cross-encoder's outputs are numbers that a sigmoid follows; cut to STS-B's bounds, most are alike."""
    others, own = [np.array([x]) for x in np.linspace(-1.5, 5, 12)], [np.array([x]) for x in np.linspace(-0.5, 5.5, 12)]

    def said(outputs, name="stsb", trained=True):
        task = registry.get(name)
        if trained:
            task.restore(BertConfig())
        caplog.clear()
        for _ in range(2):
            task.decode([], [], outputs)
        return caplog.messages

    [message] = said(others)
    assert message.startswith("expected a model of numbers from 0 to 5, got 3 of 12 predictions beyond")
    # Some are always a little beyond; a head that training begins with is on no scale; other numbers have no bounds.
    assert said(own) == said(others[:9]) == said(others, trained=False) == said(others, "text-regression") == []


def test_knowing_nothing():
    task = registry.get("mrpc")
    assert task.guess(rows(["1", "0", "1"])) == ["1"] * 3
    assert registry.get("stsb").guess(rows([1.0, 2.0, 4.5])) == [2.5] * 3
    assert registry.get("stsb").metric(rows([1.0, 2.0]), [2.5] * 2) == {"pearson": 0.0, "spearman": 0.0}


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.metrics", None)
    with pytest.raises(InputError, match=r"needs sklearn.*not installed: pip install 'fastbert\[tasks\]'"):
        metrics.f1(GOLD, FOUND, "1")
