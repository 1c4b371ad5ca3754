"""The corpus of a study as token shards, made once in a cache."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

from ..data import builtin_corpus
from ..data.corpus import read_documents
from ..data.prepare import prepare
from ..data.tokenizer import train_wordpiece
from . import keys
from .spec import BUILTIN, Study


def prepared(study: Study, cache: Path) -> Path:
    """The data directory of a study's corpus, vocabulary and held-out share; made where it is not there yet."""
    from filelock import FileLock

    source = {"builtin": _builtin_digest()} if study.corpus == (BUILTIN,) else _files(study.corpus)
    how = {"vocab_size": study.vocab_size, "lowercase": study.lowercase, "heldout": study.heldout, "maths": keys.MATHS}
    out = cache / "data" / keys.digest({**how, **source})
    out.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{out}.lock"):
        if not out.is_dir():
            documents = _documents(study.corpus)
            texts = [sentence for _, sentences in documents for sentence in sentences]
            tokenizer = train_wordpiece(texts, study.vocab_size, study.lowercase)
            prepare(documents, tokenizer, out, heldout=study.heldout, num_workers=1)
    return out


@functools.cache
def _builtin() -> list[tuple[str, list[str]]]:
    return list(builtin_corpus.documents())


def _builtin_digest() -> str:
    return keys.digest(_builtin())


def _files(corpus: Sequence[str]) -> dict:
    paths = [Path(path) for path in corpus]
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return {"files": [keys.file_digest(os.fspath(file)) for file in files if not file.is_dir()]}


def _documents(corpus: Sequence[str]) -> list[tuple[str, list[str]]]:
    if tuple(corpus) == (BUILTIN,):
        return _builtin()
    return [(document.name, document.sentences) for document in read_documents(corpus)]
