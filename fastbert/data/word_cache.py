"""A cache of the ids of words, which gives the results of the `tokenizers` library several times as fast on prose.

BERT's tokenizer cleans text character by character, splits it at white space and around every punctuation mark, and
then encodes each word separately. So wherever words can be separated safely, their ids can be cached. Text that is not
plain Western text is encoded by the library.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

# Letters and digits of ASCII and letters of Latin-1: their normalisation does not depend on their neighbours.
_LETTERS = "0-9A-Za-zÀ-ÖØ-öø-ÿ"
# ASCII punctuation, and common marks of books and web pages: each mark is a word by itself.
_MARKS = "!-/:-@\\[-`{-~‘’“”–—…"  # noqa: RUF001
_WORD = re.compile(f"[{_LETTERS}]+|[{_MARKS}]")
_ODD = re.compile(f"[^{_LETTERS}{_MARKS} \\t]")

# Bounds of the memory of a cache: the most words, and the most characters of a word.
_MAX_WORDS = 200_000
_MAX_WORD_CHARS = 40
_SENTENCES_A_CALL = 4096


class WordCache:
    """Encodes sentences without special tokens.

    Args:
        tokenizer: any that neither truncates nor pads; if it is not built as BERT's is, nothing is cached.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_bert = _is_bert(tokenizer)
        self._ids: dict[str, list[int]] = {}

    def encode(self, sentences: Sequence[str], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all sentences end to end (T,), and the number of tokens of each sentence (S,) int32."""
        if len(self._ids) > _MAX_WORDS:
            self._ids.clear()
        words, counts, passing = [], [], set()
        for sentence in sentences:
            if self._is_bert and not _ODD.search(sentence):
                found = _WORD.findall(sentence)
                words += found
                counts.append(len(found))
            else:
                words.append(sentence)
                counts.append(1)
                passing.add(sentence)
        passing |= self._learn(set(words).difference(self._ids))
        ids = list(map(self._ids.__getitem__, words))
        tokens = np.fromiter(itertools.chain.from_iterable(ids), dtype)
        ends = np.concatenate([[0], np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids)))])
        lengths = np.diff(ends[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])]).astype(np.int32)
        for text in passing:
            self._ids.pop(text, None)
        return tokens, lengths

    def _learn(self, texts: set[str]) -> set[str]:
        """Encodes words by the library; returns those that are not to be kept in the cache."""
        ordered = list(texts)
        for first in range(0, len(ordered), _SENTENCES_A_CALL):
            batch = ordered[first : first + _SENTENCES_A_CALL]
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            self._ids.update((text, encoding.ids) for text, encoding in zip(batch, encodings, strict=True))
        return {text for text in ordered if len(text) > _MAX_WORD_CHARS}


def _is_bert(tokenizer: Tokenizer) -> bool:
    content = json.loads(tokenizer.to_str())
    kinds = [(content.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    # Added tokens are found within and across words; special ones are not if they are encoded as text.
    added_special = all(token["special"] for token in content["added_tokens"]) and tokenizer.encode_special_tokens
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and added_special
