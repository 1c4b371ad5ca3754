"""Torch's default dtype is the caller's affair: what the kernels write to is float32 whatever it is."""

from __future__ import annotations

import pytest
import torch

import fastbert
from fastbert import ops

ROWS, COLUMNS = 6, 40


def leaf(*shape):
    size = torch.Size(shape).numel()
    return torch.arange(size, dtype=torch.float32).sin().reshape(shape).requires_grad_()


def layer_norm(x, leaves):
    return ops.layer_norm(x, *leaves, 1e-12, residual=x * 2)


def embedding(x, leaves):
    ids, types, positions = torch.arange(ROWS) + 1, torch.zeros(ROWS, dtype=torch.int64), torch.arange(ROWS)
    return x + ops.embedding(ids, types, positions, *leaves, 1e-12)


def cross_entropy(x, leaves):
    return ops.cross_entropy(x, torch.arange(ROWS))


def gelu(x, leaves):
    return ops.gelu(x, *leaves)


OPS = {
    layer_norm: [(COLUMNS,)] * 2,
    embedding: [(9, COLUMNS), (2, COLUMNS), (ROWS, COLUMNS), (COLUMNS,), (COLUMNS,)],
    cross_entropy: [],
    gelu: [(COLUMNS,)],
}


def value_and_gradients(call, default):
    inputs = [leaf(ROWS, COLUMNS), *(leaf(*shape) for shape in OPS[call])]
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        out = call(inputs[0], inputs[1:])
        return out, torch.autograd.grad(out.square().sum(), inputs)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("call", OPS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_default_dtypes(call, default):
    with fastbert.backend("cpu"):
        expected, got = value_and_gradients(call, torch.float32), value_and_gradients(call, default)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer_class", [fastbert.optim.AdamW, fastbert.optim.Lamb])
def test_a_default_device_of_another_kind(optimizer_class):
    """As where `torch.set_default_device` names a GPU and this model is trained on the CPU."""
    trained = []
    for device in ("cpu", "meta"):
        p = torch.nn.Parameter(torch.arange(8, dtype=torch.float32, device="cpu"))
        p.grad = torch.full((8,), 3.0, device="cpu")
        with torch.device(device):
            norm = fastbert.optim.clipped_step(optimizer_class([p], lr=0.1), 1.0)
            assert float(fastbert.optim.clip_grad_norm([p], 2.0)) == float(norm)
        trained.append((p.detach(), p.grad))
    torch.testing.assert_close(*trained, rtol=0, atol=0)
