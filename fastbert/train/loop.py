"""The loop of a pre-training run: steps, printed lines, evaluations, checkpoints, and an orderly end."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..data.pretraining import PretrainingData
from ..errors import InputError
from ..packing import PackedBatch
from ..signals import StopRequest
from ..wording import counted
from . import engines, flops, graph, phases
from .batch_source import BatchSource, of_phase
from .best_model import write_model
from .config import PretrainConfig
from .console import Console
from .distributed import World
from .evaluation import evaluate
from .metrics import MetricsLog, NoLog
from .optimizers import make_optimizer
from .result import PretrainResult
from .run_clock import RunClock
from .run_report import NUMBERS, write_pages
from .saving import RunCheckpoints
from .spikes import SpikeRule
from .stall import StallWatch
from .step_rows import StepRows
from .wandb_log import WandbLog
from .window import Window, memory_mib

# If a run has a number of steps besides max_minutes, the clock only counts from this share of its time on: the first
# steps of a process are slow, and a run that only they put behind the clock would differ from others of its seed.
_CLOCK_COUNTS_FROM = 0.05


class PretrainLoop:
    """One run. ``checkpoints.restore`` before `run` continues from a checkpoint.

    A step's gradient is that of one batch holding all its micro-batches: each micro-batch's mean losses are weighted by
    its share of the step's labelled tokens and pairs.

    Args:
        config: the recipe.
        model: on its device; trained in place.
        data, heldout: the training samples, and the held-out ones, if there are any.
        run_dir: where everything is written.
        console: prints the lines.
        callbacks: called with every row of metrics.jsonl.
        world: this process among those of the run; None if there is only this one.
        deepspeed: a configuration (`engines.deepspeed_config.configuration`), to train under DeepSpeed.
    """

    def __init__(
        self,
        config: PretrainConfig,
        model: torch.nn.Module,
        data: PretrainingData,
        heldout: PretrainingData | None,
        run_dir: Path,
        console: Console,
        callbacks: Sequence[Callable[[dict], None]] = (),
        world: World | None = None,
        deepspeed: dict | None = None,
    ) -> None:
        self.config, self.model = config, model
        model.last_layer = config.last_layer
        if config.activation_checkpointing:
            model.gradient_checkpointing_enable()
        self.run_dir, self.console, self.callbacks = run_dir, console, callbacks
        no_pairs = getattr(model, "next_sentence", True) and not data.config.nsp
        idle = model.next_sentence_parameters if no_pairs else []
        if not no_pairs:
            model.untrained = frozenset()  # it may come from a run without pairs
        self.optimizer = make_optimizer(config, model, idle)
        self.num_parameters = model.num_parameters()  # before an engine shards them
        options = {"precision": config.precision, "clip": config.clip, "seed": config.seed, "deepspeed": deepspeed}
        self.engine = engines.make(model, self.optimizer, world or World(), idle=idle, **options)
        self.step, self.tokens = 0, 0
        self.clock = RunClock()
        self.agreed_seconds, self._agreed_stop = 0.0, None
        self.best: dict = {}
        self._run_heldout = heldout
        wanted = graph.wanted_in(config, self.engine)
        self.batches = BatchSource(config, data, self.engine.world, wanted)
        self.shape_batches(wanted)
        dtype = torch.float32 if config.precision == "fp32" else torch.bfloat16
        self.peak = flops.measured_peak(self.engine.device, dtype)
        self.window = Window()
        self._rows = StepRows(None, 0)
        self.spikes = SpikeRule(config.spike_sigma, config.spike_window) if config.spike_sigma else None
        self.checkpoints = RunCheckpoints(self)
        self.evaluated_at: int | None = None

    def shape_batches(self, fixed: bool) -> None:
        """Makes all batches of one shape, or not. An epoch has other batches then, so this begins the run anew."""
        self.fixed_shape = self.batches.fixed_shape = fixed
        self.total_steps = self.batches.steps_of_run()
        self.phases = phases.of_run(self.config, self.total_steps)
        self.enter(self.phases[0])

    def enter(self, phase: phases.RunPhase) -> None:
        """Makes training samples, held-out samples and steps of this phase's size from now on."""
        self.phase = phase
        self.batches.enter(phase)
        self.heldout = None if self._run_heldout is None else of_phase(self._run_heldout, phase)
        self._fixed: graph.StaticStep | None = None

    def _next_batches(self) -> list[PackedBatch]:
        """This rank's micro-batches of the next step."""
        micro = self.batches.next_step()
        for batch in micro:
            self.window.count(batch, self.model.config)
        # A step of fixed shape copies them itself, into the tensors that its graph reads.
        return micro if self.fixed_shape else [batch.to(self.engine.device) for batch in micro]

    def _advance_phase(self) -> None:
        """Enters the next phase if it is due; its data begin with an epoch that no earlier phase has used."""
        phase = phases.at(self.phases, self.progress)
        if phase is not self.phase:
            self.enter(phase)
            self.batches.next_epoch()
            if self.spikes is not None:
                self.spikes.forget()  # samples of another length have other losses
            sizes = f"{self.batches.accumulate} x {phase.token_budget}"
            self.console.say(f"step {self.step}: {phase.name}, {sizes} tokens a step")

    @property
    def seconds(self) -> float:
        """Seconds of training, across resumes; on several ranks, those of rank 0 at the start of the last step."""
        return self.clock.seconds if self.engine.world.size == 1 else self.agreed_seconds

    @property
    def progress(self) -> float:
        """How much of the training is done, 0 to 1, which the schedule follows."""
        done, total = self.step, self.total_steps
        if self.config.epochs is not None:
            # By micro-batches: after a resume on another number of ranks, a step has another number of them.
            done, total = self.engine.micro_step, total * self.batches.accumulate * self.engine.world.size
        by_steps = done / total if total else 0.0
        minutes = self.config.max_minutes
        by_clock = self.seconds / (60 * minutes) if minutes else 0.0
        if total and by_clock < _CLOCK_COUNTS_FROM:
            return min(by_steps, 1.0)
        return min(max(by_steps, by_clock), 1.0)

    def run(self) -> PretrainResult:
        """Trains to the end, or to a signal."""
        if self.total_steps == 1 and not phases.learning_rate(self.config, self.phase, 0.0):
            self.console.say("the only step is the first of the warm-up, at rate 0: no weight changes (add --warmup 0)")
        stopped = None
        self.model.train()
        log = self._open_log()
        watch = StallWatch(self.run_dir, self.config.stall_minutes, self.engine.world.rank)
        with StopRequest() as stop, log, self.console, watch, self.checkpoints:
            self.clock.start()  # after the log is open: TensorBoard imports TensorFlow if installed, for many seconds
            self._log, self._stop = log, stop
            self._rows = StepRows(self.run_dir / "steps.jsonl" if self.engine.world.first else None, self.step)
            self._rows.begin(self.window)
            self._train(watch)
            stopped = self._stop_signal()
            paths = self._finish(stopped)
            history = log.rows()
        return PretrainResult(
            run_dir=self.run_dir,
            model_dir=self.run_dir / "model",
            steps=self.step,
            seconds=self.seconds,
            tokens=self.tokens,
            history=history,
            heldout=dict(self.best),
            interrupted=stopped,
            paths=paths,
            processor_seconds=self.clock.processor_seconds,
            late_signal=stop.asked if stopped is None else None,
        )

    def _train(self, watch: StallWatch) -> None:
        """All steps, with the evaluations and checkpoints between them, up to the end or a signal."""
        if self._evaluation_is_due:
            self._evaluate()
        if self.step and self.progress >= 1.0:
            self.console.say(f"nothing is left to train: the run has its {counted(self.step, 'step')}")
        while self.progress < 1.0 and not self._stop_signal():
            self.train_step()
            if self._agreed_stop is not None:  # before that step, so it was not made
                return
            watch.alive()
            # The last evaluation comes before the last checkpoint, which records the best model.
            if self.step % self.config.eval_every == 0 or self.progress >= 1.0:
                self._evaluate()
            if self.step % self.config.save_every == 0:
                self.checkpoints.save()
            self.checkpoints.check()

    def _finish(self, stopped: str | None) -> list[Path]:
        """The last evaluation, unless a signal has stopped the run, the last checkpoint and the pages; returns the
        paths that this rank has written."""
        if not self.step and stopped is None:
            raise InputError(
                f"max_minutes must leave time for a step, got {self.config.max_minutes:g}: the time was over "
                "before the first step, so nothing was trained"
            )
        if (
            stopped is None
            and self.step == 1 != self.total_steps
            and not phases.learning_rate(self.config, self.phase, 0.0)
        ):
            self.console.say("the time left one step, the first of the warm-up, at rate 0: no weight changes")
        if stopped is None and self.evaluated_at != self.step:
            self._evaluate()
        # Now, and not when garbage is collected: this loop is in reference cycles.
        self._fixed = None  # frees the graph's memory
        self.batches.end_workers()
        self.checkpoints.finish()
        if not self.best:
            self._write_model()
        if not self.engine.world.first:
            return []
        return write_pages(self.run_dir, self.config, self._log.rows(), self.best)

    def _open_log(self) -> MetricsLog | NoLog:
        if not self.engine.world.first:
            return NoLog()
        wandb = WandbLog(self.config.wandb, self.run_dir, dataclasses.asdict(self.config))
        again = ("heldout",) if self._evaluation_is_due else ()
        return MetricsLog(self.run_dir, self.step or None, wandb, again=again, numbers=NUMBERS)

    @property
    def _evaluation_is_due(self) -> bool:
        """Whether a resumed run has yet to evaluate at its step, because a signal interrupted that evaluation."""
        return bool(self.step) and self.step % self.config.eval_every == 0 and self.evaluated_at != self.step

    def train_step(self) -> None:
        """Makes one step and adds its row for steps.jsonl; reports if a line is due.

        Several ranks make no step if one of them has been asked to stop: a launcher that has passed the signal on kills
        them after some seconds, in which they have yet to save.
        """
        self._advance_phase()
        window, before, place = self.window, self.window.copy(), self.batches.place
        self.engine.timer.begin_step()
        began = time.perf_counter()
        micro = self._next_batches()
        window.data_seconds += time.perf_counter() - began
        labels, pairs, tokens = self._agree(micro)
        if self._agreed_stop is not None:
            self.window = before
            self.batches.return_to(place)
            return
        lr = phases.learning_rate(self.config, self.phase, self.progress)
        if self.fixed_shape:
            window.grad_norm, window.lr = self._fixed_step(micro, lr), lr
        else:
            losses = [
                self.engine.backward(lambda batch=batch: self._loss(batch, labels, pairs), last=number == len(micro))
                for number, batch in enumerate(micro, 1)
            ]
            # A step that is left out has no norm; the previous step's must not stand in for it.
            window.grad_norm, window.lr = 0.0 if self._is_spike(losses) else self.engine.step(lr), lr
        self.step += 1
        self.tokens += tokens
        window.seconds += time.perf_counter() - began
        window.steps += 1
        self.engine.timer.end_step()
        self._rows.add(self.step, window, **self._state_of_step())
        self.console.advance(self.progress, f"step {self.step}")
        if self.step % self.config.log_every == 0 or self.progress >= self.phase.end:
            self._report()

    def _fixed_step(self, micro: list[PackedBatch], lr: float) -> torch.Tensor:
        """Makes a step of fixed shape; returns the norm of its gradient, () on the device."""
        if self._fixed is None:
            pairs = micro[0].nsp_labels is not None
            shape, accumulate = self.batches.data.shape, self.batches.accumulate
            self._fixed = graph.make(self.engine, shape, pairs=pairs, accumulate=accumulate)
        norm = self._fixed.run(micro, lr)
        self.window.wait_for(self._fixed.take_sums())
        return norm

    def _settle(self) -> None:
        """Waits until the device has done all steps; the wait counts as part of their time."""
        began = time.perf_counter()
        self.engine.settle()
        if self.engine.device.type != "cpu":
            self.window.seconds += time.perf_counter() - began

    def _agree(self, micro: list[PackedBatch]) -> tuple[int, int, int]:
        """Labels, pairs and tokens of this step over all ranks. The ranks also agree on the time and on whether to
        stop: a rank that went by its own clock would leave the others waiting."""
        labels, pairs = sum(batch.num_labels for batch in micro), sum(batch.num_pairs for batch in micro)
        tokens = sum(batch.num_real_tokens for batch in micro)
        if self.engine.world.size == 1:
            return labels, pairs, tokens
        seconds = self.clock.seconds if self.engine.world.first else 0.0
        asked = self._stop.asked is not None
        *counts, self.agreed_seconds, asked = self.engine.reduce([labels, pairs, tokens, seconds, asked])
        if asked:
            self._agreed_stop = self._stop.asked or "a signal to another rank"
        labels, pairs, tokens = map(int, counts)
        return labels, pairs, tokens

    def _stop_signal(self) -> str | None:
        """The name of the signal that ends the run, or None; the same on all ranks, which agreed on it in `_agree`."""
        return self._stop.asked if self.engine.world.size == 1 else self._agreed_stop

    def _poll_stop(self) -> bool:
        """Whether a signal has come, for use between steps; all ranks call it and get the same answer."""
        if self.engine.world.size > 1 and self.engine.reduce([self._stop.asked is not None])[0]:
            self._agreed_stop = self._stop.asked or "a signal to another rank"
        return self._stop_signal() is not None

    def _is_spike(self, losses: list[torch.Tensor]) -> bool:
        """Whether this step is left out because of its loss; the same answer on all ranks."""
        if self.spikes is None:
            return False
        loss, limit = self.engine.reduce([float(sum(losses))])[0], self.spikes.limit
        if not self.spikes.leaves_out(loss):
            return False
        self.engine.leave_out()
        self.console.say(
            f"step {self.step + 1} was left out: its loss {loss:.4g} is over {limit:.4g}, {self.spikes.sigma:g} "
            f"standard deviations above the mean of {self.spikes.window} steps"
        )
        return True

    def _loss(self, batch: PackedBatch, labels: int, pairs: int) -> torch.Tensor:
        """This micro-batch's share of the step's loss."""
        out = self.engine.forward(batch)
        # Without targets the mean loss is 0/0; the sum of no logits is 0 and has a gradient of zeros.
        count = batch.mlm_labels.numel()
        loss = out.mlm_loss * (count / labels) if count else out.mlm_logits.sum()
        if batch.nsp_labels is not None:
            loss = loss + out.nsp_loss * (batch.num_sequences / pairs)
        self.window.add(batch, out, loss)
        return loss

    def _state_of_step(self) -> dict:
        """What a row contains besides the figures of its window."""
        values = {"epoch": self.batches.place[0], "loss_scale": self.engine.loss_scale}
        values |= {"memory_mib": memory_mib(self.engine.device), "skipped_steps": self.engine.skipped}
        if self.spikes is not None:
            values["left_out_steps"] = self.spikes.count
        return values | ({"phase": self.phase.name} if self.phase.name else {})

    def flush_rows(self) -> None:
        """Writes the rows of all steps so far. Called before a checkpoint, so that a resumed run has all of them."""
        self._rows.flush(self.engine, self.peak[0] * self.engine.world.size, self.window)

    def _report(self) -> None:
        self.flush_rows()
        row = Window.over(self.windows()).row(self.peak[0] * self.engine.world.size)
        row |= self._state_of_step()
        self.window = Window()
        self._rows.begin(self.window)
        self._record("train", row)
        self.console.step(self.step, row)

    def windows(self) -> list[Window]:
        """The windows of all ranks, in the order of the ranks."""
        self._settle()
        return [self.window.with_sums(sums) for sums in self.engine.gather(self.window.sums())]

    def _evaluate(self) -> None:
        if self.heldout is None:
            return
        self._settle()
        options = {"max_tokens": self.config.eval_tokens, "engine": self.engine, "stop": self._poll_stop}
        row = evaluate(self.model, self.heldout, **options)
        if row is None:
            return
        self.console.heldout(self.step, row)
        name = {"phase": self.phase.name} if self.phase.name else {}
        self._record("heldout", row | name)
        self.evaluated_at = self.step
        loss = row["mlm_loss"] + row.get("nsp_loss", 0.0)
        # Losses on samples of different lengths cannot be compared: a later phase's model counts as the better one.
        first = not self.best or self.best["phase_index"] != self.phase.index
        better = math.isfinite(loss) and (first or loss < self.best["loss"])
        if better and self.checkpoints.attempt(self._write_model):
            self.best = {**row, "loss": loss, "step": self.step, "phase_index": self.phase.index}
            self.checkpoints.saved_at = None  # a checkpoint of this step does not record this best model yet

    def _record(self, kind: str, row: dict) -> None:
        self._log.log(kind, self.step, **row)
        for callback in self.callbacks:
            callback({"kind": kind, "step": self.step, **row})

    def _write_model(self) -> None:
        with self.engine.whole_weights():
            if self.engine.world.first:
                write_model(self.model, self.run_dir)
