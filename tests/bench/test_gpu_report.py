"""Results of benchmarks/gpu become a dated document and the README's table; the suite's command rehearses on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fastbert
from fastbert.bench import gpu
from fastbert.cli.main import main
from fastbert.errors import DataError, InputError

# Made up: no machine has ever shown these figures.
ROWS = [
    {"name": "environment 2020-01-01T00:00:00", "gpu": "Made-up GPU 9000", "date": "2020-01-01", "commit": "0" * 40,
     "torch": "9.9", "triton": "9.9", "dry run": False},
    {"name": "ceilings", "TFLOP/s": 800.0, "copy GB/s": 4000.0},
    {"name": "training large mix fastbert", "sequences/s": 1234.2, "tokens/s": 315000.0, "TFLOP/s": 617.2, "MFU": 0.624,
     "of product": 0.772, "peak GiB": 40.2, "loss": 9.75},
    {"name": "training large mix transformers sdpa", "error": "RuntimeError: out of memory"},
    {"name": "profile base 512 fastbert", "ms": 10.0, "busy ms": 9.5, "launches": 6,
     "kernels": [["nvjet_sm90_tst", 6.0, 3.0], ["_gelu_fwd_kernel", 3.0, 1.0], ["void at::native::copy", 0.5, 2.0]]},
    {"name": "inference base 128 fastbert", "sequences/s": 20000.0, "tokens/s": 2560000.0, "largest error": 0.03},
    {"name": "kernel gelu fastbert", "forward ms": 0.125, "forward + backward ms": 0.5, "forward GB/s": 3500.0,
     "of ceiling": 0.875},
    {"name": "setting attention forward S=512 shipped", "ms": 1.25, "TFLOP/s": 210.0},
    {"name": "check kernels", "summary": "99 passed", "failed": [], "rc": 0},
    {"name": "check repeats", "runs": 250, "different": ["gelu"]},
    {"name": "check compute-sanitizer memcheck", "skipped": "it is not there"},
]  # fmt: skip


def test_a_document_and_its_table(tmp_path):
    path, table = gpu.write(ROWS, tmp_path)
    assert path == tmp_path / "made-up-gpu-9000" / "2020-01-01.json"
    assert [row["name"] for row in json.loads(path.read_text())["rows"]] == [row["name"] for row in ROWS[1:]]
    text = table.read_text()
    assert text == gpu.render(json.loads(path.read_text())) + "\n"
    for line in (
        "Made-up GPU 9000, 2020-01-01, commit 000000000000, torch 9.9, triton 9.9",
        "A large bf16 product: 800 TFLOP/s; a large copy: 4000 GB/s.",
        "| large mix fastbert | 1,234 | 315,000 | 617 | 62.4 % | 77.2 % | 40.2 | 9.75 |",
        "| large mix transformers sdpa | RuntimeError: out of memory |  |  |  |  |  |  |",
        "| base 128 fastbert | 20,000 | 2,560,000 | 0.03 |",
        "| gelu fastbert | 0.125 | 0.5 | 3,500 | 87.5 % |",
        "| attention forward S=512 shipped | 1.25 | 210 |",
        "| ms of a step | base 512 fastbert |",
        "| products | 6.00 |",
        "| GELU | 3.00 |",
        "| casts, copies, sums, the rest | 0.50 |",
        "| between kernels | 0.50 |",
        "| a step | 10.00 |",
        "| kernels | 99 passed |",
        "| repeats | **failed**: gelu |",
        "| compute-sanitizer memcheck | it is not there |",
    ):
        assert line in text.splitlines(), line
    assert "rehearsal" not in text


def test_a_rehearsal_says_that_it_is_one(tmp_path):
    rows = [{**ROWS[0], "dry run": True}, *ROWS[1:]]
    assert "A rehearsal: the figures mean nothing." in gpu.write(rows, tmp_path)[1].read_text()


def test_the_command_takes_the_newest_of_each_gpu(tmp_path, capsys):
    for date, speed in (("2020-01-01", 1.0), ("2020-02-01", 2.0)):
        rows = [{**ROWS[0], "date": date}, {"name": "training base 128 fastbert", "sequences/s": speed}]
        gpu.write(rows, tmp_path)
    gpu.write([{**ROWS[0], "gpu": "Another"}, ROWS[1]], tmp_path)
    (tmp_path / "a-processor").mkdir()
    (tmp_path / "a-processor" / "finetune-cola.json").write_text("{}")  # another benchmark's
    page = tmp_path / "page.md"
    page.write_text(f"before\n{gpu.BEGIN}\nold\n{gpu.END}\nafter\n")
    assert main(["bench", "report", "--results", str(tmp_path), "--page", str(page)]) == 0
    out = capsys.readouterr().out
    assert "| base 128 fastbert | 2 |" in out
    assert "2020-01-01, commit" in out.split("Another")[1]
    assert out.count("Made-up") == 1
    assert page.read_text() == f"before\n{gpu.BEGIN}\n{out}{gpu.END}\nafter\n"


def test_no_results_and_damaged_ones(tmp_path, capsys):
    assert main(["bench", "report", "--results", str(tmp_path / "none")]) == 2
    assert "expected result files GPU/DATE.json, found none" in capsys.readouterr().err
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "2020-01-01.json").write_text("{")
    with pytest.raises(DataError, match="expected results of benchmarks/gpu"):
        gpu.read(tmp_path)
    with pytest.raises(InputError, match="says where they were measured"):
        gpu.write(ROWS[1:], tmp_path)
    page = tmp_path / "page.md"
    page.write_text("no markers")
    with pytest.raises(InputError, match="expected the lines"):
        gpu.into("text", page)


SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


@pytest.fixture
def suite(monkeypatch):
    """The suite's command in this process: its options -> what it printed is in capsys."""
    monkeypatch.syspath_prepend(str(SUITE))
    import suite as module

    def run(*options) -> None:
        monkeypatch.setattr(sys, "argv", ["suite.py", *map(str, options), "--dry-run"])
        module.main()

    return run


