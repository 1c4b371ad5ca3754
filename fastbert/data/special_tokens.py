"""The names of a vocabulary's special tokens (pad, unknown, cls, sep, mask), and the template that adds them to texts.

A tokenizer keeps these names in its template.
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
# The names of XLM-R's vocabulary, and of others modelled on it.
XLMR_NAMES = SpecialNames("<pad>", "<unk>", "<s>", "</s>", "<mask>")

MAP_FILE = "special_tokens_map.json"
VOCABULARY_FILES = ("vocab.txt", "tokenizer.json", "vocab.json")
"""The vocabularies that the files beside them belong to."""


def read_names(vocab_path: Path, settings: Mapping[str, Any]) -> SpecialNames:
    """Reads the names from the files beside a vocabulary; BERT's are the defaults.

    Args:
        vocab_path: the vocabulary.
        settings: the content of tokenizer_config.json; empty if there is none. As in transformers, a
            special_tokens_map.json beside it takes precedence, unless tokenizer_config.json has all added tokens.

    Raises:
        InputError: a name is not a string, or two roles have the same name.
    """
    found = _found(vocab_path, settings)
    names = SpecialNames(**{role: name for role, name in found.items() if name is not None})
    if len(set(names)) < len(names):
        raise InputError(f"{vocab_path}: expected five special tokens of different names, got {', '.join(names)}")
    return names


def _found(vocab_path: Path, settings: Mapping[str, Any]) -> dict[str, str | None]:
    found = {role: _content(settings.get(role), role, vocab_path) for role in BERT_NAMES._fields}
    beside, values = vocab_path.with_name(MAP_FILE), older_file(MAP_FILE, vocab_path, settings)
    return found | {role: _content(values[role], role, beside) for role in found if values.get(role) is not None}


def older_file(name: str, vocab_path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file beside a vocabulary that transformers wrote before tokenizer_config.json held all
    added tokens; empty if there is none, or if it does not count.

    Args:
        name: the file's.
        vocab_path: the vocabulary; with another name than vocab.txt, tokenizer.json or vocab.json, files beside it are
            not its own.
        settings: the content of tokenizer_config.json. If it has all added tokens, transformers ignores older files.
    """
    path = vocab_path.with_name(name)
    counts = vocab_path.name in VOCABULARY_FILES and "added_tokens_decoder" not in settings
    return read_json(path) if counts and path.is_file() else {}


def _content(token: Any, role: str, source: Path) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    if token is not None and (not isinstance(content, str) or not content):
        raise InputError(f"{source}: expected the {role} as a text, got {token!r:.100}")
    return content


def names_of(tokenizer: Tokenizer, default: SpecialNames = BERT_NAMES) -> SpecialNames:
    """The names that `set_template` or `keep_names` gave a tokenizer; ``default`` for any other tokenizer."""
    held = {name: token for template in _templates(tokenizer) for name, token in template["special_tokens"].items()}
    return default._replace(**{role: held[role]["tokens"][0] for role in BERT_NAMES._fields if role in held})


def _steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The post-processors, as in a tokenizer.json."""
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
    """Raises InputError if a vocabulary lacks one of its special tokens."""
    missing = [name for name in names if name not in vocabulary]
    if missing:
        raise InputError(f"{source}: expected the tokens {' '.join(names)}, got none for {' '.join(missing)}")


def set_template(tokenizer: Tokenizer, names: SpecialNames, types: bool = True, between: int = 1) -> None:
    """Makes a tokenizer turn texts into ``cls A sep B sep``.

    Names that are not BERT's are kept in the template, under their roles, and thus in every copy and file of it.

    Args:
        tokenizer: changed in place.
        names: the special tokens.
        types: whether ``B sep`` has type 1; otherwise all types are 0.
        between: the number of sep tokens between A and B; two in XLM-R's pairs.
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
    # Byte-level pieces begin with the space before a word, which is trimmed from the offsets.
    trims = [step for step in _steps(tokenizer) if step.get("trim_offsets")]
    for step in trims[:1]:
        trim = processors.ByteLevel(add_prefix_space=step["add_prefix_space"], trim_offsets=True)
        template = processors.Sequence([trim, template])
    tokenizer.post_processor = template


def _roles(tokenizer: Tokenizer, names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"id": role, "ids": [tokenizer.token_to_id(name)], "tokens": [name]} for role, name in names.items()]


def marked(tokenizer: Tokenizer) -> tuple[Encoding, Encoding]:
    """The encodings of a sample text and a sample pair, which show what the post-processor does: the same
    ``[CLS] A [SEP] B [SEP]`` can be configured in several ways."""
    return tokenizer.encode("a"), tokenizer.encode("a", "b")


def is_marked(tokenizer: Tokenizer) -> bool:
    """Whether a text gets a token before it and one after it; GPT's tokenizers add at most the first."""
    return tokenizer.num_special_tokens_to_add(False) > 1


def has_types(tokenizer: Tokenizer) -> bool:
    """Whether the second text of a pair has another type than the first."""
    return any(marked(tokenizer)[1].type_ids)


def separators(pair: Encoding) -> int:
    """The number of tokens between the texts of a pair (that of `marked`); 1 if there are none."""
    texts = pair.sequence_ids
    return max(1, texts[: texts.index(1)][::-1].index(0)) if {0, 1} <= {*texts} else 1


def keep_names(tokenizer: Tokenizer, vocab_path: Path, settings: Mapping[str, Any]) -> None:
    """Keeps the names of special tokens in a tokenizer with another post-processor, if the files beside it name a mask.

    They are put into a template that adds nothing, before the post-processor, whose effect stays the same.

    Raises:
        InputError: a name is not a string.
    """
    found = {role: name for role, name in _found(vocab_path, settings).items() if name is not None}
    found = {role: name for role, name in found.items() if tokenizer.token_to_id(name) is not None}
    if "mask_token" not in found or names_of(tokenizer) == SpecialNames(**found):
        return
    silent = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=_roles(tokenizer, found))
    own = tokenizer.post_processor
    tokenizer.post_processor = silent if own is None else processors.Sequence([silent, own])
