"""SQuAD 1.1 and 2.0: the answer to a question is a span of its context; in 2.0 there may be none."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..errors import DataError, InputError
from ..result_files import written
from . import squad_metrics as official
from .base import Example, Row, Task, by_sequence, packed, softmax
from .files import shorten
from .squad_answers import say_if_of_characters, span
from .squad_files import read_questions
from .squad_predictions import companions, read_values, written_values
from .squad_windows import answer_text, best_spans, encode_windows

_log = logging.getLogger("fastbert")
QUESTION_WORDS = ("what", "who", "when", "where", "which", "why", "how")


@dataclass(frozen=True)
class Answer:
    """A prediction.

    Args:
        text: the predicted answer; empty for "no answer"; None if a file of predictions lacks the question.
        null_odds: the score of "no answer" minus that of the best span, or a probability from a file; None if unknown.
        span_text: the text of the best span, even if "no answer" is predicted; None if only `text` is known.
        rank: the position in a file of probabilities.
        nbest: the best texts with probability, start_logit and end_logit; None for a prediction from a file.
    """

    text: str | None
    null_odds: float | None = None
    span_text: str | None = None
    rank: int = 0
    nbest: tuple[dict, ...] | None = None


class Squad(Task):
    """What both versions share.

    Attributes:
        doc_stride: tokens from the start of one window to the start of the next.
        max_question: the most tokens of a question; the rest is cut.
        max_answer_length: the longest answer, in tokens.
        n_best: how many spans are considered in a window, and listed for a question.
        beside: files that are written beside the official one, by name, and the field of `Answer` that each holds.
    """

    submission = "predictions.json"
    pairs = True
    in_windows = True
    streams = True
    label_place = "the key 'answers' in every question"
    has_impossible = False
    doc_stride = 128
    max_question = 64
    max_answer_length = 30
    n_best = 20
    beside: ClassVar[dict[str, str]] = {"nbest_predictions": "nbest"}
    _told = False  # of answers whose official figures are of characters: once, and not for each of a command's files

    def read(self, path: str | os.PathLike) -> list[Row]:
        rows = read_questions(path, self.bad_rows, impossible=self.has_impossible, ignore_answers=self.predicting)
        if not self.predicting and not self._told:
            self._told = say_if_of_characters(path, rows)
        return rows

    def sources(self, row: Row) -> tuple[Hashable, str]:
        return row.source, row.texts[1]

    def for_training(
        self, rows: Sequence[Row], path: str | os.PathLike, known: Sequence[Row] | None = None
    ) -> list[Row]:
        """Rows whose answer is in the context at the position in the file, which training needs but no metric does."""
        kept = []
        for row in rows:
            if row.label is None or not row.label.texts or span(row.texts[1], row.label) is not None:
                kept.append(row)
                continue
            text, start = row.label.texts[0], row.label.starts[0]
            wanted, got = f"{shorten(text)!r} at character {start} of its context", None
            if not text.strip():
                wanted, got = "an answer with a text", text
            elif start < 0:
                wanted = f"the character where {shorten(text)!r} begins in its context under 'answer_start'"
            else:
                got = row.texts[1][start : start + len(text)]
            self.bad_rows.refuse(f"{path}, question {row.id}: expected {wanted}, got {shorten(repr(got))}")
        return kept

    def encode(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        return encode_windows(rows, tokenizer, max_seqlen, self.doc_stride, self.max_question)

    def model(self, directory: str | os.PathLike):
        from ..models import BertForQuestionAnswering

        return self.load(BertForQuestionAnswering, directory)

    def collate(self, examples: Sequence[Example]):
        import torch

        batch = packed(examples)
        if all(example.label is None for example in examples):
            return batch, {}
        # An unknown answer must not count in the loss: its positions are past the end, which the model ignores.
        nowhere = (batch.num_tokens, batch.num_tokens)
        positions = torch.tensor([example.label or nowhere for example in examples])
        return batch, {"start_positions": positions[:, 0], "end_positions": positions[:, 1]}

    def outputs(self, out, batch) -> list[np.ndarray]:
        """(tokens, 2) start and end scores of each window."""
        scores = np.stack([x.float().cpu().numpy() for x in (out.start_logits, out.end_logits)], 1)
        return by_sequence(scores, batch)

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[Answer]:
        windows = defaultdict(list)
        for example, scores in zip(examples, outputs, strict=True):
            windows[example.row].append((example.meta, scores))
        return [self._answer(row.texts[1], windows[index]) for index, row in enumerate(rows)]

    def _answer(self, context: str, windows: list) -> Answer:
        limits = self.n_best, self.max_answer_length
        spans = [s for window, scores in windows for s in best_spans(window, scores, *limits)]
        entries: dict[str, tuple[float, float]] = {}
        for found in sorted(spans, key=lambda s: -s.score):
            text = answer_text(context, found)
            if text:  # empty for a token that is only the blank before a word
                entries.setdefault(text, (found.start_logit, found.end_logit))
            if len(entries) == self.n_best:
                break
        best = next(iter(entries), "")
        null_scores = min((tuple(map(float, scores[0])) for _, scores in windows), key=sum, default=(0.0, 0.0))
        odds = sum(null_scores) - sum(entries.get(best, (0.0, 0.0)))
        return self._choose(Answer(best, odds, best, nbest=_nbest(self._listed(entries, null_scores))))

    def _listed(self, entries: dict, null_scores: tuple[float, float]) -> dict:
        return entries

    def _choose(self, answer: Answer) -> Answer:
        return replace(answer, null_odds=None)

    def write_predictions(
        self, rows: Iterable[Row], predictions: Iterable[Answer], path: str | os.PathLike
    ) -> list[Path]:
        """Writes the official file, and beside it nbest_predictions.json and, for version 2.0, null_odds.json if these
        are known. Questions whose prediction is None are left out of the official file."""
        pairs = zip(rows, predictions, strict=True)
        first = list(itertools.islice(pairs, 1))
        # All predictions have the same fields: those from a file only have texts. So the first one tells.
        beside = {
            name: k for name, k in self.beside.items() if any(getattr(answer, k) is not None for _, answer in first)
        }
        files = companions(path, beside)
        with contextlib.ExitStack() as stack:
            add_text, *adders = (stack.enter_context(written_values(file)) for file in (path, *files))
            for row, answer in itertools.chain(first, pairs):
                if answer.text is not None:
                    add_text(row.id, answer.text)
                for known, add in zip(beside.values(), adders, strict=False):  # with standard output there are none
                    add(row.id, getattr(answer, known))
        return written(path, *files)

    def read_predictions(self, rows: Sequence[Row], path: str | os.PathLike) -> list[Answer]:
        """Questions without a prediction count as in the official evaluation, and a warning says how many there are;
        predictions for other questions are ignored, since the rows may be a part of a data set."""
        texts = read_values(path, str, "texts")
        missing = [row.id for row in rows if row.id not in texts]
        if len(missing) == len(rows):
            raise DataError(f"{path}: expected predictions for the questions of the data, got none of them")
        if missing:
            _log.warning(
                "%s has no prediction for %d of %d questions (%s), %s",
                path,
                len(missing),
                len(rows),
                shorten(", ".join(missing)),
                self.missing_count,
            )
        return [Answer(texts.get(row.id)) for row in rows]

    missing_count = "which count as wrong"

    def errors(self, rows: Sequence[Row], predictions: Sequence[Answer]) -> Iterable[dict]:
        for row, answer in zip(rows, predictions, strict=True):
            if row.label is not None and self.counts(answer) and not self.scores(row, answer)[0]:
                yield {
                    "id": row.id,
                    "question": row.texts[0],
                    "answers": list(dict.fromkeys(row.label.texts)),
                    "prediction": self.counted(answer),
                }

    def counts(self, answer: Answer) -> bool:
        """Whether the figures have a question with this prediction, which is None for one without."""
        return True

    def counted(self, answer: Answer) -> str | None:
        """The text of a prediction that the figures are of."""
        return answer.text

    def scores(self, row: Row, answer: Answer) -> tuple[float, float]:
        """Exact match and F1 of one prediction, between 0 and 1."""
        return official.score_v1(row.label.texts, answer.text)

    def tables(self, rows: Sequence[Row], predictions: Sequence[Answer]) -> dict[str, list[Sequence]]:
        """Exact match and F1 in percent, by the first question word of a question."""
        groups = defaultdict(list)
        for row, answer in zip(rows, predictions, strict=True):
            if not self.counts(answer):
                continue
            words = row.texts[0].lower().replace("?", " ").split()
            groups[next((w for w in words if w in QUESTION_WORDS), "other")].append(self.scores(row, answer))
        table: list[Sequence] = [("question", "exact", "f1", "questions")]
        for word in (*QUESTION_WORDS, "other"):
            if groups[word]:
                exact, f1 = np.mean(groups[word], 0) * 100
                table.append((word, float(exact), float(f1), len(groups[word])))
        return {"questions": table}


class Squad1(Squad):
    """Version 1.1: every question has an answer, the dev set several reference answers."""

    name = "squad1"
    metrics = ("f1", "exact_match")

    def metric(self, rows: Sequence[Row], predictions: Sequence[Answer]) -> dict[str, float]:
        return official.figures_v1([row.label.texts for row in rows], [answer.text for answer in predictions])


class Squad2(Squad):
    """Version 2.0: a question may have no answer, which is predicted if its odds are above a threshold.

    Attributes:
        null_threshold: the threshold for null_odds; fine-tuning finds it on the dev rows and stores it in the model's
            configuration.
        na_prob_threshold: the threshold for probabilities from a file, the option of the official evaluation.
    """

    name = "squad2"
    metrics = ("best_f1", "best_exact", "f1", "exact")
    has_impossible = True
    null_threshold = 0.0
    na_prob_threshold = 1.0
    missing_count = "which are left out of the figures"
    beside: ClassVar[dict[str, str]] = {**Squad.beside, "null_odds": "null_odds"}

    def restore(self, config) -> None:
        self.null_threshold = float(getattr(config, "null_threshold", 0.0))

    def settle(self, rows: Sequence[Row], predictions: Sequence[Answer], config) -> list[Answer]:
        """Finds the threshold that is best for F1 on the dev rows, and applies it."""
        gains, start = [], 0
        order = sorted(zip(predictions, rows, strict=True), key=lambda pair: pair[0].null_odds)
        for answer, row in order:
            if row.label.texts:
                gains.append(official.score_v2(row.label.texts, answer.span_text)[1])
            else:
                gains.append(-1 if answer.span_text else 0)
                start += 1
        _, count = official.best_prefix(gains, start)
        # If it is best to answer no question at all, the threshold is below all odds.
        self.null_threshold = order[count - 1][0].null_odds if count else order[0][0].null_odds - 1.0
        chosen = super().settle(rows, [self._choose(answer) for answer in predictions], config)
        config.null_threshold = self.null_threshold
        return chosen

    def _listed(self, entries: dict, null_scores: tuple[float, float]) -> dict:
        return {**entries, "": null_scores}

    def _choose(self, answer: Answer) -> Answer:
        return replace(answer, text="" if answer.null_odds > self.null_threshold else answer.span_text)

    def counts(self, answer: Answer) -> bool:
        return answer.text is not None

    def counted(self, answer: Answer) -> str | None:
        return "" if self._is_above(answer) else answer.text

    def _is_above(self, answer: Answer) -> bool:
        """Whether a prediction from a file counts as "no answer" by the probabilities of another file."""
        from_file = answer.span_text is None and answer.null_odds is not None
        return from_file and answer.null_odds > self.na_prob_threshold

    def scores(self, row: Row, answer: Answer) -> tuple[float, float]:
        if self._is_above(answer):  # also where a reference has nothing but punctuation, as in the official script
            return (0.0, 0.0) if row.label.texts else (1.0, 1.0)
        return official.score_v2(row.label.texts, answer.text)

    def metric(self, rows: Sequence[Row], predictions: Sequence[Answer]) -> dict[str, float]:
        """The official figures. For a model's predictions, exact and f1 are those at the model's threshold, best_exact
        and best_f1 those at the best threshold for these rows."""
        references = [row.label.texts for row in rows]
        texts = [answer.text for answer in predictions]
        if predictions[0].null_odds is None:
            return official.figures_v2(references, texts)
        odds = [answer.null_odds for answer in predictions]
        if predictions[0].span_text is None:
            figures = official.figures_v2(references, texts, odds, self.na_prob_threshold)
        else:
            figures = official.figures_v2(references, texts)
            texts = [answer.span_text for answer in predictions]
        return figures | official.best_thresholds(references, texts, odds, [answer.rank for answer in predictions])

    def guess(self, rows: Sequence[Row]) -> list[Answer]:
        """Predicts no answer for every question."""
        return [Answer("", 1.0, "") for _ in rows]

    def read_na_probs(self, rows: Sequence[Row], answers: Sequence[Answer], path: str | os.PathLike) -> list[Answer]:
        """Adds the probabilities of "no answer" from a file to predictions from another file. Warns if they are none.

        Raises:
            InputError: a predicted question has no probability.
            DataError: the file cannot be used.
        """
        values = read_values(path, (int, float), "numbers")
        ranks = {name: rank for rank, name in enumerate(values)}
        missing = [
            row.id
            for row, answer in zip(rows, answers, strict=True)
            if row.id not in values and answer.text is not None
        ]
        if missing:
            names = shorten(", ".join(missing))
            raise InputError(f"{path}: expected a number for each predicted question, got none for {names}")
        low, high = min(values.values(), default=0), max(values.values(), default=0)
        if (low < 0 or high > 1) and math.isfinite(self.na_prob_threshold):
            _log.warning(
                "%s: expected probabilities, got numbers from %g to %g, which may be score differences: above %g a "
                "prediction counts as no answer; --na-prob-threshold inf leaves predictions as they are",
                path,
                low,
                high,
                self.na_prob_threshold,
            )
        # The odds of questions without a prediction do not matter: these are left out of the figures.
        return [
            replace(answer, null_odds=values.get(row.id, 0.0), rank=ranks.get(row.id, len(ranks)))
            for row, answer in zip(rows, answers, strict=True)
        ]


def _nbest(entries: dict[str, tuple[float, float]]) -> tuple[dict, ...]:
    """The entries of nbest_predictions.json, the best first, with the softmax of their scores as probabilities."""
    if not entries:
        return ()
    totals = np.array([sum(scores) for scores in entries.values()], dtype=np.float64)
    listed = [
        {"text": text, "probability": float(share), "start_logit": scores[0], "end_logit": scores[1]}
        for (text, scores), share in zip(entries.items(), softmax(totals), strict=True)
    ]
    return tuple(sorted(listed, key=lambda entry: -entry["probability"]))