def test_the_suite_rehearses_and_goes_on_where_it_was(suite, tmp_path, capsys):
    suite(tmp_path, "--only", "ceilings", "--lengths", tmp_path / "missing.csv")
    assert "a line through quantiles of Wikipedia's, since" in capsys.readouterr().out
    written = tmp_path / "rehearsal"
    rows = [json.loads(line) for line in (written / "results.jsonl").read_text().splitlines()]
    assert [row["name"].split()[0] for row in rows] == ["environment", "ceilings"]
    assert rows[0]["dry run"]
    with open(written / "results.jsonl", "a") as file:
        file.write('{"name": "half a li')  # killed while it wrote
    suite(tmp_path, "--only", "ceilings,kernels", "--budget", "0")
    out = capsys.readouterr().out
    assert '"name": "ceilings"' not in out
    assert "out of time before" in out
    assert [len(list((written / "none").glob(f"*.{kind}"))) for kind in ("json", "md")] == [1, 1]
    with pytest.raises(SystemExit, match="--only knows ceilings, training, finetuning, profile"):
        suite(tmp_path, "--only", "speed")


@pytest.mark.slow
def test_other_settings_of_attention_are_rows(suite, tmp_path):
    suite(tmp_path, "--only", "settings")
    rows = [json.loads(line) for line in (tmp_path / "rehearsal" / "results.jsonl").read_text().splitlines()][1:]
    assert not [row for row in rows if "error" in row]
    names = {row["name"] for row in rows if row["ms"] > 0}
    assert "setting attention forward S=512 M=64 N=64 warps=4 stages=3" in names
    assert {f"setting attention queries S={n} shipped" for n in (128, 512)} <= names
    assert "setting attention queries S=128 M=64 N=64 warps=4 stages=2" in names  # two passes beside the one


