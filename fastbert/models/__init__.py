"""BERT and its seven heads, with Hugging Face's names, weights and behaviour."""

from .bert import BertModel
from .pretrained import PreTrainedModel
from .pretraining_heads import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining
from .task_heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

__all__ = [
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "PreTrainedModel",
]
