"""Dense layers and feed-forward blocks by cuBLASLt's epilogues, whose GELU is the tanh approximation.

A block keeps for backward what torch's ops would: x, the GELU's input (written by the first product) and its output.
In the backward pass, one product also applies the GELU's derivative and sums the first bias's gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native, fp8, reference
from ..wording import dtype_name
from . import _cublaslt, _cuda, _define, _dispatch
from ._cublaslt import Epilogue, multiply
from ._double_backward import differentiable, differentiable_by
from ._gradients import gradients_of
from ._product_dtypes import product_dtype
from .linear import second_derivatives

_DTYPES = (torch.float16, torch.bfloat16)


def _common(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that autocast gives to products, or without autocast in that of x."""
    return tuple(t.to(product_dtype(x)) for t in (x, *others))


def _why_not(what: str, x: Tensor, *others: Tensor) -> str | None:
    dtype = product_dtype(x)
    if dtype not in _DTYPES:
        return f"cuBLASLt's epilogues are for float16 and bfloat16, got {dtype_name(dtype)}"
    devices = {t.device for t in (x, *others)}
    if len(devices) > 1 or x.device.type != "cuda":
        return f"cuBLASLt takes tensors of one CUDA device, got {sorted(map(str, devices))}"
    sizes = [size for t in (x, *others) for size in t.shape[-1:]]
    if any(size % 8 for size in sizes) or not x.numel():
        return f"cuBLASLt's epilogues take rows of a multiple of 8 elements, got {sizes}"
    return _cuda.why_not_measured(what, x.device) or _cublaslt.why_missing()


def _available() -> str | None:
    # Does not ask whether cuBLASLt is loaded, which torch does with its first product.
    missing = _native.why_missing()
    if missing or torch.version.cuda is None:
        return missing or "this torch was built without CUDA"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def _forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, w1, b1, w2 = x.reshape(-1, x.shape[-1]).contiguous(), w1.contiguous(), b1.contiguous(), w2.contiguous()
    pre, hidden = (x.new_empty(rows.shape[0], w1.shape[0]) for _ in range(2))
    multiply(rows, w1, hidden, transposed=(False, True), epilogue=Epilogue.BIAS_GELU, bias=b1, aux=pre)
    out = multiply(hidden, w2, x.new_empty(rows.shape[0], w2.shape[0]), transposed=(False, True))
    return _define.in_shape(out, (*x.shape[:-1], w2.shape[0])), pre, hidden


def _forward_fake(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.shape[:-1].numel()
    return x.new_empty(*x.shape[:-1], w2.shape[0]), *(x.new_empty(rows, w1.shape[0]) for _ in range(2))


def _backward(dout: Tensor, x: Tensor, w1: Tensor, w2: Tensor, pre: Tensor, hidden: Tensor) -> list[Tensor]:
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    dout, w1, w2 = dout.reshape(-1, dout.shape[-1]).contiguous(), w1.contiguous(), w2.contiguous()
    dpre, db1 = torch.empty_like(pre), pre.new_empty(pre.shape[1])
    multiply(dout, w2, dpre, epilogue=Epilogue.DGELU_BIAS_SUM, bias=db1, aux=pre)
    dw2 = multiply(dout, hidden, torch.empty_like(w2), transposed=(True, False))
    dw1 = multiply(dpre, rows, torch.empty_like(w1), transposed=(True, False))
    dx = multiply(dpre, w1, torch.empty_like(rows))
    return [dx.view(x.shape), dw1, db1, dw2]


def _backward_fake(dout: Tensor, x: Tensor, w1: Tensor, w2: Tensor, pre: Tensor, hidden: Tensor) -> list[Tensor]:
    new = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, w1, w2)]
    return [new[0], new[1], pre.new_empty(pre.shape[1]), new[2]]


def _setup_context(ctx, inputs, output) -> None:
    x, w1, b1, w2 = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(b1, x, w1, w2, *output[1:])


def _gradient_again(_ctx, saved, dout: Tensor, *_):
    def block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
        return reference.linear(reference.gelu(reference.linear(x, w1, b1), approximate="tanh"), w2)

    b1, x, w1, w2, *_ = saved
    return tuple(gradients_of(block, (x, w1, b1, w2), dout))


@differentiable(_gradient_again)
def _gradient(_ctx, saved, dout: Tensor, *_):
    _b1, *others = saved
    return tuple(_mlp_backward(dout, *others))


_mlp_backward = _define.define(
    "cublaslt_mlp_backward(Tensor dout, Tensor x, Tensor w1, Tensor w2, Tensor pre, Tensor hidden) -> Tensor[]",
    _backward,
    _backward_fake,
    key="CompositeExplicitAutograd",
)
_mlp = _define.define(
    "cublaslt_mlp(Tensor x, Tensor w1, Tensor b1, Tensor w2) -> (Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
    key="CompositeExplicitAutograd",
)


def _accepts_mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, approximate: str = "none") -> str | None:
    if fp8.site(weight1) is not None:
        return "cuBLASLt's epilogues are for 16 bits, and this block is in 8"
    if approximate != "tanh":
        return f"cuBLASLt's GELU is the tanh one, got approximate={approximate!r}"
    return _why_not("mlp", x, weight1, bias1, weight2)


@_dispatch.register("mlp", "cuda", available=_available, accepts=_accepts_mlp)
def mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, approximate: str = "none") -> Tensor:
    return _mlp(*_common(x, weight1, bias1, weight2))[0]


def _linear_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = x.new_empty(rows.shape[0], weight.shape[0])
    multiply(rows, weight.contiguous(), out, transposed=(False, True), epilogue=Epilogue.BIAS, bias=bias.contiguous())
    return _define.in_shape(out, (*x.shape[:-1], weight.shape[0]))


def _linear_fake(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _linear_backward(dout: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
    rows, given = x.reshape(-1, x.shape[-1]).contiguous(), dout.reshape(-1, dout.shape[-1]).contiguous()
    dweight, dbias = torch.empty_like(weight.contiguous()), given.new_empty(given.shape[1])
    multiply(given, rows, dweight, transposed=(True, False), epilogue=Epilogue.BIAS_SUM, bias=dbias)
    return [multiply(given, weight.contiguous(), torch.empty_like(rows)).view(x.shape), dweight, dbias]


def _linear_backward_fake(dout: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
    new = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, weight)]
    return [*new, dout.new_empty(dout.shape[-1])]


def _linear_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])


@differentiable_by(lambda _ctx, saved, grads, upstream, wants: second_derivatives(*grads, *saved, upstream, wants))
def _linear_gradient(_ctx, saved, dout: Tensor):
    return tuple(_linear_gradients(dout, *saved))


_linear_gradients = _define.define(
    "cublaslt_linear_backward(Tensor dout, Tensor x, Tensor weight) -> Tensor[]",
    _linear_backward,
    _linear_backward_fake,
    key="CompositeExplicitAutograd",
)
_linear = _define.define(
    "cublaslt_linear(Tensor x, Tensor weight, Tensor bias) -> Tensor",
    _linear_forward,
    _linear_fake,
    backward=_linear_gradient,
    setup_context=_linear_context,
    key="CompositeExplicitAutograd",
)


def _accepts_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    if bias is None:
        return "without a bias there is nothing for an epilogue to do"
    return _why_not("linear", x, weight, bias)


@_dispatch.register("linear", "cuda", available=_available, accepts=_accepts_linear)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _linear(*_common(x, weight, bias))
