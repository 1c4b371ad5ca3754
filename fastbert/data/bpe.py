"""The byte-pair encodings of GPT and GPT-2; the work itself is done by the `tokenizers` library.

GPT (Radford et al. 2018) merges the letters of lower-cased words, whose last piece ends in ``</w>``; GPT-2 (Radford et
al. 2019, section 2.2) merges bytes, so that no text is unknown to it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ..errors import InputError
from ..files import write_whole
from ..text_files import read_json
from .manifest import SpecialIds
from .truncation import side_settings

END_OF_WORD = "</w>"
END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"
# What may stand between texts in these vocabularies, the first that there is: none has BERT's [CLS] and [SEP].
_BOUNDARIES = (END_OF_TEXT, "</s>", UNKNOWN)


def is_bpe(tokenizer: Tokenizer) -> bool:
    """Whether it merges pairs, as those of GPT do."""
    return isinstance(tokenizer.model, models.BPE)


def load_bpe(vocab: Path) -> Tokenizer:
    """A tokenizer that gives the ids of transformers' GPT2Tokenizer, or OpenAIGPTTokenizer, without special tokens.

    Args:
        vocab: a vocab.json, with its merges.txt beside it. Pieces that end in ``</w>`` say that it is GPT's.

    Raises:
        InputError: a file is missing, or is not what its name says.
    """
    merges = vocab.with_name("merges.txt")
    if not merges.is_file():
        raise InputError(f"{vocab}: expected merges.txt beside it, found none")
    try:
        table, pairs = models.BPE.read_file(str(vocab), str(merges))
    except Exception as error:  # the Rust library raises bare Exception
        raise InputError(f"{vocab}: expected a vocabulary of pieces and merges.txt, got: {error}") from error
    letters = any(piece.endswith(END_OF_WORD) for piece in table)
    special = UNKNOWN if letters else END_OF_TEXT
    options = {"unk_token": UNKNOWN, "end_of_word_suffix": END_OF_WORD} if letters else {}
    try:
        tokenizer = Tokenizer(models.BPE(table, pairs, **options))
    except Exception as error:
        raise InputError(f"{merges}: expected merges of pieces in {vocab.name}, got: {error}") from error
    _dress(tokenizer, not letters, not letters and _prefix_space(vocab))
    if special not in table:
        raise InputError(f"{vocab}: expected the token {special} in it, got none")
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False)])
    return tokenizer


def _dress(tokenizer: Tokenizer, byte_level: bool, prefix_space: bool = False) -> None:
    """How text is cut before it is merged, and put together again."""
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)


def _prefix_space(vocab: Path) -> bool:
    path = vocab.with_name("tokenizer_config.json")
    return path.is_file() and bool(read_json(path).get("add_prefix_space", False))


def boundary_ids(tokenizer: Tokenizer, source: str) -> SpecialIds:
    """What stands for BERT's special tokens: the token between texts, for all of them but the unknown one.

    Raises:
        InputError: the vocabulary has none.
    """
    ids = [tokenizer.token_to_id(token) for token in _BOUNDARIES]
    boundary = next((index for index in ids if index is not None), None)
    if boundary is None:
        raise InputError(f"{source}: expected one of the tokens {' '.join(_BOUNDARIES)}, got none")
    unknown = tokenizer.token_to_id(tokenizer.model.unk_token) if tokenizer.model.unk_token else None
    added = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    unknown = boundary if unknown is None else unknown
    return SpecialIds(
        boundary, unknown, boundary, boundary, boundary, others=tuple(sorted(added - {boundary, unknown}))
    )


def config_text(tokenizer: Tokenizer) -> str:
    """The text of tokenizer_config.json, in transformers' words."""
    letters = tokenizer.model.end_of_word_suffix == END_OF_WORD
    settings = {"tokenizer_class": "OpenAIGPTTokenizer" if letters else "GPT2Tokenizer", **side_settings(tokenizer)}
    settings["unk_token"] = UNKNOWN if letters else END_OF_TEXT
    if not letters:
        settings |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    return json.dumps(settings, indent=2) + "\n"


def train_bpe(texts: Iterable[str], size: int, *, byte_level: bool = True) -> Tokenizer:
    """Trains a GPT-2 vocabulary (of bytes) or a GPT vocabulary (of the letters of lower-cased words).

    Args:
        texts: consumed once.
        size: the most pieces to make, the special token among them; of bytes at least 257.

    Raises:
        InputError: size has no room for the letters that there are.
    """
    least = len(pre_tokenizers.ByteLevel.alphabet()) + 1 if byte_level else 3
    if size < least:
        raise InputError(f"vocabulary size: expected at least {least}, got {size}")
    if byte_level:
        tokenizer, special = Tokenizer(models.BPE()), END_OF_TEXT
    else:
        tokenizer, special = Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix=END_OF_WORD)), UNKNOWN
    _dress(tokenizer, byte_level)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [],
        # The trainer keeps every letter twice (alone and at a word's end) whatever the size asked for.
        limit_alphabet=size if byte_level else max(1, (size - 1) // 2),
        **({} if byte_level else {"end_of_word_suffix": END_OF_WORD}),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_bpe(tokenizer: Tokenizer, directory: str | Path) -> list[Path]:
    """Writes vocab.json, merges.txt and tokenizer_config.json, GPT's own files, each whole; returns their paths."""
    directory = Path(directory)
    with tempfile.TemporaryDirectory() as aside:  # the library writes into a directory, and not all at once
        saved = [Path(path) for path in tokenizer.model.save(aside)]
        contents = {path.name: path.read_text(encoding="utf-8") for path in saved}
    contents["tokenizer_config.json"] = config_text(tokenizer)
    for name, content in contents.items():
        write_whole(directory / name, content)
    return [directory / name for name in contents]
