"""Masked LM and next-sentence prediction (Devlin et al. 2019, section 3.1).

The loss is over the tokens that a batch labels; a left-to-right BERT predicts next words there (section 5.1, "LTR").

The product with the vocabulary's matrix is the largest of a small model, so logits are computed only for labelled
tokens, and for all tokens if there are no labels or with ``output_logits=True``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .. import ops
from ..config import BertConfig
from ..errors import InputError
from ..modules.heads import BertPreTrainingHeads
from ..outputs import LogitsOutput, PreTrainingOutput
from ..packing import PackedBatch
from .bert import BertHead, Encoded
from .checks import check_labels, check_range


def check_targets(batch) -> None:
    """Raises InputError for a `PackedBatch` with labels but no positions, or the reverse, or positions out of range."""
    if not isinstance(batch, PackedBatch) or batch.mlm_positions is batch.mlm_labels is None:
        return
    if batch.mlm_positions is None or batch.mlm_labels is None:
        missing = "mlm_positions" if batch.mlm_positions is None else "mlm_labels"
        raise InputError(f"a PackedBatch must have both mlm_positions and mlm_labels or neither, got no {missing}")
    check_range("mlm_positions", batch.mlm_positions, batch.num_tokens, "the number of tokens is")


def _only_labelled(model: BertHead, batch, labels: Tensor | None, output_logits: bool | None, options: dict):
    """{"only": positions} if only the labelled tokens of a `PackedBatch` are needed of the last layer, else {}."""
    if model.config.is_decoder:  # next words: all tokens but one per sequence are labelled, so there is little to save
        return {}
    wanted = model.last_layer == "needed" and isinstance(batch, PackedBatch) and batch.mlm_positions is not None
    if not wanted or labels is not None or output_logits or options.get("output_hidden_states"):
        return {}
    return {} if model.config.output_hidden_states else {"only": batch.mlm_positions}


def word_loss(predict, vocab_size: int, encoded: Encoded, labels: Tensor | None, batch, output_logits, gathered=False):
    """The loss of a masked-LM or language-model head.

    Args:
        predict: maps hidden states (N, H) to logits (N, V).
        vocab_size: V.
        encoded: the encoder's result.
        labels: (T,) int64 for the packed tokens, -100 = none; None for those of the `PackedBatch`, if it has any.
        batch: what the caller passed as input_ids.
        output_logits: whether logits of all tokens are computed; None: only without labels.
        gathered: whether ``encoded`` holds only the labelled tokens of the batch.

    Returns:
        the mean loss over labelled tokens (), their logits (N, V), and all logits in the caller's shape; each may be
        None.
    """
    hidden, loss, at_labels, logits = encoded.hidden, None, None, None
    positions = batch.mlm_positions if isinstance(batch, PackedBatch) else None
    targets = batch.mlm_labels if positions is not None else None
    if labels is not None:
        positions = (labels != -100).nonzero().flatten()
        targets = labels.index_select(0, positions)
    if positions is not None:
        check_labels(targets, vocab_size)
        at_labels = predict(hidden if gathered else hidden.index_select(0, positions))
        loss = ops.cross_entropy(at_labels, targets)
    if output_logits or (output_logits is None and positions is None):
        logits = encoded.tokens.unpack(predict(hidden))
    return loss, at_labels, logits


def _masked_lm(cls: BertPreTrainingHeads, encoded: Encoded, labels: Tensor | None, *given):
    """`word_loss` of the masked-LM head; labels are in the caller's shape."""
    packed = None if labels is None else encoded.tokens.pack(labels)
    return word_loss(lambda hidden: cls(hidden)[0], cls.predictions.decoder.out_features, encoded, packed, *given)


