"""Checks of ids and labels that a caller passes to a model.

Values on a GPU are not checked, since the host would have to wait for the device in every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import BertConfig
from ..errors import InputError
from ..gpt_config import GPTConfig
from ..transforms import is_transformed
from ..wording import dtype_name


def _unread(x: Tensor) -> bool:
    """Whether the values of x are not checked: they are on another device, or there are none, as in torch.compile and
    in transforms of torch.func."""
    return x.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed()


def check_ids(
    config: BertConfig | GPTConfig, input_ids: Tensor | None, token_type_ids: Tensor, position_ids: Tensor
) -> None:
    """Raises InputError for an id outside its table, or ids that are neither int64 nor int32."""
    for name, ids in (("input_ids", input_ids), ("token_type_ids", token_type_ids), ("position_ids", position_ids)):
        if ids is not None and ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"{name} must be int64 or int32, got {dtype_name(ids.dtype)}")
    for name, ids, size, what in (
        ("input_ids", input_ids, config.vocab_size, "the vocabulary has"),
        ("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size is"),
        ("position_ids", position_ids, config.max_position_embeddings, "max_position_embeddings is"),
    ):
        if ids is not None and size is not None:
            check_range(name, ids, size, what)


def check_range(name: str, ids: Tensor, size: int, what: str) -> None:
    """Raises InputError for an id outside 0..size-1.

    Args:
        name: what the message calls the ids.
        ids: integers of any shape.
        size: the number of rows of the table.
        what: the words before ``size`` in the message.
    """
    if _unread(ids) or ids.numel() == 0:
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= size:
        raise InputError(f"{name} must be between 0 and {size - 1} ({what} {size}), got {low if low < 0 else high}")


def check_tensors(**given) -> None:
    """Raises InputError for an argument that is neither a tensor nor None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise InputError(f"{name} must be a torch tensor, got {type(value).__name__}")


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Raises InputError for a label that is neither in 0..num_classes-1 nor -100, or labels that are not int64."""
    check_tensors(labels=labels)
    if labels.dtype != torch.int64:
        raise InputError(f"labels must be int64, got {dtype_name(labels.dtype)}")
    if _unread(labels):
        return
    wrong = labels[((labels < 0) & (labels != -100)) | (labels >= num_classes)]
    if wrong.numel():
        raise InputError(f"labels must be between 0 and {num_classes - 1}, or -100 for none, got {int(wrong[0])}")
