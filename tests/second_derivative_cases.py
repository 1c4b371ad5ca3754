"""Ops whose second and third derivatives are compared with those of the reference, on the CPU and by Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from close import assert_close
from torch import Tensor

from fastbert import ops
from fastbert.rng import Dropout

DROPOUT = Dropout(p=0.3, seed=(0x9234 << 48) + 99, offset=7, site=3)
IN_MEMORY = Dropout(p=0.3, seed=None, offset=None, site=3, state=torch.tensor([12345, 7]))
BOUNDS = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
ROWS = torch.tensor([5, 0, 2, 9, 7])
IDS = torch.tensor([3, 0, 3, 6, 1]), torch.tensor([0, 1, 1, 0, 0]), torch.tensor([0, 1, 2, 3, 4])
LABELS = torch.tensor([2, -100, 0, 6, 2])


def _norm(**options) -> Callable[..., Tensor]:
    def norm(x: Tensor, weight: Tensor, bias: Tensor, x_bias: Tensor, residual: Tensor) -> Tensor:
        given = {name: value.to(x.device) if name == "rows" else value for name, value in options.items()}
        return ops.layer_norm(x, weight, bias, 1e-3, x_bias=x_bias, residual=residual, **given)

    return norm


def _attention(**options) -> Callable[..., Tensor]:
    return lambda q, k, v: ops.attention(q, k, v, BOUNDS.to(q.device), 7, **options)


def _embedding(**options) -> Callable[..., Tensor]:
    def embed(*parameters: Tensor) -> Tensor:
        ids = (x.to(parameters[0].device) for x in IDS)
        return ops.embedding(*ids, *parameters, 1e-3, **options)

    return embed


# The op as a function of its tensors, and their shapes.
CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "gelu": (ops.gelu, [(2, 5, 7), (7,)]),
    "gelu, tanh": (lambda x: ops.gelu(x, approximate="tanh"), [(5, 7)]),
    "layer_norm": (lambda *x: ops.layer_norm(*x, 1e-3), [(2, 5, 8), (8,), (8,)]),
    "layer_norm of a sum": (_norm(), [(2, 5, 8), (8,), (8,), (8,), (2, 5, 8)]),
    "layer_norm, dropout": (_norm(dropout=DROPOUT), [(2, 5, 8), (8,), (8,), (8,), (2, 5, 8)]),
    "layer_norm, rows": (_norm(dropout=DROPOUT, rows=ROWS), [(5, 8), (8,), (8,), (8,), (5, 8)]),
    "layer_norm, dropout in memory": (_norm(dropout=IN_MEMORY), [(2, 5, 8), (8,), (8,), (8,), (2, 5, 8)]),
    "dropout": (lambda x: ops.dropout(x, DROPOUT), [(5, 8)]),
    "attention": (_attention(softmax_scale=0.7), [(11, 2, 16)] * 3),
    "attention, causal": (_attention(causal=True), [(11, 2, 16)] * 3),
    "attention, dropout": (_attention(dropout=DROPOUT), [(11, 2, 16)] * 3),
    "cross_entropy": (lambda x: ops.cross_entropy(x, LABELS.to(x.device)), [(5, 7)]),
    "cross_entropy, each": (lambda x: ops.cross_entropy(x, LABELS.to(x.device), reduction="none"), [(5, 7)]),
    "embedding": (_embedding(), [(7, 8), (2, 8), (6, 8), (8,), (8,)]),
    "embedding, dropout": (_embedding(padding_idx=0, dropout=DROPOUT), [(7, 8), (2, 8), (6, 8), (8,), (8,)]),
}


def derivatives(function: Callable[..., Tensor], leaves: Sequence[Tensor], dtype: torch.dtype) -> list[list[Tensor]]:
    """The derivatives of three scalars: the first is linear in the function's value, the second in it and in the first
    derivatives, the third in the second ones too. So gradients of different orders meet in one backward pass."""
    draw = torch.Generator().manual_seed(1)

    def scalar(values: Sequence[Tensor]) -> Tensor:
        factors = (torch.randn(y.shape, generator=draw, dtype=torch.float64).to(y.device, y.dtype) for y in values)
        return sum((y * factor).sum() for y, factor in zip(values, factors, strict=True))

    given = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    values, found = [function(*given)], []
    options = {"allow_unused": True, "materialize_grads": True}
    for order in range(3):
        total = scalar(values)
        slopes = torch.autograd.grad(total, given, create_graph=True, **options)
        if order == 0:
            plain = torch.autograd.grad(total, given, retain_graph=True, **options)
            same = [torch.equal(x, y) for x, y in zip(slopes, plain, strict=True)]
            assert all(same), f"first gradients differ when they are recorded: {same}"
        found.append([y.detach() for y in slopes])
        values += slopes
    return found


def check(
    function: Callable[..., Tensor],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
    device: str = "cpu",
    truth: Callable[..., Tensor] | None = None,
    scale: float = 1.0,
) -> None:
    """The second and third derivatives by the rule for tolerances (`close`).

    Args:
        function: of tensors of these shapes.
        truth: the function that is differentiated on the reference backend; None for the same.
        scale: of the tensors.
    """
    leaves = [(scale * torch.randn(shape, dtype=torch.float64)).to(dtype).to(device) for shape in shapes]
    got = derivatives(function, leaves, dtype)
    with ops.backend("reference"):
        expected, same = (derivatives(truth or function, leaves, kind) for kind in (torch.float64, dtype))
    for order in (1, 2):  # the first have tests of their own
        for leaf, x in enumerate(got[order]):
            others = expected[order][leaf], same[order][leaf]
            assert_close(x, *others, gradient=True, what=f"derivative {order + 1} of leaf {leaf}")
