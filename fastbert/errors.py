"""Every exception that fastbert raises on purpose.

A message is one sentence: it names the argument or file, what was expected, and what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FastbertError(Exception):
    """Base class: the command line prints its message as one sentence and exits with status 2."""


class InputError(FastbertError, ValueError):
    """An argument or a file given by the user is not valid."""


class InputIndexError(InputError, IndexError):
    """An InputError of a patched model where transformers raises an IndexError."""


class InputRuntimeError(InputError, RuntimeError):
    """An InputError of a patched model where transformers raises a RuntimeError."""


class DataError(InputError):
    """A corpus, a shard or a row of a task file is damaged or in another format."""


class CheckpointError(FastbertError):
    """Weights or a training checkpoint are missing, damaged, or do not fit the model."""


class BackendError(FastbertError, RuntimeError):
    """A backend that was asked for by name cannot serve an op."""


@contextmanager
def also_raised_as(error: InputError) -> Iterator[None]:
    """Raises ``error`` in place of an IndexError or a RuntimeError of the block, as an exception of both classes."""
    try:
        yield
    except (IndexError, RuntimeError) as theirs:
        kind = InputIndexError if isinstance(theirs, IndexError) else InputRuntimeError
        raise kind(str(error)) from theirs
