"""Training under torch's DistributedDataParallel: each process has the whole model and its own micro-batches."""

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

    They are summed, not averaged: each loss is already weighted by its share of the labels of all ranks, so the sum is
    the gradient that a single process would compute from all micro-batches, however unevenly labels are distributed.
    The sums are bitwise the same on all ranks, and so are the norm, the clipping, the decision to skip and the update.

    Args:
        world: this process among those of the group, which is open.
        idle: parameters that get no gradient from any loss.
        model, optimizer, options: as in `LocalEngine`.
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
        # DDP would wait for the gradients of idle parameters; it only looks at requires_grad when it is constructed.
        trained = [p for p in idle if p.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        # Buffers (tables of positions and characters) are the same on all ranks, and gloo and NCCL cannot send 16-bit
        # integers. The option broadcast_buffers=False is deprecated since torch 2.13, and its replacement sends them.
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


def _sum(timer, bucket):  # no annotations: torch checks them, and refuses postponed ones, which are strings
    began = timer.mark()

    def arrived(done):
        timer.add("communication", began)
        return done.value()[0]

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(arrived)
