"""Entities in plain sentences, by a model of named-entity recognition."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..data.special_tokens import names_of
from ..model_config import ModelConfig
from ..result_files import atomic_write, written
from .bad_rows import at_least_one, called
from .base import Example, Row
from .column import texts_of
from .conll import WORDS
from .conll_or_sentences import refuse_columns
from .ner import NER, Owned
from .tagging import entities_of
from .words import word_spans

_log = logging.getLogger("fastbert")


@dataclass(frozen=True)
class PlainSentence(Row):
    """A row whose texts are the words of a sentence.

    Args:
        text: the sentence.
        spans: the beginning and end of each word in it, in characters.
    """

    text: str = ""
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, text: str, number: int = 0) -> PlainSentence:
        """The row of a sentence; its id is ``number``."""
        spans = tuple(word_spans(text))
        return cls(str(number), tuple(text[begin:end] for begin, end in spans), text=text, spans=spans)


@dataclass(frozen=True)
class Entity:
    """An entity in a sentence.

    Args:
        type: its type, such as PER.
        text: its words, as in the sentence.
        start, end: where it begins and ends in the sentence, in characters.
        score: the mean probability of its words' tags.
    """

    type: str
    text: str
    start: int
    end: int
    score: float


class NERSentences(NER):
    """Predicts entities in plain sentences, which stand alone; a model is trained and evaluated by `NER`.

    Args:
        column: the column of the sentences in a table; None for files with a sentence in each line.
    """

    streams = True
    submission = "ner_entities.jsonl"

    def __init__(self, column: str | None = None):
        super().__init__()
        self.column = column

    def read(self, path: str | os.PathLike) -> list[Row]:
        return list(self.rows(path))

    def rows(self, path: str | os.PathLike) -> Iterator[Row]:
        texts = texts_of(path, self.column, self.bad_rows)
        if self.column is None:
            texts = refuse_columns(called(path), texts, WORDS)
        return at_least_one((PlainSentence.of(text, number - 1) for number, text in texts), path, self.bad_rows)

    def adopt(self, config: ModelConfig) -> None:
        super().adopt(config)
        if self.document_context:
            _log.warning("the model has learned to read sentences among their neighbours, but here each stands alone")
            self.document_context = False

    def encode(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        # Sentences without words have no examples, but a model needs one at least.
        return super().encode(rows, tokenizer, max_seqlen) or [_without_words(tokenizer)]

    def decode(
        self, rows: Sequence[PlainSentence], examples: Sequence[Example], outputs: Sequence[np.ndarray]
    ) -> list[list[Entity]]:
        """The entities of each sentence, in their order."""
        return [self._entities(*found) for found in zip(rows, self.shares(rows, examples, outputs), strict=True)]

    def _entities(self, row: PlainSentence, shares: Sequence[np.ndarray]) -> list[Entity]:
        best = [int(of_word.argmax()) for of_word in shares]
        found = []
        for kind, first, last in entities_of([self.labels[index] for index in best]):
            start, end = row.spans[first][0], row.spans[last - 1][1]
            score = float(np.mean([shares[word][best[word]] for word in range(first, last)]))
            found.append(Entity(kind, row.text[start:end], start, end, score))
        return found

    def write_predictions(
        self, rows: Iterable[PlainSentence], predictions: Iterable[Sequence[Entity]], path: str | os.PathLike
    ) -> list[Path]:
        """Writes a JSON object for each sentence: its number, its text and its entities."""
        with atomic_write(path) as file:
            for row, entities in zip(rows, predictions, strict=True):
                shown = [asdict(entity) | {"score": round(entity.score, 6)} for entity in entities]
                line = {"index": int(row.id), "text": row.text, "entities": shown}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return written(path)


def _without_words(tokenizer) -> Example:
    """[CLS] and [SEP] alone."""
    names, nothing = names_of(tokenizer), np.zeros(0, np.int64)
    ids = np.array([tokenizer.token_to_id(name) for name in (names.cls_token, names.sep_token)], np.int32)
    return Example(0, ids, np.zeros_like(ids), meta=Owned(nothing, nothing, nothing))
