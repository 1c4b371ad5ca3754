"""Second and third derivatives through the Triton ops are those of the reference.

Like test_triton_kernels.py in Triton's interpreter, or on a GPU.
"""

from __future__ import annotations

import itertools
import os

import interpreter
import pytest
import torch
from second_derivative_cases import CASES, check, derivatives

from fastbert import ops
from fastbert.ops import LayerParameters
from fastbert.rng import Dropout

pytest.importorskip("triton")
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETING and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)
DEVICE = "cpu" if INTERPRETING else "cuda"
HIDDEN, WIDE = 32, 48
BOUNDS = torch.tensor([0, 5, 5, 12], dtype=torch.int32)


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    torch.manual_seed(0)
    if INTERPRETING:
        for name in ("round_casts", "approximate", "contract"):
            getattr(interpreter, name)(monkeypatch)
    with ops.backend("triton"):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_derivatives(name, dtype):
    check(*CASES[name], dtype, DEVICE)


def test_a_dense_layer_filled_up(monkeypatch):
    """Also under the loss whose gradient comes filled up."""
    monkeypatch.setattr("fastbert.ops._triton_linear._LARGE", 32)
    labels = torch.randint(38, (32,), device=DEVICE)

    def logits(*leaves: torch.Tensor) -> torch.Tensor:
        found = ops.linear(*leaves)
        assert ops.current_backend() == "reference" or found.stride() == (48, 1)
        return found

    shapes = [(32, 8), (38, 8), (38,)]
    check(logits, shapes, torch.float16, DEVICE)
    check(lambda *leaves: ops.cross_entropy(logits(*leaves), labels), shapes, torch.float16, DEVICE)


@pytest.mark.parametrize(
    ("p", "causal", "autocast"), [(0.0, False, False), (0.3, True, False), (0.3, False, True)], ids=str
)
def test_layers(p, causal, autocast):
    """As one op."""
    sites = itertools.count(1)

    def layers(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        both = [LayerParameters(*parameters[:16]), LayerParameters(*parameters[16:])]
        drops = None if not p else [[Dropout(p, 5, 6, next(sites) % 6) for _ in range(3)] for _ in both]
        options = {"nheads": 2, "eps": 1e-3, "approximate": "none", "dropouts": drops, "causal": causal}
        return ops.encoder(x, both, BOUNDS.to(x.device), 7, **options)[-1]

    square, vector = (HIDDEN, HIDDEN), (HIDDEN,)
    one = [square] * 3 + [vector] * 3 + [square, vector, vector, vector, (WIDE, HIDDEN), (WIDE,), (HIDDEN, WIDE)]
    shapes = [(12, HIDDEN), *(one + [vector] * 3) * 2]
    leaves = [torch.randn(shape, dtype=torch.float64) / shape[-1] ** 0.5 for shape in shapes]
    leaves = [leaf.to(DEVICE).float() for leaf in leaves]
    with torch.autocast(DEVICE, torch.float16, enabled=autocast):
        got = derivatives(layers, leaves, torch.float32)
    with ops.backend("reference"):
        truth = derivatives(layers, leaves, torch.float64)
    for ours, theirs in zip(got, truth, strict=True):
        largest = max(float(x.abs().max()) for x in theirs)
        assert largest > 1e-3
        for x, true in zip(ours, theirs, strict=True):
            assert x.dtype == torch.float32
            assert float((x - true).abs().max()) < (0.03 if autocast else 1e-4) * largest
