"""Models of transformers beside patched copies: what they are called with, and how their outputs are compared."""

from __future__ import annotations

import copy

import hf_parity as hf
import torch
import transformers
from packaging.version import Version

import fastbert

V5 = Version(transformers.__version__) >= Version("5.0.0.dev0")


def twins(name, dtype=torch.float32, **changes):
    """A transformers model with large random weights, and a patched copy of it."""
    theirs, _ = hf.pair(name, dtype, **changes)
    return theirs, fastbert.patch(copy.deepcopy(theirs))


def arguments(name, mask="prefix", labels=True):
    """What a model of the class is called with, with its labels or without."""
    return {**hf.arguments(name, mask), **(hf.labels(name, mask) if labels else {})}


def assert_same(ours, theirs, mask, dtype=torch.float32):
    """Every output of a pair, at tokens that are kept and in rows that have some."""
    keep = hf.kept_tokens(hf.masks()[mask])
    assert ours.keys() == theirs.keys()
    for key in theirs:
        many = isinstance(theirs[key], tuple)
        for x, y in zip(ours[key] if many else [ours[key]], theirs[key] if many else [theirs[key]], strict=True):
            if key == "attentions":  # (B, heads, S, S): of queries that are kept
                x, y = x.transpose(1, 2)[keep], y.transpose(1, 2)[keep]
            elif x.shape[:2] == keep.shape:
                x, y = x[keep], y[keep]
            elif x.shape[:1] == keep.shape[:1]:
                x, y = x[keep.any(1)], y[keep.any(1)]
            hf.assert_near(x, y, dtype, f"{key} under {mask}")
