"""What becomes of a row that cannot be used: the reading stops with its reason, or goes on and counts."""

from __future__ import annotations

from ..errors import DataError


class BadRows:
    """Readers hand every unusable row to `refuse`.

    Args:
        skip: keep the reasons and go on, where the first would otherwise be raised.
        hint: what a person can do about it, added to a raised reason.

    Attributes:
        reasons: one sentence a skipped row, with file, line and reason.
    """

    def __init__(self, skip: bool = False, hint: str = ""):
        self.skip, self.hint = skip, hint
        self.reasons: list[str] = []

    def refuse(self, reason: str) -> None:
        """Takes note of a row that is left out.

        Raises:
            DataError: rows are not to be skipped.
        """
        if not self.skip:
            raise DataError(f"{reason} ({self.hint})" if self.hint else reason)
        self.reasons.append(reason)


STRICT = BadRows()
"""The default of every reader: it keeps nothing, so that all may share it."""
