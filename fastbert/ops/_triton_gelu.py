"""Bias + GELU by Triton."""

from __future__ import annotations

from torch import Tensor

from . import _define, _dispatch, _triton
from ._double_backward import differentiable
from .gelu import backward_fake, forward_fake, gradient_again, setup_context


def _forward(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    from ..triton_kernels import gelu

    return _define.in_shape(gelu.gelu_forward(_triton.flat(x), bias, tanh), x.shape)


def _backward(dout: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    from ..triton_kernels import gelu

    dx, dbias = gelu.gelu_backward(_triton.flat(dout), _triton.flat(x), bias, tanh)
    return dx.view(x.shape), dbias


@differentiable(gradient_again)
def _gradient(ctx, saved, dout: Tensor):
    x, bias = saved
    dx, dbias = _gelu_backward(dout, x, bias, ctx.tanh)
    return dx, None if bias is None else dbias.to(bias.dtype), None


_gelu_backward = _triton.define(
    "triton_gelu_backward(Tensor dout, Tensor x, Tensor? bias, bool tanh) -> (Tensor, Tensor)",
    _backward,
    backward_fake,
)
_gelu = _triton.define(
    "triton_gelu(Tensor x, Tensor? bias, bool tanh) -> Tensor",
    _forward,
    forward_fake,
    backward=_gradient,
    setup_context=setup_context,
)


def _accepts(x: Tensor, bias: Tensor | None = None, approximate: str = "none") -> str | None:
    return _triton.why_not(x, parameters=(bias,)) or _triton.why_not_wide(x)


@_dispatch.register("gelu", "triton", available=_triton.why_missing, accepts=_accepts)
def gelu(x: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    return _gelu(x, bias, approximate == "tanh")
