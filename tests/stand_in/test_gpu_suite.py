"""benchmarks/gpu beside a stand-in for a GPU: what measures there comes to its end before one is lent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "suite.py"
# Neither csrc/cuda and cuBLASLt nor a softmax of half numbers is there.
ABSENT = (
    "lamb_measure could not be started",
    "gather_rows could not be started",
    "pack could not be started",
    "cuBLASLt is not loaded",
    "backend 'cuda' was asked for by name",
    "softmax with half to float conversion",
)


@pytest.fixture
def rehearse(run, tmp_path):
    """The rows of these parts in a rehearsal."""

    def rehearse(parts: str, backend: str) -> dict[str, dict]:
        options = (str(tmp_path), "--dry-run", "--budget", "3000", "--only", parts)
        run(str(SUITE), *options, children=True, FASTBERT_BACKEND=backend)
        lines = (tmp_path / "rehearsal" / "results.jsonl").read_text().splitlines()
        rows = {row["name"]: row for row in map(json.loads, lines)}
        assert next(iter(rows.values()))["gpu"] == "a stand-in"
        bad = [row for row in rows.values() if "error" in row or row.get("rc") or row.get("different")]
        assert not [row for row in bad if not any(word in str(row.get("error")) for word in ABSENT)]
        return rows

    return rehearse


# Beside Triton's interpreter it takes minutes; tests/triton_backend looks at what the kernels compute.
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_the_kernels_are_measured(rehearse, backend):
    rows = rehearse("ceilings,kernels", backend)
    assert rows["ceilings"]["TFLOP/s"] > 0
    assert rows["kernel attention S=512 dropout fastbert"]["forward TFLOP/s"] > 0
    assert rows["kernel adamw fastbert"]["of ceiling"] > 0
    assert rows["cuda lamb other"]["ms"] > 0
    assert len(rows) > 45


@pytest.mark.slow
@pytest.mark.timeout(3600)  # it took 23 minutes beside other work
def test_steps_are_measured_and_checked(rehearse):
    """On the reference: Triton's interpreter takes minutes a step."""
    rows = rehearse("checks,training,peers,inference", backend="reference")
    assert rows["training large mix fastbert fp8"]["loss"] < rows["training large mix fastbert fp8"]["first loss"]
    same = [rows[f"training base 128 fastbert{way}"]["first loss"] for way in ("", " uncaptured")]
    assert same[0] == pytest.approx(same[1], rel=1e-5)
    assert rows["inference large mix fastbert"]["largest error"] < 0.1
    assert "passed" in rows["check kernels"]["summary"]


@pytest.mark.slow
def test_small_batches_are_measured(rehearse):
    rows = rehearse("latency", backend="auto")
    errors = {name: row["largest error"] for name, row in rows.items() if name.startswith("latency ")}
    assert len(errors) == 12
    assert all(0 < error < 0.05 for error in errors.values()), errors
    assert errors["latency base 8 x 32 fastbert graphs"] == pytest.approx(
        errors["latency base 8 x 32 fastbert"], rel=0.5
    )


@pytest.mark.slow
def test_every_op_runs_where_the_sanitizer_will_look(rehearse):
    assert rehearse("sanitizer", backend="auto")["check compute-sanitizer memcheck"]["out"] == "every op ran once"
