"""Ctrl-C, SIGTERM and a terminal's end: the step is finished, the run saved, exit 0; a second signal ends it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pretraining_runs as runs
import psutil
import pytest

from fastbert import signals
from fastbert.signals import StopRequest, removed_on_sigterm
from fastbert.train import checkpoint
from fastbert.train.pretrain import pretrain

# `fastbert`, with the start method of its worker processes in front.
COMMAND = (
    "import multiprocessing, sys; from fastbert.cli.main import main; "
    "multiprocessing.set_start_method(sys.argv[1]); sys.exit(main(sys.argv[2:]))"
)
LIMIT = 30.0  # seconds from the signal to the exit


pytestmark = pytest.mark.usefixtures("hangups_arrive")


def queued(pids) -> dict[Path, int]:
    """Nanoseconds in which the threads of processes were ready to run and had no core, where the system tells."""
    found = {}
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        with contextlib.suppress(OSError):  # ended just now
            found[path] = int(path.read_text().split()[1])
    return found


def within(seconds: float, done, pids) -> bool:
    """Whether something is done in time. Not counted is how long a thread of the processes waited for a core: on a busy
    machine that may be minutes, and says nothing of them; one that hangs or works too long waits for none."""
    begun, before, starved = time.monotonic(), queued(pids), 0.0
    while not done():
        waited = (now - before.get(path, 0) for path, now in queued(pids).items())
        starved = max(starved, *(value / 1e9 for value in waited), 0.0)
        if time.monotonic() - begun - starved > seconds:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("signals") / "data")


@pytest.fixture
def start(data, tmp_path):
    """A function that starts the command on a run of its own and waits until it takes steps."""
    children = []

    def begin(*, wait_for: str = r"\n +3 ", method: str = "fork", **changes) -> subprocess.Popen:
        out = tmp_path / "run"
        file = tmp_path / "options.yaml"
        file.write_text(runs.config(data, out, **{"steps": 10**6, **changes}).to_yaml())
        child = subprocess.Popen(
            [sys.executable, "-c", COMMAND, method, "pretrain", "--config", str(file)],
            stdout=open(tmp_path / "stdout", "wb"),  # noqa: SIM115  (the child's; a pipe could fill up)
            stderr=open(tmp_path / "stderr", "wb"),  # noqa: SIM115
            # On one core torch warns of every worker.
            env=runs.environment() | {"PYTHONWARNINGS": "ignore::UserWarning"},
            cwd=tmp_path,
            start_new_session=True,
        )
        children.append(child)

        def steps() -> bool:
            assert child.poll() is None, (tmp_path / "stderr").read_text()
            return re.search(wait_for, (tmp_path / "stdout").read_text()) is not None

        assert within(120, steps, [child.pid]), "the run did not come to its third step"
        return child

    yield begin
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.parametrize(
    ("number", "num_workers", "method"),
    [
        (signal.SIGINT, 0, "fork"),
        # Of these each part is in another case.
        pytest.param(signal.SIGINT, 2, "fork", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, "fork", marks=pytest.mark.slow),
        (signal.SIGTERM, 2, "forkserver"),
        (signal.SIGHUP, 2, "fork"),
    ],
    ids=["interrupt", "interrupt-workers", "terminate-workers", "terminate-workers-forkserver", "hangup-workers"],
)
def test_the_first_signal_saves_and_exits_with_0(start, tmp_path, number, num_workers, method):
    """forkserver is what Python 3.14 starts processes with, unless it is told otherwise."""
    child = start(num_workers=num_workers, method=method)
    family = psutil.Process(child.pid).children(recursive=True)
    assert len(family) == num_workers
    # A terminal's Ctrl-C reaches the workers too.
    pids = [child.pid, *(worker.pid for worker in family)]
    os.killpg(child.pid, number)
    assert within(LIMIT, lambda: child.poll() is not None, pids), "the run did not end"
    assert child.returncode == 0, (tmp_path / "stderr").read_text()
    told = (tmp_path / "stdout").read_text()
    step = int(re.search(rf"stopped by {number.name} after step (\d+); go on with --resume auto", told)[1])
    run = tmp_path / "run"
    newest, skipped = checkpoint.latest_valid(run / "checkpoints")
    assert (newest.name, skipped) == (f"step_{step}", [])
    # The last line, the last row and the checkpoint are of the same step: nothing was done and lost.
    assert max(row["step"] for row in runs.rows(run)) == step
    assert runs.checkpoint_of(run, step)[1]["step"] == step
    for name in ("model/model.safetensors", "model/vocab.txt", "config.yaml", "loss.png"):
        assert (run / name).is_file(), name
    assert not [path.name for path in run.rglob("*") if ".tmp" in path.name]
    assert within(10, lambda: not psutil.wait_procs(family, timeout=0)[1], pids), "workers outlived the run"
    assert (tmp_path / "stderr").read_text() == ""


def test_the_second_signal_ends_it_at_once(start, tmp_path):
    """A step of very many micro-batches cannot be waited for."""
    child = start(accumulate=10**5, wait_for=r"backends ")
    time.sleep(1.0)  # from the header to the first micro-batch
    child.send_signal(signal.SIGINT)
    time.sleep(signals.ONE_REQUEST_S + 0.5)
    assert child.poll() is None, "the first signal lets the step be finished"
    child.send_signal(signal.SIGINT)
    assert within(10, lambda: child.poll() is not None, [child.pid])
    assert child.returncode == 130
    assert "Traceback" not in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("work", ["time.sleep(60)", "while True: pass"], ids=["hangs", "works"])
def test_a_process_that_does_not_end_is_found_on_a_busy_machine_too(work):
    child = subprocess.Popen([sys.executable, "-c", f"import time\n{work}"])
    try:
        assert not within(0.5, lambda: child.poll() is not None, [child.pid])
    finally:
        child.kill()
        child.wait()


def test_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with StopRequest() as stop:
        assert stop.asked is None
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked == "SIGTERM"
    assert {number: signal.getsignal(number) for number in before} == before
    with StopRequest() as stop:
        pass
    assert stop.asked is None
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM)])
def test_signals_that_come_together_are_one_request(numbers):
    """Ctrl-C reaches deepspeed's launcher and its ranks, which then get its SIGTERM; a batch system's SIGTERM reaches
    torchrun and its ranks, which then get torchrun's."""
    acted = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: acted.append(number))
    try:
        with StopRequest() as stop:
            for number in numbers:
                signal.raise_signal(number)
        assert stop.asked == numbers[0].name
        assert acted == []
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_interrupt_is_the_usual_exception(monkeypatch):
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked == "SIGINT"
        now += 1.5 * signals.ONE_REQUEST_S
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_hangup_is_passed_over():
    """The shell and the system each send one when a terminal closes."""
    before = signal.getsignal(signal.SIGHUP)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert stop.asked == "SIGHUP"
    assert signal.getsignal(signal.SIGHUP) is before
    with removed_on_sigterm():
        with pytest.raises(SystemExit) as stopped:
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    assert stopped.value.code == 128 + signal.SIGHUP
    assert signal.getsignal(signal.SIGHUP) is before


