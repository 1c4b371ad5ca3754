"""Captures of CUDA graphs in several threads, with a graph and streams that do nothing."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest
import torch

from fastbert.graph_capture import Replay, on_stream

STREAM = SimpleNamespace(wait_stream=lambda other: None)


class Graph:
    """Of a graph what `Replay` asks of it, and nothing behind it."""

    def capture_begin(self, **_options) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: STREAM)


def replay() -> Replay:
    return Replay(STREAM, pool=None, make_room=False)


def launch_on_stream() -> None:
    with on_stream(STREAM):
        pass


@pytest.mark.parametrize("what", ["replay", "side stream"])
def test_other_threads_wait_for_a_capture(what):
    """A replay fails while another thread captures, and what goes to a stream that is captured ends up in its graph."""
    other = replay()
    other(lambda: None)
    call = (lambda: other(lambda: None)) if what == "replay" else launch_on_stream
    done = threading.Event()
    thread = threading.Thread(target=lambda: (call(), done.set()))
    meanwhile = []

    def captured() -> None:
        thread.start()
        meanwhile.append(done.wait(0.2))

    replay()(captured)
    thread.join(10)
    assert meanwhile == [False]
    assert done.is_set()


def test_a_pass_on_a_side_stream_may_hold_a_capture():
    """A frozen encoder inside a training step that is still to be captured has graphs of its own."""
    calls = []
    with on_stream(STREAM):
        replay()(lambda: calls.append("captured"))
    assert calls == ["captured"]
