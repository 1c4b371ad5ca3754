"""python replays.py PRECISION...: training steps replayed from a CUDA graph against the same steps without one."""

from __future__ import annotations

import sys

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_step
import torch

from fastbert.modules import encoder
from fastbert.train import graph

STEPS = 3
# What stands for a capture is a mode, beside which layers are called one by one; then those that are not captured too.
encoder.run_stack = lambda *_, **__: None


def main(precision: str) -> None:
    replays.clear()
    graph._WARM_UP = 1
    losses, weights = test_triton_step.run("auto", STEPS, precision)
    assert len(replays) == STEPS - 1, replays
    graph._WARM_UP = STEPS
    plain, expected = test_triton_step.run("triton", STEPS, precision)
    assert len(replays) == STEPS - 1, "the step beside it was captured too"
    assert losses == plain, (losses, plain)
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
    print(precision, "equal")


assert test_triton_step.DEVICE == "cuda"
replays = []
replay = torch.cuda.CUDAGraph.replay
torch.cuda.CUDAGraph.replay = lambda captured: (replays.append(captured), replay(captured))
for each in sys.argv[1:]:
    main(each)
