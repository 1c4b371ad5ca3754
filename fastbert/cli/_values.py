"""Parsing of options that are numbers or may be absent. Invalid words are refused in one sentence, and help shows only
the kind of value; tyro itself would report Python types and exceptions."""

from __future__ import annotations

import types
import typing

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ..errors import InputError

ABSENT = "None"
"""The word for no value, which overrides a value from a file of options."""

_KINDS = {int: ("INT", "a whole number such as 20000"), float: ("FLOAT", "a number such as 0.1 or 2e-5")}


class Unfit(InputError):
    """A word that is not a number; the message does not name the option."""


def registry() -> ConstructorRegistry:
    """tyro's registry with these rules; a context manager, inside which they apply."""
    rules = ConstructorRegistry()
    rules.primitive_rule(_number)
    rules.primitive_rule(_optional)
    return rules


def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    return _of_numbers(info.type) if info.type in _KINDS else None


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


_TEXT = PrimitiveConstructorSpec(
    nargs=1,
    metavar="STR",
    instance_from_str=lambda words: words[0],
    is_instance=lambda value: isinstance(value, str),
    str_from_instance=lambda value: [value],
)


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """The rule for an optional number, string or path of `_paths`; other optional types are left to tyro."""
    parts = typing.get_args(info.type)
    if info.type_origin not in (typing.Union, types.UnionType) or len(parts) != 2 or type(None) not in parts:
        return None
    kind = next(part for part in parts if part is not type(None))
    own = [spec for spec in getattr(kind, "__metadata__", ()) if isinstance(spec, PrimitiveConstructorSpec)]
    if not own and kind is not str and kind not in _KINDS:
        return None
    inner = own[0] if own else _TEXT if kind is str else _of_numbers(kind)
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=inner.metavar,
        instance_from_str=lambda words: None if words[0] == ABSENT else inner.instance_from_str(words),
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=lambda value: [ABSENT] if value is None else inner.str_from_instance(value),
    )
