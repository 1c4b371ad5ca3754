"""One output layer on the encoder, for fine-tuning (Devlin et al. 2019, section 3.2 and figure 4).

``config.bilstm_units`` puts a randomly initialised BiLSTM below that layer (table 5, "+ BiLSTM"). The layer then reads
the BiLSTM's states for tokens, and for a sequence the final states of both directions in place of the pooled token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..config import BertConfig
from ..errors import InputError
from ..modules.linear import apply_linear
from ..outputs import LogitsOutput, QuestionAnsweringOutput
from ..packing import PackedBatch
from .bert import BertHead, apply_head_dropout
from .checks import check_labels, check_tensors
from .logits import choice_logits, classification_loss


class BertForSequenceClassification(BertHead):
    """A classifier or regressor for texts and pairs of texts, on the pooled first token.

    Args:
        config: a `BertConfig`, or transformers'; ``num_labels`` is the number of outputs, ``problem_type`` says what
            they are, ``classifier_dropout`` (None: ``hidden_dropout_prob``) is the dropout before them.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 4.1.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=getattr(config, "bilstm_units", None) is None)
        self.num_labels = self.config.num_labels
        self.dropout = self.classifier_dropout()
        self.classifier = nn.Linear(self.make_bilstm(), self.num_labels)
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
            labels: (B,) int64 class ids, -100 = no label; (B,) or (B, num_labels) floating-point targets for
                regression; or (B, num_labels) floating-point zeros and ones for several labels at once.
                ``config.problem_type`` says which; if it is None the labels do, as in transformers
                (`classification_loss`).

        Returns:
            ``loss``: (), cross-entropy, mean squared error or binary cross-entropy; ``logits``: (B, num_labels).

        Raises:
            InputError: inputs or labels do not fit.
        """
        encoded = self.encode_for_pooled(input_ids, attention_mask, token_type_ids, position_ids, **options)
        states = apply_head_dropout(self.dropout, self.sequence_states(encoded), encoded.tokens)
        logits = apply_linear(self.classifier, states)
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.num_labels, self.config.problem_type)
        output = LogitsOutput(loss, logits, encoded.hidden_states, encoded.attentions)
        return self._as_asked(output, return_dict)


class BertForMultipleChoice(BertHead):
    """Scores each choice of a question on its pooled first token; the loss is a softmax over the choices.

    Args:
        config: a `BertConfig`, or transformers'; ``num_labels`` is not read, ``classifier_dropout`` (None:
            ``hidden_dropout_prob``) is the dropout before the score.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 4.4.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=getattr(config, "bilstm_units", None) is None)
        self.dropout = self.classifier_dropout()
        self.classifier = nn.Linear(self.make_bilstm(), 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_choices: int | Sequence[int] | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> LogitsOutput | tuple[Any, ...]:
        """Inputs are those of `BertModel.forward`, with a dimension of C choices after B.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: (B, C, S); or a `PackedBatch` of the choices of B
                questions, with the choices of a question next to each other, and ``num_choices``.
            labels: (B,) int64, the index of the right choice.
            num_choices: for a `PackedBatch`: C, the number of choices of every question, or a list of numbers of which
                C is the largest.

        Returns:
            ``loss``: (), mean cross-entropy; ``logits``: (B, C), as `choice_logits` says.

        Raises:
            InputError: inputs or labels do not fit, or a `PackedBatch` comes without ``num_choices`` or with another
                number of sequences.
        """
        if isinstance(input_ids, PackedBatch):
            if num_choices is None:
                raise InputError("a packed batch of choices needs num_choices, got none")
        else:
            embeds = options.get("inputs_embeds")
            num_choices = self._choices_of(input_ids, embeds)
            input_ids, attention_mask, token_type_ids, position_ids = (
                None if x is None else x.flatten(0, 1)
                for x in (input_ids, attention_mask, token_type_ids, position_ids)
            )
            if embeds is not None:
                options["inputs_embeds"] = embeds.flatten(0, 1)
        encoded = self.encode_for_pooled(input_ids, attention_mask, token_type_ids, position_ids, **options)
        states = apply_head_dropout(self.dropout, self.sequence_states(encoded), encoded.tokens)
        logits = choice_logits(apply_linear(self.classifier, states), num_choices)
        loss = None
        if labels is not None:
            check_labels(labels, logits.shape[1])
            loss = ops.cross_entropy(logits, labels)
        output = LogitsOutput(loss, logits, encoded.hidden_states, encoded.attentions)
        return self._as_asked(output, return_dict)

    @staticmethod
    def _choices_of(input_ids: Tensor | None, embeds: Tensor | None) -> int:
        """C of ids (B, C, S) or embeddings (B, C, S, H)."""
        check_tensors(input_ids=input_ids, inputs_embeds=embeds)
        given = input_ids if input_ids is not None else embeds
        if given is None:
            raise InputError("expected either input_ids or inputs_embeds, got neither")
        if given.dim() != (3 if input_ids is not None else 4):
            raise InputError(f"input_ids must be (B, C, S) for multiple choice, got {tuple(given.shape)}")
        return given.shape[1]


class BertForTokenClassification(BertHead):
    """A classifier for every token, such as for named entities; no pooler.

    Args:
        config: a `BertConfig`, or transformers'; ``num_labels`` is the number of classes, ``classifier_dropout``
            (None: ``hidden_dropout_prob``) is the dropout before them.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 5.3.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.num_labels = self.config.num_labels
        self.dropout = self.classifier_dropout()
        self.classifier = nn.Linear(self.make_bilstm(), self.num_labels)
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
            labels: int64 class ids in the shape of input_ids, or (T,) for packed tokens; -100 = no label.

        Returns:
            ``loss``: (), the mean over labelled tokens; ``logits``: (B, S, num_labels), zeros at masked tokens, or
            (T, num_labels).

        Raises:
            InputError: inputs or labels do not fit.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, position_ids, **options)
        states = apply_head_dropout(self.dropout, self.token_states(encoded), encoded.tokens)
        logits = apply_linear(self.classifier, states)
        loss = None
        if labels is not None:
            labels = encoded.tokens.pack(labels)
            check_labels(labels, self.num_labels)
            loss = ops.cross_entropy(logits, labels)
        output = LogitsOutput(loss, encoded.tokens.unpack(logits), encoded.hidden_states, encoded.attentions)
        return self._as_asked(output, return_dict)


class BertForQuestionAnswering(BertHead):
    """Scores every token as the start and as the end of an answer; no pooler.

    Args:
        config: a `BertConfig`, or transformers'; its ``num_labels`` is set to 2.

    Raises:
        InputError: the configuration is not that of a BERT encoder.

    Ref:
        Devlin et al. 2019, section 4.2.
    """

    def __init__(self, config: BertConfig) -> None:
        # transformers sizes this head by num_labels: a directory with another number would not load there.
        config = BertConfig.from_dict(BertConfig.from_hf(config).to_dict(), num_labels=2)
        super().__init__(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(self.make_bilstm(), 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> QuestionAnsweringOutput | tuple[Any, ...]:
        """Inputs are those of `BertModel.forward`.

        Args:
            start_positions, end_positions: (B,) int64 columns; one past the end, or on padding, is ignored.

        Returns:
            ``loss``: (), the mean of both cross-entropies, if both positions are given; each softmax is over the
            tokens of the sequence without padding (transformers includes padding). ``start_logits``, ``end_logits``:
            (B, S), zeros at masked tokens, or (T,).

        Raises:
            InputError: inputs or positions do not fit.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, position_ids, **options)
        tokens = encoded.tokens
        logits = apply_linear(self.qa_outputs, self.token_states(encoded))
        loss = None
        check_tensors(start_positions=start_positions, end_positions=end_positions)
        if start_positions is not None and end_positions is not None:
            rows, kept = self._rows(logits, tokens)
            losses = [
                self._span_loss(rows[..., i], kept, positions)
                for i, positions in enumerate((start_positions, end_positions))
            ]
            loss = (losses[0] + losses[1]) / 2
        start, end = tokens.unpack(logits).unbind(-1)
        output = QuestionAnsweringOutput(loss, start, end, encoded.hidden_states, encoded.attentions)
        return self._as_asked(output, return_dict)

    @staticmethod
    def _rows(logits: Tensor, tokens) -> tuple[Tensor, Tensor]:
        """(T, 2) -> (B, S, 2), and (B, S) bool: whether there is a token."""
        if tokens.shape.packing is not None:
            ones = torch.ones(logits.shape[0], dtype=logits.dtype, device=logits.device)
            return tokens.unpack(logits), tokens.unpack(ones) != 0
        lengths = tokens.cu_seqlens.diff().long()
        columns = torch.arange(tokens.layout.max_seqlen, device=logits.device)
        kept = columns < lengths[:, None]
        # By indices and not by a bool mask: its gradient would make the host wait for the device.
        bounds = tokens.cu_seqlens.long()
        places = torch.arange(len(logits), device=logits.device)
        sequences = torch.searchsorted(bounds[1:], places, right=True)
        places = sequences * kept.shape[1] + places - bounds[sequences]
        rows = logits.new_zeros(kept.numel(), 2).index_copy(0, places, logits)
        return rows.view(*kept.shape, 2), kept

    @staticmethod
    def _span_loss(logits: Tensor, kept: Tensor, positions: Tensor) -> Tensor:
        # As in transformers: a position below 0 counts as column 0, one past the end is ignored.
        positions = positions.view(-1).clamp(min=0)
        outside = positions >= logits.shape[1]
        inside = positions.clamp(max=max(logits.shape[1] - 1, 0))
        outside = outside | ~kept.gather(1, inside[:, None])[:, 0]
        logits = logits.masked_fill(~kept, torch.finfo(logits.dtype).min)
        return ops.cross_entropy(logits, torch.where(outside, -100, inside))
