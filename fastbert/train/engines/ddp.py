"""Processes under torch's DistributedDataParallel: each has the whole model and computes its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import distributed
from ..distributed import World
from ..engine import LocalEngine


class DDPEngine(LocalEngine):
    """`LocalEngine` with gradients summed over the ranks before each step.

    Summed and not averaged: a loss comes weighted by its share of the labels of all ranks, so that the gradient is the
    one that a single process would have of all micro-batches, however unevenly labels fall. After the sum gradients are
    the same on all ranks, bit for bit; so is what follows: norm, clipping, the decision to skip, and the update.

    Args:
        idle: parameters of which no loss will have a gradient.
        model, optimizer, world, options: as in `LocalEngine`.
    """

    gradients_in_place = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        world: World,
        idle: Sequence[nn.Parameter] = (),
        **options,
    ) -> None:
        super().__init__(model, optimizer, **options)
        self.world = world
        # torch would wait for their gradients; it takes those that are trained when it is asked.
        trained = [p for p in idle if p.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        # Tables of positions and of characters are the same everywhere, and gloo and NCCL send no 16-bit integers. The
        # option for it, broadcast_buffers, warns of its end since torch 2.13, and what comes in its place sends them.
        ddp, buffers = nn.parallel.DistributedDataParallel, [name for name, _ in model.named_buffers()]
        if buffers:
            ddp._set_params_and_buffers_to_ignore_for_model(model, buffers)
        self.forward = ddp(model, gradient_as_bucket_view=True)
        for parameter in trained:
            parameter.requires_grad_(True)
        self.forward.register_comm_hook(self.timer, _sum)

    def backward(self, compute_loss: Callable[[], Tensor], last: bool = True) -> Tensor:
        with nullcontext() if last else self.forward.no_sync():
            return super().backward(compute_loss, last)

    def _largest_of_ranks(self, values: Tensor) -> None:
        dist.all_reduce(values, op=dist.ReduceOp.MAX)

    def reduce(self, values: Sequence[float]) -> list[float]:
        with self.timer.part("communication"):
            return distributed.total(values)


def _sum(timer, bucket):  # torch reads the annotations, and refuses those of a module that postpones them
    began = timer.mark()

    def arrived(done):
        timer.add("communication", began)
        return done.value()[0]

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(arrived)