@pytest.mark.slow
def test_other_settings_of_what_memory_bounds_are_rows(suite, tmp_path):
    suite(tmp_path, "--only", "memory")
    rows = [json.loads(line) for line in (tmp_path / "rehearsal" / "results.jsonl").read_text().splitlines()][1:]
    assert not [row for row in rows if "error" in row]
    names = {row["name"] for row in rows if row["GB/s"] > 0 and row["difference"] == 0}
    assert "setting gelu backward 32768x3072 M=2 N=512 warps=2 programs=14" in names
    assert {f"setting layer_norm {direction} 32768x768 shipped" for direction in ("forward", "backward")} <= names
    assert "setting cross_entropy forward 5120x30522 N=2048 warps=8" in names


def test_time_that_went_before_is_of_the_budget(suite, tmp_path, capsys):
    suite(tmp_path, "--only", "ceilings", "--budget", "100", "--spent", "100")
    assert "out of time before 1 measurements" in capsys.readouterr().out


def test_what_was_measured_is_out_of_memory_before_the_next(suite, tmp_path):
    import suite as module

    class Step:
        def __init__(self) -> None:
            self.replay = self.run  # as a captured step holds what it replays

        def run(self) -> None: ...

    alive = []

    def measured() -> dict:
        alive.append(weakref.ref(Step()))
        return {}

    module.Results(tmp_path, 100, True).measure("a step", measured)
    assert alive[0]() is None


def test_tests_that_take_too_long_are_an_error_with_what_has_failed_until_then(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SUITE))
    import checks

    tests = tmp_path / "test_slow.py"
    tests.write_text(
        "import pathlib, time\ndef test_dropout_has_failed(): assert 1 == 2\n"
        f"def test_dropout_has_begun():\n    pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n    time.sleep(60)\n"
    )
    wait = subprocess.Popen.wait

    def once_begun(process, timeout=None):
        """The first time is over as soon as the second test has begun; a slow machine may take the second."""
        while timeout == 0.1 and not (tmp_path / "begun").exists():
            time.sleep(0.01)
        return wait(process, timeout if timeout == 0.1 else None)

    monkeypatch.setattr(subprocess.Popen, "wait", once_begun)
    row = checks.pytest(True, (str(tests),), timeout=0.1)
    assert row["error"] == "not done after 0.1 s"
    assert any(line.startswith("FAILED") and "test_dropout_has_failed" in line for line in row["tail"]), row


# What a machine with torch and Triton alone may lack, and no row but a peer's or the commands' needs.
OPTIONAL = (
    "tyro", "rich", "docstring_parser", "matplotlib", "tensorboard", "yaml", "filelock", "safetensors", "tokenizers",
    "transformers", "peft", "sentence_transformers", "xdist", "psutil",
)  # fmt: skip


