"""Loads, trains and saves WordPiece tokenizers, by means of the `tokenizers` library.

Unigram tokenizers (XLM-R's) and byte-pair encodings (`data.bpe`) are loaded and saved here too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ..config import BertConfig
from ..errors import InputError
from ..files import write_whole
from ..hints import download_hint, inner_hint, run_hint
from . import added_tokens, bpe
from .alphabet import FEW
from .alphabet import alphabet as letters_of
from .manifest import SpecialIds
from .special_tokens import (
    BERT_NAMES,
    SpecialNames,
    marked,
    names_of,
    read_names,
    require,
    separators,
    set_template,
)
from .tokenizer_json import is_berts, is_generic, is_wordpiece, read_tokenizer_json, wants_types
from .truncation import cut_at, side_settings
from .vocab_files import CONTINUATION, Normalisation, normalisation_of, read_settings, read_vocab

_log = logging.getLogger("fastbert")

SPECIAL_TOKENS = tuple(BERT_NAMES)
# The largest vocabulary that can be trained: the limit of a model's configuration.
MOST_TOKENS = BertConfig.limits["vocab_size"]
# As in google-research/bert: a longer word becomes [UNK].
MAX_CHARS_PER_WORD = 100


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads a tokenizer that gives the ids of transformers' BertTokenizer, XLMRobertaTokenizer, RobertaTokenizer,
    GPT2Tokenizer or OpenAIGPTTokenizer, without truncation or padding.

    ``load_tokenizer(directory).encode("A sentence.").ids`` includes special tokens; ``encode_batch`` takes a list.

    tokenizer_config.json decides how case, accents and Chinese characters are handled. If it does not, a tokenizer.json
    keeps its own settings. With a vocab.txt, text is lower-cased if hardly any token of the vocabulary has an
    upper-case letter; if a cased vocabulary has the letters of Korean but none of its syllables, syllables are split
    into letters. (transformers' BertTokenizer lower-cases; a warning says where case is kept.) For a Unigram only the
    tokenizer.json counts. The side on which texts are to be truncated is kept in the tokenizer's truncation settings
    (`data.truncation`).

    Args:
        path: a directory with tokenizer.json, vocab.txt or vocab.json, or one of these files; a vocab.json needs a
            merges.txt beside it. Added tokens, and special tokens with other names than BERT's, are read from the files
            that transformers writes beside it.

    Returns:
        a `tokenizers.Tokenizer`.

    Raises:
        InputError: a file is missing or unreadable, the vocabulary lacks a special token, or the tokenizer would add
            special tokens to texts in another way than BERT's.
    """
    path = _vocabulary_file(Path(path))
    settings = read_settings(path)
    if path.name == "vocab.json":
        tokenizer = bpe.load_bpe(path, settings)
    elif path.suffix == ".json":
        tokenizer = read_tokenizer_json(path, settings)
    else:
        tokenizer = _load_vocab_txt(path, settings)
    cut_at(tokenizer, None, settings.get("truncation_side"))
    normaliser, is_model = tokenizer.normalizer, path.with_name("config.json").is_file()
    if is_model and isinstance(normaliser, normalizers.BertNormalizer) and not is_generic(settings):
        if "do_lower_case" not in settings and not normaliser.lowercase:
            _warn_of_guess(
                path.with_name("tokenizer_config.json"), "case", "upper case", "lower-cases", "do_lower_case"
            )
        elif not {"do_lower_case", "strip_accents"} & settings.keys() and normaliser.strip_accents is False:
            _warn_of_guess(path.with_name("tokenizer_config.json"), "accents", "accents", "removes", "strip_accents")
    return tokenizer


def is_extended(path: str | Path, source: str | Path, num_tokens: int) -> bool:
    """Whether the tokenizer of ``path`` is that of ``source`` and has more tokens, all below ``num_tokens``."""
    try:
        there, known = (load_tokenizer(each).get_vocab(with_added_tokens=True) for each in (path, source))
    except InputError:
        return False
    return len(there) > len(known) and there.items() >= known.items() and max(there.values()) < num_tokens


def _vocabulary_file(path: Path) -> Path:
    """The vocabulary file that a path names, or that is in the directory of this path."""
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", "vocab.txt", "vocab.json") if (path / name).is_file()]
        if not found:
            got = _sentencepiece(path) + (run_hint(path) or inner_hint(path))
            raise InputError(f"{path}: expected tokenizer.json or vocab.txt in it, got {got}")
        return found[0]
    if not path.is_file():
        hint = download_hint(path)
        raise InputError(f"{path}: expected a vocabulary file or a directory that holds one, got nothing there{hint}")
    return path


