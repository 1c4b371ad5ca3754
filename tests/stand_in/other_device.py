"""python other_device.py: a device that is not the current one, as a library's caller may have it, or that is torch's
default."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_step
import torch

from fastbert import ops, optim
from fastbert.errors import InputError
from fastbert.packing import checked_bounds
from fastbert.train import graph
from fastbert.train.background_save import BackgroundSave
from fastbert.train.timing import StepTimer


def kernels() -> None:
    """A kernel forward, two backward, and those of an update."""
    x = torch.nn.Parameter(torch.ones(2, 8, device="cuda:1"))
    ops.gelu(x, x[0]).sum().backward()
    optimizer = optim.AdamW([x])
    optimizer.step()
    optim.device_step(optimizer, torch.ones(1, device="cuda:1"))
    assert not x.detach().isnan().any()


class Step(graph.StaticStep):
    """Counts its runs."""

    def _micro_step(self) -> None:
        self._sums += 1


def captured() -> None:
    """A step before the capture, a captured one and a replay."""
    graph._WARM_UP = 1
    x = torch.nn.Parameter(torch.ones(2, device="cuda:1"))
    engine = SimpleNamespace(
        device=x.device, optimizer=optim.AdamW([x]), norm=x[0], seed=0, micro_step=0, update=lambda: None,
        set_rate=lambda _: None,
    )  # fmt: skip
    step = Step(engine, test_triton_step.SHAPE)
    with torch.device("cpu"):
        batches = list(test_triton_step.batches(3))
    for batch in batches:
        step.run([batch], 1e-3)
    assert step.take_sums().tolist() == [3.0] * 5


def saved() -> None:
    """A checkpoint's copies are there before they are written."""
    save = BackgroundSave(lambda *_arguments, **_options: None)
    save.submit(Path(), 1, {"x": torch.ones(2, device="cuda:1")}, {})
    save.wait()


def bounds() -> None:
    """Of packed sequences: read where the longest has to be, and then held to the tokens that are there."""
    tokens, longest = torch.tensor([0, 3, 9], device="cuda:1"), 6
    assert checked_bounds(tokens, 9, None)[1] == longest
    with pytest.raises(InputError, match="must ascend from 0 to the 8 tokens"):
        checked_bounds(tokens, 8, None)
    assert checked_bounds(tokens, 8, longest)[1] == longest  # nothing waits for the device


def main() -> None:
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
        with ops.backend("triton"):
            kernels()
        captured()
        saved()
        bounds()
        with StepTimer(torch.device("cuda", 1)).part("forward"):
            pass
        with torch.device("cuda:1"), ops.backend("triton"):  # torch's default, also for what is meant for the host
            kernels()
            captured()
            saved()
    print("done")


main()
