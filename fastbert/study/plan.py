"""The plan of a study before it runs: tokens and time of each row and in total, from rates measured on this machine."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data.tokenizer import load_tokenizer
from ..train import phases
from ..train import plan as of_run
from ..train.config import PretrainConfig
from ..train.model_and_data import model_settings, open_data
from ..wording import counted, duration
from . import cells
from .cells import Cell
from .pretrained import Wanted
from .run import Work

# A forward pass has a third of the arithmetic of a training step.
_FORWARD = 1 / 3
_LSTM_SECONDS = 1.0
_UNITS = 768  # the default units of a BiLSTM
_STATIC_RATE = 100_000.0  # roughly the tokens a second of word2vec on a core of 2026; it takes only seconds


@dataclass(frozen=True)
class Part:
    """Some work: tokens and seconds, and the seconds of it that are already in the cache."""

    tokens: float = 0.0
    seconds: float = 0.0
    seconds_done: float = 0.0

    def __add__(self, other: Part) -> Part:
        return Part(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclass(frozen=True)
class RowPlan:
    """A row over all seeds, without work that an earlier row needs too and that is counted there."""

    name: str
    model: str
    rate: float
    pretraining: Part
    finetuning: Part
    shared: bool


def make_plan(work: Work, rate_of=None, seen: set[str] | None = None) -> list[RowPlan]:
    """Plans the rows of a study.

    Args:
        work: the study's models and cells.
        rate_of: gives the tokens a second of a pre-training (`Wanted`) in one process; by default they are measured, by
            a few steps for each size and objective.
        seen: the keys of models and cells that were counted before; those counted here are added.
    """
    rate_of, seen = rate_of or _Measured(), set() if seen is None else seen
    plans = []
    for row in work.study.rows:
        wanted = [work.model_of[row.name, seed] for seed in work.study.seeds]
        rate = rate_of(wanted[0]) if wanted[0].static is None else _STATIC_RATE
        models = [model for model in wanted if model.key not in seen]
        own = [cell for cell in work.cells if cell.row == row.name and cell.key not in seen]
        seen |= {model.key for model in models} | {cell.key for cell in own}
        pretraining = sum((_pretraining(model, rate) for model in models), Part())
        finetuning = sum((_finetuning(cell, rate, work.data) for cell in own), Part())
        plans.append(RowPlan(row.name, wanted[0].name, rate, pretraining, finetuning, not models))
    return plans


def text(works: Sequence[Work], jobs: int, rate_of=None) -> str:
    """The plan of studies that share a cache, as text."""
    rate_of, seen, lines, total = rate_of or _Measured(), set(), [], Part()
    for work in works:
        plans = make_plan(work, rate_of, seen)
        own = sum((plan.pretraining + plan.finetuning for plan in plans), Part())
        lines += [*_study_lines(work, plans), f"{own.tokens / 1e6:,.1f} M tokens, {duration(own.seconds)}", ""]
        total += own
    if len(works) > 1:
        lines.append(f"{len(works)} studies: {total.tokens / 1e6:,.1f} M tokens, {duration(total.seconds)}")
    if total.seconds_done:
        lines.append(f"{duration(total.seconds_done)} of it are done and in the cache")
    left = duration((total.seconds - total.seconds_done) / jobs)
    return "\n".join(
        [
            *lines,
            f"{left} to go with {jobs} at the same time" + (" (--jobs N: side by side)" if jobs == 1 else ""),
            "times are those of one process that computes alone, at rates measured here; fine-tuning is taken at the "
            "rate of pre-training",
        ]
    )


def _study_lines(work: Work, plans: Sequence[RowPlan]) -> list[str]:
    study, width = work.study, max(len(plan.name) for plan in plans)
    cells = len({cell.key for cell in work.cells})
    lines = [
        f"study {study.name} at scale {study.scale}: {counted(len(study.rows), 'row')} x "
        f"{counted(len(study.tasks), 'task')} x {counted(len(study.seeds), 'seed')}; "
        f"{counted(len(work.models), 'pre-training')} and {counted(cells, 'fine-tuning')}",
        f"{'row':<{width}}  {'model':>12}  {'tokens/s':>9}  {'pre-training':>26}  {'fine-tuning':>26}",
    ]
    for plan in plans:
        pre = "counted above" if plan.shared else _part(plan.pretraining)
        lines.append(
            f"{plan.name:<{width}}  {plan.model:>12}  {plan.rate:>9,.0f}  {pre:>26}  {_part(plan.finetuning):>26}"
        )
    return lines


def _part(part: Part) -> str:
    return f"{part.tokens / 1e6:,.1f} M, {duration(part.seconds)}"


def _pretraining(model: Wanted, rate: float) -> Part:
    config = model.config
    data, _ = _data(config)
    _, each = phases.mean_micro_batch(data, config.token_budget)
    tokens = config.steps * config.accumulate * each
    evaluations = config.steps // config.eval_every + 1
    seconds = (tokens + evaluations * config.eval_tokens * _FORWARD) / rate
    return Part(tokens, seconds, seconds if model.result() is not None else 0.0)


def _data(config):
    # The lengths of samples depend on neither option, and making samples for each would take most of a plan's time.
    return _open(config.data, dataclasses.replace(config.samples, seed=0, mask_mix=(0.8, 0.1, 0.1)))


@functools.lru_cache(maxsize=8)
def _open(directory: str, samples):
    return open_data(PretrainConfig(data=directory, samples=samples))


def _finetuning(cell: Cell, rate: float, data: Path) -> Part:
    config = cell.task.config(cell.seed)
    train, dev = _tokens(cell, data)
    trained, looked_at = train * config.epochs, dev * (config.epochs + 1)
    if cell.task.features is None:
        seconds = (trained + looked_at * _FORWARD) / rate
    else:
        lstm = _lstm_rate(*_lstm_sizes(cell))
        seconds = (train + dev) * _FORWARD / rate + (trained + looked_at * _FORWARD) / lstm
    return Part(trained, seconds, seconds if cell.result() is not None else 0.0)


_known_tokens: dict[tuple, tuple[int, int]] = {}


def _tokens(cell: Cell, data: Path) -> tuple[int, int]:
    """The tokens of the training and of the dev rows of a cell, with the study's own vocabulary."""
    spec, config = cell.task, cell.task.config(cell.seed)
    place = (spec.task, cell.train, cell.dev, spec.dev_share, spec.train_rows, spec.dev_rows, data)
    place += (config.max_seqlen, cells.task_options(config))
    if place not in _known_tokens:
        task, train, dev = cells.rows_of(cell)
        tokenizer = load_tokenizer(data)
        _known_tokens[place] = tuple(
            sum(example.num_tokens for example in task.encode(rows, tokenizer, config.max_seqlen))
            for rows in (train, dev)
        )
    return _known_tokens[place]


