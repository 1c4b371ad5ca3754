"""What is kept of weights between calls, for as long as their memory is there."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class KeptOfWeights:
    """A dictionary for each weight: for a place in memory, and the shape and dtype in which it is read.

    The weak references are to the storages. A tensor that had one could not be swapped with another, which is how
    `Module.to` and `load_state_dict` change a model under `torch.__future__.set_swap_module_params_on_conversion`.
    """

    def __init__(self) -> None:
        self._of_storages = WeakIdKeyDictionary()

    def __len__(self) -> int:
        """How many storages have weights of which something is kept."""
        return len(self._of_storages)

    def find(self, weight: Tensor) -> dict[Any, Any]:
        """What is kept of a weight; an empty dictionary, which nothing keeps, where there is nothing."""
        return self._of_storages.get(weight.untyped_storage(), {}).get(_place(weight), {})

    def of(self, weight: Tensor) -> dict[Any, Any]:
        """The weight's dictionary, made where there is none; what is put into it is kept."""
        return self._of_storages.setdefault(weight.untyped_storage(), {}).setdefault(_place(weight), {})

    def keep(self, weight: Tensor, kept: dict[Any, Any]) -> None:
        """Makes a dictionary the weight's. Nothing in it may refer to the weight, whose memory would then never go."""
        self._of_storages.setdefault(weight.untyped_storage(), {})[_place(weight)] = kept


def _place(weight: Tensor) -> tuple:
    return weight.storage_offset(), weight.shape, weight.stride(), weight.dtype
