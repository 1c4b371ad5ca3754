"""The post-LN Transformer encoder (Vaswani et al. 2017, section 3; Devlin et al. 2019).

a = LN(x + dropout(W_o attention(W_q x, W_k x, W_v x)));   y = LN(a + dropout(W_2 gelu(W_1 a)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .attention import attention
from .gelu import gelu
from .layer_norm import layer_norm
from .linear import linear
from .linear_int8 import Int8Weight, linear_int8


def product(x: Tensor, weight: Tensor | Int8Weight, bias: Tensor) -> Tensor:
    """x (T, in) times a weight (out, in), of floats or int8, plus bias (out,) -> (T, out) in the dtype of x."""
    return linear_int8(x, weight, bias, dtype=x.dtype) if isinstance(weight, Int8Weight) else linear(x, weight, bias)


class Steps(NamedTuple):
    """The functions that compute an encoder's steps, with the signatures of those of this package."""

    product: Callable[..., Tensor]
    attention: Callable[..., Tensor]
    gelu: Callable[..., Tensor]
    layer_norm: Callable[..., Tensor]


_STEPS = Steps(product, attention, gelu, layer_norm)


def encoder(
    x: Tensor,
    layers,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    nheads: int,
    eps: float,
    approximate: str,
    dropouts=None,
    causal: bool = False,
    bias: Tensor | None = None,
    steps: Steps = _STEPS,
) -> list[Tensor]:
    """x (T, H) -> the hidden states after each layer; ``layers`` and ``dropouts`` are as `fastbert.ops.encoder` takes
    them. ``steps`` may be kernels that compute the same, for example with a faster gradient."""
    states = []
    for number, p in enumerate(layers):
        on_probs, on_attention, on_output = (None,) * 3 if dropouts is None else dropouts[number]
        q, k, v = (
            steps.product(x, weight, bias).unflatten(-1, (nheads, -1))
            for weight, bias in (
                (p.query_weight, p.query_bias),
                (p.key_weight, p.key_bias),
                (p.value_weight, p.value_bias),
            )
        )
        options = {"dropout": on_probs, "causal": causal, "bias": bias}
        context = steps.attention(q, k, v, cu_seqlens, max_seqlen, **options).flatten(-2)
        branch = steps.product(context, p.attention_out_weight, p.attention_out_bias)
        norm = p.attention_norm_weight, p.attention_norm_bias, eps
        a = steps.layer_norm(branch, *norm, residual=x, dropout=on_attention)
        wide = steps.gelu(steps.product(a, p.intermediate_weight, p.intermediate_bias), approximate=approximate)
        branch = steps.product(wide, p.out_weight, p.out_bias)
        x = steps.layer_norm(branch, p.norm_weight, p.norm_bias, eps, residual=a, dropout=on_output)
        states.append(x)
    return states
