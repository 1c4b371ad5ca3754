"""On which side of a text tokens are cut off, and where.

The side is a tokenizer's own, as it is in a tokenizer.json: in the settings of its truncation. One that cuts on the
left therefore has a limit always, which no text meets where none is wanted.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Encoding, Tokenizer

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

    It keeps what it cuts off: of a long text as pieces of that length, of a pair a copy for each two pieces of both,
    which is the square. Pairs are cut by `kept_tokens`.

    Args:
        side: one of `SIDES`; None for the one that the tokenizer has.
    """
    side = side_of(tokenizer) if side is None else side
    if max_seqlen is None and side == SIDES[0]:
        tokenizer.no_truncation()
    else:
        most = _UNLIMITED if max_seqlen is None else min(max_seqlen, _UNLIMITED)
        tokenizer.enable_truncation(most, strategy="longest_first", direction=side)


def kept_tokens(encoding: Encoding, max_seqlen: int | None, side: str) -> np.ndarray | None:
    """Which tokens of a text, or of a pair, that was encoded whole are left when it is cut to max_seqlen tokens.

    Special tokens are all kept. A pair loses tokens from its longer text first, as in google-research/bert; they are
    those that the library's truncation keeps, and transformers'.

    Args:
        max_seqlen: None cuts none.
        side: one of `SIDES`, on which each text loses its tokens.

    Returns:
        (n,) their places, ascending; None where there is nothing to cut.
    """
    if max_seqlen is None or len(encoding) <= max_seqlen:
        return None
    owners = np.array([-1 if owner is None else owner for owner in encoding.sequence_ids])
    lengths = np.array([(owners == text).sum() for text in (0, 1)])
    room = max(max_seqlen - len(owners) + int(lengths.sum()), 0)
    short = int(lengths.argmin())
    left = np.empty(2, np.int64)
    left[short] = min(lengths[short], room // 2)
    left[1 - short] = room - left[short]
    kept = owners < 0
    for text in (0, 1):
        places = np.flatnonzero(owners == text)
        kept[places[: left[text]] if side == SIDES[0] else places[len(places) - left[text] :]] = True
    return np.flatnonzero(kept)
