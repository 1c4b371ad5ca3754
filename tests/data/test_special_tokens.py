"""Vocabularies whose special tokens have other names than BERT's, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_bert
import torch

import fastbert
from fastbert.cli.main import main
from fastbert.data.prepare import prepare
from fastbert.data.tokenizer import load_tokenizer, save_tokenizer, special_ids
from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.base import Row

transformers = pytest.importorskip("transformers")

NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
VOCAB = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *tiny_bert.WORDS.split()]
TEXTS = [
    "The film is good .",
    "paris <mask> france",
    "[CLS] qqq </s> the",
    "",
    "The\tbook<s>of",
    "a <e1> film [EOS] of",
]


def directory_of(path: Path, files: dict[str, dict], vocab=VOCAB) -> Path:
    path.mkdir(exist_ok=True)
    (path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    (path / "config.json").write_text('{"model_type": "bert"}')
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


def with_tokenizer_json(path: Path, files: dict[str, dict]) -> Path:
    directory_of(path, files)
    transformers.AutoTokenizer.from_pretrained(path).save_pretrained(path / "saved")
    return path / "saved"


CLASS = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
AS_TOKENS = {role: {"content": name, "lstrip": False, "special": True} for role, name in NAMES.items()}
WAYS = {
    "tokenizer_config": lambda path: directory_of(path, {"tokenizer_config.json": {**CLASS, **NAMES}}),
    "special_tokens_map": lambda path: directory_of(
        path, {"tokenizer_config.json": CLASS, "special_tokens_map.json": NAMES}
    ),
    "the_map_wins": lambda path: directory_of(
        path, {"tokenizer_config.json": {**CLASS, "mask_token": "the"}, "special_tokens_map.json": AS_TOKENS}
    ),
    "tokenizer.json": lambda path: with_tokenizer_json(path, {"tokenizer_config.json": {**CLASS, **NAMES}}),
    # In dialogues, and where texts are written: it has the first id after the vocabulary.
    "ends": lambda path: directory_of(
        path,
        {"tokenizer_config.json": {**CLASS, **NAMES, "eos_token": "[EOS]", "additional_special_tokens": ["<e1>"]}},
    ),
    "ends_in_the_map": lambda path: directory_of(
        path, {"tokenizer_config.json": CLASS, "special_tokens_map.json": {**NAMES, "eos_token": "[EOS]"}}
    ),
    "some": lambda path: directory_of(
        path,
        {"tokenizer_config.json": {**CLASS, "cls_token": "<s>", "sep_token": None}},
        ["[PAD]", "<s>", "[SEP]", "[UNK]", "[MASK]", *VOCAB[5:]],
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_ids_are_those_of_transformers(way, tmp_path):
    directory = WAYS[way](tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    if theirs.sep_token is None:  # what null means there is no template of BERT's
        theirs = transformers.BertTokenizer.from_pretrained(directory, sep_token="[SEP]")
    ours = load_tokenizer(directory)
    # Kept through copies and files.
    save_tokenizer(ours, tmp_path / "again")
    for tokenizer in (ours, type(ours).from_str(ours.to_str()), load_tokenizer(tmp_path / "again")):
        assert [tokenizer.encode(text).ids for text in TEXTS] == theirs(TEXTS)["input_ids"]
        pairs = [tokenizer.encode(text, "the book") for text in TEXTS]
        wanted = theirs(TEXTS, ["the book"] * len(TEXTS))
        assert [pair.ids for pair in pairs] == wanted["input_ids"]
        assert [pair.type_ids for pair in pairs] == wanted["token_type_ids"]
        ids = special_ids(tokenizer)
        named = [theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id]
        assert [ids.pad, ids.unk, ids.cls, ids.sep, ids.mask] == [*named, theirs.mask_token_id]
    again = transformers.AutoTokenizer.from_pretrained(directory_of(tmp_path / "again", {}, theirs_vocab(theirs)))
    assert again(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


def theirs_vocab(tokenizer) -> list[str]:
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config.json": {**NAMES, "mask_token": "[MASK]"}}, "got none for [MASK]"),
        ({"tokenizer_config.json": {**NAMES, "mask_token": "<s>"}}, "special tokens of different names"),
        ({"tokenizer_config.json": {**NAMES, "mask_token": 4}}, "expected the mask_token as a text, got 4"),
        ({"special_tokens_map.json": {**NAMES, "mask_token": {"lstrip": True}}}, "expected the mask_token as a text"),
        ({}, "got none for [PAD] [UNK] [CLS] [SEP] [MASK]"),
    ],
)
def test_names_that_cannot_be(files, said, tmp_path):
    with pytest.raises(InputError) as error:
        load_tokenizer(directory_of(tmp_path / "model", files))
    assert said in str(error.value)


@pytest.fixture
def model(tmp_path) -> Path:
    """A masked-LM model with these names, written by transformers."""
    directory = tiny_bert.save(tmp_path / "model", vocab=VOCAB, pad_token_id=1)
    (directory / "tokenizer_config.json").write_text(json.dumps({**CLASS, **NAMES}))
    return directory


def test_a_model_with_these_names_in_use(model, tmp_path, capsys):
    st = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    fastbert.BertForMaskedLM.from_pretrained(model).save_pretrained(tmp_path / "saved")
    ours = fastbert.SentenceEncoder.from_pretrained(tmp_path / "saved")
    theirs = st.SentenceTransformer(str(model), device="cpu")
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), rtol=0, atol=1e-5)
    ours.model.tokenizer_source = None
    ours.save_pretrained(tmp_path / "sentences")
    again = st.SentenceTransformer(str(tmp_path / "sentences"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), theirs.encode(TEXTS), rtol=0, atol=1e-5)
    assert main(["fill-mask", "--model", str(tmp_path / "saved"), "paris is <mask> ."]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with torch.no_grad():
        given = tokenizer(["paris is <mask> ."], return_tensors="pt")
        logits = transformers.BertForMaskedLM.from_pretrained(model).eval()(**given).logits[0, 3]
    assert tokenizer.convert_ids_to_tokens(int(logits.argmax())) in capsys.readouterr().out.splitlines()[1]
    assert main(["fill-mask", "--model", str(model), "paris is [MASK] ."]) == 2
    assert "expected at least one <mask> in the text" in capsys.readouterr().err


def test_prepared_data_has_these_ids(model, tmp_path):
    (tmp_path / "text.txt").write_text("the film is good .\nparis is zzz .\n\nthe book .\nfrance .\n" * 20)
    prepare([tmp_path / "text.txt"], model, tmp_path / "data")
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    held = manifest["special_ids"]
    assert [held[role] for role in ("pad", "unk", "cls", "sep", "mask")] == [1, 3, 0, 2, 4]
    assert special_ids(load_tokenizer(tmp_path / "data")).mask == 4


def test_tasks_that_put_the_marks_themselves(model):
    tokenizer = load_tokenizer(model)
    named = {name: tokenizer.token_to_id(name) for name in VOCAB}
    row = Row("0", ("film", "the film is good"), None)
    found = registry.get("squad1").encode([row], tokenizer, 16)[0].input_ids.tolist()
    words = ["<s>", "film", "</s>", "the", "film", "is", "good", "</s>"]
    assert found == [named[word] for word in words]
    row = Row("0", ("paris", "\u200e", "zzz"), None)  # the second word leaves nothing of itself
    found = registry.get("ner").encode([row], tokenizer, 16)[0].input_ids.tolist()
    assert found == [named[word] for word in ("<s>", "paris", "<unk>", "<unk>", "</s>")]
