"""The corpus of a study as token shards, made once in a cache."""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..data import builtin_corpus
from ..data.corpus import corpus_files, kind_of, read_documents
from ..data.prepare import prepare
from ..data.shards import ShardSet
from ..data.tokenizer import train_wordpiece
from ..errors import DataError
from . import keys, locks
from .definition import BUILTIN, Study

_log = logging.getLogger("fastbert")


def prepared(study: Study, cache: Path) -> Path:
    """The data directory of a study's corpus, vocabulary and held-out share; made where it is not there yet, or where
    a file of it is missing or cut off, which is told."""
    source = {"builtin": _builtin_digest()} if study.corpus == (BUILTIN,) else _files(study.corpus)
    how = {"vocab_size": study.vocab_size, "lowercase": study.lowercase, "heldout": study.heldout, "maths": keys.MATHS}
    out = cache / "data" / keys.digest({**how, **source})
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() and _damage(out) is None:
        return out
    with locks.held(out):
        damage = _damage(out) if out.is_dir() else None
        if damage is not None:
            _log.warning("%s: the data are made anew", damage)
            shutil.rmtree(out)
        if not out.is_dir():
            documents = _documents(study.corpus)
            texts = [sentence for _, sentences in documents for sentence in sentences]
            tokenizer = train_wordpiece(texts, study.vocab_size, study.lowercase)
            prepare(documents, tokenizer, out, heldout=study.heldout, num_workers=1)
    return out


def _damage(out: Path) -> DataError | None:
    """What is wrong with a data directory, as far as that is seen without reading its shards."""
    try:
        for split in ("train", "heldout"):
            ShardSet.open(out, split)
    except DataError as error:
        return error
    return None


def verify(shards: ShardSet) -> None:
    """Raises DataError, with the way out, for data of a cache that are not those that were prepared."""
    try:
        shards.verify()
    except DataError as error:
        raise DataError(f"{error}; remove {shards.directory}, and the same command makes it anew") from None


def unigram_loss(data: Path) -> float:
    """Nats a held-out token of the model that has counted the training text's tokens and knows nothing else.

    Half is added to every count (the Jeffreys-Perks estimate), so that a token that only the held-out text has costs
    something finite. No model of this kind comes under the entropy of the held-out tokens themselves, and the fewer
    they are the more that entropy flatters.

    Args:
        data: a data directory with the splits "train" and "heldout".
    """
    counts = {split: _counts(ShardSet.open(data, split)) for split in ("train", "heldout")}
    log_likely = np.log(counts["train"] + 0.5) - np.log((counts["train"] + 0.5).sum())
    return float(-(counts["heldout"] * log_likely).sum() / counts["heldout"].sum())


def _counts(shards: ShardSet) -> np.ndarray:
    """(vocab_size,) int64 occurrences of every id."""
    return sum(np.bincount(tokens, minlength=shards.manifest.vocab_size) for tokens in shards.tokens)


@functools.cache
def _builtin() -> list[tuple[str, list[str]]]:
    return list(builtin_corpus.documents())


def _builtin_digest() -> str:
    return keys.digest(_builtin())


def _files(corpus: Sequence[str]) -> dict:
    files = corpus_files(corpus)
    found: dict = {"files": [keys.file_digest(file) for file in files]}
    # The same bytes are other documents as .jsonl than as text; a key without kinds is one of text alone.
    kinds = [kind_of(file) for file in files]
    if ".jsonl" in kinds:
        found["kinds"] = [kind == ".jsonl" for kind in kinds]
    return found


def _documents(corpus: Sequence[str]) -> list[tuple[str, list[str]]]:
    if tuple(corpus) == (BUILTIN,):
        return _builtin()
    return [(document.name, document.sentences) for document in read_documents(corpus)]
