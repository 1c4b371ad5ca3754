"""Pre-training steps of fixed shape, captured in CUDA graphs.

Launching the thousand kernels of a step one by one takes the host longer than a small batch takes the device. If all
batches have one shape (`data.budget`), a step is a constant sequence of kernels on constant addresses, so it can be
captured once and replayed. Everything that changes from step to step is therefore in device memory: the batch, its
share of the step's labels, the seed and offset of dropout, the learning rate, the loss scale, the step counts, the
decision to skip (`engine.update`), and the sums from which log lines are made. The host does not wait for the device
until a line is written.

Without a CUDA device the same functions are called directly instead of replayed, which is how they are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace

import torch
from torch import Tensor

from .. import optim, rng
from ..data.budget import BatchShape, StaticBatch
from ..errors import BackendError, InputError
from ..graph_capture import Replay, on_stream
from ..ops import _dispatch
from ..optim.device import Snapshot, follow_writes
from .capture import Captures, DropoutState
from .config import PretrainConfig
from .engine import LocalEngine

# Steps that run uncaptured first, in which libraries allocate their workspaces and kernels are compiled.
_WARM_UP = 3
STEPS_BEFORE_REPLAYS = _WARM_UP + 1
# Why a model that recomputes its activations is not captured.
RECOMPUTES = "activation_checkpointing reads the generator of the host in the backward pass"


def why_not(engine: LocalEngine) -> str | None:
    """None if the engine's device can capture steps of its model, otherwise the reason, in words."""
    device = engine.device
    if device.type != "cuda":
        return f"CUDA graphs need a CUDA device, got {device}"
    head_dim = getattr(getattr(engine.model, "config", None), "head_dim", 64)  # an ELMo has no heads
    x, q = torch.empty(1, 8, device=device), torch.empty(1, 1, head_dim, device=device)
    bounds = torch.zeros(2, dtype=torch.int32, device=device)
    try:
        of_dropout = _dispatch.choose("dropout", x, rng.Dropout(0.5, 0, 0, 0)).backend
        of_attention = _dispatch.choose("attention", q, q, q, bounds, 1).backend
    except BackendError as error:
        return str(error)
    # Only the Triton kernels read the seed and offset of dropout, and the bounds of sequences, from device memory.
    if of_dropout != "triton":
        return f"dropout of backend {of_dropout} would drop the same elements in all replays"
    if of_attention != "triton":
        return f"attention of backend {of_attention} (heads of {head_dim}) reads the lengths of sequences on the host"
    return None


def wanted_in(config: PretrainConfig, engine: LocalEngine) -> bool:
    """Whether a run has steps of fixed shape.

    Raises:
        InputError: ``cuda_graph: on`` with an option, engine, model or device that does not allow captured steps.
    """
    reason = why_not_wanted(config, engine)
    if config.cuda_graph == "on" and reason is not None:
        raise InputError(f"cuda_graph: on is not possible: {reason}")
    return reason is None


def why_not_wanted(config: PretrainConfig, engine: LocalEngine) -> str | None:
    """None if a run has steps of fixed shape, otherwise the reason, in words; for ``on``, why it cannot have them."""
    if config.cuda_graph == "off":
        return "cuda_graph is off"
    reason = _option_in_the_way(config, engine)
    # On a CPU, cuda_graph: on pads the batches all the same.
    if reason is None and (engine.device.type == "cuda" or config.cuda_graph == "auto"):
        reason = why_not(engine)
    return reason


def _option_in_the_way(config: PretrainConfig, engine: LocalEngine) -> str | None:
    if type(engine) is not LocalEngine:
        return "steps of several processes are not captured"
    if config.spike_sigma:
        return "spike_sigma needs the loss of a step before its update"
    if config.activation_checkpointing:
        return RECOMPUTES
    if not getattr(engine.model, "fixed_shapes", True):
        return f"the layers of a {type(engine.model).__name__} read the lengths of sequences on the host"
    return None


