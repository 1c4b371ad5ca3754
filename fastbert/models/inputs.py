"""The inputs of a model: a caller's batch is packed once at the start, and results get its shape once at the end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..config import BertConfig
from ..errors import InputError
from ..gpt_config import GPTConfig
from ..model_config import ModelConfig
from ..modules.layout import Layout, PackedLayout, lay_out
from ..packing import CallerShape, PackedBatch, check_end, checked_bounds
from ..rng import DropoutKey
from ..transforms import is_exported
from .checks import check_ids, check_tensors


@dataclass(frozen=True)
class Tokens:
    """A batch inside the model.

    Args:
        input_ids: (T,) int64, or None with inputs_embeds (T, H).
        token_type_ids, position_ids: (T,) int64.
        layout: which tokens attend to each other.
        cu_seqlens: (B+1,) int32, the bounds of the sequences among the T tokens.
        shape: the shape of the caller's tokens, and how to return to it.
        causal: tokens do not attend to later ones, so that a sequence is represented by its last token, not its first.
        key: the dropout key of this forward pass; None in evaluation.
    """

    input_ids: Tensor | None
    token_type_ids: Tensor
    position_ids: Tensor
    layout: Layout
    cu_seqlens: Tensor
    shape: CallerShape
    inputs_embeds: Tensor | None = None
    key: DropoutKey | None = None
    causal: bool = False

    def unpack(self, x: Tensor) -> Tensor:
        """(T, ...) -> the caller's shape, (B, S, ...) with zeros at masked tokens, (T, ...) or (1, T, ...)."""
        return self.shape.unpack(x)

    def pack(self, x: Tensor) -> Tensor:
        """Labels x in the caller's shape -> (T,), with -100 at masked tokens that are computed (on the padded path)."""
        check_tensors(labels=x)
        packing = self.shape.packing
        if packing is None:
            if x.numel() != len(self.token_type_ids):
                raise InputError(
                    f"labels must be one a token, {len(self.token_type_ids)} of them, got {tuple(x.shape)}"
                )
            return x.reshape(-1)
        expected = (packing.batch_size, packing.seqlen)
        if x.shape[:2] != expected:
            raise InputError(f"labels must have the shape of input_ids {expected}, got {tuple(x.shape)}")
        labels, keep = packing.pack(x), self.shape.keep
        # On the packed path masked tokens do not exist; the loss must not depend on which path a batch takes.
        return labels if keep is None else labels.masked_fill(~keep.flatten(), -100)

    @property
    def _may_be_empty(self) -> bool:
        """Whether a sequence may be empty; unknown of tokens packed by the caller, whose bounds may be on a GPU.

        If none is, two of torch's ops are saved, which are a noticeable part of the time for a single short sentence.
        """
        packing = self.shape.packing
        return packing is None or not packing.min_seqlen > 0

    def pooled_rows(self) -> Tensor:
        """(B,) int64, the index of the token that represents each sequence: the first, or the last if attention is
        causal; that of some other token for an empty sequence."""
        if self.causal:
            return self.last_rows()
        first = self.cu_seqlens[:-1].long()  # torch 2.6 cannot index_select by int32 in forward-mode differentiation
        return first.clamp(max=max(self.token_type_ids.shape[0] - 1, 0)) if self._may_be_empty else first

    def first_rows(self) -> Tensor:
        """(B,) int64: the index of each sequence's first kept token; that of some other token for an empty sequence."""
        first = self.cu_seqlens[:-1].long()
        if self.shape.keep is not None:  # on the padded path
            first = first + self.shape.keep.int().argmax(1)
        return first.clamp(max=max(self.token_type_ids.shape[0] - 1, 0))

    def last_rows(self) -> Tensor:
        """(B,) int64: the index of each sequence's last kept token; that of some other token for an empty sequence."""
        last = self.cu_seqlens[1:].long() - 1
        if self.shape.keep is not None:
            last = last - self.shape.keep.flip(1).int().argmax(1)
        return last.clamp(min=0)

    def pooled_tokens(self, x: Tensor) -> Tensor:
        """x (T, H) -> (B, H), the token that represents each sequence; zeros for an empty one."""
        if x.shape[0] == 0:
            return x.new_zeros(self.cu_seqlens.numel() - 1, x.shape[-1])
        return self.without_empty(x.index_select(0, self.pooled_rows()))

    def pooled_of(self, shown: Tensor, x: Tensor) -> Tensor:
        """As `pooled_tokens`, of a state x (T, H) that the caller is given as ``shown``, in the caller's shape.

        If gradients are recorded, it is computed from the latter, as in transformers, so that a gradient with respect
        to it has the share of what is pooled, and a hook on it changes that share.
        """
        if not shown.requires_grad:
            return self.pooled_tokens(x)
        if self.shape.packing is None or self.shape.keep is not None or self.causal or x.shape[0] == 0:
            return self.pooled_tokens(self.shape.tokens_of(shown, x))
        return self.without_empty(shown[:, 0])  # where tokens are packed, a first column that is read is never masked

    def without_empty(self, first: Tensor) -> Tensor:
        """first (B, H), the pooled tokens -> (B, H), with zeros for empty sequences."""
        if self.shape.keep is not None:  # on the padded path an empty sequence has S masked tokens
            return first * self.shape.keep.any(1)[:, None]
        return first * (self.cu_seqlens.diff() > 0)[:, None] if self._may_be_empty else first


