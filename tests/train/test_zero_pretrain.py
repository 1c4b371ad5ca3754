"""`fastbert pretrain` under DeepSpeed: the run of one process, resumed to the bit, and on another number of ranks."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pretraining_runs
import pytest
import rank_runs
import torch
import zero_cases
from safetensors.torch import load_file

from fastbert.data.config import SampleConfig
from fastbert.errors import CheckpointError, InputError
from fastbert.train import checkpoint
from fastbert.train.engine import TrainingDiverged
from fastbert.train.engines import deepspeed_config
from fastbert.train.engines.deepspeed_config import DeepSpeedOptions
from fastbert.train.engines.zero import DeepSpeedEngine
from fastbert.train.loop import PretrainLoop
from fastbert.train.pretrain import pretrain

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install 'fastbert[deepspeed]')")

STEPS = {"steps": 6, "eval_every": 4, "save_every": 3, "optimizer": "lamb", "lr": 1e-2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return pretraining_runs.prepare_data(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """The rows of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    pretrain(pretraining_runs.config(data, out, accumulate=6, **STEPS), quiet=True)
    return pretraining_runs.rows(out)


def launch(data, out, ranks: int, **options) -> list[dict]:
    """The rows of a run of so many processes, in OUT."""
    zero_cases.load()
    config = pretraining_runs.config(data, out, **{**STEPS, "accumulate": 6 // ranks, **options})
    rank_runs.launch(lambda: pretrain(config, quiet=True).steps, ranks, out.parent)
    return pretraining_runs.rows(out)


def assert_close(got: list[dict], expected: list[dict], rel: float = 1e-4) -> None:
    """Where sums are rounded to 16 bits, their order decides between words that are equally likely: an accuracy may be
    off by two of the 69 predictions."""
    assert [(row["kind"], row["step"]) for row in got] == [(row["kind"], row["step"]) for row in expected]
    for row, other in zip(got, expected, strict=True):
        for name, value in other.items():
            least = 2 / 69 + 1e-6 if rel > 1e-3 and name == "mlm_acc" else None
            assert row[name] == (value if isinstance(value, str) else pytest.approx(value, rel=rel, abs=least)), name


def _after_step_3(whole: list[dict], resumed: list[dict]) -> list[dict]:
    """The rows of a whole run that one that goes on from step 3 has too: not all of them, as if it had begun anew."""
    assert min(row["step"] for row in resumed) == 4
    return [row for row in whole if row["step"] > 3]


def check_stage(stage: int, data, alone, tmp_path, *, to_the_bit: bool = True, **options) -> None:
    whole = launch(data, tmp_path / "whole", 2, zero=stage, **options)
    if not options:
        assert_close(whole, alone)
    half = str(tmp_path / "whole" / "checkpoints" / "step_3")
    # DeepSpeed's files lie under our manifest.
    manifest = json.loads((tmp_path / "whole" / "checkpoints" / "step_3" / "manifest.json").read_text())
    assert any(name.startswith("deepspeed/state/") for name in manifest["files"])
    if to_the_bit:
        again = launch(data, tmp_path / "again", 2, zero=stage, resume=half, **options)
        assert again == _after_step_3(whole, again)
        weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "again")]
        assert weights[0] == weights[1]
    # On three ranks by way of DeepSpeed's universal form, which leaves nothing behind.
    other = launch(data, tmp_path / "other", 3, zero=stage, resume=half, **options)
    assert_close(other, _after_step_3(whole, other), rel=1e-2 if options.get("precision") else 1e-4)
    names = {path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()}
    assert names == {"step_3", "step_6"}


def test_stage_3_in_short(data, alone, tmp_path):
    check_stage(3, data, alone, tmp_path, to_the_bit=False)


def test_a_rank_that_cannot_write_its_shards_is_told_of(data, tmp_path):
    """The second is elsewhere when step 2 is saved, as on a machine that does not see OUT, and its disk is full at step
    4: both go on, and the next checkpoint is whole."""
    resource = pytest.importorskip("resource")
    zero_cases.load()
    (tmp_path / "elsewhere").mkdir()

    def trouble(row: dict) -> None:
        if os.environ["RANK"] == "1" and row["kind"] == "train":
            os.chdir(tmp_path / "elsewhere" if row["step"] in (1, 2) else tmp_path)
            limit = 20_000 if row["step"] in (3, 4) else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def work() -> int:
        os.chdir(tmp_path)
        options = {"steps": 6, "save_every": 2, "save_errors": "continue", "zero": 1}
        config = pretraining_runs.config(data, Path("run"), accumulate=1, **options)
        return pretrain(config, callbacks=[trouble]).steps

    assert rank_runs.launch(work, 2, tmp_path) == [6, 6]
    told = [line for line in (tmp_path / "rank0.log").read_text().splitlines() if "goes on without it" in line]
    assert len(told) == 2
    assert "step_2: rank 1 could not write its part: it is not there: OUT must be one directory" in told[0]
    assert "step_4: rank 1 could not write its part: the disk is full or fails (" in told[1]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_6"]
    assert checkpoint.verify(tmp_path / "run" / "checkpoints" / "step_6")["world_size"] == 2
    assert not any((tmp_path / "elsewhere").iterdir())


