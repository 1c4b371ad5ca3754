"""Text generation with a GPT, greedy or by sampling, with a key-value cache."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..errors import InputError
from ..modules.cache import KeyValueCache
from ..modules.layout import PackedLayout
from ..modules.mode import evaluating
from ..packing import PackedBatch

# Lower temperatures are replaced by this one, at which the most probable token is certain anyway: dividing by less
# would overflow float32.
_LEAST_TEMPERATURE = 1e-30
_IDS = 1 << 63


def generate(
    model,
    prompts: Tensor | Sequence[Sequence[int]],
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int = 20,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    use_cache: bool = True,
) -> Tensor | list[list[int]]:
    """Continues each prompt until the model ends it, or with ``max_new_tokens`` new tokens.

    Sampling draws from softmax(logits / temperature), cut to the ``top_k`` most probable tokens (Fan et al. 2018) and
    then to the smallest set that holds ``top_p`` of what is left (Holtzman et al. 2020).

    Args:
        model: a `GPTForPreTraining`; used in evaluation mode, and left in the mode that it had.
        prompts: (B, S) int64, padded on either side under ``attention_mask``; or ragged sequences of ids.
        attention_mask: (B, S), non-zero = keep.
        do_sample: whether to sample; False takes the most probable token each time.
        temperature, top_k, top_p: those of the sampling.
        seed: of the draws. With one seed row b gets the same draws whatever the other rows are; None draws from torch's
            generator.
        eos_token_id: the token, or tokens, that end a sequence; by default the configuration's.
        pad_token_id: fills up a row after its end; by default the configuration's, or else the first end token.
        use_cache: False computes everything again for every token, to compare with: the tokens are the same.

    Returns:
        for a tensor, (B, S + new) int64, which begins with the prompts; for sequences, a list of ids for each prompt,
        which begins with it and has no padding.

    Raises:
        InputError: a prompt is empty, an option is out of range, or the model has too few positions.
        BackendError: in batch-invariant mode with ``use_cache``.
    """
    config = model.config
    rows = _rows(prompts, attention_mask)
    _check_whole(max_new_tokens=max_new_tokens, top_k=top_k, seed=seed)
    _check(config, rows, max_new_tokens, temperature, top_p)
    ends = _ends(config.eos_token_id if eos_token_id is None else eos_token_id)
    if pad_token_id is not None and not isinstance(pad_token_id, Integral):
        raise InputError(f"pad_token_id must be an id, got {pad_token_id!r:.100}")
    filters = (float(temperature), top_k, top_p)
    draws = _draws(seed, len(rows), max_new_tokens) if do_sample else None
    device = model.device
    with evaluating(model), torch.inference_mode():
        new = _continue(model, rows, max_new_tokens, filters, draws, torch.tensor(ends, device=device), use_cache)
    kept = [_until_end(row, ends) for row in new.tolist()]
    if not isinstance(prompts, Tensor):
        return [row + more for row, more in zip(rows, kept, strict=True)]
    pad = config.pad_token_id if pad_token_id is None else pad_token_id
    pad = ends[0] if pad is None and ends else pad or 0
    longest = max((len(more) for more in kept), default=0)
    tail = torch.tensor([more + [pad] * (longest - len(more)) for more in kept], dtype=torch.int64, device=device)
    return torch.cat([prompts.to(device), tail.reshape(len(rows), longest)], 1)


def _continue(model, rows, count: int, filters: tuple, draws: Tensor | None, ends: Tensor, use_cache: bool) -> Tensor:
    """The new tokens (B, at most count) int64; those after an end token are still to be cut off."""
    decoder, config, device = model.transformer, model.config, model.device
    batch = PackedBatch.from_sequences(rows).to(device)
    lengths = batch.cu_seqlens.diff().long()
    done = torch.zeros(len(rows), dtype=torch.bool, device=device)
    cache = None
    if use_cache:
        ops.refuse_variant("generate keeps keys and values, which torch attends to; expected use_cache=False")
        room = (config.n_layer, config.n_head, config.head_dim, len(rows), int(lengths.max()) + count)
        cache = KeyValueCache(*room, device=device, dtype=model.dtype)
    chosen: list[Tensor] = []
    for step in range(count):
        if cache is None:
            made = torch.stack(chosen, 1).tolist() if chosen else [[]] * len(rows)
            batch = PackedBatch.from_sequences([a + b for a, b in zip(rows, made, strict=True)]).to(device)
            last = _last_states(decoder, batch, PackedLayout(batch.cu_seqlens, batch.max_seqlen, causal=True))
        elif not step:
            last = _last_states(decoder, batch, cache.first(batch.cu_seqlens, batch.max_seqlen))
        else:
            places = cache.lengths
            last = decoder.run(decoder.embed(chosen[-1], places, None), cache.step(), None)[0]
        logits = model.logits(last).float()
        if draws is None:
            token = logits.argmax(-1)
        else:
            token = _draw(filtered(logits, *filters), draws[:, step].to(device))
        chosen.append(token)
        done |= torch.isin(token, ends)
        if bool(done.all()):
            break
    return torch.stack(chosen, 1) if chosen else torch.empty(len(rows), 0, dtype=torch.int64, device=device)


def _last_states(decoder, batch: PackedBatch, layout) -> Tensor:
    """(B, H), the states of the last tokens of the sequences."""
    hidden, _ = decoder.run(decoder.embed(batch.input_ids, batch.position_ids, None), layout, None)
    return hidden.index_select(0, batch.cu_seqlens[1:].long() - 1)


def filtered(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """(B, V) logits divided by the temperature, with -inf for tokens outside the top_k or top_p (None: no limit)."""
    logits = logits / max(temperature, _LEAST_TEMPERATURE)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p is not None and top_p < 1.0:
        ordered, places = logits.sort(descending=True)
        shares = ordered.softmax(-1)
        # A token stays while those before it hold less than top_p; so the first always does.
        beyond = shares.cumsum(-1) - shares >= top_p
        logits = logits.masked_fill(beyond.gather(-1, places.argsort(-1)), float("-inf"))
    return logits


def _draws(seed: int | None, rows: int, count: int) -> Tensor:
    """(rows, count) float64 random numbers in [0, 1); a row's numbers do not depend on the number of rows."""
    first = int(torch.randint(1 << 62, ())) if seed is None else seed
    made = [np.random.Generator(np.random.PCG64([first, row])).random(count) for row in range(rows)]
    return torch.from_numpy(np.stack(made))


