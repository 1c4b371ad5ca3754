"""The whole encoder on the CPU: one call of csrc/encoder.cpp, no Python between the layers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from .. import _native
from ..errors import InputError
from . import _cpu, _cpu_encoder_gradient, _cpu_linear, _define, _dispatch
from ._cpu_attention import bias_rows, native_bias, why_not_head_dim
from ._cpu_int8 import int8_attention_dtype
from ._int8_weights import readable
from ._product_dtypes import product_dtype
from ._weight_cache import WeightCache
from .attention import check_bias
from .encoder import (
    LayerParameters,
    PackedEncoder,
    check_heads,
    check_int8,
    check_shapes,
    chosen_rows,
    each_once,
    is_int8,
    is_recorded,
    layers_of,
)

# C functions, since they are called on some two hundred tensors in every call.
_DTYPE, _IS_CPU, _VERSION = attrgetter("dtype"), attrgetter("is_cpu"), attrgetter("_version")
# Read once at import: torch.compile cannot trace the call.
_LEVEL = _native.isa() or ""

# Dtypes of states and weights that are computed in float32: no kernel of ours multiplies them, and torch's products of
# them take several times as long as float32's.
_WIDENED = (torch.float16,)

_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A thread that holds the lock during a fork does not exist in the child, which would wait for it for ever.
    os.register_at_fork(after_in_child=_renew_lock)


def _accepts(
    x, layers, cu_seqlens, max_seqlen, *, nheads, packed=None, dropouts=None, causal=False, bias=None, rows=None, **_
) -> str | None:
    if dropouts is not None or causal:
        return "the whole-encoder kernel has no dropout and no causal attention"
    if reason := why_not_head_dim(x.shape[-1] // nheads) or _cpu.why_not_device(cu_seqlens, rows):
        return reason
    tensors, int8 = (packed or PackedEncoder()).tensors(layers), is_int8(layers)
    if is_recorded(x, tensors, bias):
        reason = "int8 weights have no gradient" if int8 else _cpu_encoder_gradient.why_not(product_dtype(x))
        if reason:
            return reason
    level = _LEVEL if torch.compiler.is_compiling() else _native.isa()
    if not level.startswith(("avx", "amx")) and _dispatch.current_backend() == "auto" and not int8:
        # Layer by layer, torch computes the products, by kernels for this processor; ours take five times as long.
        return "without AVX2 torch's own dense products are quicker"
    return _why_not_tensors(x, tensors, bias)


def _why_not_tensors(x: Tensor, tensors: list[Tensor], bias: Tensor | None) -> str | None:
    # Checking two hundred tensors one by one takes a noticeable time for a short sentence.
    one_by_one = torch.compiler.is_compiling() or not all(map(_IS_CPU, tensors))  # torch.compile cannot trace this map
    if not one_by_one and set(map(_DTYPE, tensors)) <= {torch.uint8, x.dtype}:
        tensors = []
    floating = [t for t in tensors if t.dtype != torch.uint8]
    return _cpu.why_not(x, parameters=(bias, *floating), widened=_WIDENED)


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in _WIDENED else x


def _versions(tensors: list[Tensor]) -> list[int]:
    """The tensors' version counters, 0 for tensors made in inference mode, which have none."""
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:
        return [0 if t.is_inference() else t._version for t in tensors]


class _Packed:
    """The native encoder of one stack of layers, and a record of the weights that it was packed from."""

    def __init__(self) -> None:
        self._key, self._sizes, self._fingerprint, self._native = None, None, None, None

    def native(
        self, x: Tensor, tensors: list[Tensor], nheads: int, eps: float, approximate: str, form: int, in_graph: bool
    ):  # fmt: skip
        """The native encoder and the copies that it reads, packed again if a parameter was replaced or changed.

        A write through ``.data`` or a raw pointer does not change the version, so a fingerprint of the numbers is
        compared too, of all numbers of a vector and of some of a matrix: a write to a tenth of a matrix is detected,
        one to a few of its rows may not be.
        """
        addresses = list(map(Tensor.data_ptr, tensors))
        # A view, as pruning by a slice makes it, may have the address and the version of what it was made from.
        layouts = list(map(Tensor.size, tensors)), list(map(Tensor.stride, tensors))
        key = (_native.isa(), x.dtype, form, nheads, eps, approximate, addresses, _versions(tensors), layouts)
        known = key == self._key
        sizes = self._sizes if known else list(map(_cpu.span, tensors))
        fingerprint = _native.extension().fingerprints(addresses, sizes)
        if not known or fingerprint != self._fingerprint:
            layers = layers_of(tensors)
            check_shapes(x, layers, autocast=in_graph)  # a known tensor's data may have been replaced
            self._native = _pack(_widened(x), layers, nheads, eps, approximate, form)
            self._key, self._sizes, self._fingerprint = key, sizes, fingerprint
        return self._native


