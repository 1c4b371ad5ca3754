"""The stack of layers, as a module that can also replace transformers' BertEncoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops, rng
from ..config import BertConfig
from ..errors import InputError
from ..outputs import EncoderOutput
from ..packing import CallerShape, checked_bounds
from ..rng import DropoutKey
from . import hooks
from .graphs import uncompiled_with_mask
from .layer import BertLayer
from .layout import Layout, PackedLayout, lay_out, with_first_column
from .quantized_linear import check_trainable
from .stack import run_stack

# Arguments that transformers' models and trainers pass on and an encoder does not need.
IGNORED = ("use_cache", "cache_position", "num_items_in_batch", "past_key_values_length", "seq_idx")
_UNREAD = (*IGNORED, "position_ids", "cu_seq_lens_k", "max_length_k")  # positions are in the embeddings


def asks_for_nothing(value: Any) -> bool:
    """Whether an argument of transformers is as good as left out: None, False, or a mask of None for each layer."""
    return value is None or value is False or (isinstance(value, (list, tuple)) and all(v is None for v in value))


def refuse(**arguments) -> None:
    """Raises InputError for arguments of a decoder, or a head mask that masks something."""
    for name, value in arguments.items():
        if not asks_for_nothing(value):
            raise InputError(f"{name} is not supported by an encoder: expected None, got {type(value).__name__}")


class BertEncoder(nn.Module):
    """The stack of ``num_hidden_layers`` layers, with transformers' parameter names (``layer.0.attention...``).

    Args:
        config: a `BertConfig`, or any object with the fields of transformers' BertConfig.

    Ref:
        Devlin et al. 2019, section 3; Vaswani et al. 2017, section 3.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config = BertConfig.from_hf(config)
        self.layer = nn.ModuleList(BertLayer(config, index) for index in range(config.num_hidden_layers))
        self.gradient_checkpointing = False

    def train(self, mode: bool = True) -> BertEncoder:
        """Sets the mode. Raises InputError for training with int8 weights; the encoder is unchanged then."""
        check_trainable(self, mode)
        return super().train(mode)

    def run(
        self,
        x: Tensor,
        layout: Layout,
        key: DropoutKey | None,
        rows: Tensor | None = None,
        show: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, list[Tensor] | None, list[Tensor | None]]:
        """Applies the layers to tokens in any layout.

        Args:
            x: (T, H).
            layout: which tokens attend to each other.
            key: of dropout; None in evaluation.
            rows: (R,) int64, the tokens whose last hidden state is needed, or None for all; for the others the last
                layer computes nothing beyond its attention. Not with ``show``, which is for the states of all tokens.
            show: maps a state (T, H) to the tensor that is returned to the caller and to the tokens (T, H) that the
                next layer reads, so that gradients with respect to the returned tensor are defined; None if only the
                last state is wanted.

        Returns:
            the last hidden state (T, H) or (R, H); all L+1 hidden states as ``show`` makes them, the input first, or
            None; and the attention probabilities of each layer, None if the layout does not keep them.
        """
        states: list[Tensor] = []
        attentions: list[Tensor | None] = []

        def shown(state: Tensor) -> Tensor:
            """Keeps a state for the caller; returns what the next layer reads."""
            if show is not None:
                kept, state = show(state)
                states.append(kept)
            return state

        records = torch.is_grad_enabled()
        recompute = self.gradient_checkpointing and self.training and records
        x = shown(x)
        if not recompute:
            # If the returned states have gradients, each layer reads the previous state through the returned tensor.
            through = show is not None and records
            through = through and (x.requires_grad or any(p.requires_grad for p in self.parameters()))
            between = shown if through else None
            ran = run_stack(self, x, layout, key, keep_states=show is not None, rows=rows, between=between)
            if ran is not None:
                count, after = ran
                attentions += [None] * count
                if not through:
                    for state in after:
                        shown(state)
                x = after[-1]
        for index, layer in enumerate(list(self.layer)[len(attentions) :], len(attentions)):
            needed = rows if index == len(self.layer) - 1 else None
            x, probs = _call_layer(layer, x, layout, key, needed, recompute, index)
            attentions.append(probs)
            x = shown(x)
        return x, states or None, attentions

    def run_as_transformers(
        self,
        x: Tensor,
        layout: Layout,
        key: DropoutKey | None,
        show: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
        mask_dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, list[Tensor] | None, list[Tensor | None]]:
        """`run`, with the dtypes of transformers' encoder under autocast.

        There the residuals keep their dtype, and on a GPU autocast runs LayerNorm and softmax in float32. Here states
        have the narrow dtype between the layers and are converted when they are returned.

        Args:
            mask_dtype: the dtype of the mask that transformers would add to its scores; None if it adds none.
        """
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return self.run(x, layout, key, show=show)
        product = torch.get_autocast_dtype(kind) if x.dtype != torch.float64 else x.dtype  # which autocast leaves alone
        least = torch.promote_types(product, torch.float32) if kind == "cuda" else product
        dtype = torch.promote_types(x.dtype, least)
        score_dtype = torch.promote_types(mask_dtype or least, least)
        wide = None if show is None else (lambda state: show(state if state is x else state.to(dtype)))
        last, states, attentions = self.run(x, layout, key, show=wide)
        return last.to(dtype), states, [None if probs is None else probs.to(score_dtype) for probs in attentions]

    @uncompiled_with_mask
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        layout: Layout | None = None,
        rows: Tensor | None = None,
        show: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        return_dict: bool = True,
        dropout_key: DropoutKey | None = None,
        head_mask: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        past_key_values: Any = None,
        cache: Any = None,
        **more: Any,
    ) -> EncoderOutput | tuple[Any, ...]:
        """Encodes a padded or a packed batch.

        Args:
            hidden_states: (B, S, H), or (T, H) or (1, T, H) with ``cu_seqlens``.
            attention_mask: for (B, S, H): None, (B, S) non-zero = keep, or 4-D bool (True = keep) or additive.
            cu_seqlens: (B+1,) int32, the bounds of packed sequences; transformers calls it ``cu_seq_lens_q``.
            max_seqlen: the longest packed sequence, computed if not given; transformers calls it ``max_length_q``.
            layout, rows, show: for fastbert's own models, with (T, H) only: the call is then one of `run`, so that
                hooks on the encoder see the same tokens as those on its layers.
            output_hidden_states, output_attentions: whether these are returned too.
            return_dict: False returns a tuple.
            dropout_key: which random numbers dropout draws in this pass; new ones by default.
            more: arguments that transformers' model passes and an encoder does not need (``position_ids``,
                ``use_cache``, ...); any other must be None or False.

        Returns:
            ``last_hidden_state`` in the shape of the input, with zeros at masked tokens (except for a masked column 0,
            which transformers' pooler reads); ``hidden_states`` and ``attentions`` if asked for. Under autocast their
            dtypes are those of transformers: float32 for float32 hidden_states.

        Raises:
            InputError: shapes do not fit, an argument is unknown or only for decoders, or the model of transformers 5
                asks for hidden states or attentions, which it would not take from here.
        """
        hooks.look_for_replaced()
        if layout is not None:
            return self.run(hidden_states, layout, dropout_key, rows, show)
        unknown = [name for name, value in more.items() if not (value is None or value is False or name in _UNREAD)]
        if unknown:  # a mask under another library's name would be left unread
            raise InputError(f"unknown argument of the encoder: {', '.join(sorted(unknown))}")
        refuse(
            head_mask=head_mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=past_key_values,
            cache=cache,
        )
        # Of the models that pass these two, transformers 5's, which collects both from its own layers alone.
        if (output_hidden_states or output_attentions) and {"position_ids", "use_cache"} <= more.keys():
            raise InputError(
                "transformers' model takes hidden states and attentions from its own layers and would return none of "
                "this encoder's: use fastbert.patch(model) in its place"
            )
        key = (dropout_key or rng.current()) if self.training else None
        cu_seqlens = cu_seq_lens_q if cu_seqlens is None else cu_seqlens
        max_seqlen = max_length_q if max_seqlen is None else max_seqlen
        if cu_seqlens is not None or hidden_states.dim() == 2:
            if attention_mask is not None and attention_mask.dim() == 2:
                raise InputError("expected no (B, S) attention_mask with packed tokens: it would be ignored, got one")
            if output_attentions:
                raise InputError("attention probabilities are kept for (B, S) batches only, got packed tokens")
            output = self._packed(hidden_states, cu_seqlens, max_seqlen, key, bool(output_hidden_states))
        else:
            output = self._padded(
                hidden_states, attention_mask, key, bool(output_hidden_states), bool(output_attentions)
            )
        return output if return_dict else output.to_tuple()

    def _padded(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        key: DropoutKey | None,
        keep_states: bool,
        keep_attentions: bool,
    ) -> EncoderOutput:
        """`forward` of (B, S, H)."""
        if hidden_states.dim() != 3:
            raise InputError(f"hidden_states must be (B, S, H), or (T, H) packed, got {tuple(hidden_states.shape)}")
        batch_size, seqlen = hidden_states.shape[:2]
        packing, layout, keep = lay_out(
            attention_mask,
            batch_size,
            seqlen,
            hidden_states.device,
            first_column=True,
            probabilities=keep_attentions,
            causal=self.config.is_decoder,
        )
        shape = CallerShape(packing, None if keep is None else with_first_column(keep))
        additive = attention_mask is not None and attention_mask.dim() == 4 and attention_mask.is_floating_point()
        x, states, attentions = self.run_as_transformers(
            packing.pack(hidden_states),
            layout,
            key,
            show=shape.show if keep_states else None,
            mask_dtype=attention_mask.dtype if additive else None,
        )
        return EncoderOutput(
            last_hidden_state=shape.unpack(x),
            hidden_states=tuple(states) if states else None,
            attentions=tuple(attentions) if keep_attentions else None,
        )

    def _packed(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor | None,
        max_seqlen: int | None,
        key: DropoutKey | None,
        keep_states: bool,
    ) -> EncoderOutput:
        """`forward` of (T, H) or (1, T, H)."""
        row = hidden_states.dim() == 3
        if cu_seqlens is None or hidden_states.dim() not in (2, 3) or (row and hidden_states.shape[0] != 1):
            raise InputError(
                "packed hidden_states must be (T, H) or (1, T, H) and come with cu_seqlens, "
                f"got {tuple(hidden_states.shape)} and {'no' if cu_seqlens is None else 'its'} cu_seqlens"
            )
        cu_seqlens, max_seqlen = checked_bounds(cu_seqlens, hidden_states.shape[-2], max_seqlen)
        layout = PackedLayout(cu_seqlens, max_seqlen, self.config.is_decoder)
        shape = CallerShape(row=row)
        x = hidden_states[0] if row else hidden_states
        x, states, _ = self.run_as_transformers(x, layout, key, shape.show if keep_states else None)
        return EncoderOutput(shape.unpack(x), tuple(states) if states else None)


def _call_layer(
    layer: nn.Module,
    x: Tensor,
    layout: Layout,
    key: DropoutKey | None,
    rows: Tensor | None,
    recompute: bool,
    index: int,
) -> tuple[Tensor, Tensor | None]:
    """The state after one layer, and its attention probabilities or None; arguments as in `BertLayer.forward`."""
    if recompute:
        # Our dropout is replayed by its key; torch's checkpointing restores its generator for adapters (LoRA).
        own = (layer.rates, index) if hasattr(layer, "rates") else ()  # a module in a layer's place has none
        given = (x, layout, key, rows, *own)
        result = ops.checkpoint(layer, *given)
    else:
        moved = {} if getattr(layer, "index", index) == index else {"index": index}
        result = layer(x, layout, key, rows, **moved)
    # A module in a layer's place may return the states alone, as transformers' layers do.
    return (result, None) if isinstance(result, Tensor) else result
