"""Converts text to token shards: this process reads the text and writes the shards in the order of the corpus, and
worker processes segment and encode it.

Only a few batches of documents are in flight, so memory does not grow with the corpus. Neither the shards' bytes nor
the split depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import logging
import numbers
import os
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ..errors import DataError, InputError
from ..files import held, put_in_place, remove_leftovers
from ..hardware import MOST_PROCESSES, num_cores
from ..processes import WorkerDied, Workers, check_may_start, may_start_others
from ..wording import counted
from . import bpe
from .corpus import Document, RawDocument, corpus_files, read_raw_documents, told_if_wrapped
from .corpus_rows import without_surrogates
from .encode import EncodedDocuments, Encoder, Job, WorkerSettings, begin_worker, encode_job, is_heldout
from .manifest import FILE_NAME, Manifest, ShardEntry
from .shard_writer import ShardWriter
from .special_tokens import marked, separators
from .tokenizer import load_tokenizer, save_tokenizer, special_ids, vocab_size
from .tokenizer_json import is_wordpiece

_log = logging.getLogger("fastbert")

# The share of [UNK] from which a warning says that the vocabulary does not fit the text. With its own vocabulary it is
# well below 1 %, in text of another domain a few per cent, and in another script most of the text but digits and marks.
MANY_UNKNOWN = 0.1
# The most tokens of a sentence that a sample can hold; sentence pairs are truncated to it, as in google-research/bert.
LONG_SENTENCE = 512
# The share of tokens beyond that limit from which a warning is given; in prose there are hardly any.
MANY_BEHIND = 0.1
# The characters that a worker gets at a time: enough to hide the transfer, few enough that several batches are small.
BATCH_CHARS = 1 << 19
SHARD_TOKENS = 1 << 24
# With fewer sentences a document, of so many documents, a model would learn to call every second sentence random.
FEW_SENTENCES, MANY_DOCUMENTS = 1.5, 10
# With less text, starting a second process takes longer than it saves.
_SERIAL_CHARS = 4 * BATCH_CHARS


def prepare(
    corpus: str | Path | Iterable[str | Path | Document | tuple[str, list[str]]],
    vocab: str | Path | Tokenizer,
    out: str | Path,
    *,
    heldout: float | Collection[str] = 0.0,
    num_workers: int | None = None,
    errors: str = "strict",
    segment: str = "auto",
    overwrite: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Writes a directory of token shards, atomically.

    Warnings are given if more than a tenth of the tokens are unknown to the vocabulary, or come after the 512th of
    their sentence and are thus left out of sentence pairs; if documents have no tokens and are left out; and if only a
    single document is held out, or a share of the documents is and one of them has more than half of the text.

    Args:
        corpus: paths, as in `read_documents`, or documents: `Document`, or (name, sentences). Lone surrogates in
            sentences become question marks.
        vocab: a path for `load_tokenizer`, or a tokenizer. A vocabulary file inside the corpus is not read as text.
        out: the directory to write.
        heldout: the share of documents kept for evaluation, chosen by a hash of their text, so that equal texts stay
            in one split whatever the order or the size of the corpus; or the names of these documents.
        num_workers: the number of processes; None for one per core, or 1 in a process that may start none.
        errors: what happens to bytes that are not UTF-8: "strict" refuses them, "replace" puts U+FFFD in their place.
        segment: "auto" splits lines that are paragraphs into sentences, "always" every line, "never" none.
        overwrite: whether to replace prepared data at ``out``.
        shard_tokens: the most tokens of a shard; a longer document gets a shard by itself.
        progress: called with the number of bytes of text read since the last call, or of documents if these are given.

    Returns:
        the manifest.

    Raises:
        InputError: an argument is not valid, or ``out`` exists.
        DataError: the corpus is empty or damaged, all its tokens are unknown to the vocabulary, ``heldout`` names a
            document that does not exist, or the disk is full; ``out`` is then as it was before.
    """
    out = Path(out)
    heldout = _share_or_names(heldout)
    if segment not in ("auto", "always", "never"):
        raise InputError(f"segment: expected 'auto', 'always' or 'never', got {segment!r}")
    tokenizer = vocab if isinstance(vocab, Tokenizer) else load_tokenizer(vocab)
    _check_target(out, overwrite)
    dtype = Manifest.dtype_for(vocab_size(tokenizer))
    settings = WorkerSettings(tokenizer.to_str(), dtype, segment, special_ids(tokenizer).unk)
    _check_pieces(tokenizer)
    path = None if isinstance(vocab, Tokenizer) else vocab
    tally = _Tally(set() if isinstance(heldout, float) else set(heldout))
    jobs = _batches(_raw(corpus, errors, progress, path), heldout, tally)
    temporary = out.parent / f".{out.name}.tmp-{uuid.uuid4().hex[:12]}"
    try:
        _clear_leftovers(out)
        temporary.mkdir(parents=True)
        # Closed here, so that the workers have ended before the directory is removed.
        with held(temporary), contextlib.closing(_encode(jobs, settings, num_workers)) as encoded:
            manifest = _write(temporary, tokenizer, encoded, shard_tokens, heldout, tally)
        if awaited := tally.awaited:
            got = f"{min(map(str, awaited))!r:.60}" + (f" and {len(awaited) - 1} more" if len(awaited) > 1 else "")
            raise DataError(f"heldout: expected names of documents, got {got}, which no document has")
        _check_target(out, overwrite)  # another call may have written it meanwhile
        _publish(temporary, out)
    except (OSError, DataError) as error:
        said = str(error)
        if isinstance(error, OSError):
            said = f"{error.filename or temporary}: expected to read or write it, got: {error.strerror}"
        raise DataError(said.replace(str(temporary), str(out), 1)) from error  # users do not know that name
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _warn_of_lost(out, manifest, tally)
    return manifest


