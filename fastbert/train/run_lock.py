"""One run at a time in a directory: a second one would write between the first one's files."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError


@contextlib.contextmanager
def only_run(run_dir: Path) -> Iterator[None]:
    """Holds ``run_dir/run.lock``, which is gone afterwards; the system lets go of it when the process ends in any way.

    The lock is the process's and not the open file's: workers that outlive a killed trainer by seconds do not hold it.

    Args:
        run_dir: an existing directory.

    Raises:
        InputError: another process, which is named, trains into this directory.
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
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
        finally:
            path.unlink(missing_ok=True)