def _next_sentence(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    if labels is None:
        return None
    check_labels(labels, 2)
    return ops.cross_entropy(logits.view(-1, 2), labels.view(-1))


class BertForPreTraining(BertHead):
    """BERT with both pre-training heads: masked LM and next-sentence prediction.

    Args:
        config: a `BertConfig`, or transformers'; if ``tie_word_embeddings`` is true, the masked-LM decoder (V, H) is
            the table of word embeddings.

    Attributes:
        last_layer: "all", or "needed" to compute the last layer only for the tokens that a loss reads: the labelled
            ones of a `PackedBatch` and the first of each sequence. The losses are the same.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 3.1.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        self.cls = BertPreTrainingHeads(self.config)
        self.post_init()

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's layers."""
        return self.bert.encoder.layer

    @property
    def next_sentence_parameters(self) -> list[nn.Parameter]:
        """The parameters that only get a gradient if there are sentence pairs."""
        return [*self.bert.pooler.parameters(), *self.cls.seq_relationship.parameters()]

    @property
    def architecture(self) -> str:
        """The class named in config.json: if the next-sentence head is left out, transformers' class without it."""
        if not self.untrained:
            return super().architecture
        return "BertLMHeadModel" if self.config.is_decoder else "BertForMaskedLM"

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        output_logits: bool | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> PreTrainingOutput | tuple[Any, ...]:
        """Inputs are those of `BertModel.forward`.

        Args:
            labels: int64 vocabulary ids in the shape of input_ids, -100 = not predicted; a `PackedBatch` holds its own.
            next_sentence_label: (B,) int64, 0 = the second segment follows the first; a `PackedBatch` may hold its own.
            output_logits: whether ``prediction_logits`` are computed for all tokens; by default only without labels.

        Returns:
            ``loss``: for a `PackedBatch`, the sum of the mean masked-LM and next-sentence cross-entropies that it has
            labels for; otherwise their sum if both labels are given, as in transformers. ``mlm_loss``, ``nsp_loss``;
            ``mlm_logits`` (N, V) for the labelled tokens; ``prediction_logits`` (B, S, V) or (T, V);
            ``seq_relationship_logits`` = ``nsp_logits`` (B, 2).

        Raises:
            InputError: inputs or labels do not fit.
        """
        batch = input_ids
        check_targets(batch)
        only = _only_labelled(self, batch, labels, output_logits, options)
        encoded = self.encode(input_ids, attention_mask, token_type_ids, position_ids, **options, **only)
        mlm_loss, mlm_logits, logits = _masked_lm(self.cls, encoded, labels, batch, output_logits, bool(only))
        _, nsp_logits = self.cls(None, encoded.pooled)
        packed = isinstance(batch, PackedBatch)
        if packed and next_sentence_label is None:
            next_sentence_label = batch.nsp_labels
        nsp_loss = _next_sentence(nsp_logits, next_sentence_label)
        losses = [loss for loss in (mlm_loss, nsp_loss) if loss is not None]
        output = PreTrainingOutput(
            loss=sum(losses) if losses and (packed or len(losses) == 2) else None,
            prediction_logits=logits,
            seq_relationship_logits=nsp_logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            mlm_logits=mlm_logits,
            nsp_logits=nsp_logits,
        )
        return self._as_asked(output, return_dict)


class BertForMaskedLM(BertHead):
    """BERT with only the masked-LM head and no pooler. ``last_layer`` is as in `BertForPreTraining`.

    Args:
        config: a `BertConfig`, or transformers', used as in `BertForPreTraining`.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 3.1, task 1.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.cls = BertPreTrainingHeads(self.config, nsp=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        output_logits: bool | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> LogitsOutput | tuple[Any, ...]:
        """Inputs are those of `BertModel.forward`; ``labels`` and ``output_logits`` those of `BertForPreTraining`.

        Returns:
            ``loss``: (), the mean over labelled tokens; ``logits``: (B, S, V) or (T, V), without labels or if asked
            for; ``mlm_logits``: (N, V) for the labelled tokens.

        Raises:
            InputError: inputs or labels do not fit.
        """
        check_targets(input_ids)
        only = _only_labelled(self, input_ids, labels, output_logits, options)
        encoded = self.encode(input_ids, attention_mask, token_type_ids, position_ids, **options, **only)
        loss, mlm_logits, logits = _masked_lm(self.cls, encoded, labels, input_ids, output_logits, bool(only))
        output = LogitsOutput(loss, logits, encoded.hidden_states, encoded.attentions, mlm_logits)
        return self._as_asked(output, return_dict)


class BertForNextSentencePrediction(BertHead):
    """BERT with only the next-sentence head: scores of 0 = the second segment follows the first, 1 = it does not.

    Args:
        config: a `BertConfig`, or transformers'.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 3.1, task 2.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        self.cls = BertPreTrainingHeads(self.config, mlm=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> LogitsOutput | tuple[Any, ...]:
        """Inputs are those of `BertModel.forward`.

        Args:
            labels: (B,) int64, 0 = the second segment follows the first, 1 = it is a random one; a `PackedBatch` may
                hold its own.

        Returns:
            ``loss``: (), mean cross-entropy; ``logits``: (B, 2).

        Raises:
            InputError: inputs or labels do not fit.
        """
        encoded = self.encode_for_pooled(input_ids, attention_mask, token_type_ids, position_ids, **options)
        _, logits = self.cls(None, encoded.pooled)
        if labels is None and isinstance(input_ids, PackedBatch):
            labels = input_ids.nsp_labels
        output = LogitsOutput(_next_sentence(logits, labels), logits, encoded.hidden_states, encoded.attentions)
        return self._as_asked(output, return_dict)
