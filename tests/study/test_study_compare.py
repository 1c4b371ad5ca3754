"""Means, spreads, orders and reasons, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from fastbert import svg
from fastbert.study import compare, page, results
from fastbert.study.compare import Figure
from fastbert.study.definition import TaskSpec

CLEAR = {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize(("task", "value", "figure"), [("ner", 0.5, 50.0), ("squad1", 88.5, 88.5), ("squad2", 77, 77)])
def test_figures_are_per_cent_as_the_papers(task, value, figure):
    """SQuAD's official ones are so already."""
    assert results.scaled(TaskSpec(column="c", task=task, train="t"), value) == figure


def one_pair(a: Figure, b: Figure) -> compare.Pair:
    (pair,) = compare.pairs("column", {"a": a, "b": b})
    return pair


def test_a_difference_in_units_of_its_standard_error():
    # Means 2 and 6, variances 1 and 4: the error is sqrt(1 / 3 + 4 / 3).
    pair = one_pair(Figure((1, 2, 3), 5.0), Figure((4, 6, 8), 4.0))
    assert pair.ours == -4
    assert pair.paper == 1
    assert pair.error == pytest.approx(math.sqrt(5 / 3), rel=1e-12)
    assert pair.errors == pytest.approx(-4 / math.sqrt(5 / 3), rel=1e-12)
    assert not pair.agrees


def test_one_seed_has_no_error_and_no_spread():
    figure = Figure((3.0,), 1.0)
    assert figure.sd is None
    assert one_pair(figure, Figure((4.0,), 2.0)).errors is None


def test_rows_without_a_figure_of_the_paper_or_with_equal_ones_have_no_order():
    figures = {"a": Figure((1, 2), 5.0), "b": Figure((1, 2), 5.0), "c": Figure((1, 2))}
    assert compare.pairs("column", figures) == []


def test_equal_figures_do_not_agree_with_an_order():
    assert not one_pair(Figure((1, 2), 5.0), Figure((1, 2), 4.0)).agrees


def test_figures_that_are_equal_but_for_the_last_bit_have_no_order():
    a, b = Figure((100 * 0.29,) * 2, 5.0), Figure((29.0,) * 2, 4.0)
    assert a.mean < b.mean
    pair = one_pair(a, b)
    assert (pair.ours, pair.errors, pair.agrees) == (0.0, 0.0, False)


def test_not_quite_two_standard_errors_are_not_said_to_be_two():
    # Variances of 4 and three seeds: the error is sqrt(8 / 3).
    a, b = Figure((58, 60, 62), 70, 20), Figure((60, 62, 64), 60, 20)
    shift = 1.97 * math.sqrt(8 / 3) - 2
    figures = {"a": a, "b": Figure(tuple(value + shift for value in b.values), 60, 20)}
    (pair,) = compare.pairs("column", figures)
    assert abs(pair.errors) == pytest.approx(1.97)
    assert "1.9 standard errors are under 2;" in compare.reason(pair, figures, CLEAR)
    assert [compare.shown(x, "+") for x in (-1.97, 1.94, 2.0, -2.04)] == ["-1.9", "+1.9", "+2.0", "-2.0"]


def test_seeds_that_all_answer_the_same_have_learned_nothing():
    guess = 100 * (437 / 872)
    figures = {"a": Figure((guess,) * 3, 80, guess), "b": Figure((guess,) * 3, 70, guess)}
    assert figures["a"].mean > guess  # by the last bit
    (pair,) = compare.pairs("column", figures)
    assert compare.reason(pair, figures, CLEAR).startswith("neither has learned the task")


