"""The lines in which a run says what it is, before it begins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fastbert import ops
from fastbert.data.budget import BudgetData
from fastbert.data.config import SampleConfig
from fastbert.ops import _dispatch
from fastbert.train.config import PretrainConfig
from fastbert.train.console import Console
from fastbert.train.loop import PretrainLoop
from fastbert.train.model_and_data import build_model, open_data
from fastbert.train.run_header import header


@pytest.fixture
def said(monkeypatch):
    """A function from a recipe to the lines that a run of it begins with, by their names."""
    monkeypatch.setattr("fastbert.train.flops.measured_peak", lambda *_: (1.5e12, "stated for this test"))

    def of(config: PretrainConfig, device: str = "cpu") -> dict[str, str]:
        data, _ = open_data(config)
        loop = PretrainLoop(config, build_model(config, data).train(), data, None, Path("run"), Console(quiet=True))
        loop.engine.device = torch.device(device)
        return {line[:11].strip(): line[11:] for line in header(loop).splitlines()}

    return of


def test_a_run_says_what_it_is(said, recipe):
    config = recipe(steps=1200)
    data, _ = open_data(config)
    parameters = sum(p.numel() for p in build_model(config, data).parameters())
    vocabulary, tokens = data.shards.manifest.vocab_size, f"{data.shards.num_tokens:,}"
    assert said(config) == {
        "model": f"2 layers x 32, 2 heads, vocabulary {vocabulary}: {parameters:,} parameters",
        "data": f"30 documents, {tokens} tokens",
        "training": "1,200 steps, adamw, fp32, seed 0",
        "": "1,200 steps of 1 x 160 tokens, samples of at most 32, lr 0.002, linear, warm-up 0.1",
        "device": "cpu, 1 thread; peak 1.50 TFLOP/s (stated for this test)",
        "steps": "batches of any shape, without padding; no CUDA graph",
        "backends": ops.served(),
    }


def test_backends_are_those_of_the_table():
    """The one that serves most ops has no list of them, which would be five lines of a screen."""
    with ops.backend("auto"):
        most, *others = ops.served().split("; ")
    told = {op: words.split(" for ")[0] for words in others for op in words.split(" for ")[1].split(", ")}
    serving = {row["op"]: row["backend"] for row in _dispatch.table()}
    assert {op: told.get(op, most) for op in serving} == serving
    assert most not in told.values()
    with ops.backend("reference"):
        assert ops.served() == "reference"


def test_a_run_by_the_clock_has_minutes(said, recipe):
    assert said(recipe(steps=None, max_minutes=0.5))["training"].startswith("0.5 minutes, ")


@pytest.mark.parametrize(
    ("device", "captured"), [("cpu", "not captured on a CPU"), ("cuda", "captured in CUDA graphs")]
)
def test_steps_of_one_shape_have_padding(said, recipe, device, captured):
    config = recipe(cuda_graph="on")
    padding = 1 - BudgetData(open_data(config)[0], 160).efficiency()
    assert 0.01 < padding < 0.5
    assert said(config, device)["steps"] == (
        f"batches of one shape, 160 tokens with {100 * padding:.2f} % padding; {captured}"
    )


def test_a_model_without_heads_names_none(said, recipe):
    samples = SampleConfig(max_seqlen=32, nsp=False, objective="causal")
    found = said(recipe(model="elmo-2x32x2", samples=samples))["model"]
    assert re.fullmatch(r"2 layers x \d+, vocabulary \d+: [\d,]+ parameters", found)
