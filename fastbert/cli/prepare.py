"""``fastbert prepare``: converts text to token shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ..wording import counted
from ._paths import InputPath, OutputPath


@dataclass
class Prepare:
    """Converts text files to token shards with document and sentence boundaries, for pre-training.

    A text file has one sentence or paragraph a line and a blank line between documents; .jsonl with a "text" field,
    .gz of both, .parquet, and directories are read too. Paragraphs are split into sentences.

    Example:
        fastbert prepare books.txt --vocab vocab.txt --heldout 0.02 --out DATA
    """

    corpus: Positional[Annotated[list[InputPath], arg(metavar="CORPUS [CORPUS ...]", help_behavior_hint="(required)")]]
    """Text files or directories; - for standard input."""
    vocab: Annotated[InputPath, arg(metavar="PATH")]
    """A vocab.txt, a tokenizer.json, a vocab.json with its merges.txt, or a directory that holds one."""
    out: Annotated[OutputPath, arg(metavar="DATA")]
    """The directory to write; on failure nothing is left of it."""
    heldout: float = 0.0
    """Share of the documents to hold out for evaluation, chosen by a hash of their text; 0.02 is usual."""
    num_workers: int | None = None
    """Processes; by default one for each core."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: an error that names file and line, or U+FFFD in their place."""
    segment: Literal["auto", "always", "never"] = "auto"
    """Split lines into sentences: auto = in documents whose lines are paragraphs."""
    shard_tokens: int = 1 << 24
    """Tokens in a shard."""
    overwrite: bool = False
    """Replace prepared data that exists already."""


def run(args: Prepare) -> None:
    """Writes the shards and prints what they hold."""
    from ..data.corpus import corpus_files
    from ..data.prepare import prepare
    from ..signals import removed_on_sigterm
    from ._progress import corpus_progress

    files = corpus_files(args.corpus, args.vocab)
    with removed_on_sigterm(), corpus_progress("preparing", files) as advance:
        manifest = prepare(
            files,
            args.vocab,
            args.out,
            heldout=args.heldout,
            num_workers=args.num_workers,
            errors=args.errors,
            segment=args.segment,
            overwrite=args.overwrite,
            shard_tokens=args.shard_tokens,
            progress=advance,
        )
    tokens = 0
    for split, count in manifest.counts.items():
        tokens += count["tokens"]
        print(
            f"{split}: {counted(count['documents'], 'document')}, {counted(count['sentences'], 'sentence')}, "
            f"{counted(count['tokens'], 'token')}, {counted(len(manifest.splits[split]), 'shard')}"
        )
    print(f"[UNK]: {100 * manifest.unknown_tokens / tokens:.3f} % of the tokens")
    if manifest.special_ids.mask != manifest.special_ids.sep:  # a GPT's vocabulary has no mask token
        print(f"masking by default: {_default_shares(args.out)}")
    print(args.out)


def _default_shares(directory: Path) -> str:
    """The realised shares of masks and pairs, with the default options, in the first shard of the training split."""
    from ..data.pretraining import PretrainingData, SampleConfig, realised_shares
    from ..data.shards import ShardSet

    whole = ShardSet.open(directory)
    manifest = replace(whole.manifest, splits={"train": whole.manifest.splits["train"][:1]})
    shards = ShardSet(whole.directory, "train", manifest)
    config = SampleConfig(nsp=shards.num_documents > 1)
    # One epoch of a small corpus is enough, and so are a million tokens of a large one.
    return str(realised_shares(PretrainingData(shards, config), max_tokens=min(1_000_000, shards.num_tokens)))