@pytest.mark.parametrize(
    ("number", "ends"),
    [(signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit), (signal.SIGINT, KeyboardInterrupt)],
)
def test_a_signal_while_an_object_is_removed_still_ends_the_work(number, ends, capsys):
    """Python passes over what is raised there: the work went on to its end, hours later, and a batch system sends no
    second SIGTERM."""

    class Thing:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def work() -> None:
        Thing()
        time.sleep(2.0)

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with removed_on_sigterm(), removed_on_sigterm(), pytest.raises(ends):  # one in the other, as in a study
        work()
    assert {n: signal.getsignal(n) for n in before} == before
    assert capsys.readouterr().err == ""


def test_a_hangup_that_is_ignored_from_the_start_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts a process
    try:
        with StopRequest() as stop, removed_on_sigterm():
            signal.raise_signal(signal.SIGHUP)
        assert stop.asked is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_written_after_a_terminal_has_closed_is_no_error(tmp_path):
    """A write to it would fail (EIO) before anything is saved."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "from fastbert.signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    print('ready', flush=True)\n"
        "    while stop.asked is None:\n"
        "        time.sleep(0.01)\n"
        "    print('stopped', flush=True)\n"
        "    print('stopped', file=sys.stderr, flush=True)\n"
        "pathlib.Path(sys.argv[1]).write_text(stop.asked)\n"
    )
    process, terminal = pty.fork()
    if not process:
        os.execve(sys.executable, [sys.executable, str(script), str(tmp_path / "saved")], runs.environment())
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "saved").read_text() == "SIGHUP"


def test_a_script_may_end_while_workers_still_make_batches(data, tmp_path):
    """Python sends daemons SIGTERM at exit and waits for them: workers that ignored it would be waited for forever."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, warnings\n"
        "from fastbert.data.config import SampleConfig\n"
        "from fastbert.data.loader import make_loader\n"
        "from fastbert.data.pretraining import PretrainingData\n"
        "from fastbert.data.shards import ShardSet\n"
        "warnings.filterwarnings('ignore', 'This DataLoader will create')  # where there is but one core\n"
        "data = PretrainingData(ShardSet.open(sys.argv[1]), SampleConfig(max_seqlen=32))\n"
        "batches = make_loader(data, 256, num_workers=2)\n"
        "next(batches)\n"
    )
    ended = subprocess.run(
        [sys.executable, script, data], cwd=tmp_path, env=runs.environment(), capture_output=True, timeout=LIMIT
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_killed_trainer_leaves_no_workers(start):
    child = start(num_workers=2)
    family = psutil.Process(child.pid).children(recursive=True)
    assert len(family) == 2
    child.kill()
    child.wait()
    pids = [worker.pid for worker in family]
    assert within(20, lambda: not psutil.wait_procs(family, timeout=0)[1], pids), "workers outlived the trainer"


def test_pretraining_outside_the_main_thread(data, tmp_path):
    """Python delivers no signals there, and refuses to set handlers."""
    results = []
    options = runs.config(data, tmp_path / "run", steps=2)
    thread = threading.Thread(target=lambda: results.append(pretrain(options, quiet=True)))
    thread.start()
    thread.join(60)
    assert [result.steps for result in results] == [2]
