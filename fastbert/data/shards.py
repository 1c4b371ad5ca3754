"""Token shards on disk: written once as a stream, read through memory maps.

A split is a row of shards. ``shard-00000.bin`` holds the token ids of its documents end to end, little-endian uint16 or
uint32; ``shard-00000.idx`` is int64: a header of five numbers, then where each sentence starts (in tokens) and where
each document starts (in sentences), both with their end as last entry. A document never straddles two shards, so any
run of its sentences is one slice of one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from bisect import bisect_right
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import DataError, InputError
from .manifest import Manifest, ShardEntry, check_file, check_hash
from .remote import RemoteFiles, RemoteTokens, is_remote

_MAGIC, _INDEX_VERSION, _HEADER = 0x5842_4654, 1, 5

# The index of the shard being written is kept in memory: at most one sentence for so many tokens of the limit.
_TOKENS_PER_SENTENCE = 8


class ShardSet:
    """One split of a data directory, memory-mapped.

    Sentences and documents are numbered through all shards. Pickling keeps only the path: another process maps the
    files again.

    Attributes:
        directory: the data directory; of data elsewhere, what is here of it.
        manifest: what the data holds.
        tokens: a memory map of ids per shard; of data elsewhere, fetched when it is asked for.
        num_documents, num_sentences, num_tokens: counts of this split.
    """

    def __init__(self, directory: Path, split: str, manifest: Manifest, remote: RemoteFiles | None = None) -> None:
        self.directory, self.split, self.manifest, self._remote = directory, split, manifest, remote
        entries = manifest.splits[split]
        self.num_documents = sum(entry.documents for entry in entries)
        self.num_sentences = sum(entry.sentences for entry in entries)
        self.num_tokens = sum(entry.tokens for entry in entries)
        self.tokens: list[np.memmap] | RemoteTokens = []
        self._sentence_starts: list[np.ndarray] = []
        self._document_starts: list[np.ndarray] = []
        self._first_sentences: list[int] = []
        # Plain views: slicing a memmap costs three times as much.
        self._flat: list[np.ndarray] | RemoteTokens = []
        first = 0
        for entry in entries:
            if remote is None:
                self.tokens.append(_map_tokens(directory / entry.bin, entry, manifest))
                self._flat.append(self.tokens[-1].view(np.ndarray))
            sentence_starts, document_starts = _read_index(directory / entry.idx, entry)
            self._sentence_starts.append(sentence_starts)
            self._document_starts.append(document_starts)
            self._first_sentences.append(first)
            first += entry.sentences
        if remote is not None:
            self.tokens = self._flat = RemoteTokens(remote, split)

    @classmethod
    def open(
        cls,
        path: str | Path,
        split: str = "train",
        *,
        verify: bool = False,
        cache: Path | None = None,
        cache_limit: int = 1 << 40,
    ) -> ShardSet:
        """Maps a split of a data directory.

        Args:
            path: a directory, or the address of one that fsspec knows (``s3://...``).
            split: "train" or "heldout".
            verify: also check every file against its SHA-256, and every id against the vocabulary.
            cache, cache_limit: where shards from elsewhere are kept, and the most bytes of them (fastbert.data.remote).

        Raises:
            DataError: a file is missing, shorter or longer than the manifest says, altered, or of another format.
            InputError: an address that cannot be used.
        """
        remote = RemoteFiles(path, cache, cache_limit) if is_remote(path) else None
        directory = Path(path) if remote is None else remote.directory
        manifest = Manifest.load(directory) if remote is None else remote.manifest
        if split not in manifest.splits:
            raise DataError(
                f"{directory}: expected a split {split!r}, got {', '.join(manifest.splits) or 'no split at all'}"
            )
        for name in manifest.files if remote is None else ():  # what is fetched is checked then
            check_file(directory, name, manifest.files[name])
            if verify:
                check_hash(directory, name, manifest.files[name])
        shards = cls(directory, split, manifest, remote)
        if verify:
            shards._check_ids()
        return shards

    def verify(self) -> None:
        """Checks every file of the directory against its SHA-256, and every id of this split against the vocabulary; of
        data elsewhere nothing, for what is fetched is checked then.

        Raises:
            DataError: naming the file that was altered.
        """
        if self._remote is not None:
            return
        for name, file in self.manifest.files.items():
            check_hash(self.directory, name, file)
        self._check_ids()

    def _check_ids(self) -> None:
        for tokens, entry in zip(self.tokens, self.manifest.splits[self.split], strict=True):
            _check_ids(tokens, self.manifest.vocab_size, self.directory / entry.bin)

    def __reduce__(self):
        if self._remote is not None:
            return _open_remote, (self._remote.url, self.split, self._remote.cache, self._remote.limit)
        return ShardSet.open, (self.directory, self.split)

    def __len__(self) -> int:
        return self.num_documents

    @cached_property
    def sentence_lengths(self) -> np.ndarray:
        """(num_sentences,) int32 tokens of each sentence."""
        if not self._sentence_starts:
            return np.empty(0, dtype=np.int32)
        return np.concatenate([np.diff(starts).astype(np.int32) for starts in self._sentence_starts])

    @cached_property
    def document_starts(self) -> np.ndarray:
        """(num_documents + 1,) int64 first sentence of each document; the last entry is num_sentences."""
        parts = [
            starts[:-1] + first for starts, first in zip(self._document_starts, self._first_sentences, strict=True)
        ]
        return np.concatenate([*parts, np.array([self.num_sentences], dtype=np.int64)])

    def gather(self, sentence_first: int, sentence_end: int) -> np.ndarray:
        """Ids of the consecutive sentences [sentence_first, sentence_end) of one document, as a view of the file.

        Raises:
            IndexError: no such sentences, or they lie in different shards.
        """
        if not 0 <= sentence_first <= sentence_end <= self.num_sentences:
            raise IndexError(f"sentences {sentence_first}:{sentence_end} of {self.num_sentences}")
        if sentence_first == sentence_end:
            return np.empty(0, dtype=self.manifest.dtype)
        shard = bisect_right(self._first_sentences, sentence_first) - 1
        starts, base = self._sentence_starts[shard], self._first_sentences[shard]
        if sentence_end - base >= len(starts):
            raise IndexError(f"sentences {sentence_first}:{sentence_end} are not of one document")
        return self._flat[shard][starts[sentence_first - base] : starts[sentence_end - base]]

    def sentence(self, sentence: int) -> np.ndarray:
        """Ids of one sentence."""
        return self.gather(sentence, sentence + 1)

    def tokenizer(self):
        """The tokenizers.Tokenizer that the shards were made with."""
        from .tokenizer import load_tokenizer

        return load_tokenizer(self.directory)


def _open_remote(url: str, split: str, cache: Path, limit: int) -> ShardSet:
    return ShardSet.open(url, split, cache=cache, cache_limit=limit)


def _map_tokens(path: Path, entry: ShardEntry, manifest: Manifest) -> np.memmap:
    expected, size = entry.tokens * np.dtype(manifest.dtype).itemsize, path.stat().st_size
    if size != expected or not entry.tokens:
        raise DataError(f"{path}: expected {entry.tokens} tokens in {expected} bytes, got {size} bytes")
    return np.memmap(path, dtype=manifest.dtype, mode="r")


def _read_index(path: Path, entry: ShardEntry) -> tuple[np.ndarray, np.ndarray]:
    """Sentence starts in tokens, document starts in sentences, of one shard."""
    expected = _HEADER + entry.sentences + 1 + entry.documents + 1
    if path.stat().st_size != 8 * expected:
        raise DataError(f"{path}: expected {8 * expected} bytes of index, got {path.stat().st_size}")
    table = np.memmap(path, dtype="<i8", mode="r").view(np.ndarray)
    header = (_MAGIC, _INDEX_VERSION, entry.documents, entry.sentences, entry.tokens)
    if tuple(table[:_HEADER].tolist()) != header:
        raise DataError(f"{path}: expected the index header {header}, got {tuple(table[:_HEADER].tolist())}")
    sentences = table[_HEADER : _HEADER + entry.sentences + 1]
    documents = table[_HEADER + entry.sentences + 1 :]
    for name, starts, end in (("sentence", sentences, entry.tokens), ("document", documents, entry.sentences)):
        if starts[0] != 0 or starts[-1] != end or (np.diff(starts) <= 0).any():
            raise DataError(f"{path}: expected {name} starts that rise from 0 to {end}, got others")
    return sentences, documents


def _check_ids(tokens: np.ndarray, vocab_size: int, path: Path) -> None:
    for first in range(0, len(tokens), 1 << 22):
        largest = int(tokens[first : first + (1 << 22)].max())
        if largest >= vocab_size:
            raise DataError(f"{path}: expected token ids below the vocabulary's size {vocab_size}, got {largest}")


class ShardWriter:
    """Writes one split as a stream; only the index of the shard being written is kept in memory.

    Args:
        directory: the data directory; the split becomes a folder in it.
        split: name of the split.
        vocab_size: ids must be below it; it also picks uint16 or uint32.
        max_tokens_per_shard: a new shard is begun once it is reached. A longer document gets a larger shard of its own.
    """

    def __init__(self, directory: str | Path, split: str, vocab_size: int, max_tokens_per_shard: int = 1 << 24) -> None:
        if max_tokens_per_shard < 1:
            raise InputError(f"a shard must hold at least 1 token, got {max_tokens_per_shard}")
        self._directory, self._split, self._vocab_size = Path(directory), split, vocab_size
        self._dtype = np.dtype(Manifest.dtype_for(vocab_size))
        self._max_tokens = max_tokens_per_shard
        self._max_sentences = max(max_tokens_per_shard // _TOKENS_PER_SENTENCE, 1)
        self.entries: list[ShardEntry] = []
        self.files: dict[str, dict] = {}
        self._bin = None
        (self._directory / split).mkdir(parents=True, exist_ok=True)

    def add(self, sentences: list[np.ndarray]) -> None:
        """Adds a document, given as one array of ids per sentence; see add_documents."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        ids = np.concatenate(sentences) if sentences else np.empty(0, dtype=np.int64)
        self.add_documents(ids, lengths[lengths > 0], np.array([(lengths > 0).sum()]))

    def add_documents(self, ids: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray) -> None:
        """Adds whole documents, laid end to end.

        Args:
            ids: (T,) ids.
            sentence_lengths: (S,) tokens of each sentence, none empty; they add up to T.
            document_lengths: (D,) sentences of each document; they add up to S. One without sentences is left out.

        Raises:
            InputError: an id is outside the vocabulary, or the lengths do not fit.
            DataError: the file cannot be written (a full disk, say).
        """
        sentences = np.asarray(sentence_lengths, dtype=np.int64)
        documents = np.asarray(document_lengths, dtype=np.int64)
        documents = documents[documents > 0]
        if int(sentences.sum()) != len(ids) or int(documents.sum()) != len(sentences) or (sentences <= 0).any():
            raise InputError(
                f"expected sentences of 1 token or more that add up to {len(ids)} tokens, "
                f"got {len(sentences)} of {int(sentences.sum())} tokens in documents of {int(documents.sum())}"
            )
        if not len(ids):
            return
        for wrong in (int(ids.min()), int(ids.max())):
            if not 0 <= wrong < self._vocab_size:
                raise InputError(f"expected token ids from 0 to {self._vocab_size - 1}, got {wrong}")
        if len(documents) > 1 and not self._fits(len(ids), len(sentences)):
            self._add_one_by_one(ids, sentences, documents)
            return
        if self._bin is not None and not self._fits(len(ids), len(sentences)):
            self._finish_shard()
        if self._bin is None:
            self._begin_shard()
        self._write(self._bin, self._bin_path, np.ascontiguousarray(ids, dtype=self._dtype).tobytes(), self._hash)
        self._starts.append(np.cumsum(sentences) + self._tokens)
        self._documents.append(np.cumsum(documents) + self._num_sentences)
        self._tokens += len(ids)
        self._num_sentences += len(sentences)

    def _fits(self, tokens: int, sentences: int) -> bool:
        if self._bin is not None:
            tokens, sentences = tokens + self._tokens, sentences + self._num_sentences
        return tokens <= self._max_tokens and sentences <= self._max_sentences

    def _add_one_by_one(self, ids: np.ndarray, sentences: np.ndarray, documents: np.ndarray) -> None:
        token_ends = np.concatenate([[0], np.cumsum(sentences)])
        first = 0
        for count in documents.tolist():
            last = first + count
            self.add_documents(ids[token_ends[first] : token_ends[last]], sentences[first:last], np.array([count]))
            first = last

    def close(self) -> list[ShardEntry]:
        """Ends the last shard; returns what was written. ``files`` then holds each file's size and SHA-256."""
        if self._bin is not None:
            self._finish_shard()
        return self.entries

    def abort(self) -> None:
        """Closes the open file without finishing its shard."""
        if self._bin is not None:
            handle, self._bin = self._bin, None
            # The disk may be full; what matters has been reported, and the file will be removed.
            with contextlib.suppress(OSError):
                handle.close()

    def _name(self, suffix: str) -> str:
        return f"{self._split}/shard-{len(self.entries):05d}.{suffix}"

    def _begin_shard(self) -> None:
        self._bin_path = self._directory / self._name("bin")
        self._bin = open(self._bin_path, "wb", buffering=1 << 20)  # noqa: SIM115 (closed by _finish_shard or abort)
        self._hash = hashlib.sha256()
        self._tokens = self._num_sentences = 0
        self._starts: list[np.ndarray] = [np.zeros(1, dtype=np.int64)]
        self._documents: list[np.ndarray] = [np.zeros(1, dtype=np.int64)]

    def _finish_shard(self) -> None:
        size = self._tokens * self._dtype.itemsize
        try:
            # A disk may say only here that it is full.
            self._bin.flush()
            os.fsync(self._bin.fileno())
            self._bin.close()
        except OSError as error:
            raise _unwritable(self._bin_path, size, error) from error
        self._bin = None
        documents = np.concatenate(self._documents)
        header = (_MAGIC, _INDEX_VERSION, len(documents) - 1, self._num_sentences, self._tokens)
        index = np.concatenate([np.array(header, dtype="<i8"), *self._starts, documents]).astype("<i8")
        content = index.tobytes()
        path = self._directory / self._name("idx")
        try:
            path.write_bytes(content)
        except OSError as error:
            raise _unwritable(path, len(content), error) from error
        bin_name, idx_name = self._name("bin"), self._name("idx")
        self.files[bin_name] = {"bytes": size, "sha256": self._hash.hexdigest()}
        self.files[idx_name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        self.entries.append(ShardEntry(bin_name, idx_name, len(documents) - 1, self._num_sentences, self._tokens))

    @staticmethod
    def _write(handle, path: Path, content: bytes, digest) -> None:
        try:
            handle.write(content)
        except OSError as error:
            raise _unwritable(path, len(content), error) from error
        digest.update(content)


def _unwritable(path: Path, size: int, error: OSError) -> DataError:
    return DataError(f"{path}: expected to write {size} bytes, got: {error.strerror or error}")
