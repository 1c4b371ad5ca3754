"""Locks of entries of the cache; a process that has to wait logs one warning."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

_LOCKS = Path("/proc/locks")
_log = logging.getLogger("fastbert")


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock ``path``.lock in the block; waits while another process holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.warning("waiting for %s.lock, which %s holds", path, _holder(Path(f"{path}.lock")))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """The process that holds the lock of a file, if the system tells it, for a message."""
    with contextlib.suppress(OSError, ValueError):
        inode = os.stat(path).st_ino
        for line in _LOCKS.read_text().splitlines():
            _, kind, *_, process, file, _, _ = line.split()
            if kind == "FLOCK" and int(file.rpartition(":")[2]) == inode and int(process) > 0:
                return f"process {process}"
    return "another process"
