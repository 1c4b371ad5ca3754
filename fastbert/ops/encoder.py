"""The stack of encoder layers in one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from ..wording import dtype_name
from . import _dispatch
from ._int8_weights import packed_shape, unpack_int8
from ._product_dtypes import check_dtypes
from .attention import check_bias


class LayerParameters(NamedTuple):
    """One layer's parameters, for H hidden and F inner units.

    Weights are (out, in) as in `nn.Linear`, in the dtype of the hidden states unless autocast is on: query, key, value
    and attention_out (H, H), intermediate (F, H), out (H, F). Or all six are as `pack_int8` made them, uint8. Biases
    and the LayerNorms' weights are floating (H,), except intermediate_bias, (F,).
    """

    query_weight: Tensor
    key_weight: Tensor
    value_weight: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    attention_out_weight: Tensor
    attention_out_bias: Tensor
    attention_norm_weight: Tensor
    attention_norm_bias: Tensor
    intermediate_weight: Tensor
    intermediate_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor


def layers_of(tensors: Sequence[Tensor]) -> tuple[LayerParameters, ...]:
    """The layers whose tensors follow one another in a list."""
    each = len(LayerParameters._fields)
    return tuple(LayerParameters(*tensors[i : i + each]) for i in range(0, len(tensors), each))


def each_once(keys: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Groups equal keys, such as those of layers that share parameters.

    Returns:
        the index of the first occurrence of each distinct key, and for every key the number of its distinct key.
    """
    numbers: dict[Hashable, int] = {}
    first, order = [], []
    for place, key in enumerate(keys):
        if key not in numbers:
            numbers[key] = len(first)
            first.append(place)
        order.append(numbers[key])
    return first, order


# The dropouts of a layer: on the attention probabilities, on the attention branch, on the feed-forward branch.
LayerDropouts: TypeAlias = tuple[Dropout | None, Dropout | None, Dropout | None]


class PackedEncoder:
    """Packed weights that a backend keeps for one encoder between calls; pass the same object to every call.

    It is updated automatically when a parameter changes. It is not part of a model's state: copies and pickles of it
    are empty.
    """

    def __init__(self) -> None:
        self.held: dict[str, object] = {}
        # Whether a backward pass has come through a call that had saved nothing for it.
        self.is_differentiated = False
        # A tuple of layers, their tensors, and the shape and dtype for which they were checked; one attribute, so that
        # threads can share it.
        self._known: tuple[Sequence[LayerParameters] | None, list[Tensor], tuple] = (None, [], ())

    def __reduce__(self):
        return PackedEncoder, ()

    def tensors(self, layers: Sequence[LayerParameters]) -> list[Tensor]:
        """The tensors of all layers, one after the other."""
        if torch.compiler.is_compiling():  # runs once; and torch 2.6 traces ``is`` between tuples as a comparison
            return list(chain.from_iterable(layers))
        known, tensors, _ = self._known
        if layers is not known:
            tensors = list(chain.from_iterable(layers))
            if type(layers) is tuple:  # a list could be changed
                self._known = layers, tensors, ()
        return tensors

    def check(self, x: Tensor, layers: Sequence[LayerParameters]) -> None:
        """`check_shapes`, unless the last call checked the same tuple: to check two hundred tensors takes as long as to
        embed a short sentence."""
        if torch.compiler.is_compiling():
            return check_shapes(x, layers)
        known, tensors, checked = self._known
        about = (x.shape[1], x.dtype, torch.is_autocast_enabled(x.device.type))
        if layers is not known or about != checked:
            check_shapes(x, layers)
            if layers is known:
                self._known = known, tensors, about


def is_int8(layers: Sequence[LayerParameters]) -> bool:
    """Whether the weights are packed as int8."""
    return layers[0].query_weight.dtype == torch.uint8


