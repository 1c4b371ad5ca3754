"""What Triton's kernels do to memory, watched in its interpreter, which hides races and reads of what lies beside.

On a GPU the programs of a launch run in any order and at once, and so do the threads of a program between two barriers.
So within a launch no program may touch what another one writes, but by atomics alone; and a program may read what
it wrote itself only after a barrier, for another thread may have written it. And a launch may touch its tensors alone:
what it reads beside them may count for nothing and still end a GPU's process.
"""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

READ, WRITE, ATOMIC = range(3)
NO_BARRIER = "a program reads what it wrote, with no barrier between"
TWO_VALUES = "one store writes two values to one place"
WRITTEN_TWICE = "two programs write one place"
ANOTHERS = "a program reads what another one writes"
BOTH_WAYS = "a place is written both by atomics and without"
BESIDE = "a program touches what lies beside the tensors of its launch"
ANOTHERS_ATOMICS = "a program reads what another one changes by atomics"


@dataclass
class Launch:
    """What the programs of one launch did with memory: by kind of access addresses and the programs' numbers."""

    kernel: str
    bounds: np.ndarray  # (n, 2) begins and ends of the tensors' memory, apart and in order
    addresses: dict[int, list[np.ndarray]] = field(default_factory=lambda: {READ: [], WRITE: [], ATOMIC: []})
    programs: dict[int, list[int]] = field(default_factory=lambda: {READ: [], WRITE: [], ATOMIC: []})
    program: int = -1
    unseen: list[np.ndarray] = field(default_factory=list)  # written by this program since its last barrier
    found: Counter = field(default_factory=Counter)

    def begin(self) -> None:
        """The next program starts."""
        self.program += 1
        self.unseen = []

    def access(self, kind: int, ptrs: Any, mask: np.ndarray, values: np.ndarray | None = None) -> None:
        """Notes the addresses that a program touches where a mask says so."""
        addresses = ptrs.data
        mask = np.broadcast_to(mask, addresses.shape)
        touched, index = np.unique(addresses[mask], return_index=True)
        if not touched.size:
            return
        if not _are_inside(touched, ptrs.get_element_ty(), self.bounds):
            self.found[BESIDE] += 1
        if kind == WRITE:
            self._look_for_two_values(addresses[mask], np.broadcast_to(values, addresses.shape)[mask], touched, index)
            self.unseen.append(touched)
        elif any(np.isin(touched, written, assume_unique=True).any() for written in self.unseen):
            self.found[NO_BARRIER] += 1
        self.addresses[kind].append(touched)
        self.programs[kind].append(self.program)

    def _look_for_two_values(self, addresses, values, touched, index) -> None:
        if touched.size == addresses.size:
            return
        bits = np.ascontiguousarray(values).view(f"V{values.itemsize}")
        if (bits != bits[index][np.searchsorted(touched, addresses)]).any():
            self.found[TWO_VALUES] += 1

    def end(self) -> Counter:
        """Looks at all programs together."""
        writes, writers = self._all(WRITE)
        atomics, atomic_programs = self._all(ATOMIC)
        reads, readers = self._all(READ)
        if (np.diff(writes) == 0).any():
            self.found[WRITTEN_TWICE] += 1
        if _meet(reads, readers, writes, writers):
            self.found[ANOTHERS] += 1
        if _meet(atomics, atomic_programs, writes, writers):
            self.found[BOTH_WAYS] += 1
        if atomics.size and _meet(reads, readers, *_once(atomics, atomic_programs)):
            self.found[ANOTHERS_ATOMICS] += 1
        return self.found

    def _all(self, kind: int) -> tuple[np.ndarray, np.ndarray]:
        """Addresses in order and the programs that touched them, each pair once."""
        if not self.addresses[kind]:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        addresses = np.concatenate(self.addresses[kind])
        counts = [len(each) for each in self.addresses[kind]]
        programs = np.repeat(np.array(self.programs[kind], np.int64), counts)
        order = np.lexsort((programs, addresses))
        addresses, programs = addresses[order], programs[order]
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(addresses) != 0) | (np.diff(programs) != 0)
        return addresses[first], programs[first]


