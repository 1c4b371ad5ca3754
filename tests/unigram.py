"""A BERT whose tokenizer is a Unigram in the manner of XLM-R's, as multilingual sentence models have it, saved by
transformers."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import tiny_bert
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
CORPUS = [
    "the film is good and the book is bad",
    "Paris is the capital of France , not Berlin .",
    "a fine day in Paris, query: films passage: books",
    "what is the capital of Germany ?",
    "El libro es muy bueno, la película es mala",
    "das Buch ist gut und der Film ist schlecht",
    "日本の首都は東京です",
]
TEXTS = [
    "the film is good",
    "Paris is <mask> ?",
    "the <mask>",
    "a</s>b <s>",
    "[CLS] the [MASK]",
    "El libro es muy " * 9,
]
TEXTS += ["", "   ", "  two  spaces ", "tabs\tand\nlines", "\u200e", "ﬁlm \uff21 ﬁne", "☃ zzz☃", "日本の首都は東京です"]


def charsmap(table: dict[str, str]) -> bytes:
    """What a Precompiled normalizer reads: a double-array trie of UTF-8 bytes, and the texts that it leads to."""
    units, values, bases = [0] * 512, b"", {b"": 256}
    units[0] = 256 << 10
    for source, target in table.items():
        parents = itertools.accumulate((bytes([byte]) for byte in source.encode()), initial=b"")
        for parent, key in itertools.pairwise(parents):
            at = bases[parent] ^ key[-1]
            if key not in bases:
                bases[key] = len(units)
                units += [0] * 256
                units[at] = key[-1] | (at ^ bases[key]) << 10
        units[at] |= 1 << 8  # a value is there
        units[bases[key]] = 1 << 31 | len(values)
        values += target.encode() + b"\0"
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + values


_TABLE = {"ﬁ": "fi", "\uff21": "A", "\u3000": " ", "\t": " ", "\n": " ", "\u200e": ""}
_PRECOMPILED = normalizers.Precompiled(charsmap(_TABLE))
_BLANKS = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
# Normalizer and pre-tokenizer: as the first conversions of XLM-R's SentencePiece have them, as transformers 4 writes
# them, and one that XLM-R does not have.
FORMS = {
    "split": (_PRECOMPILED, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])),
    "blanks": (normalizers.Sequence([_PRECOMPILED, *_BLANKS]), pre_tokenizers.Metaspace()),
    "own": (normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), pre_tokenizers.Metaspace()),
}


def make(form: str = "split") -> Tokenizer:
    """Ids 0 to 3 are <s>, <pad>, </s> and <unk>, the last one is <mask>, as in XLM-R.

    The pieces are the corpus's letters, words, and halves of words: the library's trainer orders equals by chance.
    """
    words = dict.fromkeys(f"\u2581{word}" for line in CORPUS for word in line.split())
    halves = dict.fromkeys(half for word in words for half in (word[: len(word) // 2], word[len(word) // 2 :]))
    pieces = [*words, *(half for half in halves if half not in words)]
    letters = [letter for letter in dict.fromkeys("".join(words)) if letter not in pieces]
    scored = [*((piece, -4 - i / 64) for i, piece in enumerate(pieces)), *((letter, -9.0) for letter in letters)]
    special = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    tokenizer = Tokenizer(models.Unigram([*special, *scored], unk_id=3))
    tokenizer.normalizer, tokenizer.pre_tokenizer = FORMS[form]
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([name for name, _ in special])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    marks = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", marks)
    # As sentence-transformers leaves them in the file.
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    tokenizer.enable_truncation(8)
    return tokenizer


def save_tokenizer(directory: Path, kind: str | None = "XLMRobertaTokenizer", form: str = "split", **settings) -> Path:
    """The tokenizer's files, and a config.json by which transformers knows a BERT."""
    directory.mkdir(exist_ok=True)
    make(form).save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", **NAMES, **settings}
    settings |= {} if kind is None else {"tokenizer_class": kind}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    if not (directory / "config.json").exists():
        (directory / "config.json").write_text('{"model_type": "bert"}')
    return directory


def save(directory: Path, cls: str = "BertModel", kind: str | None = "XLMRobertaTokenizer", form="split", **changes):
    """A randomly initialised model of transformers with the tokenizer. Of these models' config.json the pad is 0."""
    import transformers

    torch.manual_seed(1)
    # As in the published models, more rows than there are tokens.
    rows = make(form).get_vocab_size() + 35
    config = tiny_bert.config(vocab_size=rows, initializer_range=0.2, pad_token_id=0, **changes)
    getattr(transformers, cls)(config).save_pretrained(directory)
    return save_tokenizer(directory, kind, form, model_max_length=32)
