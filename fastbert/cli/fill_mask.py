"""``fastbert fill-mask``: the most likely tokens for each [MASK]."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from ._paths import InputPath


@dataclass
class FillMask:
    """Shows the most likely tokens, with probabilities, for each [MASK] in a text.

    Example:
        fastbert fill-mask --model RUN "The capital of France is [MASK]."
        fastbert fill-mask --model RUN - < texts.txt
    """

    texts: Positional[Annotated[list[str], arg(metavar="TEXT [TEXT ...]", help_behavior_hint="(required)")]]
    """Texts, each with at least one [MASK]; a single - reads them from standard input, a line each."""
    model: Annotated[InputPath, arg(metavar="DIR")]
    """A model directory with a masked language model, or a run directory."""
    top_k: int = 5
    """How many tokens to show for each mask."""
    truncate: bool = False
    """Cut a text that is too long for the model; otherwise it is an error."""
    json: bool = False
    """Print one JSON object for each text."""


def run(args: FillMask) -> None:
    """Fills every mask of every text."""
    from .. import BertForMaskedLM, load_tokenizer
    from ..errors import DataError, InputError
    from ..tasks.fill_mask import fill_mask
    from ..tasks.trained import load_trained, model_directory
    from ..tasks.typed import text_lines

    if not args.texts:
        raise InputError("expected a text with [MASK], got none")
    directory = model_directory(args.model)
    tokenizer = load_tokenizer(directory)
    model = load_trained(BertForMaskedLM.from_pretrained, directory)

    def answer(text: str) -> list:
        return fill_mask(model, tokenizer, text, args.top_k, truncate=args.truncate)

    if args.texts == ["-"]:
        for number, text in text_lines("-"):
            if text.strip():
                try:
                    _show(text, answer(text), args.json)
                except InputError as error:
                    raise DataError(f"standard input, line {number}: {error}") from error
        return
    # All texts are computed first, so that an error leaves no partial output.
    answers = [answer(text) for text in args.texts]
    for text, masks in zip(args.texts, answers, strict=True):
        _show(text, masks, args.json)


def _show(text: str, masks: list, as_json: bool) -> None:
    if as_json:
        line = {"text": text, "masks": [[vars(c) for c in mask] for mask in masks]}
        print(json.dumps(line, ensure_ascii=False), flush=True)
        return
    print(text)
    for number, candidates in enumerate(masks, 1):
        if len(masks) > 1:
            print(f"  mask {number}")
        for candidate in candidates:
            print(f"  {candidate.probability:7.4f}  {candidate.token}", flush=True)
