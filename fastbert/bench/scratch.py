"""The directory for the files of a measurement."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory where the system has such files ($TMPDIR), which is removed after the block.

    Raises:
        OSError: a file cannot be written; it names the directory where the system's error names none, as of a full
            disk, since nobody has chosen this place.
    """
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as directory:
        try:
            yield Path(directory)
        except OSError as error:
            if error.filename is None and error.errno is not None:
                raise OSError(error.errno, error.strerror, directory) from error
            raise
