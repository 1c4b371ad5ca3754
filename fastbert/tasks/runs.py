"""Run directories of fine-tuning: where a run begins or goes on, and what it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, InputError
from ..files import check_new, check_run_name, remove_unfinished, whole_directory
from ..result_files import atomic_write, check_writable, write_json
from ..text_files import read_json
from .config import FinetuneConfig
from .results import FinetuneResult, write_results
from .trained import KEPT, kept_of

ENDED = "ended.json"
"""What a run that has ended well says of itself, for a resume that comes late."""
CHECKPOINTS = "checkpoints"
"""Is there as long as a run has not ended, and holds what it goes on from."""

if TYPE_CHECKING:
    from ..train.metrics import MetricsLog
    from .base import Row, Task
    from .training import Training


@dataclass(frozen=True)
class Start:
    """Where a fine-tuning begins: at a checkpoint, anew, or not at all since it has ended; when, by
    `time.perf_counter`; and whether the directory is locked already."""

    point: Path | None = None
    ended: bool = False
    at: float = field(default_factory=time.perf_counter)
    locked: bool = False


@contextlib.contextmanager
def started(out: str | os.PathLike, resume: str | None) -> Iterator[Start]:
    """`starting_point`, which the first of several processes finds. While the block lasts, the directory of a run that
    goes on is no other run's: that one may be writing or removing what is in it.

    Raises:
        InputError, CheckpointError, OSError: those of `starting_point`; or another process trains into the directory.
    """
    from ..train.distributed import current, on_first
    from ..train.run_lock import only_run

    with contextlib.ExitStack() as held:

        def find() -> Start:
            goes_on = resume is not None and (Path(out) / CHECKPOINTS).is_dir()
            if goes_on:
                held.enter_context(only_run(Path(out)))
            return dataclasses.replace(starting_point(out, resume), locked=goes_on)

        yield on_first(current(), find)


def starting_point(out: str | os.PathLike, resume: str | None) -> Start:
    """What a run directory holds to go on from.

    Args:
        resume: "auto", or None for a run that begins.

    Raises:
        InputError: the directory would mix with what is there.
        CheckpointError: it has checkpoints, all of them damaged.
        OSError: nothing can be written there.
    """
    from ..train import checkpoint

    out = Path(out)
    unfinished = (out / CHECKPOINTS).is_dir()
    if resume is not None and (out / ENDED).is_file():
        return Start(ended=True)
    if resume is not None and unfinished:
        return Start(checkpoint.newest(out / CHECKPOINTS))
    if unfinished:
        raise InputError(f"{out} already holds a run: resume it with --resume auto, or choose another --out")
    check_run_name(out)
    check_new(out)
    check_writable(out / "config.yaml")
    return Start()


def read_ended(out: str | os.PathLike, metric: str) -> dict:
    """What `FinetuneRun.finish` has written of a run that has ended: finetune, history, epoch, trials, paths,
    wall_seconds.

    Args:
        metric: the task's first one, which every epoch of the history has.

    Raises:
        CheckpointError: it is damaged. No other file says of which model and rows the run was.
    """
    path = Path(out) / ENDED
    try:
        told = read_json(path)
        epochs = [(record["epoch"], record[metric]) for record in told["history"]]
        lines = isinstance(told["finetune"], dict) and all(isinstance(line, dict) for line in told["trials"])
        whole = lines and all(isinstance(name, str) for name in told["paths"])
        if whole and told["epoch"] in [epoch for epoch, _ in epochs] and told["wall_seconds"] >= 0:
            return told
        reason = "something else"
    except InputError as error:
        reason = str(error).partition("got ")[2]
    except KeyError as error:
        reason = f"no {error.args[0]}"
    except TypeError:
        reason = "something else"
    raise CheckpointError(
        f"{path}: expected the record of a run that has ended, got {reason}; its model and results lie beside it, and "
        f"to train it anew remove {os.fspath(out)}"
    )


class TrialLog:
    """What one training measures: metrics.jsonl and TensorBoard events of a directory."""

    def __init__(self, log: MetricsLog, every: int):
        self._log, self._every = log, every

    def step(self, record: dict) -> None:
        """One training step, of which every `log_every`-th is kept."""
        if record["step"] % self._every == 0:
            self._log.log("train", **record)

    def early(self, record: dict) -> None:
        """The early check, made in the first epoch."""
        self._log.log("early", **record)

    def epoch(self, step: int, record: dict) -> None:
        """An epoch's figures, after so many steps."""
        self._log.log("dev", step, **record)


