"""A task's own weighted sum of the layers of a frozen model (Peters et al. 2018, equation 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_EPS = 1e-12


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j h_j, where s and gamma are learned and initialised so that the mix is the mean.

    Args:
        num_layers: the number of layers, counting the embeddings as one.
        layer_norm: whether each token's vector of each layer is first normalised to mean 0 and variance 1, without
            weights, which helps in some cases according to the paper (section 3.2).
    """

    def __init__(self, num_layers: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.scalars = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm = layer_norm

    @property
    def weights(self) -> Tensor:
        """(num_layers,) shares of the layers, which sum to 1."""
        return self.scalars.softmax(0)

    def forward(self, layers: Tensor | Sequence[Tensor]) -> Tensor:
        """Mixes layers.

        Args:
            layers: (num_layers, ..., H), or as many tensors (..., H).

        Returns:
            (..., H).
        """
        if not isinstance(layers, Tensor):
            layers = torch.stack(tuple(layers))
        if self.layer_norm:
            layers = nn.functional.layer_norm(layers, layers.shape[-1:], eps=_EPS)
        return self.gamma * torch.tensordot(self.weights.to(layers.dtype), layers, 1)

    def extra_repr(self) -> str:
        return f"num_layers={len(self.scalars)}, layer_norm={self.layer_norm}"