def test_a_machine_with_little_installed_measures_what_it_can():
    """No module of the suite, nor what ours imports for it, is in need of these."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); sys.path.insert(0, {str(SUITE)!r}); "
    environment = {**os.environ, "PYTHONPATH": str(Path(fastbert.__file__).parent.parent)}
    command = [sys.executable, "-c", hidden + "import suite; from fastbert.train import graph; print('all there')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "all there\n", done.stderr


def test_tests_run_without_pytests_workers_and_a_row_says_why_none_did(monkeypatch):
    monkeypatch.syspath_prepend(str(SUITE))
    import checks

    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:xdist")
    row = checks.pytest(True, ("tests/bench/test_gpu_report.py",))  # a rehearsal runs tests of another name
    assert row["rc"] == pytest.ExitCode.NO_TESTS_COLLECTED, row
    assert "deselected" in row["tail"][-1]


def test_tests_on_a_gpu_run_side_by_side(monkeypatch):
    """Compiling hundreds of kernels in one process takes minutes."""
    pytest.importorskip("xdist")
    monkeypatch.syspath_prepend(str(SUITE))
    import checks

    commands = []

    def note(command, **_):
        commands.append(command)
        return SimpleNamespace(wait=lambda _: 0)

    monkeypatch.setattr(checks.subprocess, "Popen", note)
    checks.kernel_tests(False)
    assert "-n" in commands[0]


@pytest.fixture
def watch(monkeypatch, tmp_path):
    """`watch.run` over a suite that does these things in order, each measurement once."""
    monkeypatch.syspath_prepend(str(SUITE))
    import watch as module

    def run(*does: str, **options) -> tuple[int, list[dict], list[str]]:
        """-> exit status, rows, and what each process was told."""
        out = tmp_path / "out"
        script = tmp_path / "suite.py"
        script.write_text(
            "import json, os, signal, sys, time\nfrom pathlib import Path\n"
            f"out = Path({str(out)!r})\nprint(sys.argv[1:], file=open(out / 'told', 'a'))\n"
            "rows = out / 'results.jsonl'\n"
            "def known(): return rows.read_text() if rows.exists() else ''\n"
            "def measure(name, does):\n"
            "    if name not in known():\n"
            "        (out / 'begun.json').write_text(json.dumps({'name': name, 'since': time.time()}))\n"
            "        does()\n"
            "        print(json.dumps({'name': name}), file=open(rows, 'a'))\n"
            "        (out / 'begun.json').unlink()\n"
            + "".join(f"measure('row {number}', lambda: {what})\n" for number, what in enumerate(does))
        )
        monkeypatch.setattr(module, "SUITE", script)
        given = {"seconds": 100.0, "spent": 0.0, "longest": 60.0} | options
        status = module.run(["--only", "checks"], out, **given)
        rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        return status, rows, (out / "told").read_text().splitlines()

    return run


def test_what_kills_the_suite_is_a_row_and_the_rest_is_measured(watch):
    status, rows, told = watch("1", "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(3)", "1")
    why = {row["name"]: row.get("error") for row in rows}
    assert why == {
        "row 0": None,
        "row 1": "the process ended with SIGSEGV",
        "row 2": "the process ended with status 3",
        "row 3": None,
    }
    assert status == 0
    assert all(line.startswith("['--only', 'checks', '--spent', '") for line in told)
    assert ["--again" in line for line in told] == [False, True, True]


def test_what_never_ends_is_ended(watch):
    status, rows, _ = watch("time.sleep(60)", "1", longest=0.5)
    assert [row.get("error") for row in rows] == ["not done after 1 s", None]
    assert status == 0


def test_only_a_lost_device_asks_for_another_process(watch, tmp_path):
    """Its row is there already; a suite that ends by itself has nothing left to do, or refused its options."""
    leave = "((out / 'begun.json').unlink(), (out / 'once').touch(), os._exit({}))"
    status, rows, told = watch(f"(out / 'once').exists() or {leave.format(75)}", "1", leave.format(2))
    assert (status, [row["name"] for row in rows], len(told)) == (2, ["row 0", "row 1"], 2)


def test_a_device_that_is_lost_ends_the_process_after_the_row(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SUITE))
    import suite as module
    import watch

    class Ended(BaseException): ...

    def end(status: int) -> None:
        raise Ended(status)

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(module.os, "_exit", end)
    results = module.Results(tmp_path, 100, True)
    results.measure("out of memory", lambda: 1 / 0)  # the device itself is well
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(Ended, match=str(watch.LOST)):
        results.measure("a kernel", dict)  # its call came back: the device was still at it
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == ["out of memory", "a kernel"]
    assert "illegal memory access" in rows[1]["error"]
    assert watch.begun(tmp_path) is None


def test_what_another_gpu_did_is_measured_again_and_not_told_as_this_ones(suite, tmp_path, capsys):
    (tmp_path / "rehearsal").mkdir()
    path = tmp_path / "rehearsal" / "results.jsonl"
    other = [{"name": "environment 1", "gpu": "another", "date": "2020-01-01"}, {"name": "ceilings", "TFLOP/s": 1e9}]
    path.write_text("".join(json.dumps(row) + "\n" for row in other))
    suite(tmp_path, "--only", "ceilings")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[:2] == other
    assert [row["name"].split()[0] for row in rows[2:]] == ["environment", "ceilings"]
    (document,) = (tmp_path / "rehearsal").glob("*/*.json")
    assert [row["TFLOP/s"] for row in json.loads(document.read_text())["rows"]] == [rows[3]["TFLOP/s"]]


def test_what_ended_a_process_is_tried_again_in_the_next_run_and_not_in_this_one(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SUITE))
    import suite as module

    rows = [
        {"name": "environment 1"},
        {"name": "a", "error": "x"},
        {"name": "environment 2"},
        {"name": "b", "error": "x"},
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def measured(again: bool) -> list[str]:
        results, found = module.Results(tmp_path, 100, True, again), []
        monkeypatch.setattr(results, "always", lambda name, *_: found.append(name))
        for name in ("a", "b", "c"):
            results.measure(name, dict)
        return found

    assert measured(again=True) == ["a", "c"]
    assert measured(again=False) == ["a", "b", "c"]


def test_a_kernel_is_measured_by_the_time_of_the_device(monkeypatch):
    """A call that takes the host 10 ms to make and a device 1 ms to do, in two parts."""
    monkeypatch.syspath_prepend(str(SUITE))
    import kernels

    done = [0.0]  # when the device has done what it was given

    def give(seconds: float) -> float:
        done[0] = max(done[0], time.perf_counter()) + seconds
        return done[0]

    class Event:
        def __init__(self, enable_timing: bool) -> None: ...
        def record(self) -> None:
            self.at = give(0)

        def elapsed_time(self, later) -> float:
            return 1e3 * (later.at - self.at)

    def call() -> None:
        for _ in range(2):
            time.sleep(0.005)
            give(0.0005)

    device = {"Event": Event, "synchronize": lambda: None, "_sleep": lambda cycles: give(cycles / kernels._CYCLES)}
    for name, function in device.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: SimpleNamespace(zero_=lambda: give(0.0001)))
    assert kernels.milliseconds(call, False, repeats=3) == pytest.approx(1.0, abs=0.1)

    busy = [0.0]

    def rising(seconds: float) -> float:
        """An idle device's clock is slow, and has risen after 30 ms of work."""
        busy[0] += seconds
        return give(seconds if busy[0] > 0.03 else 2 * seconds)

    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: rising(cycles / kernels._CYCLES))
    assert kernels.milliseconds(lambda: rising(0.001), False, repeats=3) == pytest.approx(1.0, abs=0.1)


