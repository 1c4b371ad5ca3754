"""Parquet files, the format in which hubs publish data sets; pyarrow reads them batch by batch."""

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
    """Opens a Parquet file. Errors that pyarrow raises inside the block are raised as DataError, with the path.

    Raises:
        DataError: it is not a Parquet file, or it is damaged.
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
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:  # columns may have names of other bytes
        # An error of the operating system has nothing to do with the format.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: expected a Parquet file, got one that pyarrow cannot read: {reason}") from error
