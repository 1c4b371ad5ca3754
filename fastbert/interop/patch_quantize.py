"""The dense layers of a patched encoder that `fastbert.quantize` converts to int8: the same ones as in our encoder."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from ..errors import InputError
from ..modules.linear import is_plain
from ..modules.quantized import PROBE_LENGTH, Quantizable, probe_ids, probe_states
from .patch_checks import Unservable
from .patch_families import LEAVES, Family, family_of, find
from .patch_view import View, forget, view_for


def quantizable(model: nn.Module) -> Quantizable:
    """The dense layers of a patched encoder, and a probe that calls them.

    Raises:
        InputError: it is torch's encoder, whose products are not computed by modules, or an encoder that is computed by
            its own code.
    """
    family = family_of(type(model))
    if family is None:
        raise InputError(f"quantize takes encoders of transformers, got torch's {type(model).__name__}")
    try:
        view = view_for(model, family)
    except Unservable as reason:
        raise InputError(f"quantize: this {type(model).__name__} is computed by its own code: {reason}") from reason

    places = list(_places(view, family))
    # The view would keep the float layers until the next pass, or for ever if none is computed by our kernels.
    del view
    forget(model)

    def probe() -> None:
        # By transformers' own code, which calls every module.
        family.model_class().forward(model, **inputs())

    def inputs() -> dict[str, torch.Tensor]:
        config = model.config
        if family.encoder is None:
            return {"hidden_states": probe_states(config.hidden_size).to(next(model.parameters()).dtype)}
        # In RoBERTa's family, position ids begin after the padding id.
        positions = config.max_position_embeddings - (config.pad_token_id or 0) - 1
        table = getattr(model.get_input_embeddings(), "weight", None)  # may have been cut below vocab_size
        words = min(config.vocab_size, table.shape[0]) if isinstance(table, torch.Tensor) else config.vocab_size
        ids = probe_ids(words, max(1, min(PROBE_LENGTH, positions)))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    return Quantizable(places, probe, is_ours=False)


def _places(view: View, family: Family) -> Iterator[tuple[nn.Module, str]]:
    for layer in view.different:
        for name in LEAVES:
            path = family.path(name)
            owner, _, leaf = path.rpartition(".")
            parent = find(layer, owner) if owner else layer
            if is_plain(getattr(parent, leaf)):
                yield parent, leaf