class StaticStep:
    """Optimiser steps on batches of one shape, in place of `LocalEngine.backward` and ``step``.

    Args:
        engine: one that decides on the device (`LocalEngine.decide_on_device`).
        shape: the shape of every batch.
        pairs: whether batches have next-sentence labels.
        accumulate: micro-batches per step; if it is 1, the whole step is one graph.
    """

    def __init__(self, engine: LocalEngine, shape: BatchShape, *, pairs: bool = True, accumulate: int = 1) -> None:
        self.engine, self.accumulate = engine, accumulate
        device = engine.device
        self._batch = _empty_batch(shape, pairs, device)
        # The micro-batch's shares of the step's labels and pairs, and its numbers of labels and pairs.
        self._shares = torch.zeros(4, dtype=torch.float64, device=device)
        self._random = DropoutState(device)
        self._sums = torch.zeros(5, dtype=torch.float64, device=device)
        self._captures = Captures(device)
        self._start()

    def _start(self) -> None:
        """Without any graph: warm-up, capture and replays are to come."""
        self._done, self._captured_from = 0, None
        self._whole, self._first, self._next, self._update = (self._captures.replay() for _ in range(4))

    def run(self, batches: Sequence[StaticBatch], lr: float) -> Tensor:
        """Makes one step; returns the norm of the gradient before clipping, () float32 on the device.

        Args:
            batches: ``accumulate`` micro-batches on the host. Losses are weighted as if they were one batch.
            lr: the learning rate.
        """
        with self._captures.on_device():
            return self._run(batches, lr)

    def _run(self, batches: Sequence[StaticBatch], lr: float) -> Tensor:
        engine, labels = self.engine, max(sum(b.num_labels for b in batches), 1)
        if self._captured_from is not None and not self._captured_from.is_of(engine.optimizer):
            self._captures = fresh(self._captures, engine.device)
            self._start()
        follow_writes(engine.optimizer)
        pairs = max(sum(b.num_pairs for b in batches), 1)
        engine.set_rate(lr)
        self._random.follow(engine)
        warm_up = self._captures.enabled and self._done < _WARM_UP

        def launch(replay: Replay, part: Callable[[], None]) -> None:
            part() if warm_up else replay(part)

        if self._captures.enabled and self._done in (0, _WARM_UP):
            # Without gradients the first backward pass writes instead of adding. It must not add to those of an earlier
            # graph, whose memory still holds its last step's, nor to what the warm-up left.
            engine.optimizer.zero_grad(set_to_none=True)
        with on_stream(self._captures.stream) if warm_up else nullcontext():
            for number, batch in enumerate(batches):
                self._load(batch, labels, pairs)
                if self.accumulate == 1:
                    launch(self._whole, self._whole_step)
                else:
                    launch(self._next if number else self._first, self._micro_step)
                self._random.passed(engine)
            if self.accumulate > 1:
                launch(self._update, engine.update)
        if warm_up or not self._captures.enabled:
            engine.optimizer.zero_grad(set_to_none=True)
        if self._done <= _WARM_UP:
            self._captured_from = Snapshot(engine.optimizer)
        self._done += 1
        return engine.norm.clone()

    def take_sums(self) -> Tensor:
        """(5,) float64 on the device: sums since the last call of the loss, the masked-LM losses, the next-sentence
        losses, and the correct predictions of either kind."""
        sums = self._sums.clone()
        self._sums.zero_()
        return sums

    def _load(self, batch: StaticBatch, labels: int, pairs: int) -> None:
        """Copies a batch, and its shares of the step, into the tensors that the step reads."""
        shares = [batch.num_labels / labels, batch.num_pairs / pairs, batch.num_labels, batch.num_pairs]
        names = _tensors(self._batch)
        self._captures.load(
            [*(getattr(self._batch, name) for name in names), self._shares],
            [*(getattr(batch, name) for name in names), torch.tensor(shares, dtype=torch.float64, device="cpu")],
        )

    def _micro_step(self) -> None:
        """Forward and backward pass of the batch that was loaded."""
        engine, batch = self.engine, self._batch
        with rng.use(self._random.key(engine)), engine.autocast():
            out = engine.model(batch)
        mlm_share, nsp_share, labels, pairs = self._shares.unbind()
        # Without targets the mean loss is 0/0.
        mlm_loss = torch.where(labels > 0, out.mlm_loss, 0.0)
        loss = mlm_loss * mlm_share.to(mlm_loss.dtype)
        if batch.nsp_labels is not None:
            loss = loss + out.nsp_loss * nsp_share.to(out.nsp_loss.dtype)
        engine.scale.scaled(loss).backward()
        with torch.no_grad():
            self._random.advance()
            values = [loss.double(), mlm_loss.double() * labels]
            values.append(out.nsp_loss.double() * pairs if batch.nsp_labels is not None else torch.zeros_like(labels))
            for logits, targets in ((out.mlm_logits, batch.mlm_labels), (out.nsp_logits, batch.nsp_labels)):
                right = labels.new_zeros(()) if targets is None else (logits.argmax(-1) == targets).sum().double()
                values.append(right)
            self._sums += torch.stack(values)

    def _whole_step(self) -> None:
        self._micro_step()
        self.engine.update()


def fresh(captures: Captures, device: torch.device) -> Captures:
    """Captures in place of those of which all graphs are then dropped: torch refuses a pool of memory that had some.
    Their stream stays: memory that was used on one is not used on another."""
    if captures.enabled:  # a replay that is under way reads tables on the host, which go with the graphs
        torch.cuda.synchronize(device)
    made = Captures(device)
    made.stream = captures.stream
    return made


def make(engine: LocalEngine, shape: BatchShape, *, pairs: bool, accumulate: int) -> StaticStep:
    """Makes a `StaticStep`, and the optimiser's state, which has to exist before a capture."""
    if not engine.on_device:
        engine.decide_on_device()
    optim.prepare(engine.optimizer)
    return StaticStep(engine, shape, pairs=pairs, accumulate=accumulate)


def _tensors(batch: StaticBatch) -> list[str]:
    return [f.name for f in fields(batch) if isinstance(getattr(batch, f.name), Tensor)]


def _empty_batch(shape: BatchShape, pairs: bool, device: torch.device) -> StaticBatch:
    sizes = {
        "input_ids": shape.tokens,
        "token_type_ids": shape.tokens,
        "position_ids": shape.tokens,
        "mlm_positions": shape.predictions,
        "mlm_labels": shape.predictions,
        "nsp_labels": shape.sequences,
    }
    tensors = {name: torch.zeros(size, dtype=torch.int64, device=device) for name, size in sizes.items()}
    bounds = torch.zeros(shape.sequences + 1, dtype=torch.int32, device=device)
    batch = StaticBatch(**tensors, cu_seqlens=bounds, max_seqlen=shape.max_seqlen)
    return batch if pairs else replace(batch, nsp_labels=None)
