"""RELIABILITY 2, 8 and 12 with two processes: exact resume, a rank that dies, a disk that fills up under rank 0."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pretraining_runs as runs
import pytest
import rank_runs
import torch
import torch.distributed as dist

from fastbert.errors import CheckpointError, FastbertError
from fastbert.train import checkpoint, distributed
from fastbert.train.pretrain import pretrain

LIMIT = 30.0  # seconds from one process's death to the end of the others


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("ranks") / "data")


def test_two_parts_equal_the_whole_on_two_ranks(data, tmp_path):
    """Stopped by a signal that only the second rank gets, inside an epoch; dropout is on."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changes = {"steps": 12, "eval_every": 5, "log_every": 4}

    def stop_here(loop) -> None:
        if loop.engine.world.rank == 1 and loop.step == 6 and loop._stop.asked is None:
            signal.raise_signal(signal.SIGTERM)

    def steps(config, hook=lambda _: None) -> int:
        return _with_hook(config, hook).steps

    resumed = runs.config(data, cut, resume="auto", **changes)
    assert rank_runs.launch(steps, 2, tmp_path, runs.config(data, whole, **changes)) == [12, 12]
    at = rank_runs.launch(steps, 2, tmp_path, runs.config(data, cut, **changes), stop_here)
    assert at == [6, 6], "ranks agree before the next step"
    assert rank_runs.launch(steps, 2, tmp_path, resumed) == [12, 12]
    runs.assert_same_run(cut, whole, 12)
    manifest = checkpoint.verify(cut / "checkpoints" / "step_12")
    assert manifest["world_size"] == 2


def _with_hook(config, hook):
    """Pre-trains, and calls the hook after each step."""
    from fastbert.train.loop import PretrainLoop

    real = PretrainLoop.train_step

    def step(self) -> None:
        real(self)
        hook(self)

    PretrainLoop.train_step = step
    try:
        return pretrain(config, quiet=True)
    finally:
        PretrainLoop.train_step = real


def _ranks(config_file: Path, tmp_path: Path) -> list[subprocess.Popen]:
    """The command as two processes of a launcher."""
    port = rank_runs.free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", "fastbert", "pretrain", "--config", str(config_file)],
            stdout=open(tmp_path / f"stdout{rank}", "wb"),
            stderr=open(tmp_path / f"stderr{rank}", "wb"),
            env=runs.environment()
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
            | {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"},
            cwd=tmp_path,
        )
        for rank in (0, 1)
    ]


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_dies_ends_the_others_in_one_sentence(data, tmp_path, killed):
    out, options = tmp_path / "run", tmp_path / "options.yaml"
    config = runs.config(data, out, steps=10**6, save_every=2)
    options.write_text(config.to_yaml())
    ranks = _ranks(options, tmp_path)
    try:
        until = time.monotonic() + 120
        while not (out / "checkpoints" / "step_4").exists() and not list((out / "checkpoints").glob("step_*0")):
            assert all(rank.poll() is None for rank in ranks), (tmp_path / "stderr0").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        ranks[killed].kill()
        died = time.monotonic()
        status = ranks[1 - killed].wait(LIMIT)
        print(f"the other rank ended {time.monotonic() - died:.1f} s after")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    told = [line for line in (tmp_path / f"stderr{1 - killed}").read_text().splitlines() if "fastbert: " in line]
    assert status == 2, (tmp_path / f"stderr{1 - killed}").read_text()
    assert len(told) == 1
    assert "another of the 2 processes of this run has ended" in told[0]
    assert "Traceback" not in (tmp_path / f"stderr{1 - killed}").read_text()
    # Nothing is lost but the steps since the last checkpoint, and one process alone can go on.
    newest, skipped = checkpoint.latest_valid(out / "checkpoints")
    assert not skipped
    step = int(newest.name.removeprefix("step_"))
    assert step >= max(row["step"] for row in runs.rows(out)) - 2
    changes = {"steps": step + 2, "accumulate": 4, "resume": "auto"}
    assert pretrain(dataclasses.replace(config, **changes), quiet=True).steps == step + 2


