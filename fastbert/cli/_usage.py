"""Command lines that cannot be read are refused in one sentence; tyro itself prints a box of several lines."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence

import tyro

from ..errors import InputError
from ..other_names import called_here
from ..wording import listed

_DRAWN = re.compile(r"\x1b\[[0-9;]*m|[─│╭╮╰╯]")
"""What tyro draws around its words: colours and lines."""

# Each in the words of tyro 1.0 and of 0.9.
_UNKNOWN = re.compile("Unrecognized (?:options|arguments):")
_SHORT = re.compile(r"(?:Missing value for argument '([^']+)'. Expected|Argument (\S+): expected) (\d+) ")
_NO_NUMBERS = re.compile(
    r"Error parsing (--[\w.-]+): Could not (?:find valid parse for arguments:|parse arguments) \[(.*?)\]"
)
_NEEDED = r"^\W*(?:The following arguments are required: .*)?\b{}\W*$"


def check_lists(found: object, argv: Sequence[str]) -> None:
    """Raises InputError for an option with several values that has no value, which tyro accepts, or that is given
    twice, of which tyro keeps the last."""
    for field, names in _lists(type(found)).items():
        given = sum(word.partition("=")[0] in names for word in argv)
        if given and not getattr(found, field):
            raise InputError(f"expected a value or several after {min(names)}, got none")
        if given > 1:
            raise InputError(f"expected {min(names)} once, with all its values after it, got it {given} times")


def check_switches(options: type, argv: Sequence[str]) -> None:
    """Raises InputError for a value of an option that has none (``--json=yes``), which tyro takes for the next word."""
    switches = {name for name, kind in _options(options) if kind == "bool"}
    for word in argv:
        name, equals, value = word.partition("=")
        if equals and _dashed(name) in switches:
            raise InputError(f"{name}: expected no value, got {value!r}")


def refuse(options: type, prog: str, argv: Sequence[str], told: str, default: object = None) -> None:
    """Raises InputError that says in one sentence what is wrong with a command line.

    Returns if ``told``, which tyro has printed, is of no form that is known here.

    Args:
        options: the command's dataclass.
        prog: the command's name in messages.
        argv: the words of the command line.
        told: what tyro has printed.
        default: an instance with the values of options that are not given, if there is one.
    """
    missing = _missing(options, argv, told, default)
    _check_taken(options, argv, missing)
    text = " ".join(_DRAWN.sub(" ", told).split())
    show = f"; `{prog} --help` shows the options"
    if _UNKNOWN.search(text):
        unknown = _UNKNOWN.split(text)[1].partition("For full helptext")[0]
        _refuse_unknown(options, argv, unknown.replace(",", " ").split(), show)
    short = _SHORT.search(text)
    name = short and (short[1] or short[2])
    if name and not name.startswith("--"):  # a word that looks like an option came where an argument should be
        known = {name for name, _ in _options(options)}
        _refuse_unknown(options, argv, [one for one in map(_name, argv) if _dashed(one) not in known], show)
    elif name:
        wanted, got = ("a value", "none") if short[3] == "1" else (f"{short[3]} values", "fewer")
        raise InputError(f"{name}: expected {wanted} after it, got {got}")
    wrong = _NO_NUMBERS.search(text)
    if wrong:
        kind = dict(_options(options)).get(_dashed(wrong[1]), "")
        raise InputError(f"{wrong[1]}: expected {'whole ' if 'int' in kind else ''}numbers, got {wrong[2]}")
    if missing:
        raise InputError(f"expected {listed(missing)}, got none{show}")


def _refuse_unknown(options: type, argv: Sequence[str], told: Sequence[str], show: str) -> None:
    """Raises InputError for the first of the words ``told`` on the command line, an option if there is one."""
    told = set(map(_name, told))
    # Commas stand between the words that tyro prints, and of a blank one ("$VARIABLE" without a value) nothing is left.
    words = [word for word in argv if _name(word.replace(",", " ").strip()) in (told or {""})]
    if not words:
        return
    option = next(filter(re.compile("-+[a-zA-Z]").match, map(_name, words)), None)
    if option is None:
        raise InputError(f"expected no more words, got {words[0]!r}{show}")
    name, known = _dashed(option), [known for known, _ in _options(options)]
    like = [*(one for one in known if one.startswith(name)), *called_here(name, known)]
    like = like or difflib.get_close_matches(name, known, cutoff=0.8)
    hint = f" (perhaps {' or '.join(dict.fromkeys(like[:2]))})" if like else ""
    raise InputError(f"unknown option {option}{hint}{show}")


def _missing(options: type, argv: Sequence[str], told: str, default: object) -> list[str]:
    """The needed arguments that are neither on the command line nor in ``default``, those without a name first."""
    given = {_dashed(_name(word)) for word in argv}
    without, named = [], []
    for field in dataclasses.fields(options):
        if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
            continue
        if getattr(default, field.name, tyro.MISSING) is not tyro.MISSING:
            continue
        option = _dashed(f"--{field.name}")
        if not field.type.startswith("Positional"):
            named += [option] if option not in given else []
        elif re.search(_NEEDED.format(field.name.upper()), told, re.MULTILINE):
            without.append(field.name.upper())
    return without + named


def _check_taken(options: type, argv: Sequence[str], missing: Sequence[str]) -> None:
    """Raises InputError if an argument is missing that an option with several values has taken."""
    alone = next((name for name in missing if not name.startswith("--")), None)
    names = set().union(*_lists(options).values())
    option, values = "", []
    for word in (*argv, "--"):
        if not word.startswith("--"):
            values.append(word)
            continue
        if alone is not None and option in names and len(values) > 1:
            took = f"which takes all words up to the next option; the last is {values[-1]}"
            raise InputError(f"expected {alone} before {option}, {took}")
        option, values = word, []


def _lists(options: type) -> dict[str, set[str]]:
    """The options with several values: name of the field -> the option's possible names."""
    fields = (field for field in dataclasses.fields(options) if ", ...]" in field.type)
    return {field.name: {f"--{field.name}", f"--{field.name.replace('_', '-')}"} for field in fields}


def _options(options: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The name of every option, ``--no-...`` included, and its type; nested ones have names with a dot."""
    for field in dataclasses.fields(options):
        if dataclasses.is_dataclass(field.default_factory):
            yield from _options(field.default_factory, f"{prefix}{field.name}.")
        elif not field.type.startswith("Positional"):
            for name in (field.name, *([f"no_{field.name}"] if field.type == "bool" else [])):
                yield _dashed(f"--{prefix}{name}"), field.type


def _name(word: str) -> str:
    """A word of the command line without a value after ``=`` and without what follows a blank."""
    return re.split(r"[=\s]", word, maxsplit=1)[0]


def _dashed(name: str) -> str:
    return name.replace("_", "-")