def _pack(x: Tensor, layers: Sequence[LayerParameters], nheads: int, eps: float, approximate: str, form: int):
    """A native encoder and the copies that it reads; layers that share their parameters are packed once."""
    int8, wide = is_int8(layers), layers[0].intermediate_bias.shape[0]
    if int8:
        check_int8(layers)
    attention = _cpu.code_of(int8_attention_dtype(x) if int8 else x.dtype)
    first, order = each_once(tuple(map(id, p)) for p in layers)
    native = _native.extension().Encoder(
        _cpu.code(x), attention, approximate == "tanh", eps, order, x.shape[1], wide, nheads, int8, form
    )
    copies = []
    for number, p in enumerate(layers[place] for place in first):
        weights = _int8_weights(p, copies) if int8 else _weights(p, x.dtype)
        vectors = (
            _in_a_row((p.query_bias, p.key_bias, p.value_bias), torch.float32),
            *(t.detach() for t in (p.attention_out_bias, p.intermediate_bias, p.out_bias)),
            *(t.detach() for t in (p.attention_norm_weight, p.attention_norm_bias, p.norm_weight, p.norm_bias)),
        )
        # These lists keep the converted tensors alive until set_parameters has copied them.
        vectors = [v.to(torch.float32).contiguous() for v in vectors]
        addresses = [0 if t is None else t.data_ptr() for t in weights]
        native.set_parameters(number, addresses, [t.data_ptr() for t in vectors])
    return native, copies


