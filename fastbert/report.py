"""One self-contained HTML page: headings, paragraphs, tables, pictures; no script and nothing fetched."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .files import write_whole
from .wording import figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; }
caption { text-align: left; color: #57606a; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid #d0d7de; padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; background: #f6f8fa; }
pre { padding: .8rem; overflow-x: auto; } img { max-width: 100%; } .note { color: #57606a; }
"""
_MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}


def _cell(value) -> str:
    number = ' class="number"' if isinstance(value, int | float) else ""
    return f"<td{number}>{html.escape(figure(value))}</td>"


class HtmlReport:
    """Collects the parts of a page and writes it.

    Args:
        title: the page's heading, and the window's title.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        """Adds a heading, which begins a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str, note: bool = False) -> None:
        """Adds a paragraph; ``note`` is grey."""
        self._parts.append(f"<p{' class=note' if note else ''}>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        """Adds preformatted text."""
        self._parts.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence], caption: str | None = None) -> None:
        """Adds a table. Numbers are right-aligned, floats are shown with four significant digits."""
        rows = [list(row) for row in rows]
        numeric = [
            bool(rows) and all(isinstance(row[i], int | float) or row[i] == "" for row in rows)
            for i in range(len(header))
        ]
        head = "".join(
            f"<th{' class=number' if is_number else ''}>{html.escape(name)}</th>"
            for name, is_number in zip(header, numeric, strict=True)
        )
        body = "\n".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
        title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
        self._parts.append(f"<table>{title}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>")

    def picture(self, path: str | os.PathLike, alternative: str) -> None:
        """Embeds a .png, .svg or .jpg file; ``alternative`` is its alternative text."""
        path = Path(path)
        data = base64.b64encode(path.read_bytes()).decode()
        media_type = _MEDIA_TYPES[path.suffix.lower()]
        self._parts.append(f'<p><img alt="{html.escape(alternative)}" src="data:{media_type};base64,{data}"></p>')

    def drawing(self, svg: str) -> None:
        """Adds a chart of `fastbert.svg`, as part of the page."""
        self._parts.append(f"<p>{svg}</p>")

    def save(self, path: str | os.PathLike) -> Path:
        """Writes the page atomically and returns its path."""
        path = Path(path)
        page = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(self._title)}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>{_STYLE}</style></head><body>\n<h1>{html.escape(self._title)}</h1>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )
        write_whole(path, page)
        return path
