"""Unigram tokenizers as XLM-R's, against transformers."""

from __future__ import annotations

import json

import pytest
import unigram
from tokenizers import AddedToken, Tokenizer, processors
from unigram import NAMES, TEXTS

from fastbert.data.prepare import prepare
from fastbert.data.special_tokens import names_of
from fastbert.data.tokenizer import load_tokenizer, save_tokenizer, special_ids
from fastbert.data.truncation import cut_at
from fastbert.errors import InputError

transformers = pytest.importorskip("transformers")
SECOND = "a fine book, es muy bueno"


def assert_equal(ours, theirs) -> None:
    """Of texts, of pairs in both orders, whole and cut."""
    pairs = [*zip(TEXTS, [SECOND] * len(TEXTS), strict=True), *zip([SECOND] * len(TEXTS), TEXTS, strict=True)]
    for most in (None, 9, 5):
        cut_at(ours, most)
        options = {"truncation": most is not None, "max_length": most, "padding": False}
        assert [e.ids for e in ours.encode_batch(TEXTS)] == theirs(TEXTS, **options)["input_ids"]
        wanted = theirs(*map(list, zip(*pairs, strict=True)), return_token_type_ids=True, **options)
        found = ours.encode_batch(pairs)
        assert [e.ids for e in found] == wanted["input_ids"]
        assert [e.type_ids for e in found] == wanted["token_type_ids"]
    cut_at(ours, None)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        *((form, kind) for form in ("split", "blanks") for kind in ("XLMRobertaTokenizer", "PreTrainedTokenizerFast")),
        ("split", "XLMRobertaTokenizerFast"),
        ("own", "PreTrainedTokenizerFast"),
    ],
)
def test_ids_are_those_of_transformers(form, kind, tmp_path):
    directory = unigram.save_tokenizer(tmp_path / "theirs", kind, form)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ours = load_tokenizer(directory)
    save_tokenizer(ours, tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text('{"model_type": "bert"}')
    assert {path.name for path in (tmp_path / "again").glob("*vocab*")} == set()
    for tokenizer in (ours, Tokenizer.from_str(ours.to_str()), load_tokenizer(tmp_path / "again")):
        assert_equal(tokenizer, theirs)
        assert names_of(tokenizer)._asdict() == NAMES
        ids = special_ids(tokenizer)
        named = [theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id]
        assert [ids.pad, ids.unk, ids.cls, ids.sep, ids.mask] == [*named, theirs.mask_token_id]
        assert named == [1, 3, 0, 2]
    assert_equal(ours, transformers.AutoTokenizer.from_pretrained(tmp_path / "again"))


def test_a_tokenizer_json_alone_has_xlmrs_names(tmp_path):
    directory = unigram.save_tokenizer(tmp_path / "theirs")
    (directory / "tokenizer_config.json").unlink()
    ours = load_tokenizer(directory)
    assert names_of(ours)._asdict() == NAMES
    assert ours.encode("Paris", "good").ids == unigram.make().encode("Paris", "good").ids


@pytest.mark.parametrize("kind", ["XLMRobertaTokenizer", "PreTrainedTokenizerFast"])
def test_tokens_that_were_added(kind, tmp_path):
    directory = unigram.save_tokenizer(
        tmp_path / "theirs", kind, additional_special_tokens=["<query>"], do_lower_case=True
    )
    tokenizer = unigram.make()
    tokenizer.add_tokens([AddedToken("fastbert", single_word=True), AddedToken("capital of")])
    tokenizer.save(str(directory / "tokenizer.json"))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(directory), load_tokenizer(directory)
    assert len(ours.get_vocab(with_added_tokens=True)) == unigram.make().get_vocab_size() + 3
    for text in (
        "<query>what is the capital of fastbert",
        "fastberts capital  of <query> <mask>",
        "FASTBERT capital of",
    ):
        assert ours.encode(text).ids == theirs(text, padding=False)["input_ids"]


def _with_marks(tmp_path, single, pair):
    directory = unigram.save_tokenizer(tmp_path / "theirs", "PreTrainedTokenizerFast")
    tokenizer = unigram.make()
    tokenizer.post_processor = processors.TemplateProcessing(single, pair, [("<s>", 0), ("</s>", 2)])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def test_the_files_own_marks_are_kept(tmp_path):
    directory = _with_marks(tmp_path, "<s> $A </s>", "<s> $A </s> $B:1 </s>:1")
    save_tokenizer(load_tokenizer(directory), tmp_path / "again")
    for place in (directory, tmp_path / "again"):
        own, ours = unigram.make(), load_tokenizer(place)
        own.no_padding()
        own.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
        wanted, got = own.encode("is", "good"), ours.encode("is", "good")
        assert (got.ids, got.type_ids) == (wanted.ids, wanted.type_ids)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")  # which is told to give types
    assert theirs("is", "good", padding=False)["token_type_ids"] == got.type_ids
    directory = _with_marks(tmp_path, "$A </s>", "$A </s> $B </s>")  # T5's
    with pytest.raises(InputError, match=r"expected a post_processor that makes <s> .* got one that makes .*a </s>$"):
        load_tokenizer(directory)


def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path):
    directory = unigram.save_tokenizer(tmp_path / "theirs")
    held = json.loads((directory / "tokenizer.json").read_text())
    held["model"]["unk_id"] = None
    (directory / "tokenizer.json").write_text(json.dumps(held))
    with pytest.raises(InputError, match=r"tokenizer\.json: expected a Unigram with an unk_id"):
        load_tokenizer(directory)
    (directory / "tokenizer.json").rename(directory / "sentencepiece.bpe.model")
    with pytest.raises(InputError) as error:
        load_tokenizer(directory)
    place = repr(str(directory))
    assert str(error.value) == (
        f"{directory}: expected tokenizer.json or vocab.txt in it, got sentencepiece.bpe.model alone, of which "
        f"transformers makes a tokenizer.json by AutoTokenizer.from_pretrained({place}).save_pretrained({place})"
    )


def test_pre_training_is_for_other_vocabularies(tmp_path):
    directory = unigram.save_tokenizer(tmp_path / "theirs")
    with pytest.raises(InputError, match=r"got a Unigram tokenizer that makes <s> .* </s> </s> .* </s>$"):
        prepare([("one", ["the film is good"])], directory, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("mask", ["<mask>", {"content": "<mask>", "lstrip": True, "__type": "AddedToken"}])
def test_special_tokens_that_the_file_does_not_list(mask, tmp_path):
    directory = unigram.save_tokenizer(tmp_path / "theirs", mask_token=mask)
    held = json.loads((directory / "tokenizer.json").read_text())
    held["model"]["vocab"].append(["<mask>", 0.0])
    (directory / "tokenizer.json").write_text(json.dumps({**held, "added_tokens": []}))
    assert_equal(load_tokenizer(directory), transformers.AutoTokenizer.from_pretrained(directory))
