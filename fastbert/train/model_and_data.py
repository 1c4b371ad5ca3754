"""The model and the data that a recipe names, and whether they fit together."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..data.pretraining import PretrainingData
from ..data.shards import ShardSet
from ..data.tokenizer import load_tokenizer
from ..errors import DataError, InputError
from ..hints import download_hint
from ..model_config import ModelConfig
from ..models import registry
from . import initialisation
from .config import PretrainConfig

if TYPE_CHECKING:
    from ..models.pretrained import PreTrainedModel

# New weights are drawn from torch's global generator, which two runs in two threads would otherwise share.
_building = threading.Lock()
# BERTs of up to this many units have been seen to stay at the unigram entropy for hours at BERT's own start and rates.
_SMALL = 256


def open_data(config: PretrainConfig) -> tuple[PretrainingData, PretrainingData | None]:
    """The training split and, if there is one, the held-out split. Raises InputError or DataError."""
    data = open_split(config, "train")
    return data, open_split(config, "heldout") if data.shards.manifest.splits.get("heldout") else None


def open_split(config: PretrainConfig, split: str) -> PretrainingData:
    """One split of the data. Raises InputError or DataError."""
    if not config.data:
        raise InputError("pre-training needs a data directory, made by `fastbert prepare`, got none")
    cache = {"cache": Path(config.cache) if config.cache else None, "cache_limit": int(config.cache_gb * 1e9)}
    return PretrainingData(ShardSet.open(config.data, split, **cache), config.samples)


def build_model(config: PretrainConfig, data: PretrainingData) -> torch.nn.Module:
    """The model that ``config.model`` names: new weights of a named size, or those of a directory."""
    kind, settings = model_settings(config, data.shards, data.config.objective)
    goes_on = os.path.isdir(config.model)
    if config.init == "small" and not goes_on:
        settings.initializer_range = initialisation.initializer_range(settings.hidden_size)
    with _building:
        torch.manual_seed(config.seed)  # for a directory too: it may lack a head
        if goes_on:
            model = kind.pretraining_class.from_pretrained(config.model, **kind.rates(config.dropout))
        else:
            model = kind.pretraining_class(settings)
    if config.init == "small" and not goes_on:
        counts = sum(np.bincount(tokens, minlength=settings.vocab_size) for tokens in data.shards.tokens)
        initialisation.start_small(model, torch.from_numpy(counts))
    if getattr(model, "next_sentence", True) and not data.config.nsp:
        model.untrained = _never_trained(model)
    model.tokenizer_source = data.shards.directory
    return model


def _never_trained(model: PreTrainedModel) -> frozenset[str]:
    """Names of parameters that stay random if there are no pairs. They are left out of saved models, which would
    otherwise look as if they had a trained next-sentence head."""
    idle = set(map(id, model.next_sentence_parameters))
    names = {name for name, parameter in model.named_parameters() if id(parameter) in idle}
    return frozenset(names if model.load_report is None else names & set(model.load_report.missing))


def begins_with(config: PretrainConfig, model: PreTrainedModel) -> str:
    """Which weights a run begins with, and which of them it never trains, in a printed line each. ``init: small`` is
    allowed with the weights of a directory, so that recipes for small models can be used; it then does nothing."""
    if not os.path.isdir(config.model):
        line = f"begins with new weights, init {config.init}"
        of_bert = config.init == "bert" and model.config.model_type == "bert"
        if of_bert and model.config.hidden_size <= _SMALL:
            line += "; with init small, lr 1e-3 and warmup 0.1 a model of this size learns within minutes"
    else:
        unused = "; init small is for new ones, and changes none of them" if config.init == "small" else ""
        line = f"begins with the weights of {config.model}{unused}"
    modules = sorted({name.rpartition(".")[0] for name in model.untrained})
    left_out = f"\nwithout sentence pairs nothing trains {' and '.join(modules)}: left out of model/" if modules else ""
    return line + left_out


def model_settings(
    config: PretrainConfig, shards: ShardSet | None, objective: str | None = None
) -> tuple[registry.Architecture, ModelConfig]:
    """The kind of model that ``config.model`` names, and its configuration.

    Args:
        shards: the training split, from which the vocabulary size is taken; None for the kind's default.
        objective: the objective of the data; None for the recipe's.
    """
    longest = max(max_seqlen for max_seqlen, _ in config.batch_limits(config.samples.max_seqlen))
    kind = registry.of_model(config.model)
    if os.path.isdir(config.model):
        return kind, _settings_of_directory(config, kind)
    settings = _settings_of_size(config, kind, shards, objective or config.samples.objective)
    if settings.max_position_embeddings is not None:
        settings.max_position_embeddings = max(settings.max_position_embeddings, longest)
    kind.complete(settings, shards)
    return kind, settings


def _settings_of_directory(config: PretrainConfig, kind: registry.Architecture) -> ModelConfig:
    settings = kind.config_class.from_pretrained(config.model, **kind.rates(config.dropout))
    own = getattr(settings, "position_embedding_type", "absolute")
    if config.position_embedding_type not in ("absolute", own):  # absolute is the default, so not a request
        raise InputError(
            f"position_embedding_type {config.position_embedding_type} is only for new weights: {config.model} was "
            f"trained with {own} positions"
        )
    return settings


def _settings_of_size(
    config: PretrainConfig, kind: registry.Architecture, shards: ShardSet | None, objective: str
) -> ModelConfig:
    """The configuration of new weights."""
    asked = kind.rates(config.dropout)
    if config.init == "small" and kind.model_type != "bert":
        raise InputError(f"init small is only for a BERT, got model {config.model!r}: expected init bert")
    if shards is not None:
        manifest = shards.manifest
        asked |= {"vocab_size": manifest.vocab_size, "pad_token_id": manifest.special_ids.pad}
    if kind.model_type == "bert":
        asked |= {"is_decoder": objective == "causal", "position_embedding_type": config.position_embedding_type}
    elif config.position_embedding_type != "absolute":
        raise InputError(
            f"position_embedding_type {config.position_embedding_type} is only for a BERT, got {config.model!r}"
        )
    if "cased" in config.model.lower():  # `from_name` would make new weights of the size in the name
        raise InputError(
            f"model {config.model!r:.100} names published weights, and not the size of new ones: expected their "
            f"directory{download_hint(config.model)}"
        )
    try:
        return kind.config_class.from_name(config.model, **asked)
    except InputError as error:  # it may also be a directory that is misspelt, or was moved before a resume
        raise InputError(f"model {config.model!r:.100} is not a directory to go on from, and {error}") from None


def check_fit(config: PretrainConfig, model: torch.nn.Module, data: PretrainingData) -> None:
    """Raises InputError if the model cannot be trained on the data as the recipe says."""
    settings, manifest = model.config, data.shards.manifest
    if data.config.objective not in settings.objectives:
        kind = "sees only the tokens before each" if settings.objectives == ("causal",) else "sees both sides"
        raise InputError(
            f"samples have objective {data.config.objective}, but the model {kind}: expected objective "
            f"{' or '.join(settings.objectives)}"
        )
    if data.config.nsp and not getattr(model, "next_sentence", True):
        raise InputError(
            f"samples have sentence pairs, for which a model of type {settings.model_type} predicts nothing: "
            "set nsp false"
        )
    if data.config.nsp and getattr(settings, "type_vocab_size", None) == 1:
        raise InputError(
            "samples have sentence pairs, for which a model needs two token types, got one with type_vocab_size 1: set "
            "nsp false"
        )
    most = settings.max_position_embeddings
    for max_seqlen, _ in config.batch_limits(data.config.max_seqlen):
        if most is not None and max_seqlen > most:
            raise InputError(f"max_seqlen {max_seqlen} is over the model's max_position_embeddings {most}")
    if manifest.vocab_size > settings.vocab_size:
        raise InputError(
            f"the data's vocabulary has {manifest.vocab_size} tokens, but the model's vocab_size is "
            f"{settings.vocab_size}"
        )
    if not len(data.lengths(0)):
        raise InputError(f"{data.shards.directory}: its {data.shards.num_documents} documents make no sample")


def other_words(config: PretrainConfig, shards: ShardSet) -> str | None:
    """A sentence that says so if the ids of the data stand for other words in the vocabulary of ``config.model``,
    which nothing else would show; else None."""
    try:
        theirs = load_tokenizer(config.model) if os.path.isdir(config.model) else None
        ours = load_tokenizer(shards.directory)
    except InputError:  # the model's directory may have no vocabulary
        return None
    if theirs is None:
        return None
    places = theirs.get_vocab()
    words = {index: word for word, index in places.items()}
    # The unused places of a vocabulary may have got words, but none that it has elsewhere.
    known = {index: word for index, word in words.items() if not word.startswith("[unused")}
    pairs = [
        (word, index)
        for word, index in ours.get_vocab().items()
        if known.get(index, word) != word or places.get(word, index) != index
    ]
    if not pairs:
        return None
    word, index = min(pairs, key=lambda pair: pair[1])
    there = words.get(index, "none")
    return (
        f"{config.model}: expected the vocabulary of the data, got one with other words for {len(pairs)} of "
        f"{shards.manifest.vocab_size} ids ({index} is {word!r} in {shards.directory} and {there!r} there), "
        "which are the words that the model has learned"
    )


def check_heldout(heldout: PretrainingData | None) -> None:
    """Raises DataError if no evaluation is possible, which would otherwise show hundreds of steps later."""
    if heldout is None:
        return
    try:
        found = len(heldout.lengths(0))
    except DataError as error:
        raise DataError(
            f"the held-out documents cannot be used: {error}; prepare the data again with a larger --heldout, or train "
            "without sentence pairs (--samples.no-nsp)"
        ) from error
    if not found:
        raise DataError(f"{heldout.shards.directory}: its held-out documents make no sample")
