"""The built-in corpus: the English documentation that comes with every Python.

It is made of `pydoc_data.topics` (the language reference as `help()` shows it) and of the docstrings of the standard
library, about 2.0 MB in 570 documents on CPython 3.11. Nothing is downloaded, and the same interpreter always gives the
same text in the same order.

Python modules are parsed, never imported: an import may open a window (`turtledemo`) or a browser (`antigravity`) or
print a poem (`this`). Only modules written in C, whose docstrings are nowhere but in the binary, are imported, and only
those on a list of modules without side effects.
"""

import ast
import functools
import importlib
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from ..text_files import parse_python

# Tests contain no documentation; encodings and pydoc_data contain tables; ensurepip, site-packages and dist-packages
# contain third-party code, which differs between machines.
_SKIPPED_FOLDERS = {
    "__pycache__", "test", "tests", "idle_test", "site-packages", "dist-packages", "ensurepip", "_bundled",
    "encodings", "pydoc_data", "lib-dynload", "lib2to3", "turtledemo",
}  # fmt: skip

# Python versions of modules whose text is taken from elsewhere (the C list below, `posixpath`): near-duplicates.
_SKIPPED_MODULES = {"_pydatetime", "_pydecimal", "_pyio", "_pylong", "_pyrepl", "ntpath", "nturl2path", "sre_compile"}

_C_MODULES = (
    "_asyncio", "_bisect", "_bz2", "_collections", "_contextvars", "_csv", "_datetime", "_decimal", "_elementtree",
    "_functools", "_hashlib", "_heapq", "_imp", "_io", "_json", "_locale", "_lzma", "_opcode", "_pickle", "_queue",
    "_random", "_signal", "_socket", "_sqlite3", "_sre", "_ssl", "_statistics", "_struct", "_thread", "_tracemalloc",
    "_warnings", "_weakref", "array", "atexit", "binascii", "builtins", "cmath", "errno", "faulthandler", "fcntl",
    "gc", "grp", "itertools", "marshal", "math", "mmap", "posix", "pwd", "pyexpat", "resource", "select", "sys",
    "syslog", "termios", "time", "unicodedata", "zlib",
)  # fmt: skip

_SHORTEST_SENTENCE = 12  # characters; shorter ones are headings, list numbers and single operators
_LONGEST_SENTENCE = 2000  # characters; longer ones are tables and grammars, which do not fit into a sentence pair

_UNDERLINE = re.compile(r"^\s*([=\-*~^\"'#_.+])\1{2,}\s*$")
_LIST_ITEM = re.compile(r"^\s*([*\-+•]|\d+[.)])\s")
# A full stop ends a sentence when white space and something that can begin one follow, but not after an initial
# or an abbreviation.
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\b[A-Z]\.)\s+(?=[A-Z`\"'(\[*_<])"
)


def documents() -> Iterator[tuple[str, list[str]]]:
    """Yields (document name, its sentences) for every module and every help topic, sorted by name.

    One module is one document, with its docstrings in the order of the source. A sentence that occurred before, in this
    or in another document, is left out: documentation repeats itself (subclasses, C versions, topics that include
    others), and a repeated sentence would leak from the training into the held-out documents.
    """
    seen: set[str] = set()
    texts: dict[str, list[str]] = {}
    for module, _, text in docstrings():
        texts.setdefault(module, []).append(text)
    for topic, text in sorted(_topics().items()):
        texts["help/" + topic] = [text]
    for name in sorted(texts):
        fresh = []
        for text in texts[name]:
            for sentence in docstring_sentences(text):
                key = " ".join(re.findall(r"\w+", sentence.lower()))
                if key not in seen:
                    seen.add(key)
                    fresh.append(sentence)
        if fresh:
            yield name, fresh


@functools.cache
def docstrings() -> tuple[tuple[str, str, str], ...]:
    """(module, name inside the module, cleaned docstring) of the standard library, sorted by module.

    The name is empty for the module's own docstring, and `Class.method` for a method's. Parsing the library takes
    seconds, so it is done once per process.
    """
    return tuple(_docstrings())


def _docstrings() -> Iterator[tuple[str, str, str]]:
    sources = dict(_source_modules())
    for module in sorted(sources.keys() | set(_C_MODULES)):
        found = _from_source(sources[module]) if module in sources else _from_binary(module)
        for name, text in found:
            text = inspect.cleandoc(text).strip()
            if text:
                yield module, name, text


def docstring_sentences(text: str) -> list[str]:
    """Splits a docstring or help topic into sentences, with white space normalised.

    The lines of a paragraph are joined, but list items stay apart. Doctest sessions and underlines of headings are
    dropped, since they are not English.
    """
    sentences = []
    for paragraph in re.split(r"\n\s*\n", text):
        blocks: list[str] = []
        lines = [line for line in paragraph.splitlines() if not _UNDERLINE.match(line)]
        if any(line.lstrip().startswith(">>>") for line in lines):
            continue
        for line in lines:
            if blocks and not _LIST_ITEM.match(line):
                blocks[-1] += " " + line
            else:
                blocks.append(line)
        for block in blocks:
            for sentence in _SENTENCE_END.split(" ".join(block.split())):
                if _SHORTEST_SENTENCE <= len(sentence) <= _LONGEST_SENTENCE and re.search(r"[A-Za-z]{3}", sentence):
                    sentences.append(sentence)
    return sentences


def _source_modules() -> Iterator[tuple[str, Path]]:
    """Every module of the standard library that is written in Python: its dotted name and its file."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        folders = parts[:-1]
        # `config-3.11-x86_64-linux-gnu` and `_sysconfigdata_...` describe the build, not Python.
        if _SKIPPED_FOLDERS & set(folders) or any("-" in part for part in parts):
            continue
        if parts[0] in _SKIPPED_MODULES or parts[0].startswith("_sysconfigdata"):
            continue
        yield ".".join(folders if parts[-1] == "__init__" else parts), path


def _from_source(path: Path) -> Iterator[tuple[str, str]]:
    """The docstrings of a Python file, without running it; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules do not concern the user
            tree = parse_python(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        text = ast.get_docstring(node, clean=False)
        if text:
            yield prefix, text
        yield from inside(node, prefix)

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, f"{prefix}.{child.name}" if prefix else child.name)
            elif isinstance(child, ast.stmt):  # definitions under `if` and `try`
                yield from inside(child, prefix)

    yield from walk(tree, "")


def _from_binary(name: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a module written in C; none if this Python lacks it."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return
    if not name.startswith("_") and getattr(module, "__file__", "").endswith(".py"):
        return  # another implementation has it in Python, and its source was not found
    yield from _described("", module)
    for key, value in sorted(vars(module).items()):
        # Names imported from another module are documented there.
        owner = getattr(value, "__module__", None)
        if not callable(value) or (inspect.isclass(value) and key != value.__name__):
            continue
        if owner not in (None, name, name.lstrip("_"), "builtins") or (owner == "builtins" and name != "builtins"):
            continue
        yield from _described(key, value)
        if inspect.isclass(value):
            for method, function in sorted(vars(value).items()):
                yield from _described(f"{key}.{method}", function)


def _described(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The docstring of a C object, unless it is its type's."""
    text = getattr(value, "__doc__", None)
    if isinstance(text, str) and (inspect.isclass(value) or text != type(value).__doc__):
        yield name, text


def _topics() -> dict[str, str]:
    """The help topics; empty on systems that package them separately."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return {}
    return topics
