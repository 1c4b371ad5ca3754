"""The encoder's layers by cuBLAS and Triton, with a single autograd node per layer.

Op by op, a layer of BERT takes the host through modules, the dispatcher and autograd some thirty times, and a GPU waits
for that if the batch is short or the step is not captured in a graph. Here a layer is a sequence of kernel launches,
and it is fused as a whole: query, key and value are one product, their gradients are one product each, and the two
gradients that meet at a residual are added by the product that computes the second.

Kept for backward per layer: its input, the projections, the attention's output with one number per token and head, both
LayerNorms' inputs with two numbers per token, the tensors between them, and the weights in the dtype of the products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import fp8, reference
from ..rng import Dropout
from ..wording import dtype_name
from . import _cuda, _dispatch, _graph_mode, _invariant, _triton, _triton_attention, _watchers
from ._double_backward import differentiable
from ._gradients import gradients_of
from ._needed_gradients import needed_gradients
from ._product_dtypes import product_dtype
from ._triton_linear import weight_gradient
from ._triton_replay import EncoderReplays
from .encoder import LayerDropouts, LayerParameters, PackedEncoder, chosen_rows, is_int8, is_recorded

# Without a gradient, query, key and value are one product from this many tokens on: with fewer, two more products take
# less time than copying the weights into one matrix.
JOIN_TOKENS = 1024


class _Call(NamedTuple):
    """The arguments that all layers of a call share."""

    cu_seqlens: Tensor
    max_seqlen: int
    nheads: int
    eps: float
    tanh: bool
    causal: bool
    dtype: torch.dtype


class _Weights(NamedTuple):
    """A layer's weights in the dtype of the products; ``projections`` are query, key and value, or all three in one."""

    projections: list[Tensor]
    biases: list[Tensor]
    attention_out: Tensor
    intermediate: Tensor
    out: Tensor


@cache
def _kernels() -> tuple[ModuleType, ...]:
    """The kernels' modules, looked up once: an import statement takes as long as a launch."""
    from ..triton_kernels import attention, attention_backward, gelu, layer_norm, linear

    return attention, attention_backward, gelu, layer_norm, linear


def _weights(p: LayerParameters, dtype: torch.dtype, join: bool) -> _Weights:
    """A layer's weights in the dtype of the products; those that need a copy are copied in one launch."""
    targets, sources = [], []

    def narrow(tensor: Tensor) -> Tensor:
        if tensor.dtype == dtype:
            return tensor
        targets.append(torch.empty_like(tensor, dtype=dtype))
        sources.append(tensor)
        return targets[-1]

    of_attention, biases = list(p[:3]), list(p[3:6])
    if join:
        joined = [parts[0].new_empty(3 * len(parts[0]), *parts[0].shape[1:], dtype=dtype) for parts in (p[:3], p[3:6])]
        targets += [part for whole in joined for part in whole.chunk(3)]
        sources += [*of_attention, *biases]
        of_attention, biases = [joined[0]], [joined[1]]
    else:
        of_attention, biases = [narrow(w) for w in of_attention], [narrow(b) for b in biases]
    others = [narrow(weight) for weight in (p.attention_out_weight, p.intermediate_weight, p.out_weight)]
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
    return _Weights(of_attention, biases, *others)


