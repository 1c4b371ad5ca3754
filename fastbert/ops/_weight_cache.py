"""Cache of what is computed from weights (packed copies, native encoders), kept until the weights' memory is freed."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class WeightCache:
    """A dictionary per weight; a weight is identified by its storage, offset, shape, strides and dtype.

    The weak references are to storages. A tensor with a weak reference to it could not be swapped with another, which
    is how `Module.to` and `load_state_dict` change a model under
    `torch.__future__.set_swap_module_params_on_conversion`.
    """

    def __init__(self) -> None:
        self._of_storages = WeakIdKeyDictionary()

    def __len__(self) -> int:
        """The number of storages for which something is kept."""
        return len(self._of_storages)

    def find(self, weight: Tensor) -> dict[Any, Any]:
        """The weight's dictionary, or a new empty one that is not kept."""
        return self._of_storages.get(weight.untyped_storage(), {}).get(_place(weight), {})

    def of(self, weight: Tensor) -> dict[Any, Any]:
        """The weight's dictionary, created if there is none; entries added to it are kept."""
        return self._of_storages.setdefault(weight.untyped_storage(), {}).setdefault(_place(weight), {})

    def keep(self, weight: Tensor, kept: dict[Any, Any]) -> None:
        """Makes ``kept`` the weight's dictionary. Nothing in it may refer to the weight, which would never be freed."""
        self._of_storages.setdefault(weight.untyped_storage(), {})[_place(weight)] = kept


def _place(weight: Tensor) -> tuple:
    return weight.storage_offset(), weight.shape, weight.stride(), weight.dtype
