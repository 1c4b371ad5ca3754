"""Embedding sum, LayerNorm and dropout in one pass by the CPU kernels.

Kept for backward: two numbers per token. The sums are computed again from the tables, and dropout is drawn again. If
the engine allows it (`_in_place`), rows of the word table's gradient are added to ``word.grad`` directly.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from .. import _native
from ..errors import BackendError, InputError
from ..rng import Dropout
from ..wording import dtype_name
from . import _cpu, _dispatch, _gradients, _in_place
from ._double_backward import differentiable

# The word table of the current call if this op adds its gradient itself; read by `_setup_context`.
_own = threading.local()


def _ids(*ids: Tensor) -> list[Tensor]:
    return [i.to(torch.int64).contiguous() for i in ids]


def _pointers(tensors) -> list[int]:
    return [_cpu.pointer(t) for t in tensors]


def _forward(
    input_ids, token_type_ids, position_ids, word, token_type, position, weight, bias, eps, padding_idx,
    threshold, seed, offset, site, rng,
):  # fmt: skip
    ids = _ids(input_ids, token_type_ids, position_ids)
    tables = [t.contiguous() for t in (word, token_type, position)]
    weight, bias = _cpu.as_float32(weight), _cpu.as_float32(bias)
    rows, columns = len(ids[0]), word.shape[1]
    out, mean, rstd = word.new_empty(rows, columns), _cpu.buffer(rows), _cpu.buffer(rows)
    bad_token = _native.extension().embedding_forward(
        _cpu.code(word),
        _pointers(ids),
        _pointers(tables),
        [len(t) for t in tables],
        weight.data_ptr(),
        bias.data_ptr(),
        eps,
        _cpu.native_dropout(threshold, seed, offset, site, rng),
        *_pointers((out, mean, rstd)),
        rows,
        columns,
    )
    _refuse(bad_token)
    return out, mean, rstd


def _refuse(token: int) -> None:
    """Raises IndexError if a kernel has found a token with an id out of range; -1 for none."""
    if token >= 0:
        raise IndexError("index out of range in self")  # the message of torch's embedding, as in the reference


def _forward_fake(
    input_ids, token_type_ids, position_ids, word, token_type, position, weight, bias, eps, padding_idx,
    threshold, seed, offset, site, rng,
):  # fmt: skip
    rows = input_ids.shape[0]
    return word.new_empty(rows, word.shape[1]), *(word.new_empty(rows, dtype=torch.float32) for _ in range(2))


def _backward(
    dout, input_ids, token_type_ids, position_ids, word, token_type, position, weight, mean, rstd, padding_idx,
    wanted, threshold, seed, offset, site, rng,
):  # fmt: skip
    ids = _ids(input_ids, token_type_ids, position_ids)
    tables = [t.contiguous() for t in (word, token_type, position)]
    dout, mean, rstd, weight = dout.contiguous(), mean.contiguous(), rstd.contiguous(), _cpu.as_float32(weight)
    rows, columns = dout.shape
    dtables = [torch.zeros_like(t) if want else t.new_empty(0) for t, want in zip(tables, wanted, strict=True)]
    dweight, dbias = _cpu.buffer(columns), _cpu.buffer(columns)
    workspace, dsum = _cpu.reduction_workspace(rows, 2 * columns), _cpu.buffer((rows, columns))
    order = _cpu.buffer(rows + max(len(t) for t in tables) + 1, torch.int32)
    bad_token = _native.extension().embedding_backward(
        _cpu.code(dout),
        dout.data_ptr(),
        _pointers(ids),
        _pointers(tables),
        [len(t) for t in tables],
        weight.data_ptr(),
        _cpu.native_dropout(threshold, seed, offset, site, rng),
        *_pointers((mean, rstd)),
        [_cpu.pointer(d if want else None) for d, want in zip(dtables, wanted, strict=True)],
        padding_idx,
        *_pointers((dweight, dbias, workspace, dsum, order)),
        rows,
        columns,
    )
    _refuse(bad_token)
    return *dtables, dweight, dbias, dsum


def _backward_fake(
    dout, input_ids, token_type_ids, position_ids, word, token_type, position, weight, mean, rstd, padding_idx,
    wanted, threshold, seed, offset, site, rng,
):  # fmt: skip
    tables = (word, token_type, position)
    dtables = [t.new_empty(t.shape if want else 0) for t, want in zip(tables, wanted, strict=True)]
    sizes = (dout.shape[1], dout.shape[1], dout.shape)
    return *dtables, *(dout.new_empty(size, dtype=torch.float32) for size in sizes)


def _setup_context(ctx, inputs, output) -> None:
    inputs, dropout = inputs[:-5], inputs[-5:]
    *ids_and_tables, weight, bias, ctx.eps, ctx.padding_idx = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*ids_and_tables, weight, mean, rstd)
    ctx.dropout, ctx.bias_dtype = dropout, bias.dtype
    ctx.own = getattr(_own, "word", None)


def _gradient_again(ctx, saved, dout: Tensor, *_):
    if ctx.own is not None:
        raise BackendError("a gradient that is added in place has no second derivative: leave gradients_in_place()")
    ids, tables, (weight, *_) = saved[:3], saved[3:6], saved[6:]
    dropout = _cpu.dropout_of(*ctx.dropout)
    gradients = _gradients.embedding(dout, ids, tables, weight, ctx.eps, ctx.padding_idx, dropout)
    return *(None,) * 3, *gradients, *(None,) * 7


@differentiable(_gradient_again)
def _gradient(ctx, saved, dout: Tensor, *_):
    input_ids, weight = saved[0], saved[6]
    wanted = list(ctx.needs_input_grad[3:6])
    *dtables, dweight, dbias, rows = _embedding_backward(dout, *saved, ctx.padding_idx, wanted, *ctx.dropout)
    if ctx.own is not None:
        _in_place.add_rows(ctx.own, input_ids.to(torch.int64), rows, ctx.padding_idx)
    dtables = [d if want else None for d, want in zip(dtables, wanted, strict=True)]
    return None, None, None, *dtables, dweight.to(weight.dtype), dbias.to(ctx.bias_dtype), *(None,) * 7


_INPUTS = (
    "Tensor input_ids, Tensor token_type_ids, Tensor position_ids, Tensor word, Tensor token_type, Tensor position, "
    "Tensor weight"
)
_TENSORS = (
    "word: activation (V, C); token_type: activation (K, C); position: activation (P, C); weight: parameter (C); "
    f"input_ids: index (T); token_type_ids: index (T); position_ids: index (T); {_cpu.DROPOUT_TENSORS}"
)


def _check_wanted(*arguments) -> None:
    wanted = arguments[11]
    if len(wanted) != 3:
        raise InputError(f"embedding_backward: expected wanted for 3 tables, got {len(wanted)}")


_embedding_backward = _cpu.define(
    f"embedding_backward(Tensor dout, {_INPUTS}, Tensor mean, Tensor rstd, int padding_idx, bool[] wanted, "
    f"{_cpu.DROPOUT_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    tensors=f"{_TENSORS}; dout: activation (T, C); mean: float32 (T); rstd: float32 (T)",
    rest=_check_wanted,
)
_embedding = _cpu.define(
    f"embedding({_INPUTS}, Tensor bias, float eps, int padding_idx, {_cpu.DROPOUT_SCHEMA}) -> (Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
    tensors=f"{_TENSORS}; bias: parameter (C)",
)


def _accepts(ids, types, positions, word, token_type, position, weight, bias, eps, **_) -> str | None:
    for tensor in (ids, types, positions):
        if tensor.dtype not in (torch.int64, torch.int32):
            return f"the CPU kernels take int64 ids, got {dtype_name(tensor.dtype)}"
    return _cpu.why_not_device(ids, types, positions) or _cpu.why_not(
        word, token_type, position, parameters=(weight, bias)
    )


@_dispatch.register("embedding", "cpu", available=_native.why_missing, accepts=_accepts)
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
    padding = -1 if padding_idx is None else padding_idx
    # The word table is detached, so another input must lead autograd to this op's backward.
    if _in_place.is_allowed(word) and any(t.requires_grad for t in (token_type, position, weight, bias)):
        _own.word, word = word, word.detach()
    try:
        tensors = (input_ids, token_type_ids, position_ids, word, token_type, position, weight, bias)
        return _embedding(*tensors, eps, padding, *_cpu.dropout_arguments(dropout))[0]
    finally:
        _own.word = None