def _lstm_sizes(cell: Cell) -> tuple[int, int]:
    """The size of a feature vector, and the units of the BiLSTM in each direction."""
    from ..train.word2vec import Word2VecConfig

    static = cell.model.static
    if static is None:
        _, settings = model_settings(cell.model.config, None)
        hidden = settings.hidden_size
    else:
        hidden = static.get("size", Word2VecConfig.size)
    return hidden * (4 if cell.task.features == "last4-concat" else 1), cell.task.feature_units or _UNITS


@functools.cache
def _lstm_rate(width: int, units: int) -> float:
    """The tokens a second of a training step of the tagger's BiLSTM, with sentences of 16 words."""
    lstm = torch.nn.LSTM(width, units, num_layers=2, bidirectional=True)
    batch = torch.randn(16, 32, width)
    lstm(batch)[0].sum().backward()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < _LSTM_SECONDS:
        lstm(batch)[0].sum().backward()
        steps += 1
    return steps * 16 * 32 / (time.perf_counter() - began)


class _Measured:
    """Measured rates, one for all pre-trainings of the same size and kind of samples."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def __call__(self, model: Wanted) -> float:
        data, _ = _data(model.config)
        like = f"{model.config.model} {model.config.token_budget} {data.config}"
        if like not in self._known:
            planned = of_run.make_plan(model.config, data=data, throughput="measure")
            self._known[like] = planned.rates[0]
        return self._known[like]
