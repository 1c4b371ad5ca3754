"""How a step scales with the number of GPUs: its batch, the bytes that each GPU sends, and its time; without torch.

Collectives on a tensor of S bytes are computed as rings of N ranks: in an all-reduce each rank sends 2 (N - 1) / N S
bytes, in an all-gather or a reduce-scatter (N - 1) / N S. `collectives` lists those of a step; tests compare them with
the bytes that gloo hands to its sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..wording import markdown_table

_RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
# The five float64 that ranks sum before a step (`PretrainLoop._agree`).
_AGREED = 40
# In models up to this many parameters, DeepSpeed's stage 3 keeps the weights gathered for the forward pass until the
# backward pass (stage3_max_reuse_distance).
_REUSED = 1_000_000_000
# Bytes per second between the GPUs of a machine, and from each GPU to other machines; GPUs in a machine.
_INSIDE, _BETWEEN, _PER_MACHINE = 450e9, 50e9, 8


@dataclass(frozen=True)
class Collective:
    """A collective of a step.

    Args:
        what: what is sent, in words.
        kind: the collective.
        size: bytes of the whole tensor.
        count: how often in a step.
    """

    what: str
    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    size: int
    count: int = 1

    def sent(self, ranks: int, gloo: bool = False) -> float:
        """Bytes that each rank sends in a step; gloo implements reduce-scatter by an all-reduce."""
        turns = 2.0 if gloo and self.kind == "reduce_scatter" else _RING[self.kind]
        return turns * (ranks - 1) / ranks * self.size * self.count


def collectives(
    parameters: int,
    *,
    zero: int | None = None,
    micro_batches: int = 1,
    gradient_bytes: int = 4,
    parameter_bytes: int = 4,
    lamb_tensors: int = 0,
    persistent: int = 0,
    reused: bool | None = None,
) -> list[Collective]:
    """The collectives of a step.

    Args:
        parameters: the number of parameters, tied ones counted once.
        zero: DeepSpeed's stage; None = torch's DistributedDataParallel.
        micro_batches: micro-batches that a rank accumulates.
        gradient_bytes, parameter_bytes: bytes per element as sent.
        lamb_tensors: the number of tensors that LAMB scales; if they are sharded, two float64 norms of each are summed.
        persistent: parameters in tensors that stage 3 keeps whole (at most 100,000 elements each, DeepSpeed's
            stage3_param_persistence_threshold).
        reused: whether stage 3 keeps gathered weights from forward to backward; None = by the model's size.
    """
    gradients, weights = gradient_bytes * parameters, parameter_bytes * parameters
    if not zero:
        # Gradients are only sent with the last micro-batch.
        return [Collective("gradients", "all_reduce", gradients), Collective("counts", "all_reduce", _AGREED)]
    found = [Collective("counts", "all_reduce", _AGREED)]
    if zero < 3:
        # DeepSpeed sums gradients by an all-reduce here, from which each rank takes its shard. At stage 2, where ranks
        # keep only their shards, it does so after every micro-batch.
        found.append(Collective("gradients", "all_reduce", gradients, 1 if zero == 1 else micro_batches))
        found.append(Collective("updated weights", "all_gather", weights))
    else:
        kept = parameter_bytes * persistent
        found.append(Collective("gradients", "reduce_scatter", gradients, micro_batches))
        gathers = 1 if (parameters <= _REUSED if reused is None else reused) else 2
        found.append(Collective("weights before use", "all_gather", weights - kept, gathers * micro_batches))
        if kept:
            found.append(Collective("updated small weights", "all_gather", kept))
    if lamb_tensors:
        found.append(Collective("norms for LAMB", "all_reduce", 16 * lamb_tensors))
    return found


def sent(step: list[Collective], ranks: int, gloo: bool = False) -> float:
    """Bytes that each rank sends in a step with these collectives (see `Collective.sent`)."""
    return sum(collective.sent(ranks, gloo) for collective in step)


@dataclass(frozen=True)
class Step:
    """A step on a number of ranks.

    Args:
        ranks: the number of ranks.
        sequences: sequences in the step, over all ranks.
        micro_batches: micro-batches that each rank accumulates.
        sent: bytes that each rank sends.
        compute, communication: seconds of each.
    """

    ranks: int
    sequences: float
    micro_batches: int
    sent: float
    compute: float
    communication: float

    @property
    def shortest(self) -> float:
        """Seconds if communication and computation overlap completely."""
        return max(self.compute, self.communication)

    @property
    def longest(self) -> float:
        """Seconds if they do not overlap."""
        return self.compute + self.communication

    @property
    def efficiency(self) -> float:
        """The share of the time in which the GPUs compute, without overlap."""
        return self.compute / self.longest


def step(
    parameters: int,
    ranks: int,
    batch_sequences: int,
    sequences_per_micro_batch: float,
    sequences_per_second: float,
    **travelling,
) -> Step:
    """A step of a given batch size on a number of ranks.

    Args:
        parameters: the number of parameters, tied ones counted once.
        ranks: the number of ranks.
        batch_sequences: sequences in a step over all ranks.
        sequences_per_micro_batch: sequences in a full micro-batch; with very many ranks, micro-batches are smaller.
        sequences_per_second: what one rank computes.
        travelling: further options of `collectives`.
    """
    share = batch_sequences / ranks
    micro_batches = max(round(share / sequences_per_micro_batch), 1)
    bytes_sent = sent(collectives(parameters, micro_batches=micro_batches, **travelling), ranks)
    bandwidth = _INSIDE if ranks <= _PER_MACHINE else _BETWEEN  # a ring is as fast as its slowest link
    compute = share / sequences_per_second
    return Step(ranks, batch_sequences, micro_batches, bytes_sent, compute, bytes_sent / bandwidth)


def table(steps: list[Step]) -> str:
    """Steps on several numbers of ranks, as a Markdown table."""
    names = ("GPUs", "sequences each", "micro-batches", "each sends", "computing", "sending", "step", "computing is")
    rows = (
        (
            f"{s.ranks:,}",
            f"{s.sequences / s.ranks:,.0f}",
            s.micro_batches,
            f"{s.sent / 1e9:.2f} GB",
            f"{1e3 * s.compute:,.1f} ms",
            f"{1e3 * s.communication:,.1f} ms",
            f"{1e3 * s.shortest:,.1f} to {1e3 * s.longest:,.1f} ms",
            f"{100 * s.efficiency:.0f} to {100 * s.compute / s.shortest:.0f} %",
        )
        for s in steps
    )
    return "\n".join(markdown_table(names, rows))
