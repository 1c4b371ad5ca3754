"""The interleaved run with planted adapters: order, gate, crashes, and what is written."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fastbert import BertForPreTraining
from fastbert.bench import gate, models, plot, pool, results, table
from fastbert.bench.peers import Adapter, probe
from fastbert.bench.session import Row, Session, SessionPlan
from fastbert.bench.variants import Variant
from fastbert.bench.worker import Server
from fastbert.bench.workloads import Workload, flops
from fastbert.config import BertConfig

CONFIG = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=64)
SHORT = Workload("A", "two sequences", "inference", (3, 5))
LONG = Workload("B", "three sequences", "inference", (2, 7, 4), latency=True)


@pytest.fixture(autouse=True)
def _planted_can_be_imported(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))


def planted(fault: str, dtype: str = "fp32", name: str | None = None, peer: str = "other", **options) -> Variant:
    return Variant(name or fault, peer, f"planted:{fault}", dtype, **options)


def run(*variants: Variant, workloads=(SHORT,), rounds=2, kind="inference", **options) -> Session:
    truth = planted("Right" if kind == "inference" else "Learns", "fp64")
    return Session(
        SessionPlan(
            kind, "base", workloads, variants, rounds, 1, config=CONFIG, truth=truth, **{"probe": False, **options}
        )
    ).run()


def rows_of(session: Session) -> dict:
    return {(row.workload.name, row.variant.name): row for row in session.rows}


def test_variants_take_turns_in_every_round():
    session = run(planted("Right", name="a"), planted("Right", name="b"), workloads=(SHORT, LONG), rounds=3)
    assert session.trace == [("A", "a"), ("A", "b")] * 3 + [("B", "a"), ("B", "b")] * 3
    # 0.01 s a run: a turn of at least 0.4 s has about forty, the most is fifty; on a busy machine a run is longer.
    assert all(4 <= len(row.seconds) / 3 <= 50 for row in session.rows)
    assert all(row.rss_mb > 5 for row in session.rows)


def test_a_wrong_variant_gets_no_number():
    session = run(planted("Right"), planted("ForgetsMask"), planted("NotANumber"), planted("Transposed"))
    rows = rows_of(session)
    assert rows["A", "Right"].status == "ok"
    for name in ("ForgetsMask", "NotANumber", "Transposed"):
        row = rows["A", name]
        assert row.status == "wrong"
        assert row.reason.startswith("wrong: relative error")
        assert row.seconds == []
        written = results.row_dict(row, session)
        assert all(written[key] is None for key in ("tokens_per_second", "p50_ms", "gflops", "share_of_peak", "runs"))
        assert name not in {name for _, name in session.trace}


def test_errors_by_hand():
    """Of the worst token and of the worst element, and not of a mean over them; of real tokens alone."""
    true = np.array([[[3.0, 4.0], [0.0, 2.0]], [[1.0, 0.0], [9.0, 9.0]]])
    mask = np.array([[1, 1], [1, 0]])
    got = true.astype(np.float32)
    got[0, 1], got[0, 0, 0], got[1, 1] = (0.0, 1.0), 3.5, 0.0
    found = gate.hidden_error(got, true, mask)
    assert found == pytest.approx({"relative": 0.5, "max_abs": 1.0, "cosine": (10.5 + 16) / 5 / 28.25**0.5})


def test_warm_runs_are_made_and_not_counted():
    class Counting(Adapter):
        steps = 0

        def prepare(self, batch):
            pass

        def answer(self):
            return {}

        def step(self):
            self.steps += 1
            return float(self.steps)

    served = Server()
    served.adapter = Counting(Path(), "fp32", 1)
    answer = served.run(times=3, warm=2)
    assert len(answer["seconds"]) == 3
    assert answer["losses"] == [3.0, 4.0, 5.0]


def test_pads_do_not_count():
    assert rows_of(run(planted("GarbageInPads")))["A", "GarbageInPads"].status == "ok"


def test_a_crash_is_a_row_and_not_the_end():
    session = run(planted("DiesOfAnInstruction"), planted("DiesWhileTimed"), planted("Right"), workloads=(SHORT, LONG))
    rows = rows_of(session)
    for workload in ("A", "B"):
        for name in ("DiesOfAnInstruction", "DiesWhileTimed"):
            assert (rows[workload, name].status, rows[workload, name].reason) == (
                "crashed",
                "crashed: signal 4 (SIGILL)",
            )
            assert rows[workload, name].seconds == []
        assert rows[workload, "Right"].status == "ok"


def test_a_refusal_is_one_line_and_a_hang_ends():
    session = run(planted("Refuses"), planted("Hangs"), planted("Right"), timeout=6.0)
    rows = rows_of(session)
    assert (rows["A", "Refuses"].status, rows["A", "Refuses"].reason) == ("failed", "TypeError: no such shape")
    assert (rows["A", "Hangs"].status, rows["A", "Hangs"].reason) == (
        "crashed",
        "gave no answer within 6 s and was ended",
    )
    assert rows["A", "Right"].status == "ok"


def test_a_variant_far_slower_than_the_fastest_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("fastbert.bench.session._SLOW_SECONDS", 0.5)
    session = run(planted("Right"), planted("Slow"), workloads=(SHORT, LONG), rounds=1)
    rows = rows_of(session)
    for workload in ("A", "B"):
        row = rows[workload, "Slow"]
        assert (row.status, row.reason, row.seconds) == ("skipped", "left out: one run of A takes 1 s", [])
        assert rows[workload, "Right"].status == "ok"
    # What is compiled first is as fast as it is then.
    rows = rows_of(run(planted("Right"), planted("Compiles"), workloads=(SHORT, LONG), rounds=1))
    assert all(rows[workload, "Compiles"].status == "ok" for workload in ("A", "B"))
    # If nothing else is right, it is what there is.
    (row,) = run(planted("Slow"), rounds=1).rows
    assert row.status == "ok"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process of its parent's end")
def test_no_stopped_process_outlives_a_run_that_is_killed():
    starts = (
        "import pathlib, time; from fastbert.bench.pool import Worker; w = Worker(1, None, pathlib.Path('/dev/null'))"
    )
    command = f"{starts}; w.ask('peak', 120); print(w.process.pid, flush=True); time.sleep(300)"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        parent.kill()
    end = time.monotonic() + 60

    def is_there() -> bool:
        # Where nobody reaps it, it stays as a zombie.
        status = Path(f"/proc/{worker}/status")
        return status.exists() and "State:\tZ" not in status.read_text()

    while is_there():
        assert time.monotonic() < end, f"process {worker} is still there"
        time.sleep(0.05)


def test_what_a_library_prints_does_not_reach_the_answers():
    assert rows_of(run(planted("Noisy")))["A", "Noisy"].status == "ok"


def test_a_missing_library_is_a_row_with_its_reason():
    (row,) = run(planted("Right", missing="nothing is not installed")).rows
    assert (row.status, row.reason) == ("skipped", "nothing is not installed")


def test_a_variant_that_memory_has_no_room_for_is_left_out(monkeypatch):
    monkeypatch.setattr("fastbert.bench.session.available_mb", lambda: 100.0)
    (row,) = run(planted("Right")).rows
    assert row.status == "skipped"
    assert "of memory, 0.1 GB are free" in row.reason


def test_training_is_judged_by_gradients_and_by_a_falling_loss():
    training = Workload("T", "", "training", (4, 4))
    session = run(
        planted("Learns"), planted("LearnsNothing"), planted("WrongGradient"), workloads=(training,), kind="training"
    )
    rows = rows_of(session)
    assert rows["T", "Learns"].status == "ok"
    assert rows["T", "LearnsNothing"].reason == "wrong: the loss went from 10 to 10 on one batch"
    # (1, 1, 1.01) beside (1, 1, 1): 0.01 / sqrt(3).
    assert rows["T", "WrongGradient"].error["relative"] == pytest.approx(0.01 / 3**0.5)
    assert rows["T", "WrongGradient"].status == "wrong"


def test_stopped_workers_use_no_time_and_end(tmp_path):
    worker = pool.Worker(1, None, tmp_path / "log")
    with pytest.raises(pool.VariantFailed, match="ModuleNotFoundError"):
        worker.ask("load", 60, adapter="no_such_module:X", directory=str(tmp_path), dtype="fp32", threads=1)
    if sys.platform == "linux":
        # State T: stopped until it is asked again.
        status = Path(f"/proc/{worker.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        assert status in ("R", "S", "T")
        os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WNOWAIT)
        assert Path(f"/proc/{worker.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    worker.close()
    assert worker.process.returncode == -signal.SIGKILL


def test_preload_is_for_the_variants_that_ask_and_drops_our_cap(monkeypatch):
    from fastbert import hardware

    monkeypatch.setenv(hardware.ONEDNN_VARIABLE, hardware.ONEDNN_CAP)
    plain, preloaded = pool.worker_environment(2, None), pool.worker_environment(2, "/lib/shim.so")
    assert "LD_PRELOAD" not in plain or plain["LD_PRELOAD"] == os.environ.get("LD_PRELOAD")
    assert plain[hardware.ONEDNN_VARIABLE] == hardware.ONEDNN_CAP
    assert preloaded["LD_PRELOAD"] == "/lib/shim.so"
    assert hardware.ONEDNN_VARIABLE not in preloaded
    monkeypatch.setenv(hardware.ONEDNN_VARIABLE, "AVX2")  # a choice of the user's stays
    assert pool.worker_environment(2, "/lib/shim.so")[hardware.ONEDNN_VARIABLE] == "AVX2"


def test_every_dtype_has_a_limit_in_the_order_of_their_rounding():
    limits = [gate.limit("inference", dtype) for dtype in ("fp32", "bf16", "int8")]
    assert limits == sorted(limits)


def test_document_tables_and_picture(tmp_path):
    session = run(
        planted("Right", name="fastbert fp32", peer="fastbert", ours=True),
        planted("Right", name="other fp32", peer="sdpa"),
        planted("ForgetsMask"),
        workloads=(SHORT, LONG),
    )
    found = results.session_dict(session)
    document = results.header("fastbert bench", 1, None) | {"sessions": [found], "ratios": results.ratios([found])}
    results.write_document(document, tmp_path / "new" / "bench.json")
    written = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert {"format", "commit", "date", "command", "machine", "versions", "threads", "preload"} <= set(written)
    assert written["versions"]["torch"]
    rows = written["sessions"][0]["rows"]
    assert len(rows) == 6
    assert {tuple(row) for row in rows} == {tuple(rows[0])}, "every row has the same keys"
    for row in rows:
        if row["status"] == "ok":
            assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["p50_ms"] * 1e3)
            for percent in (20, 50, 80, 99):
                assert row[f"p{percent}_ms"] == pytest.approx(1e3 * np.percentile(row["seconds"], percent))
    first = written["ratios"][0]
    assert first["workload"] == "A"
    assert first["fp32"]["peer"] == "other fp32"
    assert first["fp32"]["ratio"] == pytest.approx(rows[0]["tokens_per_second"] / rows[1]["tokens_per_second"])
    assert first["int8"] is None
    from rich.console import Console

    console = Console(width=150, record=True, file=io.StringIO())
    table.show(document, console)
    shown = console.export_text()
    assert "wrong: relative error" in shown
    slow, fast = (f"{rows[0]['tokens'] / rows[0][key] * 1e3:,.0f}" for key in ("p80_ms", "p20_ms"))
    assert f"{slow}-{fast}" in shown
    assert "fastbert / peer" in shown
    assert f"{first['fp32']['ratio']:.2f}x [{first['fp32']['least']:.2f}-{first['fp32']['most']:.2f}]" in shown
    assert first["fp32"]["least"] <= first["fp32"]["most"]
    runs = sorted(row["runs"] for row in rows[:2])
    each = f"{runs[0]} runs" if runs[0] == runs[1] else f"{runs[0]} to {runs[1]} runs"
    assert f"\n{each} of each variant in 2 rounds; load average {session.load_average:.2f} before the session\n" in (
        "\n" + "\n".join(line.strip() for line in shown.splitlines()) + "\n"
    )
    written = table.markdown(document)
    assert f"8 tokens (20 % pads in a padded batch); {each} of each variant in 2 rounds; load average" in written
    assert "fp32 / best fp32 peer" in written
    restricted = table.markdown(document | {"peers": ["sdpa"]})
    titles = [line for line in restricted.splitlines() if line.startswith("| workload |")]
    assert titles == [
        "| workload | fp32 / best of the peers measured in fp32 | fp32 / transformers fp32 | bf16 / transformers fp32 "
        "| bf16 / best of the peers measured in bf16 | int8 / best of the peers measured in int8 |"
    ]
    assert plot.plot(document, tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("dtype", "share"), [("fp32", 0.5), ("bf16", 0.25), ("int8", 0.125)])
def test_the_share_of_the_peak_is_of_the_peak_of_its_dtype(dtype, share):
    rate = flops(CONFIG, SHORT) / 0.5 / 1e9
    plan = SimpleNamespace(kind="inference", model="base")
    peaks = {"fp32": 2 * rate, "bf16": 4 * rate, "int8": 8 * rate}
    session = SimpleNamespace(plan=plan, config=CONFIG, peak_rates=lambda workload: {"A": peaks}[workload])
    row = results.row_dict(Row(SHORT, planted("Right", dtype), seconds=[0.25, 0.5, 2.0]), session)
    assert (row["gflops"], row["share_of_peak"]) == (pytest.approx(rate), pytest.approx(share))
    assert row["tokens_per_second"] == 16


def test_all_weights_of_the_measured_model_say_something(tmp_path):
    """As BERT begins, with biases of 0 and norms of 1, a library that forgot one would compute the same."""
    models.make_directory("base", tmp_path, CONFIG)
    state = BertForPreTraining.from_pretrained(tmp_path).state_dict()
    assert not [name for name, tensor in state.items() if tensor.dim() == 1 and len(tensor.unique()) < len(tensor)]


def test_ratios_by_hand():
    def row(variant, dtype, speed, ours=False, peer="x", status="ok", seconds=(1.0, 1.0)):
        return {
            "workload": "W", "status": status, "dtype": dtype, "ours": ours, "variant": variant,
            "peer": peer, "tokens_per_second": speed, "seconds": list(seconds),
        }  # fmt: skip

    def ratio(value, peer, least=1.0, most=1.0):
        return {"ratio": value, "least": least, "most": most, "peer": peer}

    rows = [
        # Rounds of three runs and of one: medians of 2 and 1 seconds, beside 3 and 4.
        row("us", "fp32", 300.0, ours=True, peer="fastbert", seconds=(2.0, 9.0, 1.0, 1.0, 0.5, 1.0)),
        row("us16", "bf16", 900.0, ours=True, peer="fastbert"),
        row("our reference", "fp32", 290.0, ours=True, peer="reference"),  # no peer of ours
        row("eager", "fp32", 100.0, peer="eager"),
        row("sdpa", "fp32", 150.0, peer="sdpa"),
        row("best", "fp32", 170.0),
        row("best, called otherwise", "fp32", 200.0, seconds=(3.0, 4.0)),
        row("liar", "fp32", None, status="wrong"),
        row("peer16", "bf16", 450.0),
        row("sdpa16", "bf16", 400.0, peer="sdpa"),
    ]
    session = {"kind": "inference", "model": "m", "rounds": 2, "workloads": {"W": {}}, "rows": rows}
    (found,) = results.ratios([session])
    assert found["fp32"] == ratio(1.5, "best, called otherwise", 1.5, 4.0)
    assert found["fp32_transformers"] == ratio(2.0, "sdpa", 0.5, 1.0)
    assert found["bf16_transformers"] == ratio(6.0, "sdpa")
    assert found["bf16"] == ratio(2.0, "peer16")
    assert found["int8"] is None


def test_peaks_are_the_best_level_of_each_dtype():
    rates = {"fp32 scalar": 5.0, "fp32 avx512": 60.0, "bf16 avx512": 30.0, "int8 avx512": 200.0, "copy": 10.0}
    assert probe.peaks(rates) == {"fp32": 60.0, "bf16": 60.0, "int8": 200.0}
    assert probe.peaks({"fp32 amx": 60.0, "bf16 tile amx": 900.0}) == {"fp32": 60.0, "bf16": 900.0, "int8": 60.0}
