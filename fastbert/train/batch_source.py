"""The batches of a pre-training run: the samples of its current phase, and the position in their order."""

from __future__ import annotations

from collections.abc import Iterator

from ..data import ranks
from ..data.budget import BudgetData
from ..data.loader import make_loader
from ..data.pretraining import PretrainingData
from ..packing import PackedBatch
from . import phases
from .config import PretrainConfig
from .distributed import World

_PLANNED_EPOCHS = 3


class BatchSource:
    """The micro-batches of one rank. Call `enter` before the first.

    Args:
        config: the recipe.
        data: the samples of the run; a phase may have samples of another length.
        world: of n ranks, rank r takes batches r, r + n, ... of one common order.
        fixed_shape: whether all batches have one shape. To change it, set it before `steps_of_run` and `enter`.

    Attributes:
        data: the samples of the phase.
        accumulate: the number of micro-batches per step on this rank.
        place: (epoch, batch) in the common order at which the next step begins.
    """

    data: PretrainingData | BudgetData
    accumulate: int

    def __init__(self, config: PretrainConfig, data: PretrainingData, world: World, fixed_shape: bool) -> None:
        self._config, self._run_data, self._world, self.fixed_shape = config, data, world, fixed_shape
        self.place = (0, 0)

    def steps_of_run(self) -> int | None:
        """The number of steps of the recipe; None if only the clock ends the run."""
        if self._config.epochs is None:
            return phases.total_steps(self._config)
        whole, part = int(self._config.epochs), self._config.epochs % 1
        budget = self._config.token_budget
        data = self._shaped(self._run_data, budget)
        # Each epoch has other samples but nearly the same number of batches; planning the usual forty of a large corpus
        # would take hours.
        per_epoch = [len(data.batches(e, budget)) for e in range(min(whole + (part > 0), _PLANNED_EPOCHS))]
        if len(per_epoch) < whole + (part > 0):
            batches = sum(per_epoch) / len(per_epoch) * self._config.epochs
        else:
            batches = sum(per_epoch[:whole]) + (per_epoch[whole] * part if part else 0)
        return max(round(batches / (self._config.accumulate * self._world.size)), 1)

    def enter(self, phase: phases.RunPhase) -> None:
        """Switches to the samples and batches of a phase; ``place`` stays."""
        self._phase = phase
        self.data = self._shaped(of_phase(self._run_data, phase), phase.token_budget)
        self.accumulate = phase.accumulate or phase.micro_batches(
            phases.mean_micro_batch(self.data, phase.token_budget), self._world.size
        )
        self.end_workers()

    def end_workers(self) -> None:
        """Ends the processes that make batches; the next step starts others.

        If they are left to the garbage collector, it waits five seconds for each: it closes their queues first, so that
        they are not told to end.
        """
        self._loader: Iterator[tuple[int, int, PackedBatch]] | None = None

    def return_to(self, place: tuple[int, int]) -> None:
        """Makes the next step begin at a place again; steps that were taken since count as never taken."""
        self.place = place
        self.end_workers()

    def next_epoch(self) -> None:
        """Moves to the start of the next epoch, whose samples have not been used yet."""
        self.place = (self.place[0] + 1, 0)

    def next_step(self) -> list[PackedBatch]:
        """This rank's micro-batches of the next step, on the CPU."""
        if self._loader is None:
            self._loader = make_loader(
                self.data,
                self._phase.token_budget,
                start=self.place,
                num_workers=self._config.num_workers,
                rank=self._world.rank,
                world_size=self._world.size,
            )
        micro = [next(self._loader)[2] for _ in range(self.accumulate)]
        self.place = ranks.after(self._batches_in, self.place, self.accumulate * self._world.size)
        return micro

    def _batches_in(self, epoch: int) -> int:
        return len(self.data.batches(epoch, self._phase.token_budget))

    def _shaped(self, data: PretrainingData, token_budget: int) -> PretrainingData | BudgetData:
        return BudgetData(data, token_budget) if self.fixed_shape else data


def of_phase(data: PretrainingData, phase: phases.RunPhase) -> PretrainingData:
    """The samples of a run, with the lengths of a phase."""
    samples = phase.samples(data.config)
    return data if samples == data.config else PretrainingData(data.shards, samples)
