"""Runs on very small data, with workers that die, on a disk that is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pretraining_runs
import pytest

from fastbert.data.config import SampleConfig
from fastbert.data.prepare import prepare
from fastbert.data.tokenizer import train_wordpiece
from fastbert.errors import CheckpointError, DataError
from fastbert.train import checkpoint
from fastbert.train.best_model import write_model
from fastbert.train.pretrain import pretrain


def small(directory, counts: list[int]):
    documents = [(f"d{n}", [f"the cat sees dog number {i}" for i in range(count)]) for n, count in enumerate(counts)]
    tokenizer = train_wordpiece((s for _, sentences in documents for s in sentences), 60)
    prepare(documents, tokenizer, directory, heldout=["d0"] if len(counts) > 1 else 0.0, num_workers=1)
    return directory


@pytest.mark.parametrize(("counts", "said"), [([3], "another document"), ([1, 3, 3], "held-out documents")])
def test_a_single_document_is_refused_before_anything_is_written(recipe, tmp_path, counts, said):
    """Pairs need a second document, in the held-out split too, which is first read hundreds of steps later."""
    data = small(tmp_path / "data", counts)
    with pytest.raises(DataError, match=said):
        pretrain(recipe(data=str(data), model="1x32x2", steps=2), quiet=True)
    assert not (tmp_path / "run").exists()


def test_two_short_documents_train(recipe, tmp_path):
    data = small(tmp_path / "data", [2, 2])
    samples = SampleConfig(max_seqlen=32, nsp=False)
    result = pretrain(recipe(data=str(data), model="1x32x2", steps=2, samples=samples), quiet=True)
    assert (result.steps, (result.model_dir / "config.json").exists()) == (2, True)


CHILD = """
import multiprocessing, os, signal, sys, threading, time
from fastbert.errors import DataError
from fastbert.train.config import PretrainConfig
from fastbert.train.pretrain import pretrain

def kill():
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGKILL)

def at_a_row(row):
    if sys.argv[2] == "signal":
        kill()
    else:
        threading.Timer(0.2, kill).start()
        raise ConnectionResetError(104, "Connection reset by peer")

try:
    pretrain(PretrainConfig.from_yaml(sys.argv[1]), callbacks=[at_a_row], quiet=True)
except DataError as error:
    time.sleep(0.5)
    print(error)
"""


@pytest.mark.parametrize("first", ["signal", "socket"])
def test_a_worker_that_dies_is_one_sentence(recipe, tmp_path, first):
    """Whichever of the two is noticed first: that the worker's socket has closed, or that the worker has ended, which
    torch's signal handler raises wherever the process is, so in one of its own."""
    path = tmp_path / "config.yaml"
    path.write_text(recipe(steps=1000, num_workers=1).to_yaml())
    command = [sys.executable, "-c", CHILD, str(path), first]
    options = {"cwd": tmp_path, "env": pretraining_runs.environment()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.stdout.count("\n") == 1, done.stderr
    assert "has died" in done.stdout


def test_a_reader_that_has_ended_is_not_taken_for_a_worker(recipe, monkeypatch):
    """``fastbert pretrain ... | head`` said that a process that makes batches had died."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", closefd=False) as out:
        with pytest.raises(BrokenPipeError):
            pretrain(recipe(steps=2), callbacks=[lambda _row: monkeypatch.setattr(sys, "stdout", out)])
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # for the flush when it is closed


def test_a_full_disk_while_the_best_model_is_written(recipe, tmp_path, monkeypatch):
    """The model that was there stays whole, and so do the checkpoints; nothing half-written is left."""
    import fastbert.train.loop as loop

    result = pretrain(recipe(steps=2, warmup=0.0), quiet=True)
    before = {p: p.read_bytes() for p in sorted(result.model_dir.iterdir())}

    def fail(self, directory):
        directory.mkdir()
        (directory / "config.json").write_text("{")
        raise CheckpointError(f"{directory}: {os.strerror(errno.ENOSPC)}")

    from fastbert import BertForPreTraining

    monkeypatch.setattr(BertForPreTraining, "save_pretrained", fail)
    monkeypatch.setattr(loop, "evaluate", lambda *_, **__: {"mlm_loss": -1.0, "mlm_acc": 0.0, "unigram_entropy": 0.0})
    with pytest.raises(CheckpointError, match="No space"):
        pretrain(recipe(steps=4, warmup=0.0, resume="auto"), quiet=True)
    assert {p: p.read_bytes() for p in sorted(result.model_dir.iterdir())} == before
    assert checkpoint.latest_valid(result.run_dir / "checkpoints")[0].name == "step_2"
    assert not (result.run_dir / "model.new").exists()


@pytest.fixture
def failing_renames(monkeypatch):
    """The first rename of a new model to its place fails."""
    rename, failed = os.rename, []

    def failing(source, target):
        if Path(source).name == "model.new" and not failed:
            failed.append(target)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    return failed


def test_a_model_that_cannot_take_its_place_leaves_the_one_before(tmp_path, failing_renames):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("before")
    model = SimpleNamespace(save_pretrained=Path.mkdir)
    with pytest.raises(CheckpointError, match=f"model could not be written: {os.strerror(errno.EIO)}"):
        write_model(model, tmp_path)
    assert (tmp_path / "model" / "config.json").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("errors", ["stop", "continue"])
def test_a_run_goes_on_without_such_a_model_where_it_is_told_to(recipe, failing_renames, capsys, errors):
    config = recipe(steps=2, warmup=0.0, eval_every=1, save_errors=errors)
    if errors == "stop":
        with pytest.raises(CheckpointError, match=os.strerror(errno.EIO)):
            pretrain(config)
        return
    result = pretrain(config)
    assert (len(failing_renames), result.steps, (result.model_dir / "config.json").is_file()) == (1, 2, True)
    assert "training goes on without it: " in capsys.readouterr().out


def test_the_last_checkpoint_has_to_be_written_all_the_same(recipe, monkeypatch, capsys):
    """Without it nothing would be left of the run to go on from."""

    def full(directory, step, *_args, **_options):
        raise CheckpointError(f"{directory}/step_{step}: 9 bytes could not be written: No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(CheckpointError, match=r"step_2: .* No space left on device"):
        pretrain(recipe(steps=2, save_every=1, save_errors="continue"))
    assert capsys.readouterr().out.count("training goes on without it: ") == 2
