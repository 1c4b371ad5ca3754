"""The types of options that are paths. Words that are not valid paths are refused with the option's name."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec

from ..errors import InputError
from ..files import STANDARD_OUTPUT

EMPTY = "expected a path, got an empty text (is a variable of the shell not set?)"
"""`Path` would take an empty string for the working directory, which would be read or written to."""


@dataclasses.dataclass(frozen=True)
class _Refused:
    """A placeholder for a refused path: the function that converts a word does not know the option's name."""

    reason: str


def _path(kind: type = Path, *, written: bool = False) -> PrimitiveConstructorSpec:
    def made(words: list[str]) -> object:
        if not words[0]:
            return _Refused(EMPTY)
        if written and words[0] in STANDARD_OUTPUT:
            reason = "only the predictions of `fastbert predict` go to standard output"
            return _Refused(f"expected a name to write under, got {words[0]}: {reason}")
        # The shell does not expand the ~ of --out=~/x, so a directory of that name would be made.
        return kind(os.path.expanduser(words[0]))

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=made,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


InputPath = Annotated[Path, _path()]
"""A path that is read; ``-`` is standard input if the command reads it."""
InputName = Annotated[str, _path(str)]
"""The same as a string."""
OutputPath = Annotated[Path, _path(written=True)]
"""A path that is written."""
OutputName = Annotated[str, _path(str, written=True)]
"""The same as a string."""
OutputOrStandard = Annotated[str, _path(str)]
"""A path that is written, or ``-`` for standard output. A string, since `Path` drops a slash at the end."""


def refuse_unfit(found: object, prefix: str = "") -> None:
    """Raises InputError for the first option, of a dataclass or of one nested in it, whose path was refused."""
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, _Refused):
            refuse_unfit(value, f"{prefix}{field.name}.")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, _Refused):
                positional = "Positional" in str(field.type)
                name = field.name if positional else f"--{prefix}{field.name}".replace("_", "-")
                raise InputError(f"{name}: {one.reason}")