def test_the_script_builds_for_the_python_that_it_runs(tmp_path):
    fake = tmp_path / "python3"
    fake.write_text(f'#!/bin/bash\n[ "$1" = -c ] && echo .of-another-python.so || echo "$@" >>{tmp_path}/calls\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([SUITE / "run.sh", tmp_path / "out", "--only", "checks"], env=environment, check=True)
    first, last = (tmp_path / "calls").read_text().splitlines()
    assert first == "setup.py build_ext --inplace"
    assert last.startswith("benchmarks/gpu/watch.py --spent ")
    assert last.endswith(f" {tmp_path}/out --only checks")


def test_the_mix_has_wikipedias_mean_without_the_file(monkeypatch):
    monkeypatch.syspath_prepend(str(SUITE))
    import steps

    histogram, source = steps.mix_of_lengths(None)
    assert "no file of lengths was given" in source
    # 255.8, of shared/data/lengths/wikipedia_512.csv
    assert abs((histogram * range(len(histogram))).sum() / histogram.sum() - 255.8) < 3
    chosen = steps.draw("mix", histogram, 16384)
    assert 16384 * 0.99 < sum(chosen) <= 16384


@pytest.mark.slow
def test_every_part_rehearses(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(fastbert.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SUITE / "suite.py"), str(tmp_path), "--dry-run", "--budget", "3000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rehearsal" / "results.jsonl").read_text().splitlines()]
    errors = [row for row in rows if "error" in row or row.get("rc") or row.get("different")]
    assert not errors
    assert len(rows) > 80
