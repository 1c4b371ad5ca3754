"""Leaves out steps whose loss is far above the previous ones, as is done by hand in large runs."""

from __future__ import annotations

import math
import statistics

# After this many in a row it is not a spike but a new level, perhaps of other data: it is accepted, and the window
# starts afresh.
_IN_A_ROW = 5


class SpikeRule:
    """Decides whether a step is left out: if its loss is above ``mean + sigma * deviation`` of the last accepted ones.

    Until the window is full every step is accepted, so the first steps, in which the loss falls fast, are never left
    out.

    Args:
        sigma: the limit in standard deviations above the mean.
        window: the number of accepted losses from which mean and deviation are computed.

    Attributes:
        count: the number of steps left out so far.
    """

    def __init__(self, sigma: float, window: int) -> None:
        self.sigma, self.window = sigma, window
        self.count = 0
        self._losses: list[float] = []
        self._in_a_row = 0

    @property
    def limit(self) -> float:
        """The largest loss that is accepted at present."""
        if len(self._losses) < self.window:
            return float("inf")
        return statistics.fmean(self._losses) + self.sigma * statistics.pstdev(self._losses)

    def leaves_out(self, loss: float) -> bool:
        """Records a step's loss; returns whether its update is to be left out. A loss of NaN is left to the engine,
        which skips steps whose gradient is not finite."""
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
        """Starts with an empty window."""
        self._losses, self._in_a_row = [], 0

    def state(self) -> dict:
        """What a checkpoint stores."""
        return {"count": self.count, "losses": list(self._losses), "in_a_row": self._in_a_row}

    def restore(self, state: dict) -> None:
        """Restores `state`."""
        self.count, self._losses, self._in_a_row = state["count"], list(state["losses"]), state["in_a_row"]
