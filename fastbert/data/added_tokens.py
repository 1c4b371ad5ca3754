"""Tokens that were added to a vocabulary later, which transformers keeps in files beside it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ..errors import InputError
from .special_tokens import MAP_FILE, VOCABULARY_FILES, SpecialNames, older_file

_log = logging.getLogger("fastbert")

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Roles that every tokenizer has in transformers, in the order in which it adds what a vocabulary lacks; any other name
# that ends in _token is specific to the model.
_ENDS = ("bos_token", "eos_token")
_ROLES = (*_ENDS, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def add(tokenizer: Tokenizer, vocab_path: Path, settings: dict[str, Any], names: SpecialNames | None = None) -> None:
    """Adds the tokens that the tokenizer lacks and that are listed in tokenizer_config.json or in the older files
    added_tokens.json and special_tokens_map.json: first those with an id, then special tokens, which get the next ids
    in the same order as in transformers.

    Args:
        tokenizer: changed in place.
        vocab_path: a vocab.txt, tokenizer.json or vocab.json. With another name nothing is added, since the files
            beside it do not belong to it.
        settings: the content of tokenizer_config.json; empty if there is none.
        names: special tokens of the vocabulary, which its tokenizer.json may not list as added tokens. Without this,
            ``[MASK]`` in a text would be split like any word.

    Raises:
        InputError: an entry is not a token, or a token would get another id than its file says.
    """
    if vocab_path.name not in VOCABULARY_FILES:
        return
    if settings.get("split_special_tokens"):  # tokenizers are copied as tokenizer.json, which cannot express it
        _log.warning(
            "%s: split_special_tokens is not followed: special tokens that a text has are kept whole, where "
            "transformers splits them as it does words",
            vocab_path.with_name("tokenizer_config.json"),
        )
    map_of_special = older_file(MAP_FILE, vocab_path, settings)
    special, unnormalised = _special(settings, map_of_special, vocab_path)
    wanted: dict[int, AddedToken] = {}
    for content, index in older_file("added_tokens.json", vocab_path, settings).items():
        # Searched for in normalised text, except for tokens that transformers already knows as special by then.
        wanted[_id(index, vocab_path)] = AddedToken(
            _content(content, vocab_path), special=content in special, normalized=content not in unnormalised
        )
    listed = {_id(index, vocab_path): _token(t, vocab_path) for index, t in _listed(settings, vocab_path).items()}
    _add_by_id(tokenizer, wanted | listed, listed, vocab_path)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for role, name in ({} if names is None else names._asdict()).items():
        given = {**settings, **map_of_special}.get(role)
        token = given if _is_token(given) and given["content"] == name else name
        special.setdefault(name, _token(token, vocab_path, special=True))
    tokenizer.add_tokens([token for content, token in special.items() if content not in known])


def of_roles(vocab_path: Path, settings: dict[str, Any], names: SpecialNames) -> list[AddedToken]:
    """The special tokens of a vocab.txt, with the flags that the files beside it give them: if text is lower-cased, one
    with ``"normalized": true`` is also found where a text has ``[mask]``.

    Raises:
        InputError: an entry is not a token.
    """
    given = {**settings, **older_file(MAP_FILE, vocab_path, settings)}
    tokens = [*(given.get(role) for role in names._fields), *_listed(settings, vocab_path).values()]
    flags = {token["content"]: token for token in tokens if _is_token(token)}
    # transformers adds these again, without flags.
    for content in older_file("added_tokens.json", vocab_path, settings):
        flags.pop(content, None)
    plain = {"special": True, "normalized": False}
    return [
        _token(flags[name], vocab_path, special=True) if name in flags else AddedToken(name, **plain) for name in names
    ]


def _listed(settings: dict[str, Any], vocab_path: Path) -> dict[str, Any]:
    """The tokens of tokenizer_config.json by their ids."""
    listed = settings.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise InputError(f"{vocab_path}: expected added_tokens_decoder as a dictionary, got {listed!r:.50}")
    return listed


def _add_by_id(
    tokenizer: Tokenizer, wanted: dict[int, AddedToken], listed: dict[int, AddedToken], vocab_path: Path
) -> None:
    """Adds the tokens that the tokenizer lacks; each must get the id that its file says. Those that it has get the
    flags in tokenizer_config.json, ``listed``."""
    own = tokenizer.get_added_tokens_decoder()
    for index, token in sorted(wanted.items()):
        if index in own:
            if index in listed and own[index].content == token.content:
                token.special = token.special or own[index].special
                tokenizer.add_tokens([token])
            continue
        tokenizer.add_tokens([token])
        got = tokenizer.token_to_id(token.content)
        if got != index:
            raise InputError(f"{vocab_path}: expected the added token {token.content!r} to have id {index}, got {got}")


def _special(
    settings: dict[str, Any], map_of_special: dict[str, Any], vocab_path: Path
) -> tuple[dict[str, AddedToken], set[str]]:
    """Special tokens without ids, by content, and the contents of those that are searched for in text that is not
    normalised."""
    own = settings.get("extra_special_tokens")
    if not own:  # the name before transformers 5
        own = settings.get("additional_special_tokens", own)
    named, listed = _named(map_of_special) | _named(settings), None
    for given in (own, map_of_special.get("extra_special_tokens")):
        if isinstance(given, dict):
            named |= given
        elif given is not None:
            listed = [*(listed or ()), *_list(given, vocab_path)]
    given = {role: {**settings, **map_of_special}.get(role) for role in _ROLES}
    given = {role: token for role, token in given.items() if (token and isinstance(token, str)) or _is_token(token)}
    unnormalised = {
        *(_content(token, vocab_path) for token in given.values()),
        *(_content(token, vocab_path) for token in listed or ()),
    }
    if listed is None:
        listed = _list(map_of_special.get("additional_special_tokens"), vocab_path)
    # A byte-pair encoding may lack what a GPT never reads, such as a token for padding; it takes an id all the same.
    others = [*named.values(), *listed]
    found = [*(token for role, token in given.items() if role in _ENDS or others), *others]
    return {_content(t, vocab_path): _token(t, vocab_path, special=True) for t in found}, unnormalised


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if name.endswith("_token") and name not in _ROLES and (isinstance(value, str) or _is_token(value))
    }


def _is_token(value: Any) -> bool:
    return isinstance(value, dict) and "content" in value


def _list(tokens: Any, path: Path) -> list[Any]:
    if not isinstance(tokens, list | tuple | None):
        raise InputError(f"{path}: expected extra_special_tokens as a list or a dictionary, got {tokens!r:.50}")
    return list(tokens or ())


def _token(token: Any, source: Path, **more: bool) -> AddedToken:
    flags = {name: bool(token[name]) for name in _FLAGS if isinstance(token, dict) and name in token}
    return AddedToken(_content(token, source), **{**flags, **more})


def _content(token: Any, source: Path) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str) or not content:
        raise InputError(f"{source}: expected added tokens as texts, got {content!r:.50}")
    return content


def _id(index: Any, path: Path) -> int:
    try:
        return int(index)
    except (TypeError, ValueError, OverflowError):  # JSON may say Infinity
        raise InputError(f"{path}: expected ids of added tokens, got {index!r:.50}") from None
