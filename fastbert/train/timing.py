"""Where the time of a step goes: data, forward, backward, optimiser, communication."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StepTimer:
    """Seconds that the parts of a step took.

    On a CUDA device parts are bracketed by events, so that the host does not wait for the device before `seconds`.
    Under DDP communication overlaps with backward: its seconds are those during which gradients were being sent, and
    are also part of backward's.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"
        self._steps: list[list[tuple[str, object, object]]] = []
        self._now: list[tuple[str, object, object]] = []

    def mark(self):
        """The current time: an event on a CUDA device, otherwise seconds on the clock."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the time of the block as a part of the step."""
        began = self.mark()
        yield
        self.add(name, began)

    def add(self, name: str, began) -> None:
        """Counts the time since a `mark`; may be called from another thread."""
        self._now.append((name, began, self.mark()))

    def begin_step(self) -> None:
        """Drops what was timed since the last step ended, such as an evaluation's communication."""
        self._now = []

    def end_step(self) -> None:
        """Ends a step: later times belong to the next."""
        self._steps.append(self._now)
        self._now = []

    def seconds(self) -> list[dict[str, float]]:
        """The seconds of the parts of each step since the last call; waits for the device."""
        steps, self._steps = self._steps, []
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        return [self._sum(step) for step in steps]

    def _sum(self, step: list[tuple[str, object, object]]) -> dict[str, float]:
        if not self._on_gpu:
            spans = step
        elif step:
            origin = step[0][1]
            spans = [(name, origin.elapsed_time(a) / 1e3, origin.elapsed_time(b) / 1e3) for name, a, b in step]
        else:
            spans = []
        names = dict.fromkeys(name for name, _, _ in spans)
        return {name: _covered([(a, b) for other, a, b in spans if other == name]) for name in names}


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of intervals, since several buckets of gradients are sent at the same time."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
