"""Token, segment and position embeddings (Devlin et al. 2019, figure 2)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..config import BertConfig
from ..errors import InputError
from ..rng import EMBEDDING_SITE, DropoutKey
from .linear import is_plain_tensor, is_watched
from .norm import apply_norm, is_plain_norm
from .unread import ModuleWithout


def sinusoids(positions: int, size: int) -> Tensor:
    """The table of Vaswani et al. 2017, section 3.5: (positions, size) float32.

    PE(pos, 2i) = sin(pos / 10000^(2i / size)) and PE(pos, 2i + 1) = cos of the same.
    """
    # In float64: the angles of late positions are hundreds of radians, for which float32 has too few digits.
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(10000.0) / size))
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).reshape(positions, -1)[:, :size].float()


class SinusoidalEmbedding(nn.Module):
    """A fixed table, with the same name as a learned one: `sinusoids` / sqrt(size).

    Vaswani et al. (section 3.4) add PE to sqrt(size) times the word's vector. Here a LayerNorm follows, for which
    sqrt(size) E + PE and E + PE / sqrt(size) are equivalent, so the word embeddings keep BERT's scale, which the tied
    masked-LM head needs. The table is saved with the weights, so that a library that only knows learned positions
    computes the same from the file.
    """

    def __init__(self, positions: int, size: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(positions, size))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Computes the table again, whatever was loaded from a file."""
        positions, size = self.weight.shape
        self.weight.copy_(sinusoids(positions, size) / math.sqrt(size))

    def forward(self, position_ids: Tensor) -> Tensor:
        """(T,) int64 -> (T, H)."""
        return F.embedding(position_ids, self.weight)


def is_plain_table(module: nn.Module) -> bool:
    """Whether a module only looks rows up, with dense gradients: torch's own embedding class without its other options,
    or the sinusoidal one, and without hooks."""
    if is_watched(module):
        return False
    odd = ("max_norm", "scale_grad_by_freq", "sparse")
    if type(module) is not nn.Embedding or any(getattr(module, name) for name in odd):
        return type(module) is SinusoidalEmbedding
    return is_plain_tensor(module.weight)


class BertEmbeddings(ModuleWithout):
    """dropout(LayerNorm(word + token type + position))."""

    computed_by_ops = ("dropout",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        fixed = config.position_embedding_type == "sinusoidal"
        positions = SinusoidalEmbedding if fixed else nn.Embedding
        self.position_embeddings = positions(config.max_position_embeddings, size)
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
        dropout = key.site(self.config.hidden_dropout_prob, EMBEDDING_SITE) if key and self.training else None
        words, types, positions, norm = (
            self.word_embeddings, self.token_type_embeddings, self.position_embeddings, self.LayerNorm,
        )  # fmt: skip
        plain = all(map(is_plain_table, (words, types, positions))) and is_plain_norm(norm) and not is_watched(norm)
        # The kernel leaves out the gradient of one row of the words alone.
        plain = plain and all(getattr(table, "padding_idx", None) is None for table in (types, positions))
        if inputs_embeds is not None or not plain:  # such as an adapter in a table's place, or a table with hooks
            if inputs_embeds is None and words.training and hasattr(words, "neftune_noise_alpha"):
                raise InputError(
                    "neftune_noise_alpha is not supported by fastbert's models: expected word vectors (B, S, H), by "
                    "whose length the noise is scaled, got packed ones (T, H); use transformers' model"
                )
            x = words(input_ids) if inputs_embeds is None else inputs_embeds
            x = x + types(token_type_ids) + positions(position_ids)
            return ops.dropout(apply_norm(norm, x), dropout)
        return ops.embedding(
            input_ids,
            token_type_ids,
            position_ids,
            words.weight,
            types.weight,
            positions.weight,
            norm.weight,
            norm.bias,
            norm.eps,
            padding_idx=words.padding_idx,
            dropout=dropout,
        )
