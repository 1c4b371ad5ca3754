"""Dropout and keep masks by the CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from ..rng import Dropout
from . import _cpu, _define, _dispatch, _dropout_schema


def _forward(x, threshold, seed, offset, site, rng, rows) -> Tensor:
    x, rows = x.contiguous(), None if rows is None else rows.contiguous()
    out = torch.empty_like(x)
    native = _cpu.native_dropout(threshold, seed, offset, site, rng, rows)
    _native.extension().dropout(_cpu.code(x), x.data_ptr(), out.data_ptr(), *_cpu.rows_and_columns(x), native)
    return out


def _forward_fake(x, threshold, seed, offset, site, rng, rows) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:
    _, *ctx.dropout, rows = inputs
    ctx.save_for_backward(rows)


def _gradient(ctx, dout: Tensor):
    return _dropout(dout, *ctx.dropout, *ctx.saved_tensors), *(None,) * 6


_dropout = _define.define(
    f"dropout(Tensor x, {_dropout_schema.SCHEMA}, Tensor? rows) -> Tensor",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
    tensors=f"x: activation (..., C); {_dropout_schema.TENSORS}; rows: int64 (R)",
)


def _mask(
    rows: Tensor, num_columns: int, threshold: int, seed: int, offset: int, site: int, rng: Tensor | None
) -> Tensor:
    rows = rows.contiguous()
    keep = _cpu.buffer((rows.numel(), num_columns), torch.bool)
    native = _cpu.native_dropout(threshold, seed, offset, site, rng)
    _native.extension().keep_mask(rows.data_ptr(), rows.numel(), num_columns, native, keep.data_ptr())
    return keep


def _mask_fake(
    rows: Tensor, num_columns: int, threshold: int, seed: int, offset: int, site: int, rng: Tensor | None
) -> Tensor:
    return rows.new_empty(rows.numel(), num_columns, dtype=torch.bool)


_keep_mask = _define.define(
    f"keep_mask(Tensor rows, SymInt num_columns, {_dropout_schema.SCHEMA}) -> Tensor",
    _mask,
    _mask_fake,
    tensors=f"rows: int64 (N); {_dropout_schema.TENSORS}",
)


def keep_mask(rows: Tensor, num_columns: int, dropout: Dropout) -> Tensor:
    """`fastbert.reference.dropout.keep_mask`, the same bits: rows (R,) int64 -> (R, num_columns) bool."""
    return _keep_mask(rows, num_columns, *_dropout_schema.arguments(dropout))


def _accepts(x: Tensor, dropout: Dropout, rows: Tensor | None) -> str | None:
    return _cpu.why_not(x)


@_dispatch.register("dropout", "cpu", available=_native.why_missing, accepts=_accepts)
def dropout(x: Tensor, dropout: Dropout, rows: Tensor | None) -> Tensor:
    return _dropout(x, *_dropout_schema.arguments(dropout), rows)
