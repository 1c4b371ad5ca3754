"""Processes of variants: started, asked, stopped while others run, and described when they die."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from .. import hardware

_ROOT = str(Path(__file__).resolve().parents[2])


def module_command(module: str) -> list[str]:
    """Starts main() of a module of the package of this process, and not of one that happens to lie in the current
    directory, as a checkout does."""
    return [sys.executable, "-c", f"import sys; sys.path[0] = {_ROOT!r}; from {module} import main; main()"]


class VariantFailed(Exception):
    """A variant answered with an error; it may go on with another workload."""


class WorkerDied(Exception):
    """The process of a variant is gone: a crash, or we ended it because it did not answer."""


def _describe_exit(status: int) -> str:
    """ "crashed: signal 4 (SIGILL)" or "ended with status 1"."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = f" ({signal.Signals(-status).name})"
    except ValueError:
        name = ""
    return f"crashed: signal {-status}{name}"


def worker_environment(threads: int, preload: str | None) -> dict[str, str]:
    """The environment of a worker: so many threads; with a preloaded library, oneDNN's cap is ours no longer."""
    environment = dict(os.environ)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[variable] = str(threads)
    environment["TOKENIZERS_PARALLELISM"] = "false"
    # No library of this list may ask the network for anything.
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    paths = [_ROOT, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if preload:
        environment["LD_PRELOAD"] = preload
        if environment.get(hardware.ONEDNN_VARIABLE) == hardware.ONEDNN_CAP:
            del environment[hardware.ONEDNN_VARIABLE]
    return environment


class Worker:
    """One process. It is stopped (SIGSTOP) whenever it is not asked: threads that spin would cost the others time.

    Args:
        threads: of every numerical library in it.
        preload: value of LD_PRELOAD, or None.
        log: file that its stderr is appended to.
    """

    def __init__(self, threads: int, preload: str | None, log: Path) -> None:
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                module_command("fastbert.bench.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=worker_environment(threads, preload),
            )
        self._pending = b""

    def ask(self, do: str, timeout: float, **request) -> dict:
        """Sends a request and waits for its answer; the process runs only meanwhile.

        Raises:
            VariantFailed: it answered with an error.
            WorkerDied: it crashed, or gave no answer in ``timeout`` seconds and was ended.
        """
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self.process.stdin.flush()
            line = self._read_line(timeout)
        except BrokenPipeError:
            line = b""
        if not line:
            status = self.process.wait()
            raise WorkerDied(_describe_exit(status))
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if not answer.pop("ok"):
            raise VariantFailed(answer["error"])
        return answer

    def _read_line(self, timeout: float) -> bytes:
        """The next line of the answers; b"" when the process has closed them."""
        stream = self.process.stdout
        while b"\n" not in self._pending:
            if not select.select([stream], [], [], timeout)[0]:
                self.close()
                raise WorkerDied(f"gave no answer within {timeout:.0f} s and was ended")
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                return b""
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        """Ends the process, also a stopped one."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            # What was not written yet has no reader any more.
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def available_mb() -> float:
    """Memory that a new process may take without paging, in MB; infinity where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1024
    except OSError:
        return float("inf")
    return float("inf")
