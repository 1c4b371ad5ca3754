"""What is only done beside a GPU, done beside a stand-in: placing, moving, deciding on the device, capturing.

Each test is a process of its own: torch asks for a GPU once, at its import.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pretraining_runs
import pytest
import stand_in_gpu
import tiny_bert
import torch

import fastbert

TESTS = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.skipif(
        torch.version.cuda is not None, reason="torch was built for CUDA: the stand-in cannot be there too"
    ),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries are loaded as on Linux"),
    pytest.mark.skipif(stand_in_gpu.COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(
        "asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer must come first of all libraries"
    ),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("stand_in") / "libstand_in_gpu.so"
    stand_in_gpu.build(made)
    return made


@pytest.fixture
def run(library, tmp_path):
    def run(*command: str, site: str = "", **variables: str) -> str:
        paths = [site, Path(fastbert.__file__).parents[1], TESTS, TESTS / "triton"]
        path = os.pathsep.join(str(p) for p in paths if p)
        known = {"PYTHONPATH": path, stand_in_gpu.ENVIRONMENT: str(library), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command], env=os.environ | known | variables, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    return run


def test_it_refuses_what_a_gpu_refuses(run):
    run(str(Path(__file__).with_name("refusals.py")))


@pytest.mark.parametrize("precision", ["fp32", "fp8"])
def test_a_captured_step_is_the_step_that_was_not_captured(run, precision):
    """The kernels are Triton's: one step before the capture, two replays; forward, backward and update."""
    assert run(str(Path(__file__).with_name("replays.py")), precision).endswith("equal\n")


# Every kind of head and of model in training and by the commands, on the reference: Triton's interpreter is slow.
FILES = {
    "cli/test_device.py": "to_the_end",
    "tasks/test_finetune.py": "step_for_step or whole_story",
    "tasks/test_squad.py": "learns",
    "tasks/test_swag.py": "learns",
    "tasks/test_gpt_tasks.py": "learns or by_the_command",
    "tasks/test_features_of_kinds.py": "in_commands or is_learned",
    "interop/test_sentence_encoder.py": "",
    "interop/test_trainer.py": "",
}


def pytest_beside_it(run, file: str, chosen: str, backend: str) -> None:
    options = ("-n0", "-q", "-p", "stand_in_gpu", "-p", "no:cacheprovider", "-k", chosen)
    out = run("-m", "pytest", *options, str(TESTS / file), FASTBERT_BACKEND=backend)
    assert "." in out.split()[0], out
    assert set(out.split()[0]) <= {".", "s"}, out


@pytest.mark.parametrize("file", FILES)
def test_what_passes_on_a_cpu_passes_beside_a_gpu(run, file):
    pytest_beside_it(run, file, FILES[file], "reference")


def test_a_captured_update_replays(run):
    """By the test that a GPU runs."""
    pytest_beside_it(run, "triton/test_triton_optimizer.py", "captured", "auto")


# --- two processes, each with a device ---

PRETRAIN = "pretrain --data data --model 2x32x2 --out run --steps 3 --samples.max-seqlen 32 --token-budget 256"
FINETUNE = "finetune sst2 --model model --train rows.tsv --dev rows.tsv --out run --max-seqlen 24 --batch-size 8"


def ranks(run, directory: Path, command: str, **variables: str) -> list[float]:
    """The losses of a command of two processes."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "fastbert")
    shutil.rmtree(directory / "run", ignore_errors=True)
    run(*launcher, *command.split(), "--log-every", "1", FASTBERT_BACKEND="reference", **variables)
    rows = [json.loads(line) for line in (directory / "run" / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(PRETRAIN, id="pretrain"),
        pytest.param(FINETUNE, id="finetune"),
        pytest.param(PRETRAIN + " --zero 2", id="zero", marks=pytest.mark.slow),
    ],
)
def test_two_devices_train_as_two_processes_of_a_cpu(run, library, tmp_path, command):
    if "--zero" in command:
        pytest.importorskip("deepspeed")
    tiny_bert.save(tmp_path / "model")
    pretraining_runs.prepare_data(tmp_path / "data")
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n" + "a fine film\t1\na dull one\t0\n" * 8)
    expected = ranks(run, tmp_path, command, **{stand_in_gpu.ENVIRONMENT: ""})
    # So that every process of the launcher imports it first.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import stand_in_gpu\n")
    got = ranks(run, tmp_path, command, site=str(tmp_path / "site"))
    assert len(got) == len(expected) > 2
    assert got == pytest.approx(expected, rel=1e-5)
