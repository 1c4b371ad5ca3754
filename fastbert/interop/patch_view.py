"""A transformers encoder seen as ours: our modules around the very dense layers, norms and tables that it holds.

A view owns no weight: it borrows the leaf modules, so optimisers, devices and dtypes stay the caller's affair. What he
changes later (an adapter in place of a dense layer, a hook, a resized table) is noticed at the next forward pass.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..config import BertConfig
from ..errors import InputError
from ..modules import hooks
from ..modules.embeddings import BertEmbeddings, is_plain_table
from ..modules.encoder import BertEncoder
from ..modules.norm import is_plain_norm
from .patch_families import BERT, INNER, LEAVES, Family, is_before_5
from .patch_parts import TOKENWISE, is_tokenwise

_ERF = ("GELUActivation",)
_TANH = ("NewGELUActivation", "FastGELUActivation", "GELUTanh", "PytorchGELUTanh")
_TABLE_SIZES = {
    "word_embeddings": "vocab_size",
    "position_embeddings": "max_position_embeddings",
    "token_type_embeddings": "type_vocab_size",
}
_TABLES = tuple(_TABLE_SIZES)
_NORM = ", not torch's LayerNorm with weight and bias"
_OWN = (
    ", which may read more than the token that it computes (PEFT's adapters and parametrised layers do not; of another "
    f"that does not {TOKENWISE} = True says so)"
)
# Hooks that transformers and PEFT put there themselves, and that mind no shape.
_BENIGN_MODULES = ("transformers.utils.output_capturing", "transformers.utils.generic")
_BENIGN_NAMES = ("make_inputs_require_grad", "make_inputs_require_grads")


class Unservable(Exception):
    """Why a model, as it is now, must be computed by its own code."""


class OwnPart(Unservable):
    """The reason is a module of the caller's own, whose tokens only he knows: transformers' code is right with it."""


def find(module: nn.Module, path: str | tuple[str, ...]) -> nn.Module | None:
    for name in path.split(".") if isinstance(path, str) else path:
        module = module._modules.get(name)
        if module is None:
            return None
    return module


def our_config(config: Any, family: Family) -> BertConfig:
    """The fields of ours that decide what an encoder computes.

    Raises:
        InputError: a decoder, cross-attention, relative positions, or an activation that is not a GELU.
    """
    names = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size"),
        *("vocab_size", "is_decoder", "add_cross_attention", "position_embedding_type"),
    )
    values = {name: getattr(config, family.field(name), None) for name in names}
    values["type_vocab_size"] = values["type_vocab_size"] or 1
    ours = BertConfig(pad_token_id=None, **{name: value for name, value in values.items() if value is not None})
    if ours.is_decoder:
        raise InputError("is_decoder must be false: patch computes encoders; load the weights into a BertModel of ours")
    if ours.position_embedding_type != "absolute":
        raise InputError(f"position_embedding_type must be 'absolute', got {ours.position_embedding_type!r}")
    return ours


def approximation(activation: nn.Module) -> str | None:
    """What our GELU calls an activation of transformers or torch; None for another."""
    if isinstance(activation, nn.GELU):
        return activation.approximate
    name = type(activation).__name__
    return "none" if name in _ERF else "tanh" if name in _TANH else None


class View:
    """Our embeddings (BERT's family only) and encoder over the modules of a transformers model.

    Raises:
        Unservable: the model holds something that computes otherwise.
    """

    def __init__(self, model: nn.Module, family: Family, parts: list[nn.Module | None]) -> None:
        self.family = family
        self.parts = parts
        self.kinds = list(map(type, parts))
        self.config = our_config(model.config, family)
        source = model._modules[family.encoder]
        layers = list(source._modules["layer"]._modules.values())
        self.config.num_hidden_layers = len(layers)
        self._check(model, layers)
        # On the meta device: a view's own weights would be made only to be replaced.
        with torch.device("meta"):
            self.encoder = BertEncoder(self.config)
            self.embeddings = BertEmbeddings(self.config) if family is BERT else None
        for ours, theirs in zip(self.encoder.layer, layers, strict=True):
            ours.config = copy.copy(self.config)
            for name in LEAVES:
                owner, _, leaf = name.rpartition(".")
                setattr(ours.get_submodule(owner), leaf, find(theirs, family.path(name)))
            activation = find(theirs, family.path("intermediate.intermediate_act_fn"))
            ours.intermediate.approximate = approximation(activation)
        if self.embeddings is None:
            # The family's own embeddings look at positions, of which none is left when tokens come here.
            self.config.max_position_embeddings = None
        # What the modules do counts, and not what the configuration says of them.
        first = self.encoder.layer[0]
        self.config.layer_norm_eps = first.output.LayerNorm.eps
        self.config.hidden_act = "gelu" if first.intermediate.approximate == "none" else "gelu_new"
        self.dropouts = [
            tuple(_part(layer, family, f"{name}.dropout") for name in ("attention.self", "attention.output", "output"))
            for layer in layers
        ]
        self.embedding_dropout = None
        self.usual_buffers: tuple[list, list] = [], []
        if self.embeddings is not None:
            theirs = model._modules["embeddings"]
            self.embeddings.config = copy.copy(self.config)
            for name in (*_TABLES, "LayerNorm"):
                setattr(self.embeddings, name, theirs._modules[name])
            self.embedding_dropout = theirs._modules["dropout"]
            self.buffers = theirs._buffers
        self.norms = [find(layer, family.path(name)) for layer in layers for name in LEAVES if "LayerNorm" in name]
        if self.embeddings is not None:
            self.norms.append(self.embeddings.LayerNorm)
        self.scoring = [_scoring(layer, family) for layer in layers]
        self.layers = layers
        self.source = source

    def _check(self, model: nn.Module, layers: list[nn.Module]) -> None:
        family = self.family
        if not layers:
            raise Unservable("it has no layers")
        inner = [_part(layer, family, name) for layer in layers for name in INNER]
        # transformers' activations and torch's dropouts are others' by right; the rest must be the family's own code.
        own = [
            m for m in (*inner, *layers, model._modules[family.encoder], model._modules["embeddings"]) if m is not None
        ]
        for module in own:
            strange = type(module).__module__ not in (family.module, "transformers.activations")
            if strange and type(module).forward not in (nn.Dropout.forward, nn.GELU.forward):
                raise Unservable(
                    _compiled(module) or f"one of its modules is a {type(module).__name__} of {type(module).__module__}"
                )
        for layer in layers:
            activation = _part(layer, family, "intermediate.intermediate_act_fn")
            if activation is None or approximation(activation) is None:
                raise Unservable(f"the activation of a layer is {type(activation).__name__}, not a GELU")
            for name in LEAVES:
                leaf = _part(layer, family, name)
                if leaf is None or (name.endswith("LayerNorm") and not is_plain_norm(leaf)):
                    raise _reason(leaf)(f"{name} of a layer is {_kind(leaf)}{_NORM if 'LayerNorm' in name else ''}")
                if not is_tokenwise(leaf):
                    raise OwnPart(f"{name} of a layer is {_kind(leaf)}{_OWN}")
            if find(layer, "crossattention") is not None:
                raise Unservable("a layer has cross-attention")
            self._check_heads(*_scoring(layer, family))
        if family is BERT:
            tables = model._modules["embeddings"]._modules
            if not is_plain_norm(tables["LayerNorm"]):
                raise _reason(tables["LayerNorm"])(f"the embeddings' LayerNorm is {_kind(tables['LayerNorm'])}{_NORM}")
            if type(tables["dropout"]).forward is not nn.Dropout.forward:
                raise Unservable(f"the embeddings' dropout is {_kind(tables['dropout'])}, not torch's Dropout")
            if not is_tokenwise(tables["word_embeddings"]):
                raise OwnPart(f"word_embeddings is {_kind(tables['word_embeddings'])}{_OWN}")
            for name in _TABLES[1:]:
                if type(tables[name]) is not nn.Embedding:
                    raise _reason(tables[name])(f"{name} is {_kind(tables[name])}, not torch's Embedding")

    def _check_heads(self, attention: nn.Module, owner: nn.Module, dense: list[nn.Module]) -> None:
        """Raises Unservable for a layer of fewer heads, or other ones, than the configuration says."""
        config, own = self.config, attention.__dict__
        number, size = config.num_attention_heads, config.head_dim
        heads = (own.get("num_attention_heads", number), own.get("n_heads", number))
        if owner.__dict__.get("pruned_heads") or heads != (number,) * 2 or own.get("attention_head_size", size) != size:
            raise Unservable("heads of a layer have been pruned")
        for module in dense:
            weight = module._parameters.get("weight")  # an adapter, and a parametrised layer, have none of their own
            if weight is not None and weight.dim() == 2 and weight.shape[0] != config.hidden_size:
                raise Unservable(f"heads of a layer have been pruned: a dense layer has {weight.shape[0]} outputs")

    def _check_buffers(self) -> None:
        """Raises Unservable where what stands for ids that are not given is not 0, 1, 2, ... and zeros."""
        held = [self.buffers.get(name) for name in ("position_ids", "token_type_ids")]
        # Looked into when they have changed: on a GPU that waits for it.
        versions = [0 if x is None or x.is_inference() else x._version for x in held]
        seen, seen_versions = self.usual_buffers
        if any(x is not None and x.is_meta for x in held) or (
            versions == seen_versions and all(x is y for x, y in zip(held, seen, strict=True))
        ):
            return
        positions, types = held
        usual = None if positions is None else torch.arange(positions.shape[-1], device=positions.device)
        if usual is not None and bool((positions != usual).any()):
            raise Unservable("the embeddings' position_ids are not 0, 1, 2 and so on")
        if types is not None and bool(types.any()):
            raise Unservable("the embeddings' token_type_ids are not zeros")
        self.usual_buffers = held, versions

    def follow(self) -> bool:
        """Takes over what may change from call to call: rates, modes, recomputation.

        Returns:
            whether anything is dropped in this pass.

        Raises:
            Unservable: rates that our layer has no place for.
        """
        if not all(map(is_plain_norm, self.norms)):
            raise Unservable("a LayerNorm has lost its weight or bias")
        drops = False
        usual = self.config.head_dim**-0.5
        for ours, theirs, scoring, (on_probs, on_attention, on_output) in zip(
            self.encoder.layer, self.layers, self.scoring, self.dropouts, strict=True
        ):
            ours.training = theirs.training  # not train(): the leaves are the caller's
            attention = scoring[0]
            scaling = getattr(attention, "scaling", usual)
            if scaling != usual:
                raise Unservable(f"a layer scales its attention by {scaling:.4g} and not by {usual:.4g}")
            if getattr(attention, "is_causal", False):
                raise Unservable("the attention of a layer is causal")
            self._check_heads(*scoring)
            probs = _share_of_probs(attention, on_probs)
            hidden = on_output.p if on_output.training else 0.0
            after = 0.0 if on_attention is None or not on_attention.training else on_attention.p
            if hidden != after:
                raise Unservable("a layer drops different shares after attention and after its feed-forward network")
            ours.config.attention_probs_dropout_prob, ours.config.hidden_dropout_prob = probs, hidden
            drops = drops or bool(probs or hidden)
        self.encoder.training = self.source.training
        self.encoder.gradient_checkpointing = any(
            getattr(module, "gradient_checkpointing", False) for module in (self.source, *self.layers)
        )
        if self.embeddings is not None:
            for name in _TABLES[1:]:  # the words' own code is called where it is no plain table
                table = getattr(self.embeddings, name)
                if not is_plain_table(table):
                    raise Unservable(f"{name} does more than to look rows up: {_in_a_line(table)}")
            for name, size in _TABLE_SIZES.items():
                # A table that is resized stays the same module, and its weight alone is another.
                weight = getattr(getattr(self.embeddings, name), "weight", None)
                if isinstance(weight, torch.Tensor) and weight.dim() == 2:
                    setattr(self.config, size, weight.shape[0])
            self._check_buffers()
            dropout = self.embedding_dropout
            self.embeddings.config.hidden_dropout_prob = dropout.p if dropout.training else 0.0
            drops = drops or bool(self.embeddings.config.hidden_dropout_prob)
        return drops


def _scoring(layer: nn.Module, family: Family) -> tuple[nn.Module, nn.Module, list[nn.Module]]:
    """The module that computes a layer's scores, the one that holds it, and its three dense layers before them."""
    owner = find(layer, "attention")
    return find(owner, "self") or owner, owner, [_part(layer, family, name) for name in LEAVES[:3]]


def _part(layer: nn.Module, family: Family, name: str) -> nn.Module | None:
    path = family.path(name)
    return None if path is None else find(layer, path)


@lru_cache  # of a few families; walked in every call
def _paths(family: Family, names: tuple[str, ...]) -> tuple[tuple[str, ...] | None, ...]:
    paths = map(family.path, names)
    return tuple(None if path is None else tuple(path.split(".")) for path in paths)


def _share_of_probs(attention: nn.Module, dropout: nn.Module) -> float:
    """What a layer drops of attention's probabilities: transformers asks the attention whether, its dropout how much.
    Version 4 asks the dropout both, and in the attention by SDPA the attention, which keeps a number of its own.
    """
    if not is_before_5():
        return dropout.p if attention.training else 0.0
    share = attention.__dict__.get("dropout_prob")
    asked, share = (dropout, dropout.p) if share is None else (attention, share)
    return share if asked.training else 0.0


def _kind(module: nn.Module | None) -> str:
    """The class with its module's name: adapters call theirs as torch calls its own."""
    return "missing" if module is None else f"{type(module).__module__}.{type(module).__qualname__}"


def _reason(module: nn.Module | None) -> type[Unservable]:
    """Of a norm or a table in whose place there is another: an adapter of PEFT's is taken out again some day."""
    return OwnPart if type(module).__module__.startswith("peft.") else Unservable


def _compiled(module: nn.Module | None) -> str | None:
    """What is to be said of a module that ``torch.compile(module)`` put in the place of another; None of any other."""
    inside = None if module is None else module._modules.get("_orig_mod")
    if inside is None:
        return None
    return (
        f"torch.compile's module is in the place of its {type(inside).__name__}; compile the whole model instead, or "
        "that module in place, by its compile()"
    )


def _in_a_line(module: nn.Module) -> str:
    """A module's name, with its options where they fit into a sentence: those of one with parts inside do not."""
    return type(module).__name__ if module._modules else str(module)


def parts_of(model: nn.Module, family: Family) -> list[nn.Module | None]:
    """Every module that a view stands for or borrows, in a fixed order.

    Raises:
        Unservable: the model is not built as its family is.
    """
    source = model._modules.get(family.encoder)
    stack = None if source is None else source._modules.get("layer")
    embeddings = model._modules.get("embeddings")
    if stack is None or embeddings is None:
        raise Unservable(_compiled(source) or f"it has no embeddings and {family.encoder}.layer")
    parts = [source, stack, embeddings]
    for child in embeddings._modules.values():
        parts += _with_inside(child)
    inner, leaves = _paths(family, INNER), _paths(family, LEAVES)
    for layer in stack._modules.values():
        parts.append(layer)
        parts += [None if path is None else find(layer, path) for path in inner]
        for path in leaves:
            parts += _with_inside(None if path is None else find(layer, path))
    return parts


def _with_inside(module: nn.Module | None) -> list[nn.Module | None]:
    """A module and, of an adapter or a list, what it calls."""
    return [module] if module is None or not module._modules else list(module.modules())


def heard(parts: list[nn.Module | None]) -> None:
    """Raises Unservable where someone listens to a module inside, or gave it, or its class, a forward of its own.

    He expects (B, S, ...) tensors, of modules that a packed pass never calls.
    """
    if hooks.on_all_modules():
        raise Unservable("there is a hook on all modules")
    for kind in set(map(type, parts)) - {type(None)}:
        if hooks.is_class_forward_replaced(kind):
            raise Unservable(f"{kind.__name__}.forward has been replaced")
    for module in parts:
        if module is None:
            continue
        state = module.__dict__
        if hooks.is_forward_replaced(module):
            raise Unservable(f"{type(module).__name__}.forward has been replaced")
        for own in map(state.__getitem__, hooks.KINDS):
            if own and not all(map(_is_benign, own.values())):
                raise Unservable(f"there is a hook on a {type(module).__name__}")


def _is_benign(hook) -> bool:
    return getattr(hook, "__module__", "") in _BENIGN_MODULES or getattr(hook, "__name__", "") in _BENIGN_NAMES


# Kept outside of the models, so that they are copied, pickled and saved as they were.
_views: WeakKeyDictionary[nn.Module, View] = WeakKeyDictionary()


def view_of(model: nn.Module, family: Family) -> View:
    """The view of a model as it is at this moment.

    Raises:
        Unservable: it must be computed by its own code.
    """
    parts = parts_of(model, family)
    heard(parts)
    return _view(model, family, parts)


def view_for(model: nn.Module, family: Family) -> View:
    """The same, whoever listens to a module inside: a later pass may find them gone."""
    return _view(model, family, parts_of(model, family))


def _view(model: nn.Module, family: Family, parts: list[nn.Module | None]) -> View:
    view = _views.get(model)
    if view is None or view.parts != parts or view.kinds != list(map(type, parts)):
        try:
            view = _views[model] = View(model, family, parts)
        except InputError as error:
            raise Unservable(str(error)) from error
    return view


def forget(model: nn.Module) -> None:
    _views.pop(model, None)