def open_tokens(
    config: BertConfig | GPTConfig,
    key: DropoutKey | None,
    input_ids: Tensor | PackedBatch | None,
    inputs_embeds: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    cu_seqlens: Tensor | None,
    max_seqlen: int | None,
    *,
    needs_first_column: bool = False,
    needs_attentions: bool = False,
) -> Tokens:
    """Packs a caller's batch, which has one of three forms: a `PackedBatch` and nothing else, packed tokens with
    ``cu_seqlens``, or a (B, S) batch. The shapes are those of `BertModel.forward`.

    Args:
        needs_first_column: whether a pooler reads column 0 even if it is masked.
        needs_attentions: whether attention probabilities are kept, which needs a (B, S) batch.

    Raises:
        InputError: arguments of several forms or of none, an id outside its table, or shapes that do not fit.
    """
    if isinstance(input_ids, PackedBatch):
        ids = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        bounds = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
        _refuse_beside("a PackedBatch", attention_mask=attention_mask, **bounds, **ids)
        return _open_packed_batch(input_ids, config, key)
    if (input_ids is None) == (inputs_embeds is None):
        got = "neither" if input_ids is None else "both"
        raise InputError(f"expected either input_ids or inputs_embeds, got {got}")
    if cu_seqlens is not None:
        _refuse_beside("cu_seqlens", attention_mask=attention_mask)
        return open_packed(
            config,
            key,
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
        )
    _refuse_beside("a batch without cu_seqlens", max_seqlen=max_seqlen)
    return open_padded(
        config,
        key,
        input_ids=input_ids,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        token_type_ids=token_type_ids,
        position_ids=position_ids,
        needs_first_column=needs_first_column,
        needs_attentions=needs_attentions,
    )


def _refuse_beside(what: str, **given) -> None:
    """Raises InputError for an argument that would be ignored if ``what`` is given too."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"expected no {name} with {what}: it would be ignored, got one")


def _check_width(config: ModelConfig, inputs_embeds: Tensor | None) -> None:
    """Raises InputError for embeddings of another width than the model's."""
    if inputs_embeds is not None and inputs_embeds.shape[-1] != config.hidden_size:
        raise InputError(
            f"inputs_embeds must have a last dimension of hidden_size = {config.hidden_size}, "
            f"got {tuple(inputs_embeds.shape)}"
        )


def _check_length(config: ModelConfig, length: int) -> None:
    if config.max_position_embeddings is not None and length > config.max_position_embeddings:
        raise InputError(
            f"a sequence may have at most max_position_embeddings = {config.max_position_embeddings} tokens, "
            f"got {length}"
        )


def _open_packed_batch(batch: PackedBatch, config: BertConfig | GPTConfig, key: DropoutKey | None) -> Tokens:
    """The tokens of a `PackedBatch`."""
    _check_length(config, batch.max_seqlen)
    check_ids(config, batch.input_ids, batch.token_type_ids, batch.position_ids)
    if ops.current_backend() != "triton":  # which never reads bounds, also where its tensors are on a CPU
        check_end(batch.cu_seqlens, len(batch.input_ids))
    return Tokens(
        batch.input_ids,
        batch.token_type_ids,
        batch.position_ids,
        PackedLayout(batch.cu_seqlens, batch.max_seqlen, config.is_decoder),
        batch.cu_seqlens,
        CallerShape(),
        key=key,
        causal=config.is_decoder,
    )


