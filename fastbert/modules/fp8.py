"""Which dense layers of a model multiply in 8 bits: those of its encoder's layers.

Embeddings, pooler and heads stay as they are: what they make is a small part of the arithmetic, and their errors go
straight into the loss.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .. import fp8
from ..errors import InputError
from ..fp8 import E4M3, E5M2
from .encoder import BertEncoder
from .linear import is_plain

# Of a layer, by who reads it: what query, key and value, the attention's output, and both feed-forward products read.
_INPUTS = ("attention.self", "attention.output", "intermediate", "output")
# (dense layer, what it reads)
_DENSE = (
    ("attention.self.query", 0),
    ("attention.self.key", 0),
    ("attention.self.value", 0),
    ("attention.output.dense", 1),
    ("intermediate.dense", 2),
    ("output.dense", 3),
)


def policy(model: nn.Module) -> fp8.Policy:
    """The entries of all tensors, in the order of the layers: of two models of one form they are the same.

    Adapters, hooked layers and what else is no plain `nn.Linear` are left as they are.

    Raises:
        InputError: the model has no such layer, or one whose sizes are no multiples of 16.
    """
    encoders = [module for module in model.modules() if isinstance(module, BertEncoder)]
    kinds = [E4M3] * (len(_INPUTS) + len(_DENSE)) + [E5M2] * len(_DENSE)
    count = sum(len(encoder.layer) for encoder in encoders)
    scales = fp8.Scales(kinds * count, next(model.parameters()).device)
    sites, outputs, first = [], [], 0
    for encoder in encoders:
        before = None
        for layer in encoder.layer:
            slots = [scales.slot(first + place) for place in range(len(kinds))]
            sites += _sites(layer, slots)
            outputs.append((layer.attention.output.LayerNorm.weight, slots[2]))
            if before is not None:
                outputs.append((before.output.LayerNorm.weight, slots[0]))
            before, first = layer, first + len(kinds)
    if not sites:
        raise InputError(f"precision fp8 is for dense layers of a BertEncoder, {type(model).__name__} has none")
    return fp8.Policy(scales, sites, outputs)


def _sites(layer: nn.Module, slots: list[fp8.Slot]) -> Iterator[fp8.Site]:
    own, grad = len(_INPUTS), len(_INPUTS) + len(_DENSE)
    for place, (name, reads) in enumerate(_DENSE):
        dense = layer.get_submodule(name)
        if not is_plain(dense):
            continue
        sizes = dense.in_features, dense.out_features
        if any(size % fp8.ALIGNMENT for size in sizes):
            raise InputError(f"precision fp8 needs sizes that are multiples of {fp8.ALIGNMENT}, got {sizes} of {name}")
        yield fp8.Site(dense.weight, slots[reads], slots[own + place], slots[grad + place])
