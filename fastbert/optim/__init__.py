"""Optimisers of BERT's literature, gradient clipping and learning-rate schedules."""

# A kernel enters the dispatcher's table by being imported.
from . import (
    _cpu,  # noqa: F401
    _cuda,  # noqa: F401
    _triton,  # noqa: F401
    schedules,
)
from .adamw import AdamW
from .device import device_step, prepare
from .groups import clip_grad_norm, clipped_step, param_groups
from .lamb import Lamb

__all__ = [
    "AdamW",
    "Lamb",
    "clip_grad_norm",
    "clipped_step",
    "device_step",
    "param_groups",
    "prepare",
    "schedules",
]
