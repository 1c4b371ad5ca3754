"""The byte-pair encodings of GPT and GPT-2; the work itself is done by the `tokenizers` library.

GPT (Radford et al. 2018) merges the letters of lower-cased words, whose last piece ends in ``</w>``; GPT-2 (Radford et
al. 2019, section 2.2) merges bytes, so that no text is unknown to it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..errors import InputError
from ..files import write_whole
from . import added_tokens
from .manifest import SpecialIds
from .special_tokens import XLMR_NAMES, SpecialNames, is_marked, read_names, require, set_template
from .truncation import side_settings

END_OF_WORD = "</w>"
END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"
# Tokens between texts, of which the first that a vocabulary has is used: these have no [CLS] and [SEP].
_BOUNDARIES = (END_OF_TEXT, "</s>", UNKNOWN)


def is_gpts(tokenizer: Tokenizer) -> bool:
    """Whether this is a byte-pair encoding with a single special token, which separates texts. (RoBERTa's is a
    byte-pair encoding that marks the start and end of texts as BERT's tokenizer does.)"""
    return isinstance(tokenizer.model, models.BPE) and not is_marked(tokenizer)


def load_bpe(vocab: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Loads a tokenizer that gives the same ids as transformers' GPT2Tokenizer or OpenAIGPTTokenizer, without special
    tokens, or as its RobertaTokenizer, with them.

    Args:
        vocab: a vocab.json with its merges.txt beside it. It is GPT's if it has pieces that end in ``</w>``, and
            RoBERTa's if it has RoBERTa's special tokens and not GPT-2's.
        settings: the content of tokenizer_config.json; empty if there is none.

    Raises:
        InputError: a file is missing, or has other content than its name says.
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
    prefix_space = not letters and bool(settings.get("add_prefix_space"))
    _dress(tokenizer, not letters, prefix_space)
    if not letters and special not in table and XLMR_NAMES.cls_token in table:
        names = _mark_as_roberta(tokenizer, table, vocab, settings, prefix_space)
        added_tokens.add(tokenizer, vocab, dict(settings), names)
        return tokenizer
    if special not in table:
        raise InputError(f"{vocab}: expected the token {special} in it, got none")
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False)])
    added_tokens.add(tokenizer, vocab, dict(settings))
    return tokenizer


def _dress(tokenizer: Tokenizer, byte_level: bool, prefix_space: bool = False) -> None:
    """Sets how text is split before merging, and how pieces are decoded."""
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)


def _mark_as_roberta(
    tokenizer: Tokenizer, table: dict[str, int], vocab: Path, settings: Mapping[str, Any], prefix_space: bool
) -> SpecialNames:
    names = read_names(vocab, {**XLMR_NAMES._asdict(), **{k: name for k, name in settings.items() if name is not None}})
    require(table, names, str(vocab))
    # As in transformers, where the mask token includes the space before it.
    special = [AddedToken(name, special=True, normalized=False, lstrip=name == names.mask_token) for name in names]
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=prefix_space, trim_offsets=True)
    set_template(tokenizer, names, types=False, between=2)
    return names


def with_prefix_space(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer for text that is already split into words. In a byte-level encoding (GPT-2's, RoBERTa's), the space
    before a word is part of its first piece, so the result puts a space before each word; others are returned as they
    are."""
    state = json.loads(tokenizer.to_str())
    changed = _set_prefix_space(state["pre_tokenizer"], True)
    return type(tokenizer).from_str(json.dumps(state)) if changed else tokenizer


def _set_prefix_space(step: dict[str, Any] | None, wanted: bool) -> bool:
    """Whether the bytes of a text begin with a space, in a pre-tokenizer or a post-processor of a tokenizer.json, or in
    those that one consists of; returns whether it was otherwise."""
    steps, changed = [step or {}], False
    while steps:
        step = steps.pop()
        steps += [*step.get("pretokenizers", ()), *step.get("processors", ())]  # of a Sequence
        if step.get("add_prefix_space", wanted) != wanted and step["type"] in ("ByteLevel", "RobertaProcessing"):
            step["add_prefix_space"], changed = wanted, True
    return changed


def follow_prefix_space(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a tokenizer.json with the ``add_prefix_space`` of the tokenizer_config.json beside it, which in
    transformers' RobertaTokenizer and GPT2Tokenizer counts, and is False where it is not named."""
    wanted = settings.get("add_prefix_space", False)
    if not isinstance(wanted, bool) or not isinstance(tokenizer.model, models.BPE):
        return tokenizer
    state = json.loads(tokenizer.to_str())
    changed = [_set_prefix_space(state[part], wanted) for part in ("pre_tokenizer", "post_processor")]
    return type(tokenizer).from_str(json.dumps(state)) if any(changed) else tokenizer


def prefix_space_settings(tokenizer: Tokenizer) -> dict[str, bool]:
    """What a tokenizer_config.json must say of the space before a text; nothing for none, which is the default."""
    puts = _set_prefix_space(json.loads(tokenizer.to_str())["pre_tokenizer"], False)
    return {"add_prefix_space": True} if puts else {}


def boundary_ids(tokenizer: Tokenizer, source: str) -> SpecialIds:
    """The ids that take the part of BERT's special tokens: the token between texts for all of them, except that the
    unknown token is the model's own if it has one.

    Raises:
        InputError: the vocabulary has no token between texts.
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
    """The text of a tokenizer_config.json for transformers."""
    letters = tokenizer.model.end_of_word_suffix == END_OF_WORD
    settings = {"tokenizer_class": "OpenAIGPTTokenizer" if letters else "GPT2Tokenizer", **side_settings(tokenizer)}
    settings |= {"unk_token": UNKNOWN if letters else END_OF_TEXT, **prefix_space_settings(tokenizer)}
    if not letters:
        settings |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    return json.dumps(settings, indent=2) + "\n"


def train_bpe(texts: Iterable[str], size: int, *, byte_level: bool = True) -> Tokenizer:
    """Trains a GPT-2 vocabulary (of bytes) or a GPT vocabulary (of the letters of lower-cased words).

    Args:
        texts: consumed once.
        size: the largest number of pieces, including the special token; with bytes at least 257.
        byte_level: whether to merge bytes, as GPT-2 does, or letters, as GPT does.

    Raises:
        InputError: size is too small for the bytes or letters alone.
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
        # The trainer keeps every letter twice (alone and at a word's end), regardless of the size asked for.
        limit_alphabet=size if byte_level else max(1, (size - 1) // 2),
        **({} if byte_level else {"end_of_word_suffix": END_OF_WORD}),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_bpe(tokenizer: Tokenizer, directory: str | Path) -> list[Path]:
    """Writes vocab.json, merges.txt and tokenizer_config.json, each atomically, and returns their paths."""
    directory = Path(directory)
    with tempfile.TemporaryDirectory() as aside:  # the library writes into a directory, and not atomically
        saved = [Path(path) for path in tokenizer.model.save(aside)]
        contents = {path.name: path.read_text(encoding="utf-8") for path in saved}
    contents["tokenizer_config.json"] = config_text(tokenizer)
    for name, content in contents.items():
        write_whole(directory / name, content)
    return [directory / name for name in contents]