def _shapes(hidden: int, wide: int) -> LayerParameters:
    vector, square = (hidden,), (hidden, hidden)
    return LayerParameters(
        *(square,) * 3,
        *(vector,) * 3,
        *(square, vector, vector, vector),
        *((wide, hidden), (wide,), (hidden, wide), vector, vector, vector),
    )


def check_int8(layers: Sequence[LayerParameters]) -> None:
    """Raises InputError if packed weights have other sizes. Only for calls that read their headers anyway."""
    expected = _shapes(layers[0].query_bias.shape[0], layers[0].intermediate_bias.shape[0])
    for number, layer in enumerate(layers):
        for name, tensor, shape in zip(LayerParameters._fields, layer, expected, strict=True):
            if tensor.dtype == torch.uint8 and (got := packed_shape(tensor)) != shape:
                raise InputError(f"encoder: expected {name} of layer {number} packed from {shape}, got {got}")


def _unpacked(layers: Sequence[LayerParameters]) -> list[LayerParameters]:
    check_int8(layers)
    return [LayerParameters(*(unpack_int8(t) if t.dtype == torch.uint8 else t for t in layer)) for layer in layers]


@_dispatch.register("encoder", "reference")
def _reference(
    x, layers, cu_seqlens, max_seqlen, *, packed=None, keep_states=True, rows=None, **options
) -> list[Tensor]:
    layers = _unpacked(layers) if is_int8(layers) else layers
    states = reference.encoder(x, layers, cu_seqlens, max_seqlen, **options)
    return chosen_rows(states if keep_states else states[-1:], rows)


def chosen_rows(states: list[Tensor], rows: Tensor | None) -> list[Tensor]:
    """The states; with ``rows`` there is only the last one, of which these rows are taken."""
    return states if rows is None else [states[0].index_select(0, rows)]


def encoder(
    x: Tensor,
    layers: Sequence[LayerParameters],
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    nheads: int,
    eps: float,
    approximate: str = "none",
    keep_states: bool = False,
    packed: PackedEncoder | None = None,
    dropouts: Sequence[LayerDropouts] | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    rows: Tensor | None = None,
) -> list[Tensor]:
    """Applies layers LN(a + dropout(W_2 gelu(W_1 a))) with a = LN(x + dropout(W_o attention(x))), one after the other.

    Args:
        x: (T, H) hidden states of sequences laid end to end.
        layers: one or more of the same size, with int8 weights in all of them or in none.
        cu_seqlens: (B+1,) int32, the sequences' bounds.
        max_seqlen: the length of the longest sequence.
        nheads: the number of attention heads.
        eps: added to the variance in the LayerNorms.
        approximate: the form of GELU, "none" or "tanh".
        keep_states: True returns the states after every layer, False only those after the last.
        packed: keeps a backend's copy of the weights between calls; None packs them in every call.
        dropouts: rate and place in the random stream of each layer's three dropouts; None for no dropout.
        causal: whether a token attends only to itself and to earlier tokens.
        bias: added to the scores in every layer, as in `attention`; or None.
        rows: (R,) int64, only without ``keep_states``: the tokens whose states (R, H) are returned, in any order. After
            its attention, the CPU kernels compute the last layer only for these.

    Returns:
        a list of (T, H) tensors, dtype of the products. The CPU kernels have no dropout and no causal attention, and
        for a gradient they compute everything again, op by op.

    Raises:
        InputError: shapes do not fit, or x and weights have two dtypes without autocast.

    Ref:
        Vaswani et al. 2017, section 3; Devlin et al. 2019, section 3.
    """
    _check(x, layers, nheads, packed, bias, max_seqlen, keep_states, rows)
    options = {"nheads": nheads, "eps": eps, "approximate": approximate, "keep_states": keep_states, "packed": packed}
    options |= {"dropouts": dropouts, "causal": causal, "bias": bias, "rows": rows}
    return _dispatch.call("encoder", x, layers, cu_seqlens, max_seqlen, **options)


