"""Runs a function as several processes that train together, and gathers what each came to."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch


def launch(function: Callable, world_size: int, directory: Path, *arguments, seconds: float = 300.0) -> list:
    """Runs ``function(*arguments)`` in that many processes of one thread each, under a launcher's environment.

    They are forks: of an import of torch by each, tests would wait longest. A process that fails ends the others.

    Returns:
        the results, by rank.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork")
    port = free_port()
    importlib.import_module("torch._dynamo")  # DDP and DeepSpeed import it, for seconds: here once, not in each process
    context = multiprocessing.get_context("fork")
    running = [
        context.Process(target=_run, args=(function, rank, world_size, port, directory, arguments))
        for rank in range(world_size)
    ]
    for process in running:
        process.start()
    try:
        _wait(running, time.monotonic() + seconds)
    finally:
        for process in running:
            process.kill()
            process.join()
    if any(process.exitcode for process in running):
        told = [f"--- rank {r}\n{(directory / f'rank{r}.log').read_text()[-3000:]}" for r in range(world_size)]
        raise AssertionError("\n".join([f"exit codes {[p.exitcode for p in running]}", *told]))
    return [pickle.loads((directory / f"rank{rank}.result").read_bytes()) for rank in range(world_size)]


def free_port() -> int:
    """A port to meet at: not one of those that systems hand out, to sockets of other tests too, before it is in use."""
    for port in random.Random().sample(range(20000, 30000), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("none of 100 ports is free")


def _wait(running: list, until: float) -> None:
    while any(process.is_alive() for process in running):
        if any(process.exitcode for process in running) or time.monotonic() > until:
            time.sleep(1.0)  # the others may have something to say about it
            return
        time.sleep(0.02)


def _run(function: Callable, rank: int, world_size: int, port: int, directory: Path, arguments: tuple) -> None:
    log = os.open(directory / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)
    try:
        result = function(*arguments)
        (directory / f"rank{rank}.result").write_bytes(pickle.dumps(result))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # what pytest does at its end is not for a fork of it
