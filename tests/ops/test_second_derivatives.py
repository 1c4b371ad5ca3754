"""Second and third derivatives of the CPU's ops are those of the reference; the first stay the kernels'."""

from __future__ import annotations

import pytest
import torch
from second_derivative_cases import BOUNDS, CASES, IDS, check

from fastbert import _native, ops
from fastbert.errors import BackendError

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_derivatives(name, dtype):
    function, shapes = CASES[name]
    with ops.backend("cpu"):
        check(function, shapes, dtype)


@pytest.mark.parametrize("bent", [False, True], ids=["linear", "bent"])
@pytest.mark.parametrize("name", CASES)
def test_one_tensor_alone_has_a_gradient(name, bent):
    """As in a partly frozen layer: the same as if all had one. The gradient from above depends on it, or not."""
    function, shapes = CASES[name]
    leaves = [torch.randn(shape) for shape in shapes]

    def second(at: int, alone: bool) -> torch.Tensor:
        given = [leaf.clone().requires_grad_(index == at or not alone) for index, leaf in enumerate(leaves)]
        y = function(*given)
        factors = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        (slope,) = torch.autograd.grad(((y.sin() if bent else y) * factors).sum(), given[at], create_graph=True)
        total = (slope * given[at]).sum() + slope.square().sum()
        return torch.autograd.grad(total, given[at], materialize_grads=True, allow_unused=True)[0]

    with ops.backend("cpu"):
        for at in range(len(leaves)):
            torch.testing.assert_close(second(at, alone=True), second(at, alone=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shapes", [[(2, 19, 40), (24, 40), (24,)], [(33, 40), (24, 40)]], ids=["bias", "no bias"])
def test_dense_layers(shapes, dtype):
    with ops.backend("cpu"), ops.batch_invariant():  # in which all products are ours
        check(ops.linear, shapes, dtype)


def test_attention_with_a_bias():
    def attention(q, k, v, bias):
        return ops.attention(q, k, v, BOUNDS, 7, bias=bias)

    with ops.backend("cpu"):
        check(attention, [(11, 2, 16)] * 3 + [(2, 13)], torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_attention(dtype):
    """Also of a query that has no keys, and of a mask that is learned."""
    shut = torch.zeros(2, 1, 5, 5)
    shut[0, 0, :, :2] = shut[1, 0, 3] = float("-inf")

    def attention(q, k, v, mask):
        return ops.attention_padded(q, k, v, mask + shut.to(mask.dtype), softmax_scale=0.7, probabilities=False)[0]

    with ops.backend("cpu"):
        check(attention, [(2, 3, 5, 16)] * 3 + [(2, 1, 5, 5)], dtype)


def test_gradients_that_are_added_in_place_have_none():
    word, others = torch.randn(7, 8, requires_grad=True), [torch.randn(2, 8), torch.randn(6, 8)]
    weight, bias = torch.ones(8, requires_grad=True), torch.zeros(8)
    with ops.backend("cpu"), ops.gradients_in_place():
        out = ops.embedding(*IDS, word, *others, weight, bias, 1e-3)
    (slope,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    with pytest.raises(BackendError, match="added in place has no second derivative"):
        slope.sum().backward()


def test_a_gradient_that_does_not_depend_on_the_input():
    """That of LayerNorm's bias is a sum of the output's gradients."""
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((3, 8), (8,), (8,)))
    with ops.backend("cpu"):
        out = ops.layer_norm(x, weight, bias, 1e-5)
    (slope,) = torch.autograd.grad(out.sum(), bias, create_graph=True)
    assert torch.autograd.grad(slope.sum(), x, allow_unused=True) == (None,)
