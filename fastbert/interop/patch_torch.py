"""`torch.nn.TransformerEncoder` computed by fastbert: what `patch` puts in place of its ``forward``.

    post-norm  a = LN1(x + attend(x));        y = LN2(a + W_2 act(W_1 a))          (Vaswani et al. 2017, section 3)
    pre-norm   a = x + attend(LN1(x));        y = a + W_2 act(W_1 LN2(a))          (Xiong et al. 2020, figure 1)

and the stack's own norm last. Tokens that ``src_key_padding_mask`` ignores are not computed, and their outputs are
zeros. The output has the shape of the input, in training and in evaluation (where torch cuts off columns that only have
pads). With a mask of queries and keys other than the causal one, the padded path is used, which also computes pads.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .. import ops, rng
from ..errors import InputError
from ..modules import hooks
from ..modules.layout import Layout, PackedLayout, PaddedLayout, wants_gradient
from ..modules.linear import is_plain_tensor
from ..packing import Packing
from ..rng import FIRST_LAYER_SITE, LAYER_SITES, DropoutKey

_BLOCKS = ("forward", "_sa_block", "_ff_block")
_packed: WeakKeyDictionary[nn.Module, ops.PackedEncoder] = WeakKeyDictionary()


def is_encoder(module: nn.Module) -> bool:
    """Whether a module is an encoder of torch."""
    return isinstance(module, nn.TransformerEncoder)


def parts_of(encoder: nn.TransformerEncoder) -> list[nn.Module]:
    """All modules that our code replaces, without those that are None."""
    return [m for m in (*encoder.layers.modules(), encoder.norm) if m is not None]


def check(encoder: nn.TransformerEncoder, forward) -> None:
    """Raises InputError for an encoder that computes something else than this module's equations.

    Args:
        encoder: the encoder.
        forward: the forward of its class before it was patched.
    """
    if forward is not nn.TransformerEncoder.forward or hooks.is_class_forward_replaced(nn.TransformerEncoder):
        raise InputError("expected the forward of torch's TransformerEncoder, got one of its own")
    check_parts(encoder)


def check_parts(encoder: nn.TransformerEncoder) -> None:
    """Raises InputError for parts that compute something else, such as an adapter that was added after the patch."""
    if not len(encoder.layers):
        raise InputError("expected at least one layer, got none")
    for weight in encoder.parameters():
        if not is_plain_tensor(weight):
            kind = f"{type(weight).__name__} ({weight.layout})"
            raise InputError(f"expected dense weights of torch's own class, got {kind}")
    if encoder.norm is not None and not _is_norm(encoder.norm):
        raise InputError(f"expected a LayerNorm or None as norm, got {type(encoder.norm).__name__}")
    for layer in encoder.layers:
        _check_layer(layer)
    if len({layer.self_attn.batch_first for layer in encoder.layers}) > 1:
        raise InputError("expected layers of one batch_first, got some that are and some that are not")


def _check_layer(layer: nn.Module) -> None:
    """`check_parts` for one layer."""
    wanted = nn.TransformerEncoderLayer
    if not isinstance(layer, wanted) or any(getattr(type(layer), n) is not getattr(wanted, n) for n in _BLOCKS):
        raise InputError(f"expected layers of torch's TransformerEncoderLayer, got {type(layer).__name__}")
    attention = layer.self_attn
    if type(attention) is not nn.MultiheadAttention:
        raise InputError(f"expected attention by torch's MultiheadAttention, got {type(attention).__name__}")
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise InputError("expected attention with one in_proj_weight, no bias_k and no add_zero_attn")
    if type(attention.out_proj) not in (NonDynamicallyQuantizableLinear, nn.Linear):
        raise InputError(f"expected a plain out_proj, got {type(attention.out_proj).__name__}")
    for dense in (layer.linear1, layer.linear2):
        # A parametrised layer has another class with the same forward.
        if not isinstance(dense, nn.Linear) or type(dense).forward is not nn.Linear.forward:
            raise InputError(f"expected plain dense layers, got {type(dense).__name__}")
    for norm in (layer.norm1, layer.norm2):
        if not _is_norm(norm):
            raise InputError(f"expected LayerNorms with weights, got {norm}")
    for name in ("dropout", "dropout1", "dropout2"):  # where stochastic depth and adapters are put
        module = getattr(layer, name)
        if type(module).forward not in (nn.Dropout.forward, nn.Identity.forward):
            raise InputError(f"expected torch's Dropout or Identity as {name}, got {type(module).__name__}")
    if _activation(layer.activation) is None:
        name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
        raise InputError(f"expected relu or gelu as activation, got {name}")


def _is_norm(module: nn.Module) -> bool:
    return type(module) is nn.LayerNorm and module.weight is not None and len(module.normalized_shape) == 1


def _activation(function) -> str | None:
    """The activation: "relu", "none" or "tanh" (the two forms of GELU), or None for any other function."""
    if isinstance(function, nn.Module):  # a subclass may compute something else
        own = type(function).forward
        return function.approximate if own is nn.GELU.forward else "relu" if own is nn.ReLU.forward else None
    if function is F.gelu:
        return "none"
    return "relu" if function in (F.relu, torch.relu) else None


def encode(
    encoder: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """Computes `torch.nn.TransformerEncoder.forward`.

    Args:
        encoder: the encoder, which has passed `check_parts`.
        src: floating, (B, S, E), (S, B, E) if the layers are not ``batch_first``, or (S, E).
        mask: None; (S, S) or (B * nheads, S, S), bool (True = ignore) or additive.
        src_key_padding_mask: None; (B, S), or (S,) for (S, E), bool (True = ignore) or additive.
        is_causal: a hint that is not used, since a causal mask is recognised.

    Returns:
        shape and dtype of src; zeros for tokens that ``src_key_padding_mask`` ignores.

    Raises:
        InputError: shapes do not fit, or ``is_causal`` without a mask.
    """
    batch_first, alone = encoder.layers[0].self_attn.batch_first, src.dim() == 2
    width = encoder.layers[0].self_attn.embed_dim
    if src.dim() not in (2, 3) or src.shape[-1] != width:
        raise InputError(f"src must be (B, S, {width}), (S, B, {width}) or (S, {width}), got {tuple(src.shape)}")
    x = src[None] if alone else src if batch_first else src.transpose(0, 1)
    batch_size, seqlen = x.shape[:2]
    if is_causal and mask is None:
        raise InputError("is_causal is a hint about mask: expected the causal mask beside it, got None")
    keep, bias = _key_mask(src_key_padding_mask, batch_size, seqlen, alone)
    causal, scores = _query_mask(mask, batch_size, seqlen, encoder.layers[0].self_attn.num_heads, x)
    if scores is None and bias is None:
        packing = Packing.full(batch_size, seqlen, x.device) if keep is None else Packing.from_mask(keep)
        layout: Layout = PackedLayout(packing.cu_seqlens, packing.max_seqlen, causal)
    else:
        packing = Packing.full(batch_size, seqlen, x.device)
        layout = PaddedLayout(_added(scores, bias, causal, keep, x), batch_size, seqlen, probabilities=False)
    # Under autocast our layers return its dtype; torch's keep that of src, by their residuals.
    out = packing.unpack(_run(encoder, packing.pack(x), layout).to(x.dtype))
    if keep is not None and type(layout) is PaddedLayout:
        out = out.masked_fill(~keep[..., None], 0.0)
    return out[0] if alone else out if batch_first else out.transpose(0, 1).contiguous()


def _key_mask(mask: Tensor | None, batch_size: int, seqlen: int, alone: bool) -> tuple[Tensor | None, Tensor | None]:
    """(B, S) bool, the keys to keep, or None; and the mask to be added to scores, or None if it only masks keys."""
    if mask is None:
        return None, None
    shape = (seqlen,) if alone else (batch_size, seqlen)
    if mask.shape != shape or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InputError(
            f"src_key_padding_mask must be {shape}, bool or floating, got {mask.dtype} {tuple(mask.shape)}"
        )
    mask = mask.reshape(batch_size, seqlen)
    if mask.dtype == torch.bool:
        return ~mask, None
    keep = mask != float("-inf")
    learned = wants_gradient(mask)
    return keep, None if not learned and bool((mask[keep] == 0).all()) else mask


def _query_mask(mask: Tensor | None, batch_size: int, seqlen: int, nheads: int, x: Tensor):
    """Whether it is the causal mask; and any other mask as it is added to scores, (B or 1, nheads or 1, S, S)."""
    if mask is None:
        return False, None
    shapes = ((seqlen, seqlen), (batch_size * nheads, seqlen, seqlen))
    if mask.shape not in shapes or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InputError(
            f"mask must be {shapes[0]} or {shapes[1]}, bool or floating, got {mask.dtype} {tuple(mask.shape)}"
        )
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(mask, float("-inf"))
    mask = mask.to(x.dtype)
    learned = wants_gradient(mask)  # a bias that is added to the causal mask may begin with zeros
    if not learned and torch.equal(mask, _causal(seqlen, x).expand(mask.shape)):
        return True, None
    return False, mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (batch_size, nheads))


def _causal(seqlen: int, x: Tensor) -> Tensor:
    return torch.full((seqlen, seqlen), float("-inf"), dtype=x.dtype, device=x.device).triu(1)


def _added(scores: Tensor | None, bias: Tensor | None, causal: bool, keep: Tensor | None, x: Tensor) -> Tensor:
    """All masks combined into one, to be added to scores."""
    total = _causal(x.shape[1], x)[None, None] if causal else x.new_zeros(1, 1, 1, 1)
    total = total if scores is None else total + scores
    if bias is not None:
        return total + bias.to(x.dtype)[:, None, None]
    return total if keep is None else total.masked_fill(~keep[:, None, None], float("-inf"))


def _run(encoder: nn.TransformerEncoder, x: Tensor, layout: Layout) -> Tensor:
    whole = _run_whole(encoder, x, layout)
    if whole is not None:
        x = whole
    else:
        key = rng.current() if _drops(encoder) else None
        for index, layer in enumerate(encoder.layers):
            x = _layer(layer, x, layout, key, FIRST_LAYER_SITE + LAYER_SITES * index)
    return x if encoder.norm is None else _norm(encoder.norm, x)


def _drops(encoder: nn.TransformerEncoder) -> bool:
    return any(
        module.training and _rate(module) > 0
        for layer in encoder.layers
        for module in (layer.self_attn, layer.dropout, layer.dropout1, layer.dropout2)
    )


def _rate(module: nn.Module) -> float:
    """The dropout rate of an attention, of a Dropout, or of an Identity in its place."""
    return module.p if isinstance(module, nn.Dropout) else getattr(module, "dropout", 0.0)


def _norm(norm: nn.LayerNorm, x: Tensor, **more) -> Tensor:
    bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    return ops.layer_norm(x, norm.weight, bias, norm.eps, **more)


def _layer(layer, x: Tensor, layout: Layout, key: DropoutKey | None, site: int) -> Tensor:
    """Computes one layer on tokens (T, E); returns (T, E)."""
    attention = layer.self_attn

    def dropout(place: int, module: nn.Module):
        return key.site(_rate(module), site + place) if key is not None and module.training else None

    def add(branch: Tensor, x: Tensor, norm: nn.LayerNorm, place: int, module: nn.Module) -> Tensor:
        dropped = dropout(place, module)
        if layer.norm_first:  # the residual stream, which is not normalised, keeps its dtype under autocast
            return x + ops.dropout(branch, dropped)
        return _norm(norm, branch, residual=x.to(branch.dtype), dropout=dropped)

    inner = _norm(layer.norm1, x) if layer.norm_first else x
    qkv = ops.linear(inner, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = qkv.unflatten(-1, (3, attention.num_heads, attention.head_dim)).unbind(-3)
    context, _ = layout.attend(q, k, v, dropout(0, attention))
    branch = ops.linear(context.flatten(-2), attention.out_proj.weight, attention.out_proj.bias)
    x = add(branch, x, layer.norm1, 1, layer.dropout1)

    inner = _norm(layer.norm2, x) if layer.norm_first else x
    activation = _activation(layer.activation)
    wide = ops.linear(inner, layer.linear1.weight, layer.linear1.bias)
    wide = torch.relu(wide) if activation == "relu" else ops.gelu(wide, None, activation)
    wide = ops.dropout(wide, dropout(3, layer.dropout))
    branch = ops.linear(wide, layer.linear2.weight, layer.linear2.bias)
    return add(branch, x, layer.norm2, 2, layer.dropout2)


def _run_whole(encoder: nn.TransformerEncoder, x: Tensor, layout: Layout) -> Tensor | None:
    """Computes all layers in one op; None if they must be computed one by one."""
    if type(layout) is not PackedLayout or layout.causal:
        return None
    if torch.is_autocast_enabled(x.device.type) or _drops(encoder):
        return None
    kinds = set(map(_kind, encoder.layers))
    kind = kinds.pop()
    if kind is None or kinds:
        return None
    layers = list(map(_parameters, encoder.layers))
    if x.device.type == "cpu" and encoder.training and ops.is_recorded(x, [t for layer in layers for t in layer]):
        return None  # as for a `BertEncoder` (modules/stack.py)
    arguments = (x, layers, layout.cu_seqlens, layout.max_seqlen)
    options = {"nheads": kind.nheads, "eps": kind.eps, "approximate": kind.approximate}
    states = ops.fused_encoder(*arguments, **options, packed=_packed.setdefault(encoder, ops.PackedEncoder()))
    return None if states is None else states[-1]


class _Kind(NamedTuple):
    """What layers that are computed in one op have in common."""

    nheads: int
    eps: float
    approximate: str
    intermediate: tuple[int, ...]


def _kind(layer: nn.TransformerEncoderLayer) -> _Kind | None:
    """None for a layer that the op does not compute."""
    attention, eps, activation = layer.self_attn, layer.norm1.eps, _activation(layer.activation)
    if layer.norm_first or activation == "relu" or layer.norm2.eps != eps:
        return None
    if attention.in_proj_bias is None or any(part.bias is None for part in _after_heads(layer)):
        return None
    return _Kind(attention.num_heads, eps, activation, layer.linear1.weight.shape)


def _after_heads(layer: nn.TransformerEncoderLayer) -> tuple[nn.Module, ...]:
    """The dense layers and norms besides queries, keys and values, in the order of `ops.LayerParameters`."""
    return layer.self_attn.out_proj, layer.norm1, layer.linear1, layer.linear2, layer.norm2


def _parameters(layer: nn.TransformerEncoderLayer) -> ops.LayerParameters:
    attention = layer.self_attn
    thirds = (*attention.in_proj_weight.chunk(3), *attention.in_proj_bias.chunk(3))
    return ops.LayerParameters(*thirds, *(t for part in _after_heads(layer) for t in (part.weight, part.bias)))
