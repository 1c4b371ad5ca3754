"""Filling masks: the most likely tokens at each [MASK] of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from ..data.bpe import with_prefix_space
from ..data.special_tokens import names_of
from ..data.truncation import side_of
from ..errors import InputError
from ..modules.mode import evaluating, plain_outputs
from ..packing import PackedBatch
from .encoding import EncodedRow, encode_texts, private_copy
from .files import check_text, shorten


@dataclass(frozen=True)
class Candidate:
    """A token for a mask, with its probability under the softmax over the whole vocabulary."""

    token: str
    id: int
    probability: float


def fill_mask(
    model: torch.nn.Module,
    tokenizer: Tokenizer,
    text: str,
    top_k: int = 5,
    *,
    truncate: bool = False,
    targets: Sequence[int] | None = None,
) -> list[list[Candidate]]:
    """Finds the most likely tokens for every mask token in a text.

    Args:
        model: a BertForMaskedLM (or BertForPreTraining).
        tokenizer: the model's; it says what the mask token is called, usually [MASK].
        text: with at least one mask token.
        top_k: how many candidates to return for each.
        truncate: whether to cut a text over the model's max_position_embeddings; otherwise it is an error.
        targets: ids of tokens (`token_ids`) which alone are candidates, all of them, whatever top_k is.

    Returns:
        for each mask, in the order of the text, its candidates, the most likely first; fewer than top_k only if the
        tokenizer has fewer tokens. Rows that pad the vocabulary are no candidates.

    Raises:
        InputError: there is no mask token in the text, in what is left of it, or in the vocabulary; the text is too
            long, or is not valid Unicode; or the model has no logit for one of the targets.
    """
    mask = names_of(tokenizer).mask_token
    mask_id = tokenizer.token_to_id(mask)
    if mask_id is None:
        raise InputError(f"the vocabulary has no {mask} token, which masked language modelling needs")
    if not 1 <= top_k <= model.config.vocab_size:
        most = model.config.vocab_size
        raise InputError(f"top_k must be between 1 and the size of the vocabulary, {most}, got {top_k}")
    limit = model.config.max_position_embeddings
    encoding = _encoded(text, tokenizer, limit, truncate)
    positions = [index for index, token in enumerate(encoding.ids) if token == mask_id]
    if not positions:
        kept = "last" if side_of(tokenizer) == "left" else "first"
        where = f"the {kept} {limit} tokens of the text" if encoding.truncated else "the text"
        raise InputError(f"expected at least one {mask} in {where}, got {shorten(repr(text))}")
    if max(targets or (0,)) >= model.config.vocab_size:
        raise InputError(f"targets must be below the model's vocab_size {model.config.vocab_size}, got {max(targets)}")
    probabilities = _probabilities(model, encoding.ids, positions)
    if targets is None:
        return _best(tokenizer, probabilities, top_k)
    found = [_candidates(tokenizer, list(targets), row) for row in probabilities[:, list(targets)].tolist()]
    return [sorted(candidates, key=lambda candidate: -candidate.probability) for candidates in found]


def token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[int]:
    """The id of each word's token, every id once.

    Args:
        words: words as they stand in a text, or tokens as the vocabulary writes them (``##ing``).

    Raises:
        InputError: a word is not a single token.
    """
    encoder = with_prefix_space(private_copy(tokenizer))
    unknown = tokenizer.token_to_id(names_of(tokenizer).unk_token)
    found = []
    for word in words:
        _check_text(word)
        encoding = encoder.encode([word], is_pretokenized=True, add_special_tokens=False)
        token = encoding.ids[0] if len(encoding.ids) == 1 and encoding.ids[0] != unknown else None
        token = tokenizer.token_to_id(word) if token is None else token
        if token is None:
            pieces = shorten(" ".join(encoding.tokens)) or "none"
            raise InputError(f"expected words that are one token of the vocabulary, got {shorten(word)!r}: {pieces}")
        found.append(token)
    return list(dict.fromkeys(found))


def _encoded(text: str, tokenizer: Tokenizer, limit: int, truncate: bool) -> EncodedRow:
    _check_text(text)
    [encoding] = encode_texts([(text,)], tokenizer, limit if truncate else None)
    count = len(encoding.ids)
    if count > limit:
        raise InputError(f"the text has {count} tokens, the model takes at most {limit} unless told to truncate")
    return encoding


def _check_text(text: str) -> None:
    try:
        check_text(text)  # a command line in another encoding
    except ValueError as error:
        raise InputError(f"expected a text in UTF-8, got {error}") from None


def _best(tokenizer: Tokenizer, probabilities: torch.Tensor, top_k: int) -> list[list[Candidate]]:
    """The ``top_k`` most likely candidates for every row of (N, V), or all if there are fewer tokens."""
    count = top_k
    while True:
        values, best = probabilities.topk(count)
        found = [_candidates(tokenizer, *row) for row in zip(best.tolist(), values.tolist(), strict=True)]
        if count == probabilities.shape[-1] or all(len(candidates) >= top_k for candidates in found):
            return [candidates[:top_k] for candidates in found]
        count = min(2 * count, probabilities.shape[-1])


def _candidates(tokenizer: Tokenizer, ids: list[int], probabilities: list[float]) -> list[Candidate]:
    """The candidates among these ids, without those that have no token because they pad the vocabulary."""
    named = ((tokenizer.id_to_token(i), i, p) for i, p in zip(ids, probabilities, strict=True))
    return [Candidate(token, i, p) for token, i, p in named if token is not None]


@torch.inference_mode()
def _probabilities(model: torch.nn.Module, ids: np.ndarray, positions: list[int]) -> torch.Tensor:
    """The probability of every id of the vocabulary at the N positions, (N, V) float32."""
    device = next(model.parameters()).device
    # The model computes logits only at labelled positions; the labels themselves do not matter for the logits.
    labels = torch.zeros(len(positions), dtype=torch.int64)
    batch = PackedBatch.from_sequences([ids], mlm_positions=torch.tensor(positions), mlm_labels=labels).to(device)
    with evaluating(model):
        logits = model(batch, **plain_outputs(model)).mlm_logits
    return torch.softmax(logits.float(), -1)
