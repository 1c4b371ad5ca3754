"""Token + segment + position embeddings, LayerNorm, dropout on the GPU: gathers by torch, the rest by Triton.

The gradients of the tables are summed in a fixed order, where torch's own on a GPU is not repeatable.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rng import Dropout
from . import _dispatch, _triton
from ._triton_dropout import dropout as apply_dropout
from ._triton_layer_norm import layer_norm


def _forward(ids: Tensor, table: Tensor, padding_idx: int) -> Tensor:
    return F.embedding(ids, table)


def _forward_fake(ids: Tensor, table: Tensor, padding_idx: int) -> Tensor:
    return table.new_empty(*ids.shape, table.shape[1])


def _backward(dout: Tensor, ids: Tensor, table: Tensor, padding_idx: int) -> Tensor:
    from ..triton_kernels import embedding

    return embedding.table_gradient(dout.contiguous(), ids, table, padding_idx)


def _backward_fake(dout: Tensor, ids: Tensor, table: Tensor, padding_idx: int) -> Tensor:
    return torch.empty_like(table)


def _setup_context(ctx, inputs, output) -> None:
    ids, table, ctx.padding_idx = inputs
    ctx.save_for_backward(ids, table)


def _gradient(ctx, dout: Tensor):
    return None, _lookup_backward(dout, *ctx.saved_tensors, ctx.padding_idx), None


_lookup_backward = _triton.define(
    "triton_lookup_backward(Tensor dout, Tensor ids, Tensor table, int padding_idx) -> Tensor",
    _backward,
    _backward_fake,
)
_lookup = _triton.define(
    "triton_lookup(Tensor ids, Tensor table, int padding_idx) -> Tensor",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
)


def _accepts(ids, types, positions, word, token_type, position, weight, bias, eps, **_) -> str | None:
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
    x = _lookup(input_ids, word, -1 if padding_idx is None else padding_idx) + _lookup(token_type_ids, token_type, -1)
    x = layer_norm(x, weight, bias, eps, residual=_lookup(position_ids, position, -1))
    return x if dropout is None else apply_dropout(x, dropout)
