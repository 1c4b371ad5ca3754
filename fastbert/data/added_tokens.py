"""Tokens that were added to a vocab.txt after it was made, as transformers keeps them beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ..errors import InputError
from ..files import read_json

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add(tokenizer: Tokenizer, vocab_path: Path, settings: dict[str, Any]) -> None:
    """Adds what ``added_tokens_decoder`` and ``additional_special_tokens`` of tokenizer_config.json and the older files
    added_tokens.json and special_tokens_map.json hold.

    Args:
        settings: tokenizer_config.json, or nothing.

    Raises:
        InputError: a token is not one, or would get another id than its file says.
    """
    if vocab_path.name != "vocab.txt":
        return
    older, beside = vocab_path.with_name("added_tokens.json"), vocab_path.with_name("special_tokens_map.json")
    map_of_special = read_json(beside) if beside.is_file() else {}
    special = [
        _content(token, source)
        for source in (settings, map_of_special)
        for token in source.get("additional_special_tokens") or ()
    ]
    wanted: dict[int, AddedToken] = {}
    if older.is_file():
        for content, index in read_json(older).items():
            # Found in normalised text, special or not: so transformers reads this file.
            wanted[_id(index, older)] = AddedToken(content, special=content in special, normalized=True)
    for index, token in (settings.get("added_tokens_decoder") or {}).items():
        flags = {name: bool(token[name]) for name in _FLAGS if isinstance(token, dict) and name in token}
        wanted[_id(index, vocab_path)] = AddedToken(_content(token, vocab_path), **flags)
    own = set(tokenizer.get_added_tokens_decoder())
    for index, token in sorted(wanted.items()):
        if index in own:
            continue  # [CLS] and its like
        tokenizer.add_tokens([token])
        got = tokenizer.token_to_id(token.content)
        if got != index:
            raise InputError(f"{vocab_path}: expected the added token {token.content!r} to have id {index}, got {got}")
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [content for content in dict.fromkeys(special) if content not in known]
    tokenizer.add_tokens([AddedToken(content, special=True, normalized=False) for content in missing])


def _content(token: Any, source: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str) or not content:
        where = source if isinstance(source, Path) else "additional_special_tokens"
        raise InputError(f"{where}: expected added tokens as texts, got {content!r:.50}")
    return content


def _id(index: Any, path: Path) -> int:
    try:
        return int(index)
    except (TypeError, ValueError):
        raise InputError(f"{path}: expected ids of added tokens, got {index!r:.50}") from None
