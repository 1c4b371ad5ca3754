"""python changed_replays.py: fine-tuning steps that are replayed, and not, while layers are unfrozen and the state of
the optimiser is loaded."""

from __future__ import annotations

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_step
import torch

from fastbert.modules import encoder

# What stands for a capture is a mode, beside which layers are called one by one; then those that are not captured too.
encoder.run_stack = lambda *_, **__: None
assert test_triton_step.DEVICE == "cuda"
replays, replay = [], torch.cuda.CUDAGraph.replay
torch.cuda.CUDAGraph.replay = lambda captured: (replays.append(id(captured)), replay(captured))
changes = test_triton_step.CHANGES
found, weights, captured = test_triton_step.finetune("SequenceClassification", 10, changes=changes)
assert captured == 1, captured
assert len(replays) == 4, replays
plain, expected, none = test_triton_step.finetune("SequenceClassification", 10, capture=False, changes=changes)
assert none == 0, none
assert len(replays) == 4, replays
assert found == plain, (found, plain)
assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
print("equal")
