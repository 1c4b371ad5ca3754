"""What a vocabulary calls its pad, unknown, first, separating and mask tokens; a tokenizer carries the names itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, processors

from ..errors import InputError
from ..files import read_json


class SpecialNames(NamedTuple):
    """Names of the five special tokens, under transformers' names for their roles."""

    pad_token: str = "[PAD]"
    unk_token: str = "[UNK]"
    cls_token: str = "[CLS]"
    sep_token: str = "[SEP]"
    mask_token: str = "[MASK]"


BERT_NAMES = SpecialNames()


def read_names(vocab_path: Path, settings: Mapping[str, Any]) -> SpecialNames:
    """The names in the files beside a vocabulary; BERT's own where they say nothing.

    Args:
        settings: tokenizer_config.json, or nothing. special_tokens_map.json beside it wins, but not over one that holds
            all added tokens: so transformers reads them.

    Raises:
        InputError: a name is no text, or two roles have one.
    """
    found = {role: _content(settings.get(role), role, vocab_path) for role in BERT_NAMES._fields}
    beside = vocab_path.with_name("special_tokens_map.json")
    if vocab_path.name in ("vocab.txt", "tokenizer.json") and beside.is_file() and not _holds_all(settings):
        values = read_json(beside)
        found |= {role: _content(values[role], role, beside) for role in found if values.get(role) is not None}
    names = SpecialNames(**{role: name for role, name in found.items() if name is not None})
    if len(set(names)) < len(names):
        raise InputError(f"{vocab_path}: expected five special tokens of different names, got {', '.join(names)}")
    return names


def _holds_all(settings: Mapping[str, Any]) -> bool:
    return "added_tokens_decoder" in settings


def _content(token: Any, role: str, source: Path) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    if token is not None and (not isinstance(content, str) or not content):
        raise InputError(f"{source}: expected the {role} as a text, got {token!r:.100}")
    return content


def names_of(tokenizer: Tokenizer) -> SpecialNames:
    """The names that `set_template` gave a tokenizer; BERT's own for any other."""
    processor = tokenizer.post_processor
    if not isinstance(processor, processors.TemplateProcessing):
        return BERT_NAMES
    held = json.loads(processor.__getstate__())["special_tokens"]
    return SpecialNames(**{role: held[role]["tokens"][0] for role in BERT_NAMES._fields if role in held})


def require(vocabulary: Iterable[str], names: SpecialNames, source: str) -> None:
    """Raises InputError where a vocabulary lacks one of its special tokens."""
    missing = [name for name in names if name not in vocabulary]
    if missing:
        raise InputError(f"{source}: expected the tokens {' '.join(names)}, got none for {' '.join(missing)}")


def set_template(tokenizer: Tokenizer, names: SpecialNames) -> None:
    """Makes ``cls A sep B sep`` of texts.

    Names that are not BERT's are kept in the template, under their roles, and so in every copy and file of it.
    """
    cls, sep = names.cls_token, names.sep_token
    special: list = [(token, tokenizer.token_to_id(token)) for token in (cls, sep)]
    if names != BERT_NAMES:
        cls, sep = "cls_token", "sep_token"
        special = [
            {"id": role, "ids": [tokenizer.token_to_id(name)], "tokens": [name]}
            for role, name in names._asdict().items()
        ]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", special_tokens=special
    )
