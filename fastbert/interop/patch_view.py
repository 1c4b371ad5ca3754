"""A view of a transformers encoder as ours: our modules around the dense layers, norms and tables of the model.

A view owns no weights. It borrows the leaf modules, so optimisers, devices and dtypes remain the caller's business.
Later changes (an adapter in place of a dense layer, a hook, a resized table) are noticed at the next forward pass.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

from ..config import BertConfig
from ..errors import InputError
from ..modules import hooks
from ..modules.embeddings import BertEmbeddings, is_plain_table
from ..modules.encoder import BertEncoder
from ..modules.layer import BertLayer
from ..modules.norm import is_plain_norm
from .patch_checks import Unservable, approximation, check, check_heads, compiled, scoring_of
from .patch_families import BERT, INNER, LEAVES, Family, find, is_before_5

_TABLE_SIZES = {
    "word_embeddings": "vocab_size",
    "position_embeddings": "max_position_embeddings",
    "token_type_embeddings": "type_vocab_size",
}
# Hooks that transformers and PEFT register themselves, and that work for any shape.
_BENIGN_MODULES = ("transformers.utils.output_capturing", "transformers.utils.generic")
_BENIGN_NAMES = ("make_inputs_require_grad", "make_inputs_require_grads")
# Hooks by which torch computes a weight from a mask or a norm before its module is called. They do not use the input.
_WEIGHT_MODULES = tuple(f"torch.nn.utils.{name}" for name in ("prune", "weight_norm", "spectral_norm"))


def our_config(config: Any, family: Family) -> BertConfig:
    """Our configuration for a configuration of transformers, with the fields that decide what an encoder computes.

    Raises:
        InputError: a decoder, cross-attention, relative positions, or an activation that is not a GELU.
    """
    names = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size"),
        *("vocab_size", "is_decoder", "add_cross_attention", "position_embedding_type"),
    )
    values = {name: getattr(config, family.config.get(name, name), None) for name in names}
    values["type_vocab_size"] = values["type_vocab_size"] or 1
    ours = BertConfig(pad_token_id=None, **{name: value for name, value in values.items() if value is not None})
    if ours.is_decoder:
        raise InputError("is_decoder must be false: patch computes encoders; load the weights into a BertModel of ours")
    if ours.position_embedding_type != "absolute":
        raise InputError(f"position_embedding_type must be 'absolute', got {ours.position_embedding_type!r}")
    inside = getattr(config, "inner_group_num", 1)
    if inside != 1 and is_before_5():
        raise InputError(f"inner_group_num must be 1 for transformers 4, which hides what is in a group, got {inside}")
    return ours


class _Layer(NamedTuple):
    """One layer of a view.

    Args:
        ours: our layer.
        branches: the modules of ours that end its attention and its feed-forward network.
        theirs: the layer of transformers whose modules it borrows.
        scoring: what `scoring_of` returns for theirs.
        on_probs, on_branches: the dropouts of theirs on the attention probabilities and on both branches; None for a
            missing one.
    """

    ours: BertLayer
    branches: tuple[nn.Module, nn.Module]
    theirs: nn.Module
    scoring: tuple[nn.Module, nn.Module, list[nn.Module]]
    on_probs: nn.Module
    on_branches: tuple[nn.Module | None, nn.Module | None]


class View:
    """Our embeddings (only for BERT's family) and encoder around the modules of a transformers model.

    Args:
        model: the encoder of transformers.
        family: its family.
        parts: what `parts_of` returns; the view is only valid as long as these do not change.

    Raises:
        Unservable: a part of the model computes something else than ours.
    """

    def __init__(self, model: nn.Module, family: Family, parts: list[nn.Module | None]) -> None:
        self.family = family
        self.parts = parts
        self.kinds = list(map(type, parts))
        self.config = our_config(model.config, family)
        # Of an encoder that was patched alone it is the encoder, which a view must not keep alive: it is kept as long.
        self._source = ref(family.encoder_of(model))
        _, layers = family.layers(self.source)
        self.config.num_hidden_layers = len(layers)
        self.different = list(dict.fromkeys(layers))
        check(model, self.different, self.config, family)
        # On the meta device, since all weights are replaced.
        with torch.device("meta"):
            self.encoder = BertEncoder(self.config)
            self.embeddings = BertEmbeddings(self.config) if family is BERT else None
        self.layers = [self._borrow_layer(*pair) for pair in zip(self.encoder.layer, layers, strict=True)]
        # What the modules do counts, even if the configuration differs.
        first = self.encoder.layer[0]
        self.config.layer_norm_eps = first.output.LayerNorm.eps
        self.config.hidden_act = "gelu" if first.intermediate.approximate == "none" else "gelu_new"
        self.norms = [family.part(layer, name) for layer in self.different for name in LEAVES if "LayerNorm" in name]
        if self.embeddings is None:
            # The family's own embeddings have already applied the positions.
            self.config.max_position_embeddings = None
        else:
            self._borrow_embeddings(model._modules["embeddings"])

    @property
    def source(self) -> nn.Module:
        """The encoder of transformers, which exists as long as somebody calls the model."""
        return self._source()

    def _borrow_layer(self, ours: BertLayer, theirs: nn.Module) -> _Layer:
        family = self.family
        ours.config = copy.copy(self.config)
        for name in LEAVES:
            owner, _, leaf = name.rpartition(".")
            setattr(ours.get_submodule(owner), leaf, family.part(theirs, name))
        ours.intermediate.approximate = approximation(family.part(theirs, "intermediate.intermediate_act_fn"))
        on_probs, *on_branches = (
            family.part(theirs, f"{name}.dropout") for name in ("attention.self", "attention.output", "output")
        )
        branches = (ours.attention.output, ours.output)
        return _Layer(ours, branches, theirs, scoring_of(theirs, family), on_probs, tuple(on_branches))

    def _borrow_embeddings(self, theirs: nn.Module) -> None:
        self.embeddings.config = copy.copy(self.config)
        self.tables = {name: theirs._modules[name] for name in _TABLE_SIZES}
        norm = theirs._modules["LayerNorm"]
        for name, module in {**self.tables, "LayerNorm": norm}.items():
            setattr(self.embeddings, name, module)
        self.norms.append(norm)
        self.embedding_dropout = theirs._modules["dropout"]
        self.buffers = theirs._buffers
        self.usual_buffers: tuple[list, list] = [], []

    def _check_buffers(self) -> None:
        """`_check_default_ids`, after the buffers have changed: comparing them waits for a GPU."""
        held = [self.buffers.get(name) for name in ("position_ids", "token_type_ids")]
        versions = [0 if x is None or x.is_inference() else x._version for x in held]
        usual, usual_versions = self.usual_buffers
        if versions == usual_versions and all(x is y for x, y in zip(held, usual, strict=True)):
            return
        if not any(x is not None and x.is_meta for x in held):
            _check_default_ids(*held)
            self.usual_buffers = held, versions

    def follow(self) -> bool:
        """Takes over what may change from call to call: dropout rates, modes, recomputation.

        Returns:
            whether there is any dropout in this pass.

        Raises:
            Unservable: our layer does not support the dropout rates, or something else that has changed.
        """
        if not all(map(is_plain_norm, self.norms)):
            raise Unservable("a LayerNorm has lost its weight or bias")
        drops = list(map(self._follow_layer, self.layers))
        _set_mode(self.encoder, self.source.training)
        self.encoder.gradient_checkpointing = any(
            getattr(module, "gradient_checkpointing", False) for module in (self.source, *self.different)
        )
        if self.embeddings is not None:
            drops.append(self._follow_embeddings())
        return any(drops)

    def _follow_layer(self, layer: _Layer) -> bool:
        """`follow` for one layer; returns whether it has any dropout."""
        config, attention, usual = layer.ours.config, layer.scoring[0], self.config.head_dim**-0.5
        scaling = getattr(attention, "scaling", usual)
        if scaling != usual:
            raise Unservable(f"a layer scales its attention by {scaling:.4g} and not by {usual:.4g}")
        if getattr(attention, "is_causal", False):
            raise Unservable("the attention of a layer is causal")
        check_heads(self.config, *layer.scoring)
        probs = _share_of_probs(self.family, attention, layer.on_probs)
        after, hidden = (d.p if d is not None and d.training else 0.0 for d in layer.on_branches)
        if after and hidden and after != hidden:
            raise Unservable("a layer drops different shares after attention and after its feed-forward network")
        config.attention_probs_dropout_prob, config.hidden_dropout_prob = probs, max(after, hidden)
        _set_mode(layer.ours, layer.theirs.training)
        # A branch that drops nothing is in evaluation mode.
        for branch, rate in zip(layer.branches, (after, hidden), strict=True):
            _set_mode(branch, rate > 0)
        return bool(probs or after or hidden)

    def _follow_embeddings(self) -> bool:
        """`follow` for the embeddings; returns whether they have any dropout."""
        for name, table in self.tables.items():
            # Word embeddings that are not a plain table are called as they are.
            if name != "word_embeddings" and not is_plain_table(table):
                raise Unservable(f"{name} does more than to look rows up: {_in_a_line(table)}")
            weight = getattr(table, "weight", None)  # of a resized table, which remains the same module
            if isinstance(weight, torch.Tensor) and weight.dim() == 2:
                setattr(self.config, _TABLE_SIZES[name], weight.shape[0])
        self._check_buffers()
        dropout = self.embedding_dropout
        self.embeddings.config.hidden_dropout_prob = dropout.p if dropout.training else 0.0
        return bool(self.embeddings.config.hidden_dropout_prob)


def _check_default_ids(position_ids: torch.Tensor | None, token_type_ids: torch.Tensor | None) -> None:
    """Raises Unservable if the ids that the embeddings take by default are not 0, 1, 2, ... and zeros."""
    if position_ids is not None:
        usual = torch.arange(position_ids.shape[-1], device=position_ids.device)
        if bool((position_ids != usual).any()):
            raise Unservable("the embeddings' position_ids are not 0, 1, 2 and so on")
    if token_type_ids is not None and bool(token_type_ids.any()):
        raise Unservable("the embeddings' token_type_ids are not zeros")


def _set_mode(module: nn.Module, training: bool) -> None:
    """Sets the mode of a module alone: train() would change the caller's modules inside it. Torch's ``__setattr__`` is
    slow, so it is only called for another mode."""
    if module.training is not training:
        module.training = training


@lru_cache  # used in every call, for few families
def _paths(family: Family, names: tuple[str, ...]) -> tuple[tuple[str, ...] | None, ...]:
    paths = map(family.path, names)
    return tuple(None if path is None else tuple(path.split(".")) for path in paths)


def _share_of_probs(family: Family, attention: nn.Module, dropout: nn.Module) -> float:
    """The dropout rate of a layer's attention probabilities. In transformers 5 the attention's training mode decides
    whether there is dropout, and the dropout module has the rate; in version 4 the dropout module decides both. If the
    attention has a rate of its own, it and the attention's mode count, as for some families in both versions, and for
    the others in version 4's attention by SDPA.
    """
    own = attention.__dict__.get("attention_dropout", attention.__dict__.get("dropout_prob"))
    if own is not None:
        return own if attention.training else 0.0
    asked = dropout if family.is_as_before_5() else attention
    return dropout.p if asked.training else 0.0


def _in_a_line(module: nn.Module) -> str:
    """A module's class, with its options if it has no modules inside, so that they fit into a sentence."""
    return type(module).__name__ if module._modules else str(module)


def parts_of(model: nn.Module, family: Family) -> list[nn.Module | None]:
    """All modules that a view replaces or borrows, in a fixed order; None for missing ones.

    Raises:
        Unservable: the model is not built like its family.
    """
    source = family.encoder_of(model)
    found = None if source is None else family.layers(source)
    if found is None:
        raise Unservable(compiled(source) or f"it has no layers in its {family.encoder or 'layer'}")
    callers, layers = found
    parts = [*callers, *layers]
    if family.encoder is not None:
        embeddings = model._modules.get("embeddings")
        if embeddings is None:
            raise Unservable("it has no embeddings")
        parts += [source, embeddings]
        for child in embeddings._modules.values():
            parts += _with_inside(child)
    if family.table is not None:
        parts += _with_inside(find(source, family.table))
    inner, leaves = _paths(family, INNER), _paths(family, LEAVES)
    for layer in dict.fromkeys(layers):
        parts += [None if path is None else find(layer, path) for path in inner]
        for path in leaves:
            parts += _with_inside(None if path is None else find(layer, path))
    return parts


def _with_inside(module: nn.Module | None) -> list[nn.Module | None]:
    """A module and, for an adapter or a list, the modules inside it."""
    return [module] if module is None or not module._modules else list(module.modules())


def check_hooks(parts: list[nn.Module | None], makes_weights: bool = False) -> None:
    """Raises Unservable if one of these modules has a hook, or if its forward or a method that this calls was
    replaced, in it or in its class.

    Both expect (B, S, ...) tensors, and a packed pass does not call all modules. With ``makes_weights``, hooks by which
    torch prunes and normalises weights are allowed: a pass calls every module that has both a weight and a hook.
    """
    if hooks.on_all_modules():
        raise Unservable("there is a hook on all modules")
    called: dict[type, tuple[str, ...]] = {}
    for kind in set(map(type, parts)) - {type(None)}:
        # An encoder that was patched alone, before the model around it, is what it was.
        original = getattr(kind, "_fastbert_original", kind)
        name = hooks.replaced_method(original)
        if name is not None:
            raise Unservable(f"{original.__name__}.{name} has been replaced")
        called[kind] = ("forward", *hooks.called_methods(original))
    for module in parts:
        if module is None:
            continue
        if _has_own(module.__dict__, called[type(module)]):
            _check_own(module, called[type(module)], makes_weights)
        if "act" in module.__dict__ and approximation(module) is None:
            raise Unservable(f"the function of a {type(module).__name__} has been replaced")


def _has_own(state: dict[str, Any], methods: tuple[str, ...]) -> bool:
    """Whether a module has, by its ``__dict__``, a hook or one of these methods. Without a loop over `hooks.KINDS`,
    since it is called for every module in every pass."""
    return bool(
        state["_forward_hooks"]
        or state["_forward_pre_hooks"]
        or state["_backward_hooks"]
        or state["_backward_pre_hooks"]
        or not state.keys().isdisjoint(methods)
    )


def _check_own(module: nn.Module, methods: tuple[str, ...], makes_weights: bool) -> None:
    """`check_hooks` for what one module alone has; ``methods`` are those that a pass would call."""
    for name in methods:
        if name in module.__dict__ and (name != "forward" or hooks.is_forward_replaced(module)):
            raise Unservable(f"{type(module).__name__}.{name} has been replaced")
    for own in map(module.__dict__.__getitem__, hooks.KINDS):
        if own and not all(_is_benign(hook) or (makes_weights and _is_of_weight(hook)) for hook in own.values()):
            raise Unservable(f"there is a hook on its {type(module).__name__}")


def _is_benign(hook) -> bool:
    return getattr(hook, "__module__", "") in _BENIGN_MODULES or getattr(hook, "__name__", "") in _BENIGN_NAMES


def _is_of_weight(hook) -> bool:
    """Whether a hook's code is torch's, which the caller's own pruning methods inherit."""
    return getattr(type(hook).__call__, "__module__", "") in _WEIGHT_MODULES


# Kept outside of the models, so that they are copied, pickled and saved as they were.
_views: WeakKeyDictionary[nn.Module, View] = WeakKeyDictionary()


def view_of(model: nn.Module, family: Family) -> View:
    """The view of a model in its present state.

    Raises:
        Unservable: the model must be computed by its own code.
    """
    parts = parts_of(model, family)
    check_hooks(parts, makes_weights=True)
    return _view(model, family, parts)


def view_for(model: nn.Module, family: Family) -> View:
    """`view_of` without a check for hooks on modules inside, which may be gone at a later pass."""
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
    """Drops the view of a model."""
    _views.pop(model, None)
