"""Int8 inference on the CPU: `fastbert.quantize`, which puts a `QuantizedLinear` in place of each `nn.Linear`.

What costs int8 its accuracy in BERT are a few channels that are far larger than the others: with one scale for a token,
everything else in it is left a handful of levels. So each group of at most 256 inputs has a scale of its own, on both
sides, and the largest channels of a layer's input are not quantised at all. Which ones these are is a property of the
weights and shows on any input: they are found by running the model once on random tokens, no data needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from .. import _native, hardware
from ..errors import InputError
from ..packing import PackedBatch
from .encoder import BertEncoder
from .linear import is_plain
from .mode import evaluating
from .quantized_linear import QuantizedLinear

# A module, or a `SentenceEncoder`, which holds one.
Model = TypeVar("Model")

# Input channels of a layer that stay float32.
OUTLIERS = 16
# The probe: enough tokens that the largest of each channel is seen, few enough to take a second for BERT-base.
_PROBE_SEQUENCES, _PROBE_LENGTH = 32, 32


def is_quantized(model: nn.Module) -> bool:
    """True where a layer of the model holds int8 weights."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def _encoder_linears(encoder: BertEncoder) -> Iterator[tuple[nn.Module, str]]:
    """(parent, name) of every dense layer that can be replaced; adapters and hooked layers stay as they are."""
    for layer in encoder.layer:
        attention = layer.attention
        places = [(attention.self, name) for name in ("query", "key", "value")]
        places += [(part, "dense") for part in (attention.output, layer.intermediate, layer.output)]
        yield from ((parent, name) for parent, name in places if is_plain(getattr(parent, name)))


def _probe(model: nn.Module, encoder: BertEncoder) -> None:
    """One forward pass of random tokens, always the same ones."""
    config = encoder.config
    generator = torch.Generator().manual_seed(0)
    length = min(_PROBE_LENGTH, config.max_position_embeddings)
    owners = (m for m in model.modules() if getattr(m, "encoder", None) is encoder and hasattr(m, "embeddings"))
    base = next(owners, None)
    if base is None or not hasattr(base, "encode"):
        # No embeddings of ours: hidden states as a LayerNorm makes them.
        x = torch.randn(_PROBE_SEQUENCES, length, config.hidden_size, generator=generator)
        encoder(x.to(next(encoder.parameters()).dtype))
        return
    ids = torch.randint(config.vocab_size, (_PROBE_SEQUENCES, length), generator=generator)
    base(PackedBatch.from_sequences(list(ids)))


def _largest_channels(model: nn.Module, encoder: BertEncoder, linears: list[nn.Linear]) -> dict[nn.Linear, Tensor]:
    """The input channels of each layer with the largest magnitudes."""
    found: dict[nn.Linear, Tensor] = {}

    def look(linear: nn.Linear, inputs: tuple[Tensor]) -> None:
        largest = inputs[0].detach().float().abs().flatten(0, -2).amax(0)
        found[linear] = largest.topk(min(OUTLIERS, linear.in_features)).indices

    hooks = [linear.register_forward_pre_hook(look) for linear in linears]
    try:
        with torch.no_grad():
            _probe(model, encoder)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def quantize(model: Model) -> Model:
    """Converts every dense layer of a model's encoder to int8 weights, for inference on the CPU; in place.

    The model is then in evaluation mode, its parameters need no gradient, and it cannot be trained or saved (save it
    before; quantising again after loading takes seconds). Use `copy.deepcopy` first to keep the original.

    Args:
        model: a fastbert model, `BertEncoder` or `SentenceEncoder`, on the CPU.

    Returns:
        the same model.

    Raises:
        InputError: there is nothing to quantise, or a weight is not finite or not on the CPU; the model is unchanged.
        BackendError: the C++ extension was not built.
    """
    _native.extension()
    inner = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    modules = list(inner.modules()) if isinstance(inner, nn.Module) else []
    encoders = [m for m in modules if isinstance(m, BertEncoder)]
    places = {encoder: list(_encoder_linears(encoder)) for encoder in encoders}
    if not any(places.values()):
        hint = ""
        if modules and is_quantized(inner):
            hint = ", which is quantised already"
        elif any(type(module).__module__.startswith("transformers.") for module in modules):
            # Its name is often that of a class here, so that the sentence without this would make no sense.
            hint = (
                " of transformers' modules: load its directory with fastbert's class of that name, or with "
                "fastbert.SentenceEncoder"
            )
        raise InputError(
            f"quantize needs a model with fastbert's BertEncoder of float layers, got {type(model).__name__}{hint}"
        )
    elsewhere = next((p.device for p in inner.parameters() if p.device.type != "cpu"), None)
    if elsewhere is not None:
        raise InputError(f"quantize needs a model on the CPU, got a parameter on {elsewhere}")
    for (parent, name), layer in _quantized(inner, places).items():
        setattr(parent, name, layer)
    inner.eval().requires_grad_(False)
    hardware.give_back_freed_memory()  # the float weights'
    return model


def _quantized(
    model: nn.Module, places: dict[BertEncoder, list[tuple[nn.Module, str]]]
) -> dict[tuple[nn.Module, str], QuantizedLinear]:
    """The layer for each place."""
    made = {}
    with evaluating(model):
        for encoder, found in places.items():
            linears = [getattr(parent, name) for parent, name in found]
            channels = _largest_channels(model, encoder, linears)
            made |= {
                place: QuantizedLinear(linear, channels[linear]) for place, linear in zip(found, linears, strict=True)
            }
    return made
