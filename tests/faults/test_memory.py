"""RELIABILITY 24: a run takes no more memory after thousands of steps than after its first ones."""

from __future__ import annotations

import gc
import tracemalloc

import pretraining_runs as runs
import psutil
import pytest
import torch

from fastbert.train.pretrain import pretrain


def held() -> int:
    """The bytes of Python's objects since tracemalloc began, numpy's arrays among them, and of all of torch's tensors
    that Python knows."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = [each.untyped_storage() for each in tensors if each.layout == torch.strided]
    return tracemalloc.get_traced_memory()[0] + sum({each.data_ptr(): each.nbytes() for each in storages}.values())


@pytest.mark.parametrize("steps", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_training_does_not_grow(tmp_path, steps):
    """With evaluations and checkpoints on the way; measured when a fifth of the steps is done, and at the end.

    What Python holds is counted: of 200 steps each added 0.5 KiB, of 2,000 0.03. What else
    the process takes, its allocators' ways included, was 3.3 MiB more after 200 steps and 0.5 after 2,000.
    """
    data = runs.prepare_data(tmp_path / "data")
    process, seen = psutil.Process(), {}
    early = steps // 5

    def measure(row: dict) -> None:
        if row["step"] in (early, steps):
            seen[row["step"]] = held(), process.memory_info().rss

    config = runs.config(
        data, tmp_path / "run", steps=steps, eval_every=steps // 20, save_every=steps // 20, log_every=steps // 20
    )
    tracemalloc.start()
    try:
        pretrain(config, callbacks=[measure], quiet=True)
    finally:
        tracemalloc.stop()
    grown, resident = (after - before for before, after in zip(seen[early], seen[steps], strict=True))
    a_step = grown / (steps - early)
    print(f"{steps} steps: {a_step:+.0f} bytes held a step; {resident / 2**20:+.1f} MiB resident")
    assert a_step < 2048
    assert resident < (3 if steps >= 2000 else 8) * 2**20
