"""One output layer on a GPT, for fine-tuning (Radford et al. 2018, sections 3.2 and 3.3).

A sequence is represented by the decoder's state at its last token, the extract token. In training, ``lm_weight`` adds
the next-word loss of the same sequences to the task's loss (L3 = L2 + lambda L1; lambda is 0.5 in the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from .. import ops
from ..errors import InputError
from ..gpt_config import GPTConfig
from ..modules.linear import apply_linear
from ..outputs import LogitsOutput
from ..packing import PackedBatch
from .bert import Encoded, HeadDropout, apply_head_dropout, encoded_by
from .checks import check_labels
from .gpt import GPTModel, GPTPreTrainedModel
from .logits import choice_logits, classification_loss


def _refuse_bilstm(config: GPTConfig | type[GPTConfig], units: int | None) -> None:
    if units is not None:
        raise InputError(f"a BiLSTM stands on an encoder, got bilstm_units for a {config.model_type}")


class GPTHead(GPTPreTrainedModel):
    """Base class of the heads: a `GPTModel` named ``transformer``, and a classifier of its last tokens."""

    def __init__(self, config: GPTConfig, outputs: int | None = None) -> None:
        super().__init__(config)
        _refuse_bilstm(self.config, getattr(self.config, "bilstm_units", None))
        self.transformer = GPTModel(self.config)
        self.num_labels = outputs or self.config.num_labels
        self.dropout = HeadDropout(self.config.resid_pdrop)
        self.classifier = nn.Linear(self.config.n_embd, self.num_labels)
        self.post_init()

    @classmethod
    def from_pretrained(cls, directory, **options: Any) -> Self:
        """As `PreTrainedModel.from_pretrained`; the tokens that the input transforms need are added to the vocabulary
        of a model that has none yet."""
        _refuse_bilstm(cls.config_class, options.get("bilstm_units"))
        model = super().from_pretrained(directory, **options)
        model.add_task_tokens()
        return model

    def add_task_tokens(self) -> None:
        """Appends randomly initialised embedding rows for the start, delimiter and extract tokens (the paper's
        "randomly initialized start and end tokens"). A model that has a start-of-text token keeps it."""
        config = self.config
        if config.start_token_id is None:
            config.start_token_id = config.bos_token_id
        missing = [name for name in ("start", "delimiter", "extract") if getattr(config, f"{name}_token_id") is None]
        first = config.vocab_size
        if missing:
            self.resize_token_embeddings(first + len(missing))
        for number, name in enumerate(missing):
            setattr(config, f"{name}_token_id", first + number)

    def _states(self, encoded: Encoded, sequences: int = 1) -> Tensor:
        """(B / sequences, H): the states of the last tokens, summed over each group of ``sequences`` sequences."""
        last = encoded.tokens.pooled_tokens(encoded.hidden)
        if sequences < 1 or len(last) % sequences:
            raise InputError(f"orders must divide the {len(last)} sequences, got {sequences}")
        return last if sequences == 1 else last.view(-1, sequences, last.shape[-1]).sum(1)

    def _logits(self, states: Tensor, encoded: Encoded) -> Tensor:
        return apply_linear(self.classifier, apply_head_dropout(self.dropout, states, encoded.tokens))

    def _with_lm(self, loss: Tensor, encoded: Encoded, batch, lm_weight: float) -> Tensor:
        if not lm_weight or not self.training:
            return loss
        if not isinstance(batch, PackedBatch) or batch.mlm_positions is None:
            raise InputError("lm_weight needs a packed batch with the labels of next words, got none")
        logits = ops.linear(encoded.hidden.index_select(0, batch.mlm_positions), self.get_input_embeddings().weight)
        return loss + lm_weight * ops.cross_entropy(logits, batch.mlm_labels)


class GPTForSequenceClassification(GPTHead):
    """A classifier or regressor of a sequence, or of a pair in both orders."""

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        orders: int = 1,
        lm_weight: float = 0.0,
        return_dict: bool | None = None,
        **options: Any,
    ) -> LogitsOutput | tuple[Any, ...]:
        """Inputs are those of `GPTModel.forward`; labels those of `logits.classification_loss`.

        Args:
            orders: how many consecutive sequences belong to one example; their states are summed before the classifier
                (2 for the paper's similarity tasks).
            lm_weight: weight of the next-word loss, at ``mlm_positions`` of a `PackedBatch`.

        Returns:
            ``loss``: (); ``logits``: (B / orders, num_labels).

        Raises:
            InputError: inputs or labels do not fit.
        """
        encoded = encoded_by(self.transformer, input_ids, attention_mask, position_ids, **options)
        logits = self._logits(self._states(encoded, orders), encoded)
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.num_labels, self.config.problem_type)
            loss = self._with_lm(loss, encoded, input_ids, lm_weight)
        return self._as_asked(LogitsOutput(loss, logits, encoded.hidden_states), return_dict)


class GPTForMultipleChoice(GPTHead):
    """One score for each choice; a softmax over the choices of a question."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config, outputs=1)

    def forward(
        self,
        input_ids: PackedBatch,
        *,
        labels: Tensor | None = None,
        num_choices: int | Sequence[int],
        lm_weight: float = 0.0,
        return_dict: bool | None = None,
        **options: Any,
    ) -> LogitsOutput | tuple[Any, ...]:
        """Scores the choices of questions.

        Args:
            input_ids: a `PackedBatch` of the choices of B questions, those of one question next to each other.
            labels: (B,) int64, the index of the right choice.
            num_choices: C, the number of choices of every question, or a list of numbers of which C is the largest.
            lm_weight: as in `GPTForSequenceClassification`.

        Returns:
            ``loss``: (), mean cross-entropy; ``logits``: (B, C), as `choice_logits` says.

        Raises:
            InputError: numbers or labels do not fit.
        """
        encoded = encoded_by(self.transformer, input_ids, **options)
        logits = choice_logits(self._logits(self._states(encoded), encoded), num_choices)
        loss = None
        if labels is not None:
            check_labels(labels, logits.shape[1])
            loss = self._with_lm(ops.cross_entropy(logits, labels), encoded, input_ids, lm_weight)
        return self._as_asked(LogitsOutput(loss, logits, encoded.hidden_states), return_dict)
