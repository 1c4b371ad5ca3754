"""Processes that train together: who they are, and how they agree.

`torchrun` and `deepspeed` start a process per rank and say so in environment variables (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT). Without them a run is one process, and nothing here touches torch.distributed.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from .. import hardware
from ..errors import FastbertError, InputError

Result = TypeVar("Result")

_log = logging.getLogger("fastbert")

# Processes that are started together meet within seconds; machines that first load an image may take minutes.
_WAIT_TOLD_AFTER_S = 60.0

_meetings = itertools.count()


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
    """This process, by the launcher's variables. Raises InputError if one is not a number, or out of range."""
    words = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if words["RANK"] is None or words["WORLD_SIZE"] is None:
        return World()
    try:
        rank, size = int(words["RANK"]), int(words["WORLD_SIZE"])
        world = World(rank, size, int(words["LOCAL_RANK"] or 0))
    except ValueError:
        raise InputError(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers, got {words}") from None
    if not 0 <= rank < size:  # the others would wait for the missing rank
        raise InputError(f"RANK must be at least 0 and below WORLD_SIZE, got {rank} of {size}")
    return world


def current() -> World:
    """The process group that this process is in, or a world of this process alone."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
    return World()


@contextmanager
def joined(always: bool = False) -> Iterator[World]:
    """Joins the process group that the launcher describes, and leaves it at the end; a single process joins none.

    Args:
        always: opens a group even for one process, which DeepSpeed needs.

    Raises:
        InputError: there is no GPU for this process on a machine with GPUs, or nothing says which, or the processes
            cannot connect.
        RankLost: while the block ran, another process died or stopped answering.
    """
    if dist.is_available() and dist.is_initialized():  # by whoever calls us as a library; the group is theirs
        _check_said(current())
        with _told_of_loss(current()) as world:
            yield world
        return
    world = launched()
    if world.size == 1 and not always:
        yield world
        return
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        _check_said(world)
        if not 0 <= world.local_rank < gpus:
            raise InputError(f"LOCAL_RANK must be the number of one of the {gpus} GPUs here, got {world.local_rank}")
        torch.cuda.set_device(world.local_rank)
    # Counts are reduced on the CPU, gradients where they are.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    unsaid = "LOCAL_RANK" not in os.environ  # DeepSpeed reads it, even without a launcher
    if unsaid:
        os.environ["LOCAL_RANK"] = str(world.local_rank)
    try:
        _meet(backend, world)
        try:
            with _told_of_loss(world):
                yield world
        finally:
            _leave()
    finally:
        if unsaid:
            os.environ.pop("LOCAL_RANK", None)


def _check_said(world: World) -> None:
    """Raises InputError if it is not known which of a machine's GPUs a process has: all would take the first one."""
    if world.size > 1 and "LOCAL_RANK" not in os.environ and torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if gpus > 1:
            raise InputError(
                f"LOCAL_RANK must say which of the {gpus} GPUs here rank {world.rank} of {world.size} processes trains "
                "on, as torchrun and deepspeed do (under srun: LOCAL_RANK=$SLURM_LOCALID), got none"
            )


def _meet(backend: str, world: World) -> None:
    """Opens the process group. Raises InputError if the processes cannot connect."""
    place = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    if world.size > 1 and (not place["MASTER_ADDR"] or not (place["MASTER_PORT"] or "").isdecimal()):
        raise InputError(
            f"MASTER_ADDR and MASTER_PORT must say where the {world.size} processes of the run meet, got {place}"
        )
    try:
        with _waiting(world, place):
            dist.init_process_group(backend, rank=world.rank, world_size=world.size, store=_store(world))
    except RuntimeError as error:
        taken = "failed to listen" in str(error)  # torch 2.6 has no class of errors for it
        if not (taken or lost_a_rank(error)):
            raise
        raise InputError(
            f"rank {world.rank} cannot meet the others of {world.size} processes at {place['MASTER_ADDR']}, port "
            f"{place['MASTER_PORT']}: {_first_line(error)}"
        ) from error


def _leave() -> None:
    """Closes the process group, through DeepSpeed if that was used: it would otherwise use groups derived from this one
    in the next training of the process."""
    deepspeed = sys.modules.get("deepspeed")
    if deepspeed is not None and deepspeed.comm.is_initialized():
        deepspeed.comm.destroy_process_group()
    else:
        dist.destroy_process_group()


def _store(world: World) -> dist.Store:
    """The store through which the processes exchange their addresses."""
    if world.size == 1:
        return dist.HashStore()
    store, *_ = next(dist.rendezvous("env://", world.rank, world.size))
    # torchrun's store outlives a group: without a prefix, the next group would find the addresses of the last one.
    return dist.PrefixStore(f"fastbert {next(_meetings)}", store)


@contextmanager
def _waiting(world: World, place: dict) -> Iterator[None]:
    """Surrounds a block that waits for the other processes (half an hour by torch's default): warns after a while, and
    lets Ctrl-C end this process at once, since Python would only handle it after the wait."""
    told = threading.Timer(
        _WAIT_TOLD_AFTER_S,
        lambda: _log.warning(
            "rank %d has waited %.0f s for the others of %d processes at %s, port %s, and goes on waiting",
            *(world.rank, _WAIT_TOLD_AFTER_S, world.size, place["MASTER_ADDR"], place["MASTER_PORT"]),
        ),
    )
    told.daemon = True
    told.start()
    in_main = threading.current_thread() is threading.main_thread()
    interrupts = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        told.cancel()
        if interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _told_of_loss(world: World) -> Iterator[World]:
    """Raises RankLost in place of the error with which a collective fails if another process is gone."""
    try:
        yield world
    except RuntimeError as error:
        if world.size == 1 or not lost_a_rank(error):
            raise
        text, another = str(error).lower(), f"another of the {world.size} processes of this run"
        if "timed out" in text:
            what = f"{another} has not answered in time ({_first_line(error)})"
        elif any(words in text for words in _ENDED):
            what = f"{another} has ended, and its own message says why"
        else:  # each rank may have the same error, and no other message says why
            what = f"the {world.size} processes of this run failed to exchange data ({_first_and_last_line(error)})"
        raise RankLost(f"rank {world.rank} stops because {what}; go on with --resume auto") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _first_and_last_line(error: BaseException) -> str:
    """Where it happened and, in the messages of NCCL, the cause; without the addresses in torch that may follow."""
    text = str(error).partition("\nException raised from ")[0]
    lines = [line.strip().rstrip(".:") for line in text.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(f"{line:.300}" for line in (lines[0], lines[-1]))) if lines else "no reason given"


def device(world: World) -> torch.device:
    """The device for a rank's model."""
    if world.size > 1 and torch.cuda.is_available():  # the current device is not set in a group opened by the caller
        return torch.device("cuda", world.local_rank)
    return hardware.default_device()


def place(model: torch.nn.Module, world: World) -> None:
    """Moves a model to the device on which it is trained, in place. A single process leaves it on its GPU."""
    if world.size > 1 or next(model.parameters()).device.type == "cpu":
        model.to(device(world))


def on_first(world: World, call: Callable[[], Result]) -> Result:
    """Runs ``call`` on rank 0 and returns its result on every rank.

    Raises:
        FastbertError: the error that ``call`` raised, on every rank; on the others it is marked as already reported
            (``told_by_another_rank``).
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


def on_each_machine(world: World, call: Callable[[], object]) -> None:
    """Runs ``call`` on the first process of every machine, for checks of a machine's own disk.

    Raises:
        FastbertError: the error of the first rank on which ``call`` raised one, with its number, on every rank; on the
            others it is marked as already reported.
    """
    error = None
    if world.local_rank == 0:
        try:
            call()
        except FastbertError as raised:
            error = raised
    for rank, raised in enumerate(gathered(world, error)):
        if raised is not None:
            told = raised if world.size == 1 else type(raised)(f"rank {rank}: {raised}")
            told.told_by_another_rank = rank != world.rank
            raise told


def launch() -> str | None:
    """The name that torchrun gives to a start of itself; None without it."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def restarted(world: World) -> bool:
    """Whether torchrun has ended and started the processes again; on every rank, since each machine has its own count
    of it."""
    return any(gathered(world, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"))


def gathered(world: World, value: Result) -> list[Result]:
    """The values of all ranks, in the order of the ranks, on every rank."""
    told: list = [value] * world.size
    if world.size > 1:
        dist.all_gather_object(told, value)
    return told


def same_on_all(world: World, values: dict) -> None:
    """Checks that all processes were started with the same options: with others, a process would wait for the rest, or
    update its copy of the model in another way.

    Args:
        values: by name, the values that must be the same on every rank.

    Raises:
        InputError: naming the first value that differs and its rank; on every rank, as in `on_first`.
    """
    told = gathered(world, {name: str(value) for name, value in values.items()})
    for rank, theirs in enumerate(told):
        for name in told[0] | theirs:
            first, got = told[0].get(name), theirs.get(name)
            if got != first:
                error = InputError(
                    f"expected all {world.size} processes to be started alike, got {name} {got!s:.100} on rank {rank} "
                    f"and {first!s:.100} on rank 0"
                )
                error.told_by_another_rank = not world.first
                raise error


def barrier(world: World) -> None:
    """Waits for all ranks."""
    if world.size > 1:
        dist.barrier()


def total(values: Sequence[float]) -> list[float]:
    """Each value summed over the ranks, in float64."""
    # A group opened by the caller may not support CPU tensors.
    where = "cpu" if "gloo" in dist.get_backend_config() else torch.device("cuda", torch.cuda.current_device())
    sums = torch.tensor(values, dtype=torch.float64, device=where)
    dist.all_reduce(sums)
    return sums.tolist()


class RankLost(FastbertError):
    """Another process of the run has ended or does not answer, so this one cannot continue."""


# Parts of the messages of gloo, NCCL and torch's store if the other end of a connection is gone.
_ENDED = (
    "connection closed by",
    "connection was likely closed",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
)
# Parts of all their messages.
_GONE = (*_ENDED, "gloo", "nccl")


def lost_a_rank(error: BaseException) -> bool:
    """Whether this is an error with which a collective fails if another process has died or does not answer."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _GONE)
