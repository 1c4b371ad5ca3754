"""On which side of a text tokens are cut off, and where.

The side is a tokenizer's own, as it is in a tokenizer.json: in the settings of its truncation. One that cuts on the
left therefore has a limit always, which no text meets where none is wanted.
"""

from __future__ import annotations

from tokenizers import Tokenizer

SIDES = ("right", "left")
# Tokens. JSON of any reader holds it.
_UNLIMITED = 2**31 - 1


def side_of(tokenizer: Tokenizer) -> str:
    """ "right" or "left"."""
    return (tokenizer.truncation or {}).get("direction", SIDES[0])


def side_settings(tokenizer: Tokenizer) -> dict[str, str]:
    """What a tokenizer_config.json says of the side, in transformers' words."""
    side = side_of(tokenizer)
    return {} if side == SIDES[0] else {"truncation_side": side}


def cut_at(tokenizer: Tokenizer, max_seqlen: int | None, side: str | None = None) -> None:
    """Makes a tokenizer cut texts to max_seqlen tokens, special ones among them; None cuts none.

    A pair that is too long loses tokens from its longer text first, as in google-research/bert.

    Args:
        side: one of `SIDES`; None for the one that the tokenizer has.
    """
    side = side_of(tokenizer) if side is None else side
    if max_seqlen is None and side == SIDES[0]:
        tokenizer.no_truncation()
    else:
        most = _UNLIMITED if max_seqlen is None else min(max_seqlen, _UNLIMITED)
        tokenizer.enable_truncation(most, strategy="longest_first", direction=side)
