"""BERT's input: token + segment + position embeddings, normalised and dropped out (Devlin et al. 2019, fig. 2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .dropout import dropout as apply_dropout
from .layer_norm import layer_norm


def embedding(
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    word: Tensor,
    token_type: Tensor,
    position: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    padding_idx: int | None = None,
    dropout=None,
) -> Tensor:
    """dropout(LN(word[ids] + token_type[types] + position[positions])): ids (T,), tables (rows, H) -> (T, H).

    ``padding_idx``: the row of ``word`` that gets no gradient.
    """
    x = F.embedding(input_ids, word, padding_idx) + F.embedding(token_type_ids, token_type)
    x = x + F.embedding(position_ids, position)
    return apply_dropout(layer_norm(x, weight, bias, eps), dropout)
