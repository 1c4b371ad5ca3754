"""ELMo below its softmax layer: vectors of words from their characters, and LSTM layers of both directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .. import ops, rng
from ..data.characters import PAD
from ..elmo_config import ElmoConfig
from ..errors import InputError
from .bilm import ProjectedLSTM
from .character_cnn import CharacterCNN
from .lstm import Order


class ElmoEmbeddings(nn.Module):
    """Vectors of tokens from the characters of their vocabulary, (T,) ids -> (T, P).

    ``characters`` (vocab_size, max_characters) int16 is a buffer that is saved with the weights.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        shape = (config.vocab_size, config.max_characters)
        characters = torch.full(shape, PAD, dtype=torch.int16)
        if config.characters is not None:
            given = torch.as_tensor(config.characters)
            if given.dim() != 2 or given.shape[0] > shape[0] or given.shape[1] != shape[1]:
                raise InputError(f"characters must be {shape}, a row a token, got {tuple(given.shape)}")
            characters[: len(given)] = given.to(characters)
        self.register_buffer("characters", characters)
        self.cnn = CharacterCNN(
            config.num_characters,
            config.character_embedding_size,
            config.character_filters,
            config.num_highway_layers,
            config.projection_size,
            PAD,
        )

    def forward(self, input_ids: Tensor, characters: Tensor | None = None) -> Tensor:
        """The vectors of tokens.

        Args:
            input_ids: (T,) int64; a token that occurs several times is computed once.
            characters: (T, W) integers, in place of the ids.

        Returns:
            (T, P).
        """
        if characters is not None:
            return self.cnn(characters)
        distinct, places = input_ids.unique(return_inverse=True)
        return self.cnn(self.characters.index_select(0, distinct)).index_select(0, places)


class ElmoEncoder(nn.Module):
    """The LSTM layers of both directions; from the second on a layer's input is added to its output."""

    gradient_checkpointing = False

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        size = config.projection_size
        options = (size, config.lstm_size, size, config.lstm_cell_clip, config.lstm_projection_clip)
        layers = range(config.num_hidden_layers)
        self.forward_layers = nn.ModuleList(ProjectedLSTM(*options) for _ in layers)
        self.backward_layers = nn.ModuleList(ProjectedLSTM(*options) for _ in layers)
        self.p = config.hidden_dropout_prob

    def forward(self, x: Tensor, cu_seqlens: Tensor, key: rng.DropoutKey | None) -> tuple[list[Tensor], list[Tensor]]:
        """States of all layers.

        Args:
            x: (T, P) vectors of words.
            key: of dropout, None for none.

        Returns:
            (T, P) of every layer, the words' vectors first: forward, backward.
        """
        directions = []
        for side, layers in enumerate((self.forward_layers, self.backward_layers)):
            order, states = Order(cu_seqlens, backwards=bool(side)), [x]
            for number, layer in enumerate(layers):
                taken = self.dropout(states[-1], number, side, key)
                if self.gradient_checkpointing and self.training:
                    found = checkpoint(layer, taken, order, use_reentrant=False)
                else:
                    found = layer(taken, order)
                states.append(found + taken if number else found)
            directions.append(states)
        return directions[0], directions[1]

    def dropout(self, x: Tensor, number: int, side: int, key: rng.DropoutKey | None) -> Tensor:
        """Dropout of a layer's input (T, P), or of the last layer's output; each direction draws its own mask."""
        site = rng.FIRST_LAYER_SITE + number * rng.LAYER_SITES + side
        return x if key is None else ops.dropout(x, key.site(self.p, site))