def _once(addresses: np.ndarray, programs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each address with its program, -1 where there are several."""
    touched, index, counts = np.unique(addresses, return_index=True, return_counts=True)
    return touched, np.where(counts == 1, programs[index], -1)


def _meet(addresses: np.ndarray, programs: np.ndarray, others: np.ndarray, owners: np.ndarray) -> bool:
    """Whether one of the addresses is another program's among the others, which are in order."""
    if not addresses.size or not others.size:
        return False
    place = np.minimum(np.searchsorted(others, addresses), others.size - 1)
    return bool(((others[place] == addresses) & (owners[place] != programs)).any())


def _are_inside(addresses: np.ndarray, kind: Any, bounds: np.ndarray) -> bool:
    width = max(kind.primitive_bitwidth // 8, 1)
    place = np.searchsorted(bounds[:, 0], addresses, side="right") - 1
    return bool((place >= 0).all() and (addresses + np.uint64(width) <= bounds[place, 1]).all())


def _bounds(tensors: Iterator[torch.Tensor]) -> np.ndarray:
    """From the first to the last element of each; of views in one memory from the first's to the last's."""
    spans = []
    for tensor in tensors:
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel():
            spans.append((tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()))
    apart: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if apart and begin < apart[-1][1]:
            begin, end = apart[-1][0], max(end, apart.pop()[1])
        apart.append((begin, end))
    return np.array(apart, np.uint64).reshape(-1, 2)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


@functools.cache
def _lasting() -> list[torch.Tensor]:
    """The tensors of all modules. What there is when the first test begins, a million objects, is not searched for the
    later ones again and again."""
    gc.unfreeze()
    tensors = _living()
    gc.freeze()
    return tensors


def _living() -> list[torch.Tensor]:
    return [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]


def watch(monkeypatch) -> dict[str, Counter]:
    """Watches every launch from here on; returns what will be found, by kernel."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    builder, executed = InterpreterBuilder, GridExecutor.__call__
    names = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas", "set_grid_idx")
    load, store, atomic, swap, place = (getattr(builder, name) for name in names)
    launches: list[Launch] = []
    found: dict[str, Counter] = {}
    lasting = _lasting()

    def execute(self, *arguments, **options):
        given = arguments, tuple(options.values())
        if "places_ptr" in self.arg_names:  # a table of addresses, of which the tensors are somewhere
            given = [*lasting, *_living()]
        launches.append(Launch(self.fn.__name__, _bounds(_tensors(given))))
        try:
            executed(self, *arguments, **options)
        finally:
            launch = launches.pop()
        found.setdefault(launch.kernel, Counter()).update(launch.end())

    def at(self, *index):
        launches[-1].begin()
        return place(self, *index)

    def loaded(self, ptrs, mask, *rest):
        launches[-1].access(READ, ptrs, mask.data)
        return load(self, ptrs, mask, *rest)

    def stored(self, ptrs, value, mask, *rest):
        launches[-1].access(WRITE, ptrs, mask.data, value.data)
        return store(self, ptrs, value, mask, *rest)

    def changed(self, operation, ptr, value, mask, *rest):
        launches[-1].access(ATOMIC, ptr, mask.data)
        return atomic(self, operation, ptr, value, mask, *rest)

    def swapped(self, ptr, *rest):
        launches[-1].access(ATOMIC, ptr, np.ones_like(ptr.data, bool))
        return swap(self, ptr, *rest)

    def barrier(self):
        launches[-1].unseen.clear()

    monkeypatch.setattr(GridExecutor, "__call__", execute)
    for name, replacement in zip(names, (loaded, stored, changed, swapped, at), strict=True):
        monkeypatch.setattr(builder, name, replacement)
    monkeypatch.setattr(builder, "create_barrier", barrier)
    return found
