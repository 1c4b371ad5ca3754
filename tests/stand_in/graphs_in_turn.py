"""python graphs_in_turn.py: captured steps of one shape after those of another, as in a run of two phases; of one
micro-batch and of several, whose gradients are a sum."""

from __future__ import annotations

from types import SimpleNamespace

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_step
import torch

from fastbert import optim
from fastbert.train import graph


class Step(graph.StaticStep):
    """Of which each micro-batch has a gradient of 2."""

    def _micro_step(self) -> None:
        (self.engine.parameter * 2).sum().backward()


def main() -> None:
    graph._WARM_UP = 2
    x = torch.nn.Parameter(torch.ones(3, device="cuda"))
    found = torch.zeros(3, device="cuda")
    engine = SimpleNamespace(
        device=x.device, parameter=x, optimizer=optim.AdamW([x]), norm=x[0], seed=0, micro_step=0,
        set_rate=lambda _: None, update=lambda: found.copy_(x.grad),
    )  # fmt: skip
    for micro in (1, 1, 3, 3):
        step = Step(engine, test_triton_step.SHAPE, accumulate=micro)
        for _ in range(4):  # two before the capture, the captured one, a replay
            step.run(list(test_triton_step.batches(micro)), 1e-3)
            assert found.tolist() == [2.0 * micro] * 3, (micro, found)
        assert [replay.is_captured for replay in (step._whole, step._first, step._next, step._update)] == [
            micro == 1, micro > 1, micro > 1, micro > 1,
        ]  # fmt: skip
    print("done")


main()
