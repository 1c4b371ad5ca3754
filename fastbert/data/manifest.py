"""The manifest of a data directory: what it contains, and the size and SHA-256 of every file."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import DataError
from ..files import sha256

FORMAT = "fastbert-shards"
VERSION = 1
FILE_NAME = "manifest.json"

# The only names that a manifest may list, none of which can lead out of its directory.
_FILE_NAME = re.compile(r"(?:vocab\.txt|tokenizer_config\.json|tokenizer\.json|[a-z]+/shard-[0-9]{5,9}\.(?:bin|idx))")


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the five special tokens, and of further ones that a tokenizer.json adds (``others``)."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    others: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """pad, unk, cls, sep, mask, and the others."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask, *self.others)


@dataclass(frozen=True)
class ShardEntry:
    """One shard: its two files and its counts."""

    bin: str
    idx: str
    documents: int
    sentences: int
    tokens: int


@dataclass(frozen=True)
class Manifest:
    """The content of a data directory.

    Args:
        vocab_size: the number of ids.
        special_ids: the ids of the special tokens.
        tokenizer_sha256: the SHA-256 of tokenizer.json.
        splits: name of a split -> its shards.
        files: name of a file -> {"bytes": size, "sha256": hex}.
        unknown_tokens: the number of tokens that are [UNK].
    """

    vocab_size: int
    special_ids: SpecialIds
    tokenizer_sha256: str
    splits: dict[str, tuple[ShardEntry, ...]]
    files: dict[str, dict]
    unknown_tokens: int = 0
    format: str = FORMAT
    version: int = VERSION

    @staticmethod
    def dtype_for(vocab_size: int) -> str:
        """The smallest type that holds every id."""
        return "<u2" if vocab_size <= 1 << 16 else "<u4"

    @property
    def dtype(self) -> str:
        """numpy's name of the dtype of the ids on disk."""
        return self.dtype_for(self.vocab_size)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Documents, sentences and tokens of each split."""
        return {
            split: {name: sum(getattr(e, name) for e in entries) for name in ("documents", "sentences", "tokens")}
            for split, entries in self.splits.items()
        }

    def digest(self, folder: str = "") -> str:
        """SHA-256 of the names and hashes of all files, or of those in a folder."""
        hashes = {name: entry["sha256"] for name, entry in self.files.items() if name.startswith(folder)}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def dumps(self) -> str:
        """The text of manifest.json."""
        table = {**asdict(self), "dtype": {"<u2": "uint16", "<u4": "uint32"}[self.dtype], "counts": self.counts}
        return json.dumps(table, indent=1, sort_keys=True) + "\n"

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Reads and checks DATA/manifest.json.

        Raises:
            DataError: there is none, it is of another format or version, or it lists files outside the directory.
        """
        path = directory / FILE_NAME
        try:
            table = json.loads(path.read_bytes())
        except OSError as error:
            what = f"no {FILE_NAME} that can be read in it ({error.strerror})"
            raise DataError(f"{directory}: expected data that `fastbert prepare` made, got {what}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: expected JSON, got: {error}") from error
        got = (table.get("format"), table.get("version")) if isinstance(table, dict) else (type(table).__name__, None)
        if got != (FORMAT, VERSION):
            raise DataError(f"{path}: expected format {FORMAT!r} version {VERSION}, got {got[0]!r} version {got[1]!r}")
        try:
            manifest = cls._from_table(table)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(f"{path}: expected a whole manifest, got a damaged one ({error!r})") from error
        names = [name for entries in manifest.splits.values() for e in entries for name in (e.bin, e.idx)]
        for name in [*names, *manifest.files]:
            if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
                raise DataError(f"{path}: expected names of shard and tokenizer files, got {name!r}")
            if name not in manifest.files:
                raise DataError(f"{path}: expected size and SHA-256 of {name}, got none")
        return manifest

    @classmethod
    def _from_table(cls, table: dict) -> Manifest:
        splits = {split: tuple(ShardEntry(**entry) for entry in entries) for split, entries in table["splits"].items()}
        counts = [n for entries in splits.values() for e in entries for n in (e.documents, e.sentences, e.tokens)]
        files = {
            name: {"bytes": int(file["bytes"]), "sha256": str(file["sha256"])} for name, file in table["files"].items()
        }
        special = SpecialIds(**{**table["special_ids"], "others": tuple(table["special_ids"]["others"])})
        vocab_size = table["vocab_size"]
        for number in (vocab_size, table["unknown_tokens"], *special.all, *counts):
            if type(number) is not int or number < 0:
                raise ValueError(f"{number!r} is no count")
        if max(special.all) >= vocab_size:
            raise ValueError(f"special id {max(special.all)} in a vocabulary of {vocab_size}")
        return cls(vocab_size, special, str(table["tokenizer_sha256"]), splits, files, table["unknown_tokens"])


def check_file(directory: Path, name: str, file: dict) -> None:
    """Raises DataError unless the file exists, is a plain file of this directory, and has the right size."""
    path = directory / name
    if path.is_symlink() or (path.parent != directory and path.parent.is_symlink()):
        raise DataError(f"{path}: expected a plain file, got a symbolic link")
    if not path.is_file():
        raise DataError(f"{path}: expected a file of {file['bytes']} bytes, got none")
    size = path.stat().st_size
    if size != file["bytes"]:
        raise DataError(f"{path}: expected {file['bytes']} bytes, got {size}")


def check_hash(directory: Path, name: str, file: dict) -> None:
    """Raises DataError unless the content has the right SHA-256."""
    got = sha256(directory / name)
    if got != file["sha256"]:
        raise DataError(f"{directory / name}: expected SHA-256 {file['sha256']}, got {got}")
