"""Batch-invariant mode: the result for a sequence has the same bits whatever else is in the batch.

Three things in torch depend on the batch: products; element-wise functions, which use other instructions for the last
few elements of an array; and sums over the tokens, whose order depends on how many there are, including padding. So the
mode intercepts every call of torch inside the block. Dense layers go to our products, or row by row if there are none;
functions whose bits may depend on an element's position run on full vectors only; sums over tokens, also those in a
softmax, run from the first token to the last; other products are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._invariant import refuse, state, trusted
from .linear import linear

_WHY = "torch sums in an order that depends on the size of the batch"


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Makes outputs inside the block bit-identical whatever the batch's composition, order and padding; in this thread.

    This covers fastbert's models, patched models with their heads, and around them dense layers, arithmetic,
    element-wise functions of one tensor, and sums, means and softmax over one axis; on the CPU in float32, bfloat16 and
    int8, and on the reference backend in every dtype. Bits may still differ between backends, between instruction-set
    levels, between passes with and without gradients and, on the reference backend, between numbers of threads. Losses
    and gradients of parameters are sums over the batch and are not covered. A compiled model runs as if it were not
    compiled.

    Raises:
        BackendError: (from a call inside) the result would depend on the batch: attention or a matrix product of
            torch, a batch that takes the padded path, an export, a device other than the CPU.
    """
    state.depth += 1
    try:
        if state.depth > 1:
            yield
        else:
            with _Mode():
                yield
    finally:
        state.depth -= 1


def _on_full_vectors(function: Callable, x: Tensor, *args, **kwargs) -> Tensor:
    """Applies an element-wise function to arrays of `_PIECE` elements, so that none is in a shorter last vector."""
    if not x.numel():
        return function(x, *args, **kwargs)
    flat = x.reshape(-1)
    with trusted():
        # A copy, for the same alignment; filled up with ones, where every function has a value and a derivative.
        flat = torch.cat([flat, flat.new_ones(-len(flat) % _PIECE)])
        out = torch.cat([function(piece, *args, **kwargs) for piece in flat.split(_PIECE)])
        return out[: x.numel()].reshape(x.shape)


def _element_wise(function: Callable) -> Callable:
    def run(x: Tensor, *args, **kwargs) -> Tensor:
        if not isinstance(x, Tensor) and args:  # a number to the power of a tensor
            return _element_wise(lambda power: function(x, power, **kwargs))(*args)
        beside = any(isinstance(value, Tensor) and value.dim() for value in (*args, *kwargs.values()))
        if not isinstance(x, Tensor) or beside or not x.dim():
            return function(x, *args, **kwargs)
        out = _on_full_vectors(function, x, *args, **kwargs)
        return x.copy_(out) if kwargs.get("inplace") or function in _IN_PLACE else out

    return run


def _axis_of(x: Tensor, dim) -> int | None:
    """The axis ``dim`` as a positive number if it is one axis after the first (the batch's), else None."""
    axis = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(axis, int) or not x.is_floating_point() or not -x.dim() <= axis < x.dim():
        return None
    return axis % x.dim() or None


def _add_up(x: Tensor, axis: int) -> Tensor:
    """The sum over an axis, from the first to the last, keeping the axis; trailing zeros (masked tokens) change no
    bit."""
    total = torch.zeros_like(x.select(axis, 0)) if x.shape[axis] else x.sum(axis)
    for part in x.movedim(axis, 0).contiguous():
        total = total + part
    return total.unsqueeze(axis)


def _in_order(function: Callable) -> Callable:
    """A sum or mean over an axis after the first (such as a pooling over tokens) in the order of the tokens; torch's
    order depends on how many there are."""

    def run(x: Tensor, dim=None, keepdim: bool = False, *, dtype: torch.dtype | None = None, **kwargs) -> Tensor:
        axis = _axis_of(x, dim)
        if kwargs or axis is None:
            given = {"keepdim": keepdim} if dim is not None else {}
            return function(x, *(() if dim is None else (dim,)), **given, dtype=dtype, **kwargs)
        dtype = dtype or x.dtype
        with trusted():
            total = _add_up(x.to(torch.promote_types(dtype, torch.float32)), axis)
            if function in _MEANS:
                total = total / x.shape[axis]
            total = total.to(dtype)
            return total if keepdim else total.squeeze(axis)

    return run


