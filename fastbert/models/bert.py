"""BERT: embeddings, encoder, pooler (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops, rng
from ..config import BertConfig
from ..errors import InputError
from ..modules import hooks
from ..modules.bilstm import HeadBiLSTM
from ..modules.embeddings import BertEmbeddings
from ..modules.encoder import BertEncoder, refuse
from ..modules.graphs import uncompiled_with_mask
from ..modules.heads import BertPooler
from ..modules.layer import BertLayer
from ..modules.linear import is_watched
from ..outputs import BertModelOutput
from ..packing import PackedBatch
from ..transforms import is_transformed
from .inputs import Tokens, open_tokens
from .pretrained import PreTrainedModel


@dataclass(frozen=True)
class Encoded:
    """The encoder's result for a batch, still packed.

    Args:
        tokens: the batch, and how to return to the caller's shape.
        hidden: (T, H) last hidden states, or (N, H) if only some tokens were asked for.
        pooled: (B, H), or None without a pooler.
        shown: the last hidden states in the caller's shape, or None if they were not asked for.
        hidden_states, attentions: in the caller's shape, or None.
    """

    tokens: Tokens
    hidden: Tensor
    pooled: Tensor | None
    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...] | None
    shown: Tensor | None = None


class BertModel(PreTrainedModel):
    """The encoder with its embeddings and, by default, its pooler.

    Args:
        config: a `BertConfig`, or transformers'.
        add_pooling_layer: False leaves the pooler out, and ``pooler_output`` is None.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 3.
    """

    config: BertConfig

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(self.config)
        self.encoder = BertEncoder(self.config)
        self.pooler = BertPooler(self.config) if add_pooling_layer else None
        self.post_init()

    @uncompiled_with_mask
    def encode(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        head_mask: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        past_key_values: Any = None,
        cache: Any = None,
        use_cache: Any = None,
        only: Tensor | None = None,
        only_pooled: bool = False,
        show_last: bool = False,
        **unknown: Any,
    ) -> Encoded:
        """Computes what `forward` does, but leaves it packed, for heads. Takes the arguments of `forward` and three
        more.

        Args:
            only: (N,) int64, indices of packed tokens: the last layer is computed only for them and for the tokens that
                the pooler reads.
            only_pooled: the last layer is computed only for what the pooler reads; ``hidden`` is then (0, H).
            show_last: all last hidden states are made in the caller's shape too, and the pooler reads those.
        """
        if unknown:
            raise InputError(f"unknown argument of the model: {', '.join(sorted(unknown))}")
        refuse(
            head_mask=head_mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=past_key_values,
            cache=cache,
        )
        hooks.look_for_replaced()
        config = self.config
        key = rng.current() if self.training else None
        keep_states = self._wants("output_hidden_states", output_hidden_states)
        keep_attentions = self._wants("output_attentions", output_attentions)
        tokens = open_tokens(
            config,
            key,
            input_ids,
            inputs_embeds,
            attention_mask,
            token_type_ids,
            position_ids,
            cu_seq_lens_q if cu_seqlens is None else cu_seqlens,
            max_length_q if max_seqlen is None else max_seqlen,
            needs_first_column=self.pooler is not None,
            needs_attentions=keep_attentions,
        )
        if keep_attentions and tokens.shape.packing is None:
            raise InputError("attention probabilities are kept for (B, S) batches only, got packed tokens")
        hidden = self.embeddings(
            tokens.input_ids, tokens.token_type_ids, tokens.position_ids, key, tokens.inputs_embeds
        )
        rows = only
        if only_pooled and len(tokens.token_type_ids):  # of a batch without tokens there is no row to select
            rows = tokens.pooled_rows()
        elif only is not None and self.pooler is not None:
            rows = torch.cat([tokens.pooled_rows(), only])
        show = tokens.shape.show if keep_states else None
        hidden, states, attentions = self.encoder(hidden, layout=tokens.layout, dropout_key=key, rows=rows, show=show)
        pooled = shown = None
        if self.pooler is not None and rows is not None:
            count = 0 if only is None else len(only)
            first, hidden = hidden.split([len(rows) - count, count])
            pooled = self.pooler(tokens.without_empty(first))
        if show_last:
            shown = states[-1] if states else tokens.unpack(hidden)  # the same tensor, as in transformers
        if self.pooler is not None and rows is None:
            pooled = self.pooler(tokens.pooled_tokens(hidden) if shown is None else tokens.pooled_of(shown, hidden))
        return Encoded(
            tokens,
            hidden,
            pooled,
            tuple(states) if states else None,
            tuple(attentions) if keep_attentions else None,
            shown,
        )

    def last_layer_is_unseen(self) -> bool:
        """Whether the last layer may leave out tokens: it is fastbert's own, and no hook sees what it, the encoder or
        the model returns."""
        encoder = self.encoder
        last = encoder.layer[-1] if len(encoder.layer) else None
        if type(last) is not BertLayer or not last.is_by_token():
            return False
        return not any(map(is_watched, (self, encoder, *last.modules())))

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        return_dict: bool | None = None,
        encoded: list[Encoded] | None = None,
        **options: Any,
    ) -> BertModelOutput | tuple[Any, ...]:
        """Encodes a batch; padding is not computed.

        Args:
            input_ids: (B, S) int64; or (T,) or (1, T) with ``cu_seqlens``; or a `PackedBatch` and nothing else.
            attention_mask: (B, S), non-zero = keep; it may have holes or left padding; or 4-D, bool (True = keep) or
                additive. None keeps every token.
            token_type_ids: the segment of each token, in the shape of input_ids; zeros by default.
            position_ids: in the shape of input_ids; by default the column of each token, whatever the mask says.
            options: ``inputs_embeds`` (B, S, H) in place of input_ids; ``output_hidden_states``;
                ``output_attentions`` (takes the padded reference path); ``cu_seqlens`` (B+1,) and ``max_seqlen`` for
                packed tokens, also under transformers' names ``cu_seq_lens_q``, ``max_length_q``.
            return_dict: False returns a tuple, as in transformers; None follows the configuration.
            encoded: for the heads: a list to which the result of `encode` is added (`encoded_by`).

        Returns:
            ``last_hidden_state`` (B, S, H), zeros at masked tokens, or (T, H) or (1, T, H) for packed tokens;
            ``pooler_output`` (B, H); if asked for, ``hidden_states``, the embeddings and then each layer's states, and
            ``attentions``.

        Raises:
            InputError: an id is outside its table, a sequence is longer than max_position_embeddings, or shapes do not
                fit.
        """
        made = self.encode(input_ids, attention_mask, token_type_ids, position_ids, show_last=True, **options)
        if encoded is not None:
            encoded.append(made)
        output = BertModelOutput(
            last_hidden_state=made.shown,
            pooler_output=made.pooled,
            hidden_states=made.hidden_states,
            attentions=made.attentions,
        )
        return self._as_asked(output, return_dict)


def encoded_by(model: nn.Module, *inputs: Any, **options: Any) -> Encoded:
    """The result of the model under a head, by its `encode`, or by calling the model if it has hooks. A hook sees what
    the model returns, and the head continues with what the hook returns in its place.

    Raises:
        InputError: the model's forward was replaced by one that does not call the original.
    """
    if not is_watched(model):
        return model.encode(*inputs, **options)
    made: list[Encoded] = []
    output = model(*inputs, return_dict=True, encoded=made, **options)
    if not made:
        raise InputError(
            f"a forward that replaces {type(model).__name__}'s must call the original with all of its arguments, "
            "since the head needs the tokens that the original packs; it was not called"
        )
    encoded = made[-1]
    hidden = encoded.tokens.shape.tokens_of(output[0], encoded.hidden)
    return replace(encoded, hidden=hidden, pooled=None if encoded.pooled is None else output[1])


class BertHead(PreTrainedModel):
    """Base class of models with a head: a `BertModel` named ``bert``, on which the head is put.

    Args:
        config: a `BertConfig`, or transformers'.
        add_pooling_layer: whether the head reads the pooled first token.
    """

    config: BertConfig
    # For which tokens the last layer is computed: "all", or "needed", those that are read. The results are the same. On
    # a CPU heads compute it for those that they read in any case; no GPU has been timed with it.
    last_layer = "all"

    def __init__(self, config: BertConfig, add_pooling_layer: bool) -> None:
        super().__init__(config)
        self.bert = BertModel(self.config, add_pooling_layer=add_pooling_layer)

    @uncompiled_with_mask
    def encode(self, *inputs: Any, **options: Any) -> Encoded:
        """The result of ``bert`` for a batch (`encoded_by`)."""
        return encoded_by(self.bert, *inputs, **options)

    def encode_for_pooled(self, *inputs: Any, **options: Any) -> Encoded:
        """`encode` for a head that reads only the pooled token.

        On a CPU, and in training on a GPU if ``last_layer`` is "needed", the last layer computes only that token after
        its attention, unless its states are asked for, are seen by a hook or are read by a BiLSTM.
        """
        keep_states = self._wants("output_hidden_states", options.get("output_hidden_states"))
        wanted = self.training and self.last_layer == "needed"
        if not wanted and self.device.type == "cpu":
            wanted = not (torch.compiler.is_compiling() or is_transformed())  # traced graphs stay as they were
        if wanted and not keep_states and self.bert.pooler is not None and self.bert.last_layer_is_unseen():
            options["only_pooled"] = True
        return self.encode(*inputs, **options)

    def make_bilstm(self) -> int:
        """Creates ``bilstm`` if the configuration asks for one; returns the width of `token_states`."""
        units = self.config.bilstm_units
        self.bilstm = None if units is None else HeadBiLSTM(self.config.hidden_size, units)
        return self.config.hidden_size if units is None else 2 * units

    def token_states(self, encoded: Encoded) -> Tensor:
        """(T, width), the hidden states, or the BiLSTM's states if there is one."""
        return encoded.hidden if self.bilstm is None else self.bilstm(encoded.hidden, encoded.tokens)

    def sequence_states(self, encoded: Encoded) -> Tensor:
        """(B, width), the representation of each sequence: the pooled token, or the final states of the BiLSTM."""
        if self.bilstm is None:
            return encoded.pooled
        return self.bilstm.ends(self.token_states(encoded), encoded.tokens)

    def classifier_dropout(self) -> nn.Module:
        """The dropout before a classifier, at the rate that the configuration gives."""
        p = self.config.classifier_dropout
        return HeadDropout(self.config.hidden_dropout_prob if p is None else p)


class HeadDropout(nn.Module):
    """Dropout before a classifier, drawn from the same random stream as the encoder's."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """x (N, H) -> (N, H), the same dtype; ``tokens`` hold the dropout key of the pass."""
        if not self.training or not self.p:
            return x
        # ``tokens`` have no key if the model below the head is frozen in evaluation mode.
        return ops.dropout(x, (tokens.key or rng.current()).site(self.p, rng.HEAD_SITE))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def apply_head_dropout(module: nn.Module, x: Tensor, tokens: Tokens) -> Tensor:
    """x (N, H) after the dropout before a classifier: a `HeadDropout`, or a module in its place, which takes x."""
    return module(x, tokens) if isinstance(module, HeadDropout) else module(x)