def _in_a_row(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """The tensors converted and concatenated, in this order: under an autocast to bfloat16, torch cannot concatenate
    float16 tensors."""
    return torch.cat([t.detach().to(dtype) for t in tensors])


def _weights(p: LayerParameters, dtype: torch.dtype) -> list[Tensor | None]:
    """The weights in the order of csrc/include/encoder.h, with query, key and value as one matrix."""
    qkv = _in_a_row((p.query_weight, p.key_weight, p.value_weight), dtype)
    others = (p.attention_out_weight.detach(), p.intermediate_weight.detach(), p.out_weight.detach())
    return [*(w.to(dtype).contiguous() for w in (qkv, *others)), None, None]


def _int8_weights(p: LayerParameters, copies: list[Tensor]) -> list[Tensor]:
    """The weights in that order. The kernels read them in place, and the caller's layers keep them alive; those that
    must be copied for it are added to ``copies``."""
    given = (p.query_weight, p.attention_out_weight, p.intermediate_weight, p.out_weight, p.key_weight, p.value_weight)
    weights = [readable(weight) for weight in given]
    copies += [made for made, weight in zip(weights, given, strict=True) if made is not weight]
    return weights


# The `PackedEncoder.held` of each stack, found by its last matrix, since an op in a compiler's graph only gets tensors.
_held = WeightCache()
_LAST_MATRIX = LayerParameters._fields.index("out_weight") - len(LayerParameters._fields)


def _run(
    x: Tensor, tensors: list[Tensor], cu_seqlens: Tensor, nheads: int, eps: float, approximate: str,
    states: Sequence[Tensor], bias: Tensor | None, held: dict[str, object] | None, chosen: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """Computes the layers.

    Args:
        tensors: those of all layers, one after the other.
        states: written to, contiguous (T, H) in the dtype of `_widened` x: those after every layer, or the last alone.
        held: that of the `PackedEncoder`; None in a compiler's graph, where it is found by the last matrix.
        chosen: (R,) int64, the tokens whose last state is returned; None for all of them.

    Returns:
        the last states (R, H) of the chosen tokens; None without them.
    """
    given, cu_seqlens = x.detach(), cu_seqlens.to(torch.int32).contiguous()
    x = _widened(given).contiguous()
    int8, tokens = tensors[0].dtype == torch.uint8, x.shape[0]
    form = _cpu.code(x) if int8 else _cpu_linear.packed_form(x.dtype, tokens)
    parts = not int8 and _cpu_linear.two_parts(x.dtype, tokens)
    in_graph = held is None
    with _lock:
        if in_graph:
            held = _held.of(tensors[_LAST_MATRIX])
        # Short and long batches may need different forms of the weights; each is packed when it is first needed.
        packed = held.setdefault("cpu, two parts" if parts else "cpu", _Packed())
        native, _copies = packed.native(given, tensors, nheads, eps, approximate, form, in_graph)
    layers, sequences, of_bias = _num_layers(tensors), cu_seqlens.numel() - 1, bias_rows(bias, cu_seqlens)
    addresses = list(map(Tensor.data_ptr, states)) * (layers if len(states) == 1 else 1)
    batch = (x.data_ptr(), addresses, tokens, cu_seqlens.data_ptr(), sequences, native_bias(of_bias))
    out = None
    if chosen is not None:
        chosen, out = chosen.contiguous(), x.new_empty(len(chosen), x.shape[1])
        batch = (*batch, chosen.data_ptr(), len(chosen), out.data_ptr())
    if not native.run(*batch):
        if chosen is not None and not bool(((chosen >= 0) & (chosen < tokens)).all()):
            raise InputError(f"rows must be among the {tokens} tokens of x, got {chosen.tolist()}")
        raise InputError(f"cu_seqlens must ascend from 0 to the {tokens} tokens of x, got {cu_seqlens.tolist()}")
    return out


def _num_layers(tensors: Sequence[Tensor]) -> int:
    return len(tensors) // len(LayerParameters._fields)


def _forward(
    x: Tensor, tensors: list[Tensor], cu_seqlens: Tensor, nheads: int, eps: float, approximate: str, keep_states: bool,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """The states (L, T, H) after every layer, or (1, T, H) after the last, for a compiler's graph."""
    states = _forward_fake(_widened(x), tensors, cu_seqlens, nheads, eps, approximate, keep_states, bias)
    _run(x, tensors, cu_seqlens, nheads, eps, approximate, states.unbind(), bias, None)
    return states.to(x.dtype)


def _forward_fake(x, tensors, cu_seqlens, nheads, eps, approximate, keep_states, bias) -> Tensor:
    return x.new_empty(_num_layers(tensors) if keep_states else 1, *x.shape)


def _check_of_op(
    x: Tensor, tensors: list[Tensor], _cu_seqlens, nheads: int, _eps, approximate: str, _states, bias: Tensor | None
) -> None:
    if not tensors or len(tensors) % len(LayerParameters._fields):
        raise InputError(f"encoder: expected {len(LayerParameters._fields)} tensors a layer, got {len(tensors)}")
    check_heads(nheads, x.shape[1])
    if reason := why_not_head_dim(x.shape[1] // nheads):
        raise InputError(f"encoder: {reason}")
    if approximate not in ("none", "tanh"):
        raise InputError(f'encoder: expected approximate "none" or "tanh", got {approximate!r}')
    check_bias(bias, nheads, 0)  # `bias_rows` compares it with the longest sequence
    # The layers are compared with each other when they are packed, not in every call.
    hidden = layers_of(tensors[: len(LayerParameters._fields)])[0].query_bias
    if hidden.shape != x.shape[1:]:
        raise InputError(f"encoder: expected x (T, H) of layers for H = {tuple(hidden.shape)}, got {tuple(x.shape)}")


_op = _define.define(
    "encoder(Tensor x, Tensor[] tensors, Tensor cu_seqlens, int nheads, float eps, str approximate, bool keep_states, "
    "Tensor? bias) -> Tensor",
    _forward,
    _forward_fake,
    tensors="x: state (T, C); cu_seqlens: index (B); bias: state (N, W)",
    rest=_check_of_op,
)


@_dispatch.register("encoder", "cpu", available=_native.why_missing, accepts=_accepts)
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
    dropouts: None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    between: Callable[[Tensor], Tensor] | None = None,
    rows: Tensor | None = None,
) -> list[Tensor]:
    x, tensors = x.to(product_dtype(x)), (packed or PackedEncoder()).tensors(layers)
    options = (tensors, cu_seqlens, nheads, eps, approximate)
    if torch.compiler.is_compiling():
        return chosen_rows(list(_op(x, *options, keep_states, bias).unbind()), rows)
    held = {} if packed is None else packed.held
    if packed is not None and not held:  # so that the same model, when it is compiled, finds these packed weights
        _held.keep(tensors[_LAST_MATRIX], held)
    # Each has memory of its own: a state that a caller keeps, or saves, must not keep those of all layers.
    recorded, dtype = is_recorded(x, tensors, bias), torch.float32 if x.dtype in _WIDENED else x.dtype
    states = [x.new_empty(x.shape, dtype=dtype) for _ in range(_num_layers(tensors) if keep_states else 1)]
    chosen = _run(x, *options, states, bias, held, None if recorded else rows)
    states = [state.to(x.dtype) for state in states]
    if recorded:
        kept = packed or PackedEncoder()
        call = _cpu_encoder_gradient.Call(max_seqlen, nheads, eps, approximate, kept, bias is not None)
        states = _cpu_encoder_gradient.deferred(states, x, tensors, cu_seqlens, bias, call, between)
        return chosen_rows(states, rows)
    return states if chosen is None else [chosen.to(x.dtype)]
