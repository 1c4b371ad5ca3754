"""From the rows of a GPU run to the file that chooses kernels."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("cuda_kernels"), importlib.import_module("record")
    for name in ("cuda_kernels", "record", "kernels"):
        sys.modules.pop(name, None)


def test_every_row_can_be_rehearsed(modules):
    cuda_kernels, _ = modules
    rows = {name: function() for name, function in cuda_kernels.measurements(dry=True)}
    assert all(row["ms"] > 0 for row in rows.values())
    assert {f"cuda {name} {side}" for name in cuda_kernels.CHOICES for side in cuda_kernels.SIDES} <= set(rows)


def test_what_is_recorded(modules, tmp_path, monkeypatch, capsys):
    _, record = modules
    rows = [
        {"name": "environment 2025", "gpu": "another"},
        {"name": "cuda linear cuda", "ms": 1.0},
        {"name": "environment 2026", "gpu": "NVIDIA H200", "date": "2026-11-21", "commit": "abc"},
        {"name": "cuda lamb cuda", "ms": 2.0},
        {"name": "cuda lamb other", "ms": 2.5},
        {"name": "cuda mlp cuda", "ms": 1.0, "difference": 0.4},  # quick and wrong
        {"name": "cuda mlp other", "ms": 3.0},
        {"name": "cuda pack cuda", "ms": 3.0},
        {"name": "cuda pack other", "ms": 2.0},
        {"name": "cuda linear cuda", "error": "BackendError: no"},
        {"name": "cuda linear other", "ms": 2.0},
        {"name": "cuda gather_rows cuda", "ms": 1.0, "equal": False},
        {"name": "cuda gather_rows other", "ms": 2.0},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "results.jsonl").write_text(text + '{"name": "half a li')
    monkeypatch.setattr(sys, "argv", ["record.py", str(tmp_path), "--to", str(tmp_path / "measured")])
    record.main()
    written = json.loads((tmp_path / "measured" / "nvidia-h200.json").read_text())
    assert written["rows"] == {
        "lamb": {"ours ms": 2.0, "other ms": 2.5, "gain": 1.25},
        "pack": {"ours ms": 3.0, "other ms": 2.0, "gain": 0.667},
    }
    assert (written["gpu"], written["commit"]) == ("NVIDIA H200", "abc")
    said = capsys.readouterr().out
    assert "lamb: 2.000 ms beside 2.500 ms, 1.25 times: chosen" in said
    assert "pack: 3.000 ms beside 2.000 ms, 0.67 times: not chosen" in said
    # A dense layer that is faster alone, and makes layers slower.
    more = [("linear cuda", 1.0), ("linear other", 1.1), ("layers cuda", 10.0), ("layers other", 9.0)]
    rows += [{"name": f"cuda {name}", "ms": ms} for name, ms in more]
    assert record.chosen(rows)["linear"] == {"ours ms": 1.0, "other ms": 1.1, "gain": 0.9}
    assert "linear" not in record.chosen(rows[:-1])
    (tmp_path / "results.jsonl").write_text(json.dumps({"name": "environment", "gpu": "none"}) + "\n")
    with pytest.raises(SystemExit, match="a record needs a run on a GPU"):
        record.main()
