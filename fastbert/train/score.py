"""The figures of a pre-trained model on held-out documents, without training."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable

from .. import hardware
from ..errors import CheckpointError, DataError, InputError
from ..models import registry
from ..models.pretrained import PreTrainedModel
from ..weights.loading import warnings_held
from ..wording import listed
from .config import PretrainConfig
from .distributed import launched
from .evaluation import evaluate
from .model_and_data import check_fit, open_split, other_words
from .precision import Precision

_log = logging.getLogger("fastbert")


def score(config: PretrainConfig, split: str, advance: Callable[[int, int], object] | None = None) -> dict[str, float]:
    """Scores the model in ``config.model`` on all documents of a split, with the pairs and masks of the first epoch.

    Sentence pairs are left out, and a log line says so, if the model cannot predict next sentences.

    Args:
        config: where data and model are, and how samples are made; of phases the last one counts. Options of training
            are not read.
        split: "heldout" or "train".
        advance: called after every batch with its number of tokens, and that of all batches.

    Returns:
        what `evaluate` returns, and ``perplexity``, e to the power of ``mlm_loss``.

    Raises:
        InputError: the model is no directory, does not fit the data, or was trained with another vocabulary.
        DataError: the split is empty or damaged.
        CheckpointError: weights cannot be read, or there are none of the masked-LM head.
    """
    if launched().size > 1:
        raise InputError(f"a model is scored by one process, got {launched().size}")
    model, next_sentence = _load(config.model)
    config = _of_last_phase(config)
    if config.samples.nsp and not next_sentence:
        config = _without_pairs(config)
    data = open_split(config, "train")
    if split != "train":
        if not data.shards.manifest.splits.get(split):
            raise DataError(
                f"{config.data}: expected documents in split {split!r}, got none: --evaluate train scores the documents"
                " of data that were prepared without --heldout"
            )
        data = open_split(config, split)
    if config.verify_data:
        data.shards.verify()
    check_fit(config, model, data)
    others = other_words(config, data.shards)
    if others is not None:
        raise InputError(others)
    device = hardware.default_device()
    model.to(device).last_layer = config.last_layer
    whole = int(data.lengths(0).sum())
    told = None if advance is None else lambda tokens: advance(tokens, whole)
    with Precision(config.precision, model, device).block():
        row = evaluate(model, data, token_budget=config.token_budget, advance=told)
    return row | ({"perplexity": _exponential(row["mlm_loss"])} if row["targets"] else {})


def _load(directory: str) -> tuple[PreTrainedModel, bool]:
    """The model, and whether it can predict next sentences."""
    kind = registry.of_directory(directory)
    with warnings_held() as warnings:
        model = kind.pretraining_class.from_pretrained(directory)
    of_pairs = set(map(id, model.next_sentence_parameters)) if getattr(model, "next_sentence", True) else set()
    named = dict(model.named_parameters())
    missing = [name for name in model.load_report.missing if id(named.get(name)) not in of_pairs]
    if missing:
        raise CheckpointError(
            f"{directory}: expected a trained {kind.pretraining_class.__name__}, got no weights for {listed(missing)}"
        )
    for record in warnings:
        if "newly initialised" not in record.getMessage():  # they are of the pairs, and not used
            _log.handle(record)
    return model, bool(of_pairs) and not model.load_report.missing


def _of_last_phase(config: PretrainConfig) -> PretrainConfig:
    """The recipe with the lengths of its last phase, and without phases."""
    if not config.phases:
        return config
    lengths = ("max_seqlen", "max_predictions")
    given = {name: value for name in lengths if (value := getattr(config.phases[-1], name)) is not None}
    return dataclasses.replace(config, samples=dataclasses.replace(config.samples, **given), phases=())


def _without_pairs(config: PretrainConfig) -> PretrainConfig:
    _log.warning(
        "%s: has no weights that predict next sentences: scored without sentence pairs, as --samples.no-nsp does",
        config.model,
    )
    return dataclasses.replace(config, samples=dataclasses.replace(config.samples, nsp=False))


def _exponential(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
