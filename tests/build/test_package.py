"""What the package as a whole promises: its public names, and their types for those who check or complete by them."""

import ast
import importlib
import typing
from pathlib import Path

import pytest
import typing_extensions

import fastbert
from fastbert.models import PreTrainedModel

ROOT = Path(fastbert.__file__).parent

# Modules whose models a user names.
MODELS = ("models", "models.gpt", "models.gpt_heads", "models.elmo", "models.static")


def public_models() -> list[type[PreTrainedModel]]:
    held = [vars(importlib.import_module(f"fastbert.{module}")).values() for module in MODELS]
    found = {value for values in held for value in values if isinstance(value, type)}
    return sorted((c for c in found if issubclass(c, PreTrainedModel) and c is not PreTrainedModel), key=str)


def test_type_checkers_are_told_every_public_name():
    """They do not run `__getattr__`: a name that is missing here has no type and no completion."""
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    told = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for line in node.body:
                # `X as X` is what re-exports from a package that is typed.
                assert all(alias.name == alias.asname for alias in line.names)
                told |= {alias.name: line.module for alias in line.names}
    assert told == {**fastbert._LAZY, **dict.fromkeys(fastbert._SUBMODULES)}


@pytest.mark.parametrize("model", public_models(), ids=lambda model: model.__name__)
def test_a_models_configuration_has_the_type_of_its_kind(model):
    assert typing.get_type_hints(model)["config"] is model.config_class


def test_loading_gives_the_class_that_was_asked_for():
    for name in ("from_pretrained", "from_config", "train"):
        assert typing.get_type_hints(getattr(PreTrainedModel, name))["return"] is typing_extensions.Self, name
