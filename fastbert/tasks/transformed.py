"""Examples and batches from the sequences that a GPT's input transforms make of rows (`input_transforms`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import Example
from .input_transforms import Ids

if TYPE_CHECKING:
    from ..packing import PackedBatch


def joined(row: int, parts: Sequence[Ids], label: Any) -> Example:
    """An example with several sequences end to end, and their lengths in ``meta``."""
    ids = [i for part in parts for i in part.ids]
    cut = any(part.truncated for part in parts)
    return Example(row, ids, [0] * len(ids), label, cut, meta=[len(part.ids) for part in parts])


def parts_of(examples: Iterable[Example]) -> Iterator[Example]:
    """The sequences of examples made by `joined`, each as an example without a label."""
    for whole in examples:
        begin = 0
        for length in whole.meta:
            part = slice(begin, begin + length)
            yield Example(whole.row, whole.input_ids[part], whole.token_type_ids[part])
            begin += length


def with_next_words(batch: PackedBatch) -> PackedBatch:
    """The batch with labels for the auxiliary language-model loss, at every position that has a next token."""
    import torch

    from ..data.pretraining import next_tokens

    positions, labels = next_tokens(batch.input_ids.numpy(), batch.cu_seqlens.numpy().astype(np.int64))
    return replace(batch, mlm_positions=torch.from_numpy(positions), mlm_labels=torch.from_numpy(labels))
