"""Reads a tokenizer.json, together with the files beside it, as transformers does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers

from ..errors import InputError
from ..text_files import check_text_file
from . import added_tokens, bpe
from .special_tokens import (
    BERT_NAMES,
    XLMR_NAMES,
    SpecialNames,
    keep_names,
    marked,
    names_of,
    read_names,
    require,
    separators,
    set_template,
)
from .truncation import cut_at

# Classes of transformers that give any tokenizer.json BERT's template; others, also unknown ones, keep the file's own.
_OF_BERT = frozenset(
    f"{name}Tokenizer"
    for name in (
        *("Bert", "DistilBert", "Electra", "MobileBert", "SqueezeBert", "ConvBert", "LayoutLM", "Lxmert", "Funnel"),
        *("DPRContextEncoder", "DPRQuestionEncoder", "DPRReader"),
    )
)
# Generic classes, which only do what the file says.
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Classes whose model_input_names by default do not have token types.
_OWN = ("DistilBert", "Roberta", "XLMRoberta", "Camembert")
_WITHOUT_TYPES = (*(f"{name}Tokenizer" for name in _OWN), "TokenizersBackend")


def is_wordpiece(tokenizer: Tokenizer) -> bool:
    """Whether this is a WordPiece tokenizer, as BERT's is."""
    return isinstance(tokenizer.model, models.WordPiece)


def read_tokenizer_json(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """Loads a tokenizer without truncation or padding. Special tokens are added by our template (`set_template`),
    except in GPT's byte-pair encodings, which keep their own post-processor.

    Args:
        path: the tokenizer.json.
        settings: the content of tokenizer_config.json; empty if there is none.

    Raises:
        InputError: as `tokenizer.load_tokenizer`.
    """
    with path.open("rb") as file:
        check_text_file(str(path), file.read(64), InputError)
    str(path).encode()  # a name that is not UTF-8, which the library would report as the file's content
    with _told(f"{path}: expected a tokenizer.json, got a file that fails with"):
        tokenizer = Tokenizer.from_file(str(path))
    if not isinstance(tokenizer.model, models.WordPiece | models.Unigram | models.BPE):
        raise InputError(
            f"{path}: expected a WordPiece, Unigram or BPE tokenizer, got {type(tokenizer.model).__name__}"
        )
    if not is_generic(settings):
        tokenizer = bpe.follow_prefix_space(tokenizer, settings)
    cut_at(tokenizer, None)
    tokenizer.no_padding()
    if bpe.is_gpts(tokenizer):
        bpe.boundary_ids(tokenizer, str(path))
        added_tokens.add(tokenizer, path, settings)
        keep_names(tokenizer, path, settings)
    else:
        added_tokens.add(tokenizer, path, settings, _mark(path, tokenizer, settings))
    _follow(tokenizer, settings)
    return tokenizer


def _mark(path: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> SpecialNames:
    """Sets the template, as in the file or by the class; returns the names of the special tokens."""
    names = _names(path, tokenizer, settings)
    require(tokenizer.get_vocab(with_added_tokens=True), names, str(path))
    if is_wordpiece(tokenizer) and is_berts(settings):  # the class has a template of its own, whatever the file says
        set_template(tokenizer, names, wants_types(settings))
        return names
    with _told(f"{path}: expected a post_processor that can be used, got one that fails with"):
        theirs = marked(tokenizer)
    types = wants_types(settings) and any(theirs[1].type_ids)
    set_template(tokenizer, names, types, between=separators(theirs[1]))
    for their, our in zip(theirs, marked(tokenizer), strict=True):
        if their.ids != our.ids:
            raise InputError(
                f"{path}: expected a post_processor that makes {' '.join(our.tokens)} of its texts, as BERT reads "
                f"them, got one that makes {' '.join(their.tokens)}"
            )
    return names


def _names(path: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> SpecialNames:
    """The names in the files beside a tokenizer.json; by default those in the file itself, if it has a template of
    ours, or else BERT's or XLM-R's. The unknown token is always the one in the file itself."""
    unknown = _unknown(path, tokenizer)
    known = {} if unknown is None else {"unk_token": unknown}
    bytes_of_berts = isinstance(tokenizer.model, models.BPE) and tokenizer.token_to_id(BERT_NAMES.cls_token) is not None
    own = names_of(tokenizer, BERT_NAMES if is_wordpiece(tokenizer) or bytes_of_berts else XLMR_NAMES)
    given = {role: name for role, name in settings.items() if name is not None}
    return read_names(path, {**own._replace(**known)._asdict(), **given})._replace(**known)


def _unknown(path: Path, tokenizer: Tokenizer) -> str | None:
    """The model's own unknown token; None if it needs none, as in a byte-level encoding."""
    if not isinstance(tokenizer.model, models.Unigram):
        unknown = tokenizer.model.unk_token
        if is_wordpiece(tokenizer) and tokenizer.model.token_to_id(unknown) is None:  # an added token does not count
            raise InputError(f"{path}: expected {unknown} in the model's vocabulary, since unknown words become it")
        return unknown
    index = json.loads(tokenizer.model.__getstate__())["unk_id"]
    if index is None:
        raise InputError(f"{path}: expected a Unigram with an unk_id, without which unknown texts are errors, got none")
    return tokenizer.id_to_token(index)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns the errors of the Rust library into InputError. It raises bare Exception, and panics at a template with a
    token that is not defined and at a damaged Precompiled normalizer."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {' '.join(str(error).split())}") from None


def is_generic(settings: dict[str, Any]) -> bool:
    """Whether transformers uses a generic class, which follows the tokenizer.json and adds nothing."""
    return settings.get("tokenizer_class") in _GENERIC


def is_berts(settings: dict[str, Any]) -> bool:
    """Whether transformers uses one of its BERT classes, which it also does for a BERT if no class is named."""
    return str(settings.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast") in _OF_BERT


def wants_types(settings: dict[str, Any]) -> bool:
    """Whether a model gets token types; without them, every type is 0.

    Without model_input_names the class decides: those in `_WITHOUT_TYPES` give none, whatever the model. The generic
    class of transformers 4, PreTrainedTokenizerFast, does not decide, since it gave token types there and gives none in
    transformers 5; TokenizersBackend is that of transformers 5 alone.
    """
    names = settings.get("model_input_names")
    if names is None:
        return str(settings.get("tokenizer_class")).removesuffix("Fast") not in _WITHOUT_TYPES
    return "token_type_ids" in names


def _follow(tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Applies the normalisation in tokenizer_config.json, which takes precedence over tokenizer.json, as in
    transformers' BERT classes.

    Settings that it lacks stay as in tokenizer.json. (transformers' classes set their defaults, such as lower-casing,
    even for a tokenizer that is clearly cased.)
    """
    old = tokenizer.normalizer
    follows_file = is_generic(settings) or isinstance(tokenizer.model, models.Unigram)
    if follows_file or not isinstance(old, normalizers.BertNormalizer):
        return
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=old.clean_text,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", old.handle_chinese_chars),
        strip_accents=settings.get("strip_accents", old.strip_accents),
        lowercase=settings.get("do_lower_case", old.lowercase),
    )
