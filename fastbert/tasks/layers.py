"""What is not trained of a model, and which of its layers are trained at a lower rate."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import InputError
from ..models.bert import BertModel
from ..models.gpt import GPTModel
from .fits import check_freeze


def freeze(model: nn.Module, count: int) -> list[nn.Parameter]:
    """Freezes the embeddings and the first ``count`` layers: they get no gradients, and keep their dropout.

    Returns:
        the parameters that were not frozen before.

    Raises:
        InputError: the model has no such layers, or fewer.
    """
    embeddings, *layers = _from_below(model, "freeze")
    check_freeze(count, len(layers))
    own = [p for parameters in (embeddings, *layers[:count]) for p in parameters if p.requires_grad]
    for parameter in own:
        parameter.requires_grad_(False)
    return own


def lr_scales(model: nn.Module, decay: float) -> dict[Tensor, float]:
    """The factors on the learning rate of a model's layers and embeddings; of other parameters it is 1.

    The top layer has 1, and each layer ``decay`` times that of the one above; the embeddings lie below the first.

    Raises:
        InputError: the model has no such layers.

    Ref:
        Sun et al. 2019: eta^(k-1) = xi eta^k.
    """
    from_below = _from_below(model, "layer_decay")
    top = len(from_below) - 1
    return {p: decay ** (top - depth) for depth, parameters in enumerate(from_below) for p in parameters}


def _from_below(model: nn.Module, asked: str) -> list[list[nn.Parameter]]:
    """The parameters of the embeddings, then those of each layer."""
    base = getattr(model, "base_model", model)
    if isinstance(base, BertModel):
        tables, layers = [base.embeddings], base.encoder.layer
    elif isinstance(base, GPTModel):
        tables, layers = [getattr(base, name) for name in base.names], base.h
    else:
        raise InputError(f"{asked} needs a model of layers, got a {type(model).__name__}")
    return [[p for table in tables for p in table.parameters()], *(list(layer.parameters()) for layer in layers)]
