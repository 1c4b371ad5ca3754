"""The encoder's layers as plain parameters, where nothing was added to them: then one op can run them all."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .. import ops
from ..rng import DropoutKey
from . import hooks
from .layer import BertAttention, BertIntermediate, BertLayer, BertSelfAttention, ResidualOutput
from .layout import Layout, PackedLayout
from .linear import is_plain_tensor
from .quantized_linear import QuantizedLinear

# Not attributes of the modules: a model that was used is copied and pickled like one that was not.
_packed: WeakKeyDictionary[nn.Module, ops.PackedEncoder] = WeakKeyDictionary()


def run_stack(
    encoder: nn.Module, x: Tensor, layout: Layout, key: DropoutKey | None, keep_states: bool
) -> list[Tensor] | None:
    """The layers of a `BertEncoder` in one op, or None where they must be called one by one.

    That is under training, with attention probabilities, left to right, under a trace, or where a module is not the
    one that fastbert put there, has a hook, or was given another ``forward``.

    Returns:
        the hidden states (T, H) after each layer, or after the last alone.
    """
    if key is not None or type(layout) is not PackedLayout or x.device.type != "cpu" or not len(encoder.layer):
        return None
    if layout.causal:
        # The call has no causal attention: each layer by itself then, whose attention has.
        return None
    if (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or (torch.is_grad_enabled() and _needs_gradient(encoder, x))
    ):
        return None
    if torch.is_autocast_enabled("cpu"):
        x = x.to(torch.get_autocast_dtype("cpu"))
    config = encoder.config
    layers = _plain_parameters(encoder, config.layer_norm_eps)
    if layers is None or any(layer.intermediate.approximate != config.gelu_approximate for layer in encoder.layer):
        return None
    # The layers' own number: a configuration that was changed since they were built is not theirs.
    nheads = {layer.attention.self.num_attention_heads for layer in encoder.layer}
    if len(nheads) != 1:
        return None
    arguments = (x, layers, layout.cu_seqlens, layout.max_seqlen)
    options = {
        "nheads": nheads.pop(),
        "eps": config.layer_norm_eps,
        "approximate": config.gelu_approximate,
        "keep_states": keep_states,
    }
    if not ops.is_fused("encoder", *arguments, **options):
        return None
    return ops.encoder(*arguments, **options, packed=_packed.setdefault(encoder, ops.PackedEncoder()))


def _needs_gradient(encoder: nn.Module, x: Tensor) -> bool:
    return x.requires_grad or any(p.requires_grad for p in encoder.parameters())


# Where each of `ops.LayerParameters` comes from, and what must be untouched on the way.
_MODULES = (
    ("attention", BertAttention),
    ("attention.self", BertSelfAttention),
    ("attention.output", ResidualOutput),
    ("intermediate", BertIntermediate),
    ("output", ResidualOutput),
    ("attention.self.query", nn.Linear),
    ("attention.self.key", nn.Linear),
    ("attention.self.value", nn.Linear),
    ("attention.output.dense", nn.Linear),
    ("attention.output.LayerNorm", nn.LayerNorm),
    ("intermediate.dense", nn.Linear),
    ("output.dense", nn.Linear),
    ("output.LayerNorm", nn.LayerNorm),
)
_PATHS = tuple((tuple(path.split(".")), expected) for path, expected in _MODULES)


def _plain_parameters(encoder: nn.Module, eps: float) -> list[ops.LayerParameters] | None:
    """Every layer's parameters, or None where a layer is not as fastbert made it or is of another width."""
    if hooks.on_all_modules():
        return None
    layers = []
    for layer in encoder.layer:
        found = _layer_parameters(layer, eps)
        if found is None:
            return None
        layers.append(found)
    alike = {(ops.is_int8([layer]), layer.intermediate_bias.shape) for layer in layers}
    return layers if len(alike) == 1 else None


def _layer_parameters(layer: nn.Module, eps: float) -> ops.LayerParameters | None:
    if not _untouched(layer, BertLayer):
        return None
    weights, biases, dense = [], [], None
    for path, expected in _PATHS:
        module = layer
        for name in path:
            module = module._modules.get(name)  # an attribute's look-up through nn.Module is ten times dearer
            if module is None:
                return None
        if expected is nn.Linear:
            # All dense layers of a layer are of one kind.
            dense = expected = dense or (QuantizedLinear if type(module) is QuantizedLinear else nn.Linear)
        if not _untouched(module, expected):
            return None
        if expected is QuantizedLinear:
            weight, bias = module._buffers["packed"], module._buffers["bias"]
        elif expected is nn.Linear or expected is nn.LayerNorm:
            # Not there: in a replica of torch's, or where someone put a plain tensor in a parameter's place.
            weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        else:
            continue
        if weight is None or bias is None or (expected is nn.LayerNorm and module.eps != eps):
            return None
        if not is_plain_tensor(weight):
            return None
        weights.append(weight)
        biases.append(bias)
    rest = [tensor for pair in zip(weights[3:], biases[3:], strict=True) for tensor in pair]
    return ops.LayerParameters(*weights[:3], *biases[:3], *rest)


def _untouched(module: nn.Module, expected: type) -> bool:
    """It is of the type that fastbert made, has its own ``forward``, and nobody listens to it."""
    own = module.__dict__
    return type(module) is expected and not (
        "forward" in own
        or own["_forward_pre_hooks"]  # hooks.KINDS, without a loop: this is asked 13 times a layer, in every call
        or own["_forward_hooks"]
        or own["_backward_pre_hooks"]
        or own["_backward_hooks"]
    )
