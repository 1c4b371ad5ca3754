"""python finetuning_replays.py HEAD LAYERS: fine-tuning steps of two shapes: replayed, not, and with one graph."""

from __future__ import annotations

import sys

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_step
import torch

from fastbert.modules import encoder
from fastbert.train import shaped_steps

# What stands for a capture is a mode, beside which layers are called one by one; then those that are not captured too.
encoder.run_stack = lambda *_, **__: None
assert test_triton_step.DEVICE == "cuda"
head, layers = sys.argv[1], int(sys.argv[2])
found, weights, captured = test_triton_step.finetune(head, 6, layers=layers)
plain, expected, none = test_triton_step.finetune(head, 6, capture=False, layers=layers)
assert (captured, none) == (2, 0), (captured, none)
shaped_steps.MOST_GRAPHS = 1
bounded, same, one = test_triton_step.finetune(head, 6, layers=layers)
assert one == 1, one
assert found == bounded == plain, (found, bounded, plain)
assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(weights, expected, same, strict=True))
print("equal")
