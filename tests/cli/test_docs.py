"""What the pages say of commands, options, names and files is there, and what they say to type is accepted."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import re
import shlex
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fastbert.cli.main import COMMANDS, _command_module, _docstring, command_class, main
from fastbert.tasks.registry import TASKS

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}
# Its blocks are signatures and not programs.
SIGNATURES = "docs/architecture.md"


def options(command: type, prefix: str = "") -> set[str]:
    """Every option that a command knows."""
    found, hints = {"--help"}, typing.get_type_hints(command)
    for field in dataclasses.fields(command):
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hints[field.name]):
            found |= options(hints[field.name], f"{name}.")
        elif field.default is True:
            found.add(f"--{name.rpartition('.')[0]}.no-{name.rpartition('.')[2]}".replace("--.", "--"))
        else:
            found.add(f"--{name}")
    return found


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            thing = getattr(thing, part, None)
        return thing is not None
    return False


def anchors(text: str) -> set[str]:
    """What a link can name after "#": the headings, as GitHub spells them."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def leads_nowhere(link: str, page: Path) -> bool:
    """Whether a relative link's file, or the heading in it, is missing."""
    file, _, heading = link.partition("#")
    target = page.parent / file if file else page
    if not target.exists():
        return True
    return bool(heading) and heading not in anchors(target.read_text(encoding="utf-8"))


def lines_to_type(text: str) -> Iterator[str]:
    """The lines of a page's shell blocks, and the commands with options in its tables."""
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        yield from (code for code in re.findall(r"`([^`]+)`", row) if " --" in code)


def commands(lines: Iterable[str]) -> list[list[str]]:
    """The words after each ``fastbert``, except where "..." stands for more of them."""
    found = []
    for line in lines:
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        words = [*reader, ";"] if "fastbert " in line else []
        for start, word in enumerate(words, 1):
            if word == "fastbert" and re.fullmatch(r"[a-z][a-z-]*", words[start]):
                end = next(at for at in range(start, len(words)) if words[at][0] in ";|<>&" or words[at] == "...")
                if words[end] != "...":
                    found.append(words[start:end])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    text = PAGES[page].read_text(encoding="utf-8")
    wrong = []
    for command, words in re.findall(r"(?<![\w./])fastbert ([a-z-]+)([^\n`#|;)\"]*)", text.replace("\\\n", " ")):
        if command in COMMANDS:
            given = re.findall(r"(?<!\S)--[a-z][\w.-]*\w", words)
            wrong += [f"{command} {name}" for name in set(given) - options(command_class(command))]
    names = set(re.findall(r"\bfastbert(?:\.[A-Za-z_]\w*)+", text))
    wrong += [name for name in names if not name.endswith((".yaml", ".py", ".json")) and not resolves(name)]
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    wrong += [link for link in links if leads_nowhere(link, PAGES[page])]
    files = re.findall(r"(?<![\w/.-])((?:tests|benchmarks|fastbert|examples|csrc)/[\w./-]*\w)", text)
    wrong += [file for file in files if not (ROOT / file).exists() and "DATE" not in file]
    for script, words in re.findall(r"((?:benchmarks|examples)/[\w/]*\w\.py)([^\n`#|;]*)", text.replace("\\\n", " ")):
        source = (ROOT / script).read_text(encoding="utf-8") if (ROOT / script).exists() else ""
        given = re.findall(r"(?<!\S)--[a-z][\w-]*\w", words)
        wrong += [f"{script} {name}" for name in set(given) if f'"{name}"' not in source]
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if page != SIGNATURES else ():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("fastbert"):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
                wrong += [name for name in imported if not resolves(name)]
    assert not wrong


@pytest.fixture
def asked(tmp_path, monkeypatch, capsys):
    """Gives words to the command line, up to where a command would run; returns what is said against them, or ""."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").mkdir()
    options = re.search(r"```yaml\n(task: .*?)```", PAGES["docs/finetuning.md"].read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "sst2.yaml").write_text(options[1])

    def ask(words: list[str]) -> str:
        if words[0] not in COMMANDS:
            return f"no such command: {words[0]}"
        (tmp_path / "RUN" / "config.yaml").write_text(options[1] if words[0] == "finetune" else "data: DATA\n")
        monkeypatch.setattr(_command_module(words[0]), "run", lambda args: None)
        return capsys.readouterr().err or f"status {status}" if (status := main(words)) else ""

    return ask


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/LOG.md"])
def test_commands_of_a_page_are_accepted_as_printed(page, asked):
    """Options, those that are required, and values."""
    printed = commands(lines_to_type(PAGES[page].read_text(encoding="utf-8")))
    said = {" ".join(words): asked(words) for words in printed}
    assert not {words: against for words, against in said.items() if against}
    tasks = {words[1] for words in printed if words[0] in ("finetune", "evaluate", "predict")}
    assert tasks <= {*TASKS, "TASK", "--config"}  # the file has the task


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_a_help_are_accepted_as_printed(command, asked):
    found = commands(_docstring(command_class(command)).partition("Example:")[2].splitlines())
    assert found
    assert not [words for words in found if asked(words)]


def test_a_command_that_is_not_accepted_is_found(asked):
    printed = [
        "fastbert vocab books.txt",
        "A=1 torchrun -m fastbert pretrain --data DATA --out RUN --precision fp4  # fast",
        "cat lines.txt | fastbert encode --model DIR - && ls",
        "fastbert report RUN ...",
        "fastbert pretrian --data DATA --out RUN",
    ]
    said = {words[0]: asked(words) for words in commands(printed)}
    assert set(said) == {"vocab", "pretrain", "encode", "pretrian"}
    assert "--out" in said["vocab"]
    assert "fp4" in said["pretrain"]
    assert said["encode"] == ""
    assert said["pretrian"] == "no such command: pretrian"


@pytest.mark.parametrize("page", PAGES)
def test_columns_of_tables_have_names(page):
    """All but the first, whose cells may be names themselves."""
    nameless = []
    for line, rule in itertools.pairwise(PAGES[page].read_text(encoding="utf-8").splitlines()):
        if re.fullmatch(r" *\|[ :|-]*-[ :|-]*\| *", rule):
            names = line.strip().removeprefix("|").removesuffix("|").split("|")
            nameless += [line] if not all(name.strip() for name in names[1:]) else []
    assert not nameless


def test_the_commands_of_a_page_are_found():
    """Or nothing that a page says could be wrong."""
    assert {"--samples.no-nsp", "--no-verify-data", "--steps", "--samples.max-seqlen"} <= options(
        command_class("pretrain")
    )
    assert "--verify-data" not in options(command_class("pretrain"))
    assert resolves("fastbert.data.budget")
    assert not resolves("fastbert.data.budgets")


def test_a_heading_that_is_missing_is_found():
    page = PAGES["docs/use.md"]
    assert not leads_nowhere("quantization.md#how-it-works", page)
    assert not leads_nowhere("#speed", page)
    assert leads_nowhere("quantization.md#how-it-worked", page)
    assert leads_nowhere("#spede", page)
    assert leads_nowhere("quantisation.md", page)
