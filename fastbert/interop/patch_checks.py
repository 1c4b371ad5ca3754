"""Whether a transformers encoder computes what our layers compute, and if not, the reason in words."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from ..config import BertConfig
from ..modules.norm import is_plain_norm
from .patch_families import BERT, INNER, LEAVES, Family, find, hint_of_encoder
from .patch_parts import TOKENWISE, is_tokenwise

_ERF = ("GELUActivation",)
_TANH = ("NewGELUActivation", "FastGELUActivation", "GELUTanh", "PytorchGELUTanh")
_NO_GELU = ", not a GELU as it was made"
_NORM = ", not torch's LayerNorm with weight and bias"
_OWN = (
    ", which may read more than the token that it computes (PEFT's adapters and parametrised layers do not; on any "
    f"other module that does not, set {TOKENWISE} = True)"
)


class Unservable(Exception):
    """A model in its present state, or a pass, must be computed by its own code; the message says why."""


class OwnPart(Unservable):
    """The reason is one of the user's modules, which may not compute each token independently."""


def approximation(activation: nn.Module) -> str | None:
    """The form of GELU, "none" or "tanh", of an activation of transformers or torch; None if it is no GELU, or if the
    function by which it computes has been replaced."""
    if isinstance(activation, nn.GELU):
        return activation.approximate
    name = type(activation).__name__
    form = "none" if name in _ERF else "tanh" if name in _TANH else None
    function = activation.__dict__.get("act")
    return form if function is None or _computes(function, form, activation) else None


def _computes(function: Any, form: str | None, activation: nn.Module) -> bool:
    """Whether the function of one of transformers' activations is that with which it was made: torch's, or one of its
    own methods."""
    if isinstance(function, functools.partial):
        given, function = function.keywords, function.func
        return function is nn.functional.gelu and given == {"approximate": form}
    if function is nn.functional.gelu:
        return form == "none"
    method = getattr(function, "__func__", None)
    return method is not None and any(method is own for own in vars(type(activation)).values())


def check(model: nn.Module, layers: list[nn.Module], config: BertConfig, family: Family) -> None:
    """Raises Unservable for a model with a part that computes something else than its family's own code.

    Args:
        model: the encoder of transformers.
        layers: its distinct layers.
        config: our configuration of it.
        family: its family.
    """
    if not layers:
        raise Unservable("it has no layers")
    _check_classes(model, layers, family)
    for layer in layers:
        _check_layer(layer, family)
        check_heads(config, *scoring_of(layer, family))
    if family.table is not None:
        table = family.encoder_of(model)._modules[family.table]
        if not is_tokenwise(table):
            raise OwnPart(f"{family.table} is {_kind(table)}{_OWN}")
    if family is BERT:
        _check_embeddings(model._modules["embeddings"]._modules)


def _check_classes(model: nn.Module, layers: list[nn.Module], family: Family) -> None:
    """Raises Unservable if a module that our code replaces is not the family's own."""
    encoder = family.encoder_of(model)
    embeddings = None if family.encoder is None else model._modules["embeddings"]
    around = [] if family.encoder is None else [encoder, embeddings]
    inner = [family.part(layer, name) for layer in layers for name in INNER]
    for module in (*inner, *layers, *family.layers(encoder)[0], *around):
        if module is not None and not _is_own(module, family):
            hint = hint_of_encoder(family) if module is embeddings else ""
            what = f"one of its modules is a {type(module).__name__} of {type(module).__module__}{hint}"
            raise Unservable(compiled(module) or what)


def _is_own(module: nn.Module, family: Family) -> bool:
    """Whether a module is the family's own; activations are from another file of transformers, dropouts from torch."""
    known = type(module).__module__ in (family.module, "transformers.activations")
    return known or type(module).forward in (nn.Dropout.forward, nn.GELU.forward)


