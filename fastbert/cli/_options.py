"""Options that several commands share, and checks of options; importable without torch, as `--help` needs it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import arg

from ..errors import InputError
from ..wording import in_utf8


def option(name: str) -> str:
    """A field's name on the command line: ``max_seqlen`` is ``--max-seqlen``."""
    return "--" + name.replace("_", "-")


def check_one_of(args: Any, first: str, second: str) -> None:
    """Raises InputError unless exactly one of two fields is given."""
    if (getattr(args, first) is None) == (getattr(args, second) is None):
        got = "neither" if getattr(args, first) is None else "both"
        raise InputError(f"expected either {option(first)} or {option(second)}, got {got}")


def refuse_given(args: Any, *names: str, because: str) -> None:
    """Raises InputError if one of these fields does not have its default: "OPTION belongs to ``because``"."""
    for name in names:
        if getattr(args, name) != getattr(type(args), name):
            raise InputError(f"{option(name)} belongs to {because}")


def value_of(name: str, argv: Sequence[str]) -> str | None:
    """The value of an option on the command line, the last if it is given twice, as tyro takes it; None without."""
    last = None
    for word, following in zip(argv, [*argv[1:], "--"], strict=False):  # without words, the second is longer
        found, equals, value = word.partition("=")
        if found == name and (equals or not following.startswith("--")):
            last = value if equals else following
    return last


def command_line() -> str:
    """The command line, for a report."""
    return in_utf8(shlex.join(["fastbert", *sys.argv[1:]]))


@dataclass(kw_only=True)
class PredictOptions:
    """The options of all commands that run a model over a file."""

    max_seqlen: int | None = None
    """Longest sequence in tokens; by default the run's, else that of `fastbert finetune`, or the model's if shorter."""
    token_budget: int = 8192
    """Tokens in a batch."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Precision of the computation: int8 is faster on CPUs, and `fastbert evaluate` shows its loss of accuracy."""
    null_threshold: float | None = None
    """squad2: predict "no answer" if its odds are above this; by default the best value on the run's dev file."""
    max_answer_length: int | None = None
    """squad1, squad2: the longest answer that is predicted, in tokens; by default the run's, else 30."""
    text_columns: Annotated[tuple[str, ...] | None, arg(metavar="COLUMN [COLUMN]")] = None
    """Tasks of texts: the column of the text, or the two columns of a pair; by default those that the run was trained
    with. In files without a header they are numbers, from 1."""
    label_column: str | None = None
    """Tasks of texts: the column of the labels, given like --text-columns."""
    label_columns: Annotated[tuple[str, ...] | None, arg(metavar="COLUMN [COLUMN ...]")] = None
    """text-multilabel: in place of one column of labels, a column of 0 and 1 for each label."""
    label_separator: str | None = None
    """text-multilabel: what separates the labels of a text; by default the run's, else a comma, ; or |."""
    skip_bad_rows: bool = False
    """Leave out rows that cannot be used, and print how many and why; otherwise the first one ends the command."""
    fallback_encoding: str | None = None
    """Read lines that are not UTF-8 in this single-byte encoding (latin-1, windows-1252, ...), and print their number;
    otherwise they are bad rows."""