def _share_or_names(heldout: float | Collection[str]) -> float | frozenset[str]:
    """Checks the argument; names are returned as a set, in which each document is looked up."""
    if isinstance(heldout, str):
        raise InputError(f"heldout: expected a share, or a set of names of documents, got the text {heldout!r:.50}")
    if not isinstance(heldout, numbers.Real):
        return frozenset(heldout)
    if not 0 <= heldout < 1:
        raise InputError(f"heldout: expected a share from 0 up to 1, got {heldout}")
    return float(heldout)


@dataclass
class _Tally:
    """What is counted on the way: names of held-out documents that have not been read yet; the documents read, a long
    one once for all its parts; the characters of those that a share holds out, and of the longest one, with its name;
    tokens that are [UNK], or after the first `LONG_SENTENCE` of their sentence; documents without tokens."""

    awaited: set[str]
    documents: int = 0
    heldout: int = 0
    longest: tuple[int, str] = (0, "")
    unknown: int = 0
    behind: int = 0
    empty: int = 0


def _warn_of_heldout(out: Path, manifest: Manifest, has_pairs: bool, tally: _Tally) -> None:
    """Warns if a single document decides what is measured on the held-out split."""
    longest, name = tally.longest
    if has_pairs and manifest.counts.get("heldout", {}).get("documents") == 1:
        _log.warning(
            "%s: 1 document is held out, of which no pairs of sentences can be made: hold out more, or pre-train with "
            "--samples.no-nsp",
            out,
        )
    elif 2 * longest > tally.heldout:
        _log.warning(
            "%s: a single document, %s, is %.0f %% of the held-out text, and measures on it say little of others: hold "
            "out more, or cut long texts into several documents (a blank line ends one)",
            *(out, name, 100 * longest / tally.heldout),
        )


def _warn_of_lost(out: Path, manifest: Manifest, tally: _Tally) -> None:
    """Warns if a model would learn nothing from many tokens, since they are unknown or left out of sentence pairs; if
    documents were left out; and if pre-training with pairs would refuse the data. A GPT is trained without pairs."""
    has_pairs = manifest.special_ids.mask != manifest.special_ids.sep
    if tally.empty:
        _log.warning("%s: %s left out: the tokenizer leaves nothing of the text", out, counted(tally.empty, "document"))
    _warn_of_heldout(out, manifest, has_pairs, tally)
    documents, sentences = (sum(count[n] for count in manifest.counts.values()) for n in ("documents", "sentences"))
    if has_pairs and documents >= MANY_DOCUMENTS and sentences < FEW_SENTENCES * documents:
        _log.warning(
            "%s: %s in %d documents: nearly all pairs would have a random second sentence. Is a row, or a text between "
            "blank lines, only a sentence of a longer text? (lines without blank lines between them are one document; "
            "--samples.no-nsp of pretrain makes no pairs)",
            out,
            counted(sentences, "sentence"),
            documents,
        )
    tokens = sum(count["tokens"] for count in manifest.counts.values())
    unknown = manifest.unknown_tokens / tokens
    if unknown > MANY_UNKNOWN:
        _log.warning(
            "%s: %.1f %% of the tokens are [UNK], from which a model learns nothing: is the vocabulary for this text? "
            "(fastbert vocab trains one)",
            out,
            100 * unknown,
        )
    if has_pairs and tally.behind > MANY_BEHIND * tokens:
        _log.warning(
            "%s: pairs of sentences leave out %.1f %% of the tokens, those after the %dth of their sentence: does this "
            "text have no full stops that prepare knows? (they are used with one sentence a line, or with "
            "--samples.no-nsp of pretrain)",
            out,
            100 * tally.behind / tokens,
            LONG_SENTENCE,
        )


