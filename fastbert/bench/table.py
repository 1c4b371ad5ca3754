"""Results as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from ..wording import counted, markdown_table


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _header_lines(header: dict) -> list[str]:
    """Lines about the machine and how peers ran on it."""
    machine = header["machine"]
    amx = "has AMX" if machine["amx"] else "has no AMX"
    if machine["amx_fault"]:
        amx = "announces AMX without its tiles"
    lines = [
        f"{machine['processor']}, {counted(machine['cores'], 'core')}, {counted(header['threads'], 'thread')}, "
        f"kernels for {machine['isa']}; "
        f"it {amx}",
        f"fastbert {header['fastbert']} ({header['commit'] or 'installed package'}), {header['date']}",
        ", ".join(f"{name} {version}" for name, version in header["versions"].items() if version),
    ]
    if machine["onednn_max_cpu_isa"]:
        lines.append(f"oneDNN of every row without preload is capped at {machine['onednn_max_cpu_isa']}")
    if header["preload"]:
        lines.append(f"rows with '+ preload' ran under LD_PRELOAD={header['preload']} and without that cap")
    return lines


def _error(row: dict) -> str:
    if row["error"] is None:
        return ""
    cosine = row["error"].get("cosine")
    tail = f", cos {cosine:.4f}" if cosine is not None and row["dtype"] != "fp32" else ""
    return f"{row['error']['relative']:.1e}{tail}"


def _circumstances(session: dict, rows: list[dict]) -> Iterator[str]:
    """A line about how much was measured and how busy the machine was."""
    runs = [row["runs"] for row in rows if row["status"] == "ok"]
    if runs:
        each = counted(runs[0], "run") if min(runs) == max(runs) else f"{min(runs)} to {max(runs)} runs"
        load = session.get("load_average")
        before = "" if load is None else f"; load average {load:.2f} before the session"
        yield f"{each} of each variant in {counted(session['rounds'], 'round')}{before}"


def workload_table(session: dict, workload: str) -> Table:
    """Every variant on one workload, in the order of their turns."""
    about = session["workloads"][workload]
    rows = [row for row in session["rows"] if row["workload"] == workload]
    tokens, padded = rows[0]["tokens"], rows[0]["padded_tokens"]
    title = f"{workload} {session['kind']}, {session['model']}: {about['title']}; {tokens} tokens"
    if padded != tokens:
        title += f" ({100 * (1 - tokens / padded):.0f} % pads in a padded batch)"
    table = Table(title="\n".join((title, *_circumstances(session, rows))), title_justify="left")
    latency = about["latency"]
    table.add_column("variant", no_wrap=True)
    for name in ("p50 ms" if latency else "tokens/s", "p99 ms" if latency else "p20-p80", "GFLOP/s", "of peak"):
        table.add_column(name, justify="right")
    for name in ("error", "peak RSS MB"):
        table.add_column(name, justify="right")
    for row in rows:
        if row["status"] != "ok":
            table.add_row(row["variant"], row["reason"], "", "", "", _error(row), "", style="dim")
            continue
        spread = [tokens / row[key] * 1e3 for key in ("p80_ms", "p20_ms")]
        table.add_row(
            row["variant"],
            _number(row["p50_ms"], 2) if latency else _number(row["tokens_per_second"]),
            f"{_number(row['p99_ms'], 2)} (of {row['runs']})" if latency else "-".join(map(_number, spread)),
            _number(row["gflops"]),
            _share(row["share_of_peak"]),
            _error(row),
            _number(row["rss_mb"]),
            style="bold" if row["peer"] == "fastbert" else None,
        )
    return table


def _rates_table(session: dict) -> Table | None:
    """The machine's own speed in the rounds: copies and products."""
    if not session["rates"]:
        return None
    table = Table("probe", title="The machine in the same rounds: min / median / max", title_justify="left")
    for workload in session["rates"]:
        table.add_column(workload, justify="right")
    names = next(iter(session["rates"].values()))
    for name in names:
        unit = "GB/s" if name == "copy" else "GFLOP/s"
        cells = [
            " / ".join(_number(v, int(name == "copy")) for v in session["rates"][w][name]) for w in session["rates"]
        ]
        table.add_row(f"{name} ({unit})", *cells)
    return table


_COLUMNS = {
    "fp32": "fp32 / best fp32 peer",
    "fp32_transformers": "fp32 / transformers fp32",
    "bf16_transformers": "bf16 / transformers fp32",
    "bf16": "bf16 / best bf16 peer",
    "int8": "int8 / best int8 peer",
}


def _of_those_measured(title: str) -> str:
    """ "fp32 / best fp32 peer" of a run that left peers out."""
    ours, _, peer = title.partition(" / ")
    dtype = peer.removeprefix("best ").removesuffix(" peer")
    return title if dtype == peer else f"{ours} / best of the peers measured in {dtype}"


def _ratio_cell(found: dict | None) -> str:
    if found is None:
        return "-"
    return f"{found['ratio']:.2f}x [{found['least']:.2f}-{found['most']:.2f}]\n{found['peer']}"


def ratios_table(ratios: list[dict], peers: list[str] | tuple[str, ...] = ()) -> Table:
    """The ratios of fastbert to the best peer, with the peer's name below.

    Args:
        ratios: as returned by `results.ratios`.
        peers: those that the run was restricted to, which the titles of columns then say.
    """
    table = Table(
        title="fastbert / peer, by speed (W3: by p50 latency); in brackets the smallest and the largest of a round; "
        "above 1 fastbert is faster",
        title_justify="left",
    )
    table.add_column("workload")
    for title in _COLUMNS.values():
        table.add_column(_of_those_measured(title) if peers else title, justify="right")
    for row in ratios:
        cells = [_ratio_cell(row[key]) for key in _COLUMNS]
        table.add_row(f"{row['workload']} {row['kind']}\n{row['model']}", *cells)
    return table


def tables(document: dict) -> Iterator[Table]:
    """All tables of a document, in its order."""
    for session in document["sessions"]:
        session = {"load_average": document["machine"]["load_average"], **session}  # documents of before have one alone
        for workload in session["workloads"]:
            yield workload_table(session, workload)
        rates = _rates_table(session)
        if rates is not None:
            yield rates
    for name in ("kernels", "data", "data_memory"):
        if document.get(name):
            yield rows_table(name, document[name])
    if document.get("ratios"):
        yield ratios_table(document["ratios"], document.get("peers", ()))


def show(document: dict, console: Console) -> None:
    """Prints a document on a console."""
    for line in _header_lines(document):
        console.print(line, markup=False, highlight=False)
    for one in tables(document):
        console.print(one)


def markdown(document: dict) -> str:
    """A document as Markdown."""
    parts = ["  \n".join(_header_lines(document))]
    for one in tables(document):
        cells = zip(*([str(cell).replace("\n", ", ") for cell in c.cells] for c in one.columns), strict=True)
        right = [number for number, column in enumerate(one.columns) if column.justify == "right"]
        lines = markdown_table([str(column.header) for column in one.columns], cells, right)
        title = str(one.title).replace("\n", "; ")
        parts.append(f"**{title}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def rows_table(title: str, rows: list[dict]) -> Table:
    """A table of rows that have the same keys."""
    table = Table(title=title, title_justify="left")
    for key in rows[0]:
        table.add_column(key, justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)
