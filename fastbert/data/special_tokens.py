"""What a vocabulary calls its pad, unknown, first, separating and mask tokens, and where a text's marks stand.

A tokenizer carries the names itself, in its template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer, processors

from ..errors import InputError
from ..text_files import read_json


class SpecialNames(NamedTuple):
    """Names of the five special tokens, under transformers' names for their roles."""

    pad_token: str = "[PAD]"
    unk_token: str = "[UNK]"
    cls_token: str = "[CLS]"
    sep_token: str = "[SEP]"
    mask_token: str = "[MASK]"


BERT_NAMES = SpecialNames()
# Of XLM-R's vocabulary, and of those that are made after it.
XLMR_NAMES = SpecialNames("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def read_names(vocab_path: Path, settings: Mapping[str, Any]) -> SpecialNames:
    """The names in the files beside a vocabulary; BERT's own where they say nothing.

    Args:
        settings: tokenizer_config.json, or nothing. special_tokens_map.json beside it wins, but not over one that holds
            all added tokens: so transformers reads them.

    Raises:
        InputError: a name is no text, or two roles have one.
    """
    found = _found(vocab_path, settings)
    names = SpecialNames(**{role: name for role, name in found.items() if name is not None})
    if len(set(names)) < len(names):
        raise InputError(f"{vocab_path}: expected five special tokens of different names, got {', '.join(names)}")
    return names


def _found(vocab_path: Path, settings: Mapping[str, Any]) -> dict[str, str | None]:
    found = {role: _content(settings.get(role), role, vocab_path) for role in BERT_NAMES._fields}
    beside = vocab_path.with_name("special_tokens_map.json")
    if vocab_path.name in ("vocab.txt", "tokenizer.json") and beside.is_file() and not holds_all(settings):
        values = read_json(beside)
        found |= {role: _content(values[role], role, beside) for role in found if values.get(role) is not None}
    return found


def holds_all(settings: Mapping[str, Any]) -> bool:
    """Whether a tokenizer_config.json holds all added tokens; transformers then reads no older file beside it."""
    return "added_tokens_decoder" in settings


def _content(token: Any, role: str, source: Path) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    if token is not None and (not isinstance(content, str) or not content):
        raise InputError(f"{source}: expected the {role} as a text, got {token!r:.100}")
    return content


def names_of(tokenizer: Tokenizer, default: SpecialNames = BERT_NAMES) -> SpecialNames:
    """The names that `set_template` or `keep_names` gave a tokenizer; of any other the default."""
    held = {name: token for template in _templates(tokenizer) for name, token in template["special_tokens"].items()}
    return default._replace(**{role: held[role]["tokens"][0] for role in BERT_NAMES._fields if role in held})


def _steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The steps after the model, as they stand in a tokenizer.json."""
    if tokenizer.post_processor is None:
        return []
    steps, found = [json.loads(tokenizer.post_processor.__getstate__())], []
    while steps:
        step = steps.pop()
        steps += step.get("processors", ())  # of a Sequence
        found.append(step)
    return found


def _templates(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [step for step in _steps(tokenizer) if step["type"] == "TemplateProcessing"]


def require(vocabulary: Iterable[str], names: SpecialNames, source: str) -> None:
    """Raises InputError where a vocabulary lacks one of its special tokens."""
    missing = [name for name in names if name not in vocabulary]
    if missing:
        raise InputError(f"{source}: expected the tokens {' '.join(names)}, got none for {' '.join(missing)}")


def set_template(tokenizer: Tokenizer, names: SpecialNames, types: bool = True, between: int = 1) -> None:
    """Makes ``cls A sep B sep`` of texts.

    Names that are not BERT's are kept in the template, under their roles, and so in every copy and file of it.

    Args:
        types: ``B sep`` has type 1; else 0, as the rest.
        between: how many sep stand between A and B: two in XLM-R's pairs.
    """
    cls, sep, second = names.cls_token, names.sep_token, int(types)
    special: list = [(token, tokenizer.token_to_id(token)) for token in (cls, sep)]
    if names != BERT_NAMES:
        cls, sep = "cls_token", "sep_token"
        special = _roles(tokenizer, names._asdict())
    template = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {f'{sep}:0 ' * between}$B:{second} {sep}:{second}",
        special_tokens=special,
    )
    # Pieces of bytes begin with the blank before a word; where a token lies in its text is told without it.
    trims = [step for step in _steps(tokenizer) if step.get("trim_offsets")]
    for step in trims[:1]:
        trim = processors.ByteLevel(add_prefix_space=step["add_prefix_space"], trim_offsets=True)
        template = processors.Sequence([trim, template])
    tokenizer.post_processor = template


def _roles(tokenizer: Tokenizer, names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"id": role, "ids": [tokenizer.token_to_id(name)], "tokens": [name]} for role, name in names.items()]


def marked(tokenizer: Tokenizer) -> tuple[Encoding, Encoding]:
    """A text and a pair as the tokenizer marks them.

    What a post-processor does is seen there: ``[CLS] A [SEP] B [SEP]`` can be written in several ways.
    """
    return tokenizer.encode("a"), tokenizer.encode("a", "b")


def is_marked(tokenizer: Tokenizer) -> bool:
    """Whether a text gets a token in front of it and one behind it; of GPT's kind, at most the former."""
    return tokenizer.num_special_tokens_to_add(False) > 1


def has_types(tokenizer: Tokenizer) -> bool:
    """Whether the second text of a pair has another type than the first."""
    return any(marked(tokenizer)[1].type_ids)


def separators(pair: Encoding) -> int:
    """How many marks stand between the texts of a pair (that of `marked`); 1 where there are none."""
    texts = pair.sequence_ids
    return max(1, texts[: texts.index(1)][::-1].index(0)) if {0, 1} <= {*texts} else 1


def keep_names(tokenizer: Tokenizer, vocab_path: Path, settings: Mapping[str, Any]) -> None:
    """Keeps the names of a tokenizer that has a post-processor of its own, where the files beside it name a mask.

    They stand in a template that adds nothing, before the post-processor, which does as it did.

    Raises:
        InputError: a name is no text.
    """
    found = {role: name for role, name in _found(vocab_path, settings).items() if name is not None}
    found = {role: name for role, name in found.items() if tokenizer.token_to_id(name) is not None}
    if "mask_token" not in found or names_of(tokenizer) == SpecialNames(**found):
        return
    silent = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=_roles(tokenizer, found))
    own = tokenizer.post_processor
    tokenizer.post_processor = silent if own is None else processors.Sequence([silent, own])
