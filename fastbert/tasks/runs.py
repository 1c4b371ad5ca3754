"""Run directories of fine-tuning: whether a run starts or resumes, and what it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
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
"""The record of a run that has ended normally, from which a later ``--resume auto`` returns its result."""
CHECKPOINTS = "checkpoints"
"""The directory of checkpoints, which exists until the run has ended."""

if TYPE_CHECKING:
    from ..train.metrics import MetricsLog
    from .base import Row, Task
    from .training import Training


@dataclass(frozen=True)
class Start:
    """How a run starts.

    Args:
        point: the checkpoint to resume from; None to start anew.
        ended: whether the run has already ended, so that there is nothing to train.
        at: the time of the start, by `time.perf_counter`.
        locked: whether the run directory is already locked.
    """

    point: Path | None = None
    ended: bool = False
    at: float = field(default_factory=time.perf_counter)
    locked: bool = False


@contextlib.contextmanager
def started(out: str | os.PathLike, resume: str | None) -> Iterator[Start]:
    """`starting_point`, found by the first of several processes. If the run resumes, its directory is first locked
    while the block lasts, since another run might be writing or removing what is in it.

    Raises:
        InputError, CheckpointError, OSError: those of `starting_point`; or another process is using the directory.
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
    """How a run in this directory starts.

    Args:
        out: the run directory.
        resume: "auto", or None for a new run.

    Raises:
        InputError: the directory holds something that the run would mix with.
        CheckpointError: all of its checkpoints are damaged.
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
    """The record that `FinetuneRun.finish` wrote: finetune, history, epoch, trials, paths, wall_seconds; and diverged,
    if the training did.

    Args:
        out: the run directory.
        metric: the task's first metric, which every record of the history has.

    Raises:
        CheckpointError: the record is damaged. No other file tells of which model and rows the run was.
    """
    path = Path(out) / ENDED
    try:
        told = read_json(path)
        epochs = [(record["epoch"], record[metric]) for record in told["history"]]
        lines = isinstance(told["finetune"], dict) and all(isinstance(line, dict) for line in told["trials"])
        whole = lines and all(isinstance(name, str) for name in (*told["paths"], told.get("diverged", "")))
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
    """The log of one training, in metrics.jsonl and TensorBoard events.

    Args:
        log: the log of a directory.
        every: training steps between two rows.
    """

    def __init__(self, log: MetricsLog, every: int):
        self._log, self._every = log, every

    def step(self, record: dict) -> None:
        """Logs a training step, if its number is a multiple of `log_every`."""
        if record["step"] % self._every == 0:
            self._log.log("train", **record)

    def early(self, record: dict) -> None:
        """Logs the early check in the first epoch."""
        self._log.log("early", **record)

    def evaluation(self, record: dict) -> None:
        """Logs an evaluation on the dev rows, with the figures of the steps before it."""
        self._log.log("dev", **record)


class FinetuneRun:
    """Writes a run directory: config.yaml and metrics during the run, everything else at its end.

    The trainings of a search have their metrics in ``trials/1``, ``trials/2`` and so on, and each adds a line to
    trials.jsonl when it ends; the other files are those of the best training.
    """

    def __init__(self, out: str | os.PathLike, task: Task, config: FinetuneConfig, source: dict, identity: dict):
        """Makes the directory, or continues in an existing one after `starting_point`.

        Args:
            out: the directory.
            task, config: what is trained, and the recipe.
            source: further entries of config.yaml, such as the paths of model and data.
            identity: what determines the run's result (`saving.identity`).
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
        """The log of a training; a resumed one continues its log.

        Args:
            trial: the number of the training in a search, from 1; None if there is only one.
        """
        from ..train.metrics import MetricsLog
        from ..train.wandb_log import WandbLog

        directory = self._directory(trial)
        directory.mkdir(parents=True, exist_ok=True)
        if training.resumed_at is None:  # left by a run that was killed before its first checkpoint
            shutil.rmtree(directory / "tensorboard", ignore_errors=True)
        config = training.stepper.config
        name = None if trial is None else f"{self.out.resolve().name}-{trial}"
        wandb = WandbLog(config.wandb, directory, {**self._source, **dataclasses.asdict(config)}, name)
        with MetricsLog(directory, training.resumed_at, wandb, again=training.pending) as log:
            yield TrialLog(log, self._config.log_every)

    def _directory(self, trial: int | None) -> Path:
        """Where the metrics of a training are."""
        return self.out if trial is None else self.out / "trials" / str(trial)

    def _plot(self, metric: str, guess: Mapping[str, float], trial: int | None) -> Path:
        """Draws loss.png from the metrics of a training."""
        from ..train.metrics import read_metrics
        from ..train.plots import score_plot

        rows = read_metrics(self._directory(trial) / "metrics.jsonl", {"loss", "train_loss", "dev_loss", metric})
        return score_plot(rows, self.out / "loss.png", metric=metric, guess=guess.get(metric))

    def write_trials(self, lines: Sequence[dict]) -> None:
        """Writes trials.jsonl, the lines of the finished trainings."""
        from ..train.metrics import to_line

        with atomic_write(self.out / "trials.jsonl") as file:
            file.writelines(map(to_line, lines))

    def finish(
        self,
        task: Task,
        result: FinetuneResult,
        model,
        tokenizer,
        rows: Sequence[Row],
        config: FinetuneConfig | None = None,
        trial: int | None = None,
    ) -> FinetuneResult:
        """Writes the model with its tokenizer, the results on the dev rows, loss.png and the record `ENDED`, and
        removes the checkpoints.

        Args:
            rows: the dev rows.
            config: the best of several recipes, which replaces the one in config.yaml; None if there was only one.
            trial: the number of the best of several trainings, from 1, whose curves are drawn; None if there was only
                one.

        Returns:
            the result, with the paths of what was written.
        """
        from ..data.tokenizer import save_tokenizer

        setattr(model.config, KEPT, kept_of(task, config or self._config))
        model_dir = self.out / "model"
        with whole_directory(model_dir) as fresh:
            model.save_pretrained(fresh)
            # A model that was loaded from a directory has saved that directory's tokenizer files, unchanged.
            if not any((fresh / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
                save_tokenizer(tokenizer, fresh)
        if config is not None:
            self._write_config(config)
        trials = [self.out / "trials.jsonl"] if result.trials else []
        paths = [model_dir, *trials, *write_results(task, rows, result.predictions, result.best, self.out, "dev")]
        paths.append(self._plot(task.metrics[0], result.guess, trial))
        told = {"finetune": self._identity, "history": result.history, "epoch": result.best["epoch"]}
        told |= {"trials": result.trials, "paths": [path.relative_to(self.out).as_posix() for path in paths]}
        told |= {} if result.diverged is None else {"diverged": result.diverged}
        told["wall_seconds"] = result.wall_seconds
        write_json(told, self.out / ENDED)
        shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)
        return dataclasses.replace(result, model_dir=model_dir, paths=paths)
