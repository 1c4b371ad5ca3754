"""The encoder's layers as plain parameters, where nothing was added to them: then one op can run them all."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .. import _native, ops
from ..config import BertConfig
from ..rng import DropoutKey
from . import hooks
from .layer import BertAttention, BertIntermediate, BertLayer, BertSelfAttention, ResidualOutput
from .layout import Layout, PackedLayout
from .linear import PLAIN_TENSORS, is_plain_tensor, is_watched
from .quantized_linear import QuantizedLinear

_Layers: TypeAlias = tuple[ops.LayerParameters, ...]


class _Stack:
    """What is kept of one encoder between calls."""

    def __init__(self) -> None:
        # Its layers' tensors in a row; by their names; so, without the last layer's. In one, for threads that share it.
        self.found: tuple[list[Tensor], _Layers, _Layers] = ([], (), ())
        self.packed = ops.PackedEncoder()


# Not attributes of the modules: a model that was used is copied and pickled like one that was not.
_stacks: WeakKeyDictionary[nn.Module, _Stack] = WeakKeyDictionary()


def run_stack(
    encoder: nn.Module,
    x: Tensor,
    layout: Layout,
    key: DropoutKey | None,
    *,
    keep_states: bool,
    all_of_last: bool,
    between: Callable[[Tensor], Tensor] | None = None,
) -> tuple[int, list[Tensor]] | None:
    """The layers of a `BertEncoder` in one op, or None where they must be called one by one.

    That is with attention probabilities, under a trace, in a compiler's graph on a GPU, where a module is not the one
    that fastbert put there, has a hook, or was given another ``forward``; on a CPU also in training, left to right, and
    recorded by autograd once a backward pass has come.

    Args:
        all_of_last: False where some tokens alone are wanted of the last layer, which may then be left to the caller.
        between: of a pass that is recorded, called with the state after each layer; what it returns is what the next
            one reads.

    Returns:
        how many layers were run, and the hidden states (T, H) after each of them, or after the last of them alone.
    """
    on_cpu = x.device.type == "cpu" and ops.current_backend() != "triton"
    compiling = torch.compiler.is_compiling()
    if type(layout) is not PackedLayout or type(x) is not Tensor or (compiling and not on_cpu):
        return None
    if compiling and torch.is_grad_enabled() and x.requires_grad:
        return None  # in a compiler's graph the CPU's call has no gradient
    if on_cpu and (key is not None or layout.causal):
        return None  # the CPU's call has neither
    stack = _Stack() if compiling else _stacks.get(encoder) or _stacks.setdefault(encoder, _Stack())
    if on_cpu and torch.is_autocast_enabled("cpu"):
        x = x.to(torch.get_autocast_dtype("cpu"))
    modules = list(encoder.layer)
    kind = _kind(modules, encoder.config)
    layers = None if kind is None else _plain_parameters(modules, stack, kind)
    if layers is not None and not (all_of_last or on_cpu):
        layers = stack.found[2]
    if not layers:
        return None
    if on_cpu and encoder.training and ops.is_recorded(x, stack.packed.tensors(layers), layout.bias):
        return None  # a backward pass will come, also where nothing is dropped
    states = ops.fused_encoder(
        *(x, layers, layout.cu_seqlens, layout.max_seqlen),
        nheads=kind.nheads,
        eps=kind.eps,
        approximate=kind.approximate,
        keep_states=keep_states,
        packed=stack.packed,
        causal=layout.causal,
        bias=layout.bias,
        dropouts=None if key is None else [module.dropouts(key) for module in modules],
        between=between,
    )
    return None if states is None else (len(layers), states)


class _Kind(NamedTuple):
    """What all layers of a stack must have in common."""

    eps: float
    approximate: str
    nheads: int
    dense: type


def _kind(modules: list[nn.Module], config: BertConfig) -> _Kind | None:
    """The first layer's own number of heads, and whether its dense layers are quantised; for the walk to ask of all
    layers. A configuration that was changed since they were built is not theirs. None for other layers than ours."""
    try:
        attention = modules[0].attention.self
        nheads, query = attention.num_attention_heads, attention.query
    except (AttributeError, IndexError):
        return None
    dense = QuantizedLinear if type(query) is QuantizedLinear else nn.Linear
    return _Kind(config.layer_norm_eps, config.gelu_approximate, nheads, dense)


# Where each of `ops.LayerParameters` comes from, and what must be untouched on the way: the part that holds it, its
# name there, its type, and attributes that must be as the whole stack's.
_PARTS = (
    (-1, "", BertLayer, ()),
    (0, "attention", BertAttention, ()),
    (1, "self", BertSelfAttention, ("num_attention_heads",)),
    (1, "output", ResidualOutput, ()),
    (0, "intermediate", BertIntermediate, ("approximate",)),
    (0, "output", ResidualOutput, ()),
    (2, "query", nn.Linear, ()),
    (2, "key", nn.Linear, ()),
    (2, "value", nn.Linear, ()),
    (3, "dense", nn.Linear, ()),
    (3, "LayerNorm", nn.LayerNorm, ("eps",)),
    (4, "dense", nn.Linear, ()),
    (5, "dense", nn.Linear, ()),
    (5, "LayerNorm", nn.LayerNorm, ("eps",)),
)
_PER_LAYER = len(ops.LayerParameters._fields)


def _parts(eps: float, approximate: str, nheads: int, dense: type) -> list[tuple]:
    """`_PARTS` of a stack all of whose dense layers are of one kind: the values that its attributes must have, and
    where the tensors of a part are."""
    expected = {"eps": eps, "approximate": approximate, "num_attention_heads": nheads}
    kept = {
        nn.Linear: ("_parameters", ("weight", "bias")),
        nn.LayerNorm: ("_parameters", ("weight", "bias")),
        QuantizedLinear: ("_buffers", ("packed", "bias")),
    }
    parts = []
    for parent, name, kind, attributes in _PARTS:
        kind = dense if kind is nn.Linear else kind
        parts.append((parent, name, kind, {a: expected[a] for a in attributes}, *kept.get(kind, ("", ()))))
    return parts


@lru_cache(maxsize=64)
def _walk(eps: float, approximate: str, nheads: int, dense: type):
    """The native look at layers."""
    parts = _parts(eps, approximate, nheads, dense)
    return _native.extension().ModuleWalk(parts, PLAIN_TENSORS, list(hooks.KINDS))


def _collect(modules: list[nn.Module], parts: list[tuple]) -> list[Tensor] | None:
    """What `_walk` collects, in words that a compiler follows, which asks again before every call."""
    tensors = []
    for root in modules:
        found: list[nn.Module] = []
        for parent, name, kind, attributes, store, names in parts:
            module = root if parent < 0 else getattr(found[parent], name)
            if type(module) is not kind or is_watched(module):
                return None
            if any(getattr(module, a) != value for a, value in attributes.items()):
                return None
            found.append(module)
            of_part = [getattr(module, store).get(n) for n in names]
            if any(t is None or not is_plain_tensor(t) for t in of_part):
                return None
            tensors += of_part
    return tensors


def _plain_parameters(modules: list[nn.Module], stack: _Stack, kind: _Kind) -> tuple[ops.LayerParameters, ...] | None:
    """Every layer's parameters, the tuple of the call before where they are the same; None where a layer is not as
    fastbert made it, or of another kind or width than the others."""
    if _native.why_missing() or hooks.on_all_modules():
        return None
    known, layers, _ = stack.found
    if torch.compiler.is_compiling():
        tensors = _collect(modules, _parts(*kind))
    else:
        tensors = _walk(*kind).collect(modules, known)
    if tensors is None:
        return None
    if tensors is not known:
        each = [tensors[i : i + _PER_LAYER] for i in range(0, len(tensors), _PER_LAYER)]
        # Queries', keys' and values' weights come before their biases.
        layers = tuple(ops.LayerParameters(*t[:6:2], *t[1:6:2], *t[6:]) for t in each)
        if any(t.layout is not torch.strided for t in tensors):
            layers = ()  # sparse ones have no numbers in a row
        stack.found = tensors, layers, layers[:-1]
    wide = [p.intermediate_bias.shape for p in layers]
    return layers if wide and all(shape == wide[0] for shape in wide) else None
