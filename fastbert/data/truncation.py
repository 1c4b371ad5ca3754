"""Truncation of texts: on which side tokens are cut off, and how many.

The side is part of the truncation settings in a tokenizer.json. A tokenizer that truncates on the left therefore always
has a limit; if none is wanted, it is one that no text reaches.
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
"""The characters of a text that are encoded at first, for each token that is kept; in prose, tokens have 4 to 6."""
_BLANKS = " \n"
# In tokens. Every JSON reader can represent it.
_UNLIMITED = 2**31 - 1


def side_of(tokenizer: Tokenizer) -> str:
    """ "right" or "left"."""
    return (tokenizer.truncation or {}).get("direction", SIDES[0])


def side_settings(tokenizer: Tokenizer) -> dict[str, str]:
    """The entries of a tokenizer_config.json for transformers that tell the side."""
    side = side_of(tokenizer)
    return {} if side == SIDES[0] else {"truncation_side": side}


def cut_at(tokenizer: Tokenizer, max_seqlen: int | None, side: str | None = None) -> None:
    """Makes a tokenizer truncate texts to max_seqlen tokens, including special tokens; None turns truncation off.

    The library keeps the overflowing tokens: for a text as pieces of that length, but for a pair as all combinations of
    the pieces of both, whose number is quadratic. Pairs are therefore truncated by `kept_tokens`.

    Args:
        tokenizer: changed in place.
        max_seqlen: the most tokens, or None.
        side: one of `SIDES`; None keeps the tokenizer's.
    """
    side = side_of(tokenizer) if side is None else side
    if max_seqlen is None and side == SIDES[0]:
        tokenizer.no_truncation()
    else:
        most = _UNLIMITED if max_seqlen is None else min(max_seqlen, _UNLIMITED)
        tokenizer.enable_truncation(most, strategy="longest_first", direction=side)


def encode_beginnings(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """The same as ``encode_batch`` (except for ``overflowing``, and without offsets), but of long texts only the
    beginning is encoded: for the first 256 tokens of a book, the library would encode all of it, at 150 bytes a
    character.

    This needs a tokenizer that gives the beginning of a text, up to a space or a line's end, the same tokens as the
    whole text, such as BERT's. With any other tokenizer all of each text is encoded.
    """
    limit = tokenizer.truncation
    if limit is None or limit["direction"] != SIDES[0] or not _ends_words_at_blanks(tokenizer):
        return tokenizer.encode_batch_fast(texts)
    found: dict[int, Encoding] = {}
    left, size = list(range(len(texts))), CHARACTERS_A_TOKEN * limit["max_length"]
    while left:
        parts = [_beginning(texts[number], size) for number in left]
        for number, part, encoding in zip(left, parts, tokenizer.encode_batch_fast(parts), strict=True):
            if len(part) == len(texts[number]) or encoding.overflowing:
                found[number] = encoding
        left, size = [number for number in left if number not in found], 8 * size
    return [found[number] for number in range(len(texts))]


def _ends_words_at_blanks(tokenizer: Tokenizer) -> bool:
    parts = (tokenizer.normalizer, BertNormalizer), (tokenizer.pre_tokenizer, BertPreTokenizer)
    is_bert = all(isinstance(part, kind) for part, kind in (*parts, (tokenizer.model, WordPiece)))
    added = "".join(token.content for token in tokenizer.get_added_tokens_decoder().values())
    return is_bert and not any(map(str.isspace, added))  # the normalizer turns all white space into spaces


def _beginning(text: str, size: int) -> str:
    """About the first ``size`` characters of a text that has many more, up to a space or line's end; else all of it."""
    end = max(text.rfind(blank, 0, size) for blank in _BLANKS) if len(text) > 2 * size else -1
    return text if end < 0 else text[:end]


def kept_tokens(encoding: Encoding, max_seqlen: int | None, side: str) -> np.ndarray | None:
    """Truncates a text or a pair that was encoded whole.

    Special tokens are all kept. A pair loses tokens of its longer text first, as in google-research/bert; the result is
    the same as by the truncation of the tokenizers library and of transformers.

    Args:
        encoding: that of the text or pair.
        max_seqlen: the most tokens, or None for no limit.
        side: one of `SIDES`, on which each text loses its tokens.

    Returns:
        (n,) int64, the indices of the tokens that are kept, ascending; None if nothing is cut off.
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
