"""`--plan` against real steps: bytes of every part, the peak of what is allocated, tokens, steps, time."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from pathlib import Path

import pretraining_runs as runs
import pytest
import torch

from fastbert import BertConfig
from fastbert.cli.main import main
from fastbert.data.config import SampleConfig
from fastbert.errors import InputError
from fastbert.train import plan, plan_text, recipes
from fastbert.train.config import PretrainConfig
from fastbert.train.console import Console
from fastbert.train.loop import PretrainLoop
from fastbert.train.model_and_data import build_model, open_data
from fastbert.train.phase_options import Phase
from fastbert.train.plan_memory import Memory, SavedBytes, state_bytes
from fastbert.train.pretrain import pretrain


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("plan") / "data")


def small(data, **changes) -> PretrainConfig:
    options = {
        "model": "4x64x2", "token_budget": 512, "accumulate": 3, "steps": 6, "log_every": 10**9,
        "samples": SampleConfig(max_seqlen=64),
    }  # fmt: skip
    return runs.config(data, Path("nowhere"), **{**options, **changes})


def loop_of(config: PretrainConfig) -> PretrainLoop:
    split, _ = open_data(config)
    model = build_model(config, split).train()
    return PretrainLoop(config, model, split, None, Path("nowhere"), Console(quiet=True))


def planned(config: PretrainConfig) -> plan.Plan:
    return plan.make_plan(config, data=open_data(config)[0])


def bytes_of(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_parameters_gradients_and_optimiser_are_exact(data, optimizer):
    config = small(data, optimizer=optimizer)
    loop, memory = loop_of(config), planned(config).memory
    parameters, found = list(loop.model.parameters()), {}
    step = loop.engine.step

    def look(lr: float) -> float:
        found["gradients"] = bytes_of(p.grad for p in parameters)
        return step(lr)

    loop.engine.step = look
    loop.train_step()
    states = [s for state in loop.optimizer.state.values() for s in state.values() if isinstance(s, torch.Tensor)]
    assert memory.parameters == bytes_of(parameters)
    assert memory.gradients == found["gradients"]
    assert memory.optimizer == bytes_of(states)
    assert planned(config).parameters == loop.model.num_parameters()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("last_layer", ["needed", "all"])
def test_activations_are_what_the_fullest_micro_batch_keeps(data, precision, last_layer):
    """Of ragged sequences, where the plan knows their mean length."""
    config = small(data, precision=precision, last_layer=last_layer)
    loop, kept = loop_of(config), []
    forward = loop.engine.forward

    def watched(batch):
        with SavedBytes(loop.model) as saved:
            out = forward(batch)
        kept.append(saved.total)
        return out

    loop.engine.forward = watched
    for _ in range(4):
        loop.train_step()
    assert planned(config).memory.activations == pytest.approx(max(kept), rel=0.15)


def peak_of_allocations(loop: PretrainLoop, steps: int) -> int:
    """The most bytes of tensors that were alive at once during steps, beyond those that were before."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()  # tensors of earlier tests that are freed meanwhile would count as none of these
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        for _ in range(steps):
            loop.train_step()
    now = peak = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16"}, {"activation_checkpointing": True}], ids=["fp32", "bf16", "recomputed"]
)
def test_the_sum_is_the_peak_of_what_is_allocated(data, changes):
    config = small(data, model="6x128x2", **changes)
    loop, memory = loop_of(config), planned(config).memory
    loop.train_step()  # makes the optimiser's state
    peak = peak_of_allocations(loop, 3)
    print(f"{memory.total / 2**20:.1f} MiB, {(memory.parameters + memory.optimizer + peak) / 2**20:.1f} MiB allocated")
    assert memory.total == pytest.approx(memory.parameters + memory.optimizer + peak, rel=0.15)


def test_gradients_come_as_activations_go():
    assert Memory(1, 10, 100, 1000, True).total == 1111
    assert Memory(1, 10, 100, 1000, False).total == 1101


def test_epochs_are_as_many_steps_as_the_run_takes(data):
    """Here the first epoch has a batch more than those after it."""
    config = small(data, model="1x64x1", token_budget=128, accumulate=1, steps=None, epochs=3.0)
    (phase,) = planned(config).phases
    assert phase.steps == loop_of(config).total_steps < 3 * len(open_data(config)[0].batches(0, 128))


