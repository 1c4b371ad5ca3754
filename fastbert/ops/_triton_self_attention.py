"""Query, key and value as one product, and the attention behind it, by cuBLAS and Triton.

Forward is one product in place of three. In backward the three gradients lie side by side: the input's is one product
where three were added up, which moved six tensors of (T, H), and the weights' is one large enough to fill a GPU.
Kept: x, the projections, the weights side by side, and what attention keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import fp8
from ..rng import Dropout
from . import _dispatch, _invariant, _triton, _triton_attention
from .linear_fp8 import product_dtype

# From this many tokens on, copying the weights to be side by side costs little beside their product.
MIN_TOKENS = 1024


def _join(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Three tensors end to end, in another dtype."""
    size = parts[0].shape[0]
    joined = parts[0].new_empty(3 * size, *parts[0].shape[1:], dtype=dtype)
    for i, part in enumerate(parts):
        joined[i * size : (i + 1) * size].copy_(part)
    return joined


def _forward(x, wq, wk, wv, bq, bk, bv, dtype, cu_seqlens, max_seqlen, nheads, causal, rng, site, threshold, scale):
    from ..triton_kernels import attention

    weight = _join((wq, wk, wv), dtype)
    rows = torch.addmm(_join((bq, bk, bv), dtype), x.to(dtype), weight.t())
    heads = rows.unflatten(1, (3, nheads, -1))
    sizes = max_seqlen, heads.shape[-1] ** -0.5, causal
    out, lse = attention.attention_forward(*heads.unbind(1), cu_seqlens, *sizes, rng, site, threshold, scale)
    return out.flatten(1), heads, lse, weight


def _forward_fake(x, wq, wk, wv, bq, bk, bv, dtype, cu_seqlens, max_seqlen, nheads, *_):
    tokens, size = x.shape[0], wq.shape[0]
    heads = x.new_empty(tokens, 3, nheads, size // nheads, dtype=dtype)
    lse = x.new_empty(nheads, tokens, dtype=torch.float32)
    return heads.new_empty(tokens, size), heads, lse, heads.new_empty(3 * size, wq.shape[1])


def _backward(
    dout, x, heads, out, lse, weight, cu_seqlens, max_seqlen, causal, rng, site, threshold, scale, wants
) -> tuple[Tensor, Tensor, Tensor]:
    from ..triton_kernels import attention_backward

    shape = out.shape[0], *heads.shape[2:]
    dheads = torch.empty_like(heads)
    attention_backward.attention_backward(
        *(_triton.whole_rows(dout.reshape(shape)), *heads.unbind(1), out.view(shape), lse, cu_seqlens, max_seqlen),
        *(heads.shape[-1] ** -0.5, causal, rng, site, threshold, scale),
        into=dheads.unbind(1),
    )
    rows = dheads.flatten(1)
    dx, dweight, dbias = _empty(x, heads, weight, wants)
    if wants[0]:
        dx = torch.mm(rows, weight)
    if wants[1]:
        dweight = torch.mm(rows.t(), x.to(rows.dtype))
    if wants[2]:
        dbias = rows.sum(0, dtype=torch.float32)
    return dx, dweight, dbias


def _empty(x: Tensor, heads: Tensor, weight: Tensor, wants: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    dx = heads.new_empty(x.shape if wants[0] else 0)
    dweight = heads.new_empty(weight.shape if wants[1] else 0)
    return dx, dweight, heads.new_empty(weight.shape[0] if wants[2] else 0, dtype=torch.float32)


def _backward_fake(dout, x, heads, out, lse, weight, *sizes_and_random):
    return _empty(x, heads, weight, sizes_and_random[-1])


def _setup_context(ctx, inputs, output) -> None:
    x, wq, *_, bv, _dtype, cu_seqlens, max_seqlen, _nheads, causal, rng, site, threshold, scale = inputs
    ctx.sizes, ctx.random = (max_seqlen, causal), (site, threshold, scale)
    ctx.dtypes = x.dtype, wq.dtype, bv.dtype
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, output[1], output[0], *output[2:], cu_seqlens, rng)


def _gradient(ctx, dout: Tensor, *_):
    *kept, rng = ctx.saved_tensors
    needed = ctx.needs_input_grad
    wants = [needed[0], any(needed[1:4]), any(needed[4:7])]
    dx, *sums = _self_attention_backward(dout, *kept, *ctx.sizes, rng, *ctx.random, wants)
    for_x, for_weights, for_biases = ctx.dtypes
    dweights, dbiases = (
        of_all.to(dtype).chunk(3) if wanted else (None,) * 3
        for of_all, dtype, wanted in zip(sums, (for_weights, for_biases), wants[1:], strict=True)
    )
    dparts = (part if need else None for part, need in zip((*dweights, *dbiases), needed[1:7], strict=True))
    return dx.to(for_x) if needed[0] else None, *dparts, *(None,) * 9


_SIZES = f"Tensor cu_seqlens, SymInt max_seqlen, {{}}bool causal, {_triton.RANDOM_SCHEMA}"
_PARTS = ", ".join(f"Tensor {kind}{name}" for kind in "wb" for name in "qkv")
_self_attention_backward = _triton.define(
    "triton_self_attention_backward(Tensor dout, Tensor x, Tensor heads, Tensor out, Tensor lse, Tensor weight, "
    f"{_SIZES.format('')}, bool[] wants) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)
_self_attention = _triton.define(
    f"triton_self_attention(Tensor x, {_PARTS}, ScalarType dtype, {_SIZES.format('int nheads, ')}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
)


def _accepts(x, weights, biases, cu_seqlens, max_seqlen, nheads, *, dropout=None, causal=False) -> str | None:
    if x.shape[0] < MIN_TOKENS or torch.compiler.is_compiling():
        return f"one product of all three pays from {MIN_TOKENS} tokens on, outside of torch.compile"
    if _invariant.active():
        return "results that do not depend on the batch are computed op by op"
    if any(fp8.site(weight) is not None for weight in weights):
        return "in 8 bits each product has scales of its own"
    kinds = {parameter.dtype for parameter in (*weights, *biases)}
    if len(kinds) > 1 or product_dtype(x) not in _triton.DTYPES:
        return f"the projections take parameters of one dtype, got {sorted(str(kind)[6:] for kind in kinds)}"
    reason = _triton_attention.why_not_sizes(weights[0].shape[0] // nheads, cu_seqlens, x.device)
    return reason or _triton.why_not(x, parameters=(*weights, *biases))


@_dispatch.register("self_attention", "triton", available=_triton.why_missing, accepts=_accepts)
def self_attention(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    cu_seqlens: Tensor,
    max_seqlen: int,
    nheads: int,
    *,
    dropout: Dropout | None = None,
    causal: bool = False,
) -> Tensor:
    random = _triton.random_arguments(dropout, x.device)
    sizes = cu_seqlens, max_seqlen, nheads, causal
    return _self_attention(x, *weights, *biases, product_dtype(x), *sizes, *random)[0]
