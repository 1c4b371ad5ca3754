"""Whether inference passes on a GPU replay CUDA graphs: the caller's choice, for a block or for a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import InputError

VARIABLE = "FASTBERT_CUDA_GRAPHS"


class _Choice(threading.local):
    """The choice of `cuda_graphs` in this thread; None if the environment decides."""

    enabled: bool | None = None


_choice = _Choice()


def wanted() -> bool:
    """Whether this thread wants graphs.

    Raises:
        InputError: the environment variable is neither 0 nor 1.
    """
    if _choice.enabled is not None:
        return _choice.enabled
    value = os.environ.get(VARIABLE) or "0"
    if value not in ("0", "1"):
        raise InputError(f"{VARIABLE} must be 0 or 1, got {value!r:.50}")
    return value == "1"


@contextmanager
def cuda_graphs(enabled: bool = True) -> Iterator[None]:
    """Inside the block, in this thread, the encoder of a model on a GPU replays a CUDA graph in inference.

    For a short batch, the host takes several times as long to launch the kernels of a pass as the GPU takes to run
    them; a graph is a single launch. There is a graph for each of a few shapes: batches are padded to a shape, which
    adds 4 % of rows on average, and a shape is captured when it occurs for the fourth time, so this is for servers and
    for large files. Passes in training, passes that autograd records, passes that return all hidden states, batches so
    large that the host keeps up, and passes on a CPU are not changed. The environment variable FASTBERT_CUDA_GRAPHS=1
    does the same for a process.

    Results equal those of the plain pass except for the order in which products are summed, and a batch has the same
    bits whether its shape has been captured or not. Weights may be trained, loaded or moved between passes.

    Args:
        enabled: False turns graphs off that the environment or an outer block turned on.
    """
    before, _choice.enabled = _choice.enabled, enabled
    try:
        yield
    finally:
        _choice.enabled = before
