"""What is said of how batches are computed, once in a process."""

from __future__ import annotations

import logging
from functools import cache

_log = logging.getLogger("fastbert")


@cache
def say_once(warning: str) -> None:
    """Logs a warning that says how a batch is computed; further batches of which it is true are computed in silence."""
    _log.warning(warning)
