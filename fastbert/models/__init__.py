"""The models: BERT with its seven heads, which are exported here, GPT, GPT-2, ELMo and static vectors.

They have Hugging Face's names, weights and behaviour.

    pretrained, loading_options       the base class: loading, saving, resizing, tying
    bert, pretraining_heads, task_heads
    gpt, gpt_heads, gpt_files, generation
    elmo, static
    registry, encoders                which classes belong to a model_type; loading a model of any kind
    inputs, checks                    a caller's batch to packed tokens and back; ids and labels out of range
    logits                            losses and shapes that heads of all kinds share
"""

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
