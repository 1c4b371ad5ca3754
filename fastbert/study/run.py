"""Runs the jobs of a study that are not in the cache: pre-trainings, then fine-tunings of their models."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from ..data.tokenizer import load_tokenizer
from ..errors import DataError
from ..processes import obey_the_parent
from ..signals import held_signals, removed_on_sigterm
from ..wording import counted
from . import cells, corpus, fits, pretrained
from .cells import Cell
from .definition import Study, predicts_words
from .pretrained import Wanted


@dataclass(frozen=True)
class Work:
    """Everything that a study needs.

    Args:
        data: the data directory.
        models: the distinct models, ordered by seed first, so that an interruption leaves a whole table of fewer seeds.
        cells: in the order of seeds, rows and columns.
        model_of: the model of every (row, seed).
    """

    study: Study
    data: Path
    models: list[Wanted]
    cells: list[Cell]
    model_of: dict[tuple[str, int], Wanted]

    @property
    def missing(self) -> tuple[list[Wanted], list[Cell]]:
        """The models and the cells that are not in the cache."""
        done = {model.key for model in self.models if model.result() is not None}
        left = {cell.key: cell for cell in self.cells if cell.result() is None}
        return [model for model in self.models if model.key not in done], list(left.values())


def work_of(study: Study, cache: Path) -> Work:
    """Prepares the corpus and determines the jobs. Reads every file of every task, so that errors are raised before
    hours are spent.

    Raises:
        InputError, DataError: a file or an option is not valid.
    """
    cache = cache.resolve()
    for row, task in itertools.product(study.rows, study.tasks):
        asked = study.task_of(row, task)
        for path in (asked.train, asked.dev):
            if path is not None:
                study.file(path)
    data = corpus.prepared(study, cache)
    models, found, model_of = [], [], {}
    for seed, row in itertools.product(study.seeds, study.rows):
        model = model_of[row.name, seed] = pretrained.wanted(study, row, seed, data, cache)
        models.append(model)
        step = pretrained.step_at(model.config, row.at)
        found += [cells.cell(study, row, task, seed, model, step, cache) for task in study.tasks]
    models = pretrained.merged(models)
    by_key = {model.key: model for model in models}
    for cell in {(cell.task.column, cell.task.features): cell for cell in found}.values():
        cells.rows_of(cell)
    for cell in found:
        fits.check(cell)
    left = {
        (str(replace(cell.task, features=None, feature_units=None)), cell.task.features is None, cell.model.name): cell
        for cell in reversed(found)
        if cell.result() is None
    }
    tokenizer = load_tokenizer(data)
    for cell in left.values():
        fits.check_lengths(cell, tokenizer)
    return Work(study, data, models, found, {place: by_key[model.key] for place, model in model_of.items()})


def together(works: Sequence[Work]) -> list[Work]:
    """Combines studies that share a cache and run one after another: the first that needs a model keeps its weights
    after all steps that later studies need, which otherwise would have to pre-train it again."""
    by_key = {model.key: model for model in pretrained.merged([model for work in works for model in work.models])}
    return [
        replace(
            work,
            models=[by_key[model.key] for model in work.models],
            model_of={place: by_key[model.key] for place, model in work.model_of.items()},
        )
        for work in works
    ]


def execute(
    work: Work,
    *,
    jobs: int = 1,
    threads: int = 1,
    say: Callable[[str], None] = print,
    begins: Callable[[str], None] = lambda name: None,
) -> None:
    """Computes the missing results.

    Args:
        work: the study's jobs.
        jobs: how many run at the same time, each in its own process; GPUs are assigned to the processes in turn.
        threads: the threads of each. The bits of results do not depend on ``jobs``, but may depend on ``threads``.
        say: called with a line when a job is finished.
        begins: called with the name of a job, with its row, when it begins.

    Raises:
        KeyboardInterrupt, SystemExit: a signal came; finished results are kept, and a pre-training has saved a
            checkpoint.
    """
    left = _Left(*work.missing)
    total = len(left)
    if not total:
        return
    counter = itertools.count(1)

    def told(line: str) -> None:
        say(f"[{next(counter)}/{total}] {line}")

    def begun(job: Wanted | Cell) -> None:
        begins(_name(job, work))

    with removed_on_sigterm():
        if jobs == 1:
            with with_threads(threads):
                _in_turn(left, begun, told)
        else:
            _side_by_side(left, min(jobs, total), threads, begun, told)


def _name(job: Wanted | Cell, work: Work) -> str:
    """The name of a job, with its row; several rows may share a pre-training."""
    if isinstance(job, Cell):
        return f"{job.row} on {job.task.column}, seed {job.seed}"
    first, *others = dict.fromkeys(row for (row, _), model in work.model_of.items() if model.key == job.key)
    rows = f"{first} and {counted(len(others), 'other row')}" if others else first
    return f"{rows}: pre-training {job.name}, seed {job.config.seed}"


class _Left:
    """The jobs that are left. Cells whose model is made come first, so that an interruption leaves complete seeds."""

    def __init__(self, models: Sequence[Wanted], cells: Sequence[Cell]) -> None:
        self._models, self._cells = list(models), list(cells)
        self._unmade = {model.key for model in models}

    def __len__(self) -> int:
        return len(self._models) + len(self._cells)

    def take(self) -> Wanted | Cell | None:
        """Removes and returns the next job that can be done now; None if there is none."""
        for place, cell in enumerate(self._cells):
            if cell.model.key not in self._unmade:
                return self._cells.pop(place)
        return self._models.pop(0) if self._models else None

    def done(self, job: Wanted | Cell) -> None:
        """To be called when a job is done; after a model, its cells can be done."""
        self._unmade.discard(job.key)


def _in_turn(left: _Left, begun: Callable[[Wanted | Cell], None], told: Callable[[str], None]) -> None:
    while (job := left.take()) is not None:
        begun(job)
        told(_line(job, _make(job)))
        left.done(job)


def _side_by_side(
    left: _Left, jobs: int, threads: int, begun: Callable[[Wanted | Cell], None], told: Callable[[str], None]
) -> None:
    context = multiprocessing.get_context("spawn")  # torch's threads and CUDA do not survive a fork
    numbers, started = context.Queue(), context.Queue()
    ends = context.RawValue("b", 0)  # without a lock, which a killed process would keep
    for number in range(jobs):
        numbers.put(number)
    pool = ProcessPoolExecutor(jobs, context, _initialise, (threads, numbers, started, ends))
    running: dict[Future, Wanted | Cell] = {}
    try:
        while left or running:
            while len(running) < jobs and (job := left.take()) is not None:
                with held_signals():  # it starts processes, and a submitted job must be recorded as running
                    running[pool.submit(_do, job)] = job
                begun(job)
            # With a timeout: a signal that is delivered to another thread does not wake this one, which handles it.
            done, _ = concurrent.futures.wait(running, 1.0, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                job = running.pop(future)
                told(_line(job, future.result()))
                left.done(job)
    except BrokenProcessPool:
        raise DataError("a process of the study was killed (out of memory?); the same command continues") from None
    finally:
        if running:  # they save and end, even if only this process got the signal
            ends.value = 1  # for a process that was only just started, which reads this before its first job
            _interrupt(started)
        pool.shutdown(wait=True, cancel_futures=True)


def _interrupt(started) -> None:
    """Sends SIGINT to the processes whose ids are in a queue."""
    with contextlib.suppress(queue.Empty):
        while True:
            with contextlib.suppress(ProcessLookupError):
                os.kill(started.get(timeout=0.1), signal.SIGINT)


def _do(job: Wanted | Cell) -> dict:
    """Runs a job in a worker process. A signal ends the job; a process without one is ended by the pool."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _ends is not None and _ends.value:
            raise KeyboardInterrupt
        with removed_on_sigterm():
            return _make(job)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _make(job: Wanted | Cell) -> dict:
    from ..train.engine import TrainingDiverged

    try:
        return cells.compute(job) if isinstance(job, Cell) else pretrained.make(job)
    except TrainingDiverged as error:  # the engine does not know which of a study's trainings it is
        what = f"{job.row} on {job.task.column}, seed {job.seed}" if isinstance(job, Cell) else job.sentence_name
        raise TrainingDiverged(f"{what}: {error}") from error