def test_errors_that_tell_of_a_lost_rank():
    gone = RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234")
    assert distributed.lost_a_rank(gone)
    assert not distributed.lost_a_rank(RuntimeError("shape mismatch"))
    assert not distributed.lost_a_rank(ValueError("Connection closed by peer"))


NCCL = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage, NCCL version 2.27.5
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000
"""


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (
            "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234",
            "another of the 2 .* has ended",
        ),
        ("recvValue failed, got 0 bytes. Connection was likely closed", "another of the 2 .* has ended, and its own"),
        ("[gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv", "has not answered in time .*1800000ms"),
        (NCCL, "failed to exchange data .NCCL error in: .*, NCCL version 2.27.5; Duplicate GPU detected : .* 50000.;"),
        (
            "NCCL error: no route\nException raised from create at ProcessGroupNCCL.cpp:1 (most recent call first):\n"
            "frame #0: _start + 0x25",
            r"failed to exchange data \(NCCL error: no route\); go on with --resume auto$",
        ),
    ],
)
def test_the_cause_of_a_failed_collective_is_said(message, what):
    """Of NCCL's own failures no other process says more: each said that another had ended."""
    for rank in (0, 1):
        with (
            pytest.raises(distributed.RankLost, match=f"^rank {rank} stops because .*{what}"),
            distributed._told_of_loss(distributed.World(rank, 2)),
        ):
            raise dist.DistBackendError(message)


def _caught(work) -> str:
    try:
        work()
    except FastbertError as error:
        return f"{type(error).__name__} {error} {getattr(error, 'told_by_another_rank', '')}"
    return "nothing"


def test_a_rank_that_fails_before_the_first_step_ends_the_others_in_one_sentence(data, tmp_path):
    """On a second machine, say, whose copy of the data lacks a file."""
    lacking = tmp_path / "lacking"
    shutil.copytree(data, lacking)
    next((lacking / "train").glob("*.bin")).unlink()

    def work() -> str:
        own = lacking if os.environ["RANK"] == "1" else data
        return _caught(lambda: pretrain(runs.config(own, tmp_path / "run", steps=2), quiet=True))

    first, second = rank_runs.launch(work, 2, tmp_path)
    assert second.startswith("DataError ")
    assert "got none" in second
    assert first.startswith("RankLost rank 0 stops because another of the 2 processes of this run has ended")


@pytest.mark.parametrize("damaged", [0, 1])
def test_each_machine_verifies_its_own_copy_of_the_data(data, tmp_path, damaged):
    """The copy of one has a bit that is not the manifest's; its size is right and its ids are of the vocabulary."""
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    shard = next((copy / "train").glob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2 & ~1] ^= 1
    shard.write_bytes(content)

    def work() -> str:
        rank = int(os.environ["RANK"])
        os.environ["LOCAL_RANK"] = "0"  # each on a machine of its own
        own = copy if rank == damaged else data
        return _caught(lambda: pretrain(runs.config(own, tmp_path / "run", steps=2), quiet=True))

    told = rank_runs.launch(work, 2, tmp_path)
    for rank, sentence in enumerate(told):
        assert sentence.startswith(f"DataError rank {damaged}: {shard}: expected SHA-256 ")
        assert sentence.endswith(str(rank != damaged)), "the rank that found it says it, and no other"
    assert not (tmp_path / "run").exists()


def test_a_rank_that_waits_for_another_says_so_and_ends_with_ctrl_c(tmp_path, monkeypatch):
    """The other was killed before they met. Python hears of a signal when torch has waited for half an hour."""
    monkeypatch.setattr(distributed, "_WAIT_TOLD_AFTER_S", 0.1)

    def work() -> None:
        os.environ["WORLD_SIZE"] = "2"
        logging.getLogger("fastbert").addHandler(logging.StreamHandler())
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        with distributed.joined():
            pass

    told = r"exit codes \[-2\]\n--- rank 0\nrank 0 has waited 0 s for the others of 2 processes at 127.0.0.1, port \d+"
    with pytest.raises(AssertionError, match=told):
        rank_runs.launch(work, 1, tmp_path, seconds=30.0)


