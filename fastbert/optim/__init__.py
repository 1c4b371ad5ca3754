"""Optimisers of BERT's literature, gradient clipping and learning-rate schedules.

adamw, lamb              the optimisers, each with its update in plain torch: start here
base                     what both share: states, float32 masters of 16-bit parameters, one call for all tensors
groups, schedules        who decays; clipping; the learning rate over a run
rates                    the numbers of an update, in the order in which the kernels read them
_cpu, _triton, _cuda     the updates by kernels
device                   a step of which everything is decided on the device, for CUDA graphs
sharded                  LAMB over flat shards of many tensors, as DeepSpeed has them
"""

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
