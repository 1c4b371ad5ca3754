"""Recipes that come with the package: YAML files of `PretrainConfig`; without torch."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError

_DIRECTORY = Path(__file__).resolve().parents[1] / "recipes"


def names() -> list[str]:
    """The names of all recipes."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.yaml"))


def path(name: str) -> Path:
    """The file of a recipe. Raises InputError if there is no recipe of that name."""
    if name not in names():
        raise InputError(f"no recipe is called {name!r}; there are {', '.join(names())}")
    return _DIRECTORY / f"{name}.yaml"


def summary(name: str) -> str:
    """The first line of a recipe's file, a comment that describes it."""
    return path(name).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