def _check_pieces(tokenizer: Tokenizer) -> None:
    """Raises InputError if pre-training would make other samples than the tokenizer does later: it marks pairs, and
    recognises the pieces of a word, as BERT's tokenizer does."""
    pair = marked(tokenizer)[1]
    if bpe.is_gpts(tokenizer) or (is_wordpiece(tokenizer) and separators(pair) == 1):
        return
    raise InputError(
        "vocab: expected WordPieces that make [CLS] A [SEP] B [SEP] of pairs, or a GPT's byte pairs, to pre-train "
        f"with, got a {type(tokenizer.model).__name__} tokenizer that makes {' '.join(pair.tokens)}"
    )


def _check_target(out: Path, overwrite: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if os.path.ismount(out):  # a container's volume
        raise InputError(f"{out}: expected a new path, got a mount point, which cannot be replaced: add a name to it")
    if not overwrite:
        raise InputError(f"{out}: expected a new path, got one that exists already (--overwrite replaces it)")
    if not (out / FILE_NAME).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out}: expected prepared data to overwrite, got something else, which is left alone")


def _clear_leftovers(out: Path) -> None:
    """Removes what killed calls left beside ``out``: unfinished data, and data that had been replaced."""
    name = f".{glob.escape(out.name)}"
    remove_leftovers(out.parent, f"{name}.tmp-{'?' * 12}")
    if out.exists():  # else a call was killed between its two renames, and the old data are the only ones
        remove_leftovers(out.parent, f"{name}.old-{'?' * 12}")


def _raw(corpus, errors: str, progress, vocab) -> Iterator[RawDocument | Document]:
    corpus = iter([corpus] if isinstance(corpus, (str, Path)) else corpus)
    first = next(corpus, None)
    if first is None:
        raise DataError("corpus: expected at least one file or document, got none")
    items = itertools.chain([first], corpus)
    if isinstance(first, (str, Path)):
        return told_if_wrapped(read_raw_documents(corpus_files(items, vocab), errors, progress))
    return _given(items, progress)


def _given(documents, progress) -> Iterator[Document]:
    for number, document in enumerate(documents, 1):
        name, sentences = (document.name, document.sentences) if isinstance(document, Document) else document
        texts = [] if isinstance(sentences, str) else list(sentences)  # which may be read only once
        if isinstance(sentences, str) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"document {number} ({name}): expected a list of sentences, got {type(sentences).__name__}")
        yield Document(name, list(map(without_surrogates, texts)))
        if progress is not None:
            progress(1)


def _batches(
    documents: Iterator[RawDocument | Document], heldout: float | frozenset[str], tally: _Tally
) -> Iterator[Job]:
    """Batches of documents for the workers; tells the tally of each document that is read."""
    by_share = isinstance(heldout, float)
    batch, sides, size = [], [], 0
    name, side, chars = "", False, 0  # of a document
    for document in documents:
        cut = isinstance(document, Document)
        lines = document.sentences if cut else document.lines
        # The parts of a long document are one document, and stay in one split.
        if cut or not document.part:
            name, chars = document.name, 0
            side = is_heldout(lines, heldout) if by_share else name in heldout
            tally.awaited.discard(name)
            tally.documents += 1
        batch.append((cut, lines))
        sides.append(side)
        length = sum(map(len, lines))
        size, chars = size + length, chars + length
        if side and by_share:  # who names documents knows how long they are
            tally.heldout += length
            tally.longest = max(tally.longest, (chars, name), key=itemgetter(0))
        if size >= BATCH_CHARS:
            yield Job(batch, sides, size)
            batch, sides, size = [], [], 0
    if batch:
        yield Job(batch, sides, size)