@pytest.mark.parametrize(
    ("a", "b", "margins", "words"),
    [
        # 50 +- 1: the guess of 50 is within two errors of both.
        (Figure((49, 50, 51), 80, 50), Figure((50, 51, 52), 70, 50), CLEAR, "neither has learned the task"),
        (Figure((59, 60, 61), 80, 50), Figure((69, 70, 71), 70, 50), {"a": 0.1, "b": 2.0}, "hardly begun"),
        (
            Figure((50, 60, 70), 80, 20),
            Figure((60, 70, 80), 70, 20),
            CLEAR,
            "the seeds' spread covers it: 1.2 ",
        ),
        (Figure((60,), 80, 20), Figure((70,), 70, 20), CLEAR, "one seed has no spread"),
        (Figure((59, 60, 61), 80, 20), Figure((69, 70, 71), 70, 20), CLEAR, "none of the checks explains it"),
    ],
)
def test_the_reason_is_the_first_check_that_holds(a, b, margins, words):
    figures = {"a": a, "b": b}
    reason = compare.reason(one_pair(a, b), figures, margins)
    assert words in reason
    assert "\n" not in reason
    assert ("a ended 0.10 nats under the unigram entropy" in reason) == (margins["a"] == 0.1)


def test_a_loss_over_the_unigram_entropy_is_said_so_and_a_row_without_one_is_passed_over():
    figures = {"a": Figure((59, 60, 61), 80, 20), "b": Figure((69, 70, 71), 70, 20)}
    pair = one_pair(figures["a"], figures["b"])
    assert "a ended 0.50 nats over the unigram entropy" in compare.reason(pair, figures, {"a": -0.5, "b": 2.0})
    assert "the task is learned" in compare.reason(pair, figures, {"a": 2.0})
    assert "pre-training came" not in compare.reason(pair, figures, {})


def test_a_task_without_a_guess_is_not_said_to_be_learned():
    figures = {"a": Figure((59, 60, 61), 80), "b": Figure((69, 70, 71), 70)}
    reason = compare.reason(one_pair(figures["a"], figures["b"]), figures, CLEAR)
    assert "no figure says what a guess has" in reason
    assert "learned" not in reason


APART = {"a": Figure((59, 60, 61), 80, 20), "b": Figure((69, 70, 71), 70, 20)}


@pytest.mark.parametrize(
    ("third", "said"),
    [
        (None, "a is fine-tuned, b is frozen below a new model; no row shows them used alike"),
        ((79, 80, 81), "used alike, c - b is +10.00, +12.2 standard errors, which is the paper's order"),
        ((69, 71, 73), "used alike, c - b is +1.00, +0.8 standard errors, which the seeds' spread covers"),
        ((64, 65, 66), "used alike, c - b is -5.00, -6.1 standard errors, so that is not all of it"),
    ],
)
def test_models_that_are_used_in_different_ways(third, said):
    uses = {"a": compare.ModelUse("A", False), "b": compare.ModelUse("B", True)}
    figures = dict(APART)
    if third:
        figures["c"], uses["c"] = Figure(third), compare.ModelUse("A", True)
    assert said in compare.reason(one_pair(APART["a"], APART["b"]), figures, CLEAR, uses)


@pytest.mark.parametrize("uses", [{"a": ("A", True), "b": ("B", True)}, {"a": ("A", False), "b": ("A", True)}])
def test_models_that_are_used_alike_or_to_see_what_use_does(uses):
    uses = {row: compare.ModelUse(*values) for row, values in uses.items()}
    assert "none of the checks" in compare.reason(one_pair(APART["a"], APART["b"]), APART, CLEAR, uses)


def test_the_summary_counts():
    figures = {
        "a": Figure((59, 60, 61), 90),
        "b": Figure((69, 70, 71), 80),  # 12 errors against the paper
        "c": Figure((40, 50, 60), 70),  # below both, as in the paper: 1.7 and 3.4 errors
    }
    found = compare.pairs("column", figures)
    assert compare.summary(found) == (
        "2 of 3 pairs of rows are in the paper's order; 2 differences are 2 standard errors or more, 1 of them in the "
        "paper's order and 1 against it."
    )
    assert "no order" in compare.summary([])
    assert "; 1 difference is 2 standard errors or more, 0 of them" in compare.summary(found[:1])
    assert compare.summary(found[1:2]).endswith("; no difference is 2 standard errors or more.")


def test_more_curves_than_colours_can_be_told_apart():
    lines = [page._line(number, [(0.0, 1.0)], f"row {number}") for number in range(2 * len(svg.COLOURS))]
    assert len({(line.colour, line.dashed) for line in lines}) == len(lines)