def _load_vocab_txt(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """The WordPiece tokenizer of a vocab.txt; ``settings`` is the content of the tokenizer_config.json beside it."""
    if not (is_berts(settings) or is_generic(settings)):
        _log.warning(
            "%s: nothing is known of the tokenizer_class %.50s: texts are cut as BERT's tokenizer cuts them",
            path.with_name("tokenizer_config.json"),
            settings["tokenizer_class"],
        )
    vocab = read_vocab(path)
    names = read_names(path, settings)
    tokens = added_tokens.of_roles(path, settings, names)
    tokenizer = build_tokenizer(vocab, normalisation_of(settings, vocab), str(path), names, tokens)
    if not wants_types(settings):
        set_template(tokenizer, names, types=False)
    added_tokens.add(tokenizer, path, settings)
    return tokenizer


@cache
def _warn_of_guess(path: Path, kept: str, evidence: str, does: str, setting: str) -> None:
    _log.warning(
        "%s: it has no do_lower_case: texts keep their %s, as the vocabulary has %s; transformers %s them, unless the "
        'file says "%s": false',
        *(path, kept, evidence, does, setting),
    )


def build_tokenizer(
    vocab: dict[str, int],
    normalisation: Normalisation,
    source: str = "the vocabulary",
    names: SpecialNames = BERT_NAMES,
    tokens: Sequence[AddedToken] | None = None,
) -> Tokenizer:
    """A WordPiece tokenizer from tokens and ids, with ``[CLS] A [SEP] B [SEP]`` as its template.

    Args:
        vocab: each token's id.
        normalisation: how text is cleaned before it is split.
        source: where the vocabulary is from, for the error message.
        names: the special tokens.
        tokens: these with their flags; None for BERT's, which are searched for in the text as it is.

    Raises:
        InputError: the vocabulary lacks a special token.
    """
    require(vocab, names, source)
    model = models.WordPiece(
        vocab,
        unk_token=names.unk_token,
        max_input_chars_per_word=MAX_CHARS_PER_WORD,
        continuing_subword_prefix=CONTINUATION,
    )
    tokenizer = _shell(model, normalisation)
    tokenizer.add_special_tokens(tokens or [AddedToken(name, special=True, normalized=False) for name in names])
    set_template(tokenizer, names)
    return tokenizer


def train_wordpiece(
    texts: Iterable[str],
    size: int,
    lowercase: bool = True,
    *,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    alphabet: Sequence[str] | None = None,
) -> Tokenizer:
    """Trains a WordPiece vocabulary; ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK].

    The tokenizers library breaks ties between equally frequent pieces at random, so two runs differ in ids and in a few
    rare tokens, unless the alphabet is known in advance.

    Args:
        texts: a list is read twice, once for its alphabet; an iterator is consumed once. Words that are too long for
            the tokenizer (`MAX_CHARS_PER_WORD`) are ignored.
        size: the largest number of tokens; a small corpus gives fewer.
        lowercase, strip_accents: how texts are normalised; by default, accents are stripped if text is lower-cased.
        min_frequency: how often two pieces must occur together to be merged.
        limit_alphabet: the largest number of single characters to keep, the most frequent first; by default all
            of ``alphabet`` or of `alphabet.alphabet`, and 1000 of an iterator.
        alphabet: the characters to keep, the first of them if not all fit; by default they are counted.

    Returns:
        a `tokenizers.Tokenizer`.

    Raises:
        InputError: size leaves no room besides the special tokens or is over `MOST_TOKENS`, min_frequency is below 1,
            or the texts have no word.
    """
    _check_counts(size, min_frequency)
    normalisation = Normalisation(lowercase, strip_accents)
    if alphabet is None and iter(texts) is not texts:
        alphabet = letters_of(texts, lowercase, strip_accents)
    # The trainer keeps every letter twice (alone and as a continuation), regardless of the size asked for.
    if limit_alphabet is None:
        limit_alphabet = len(alphabet) if alphabet else FEW
    limit_alphabet = max(1, min(limit_alphabet, (size - len(SPECIAL_TOKENS)) // 2))
    letters = sorted(alphabet[:limit_alphabet]) if alphabet is not None else []
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        limit_alphabet=len(letters) or limit_alphabet,
        initial_alphabet=letters,
        # Ties are broken by ids. Unless they are given here, continuations get ids in the random order of a hash table.
        special_tokens=[*SPECIAL_TOKENS, *(CONTINUATION + letter for letter in letters)],
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    model = models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=MAX_CHARS_PER_WORD)
    tokenizer = _shell(model, normalisation)
    # A longer word is always [UNK], and the trainer's time is quadratic in its length.
    cuts, too_long = tokenizer.pre_tokenizer, Regex(f"^.{{{MAX_CHARS_PER_WORD + 1},}}$")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cuts, pre_tokenizers.Split(too_long, "removed")])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = cuts
    if tokenizer.get_vocab_size() <= len(SPECIAL_TOKENS):
        raise InputError("vocabulary: expected texts with words in them, got none")
    if letters:  # continuations are not special tokens
        return build_tokenizer(tokenizer.get_vocab(with_added_tokens=True), normalisation)
    set_template(tokenizer, BERT_NAMES)
    return tokenizer


def _check_counts(size: int, min_frequency: int) -> None:
    least = len(SPECIAL_TOKENS) + 2
    if size < least:
        letter = "the special tokens, and a letter alone and as a continuation"
        raise InputError(f"vocabulary size: expected at least {least} ({letter}), got {size}")
    if size > MOST_TOKENS:  # the library allocates memory for this many, and aborts the process if that fails
        raise InputError(f"vocabulary size: expected at most {MOST_TOKENS}, which is a model's limit, got {size}")
    if not 1 <= min_frequency < 1 << 63:
        raise InputError(f"min_frequency must be at least 1 and below 2^63, got {min_frequency}")


