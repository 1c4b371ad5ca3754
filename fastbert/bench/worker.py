"""The process of one variant: reads requests from stdin and writes answers, one per line, for `pool.Worker`.

    {"do": "convert" | "load", "adapter": ..., "directory": ..., "dtype": ..., "threads": n}
    {"do": "prepare", "batch": FILE.npz, "way": way}     gives the adapter a batch, and the way to call the library
    {"do": "answer", "out": FILE.npz}                    writes what is compared with the truth
    {"do": "run", "times": n, "warm": k}                 k untimed runs, then seconds (and losses) of n
    {"do": "rates"}                                      the rates of the probe
    {"do": "peak"}                                       the peak memory since the model was loaded, in MB

Answers are {"ok": true, ...} or {"ok": false, "error": "..."}. What libraries print on stdout goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from .. import hardware
from ..processes import killed_with_the_parent
from . import peers


def _forget_peak() -> None:
    """Resets the system's peak of this process if possible, since loading may need more memory than running."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


class Server:
    """Answers requests; holds the adapter between them."""

    def __init__(self) -> None:
        self.adapter = None

    def convert(self, adapter: str, directory: str, dtype: str, threads: int) -> dict:
        """Converts the model in the directory to the library's format."""
        peers.load(adapter).convert(Path(directory), dtype)
        return {}

    def load(self, adapter: str, directory: str, dtype: str, threads: int) -> dict:
        """Loads the model by an adapter, and resets the peak of memory."""
        self.adapter = peers.load(adapter)(Path(directory), dtype, threads)
        _forget_peak()
        return {}

    def prepare(self, batch: str, way: str | None = None) -> dict:
        """Gives the adapter the batch of an .npz file, and the way to call its library."""
        self.adapter.way = way
        with np.load(batch) as arrays:
            self.adapter.prepare(dict(arrays))
        return {}

    def answer(self, out: str) -> dict:
        """Writes the adapter's results for its batch to an .npz file."""
        np.savez(out, **self.adapter.answer())
        return {}

    def run(self, times: int, warm: int = 0) -> dict:
        """Times ``times`` steps, after ``warm`` steps that do not count: their seconds and, in training, losses."""
        for _ in range(warm):
            self.adapter.step()
        seconds, losses = [], []
        for _ in range(times):
            start = time.perf_counter()
            loss = self.adapter.step()
            seconds.append(time.perf_counter() - start)
            losses.append(loss)
        return {"seconds": seconds, "losses": losses}

    def rates(self) -> dict:
        """The processor's rates, from the adapter that measures them."""
        return {"rates": self.adapter.rates()}

    def peak(self) -> dict:
        """The peak memory since `load`, in MB."""
        return {"mb": hardware.peak_memory_mib()}


_REQUESTS = ("convert", "load", "prepare", "answer", "run", "rates", "peak")


def main() -> None:
    """Answers requests, a JSON object a line, until standard input ends."""
    # Between requests it is stopped, and would stay so, keeping its memory, if the parent was killed.
    killed_with_the_parent()
    # A separate descriptor for the answers; whatever a library prints, also from C, goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what not in _REQUESTS:
            raise ValueError(f"request must be one of {', '.join(_REQUESTS)}, got {what!r}")
        try:
            answer = {"ok": True, **getattr(server, what)(**request)}
        # Any exception of a library becomes its row of the table and does not end the run.
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            answer = {"ok": False, "error": f"{type(error).__name__}: {lines[0][:300]}"}
        answers.write(json.dumps(answer) + "\n")