def is_recorded(x: Tensor, tensors: Sequence[Tensor], bias: Tensor | None = None) -> bool:
    """Whether autograd records a pass of x through layers with these tensors and this attention bias."""
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(t.requires_grad for t in tensors) or (bias is not None and bias.requires_grad)


def fused_encoder(
    x: Tensor,
    layers: Sequence[LayerParameters],
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    between: Callable[[Tensor], Tensor] | None = None,
    **options: Any,
) -> list[Tensor] | None:
    """`encoder` if one kernel serves the whole stack, else None. Takes the arguments of `encoder`.

    Pass the layers as the same tuple in every call: they are then checked only once.

    Args:
        between: with ``keep_states``, called with the state (T, H) after each layer. It returns a tensor of the same
            values, which the next layer reads and the result contains, so that gradients with respect to a tensor that
            the caller was given reach the state.
    """
    if between is not None:
        options["between"] = between
    packed, bias = options.get("packed"), options.get("bias")
    if packed is not None and packed.is_differentiated and is_recorded(x, packed.tensors(layers), bias):
        return None  # a training step would compute everything twice
    kernel = _dispatch.fused("encoder", x, layers, cu_seqlens, max_seqlen, **options)
    if kernel is None:
        return None
    rows = options.get("rows")
    _check(x, layers, options["nheads"], packed, bias, max_seqlen, options.get("keep_states", False), rows)
    return kernel(x, layers, cu_seqlens, max_seqlen, **options)


def _check(
    x: Tensor,
    layers: Sequence[LayerParameters],
    nheads: int,
    packed: PackedEncoder | None,
    bias: Tensor | None,
    max_seqlen: int,
    keep_states: bool,
    rows: Tensor | None,
) -> None:
    """Raises InputError for arguments that `encoder` cannot take."""
    if rows is not None and (keep_states or rows.dim() != 1 or rows.dtype != torch.int64):
        raise InputError(
            f"encoder: expected rows (R,) int64 without keep_states, got {tuple(rows.shape)} {dtype_name(rows.dtype)}"
            f"{' with it' if keep_states else ''}"
        )
    if x.dim() != 2 or not layers:
        raise InputError(
            f"encoder: expected x (T, H) and at least one layer, got {tuple(x.shape)}, {len(layers)} layers"
        )
    (packed or PackedEncoder()).check(x, layers)
    check_heads(nheads, x.shape[1])
    check_bias(bias, nheads, max_seqlen)


def check_heads(nheads: int, hidden: int) -> None:
    """Raises InputError for a number of heads that does not divide the hidden units."""
    if nheads < 1 or hidden % nheads:
        raise InputError(f"encoder: expected heads that divide {hidden} hidden units, got {nheads}")


def check_shapes(x: Tensor, layers: Sequence[LayerParameters], autocast: bool = False) -> None:
    """Raises InputError for a parameter whose shape or dtype does not fit x (T, H) and the first layer.

    Args:
        autocast: skips the dtypes: a compiled graph may have been traced under an autocast that is over by now.
    """
    hidden, int8 = x.shape[1], is_int8(layers)
    expected = _shapes(hidden, layers[0].intermediate_bias.shape[0])
    for number, layer in enumerate(layers):
        for name, tensor, shape in zip(LayerParameters._fields, layer, expected, strict=True):
            packed_weight = len(shape) == 2 and int8
            if (tensor.dtype == torch.uint8) != packed_weight:
                kind = "packed int8, as those before it" if packed_weight else "floating"
                raise InputError(f"encoder: expected {name} of layer {number} {kind}, got {tensor.dtype}")
            if not packed_weight and tensor.shape != shape:
                raise InputError(f"encoder: expected {name} of layer {number} {shape}, got {tuple(tensor.shape)}")
            if not (packed_weight or autocast) and len(shape) == 2:
                check_dtypes(x, tensor)
