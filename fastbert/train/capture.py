"""What captured steps share: the capture itself, and what has to hold around it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .. import rng
from .engine import LocalEngine


class Replay:
    """A function without arguments, captured at its first call on a CUDA device and replayed from then on.

    The function comes with every call. Kept here it would refer to the step that refers to this, and a graph's memory,
    as much as a step takes, would lie beside that of the next phase's until Python looks for circles.

    Args:
        stream: to capture on; None where nothing is captured.
        pool: the memory that the graphs of a step share.
    """

    def __init__(self, stream: torch.cuda.Stream | None, pool) -> None:
        self._stream, self._pool = stream, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def is_captured(self) -> bool:
        """Whether a call replays a graph that is there."""
        return self._graph is not None

    def __call__(self, function: Callable[[], None]) -> None:
        if self._stream is None:
            function()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with _nothing_collected(), torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream):
                function()
        self._graph.replay()


class RandomPlace:
    """The place in the stream of dropout, in device memory: a graph's kernels read it there, where the host's number
    would stay that of the capture.

    Args:
        device: of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self._place = torch.zeros(2, dtype=torch.int64, device=device)
        self._known_for: int | None = None

    def follow(self, engine: LocalEngine) -> None:
        """Writes the engine's place where it is not that after the last `passed`: at the start, after a checkpoint was
        loaded, or another step between."""
        if self._known_for != engine.micro_step:
            self._place.copy_(torch.tensor([_signed(engine.seed), engine.micro_step]))
            self._known_for = engine.micro_step

    def key(self, engine: LocalEngine) -> rng.DropoutKey:
        """What a forward pass draws by."""
        return rng.DropoutKey(engine.seed, engine.micro_step, self._place)

    def advance(self) -> None:
        """The next forward pass is another; on the device, within a graph."""
        self._place[1] += 1

    def passed(self, engine: LocalEngine) -> None:
        """The same on the host, after a pass or its replay."""
        engine.micro_step += 1
        self._known_for = engine.micro_step


def _signed(seed: int) -> int:
    """64 bits as torch's int64 holds them."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Has Python look for circles before a capture and not during it: CUDA destroys no graph while it captures another,
    so that one of an earlier run, found then, breaks the capture. From torch 2.9 on this is left to the caller.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Runs a block on a side stream, as torch asks of what comes before a capture."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
