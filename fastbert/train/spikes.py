"""A step whose loss stands far above those before it is left out, as large runs do by hand."""

from __future__ import annotations

import math
import statistics

# So many in a row are no spike but a new level, of other data say: it is accepted, and the window begins again.
_IN_A_ROW = 5


class SpikeRule:
    """Says whether a step is to be left out: its loss is over ``mean + sigma * deviation`` of the last accepted ones.

    Only a full window decides, so the first steps, in which the loss falls fast, are never left out.

    Args:
        sigma: how many standard deviations above the mean.
        window: losses of so many accepted steps are looked at.

    Attributes:
        count: steps left out so far.
    """

    def __init__(self, sigma: float, window: int) -> None:
        self.sigma, self.window = sigma, window
        self.count = 0
        self._losses: list[float] = []
        self._in_a_row = 0

    @property
    def limit(self) -> float:
        """The largest loss that is accepted now."""
        if len(self._losses) < self.window:
            return float("inf")
        return statistics.fmean(self._losses) + self.sigma * statistics.pstdev(self._losses)

    def leaves_out(self, loss: float) -> bool:
        """Takes note of a step's loss; True where its update is to be skipped. The engine sees to NaN and inf."""
        if loss > self.limit:
            self._in_a_row += 1
            if self._in_a_row <= _IN_A_ROW:
                self.count += 1
                return True
            self._losses = []
        self._in_a_row = 0
        if math.isfinite(loss):
            self._losses = [*self._losses, loss][-self.window :]
        return False

    def forget(self) -> None:
        """Begins the window again."""
        self._losses, self._in_a_row = [], 0

    def state(self) -> dict:
        """What a checkpoint keeps."""
        return {"count": self.count, "losses": list(self._losses), "in_a_row": self._in_a_row}

    def restore(self, state: dict) -> None:
        """Goes on from `state`."""
        self.count, self._losses, self._in_a_row = state["count"], list(state["losses"]), state["in_a_row"]
