"""The corpus of a study as token shards, made once in a cache."""

from __future__ import annotations

import functools
import logging
import os
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
    """The data directory for a study's corpus, vocabulary and held-out share. It is made if it does not exist or, with
    a warning, if a file in it is missing or truncated."""
    files = tuple(map(os.path.expanduser, study.corpus))  # those in a YAML file were not read by a shell
    source = {"builtin": _builtin_digest()} if files == (BUILTIN,) else _files(files)
    how = {"vocab_size": study.vocab_size, "lowercase": study.lowercase, "heldout": study.heldout, "maths": keys.MATHS}
    out = cache / "data" / keys.digest({**how, **source})
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() and _damage(out) is None:
        return out
    with locks.held(out):
        damage = _damage(out) if out.is_dir() else None
        if damage is not None:
            _log.warning("%s: the data are made again", damage)
            shutil.rmtree(out)
        if not out.is_dir():
            documents = _documents(files)
            texts = [sentence for _, sentences in documents for sentence in sentences]
            tokenizer = train_wordpiece(texts, study.vocab_size, study.lowercase)
            prepare(documents, tokenizer, out, heldout=study.heldout, num_workers=1)
    return out


def _damage(out: Path) -> DataError | None:
    """What is wrong with a data directory, as far as can be seen without reading its shards; None if nothing is."""
    try:
        for split in ("train", "heldout"):
            ShardSet.open(out, split)
    except DataError as error:
        return error
    return None


def verify(shards: ShardSet) -> None:
    """Raises DataError, with advice, if data in the cache are not as they were prepared."""
    try:
        shards.verify()
    except DataError as error:
        raise DataError(f"{error}; remove {shards.directory}, and the same command makes it again") from None


def unigram_loss(data: Path) -> float:
    """The loss, in nats per held-out token, of a unigram model with the token frequencies of the training text.

    One half is added to every count (the Jeffreys-Perks estimate), so that the loss of a token that occurs only in the
    held-out text is finite. No unigram model comes below the entropy of the held-out tokens themselves, which is more
    optimistic the fewer tokens there are.

    Args:
        data: a data directory with the splits "train" and "heldout".
    """
    counts = {split: _counts(ShardSet.open(data, split)) for split in ("train", "heldout")}
    log_likely = np.log(counts["train"] + 0.5) - np.log((counts["train"] + 0.5).sum())
    return float(-(counts["heldout"] * log_likely).sum() / counts["heldout"].sum())


def _counts(shards: ShardSet) -> np.ndarray:
    """(vocab_size,) int64, the number of occurrences of each id."""
    return sum(np.bincount(tokens, minlength=shards.manifest.vocab_size) for tokens in shards.tokens)


@functools.cache
def _builtin() -> list[tuple[str, list[str]]]:
    return list(builtin_corpus.documents())


def _builtin_digest() -> str:
    return keys.digest(_builtin())


def _files(corpus: Sequence[str]) -> dict:
    files = corpus_files(corpus)
    found: dict = {"files": [keys.file_digest(file) for file in files]}
    # The same bytes are different documents as .jsonl and as text; keys without kinds are those of text files.
    kinds = [kind_of(file) for file in files]
    if ".jsonl" in kinds:
        found["kinds"] = [kind == ".jsonl" for kind in kinds]
    return found


def _documents(corpus: Sequence[str]) -> list[tuple[str, list[str]]]:
    if tuple(corpus) == (BUILTIN,):
        return _builtin()
    return [(document.name, document.sentences) for document in read_documents(corpus)]