def _draw(logits: Tensor, draws: Tensor) -> Tensor:
    """One token per row: the one in whose interval of the cumulative probabilities the row's number falls."""
    sums = logits.double().softmax(-1).cumsum(-1)
    # By rounding, a number may fall past the last interval: then the last token with a finite logit is taken.
    place = torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]
    last = logits.shape[-1] - 1 - torch.isfinite(logits).flip(-1).int().argmax(-1)
    return torch.minimum(place, last)


def _rows(prompts, attention_mask: Tensor | None) -> list[list[int]]:
    """The ids of each prompt, without pads. Raises InputError for another form, or a mask that does not fit."""
    if not isinstance(prompts, Tensor):
        if attention_mask is not None:
            raise InputError("attention_mask goes with a tensor of prompts, got sequences")
        try:
            return [[operator.index(token) for token in row] for row in prompts]
        except TypeError:
            raise InputError(f"prompts must be sequences of ids, one a prompt, got {prompts!r:.100}") from None
    if prompts.dim() != 2 or prompts.is_floating_point():
        raise InputError(
            f"prompts must be ids (B, S) or a list of sequences, got {tuple(prompts.shape)} of {prompts.dtype}"
        )
    if attention_mask is None:
        return prompts.tolist()
    if not isinstance(attention_mask, Tensor) or attention_mask.shape != prompts.shape:
        got = tuple(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise InputError(f"attention_mask must be a tensor {tuple(prompts.shape)}, got {got}")
    pairs = zip(prompts.cpu(), attention_mask.cpu(), strict=True)
    return [row[mask != 0].tolist() for row, mask in pairs]


def _ends(given) -> list[int]:
    """The end tokens. Raises InputError for what is neither an id nor several."""
    refused = InputError(f"eos_token_id must be an id or a list of ids, got {given!r:.100}")
    if given is None:
        return []
    try:
        several = list(given) if isinstance(given, Iterable) else [given]
        # Python takes True for the number 1.
        ends = [operator.index(end) for end in several if not isinstance(end, bool)]
    except TypeError:
        raise refused from None
    if len(ends) < len(several) or any(abs(end) >= _IDS for end in ends):
        raise refused
    return ends


def _check_whole(**options: Any) -> None:
    """Raises InputError for an option that is no whole number, or a too small one."""
    least = {"max_new_tokens": 0, "top_k": 1, "seed": 0}
    for name, value in options.items():
        if value is None and name != "max_new_tokens":
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least[name]:
            raise InputError(f"{name} must be a whole number, at least {least[name]}, got {value!r:.100}")


def _check(config, rows, count: int, temperature: float, top_p: float | None) -> None:
    """Raises InputError for prompts that the model cannot read or continue, or sampling options out of range."""
    if not rows or not all(rows):
        raise InputError("expected prompts of at least one token, got an empty one")
    if not isinstance(temperature, Real) or not temperature > 0:
        raise InputError(f"temperature must be above 0, got {temperature!r:.100}")
    if top_p is not None and not (isinstance(top_p, Real) and 0 < top_p <= 1):
        raise InputError(f"top_p must be above 0 and at most 1, got {top_p!r:.100}")
    # The last token is not read again, so it needs no position.
    longest = max(map(len, rows)) + max(count - 1, 0)
    if longest > config.n_positions:
        raise InputError(
            f"prompt and new tokens but the last must fit the model's {config.n_positions} positions, got {longest}"
        )
    low, high = (pick(pick(row) for row in rows) for pick in (min, max))
    if low < 0 or high >= config.vocab_size:
        raise InputError(f"prompts must hold ids below vocab_size {config.vocab_size}, got {low if low < 0 else high}")


def _until_end(row: list[int], ends: list[int]) -> list[int]:
    """The tokens up to the first end token, which is kept."""
    place = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
    return row[: place + 1]
