"""``fastbert doctor``: `fastbert.environment` as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass
class Doctor:
    """Shows what was found on this machine, which backend computes each op, and why the others do not.

    Example:
        fastbert doctor
        fastbert doctor --json
    """

    json: bool = False
    """Print everything as JSON, for scripts and bug reports."""


def run(args: Doctor) -> None:
    """Prints the environment."""
    from .. import environment

    found = environment()
    if args.json:
        print(json.dumps(found, indent=2, default=str))
        return
    show(found)
    order = "cuda, triton, cpu, reference"
    print(f"An op is served by the first that can of {order}; reference, which is plain PyTorch, always can.")


def show(found: Mapping) -> None:
    """Prints a table for each section: dictionaries as two columns, lists of dictionaries as rows, others as lines."""
    from rich.console import Console

    console = Console()
    for section, content in found.items():
        if not content:
            continue
        table = _table(section, content)
        if table is not None:
            console.print(table)
            continue
        if isinstance(content, str) or not isinstance(content, Sequence):
            console.print(f"{section}: {_text(content)}", markup=False)
            continue
        console.print(section)
        for line in content:
            console.print(f"  - {line}", markup=False)


def _table(section: str, content):
    """A rich table of a mapping or of a list of mappings; None for anything else."""
    from rich.markup import escape
    from rich.table import Table

    if isinstance(content, Mapping):
        table = Table("name", "value", title=section, title_justify="left", show_header=False)
        for key, value in content.items():
            table.add_row(escape(str(key)), escape(_text(value)))
        return table
    rows = content if isinstance(content, Sequence) and not isinstance(content, str) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return None
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*(column.replace("_", " ") for column in columns), title=section, title_justify="left")
    for row in rows:
        table.add_row(*(escape(_text(row.get(column, ""))) for column in columns))
    return table


def _text(value) -> str:
    if value is None:
        return "no"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_text, value))
    return str(value)
