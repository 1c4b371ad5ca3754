"""``fastbert extract``: contextual features of every token of a text file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from .. import hardware
from ..errors import DataError, InputError
from ._paths import InputPath, OutputPath

if TYPE_CHECKING:
    from ..tasks.features import TokenFeatures

_NUMBERS = re.compile("-?[0-9]{1,4}(,-?[0-9]{1,4})*")
_NUMBERS_OF = {"last4-concat": (-1, -2, -3, -4), "last": (-1,), "second-to-last": (-2,)}
"""The layers that --json writes apart from each other, by the names of choices that are made of whole layers."""


@dataclass
class Extract:
    """Writes contextual features per token, for each line of a text file.

    OUT/features.npy holds them, (tokens, features) float32.
    OUT/tokens.jsonl says, for each line of the file, which rows of features.npy belong to it:
        {"line": 1, "start": 0, "end": 9, "tokens": [...], "ids": [...]}

    Example:
        fastbert extract --model RUN --layers last4-concat --out features lines.txt
        fastbert extract --model RUN --json --layers=-1,-2 --out features lines.txt
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
    layers: Annotated[str, arg(metavar="LAYERS")] = "last4-concat"
    """Which layers make the features, as in the BERT paper's Table 7: embeddings, second-to-last, last, last4-sum,
    last4-concat (last4 needs at least four layers) or all12-sum (sums all layers of any model). Or numbers of layers,
    whose features follow each other: --layers=-1,-2 is the last layer and the one below, 0 is the first."""
    json: bool = False
    """Write OUT/features.jsonl instead, as google-research/bert's extract_features.py does: a JSON object for each
    text, with every token and its values in each layer, by default in --layers=-1,-2,-3,-4."""
    truncate: bool = False
    """Cut off lines that are too long for the model; otherwise they are an error."""


def run(args: Extract) -> None:
    """Streams the file through the model; results are written atomically."""
    from .. import load_tokenizer
    from ..data.tokenizer import warn_if_larger
    from ..models.encoders import load_encoder
    from ..result_files import check_writable
    from ..signals import removed_on_sigterm
    from ..tasks.bad_rows import called
    from ..tasks.column import texts_of
    from ..tasks.features import token_features
    from ..tasks.trained import model_directory
    from ._progress import progress

    layers = _layers(args)
    paths = [args.out / name for name in (["features.jsonl"] if args.json else ["features.npy", "tokens.jsonl"])]
    for path in paths:
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
    with removed_on_sigterm(), progress("features", None, "lines") as advance:

        def computed() -> Iterator[TokenFeatures]:
            found = None
            for found in token_features(model, tokenizer, texts, layers, **options):
                yield found
                advance(1)
            if found is None:
                raise DataError(f"{called(args.file)}: expected lines of text, got an empty file")

        if args.json:
            _write_json(computed(), layers, *paths)
        else:
            _write_arrays(computed(), *paths)
    for path in paths:
        print(path)


def _layers(args: Extract) -> str | tuple[int, ...]:
    """The name or the numbers in --layers.

    Raises:
        InputError: it is neither, or names a sum or the embeddings with --json.
    """
    from ..tasks.features import LAYERS

    given = args.layers
    if _NUMBERS.fullmatch(given):
        return tuple(map(int, given.split(",")))
    if given not in LAYERS:
        known = ", ".join(LAYERS)
        raise InputError(f"--layers: expected one of {known}, or numbers such as --layers=-1,-2, got {given!r}")
    if args.json and given not in _NUMBERS_OF:
        raise InputError(f"--json writes layers by their numbers, as in --layers=-1,-2,-3,-4, got --layers {given}")
    return _NUMBERS_OF[given] if args.json else given


def _write_arrays(found: Iterable[TokenFeatures], features_path: Path, tokens_path: Path) -> None:
    from ..result_files import atomic_write, write_npy

    with atomic_write(tokens_path) as index, write_npy(features_path) as features:
        start = 0
        for line, of_text in enumerate(found, 1):
            features.append(of_text.values)
            end = start + len(of_text.ids)
            row = {"line": line, "start": start, "end": end, "tokens": of_text.tokens, "ids": of_text.ids}
            index.write(json.dumps(row, ensure_ascii=False) + "\n")
            start = end


def _write_json(found: Iterable[TokenFeatures], layers: Sequence[int], path: Path) -> None:
    """Writes the lines of google-research/bert's extract_features.py, with its names of keys and its rounding."""
    from ..result_files import atomic_write

    with atomic_write(path) as file:
        for number, of_text in enumerate(found):
            values = of_text.values.reshape(len(of_text.ids), len(layers), -1)
            features = [
                {
                    "token": token,
                    "layers": [
                        {"index": index, "values": [round(value, 6) for value in of_layer.tolist()]}
                        for index, of_layer in zip(layers, of_token, strict=True)
                    ],
                }
                for token, of_token in zip(of_text.tokens, values, strict=True)
            ]
            file.write(json.dumps({"linex_index": number, "features": features}, ensure_ascii=False) + "\n")


def _text_or_pair(line: str) -> str | tuple[str, str]:
    """The texts of a line, as google-research/bert's extract_features.py reads it."""
    pair = re.fullmatch(r"(.*) \|\|\| (.*)", line.strip())
    return line if pair is None else (pair[1], pair[2])
