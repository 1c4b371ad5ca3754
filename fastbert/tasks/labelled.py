"""Texts whose class is not in a column, but before them in the line, or the name of their directory."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from ..text_files import decode_text
from .bad_rows import BadRows, called
from .files import shorten
from .hub_files import Record, is_hub_file

_log = logging.getLogger("fastbert")
_LINES = (
    # TREC's questions have two labels, as in DESC:manner, which data-set hubs put into columns of these names.
    re.compile(r"(?P<fine_label>(?P<coarse_label>ABBR|DESC|ENTY|HUM|LOC|NUM):[a-z]+)[ \t]+(?P<text>.+)"),
    re.compile(r"__label__(?P<label>\S+)[ \t]+(?!__label__)(?P<text>.+)"),  # fastText's
    re.compile(r"\((?P<label>[0-4]) (?P<tree>\([0-4] .+\)|[^ \t()]+)\)"),  # Stanford's sentiment trees, SST-5
)
# fastText's, with several labels.
_SEVERAL = re.compile(r"(?P<several>(?:__label__\S+[ \t]+)+)(?P<text>(?!__label__).+)")
# A word may have a no-break space in it, as "8 1/2" has. Every phrase without others in it is a word.
_LEAF, _INNERMOST = re.compile(r"\([0-4] ([^ \t()]+)\)"), re.compile(r"\([^()]*\)")
UNLABELLED = "unsup"
"""IMDB's directory of texts without a class."""


def line_records(
    path: str | os.PathLike,
    first: tuple[int, str],
    lines: Iterator[tuple[int, str]],
    bad_rows: BadRows,
    several: bool = False,
) -> Iterator[Record] | None:
    """The texts and labels of a file whose first line has one of the forms in `_LINES`; None for any other file, of
    which no further line is then read.

    Args:
        path: the file, for messages.
        first, lines: the file's first line and the following ones, with their numbers.
        bad_rows: what to do with lines that do not have the form of the first.
        several: whether a text may have several labels, which only fastText's lines have.
    """
    form = next((form for form in ((_SEVERAL,) if several else _LINES) if form.fullmatch(first[1].strip())), None)
    return None if form is None else _matched(path, form, itertools.chain([first], lines), bad_rows)


def _matched(
    path: str | os.PathLike, form: re.Pattern, lines: Iterator[tuple[int, str]], bad_rows: BadRows
) -> Iterator[Record]:
    for number, line in lines:
        found, where = form.fullmatch(line.strip()), f"{called(path)}, line {number}"
        if found is not None:
            values = found.groupdict()
            if several := values.pop("several", None):
                values["label"] = [label.removeprefix("__label__") for label in several.split()]
            if values.pop("tree", None) is not None:  # a class for every phrase; the sentence's is that of the root
                words = _LEAF.findall(line)
                if len(words) != len(_INNERMOST.findall(line)):
                    bad_rows.refuse(f"{where}: expected a tree of words, each with its class, got {shorten(line)!r}")
                    continue
                values["text"] = " ".join(words)
            yield Record(where, {"label": values.get("coarse_label"), **values})
        elif line.strip():
            labels = "labels" if form is _SEVERAL else "one label"
            bad_rows.refuse(f"{where}: expected {labels} and a text, as in the first line, got {shorten(line)!r}")


def directory_records(path: str | os.PathLike, bad_rows: BadRows) -> Iterator[Record]:
    """The texts of a directory with a subdirectory for each class and a file for each text, as IMDB and 20 Newsgroups
    are published; or of a directory without subdirectories, whose texts have no labels. Classes alternate, so that the
    first rows come from all of them. Hidden files are skipped: file managers leave some behind.

    Raises:
        DataError: the directory has another form; or by bad_rows, for a text that cannot be decoded.
    """
    directories = [entry for entry in _shown(Path(path)) if entry.is_dir()]
    classes = [directory for directory in directories if directory.name != UNLABELLED]
    if len(classes) < len(directories):
        left_out = os.path.join(path, UNLABELLED)
        _log.warning("%s: texts without a class are left out", left_out)
    groups = classes or [Path(path)]
    files = [[entry for entry in _shown(group) if entry.is_file()] for group in groups]
    empty = next((str(group) for group, texts in zip(groups, files, strict=True) if not texts), None)
    if empty is not None:
        raise DataError(
            f"{path}: expected a directory for each class, with a file for each text, got no files in {empty}"
        )
    texts = list(filter(None, itertools.chain.from_iterable(itertools.zip_longest(*files))))
    if all(map(is_hub_file, texts)):
        raise DataError(
            f"{path}: expected a directory with a file for each text, got files of many rows ({texts[0].name}): "
            "name them in place of their directory (--train takes several)"
        )
    for file in texts:
        name = file.relative_to(path).as_posix()
        try:
            text = decode_text(file.read_bytes(), str(file), DataError, bad_rows.decode)
        except DataError as error:
            bad_rows.refuse(str(error))
            continue
        yield Record.of(str(file), {"id": name, "text": text, "label": file.parent.name if classes else None})


def _shown(directory: Path) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
