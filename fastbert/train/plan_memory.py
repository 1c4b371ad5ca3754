"""The memory that a rank needs: parameters, gradients and optimiser state by count, activations by a small probe.

For sequences of a given length, what a forward pass saves for backward is linear in the numbers of sequences and
layers, but how much it saves depends on the kernels. So it is measured on this device, with models of one and two
layers and a few sequences, and extrapolated to the model and the micro-batch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model_config import ModelConfig
from ..models import registry
from ..packing import PackedBatch


@dataclass(frozen=True)
class Memory:
    """Memory of a rank, in bytes.

    Args:
        parameters, gradients, optimizer: state; the low-precision copies that autocast makes count as activations.
        activations: what the forward pass of a micro-batch saves for backward.
        accumulates: whether gradients exist during a forward pass, as from the second micro-batch of a step on.
        offloaded: the names of parts that are not in the device's memory.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    accumulates: bool
    offloaded: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The peak in the device's memory. If a step is one micro-batch, gradients appear as activations are freed, so
        the larger counts."""
        names = ("parameters", "gradients", "optimizer")
        parameters, gradients, optimizer = (0 if name in self.offloaded else getattr(self, name) for name in names)
        passing = gradients + self.activations if self.accumulates else max(gradients, self.activations)
        return parameters + optimizer + passing


def state_bytes(parameters: int, *, zero: int | None, ranks: int, precision: str) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimiser state on a rank (Rajbhandari et al. 2020, section 3).

    Without DeepSpeed, and at stage 0 in fp32, weights, gradients and the two moments are float32. Otherwise weights
    have the run's precision; gradients are summed in it too, but in float32 for bf16 at stages 2 and 3; and the
    optimiser has float32 master weights besides its moments. In fp8 each weight also has an 8-bit copy and its
    transpose, which are counted for all parameters, although embeddings and heads have none.

    Args:
        parameters: the number of parameters, tied ones counted once.
        zero: DeepSpeed's stage; None without DeepSpeed.
        ranks: the number of processes over which ZeRO shards.
        precision: the run's precision.
    """
    if zero is None or (zero == 0 and precision == "fp32"):
        return (6 if precision == "fp8" else 4) * parameters, 4 * parameters, 8 * parameters
    share = -(-parameters // ranks)
    weight = 4 if precision == "fp32" else 2
    summed = 4 if precision == "bf16" and zero >= 2 else weight
    return (
        weight * (share if zero == 3 else parameters),
        summed * (share if zero >= 2 else parameters),
        12 * (share if zero >= 1 else parameters),
    )


def make_batch(sequences: int, seqlen: int, labels: int, pairs: bool, device="cpu") -> PackedBatch:
    """A batch of sequences of one length; all token ids are 1.

    Args:
        sequences: B.
        seqlen: tokens in each sequence.
        labels: labelled tokens in each sequence.
        pairs: whether there are next-sentence labels.
        device: the device for all tensors.
    """
    tokens = sequences * seqlen
    position = torch.arange(seqlen, device=device)
    starts = torch.arange(0, tokens, seqlen, device=device)
    return PackedBatch(
        input_ids=torch.ones(tokens, dtype=torch.int64, device=device),
        token_type_ids=torch.zeros(tokens, dtype=torch.int64, device=device),
        position_ids=position.repeat(sequences),
        cu_seqlens=torch.arange(0, tokens + 1, seqlen, dtype=torch.int32, device=device),
        max_seqlen=seqlen,
        mlm_positions=(starts[:, None] + position[:labels]).flatten(),
        mlm_labels=torch.ones(sequences * labels, dtype=torch.int64, device=device),
        nsp_labels=torch.zeros(sequences, dtype=torch.int64, device=device) if pairs else None,
    )


class SavedBytes:
    """Counts the bytes that autograd saves for backward during a ``with`` block: each storage once, parameters not.

    Attributes:
        total: the bytes so far.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._known = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._kept: list[Tensor] = []  # kept alive, so that no address is used twice
        self.total = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self._kept.append(tensor)
            self.total += storage.nbytes()
        return tensor

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._hooks.__exit__(*exception)
        self._kept.clear()


def _probe(settings: ModelConfig, layers: int, batch: PackedBatch, precision: str, last_layer: str) -> tuple[int, int]:
    """The bytes that a forward pass saves, and the bytes per element of hidden states."""
    small = copy.copy(settings)
    small.num_hidden_layers = layers
    with torch.device("meta"):
        model = registry.of_type(settings.model_type).pretraining_class(small)
    model.to_empty(device=batch.input_ids.device).train()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    model.last_layer = last_layer
    element: list[int] = []
    model.layers[0].register_forward_pre_hook(lambda _, args: element.append(args[0].element_size()))
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    with torch.autocast(batch.input_ids.device.type, dtype, enabled=precision != "fp32"), SavedBytes(model) as saved:
        model(batch)
    return saved.total, element[0]


def activation_bytes(
    settings: ModelConfig,
    *,
    sequences: float,
    seqlen: int,
    labels: float,
    pairs: bool,
    precision: str,
    last_layer: str = "needed",
    checkpointing: bool = False,
    device: torch.device | str = "cpu",
) -> int:
    """The bytes that the forward pass of a micro-batch saves for backward.

    Args:
        settings: the model's configuration.
        sequences: the number of sequences in the micro-batch.
        seqlen, labels: mean numbers of tokens and of labelled tokens in a sequence.
        pairs: whether there are next-sentence labels.
        precision: the run's precision.
        last_layer: for which tokens the last layer is computed (`PretrainConfig.last_layer`).
        checkpointing: whether activations are recomputed in the backward pass.
        device: the device to measure on.
    """
    few = (2, 4)
    kept = {}
    if checkpointing:  # the peak is in recomputing a full layer, and a last layer of "needed" tokens is smaller
        last_layer = "all"
    for layers in (1, 2):
        for count in few:
            batch = make_batch(count, seqlen, max(round(labels), 1), pairs, device)
            kept[layers, count], element = _probe(settings, layers, batch, precision, last_layer)

    def at(layers: int, count: float) -> float:
        """Bytes for a number of sequences: a fixed part (low-precision weights), and a part for each sequence."""
        low, high = kept[layers, few[0]], kept[layers, few[1]]
        each = (high - low) / (few[1] - few[0])
        return low + each * (count - few[0])

    one, two = at(1, sequences), at(2, sequences)
    layer, number = two - one, settings.num_hidden_layers
    if not checkpointing:
        return round(one + (number - 1) * layer)
    # Each layer keeps its input, and one layer at a time is recomputed.
    inputs = sequences * seqlen * settings.hidden_size * element
    return round(one + number * inputs)
