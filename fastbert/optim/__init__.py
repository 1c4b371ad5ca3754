"""Optimisers of BERT's literature, gradient clipping and learning-rate schedules."""

from . import schedules
from .adamw import AdamW
from .groups import clip_grad_norm, param_groups
from .lamb import Lamb

__all__ = ["AdamW", "Lamb", "clip_grad_norm", "param_groups", "schedules"]
