"""Encoding texts for tasks: one text or a pair, truncated, without padding."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.chunks import chunks
from ..data.truncation import cut_at, kept_tokens, side_of
from ..errors import InputError
from ..wording import counted

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from .base import Example, Task

_log = logging.getLogger("fastbert")
CUT_SHARE = 0.05
"""The share of rows that may be cut off to fit before a warning says so: a few long ones are in most data."""
CHUNK = 512
"""The most texts encoded at a time: the library's encodings take many times the memory of what is kept of them."""


@dataclass(frozen=True)
class EncodedRow:
    """A row as ids and token types, both (n,) int32, and whether tokens were cut off to fit."""

    ids: np.ndarray
    type_ids: np.ndarray
    truncated: bool


def private_copy(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that neither truncates nor pads. These settings are stored in a tokenizer, and the caller's must not
    change."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_padding()
    cut_at(copy, None)
    return copy


def encodings_of(inputs: Sequence[Any], encoder: Tokenizer, **options: Any) -> Iterator[Encoding]:
    """Yields what ``encode_batch`` returns for the inputs, in chunks, so that memory does not grow with their
    number."""
    for chunk in chunks(inputs, CHUNK):
        yield from encoder.encode_batch(chunk, **options)


def encode_texts(texts: Sequence[Sequence[str]], tokenizer: Tokenizer, max_seqlen: int | None) -> list[EncodedRow]:
    """Encodes rows of one text or a pair, with [CLS] and [SEP], truncated to max_seqlen tokens by
    `data.truncation.kept_tokens`; None truncates nothing.

    Raises:
        InputError: max_seqlen has no room for the special tokens.
    """
    inputs = [row[0] if len(row) == 1 else tuple(row) for row in texts]
    marks = tokenizer.num_special_tokens_to_add(any(isinstance(row, tuple) for row in inputs))
    if max_seqlen is not None and max_seqlen < marks:
        raise InputError(f"max_seqlen must be at least {marks}, the number of special tokens, got {max_seqlen}")
    side = side_of(tokenizer)
    return [_cut(encoding, max_seqlen, side) for encoding in encodings_of(inputs, private_copy(tokenizer))]


def _cut(encoding: Encoding, max_seqlen: int | None, side: str) -> EncodedRow:
    ids, types = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32)
    kept = kept_tokens(encoding, max_seqlen, side)
    return EncodedRow(ids, types, False) if kept is None else EncodedRow(ids[kept], types[kept], True)


def count_cut(task: Task, examples: Iterable[Example]) -> int:
    """How many rows have lost tokens to fit, by their examples; none of a task that reads them in windows."""
    return 0 if task.in_windows else sum(example.truncated for example in examples)


def say_if_cut(cut: int, rows: int, max_seqlen: int, most: int | None, kind: str = "row") -> None:
    """Warns if more than `CUT_SHARE` of the rows were cut, which nothing else shows: a text is then judged by a part.

    Args:
        cut: how many were.
        rows: of how many.
        max_seqlen: the tokens that are kept.
        most: the most that the model reads; None if it reads any number.
        kind: what the rows are, in the singular.
    """
    if cut <= CUT_SHARE * rows:
        return
    if most is not None and max_seqlen >= most:
        length, way = f"{max_seqlen} tokens, the most that the model reads,", ""
    else:
        bound = "" if most is None else f" (at most the model's {most})"
        length, way = f"{max_seqlen} tokens", f"; --max-seqlen N{bound} keeps more"
    are, were = ("is", "was") if cut == 1 else ("are", "were")
    _log.warning("%s of %s %s longer than %s and %s cut%s", f"{cut:,}", counted(rows, kind), are, length, were, way)
