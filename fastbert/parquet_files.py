"""Parquet files, in which data-set hubs publish tables and corpora today: read by pyarrow, batch by batch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import DataError, InputError

if TYPE_CHECKING:
    import pyarrow.parquet

SUFFIXES = (".parquet", ".pq")


@contextlib.contextmanager
def opened_parquet(path: str | os.PathLike) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Opens a file; what pyarrow says of it while the block lasts becomes an error with its path.

    Raises:
        DataError: it is no Parquet, or a damaged one.
        InputError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{path}: Parquet is read by pyarrow (pip install 'fastbert[tasks]'), got {error}") from error
    try:
        with open(path, "rb") as source, pyarrow.parquet.ParquetFile(source) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        # What the operating system says of a path is no matter of the format.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: expected a Parquet file, got one that pyarrow cannot read: {reason}") from error
