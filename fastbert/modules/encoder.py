"""The stack of layers, as a module that also fits in the place of transformers' BertEncoder."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .. import rng
from ..config import BertConfig
from ..errors import InputError
from ..outputs import EncoderOutput
from ..packing import Packing
from ..rng import DropoutKey
from .layer import BertLayer
from .layout import Layout, PackedLayout, PaddedLayout, additive_mask, keys_kept

_log = logging.getLogger("fastbert")


@cache
def say_padded(reason: str) -> None:
    """Says once, for each reason, that a batch is computed with its pads."""
    _log.warning("this batch takes the padded reference path, which computes pads too: %s", reason)


def lay_out(
    attention_mask: Tensor | None, batch_size: int, seqlen: int, device
) -> tuple[Packing, Layout, Tensor | None]:
    """Decides how a (B, S) batch is computed.

    Args:
        attention_mask: None; (B, S) non-zero = keep; or 4-D, bool (True = keep) or additive.

    Returns:
        the packing of its tokens; their layout; and, on the padded path, None or the (B, S) bool tokens to keep.

    Raises:
        InputError: a mask of another shape.
    """
    if attention_mask is None:
        packing = Packing.full(batch_size, seqlen, device)
        return packing, PackedLayout(packing.cu_seqlens, packing.max_seqlen), None
    if attention_mask.dim() == 4 and attention_mask.shape[-1] == seqlen:
        keep = keys_kept(attention_mask)
        if keep is None:
            say_padded("the 4-D attention mask differs between queries or heads, so tokens cannot be packed")
            mask = attention_mask
            if mask.dtype == torch.bool:
                mask = torch.zeros(mask.shape, device=device).masked_fill(~mask, float("-inf"))
            return Packing.full(batch_size, seqlen, device), PaddedLayout(mask, batch_size, seqlen), None
        attention_mask = keep.expand(batch_size, seqlen)
    if attention_mask.shape != (batch_size, seqlen):
        raise InputError(
            f"attention_mask must be {(batch_size, seqlen)} or 4-D with {seqlen} keys, "
            f"got {tuple(attention_mask.shape)}"
        )
    packing = Packing.from_mask(attention_mask)
    return packing, PackedLayout(packing.cu_seqlens, packing.max_seqlen), None


def lay_out_padded(attention_mask: Tensor | None, batch_size: int, seqlen: int, device):
    """As `lay_out`, but computes every token of the rectangle; for what needs columns or probabilities."""
    packing = Packing.full(batch_size, seqlen, device)
    mask, keep = attention_mask, None
    if attention_mask is not None and attention_mask.dim() == 2:
        keep = attention_mask != 0
        mask = additive_mask(keep)
    elif attention_mask is not None and attention_mask.dtype == torch.bool:
        mask = torch.zeros(attention_mask.shape, device=device).masked_fill(~attention_mask, float("-inf"))
    return packing, PaddedLayout(mask, batch_size, seqlen), keep


def refuse(**arguments) -> None:
    """Raises InputError for arguments of a decoder, or a head mask that masks something."""
    for name, value in arguments.items():
        if value is None or value is False or (isinstance(value, (list, tuple)) and all(v is None for v in value)):
            continue
        raise InputError(f"{name} is not supported by an encoder: expected None, got {type(value).__name__}")


class BertEncoder(nn.Module):
    """``num_hidden_layers`` layers; parameters are named ``layer.N....`` as in transformers.

    Args:
        config: a `BertConfig`, or any object with the fields of transformers' BertConfig.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config = BertConfig.from_hf(config)
        self.layer = nn.ModuleList(BertLayer(config, index) for index in range(config.num_hidden_layers))
        self.gradient_checkpointing = False

    def run(self, x: Tensor, layout: Layout, key: DropoutKey | None, keep_states: bool = False):
        """The layers on tokens in any layout.

        Returns:
            the last hidden state (T, H); all L+1 hidden states, the input first, or None; and the list of attention
            probabilities, whose entries are None where the layout keeps none.
        """
        states, attentions = [x], []
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for layer in self.layer:
            if recompute:
                # The dropout key is an argument, so there is no generator state to save and restore.
                x, probs = checkpoint(layer, x, layout, key, use_reentrant=False, preserve_rng_state=False)
            else:
                x, probs = layer(x, layout, key)
            attentions.append(probs)
            if keep_states:
                states.append(x)
        return x, states if keep_states else None, attentions

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        return_dict: bool = True,
        dropout_key: DropoutKey | None = None,
        head_mask=None,
        encoder_hidden_states=None,
        past_key_values=None,
        **ignored,
    ) -> EncoderOutput | tuple:
        """Encodes a padded or a packed batch.

        Args:
            hidden_states: (B, S, H), or (T, H) with ``cu_seqlens``.
            attention_mask: for (B, S, H): None, (B, S) non-zero = keep, or 4-D bool (True = keep) or additive.
            cu_seqlens: (B+1,) int32, the bounds of packed sequences; max_seqlen is computed where it is not given.
            dropout_key: names the random numbers of this pass; drawn where it is not given.
            ignored: what transformers' model passes on and an encoder has no use for.

        Returns:
            ``last_hidden_state`` in the shape of the input, zeros where a token is masked; ``hidden_states`` and
            ``attentions`` where asked for.

        Raises:
            InputError: shapes that do not fit, or an argument of a decoder.
        """
        refuse(head_mask=head_mask, encoder_hidden_states=encoder_hidden_states, past_key_values=past_key_values)
        key = (dropout_key or rng.current()) if self.training else None
        if hidden_states.dim() == 2:
            if cu_seqlens is None:
                raise InputError("packed hidden_states (T, H) need cu_seqlens, got none")
            if max_seqlen is None:
                max_seqlen = int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else 0
            x, states, _ = self.run(
                hidden_states, PackedLayout(cu_seqlens, int(max_seqlen)), key, bool(output_hidden_states)
            )
            output = EncoderOutput(x, tuple(states) if states else None)
            return output if return_dict else output.to_tuple()
        batch_size, seqlen = hidden_states.shape[:2]
        if output_attentions:
            say_padded("attention probabilities were asked for")
        choose = lay_out_padded if output_attentions else lay_out
        packing, layout, keep = choose(attention_mask, batch_size, seqlen, hidden_states.device)

        def unpack(x: Tensor) -> Tensor:
            x = packing.unpack(x)
            return x if keep is None else x * keep[..., None]

        x, states, attentions = self.run(packing.pack(hidden_states), layout, key, bool(output_hidden_states))
        output = EncoderOutput(
            last_hidden_state=unpack(x),
            hidden_states=tuple(map(unpack, states)) if states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )
        return output if return_dict else output.to_tuple()
