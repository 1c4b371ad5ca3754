"""Cache of what is computed from weights (packed copies, native encoders), kept until the weights' memory is freed."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class WeightCache:
    """A dictionary per weight; a weight is identified by its storage, offset, shape, strides and dtype.

    The weights of one storage for which something is kept have together at most twice its bytes: room for all of it, as
    a whole and in parts. Beyond that the oldest go, as those of slices that begin elsewhere in each step.

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
        storage, place = weight.untyped_storage(), _place(weight)
        places = self._of_storages.setdefault(storage, {})
        kept = places.get(place)
        if kept is None:
            kept = places.setdefault(place, {})
            _make_room(places, storage.nbytes())
        return kept

    def keep(self, weight: Tensor, kept: dict[Any, Any]) -> None:
        """Makes ``kept`` the weight's dictionary. Nothing in it may refer to the weight, which would never be freed."""
        storage = weight.untyped_storage()
        places = self._of_storages.setdefault(storage, {})
        places[_place(weight)] = kept
        _make_room(places, storage.nbytes())


def _place(weight: Tensor) -> tuple:
    return weight.storage_offset(), weight.shape, weight.stride(), weight.dtype


def _make_room(places: dict[tuple, dict], size: int) -> None:
    """Removes the oldest places, but not the newest, until all have together at most twice ``size`` bytes."""
    sizes = {place: place[1].numel() * place[3].itemsize for place in list(places)}  # other threads may add to places
    held = sum(sizes.values())
    for place in list(sizes)[:-1]:
        if held <= 2 * size:
            return
        places.pop(place, None)
        held -= sizes[place]
