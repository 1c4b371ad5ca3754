"""The metrics of tasks, by scikit-learn, scipy and seqeval, with values for the cases that these leave undefined."""

from __future__ import annotations

import importlib
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial

from ..errors import InputError


def accuracy(gold: Sequence, predicted: Sequence) -> float:
    """The share of correct predictions, between 0 and 1."""
    return sum(a == b for a, b in zip(gold, predicted, strict=True)) / len(gold)


def f1(gold: Sequence[str], predicted: Sequence[str], positive: str) -> float:
    """The harmonic mean of precision and recall of one label; 0 if it is neither in gold nor predicted."""
    f1_score = _import("sklearn.metrics").f1_score
    return float(f1_score([a == positive for a in gold], [b == positive for b in predicted], zero_division=0.0))


def f1_of_labels(gold, predicted, average: str) -> float:
    """F1 over several labels a row; 0 where it is undefined.

    Args:
        gold, predicted: (rows, labels) of zeros and ones.
        average: "micro" for all decisions taken together, "macro" for the mean over the labels.
    """
    f1_score = _import("sklearn.metrics").f1_score
    if gold.shape[1] == 1:  # scikit-learn takes one column for two classes, of which 0 is one
        gold, predicted, average = gold[:, 0], predicted[:, 0], "binary"
    return float(f1_score(gold, predicted, average=average, zero_division=0.0)) if gold.size else 0.0


def matthews(gold: Sequence, predicted: Sequence) -> float:
    """Matthews' correlation, from -1 to 1; 0 if either side is constant."""
    compute = _import("sklearn.metrics").matthews_corrcoef
    if min(len(set(gold)), len(set(predicted))) < 2:
        return 0.0  # scikit-learn returns the same, but warns if both sides are equal
    return float(compute(list(gold), list(predicted)))


def silhouette(distances, groups: Sequence) -> float:
    """The mean silhouette of n points in groups (Rousseeuw 1987), from -1 to 1.

    Args:
        distances: (n, n), the distances between points.
        groups: the group of each point.
    """
    return float(_import("sklearn.metrics").silhouette_score(distances, groups, metric="precomputed"))


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Pearson's correlation, from -1 to 1. If it is undefined (a constant side, fewer than two rows, a value that is
    not finite), it is 0, as on GLUE's leaderboard for constant predictions: epochs could not be compared by NaN."""
    return _correlation("pearsonr", gold, predicted)


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman's rank correlation, from -1 to 1; ties get their mean rank. 0 if it is undefined, as in `pearson`."""
    return _correlation("spearmanr", gold, predicted)


def _correlation(function: str, gold: Sequence[float], predicted: Sequence[float]) -> float:
    compute = getattr(_import("scipy.stats"), function)
    finite = all(math.isfinite(value) for side in (gold, predicted) for value in side)
    if not finite or min(len(set(gold)), len(set(predicted))) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about nearly constant sides, for which there is a value
        value = float(compute(gold, predicted)[0])
    return value if math.isfinite(value) else 0.0


def _import(module: str):
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this task's metric needs {error.name}, which is not installed: pip install 'fastbert[tasks]'"
        ) from None


_OF_IOBES = {"L-": "E-", "U-": "S-"}


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> tuple[dict, dict[str, dict]]:
    """Precision, recall and F1 of whole entities, by seqeval, which agrees with conlleval; 0 where undefined.

    Args:
        gold, predicted: the tags of each sentence, in any scheme of `tagging`.

    Returns:
        f1, precision, recall and accuracy (of tags) over all types; and for each type precision, recall, f1, and the
        numbers of entities in gold ("entities") and in predicted ("found").
    """
    seqeval = _import("seqeval.metrics.sequence_labeling")
    # seqeval's default mode, which is conlleval's, supports IOBES but not BILOU, which only differs in its letters.
    gold, predicted = (
        [[_OF_IOBES.get(tag[:2], tag[:2]) + tag[2:] for tag in s] for s in side] for side in (gold, predicted)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about types that are never predicted, which the table shows
        score = partial(seqeval.precision_recall_fscore_support, gold, predicted, zero_division=0)
        overall, columns = score(average="micro"), score(average=None)
    names = ("precision", "recall", "f1")
    total = {name: float(value) for name, value in zip(names, overall[:3], strict=True)}
    total = {"f1": total["f1"], **total, "accuracy": float(seqeval.accuracy_score(gold, predicted))}
    found = Counter(kind for kind, _, _ in seqeval.get_entities(predicted))
    kinds = sorted({kind for kind, _, _ in seqeval.get_entities(gold)} | set(found))
    table = {}
    for kind, *values, support in zip(kinds, *columns, strict=True):
        scores = {name: float(value) for name, value in zip(names, values, strict=True)}
        table[kind] = {**scores, "entities": int(support), "found": found[kind]}
    return total, table
