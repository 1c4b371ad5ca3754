"""Two processes, each with a device: a stand-in for a GPU, gloo in NCCL's place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pretraining_runs
import pytest
import rank_runs
import stand_in_gpu
import tiny_bert

import fastbert
from fastbert.cli.main import main

PRETRAIN = "pretrain --data data --model 2x32x2 --out run --steps 3 --samples.max-seqlen 32 --token-budget 256"
FINETUNE = "finetune sst2 --model model --train rows.tsv --dev rows.tsv --out run --max-seqlen 24 --batch-size 8"


def ranks(run, directory: Path, command: str, **variables: str) -> list[float]:
    """The losses of a command of two processes."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "fastbert")
    run(*launcher, *command.split(), "--log-every", "1", FASTBERT_BACKEND="reference", **variables)
    return losses(directory)


def forks(directory: Path, command: str) -> list[float]:
    """The same without a launcher, in forks of this process: torch is imported once less for each process."""

    def call() -> int:
        os.chdir(directory)
        with fastbert.backend("reference"):
            return main([*command.split(), "--log-every", "1"])

    assert rank_runs.launch(call, 2, directory) == [0, 0]
    return losses(directory)


def losses(directory: Path) -> list[float]:
    """Those of the run, whose directory goes."""
    rows = [json.loads(line) for line in (directory / "run" / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(directory / "run")
    return [row["loss"] for row in rows if row["kind"] == "train"]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(PRETRAIN, id="pretrain"),
        pytest.param(FINETUNE, id="finetune", marks=pytest.mark.slow),
        pytest.param(PRETRAIN + " --precision bf16", id="bf16", marks=pytest.mark.slow),
        pytest.param(PRETRAIN + " --precision fp8", id="fp8", marks=pytest.mark.slow),
        pytest.param(PRETRAIN + " --zero 1", id="zero1", marks=pytest.mark.slow),
        pytest.param(PRETRAIN + " --zero 2", id="zero2", marks=pytest.mark.slow),
    ],
)
def test_two_devices_train_as_two_processes_of_a_cpu(run, tmp_path, command):
    if "--zero" in command:
        pytest.importorskip("deepspeed")
    tiny_bert.save(tmp_path / "model")
    pretraining_runs.prepare_data(tmp_path / "data")
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n" + "a fine film\t1\na dull one\t0\n" * 8)
    if "--zero" in command:
        expected = ranks(run, tmp_path, command, **{stand_in_gpu.ENVIRONMENT: ""})
    else:
        expected = forks(tmp_path, command)
    got = ranks(run, tmp_path, command, children=True)
    assert len(got) == len(expected) > 2
    assert got == pytest.approx(expected, rel=1e-5)
