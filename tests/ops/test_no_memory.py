"""A kernel that finds no memory for its scratch, in one thread or in several: a MemoryError, not the end of all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fastbert import _native

pytestmark = [
    pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing())),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to RLIMIT_AS"),
]

# A thread's scratch is a row. The result finds its memory, then half a row is left.
_SCRIPT = """
import resource, sys
import torch
from fastbert import ops

torch.set_num_threads(int(sys.argv[1]))
columns = 20_000_000
x, weight, bias = torch.ones(2, columns), torch.ones(columns), torch.ones(columns)
with torch.no_grad(), ops.backend("cpu"):
    part = x[:, :99], weight[:99], bias[:99]
    ops.layer_norm(*part, 1e-12)
    ops.gelu(torch.ones(64, 4096))  # threads take memory too
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    limit = used + x.nbytes + 2 * columns
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        ops.layer_norm(x, weight, bias, 1e-12)
    except MemoryError as error:
        print(error)
    print(ops.layer_norm(*part, 1e-12).eq(1).all().item())  # the scratch that is gone is got anew
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_scratch(threads, tmp_path):
    command = [sys.executable, "-c", _SCRIPT, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)  # not among the sources
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fastbert's kernels need more memory than there is\nTrue\n"
