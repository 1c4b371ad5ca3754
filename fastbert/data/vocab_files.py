"""Reads a vocab.txt and the tokenizer_config.json beside it."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..text_files import decode_text, read_json
from .special_tokens import read_names, require
from .truncation import SIDES

CONTINUATION = "##"
"""The prefix of a WordPiece that continues a word."""
# SentencePiece's prefix of a word. KoBERT has a vocab.txt of such pieces; hardly any WordPiece begins with it.
WORD_BEGIN = "▁"
MAX_PIECES_SHARE = 0.1
# The share of upper case among tokens that have a case, up to which a vocabulary is uncased. It need not be 0: Google's
# Chinese vocabulary has two such tokens.
MAX_UPPER_SHARE = 0.01
# The share of tokens with accents up to which they were removed; Google's uncased and Chinese vocabularies have none.
MAX_ACCENTS_SHARE = 0.01
# Tokenizer classes that first split text into words by a dictionary: Tohoku's, and Su's of RoFormer and WoBERT.
_BY_DICTIONARY = {"BertJapaneseTokenizer": "Japanese", "RoFormerTokenizer": "Chinese", "WoBertTokenizer": "Chinese"}
# From this share of tokens with Korean letters (jamo), a vocabulary without syllables is one of sub-characters, as
# KR-BERT's is; other Korean vocabularies have syllables.
MIN_JAMO_SHARE = 0.1
_JAMO, _SYLLABLE = re.compile("[\u1100-\u11ff]"), re.compile("[\uac00-\ud7a3]")


@dataclass(frozen=True)
class Normalisation:
    """How text is cleaned before it is split; names as in tokenizer_config.json."""

    do_lower_case: bool = True
    strip_accents: bool | None = None  # None: as do_lower_case
    tokenize_chinese_chars: bool = True


def _token(line: str) -> str:
    stripped = line.rstrip()
    return line if stripped in ("", CONTINUATION) else stripped  # Google's Chinese vocabulary has U+2028 as a token


def read_vocab(path: Path) -> dict[str, int]:
    """Reads a vocab.txt: token -> line number from 0; the last line counts for a token that occurs twice.

    Blanks at the end of a line are no part of a token, as in transformers and in Google's code, if there is more.

    Raises:
        InputError: the file is empty, or has SentencePiece's pieces.
    """
    with io.StringIO(decode_text(Path(path).read_bytes(), str(path)), newline=None) as file:
        vocab = {_token(line.rstrip("\n")): index for index, line in enumerate(file)}
    if not vocab:
        raise InputError(f"{path}: expected a vocabulary, one token a line, got an empty file")
    pieces = [token for token in vocab if token.startswith(WORD_BEGIN) and token != WORD_BEGIN]
    if len(pieces) > MAX_PIECES_SHARE * len(vocab):  # all words would be [UNK]
        raise InputError(
            f"{path}: expected WordPieces, whose words go on with {CONTINUATION}, got SentencePiece's, which mark a "
            f"word's beginning ({pieces[0]!r:.50}): without its model they cut no text"
        )
    return vocab


def read_settings(vocab_path: Path) -> dict[str, Any]:
    """Reads and checks the tokenizer_config.json beside a vocabulary; empty if there is none."""
    path = vocab_path.with_name("tokenizer_config.json")
    # The configuration in the same folder does not belong to a vocabulary of another name.
    if vocab_path.name not in ("vocab.txt", "tokenizer.json", "vocab.json") or not path.is_file():
        return {}
    settings = read_json(path)
    _check_types(path, settings)
    _check_splitting(path, settings)
    # Null is the same as no entry for these; for strip_accents it means: if text is lower-cased.
    bools = ("do_lower_case", "tokenize_chinese_chars")
    return {name: value for name, value in settings.items() if name not in bools or value is not None}


def _check_types(path: Path, settings: dict[str, Any]) -> None:
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        if not isinstance(settings.get(name), bool | None):
            raise InputError(f"{path}: expected {name} to be true, false or null, got {settings[name]!r:.50}")
    names = settings.get("model_input_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(f"{path}: expected model_input_names as a list of names, got {names!r:.50}")
    side = settings.get("truncation_side")
    if side not in (None, *SIDES):
        raise InputError(f"{path}: expected truncation_side to be {' or '.join(SIDES)}, got {side!r:.50}")


def _check_splitting(path: Path, settings: dict[str, Any]) -> None:
    """Raises InputError for a tokenizer that splits text into words by a dictionary."""
    language = _BY_DICTIONARY.get(str(settings.get("tokenizer_class")).removesuffix("Fast"))
    # The class may be named in config.json, as in Tohoku's models.
    if settings.get("word_tokenizer_type") not in (None, "basic"):
        language = "Japanese"
    if language is not None:
        raise InputError(
            f"{path}: expected a tokenizer of BERT's own kind, got one that cuts {language} into words first"
        )


def _has_accents(words: Sequence[str]) -> bool:
    """Whether a vocabulary's text kept accents: letters with accents or vowel signs, and Korean syllables, which are
    all taken apart where accents are removed."""
    kept = (
        not unicodedata.is_normalized("NFD", word) or any(unicodedata.category(letter) == "Mn" for letter in word)
        for word in words
    )
    return sum(kept) > MAX_ACCENTS_SHARE * len(words)


def normalisation_of(settings: dict[str, Any], vocab: dict[str, int]) -> Normalisation:
    """The normalisation by the settings; case, accents and the splitting of Korean syllables, if case is not set, by
    the vocabulary."""
    lower, strip = settings.get("do_lower_case"), settings.get("strip_accents")
    if lower is None:
        words = [token for token in vocab if not token.startswith("[")]
        upper = sum(token != token.lower() for token in words)
        lower = upper <= MAX_UPPER_SHARE * sum(token != token.swapcase() for token in words)
        of_letters = sum(_JAMO.search(token) is not None for token in words) > MIN_JAMO_SHARE * len(words)
        if strip is None and not lower and of_letters and not any(map(_SYLLABLE.search, words)):
            strip = True  # which also splits syllables into letters; whole syllables would all be [UNK]
        elif strip is None and lower and _has_accents(words):
            strip = False  # of a script without case, or of text that had none: lower-casing alone changes nothing
    return Normalisation(lower, strip, settings.get("tokenize_chinese_chars", True))


def resolved_settings(vocab_path: Path) -> str | None:
    """The text of a tokenizer_config.json that states the normalisation (case, Korean letters) that `load_tokenizer`
    guesses from a vocab.txt, since transformers lower-cases by default. Nothing else is added.

    Returns:
        the text; None if the file already states it, or a file is not valid.
    """
    try:
        settings = read_settings(vocab_path)
        if settings.get("do_lower_case") is not None:
            return None
        vocab = read_vocab(vocab_path)
        require(vocab, read_names(vocab_path, settings), str(vocab_path))  # PhoBERT's are no WordPieces, and have none
        found = normalisation_of(settings, vocab)
    except InputError:
        return None
    said = {"do_lower_case": found.do_lower_case}
    if found.strip_accents is not None:
        said["strip_accents"] = found.strip_accents
    return json.dumps({"tokenizer_class": "BertTokenizer", **settings, **said}, indent=2) + "\n"