def test_one_training_of_a_process_follows_another(data, tmp_path):
    """DeepSpeed keeps the groups that it makes, which are gone with the group of the first training."""
    zero_cases.load()

    def train(stage: int) -> int:
        config = pretraining_runs.config(data, tmp_path / str(stage), steps=1, eval_every=2, save_every=2, zero=stage)
        return pretrain(config, quiet=True).steps

    assert rank_runs.launch(lambda: [train(3), train(1)], 1, tmp_path) == [[1, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage(data, alone, tmp_path, stage):
    check_stage(stage, data, alone, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offload_and_checkpointing_of_activations(data, alone, tmp_path, stage):
    options = {"offload": True, "activation_checkpointing": True, "zero": stage}
    assert_close(launch(data, tmp_path / "run", 2, **options), alone)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16(data, alone, tmp_path, stage):
    check_stage(stage, data, alone, tmp_path, precision="bf16")
    assert_close(pretraining_runs.rows(tmp_path / "whole")[:1], alone[:1], rel=2e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("fp16_anywhere")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_fp16_trains_under_a_loss_scale(data, tmp_path, stage):
    options = {"precision": "fp16", "steps": 30, "save_every": 30, "eval_every": 30, "zero": stage}
    rows = [row for row in launch(data, tmp_path / "run", 2, **options) if row["kind"] == "train"]
    assert rows[-1]["skipped_steps"] < 25
    assert rows[-1]["loss_scale"] > 1
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.05


def test_gradients_that_no_loss_scale_saves_end_the_training_in_one_sentence(data, tmp_path, fp16_anywhere):
    """DeepSpeed ends the process by a bare Exception once its scale is at the least."""
    fp16_anywhere.setattr(PretrainLoop, "_loss", lambda self, *_: self.model.cls.seq_relationship.bias.sum() * math.nan)
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 1}, "fp16": {"initial_scale_power": 2}}))
    options = {**STEPS, "steps": 20, "precision": "fp16", "deepspeed": str(file)}
    config = pretraining_runs.config(data, tmp_path / "run", accumulate=1, **options)
    with pytest.raises(TrainingDiverged, match="the gradient was not finite in 5 steps in a row"):
        zero_cases.in_a_process(lambda: pretrain(config, quiet=True), tmp_path)
    scales = [row["loss_scale"] for row in pretraining_runs.rows(tmp_path / "run") if row["kind"] == "train"]
    # DeepSpeed forgives one overflow before it lowers the scale. Those count that no smaller scale could have saved.
    assert scales == [4.0, 2.0, *[1.0] * 5]


def test_a_precision_that_deepspeed_does_not_find_on_the_machine_is_refused(data, tmp_path, fp16_anywhere):
    import deepspeed

    fp16_anywhere.setattr(type(deepspeed.get_accelerator()), "is_fp16_supported", lambda _self: False)
    config = pretraining_runs.config(data, tmp_path / "run", zero=1, precision="fp16", **STEPS)
    with pytest.raises(InputError, match=r"precision fp16 does not go with DeepSpeed on this machine: .* the cpu"):
        zero_cases.in_a_process(lambda: pretrain(config, quiet=True), tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_stage_0_and_a_configuration_of_the_user_s(data, alone, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}))
    assert_close(launch(data, tmp_path / "zero0", 2, zero=0), alone)
    assert_close(launch(data, tmp_path / "file", 2, deepspeed=str(file)), alone)
    assert json.loads((tmp_path / "file" / "deepspeed.json").read_text())["gradient_clipping"] == 1.0


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"optimizer": {"type": "Adam"}}', "the optimizer is the run's"),
        ('{"scheduler": {"type": "WarmupLR"}}', "the scheduler is the run's"),
        ('{"train_batch_size": 64}', "train_batch_size is the run's"),
        ('{"gradient_accumulation_steps": 2}', "gradient_accumulation_steps is the run's"),
        ('{"gradient_clipping": 0.5}', "gradient_clipping must be what the run's options say, 1.0, or auto, got 0.5"),
        ('{"bf16": {"enabled": true}}', "bf16.enabled must be what the run's options say, False"),
        ('{"zero_optimization": [1]}', "expected zero_optimization to be an object, got list"),
        ('{"zero_optimization": {"stage": 4}}', "zero_optimization.stage to be 0, 1, 2 or 3, got 4"),
        ('{"zero_optimization": {"stage": "two"}}', "zero_optimization.stage to be 0, 1, 2 or 3, got 'two'"),
        ("[1]", "a JSON object, got list"),
        ("{", "expected JSON"),
    ],
)
def test_a_configuration_that_contradicts_the_run_is_refused(data, tmp_path, content, what):
    file = tmp_path / "ds.json"
    file.write_text(content)
    with pytest.raises(InputError, match=what):
        pretrain(pretraining_runs.config(data, tmp_path / "run", deepspeed=str(file), **STEPS), quiet=True)
    assert not (tmp_path / "run").exists()


