"""Options as dataclasses: their values from YAML and from Python, held to the types of their fields. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from typing import Any, Literal

from .errors import InputError


def check_choices(options: Any) -> None:
    """Raises InputError for a field that is declared to be one of several words (`typing.Literal`) and is not.

    Args:
        options: an instance of a dataclass.
    """
    for name, hint in typing.get_type_hints(type(options)).items():
        value, choices = getattr(options, name), _choices(hint)
        if choices and value not in choices:
            known = ", ".join("none" if choice is None else str(choice) for choice in choices)
            raise InputError(f"{name} must be one of {known}, got {value!r:.100}")


def check_at_least_one(options: Any, *names: str, whose: str = "") -> None:
    """Raises InputError for a field of these that is given and below 1.

    Args:
        whose: what the message says after the field's name.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"{name}{whose} must be at least 1, got {value}")


def check_above_zero(options: Any, *names: str, most: float, whose: str = "") -> None:
    """Raises InputError for a field of these that is given and not above 0, or above ``most``, or no number.

    Args:
        whose: what the message says after the field's name.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value <= most:
            raise InputError(f"{name}{whose} must be above 0 and at most {most:g}, got {value}")


def check_seed(options: Any) -> None:
    """Raises InputError for a field ``seed`` that has no room in 64 bits, with or without a sign."""
    if not -(1 << 63) <= options.seed < 1 << 64:
        raise InputError(f"seed must fit in 64 bits, got {options.seed}")


def _choices(hint: Any) -> tuple:
    """What a field of this type may be; empty where the type does not list it."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return parts
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in parts:
        found = _choices(next(part for part in parts if part is not type(None)))
        return (*found, None) if found else ()
    return ()


def fitted_options(values: dict, known: type, path: str | os.PathLike) -> dict:
    """The options of one dataclass as its fields' types. Raises InputError for one that it has not, or that misfits."""
    hints = typing.get_type_hints(known)
    names = [f.name for f in dataclasses.fields(known)]
    unknown = sorted(map(str, set(values).difference(names)))
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"; did you mean {near[0]}?" if near and len(unknown) == 1 else ""
        raise InputError(f"{path}: unknown option {', '.join(unknown)}{hint}")
    fitted = {}
    for name, value in values.items():
        try:
            fitted[name] = _fit(value, hints[name])
        except (TypeError, ValueError):
            raise InputError(f"{path}: {name} must be {_in_words(hints[name])}, got {value!r}") from None
    return fitted


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    dict: "a mapping",
    type(None): "null",
}


def _in_words(hint: Any) -> str:
    """What a value of this type is, for people who need not know Python."""
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
    """The value as a field of this type; ValueError or TypeError where it is none."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None and type(None) in parts else _fit(value, parts[0])
    if origin is tuple and parts[-1] is Ellipsis:
        if not isinstance(value, (list, tuple)):  # a text is no list of its letters
            raise ValueError
        return tuple(_fit(entry, parts[0]) for entry in value)
    if origin is tuple:
        return tuple(_fit(entry, part) for entry, part in zip(value, parts, strict=True))
    if origin is Literal:
        fits = value in parts
    elif hint is float:
        # YAML 1.1 reads 1e-4, without a point, as text.
        fits = not isinstance(value, bool)
        value = float(value)
    else:
        fits = type(value) is hint
    if not fits:
        raise ValueError
    return value
