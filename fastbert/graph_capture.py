"""CUDA graphs: capturing a function, and rounding the sizes of batches up to a few shapes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch


class _Capturing(threading.local):
    """The graph that this thread captures: what is kept for it, or None if no `Replay` captures one."""

    kept: list | None = None


_capturing = _Capturing()


def keep(objects: Iterable[object]) -> bool:
    """Keeps what a graph reads at fixed addresses for as long as the graph that this thread captures; False if it is
    not a `Replay` that captures one."""
    if _capturing.kept is None:
        return False
    _capturing.kept.extend(objects)
    return True


# Token counts are a multiple of this: with fewer rows no kernel is faster.
LEAST_TOKENS = 64

# Held while work is launched on a side stream: torch has 32 streams and then hands them out again, so two owners may
# have the same one, and what one launches while the other captures would only be written into the other's graph.
_side_streams = threading.RLock()
# Held during a capture and while a replay is launched: both set the state of the GPU's random generator, and in some
# versions of torch a replay fails while another thread captures. Taken after the other lock.
_generator = threading.RLock()


def token_unit(tokens: int, least: int = LEAST_TOKENS) -> int:
    """The unit to a multiple of which a number of tokens is rounded up: a sixteenth of the next power of two, at least
    ``least``. Few numbers of tokens then occur, and 4 % are added on average."""
    return max((1 << max(tokens - 1, 0).bit_length()) // 16, least)


def rounded_up(number: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return -(-number // unit) * unit


def rounded_length(length: int, longest: int) -> int:
    """The length of a batch's longest sequence, rounded up to 64, 128, 256, 384 and so on, but at most ``longest``."""
    return min(64 if length <= 64 else rounded_up(length, 128), longest)


class Replay:
    """A function without arguments, captured at its first call on a CUDA device and replayed from then on.

    The function is an argument of every call and is not stored: stored here, it would refer to its owner, which refers
    to this object, and the graph's memory would be freed only by Python's cycle collector.

    Args:
        stream: the stream to capture on; None captures nothing and calls the function every time.
        pool: the memory pool that an owner's graphs share.
        make_room: whether unused memory is returned to the device before the capture. A training step needs that room;
            in a server it would stop other threads.
    """

    def __init__(self, stream: torch.cuda.Stream | None, pool, *, make_room: bool = True) -> None:
        self._stream, self._pool, self._make_room = stream, pool, make_room
        self._graph: torch.cuda.CUDAGraph | None = None
        self._kept: list = []

    @property
    def is_captured(self) -> bool:
        """Whether a call replays a graph."""
        return self._graph is not None

    def __call__(self, function: Callable[[], None]) -> None:
        if self._stream is None:
            function()
            return
        if self._graph is None:
            before, _capturing.kept = _capturing.kept, self._kept
            try:
                with _side_streams:
                    self._graph = self._captured(function)
            finally:
                _capturing.kept = before
        with _generator:
            self._graph.replay()

    def _captured(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with _generator, _nothing_collected(self._make_room):
            if self._make_room:
                with torch.cuda.graph(graph, stream=self._stream, **self._options()):
                    function()
            else:
                # Not in inference mode, which up to torch 2.10 would spoil later captures: the first one of a process
                # creates tensors for the state of the random generator, to which all captures and replays write.
                with torch.inference_mode(False), torch.no_grad(), on_stream(self._stream):
                    self._begin(graph)
                    try:
                        function()
                    finally:
                        graph.capture_end()
        return graph

    def _begin(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_begin(**self._options())
        except RuntimeError:
            # Another library has created those tensors in inference mode: they can only be written in it.
            with torch.inference_mode():
                graph.capture_begin(**self._options())

    def _options(self) -> dict:
        # Other threads may allocate memory meanwhile, as that of a `DataLoader` which pins it; the default mode forbids
        # it.
        return {"pool": self._pool, "capture_error_mode": "thread_local"}


@contextmanager
def _nothing_collected(collect_before: bool) -> Iterator[None]:
    """Keeps Python's cycle collector from running during a capture, where destroying an older graph would break it.
    From torch 2.9 on this is left to the caller."""
    if collect_before:
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
    """Runs a block on a side stream, which torch requires of a capture and of the passes before it."""
    with _side_streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream().wait_stream(stream)
