"""A forked child of a process that has computed with several threads: it computes alone, and it does not hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import fastbert
from fastbert import BertConfig, BertModel, _native
from fastbert.ops import _cpu_encoder

CHILD = """
import os, signal, sys, threading
import torch
from fastbert import BertConfig, BertModel

torch.set_num_threads(2)
config = BertConfig(vocab_size=50, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024)
model = BertModel(config).eval()
ids = torch.randint(5, 50, (8, 128))

def work():
    with torch.no_grad():
        out = model(ids).last_hidden_state
    model.train()
    model.zero_grad()
    torch.manual_seed(1)
    model(ids).last_hidden_state.square().sum().backward()
    gradient = model.encoder.layer[0].output.dense.weight.grad.clone()
    model.eval()
    return out, gradient

expected = work()
child = os.fork()
if child == 0:
    signal.alarm(60)
    close = [torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(work(), expected)]
    os._exit(0 if all(close) and torch.get_num_threads() == 1 else 3)
status = os.waitpid(child, 0)[1]
assert torch.get_num_threads() == 2
child = child if status else os.fork()
if child == 0:
    signal.alarm(60)
    close = []
    def with_two_threads():
        torch.set_num_threads(2)
        close.extend(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(work(), expected))
    thread = threading.Thread(target=with_two_threads)
    thread.start()
    thread.join()
    os._exit(0 if len(close) == 2 and all(close) else 4)
status = status or os.waitpid(child, 0)[1]
sys.exit(0 if status == 0 else f"the child ended with status {status}")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_computes_what_its_parent_did(tmp_path):
    package = os.path.dirname(os.path.dirname(__import__("fastbert").__file__))
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.skipif(_native.why_missing() is not None, reason="nothing is packed without the extension")
def test_a_child_that_was_forked_while_another_thread_packed_weights(monkeypatch):
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertModel(BertConfig(**sizes, intermediate_size=64)).eval().requires_grad_(False)
    ids = torch.arange(8)[None]
    packs, forked, pack = threading.Event(), threading.Event(), _cpu_encoder._pack

    def wait_for_the_fork(*arguments):
        packs.set()
        forked.wait(60)
        return pack(*arguments)

    monkeypatch.setattr(_cpu_encoder, "_pack", wait_for_the_fork)

    def run():
        with fastbert.backend("cpu"):  # at the level "scalar" the layers would serve otherwise
            return model(ids)

    thread = threading.Thread(target=run)
    thread.start()
    assert packs.wait(60)
    monkeypatch.undo()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            run()
            os._exit(0)
        finally:
            os._exit(1)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
