"""One interleaved run: every variant in its own process, each workload in rounds A-B-A-B over all variants.

The order of a workload: the truth is computed; every variant prepares, runs once and is compared with the truth; then
there are rounds, in each of which the machine's own rates are measured and every correct variant takes its turn.
Variants that differ only in how a library is called share its process.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..config import BertConfig
from . import gate, models, workloads
from .peers.probe import peaks
from .pool import VariantFailed, Worker, WorkerDied, available_mb
from .scratch import scratch
from .variants import TRUTH, Variant
from .workloads import Workload

_log = logging.getLogger("fastbert")
_SPARE_MB = 700  # the memory of Python and a library without a model
_ROUND_SECONDS = 0.4  # the least duration of a turn
_MOST_RUNS = 50  # in a turn
# Some libraries emulate a dtype that the processor lacks: OpenVINO's bfloat16 took 80 s where its float32 took 1 s. A
# variant is left out if a run takes longer than this many seconds and this many times the fastest variant's so far.
_SLOW_SECONDS, _SLOW_TIMES = 10.0, 20.0


@dataclass
class SessionPlan:
    """What is run.

    Args:
        kind: "inference" or "training".
        model: one of `models.NAMES`.
        workloads: in order.
        variants: in the order of their turns.
        rounds: the turns of each variant on each workload.
        threads: the number of threads of each variant.
        timeout: the seconds for one answer, which may include compiling.
        config: sizes in place of the model's own.
        truth: the variant that computes the correct results in float64.
        probe: whether to measure the machine itself in every round.
    """

    kind: str
    model: str
    workloads: Sequence[Workload]
    variants: Sequence[Variant]
    rounds: int = 7
    threads: int = 2
    timeout: float = 900.0
    config: BertConfig | None = None
    truth: Variant | None = None
    probe: bool = True


@dataclass
class Row:
    """The result of a variant on a workload.

    Args:
        status: "ok", "wrong", "skipped", "failed" or "crashed"; only "ok" has times.
        reason: the reason for any other status.
        error: as returned by `gate`.
        seconds: those of every timed run.
        rss_mb: the peak memory of its process, weights included; None for a further way to call its library.
    """

    workload: Workload
    variant: Variant
    status: str = "ok"
    reason: str | None = None
    error: dict[str, float] | None = None
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rss_mb: float | None = None

    @property
    def median(self) -> float:
        """The median of the runs' seconds."""
        return statistics.median(self.seconds)

    def fail(self, status: str, reason: str) -> None:
        """Removes the figures of this row and sets the reason."""
        self.status, self.reason, self.seconds = status, reason, []


