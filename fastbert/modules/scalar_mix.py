"""A task's own mix of the layers of a model that stays as it is (Peters et al. 2018, equation 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_EPS = 1e-12


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j h_j, with s and gamma learned; it begins as the plain mean.

    Args:
        num_layers: of the model, its embeddings as one.
        layer_norm: whether each token's vector of a layer is first brought to mean 0 and variance 1, without weights.
            The paper found that it helps in some cases (section 3.2).
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
