"""What a training run prints: lines, and a progress bar if stderr is a terminal."""

from __future__ import annotations

import sys

from ..files import NO_ROOM

_COLUMNS = (("step", 7), ("loss", 8), ("mlm_acc", 8), ("nsp_acc", 8), ("grad_norm", 10))
_MORE = (("lr", 9), ("tok/s", 9), ("MFU", 6), ("mem", 9))


class Console:
    """Prints the lines of a run.

    Args:
        quiet: print nothing, and draw no bar.
    """

    def __init__(self, quiet: bool = False) -> None:
        from rich import progress as rp
        from rich.console import Console as RichConsole

        self._quiet = quiet
        self._lines = 0
        self._bar = rp.Progress(
            rp.TextColumn("pre-training"),
            rp.BarColumn(),
            rp.TaskProgressColumn(),
            rp.TextColumn("{task.fields[note]}"),
            rp.TimeElapsedColumn(),
            rp.TextColumn("left"),
            rp.TimeRemainingColumn(),
            console=RichConsole(file=sys.stderr),
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = self._bar.add_task("pre-training", total=1.0, note="")

    def __enter__(self) -> Console:
        self._bar.start()
        return self

    def __exit__(self, *_exception) -> None:
        if not self._bar.disable:  # before rich 14.3, stop() printed an empty line for a disabled bar
            self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line. On a full disk, to which a batch system may redirect output, the line stays in the buffer
        until the next one is printed: that is no reason to end a run."""
        if self._quiet:
            return
        try:
            print(text, flush=True)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def advance(self, progress: float, note: str) -> None:
        """Moves the bar to a share of the run, and puts ``note`` beside it."""
        self._bar.update(self._task, completed=min(progress, 1.0), note=note)

    def step(self, step: int, row: dict) -> None:
        """Prints the line of a row of training: step loss mlm_acc nsp_acc grad_norm lr tok/s MFU mem."""
        if self._lines % 20 == 0:
            self.say(" ".join(f"{name:>{width}}" for name, width in _COLUMNS + _MORE))
        self._lines += 1
        nsp = row.get("nsp_acc")
        self.say(
            f"{step:>7} {row['loss']:>8.4f} {row['mlm_acc']:>8.4f} "
            f"{f'{nsp:.4f}' if nsp is not None else '-':>8} {row['grad_norm']:>10.3f} {row['lr']:>9.2e} "
            f"{row['tokens_per_second']:>9,.0f} {100 * row['mfu']:>5.1f}% {row['memory_mib']:>5,.0f} MiB"
        )

    def heldout(self, step: int, row: dict) -> None:
        """Prints an evaluation's figures."""
        nsp = f", nsp accuracy {100 * row['nsp_acc']:.1f} %" if "nsp_acc" in row else ""
        entropy = f"unigram entropy {row['unigram_entropy']:.4f}"
        words = f"mlm loss {row['mlm_loss']:.4f} ({entropy}), mlm accuracy {100 * row['mlm_acc']:.1f} %"
        if row.get("targets") == 0:
            words = "no words to predict"
        self.say(f"held out at step {step}: {words}{nsp}")
