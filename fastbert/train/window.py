"""The sums from which a line of the training log is made."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from ..hardware import peak_memory_mib
from ..packing import PackedBatch
from . import flops


def memory_mib(device: torch.device) -> float:
    """The peak memory so far in MiB: allocated on the GPU if the model is on one, otherwise this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_memory_mib()


_LOSSES = ("_loss", "_mlm", "_nsp", "_mlm_right", "_nsp_right")
_COUNTS = ("_labels", "_pairs", "_tokens", "_executed", "_flops")
_SUMS = (*_LOSSES, *_COUNTS)
_CLOCKS = ("steps", "seconds", "data_seconds")


class Window:
    """Sums over the steps since the last line.

    Attributes:
        steps, seconds, data_seconds: steps; seconds that they took; seconds of these spent waiting for data.
        grad_norm, lr: those of the last step.
        parts: seconds by part of a step (`fastbert.train.timing`).
    """

    def __init__(self) -> None:
        self.steps, self.seconds, self.data_seconds = 0, 0.0, 0.0
        self.grad_norm, self.lr = 0.0, 0.0
        self._loss = self._mlm = self._nsp = 0.0
        self._mlm_right = self._nsp_right = 0
        self._labels = self._pairs = self._tokens = self._executed = 0
        self._flops = 0.0
        self.parts: dict[str, float] = {}
        # (5,) losses of micro-batches or steps, possibly still on a device, and how many of them are in the sums.
        self._waiting: list[torch.Tensor] = []
        self._fetched = 0

    @torch.no_grad()
    def add(self, batch: PackedBatch, out, loss: torch.Tensor) -> None:
        """Adds the losses of a micro-batch. The host does not wait for the device before `sums`."""
        labels, pairs = batch.num_labels, batch.num_pairs
        none = loss.new_zeros(())
        values = [loss, out.mlm_loss.double() * labels if labels else none]
        values.append(out.nsp_loss.double() * pairs if pairs else none)
        values.append((out.mlm_logits.argmax(-1) == batch.mlm_labels).sum())
        values.append((out.nsp_logits.argmax(-1) == batch.nsp_labels).sum() if pairs else none)
        self.wait_for(torch.stack([value.detach().double() for value in values]))

    def wait_for(self, losses: torch.Tensor) -> None:
        """Adds (5,) sums: of the loss, masked-LM losses, next-sentence losses, and correct predictions of either
        kind."""
        self._waiting.append(losses)

    def count(self, batch: PackedBatch, config) -> None:
        """Adds what the host knows of a micro-batch: labels, pairs, tokens and FLOPs."""
        self._labels += batch.num_labels
        self._pairs += batch.num_pairs
        self._tokens += batch.num_real_tokens
        self._executed += batch.num_tokens
        lengths = batch.cu_seqlens[: batch.num_real_sequences + 1].diff().tolist()
        self._flops += flops.batch_flops(config, lengths, batch.num_labels)

    def _fetch(self) -> None:
        for losses in self._waiting[self._fetched :]:
            for name, value in zip(_LOSSES, losses.tolist(), strict=True):
                setattr(self, name, type(getattr(self, name))(getattr(self, name) + value))
        self._fetched = len(self._waiting)

    def add_parts(self, seconds: dict[str, float]) -> None:
        """Adds the seconds of a step's parts (`fastbert.train.timing`)."""
        for name, value in seconds.items():
            self.parts[name] = self.parts.get(name, 0.0) + value

    def copy(self) -> Window:
        """A copy with the same sums, for `since`."""
        other = copy.copy(self)
        other._waiting = list(self._waiting)
        return other

    def since(self, before: Window) -> Window:
        """What has been added since a `copy`, without ``parts``; does not wait for the device."""
        later = Window()
        for name in (*_CLOCKS, *_COUNTS):
            setattr(later, name, getattr(self, name) - getattr(before, name))
        later.grad_norm, later.lr = self.grad_norm, self.lr
        later._waiting = self._waiting[len(before._waiting) :]
        return later

    def sums(self) -> list[float]:
        """The values that can be summed over ranks; waits for the device."""
        self._fetch()
        return [getattr(self, name) for name in _SUMS]

    def with_sums(self, sums: Sequence[float]) -> Window:
        """A copy of this window with other sums."""
        other = copy.copy(self)
        other._waiting, other._fetched, other.grad_norm = [], 0, float(self.grad_norm)
        for name, value in zip(_SUMS, sums, strict=True):
            setattr(other, name, type(getattr(self, name))(value))
        return other

    def state(self) -> dict:
        """What a checkpoint stores; waits for the device."""
        whole = vars(self.with_sums(self.sums()))
        return {name: value for name, value in whole.items() if name not in ("_waiting", "_fetched")}

    @classmethod
    def over(cls, windows: Sequence[Window]) -> Window:
        """One window from those of all ranks."""
        return windows[0].with_sums([sum(column) for column in zip(*(w.sums() for w in windows), strict=True)])

    @classmethod
    def of_rank(cls, saved: Sequence[dict], rank: int, world_size: int) -> Window:
        """The window that a rank resumes with: its own, or, if the number of ranks has changed, all sums on rank 0."""
        windows = [cls() for _ in saved]
        for window, values in zip(windows, saved, strict=True):
            vars(window).update(values)
        if len(windows) == world_size:
            return windows[rank]
        whole = cls.over(windows)
        return whole if rank == 0 else whole.with_sums([0] * len(_SUMS))

    def row(self, peak: float) -> dict:
        """The figures of a line; ``peak`` is the peak of all ranks, in FLOP/s."""
        labels, seconds = max(self._labels, 1), max(self.seconds, 1e-9)
        row = {
            "loss": self._loss / max(self.steps, 1),
            "mlm_loss": self._mlm / labels,
            "mlm_acc": self._mlm_right / labels,
            "grad_norm": float(self.grad_norm),
            "lr": self.lr,
            "tokens_per_second": self._tokens / seconds,
            "executed_tokens_per_second": self._executed / seconds,
            "mfu": self._flops / seconds / peak,
            "data_seconds": self.data_seconds,
            "seconds": seconds,
            **{f"{name}_seconds": value for name, value in self.parts.items()},
        }
        if self._pairs:
            row |= {"nsp_loss": self._nsp / self._pairs, "nsp_acc": self._nsp_right / self._pairs}
        return row