def test_a_rank_that_does_not_answer_ends_the_others_in_one_sentence(tmp_path):
    def work() -> str:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=0.5))
        if dist.get_rank() == 1:
            time.sleep(2)
            return ""

        def alone() -> None:
            with distributed.joined() as world:
                distributed.barrier(world)

        return _caught(alone)

    told, _ = rank_runs.launch(work, 2, tmp_path)
    assert told.startswith(
        "RankLost rank 0 stops because another of the 2 processes of this run has not answered in time ("
    )


def test_ranks_that_were_started_with_other_options_are_refused(data, tmp_path):
    """Of another rate each would update its own copy of the model in its own way; of other steps one would wait."""
    other = runs.prepare_data(tmp_path / "other", vocab_size=90)

    def work() -> list[str]:
        second = os.environ["RANK"] == "1"
        out, told = tmp_path / "run", []
        with distributed.joined():
            for changes in ({"lr": 1e-3}, {"steps": 9}, {"save_every": 3}, {"data": str(other)}):
                config = dataclasses.replace(runs.config(data, out, steps=2), **(changes if second else {}))
                told.append(_caught(lambda config=config: pretrain(config, quiet=True)))
        return told

    first, second = rank_runs.launch(work, 2, tmp_path)
    for told, others, name in zip(first, second, ("lr 0.001", "steps 9", "save_every 3", "data "), strict=True):
        assert told.startswith(f"InputError expected all 2 processes to be started alike, got {name}")
        assert told.removesuffix("False") == others.removesuffix("True") != told  # rank 0 alone says it
    assert not (tmp_path / "run").exists()


def test_ranks_that_were_started_to_go_on_from_elsewhere_are_refused(data, tmp_path):
    """They took part in other collectives and waited for each other. Whether to verify is each machine's own affair."""
    out, begun = str(tmp_path / "run"), str(tmp_path / "begun")
    options = ({"resume": "auto"}, {}), ({}, {"resume": "auto"}), ({}, {"out": str(tmp_path / "other")})

    def work() -> tuple[list[str], list[int]]:
        rank, told = int(os.environ["RANK"]), []
        with distributed.joined():
            for of_ranks in options:
                config = dataclasses.replace(runs.config(data, out, steps=1), **of_ranks[rank])
                told.append(_caught(lambda config=config: pretrain(config, quiet=True)))
            unlike = [runs.config(data, begun, steps=1, resume="auto", verify_data=rank == other) for other in (0, 1)]
            return told, [pretrain(config, quiet=True).steps for config in unlike]

    first, second = rank_runs.launch(work, 2, tmp_path, seconds=60.0)
    assert first[1] == second[1] == [1, 1]
    for told, others, name in zip(first[0], second[0], ("resume None", "resume auto", "out "), strict=True):
        assert told.startswith(f"InputError expected all 2 processes to be started alike, got {name}")
        assert told.removesuffix("False") == others.removesuffix("True") != told  # rank 0 alone says it
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "other").exists()


def test_a_full_disk_under_rank_0_is_met_by_all_alike(data, tmp_path):
    """Told to go on, both do, and the last checkpoint is written once there is room; no rank waits for another."""
    out = tmp_path / "run"

    def work() -> int:
        real, calls = checkpoint.save, []

        def full(directory, step, *args, **options):
            calls.append(step)
            if step < 6:
                raise CheckpointError(f"{directory}: No space left on device")
            return real(directory, step, *args, **options)

        checkpoint.save = full
        config = runs.config(data, out, steps=6, save_every=2, save_errors="continue", eval_every=3)
        return pretrain(config, quiet=True).steps

    assert rank_runs.launch(work, 2, tmp_path) == [6, 6]
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step_6"]
    assert multiprocessing.active_children() == []
    assert torch.get_num_threads() == 1
