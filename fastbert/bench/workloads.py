"""The workloads: the numbers and lengths of sequences, and the batches made of them. Does not import torch.

W1..W4 are inference, T1 and T2 training. Letters: B sequences, S columns of the padded batch; only real tokens count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_FIRST_WORD = 1000  # in BERT's vocabulary; the ids below are special and unused tokens
_CLS, _SEP, _MASK = 101, 102, 103


@dataclass(frozen=True)
class Workload:
    """Sequences of given lengths, all in one batch.

    Args:
        name: as on the command line.
        title: a description.
        kind: "inference" or "training".
        lengths: the number of tokens of each sequence.
        latency: whether it is judged by its time, and not by tokens per second.
    """

    name: str
    title: str
    kind: str
    lengths: tuple[int, ...]
    latency: bool = False

    @property
    def num_tokens(self) -> int:
        """The number of tokens without pads, which every speed counts."""
        return sum(self.lengths)

    @property
    def padded_tokens(self) -> int:
        """The number of tokens of the padded batch."""
        return len(self.lengths) * max(self.lengths)

    @property
    def mixed(self) -> bool:
        """Whether its lengths differ, so that a padded batch has pads."""
        return self.padded_tokens != self.num_tokens


def lognormal_lengths(count: int, median: float, sigma: float, least: int, most: int) -> tuple[int, ...]:
    """Lengths at the quantiles (i + 1/2) / count of a log-normal distribution, clipped, in a fixed mixed order.

    With quantiles instead of draws, the batch has the shape of the distribution, and there is no seed to choose.
    """
    from statistics import NormalDist

    normal = NormalDist()
    quantiles = [median * np.exp(sigma * normal.inv_cdf((i + 0.5) / count)) for i in range(count)]
    lengths = [int(min(max(round(q), least), most)) for q in quantiles]
    order = np.random.default_rng(0).permutation(count)
    return tuple(lengths[i] for i in order)


_W2 = lognormal_lengths(32, median=30, sigma=0.6, least=4, most=256)
# T2 is eight of W2's sentences, every fourth by length, twice as long.
_T2 = tuple(min(2 * length, 128) for length in sorted(_W2)[2::4])

INFERENCE = (
    Workload("W1", "8 x 128, full", "inference", (128,) * 8),
    Workload("W2", "32 sentences, log-normal lengths (median 30, sigma 0.6)", "inference", _W2),
    Workload("W3", "1 x 32, latency", "inference", (32,), latency=True),
    Workload("W4", "4 x 512, full", "inference", (512,) * 4),
)
TRAINING = (
    Workload("T1", "8 x 128, full", "training", (128,) * 8),
    Workload("T2", "8 mixed lengths (twice W2's, at most 128)", "training", _T2),
)


def num_predicted(lengths) -> int:
    """The number of masked tokens of a training batch: 15 % of each sequence, at least one."""
    return sum(max(1, round(0.15 * length)) for length in lengths)


def make_batch(workload: Workload, vocab_size: int, seed: int = 1) -> dict[str, np.ndarray]:
    """A padded batch, in the form that every library takes; the measured batches are those of the default seed.

    Returns:
        ``input_ids``, ``attention_mask``, ``token_type_ids`` (B, S) int64; for training also ``labels`` (B, S) int64,
        -100 = not predicted, and ``next_sentence_label`` (B,) int64.
    """
    rng = np.random.default_rng(seed)
    lengths = np.array(workload.lengths)
    shape = (len(lengths), int(lengths.max()))
    columns = np.arange(shape[1])
    keep = columns < lengths[:, None]
    first = min(_FIRST_WORD, vocab_size // 2)
    ids = rng.integers(first, vocab_size, shape)
    if vocab_size > _FIRST_WORD:
        ids[:, 0], ids[np.arange(shape[0]), lengths - 1] = _CLS, _SEP
    batch = {
        "input_ids": np.where(keep, ids, 0),
        "attention_mask": keep.astype(np.int64),
        "token_type_ids": ((columns >= lengths[:, None] // 2) & keep).astype(np.int64),
    }
    if workload.kind == "training":
        labels = np.full(shape, -100)
        for row, length in enumerate(workload.lengths):
            chosen = rng.choice(length, max(1, round(0.15 * length)), replace=False)
            labels[row, chosen] = ids[row, chosen]
            batch["input_ids"][row, chosen] = min(_MASK, vocab_size - 1)
        batch |= {"labels": labels, "next_sentence_label": rng.integers(0, 2, shape[0])}
    return batch


def forward_flops(config, workload: Workload) -> float:
    """The FLOPs of the matrix products in a forward pass over the real tokens: L (8 h^2 s + 4 h f s + 4 h s^2)."""
    h, f = config.hidden_size, config.intermediate_size
    squares = sum(length * length for length in workload.lengths)
    return config.num_hidden_layers * ((8.0 * h * h + 4.0 * h * f) * workload.num_tokens + 4.0 * h * squares)


def flops(config, workload: Workload) -> float:
    """The model FLOPs of one run; a training step has three times those of the forward pass with its predictions."""
    forward = forward_flops(config, workload)
    if workload.kind == "inference":
        return forward
    h, predicted = config.hidden_size, num_predicted(workload.lengths)
    return 3.0 * (forward + predicted * (2.0 * h * h + 2.0 * h * config.vocab_size))