def _encode(jobs: Iterator[Job], settings: WorkerSettings, num_workers: int | None) -> Iterator[EncodedDocuments]:
    """Encodes batches in order; in this process if there is little text."""
    usual = num_cores() if may_start_others() else 1
    workers = usual if num_workers is None else num_workers
    if not 1 <= workers <= MOST_PROCESSES:
        raise InputError(f"num_workers: expected 1 to {MOST_PROCESSES}, got {num_workers}")
    check_may_start(workers, 1)
    head, size = [], 0
    for job in jobs:
        head.append(job)
        size += job.chars
        if size > _SERIAL_CHARS:
            break
    jobs = itertools.chain(head, jobs)
    if workers == 1 or size <= _SERIAL_CHARS:
        yield from map(Encoder(settings), jobs)
        return
    with Workers(workers, encode_job, begin_worker, (settings,)) as pool:
        pending = deque(pool.submit(job) for job in itertools.islice(jobs, 2 * workers))
        while pending:
            try:
                encoded = pending.popleft().result()
            except WorkerDied:
                raise DataError("prepare: a worker process was killed, perhaps for lack of memory") from None
            yield encoded
            pending.extend(pool.submit(job) for job in itertools.islice(jobs, 1))


def _remedy(split: str, heldout: float | frozenset[str], documents: int) -> str:
    """Advice for a split without any of the documents, for a message."""
    more = "more documents (in text, put a blank line between them)"
    if documents == 1:
        return f"give {more}"
    if isinstance(heldout, float):
        change = "larger" if split == "heldout" else "smaller"
        return f"each is put into a split by a hash of its text: give a {change} share, or {more}"
    return "give names that " + ("documents have" if split == "heldout" else "not all documents have")


def _write(
    root: Path,
    tokenizer: Tokenizer,
    encoded: Iterator[EncodedDocuments],
    shard_tokens: int,
    heldout: float | frozenset[str],
    tally: _Tally,
) -> Manifest:
    """Writes all files; tells the tally what a model will not learn from."""
    size = vocab_size(tokenizer)
    splits = ("train", "heldout") if heldout else ("train",)
    writers = {split: ShardWriter(root, split, size, shard_tokens) for split in splits}
    try:
        for batch in encoded:
            for split, writer in writers.items():
                part = batch.part(split == "heldout")
                writer.add_documents(part.tokens, part.sentence_lengths, part.document_lengths)
            tally.unknown += batch.unknown
            tally.behind += int(np.maximum(batch.sentence_lengths - LONG_SENTENCE, 0).sum())
            tally.empty += batch.empty
        entries = {split: tuple(writer.close()) for split, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.abort()
    _check_written(entries, heldout, tally)
    files = {name: file for writer in writers.values() for name, file in writer.files.items()}
    for path in save_tokenizer(tokenizer, root):
        content = path.read_bytes()
        files[path.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = Manifest(
        size, special_ids(tokenizer), files["tokenizer.json"]["sha256"], entries, files, unknown_tokens=tally.unknown
    )
    with open(root / FILE_NAME, "wb") as file:
        file.write(manifest.dumps().encode())
        file.flush()
        os.fsync(file.fileno())
    return manifest


def _check_written(entries: dict[str, tuple[ShardEntry, ...]], heldout: float | frozenset[str], tally: _Tally) -> None:
    """Raises DataError for a split without any of the documents read, or for text of which every token is unknown."""
    every = [entry for of_split in entries.values() for entry in of_split]
    if not every:
        raise DataError("corpus: expected text, found no tokens")
    for split, of_split in entries.items():
        if not of_split:
            given = heldout if isinstance(heldout, float) else sorted(heldout, key=str)
            said = f"expected some of the {tally.documents} documents for each of two splits, got none for {split}"
            if tally.documents == 1:
                said = "expected a document for each of two splits, got 1 in all"
            raise DataError(f"heldout = {given!r:.60}: {said}; {_remedy(split, heldout, tally.documents)}")
    tokens = sum(entry.tokens for entry in every)
    if tally.unknown == tokens:
        raise DataError(
            f"corpus: expected text with words of the vocabulary, got {counted(tokens, 'token')}, all [UNK]: "
            "train a vocabulary on this text (fastbert vocab), or give that of the model"
        )


def _publish(temporary: Path, out: Path) -> None:
    """Renames the finished directory to ``out``; earlier data are removed only after that."""
    old = out.parent / f".{out.name}.old-{uuid.uuid4().hex[:12]}"
    put_in_place(temporary, out, old)
    shutil.rmtree(old, ignore_errors=True)
