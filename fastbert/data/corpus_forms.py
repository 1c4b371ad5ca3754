"""Published forms of text: WikiExtractor's and WikiText's articles, and files with <|endoftext|> between documents."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

# The line with which WikiExtractor begins an article, and the keys of its JSON.
_ARTICLE = re.compile(r'<doc id="\d+" .*\btitle="(?P<title>.*)">')
WIKI_KEYS = {"id", "revid", "url", "title", "text"}

# WikiText's titles, and the headings within its articles.
_TITLE, _HEADING = re.compile("= [^=].* ="), re.compile("= = .* = =")

# The line between documents in dumps for GPTs, such as TinyStories.
_END = "<|endoftext|>"

# How many characters and rows are looked at to tell a form.
_AHEAD_CHARS, _AHEAD_ROWS = 1 << 20, 200

Lines = Iterable[tuple[int, str]]


def plain_lines(lines: Lines) -> Iterator[tuple[int, str]]:
    """Converts the published forms to lines with blank lines between documents, and leaves other text as it is.

    Args:
        lines: the numbers of the lines, and the lines, which are stripped.
    """
    return _without_headings(_without_tags(_without_ends(lines)))


def lines_of_rows(rows: Lines) -> tuple[Iterator[tuple[int, str]] | None, Iterator[tuple[int, str]]]:
    """The lines, as of `plain_lines`, in rows that hold a line of WikiText each, as data-set hubs have it; None for
    rows of another kind. And the rows, if they have not been used for that.

    A part of such a set may begin within an article, so a title or heading in a row of its own tells the form.
    """
    rows, ahead, chars = iter(rows), [], 0
    for number, text in rows:
        ahead.append((number, text))
        chars += len(text)
        if _is_heading(text.strip()):
            lines = ((number, text.strip()) for number, text in itertools.chain(ahead, rows))
            return _articles(lines), iter(())
        if chars > _AHEAD_CHARS or len(ahead) == _AHEAD_ROWS:
            break
    return None, itertools.chain(ahead, rows)


def unescaped(text: str) -> str:
    """A text of WikiExtractor, which writes <, > and & as in HTML."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _is_heading(line: str) -> bool:
    return bool(_TITLE.fullmatch(line) or _HEADING.fullmatch(line))


def _without_ends(lines: Lines) -> Iterator[tuple[int, str]]:
    """Text with <|endoftext|> in a line between documents: these lines become blank, and blank lines within a document
    are dropped. The first of them must be near the beginning."""
    lines, ahead, chars = iter(lines), [], 0
    for number, line in lines:
        ahead.append((number, line))
        chars += len(line)
        if line == _END or chars > _AHEAD_CHARS:
            break
    if not ahead or ahead[-1][1] != _END:
        yield from itertools.chain(ahead, lines)
        return
    for number, line in itertools.chain(ahead, lines):
        if line:
            yield number, "" if line == _END else line


def _without_tags(lines: Lines) -> Iterator[tuple[int, str]]:
    """WikiExtractor's articles: tags become blank lines; blank lines within an article and the title before its first
    sentence are dropped."""
    title = None  # of the current article; empty once its line was dropped
    for number, line in lines:
        opened = _ARTICLE.fullmatch(line) if line.startswith("<doc ") else None
        if opened is not None:
            title, line = opened["title"], ""
        elif title is not None and line == "</doc>":
            title, line = None, ""
        elif title is not None and line in ("", title):
            title = "" if line else title
            continue
        yield number, line if title is None else unescaped(line)


def _without_headings(lines: Lines) -> Iterator[tuple[int, str]]:
    """WikiText's articles: a file is WikiText if it begins with a title."""
    lines = iter(lines)
    begin = list(_up_to_text(lines))
    found = begin and _TITLE.fullmatch(begin[-1][1])
    lines = itertools.chain(begin, lines)
    yield from _articles(lines) if found else lines


def _articles(lines: Lines) -> Iterator[tuple[int, str]]:
    """Lines of WikiText: titles become blank lines; blank lines within an article and headings are dropped."""
    for number, line in lines:
        if _TITLE.fullmatch(line):
            yield number, ""
        elif line and not _HEADING.fullmatch(line):
            yield number, line


def _up_to_text(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, line in lines:
        yield number, line
        if line:
            return