class Session:
    """Runs a plan.

    Args:
        plan: the plan.
        say: called with lines about the progress.
    """

    def __init__(self, plan: SessionPlan, say: Callable[[str], None] = lambda line: None) -> None:
        self.plan, self.say = plan, say
        self.rows: list[Row] = []
        self.rates: dict[str, list[dict[str, float]]] = {}  # by workload, one per round
        self.trace: list[tuple[str, str]] = []  # (workload, variant) of every turn, in order
        self.load_average: float | None = None  # of the machine before the run
        self._slow: dict[str, tuple[str, str]] = {}  # variants whose runs are not waited for again
        self._prepared: dict[str, tuple[str, str | None]] = {}  # by process: the workload and the way that it is set to
        self._converted: set[tuple[str, str]] = set()  # (adapter, dtype)

    def run(self) -> Session:
        """Runs everything. A variant's failure does not end the run."""
        if hasattr(os, "getloadavg"):
            self.load_average = os.getloadavg()[0]
        with scratch() as self.scratch:
            self.directory = self.scratch / "model"
            self.say(f"{self.plan.kind}: writing the model ({self.plan.model})")
            self.config = models.make_directory(self.plan.model, self.directory, self.plan.config)
            self.batches = {}
            for workload in self.plan.workloads:
                self.batches[workload.name] = self.scratch / f"{workload.name}.npz"
                batch = workloads.make_batch(workload, self.config.vocab_size)
                np.savez(self.batches[workload.name], **batch)
            self._compute_truths()
            workers: dict[str, Worker] = {}
            dead: dict[str, tuple[str, str]] = {}
            try:
                self._start(workers, dead)
                for workload in self.plan.workloads:
                    self._run_workload(workload, workers, dead)
            finally:
                for worker in workers.values():
                    worker.close()
        return self

    def _worker(self, preload: str | None = None) -> Worker:
        return Worker(self.plan.threads, preload, self.scratch / "stderr.txt")

    def _identity(self, variant: Variant) -> dict:
        return {
            "adapter": variant.adapter,
            "directory": str(self.directory),
            "dtype": variant.dtype,
            "threads": self.plan.threads,
        }

    def _compute_truths(self) -> None:
        """Computes the truth of every batch in float64, in a process that ends before the others begin."""
        truth = self.plan.truth or TRUTH[self.plan.kind]
        self.say(f"{self.plan.kind}: computing the truth in float64")
        worker = self._worker()
        try:
            worker.ask("load", self.plan.timeout, **self._identity(truth))
            for name, batch in self.batches.items():
                worker.ask("prepare", self.plan.timeout, batch=str(batch))
                worker.ask("answer", self.plan.timeout, out=str(self.scratch / f"{name}-truth.npz"))
        finally:
            worker.close()

    def _start(self, workers: dict[str, Worker], dead: dict[str, tuple[str, str]]) -> None:
        """Starts a process for the probe and for each variant, which converts and loads the model."""
        if self.plan.probe:
            self._load(Variant("probe", "probe", ".probe:Probe", "fp32"), workers, dead, needed_mb=0)
        weights_mb = sum(f.stat().st_size for f in self.directory.glob("*.safetensors")) / (1 << 20)
        for variant in self.plan.variants:
            if variant.missing:
                dead[variant.name] = "skipped", variant.missing
            if variant.missing or variant.of:
                continue
            self.say(f"{self.plan.kind}: starting {variant.name}")
            self._load(variant, workers, dead, needed_mb=variant.memory * weights_mb + _SPARE_MB)

    def _load(self, variant: Variant, workers: dict, dead: dict, needed_mb: float) -> None:
        free = available_mb()
        if free < needed_mb:
            dead[variant.name] = (
                "skipped",
                f"left out: it needs about {needed_mb / 1024:.1f} GB of memory, {free / 1024:.1f} GB are free "
                "(run fewer at a time: --peers)",
            )
            return
        try:
            if variant.converts and (variant.adapter, variant.dtype) not in self._converted:
                converter = self._worker(variant.preload)
                try:
                    converter.ask("convert", self.plan.timeout, **self._identity(variant))
                finally:
                    converter.close()
                self._converted.add((variant.adapter, variant.dtype))
            workers[variant.name] = worker = self._worker(variant.preload)
            worker.ask("load", self.plan.timeout, **self._identity(variant))
        except VariantFailed as failure:
            dead[variant.name] = "failed", str(failure)
        except WorkerDied as death:
            dead[variant.name] = "crashed", str(death)

    def _run_workload(self, workload: Workload, workers: dict, dead: dict) -> None:
        rows, fastest = [], math.inf
        for variant in [variant for variant in self.plan.variants if variant.runs_on(workload)]:
            row = Row(workload, variant)
            rows.append(row)
            if why := self._slow.get(variant.name) or dead.get(variant.name) or dead.get(variant.process):
                row.fail(*why)
                continue
            self.say(f"{workload.name}: checking {variant.name}")
            found: list[float] = []
            self._guarded(row, dead, lambda row=row, found=found: found.append(self._check(row, workers)))
            if row.status != "ok":
                continue
            if found[0] > max(_SLOW_SECONDS, _SLOW_TIMES * min(fastest, found[0])):  # it may have included compiling
                self._guarded(row, dead, lambda row=row, found=found: found.append(self._run_once(row, workers)))
                if row.status != "ok":
                    continue
            seconds = min(found)
            fastest = min(fastest, seconds)
            if seconds > max(_SLOW_SECONDS, _SLOW_TIMES * fastest):
                reason = f"left out: one run of {workload.name} takes {seconds:.0f} s"
                row.fail("skipped", reason)
                self._slow[variant.name] = "skipped", reason
        turns = {id(row): max(1, self._turn_length(row, workers, dead)) for row in rows if row.status == "ok"}
        self.rates[workload.name] = []
        for number in range(1, self.plan.rounds + 1):
            self.say(f"{workload.name}: round {number} of {self.plan.rounds}")
            self._probe(workload, workers, dead)
            for row in rows:
                if row.status == "ok":
                    turn = turns[id(row)]
                    self._guarded(row, dead, lambda row=row, turn=turn: self._turn(row, workers, turn))
        for row in rows:
            if row.status == "ok":
                self._guarded(row, dead, lambda row=row: self._finish(row, workers[row.variant.process]))
        self.rows += rows

    def _guarded(self, row: Row, dead: dict, action: Callable[[], None]) -> None:
        """Runs a step of a variant. A failure only affects its row; if the process dies, its later rows fail too."""
        if row.variant.process in dead:
            row.fail(*dead[row.variant.process])
            return
        try:
            action()
        except VariantFailed as failure:
            row.fail("failed", str(failure))
        except WorkerDied as death:
            row.fail("crashed", str(death))
            dead[row.variant.process] = "crashed", str(death)

    def _check(self, row: Row, workers: dict[str, Worker]) -> float:
        """Prepares the batch, runs it once and compares; a wrong variant gets no turns. Returns that run's seconds."""
        name, out, worker = row.workload.name, self.scratch / "answer.npz", workers[row.variant.process]
        self._prepare(row, worker)
        start = time.monotonic()
        worker.ask("answer", self.plan.timeout, out=str(out))
        seconds = time.monotonic() - start
        with np.load(out) as got, np.load(self.scratch / f"{name}-truth.npz") as true:
            if self.plan.kind == "inference":
                with np.load(self.batches[name]) as batch:
                    row.error = gate.hidden_error(got["hidden"], true["hidden"], batch["attention_mask"])
            else:
                row.error = gate.training_error(dict(got), dict(true))
        largest = gate.limit(self.plan.kind, row.variant.dtype)
        if not row.error["relative"] <= largest:
            row.fail("wrong", f"wrong: relative error {row.error['relative']:.2g}, allowed {largest:g}")
        return seconds

    def _turn_length(self, row: Row, workers: dict, dead: dict) -> int:
        """The number of runs in a turn, from one untimed run: a turn lasts just long enough to be timed."""
        found: list[float] = []
        self._guarded(row, dead, lambda: found.append(self._run_once(row, workers, warm=1)))
        seconds = found[0] if found else math.inf
        return min(_MOST_RUNS, math.ceil(_ROUND_SECONDS / max(seconds, 1e-6))) if math.isfinite(seconds) else 1

    def _prepare(self, row: Row, worker: Worker) -> bool:
        """Sets the process of a row to its batch and way; False if it is."""
        wanted = row.workload.name, row.variant.way
        if self._prepared.get(row.variant.process) == wanted:
            return False
        self._prepared.pop(row.variant.process, None)  # a library that refuses the batch is left as set to neither
        worker.ask("prepare", self.plan.timeout, batch=str(self.batches[wanted[0]]), way=wanted[1])
        self._prepared[row.variant.process] = wanted
        return True

    def _run_once(self, row: Row, workers: dict, warm: int = 0) -> float:
        worker = workers[row.variant.process]
        self._prepare(row, worker)
        answer = worker.ask("run", self.plan.timeout, times=1, warm=warm)
        row.losses += [loss for loss in answer["losses"] if loss is not None]
        return answer["seconds"][0]

    def _turn(self, row: Row, workers: dict, times: int) -> None:
        self.trace.append((row.workload.name, row.variant.name))
        worker = workers[row.variant.process]
        switched = self._prepare(row, worker)
        # At the beginning of a turn the caches are full of the others' data, which matters for short runs; and a
        # library that was called in another way before may have to allocate anew.
        answer = worker.ask("run", self.plan.timeout, times=times, warm=int(times > 1 or switched))
        row.seconds += answer["seconds"]
        row.losses += [loss for loss in answer["losses"] if loss is not None]

    def _probe(self, workload: Workload, workers: dict, dead: dict) -> None:
        if "probe" not in workers or "probe" in dead:
            return
        try:
            self.rates[workload.name].append(workers["probe"].ask("rates", self.plan.timeout)["rates"])
        except (VariantFailed, WorkerDied) as failure:
            _log.warning("the machine's own rates cannot be measured: %s", failure)
            dead["probe"] = "failed", str(failure)

    def _finish(self, row: Row, worker: Worker) -> None:
        if row.variant.of is None:
            row.rss_mb = worker.ask("peak", self.plan.timeout)["mb"]
        if self.plan.kind == "training":
            first, last = row.losses[0], row.losses[-1]
            if not last < first:
                row.fail("wrong", f"wrong: the loss went from {first:.4g} to {last:.4g} on one batch")

    def peak_rates(self, workload: str) -> dict[str, float]:
        """GFLOP/s by dtype, medians over the rounds of a workload; empty without a probe."""
        rounds = self.rates.get(workload, [])
        if not rounds:
            return {}
        return peaks({name: statistics.median(rates[name] for rates in rounds) for name in rounds[0]})
