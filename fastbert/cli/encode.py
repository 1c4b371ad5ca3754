"""``fastbert encode``: one vector per line of a text file, or row of a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ..errors import DataError
from ._paths import InputPath, OutputPath


@dataclass
class Encode:
    """Writes one sentence vector per line of a text file or row of a table, (lines, dimensions) float32.

    Example:
        fastbert encode --model DIR --out vectors.npy lines.txt
        fastbert encode --model DIR --out vectors.npy reviews.csv --column text
    """

    file: Positional[Annotated[InputPath, arg(metavar="FILE")]]
    """A UTF-8 text file of any size, one text a line; with --column a table; - for standard input."""
    model: Annotated[InputPath, arg(metavar="DIR")]
    """A sentence-transformers or model directory, or a run directory."""
    out: Annotated[OutputPath, arg(metavar="FILE")] = Path("vectors.npy")
    """The .npy file to write."""
    column: str | None = None
    """The column of the texts in a table: .tsv, .csv, .jsonl or .parquet; in one without a header its number,
    from 1."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Precision of the computation; the vectors are always float32."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """How tokens become one vector; by default as the directory says, else mean."""
    normalize: Literal["yes", "no"] | None = None
    """Whether vectors are scaled to length 1; by default as the directory says, else no."""
    prompt_name: str | None = None
    """The directory's prompt to put before every text, such as query; by default the one that it names."""
    prompt: str | None = None
    """A text to put before every text, instead of a named prompt; '' for none."""
    token_budget: int | None = None
    """Tokens computed at a time; by default 4096 on a GPU, on a CPU 8192 a thread up to 32768 (or 512 a thread)."""
    batch_invariant: bool = False
    """Compute bit-identical vectors for a line, whatever the other lines are."""


def run(args: Encode) -> None:
    """Streams the file through the sentence encoder; the result is written atomically."""
    from .. import SentenceEncoder
    from ..data.chunks import windows
    from ..result_files import check_writable, write_npy
    from ..signals import removed_on_sigterm
    from ..tasks.bad_rows import called
    from ..tasks.column import texts_of
    from ..tasks.trained import model_directory
    from ._progress import progress

    check_writable(args.out, args.file)
    normalize = None if args.normalize is None else args.normalize == "yes"
    # Older sentence-transformers directories have the model in a subdirectory, 0_Transformer.
    directory = args.model if (args.model / "modules.json").is_file() else model_directory(args.model)
    encoder = SentenceEncoder.from_pretrained(
        directory, precision=args.precision, pooling=args.pooling, normalize=normalize
    )
    options = {name: getattr(args, name) for name in ("prompt_name", "prompt", "token_budget", "batch_invariant")}
    texts = (text for _, text in texts_of(args.file, args.column))
    with removed_on_sigterm(), write_npy(args.out) as vectors, progress("vectors", None, "lines") as advance:
        for window in windows(texts):
            vectors.append(encoder.encode(window, **options))
            advance(len(window))
        if vectors.rows == 0:
            raise DataError(f"{called(args.file)}: expected lines of text, got an empty file")
    print(args.out)
