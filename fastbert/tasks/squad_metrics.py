"""SQuAD's metrics, equal digit for digit to the official evaluation of versions 1.1 and 2.0.

Exact match and token F1 of normalised texts (Rajpurkar et al. 2016, section 6.1), the best over the reference answers;
for 2.0 also both metrics over questions with and without an answer, and the threshold on the probability of no answer
at which each metric is best (Rajpurkar et al. 2018). Sums are in the order of the questions, on which their last digit
depends.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str) -> str:
    """Lower-cases, removes ASCII punctuation and then English articles, and reduces white space to single blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(reference: str, prediction: str) -> int:
    """1 if the normalised texts are equal, otherwise 0."""
    return int(normalise(reference) == normalise(prediction))


def f1(reference: str, prediction: str, *, empty_matches: bool) -> float:
    """The harmonic mean of precision and recall of the normalised texts' words, each counted as often as it occurs.

    Args:
        empty_matches: whether two texts without words match, as in version 2.0; in 1.1 their F1 is 0.
    """
    gold, found = normalise(reference).split(), normalise(prediction).split()
    if empty_matches and not (gold and found):
        return int(gold == found)
    common = (Counter(gold) & Counter(found)).total()
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def score_v1(references: Sequence[str], prediction: str | None) -> tuple[int, float]:
    """Exact match and F1 of one question of version 1.1; a question without a prediction scores 0."""
    if prediction is None:
        return 0, 0.0
    return (
        max(exact(text, prediction) for text in references),
        max(f1(text, prediction, empty_matches=False) for text in references),
    )


def score_v2(references: Sequence[str], prediction: str) -> tuple[int, float]:
    """Exact match and F1 of one question of version 2.0, where the right answer may be the empty text.

    References that normalise to nothing do not count; without any other the empty text is right.
    """
    texts = [text for text in references if normalise(text)] or [""]
    return (
        max(exact(text, prediction) for text in texts),
        max(f1(text, prediction, empty_matches=True) for text in texts),
    )


def figures_v1(references: Sequence[Sequence[str]], predictions: Sequence[str | None]) -> dict[str, float]:
    """The official result of version 1.1, in percent: ``exact_match`` and ``f1``.

    Args:
        references: the answers of each question, at least one.
        predictions: the answer to each question; None counts as wrong.
    """
    exact_sum, f1_sum = 0, 0.0
    for texts, prediction in zip(references, predictions, strict=True):
        one_exact, one_f1 = score_v1(texts, prediction)
        exact_sum += one_exact
        f1_sum += one_f1
    return {"exact_match": 100.0 * exact_sum / len(references), "f1": 100.0 * f1_sum / len(references)}


def figures_v2(
    references: Sequence[Sequence[str]],
    predictions: Sequence[str | None],
    na_probs: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """The official result of version 2.0: percentages and numbers of questions.

    Args:
        references: the answers of each question; empty if it has none.
        predictions: the empty text for "no answer"; questions with None are left out altogether.
        na_probs: the probabilities of no answer; above the threshold, "no answer" is predicted.
    """
    kept = [index for index, prediction in enumerate(predictions) if prediction is not None]
    answerable = [bool(references[index]) for index in kept]
    scores = [score_v2(references[index], predictions[index]) for index in kept]
    if na_probs is not None:
        gone = [na_probs[index] > threshold for index in kept]
        scores = [
            (float(not has), float(not has)) if away else score
            for score, has, away in zip(scores, answerable, gone, strict=True)
        ]
    figures = _averages(scores, "")
    for name, wanted in (("HasAns", True), ("NoAns", False)):
        chosen = [score for score, has in zip(scores, answerable, strict=True) if has is wanted]
        if chosen:
            figures |= _averages(chosen, f"{name}_")
    return figures


def _averages(scores: Sequence[tuple[float, float]], prefix: str) -> dict[str, float]:
    # By sum instead of fsum, to round as the official evaluation does.
    total = len(scores)
    figures = {
        f"{prefix}{name}": 100.0 * sum(score[column] for score in scores) / total if total else 0.0
        for column, name in enumerate(("exact", "f1"))
    }
    return {**figures, f"{prefix}total": total}


def best_thresholds(
    references: Sequence[Sequence[str]],
    predictions: Sequence[str | None],
    na_probs: Sequence[float],
    ranks: Sequence[int] | None = None,
) -> dict[str, float]:
    """The best value of each metric and the threshold for it: ``best_exact``, ``best_exact_thresh``, ``best_f1``, ...

    Args:
        references, predictions, na_probs: as in `figures_v2`.
        ranks: the order of questions with equal probabilities; in the official result, the order in their file.
    """
    kept = [index for index, prediction in enumerate(predictions) if prediction is not None]
    order = sorted(kept, key=lambda index: (na_probs[index], index if ranks is None else ranks[index]))
    scores = {index: score_v2(references[index], predictions[index]) for index in kept}
    figures = {}
    for column, name in enumerate(("exact", "f1")):
        gains = [scores[i][column] if references[i] else -1 if predictions[i] else 0 for i in order]
        score, count = best_prefix(gains, sum(not texts for texts in references))
        figures[f"best_{name}"] = 100.0 * score / len(kept) if kept else 0.0
        figures[f"best_{name}_thresh"] = na_probs[order[count - 1]] if count else 0.0
    return figures


def best_prefix(gains: Sequence[float], start: float) -> tuple[float, int]:
    """The largest of start, start + gains[0], start + gains[0] + gains[1], ... and the number of gains in it; the
    first of equals."""
    best, count, current = start, 0, start
    for number, gain in enumerate(gains, 1):
        current += gain
        if current > best:
            best, count = current, number
    return best, count
