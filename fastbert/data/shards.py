"""Token shards on disk, read through memory maps; `shard_writer` writes them.

A split is a sequence of shards. ``shard-00000.bin`` has the token ids of its documents end to end, as little-endian
uint16 or uint32. ``shard-00000.idx`` is int64: a header of five numbers, then the starts of the sentences (in tokens)
and of the documents (in sentences), both with the end as last entry. A document never straddles two shards, so any run
of its sentences is a slice of one file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import DataError
from .manifest import Manifest, ShardEntry, check_file, check_hash
from .remote import RemoteFiles, RemoteTokens, is_remote
from .token_file import is_cut, mapped

_MAGIC, _INDEX_VERSION, _HEADER = 0x5842_4654, 1, 5


def index_header(documents: int, sentences: int, tokens: int) -> tuple[int, ...]:
    """The header of a shard's index, which gives the sizes of what follows."""
    return _MAGIC, _INDEX_VERSION, documents, sentences, tokens


class ShardSet:
    """One split of a data directory, memory-mapped.

    Sentences and documents are numbered through all shards. Pickling keeps only the path: another process maps the
    files again.

    Attributes:
        directory: the data directory; for remote data, that of the local copies.
        manifest: the content of the data.
        tokens: a memory map of ids per shard; for remote data, fetched on access.
        num_documents, num_sentences, num_tokens: counts of this split.
    """

    def __init__(self, directory: Path, split: str, manifest: Manifest, remote: RemoteFiles | None = None) -> None:
        self.directory, self.split, self.manifest, self._remote = directory, split, manifest, remote
        entries = manifest.splits[split]
        self.num_documents = sum(entry.documents for entry in entries)
        self.num_sentences = sum(entry.sentences for entry in entries)
        self.num_tokens = sum(entry.tokens for entry in entries)
        self.tokens: list[np.ndarray] | RemoteTokens = []
        self._sentence_starts: list[np.ndarray] = []
        self._document_starts: list[np.ndarray] = []
        self._first_sentences: list[int] = []
        first = 0
        for entry in entries:
            if remote is None:
                self.tokens.append(_map_tokens(directory / entry.bin, entry, manifest))
            sentence_starts, document_starts = _read_index(directory / entry.idx, entry)
            self._sentence_starts.append(sentence_starts)
            self._document_starts.append(document_starts)
            self._first_sentences.append(first)
            first += entry.sentences
        if remote is not None:
            self.tokens = RemoteTokens(remote, split)

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
            verify: whether to check every file against its SHA-256, and every id against the vocabulary.
            cache, cache_limit: the directory for the shards of remote data, and the most bytes that they may take
                (fastbert.data.remote).

        Raises:
            DataError: a file is missing, has another size than the manifest says, was altered, or is of another format.
            InputError: the address cannot be used.
        """
        remote = RemoteFiles(path, cache, cache_limit) if is_remote(path) else None
        directory = Path(path) if remote is None else remote.directory
        manifest = Manifest.load(directory) if remote is None else remote.manifest
        if split not in manifest.splits:
            raise DataError(
                f"{directory}: expected a split {split!r}, got {', '.join(manifest.splits) or 'no split at all'}"
            )
        for name in manifest.files if remote is None else ():  # remote files are checked when they are fetched
            check_file(directory, name, manifest.files[name])
            if verify:
                check_hash(directory, name, manifest.files[name])
        shards = cls(directory, split, manifest, remote)
        if verify:
            shards._check_ids()
        return shards

    def verify(self) -> None:
        """Checks every file of the directory against its SHA-256, and every id of this split against the vocabulary.
        Does nothing for remote data, which are checked when they are fetched.

        Raises:
            DataError: a file was altered; the message names it.
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
        """(num_sentences,) int32, the number of tokens of each sentence."""
        if not self._sentence_starts:
            return np.empty(0, dtype=np.int32)
        return np.concatenate([np.diff(starts).astype(np.int32) for starts in self._sentence_starts])

    @cached_property
    def document_starts(self) -> np.ndarray:
        """(num_documents + 1,) int64, the first sentence of each document; the last entry is num_sentences."""
        parts = [
            starts[:-1] + first for starts, first in zip(self._document_starts, self._first_sentences, strict=True)
        ]
        return np.concatenate([*parts, np.array([self.num_sentences], dtype=np.int64)])

    def gather(self, sentence_first: int, sentence_end: int) -> np.ndarray:
        """Ids of the consecutive sentences [sentence_first, sentence_end) of one document, as a view of the file.

        Raises:
            IndexError: there are no such sentences, or they are in different shards.
        """
        if not 0 <= sentence_first <= sentence_end <= self.num_sentences:
            raise IndexError(f"sentences {sentence_first}:{sentence_end} of {self.num_sentences}")
        if sentence_first == sentence_end:
            return np.empty(0, dtype=self.manifest.dtype)
        shard = bisect_right(self._first_sentences, sentence_first) - 1
        starts, base = self._sentence_starts[shard], self._first_sentences[shard]
        if sentence_end - base >= len(starts):
            raise IndexError(f"sentences {sentence_first}:{sentence_end} are not of one document")
        return self.tokens[shard][starts[sentence_first - base] : starts[sentence_end - base]]

    def check_whole(self, sentences: Iterable[int]) -> None:
        """Looks at the files of these sentences, before several are gathered: a look costs as much as a gather. Copies
        of remote data are not looked at, as nobody else writes there.

        Raises:
            DataError: a file was cut off after it was mapped, as by a copy over it.
        """
        if self._remote is not None:
            return
        for shard in {bisect_right(self._first_sentences, sentence) - 1 for sentence in sentences}:
            entry = self.manifest.splits[self.split][shard]
            for name, numbers in ((entry.idx, self._sentence_starts[shard]), (entry.bin, self.tokens[shard])):
                if is_cut(numbers):
                    raise DataError(
                        f"{self.directory / name}: expected a file that stays as it is while it is used, got one that "
                        "was cut off"
                    )

    def sentence(self, sentence: int) -> np.ndarray:
        """Ids of one sentence."""
        return self.gather(sentence, sentence + 1)

    def tokenizer(self):
        """The tokenizers.Tokenizer that the shards were made with."""
        from .tokenizer import load_tokenizer

        return load_tokenizer(self.directory)


def _open_remote(url: str, split: str, cache: Path, limit: int) -> ShardSet:
    return ShardSet.open(url, split, cache=cache, cache_limit=limit)


def _map_tokens(path: Path, entry: ShardEntry, manifest: Manifest) -> np.ndarray:
    expected, size = entry.tokens * np.dtype(manifest.dtype).itemsize, path.stat().st_size
    if size != expected or not entry.tokens:
        raise DataError(f"{path}: expected {entry.tokens} tokens in {expected} bytes, got {size} bytes")
    return mapped(path, manifest.dtype)


def _read_index(path: Path, entry: ShardEntry) -> tuple[np.ndarray, np.ndarray]:
    """Sentence starts in tokens, document starts in sentences, of one shard."""
    expected = _HEADER + entry.sentences + 1 + entry.documents + 1
    if path.stat().st_size != 8 * expected:
        raise DataError(f"{path}: expected {8 * expected} bytes of index, got {path.stat().st_size}")
    table = mapped(path, "<i8")
    header = index_header(entry.documents, entry.sentences, entry.tokens)
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
