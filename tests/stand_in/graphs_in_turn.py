"""python graphs_in_turn.py: captured steps of one shape after those of another, as in a run of two phases."""

from __future__ import annotations

from types import SimpleNamespace

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_step
import torch

from fastbert import optim
from fastbert.train import graph


class Step(graph.StaticStep):
    """Whose gradient is always 2."""

    def _micro_step(self) -> None:
        (self.engine.parameter * 2).sum().backward()


def main() -> None:
    graph._WARM_UP = 1
    x = torch.nn.Parameter(torch.ones(3, device="cuda"))
    found = torch.zeros(3, device="cuda")
    engine = SimpleNamespace(
        device=x.device, parameter=x, optimizer=optim.AdamW([x]), norm=x[0], seed=0, micro_step=0,
        set_rate=lambda _: None, update=lambda: found.copy_(x.grad),
    )  # fmt: skip
    for _ in range(2):
        step = Step(engine, test_triton_step.SHAPE)
        for batch in test_triton_step.batches(3):
            step.run([batch], 1e-3)
            assert found.tolist() == [2.0] * 3, found
    print("done")


main()
