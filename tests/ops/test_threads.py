"""The kernels use as many threads as torch, in every thread of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastbert
from fastbert import _native

pytestmark = [
    pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing())),
    pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc"),
]

COUNTED = """
import os, sys, threading
import torch
from fastbert import ops

torch.set_num_threads(int(sys.argv[1]))
x, weight, bias = torch.randn(512, 768), torch.ones(768), torch.zeros(768)
created = []

def work():  # nothing of torch's own runs in this thread before the kernel
    before = len(os.listdir("/proc/self/task"))
    ops.layer_norm(x, weight, bias, 1e-5)
    created.append(len(os.listdir("/proc/self/task")) - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(created[0])
"""


@pytest.mark.parametrize("count", [1, 3])
def test_a_new_thread_computes_with_torchs_number_of_threads(count):
    environment = {**os.environ, "OMP_NUM_THREADS": "5", "FASTBERT_BACKEND": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", COUNTED, str(count)],
        env=environment,
        cwd=Path(fastbert.__file__).parents[1],  # and not a checkout without the extension
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) == count - 1
