"""Tiny pre-training runs: the data they read, their options, and what of two runs must be equal to the bit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import fastbert
from fastbert.data.config import SampleConfig
from fastbert.train import checkpoint
from fastbert.train.config import PretrainConfig
from fastbert.train.metrics import from_line

# What a clock or the machine decides; all else in a row is a function of the options.
_MEASURED = {"tokens_per_second", "executed_tokens_per_second", "mfu", "seconds", "memory_mib"}


def prepare_data(directory: Path, vocab_size: int = 100) -> Path:
    """Shards of random sentences over 16 words, one document in five held out; returns the directory."""
    from fastbert.data.prepare import prepare
    from fastbert.data.tokenizer import train_wordpiece

    draw = random.Random(0)
    words = "red blue green grey cat dog bird fish sees eats likes finds today here now again".split()  # noqa: SIM905
    texts = [
        (f"document {d}", [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(12)]) for d in range(30)
    ]
    tokenizer = train_wordpiece((sentence for _, sentences in texts for sentence in sentences), vocab_size)
    prepare(texts, tokenizer, directory, heldout=0.2)
    return directory


def config(data: Path, out: Path, **changes) -> PretrainConfig:
    """Two micro-batches a step, every step logged; BERT's dropout of 0.1 is on."""
    options = {
        "model": "2x32x2",
        "token_budget": 256,
        "accumulate": 2,
        "steps": 40,
        "lr": 2e-3,
        "warmup": 0.1,
        "eval_every": 8,
        "save_every": 1000,
        "log_every": 1,
        "seed": 3,
        "samples": SampleConfig(max_seqlen=32),
    }
    return PretrainConfig(data=str(data), out=str(out), **{**options, **changes})


def leave_out_pictures(patch: pytest.MonkeyPatch) -> None:
    """Runs of this process leave a mark in place of loss.png: drawing takes as long as all steps of a tiny fine-tuning.
    It has tests of its own, in test_flops_plots.py. A fine-tuning's is all that would be drawn, so that two runs can be
    compared."""

    def loss_plot(_rows, path, **_options):
        path.write_bytes(b"a picture")
        return path

    def score_plot(rows, path, *, metric, guess=None):
        names = ("kind", "step", "loss", "train_loss", "dev_loss", metric)
        drawn = [{name: row[name] for name in names if name in row} for row in rows]
        path.write_text(repr((drawn, metric, guess)))
        return path

    patch.setattr("fastbert.train.plots.loss_plot", loss_plot)
    patch.setattr("fastbert.train.plots.score_plot", score_plot)


def environment() -> dict[str, str]:
    """For a child process, which is to start outside the source tree: this process's package and number of threads.

    Equal bits are promised for an equal number of threads: BLAS adds up in another order with more.
    """
    paths = [str(Path(fastbert.__file__).parent.parent), str(Path(__file__).parent)]
    return os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def another_run_in(directory: Path) -> Iterator[int]:
    """While the block lasts another process, whose number it gives, holds a run directory."""
    code = (
        "import pathlib, sys; from fastbert.train.run_lock import only_run\n"
        "with only_run(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.readline()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    try:
        assert other.stdout.readline() == b"held\n"
        yield other.pid
    finally:
        other.kill()
        other.communicate()


def pretrain_in_child(config: PretrainConfig) -> None:
    """The target of a child process; `multiprocessing` needs it to be importable."""
    from fastbert.train.pretrain import pretrain

    torch.set_num_threads(1)
    pretrain(config, quiet=True)


def stop_after(step: int, kind: str = "train") -> Callable[[dict], None]:
    """A callback that asks for the end as a user would, by a signal, at the first row of a kind once that step is
    done."""

    def callback(row: dict) -> None:
        if row["kind"] == kind and row["step"] >= step:
            signal.raise_signal(signal.SIGTERM)

    return callback


def last_step(run_dir: Path) -> int:
    """The last step that has a row; 0 where there is none."""
    return max((row["step"] for row in rows(run_dir)), default=0)


def rows(run_dir: Path, name: str = "metrics.jsonl") -> list[dict]:
    """The rows of metrics.jsonl, or steps.jsonl, without what was measured by a clock."""
    path = run_dir / name
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found = map(from_line, text[: text.rfind("\n") + 1].splitlines())  # without a line that a kill cut off
    return [{k: v for k, v in row.items() if k not in _MEASURED and not k.endswith("_seconds")} for row in found]


def checkpoint_of(run_dir: Path, step: int) -> tuple[dict[str, torch.Tensor], dict]:
    """Tensors (weights and moments) and state of a checkpoint, without the seconds it took."""
    tensors, state, _ = checkpoint.load(run_dir / "checkpoints" / f"step_{step}")
    return tensors, {name: value for name, value in state.items() if name not in ("seconds", "processor_seconds")}


def assert_same_bits(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The same names, dtypes, shapes and bits, those of NaN too."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape), name
        (found, wanted) = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (got[name], value))
        assert torch.equal(found, wanted), name


def assert_same_run(got: Path, expected: Path, step: int) -> None:
    """Two runs came to the same: weights, moments, place in the data, every logged figure, the best model's files."""
    (tensors, state), (wanted, wanted_state) = checkpoint_of(got, step), checkpoint_of(expected, step)
    assert tensors.keys() == wanted.keys()
    different = [name for name in tensors if not torch.equal(tensors[name], wanted[name])]
    assert not different, f"{len(different)} of {len(tensors)} tensors differ, the first: {different[0]}"
    assert state == wanted_state
    assert rows(got) == rows(expected)
    steps, wanted_steps = rows(got, "steps.jsonl"), rows(expected, "steps.jsonl")
    assert [row["step"] for row in steps] == [row["step"] for row in wanted_steps]
    for row, other in zip(steps, wanted_steps, strict=True):  # differences of sums, which begin anew at a line
        assert row.keys() == other.keys()
        for name, value in row.items():
            wanted_value = other[name]
            if not isinstance(wanted_value, str):
                wanted_value = pytest.approx(wanted_value, rel=1e-9, abs=1e-9, nan_ok=True)
            assert value == wanted_value, name
    files = sorted(path.name for path in (expected / "model").iterdir())
    assert sorted(path.name for path in (got / "model").iterdir()) == files
    for name in files:
        assert (got / "model" / name).read_bytes() == (expected / "model" / name).read_bytes(), name
