"""``fastbert vocab``: trains a WordPiece vocabulary on text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ..errors import InputError
from ._paths import InputPath, OutputPath

OWNERS = ("config.json", "bert_config.json", "manifest.json")
"""Files of models and of prepared data, which depend on the ids of the vocabulary beside them."""
# What a tokenizer without a vocab.txt has. A new vocab.txt, with what is written beside it, would take their place,
# also where they keep their names.
_BESIDE = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "sentencepiece.bpe.model", "spiece.model")


@dataclass
class Vocab:
    """Trains a WordPiece vocabulary on text files.

    A text file has one sentence or paragraph a line; .jsonl with a "text" field, .gz of both, and directories are read
    too. The files are read twice, so that the same text gives the same vocabulary.

    Example:
        fastbert vocab books.txt --size 30522 --out vocab.txt
    """

    corpus: Positional[Annotated[list[InputPath], arg(metavar="CORPUS [CORPUS ...]", help_behavior_hint="(required)")]]
    """Text files or directories; - for standard input."""
    out: Annotated[OutputPath, arg(metavar="PATH")]
    """A .txt file for the vocabulary (a vocab.txt gets its tokenizer_config.json beside it), or a directory for
    vocab.txt, tokenizer_config.json and tokenizer.json."""
    size: int = 30522
    """Number of tokens, the five special ones included; a small corpus may give fewer."""
    cased: bool = False
    """Keep capitals and accents; otherwise text is lower-cased and accents are removed."""
    min_frequency: int = 2
    """How often two pieces must occur side by side to be merged into one."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: an error that names file and line, or U+FFFD in their place."""


def run(args: Vocab) -> None:
    """Trains and writes the vocabulary."""
    from ..data.alphabet import alphabet
    from ..data.corpus import corpus_files, read_raw_documents
    from ..data.tokenizer import save_tokenizer, save_vocab, train_wordpiece
    from ._progress import corpus_progress

    files = corpus_files(args.corpus)
    to_file = args.out.suffix == ".txt"
    vocab = args.out if to_file else args.out / "vocab.txt"
    _check_target(args.out, vocab, files)
    before = vocab.read_bytes() if vocab.is_file() else None

    def lines(advance) -> Iterator[str]:
        return (line for document in read_raw_documents(files, args.errors, advance) for line in document.lines)

    letters = None
    if all(file.is_file() for file in files):  # a pipe can be read only once, and its vocabulary is not deterministic
        with corpus_progress("counting letters", files) as advance:
            letters = alphabet(lines(advance), not args.cased)
    options = {"min_frequency": args.min_frequency, "alphabet": letters}
    with corpus_progress("reading", files) as advance:
        tokenizer = train_wordpiece(lines(advance), args.size, not args.cased, **options)
    paths = save_vocab(tokenizer, args.out) if to_file else save_tokenizer(tokenizer, args.out)
    size = tokenizer.get_vocab_size()
    few = f", of the {args.size:,} asked for: the corpus has no more" if size < args.size else ""
    print(f"{size:,} tokens ({'cased' if args.cased else 'uncased'}){few}")
    for path in paths:
        print(path)
    if before is not None and vocab.read_bytes() != before:
        print(f"{vocab}: replaced another vocabulary", file=sys.stderr)


def _check_target(out: Path, vocab: Path, read: Sequence[Path]) -> None:
    """Raises InputError if ``out`` is not what its name says, or if ``vocab`` must not be replaced."""
    from ..result_files import check_writable

    to_file = out == vocab
    if out.is_dir() if to_file else out.is_file():
        there = "a directory" if to_file else "a file"
        raise InputError(f"{out}: expected a .txt file or a directory to write, got {there} of that name")
    check_writable(vocab, *read)
    owner = next((name for name in OWNERS if (vocab.parent / name).is_file()), None)
    names = [vocab.name, *(_BESIDE if vocab.name == "vocab.txt" else ())]
    there = next((vocab.with_name(name) for name in names if vocab.with_name(name).is_file()), None)
    if there is not None and owner is not None:
        what = "vocabulary" if there == vocab else "tokenizer"
        raise InputError(f"{there}: expected a new file, got the {what} that {owner} beside it was made with")
