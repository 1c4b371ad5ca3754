"""Named-entity recognition: a tag for every word of a sentence, scored by whole entities."""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.bpe import with_prefix_space
from ..data.special_tokens import names_of
from ..errors import DataError, InputError
from ..result_files import atomic_write, written
from .bad_rows import called
from .base import IGNORE_INDEX, Example, Row, by_sequence, packed, softmax
from .conll import TAGS, read_sentences, read_tags, tagged_lines
from .encoding import encodings_of, private_copy
from .feature_task import FeatureTask
from .files import shorten
from .heads import class_names, unnamed
from .metrics import entity_scores
from .tagging import (
    CONVERTERS,
    LETTERS,
    entities_of,
    expected,
    in_scheme_of,
    is_tag,
    letters_of,
    with_types,
    without_type,
)
from .windows import plan_windows

_log = logging.getLogger("fastbert")
CHUNK_TYPES = frozenset(["ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP"])
"""The types of CoNLL-2000's chunks, which are in the third column of CoNLL-2003."""


@dataclass(frozen=True)
class Owned:
    """The words whose tags are predicted from an example.

    Args:
        positions: (n,) int, the index of each word's first sub-token among the example's tokens.
        rows, words: (n,) int, the row of each word, and its index in the row.
    """

    positions: np.ndarray
    rows: np.ndarray
    words: np.ndarray


