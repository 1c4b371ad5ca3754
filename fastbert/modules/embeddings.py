"""Token, segment and position embeddings (Devlin et al. 2019, figure 2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..config import BertConfig
from ..rng import EMBEDDING_SITE, DropoutKey


class BertEmbeddings(nn.Module):
    """dropout(LayerNorm(word + token type + position))."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor,
        position_ids: Tensor,
        key: DropoutKey | None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """input_ids, token_type_ids, position_ids (T,) -> (T, H); inputs_embeds (T, H) in place of input_ids."""
        dropout = key.site(self.config.hidden_dropout_prob, EMBEDDING_SITE) if key else None
        norm = self.LayerNorm
        words = self.word_embeddings
        if inputs_embeds is None and (type(words) is not nn.Embedding or words._forward_hooks):
            inputs_embeds = words(input_ids)  # an adapter in its place, or someone listening to it
        if inputs_embeds is not None:
            x = inputs_embeds + F.embedding(token_type_ids, self.token_type_embeddings.weight)
            x = x + F.embedding(position_ids, self.position_embeddings.weight)
            return ops.dropout(ops.layer_norm(x, norm.weight, norm.bias, norm.eps), dropout)
        return ops.embedding(
            input_ids,
            token_type_ids,
            position_ids,
            self.word_embeddings.weight,
            self.token_type_embeddings.weight,
            self.position_embeddings.weight,
            norm.weight,
            norm.bias,
            norm.eps,
            padding_idx=self.word_embeddings.padding_idx,
            dropout=dropout,
        )
