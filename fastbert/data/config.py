"""How pre-training samples are made; importable without torch, for the command line's help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InputError
from ..options import check_choices, check_seed


@dataclass(frozen=True)
class SampleConfig:
    """How samples are made from sentences (Devlin et al. 2019, section 3.1)."""

    max_seqlen: int = 128
    """Longest sample in tokens, special tokens included."""
    objective: Literal["mlm", "causal"] = "mlm"
    """mlm = predict masked tokens from both sides; causal = predict every token from those before it. A BERT with
    new weights is made for the objective; any other model must be of that kind."""
    mlm_probability: float = 0.15
    """Share of the tokens to predict."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of the predicted tokens that become [MASK], become a random token, or stay as they are."""
    max_predictions: int | None = None
    """The most predicted tokens in a sample."""
    whole_word: bool = False
    """Mask all pieces of a word together."""
    nsp: bool = True
    """Sentence pairs with next-sentence labels; without them, samples are consecutive sentences of one document."""
    short_seq_prob: float = 0.1
    """Share of the documents that are cut into shorter samples."""
    duplication: int | None = None
    """Fixed versions of pairs and masks, used in turn; without, new ones every epoch."""
    seed: int = 0
    """Seed of pairs, masks and order."""

    def __post_init__(self) -> None:
        if self.max_seqlen < 8:
            raise InputError(f"max_seqlen must be at least 8, got {self.max_seqlen}")
        check_choices(self)
        if self.objective == "causal" and (self.whole_word or self.max_predictions is not None):
            raise InputError("whole_word and max_predictions choose masked tokens, and objective causal masks none")
        for name in ("mlm_probability", "short_seq_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if self.objective == "mlm" and not self.mlm_probability and not self.nsp:
            raise InputError("mlm_probability must be above 0 where there are no sentence pairs to learn from, got 0")
        mix = tuple(self.mask_mix)
        if len(mix) != 3 or not all(0 <= share <= 1 for share in mix) or abs(sum(mix) - 1) > 1e-6:
            raise InputError(f"mask_mix must be three shares (mask, random, keep) that add up to 1, got {mix}")
        check_seed(self)
        for name in ("max_predictions", "duplication"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 1 << 63:
                raise InputError(f"{name} must be at least 1 and below 2^63, or none, got {value}")
