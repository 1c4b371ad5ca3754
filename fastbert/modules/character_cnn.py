"""Vectors of words from their characters: convolutions, max pooling, highway layers, a projection.

Kim et al. 2016, "Character-Aware Neural Language Models", sections 2.2 and 2.3, with ReLU as in ELMo.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import apply_linear

# Kim et al. initialise the gates so that they carry most of the input through.
_GATE_BIAS = -2.0


class Highway(nn.Module):
    """One highway layer (Srivastava et al. 2015): t * relu(W x + b) + (1 - t) * x, t = sigmoid(W_t x + b_t)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) -> (N, F)."""
        gate = torch.sigmoid(apply_linear(self.gate, x))
        return gate * F.relu(apply_linear(self.transform, x)) + (1 - gate) * x

    @torch.no_grad()
    def reset_parameters(self, std: float) -> None:
        """Initialises weights with standard deviation ``std``, and the gate so that most of x passes through."""
        for linear in (self.transform, self.gate):
            linear.weight.normal_(0.0, std)
            linear.bias.zero_()
        self.gate.bias.fill_(_GATE_BIAS)


class CharacterCNN(nn.Module):
    """Characters (N, W) -> vectors (N, size).

    Args:
        num_characters: the size of the alphabet.
        embedding_size: the size of a character's embedding.
        filters: (width, number of filters) of each convolution.
        num_highway_layers: layers on the concatenated outputs of all convolutions.
        size: the size of a word's vector.
        pad: the id of the character that pads words.
    """

    def __init__(
        self,
        num_characters: int,
        embedding_size: int,
        filters: Sequence[Sequence[int]],
        num_highway_layers: int,
        size: int,
        pad: int,
    ) -> None:
        super().__init__()
        self.pad, self.widest = pad, max(width for width, _ in filters)
        total = sum(number for _, number in filters)
        self.embeddings = nn.Embedding(num_characters, embedding_size)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding_size, number, width) for width, number in filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(num_highway_layers))
        self.projection = nn.Linear(total, size)

    def forward(self, characters: Tensor) -> Tensor:
        """Computes the vectors of words.

        Args:
            characters: (N, W) integers; W is at least the widest filter.

        Returns:
            (N, size) in the dtype of the weights.
        """
        characters = self._without_needless_pads(characters.long())
        x = self.embeddings(characters).transpose(1, 2)  # (N, E, W)
        found = [F.relu(convolution(x).amax(2)) for convolution in self.convolutions]
        x = torch.cat(found, 1)
        for highway in self.highways:
            x = highway(x)
        return apply_linear(self.projection, x)

    def _without_needless_pads(self, characters: Tensor) -> Tensor:
        """The columns that matter: windows of padding all have the same value, so one of each width after the longest
        word is enough for the maximum."""
        if characters.device.type != "cpu" or not characters.numel():
            return characters  # on another device the host would have to wait for ``longest``
        longest = int((characters != self.pad).any(0).sum())
        return characters[:, : longest + self.widest]