def _forward(
    x: Tensor, p: LayerParameters, call: _Call, dropouts: Sequence[tuple], keep: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Returns the layer's output and, with ``keep``, what `_backward` needs."""
    attention, _, gelu, layer_norm, _ = _kernels()
    x = x.to(call.dtype).contiguous()
    on_probs, on_attention, on_output = dropouts
    weights = _weights(p, call.dtype, keep or len(x) >= JOIN_TOKENS)
    rows = [F.linear(x, weight, bias) for weight, bias in zip(weights.projections, weights.biases, strict=True)]
    of_token = (call.nheads, x.shape[1] // call.nheads)
    if len(rows) == 1:
        heads = rows[0].view(len(x), 3, *of_token).unbind(1)
    else:
        heads = [part.view(len(x), *of_token) for part in rows]
    scale = of_token[1] ** -0.5
    bits = attention.dropout_bits(heads[0], call.cu_seqlens, call.max_seqlen, *on_probs)
    context, lse = attention.attention_forward(
        *(*heads, call.cu_seqlens, call.max_seqlen, scale, call.causal, *on_probs), bits=bits
    )
    context = context.flatten(1)
    norm = p.attention_norm_weight, p.attention_norm_bias, call.eps, p.attention_out_bias
    branch = F.linear(context, weights.attention_out)
    a, *first = layer_norm.layer_norm_forward(branch, *norm, x, *on_attention, keep)
    wide = F.linear(a, weights.intermediate)
    hidden = gelu.gelu_forward(wide, p.intermediate_bias, call.tanh)
    branch = F.linear(hidden, weights.out)
    norm = p.norm_weight, p.norm_bias, call.eps, p.out_bias
    y, *second = layer_norm.layer_norm_forward(branch, *norm, a, *on_output, keep)
    if not keep:
        return y, ()
    matrices = weights.projections[0], weights.attention_out, weights.intermediate, weights.out
    return y, (x, *heads, context, lse, bits, *first, a, wide, hidden, *second, *matrices)


def _backward(
    dy: Tensor,
    kept: Sequence[Tensor | None],
    p: LayerParameters,
    call: _Call,
    dropouts: Sequence[tuple],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Returns the gradients of x and of the parameters, in their order; None for one that is not needed."""
    _, attention_backward, gelu, layer_norm, linear = _kernels()
    x, q, k, v, context, lse, bits, *first, a, wide, hidden = kept[:13]
    second, (w_projections, w_attention_out, w_intermediate, w_out) = kept[13:16], kept[16:]
    on_probs, on_attention, on_output = dropouts
    need = LayerParameters(*needed[1:])
    grads: dict[str, Tensor | None] = {}

    def of_weight(name: str, dout: Tensor, given: Tensor) -> None:
        if getattr(need, name):
            grads[name] = weight_gradient(dout, given, getattr(p, name).dtype)

    def of_norm(dout: Tensor, statistics: Sequence[Tensor], weight: Tensor, random: tuple, names: tuple) -> tuple:
        dx, dresidual, *sums = layer_norm.layer_norm_backward(dout, *statistics, weight, *random, True, True)
        grads.update(zip(names, sums, strict=True))
        return dx, dresidual if dresidual.numel() else dx  # without dropout they are the same

    names = "norm_weight", "norm_bias", "out_bias"
    dbranch, dresidual = of_norm(_triton.flat(dy), second, p.norm_weight, on_output, names)
    of_weight("out_weight", dbranch, hidden)
    dhidden = torch.mm(dbranch, w_out)
    dwide, grads["intermediate_bias"] = gelu.gelu_backward(dhidden, wide, p.intermediate_bias, call.tanh)
    of_weight("intermediate_weight", dwide, a)
    da = dresidual.addmm_(dwide, w_intermediate)  # in place: dbranch, which may be the same tensor, is not read again

    names = "attention_norm_weight", "attention_norm_bias", "attention_out_bias"
    dbranch, dresidual = of_norm(da, first, p.attention_norm_weight, on_attention, names)
    of_weight("attention_out_weight", dbranch, context)
    dcontext = torch.mm(dbranch, w_attention_out).view(q.shape)
    dheads = torch.empty(len(x), 3, *q.shape[1:], dtype=q.dtype, device=q.device)
    attention_backward.attention_backward(
        *(dcontext, q, k, v, context.view(q.shape), lse, call.cu_seqlens, call.max_seqlen),
        *(q.shape[-1] ** -0.5, call.causal, *on_probs),
        into=dheads.unbind(1),
        bits=bits,
    )
    rows, names = dheads.flatten(1), LayerParameters._fields
    if any(need[:3]):
        grads.update(zip(names[:3], weight_gradient(rows, x, p[0].dtype).chunk(3), strict=True))
    if any(need[3:6]):
        grads.update(zip(names[3:6], linear.sum_over_rows(rows).chunk(3), strict=True))
    dx = dresidual.addmm_(rows, w_projections) if needed[0] else None
    return [dx, *_widened([grads.get(name) if wanted else None for name, wanted in zip(names, need, strict=True)], p)]


def _widened(gradients: list[Tensor | None], parameters: LayerParameters) -> list[Tensor | None]:
    """The gradients in the parameters' dtypes; those that need a copy are copied in one launch."""
    made = [
        g if g is None or g.dtype == parameter.dtype else torch.empty_like(g, dtype=parameter.dtype)
        for g, parameter in zip(gradients, parameters, strict=True)
    ]
    copied = [(to, g) for to, g in zip(made, gradients, strict=True) if to is not g]
    if copied:
        torch._foreach_copy_(*map(list, zip(*copied, strict=True)))
    return made


def _gradient_again(ctx, saved: Sequence[Tensor], dy: Tensor) -> tuple[Tensor | None, ...]:
    cu_seqlens, x, *saved = saved
    states, parameters = saved[:3], saved[-16:]
    dropouts = [_triton.dropout_of(state, *scalars[:2]) for state, scalars in zip(states, ctx.scalars, strict=True)]
    call = ctx.call
    options = {"nheads": call.nheads, "eps": call.eps, "approximate": "tanh" if call.tanh else "none"}
    options |= {"dropouts": [dropouts], "causal": call.causal}

    def layer(x: Tensor, *parameters: Tensor) -> Tensor:
        return reference.encoder(x, [LayerParameters(*parameters)], cu_seqlens, call.max_seqlen, **options)[-1]

    # In the dtypes of the pass itself, which on a GPU is faster than float32 by far.
    with torch.autocast(x.device.type, call.dtype, enabled=call.dtype != parameters[0].dtype):
        gradients = gradients_of(layer, (x, *parameters), dy, widens=False)
    return gradients[0], None, None, *gradients[1:]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, call: _Call, dropouts: Sequence[tuple], *parameters: Tensor) -> Tensor:
        y, kept = _forward(x, LayerParameters(*parameters), call, dropouts, keep=True)
        states = [random[0] for random in dropouts]
        ctx.call, ctx.dtype, ctx.scalars = call._replace(cu_seqlens=None), x.dtype, [random[1:] for random in dropouts]
        ctx.save_for_backward(call.cu_seqlens, x, *states, *kept, *parameters)
        return y

    @staticmethod
    @differentiable(_gradient_again)
    def backward(ctx, saved: tuple[Tensor, ...], dy: Tensor):
        cu_seqlens, _x, *saved = saved
        states, kept, parameters = saved[:3], saved[3:-16], LayerParameters(*saved[-16:])
        dropouts = [(state, *scalars) for state, scalars in zip(states, ctx.scalars, strict=True)]
        needed = needed_gradients(ctx, ctx.needs_input_grad[:1] + ctx.needs_input_grad[3:])  # of the tensors
        call = ctx.call._replace(cu_seqlens=cu_seqlens)
        dx, *of_parameters = _backward(dy, kept, parameters, call, dropouts, needed)
        return None if dx is None else dx.to(ctx.dtype), None, None, *of_parameters


def _accepts(
    x, layers, cu_seqlens, max_seqlen, *, nheads, packed=None, approximate="none", bias=None, **_options
) -> str | None:
    if bias is not None:
        return _triton_attention.NO_BIAS
    if _invariant.active():
        return "results that do not depend on the batch are computed op by op"
    if is_int8(layers):
        return "the Triton kernels take floating weights, got int8"
    if torch.compiler.is_compiling() or _watchers.is_traced():
        return "a trace would miss the kernels"
    if fp8.is_in_use():
        return "in 8 bits each product has its own scales"
    tensors = (packed or PackedEncoder()).tensors(layers)
    if product_dtype(x) not in _triton.DTYPES:
        return f"the Triton kernels take float16, bfloat16 and float32, got {dtype_name(product_dtype(x))}"
    if any(_cuda.why_not_measured(what, x.device) is None for what in ("mlp", "linear")):
        return "the products of the CUDA backend were measured to be faster"
    reason = _triton_attention.why_not_sizes(x.shape[1] // nheads, cu_seqlens, x.device)
    return reason or _triton.why_not(x, parameters=tensors)


@_dispatch.register("encoder", "triton", available=_triton.why_missing, accepts=_accepts)
def _encoder(
    x: Tensor,
    layers: Sequence[LayerParameters],
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    nheads: int,
    eps: float,
    approximate: str,
    keep_states: bool = False,
    packed: PackedEncoder | None = None,
    dropouts: Sequence[LayerDropouts] | None = None,
    causal: bool = False,
    bias: None = None,
    between: Callable[[Tensor], Tensor] | None = None,
    rows: Tensor | None = None,
) -> list[Tensor]:
    call = _Call(cu_seqlens, max_seqlen, nheads, eps, approximate == "tanh", causal, product_dtype(x))
    if dropouts is None and not keep_states and packed is not None and _graph_mode.wanted():
        last = _replayed(x, layers, call, packed)
        if last is not None:
            return chosen_rows([last], rows)
    records, states = torch.is_grad_enabled(), []
    for number, p in enumerate(layers):
        of_layer: Sequence[Dropout | None] = (None,) * 3 if dropouts is None else dropouts[number]
        random = [_triton.random_arguments(dropout, x.device) for dropout in of_layer]
        if records and (x.requires_grad or any(parameter.requires_grad for parameter in p)):
            x = _Layer.apply(x, call, random, *p)
        else:
            x, _ = _forward(x, p, call, random, keep=False)
        x = x if between is None else between(x)
        states = [*states, x] if keep_states else [x]
    return chosen_rows(states, rows)


def _replayed(x: Tensor, layers: Sequence[LayerParameters], call: _Call, packed: PackedEncoder) -> Tensor | None:
    """The last hidden state by a CUDA graph, or None if autograd records the pass or a graph would gain nothing."""
    tensors = packed.tensors(layers)
    if is_recorded(x, tensors):
        return None
    replays = packed.held.setdefault("triton graphs", EncoderReplays())

    def compute(x: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        shaped = call._replace(cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
        for p in layers:
            x, _ = _forward(x, p, shaped, [_triton.random_arguments(None, x.device)] * 3, keep=False)
        return x

    about = call._replace(cu_seqlens=None, max_seqlen=0)
    x = x.to(call.dtype).contiguous()
    return replays.run(x, call.cu_seqlens, call.max_seqlen, tensors, about, compute)
