"""Results of benchmarks/gpu as a dated document, and the documents as a table for the README."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..errors import DataError, InputError
from ..files import write_whole
from ..hardware import gpu_slug
from ..wording import markdown_table
from .results import write_document

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
BEGIN, END = "<!-- fastbert bench report -->", "<!-- end of fastbert bench report -->"


def write(rows: list[dict], directory: Path) -> tuple[Path, Path]:
    """Writes ``directory/<gpu>/<date>.json`` with all rows, and a table beside it. Returns both paths.

    Raises:
        InputError: no row tells the machine.
    """
    places = [row for row in rows if row["name"].startswith("environment")]
    if not places:
        raise InputError("results must hold a row that says where they were measured, got none")
    where = places[-1]
    path = directory / gpu_slug(where["gpu"]) / f"{where['date']}.json"
    document = {"format": 1, "environment": where, "rows": [row for row in rows if row not in places]}
    table = path.with_suffix(".md")
    write_document(document, path)
    write_whole(table, render(document) + "\n")
    return path, table


def read(directory: Path) -> list[dict]:
    """The newest document of every GPU. Raises InputError if there is none, DataError for one that is damaged."""
    newest: dict[Path, Path] = {}
    for path in sorted(directory.glob("*/*.json")):
        if _DATE.fullmatch(path.stem):  # other benchmarks keep theirs beside them
            newest[path.parent] = path
    if not newest:
        raise InputError(f"{directory}: expected result files GPU/DATE.json, found none")
    documents = []
    for path in newest.values():
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            _ = document["environment"]["gpu"], [row["name"] for row in document["rows"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: expected results of benchmarks/gpu/run.sh, got {error!r}") from error
        documents.append(document)
    return documents


def render(document: dict) -> str:
    """A document as Markdown: training, inference, kernels and checks, each figure beside that of its best peer."""
    where = document["environment"]
    dry = "**A rehearsal: the figures mean nothing.** " if where.get("dry run") else ""
    version = f"torch {where.get('torch')}, triton {where.get('triton')}"
    lines = [f"{dry}{where['gpu']}, {where['date']}, commit {str(where.get('commit'))[:12]}, {version}"]
    rows = {row["name"]: row for row in document["rows"]}
    if "ceilings" in rows and "TFLOP/s" in rows["ceilings"]:
        c = rows["ceilings"]
        lines += ["", f"A large bf16 product: {c['TFLOP/s']:.0f} TFLOP/s; a large copy: {c['copy GB/s']:.0f} GB/s."]
    for part, columns in _PARTS.items():
        chosen = [row for name, row in rows.items() if name.startswith(part + " ")]
        if chosen:
            lines += ["", *_table(part, chosen, columns)]
    profiles = [row for name, row in rows.items() if name.startswith("profile ") and "kernels" in row]
    if profiles:
        lines += ["", *_profiles(profiles)]
    checks = [row for name, row in rows.items() if name.startswith("check ")]
    if checks:
        results = [(row["name"].removeprefix("check "), _verdict(row)) for row in checks]
        lines += ["", *markdown_table(("check", "result"), results)]
    return "\n".join(lines)


_PARTS = {
    "training": ("sequences/s", "tokens/s", "TFLOP/s", "MFU", "of product", "peak GiB", "loss"),
    "finetuning": ("ms", "sequences/s", "tokens/s"),
    "latency": ("ms", "sequences/s", "largest error"),
    "inference": ("sequences/s", "tokens/s", "TFLOP/s", "largest error"),
    "kernel": (
        "forward ms",
        "forward + backward ms",
        "forward TFLOP/s",
        "backward TFLOP/s",
        "forward GB/s",
        "of ceiling",
    ),
    "setting": ("ms", "TFLOP/s", "GB/s"),
}


# Groups of kernels; a kernel belongs to the first group of which its name contains a word.
_GROUPS = {
    "products": ("nvjet", "gemm", "cutlass", "cublas", "splitk"),
    "attention": ("_attention", "_bits_kernel"),
    "LayerNorm": ("_layer_norm",),
    "GELU": ("_gelu",),
    "8-bit casts": ("_cast_kernel", "_transpose_kernel"),
    "optimiser": ("_adamw", "_lamb", "_square_sums", "_control"),
    "embedding, loss": ("_embedding", "_sum_runs", "_sum_chunks", "radixsort", "_cross_entropy", "argmax"),
    "casts, copies, sums, the rest": ("",),
}


def _profiles(rows: list[dict]) -> list[str]:
    """The milliseconds of each group of kernels in a step, and the device's idle time between kernels."""
    sums: list[dict[str, float]] = []
    for row in rows:
        of_row = dict.fromkeys(_GROUPS, 0.0)
        for name, taken, _count in row["kernels"]:
            of_row[next(group for group, words in _GROUPS.items() if any(w in name.lower() for w in words))] += taken
        sums.append(of_row | {"between kernels": row["ms"] - row["busy ms"], "a step": row["ms"]})
    names = [row["name"].removeprefix("profile ") for row in rows]
    shown = [group for group in sums[0] if any(of_row[group] > 0.005 for of_row in sums)]
    cells = [(group, *(f"{of_row[group]:.2f}" for of_row in sums)) for group in shown]
    return markdown_table(("ms of a step", *names), cells)


def _table(part: str, rows: list[dict], columns: tuple[str, ...]) -> list[str]:
    used = [name for name in columns if any(row.get(name) is not None for row in rows)]
    lines = []
    for row in rows:
        cells = [_cell(column, row.get(column)) for column in used]
        if "error" in row or "skipped" in row:
            cells = [row.get("error") or row["skipped"], *[""] * (len(used) - 1)]
        lines.append((row["name"].removeprefix(part + " "), *cells))
    return markdown_table((part, *used), lines)


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    if column == "MFU" or column.startswith("of "):
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _verdict(row: dict) -> str:
    if "error" in row or "skipped" in row:
        return str(row.get("error") or row["skipped"])
    wrong = row.get("failed") or row.get("different")
    if wrong:
        return "**failed**: " + ", ".join(map(str, wrong))
    if row.get("rc"):
        return f"**failed**: {row.get('summary')}"
    runs = f" ({row['runs']} runs)" if row.get("runs") else ""
    return str(row.get("summary") or f"as it must be{runs}")


def into(text: str, page: Path) -> None:
    """Puts the tables between the two markers of a page. Raises InputError if the page does not have them."""
    content = page.read_text(encoding="utf-8")
    begin, end = content.find(BEGIN), content.find(END)
    if begin < 0 or end < begin:
        raise InputError(f"{page}: expected the lines {BEGIN} and {END}, found none")
    write_whole(page, content[: begin + len(BEGIN)] + f"\n{text}\n" + content[end:])
