"""A check for every backend: some rows of a tensor, with their numbers, drop what they drop as parts of it."""

from __future__ import annotations

import torch

from fastbert import ops
from fastbert.rng import Dropout

# Repeated, unordered, and apart in memory, as a slice may be.
ROWS = torch.tensor([[7, 0], [0, 1], [7, 2], [10, 3], [3, 4]])[:, 0]
DROPOUT = Dropout(p=0.3, seed=(0x9234 << 48) + 99, offset=7, site=3)


def check_numbered_rows(dtype: torch.dtype, device: str = "cpu") -> None:
    """`ops.dropout` and `ops.layer_norm` of the chosen backend, with gradients, to the bit."""
    rows = ROWS.to(device)
    x, residual = (torch.randn(11, 100, device=device).to(dtype) for _ in range(2))
    weight, bias, x_bias = (torch.randn(100, device=device) for _ in range(3))
    dout = torch.randn(len(rows), 100, device=device).to(dtype)

    def dropout(x, _residual, rows=None):
        return ops.dropout(x, DROPOUT, rows)

    def layer_norm(x, residual, rows=None):
        options = {"x_bias": x_bias, "residual": residual, "dropout": DROPOUT, "rows": rows}
        return ops.layer_norm(x, weight, bias, 1e-5, **options)

    for op in (dropout, layer_norm):
        whole = [t.clone().requires_grad_() for t in (x, residual)]
        part = [t[rows].clone().requires_grad_() for t in (x, residual)]
        expected, got = op(*whole)[rows], op(*part, rows)
        assert torch.equal(got, expected)
        assert not torch.equal(op(*part), expected)
        got.backward(dout)
        for number, row in enumerate(rows):  # one at a time: a repeated row would have the sum of its gradients
            for leaf in whole:
                leaf.grad = None
            op(*whole)[row].backward(dout[number])
            for of_part, leaf in zip(part, whole, strict=True):
                assert (of_part.grad is None) == (leaf.grad is None)
                assert leaf.grad is None or torch.equal(of_part.grad[number], leaf.grad[row])
