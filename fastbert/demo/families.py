"""The demo's classification task: which family of modules a docstring is from.

A family is a handful of modules on one subject. Names of modules are removed from the texts, so that the subject must
be recognised from the words, and the test texts are from modules that neither pre-training nor fine-tuning has seen.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable

from ..data.builtin_corpus import docstring_sentences, docstrings
from ..tasks.base import Row

FAMILIES = {
    "concurrency": (
        "asyncio multiprocessing threading concurrent queue sched subprocess selectors _asyncio _thread signal "
        "contextvars"
    ),
    "email": "email mailbox mimetypes quopri uu base64 binascii",
    "files": (
        "os posix pathlib shutil tempfile tarfile zipfile gzip bz2 lzma io _io glob fnmatch fileinput posixpath stat "
        "filecmp genericpath"
    ),
    "gui": "tkinter idlelib turtle curses",
    "language": (
        "ast inspect typing types enum dataclasses abc functools collections dis tokenize symtable copy pickle "
        "pickletools pyclbr builtins itertools operator weakref"
    ),
    "markup": "xml html json csv configparser plistlib tomllib _elementtree pyexpat netrc",
    "math": (
        "decimal _decimal math cmath statistics fractions numbers random datetime _datetime calendar time zoneinfo "
        "heapq bisect"
    ),
    "network": (
        "http urllib xmlrpc socketserver ftplib smtplib imaplib poplib nntplib telnetlib ssl socket _socket _ssl "
        "wsgiref asyncore asynchat smtpd cgi ipaddress"
    ),
    "packaging": (
        "distutils importlib pkgutil venv zipimport runpy sysconfig site zipapp modulefinder imp compileall py_compile"
    ),
    "testing": ("unittest doctest pdb bdb trace traceback profile cProfile pstats timeit cmd code logging warnings"),
}
_FAMILY_OF = {module: family for family, modules in FAMILIES.items() for module in modules.split()}

# Otherwise a family whose test modules are long would dominate the test set.
_MOST_TEST_TEXTS = 40
_SHORTEST_TEXT = 60  # characters; shorter texts do not tell their subject
_LARGEST_DOCUMENT = 0.75  # of the share to hold out: a larger document would be most of it


def family_of(document: str) -> str:
    """The family of a module or help topic; "help" and "other" are not classes of the task."""
    if document.startswith("help/"):
        return "help"
    return _FAMILY_OF.get(document.split(".")[0], "other")


def split_documents(sizes: Iterable[tuple[str, int]], share: float) -> tuple[frozenset[str], frozenset[str]]:
    """Chooses the documents to hold out from training: twice about this share of the text of every family.

    Args:
        sizes: (document, length of its text).

    Returns:
        the validation documents, by which choices are made (the recipe, the best checkpoint), and the test documents,
        which no choice has seen and for which the figures are reported.
    """
    families: dict[str, list[tuple[int, str, int]]] = {}
    for name, size in sizes:
        families.setdefault(family_of(name), []).append((zlib.crc32(name.encode()), name, size))
    validation, test = set(), set()
    for members in families.values():
        wanted = share * sum(size for _, _, size in members)
        validation |= _about(sorted(members), wanted)
        test |= _about(sorted((m for m in members if m[1] not in validation), reverse=True), wanted)
    return frozenset(validation), frozenset(test)


def _about(members: list[tuple[int, str, int]], wanted: float) -> set[str]:
    """The first documents that together have about this much text."""
    chosen, got = set(), 0
    for _, name, size in members:
        if got < wanted and size <= wanted * _LARGEST_DOCUMENT:
            chosen.add(name)
            got += size
    return chosen


def labelled_texts(validation: frozenset[str], testing: frozenset[str]) -> tuple[list[Row], list[Row]]:
    """Docstrings labelled with their families: training rows from modules seen in pre-training, and test rows.

    A family without both is left out: some systems' Python has no tkinter, whose modules are most of "gui".
    """
    corpus = docstrings()
    parts = {part for module, _, _ in corpus if family_of(module) in FAMILIES for part in module.split(".")}
    names = {name.lower() for name in (*_FAMILY_OF, *(part for part in parts if len(part) > 2))}
    seen: set[str] = set()
    train, test = [], []
    for module, name, text in corpus:
        family = family_of(module)
        if family not in FAMILIES or module in validation:
            continue
        text = " ".join(docstring_sentences(text))
        text = " ".join(re.sub(r"\w+", lambda word: " " if word[0].lower() in names else word[0], text).split())
        words = " ".join(re.findall(r"\w+", text.lower()))
        if len(text) < _SHORTEST_TEXT or words in seen:
            continue
        seen.add(words)
        (test if module in testing else train).append(Row(f"{module}.{name}", (text,), family))
    both = {row.label for row in train} & {row.label for row in test}
    train, test = ([row for row in rows if row.label in both] for rows in (train, test))
    return train, few_labels(test, _MOST_TEST_TEXTS, seed=0)


def classes(rows: list[Row]) -> tuple[str, ...]:
    """The families that occur in the rows, in the order of `FAMILIES`."""
    found = {row.label for row in rows}
    return tuple(family for family in FAMILIES if family in found)


def few_labels(rows: list[Row], each: int, seed: int) -> list[Row]:
    """``each`` rows of every family, or all if it has fewer, chosen at random."""
    draw = random.Random(seed)
    chosen = []
    for family in FAMILIES:
        mine = [row for row in rows if row.label == family]
        chosen += draw.sample(mine, min(each, len(mine)))
    return chosen
