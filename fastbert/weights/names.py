"""Converts all published variants of the names of BERT's tensors to one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError

# Parts of names from the wrappers of torch.compile, FSDP and checkpointing; DataParallel's is "module." at the front.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_OWNER = "model."
_BARE = ("embeddings.", "encoder.", "pooler.")
_LAYER_NORM = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# Buffers that older releases of transformers saved and newer ones compute.
_COMPUTED = ("embeddings.position_ids", "embeddings.token_type_ids")


def unwrapped_name(name: str) -> str:
    """The name without the parts that module wrappers add."""
    name = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def owner(names: Iterable[str], prefix: str = "bert") -> str:
    """The prefix of a model's names: ``model.`` if it was saved as the attribute of a training module, such as PyTorch
    Lightning's, which may have others besides; "" if the names are the model's own."""
    names, trunks = [unwrapped_name(name) for name in names], (f"{prefix}.embeddings.", "embeddings.")
    under = any(name.startswith(tuple(_OWNER + trunk for trunk in trunks)) for name in names)
    return _OWNER if under and not any(name.startswith(trunks) for name in names) else ""


def own_names(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under the names that the encoder itself gives them, without ``prefix``, wrappers and what a training
    module calls the model; those of heads as they are.

    Raises:
        CheckpointError: two different tensors get the same name.
    """
    out: dict[str, Tensor] = {}
    under = owner(state, prefix)
    for name, tensor in state.items():
        own = unwrapped_name(name).removeprefix(under).removeprefix(f"{prefix}.")
        if not is_same(out.setdefault(own, tensor), tensor):
            raise CheckpointError(f"{name}: expected one tensor for {own}, got two that differ")
    return out


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one name may stand for each other."""
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def canonical_name(name: str, prefix: str = "bert") -> str:
    """One name in the form of transformers' BertForPreTraining."""
    name = unwrapped_name(name)
    for old, new in _LAYER_NORM.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if name.startswith(_BARE):
        name = f"{prefix}.{name}"
    # The decoder's bias has two names; all releases of transformers use the first.
    return "cls.predictions.bias" if name == "cls.predictions.decoder.bias" else name


def is_computed(name: str) -> bool:
    """Whether the tensor can be computed from the configuration and is not stored in files."""
    return name.endswith(_COMPUTED)
