"""The ids of the `tokenizers` library, several times as fast on running text, by asking it about each word once.

BERT's tokenizer cleans text character by character, cuts it at white space and around every punctuation mark, and then
looks at one word at a time. So wherever words can be told apart safely their ids can be remembered. What is not plain
Western text goes to the library whole.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

# Letters and digits of ASCII and the letters of Latin-1: nothing here changes with its neighbours.
_LETTERS = "0-9A-Za-zÀ-ÖØ-öø-ÿ"
# ASCII punctuation, and what books and web pages add to it: each mark is a word of its own.
_MARKS = "!-/:-@\\[-`{-~‘’“”–—…"  # noqa: RUF001
_WORD = re.compile(f"[{_LETTERS}]+|[{_MARKS}]")
_ODD = re.compile(f"[^{_LETTERS}{_MARKS} \\t]")

# Bounds of the memory that a cache can take: words, and characters of one.
_MAX_WORDS = 200_000
_MAX_WORD_CHARS = 40
_SENTENCES_A_CALL = 4096


class WordCache:
    """Encodes sentences without special tokens.

    Args:
        tokenizer: any; one that is not built as BERT's is asked about every sentence. It must not truncate or pad.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_bert = _is_bert(tokenizer)
        self._ids: dict[str, list[int]] = {}

    def encode(self, sentences: Sequence[str], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all sentences end to end (T,), and the tokens of each sentence (S,) int32."""
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
        """Asks the library; returns those that are not to be kept."""
        ordered = list(texts)
        for first in range(0, len(ordered), _SENTENCES_A_CALL):
            batch = ordered[first : first + _SENTENCES_A_CALL]
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            self._ids.update((text, encoding.ids) for text, encoding in zip(batch, encodings, strict=True))
        return {text for text in ordered if len(text) > _MAX_WORD_CHARS}


def _is_bert(tokenizer: Tokenizer) -> bool:
    content = json.loads(tokenizer.to_str())
    kinds = [(content.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    # A token that was added is found within words and across them; special ones are not when they are encoded as text.
    added_special = all(token["special"] for token in content["added_tokens"]) and tokenizer.encode_special_tokens
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and added_special