def open_packed(
    config: BertConfig | GPTConfig,
    key: DropoutKey | None,
    *,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    cu_seqlens: Tensor,
    max_seqlen: int | None,
) -> Tokens:
    """Tokens laid end to end by the caller: (T,) or (1, T) ids, or (T, H) or (1, T, H) embeddings."""
    check_tensors(
        input_ids=input_ids, inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids
    )
    tokens, width = (input_ids, 1) if inputs_embeds is None else (inputs_embeds, 2)
    row = tokens.dim() == width + 1
    if tokens.dim() not in (width, width + 1) or (row and tokens.shape[0] != 1):
        raise InputError(f"with cu_seqlens, tokens must be (T,) or (1, T), got {tuple(tokens.shape)}")
    _check_width(config, inputs_embeds)
    num_tokens = tokens.shape[-width]
    cu_seqlens, max_seqlen = checked_bounds(cu_seqlens, num_tokens, max_seqlen)
    lengths = cu_seqlens.diff()
    device = tokens.device
    if position_ids is None:
        _check_length(config, max_seqlen)
        starts = torch.repeat_interleave(cu_seqlens[:-1].long(), lengths.long(), output_size=num_tokens)
        position_ids = torch.arange(num_tokens, device=device) - starts
    if token_type_ids is None:
        token_type_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    position_ids, token_type_ids = position_ids.reshape(-1), token_type_ids.reshape(-1)
    input_ids = None if input_ids is None else input_ids.reshape(-1)
    check_ids(config, input_ids, token_type_ids, position_ids)
    return Tokens(
        input_ids,
        token_type_ids,
        position_ids,
        PackedLayout(cu_seqlens, max_seqlen, config.is_decoder),
        cu_seqlens,
        CallerShape(row=row),
        causal=config.is_decoder,
        inputs_embeds=None if inputs_embeds is None else inputs_embeds.reshape(num_tokens, -1),
        key=key,
    )


def open_padded(
    config: BertConfig | GPTConfig,
    key: DropoutKey | None,
    *,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    needs_first_column: bool,
    needs_attentions: bool,
    needs_distances: bool = False,
) -> Tokens:
    """Packs a (B, S) batch. By default positions are column indices, whatever the mask says, as in transformers."""
    check_tensors(
        input_ids=input_ids,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        token_type_ids=token_type_ids,
        position_ids=position_ids,
    )
    tokens = input_ids if inputs_embeds is None else inputs_embeds
    if tokens.dim() != (2 if inputs_embeds is None else 3):
        raise InputError(f"input_ids must be (B, S) and inputs_embeds (B, S, H), got {tuple(tokens.shape)}")
    _check_width(config, inputs_embeds)
    batch_size, seqlen = tokens.shape[:2]
    if position_ids is None:  # given ones may restart within a row, which may then be longer
        _check_length(config, seqlen)
    device = tokens.device
    # `lay_out` refuses a mask on the meta device. One on the right device is not passed through `to`, whose result no
    # longer requires a gradient under a transform of torch.func.
    if attention_mask is not None and not attention_mask.is_meta and attention_mask.device != device:
        attention_mask = attention_mask.to(device)
    packing, layout, keep = lay_out(
        attention_mask,
        batch_size,
        seqlen,
        device,
        # A left-to-right model pools the last token that is kept.
        first_column=needs_first_column and not config.is_decoder,
        probabilities=needs_attentions,
        causal=config.is_decoder,
        distances=needs_distances,
    )

    def ids(name: str, given: Tensor) -> Tensor:
        if given.shape not in ((batch_size, seqlen), (1, seqlen), (seqlen,)):
            raise InputError(
                f"{name} must have the shape of input_ids {(batch_size, seqlen)}, got {tuple(given.shape)}"
            )
        return packing.pack(given.expand(batch_size, seqlen))

    types = torch.zeros_like(packing.indices) if token_type_ids is None else ids("token_type_ids", token_type_ids)
    if position_ids is not None:
        positions = ids("position_ids", position_ids)
    elif is_exported():  # ONNX cannot export a remainder by a dynamic size
        positions = torch.arange(seqlen, device=device).repeat(batch_size)
    else:
        positions = packing.indices % max(seqlen, 1)
    packed_ids = None if input_ids is None else packing.pack(input_ids)
    check_ids(config, packed_ids, types, positions)
    return Tokens(
        packed_ids,
        types,
        positions,
        layout,
        packing.cu_seqlens,
        CallerShape(packing, keep),
        inputs_embeds=None if inputs_embeds is None else packing.pack(inputs_embeds),
        key=key,
        causal=config.is_decoder,
    )