CPU = {"device": "cpu"}


@pytest.mark.parametrize(
    ("options", "precision", "expected"),
    [
        ({"zero": 0}, "fp32", {"stage": {"stage": 0}, "bf16": False, "fp16": False, "sums": None}),
        ({"zero": 1}, "bf16", {"bf16": True, "fp16": False, "sums": "bf16"}),
        # The sum of many micro-batches in bfloat16 would lose the small ones.
        ({"zero": 2}, "bf16", {"bf16": True, "sums": "fp32", "optimizer": None}),
        ({"zero": 3}, "fp16", {"bf16": False, "fp16": True, "sums": None}),
        ({"zero": 2, "offload": True}, "fp32", {"optimizer": CPU, "parameters": None}),
        ({"zero": 3, "offload": True}, "fp32", {"optimizer": CPU, "parameters": CPU}),
    ],
)
def test_what_deepspeed_is_told(options, precision, expected):
    told = deepspeed_config.configuration(DeepSpeedOptions(**options), precision, 0.5)
    found = {
        "stage": told["zero_optimization"],
        "bf16": told["bf16"]["enabled"],
        "fp16": told["fp16"]["enabled"],
        "sums": told.get("data_types", {}).get("grad_accum_dtype"),
        "optimizer": told["zero_optimization"].get("offload_optimizer"),
        "parameters": told["zero_optimization"].get("offload_param"),
    }
    assert {name: found[name] for name in expected} == expected
    assert (told["gradient_clipping"], told["gradient_accumulation_steps"]) == (0.5, 1)
    assert told["zero_optimization"]["stage"] == deepspeed_config.stage(told) == options["zero"]


def test_what_a_file_says_besides_reaches_deepspeed(tmp_path):
    file = tmp_path / "ds.json"
    with pytest.raises(InputError, match=r"ds\.json: expected a DeepSpeed configuration, found none"):
        deepspeed_config.configuration(DeepSpeedOptions(file=str(file)), "fp16", 1.0)
    said = {
        **{"optimizer": "auto", "scheduler": "auto", "train_batch_size": 1, "zero_optimization": {"stage": 2}},
        **{"fp16": {"enabled": "auto", "initial_scale_power": 5}, "data_types": {"grad_accum_dtype": "bf16"}},
    }
    file.write_text(json.dumps(said))
    told = deepspeed_config.configuration(DeepSpeedOptions(file=str(file)), "fp16", 1.0)
    assert not {"optimizer", "scheduler", "train_batch_size"} & told.keys()
    assert told["fp16"] == {"enabled": True, "initial_scale_power": 5}
    told = deepspeed_config.configuration(DeepSpeedOptions(file=str(file)), "bf16", 1.0)
    assert told["data_types"] == {"grad_accum_dtype": "bf16"}
    with pytest.raises(InputError, match="fp8 does not go with DeepSpeed"):
        deepspeed_config.configuration(DeepSpeedOptions(file=str(file)), "fp8", 1.0)


def test_sums_that_deepspeed_would_make_otherwise_are_refused(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}')
    with pytest.raises(InputError, match="gradients added up in fp32 needs ZeRO stage 2 or 3, got 1"):
        deepspeed_config.configuration(DeepSpeedOptions(file=str(file)), "bf16", 1.0)
    assert deepspeed_config.configuration(DeepSpeedOptions(file=str(file)), "fp32", 1.0)["gradient_clipping"] == 1.0


