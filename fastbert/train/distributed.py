"""Processes that train together: who they are, and how they agree.

`torchrun` and `deepspeed` start a process per rank and say so in environment variables (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT). Without them a run is one process, and nothing here touches torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from .. import hardware
from ..errors import FastbertError, InputError

Result = TypeVar("Result")


@dataclass(frozen=True)
class World:
    """This process among those of the run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0


def launched() -> World:
    """What the launcher said. Raises InputError where it said something else than numbers."""
    words = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if words["RANK"] is None or words["WORLD_SIZE"] is None:
        return World()
    try:
        rank, size = int(words["RANK"]), int(words["WORLD_SIZE"])
        return World(rank, size, int(words["LOCAL_RANK"] or 0))
    except ValueError:
        raise InputError(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers, got {words}") from None


def current() -> World:
    """The group that this process is in; of its own where it is in none."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
    return World()


@contextmanager
def joined(always: bool = False) -> Iterator[World]:
    """Joins the process group that the launcher opened, and leaves it at the end; of one process, none.

    Args:
        always: a group even for one process, which DeepSpeed wants.
    """
    if dist.is_available() and dist.is_initialized():  # by whoever calls us as a library; the group is theirs
        yield current()
        return
    world = launched()
    if world.size == 1 and not always:
        yield world
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank)
    # Counts are reduced on the CPU, gradients where they are.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    alone = {} if world.size > 1 else {"store": dist.HashStore()}
    unsaid = "LOCAL_RANK" not in os.environ  # which DeepSpeed reads without a launcher too
    if unsaid:
        os.environ["LOCAL_RANK"] = str(world.local_rank)
    try:
        dist.init_process_group(backend, rank=world.rank, world_size=world.size, **alone)
        try:
            yield world
        finally:
            dist.destroy_process_group()
    finally:
        if unsaid:
            os.environ.pop("LOCAL_RANK", None)


def device(world: World) -> torch.device:
    """Where a rank's model belongs."""
    if world.size > 1 and torch.cuda.is_available():  # of a group that is the caller's, nobody set the current device
        return torch.device("cuda", world.local_rank)
    return hardware.default_device()


def place(model: torch.nn.Module, world: World) -> None:
    """Puts a model where it is trained, in place. One process leaves it on a GPU that it is on already."""
    if world.size > 1 or next(model.parameters()).device.type == "cpu":
        model.to(device(world))


def on_first(world: World, call: Callable[[], Result]) -> Result:
    """What ``call`` returns on rank 0, on every rank; it runs there alone.

    Raises:
        FastbertError: the one that ``call`` raised, on every rank; others are marked as told already.
    """
    if world.size == 1:
        return call()
    told: list = [None, None]
    if world.first:
        try:
            told[0] = call()
        except FastbertError as error:
            told[1] = error
    dist.broadcast_object_list(told, src=0)
    result, error = told
    if error is not None:
        error.told_by_another_rank = not world.first
        raise error
    return result


def barrier(world: World) -> None:
    """Waits for all ranks."""
    if world.size > 1:
        dist.barrier()


def total(values: Sequence[float]) -> list[float]:
    """Each value summed over the ranks, in float64."""
    # A group that somebody else opened may know no CPU tensors.
    where = "cpu" if "gloo" in dist.get_backend_config() else torch.device("cuda", torch.cuda.current_device())
    sums = torch.tensor(values, dtype=torch.float64, device=where)
    dist.all_reduce(sums)
    return sums.tolist()


class RankLost(FastbertError):
    """Another process of the run has ended, so that this one cannot go on."""


# What gloo, NCCL and torch's store say where the other end of a connection is gone.
_GONE = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "gloo",
    "nccl",
)


def lost_a_rank(error: BaseException) -> bool:
    """Whether this is what a collective ends in when another process of the run has died."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _GONE)
