"""Writes a report as report.html and as report.md, with its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..files import write_whole
from ..report import HtmlReport
from ..wording import markdown_table


class Document:
    """Collects parts and writes them as HTML, with embedded pictures, and as Markdown, with pictures beside it.

    Args:
        title: the page's heading, and the window's title.
        out: the directory to write.
    """

    def __init__(self, title: str, out: Path) -> None:
        self.out, self._html, self._lines = out, HtmlReport(title), [f"# {title}", ""]
        self._pictures: list[Path] = []

    def heading(self, text: str) -> None:
        """Adds a heading, which begins a section."""
        self._html.heading(text)
        self._lines += [f"## {text}", ""]

    def text(self, text: str) -> None:
        """Adds a paragraph."""
        self._html.text(text)
        self._lines += [text, ""]

    def code(self, text: str) -> None:
        """Adds preformatted text."""
        self._html.code(text)
        self._lines += ["```", text.rstrip("\n"), "```", ""]

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Adds a table of strings."""
        rows = [list(map(str, row)) for row in rows]
        self._html.table(header, rows)
        self._lines += [*markdown_table(header, rows), ""]

    def picture(self, name: str, chart: str, what: str) -> None:
        """Writes a chart, given as SVG text, to a file of this name and adds it; ``what`` describes it."""
        self._html.drawing(chart)
        path = self.out / name
        write_whole(path, chart + "\n")
        self._pictures.append(path)
        self._lines += [f"![{what}]({name})", ""]

    def image(self, name: str, what: str) -> None:
        """Adds a picture that is already in the directory."""
        self._html.picture(self.out / name, what)
        self._pictures.append(self.out / name)
        self._lines += [f"![{what}]({name})", ""]

    def save(self) -> list[Path]:
        """Writes both files; returns all paths."""
        write_whole(self.out / "report.md", "\n".join(self._lines).rstrip("\n") + "\n")
        return [self.out / "report.md", self._html.save(self.out / "report.html"), *self._pictures]
