"""Reads a tokenizer.json as transformers does with the files beside it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers

from ..errors import InputError
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
# Those that know nothing themselves: all that they do is in the file.
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
# And those whose model_input_names leave token types out.
_WITHOUT_TYPES = tuple(f"{name}Tokenizer" for name in ("DistilBert", "Roberta", "XLMRoberta", "Camembert"))


def is_wordpiece(tokenizer: Tokenizer) -> bool:
    """Whether it is of BERT's kind."""
    return isinstance(tokenizer.model, models.WordPiece)


def read_tokenizer_json(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """The tokenizer, without truncation or padding, its texts marked by a template of ours (a byte-pair encoding's by
    its own).

    Args:
        settings: tokenizer_config.json, or nothing.

    Raises:
        InputError: as `tokenizer.load_tokenizer` says.
    """
    with _told(f"{path}: expected a tokenizer.json, got a file that fails with"):
        tokenizer = Tokenizer.from_file(str(path))
    if not isinstance(tokenizer.model, models.WordPiece | models.Unigram | models.BPE):
        raise InputError(
            f"{path}: expected a WordPiece, Unigram or BPE tokenizer, got {type(tokenizer.model).__name__}"
        )
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
    """Puts the template in, as the file or the class has it; returns the names of the special tokens."""
    # What the file itself knows: the unknown token, and names that stand in a template of ours.
    unknown = _unknown(path, tokenizer)
    bytes_of_berts = isinstance(tokenizer.model, models.BPE) and tokenizer.token_to_id(BERT_NAMES.cls_token) is not None
    own = names_of(tokenizer, BERT_NAMES if is_wordpiece(tokenizer) or bytes_of_berts else XLMR_NAMES)
    own = own if unknown is None else own._replace(unk_token=unknown)
    given = {role: name for role, name in settings.items() if name is not None}
    names = read_names(path, {**own._asdict(), **given})
    names = names if unknown is None else names._replace(unk_token=unknown)
    require(tokenizer.get_vocab(with_added_tokens=True), names, str(path))
    types = wants_types(settings)
    theirs = None
    if not is_wordpiece(tokenizer) or not is_berts(settings):
        with _told(f"{path}: expected a post_processor that can be used, got one that fails with"):
            theirs = marked(tokenizer)
    between = 1 if theirs is None else separators(theirs[1])
    set_template(tokenizer, names, types, between)
    if theirs is not None:
        for their, own in zip(theirs, marked(tokenizer), strict=True):
            if their.ids != own.ids:
                raise InputError(
                    f"{path}: expected a post_processor that makes {' '.join(own.tokens)} of its texts, as BERT reads "
                    f"them, got one that makes {' '.join(their.tokens)}"
                )
        if types and not any(theirs[1].type_ids):
            set_template(tokenizer, names, False, between)
    return names


def _unknown(path: Path, tokenizer: Tokenizer) -> str | None:
    """The unknown token of the model itself; None where it needs none, as one of bytes."""
    if not isinstance(tokenizer.model, models.Unigram):
        return tokenizer.model.unk_token
    index = json.loads(tokenizer.model.__getstate__())["unk_id"]
    if index is None:
        raise InputError(f"{path}: expected a Unigram with an unk_id, without which unknown texts are errors, got none")
    return tokenizer.id_to_token(index)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Raises InputError for what the Rust library raises, which is bare Exception, and where it panics: at a template
    that names a token that it does not hold, and at a Precompiled normalizer that is damaged."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {' '.join(str(error).split())}") from None


def is_generic(settings: dict[str, Any]) -> bool:
    """Whether transformers takes a class that follows a tokenizer.json and adds nothing."""
    return settings.get("tokenizer_class") in _GENERIC


def is_berts(settings: dict[str, Any]) -> bool:
    """Whether transformers takes one of its BERT classes, as for a BERT also where no class is named."""
    return str(settings.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast") in _OF_BERT


def wants_types(settings: dict[str, Any]) -> bool:
    """Whether a model gets token types; without them, every type is 0.

    Where model_input_names says nothing the class decides: those of `_WITHOUT_TYPES` give none, whatever the model.
    What the generic class leaves out does not count, since it gave them until transformers 5.
    """
    names = settings.get("model_input_names")
    if names is None:
        return str(settings.get("tokenizer_class")).removesuffix("Fast") not in _WITHOUT_TYPES
    return "token_type_ids" in names


def _follow(tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """What tokenizer_config.json says of a text's cleaning wins over tokenizer.json, as in transformers' BERT classes.

    What it does not say stays as tokenizer.json has it; transformers' classes put their defaults there (lower-casing,
    for one), also over a tokenizer that is plainly cased.
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
