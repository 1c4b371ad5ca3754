"""Contextual features of tokens from a frozen model, with the choices of layers in the paper's Table 7."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer

from ..data.chunks import chunks
from ..data.truncation import kept_tokens, side_of
from ..errors import DataError, InputError
from ..modules.mode import evaluating, plain_outputs
from ..packing import PackedBatch
from .base import by_sequence
from .batching import evaluation_batches
from .encoding import private_copy

LAYERS = ("embeddings", "second-to-last", "last", "last4-sum", "last4-concat", "all12-sum")

# As with ELMo, the task learns its own mix of all layers (`modules.scalar_mix`), so these features are not constant.
MIX = "mix"

# The most texts that are read ahead, to make batches of similar lengths, and about how many of their tokens have their
# features in memory: 200 MB of last4-concat with BERT-base.
WINDOW = 256
_TOKENS = 16_384


@dataclass(frozen=True)
class TokenFeatures:
    """Features of one text: its n tokens with [CLS] and [SEP], their ids, and values (n, H) float32, (n, 4H) for
    last4-concat, (n, L x H) for the numbers of L layers."""

    tokens: list[str]
    ids: list[int]
    values: np.ndarray


def check_layers(layers: str | Sequence[int], count: int) -> None:
    """Raises InputError if there is no such choice, or a model with ``count`` layers has too few layers for it."""
    if not isinstance(layers, str):
        wrong = next((number for number in layers if not -count <= number < count), None)
        if wrong is not None or not layers:
            got = "none" if wrong is None else wrong
            raise InputError(f"layers must be numbers from -{count} to {count - 1} for a model's {count}, got {got}")
        return
    if layers not in LAYERS:
        raise InputError(f"layers must be one of {', '.join(LAYERS)}, got {layers!r}")
    needed = {"second-to-last": 2, "last4-sum": 4, "last4-concat": 4}.get(layers, 0)
    if count < needed:
        raise InputError(f"layers {layers} needs a model of at least {needed} layers, got {count}")


def select_layers(hidden_states: Sequence[torch.Tensor], layers: str | Sequence[int]) -> torch.Tensor:
    """Combines hidden states, the embeddings' output first, each (T, H), into features (T, H), (T, 4H) or, for the
    numbers of L layers, (T, L x H).

    ``all12-sum`` is the sum of all layers of the encoder, however many there are, without the embeddings. In a model
    without layers the embeddings count as its last layer. Layers with numbers, 0 the first and -1 the last, follow each
    other in the order of the numbers.

    Raises:
        InputError: there is no such choice, or the model has too few layers for it.
    """
    encoder = list(hidden_states[1:]) or list(hidden_states)
    check_layers(layers, len(encoder))
    if not isinstance(layers, str):
        return torch.cat([encoder[number] for number in layers], -1)
    if layers == "embeddings":
        return hidden_states[0]
    if layers == "second-to-last":
        return encoder[-2]
    if layers == "last":
        return encoder[-1]
    if layers == "last4-concat":
        return torch.cat(encoder[-4:], -1)
    return torch.stack(encoder[-4:] if layers == "last4-sum" else encoder).sum(0)


def token_features(
    model: torch.nn.Module,
    tokenizer: Tokenizer,
    texts: Iterable[str | tuple[str, str]],
    layers: str | Sequence[int],
    *,
    truncate: bool = False,
    token_budget: int = 4096,
    name: str = "the texts",
    unit: str = "line",
) -> Iterator[TokenFeatures]:
    """Computes the features of each text, in order. Texts are read as needed, so memory does not grow with their
    number.

    Args:
        model: one that `models.encoders.load_encoder` loads.
        tokenizer: the model's.
        texts: texts or pairs.
        layers: one of `LAYERS`, or the numbers of layers (`select_layers`).
        truncate: whether to cut texts over the model's max_position_embeddings; otherwise they are an error.
        token_budget: the most tokens in a batch.
        name: the name of the texts in messages, such as that of a file with one text per line.
        unit: what the numbers of texts, from 1, are called in messages.

    Raises:
        DataError: a text is too long; the message has its number.
        InputError: there is no such choice of layers, or the model has too few for it.
    """
    if isinstance(layers, str) and layers not in LAYERS:
        raise InputError(f"layers must be one of {', '.join(LAYERS)}, got {layers!r}")
    limit = model.config.max_position_embeddings
    encoder, side = private_copy(tokenizer), side_of(tokenizer)
    start = 1
    for window in chunks(texts, WINDOW):
        rows = [_tokens(encoding, limit if truncate else None, side) for encoding in encoder.encode_batch(window)]
        for number, row in enumerate(rows, start):
            if limit is not None and len(row.ids) > limit:
                raise DataError(
                    f"{name}, {unit} {number}: expected at most the model's {limit} tokens unless told to truncate, "
                    f"got {len(row.ids)}"
                )
        start += len(window)
        for part in chunks(rows, WINDOW, _TOKENS, lambda row: len(row.ids)):
            values = _window_features(model, part, layers, token_budget)
            for row, features in zip(part, values, strict=True):
                yield TokenFeatures(row.tokens, row.ids, features)


class _Tokens(NamedTuple):
    """A text's tokens, with their ids and types."""

    tokens: list[str]
    ids: list[int]
    type_ids: list[int]


def _tokens(encoding: Encoding, max_seqlen: int | None, side: str) -> _Tokens:
    whole, kept = _Tokens(encoding.tokens, encoding.ids, encoding.type_ids), kept_tokens(encoding, max_seqlen, side)
    return whole if kept is None else _Tokens(*([part[place] for place in kept.tolist()] for part in whole))


@torch.inference_mode()
def _window_features(
    model: torch.nn.Module, rows: Sequence[_Tokens], layers: str | Sequence[int], token_budget: int
) -> list[np.ndarray]:
    device = next(model.parameters()).device
    wanted = plain_outputs(model) | {"output_hidden_states": True}
    values: list = [None] * len(rows)
    with evaluating(model):
        for indices in evaluation_batches([len(row.ids) for row in rows], token_budget):
            chosen = [rows[index] for index in indices]
            batch = PackedBatch.from_sequences([row.ids for row in chosen], [row.type_ids for row in chosen]).to(device)
            out = model(batch, **wanted)
            flat = select_layers(out.hidden_states, layers).float().cpu().numpy()
            for index, found in zip(indices, by_sequence(flat, batch), strict=True):
                values[index] = found
    return values
