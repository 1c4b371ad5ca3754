"""The names of a BERT's tensors, brought from every published variant to one form."""

from __future__ import annotations

from collections.abc import Iterable

# What torch.compile, FSDP and checkpoint wrappers put into names; "module." is DataParallel's and stands in front.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_OWNER = "model."
_BARE = ("embeddings.", "encoder.", "pooler.")
_LAYER_NORM = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# Buffers that older releases of transformers saved and newer ones compute.
_COMPUTED = ("embeddings.position_ids", "embeddings.token_type_ids")


def unwrapped_name(name: str) -> str:
    """The name without what wrappers of modules added."""
    name = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def owner(names: Iterable[str], prefix: str = "bert") -> str:
    """``model.`` where all of a model's names begin so: modules that train one, such as PyTorch Lightning's, have it as
    an attribute of that name, and may have others beside it. Empty where the names are the model's own."""
    names, trunks = [unwrapped_name(name) for name in names], (f"{prefix}.embeddings.", "embeddings.")
    under = any(name.startswith(tuple(_OWNER + trunk for trunk in trunks)) for name in names)
    return _OWNER if under and not any(name.startswith(trunks) for name in names) else ""


def canonical_name(name: str, prefix: str = "bert") -> str:
    """One name in the form of transformers' BertForPreTraining."""
    name = unwrapped_name(name)
    for old, new in _LAYER_NORM.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if name.startswith(_BARE):
        name = f"{prefix}.{name}"
    # The decoder's bias is one tensor under two names, of which every release has the first.
    return "cls.predictions.bias" if name == "cls.predictions.decoder.bias" else name


def is_computed(name: str) -> bool:
    """Whether the tensor follows from the configuration and belongs in no file."""
    return name.endswith(_COMPUTED)
