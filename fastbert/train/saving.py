"""The checkpoints of a pre-training run: what they contain, when they are written, and how a run resumes from one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError
from . import arithmetic, checkpoint, distributed, graph
from .background_save import BackgroundSave
from .best_model import has_model
from .window import Window

if TYPE_CHECKING:
    from .loop import PretrainLoop


class RunCheckpoints:
    """Saves and restores a `PretrainLoop`; all ranks call these methods, and the first one writes.

    With ``config.async_save`` training only waits for a copy of the tensors. With ``config.save_errors`` "continue" a
    checkpoint that cannot be written is reported and training continues; but the last one of a run has to be written,
    since otherwise nothing would be left of the run.

    Args:
        loop: the run.

    Attributes:
        saved_at: the step of the last checkpoint, written or under way; None if there is none.
    """

    def __init__(self, loop: PretrainLoop) -> None:
        self._loop, self._background = loop, BackgroundSave()
        self.saved_at: int | None = None

    def save(self, *, last: bool = False) -> None:
        """Writes a checkpoint of the current step, or starts to with ``config.async_save``.

        Args:
            last: whether it is the last of the run: it is written at once, and an error ends the run in any case.

        Raises:
            CheckpointError: it, or the one before it, cannot be written, and errors end the run.
        """
        loop = self._loop
        loop.flush_rows()
        tensors, engine_state = loop.engine.state()
        state = self._state() | engine_state
        with loop.engine.writing() as more:
            self._write(tensors, state, last, more)

    def _write(self, tensors: dict, state: dict, last: bool, more: Callable[[Path], None] | None) -> None:
        loop = self._loop
        if not loop.engine.world.first:
            self.saved_at = loop.step
            return
        options = {"keep": loop.config.keep, "protect": [loop.best["step"]] if loop.best else []}
        options |= {"world_size": loop.engine.world.size, "launch": distributed.launch()}
        directory = loop.run_dir / "checkpoints"

        def write() -> None:
            if loop.config.async_save and not last:
                self._background.submit(directory, loop.step, tensors, state, **options)
            else:
                checkpoint.save(directory, loop.step, tensors, state, more=more, **options)
            self.saved_at = loop.step

        self._try(self._background.wait)
        self._try(write, last=last)

    def check(self) -> None:
        """Called after every step, to raise an error of a save in the background, as `save` does."""
        self._try(self._background.check)

    def finish(self) -> None:
        """Waits for a save under way, and writes a checkpoint if the last step has none. Raises as `save`."""
        self._try(self._background.wait)
        if self._any(self.saved_at != self._loop.step):
            self.save(last=True)

    def _any(self, here: bool) -> bool:
        """Whether it is true on any rank, so that all ranks decide alike."""
        return self._loop.engine.reduce([here])[0] > 0

    def attempt(self, write: Callable[[], None]) -> bool:
        """Calls ``write``; returns False if it raised CheckpointError on any rank and errors do not end the run."""
        return not self._any(not self._try(write))

    def _try(self, write: Callable[[], None], *, last: bool = False) -> bool:
        """Calls ``write``; returns whether it succeeded.

        Args:
            last: whether an error ends the run in any case.

        Raises:
            CheckpointError: the one that ``write`` raised, if errors end the run; otherwise it is printed.
        """
        try:
            write()
        except CheckpointError as error:
            self.saved_at = None
            if last or self._loop.config.save_errors == "stop":
                raise
            self._loop.console.say(f"training goes on without it: {error}")
            return False
        return True

    def __enter__(self) -> RunCheckpoints:
        return self

    def __exit__(self, *_exception) -> None:
        """Waits for a save under way, however the run ended. A failure is only printed: it must not hide the error that
        ended the run."""
        try:
            self._background.wait()
        except CheckpointError as error:
            self._loop.console.say(str(error))

    def _state(self) -> dict:
        loop = self._loop
        return {
            "step": loop.step,
            "tokens": loop.tokens,
            "phase": loop.phase.index,
            "place": list(loop.batches.place),
            "seconds": loop.seconds,
            "processor_seconds": loop.clock.processor_seconds,
            "best": loop.best,
            "evaluated_at": loop.evaluated_at,
            "windows": [window.state() for window in loop.windows()],
            "spikes": loop.spikes.state() if loop.spikes else None,
            "tokenizer_sha256": loop.batches.data.shards.manifest.tokenizer_sha256,
            "order": self._order(),
            "optimizer_name": loop.config.optimizer,
            "num_attention_heads": _heads(loop),
            "computed_with": arithmetic.computed_with(loop.engine.world),
        }

    def restore(self, path: Path) -> None:
        """Resumes from a checkpoint.

        Raises:
            CheckpointError: it is damaged, or its model, optimiser, vocabulary, phases or order of batches are not
                those of this run.
        """
        loop = self._loop
        tensors, state, _ = checkpoint.load(path)
        if "tokenizer_sha256" not in state:
            raise CheckpointError(f"{path}: expected a checkpoint of fastbert pretrain, got one of fastbert finetune")
        expected = loop.batches.data.shards.manifest.tokenizer_sha256
        if state["tokenizer_sha256"] != expected:
            raise CheckpointError(
                f"{path}: was trained with another tokenizer (SHA-256 {state['tokenizer_sha256'][:12]}, the data's is "
                f"{expected[:12]})"
            )
        if state["optimizer_name"] != loop.config.optimizer:
            raise CheckpointError(
                f"{path}: expected the optimiser that it was trained with, {state['optimizer_name']}, whose moments it "
                f"holds, got {loop.config.optimizer}; to change it, start a new run from its model"
            )
        heads = state["num_attention_heads"]
        if heads != _heads(loop):  # the shapes of the weights do not show it
            raise CheckpointError(
                f"{path}: expected a model of {heads} attention heads, as it was trained, got one of {_heads(loop)}"
            )
        # On several processes steps are not captured: a run that began there goes on as it began.
        unpadded = loop.fixed_shape and loop.config.cuda_graph == "auto" and "cuda_graph" not in state["order"]
        if unpadded:
            loop.shape_batches(False)
        if not state["phase"] < len(loop.phases):
            raise CheckpointError(
                f"{path}: is of phase {state['phase'] + 1} of its run, and this run has {len(loop.phases)}"
            )
        loop.enter(loop.phases[state["phase"]])
        self._check_order(path, state["order"])
        if unpadded:
            loop.console.say(f"{path}: its batches have any shape, and so will those to come, without a CUDA graph")
        loop.engine.restore(path, tensors, state)
        world = loop.engine.world
        arithmetic.warn_of_others(path, state["computed_with"], arithmetic.computed_with(world), world)
        loop.step, loop.tokens, loop.batches.place = state["step"], state["tokens"], tuple(state["place"])
        loop.agreed_seconds = state["seconds"]
        loop.clock.go_on(state["seconds"], state["processor_seconds"])
        self.saved_at, loop.evaluated_at = loop.step, state["evaluated_at"]
        # A line that spans the interruption then has the figures of an uninterrupted run.
        loop.window = Window.of_rank(state["windows"], loop.engine.world.rank, loop.engine.world.size)
        if loop.spikes and state["spikes"]:
            loop.spikes.restore(state["spikes"])
        # The best model so far is not in a new run directory.
        loop.best = distributed.on_first(world, lambda: state["best"] if has_model(loop.run_dir) else {})

    def _order(self) -> dict:
        """What decides which tokens are in which batch; with another order, the saved place in it means nothing."""
        loop = self._loop
        manifest = loop.batches.data.shards.manifest
        digest = manifest.digest("train/")
        samples = {f"samples.{name}": value for name, value in dataclasses.asdict(loop.batches.data.config).items()}
        shape = {"cuda_graph": True} if loop.fixed_shape else {}  # batches of one shape hold other samples
        return json.loads(json.dumps({"data": digest, "token_budget": loop.phase.token_budget, **shape, **samples}))

    def _check_order(self, path: Path, saved: dict) -> None:
        now_all = self._order()
        if saved.get("cuda_graph") != now_all.get("cuda_graph"):
            raise CheckpointError(f"{path}: {self._other_shape()}")
        for name in now_all | saved:
            now = now_all.get(name)
            if saved.get(name) != now:
                raise CheckpointError(
                    f"{path}: expected the {name} that it was trained with, {saved.get(name)!r:.100}, since its place "
                    f"in the data depends on it, got {now!r:.100}; to change it, start a new run from its model"
                )

    def _other_shape(self) -> str:
        """Why a place among batches of one shape means nothing among others, or the reverse, and how to go on."""
        loop = self._loop
        if loop.fixed_shape:
            return (
                "its batches have any shape, got --cuda-graph on, which pads them to one; go on with --cuda-graph "
                "auto, or start a new run from its model"
            )
        return (
            "its batches have one shape, as CUDA graphs need (--cuda-graph on, or auto on one GPU), and those of this "
            f"run would not: {graph.why_not_wanted(loop.config, loop.engine)}; go on with --cuda-graph on, in one "
            "process, or start a new run from its model (with --cuda-graph off it may change its number of processes)"
        )


def _heads(loop: PretrainLoop) -> int | None:
    """The number of attention heads; None for a model without them."""
    return getattr(loop.model.config, "num_attention_heads", None)
