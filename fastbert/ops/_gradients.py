"""The gradients of ops in plain torch, for second derivatives (`_double_backward.differentiable`).

Each is the gradient that autograd gives to the reference, and can be differentiated by autograd itself. Tensors of 16
bits are widened to float32 first, so that no more is rounded than in the kernels; products stay in 16 bits on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..rng import Dropout


def _wide(x: Tensor | None) -> Tensor | None:
    return x.float() if x is not None and x.dtype in (torch.float16, torch.bfloat16) else x


def gradients_of(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], dout: Tensor, *, widens: bool = True
) -> list[Tensor | None]:
    """The gradients of ``function(*inputs)``; None for an input that requires none.

    Args:
        widens: inputs of 16 bits are given to the function as float32.
    """
    wanted = [x is not None and x.requires_grad for x in inputs]
    if not any(wanted):
        return [None] * len(inputs)
    y = function(*(map(_wide, inputs) if widens else inputs))
    needed = [x for x, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(y, needed, dout.to(y.dtype), create_graph=True))
    return [next(found) if want else None for want in wanted]


def _as_variable(x: Tensor) -> Tensor:
    """A parameter on which the gradients do not depend, such as an added bias: zeros like x."""
    return torch.zeros_like(x).requires_grad_()


def _sum_of_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).sum(0)


def gelu(dout: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor | None, ...]:
    """(dx, dbias) of `reference.gelu`."""
    return tuple(gradients_of(lambda x, bias: reference.gelu(x, bias, "tanh" if tanh else "none"), (x, bias), dout))


class LayerNormGradients(NamedTuple):
    """Those of the tensors of `reference.layer_norm`, or None for each."""

    x: Tensor | None = None
    residual: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    x_bias: Tensor | None = None

    def plus(self, others: LayerNormGradients) -> LayerNormGradients:
        pairs = zip(self, others, strict=True)
        return LayerNormGradients(*(b if a is None else a if b is None else a + b for a, b in pairs))


def layer_norm(dout: Tensor, total: Tensor, weight: Tensor, eps: float, dropout: Dropout | None, rows: Tensor | None):
    """The gradients of `reference.layer_norm`.

    Args:
        total: (..., H), what is normalised: residual + dropout(x + x_bias).
    """

    def normalise(total: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return reference.layer_norm(total, weight, bias, eps)

    dtotal, *others = gradients_of(normalise, (total, weight, _as_variable(weight)), dout)
    return LayerNormGradients(None, None, *others).plus(layer_norm_sum(dtotal, dropout, rows))


def layer_norm_sum(dtotal: Tensor | None, dropout: Dropout | None, rows: Tensor | None) -> LayerNormGradients:
    """The gradients of residual + dropout(x + x_bias)."""
    if dtotal is None:
        return LayerNormGradients()
    dx = reference.dropout(_wide(dtotal), dropout, rows)
    return LayerNormGradients(x=dx, residual=dtotal, x_bias=_sum_of_rows(dx))


def attention(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    max_seqlen: int,
    **options,
) -> tuple[Tensor | None, ...]:
    """(dq, dk, dv, dbias) of `reference.attention`, whose options are given."""

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return reference.attention(q, k, v, cu_seqlens, max_seqlen, bias=bias, **options)

    # Not in 16 bits on a CPU, where torch's product may end the process (`_cpu_linear`).
    return tuple(gradients_of(attend, (q, k, v, bias), dout, widens=q.device.type == "cpu"))


def cross_entropy(dloss: Tensor, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor | None:
    """dlogits of `reference.cross_entropy` without a reduction."""

    def loss(logits: Tensor) -> Tensor:
        return reference.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none")

    return gradients_of(loss, (logits,), dloss)[0]


def embedding(dout: Tensor, total: Tensor, weight: Tensor, eps: float, dropout) -> list[Tensor | None]:
    """The gradients of the sum of the three rows, the weight and the bias of `reference.embedding`.

    Args:
        total: (T, H), that sum, which is normalised.
    """

    def normalise(total: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return reference.dropout(reference.layer_norm(total, weight, bias, eps), dropout)

    return gradients_of(normalise, (total, weight, _as_variable(weight)), dout)


def embedding_sum(
    dtotal: Tensor | None, ids: Sequence[Tensor], rows: Sequence[int], dtype: torch.dtype, padding_idx: int
) -> tuple[Tensor | None, ...]:
    """The gradients of three tables of so many rows by that of the sum of a row of each; padding_idx -1 for none."""
    if dtotal is None:
        return None, None, None
    wide = _wide(dtotal)
    of_words = wide.masked_fill((ids[0] == padding_idx)[:, None], 0.0)
    parts = zip((of_words, wide, wide), ids, rows, strict=True)
    return tuple(
        part.new_zeros(count, part.shape[1]).index_add(0, i.long(), part).to(dtype) for part, i, count in parts
    )
