"""The recipe of a fine-tuning, importable without torch: `fastbert finetune --help` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InputError


@dataclass(kw_only=True)
class FinetuneConfig:
    """BERT's recipe: 2-4 epochs of batches of 16 or 32, peak learning rate 2e-5 to 5e-5, warm-up, linear decay."""

    epochs: int = 3
    """Passes over the training rows; the model is evaluated after each and the best is kept."""
    batch_size: int = 32
    """Rows in a batch."""
    token_budget: int | None = None
    """Tokens in a batch, instead of --batch-size: as many rows as fit."""
    lr: float = 2e-5
    """Peak learning rate; the paper tries 2e-5, 3e-5, 4e-5 and 5e-5."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises; then it falls linearly to zero."""
    weight_decay: float = 0.01
    """AdamW's weight decay; none on biases and LayerNorm."""
    correct_bias: bool = True
    """Adam's bias correction. Google's code had none, which makes fine-tuning on few rows unstable (Mosbach et al.
    2021, Zhang et al. 2021)."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    max_seqlen: int = 128
    """Longest sequence in tokens; longer ones are cut."""
    seed: int = 0
    """Governs the new head, the order of the rows and dropout."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 keeps fp32 weights and multiplies in bfloat16."""
    limit_train: int | None = None
    """Use only the first N training rows."""
    limit_dev: int | None = None
    """Use only the first N dev rows."""
    log_every: int = 20
    """Steps between two lines of metrics.jsonl."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "token_budget", "limit_train", "limit_dev", "log_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.warmup <= 1:
            raise InputError(f"warmup is a share of the steps, between 0 and 1, got {self.warmup}")
        if not self.lr > 0:
            raise InputError(f"lr must be above 0, got {self.lr}")
