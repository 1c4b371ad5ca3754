"""What models of transformers give for a small batch at the tokens that its mask keeps, all that is computed packed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import torch
from torch import nn

import fastbert
from fastbert.interop.patch import is_patched

IDS = torch.randint(5, 90, (4, 21), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(21) < torch.tensor([21, 3, 17, 9])[:, None]).long()


def kept(model: nn.Module, **options) -> list[torch.Tensor]:
    """All that a model gives, at tokens that are kept; of probabilities, which have no such tokens, all."""
    out = model(IDS, **{"attention_mask": MASK} | options)
    parts = [x for value in out.values() for x in (value if isinstance(value, tuple) else [value])]
    return [x[MASK.bool()] if x.shape[:2] == MASK.shape else x for x in parts]


def assert_near_each(ours: list[torch.Tensor], theirs: list[torch.Tensor], limit: float = 1e-5) -> None:
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert x.shape == y.shape
        assert float((x - y).detach().abs().max()) <= limit * max(1.0, float(y.detach().abs().max()))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    out = kept(model)[0]
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    return [
        p.grad
        for name, p in model.named_parameters()
        if p.grad is not None and not name.endswith(("key.bias", ".k.bias"))
    ]


def assert_copied_and_saved(theirs: nn.Module, ours: nn.Module, directory: Path) -> None:
    """A patched twin's copies are patched and compute the same, and its directory is one of transformers'. Three passes
    are fastbert's."""
    exact = kept(theirs)
    kept(ours)  # what it has packed is no part of it
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert is_patched(again)
        assert_near_each(kept(again), exact)
    ours.save_pretrained(directory)
    assert_near_each(kept(type(theirs).from_pretrained(directory).eval()), exact)
    assert type(fastbert.unpatch(ours)) is type(theirs)