class NER(FeatureTask):
    """Files with CoNLL's columns, tagged in IOB1, IOB2, IOBES or BILOU. A word's tag is predicted at its first
    sub-token. Names are mostly told by their case, so use a cased model.

    Args:
        labels: the classes, in the order of their ids; `learn` takes them from the training rows.

    Attributes:
        document_context: whether sentences are read together with the neighbouring ones of their document, as many as
            fit.
    """

    name = "ner"
    metrics = ("f1", "precision", "recall", "accuracy")
    submission = "ner_predictions.txt"
    in_windows = True
    label_place = f"tags ({expected('IOB')}) in the last of several columns"
    document_context = False

    def __init__(self, labels: Sequence[str] = ()):
        self.labels = tuple(labels)

    def read(self, path: str | os.PathLike) -> list[Row]:
        rows = read_sentences(path, self.bad_rows, self.predicting)
        if not self.predicting:
            self._check_types(rows, path)
        return rows

    def _check_types(self, rows: Sequence[Row], path: str | os.PathLike) -> None:
        """Raises DataError for a file whose types of entities are all unknown to the model, and warns of tags of
        chunks: a CoNLL-2003 file without its last column ends in these, and they look like tags of entities."""
        kinds = _types(row.label for row in rows if row.label is not None)
        known, of_chunks = _types([self.labels]), bool(kinds) and kinds <= CHUNK_TYPES
        if known and kinds and not kinds & known:
            hint = ": the last column is that of chunks" if of_chunks else ""
            expected, got = (shorten(", ".join(sorted(types))) for types in (known, kinds))
            raise DataError(f"{called(path)}: expected entities of the types {expected}, got {got}{hint}")
        if of_chunks and not known:
            _log.warning(
                "%s: the last column has the tags of chunks (%s), not of entities",
                called(path),
                ", ".join(sorted(kinds)),
            )

    def unlabelled(self, rows: Sequence[Row]) -> str:
        """Quotes a line, which shows what is wrong with the tags, such as lower case or another separator."""
        row = rows[0]
        if row.lines == row.texts:
            return f"words alone (JSON and Parquet have tags under {', '.join(TAGS[:-1])} or {TAGS[-1]})"
        return f"lines such as {shorten(row.lines[0])!r}"

    def sources(self, row: Row) -> tuple[Hashable | None, tuple[str, ...]]:
        return row.source, row.texts

    def learn(self, rows: Sequence[Row], used: Sequence[Row] | None = None) -> None:
        tagged = [row.label for row in rows if row.label is not None]
        kinds = sorted(_types(tagged))
        if not kinds:
            raise DataError("expected entities in the training rows, got only the tag O")
        self.labels = ("O", *(f"{letter}-{kind}" for kind in kinds for letter in LETTERS[letters_of(tagged)]))

    @property
    def letters(self) -> str | None:
        """The tagging letters of the labels (a key of `LETTERS`); None if they do not follow a scheme."""
        return next((name for name in LETTERS if all(is_tag(label, name) for label in self.labels)), None)

    @property
    def classes(self) -> tuple[Sequence[str], ...]:
        return self.labels, tuple(map(without_type, self.labels))

    def restore(self, config) -> None:
        super().restore(config)
        [labels] = with_types([class_names(config)])
        self.labels = tuple(labels)
        if self.letters is None or "O" not in self.labels:
            schemes = "O, B-TYPE and I-TYPE (or of IOBES or BILOU)"
            first = "; fine-tune it first" if unnamed(self.labels) else ""
            raise InputError(f"expected a model with the labels {schemes}, got {', '.join(self.labels)}{first}")

    def model(self, directory: str | os.PathLike):
        head = {"id2label": dict(enumerate(self.labels))}
        if self.features is not None:
            from .feature_tagger import FeatureTagger

            return self.load_head(FeatureTagger, directory, **head)
        from ..models import BertForTokenClassification

        return self.load(BertForTokenClassification, directory, ignore_mismatched_sizes=True, **head)

    def encode(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        """Windows over sentences, or over documents. Each word is predicted in the window in which it has most context;
        a window in which no word begins is left out. A sentence that fits is a single window.
        """
        pieces = _pieces(rows, tokenizer)
        names = names_of(tokenizer)
        cls, sep = tokenizer.token_to_id(names.cls_token), tokenizer.token_to_id(names.sep_token)
        room = max_seqlen - 2
        examples = []
        for unit in self._units(rows):
            ids = np.concatenate([pieces[index][0] for index in unit])
            offsets = np.cumsum([0, *(len(pieces[index][0]) for index in unit)])
            at = np.concatenate([pieces[i][1] + offset for i, offset in zip(unit, offsets[:-1], strict=True)])
            words = np.concatenate([np.arange(len(rows[index].texts)) for index in unit])
            owner_rows = np.repeat(unit, [len(rows[index].texts) for index in unit])
            labels = self._labels([rows[index] for index in unit])
            begins, owners = plan_windows(len(ids), room, max(1, room - room // 4))
            for number, begin in enumerate(begins):
                mine = owners[at] == number
                if not mine.any():  # it lies within one long word; a mean loss over no labels is NaN
                    continue
                part = np.concatenate(([cls], ids[begin : begin + room], [sep])).astype(np.int32)
                owned = Owned(at[mine] - begin + 1, owner_rows[mine], words[mine])
                target = None
                if labels is not None:
                    target = np.full(len(part), IGNORE_INDEX, np.int64)
                    target[owned.positions] = labels[mine]
                types = np.zeros(len(part), np.int32)
                examples.append(Example(unit[0], part, types, target, len(begins) > 1, owned))
        return self.with_features(examples)

    def _units(self, rows: Sequence[Row]) -> list[list[int]]:
        """The indices of rows that are read together: each row alone, or consecutive rows of a document."""
        alone = [[index] for index in range(len(rows))]
        if not self.document_context:
            return alone
        if all(row.source is None for row in rows):
            _log.warning("document context: expected -DOCSTART- lines, got none, so every sentence stands alone")
            return alone
        units = alone[:1]
        for index in range(1, len(rows)):
            before, row = rows[index - 1], rows[index]
            if row.source is not None and row.source == before.source and int(row.id) == int(before.id) + 1:
                units[-1].append(index)
            else:
                units.append([index])
        return units

    def _labels(self, rows: Sequence[Row]) -> np.ndarray | None:
        """The class ids of all words, -100 for types that are not among the labels; None if a row has no tags."""
        if any(row.label is None for row in rows):
            return None
        ids = {label: index for index, label in enumerate(self.labels)}
        write = CONVERTERS["IOB2" if self.letters == "IOB" else self.letters]
        tags = [tag for row in rows for tag in write(row.label)]
        return np.array([ids.get(tag, ids.get("I-" + tag[2:], IGNORE_INDEX)) for tag in tags])

    def collate(self, examples: Sequence[Example]):
        import torch

        keywords = self.kept_features(examples)
        if all(example.label is not None for example in examples):
            keywords["labels"] = torch.from_numpy(np.concatenate([example.label for example in examples]))
        return packed(examples), keywords

    def outputs(self, out, batch) -> list[np.ndarray]:
        """(tokens, C) scores of each window."""
        return by_sequence(out.logits.float().cpu().numpy(), batch)

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[tuple]:
        tags = [["O"] * len(row.texts) for row in rows]
        for example, scores in zip(examples, outputs, strict=True):
            owned: Owned = example.meta
            best = scores[owned.positions].argmax(1)
            for row, word, label in zip(owned.rows, owned.words, best, strict=True):
                tags[row][word] = self.labels[label]
        return in_scheme_of(rows, tags)

    @property
    def probability_columns(self) -> tuple[str, ...]:
        """The header of `probabilities`."""
        return ("index", "word", *map(without_type, self.labels))

    def probabilities(
        self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]
    ) -> Iterator[Sequence]:
        """A line for each word: the number of its sentence, the word, and the probability of each of the model's
        tags."""
        for row, of_words in zip(rows, self.shares(rows, examples, outputs), strict=True):
            for word, found in zip(row.texts, of_words, strict=True):
                yield row.id, word, *map(float, found)

    def shares(
        self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]
    ) -> list[list[np.ndarray]]:
        """For each word of each row the probabilities of `labels`, (C,)."""
        shares: list[list] = [[None] * len(row.texts) for row in rows]
        for example, scores in zip(examples, outputs, strict=True):
            owned: Owned = example.meta
            for row, word, found in zip(owned.rows, owned.words, softmax(scores[owned.positions]), strict=True):
                shares[row][word] = found
        return shares

    def metric(self, rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        """Precision, recall and F1 of entities, and the accuracy of tags, as conlleval has them, but between 0 and
        1."""
        total, _ = entity_scores([row.label for row in rows], predictions)
        return total

    def guess(self, rows: Sequence[Row]) -> list[tuple]:
        """No entities at all."""
        return [("O",) * len(row.texts) for row in rows]

    def tables(self, rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> dict[str, list[Sequence]]:
        _, kinds = entity_scores([row.label for row in rows], predictions)
        columns = ("precision", "recall", "f1", "entities", "found")
        return {"entities": [("type", *columns), *((kind, *(v[c] for c in columns)) for kind, v in kinds.items())]}

    def write_predictions(self, rows: Sequence[Row], predictions: Sequence, path: str | os.PathLike) -> list[Path]:
        """Writes the lines of the file that was read with the predicted tag as an additional column, which is
        conlleval's input."""
        with atomic_write(path) as file:
            for line in tagged_lines(rows, predictions):
                file.write(line + "\n")
        return written(path)

    def read_predictions(self, rows: Sequence[Row], path: str | os.PathLike) -> list[tuple[str, ...]]:
        return read_tags(path, rows, self.bad_rows)

    def errors(self, rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> Iterable[dict]:
        """Sentences with missed or wrongly found entities."""
        for row, tags in zip(rows, predictions, strict=True):
            gold, found = set(entities_of(row.label)), set(entities_of(tags))
            if gold != found:
                named = {"missed": gold - found, "invented": found - gold}
                yield {
                    "id": row.id,
                    "sentence": " ".join(row.texts),
                    **{name: list(_named(row, spans)) for name, spans in named.items()},
                }


def _types(tagged: Iterable[Sequence[str]]) -> set[str]:
    """The types of the entities in these tags."""
    return {kind for tags in tagged for kind, _, _ in entities_of(tags)}


def _named(row: Row, spans: Iterable[tuple[str, int, int]]) -> Iterator[str]:
    for kind, begin, end in sorted(spans, key=lambda s: s[1:]):
        yield f"{kind}: {' '.join(row.texts[begin:end])}"


def _pieces(rows: Sequence[Row], tokenizer) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each row the ids of its sub-tokens, and (words,) the index at which each word begins. A word of which the
    tokenizer leaves nothing (control characters) becomes [UNK], since it too needs a tag."""
    encoder = with_prefix_space(private_copy(tokenizer))
    unknown = tokenizer.token_to_id(names_of(tokenizer).unk_token)
    found = []
    sentences = [list(row.texts) for row in rows]
    encodings = encodings_of(sentences, encoder, is_pretokenized=True, add_special_tokens=False)
    for words, encoding in zip(sentences, encodings, strict=True):
        owners, numbers = np.array(encoding.word_ids, dtype=np.int64), np.arange(len(words))
        ids, starts = np.array(encoding.ids, dtype=np.int32), np.searchsorted(owners, numbers)
        if len(set(encoding.word_ids)) < len(words):
            empty = np.setdiff1d(numbers, owners)
            ids = np.insert(ids, starts[empty], unknown)
            # Each [UNK] that was inserted before a word moves its beginning by one.
            starts = starts + np.searchsorted(empty, numbers)
        found.append((ids, starts))
    return found