def _check_layer(layer: nn.Module, family: Family) -> None:
    activation = family.part(layer, "intermediate.intermediate_act_fn")
    if activation is None or approximation(activation) is None:
        raise Unservable(f"the activation of a layer is {type(activation).__name__}{_NO_GELU}")
    for name in LEAVES:
        leaf = family.part(layer, name)
        if leaf is None or (name.endswith("LayerNorm") and not is_plain_norm(leaf)):
            raise _reason(leaf)(f"{name} of a layer is {_kind(leaf)}{_NORM if 'LayerNorm' in name else ''}")
        if not is_tokenwise(leaf):
            raise OwnPart(f"{name} of a layer is {_kind(leaf)}{_OWN}")
    if find(layer, "crossattention") is not None:
        raise Unservable("a layer has cross-attention")


def _check_embeddings(children: dict[str, nn.Module]) -> None:
    norm, dropout, words = (children[name] for name in ("LayerNorm", "dropout", "word_embeddings"))
    if not is_plain_norm(norm):
        raise _reason(norm)(f"the embeddings' LayerNorm is {_kind(norm)}{_NORM}")
    if type(dropout).forward is not nn.Dropout.forward:
        raise Unservable(f"the embeddings' dropout is {_kind(dropout)}, not torch's Dropout")
    if not is_tokenwise(words):
        raise OwnPart(f"word_embeddings is {_kind(words)}{_OWN}")
    for name in ("position_embeddings", "token_type_embeddings"):
        if type(children[name]) is not nn.Embedding:
            raise _reason(children[name])(f"{name} is {_kind(children[name])}, not torch's Embedding")


def check_heads(config: BertConfig, attention: nn.Module, owner: nn.Module, dense: list[nn.Module]) -> None:
    """Raises Unservable for a layer whose heads or hidden states do not have the number or size in the configuration.

    Args:
        attention, owner, dense: what `scoring_of` returns.
    """
    own, number, size = attention.__dict__, config.num_attention_heads, config.head_dim
    heads = (own.get("num_attention_heads", number), own.get("n_heads", number))
    if owner.__dict__.get("pruned_heads") or heads != (number,) * 2 or own.get("attention_head_size", size) != size:
        raise Unservable("heads of a layer have been pruned")
    for module in dense:
        # Not of an adapter or a quantised layer, whose weight may have the shape of its packed bits.
        weight = module._parameters.get("weight") if type(module).forward is nn.Linear.forward else None
        if weight is None:
            continue
        outputs, inputs = weight.shape
        if outputs != config.hidden_size:
            raise Unservable(f"heads of a layer have been pruned: a dense layer has {outputs} outputs")
        if inputs != config.hidden_size:
            raise Unservable(f"hidden states have been pruned: a dense layer of {outputs} outputs has {inputs} inputs")


def scoring_of(layer: nn.Module, family: Family) -> tuple[nn.Module, nn.Module, list[nn.Module]]:
    """The module that computes a layer's scores, its parent, and the dense layers of query, key and value."""
    owner = find(layer, "attention")
    return family.part(layer, "attention.self") or owner, owner, [family.part(layer, name) for name in LEAVES[:3]]


def _kind(module: nn.Module | None) -> str:
    """The class with its Python module, since classes of adapters have the same names as torch's."""
    return "missing" if module is None else f"{type(module).__module__}.{type(module).__qualname__}"


def _reason(module: nn.Module | None) -> type[Unservable]:
    """The error for a module that replaces a norm or table: OwnPart for an adapter of PEFT, which may be removed."""
    return OwnPart if type(module).__module__.startswith("peft.") else Unservable


def compiled(module: nn.Module | None) -> str | None:
    """The reason why a module that ``torch.compile(module)`` returned cannot be served; None for any other module."""
    inside = None if module is None else module._modules.get("_orig_mod")
    if inside is None:
        return None
    return (
        f"torch.compile's module is in the place of its {type(inside).__name__}; compile the whole model instead, or "
        "that module in place, by its compile()"
    )
