"""RELIABILITY 24: a run takes no more memory after thousands of steps than after its first ones."""

from __future__ import annotations

import pretraining_runs as runs
import psutil
import pytest

from fastbert.train.pretrain import pretrain


@pytest.mark.parametrize("steps", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_training_does_not_grow(tmp_path, steps):
    """With evaluations and checkpoints on the way; measured when the first tenth of the steps is done, and at the end.

    2,000 steps may grow by 1 %, which is far below one leaked tensor a step; 200 steps by 3 %, for what the first
    evaluation and the first save allocate once.
    """
    data = runs.prepare_data(tmp_path / "data")
    process, seen = psutil.Process(), {}

    def measure(row: dict) -> None:
        seen[row["step"]] = process.memory_info().rss

    config = runs.config(
        data, tmp_path / "run", steps=steps, eval_every=steps // 20, save_every=steps // 20, log_every=steps // 20
    )
    pretrain(config, callbacks=[measure], quiet=True)
    early, late = seen[steps // 10 * 2], seen[steps]
    growth = late / early - 1
    print(f"{steps} steps: {early / 2**20:.1f} -> {late / 2**20:.1f} MiB, {100 * growth:+.2f} %")
    assert growth < (0.01 if steps >= 2000 else 0.03)
