"""python inference_replays.py: inference passes of two shapes, captured and replayed, and the model changed between;
the first graphs in inference mode, and shapes of which one graph is kept."""

from __future__ import annotations

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_replay
import torch

from fastbert import ops
from fastbert.ops import _triton_replay

assert test_triton_replay.DEVICE == "cuda"
_triton_replay.LEAST_TOKENS, _triton_replay.CAPTURED_PASS = 8, 2
replays, replay = [], torch.cuda.CUDAGraph.replay
torch.cuda.CUDAGraph.replay = lambda captured: (replays.append(captured), replay(captured))
with ops.backend("triton"):
    # A first capture in inference mode, from which a later one and replays outside of it may not suffer.
    bert = test_triton_replay.model()
    with torch.inference_mode():
        for _ in range(2):
            test_triton_replay.states(bert, 7)
    for _ in range(2):
        test_triton_replay.states(bert, 7)
        test_triton_replay.states(bert, 5, 4)
    assert len(replays) == 1 + 2 + 1
    # The second shape takes the place of the first, and of the only graph.
    _triton_replay.MOST_SHAPES, bert = 1, test_triton_replay.model()
    for lengths in ((7,), (5, 4)):
        replays.clear()  # which holds the graphs
        for _ in range(2):
            test_triton_replay.states(bert, *lengths)
        assert len(replays) == 1
    _triton_replay.MOST_SHAPES = 64
    replays.clear()
    bert = test_triton_replay.model()
    for change in ("none", "in place", "epsilon", "elsewhere", "transposed"):
        with torch.no_grad():
            for parameter in bert.encoder.parameters():
                if change == "in place":
                    parameter.mul_(0.5)
                elif change == "elsewhere":
                    parameter.data = parameter.data * 0.5
            if change == "transposed":  # at the same address
                dense = bert.encoder.layer[0].attention.output.dense
                dense.weight = torch.nn.Parameter(dense.weight.detach().t())
            if change == "epsilon":
                bert.config.layer_norm_eps = bert.encoder.config.layer_norm_eps = 0.5
                for norm in (m for m in bert.encoder.modules() if isinstance(m, torch.nn.LayerNorm)):
                    norm.eps = 0.5
        for lengths in ((5, 4), (3, 8), (7,), (2, 4)):
            expected = test_triton_replay.states(bert, *lengths, graphs=False)
            test_triton_replay.close(test_triton_replay.states(bert, *lengths), expected)
assert len(replays) == 2 + 4 + 2 + 2 + 2, replays
assert len(set(map(id, replays))) == 8
print("equal")
