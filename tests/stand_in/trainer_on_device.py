"""transformers' Trainer on the device; tests/stand_in/test_beside_gpu.py runs it."""

from __future__ import annotations

import copy

import hf_parity as hf
import pytest
from interop.test_trainer import TASKS, assert_same_run, train

import fastbert


@pytest.mark.parametrize("task", TASKS)
def test_a_patched_model_trains_there_as_transformers_own_on_the_cpu(task, tmp_path):
    theirs, _ = hf.pair(task)
    ours = fastbert.patch(copy.deepcopy(theirs))
    truth = train(theirs, task, tmp_path / "theirs")
    assert_same_run(train(ours, task, tmp_path / "ours", use_cpu=False), truth)
    assert all(p.is_cuda for p in ours.parameters())
