"""``fastbert extract``: contextual features of every token of a text file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ._paths import InputPath, OutputPath


@dataclass
class Extract:
    """Writes contextual features per token, for each line of a text file.

    OUT/features.npy holds them, (tokens, features) float32.
    OUT/tokens.jsonl says, for each line of the file, which rows of features.npy belong to it:
        {"line": 1, "start": 0, "end": 9, "tokens": [...], "ids": [...]}

    Example:
        fastbert extract --model RUN --layers last4-concat --out features lines.txt
    """

    file: Positional[Annotated[InputPath, arg(metavar="FILE")]]
    """A UTF-8 text file, one text or one pair ("A ||| B") a line; with --column a table; - for standard input."""
    model: Annotated[InputPath, arg(metavar="DIR")]
    """A model directory, or a run directory."""
    out: Annotated[OutputPath, arg(metavar="OUT")] = Path("features")
    """Directory for features.npy and tokens.jsonl."""
    column: str | None = None
    """The column of the texts in a table: .tsv, .csv, .jsonl or .parquet; in one without a header its number, from
    1. "line" in tokens.jsonl is then the number of the row."""
    layers: Literal["embeddings", "second-to-last", "last", "last4-sum", "last4-concat", "all12-sum"] = "last4-concat"
    """Which layers make the features, as in the BERT paper's Table 7 (last4 needs at least four layers; all12-sum sums
    all layers of any model)."""
    truncate: bool = False
    """Cut off lines that are too long for the model; otherwise they are an error."""


def run(args: Extract) -> None:
    """Streams the file through the model; both results are written atomically."""
    from .. import hardware, load_tokenizer
    from ..data.tokenizer import warn_if_larger
    from ..errors import DataError
    from ..models.encoders import load_encoder
    from ..result_files import atomic_write, check_writable, write_npy
    from ..signals import removed_on_sigterm
    from ..tasks.bad_rows import called
    from ..tasks.column import texts_of
    from ..tasks.features import token_features
    from ..tasks.trained import model_directory
    from ._progress import progress

    features_path, tokens_path = args.out / "features.npy", args.out / "tokens.jsonl"
    for path in (features_path, tokens_path):
        check_writable(path, args.file)
    directory = model_directory(args.model)
    tokenizer = load_tokenizer(directory)
    model = load_encoder(directory).to(hardware.default_device())
    warn_if_larger(tokenizer, model.config.vocab_size, directory)
    texts = (text for _, text in texts_of(args.file, args.column))
    if args.column is None:
        texts = map(_text_or_pair, texts)
    unit = "line" if args.column is None else "row"
    options = {"truncate": args.truncate, "name": called(args.file), "unit": unit}
    with (
        removed_on_sigterm(),
        atomic_write(tokens_path) as index,
        write_npy(features_path) as features,
        progress("features", None, "lines") as advance,
    ):
        start, line = 0, 0
        for line, found in enumerate(token_features(model, tokenizer, texts, args.layers, **options), 1):
            features.append(found.values)
            end = start + len(found.ids)
            row = {"line": line, "start": start, "end": end, "tokens": found.tokens, "ids": found.ids}
            index.write(json.dumps(row, ensure_ascii=False) + "\n")
            start = end
            advance(1)
        if line == 0:
            raise DataError(f"{called(args.file)}: expected lines of text, got an empty file")
    print(features_path)
    print(tokens_path)


def _text_or_pair(line: str) -> str | tuple[str, str]:
    """The texts of a line, as google-research/bert's extract_features.py reads it."""
    pair = re.fullmatch(r"(.*) \|\|\| (.*)", line.strip())
    return line if pair is None else (pair[1], pair[2])
