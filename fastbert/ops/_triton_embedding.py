"""Token + segment + position embeddings, LayerNorm and dropout by Triton.

The forward pass is one kernel. The backward pass is another, and sums for the tables' gradients in a fixed order; on a
GPU, torch's gradient of an embedding is not repeatable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import Dropout
from . import _dispatch, _triton
from .embedding import gradient_by


def _forward(
    ids, types, places, word, token_type, position, weight, bias, eps, padding_idx, rng, site, threshold, scale, save
):
    from ..triton_kernels import embedding as kernels

    numbers, tables = _contiguous(ids, types, places), _contiguous(word, token_type, position)
    return kernels.embedding_forward(numbers, tables, weight, bias, eps, rng, site, threshold, scale, save)


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in tensors)


def _forward_fake(ids, types, places, word, *others):
    tokens, columns = ids.shape[0], word.shape[1]
    kept = ((tokens, columns) if others[-1] else 0, tokens, tokens)
    return word.new_empty(tokens, columns), *(word.new_empty(size, dtype=torch.float32) for size in kept)


def _backward(dout, ids, types, places, total, weight, mean, rstd, table_rows, padding_idx, *random):
    from ..triton_kernels import embedding as kernels

    numbers = _contiguous(ids, types, places)
    dsum, dweight, dbias = kernels.embedding_backward(dout.contiguous(), total, weight, mean, rstd, *random)
    gradients = (
        kernels.table_gradient(dsum, number, rows, padding)
        for number, rows, padding in zip(numbers, table_rows, (padding_idx, -1, -1), strict=True)
    )
    return *gradients, dweight, dbias


def _backward_fake(dout, ids, types, places, total, weight, mean, rstd, table_rows, *_):
    columns = dout.shape[1]
    tables = (dout.new_empty(rows, columns) for rows in table_rows)
    return *tables, *(dout.new_empty(columns, dtype=torch.float32) for _ in range(2))


def _setup_context(ctx, inputs, output) -> None:
    *ids, word, token_type, position, weight, bias, ctx.eps, ctx.padding_idx, rng, site, threshold, scale, _ = inputs
    _, total, mean, rstd = output
    ctx.random, ctx.bias_dtype = (site, threshold, scale), bias.dtype
    ctx.table_rows, ctx.table_dtype = [len(t) for t in (word, token_type, position)], word.dtype
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*ids, total, weight, mean, rstd, rng)


def _dropout(ctx, saved) -> Dropout | None:
    return _triton.dropout_of(saved[-1], *ctx.random[:2])


def _by_kernel(ctx, saved, dout: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, rng = saved
    *tables, dweight, dbias = _embedding_backward(dout, *tensors, ctx.table_rows, ctx.padding_idx, rng, *ctx.random)
    return *tables, dweight.to(tensors[4].dtype), dbias.to(ctx.bias_dtype)


_embedding_backward = _triton.define(
    "triton_embedding_backward(Tensor dout, Tensor ids, Tensor types, Tensor places, Tensor total, Tensor weight, "
    f"Tensor mean, Tensor rstd, int[] table_rows, int padding_idx, {_triton.RANDOM_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)
_embedding = _triton.define(
    "triton_embedding(Tensor ids, Tensor types, Tensor places, Tensor word, Tensor token_type, Tensor position, "
    f"Tensor weight, Tensor bias, float eps, int padding_idx, {_triton.RANDOM_SCHEMA}, bool save) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=gradient_by(_by_kernel, _dropout, rest=7),
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
    save = torch.is_grad_enabled() and any(t.requires_grad for t in tables)
    return _embedding(input_ids, token_type_ids, position_ids, *tables, eps, padding, *random, save)[0]