class FinetuneRun:
    """Writes the directory of a fine-tuning: config.yaml and metrics as it goes, the rest at the end.

    Several trainings keep their metrics in ``trials/1``, ``trials/2`` and so on, and each leaves a line in
    trials.jsonl when it ends; of the best there is what there is of a single one.
    """

    def __init__(self, out: str | os.PathLike, task: Task, config: FinetuneConfig, source: dict, identity: dict):
        """Begins a directory, or goes on in one that `starting_point` knows.

        Args:
            identity: what the run is of (see `saving.identity`).
        """
        self.out, self._identity = Path(out), identity
        self._source = {"task": task.name, **source}
        (self.out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.out)
        self._write_config(config)

    def _write_config(self, config: FinetuneConfig) -> None:
        import yaml

        self._config = config
        with atomic_write(self.out / "config.yaml") as file:
            yaml.safe_dump({**self._source, **dataclasses.asdict(config)}, file, sort_keys=False)

    @contextlib.contextmanager
    def log(self, training: Training, trial: int | None = None) -> Iterator[TrialLog]:
        """The log of the training, or of one of several, numbered from 1; where it goes on, from there."""
        from ..train.metrics import MetricsLog

        directory = self.out if trial is None else self.out / "trials" / str(trial)
        directory.mkdir(parents=True, exist_ok=True)
        if training.resumed_at is None:  # but for what a run that was killed before its first checkpoint has left
            shutil.rmtree(directory / "tensorboard", ignore_errors=True)
        with MetricsLog(directory, training.resumed_at, again=training.pending) as log:
            yield TrialLog(log, self._config.log_every)

    def write_trials(self, lines: Sequence[dict]) -> None:
        """The lines of the trainings that have ended."""
        from ..train.metrics import to_line

        with atomic_write(self.out / "trials.jsonl") as file:
            file.writelines(map(to_line, lines))

    def finish(
        self, task: Task, result: FinetuneResult, model, tokenizer, rows: Sequence[Row], config=None
    ) -> FinetuneResult:
        """Writes the model with its tokenizer, and what became of the dev rows, and removes the checkpoints; returns
        the result with the paths.

        Args:
            config: the best of several recipes, which config.yaml then holds.
        """
        from ..data.tokenizer import save_tokenizer

        setattr(model.config, KEPT, kept_of(task, config or self._config))
        model_dir = self.out / "model"
        with whole_directory(model_dir) as fresh:
            model.save_pretrained(fresh)
            # A model that came from a directory brought its tokenizer's files along, untouched.
            if not any((fresh / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
                save_tokenizer(tokenizer, fresh)
        if config is not None:
            self._write_config(config)
        trials = [self.out / "trials.jsonl"] if result.trials else []
        paths = [model_dir, *trials, *write_results(task, rows, result.predictions, result.best, self.out, "dev")]
        told = {"finetune": self._identity, "history": result.history, "epoch": result.best["epoch"]}
        told |= {"trials": result.trials, "paths": [path.relative_to(self.out).as_posix() for path in paths]}
        told["wall_seconds"] = result.wall_seconds
        write_json(told, self.out / ENDED)
        shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)
        return dataclasses.replace(result, model_dir=model_dir, paths=paths)