def test_options_that_do_not_go_together(data, tmp_path):
    for options, what in (
        ({"zero": 4}, "zero must be 0, 1, 2 or 3, got 4"),
        ({"offload": True}, "offload needs zero"),
        ({"zero": 1, "deepspeed": "ds.json"}, "got both"),
        ({"zero": 1, "async_save": True}, "async_save does not go with DeepSpeed"),
    ):
        with pytest.raises(InputError, match=what):
            pretrain(pretraining_runs.config(data, tmp_path / "run", **STEPS, **options), quiet=True)


@pytest.mark.parametrize(
    ("saved", "own", "goes_on"),
    [
        (1, 2, True), (2, 1, True), (3, 3, True),
        (3, 1, "from which DeepSpeed goes on with stage 3, any number of ranks, got stage 1 in fp32; start a new run"),
        (1, 3, "goes on with stage 1 or 2, any number of ranks, got stage 3"),
        (2, 0, "goes on with stage 1 or 2, any number of ranks, got stage 0"),
        (0, 1, "written under ZeRO stage 0 in bf16, from which DeepSpeed goes on with stage 0 in the same precision"),
    ],
)  # fmt: skip
def test_stages_that_do_not_go_on_from_each_other_are_one_sentence(saved, own, goes_on):
    """DeepSpeed ends them in assertions of its own, when the universal form has been made."""
    engine = types.SimpleNamespace(stage=own, precision="fp32")
    form = {"world_size": 2, "stage": saved, "precision": "bf16"}
    with contextlib.nullcontext() if goes_on is True else pytest.raises(CheckpointError, match=goes_on):
        DeepSpeedEngine._check_convertible(engine, Path("step_3"), form)


@pytest.mark.slow
def test_stage_0_goes_on_with_another_number_of_ranks_and_no_other_stage(data, tmp_path):
    whole = launch(data, tmp_path / "whole", 2, zero=0)
    half = str(tmp_path / "whole" / "checkpoints" / "step_3")
    alone = launch(data, tmp_path / "alone", 1, zero=0, resume=half)
    assert_close(alone, _after_step_3(whole, alone))
    with pytest.raises(AssertionError, match=r"was written under ZeRO stage 0 in fp32, .* got stage 1 in fp32"):
        launch(data, tmp_path / "other", 2, zero=1, resume=half)


@pytest.mark.slow
def test_a_run_without_deepspeed_does_not_go_on_under_it(data, tmp_path):
    pretrain(pretraining_runs.config(data, tmp_path / "plain", **{**STEPS, "steps": 3}), quiet=True)
    half = str(tmp_path / "plain" / "checkpoints" / "step_3")
    config = pretraining_runs.config(data, tmp_path / "run", zero=1, resume=half, **STEPS)
    with pytest.raises(CheckpointError, match="written without DeepSpeed"):
        zero_cases.in_a_process(lambda: pretrain(config, quiet=True), tmp_path)


def test_what_has_no_gradient_stays_as_it_is(data, tmp_path):
    """Without pairs. DeepSpeed's gradients of it are zeros, and LAMB made its decay a step as long as the weights."""
    options = {**STEPS, "steps": 3, "accumulate": 1}
    start = pretrain(pretraining_runs.config(data, tmp_path / "start", **options), quiet=True).model_dir
    options |= {"model": str(start), "samples": SampleConfig(max_seqlen=32, nsp=False)}
    pretrain(pretraining_runs.config(data, tmp_path / "plain", **options), quiet=True)
    config = pretraining_runs.config(data, tmp_path / "zero", zero=1, **options)
    zero_cases.in_a_process(lambda: pretrain(config, quiet=True), tmp_path)
    got, expected = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("zero", "plain"))
    idle = [name for name in expected if "pooler" in name or "seq_relationship" in name]
    assert len(idle) == 4
    assert all(torch.equal(got[name], expected[name]) for name in idle)


def test_one_process_needs_no_launcher(data, tmp_path):
    """DeepSpeed reads LOCAL_RANK, which nobody sets where nothing launches."""
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in pretraining_runs.environment().items() if name not in launcher}
    file = tmp_path / "options.yaml"
    file.write_text(pretraining_runs.config(data, tmp_path / "run", zero=1, **{**STEPS, "steps": 2}).to_yaml())
    command = [sys.executable, "-m", "fastbert", "pretrain", "--config", str(file)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "step_2" / "manifest.json").is_file()
