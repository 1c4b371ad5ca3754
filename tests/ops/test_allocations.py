"""Kernels allocate nothing per call once they are warm: counted from outside, by a preloaded malloc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastbert
from fastbert import _native

COMPILER = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
pytestmark = [
    pytest.mark.skipif(bool(_native.why_missing()), reason=str(_native.why_missing())),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is preloaded"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
    pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer has its own malloc"),
]

CHILD = """
import ctypes, torch, fastbert
from fastbert import optim
from fastbert.train.engine import LocalEngine

torch.set_num_threads(2)
torch.manual_seed(0)
config = fastbert.BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                             intermediate_size=256, max_position_embeddings=64)
lengths = [33, 17, 64, 5] * 4
batch = fastbert.PackedBatch.from_sequences([torch.randint(0, 99, (n,)) for n in lengths])
labels = torch.randint(0, 99, (sum(lengths),))

def training():
    model = fastbert.BertForMaskedLM(config)
    engine = LocalEngine(model, optim.AdamW(model.parameters(), lr=1e-4), precision="bf16")
    def call():
        engine.backward(lambda: engine.forward(batch, labels=labels).loss)
        engine.step(1e-4)
    return call

def inference(convert):
    model = convert(fastbert.BertModel(config).eval())
    def call():
        with torch.inference_mode():
            model(batch)
    return call

library = ctypes.CDLL(None)
for call in (training(), inference(lambda m: m), inference(lambda m: m.bfloat16()), inference(fastbert.quantize)):
    # On a busy machine one thread may take all work for many calls: the other allocates when it takes its first, once.
    for calls in (1, 20, 20, 20, 20):
        library.count_allocations(1)
        with fastbert.backend("cpu"):
            for _ in range(calls):
                call()
        print(library.counted_allocations())
        library.count_allocations(0)
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("count") / "libcount.so"
    source = Path(__file__).with_name("count_allocations.c")
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def test_nothing_is_allocated_per_call(counter, tmp_path):
    """By kernels; their results are torch's tensors. First calls allocate, which shows that the count counts."""
    package = str(Path(fastbert.__file__).parent.parent)  # the child starts outside the source tree
    environment = os.environ | {"LD_PRELOAD": str(counter), "PYTHONPATH": package}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = list(map(int, done.stdout.split()))
    each = [counts[start : start + 5] for start in range(0, len(counts), 5)]
    assert all(first > 0 for first, *_ in each), counts
    # What is allocated per call would be in all of them.
    assert [min(warm) for _, _, *warm in each] == [0] * 4, "training in bfloat16, inference in float32, bfloat16, int8"
