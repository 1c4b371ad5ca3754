"""Text to ids for tasks: one sentence or a pair, cut to a length, no padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..data.truncation import cut_at

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


def private_copy(tokenizer: Tokenizer, max_seqlen: int | None) -> Tokenizer:
    """A copy without padding, cutting at max_seqlen: the settings live in the tokenizer, and the caller's stay."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_padding()
    cut_at(copy, max_seqlen)
    return copy


def encode_texts(texts: Sequence[Sequence[str]], tokenizer: Tokenizer, max_seqlen: int | None) -> list[Encoding]:
    """Encodes rows of one text or of a pair, with [CLS] and [SEP], cut as `data.truncation.cut_at` says."""
    inputs = [row[0] if len(row) == 1 else tuple(row) for row in texts]
    return private_copy(tokenizer, max_seqlen).encode_batch(inputs)
