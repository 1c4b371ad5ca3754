"""What more GPUs do to a step: its batch, the bytes that each of them sends, and its time; without torch.

N ranks pass a tensor of S bytes around a ring: an all-reduce sends 2 (N - 1) / N S from each rank, an all-gather and a
reduce-scatter (N - 1) / N S. Which collectives a step has is told by `collectives`; tests count the bytes that gloo
hands to its sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
# Twelve figures or so that ranks agree on before a step, in float64 (fastbert.train.loop), and DeepSpeed's own.
_AGREED = 40
# At stage 3 DeepSpeed keeps what it gathered for forward until backward in models up to this size
# (stage3_max_reuse_distance).
_REUSED = 1_000_000_000


@dataclass(frozen=True)
class Collective:
    """A collective of a step.

    Args:
        what: what travels.
        kind: how.
        size: bytes of the whole tensor.
        count: times a step.
    """

    what: str
    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    size: int
    count: int = 1

    def sent(self, ranks: int, gloo: bool = False) -> float:
        """Bytes that each rank sends for it in a step; gloo scatters by way of a whole all-reduce."""
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
    """What travels in a step.

    Args:
        parameters: numbers in the model, tied ones once.
        zero: DeepSpeed's stage; None = torch's DistributedDataParallel.
        micro_batches: that a rank accumulates.
        gradient_bytes, parameter_bytes: of a number that travels.
        lamb_tensors: tensors that LAMB scales; of shards their norms are summed up, 2 float64 each.
        persistent: numbers in tensors that stage 3 keeps whole (of at most 100,000 numbers each, DeepSpeed's
            stage3_param_persistence_threshold).
        reused: whether stage 3 keeps what it gathered from forward to backward; None = by the model's size.
    """
    gradients, weights = gradient_bytes * parameters, parameter_bytes * parameters
    if not zero:
        # Micro-batches before the last add up on their rank.
        return [Collective("gradients", "all_reduce", gradients), Collective("counts", "all_reduce", _AGREED)]
    found = [Collective("counts", "all_reduce", _AGREED)]
    if zero < 3:
        # DeepSpeed sums gradients by all-reduce here, and each rank then looks at its own shard; at stage 2, whose
        # ranks keep no more than that, after every micro-batch.
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
    """Bytes that each rank sends in a step."""
    return sum(collective.sent(ranks, gloo) for collective in step)


@dataclass(frozen=True)
class Network:
    """How fast bytes leave a rank.

    Args:
        inside: bytes a second between the GPUs of one machine.
        between: bytes a second of each GPU to other machines.
        per_machine: GPUs in one.
    """

    inside: float = 450e9
    between: float = 50e9
    per_machine: int = 8

    def bandwidth(self, ranks: int) -> float:
        """The bandwidth of a ring of so many ranks, which is that of its slowest link."""
        return self.inside if ranks <= self.per_machine else self.between


@dataclass(frozen=True)
class Step:
    """A step on some ranks.

    Args:
        ranks: how many.
        sequences: of the step, over all ranks.
        micro_batches: that each rank accumulates.
        sent: bytes that each rank sends.
        compute, communication: seconds.
    """

    ranks: int
    sequences: float
    micro_batches: int
    sent: float
    compute: float
    communication: float

    @property
    def shortest(self) -> float:
        """Seconds where all communication goes on behind the computation."""
        return max(self.compute, self.communication)

    @property
    def longest(self) -> float:
        """Seconds where none does."""
        return self.compute + self.communication

    @property
    def efficiency(self) -> float:
        """The least share of the time in which the GPUs compute."""
        return self.compute / self.longest


def step(
    parameters: int,
    ranks: int,
    batch_sequences: int,
    sequences_per_micro_batch: float,
    sequences_per_second: float,
    network: Network = Network(),
    **travelling,
) -> Step:
    """A step of a wanted batch on some ranks.

    Args:
        batch_sequences: of a step over all ranks; a rank has one micro-batch at least.
        sequences_per_micro_batch: that a rank holds at a time; on more ranks than there are full ones, fewer.
        sequences_per_second: that one rank computes.
        travelling: options of `collectives`.
    """
    share = batch_sequences / ranks
    micro_batches = max(round(share / sequences_per_micro_batch), 1)
    bytes_sent = sent(collectives(parameters, micro_batches=micro_batches, **travelling), ranks)
    return Step(
        ranks,
        batch_sequences,
        micro_batches,
        bytes_sent,
        share / sequences_per_second,
        bytes_sent / network.bandwidth(ranks),
    )


def table(steps: list[Step]) -> str:
    """Steps on several numbers of ranks, as a Markdown table."""
    names = ("GPUs", "sequences each", "micro-batches", "each sends", "computing", "sending", "step", "computing is")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for s in steps:
        lines.append(
            f"| {s.ranks:,} | {s.sequences / s.ranks:,.0f} | {s.micro_batches} | {s.sent / 1e9:.2f} GB "
            f"| {1e3 * s.compute:,.1f} ms | {1e3 * s.communication:,.1f} ms "
            f"| {1e3 * s.shortest:,.1f} to {1e3 * s.longest:,.1f} ms | {100 * s.efficiency:.0f} to "
            f"{100 * s.compute / s.shortest:.0f} % |"
        )
    return "\n".join(lines)
