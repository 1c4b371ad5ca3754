"""Whole models against the peers, under pytest-benchmark: `pytest benchmarks/bench_model.py -s`.

The same interleaved run as `fastbert bench inference` and `fastbert bench training`, on the model that
FASTBERT_BENCH_MODEL names (mini by default); pytest-benchmark keeps our own rows, and the tables say the rest.
"""

from __future__ import annotations

import os

import pytest
from rich.console import Console

from fastbert import hardware
from fastbert.bench import results, session, table, variants, workloads


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_model(benchmark, kind):
    plan = session.SessionPlan(
        kind,
        os.environ.get("FASTBERT_BENCH_MODEL", "mini"),
        workloads.INFERENCE if kind == "inference" else workloads.TRAINING,
        variants.choose(kind, (), quick=True, preload=None),
        rounds=3,
        threads=hardware.num_cores(),
    )
    done = benchmark.pedantic(lambda: session.Session(plan).run(), rounds=1)
    found = results.session_dict(done)
    ratios = results.ratios([found])
    benchmark.extra_info["ratios"] = ratios
    console = Console()
    for workload in found["workloads"]:
        console.print(table.workload_table(found, workload))
    console.print(table.ratios_table(ratios))
    wrong = [row for row in found["rows"] if row["ours"] and row["status"] not in ("ok", "skipped")]
    assert not wrong, [row["reason"] for row in wrong]
