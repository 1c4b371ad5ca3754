"""Which dense layers of a model multiply in 8 bits: those in the layers of its stack.

Embeddings, pooler and heads stay as they are: they are a small part of the arithmetic, and their errors go straight
into the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from .. import fp8
from ..errors import InputError
from ..fp8 import E4M3, E5M2
from .decoder import GPTBlock
from .layer import BertLayer
from .linear import is_plain

# The inputs of a layer's dense layers: that of the attention, the attention's output, that of the feed-forward block,
# and the GELU's output.
_INPUTS = 4


@dataclass(frozen=True)
class _Form:
    """The dense layers and norms of one kind of layer.

    Args:
        dense: (name, number of the input that it reads).
        norms: (name of a LayerNorm, number of the input of this layer that is its output).
        last: the LayerNorm whose output is the first input of the next layer, if there is one.
    """

    dense: tuple[tuple[str, int], ...]
    norms: tuple[tuple[str, int], ...]
    last: str | None = None


_BERT = _Form(
    dense=(
        ("attention.self.query", 0),
        ("attention.self.key", 0),
        ("attention.self.value", 0),
        ("attention.output.dense", 1),
        ("intermediate.dense", 2),
        ("output.dense", 3),
    ),
    norms=(("attention.output.LayerNorm", 2),),
    last="output.LayerNorm",
)
_GPT_DENSE = (("attn.c_attn", 0), ("attn.c_proj", 1), ("mlp.c_fc", 2), ("mlp.c_proj", 3))
_GPT = _Form(_GPT_DENSE, norms=(("ln_1", 2),), last="ln_2")
_GPT2 = _Form(_GPT_DENSE, norms=(("ln_1", 0), ("ln_2", 2)))


def _form(layer: nn.Module) -> _Form | None:
    if isinstance(layer, BertLayer):
        return _BERT
    if isinstance(layer, GPTBlock):
        return _GPT2 if layer.config.pre_norm else _GPT
    return None


def policy(model: nn.Module) -> fp8.Policy:
    """The policy for all dense layers of a model's stack, in an order that is the same for models of the same sizes.

    Adapters, layers with hooks and whatever else is not a plain `nn.Linear` are left as they are.

    Raises:
        InputError: the model has no such layer, or one whose sizes are not multiples of 16.
    """
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    stacks = [[(layer, _form(layer)) for layer in stack] for stack in stacks]
    stacks = [layers for layers in stacks if layers and all(form for _, form in layers)]
    kinds = [kind for layers in stacks for _, form in layers for kind in _kinds(form)]
    scales = fp8.Scales(kinds, next(model.parameters()).device)
    sites, outputs, first = [], [], 0
    for layers in stacks:
        before = None
        for layer, form in layers:
            slots = [scales.slot(first + place) for place in range(len(_kinds(form)))]
            sites += _sites(layer, form, slots)
            outputs += [(layer.get_submodule(name).weight, slots[place]) for name, place in form.norms]
            if before is not None and form.last:
                outputs.append((before.get_submodule(form.last).weight, slots[0]))
            before, first = layer, first + len(slots)
    if not sites:
        raise InputError(f"precision fp8 is for the dense layers of BERT and GPT, {type(model).__name__} has none")
    return fp8.Policy(scales, sites, outputs)


def _kinds(form: _Form) -> list:
    """The 8-bit type of each of a layer's entries: its inputs, its weights, the gradients of their products."""
    return [E4M3] * (_INPUTS + len(form.dense)) + [E5M2] * len(form.dense)


def _sites(layer: nn.Module, form: _Form, slots: list[fp8.Slot]) -> Iterator[fp8.Site]:
    own, grad = _INPUTS, _INPUTS + len(form.dense)
    for place, (name, reads) in enumerate(form.dense):
        dense = layer.get_submodule(name)
        if not is_plain(dense):
            continue
        sizes = dense.in_features, dense.out_features
        if any(size % fp8.ALIGNMENT for size in sizes):
            raise InputError(f"precision fp8 needs sizes that are multiples of {fp8.ALIGNMENT}, got {sizes} of {name}")
        yield fp8.Site(dense.weight, slots[reads], slots[own + place], slots[grad + place])