def _softmax(function: Callable) -> Callable:
    """A softmax over an axis after the first, whose sum runs in the order of the tokens."""

    def run(x: Tensor, dim=None, *rest, dtype: torch.dtype | None = None, **kwargs) -> Tensor:
        dtype = next((value for value in rest if isinstance(value, torch.dtype)), dtype)
        axis = _axis_of(x, dim)
        if axis is None or not x.shape[axis]:
            return function(x, dim, dtype=dtype)
        dtype = dtype or x.dtype
        with trusted():
            wide = x.to(torch.promote_types(dtype, torch.float32))
            wide = wide - wide.detach().amax(axis, keepdim=True)
            shares = _on_full_vectors(torch.exp, wide)
            total = _add_up(shares, axis)
            out = wide - _on_full_vectors(torch.log, total) if function in _LOGARITHMS else shares / total
            return out.to(dtype)

    return run


_PIECE = 1024  # elements: many times what a processor's vectors hold, and too few for a second thread
_IN_PLACE = (
    *(torch.tanh_, Tensor.tanh_, torch.sigmoid_, Tensor.sigmoid_),
    *(torch.exp_, Tensor.exp_, torch.erf_, Tensor.erf_, torch.exp2_, Tensor.exp2_, torch.rsqrt_, Tensor.rsqrt_),
    *(torch.sinh_, Tensor.sinh_, torch.cosh_, Tensor.cosh_, torch.atanh_, Tensor.atanh_),
    *(torch.arctanh_, Tensor.arctanh_, Tensor.pow_, Tensor.__ipow__),
    *(F.elu_, F.selu_, F.celu_),
)
_ELEMENT_WISE = (
    *(F.gelu, torch.tanh, Tensor.tanh, torch.erf, Tensor.erf, torch.sigmoid, Tensor.sigmoid, F.silu, torch.exp),
    *(F.mish, F.elu, F.selu, torch.selu, F.celu, torch.celu, F.softplus, Tensor.exp, torch.exp2, Tensor.exp2),
    *(torch.pow, Tensor.pow, Tensor.__pow__, Tensor.__rpow__, torch.float_power, Tensor.float_power),
    *(torch.rsqrt, Tensor.rsqrt, torch.special.expit, torch.special.exp2),
    *(torch.sinh, Tensor.sinh, torch.cosh, Tensor.cosh, torch.atanh, Tensor.atanh, torch.arctanh, Tensor.arctanh),
    *_IN_PLACE,
)
_MEANS = (torch.mean, Tensor.mean)
_SUMS = (torch.sum, Tensor.sum, *_MEANS)
_LOGARITHMS = (torch.log_softmax, Tensor.log_softmax, F.log_softmax)
_SOFTMAXES = (torch.softmax, Tensor.softmax, F.softmax, *_LOGARITHMS)
_PRODUCTS = (
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm),
    *(torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm, torch.einsum, F.scaled_dot_product_attention),
    *(F.bilinear, torch.mv, Tensor.mv, torch.tensordot, torch.inner, Tensor.inner, torch.cdist),
    *(torch.conv1d, torch.conv2d, torch.conv3d, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
    F.multi_head_attention_forward,
)
_instead: dict[Callable, Callable] = {
    F.linear: linear,  # the op of this package, which asks `_invariant.active`
    **{f: _element_wise(f) for f in _ELEMENT_WISE},
    **{f: _in_order(f) for f in _SUMS},
    **{f: _softmax(f) for f in _SOFTMAXES},
}
# numpy's names, which torch takes for its own.
_NAMES = {"axis": "dim", "keepdims": "keepdim"}


class _Mode(TorchFunctionMode):
    """Intercepts the calls of torch in this thread, but not those made by the replacements that it calls."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break()  # the call is made as it would be in a model that is not compiled
        if state.trusted:
            return function(*args, **kwargs)
        if function in _PRODUCTS:
            name = getattr(function, "__name__", str(function))
            refuse(f"{name} was called, and {_WHY}; expected a model of fastbert's, or a patched one")
        if "dynamic" in getattr(function, "__name__", ""):
            refuse(
                f"torch quantizes by the largest number of the whole batch ({function.__name__}); see fastbert.quantize"
            )
        instead = _instead.get(function)
        if instead is None:
            return function(*args, **kwargs)
        kwargs = {_NAMES.get(name, name): value for name, value in kwargs.items()}
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        return instead(*args, **kwargs)
