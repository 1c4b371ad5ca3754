"""On which side of a text tokens are cut off, and where.

The side is a tokenizer's own, as it is in a tokenizer.json: in the settings of its truncation. One that cuts on the
left therefore has a limit always, which no text meets where none is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

SIDES = ("right", "left")
CHARACTERS_A_TOKEN = 16
"""As many of a text are looked at first as the tokens that are left of it may have: of prose they have 4 to 6."""
_BLANKS = " \n"
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


def encode_beginnings(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """What ``encode_batch`` gives for texts (but for ``overflowing``), of long ones from as much of their beginning as
    the tokenizer keeps: the library would look at all of a book for its first 256 tokens, at 150 bytes a character.

    That is so where the beginning of a text has the first tokens of the whole: BERT's, up to a blank or a line's end.
    """
    limit = tokenizer.truncation
    if limit is None or limit["direction"] != SIDES[0] or not _ends_words_at_blanks(tokenizer):
        return tokenizer.encode_batch(texts)
    found: dict[int, Encoding] = {}
    left, size = list(range(len(texts))), CHARACTERS_A_TOKEN * limit["max_length"]
    while left:
        parts = [_beginning(texts[number], size) for number in left]
        for number, part, encoding in zip(left, parts, tokenizer.encode_batch(parts), strict=True):
            if len(part) == len(texts[number]) or encoding.overflowing:
                found[number] = encoding
        left, size = [number for number in left if number not in found], 8 * size
    return [found[number] for number in range(len(texts))]


def _ends_words_at_blanks(tokenizer: Tokenizer) -> bool:
    parts = (tokenizer.normalizer, BertNormalizer), (tokenizer.pre_tokenizer, BertPreTokenizer)
    is_bert = all(isinstance(part, kind) for part, kind in (*parts, (tokenizer.model, WordPiece)))
    added = "".join(token.content for token in tokenizer.get_added_tokens_decoder().values())
    return is_bert and not any(map(str.isspace, added))  # the normalizer makes blanks of all kinds one


def _beginning(text: str, size: int) -> str:
    """About ``size`` characters of a text that has many more, up to a blank; all where there is none."""
    end = max(text.rfind(blank, 0, size) for blank in _BLANKS) if len(text) > 2 * size else -1
    return text if end < 0 else text[:end]


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
