"""Int8 inference on the CPU: `fastbert.quantize`, which puts a `QuantizedLinear` in place of each `nn.Linear`.

The accuracy of int8 in BERT suffers from a few channels that are far larger than the others: with one scale per token,
only a handful of levels are left for all other channels. So each group of at most 256 inputs has its own scale, in the
activations and in the weights, and the largest channels of a layer's input are not quantised at all. Which channels are
largest depends on the weights and shows on any input, so they are found by running the model once on random tokens; no
data is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

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
# The probe: enough tokens to see the largest values of each channel, few enough to take a second for BERT-base.
_PROBE_SEQUENCES, PROBE_LENGTH = 32, 32


class Quantizable(NamedTuple):
    """The dense layers of one encoder that become int8.

    Args:
        places: (parent, name) of each dense layer.
        probe: runs a pass on `probe_ids` that calls each of them; called in evaluation mode, without gradients.
        is_ours: False for modules of another library, which would save the int8 numbers as if they were its weights.
    """

    places: list[tuple[nn.Module, str]]
    probe: Callable[[], object]
    is_ours: bool = True


def is_quantized(model: nn.Module) -> bool:
    """Whether a layer of the model has int8 weights."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def _encoder_linears(encoder: BertEncoder) -> Iterator[tuple[nn.Module, str]]:
    """(parent, name) of every dense layer that can be replaced; adapters and hooked layers stay as they are."""
    for layer in encoder.layer:
        attention = layer.attention
        places = [(attention.self, name) for name in ("query", "key", "value")]
        places += [(part, "dense") for part in (attention.output, layer.intermediate, layer.output)]
        yield from ((parent, name) for parent, name in places if is_plain(getattr(parent, name)))


def probe_ids(vocab_size: int, length: int) -> Tensor:
    """(B, length) int64 random tokens, always the same ones."""
    return torch.randint(vocab_size, (_PROBE_SEQUENCES, length), generator=torch.Generator().manual_seed(0))


def probe_states(hidden_size: int, length: int = PROBE_LENGTH) -> Tensor:
    """(B, length, hidden_size) float32 for an encoder whose embeddings are not known: normally distributed, like the
    output of a LayerNorm; always the same numbers."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_PROBE_SEQUENCES, length, hidden_size, generator=generator)


def _probe(model: nn.Module, encoder: BertEncoder) -> None:
    """One forward pass of random tokens."""
    config = encoder.config
    length = min(PROBE_LENGTH, config.max_position_embeddings)
    owners = (m for m in model.modules() if getattr(m, "encoder", None) is encoder and hasattr(m, "embeddings"))
    base = next(owners, None)
    if not getattr(base, "takes_packed_batches", False):  # someone's own module, whose inputs are not known
        encoder(probe_states(config.hidden_size, length).to(next(encoder.parameters()).dtype))
        return
    base(PackedBatch.from_sequences(list(probe_ids(config.vocab_size, length))))


def _quantizable(model: nn.Module) -> Iterator[Quantizable]:
    """Every encoder inside a model, also those of patched models."""
    for module in model.modules():
        if isinstance(module, BertEncoder):
            yield Quantizable(list(_encoder_linears(module)), partial(_probe, model, module))
        elif hasattr(type(module), "_fastbert_quantizable"):
            yield module._fastbert_quantizable()


def _largest_channels(linears: list[nn.Linear], probe: Callable[[], object]) -> dict[nn.Linear, Tensor]:
    """The input channels of each layer with the largest magnitudes."""
    largest: dict[nn.Linear, Tensor] = {}

    def look(linear: nn.Linear, inputs: tuple[Tensor]) -> None:
        now = inputs[0].detach().float().abs().flatten(0, -2).amax(0)
        # A dense layer that several layers share is called by each of them.
        largest[linear] = torch.maximum(largest[linear], now) if linear in largest else now

    hooks = [linear.register_forward_pre_hook(look) for linear in linears]
    try:
        with torch.no_grad():
            probe()
    finally:
        for hook in hooks:
            hook.remove()
    return {linear: sizes.topk(min(OUTLIERS, linear.in_features)).indices for linear, sizes in largest.items()}


def quantize(model: Model) -> Model:
    """Converts every dense layer of a model's encoder to int8 weights, for inference on the CPU; in place.

    The model is then in evaluation mode, its parameters require no gradient, and it cannot be trained or saved (save it
    before; quantising again after loading takes seconds). Use `copy.deepcopy` first to keep the original.

    Args:
        model: a fastbert model, `BertEncoder` or `SentenceEncoder`, or a model of transformers after `patch`; on the
            CPU.

    Returns:
        the same model.

    Raises:
        InputError: there is nothing to quantise, or a weight is not finite or not on the CPU; the model is unchanged.
        BackendError: the C++ extension was not built.
    """
    _native.extension()
    inner = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    modules = list(inner.modules()) if isinstance(inner, nn.Module) else []
    found = [] if not modules else list(_quantizable(inner))
    if not any(encoder.places for encoder in found):
        raise InputError(
            f"quantize needs a model with fastbert's BertEncoder of float layers, got {type(model).__name__}"
            f"{_of_unquantizable(modules, bool(found))}"
        )
    elsewhere = next((p.device for p in inner.parameters() if p.device.type != "cpu"), None)
    if elsewhere is not None:
        raise InputError(f"quantize needs a model on the CPU, got a parameter on {elsewhere}")
    for parent, name, layer in _quantized(inner, found):
        setattr(parent, name, layer)
    inner.eval().requires_grad_(False)
    hardware.give_back_freed_memory()  # that of the float weights
    return model


def _of_unquantizable(modules: list[nn.Module], has_encoder: bool) -> str:
    """The end of the sentence about a model without a layer to quantise."""
    if any(isinstance(module, QuantizedLinear) for module in modules):
        return ", which is quantised already"
    if has_encoder:
        return ", whose dense layers have hooks, as accelerate's, or are of another class than torch's Linear"
    if any(type(module).__module__.startswith("transformers.") for module in modules):
        # Its class often has the name of one of ours, so that the sentence would make no sense without this.
        return " of transformers' modules: quantize(fastbert.patch(model))"
    return ""


def _quantized(model: nn.Module, found: list[Quantizable]) -> list[tuple[nn.Module, str, QuantizedLinear]]:
    """(parent, name, int8 layer) for each place; the model is not changed."""
    made = []
    with evaluating(model):
        for places, probe, is_ours in found:
            linears = [getattr(parent, name) for parent, name in places]
            channels = _largest_channels(linears, probe)
            for (parent, name), linear in zip(places, linears, strict=True):
                made.append((parent, name, QuantizedLinear(linear, channels[linear], saves=is_ours)))
    return made