def save_tokenizer(tokenizer: Tokenizer, directory: str | Path) -> list[Path]:
    """Writes vocab.txt (of a WordPiece), tokenizer_config.json and tokenizer.json; returns their paths.

    The first two serve tools that know only BERT's own files, the third any other tokenizer.
    """
    directory = Path(directory)
    texts = tokenizer_texts(tokenizer)
    paths = [directory / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, text, InputError)
    return paths


def tokenizer_texts(tokenizer: Tokenizer) -> dict[str, str]:
    """The texts that `save_tokenizer` writes, by file name."""
    texts = {"vocab.txt": vocab_text(tokenizer)} if is_wordpiece(tokenizer) else {}
    return texts | {"tokenizer_config.json": config_text(tokenizer), "tokenizer.json": tokenizer.to_str(pretty=True)}


def save_vocab(tokenizer: Tokenizer, path: str | Path) -> list[Path]:
    """Writes only the vocabulary, one token a line; if the file is called vocab.txt, also its tokenizer_config.json."""
    path = Path(path)
    paths = [path]
    write_whole(path, vocab_text(tokenizer), InputError)
    if path.name == "vocab.txt":
        paths.append(path.with_name("tokenizer_config.json"))
        write_whole(paths[1], config_text(tokenizer), InputError)
    return paths


def vocab_size(tokenizer: Tokenizer) -> int:
    """The largest id + 1: the number of rows that an embedding needs, even if a vocab.txt has a token twice."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def warn_if_larger(tokenizer: Tokenizer, rows: int, source: str | Path) -> None:
    """Logs a warning if a tokenizer has ids that a model has no vectors for. It is no error: published models may have
    added tokens that no text contains. But a text with one of the ids is refused, which may be far down in a file.

    Args:
        tokenizer: the model's.
        rows: the model's vocab_size.
        source: the model's directory.
    """
    largest = vocab_size(tokenizer) - 1
    if largest >= rows:
        _log.warning(
            "%s: the tokenizer's ids go up to %d, but the model's vocab_size is %d: texts with the others are refused",
            source, largest, rows,
        )  # fmt: skip


def vocab_text(tokenizer: Tokenizer) -> str:
    """The text of vocab.txt: one token a line, the id is the line number from 0."""
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    # Unused ids (of a vocab.txt with a token twice) keep their line.
    return "".join(f"{tokens.get(index, f'[unused_id_{index}]')}\n" for index in range(max(tokens) + 1))


def config_text(tokenizer: Tokenizer) -> str:
    """The text of a tokenizer_config.json for transformers."""
    if bpe.is_gpts(tokenizer):
        return bpe.config_text(tokenizer)
    normaliser, pair = tokenizer.normalizer, marked(tokenizer)[1]
    # The generic class keeps the tokenizer.json as it is; BERT's would apply BERT's model and template.
    as_berts = is_wordpiece(tokenizer) and separators(pair) == 1
    kind = "BertTokenizer" if as_berts else "PreTrainedTokenizerFast"
    settings = {"tokenizer_class": kind, **side_settings(tokenizer)}
    if isinstance(normaliser, normalizers.BertNormalizer):
        settings |= {
            "do_lower_case": normaliser.lowercase,
            "strip_accents": normaliser.strip_accents,
            "tokenize_chinese_chars": normaliser.handle_chinese_chars,
        }
    settings |= names_of(tokenizer)._asdict() | bpe.prefix_space_settings(tokenizer)
    types = any(pair.type_ids)
    if not types or not as_berts:
        settings["model_input_names"] = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    return json.dumps(settings, indent=2) + "\n"


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """The ids of [PAD] [UNK] [CLS] [SEP] [MASK], whatever their names, and of all other special tokens. In GPT's
    encodings, the token between texts takes their part (`bpe.boundary_ids`).

    Raises:
        InputError: one of the five is missing.
    """
    if bpe.is_gpts(tokenizer):
        return bpe.boundary_ids(tokenizer, "the vocabulary")
    names = names_of(tokenizer)
    ids = [tokenizer.token_to_id(token) for token in names]
    if None in ids:
        require([t for t, i in zip(names, ids, strict=True) if i is not None], names, "the vocabulary")
    added = [index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    return SpecialIds(*ids, others=tuple(sorted(set(added) - set(ids))))


def _sentencepiece(directory: Path) -> str:
    """What a directory without a supported vocabulary has instead, for a message."""
    found = next(iter(sorted(directory.glob("*.model"))), None)
    if found is None:
        return "neither"
    place = repr(str(directory))
    return (
        f"{found.name} alone, of which transformers makes a tokenizer.json by "
        f"AutoTokenizer.from_pretrained({place}).save_pretrained({place})"
    )


def _shell(model: models.Model, normalisation: Normalisation) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalisation.tokenize_chinese_chars,
        strip_accents=normalisation.strip_accents,
        lowercase=normalisation.do_lower_case,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return tokenizer
