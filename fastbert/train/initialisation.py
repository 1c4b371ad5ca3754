"""An initialisation with which a small BERT learns on a small corpus within minutes.

BERT's weights are initialised with a standard deviation of 0.02, which suits long runs of large models. A model of
hidden size 128 then begins with nearly uniform attention and almost no signal, and spends its first million tokens
learning what the initialisation can provide:

- a standard deviation near 1 / sqrt(hidden size), so that signals keep their magnitude from layer to layer;
- a smaller last matrix in both branches of a layer, so that each layer begins close to the identity;
- equal query and key matrices, so that tokens at first attend to similar tokens;
- position embeddings that begin as sinusoids (Vaswani et al. 2017, section 3.5) and are learned from there, so that
  neighbouring positions are similar from the first step;
- the bias of the masked-LM head set to the logarithm of the corpus's token frequencies, so that the loss begins at the
  unigram entropy.
"""

from __future__ import annotations

import math

import torch

from ..models import BertForPreTraining
from ..modules.embeddings import sinusoids

_BRANCH_SCALE = 0.2


def initializer_range(hidden_size: int) -> float:
    """The standard deviation that goes with `start_small`: a little under 1 / sqrt(hidden size)."""
    return 0.8 / math.sqrt(hidden_size)


@torch.no_grad()
def start_small(model: BertForPreTraining, token_counts: torch.Tensor) -> None:
    """Changes new weights in place.

    Args:
        model: a new model, made with the `initializer_range` of its size.
        token_counts: (V,) int64, how often each token occurs in the training text.
    """
    bert, std = model.bert, model.config.initializer_range
    for layer in bert.encoder.layer:
        attention = layer.attention
        attention.self.key.weight.copy_(attention.self.query.weight)
        attention.output.dense.weight.mul_(_BRANCH_SCALE)
        layer.output.dense.weight.mul_(_BRANCH_SCALE)
    table = bert.embeddings.position_embeddings.weight
    if model.config.position_embedding_type == "absolute":
        # The root mean square of a sinusoid is 1 / sqrt(2), of the other tables `std`.
        table.copy_(sinusoids(*table.shape) * std * math.sqrt(2))
    shares = (token_counts.double() + 1) / (token_counts.sum() + token_counts.numel())
    model.cls.predictions.bias.copy_(shares.log())
