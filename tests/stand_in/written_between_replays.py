"""python written_between_replays.py: a 16-bit parameter is written in place between two replays of a captured step."""

from __future__ import annotations

from types import SimpleNamespace

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_step
import torch

from fastbert import optim
from fastbert.train import graph, shaped_steps


class Static(graph.StaticStep):
    def __call__(self, rate: float) -> None:
        self.run(list(test_triton_step.batches(1)), rate)

    def _micro_step(self) -> None:
        (self.engine.parameter * 2).sum().backward()

    @property
    def graph(self):
        return self._whole


class Shaped(shaped_steps.ShapedSteps):
    def __init__(self, engine, _shape) -> None:
        super().__init__(engine, 3, 16)
        self._only = SimpleNamespace(replay=self._captures.replay(), steps=0)

    def __call__(self, rate: float) -> None:
        self.run(None, {}, rate, {})

    def _load(self, _batch, _labels) -> SimpleNamespace:
        return self._only

    def _step(self, _shaped, _options) -> None:
        (self.engine.parameter * 2).sum().backward()
        self.engine.update()

    @property
    def graph(self):
        return self._only.replay


def trained(kind: type, dtype: torch.dtype, capture: bool) -> list[torch.Tensor]:
    """The parameter and its master weight after steps between which it is written."""
    graph._WARM_UP, shaped_steps.MOST_GRAPHS = (1, 1) if capture else (100, 0)
    x = torch.nn.Parameter(torch.ones(3, device="cuda", dtype=dtype))
    optimizer, lr = optim.AdamW([x], weight_decay=0.0), torch.zeros(1, device="cuda")
    engine = SimpleNamespace(
        device=x.device, parameter=x, optimizer=optimizer, norm=lr[0], seed=0, micro_step=0, on_device=True,
        set_rate=lr.fill_, update=lambda: optim.device_step(optimizer, lr),
    )  # fmt: skip
    step = kind(engine, test_triton_step.SHAPE)
    for _ in range(3):  # one before the capture, the captured one, a replay
        step(1e-2)
    with torch.no_grad():
        x[:2] = 7.0
    for _ in range(2):
        step(1e-5)  # of which 16 bits of 7.0 keep nothing: the master weight adds it up
    assert step.graph.is_captured == capture
    return [x.detach().cpu(), optimizer.state[x].get("master", x).detach().cpu()]


def main() -> None:
    for kind in (Static, Shaped):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            found, expected = (trained(kind, dtype, capture) for capture in (True, False))
            assert all(map(torch.equal, found, expected)), (kind, dtype, found, expected)
            assert 6.99 < found[1][0] < 7, found
    print("done")


main()
