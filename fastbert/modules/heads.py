"""The pre-training heads on top of the encoder: the pooler, the masked-LM head, the next-sentence head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops
from ..config import BertConfig
from .linear import apply_linear, split_bias
from .norm import apply_norm
from .unread import ModuleWithout


class BertPooler(ModuleWithout):
    """tanh(W x + b) of the token that represents each sequence: the first, or the last in a left-to-right model."""

    computed_by_ops = ("activation",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first_tokens: Tensor) -> Tensor:
        """(B, H) -> (B, H)."""
        return torch.tanh(apply_linear(self.dense, first_tokens))


class BertPredictionHeadTransform(ModuleWithout):
    """LN(gelu(W x + b))."""

    computed_by_ops = ("transform_act_fn",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.approximate = config.gelu_approximate

    def forward(self, x: Tensor) -> Tensor:
        """(N, H) -> (N, H)."""
        x, bias = split_bias(self.dense, x)
        return apply_norm(self.LayerNorm, ops.gelu(x, bias, self.approximate))


class BertLMPredictionHead(nn.Module):
    """Logits over the vocabulary; the decoder's weight is the word embedding's."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.decoder.bias = self.bias

    def forward(self, x: Tensor) -> Tensor:
        """(N, H) -> (N, V)."""
        return apply_linear(self.decoder, self.transform(x))


class BertPreTrainingHeads(nn.Module):
    """``cls`` of transformers: ``predictions`` and ``seq_relationship``, where asked for."""

    def __init__(self, config: BertConfig, mlm: bool = True, nsp: bool = True) -> None:
        super().__init__()
        if mlm:
            self.predictions = BertLMPredictionHead(config)
        if nsp:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor | None, pooled: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """hidden (N, H), pooled (B, H) -> (N, V), (B, 2); each is None if its input is None."""
        logits = None if hidden is None else self.predictions(hidden)
        return logits, None if pooled is None else apply_linear(self.seq_relationship, pooled)