def test_zero_divides_state_among_the_ranks():
    """Rajbhandari et al. 2020, figure 1: 2 + 4 + 12 bytes a parameter in low precision, with float32 sums; stages 0 and
    1 of DeepSpeed sum in the low precision, and so do all of fp16."""
    count = 1000
    expected = {
        0: (2000, 2000, 12000),
        1: (2000, 2000, 3000),
        2: (2000, 1000, 3000),
        3: (500, 1000, 3000),
    }
    for zero, parts in expected.items():
        assert state_bytes(count, zero=zero, ranks=4, precision="bf16") == parts
    for zero in (2, 3):
        assert state_bytes(count, zero=zero, ranks=4, precision="fp16")[1] == 500
    for zero in (None, 0):
        assert state_bytes(count, zero=zero, ranks=4, precision="fp32") == (4000, 4000, 8000)
    assert state_bytes(count, zero=None, ranks=4, precision="fp8") == (6000, 4000, 8000)


@pytest.mark.slow
def test_zero_s_state_is_what_deepspeed_has(tmp_path):
    """Weights, masters and moments of both ranks, counted in DeepSpeed's own tensors."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install 'fastbert[deepspeed]')")
    import rank_runs
    import scale_cases
    import zero_cases

    zero_cases.load()
    for result in rank_runs.launch(scale_cases.states, 2, tmp_path):
        for (zero, precision), (numbers, weights, others) in result.items():
            parameters, _, optimizer = state_bytes(numbers, zero=zero, ranks=2, precision=precision)
            assert (weights, others) == (parameters, optimizer), (zero, precision)


def test_a_plan_is_of_the_stage_that_the_run_asks_for():
    config = PretrainConfig(model="2x128", steps=1, zero=2, offload=True, precision="bf16")
    made = plan.make_plan(config, ranks=4)
    assert (made.zero, made.memory.offloaded) == (2, ("optimizer",))
    assert made.memory.optimizer == 12 * -(-made.parameters // 4)
    # An all-reduce of gradients and an all-gather of weights, both in bfloat16.
    assert made.phases[0].sent == pytest.approx(3 / 4 * (2 * 2 + 2) * made.parameters, rel=1e-3)
    told = plan_text.text(made)
    assert "ZeRO 2" in told
    assert "(offloaded), activations" in told
    assert told.count("(offloaded)") == 1


@pytest.mark.parametrize("as_file", [False, True], ids=["zero", "file"])
def test_what_is_offloaded_takes_no_memory_of_the_gpu(tmp_path, as_file):
    zero = {"zero": 3, "offload": True}
    if as_file:
        parts = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
        (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3, **parts}}))
        zero = {"deepspeed": str(tmp_path / "ds.json")}
    made = plan.make_plan(PretrainConfig(model="2x128", steps=1, **zero), ranks=2)
    assert made.memory.total == made.memory.activations
    told = plan_text.text(made)
    assert told.count("(offloaded)") == 3
    assert f"{made.memory.activations / 2**20:,.1f} MiB at the peak" in told


@pytest.mark.parametrize("nothing", [None, {}, {"device": None}, {"device": "none"}])
def test_a_deepspeed_file_may_offload_nothing(tmp_path, nothing):
    parts = {"offload_param": nothing, "offload_optimizer": nothing}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3, **parts}}))
    made = plan.make_plan(PretrainConfig(model="2x128", steps=1, deepspeed=str(tmp_path / "ds.json")), ranks=2)
    assert made.memory.offloaded == ()


def test_steps_tokens_and_micro_batches_are_those_of_the_run(data, tmp_path):
    parts = (
        Phase(name="short", steps=5, max_seqlen=16, batch_tokens=600),
        Phase(name="long", steps=4, max_seqlen=32, batch_sequences=30),
    )
    config = runs.config(data, tmp_path / "run", model="1x32x2", steps=None, phases=parts, token_budget=200)
    made = planned(config)
    assert [phase.steps for phase in made.phases] == [5, 4]
    result = pretrain(dataclasses.replace(config, eval_every=1000), quiet=True)
    tokens = sum(phase.steps * phase.tokens for phase in made.phases)
    assert result.tokens == pytest.approx(tokens, rel=0.05)
    for phase, wanted in zip(made.phases, (600, None), strict=True):
        assert wanted is None or phase.tokens == pytest.approx(wanted, rel=0.34)
    assert made.phases[1].sequences == pytest.approx(30, rel=0.34)


def test_a_given_rate_becomes_time_by_the_arithmetic():
    """Ten steps at 128 tokens and ten at 512; at 512 a token is more arithmetic by 6 % of a layer's."""
    parts = (Phase(steps=10, max_seqlen=128), Phase(steps=10, max_seqlen=512))
    config = PretrainConfig(token_budget=5120, phases=parts, model="2x128")
    made = plan.make_plan(config, throughput=1000.0)
    first, second = made.phases
    assert first.seconds == pytest.approx(51.2)
    from fastbert.train.flops import sequence_flops

    bert = BertConfig.from_name("2x128")
    each = [sequence_flops(bert, s, 0.15 * (s - 3)) / s for s in (128, 512)]
    assert second.seconds == pytest.approx(51.2 * each[1] / each[0], rel=1e-6)
    assert made.seconds == first.seconds + second.seconds


