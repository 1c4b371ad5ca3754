"""Allocates and fills the tensors of a model that was made on the meta device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


@torch.no_grad()
def materialise(model: nn.Module, values: Mapping[int, Tensor]) -> None:
    """Replaces all tensors of a model by new ones that are not on the meta device; tied and frozen parameters stay so.

    Args:
        model: its tensors on the meta device are replaced by tensors on the CPU, the others by copies on their device.
        values: `id` of a present tensor -> the values of the new one, in any dtype. Without an entry, a tensor on the
            meta device is initialised as in BERT, or computed if it is a buffer; others keep their values.
    """
    made: dict[int, Tensor] = {}
    fresh: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in made:
            made[id(tensor)] = new = _with_memory(tensor, values.get(id(tensor)))
            if tensor.is_meta and id(tensor) not in values:
                fresh.add(id(new))
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, made[id(tensor)])
    std = getattr(getattr(model, "config", None), "initializer_range", 0.02)
    for module in model.modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if id(parameter) in fresh:
                _initialise(module, leaf, parameter, std)
        for leaf, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta or id(buffer) in fresh:
                setattr(module, leaf, _computed_buffer(leaf, buffer))


def _with_memory(tensor: Tensor, value: Tensor | None) -> Tensor:
    """A new tensor like this one, not on the meta device, with the values of ``value``, or else of ``tensor`` if it has
    any."""
    # A copy, not a view: safetensors returns the file itself, mapped into memory.
    new = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu" if tensor.is_meta else tensor.device)
    if value is not None:
        new.copy_(value)
    elif not tensor.is_meta:
        new.copy_(tensor)
    return nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _initialise(module: nn.Module, leaf: str, parameter: Tensor, std: float) -> None:
    if leaf == "bias":
        parameter.zero_()
    elif isinstance(module, nn.LayerNorm) or parameter.dim() == 1:
        parameter.fill_(1.0)
    else:
        parameter.normal_(0.0, std)


def _computed_buffer(leaf: str, buffer: Tensor) -> Tensor:
    if leaf == "position_ids":
        return torch.arange(buffer.shape[-1], dtype=buffer.dtype).expand(buffer.shape).clone()
    return torch.zeros(buffer.shape, dtype=buffer.dtype)
