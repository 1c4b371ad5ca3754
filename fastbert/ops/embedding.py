"""Token + segment + position embeddings, LayerNorm, dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from . import _dispatch, _gradients
from ._double_backward import differentiable

_dispatch.register("embedding", "reference")(reference.embedding)


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
    """dropout(LN(word[input_ids] + token_type[token_type_ids] + position[position_ids])).

    Args:
        input_ids, token_type_ids, position_ids: (T,) int64, each below the number of rows of its table.
        word, token_type, position: (V, H), (types, H), (positions, H) floating.
        weight, bias: (H,) of the LayerNorm; ``eps`` is added to its variance.
        padding_idx: the row of ``word`` that gets no gradient, below 0 counted from the end; or None.
        dropout: its rate and place in the random stream (`DropoutKey.site`), or None.

    Returns:
        (T, H), dtype of the tables.

    Raises:
        InputError: shapes do not fit, or the weight or bias is missing.

    Ref:
        Devlin et al. 2019, figure 2.
    """
    if input_ids.dim() != 1 or not input_ids.shape == token_type_ids.shape == position_ids.shape:
        shapes = [tuple(ids.shape) for ids in (input_ids, token_type_ids, position_ids)]
        raise InputError(f"input_ids, token_type_ids and position_ids must all be (T,), got {shapes}")
    # The kernels assume the word table's width for all tables: a narrower one would be read past its end.
    if any(table.dim() != 2 or table.shape[1:] != word.shape[1:] for table in (word, token_type, position)):
        shapes = [tuple(table.shape) for table in (word, token_type, position)]
        raise InputError(f"word, token_type and position must be tables (rows, H) of one width H, got {shapes}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None or parameter.shape != word.shape[1:]:
            got = None if parameter is None else tuple(parameter.shape)
            raise InputError(f"{name} must have shape {tuple(word.shape[1:])}, got {got}")
    if padding_idx is not None and padding_idx < 0:  # counted from the end, as torch does
        padding_idx += word.shape[0]
    return _dispatch.call(
        "embedding",
        input_ids,
        token_type_ids,
        position_ids,
        word,
        token_type,
        position,
        weight,
        bias,
        eps,
        padding_idx=padding_idx,
        dropout=dropout,
    )


# Shared by the CPU and Triton ops, of which the second output is the sum of the rows, kept for backward: the tables may
# hold other values by then. It is differentiable, as `layer_norm`'s sum is.
def gradient_by(
    kernel: Callable[..., tuple[Tensor | None, ...]], dropout_of: Callable[..., Dropout | None], rest: int
) -> Callable[..., tuple[Tensor | None, ...]]:
    """The ``backward`` of an op with the inputs ids (three), tables (three), weight, bias and ``rest`` others.

    Args:
        kernel: called with ctx, the saved tensors and the gradient of the result; returns the gradients of the tables,
            the weight and the bias.
        dropout_of: called with ctx and the saved tensors; returns the op's dropout.

    ``ctx`` has eps, table_rows, table_dtype and padding_idx; saved are the ids, the sum, the weight and others.
    """

    def gradients(
        of_result: Callable[..., Any], ctx: Any, saved: Any, dout: Tensor | None, dtotal: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        found = (None,) * 5 if dout is None else of_result(ctx, saved, dout)
        if dtotal is not None:
            more = _gradients.embedding_sum(dtotal, saved[:3], ctx.table_rows, ctx.table_dtype, ctx.padding_idx)
            both = zip(found[:3], more, strict=True)
            found = (*(b if a is None else a + b for a, b in both), *found[3:])
        return None, None, None, *found, *(None,) * rest

    def by_reference(ctx: Any, saved: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        dtotal, *others = _gradients.embedding(dout, saved[3], saved[4], ctx.eps, dropout_of(ctx, saved))
        tables = _gradients.embedding_sum(dtotal, saved[:3], ctx.table_rows, ctx.table_dtype, ctx.padding_idx)
        return *tables, *others

    def again(ctx: Any, saved: Any, dout: Tensor | None, dtotal: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        return gradients(by_reference, ctx, saved, dout, dtotal)

    @differentiable(again)
    def backward(ctx: Any, saved: Any, dout: Tensor | None, dtotal: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        return gradients(kernel, ctx, saved, dout, dtotal)

    return backward
