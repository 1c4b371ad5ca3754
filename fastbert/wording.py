"""Formats numbers, names and dtypes for messages and tables. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def counted(number: float, one: str) -> str:
    """A number with what it counts: "1 row", "2,000 rows", "0.5 hours". ``one`` is the singular."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {one if number == 1 else f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def figure(value: object) -> str:
    """A value for a table: floats with four significant digits and thousands separators ("1,221", "50.16", "0.002")."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> list[str]:
    """The lines of a table in Markdown; ``right`` has the numbers of the columns that are aligned to the right."""
    right = set(right)
    dashes = "".join("---:|" if number in right else "---|" for number in range(len(header)))
    escaped = [[str(cell).replace("|", r"\|") for cell in row] for row in (header, *rows)]
    first, *rest = (f"| {' | '.join(row)} |" for row in escaped)
    return [first, f"|{dashes}", *rest]


def duration(seconds: float) -> str:
    """A time in the unit that fits: "31.4 seconds", "3.2 minutes", "8.0 hours", "2.5 days"."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:,.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 120 else f"{seconds:.1f} seconds"


def dtype_name(dtype: torch.dtype | torch.layout | str) -> str:
    """The name of a dtype or layout without its module: "float32" for torch.float32 or "torch.float32"."""
    return str(dtype).removeprefix("torch.")


def in_utf8(text: str) -> str:
    """A text with names of files in it, for a file: bytes of a name that are not UTF-8 as escapes (``caf\\udce9``)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
