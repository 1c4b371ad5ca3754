"""The processes of variants: started, sent requests, stopped while others run, and described when they die."""

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
    """The command that runs main() of a module of the package that this process uses, even if the current directory is
    a checkout with another one."""
    return [sys.executable, "-c", f"import sys; sys.path[0] = {_ROOT!r}; from {module} import main; main()"]


class VariantFailed(Exception):
    """A variant answered with an error; it can continue with another workload."""


class WorkerDied(Exception):
    """The process of a variant crashed, or was ended because it did not answer."""


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
    """The environment of a worker: its number of threads; without our cap of oneDNN if a library is preloaded."""
    environment = dict(os.environ)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[variable] = str(threads)
    environment["TOKENIZERS_PARALLELISM"] = "false"
    # None of these libraries may access the network.
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    paths = [_ROOT, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if preload:
        environment["LD_PRELOAD"] = preload
        if environment.get(hardware.ONEDNN_VARIABLE) == hardware.ONEDNN_CAP:
            del environment[hardware.ONEDNN_VARIABLE]
    return environment


def why_not_preloaded(library: str) -> str | None:
    """Why a process cannot start with this library, the value of LD_PRELOAD; None if it can. The loader goes on without
    a library that it cannot take, and says so only on stderr."""
    if " " in library or ":" in library:
        return "LD_PRELOAD ends paths at these"
    environment = worker_environment(1, library)
    child = subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, check=False)
    said = child.stderr.decode("utf-8", "replace").splitlines()
    refused = next((line for line in said if "cannot be preloaded" in line), None)
    if refused is not None:
        return refused.partition("cannot be preloaded")[2].removesuffix(": ignored.").strip(" ():") or "it is refused"
    return None if child.returncode == 0 else f"a Python with it {_describe_exit(child.returncode)}"


class Worker:
    """One process. It is stopped (SIGSTOP) between requests, since spinning threads would slow down the others.

    Args:
        threads: the number of threads of every numerical library in it.
        preload: the value of LD_PRELOAD, or None.
        log: the file to which its stderr is appended.
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
            WorkerDied: it crashed, or did not answer within ``timeout`` seconds and was ended.
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
        """The next line of the answers; b"" if the process has closed its output."""
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
        """Ends the process, even if it is stopped."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            # Buffered requests have no reader any more.
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def available_mb() -> float:
    """The memory that a new process can use without paging, in MB; infinity if the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1024
    except OSError:
        return float("inf")
    return float("inf")