# In a worker process: a shared value, which is not zero when the study ends.
_ends = None


def _initialise(threads: int, numbers, started, ends) -> None:
    """Prepares a worker process: sets its threads and its GPU, and lets it end with the parent."""
    global _ends
    _ends = ends
    obey_the_parent(terminable=True)  # `_do` saves the job in progress
    import torch

    number = numbers.get()
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    started.put(os.getpid())


@contextlib.contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Sets torch's number of threads in the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _line(job: Wanted | Cell, result: dict) -> str:
    """A line about the result of a job."""
    seconds = result["measured"]["seconds"]
    if isinstance(job, Cell):
        value = result["metrics"][job.metric]
        return f"{job.row} on {job.task.column}, seed {job.seed}: {job.metric} {value:.4f} in {seconds:.0f} s"
    rate = result["tokens"] / max(seconds, 1e-9)
    line = (
        f"pre-trained {job.name}, seed {job.config.seed}: {result['tokens']:,} tokens in {seconds:.0f} s, "
        f"{rate:,.0f} a second"
    )
    held = result["heldout"]
    if not held:
        return line
    if not predicts_words(job.config):
        return f"{line}; held-out next sentence {100 * held['nsp_acc']:.1f} %"
    return f"{line}; held-out loss {held['mlm_loss']:.3f}, unigram entropy {held['unigram_entropy']:.3f}"
