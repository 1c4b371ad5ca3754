"""One run at a time in a directory: a second one would write between the first one's files."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import InputError


@contextlib.contextmanager
def only_run(run_dir: Path) -> Iterator[None]:
    """Locks ``run_dir/run.lock`` and removes it afterwards; the system releases the lock however the process ends.

    It is a POSIX lock, which belongs to the process and not to the open file, so workers that outlive a killed trainer
    by seconds do not hold it. On a file system without locks nothing is locked.

    Args:
        run_dir: an existing directory.

    Raises:
        InputError: another process, whose id is in the message, is using this directory.
    """
    path = run_dir / "run.lock"
    with open(path, "a+", encoding="ascii") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            raise InputError(
                f"{run_dir}: expected no other run in this directory, got one by process {file.read(20).strip() or '?'}"
            ) from error
        except OSError:  # a file system without locks
            path.unlink(missing_ok=True)
            yield
            return
        if not _is_still(file, path):  # a run that ended meanwhile has removed it: others would lock a new file
            with only_run(run_dir):
                yield
            return
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_still(file: IO, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
