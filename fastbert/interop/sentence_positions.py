"""Tells where sentence-transformers gives tokens other positions than `SentenceEncoder` does."""

from __future__ import annotations

import logging
from pathlib import Path

from tokenizers import Tokenizer

from ..data.tokenizer import special_ids
from ..data.vocab_files import read_settings
from ..errors import InputError
from ..model_config import read_config_file
from ..weights.roberta import DEFAULTS, MODEL_TYPES

_log = logging.getLogger("fastbert")


def check_positions(directory: Path, tokenizer: Tokenizer) -> None:
    """Logs a warning, or raises InputError if all vectors would be others than in transformers.

    A BERT counts positions from the left of the padded batch, so that padding on the left moves them. RoBERTa's kin
    count the tokens that are not config.json's pad, which may be another token in the tokenizer.

    Args:
        directory: that of the model and its tokenizer.
        tokenizer: as `load_tokenizer` returns it.

    Raises:
        InputError: the pad in config.json is a token that every text has.
    """
    path, values = read_config_file(directory)
    if values.get("model_type") not in MODEL_TYPES:
        _warn_of_left_padding(directory / "tokenizer_config.json")
        return
    pad, ids = values.get("pad_token_id", DEFAULTS["pad_token_id"]), special_ids(tokenizer)
    token = tokenizer.id_to_token(pad) if isinstance(pad, int) else None
    if token is None or pad == ids.pad:
        return
    said = f"expected pad_token_id to be that of the tokenizer, {ids.pad}, got {pad}, which is its token {token!r:.50}"
    if pad in (ids.cls, ids.sep):
        raise InputError(
            f"{path}: {said}, so that all vectors are others in transformers than here; within "
            "sentence-transformers, fastbert.patch(model) supports it"
        )
    _log.warning("%s: %s: texts with this token have other vectors in transformers than here", path, said)


def _warn_of_left_padding(path: Path) -> None:
    if read_settings(path.with_name("vocab.txt")).get("padding_side") == "left":
        _log.warning(
            "%s: padding_side is left: in sentence-transformers a text's vector depends on the longest text of its "
            "batch, here it is that of the text alone",
            path,
        )
