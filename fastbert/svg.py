"""Line charts and stacked bars as SVG text. Every run draws some, and matplotlib takes seconds for ten of them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Okabe and Ito's palette, which readers with any colour vision can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 26, 34
_ROW = 16  # of a legend
_INK, _GRID = "#57606a", "#eaeef2"


@dataclass(frozen=True)
class Curve:
    """One curve.

    Args:
        points: (x, y), finite.
        colour: a CSS colour.
        label: its name in the legend; "" leaves it out of the legend.
        dots: whether the points are drawn too, and the line thicker.
        dashed: whether the line is dashed, to tell it from another of the same colour.
    """

    points: Sequence[tuple[float, float]]
    colour: str
    label: str = ""
    dots: bool = False
    dashed: bool = False


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(lines: Sequence[Curve], ylabel: str, xlabel: str, logarithmic: bool = False) -> str:
    """A chart of curves in common axes; ``logarithmic`` is for the y axis, where every y must then be above 0."""
    marks = [(line.label, line.colour, "╌" if line.dashed else "■") for line in lines if line.label]
    legend = _in_rows(marks, len(ylabel))
    height = _HEIGHT + _ROW * (len(legend) - 1)
    axes = _Axes.around([point for line in lines for point in line.points], height, logarithmic)
    parts = axes.drawn()
    for line in lines:
        parts += _curve(line, [axes.place(x, axes.unit(y)) for x, y in line.points])
    parts.append(_text(_LEFT, 14, ylabel, "start"))
    parts.append(_text(_WIDTH - _RIGHT, height - 4, xlabel, "end"))
    parts += _legend(legend)
    return _svg(height, ylabel, parts)


@dataclass(frozen=True)
class _Axes:
    """The ranges of the axes, and the height of the picture with its legend; a logarithmic axis has log10(y)."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    height: int
    logarithmic: bool

    @classmethod
    def around(cls, points: Sequence[tuple[float, float]], height: int, logarithmic: bool) -> _Axes:
        xs = [x for x, _ in points] or [0.0]
        ys = [math.log10(y) if logarithmic else y for _, y in points] or [0.0]
        return cls(_widened(min(xs), max(xs)), _widened(min(ys), max(ys)), height, logarithmic)

    def unit(self, y: float) -> float:
        return math.log10(y) if self.logarithmic else y

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The coordinates of a point in the picture."""
        across = (x - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        up = (y - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            self.height - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    def drawn(self) -> list[str]:
        """The horizontal grid lines, and the numbers at both axes."""
        parts = []
        for tick in _y_ticks(*self.y_range, self.logarithmic):
            _, y = self.place(self.x_range[0], tick)
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>')
            parts.append(_text(_LEFT - 6, y + 4, _number(10.0**tick if self.logarithmic else tick), "end"))
        for tick in ticks(*self.x_range, most=8):
            x, _ = self.place(tick, self.y_range[0])
            parts.append(_text(x, self.height - _BOTTOM + 16, _number(tick), "middle"))
        return parts


def _curve(line: Curve, places: Sequence[tuple[float, float]]) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    width = 2 if line.dots else 1.2
    dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{width}"{dashes}/>']
    if line.dots or len(places) == 1:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{line.colour}"/>' for x, y in places]
    return parts


def stacked_bars(rows: Sequence[tuple[str, Sequence[float]]], parts_of: Sequence[tuple[str, str]], title: str) -> str:
    """A horizontal bar for each row, divided into shares in per cent.

    Args:
        rows: label and shares.
        parts_of: name and colour of each share.
    """
    left, height, parts = 150, 46 + 26 * len(rows), []
    for number, (label, shares) in enumerate(rows):
        y, x = 36 + 26 * number, float(left)
        parts.append(_text(left - 8, y + 13, label, "end"))
        for share, (name, colour) in zip(shares, parts_of, strict=True):
            width = share / 100 * (_WIDTH - left - _RIGHT)
            tip = f"<title>{html.escape(name)} {share:.1f} %</title>"
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="18" fill="{colour}">{tip}</rect>')
            x += width
    parts.append(_text(0, 14, title, "start"))
    parts += _legend([[(name, colour, "■") for name, colour in parts_of]])
    return _svg(height, title, parts)


def _widened(low: float, high: float) -> tuple[float, float]:
    """The range, made wider if it is a single point."""
    return (low, high) if high > low else (low - max(abs(low), 1) / 20, high + max(abs(high), 1) / 20)


def _y_ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """The ticks of the y axis; powers of ten on a logarithmic axis that spans several of them."""
    if logarithmic and math.floor(high) - math.ceil(low) >= 1:
        stride = max((math.floor(high) - math.ceil(low)) // 5, 1)
        return [float(n) for n in range(math.ceil(low), math.floor(high) + 1, stride)]
    return ticks(low, high)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 and value == round(value) else f"{value:.4g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _entry_width(label: str) -> float:
    return 7.0 * (len(label) + 3)


def _in_rows(entries: Sequence[tuple[str, str, str]], beside: int) -> list[list[tuple[str, str, str]]]:
    """Distributes a legend's entries over rows; the first row leaves space for ``beside`` letters of other text."""
    rows: list[list[tuple[str, str, str]]] = [[]]
    left = _WIDTH - _RIGHT - _LEFT - 7.0 * (beside + 1)
    for entry in entries:
        width = _entry_width(entry[0])
        if width > left:
            rows.append([])
            left = float(_WIDTH - _RIGHT - _LEFT)
        rows[-1].append(entry)
        left -= width
    return rows


def _legend(rows: Sequence[Sequence[tuple[str, str, str]]]) -> list[str]:
    """The legend at the upper edge: a mark and a name for each curve, in its colour; rows are right-aligned."""
    parts = []
    for number, entries in enumerate(rows):
        x = float(_WIDTH - _RIGHT)
        for label, colour, mark in reversed(entries):
            parts.append(f'<g fill="{colour}">{_text(x, 14 + _ROW * number, f"{mark} {label}", "end")}</g>')
            x -= _entry_width(label)
    return parts


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" width="100%" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}"><title>{html.escape(title)}</title>'
        + "".join(parts)
        + "</svg>"
    )
