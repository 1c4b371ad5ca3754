"""What each process of optim/test_sharded.py runs: LAMB over flat shards whose borders cut through tensors."""

from __future__ import annotations

import numpy as np
import plain_lamb
import torch
import torch.distributed as dist

from fastbert.optim import Lamb
from fastbert.optim.sharded import ShardedLamb, ShardLayout
from fastbert.train import distributed

SHAPES = [(7, 5), (11,), (3, 4, 2), (1,), (5, 3), (6,)]
GROUPS = [(0, 4, 0.1), (4, 6, 0.0)]  # first tensor, end, weight decay
DECAYS = [0.1, 0.1, 0.1, 0.1, 0.0, 0.0]
LR, STEPS = 0.02, 50
CASES = [
    (v, s, d) for v in ("nvlamb", "apex", "clamped") for s, d in ((3.0, "float64"), (0.01, "float64"), (3.0, "float32"))
]


def start_and_gradients(scale: float) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    random = np.random.default_rng(0)
    params = [random.standard_normal(shape) for shape in SHAPES]
    params[5][:] = 0.0  # as biases start
    return params, [[scale * random.standard_normal(shape) for shape in SHAPES] for _ in range(STEPS)]


def settings(variant: str) -> dict:
    return {"lr": LR, "betas": (plain_lamb.BETA1, plain_lamb.BETA2), "eps": plain_lamb.EPS, "variant": variant}


def whole(variant: str, scale: float, dtype: str) -> list[torch.Tensor]:
    """What one process comes to."""
    params, gradients = start_and_gradients(scale)
    params = [torch.nn.Parameter(torch.tensor(p, dtype=getattr(torch, dtype))) for p in params]
    groups = [{"params": params[a:b], "weight_decay": decay} for a, b, decay in GROUPS]
    optimizer = Lamb(groups, **settings(variant))
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = torch.tensor(g, dtype=p.dtype)
        optimizer.step()
    return [p.detach() for p in params]


class FlatNorm(ShardedLamb):
    """The bug of LAMB under ZeRO: each shard is taken for one tensor."""

    def _trusts(self, group, layout, target, update):
        return (target.norm() / update.norm()).expand(layout.tensors)


class NoReduce(ShardedLamb):
    """Another: each process has the norms of its own pieces."""

    def _trusts(self, group, layout, target, update):
        keep, self.reduce = self.reduce, lambda squares: None
        trust = super()._trusts(group, layout, target, update)
        self.reduce = keep
        return trust


def sharded(world, variant: str, scale: float, dtype: str, kind: type = ShardedLamb) -> list[torch.Tensor]:
    """The whole parameters after all steps, gathered from the shards, which are of unequal sizes."""
    params, gradients = start_and_gradients(scale)
    shards, groups, layouts = [], [], []
    for first, end, decay in GROUPS:
        flat = flatten(params[first:end], dtype)
        begin, stop = border(world.rank, world.size, len(flat)), border(world.rank + 1, world.size, len(flat))
        shard = torch.nn.Parameter(torch.cat([flat[begin:stop], torch.zeros(2, dtype=flat.dtype)]))  # with padding
        sizes = [p.size for p in params[first:end]]
        layouts.append(ShardLayout(len(sizes), (*ShardLayout.of_range(sizes, begin, stop).parts, (2, None))))
        shards.append((shard, begin, stop))
        groups.append({"params": [shard], "weight_decay": decay})
    optimizer = kind(groups, dist.all_reduce, **settings(variant))
    optimizer.layouts = {shard: layout for (shard, _, _), layout in zip(shards, layouts, strict=True)}
    for step in gradients:
        for (first, end, _), (shard, begin, stop) in zip(GROUPS, shards, strict=True):
            shard.grad = torch.cat([flatten(step[first:end], dtype)[begin:stop], torch.zeros(2, dtype=shard.dtype)])
        optimizer.step()
    result = []
    for (first, end, _), (shard, begin, stop) in zip(GROUPS, shards, strict=True):
        assert not shard[-2:].any()
        whole = torch.zeros(sum(p.size for p in params[first:end]), dtype=shard.dtype)
        whole[begin:stop] = shard.detach()[:-2]
        dist.all_reduce(whole)
        sizes = [p.size for p in params[first:end]]
        result += [t.view(p.shape) for t, p in zip(whole.split(sizes), params[first:end], strict=True)]
    return result


def flatten(arrays: list[np.ndarray], dtype: str) -> torch.Tensor:
    return torch.cat([torch.tensor(a, dtype=getattr(torch, dtype)).flatten() for a in arrays])


def border(rank: int, size: int, length: int) -> int:
    """Uneven, and never the border of a tensor."""
    return {0: 0, size: length}.get(rank, length * rank // size + 2)


def main() -> dict:
    with distributed.joined() as world:
        result = {case: sharded(world, *case) for case in CASES}
        result["flat norm"] = sharded(world, "apex", 3.0, "float64", FlatNorm)
        result["no reduce"] = sharded(world, "apex", 3.0, "float64", NoReduce)
    return result
