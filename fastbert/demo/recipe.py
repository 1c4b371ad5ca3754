"""What the demo trains, in full and in its one-minute version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Sizes and rates of one demo.

    They were found by trial on two cores: a small BERT at the usual rates does not leave the plateau at the unigram
    entropy within minutes. A high learning rate, many small steps and the start of `fastbert.train.initialisation`
    do it.

    Args:
        vocab_size, layers, hidden, heads: of the vocabulary and the model.
        max_seqlen, token_budget, steps, lr, warmup, betas: of pre-training.
        max_minutes: of pre-training; on a slow machine the schedule is shortened to end by then.
        heldout_share: the share of each family of modules for validation, and again for the test.
        labels: the number of training texts for each class of the classifier.
        epochs, classifier_lr, scratch_lr, seeds: of fine-tuning; from random weights a larger rate is better, and
            each start gets its better one.
    """

    vocab_size: int = 4000
    layers: int = 2
    hidden: int = 128
    heads: int = 4
    max_seqlen: int = 128
    token_budget: int = 2048
    steps: int = 4000
    max_minutes: float = 6.5
    lr: float = 2e-3
    warmup: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    heldout_share: float = 0.08
    labels: int = 30
    epochs: int = 10
    classifier_lr: float = 5e-4
    scratch_lr: float = 1e-3
    seeds: int = 3


FULL = Recipe()
QUICK = Recipe(max_seqlen=64, token_budget=1024, steps=800, max_minutes=0.25, epochs=3, seeds=1)
