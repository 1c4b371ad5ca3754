"""``fastbert fill-mask``: the most likely tokens for each [MASK]."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from ..errors import DataError, InputError
from ._options import refuse_given
from ._paths import InputPath


@dataclass
class FillMask:
    """Shows the most likely tokens, with probabilities, for each [MASK] in a text.

    Example:
        fastbert fill-mask --model RUN "The capital of France is [MASK]."
        fastbert fill-mask --model RUN - < texts.txt
        fastbert fill-mask --model RUN "The capital of France is [MASK]." --targets paris london
    """

    texts: Positional[Annotated[list[str], arg(metavar="TEXT [TEXT ...]", help_behavior_hint="(required)")]]
    """Texts, each with at least one [MASK]; a single - reads them from standard input, a line each, or a table."""
    model: Annotated[InputPath, arg(metavar="DIR")]
    """A model directory with a masked language model, or a run directory."""
    column: str | None = None
    """With -, the column of the texts if standard input is a table (tabs, CSV or JSON lines)."""
    top_k: int = 5
    """How many tokens to show for each mask."""
    targets: Annotated[tuple[str, ...] | None, arg(metavar="WORD [WORD ...]")] = None
    """Show the probabilities of these words alone, each of which must be one token."""
    truncate: bool = False
    """Cut a text that is too long for the model; otherwise it is an error."""
    json: bool = False
    """Print one JSON object for each text."""


def run(args: FillMask) -> None:
    """Fills every mask of every text."""
    from .. import BertForMaskedLM, load_tokenizer
    from ..data.tokenizer import warn_if_larger
    from ..tasks.column import texts_of
    from ..tasks.fill_mask import fill_mask, token_ids
    from ..tasks.trained import load_trained, model_directory

    if not args.texts:
        raise InputError("expected a text with [MASK], got none")
    if args.targets is not None:
        refuse_given(args, "top_k", because="a search of the whole vocabulary, got it with --targets")
    if args.texts != ["-"]:
        refuse_given(args, "column", because="standard input (-), got it with texts")
    directory = model_directory(args.model)
    tokenizer = load_tokenizer(directory)
    targets = None if args.targets is None else token_ids(tokenizer, args.targets)
    model = load_trained(BertForMaskedLM.from_pretrained, directory)
    warn_if_larger(tokenizer, model.config.vocab_size, directory)

    def answer(text: str) -> list:
        return fill_mask(model, tokenizer, text, args.top_k, truncate=args.truncate, targets=targets)

    if args.texts == ["-"]:
        unit, number = ("line" if args.column is None else "row"), 0
        for number, text in texts_of("-", args.column):
            if text.strip():
                try:
                    _show(text, answer(text), args.json)
                except InputError as error:
                    raise DataError(f"standard input, {unit} {number}: {error}") from error
        if not number:
            raise DataError(f"standard input: expected {unit}s with [MASK], got none")
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
            share = candidate.probability
            shown = f"{share:7.4f}" if share >= 5e-5 else f"{share:7.1e}"  # words that were asked for may be unlikely
            print(f"  {shown}  {candidate.token}", flush=True)
