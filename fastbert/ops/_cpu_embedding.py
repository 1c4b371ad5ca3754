"""Embedding sum, LayerNorm and dropout in one pass by the CPU kernels.

Kept for backward: the float32 sums and two numbers per token. Dropout is drawn again. If the engine allows it
(`_in_place`), rows of the word table's gradient are added to ``word.grad`` directly.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from .. import _native
from ..errors import BackendError, InputError
from ..rng import Dropout
from ..wording import dtype_name
from . import _cpu, _define, _dispatch, _dropout_schema, _in_place
from .embedding import gradient_by

# The word table of the current call if this op adds its gradient itself; read by `_setup_context`.
_own = threading.local()


def _ids(*ids: Tensor) -> list[Tensor]:
    return [i.to(torch.int64).contiguous() for i in ids]


def _pointers(tensors) -> list[int]:
    return [_cpu.pointer(t) for t in tensors]


def _forward(
    input_ids, token_type_ids, position_ids, word, token_type, position, weight, bias, eps, padding_idx,
    threshold, seed, offset, site, rng, save,
):  # fmt: skip
    ids = _ids(input_ids, token_type_ids, position_ids)
    tables = [t.contiguous() for t in (word, token_type, position)]
    weight, bias = _cpu.as_float32(weight), _cpu.as_float32(bias)
    rows, columns = len(ids[0]), word.shape[1]
    out, mean, rstd = word.new_empty(rows, columns), _cpu.buffer(rows), _cpu.buffer(rows)
    total = _cpu.buffer((rows, columns) if save else 0)
    bad_token = _native.extension().embedding_forward(
        _cpu.code(word),
        _pointers(ids),
        _pointers(tables),
        [len(t) for t in tables],
        weight.data_ptr(),
        bias.data_ptr(),
        eps,
        _cpu.native_dropout(threshold, seed, offset, site, rng),
        *(_cpu.pointer(t) for t in (out, total if save else None, mean, rstd)),
        rows,
        columns,
    )
    _refuse(bad_token)
    return out, total, mean, rstd


def _refuse(token: int) -> None:
    """Raises IndexError if a kernel has found a token with an id out of range; -1 for none."""
    if token >= 0:
        raise IndexError("index out of range in self")  # the message of torch's embedding, as in the reference


def _forward_fake(
    input_ids, token_type_ids, position_ids, word, token_type, position, weight, bias, eps, padding_idx,
    threshold, seed, offset, site, rng, save,
):  # fmt: skip
    rows, columns = input_ids.shape[0], word.shape[1]
    kept = ((rows, columns) if save else 0, rows, rows)
    return word.new_empty(rows, columns), *(word.new_empty(size, dtype=torch.float32) for size in kept)


def _backward(
    dout, input_ids, token_type_ids, position_ids, total, weight, mean, rstd, table_rows, padding_idx,
    wanted, threshold, seed, offset, site, rng,
):  # fmt: skip
    ids = _ids(input_ids, token_type_ids, position_ids)
    dout, total, mean, rstd = (t.contiguous() for t in (dout, total, mean, rstd))
    weight = _cpu.as_float32(weight)
    rows, columns = dout.shape
    tables = zip(table_rows, wanted, strict=True)
    dtables = [dout.new_zeros(count, columns) if want else dout.new_empty(0) for count, want in tables]
    dweight, dbias = _cpu.buffer(columns), _cpu.buffer(columns)
    workspace, dsum = _cpu.reduction_workspace(rows, 2 * columns), _cpu.buffer((rows, columns))
    order = _cpu.buffer(rows + max(table_rows) + 1, torch.int32)
    bad_token = _native.extension().embedding_backward(
        _cpu.code(dout),
        dout.data_ptr(),
        _pointers(ids),
        table_rows,
        weight.data_ptr(),
        _cpu.native_dropout(threshold, seed, offset, site, rng),
        *_pointers((total, mean, rstd)),
        [_cpu.pointer(d if want else None) for d, want in zip(dtables, wanted, strict=True)],
        padding_idx,
        *_pointers((dweight, dbias, workspace, dsum, order)),
        rows,
        columns,
    )
    _refuse(bad_token)
    return *dtables, dweight, dbias, dsum


def _backward_fake(
    dout, input_ids, token_type_ids, position_ids, total, weight, mean, rstd, table_rows, padding_idx,
    wanted, threshold, seed, offset, site, rng,
):  # fmt: skip
    columns = dout.shape[1]
    dtables = [dout.new_empty((n, columns) if want else 0) for n, want in zip(table_rows, wanted, strict=True)]
    return *dtables, *(dout.new_empty(size, dtype=torch.float32) for size in (columns, columns, dout.shape))


def _setup_context(ctx, inputs, output) -> None:
    *ids, word, token_type, position, weight, bias, ctx.eps, ctx.padding_idx = inputs[:-6]
    _, total, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*ids, total, weight, mean, rstd)
    ctx.table_rows, ctx.table_dtype = [len(t) for t in (word, token_type, position)], word.dtype
    ctx.dropout, ctx.bias_dtype = inputs[-6:-1], bias.dtype
    ctx.own = getattr(_own, "word", None)


def _dropout(ctx, _saved) -> Dropout | None:
    if ctx.own is not None:
        raise BackendError("a gradient that is added in place has no second derivative: leave gradients_in_place()")
    return _dropout_schema.dropout_of(*ctx.dropout)


def _by_kernel(ctx, saved, dout: Tensor) -> tuple[Tensor | None, ...]:
    input_ids, weight = saved[0], saved[4]
    wanted = list(ctx.needs_input_grad[3:6])
    *dtables, dweight, dbias, rows = _embedding_backward(
        dout, *saved, ctx.table_rows, ctx.padding_idx, wanted, *ctx.dropout
    )
    if ctx.own is not None:
        _in_place.add_rows(ctx.own, input_ids.to(torch.int64), rows, ctx.padding_idx)
    dtables = [d if want else None for d, want in zip(dtables, wanted, strict=True)]
    return *dtables, dweight.to(weight.dtype), dbias.to(ctx.bias_dtype)


_IDS = "Tensor input_ids, Tensor token_type_ids, Tensor position_ids"
_ID_TENSORS = "input_ids: index (T); token_type_ids: index (T); position_ids: index (T)"


def _check_wanted(*arguments) -> None:
    table_rows, wanted = arguments[8], arguments[10]
    for name, values in (("table_rows", table_rows), ("wanted", wanted)):
        if len(values) != 3:
            raise InputError(f"embedding_backward: expected {name} for 3 tables, got {len(values)}")


_embedding_backward = _define.define(
    f"embedding_backward(Tensor dout, {_IDS}, Tensor total, Tensor weight, Tensor mean, Tensor rstd, int[] table_rows, "
    f"int padding_idx, bool[] wanted, {_dropout_schema.SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    tensors=f"{_ID_TENSORS}; dout: activation (T, C); total: float32 (T, C); weight: parameter (C); mean: float32 (T); "
    f"rstd: float32 (T); {_dropout_schema.TENSORS}",
    rest=_check_wanted,
)
_embedding = _define.define(
    f"embedding({_IDS}, Tensor word, Tensor token_type, Tensor position, Tensor weight, Tensor bias, float eps, "
    f"int padding_idx, {_dropout_schema.SCHEMA}, bool save) -> (Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=gradient_by(_by_kernel, _dropout, rest=8),
    setup_context=_setup_context,
    tensors="word: activation (V, C); token_type: activation (K, C); position: activation (P, C); "
    f"weight: parameter (C); bias: parameter (C); {_ID_TENSORS}; {_dropout_schema.TENSORS}",
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
        save = torch.is_grad_enabled() and any(t.requires_grad for t in tensors[3:])
        return _embedding(*tensors, eps, padding, *_dropout_schema.arguments(dropout), save)[0]
    finally:
        _own.word = None
