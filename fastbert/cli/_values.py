"""Parsing of options that are numbers, one of a few words, or may be absent. Other words are refused in one sentence,
and help shows only the kind of value; tyro itself would print boxes, and report Python types and exceptions."""

from __future__ import annotations

import types
import typing

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ..errors import InputError

ABSENT = "None"
"""The word for no value, which overrides a value from a file of options."""

_KINDS = {int: ("INT", "a whole number such as 20000"), float: ("FLOAT", "a number such as 0.1 or 2e-5")}


class Unfit(InputError):
    """A word that is not a value of an option; the message does not name the option."""


def registry() -> ConstructorRegistry:
    """tyro's registry with these rules; a context manager, inside which they apply."""
    rules = ConstructorRegistry()
    rules.primitive_rule(lambda info: _of_kind(info.type))
    rules.primitive_rule(_optional)
    return rules


def _of_kind(kind: typing.Any) -> PrimitiveConstructorSpec | None:
    """The rule for a number or a word of a few; None for other types, which are left to tyro."""
    if kind in _KINDS:
        return _of_numbers(kind)
    return _of_words(typing.get_args(kind)) if typing.get_origin(kind) is typing.Literal else None


def _of_numbers(kind: type) -> PrimitiveConstructorSpec:
    metavar, expected = _KINDS[kind]

    def made(words: list[str]) -> int | float:
        try:
            return kind(words[0])
        except ValueError:
            raise Unfit(f"expected {expected}, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=made,
        is_instance=lambda value: isinstance(value, (int, kind)) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _of_words(words: tuple[str, ...]) -> PrimitiveConstructorSpec:
    def made(given: list[str]) -> str:
        if given[0] not in words:
            raise Unfit(f"expected {'one of ' if len(words) > 1 else ''}{', '.join(words)}, got {given[0]!r}")
        return given[0]

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(words)}}}",
        instance_from_str=made,
        is_instance=lambda value: value in words,
        str_from_instance=lambda value: [value],
    )


_TEXT = PrimitiveConstructorSpec(
    nargs=1,
    metavar="STR",
    instance_from_str=lambda words: words[0],
    is_instance=lambda value: isinstance(value, str),
    str_from_instance=lambda value: [value],
)


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """The rule for an optional number, string, path of `_paths` or word of a few; other types are left to tyro."""
    parts = typing.get_args(info.type)
    if info.type_origin not in (typing.Union, types.UnionType) or len(parts) != 2 or type(None) not in parts:
        return None
    kind = next(part for part in parts if part is not type(None))
    own = (spec for spec in getattr(kind, "__metadata__", ()) if isinstance(spec, PrimitiveConstructorSpec))
    inner = _TEXT if kind is str else next(own, None) or _of_kind(kind)
    if inner is None:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=inner.metavar,
        instance_from_str=lambda words: None if words[0] == ABSENT else inner.instance_from_str(words),
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=lambda value: [ABSENT] if value is None else inner.str_from_instance(value),
    )
