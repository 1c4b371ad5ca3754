"""What the package as a whole promises: its public names and their types, and one direction of its imports."""

import ast
import importlib
import inspect
import re
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import typing_extensions

import fastbert
from fastbert.models import PreTrainedModel

ROOT = Path(fastbert.__file__).parent

# docs/architecture.md: a package imports of those below it alone, and of none beside it.
LAYERS = (
    {"cli"},
    {"demo", "bench", "study"},
    {"tasks"},
    {"train"},
    {"interop"},
    {"models"},
    {"weights"},
    {"modules"},
    {"data", "optim"},
    {"ops"},
    {"reference", "triton_kernels"},
)
# Modules beside the packages stand below them all, but for the command, the public names, and what looks from outside.
ABOVE = {"__init__", "__main__", "_environment"}
# ELMo's vocabulary is a table of characters.
UPWARD = {("elmo_config", "data.characters")}

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


def test_no_module_has_a_public_names_name():
    """Once it is imported, a module takes the name's place as the package's attribute."""
    assert not [name for name in fastbert._LAZY if (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()]


def public_functions() -> list[tuple[str, Callable]]:
    """What a user calls by a name of `fastbert`, `fastbert.ops` or `fastbert.optim`, methods and properties too."""
    found = {}
    spaces = [
        (fastbert, fastbert._LAZY),
        (fastbert.ops, fastbert.ops.__all__),
        (fastbert.optim, fastbert.optim.__all__),
    ]
    for space, names in spaces:
        for name in names:
            value = getattr(space, name)
            found[name] = value
            for owner in reversed(value.__mro__) if isinstance(value, type) else ():
                if owner.__module__.startswith("fastbert."):
                    found |= {f"{name}.{key}": each for key, each in vars(owner).items() if not key.startswith("_")}
    plain = {name: getattr(value, "fget", None) or getattr(value, "__func__", value) for name, value in found.items()}
    # An alias of a type can be called too.
    return [(name, value) for name, value in plain.items() if callable(value) and typing.get_origin(value) is None]


def test_every_public_function_is_documented_and_typed():
    """A parameter without a type, and a bare `list`, are unknown to a strict type checker in the user's own file."""
    bare = re.compile(r"\b(dict|list|tuple|Callable|Sequence|Iterable|Mapping|PathLike|ndarray)\b(?!\[)")
    wrong = []
    for name, function in public_functions():
        if not inspect.getdoc(function):
            wrong.append(f"{name} has no docstring")
        said = inspect.signature(function)
        hints = {key: p.annotation for key, p in said.parameters.items() if key not in ("self", "cls", "_args")}
        if not isinstance(function, type):
            hints["the result"] = said.return_annotation
        wrong += [f"{name}: {key}" for key, hint in hints.items() if hint is said.empty or bare.search(str(hint))]
    assert wrong == []


@pytest.mark.parametrize("model", public_models(), ids=lambda model: model.__name__)
def test_a_models_configuration_has_the_type_of_its_kind(model):
    assert typing.get_type_hints(model)["config"] is model.config_class


def test_loading_gives_the_class_that_was_asked_for():
    for name in ("from_pretrained", "from_config", "train"):
        assert typing.get_type_hints(getattr(PreTrainedModel, name))["return"] is typing_extensions.Self, name


def imports(path: Path) -> list[str]:
    """The modules of the package that a file imports anywhere but for type checkers, as "package.module"."""
    home = path.relative_to(ROOT).parent.parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["fastbert", *home[: len(home) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            found += [[*base, alias.name] for alias in node.names]
    return [module_of(names) for _, *names in filter(lambda full: full[0] == "fastbert", found)]


def module_of(names: list[str]) -> str:
    """The module that names below `fastbert` lead to; a public one is of that which it is loaded from."""
    if len(names) == 1:
        return fastbert._LAZY.get(names[0], names[0])
    place = ROOT.joinpath(*names)
    is_module = place.is_dir() or place.with_suffix(".py").is_file()
    return ".".join(names if is_module else names[:-1]) or "__init__"


def test_imports_go_one_way():
    rank = {name: -number for number, names in enumerate(LAYERS, 1) for name in names}
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert set(rank) == packages
    rank |= dict.fromkeys(ABOVE, rank["tasks"])  # they lead to all public names
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if own in ABOVE:
            continue
        for module in imports(path):
            package = module.partition(".")[0]
            # Modules beside the packages have no rank of their own: they stand at the bottom.
            down = package == own or rank.get(package, -len(LAYERS) - 1) < rank.get(own, -len(LAYERS))
            if not down and (own, module) not in UPWARD:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_no_module_imports_what_imports_it():
    """One way within a package too, wherever in a file the import stands."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.rglob("*.py")}
    below = {name.removesuffix(".__init__"): set(imports(path)) for path, name in names.items()}
    # Modules that import nothing that is left are taken away, until those of circles remain.
    while free := [name for name, found in below.items() if found.isdisjoint(below)]:
        for name in free:
            del below[name]
    assert below == {}


# Where one file stands for one thing, an op, a command, a library, the docstring says so and need not name them.
ALL, PRIVATE = "*.py", "_*.py"
MAPS = {"ops": PRIVATE, "cli": PRIVATE}
MAPS |= dict.fromkeys(("bench", "data", "demo", "interop", "models", "modules", "optim"), ALL)
MAPS |= dict.fromkeys(("study", "tasks", "train", "train/engines", "weights"), ALL)


@pytest.mark.parametrize("package", MAPS)
def test_a_packages_docstring_names_all_its_modules(package):
    """It is a map for readers. A name that ends in * stands for all that begin with what is before it."""
    names = re.findall(r"\w+\*?", ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))))
    beginnings = tuple(name[:-1] for name in names if name.endswith("*"))
    modules = {path.stem for path in (ROOT / package).glob(MAPS[package])} - {"__init__"}
    assert sorted(m for m in modules - set(names) if not m.startswith(beginnings)) == []


def test_the_reference_imports_nothing_of_what_it_is_compared_with():
    paths = list((ROOT / "reference").rglob("*.py"))
    assert [module for path in paths for module in imports(path) if not module.startswith("reference")] == []
    assert imports(ROOT / "ops" / "gelu.py"), "nothing would be found"
