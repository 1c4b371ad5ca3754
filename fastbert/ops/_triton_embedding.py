"""Token + segment + position embeddings, LayerNorm and dropout by Triton.

The forward pass is one kernel. The backward pass is another, and sums for the tables' gradients in a fixed order; on a
GPU, torch's gradient of an embedding is not repeatable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import Dropout
from . import _dispatch, _gradients, _triton
from ._double_backward import differentiable


def _forward(
    ids, types, places, word, token_type, position, weight, bias, eps, padding_idx, rng, site, threshold, scale
):
    from ..triton_kernels import embedding as kernels

    numbers, tables = _contiguous(ids, types, places), _contiguous(word, token_type, position)
    return kernels.embedding_forward(numbers, tables, weight, bias, eps, rng, site, threshold, scale)


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in tensors)


def _forward_fake(ids, types, places, word, token_type, position, weight, bias, *_):
    tokens = ids.shape[0]
    statistics = (word.new_empty(tokens, dtype=torch.float32) for _ in range(2))
    return word.new_empty(tokens, word.shape[1]), *statistics


def _backward(dout, ids, types, places, word, token_type, position, weight, mean, rstd, padding_idx, *random):
    from ..triton_kernels import embedding as kernels

    numbers, tables = _contiguous(ids, types, places), _contiguous(word, token_type, position)
    dsum, dweight, dbias = kernels.embedding_backward(dout.contiguous(), numbers, tables, weight, mean, rstd, *random)
    gradients = (
        kernels.table_gradient(dsum, number, table, padding)
        for number, table, padding in zip(numbers, tables, (padding_idx, -1, -1), strict=True)
    )
    return *gradients, dweight, dbias


def _backward_fake(dout, ids, types, places, word, token_type, position, *_):
    tables = (torch.empty_like(table) for table in (word, token_type, position))
    return *tables, *(word.new_empty(word.shape[1], dtype=torch.float32) for _ in range(2))


def _setup_context(ctx, inputs, output) -> None:
    *tensors, bias, ctx.eps, ctx.padding_idx, rng, site, threshold, scale = inputs
    ctx.random, ctx.bias_dtype = (site, threshold, scale), bias.dtype
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[1:], rng)


def _gradient_again(ctx, saved, dout: Tensor, *_):
    ids, tables, (weight, *_, rng), (site, threshold, _) = saved[:3], saved[3:6], saved[6:], ctx.random
    dropout = _triton.dropout_of(rng, site, threshold)
    gradients = _gradients.embedding(dout, ids, tables, weight, ctx.eps, ctx.padding_idx, dropout)
    return *(None,) * 3, *gradients, *(None,) * 6


@differentiable(_gradient_again)
def _gradient(ctx, saved, dout: Tensor, *_):
    *tensors, rng = saved
    *tables, dweight, dbias = _embedding_backward(dout, *tensors, ctx.padding_idx, rng, *ctx.random)
    return *(None,) * 3, *tables, dweight.to(tensors[6].dtype), dbias.to(ctx.bias_dtype), *(None,) * 6


_TABLES = "Tensor ids, Tensor types, Tensor places, Tensor word, Tensor token_type, Tensor position, Tensor weight"
_embedding_backward = _triton.define(
    f"triton_embedding_backward(Tensor dout, {_TABLES}, Tensor mean, Tensor rstd, int padding_idx, "
    f"{_triton.RANDOM_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)
_embedding = _triton.define(
    f"triton_embedding({_TABLES}, Tensor bias, float eps, int padding_idx, {_triton.RANDOM_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
)


def _accepts(ids, types, positions, word, token_type, position, weight, bias, eps, **_) -> str | None:
    if word.shape[-1] > 8192:
        return f"the Triton embedding keeps a row on chip, at most 8192 columns, got {word.shape[-1]}"
    if any(t.dtype != torch.int64 or t.device != word.device for t in (ids, types, positions)):
        return f"the Triton kernels take int64 ids on the device of the tables, got {ids.dtype} on {ids.device}"
    return _triton.why_not(word, token_type, position, parameters=(weight, bias))


@_dispatch.register("embedding", "triton", available=_triton.why_missing, accepts=_accepts)
def embedding(
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    word: Tensor,
    token_type: Tensor,
    position: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    padding_idx: int | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    tables = (word, token_type, position, weight, bias)
    padding = -1 if padding_idx is None else padding_idx
    random = _triton.random_arguments(dropout, word.device)
    return _embedding(input_ids, token_type_ids, position_ids, *tables, eps, padding, *random)[0]
