"""Options as dataclasses: checks of values from YAML and Python against the fields' types. Does not import torch."""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from pathlib import Path
from typing import Any, Literal

from .errors import InputError
from .other_names import called_here


def check_choices(options: Any) -> None:
    """Raises InputError for a field whose type is a `typing.Literal` and whose value is not one of its words.

    Args:
        options: an instance of a dataclass.
    """
    for name, hint in typing.get_type_hints(type(options)).items():
        value, choices = getattr(options, name), _choices(hint)
        if choices and value not in choices:
            known = ", ".join("none" if choice is None else str(choice) for choice in choices)
            raise InputError(f"{name} must be one of {known}, got {value!r:.100}")


def check_at_least_one(options: Any, *names: str, whose: str = "") -> None:
    """Raises InputError if one of these fields is not None and below 1.

    Args:
        options: an instance of a dataclass.
        names: the fields.
        whose: text to put after the field's name in the message.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"{name}{whose} must be at least 1, got {value}")


def check_above_zero(options: Any, *names: str, most: float, whose: str = "") -> None:
    """Raises InputError if one of these fields is not None, and not a number above 0 and at most ``most``.

    Args:
        options: an instance of a dataclass.
        names: the fields.
        most: the largest value that is allowed.
        whose: text to put after the field's name in the message.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value <= most:
            raise InputError(f"{name}{whose} must be above 0 and at most {most:g}, got {value}")


def check_seed(options: Any) -> None:
    """Raises InputError if the field ``seed`` fits neither in a signed nor in an unsigned 64-bit integer."""
    if not -(1 << 63) <= options.seed < 1 << 64:
        raise InputError(f"seed must fit in 64 bits, got {options.seed}")


def _choices(hint: Any) -> tuple:
    """The values that a field of this type may have; empty if the type does not list them."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return parts
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in parts:
        found = _choices(next(part for part in parts if part is not type(None)))
        return (*found, None) if found else ()
    return ()


def fitted_options(values: dict, known: type, path: str | os.PathLike) -> dict:
    """Converts options to the types of a dataclass's fields.

    Args:
        values: the options, by name, as YAML holds them.
        known: the dataclass.
        path: the file, for messages.

    Raises:
        InputError: the dataclass has no such field, or a value has another type.
    """
    hints = typing.get_type_hints(known)
    names = [f.name for f in dataclasses.fields(known)]
    unknown = sorted(map(str, set(values).difference(names)))
    if unknown:
        meant = {name: near for name in unknown if (near := _meant(name, hints))}
        hints_at = [f"{' or '.join(near)}{f' by {name}' if len(unknown) > 1 else ''}" for name, near in meant.items()]
        hint = f"; did you mean {hints_at[0]}?" if hints_at else ""
        raise InputError(f"{path}: unknown option {', '.join(unknown)}{hint}")
    fitted = {}
    for name, value in values.items():
        try:
            fitted[name] = _fit(value, hints[name])
        except (TypeError, ValueError):
            raise InputError(f"{path}: {name} must be {_in_words(hints[name])}, got {value!r}") from None
    return fitted


def _meant(name: str, hints: dict[str, Any]) -> list[str]:
    """The options of these types that an unknown one may mean: by its name in other programs, else by its spelling."""
    written = {f"--{own}".replace("_", "-"): own for own in hints}
    for own, hint in hints.items():
        if dataclasses.is_dataclass(hint):
            written |= {f"--{own}.{f.name}".replace("_", "-"): f"{own}: {f.name}" for f in dataclasses.fields(hint)}
    dashed = f"--{name}".replace("_", "-")
    if dashed in written:
        return [written[dashed]]
    theirs = [written[one] for one in called_here(dashed, written)[:2]]
    return theirs or difflib.get_close_matches(name.replace("-", "_"), hints, n=1, cutoff=0.7)


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    dict: "a mapping",
    type(None): "null",
}


def _in_words(hint: Any) -> str:
    """A description of a type for people who may not know Python."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, parts))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is tuple:
        each = parts[:1] if parts[-1] is Ellipsis else parts
        of = "each " if parts[-1] is Ellipsis else ""
        return f"a list ({of}{', '.join(map(_in_words, each))})"
    return _WORDS.get(hint) or str(hint)


def _fit(value, hint):
    """Converts a value to a field's type. Raises ValueError or TypeError if it is of another type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None and type(None) in parts else _fit(value, parts[0])
    if origin is tuple and parts[-1] is Ellipsis:
        if not isinstance(value, (list, tuple)):  # a string is not a list of its letters
            raise ValueError
        return tuple(_fit(entry, parts[0]) for entry in value)
    if origin is tuple:
        return tuple(_fit(entry, part) for entry, part in zip(value, parts, strict=True))
    if origin is Literal:
        fits = value in parts
    elif hint is Path:
        fits = isinstance(value, str) and value.strip() != ""
        value = Path(os.path.expanduser(value))  # no shell has read it
    elif hint is float:
        # YAML 1.1 reads 1e-4, which has no decimal point, as a string.
        fits = not isinstance(value, bool)
        value = float(value)
    else:
        fits = type(value) is hint
    if not fits:
        raise ValueError
    return value