def test_by_the_clock_steps_follow_from_the_rate():
    config = PretrainConfig(token_budget=1280, max_minutes=2.0, model="2x128")
    assert plan.make_plan(config).phases[0].steps is None
    made = plan.make_plan(config, throughput=1000.0)
    assert made.phases[0].steps == round(120 / 1.28)
    assert made.seconds == pytest.approx(120, rel=0.01)
    # Steps that there is no time for are not waited for.
    assert plan.make_plan(dataclasses.replace(config, steps=1000), throughput=1000.0).seconds == pytest.approx(120)


@pytest.mark.slow
def test_a_measured_rate_foretells_the_time_of_a_run(data, tmp_path):
    config = dataclasses.replace(small(data, model="4x128x2", token_budget=1024, steps=150), out=str(tmp_path / "run"))
    made = plan.make_plan(config, data=open_data(config)[0], throughput="measure")
    began = time.monotonic()
    result = pretrain(dataclasses.replace(config, eval_every=10**9, save_every=10**9), quiet=True)
    wall = time.monotonic() - began
    print(f"foretold {made.seconds:.1f} s, trained {result.seconds:.1f} s, {wall:.1f} s with start and end")
    assert made.seconds == pytest.approx(result.seconds, rel=0.15)


def test_the_command_prints_and_writes_nothing(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["pretrain", "--recipe", "mini", "--data", str(data), "--model", "2x32x2", "--plan", "--plan-ranks", "4"]
    assert main([*argv, "--plan-throughput", "20000", "--out", "RUN"]) == 0
    told = capsys.readouterr().out
    for wanted in ("parameters", "gradients", "optimiser", "activations", "each rank sends", "30.0 minutes", "4\n"):
        assert wanted in told.replace("ranks     4, fp32", "ranks 4\n")
    assert main([*argv, "--out", "RUN"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "time not known: give --plan-throughput NUMBER, the tokens that one rank trains on in a second, or" in told
    assert told.endswith("--plan-throughput measure, which takes a few steps on this machine and needs --data")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_has_a_plan_without_data(name):
    """Of a model of a few units, since the sizes of the large ones are only numbers here."""
    config = dataclasses.replace(PretrainConfig.from_yaml(recipes.path(name)), model="2x32x2")
    made = plan.make_plan(config, throughput=1e6)
    assert made.seconds > 0
    assert len(made.phases) == max(len(config.phases), 1)
    for phase, part in zip(made.phases, config.phases, strict=False):
        if part.batch_sequences:
            assert phase.sequences == pytest.approx(part.batch_sequences, rel=0.34)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--plan", "--steps", "1", "--plan-throughput", "fast"],
            "a number of tokens a second, or the word measure, got 'fast'",
        ),
        (["--plan", "--steps", "1", "--plan-throughput", "-1"], "or the word measure, got '-1'"),
        (["--plan", "--steps", "1", "--plan-throughput", "measure"], "throughput can only be measured on data"),
        (["--plan", "--steps", "1", "--plan-ranks", "0"], "--plan-ranks must be at least 1"),
        (["--plan"], "needs the length of the run"),
        (["--plan", "--epochs", "2"], "got no --data"),
    ],
)
def test_what_a_plan_cannot_be_made_of_is_one_sentence(argv, said, capsys):
    assert main(["pretrain", "--model", "2x32x2", *argv]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_rate_cannot_be_measured_without_data():
    with pytest.raises(InputError, match="throughput can only be measured on data"):
        plan.make_plan(PretrainConfig(steps=1), throughput="measure")
