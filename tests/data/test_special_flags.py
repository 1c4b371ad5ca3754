"""Special tokens of a vocab.txt with flags in the files beside it: the ids of transformers."""

from __future__ import annotations

import json

import pytest
from tiny_bert import SPECIALS

from fastbert.data.tokenizer import load_tokenizer

transformers = pytest.importorskip("transformers")
VOCAB = [*SPECIALS, "the", "The", "film", "Film", "[", "]", "mask", "MASK", "Mask", "##s", "x"]
TEXTS = (
    "the [MASK] film", "the [mask] film", "the [Mask] Film", "the[MASK]film", "[MASK]s", "x[mask]", "[ MASK ]",
    "[MÁSK]", "the  [MASK]  film", "[MASK] [mask] [MASK].", "the [SEP] film [sep]",
)  # fmt: skip
FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True}


def places(mask: dict) -> dict[str, dict]:
    """The files that may hold the flags, with their contents."""
    return {
        "special_tokens_map.json": {"special_tokens_map.json": {"mask_token": mask}},
        "tokenizer_config.json": {"tokenizer_config.json": {"mask_token": {**mask, "__type": "AddedToken"}}},
        "by id": {"tokenizer_config.json": {"added_tokens_decoder": {"4": {**mask, "special": True}}}},
        "by id, not as special": {"tokenizer_config.json": {"added_tokens_decoder": {"4": mask}}},
        "added_tokens.json": {
            "added_tokens.json": {"[MASK]": 4},
            "special_tokens_map.json": {"mask_token": {**mask, "single_word": False}},  # other releases differ in it
        },
        "of [SEP]": {"special_tokens_map.json": {"sep_token": {**mask, "content": "[SEP]"}}},
    }


@pytest.mark.parametrize("lower", [True, False], ids=["lower", "cased"])
@pytest.mark.parametrize("flags", [{}, {"lstrip": True}, {"single_word": True}, {"normalized": False}], ids=str)
@pytest.mark.parametrize("place", places({"content": ""}))
def test_flags_of_special_tokens_are_followed(place, flags, lower, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(VOCAB)}))
    files = places({"content": "[MASK]", **FLAGS, **flags})[place]
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    files["tokenizer_config.json"] = settings | files.get("tokenizer_config.json", {})
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text).input_ids, text
    if place != "of [SEP]" and place != "added_tokens.json" and lower and not flags:
        assert ours.encode("[mask]").ids[1:-1] == [VOCAB.index("[MASK]")]


@pytest.mark.parametrize("kind", ["BertTokenizer", None, "DistilBertTokenizer"])
@pytest.mark.parametrize("flags", [{"normalized": True}, {"single_word": True}, {"lstrip": True}, {}], ids=str)
@pytest.mark.parametrize("in_file", [{}, {"normalized": True}, {"single_word": True}], ids=str)
def test_flags_beside_a_tokenizer_json_are_followed(in_file, flags, kind, tmp_path):
    """People change them in tokenizer_config.json; a token of another content under that id changes nothing."""
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    load_tokenizer(tmp_path / "vocab.txt").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").unlink()
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    token = {"content": "<tok>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    state["added_tokens"].append({"id": len(VOCAB), "special": False, **token, **in_file})
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    mask = {**token, "content": "[MASK]", "special": True, **flags}
    listed = {str(len(VOCAB)): {**token, "special": False, **flags}, str(VOCAB.index("[MASK]")): mask}
    settings = {"do_lower_case": True, "added_tokens_decoder": listed}
    settings |= {} if kind is None else {"tokenizer_class": kind}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    for text in (*TEXTS, "the <TOK> film", "the<tok>film", "<tok>", "x  <tok>", "x[MASK]film"):
        assert ours.encode(text).ids == theirs(text).input_ids, text
