"""All layers of an encoder in one op, if nothing was added to them or replaced in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .. import _native, ops, transforms
from ..config import BertConfig
from ..rng import DropoutKey
from . import hooks
from .layer import BertAttention, BertIntermediate, BertLayer, BertSelfAttention, ResidualOutput
from .layout import Layout, PackedLayout
from .linear import is_plain_tensor, is_watched
from .quantized_linear import QuantizedLinear

_Layers: TypeAlias = tuple[ops.LayerParameters, ...]


class _Stack:
    """What is kept of one encoder between calls."""

    def __init__(self) -> None:
        # The tensors of all layers as a list; by layer and name; likewise without the last layer. One attribute, so
        # that threads can share it.
        self.found: tuple[list[Tensor], _Layers, _Layers] = ([], (), ())
        self.packed = ops.PackedEncoder()


# Not attributes of the modules, so that copies and pickles of a model do not depend on whether it was used.
_stacks: WeakKeyDictionary[nn.Module, _Stack] = WeakKeyDictionary()


def run_stack(
    encoder: nn.Module,
    x: Tensor,
    layout: Layout,
    key: DropoutKey | None,
    *,
    keep_states: bool,
    rows: Tensor | None = None,
    between: Callable[[Tensor], Tensor] | None = None,
) -> tuple[int, list[Tensor]] | None:
    """Runs the layers of a `BertEncoder` in one op; None if they must be called one by one.

    They must be if attention probabilities are needed, under a trace, in a compiler's graph on a GPU, or if a module
    was replaced, has a hook or another ``forward``. On a CPU also in training, in left-to-right models, and in passes
    recorded by autograd once a backward pass has come.

    Args:
        rows: (R,) int64, the tokens whose last state is needed; None for all. On a GPU the last layer is then left to
            the caller. On a CPU the last state is (R, H).
        between: in a recorded pass, called with the state after each layer; the next layer reads what it returns.

    Returns:
        how many layers were run; and the hidden states (T, H) after each of them, or only after the last one run.
    """
    on_cpu = x.device.type == "cpu" and ops.current_backend() != "triton"
    if not _is_served(x, layout, key, on_cpu):
        return None
    stack = _Stack() if torch.compiler.is_compiling() else _stacks.get(encoder) or _stacks.setdefault(encoder, _Stack())
    modules = list(encoder.layer)
    kind = _kind(modules, encoder.config)
    layers = None if kind is None else _plain_parameters(modules, stack, kind)
    if layers is not None and rows is not None and not on_cpu:
        layers = stack.found[2]
    if not layers:
        return None
    if on_cpu and encoder.training and ops.is_recorded(x, stack.packed.tensors(layers), layout.bias):
        return None  # a backward pass is to be expected, even without dropout
    states = ops.fused_encoder(
        *(x, layers, layout.cu_seqlens, layout.max_seqlen),
        nheads=kind.nheads,
        eps=kind.eps,
        approximate=kind.approximate,
        keep_states=keep_states,
        packed=stack.packed,
        causal=layout.causal,
        bias=layout.bias,
        dropouts=None if key is None else [m.dropouts(key, index=place) for place, m in enumerate(modules)],
        between=between,
        rows=rows if on_cpu else None,
    )
    return None if states is None else (len(layers), states)


def _is_served(x: Tensor, layout: Layout, key: DropoutKey | None, on_cpu: bool) -> bool:
    """Whether the op computes such a pass, whatever the layers are."""
    if type(layout) is not PackedLayout or type(x) is not Tensor:
        return False
    if on_cpu and (key is not None or layout.causal):
        return False  # the CPU's call has neither dropout nor causal attention
    if not torch.compiler.is_compiling():
        return True
    # In a compiler's graph there is only the CPU's call, which has no gradient there.
    return on_cpu and not (torch.is_grad_enabled() and x.requires_grad)


class _Kind(NamedTuple):
    """What all layers of a stack must have in common."""

    eps: float
    approximate: str
    nheads: int
    dense: type


def _kind(modules: list[nn.Module], config: BertConfig) -> _Kind | None:
    """What the walk expects of all layers; None if the first layer is not one of ours. The number of heads is read from
    the first layer, since the configuration may have been changed after the layers were built."""
    try:
        attention = modules[0].attention.self
        nheads, query = attention.num_attention_heads, attention.query
    except (AttributeError, IndexError):
        return None
    dense = QuantizedLinear if type(query) is QuantizedLinear else nn.Linear
    return _Kind(config.layer_norm_eps, config.gelu_approximate, nheads, dense)


# The modules of a layer that must be unchanged, in the order in which their tensors are collected: the number of the
# parent in this table, the name in it, the type, and the attributes that must be the same in the whole stack.
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
    """`_PARTS` for a stack whose dense layers have the type ``dense``, with the expected values of the attributes and
    with where each part keeps its tensors."""
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
    """The native object that checks a stack's layers and collects their tensors."""
    parts = _parts(eps, approximate, nheads, dense)
    return _native.extension().ModuleWalk(parts, transforms.PLAIN_TENSORS, list(hooks.KINDS))


def _collect(modules: list[nn.Module], parts: list[tuple]) -> list[Tensor] | None:
    """What `_walk` collects, in Python that torch.compile can trace and guard; None if a part was changed."""
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
    """The parameters of all layers, as the same tuple as in the last call if they are the same; None if a layer was
    changed, or is of another kind or width than the others."""
    if _native.why_missing() or hooks.must_call_all():
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
            layers = ()  # our ops cannot read sparse tensors
        stack.found = tensors, layers, layers[:-1]
    # Heads that a caller cut off leave queries narrower than the states.
    wide = [(p.intermediate_bias.shape, p.query_bias.shape == p.attention_out_bias.shape) for p in layers]
    return layers if wide and wide[0][1] and all(sizes == wide[0] for sizes in wide) else None
