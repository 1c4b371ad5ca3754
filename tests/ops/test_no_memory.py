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

# A thread's scratch is a row in a LayerNorm, and in the encoder 512 tokens' activations; the result finds its memory.
_SCRIPT = """
import resource, sys
import torch
from fastbert import ops

def refused(call, room):
    used, (soft, hard) = int(open("/proc/self/statm").read().split()[0]), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used * resource.getpagesize() + room, hard))
    try:
        call()
    except MemoryError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

torch.set_num_threads(int(sys.argv[1]))
columns, width, tokens = 20_000_000, 512, 1024
x, weight, bias = torch.ones(2, columns), torch.ones(columns), torch.ones(columns)
square, vector, states = torch.eye(width), torch.ones(width), torch.randn(tokens, width)
layer = ops.LayerParameters(
    square, square, square, vector, vector, vector, square, vector, vector, vector,
    square[:8], vector[:8], square[:, :8].contiguous(), vector, vector, vector,
)
bounds, packed = torch.arange(0, tokens + 1, 64, dtype=torch.int32), ops.PackedEncoder()

def encode(sequences):
    given = states[: 64 * sequences], [layer], bounds[: sequences + 1], 64
    return ops.encoder(*given, nheads=8, eps=1e-12, packed=packed)[0]

with torch.no_grad(), ops.backend("cpu"):
    part = x[:, :99], weight[:99], bias[:99]
    ops.layer_norm(*part, 1e-12)
    ops.gelu(torch.ones(64, 4096))  # threads take memory too
    expected = encode(2)
    refused(lambda: ops.layer_norm(x, weight, bias, 1e-12), x.nbytes + 2 * columns)
    print(ops.layer_norm(*part, 1e-12).eq(1).all().item())  # the scratch that is gone is got anew
    refused(lambda: encode(16), states.nbytes + (1 << 21))
    print(encode(2).equal(expected))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_scratch(threads, tmp_path):
    command = [sys.executable, "-c", _SCRIPT, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)  # not among the sources
    assert done.returncode == 0, done.stderr
    assert done.stdout == 2 * "fastbert's kernels need more memory than there is\nTrue\n"
