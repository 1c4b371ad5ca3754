"""The results of a run as plain data: JSON rows, and the ratios of fastbert to the best peer."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from importlib import metadata
from pathlib import Path

import numpy as np

from .. import _native, hardware
from .._environment import commit
from ..files import write_whole
from .session import Row, Session
from .workloads import flops

_DISTRIBUTIONS = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "onnxruntime",
    "openvino",
    "nncf",
    "ctranslate2",
)
FORMAT = 1  # of the JSON


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def header(command: str, threads: int, preload: str | None) -> dict:
    """The machine, the time and the versions of a run."""
    from .. import __version__

    return {
        "format": FORMAT,
        "fastbert": __version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "threads": threads,
        "preload": preload,
        "machine": {
            "processor": hardware.processor_name(),
            "cores": hardware.num_cores(),
            "isa": _native.isa() or f"none: {_native.why_missing()}",
            "features": list(hardware.features()),
            "amx": "amx_tile" in hardware.features(),
            "amx_fault": hardware.amx_is_hollow(),
            "onednn_max_cpu_isa": os.environ.get(hardware.ONEDNN_VARIABLE),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _DISTRIBUTIONS}},
    }


def row_dict(row: Row, session: Session) -> dict:
    """A row of the JSON; figures that a row does not have are null."""
    variant, workload = row.variant, row.workload
    found = {
        "kind": session.plan.kind,
        "model": session.plan.model,
        "workload": workload.name,
        "tokens": workload.num_tokens,
        "padded_tokens": workload.padded_tokens,
        "variant": variant.name,
        "peer": variant.peer,
        "dtype": variant.dtype,
        "ours": variant.ours,
        "preload": variant.preload is not None,
        "status": row.status,
        "reason": row.reason,
        "error": row.error,
        "rss_mb": row.rss_mb,
    }
    numbers = dict.fromkeys(
        ("runs", "seconds", "p20_ms", "p50_ms", "p80_ms", "p99_ms", "tokens_per_second", "gflops", "share_of_peak")
    )
    if row.status == "ok":
        p20, p50, p80, p99 = np.percentile(row.seconds, (20, 50, 80, 99)) * 1e3
        gflops = flops(session.config, workload) / row.median / 1e9
        peak = session.peak_rates(workload.name).get(variant.dtype)
        numbers = {
            "runs": len(row.seconds),
            "seconds": row.seconds,
            "p20_ms": p20,
            "p50_ms": p50,
            "p80_ms": p80,
            "p99_ms": p99,
            "tokens_per_second": workload.num_tokens / row.median,
            "gflops": gflops,
            "share_of_peak": gflops / peak if peak else None,
        }
    return found | numbers


def session_dict(session: Session) -> dict:
    """A session as JSON: its rows, and the machine's rates by workload (minimum, median, maximum of the rounds)."""
    rates = {
        workload: {
            name: [
                choose(values)
                for choose in (min, statistics.median, max)
                for values in [[rates[name] for rates in rounds]]
            ]
            for name in rounds[0]
        }
        for workload, rounds in session.rates.items()
        if rounds
    }
    return {
        "kind": session.plan.kind,
        "model": session.plan.model,
        "rounds": session.plan.rounds,
        "load_average": session.load_average,
        "workloads": {
            w.name: {"title": w.title, "lengths": list(w.lengths), "latency": w.latency} for w in session.plan.workloads
        },
        "rates": rates,
        "rows": [row_dict(row, session) for row in session.rows],
    }


_TRANSFORMERS = ("sdpa", "eager")


def ratios(sessions: list[dict]) -> list[dict]:
    """The speed of fastbert divided by that of the best peer, per workload: above 1, fastbert is faster.

    Returns:
        rows with ``workload``, ``model`` and the following, each a dictionary of "ratio", "least" and "most" (those of
        single rounds) and "peer", or None if a side has no figure. ``fp32``: to the best fp32 peer, called in the best
        way; ``fp32_transformers``: to the fastest transformers in fp32; ``bf16_transformers``: our bf16 to the same;
        ``bf16``: to the best bf16 peer; ``int8``: to the best int8 peer.
    """
    found = []
    for session in sessions:
        for workload in session["workloads"]:
            rows = [r for r in session["rows"] if r["workload"] == workload and r["status"] == "ok"]
            ours = {r["dtype"]: r for r in rows if r["peer"] == "fastbert"}
            others = [r for r in rows if not r["ours"]]
            transformers = [r for r in others if r["peer"] in _TRANSFORMERS and r["dtype"] == "fp32"]
            by_dtype = {dtype: [r for r in others if r["dtype"] == dtype] for dtype in ("fp32", "bf16", "int8")}
            rounds = session["rounds"]
            found.append(
                {
                    "workload": workload,
                    "kind": session["kind"],
                    "model": session["model"],
                    "fp32": _ratio(ours.get("fp32"), by_dtype["fp32"], rounds),
                    "fp32_transformers": _ratio(ours.get("fp32"), transformers, rounds),
                    "bf16_transformers": _ratio(ours.get("bf16"), transformers, rounds),
                    "bf16": _ratio(ours.get("bf16"), by_dtype["bf16"], rounds),
                    "int8": _ratio(ours.get("int8"), by_dtype["int8"], rounds),
                }
            )
    return found


def _ratio(mine: dict | None, others: list[dict], rounds: int) -> dict | None:
    if mine is None or not others:
        return None
    best = max(others, key=lambda row: row["tokens_per_second"])
    by_round = [theirs / ours for theirs, ours in zip(*(_by_round(row, rounds) for row in (best, mine)), strict=True)]
    return {
        "ratio": mine["tokens_per_second"] / best["tokens_per_second"],
        "least": min(by_round),
        "most": max(by_round),
        "peer": best["variant"],
    }


def _by_round(row: dict, rounds: int) -> list[float]:
    """The median seconds of each round, all of which have the same number of runs."""
    return [statistics.median(runs) for runs in np.reshape(row["seconds"], (rounds, -1)).tolist()]


def write_document(document: dict, path: Path) -> None:
    """Writes results as JSON, atomically. Raises OSError."""
    write_whole(path, json.dumps(document, indent=1, allow_nan=False, default=_plain) + "\n")


def _plain(value):
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"not JSON: {type(value).__name__}")
