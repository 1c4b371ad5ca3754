"""Every exception that fastbert raises on purpose.

A message is one sentence: it names the argument or file, what was expected, and what was found.
"""


class FastbertError(Exception):
    """Base class: the command line prints its message as one sentence and exits with status 2."""


class InputError(FastbertError, ValueError):
    """An argument or a file given by the user is not valid."""


class DataError(InputError):
    """A corpus, a shard or a row of a task file is damaged or in another format."""


class CheckpointError(FastbertError):
    """Weights or a training checkpoint are missing, damaged, or do not fit the model."""


class BackendError(FastbertError, RuntimeError):
    """A backend that was asked for by name cannot serve an op."""
