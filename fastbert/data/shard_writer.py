"""Writes token shards as a stream, in the format that `shards` describes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np

from ..errors import DataError, InputError
from .manifest import Manifest, ShardEntry
from .shards import index_header

# The index of the shard being written is kept in memory, so its sentences are limited too: to one for so many tokens of
# the shard's limit.
_TOKENS_PER_SENTENCE = 8


class ShardWriter:
    """Writes one split as a stream; only the index of the shard being written is kept in memory.

    Args:
        directory: the data directory; the split becomes a folder in it.
        split: the name of the split.
        vocab_size: ids must be below it; it also decides between uint16 and uint32.
        max_tokens_per_shard: the limit of a shard. A longer document gets a larger shard by itself.
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
        """Adds a document, given as an array of ids for each sentence; see `add_documents`."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        ids = np.concatenate(sentences) if sentences else np.empty(0, dtype=np.int64)
        self.add_documents(ids, lengths[lengths > 0], np.array([(lengths > 0).sum()]))

    def add_documents(self, ids: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray) -> None:
        """Adds whole documents, laid end to end.

        Args:
            ids: (T,) ids.
            sentence_lengths: (S,) the number of tokens of each sentence, none 0; they add up to T.
            document_lengths: (D,) the number of sentences of each document; they add up to S. Documents without
                sentences are left out.

        Raises:
            InputError: an id is outside the vocabulary, or the lengths do not fit.
            DataError: the file cannot be written (for example, the disk is full).
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
        content = np.ascontiguousarray(ids, dtype=self._dtype).tobytes()
        try:
            self._bin.write(content)
        except OSError as error:
            raise _unwritable(self._bin_path, len(content), error) from error
        self._hash.update(content)
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
        """Ends the last shard and returns all shards. ``files`` then has each file's size and SHA-256."""
        if self._bin is not None:
            self._finish_shard()
        return self.entries

    def abort(self) -> None:
        """Closes the open file without finishing its shard."""
        if self._bin is not None:
            handle, self._bin = self._bin, None
            # The disk may be full; that was reported already, and the file will be removed.
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
            # A full disk may be reported only here.
            self._bin.flush()
            os.fsync(self._bin.fileno())
            self._bin.close()
        except OSError as error:
            raise _unwritable(self._bin_path, size, error) from error
        self._bin = None
        documents = np.concatenate(self._documents)
        header = index_header(len(documents) - 1, self._num_sentences, self._tokens)
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


def _unwritable(path: Path, size: int, error: OSError) -> DataError:
    return DataError(f"{path}: expected to write {size} bytes, got: {error.strerror or error}")
