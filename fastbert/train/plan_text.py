"""A plan as ``fastbert pretrain --plan`` prints it."""

from __future__ import annotations

from ..wording import counted, duration
from .plan import Plan
from .plan_memory import Memory


def text(plan: Plan) -> str:
    """The printed lines of a plan."""
    settings, memory = plan.model, plan.memory
    under = "" if plan.zero is None else f", ZeRO {plan.zero}"
    lines = [
        f"model     {counted(settings.num_hidden_layers, 'layer')} x {settings.hidden_size}, "
        f"vocabulary {settings.vocab_size}: {plan.parameters:,} parameters in {plan.tensors} tensors",
        f"ranks     {plan.ranks}{under}, {plan.precision}",
    ]
    for phase in plan.phases:
        name = f"{phase.name}: " if phase.name else ""
        length = "as many steps as the clock allows" if phase.steps is None else counted(phase.steps, "step")
        total = "" if phase.steps is None else f", {_count(phase.steps * phase.tokens)} tokens in all"
        each = f"{phase.samples.seqlen:.0f} tokens on average" if phase.samples.known else "all taken as full"
        sequences = counted(round(phase.sequences), "sequence")
        lines += [
            f"phase     {name}{length} of {sequences}, {phase.tokens:,.0f} tokens{total}",
            f"          samples of at most {phase.max_seqlen} ({each}), {phase.micro_batches} x "
            f"{phase.samples.tokens:,.0f} tokens on each rank",
        ]
        if plan.ranks > 1:
            lines.append(f"          each rank sends {_bytes(phase.sent)} a step")
        if phase.seconds is not None:
            lines.append(f"          {duration(phase.seconds)}")
    lines += [
        f"memory    of a rank: parameters {_part(memory, 'parameters')}, gradients {_part(memory, 'gradients')}, "
        f"optimiser {_part(memory, 'optimizer')}, activations {_bytes(memory.activations)}",
        f"          {_bytes(memory.total)} at the peak, without what kernels and libraries take for themselves",
    ]
    if plan.seconds is None:
        lines += [
            "time      not known: give --plan-throughput NUMBER, the tokens that one rank trains on in a second, or",
            "          --plan-throughput measure, which takes a few steps on this machine and needs --data",
        ]
    else:
        rates = ", ".join(f"{rate:,.0f}" for rate in plan.rates)
        lines.append(
            f"time      {duration(plan.seconds)} at {rates} tokens a second of a rank, {plan.where_from}; on top come "
            "evaluations, checkpoints and waiting for other ranks"
        )
    return "\n".join(lines)


def _count(value: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f}"


def _part(memory: Memory, name: str) -> str:
    return _bytes(getattr(memory, name)) + (" (offloaded)" if name in memory.offloaded else "")


def _bytes(value: float) -> str:
    return f"{value / 2**30:,.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.1f} MiB"
