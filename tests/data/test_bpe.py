"""GPT's and GPT-2's tokenizers give the ids of transformers', and their shards are pre-trained on."""

from __future__ import annotations

import json
import shutil

import pytest
import transformers
from tokenizers import Tokenizer, processors

from fastbert.data.bpe import save_bpe, train_bpe
from fastbert.data.config import SampleConfig
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.data.special_tokens import BERT_NAMES, XLMR_NAMES, names_of
from fastbert.data.tokenizer import load_tokenizer, save_tokenizer, special_ids
from fastbert.data.truncation import cut_at
from fastbert.errors import DataError, InputError

TEXT = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps.",
    "Every model reads from left to right, and every token sees the ones before it.",
    "Numbers such as 1,024 and 3.14 are cut, it's cut too, and so isn't this.",
    "Ünïcödé words and naïve café, repeated: naïve café, naïve café.",
]
ODD = [
    *(
        "",
        " ",
        "  two  spaces ",
        "line\nbreak\tand tab",
        "never seen: żółć 漢字 🙂 é",
        "don't we'll I'D",
        "UPPER lower",
    ),
    *("<|endoftext|>", "a<|endoftext|>b", "<unk> here", "\u00a0\u200b\ufeff", "...!!!", "x" * 300),
]
CLASSES = {True: transformers.GPT2Tokenizer, False: transformers.OpenAIGPTTokenizer}


@pytest.fixture(scope="module", params=[True, False], ids=["gpt2", "gpt"])
def files(request, tmp_path_factory):
    """Whether it is GPT-2's, and a directory with vocab.json and merges.txt."""
    directory = tmp_path_factory.mktemp("bpe")
    save_bpe(train_bpe(TEXT * 3, 400 if request.param else 120, byte_level=request.param), directory)
    return request.param, directory


def test_ids_and_text_are_those_of_transformers(files):
    byte_level, directory = files
    theirs, ours = CLASSES[byte_level].from_pretrained(directory), load_tokenizer(directory)
    for text in TEXT + ODD:
        ids = ours.encode(text).ids
        assert ids == theirs.encode(text), text
        decoded = ours.decode(ids, skip_special_tokens=False)
        assert decoded == theirs.decode(ids, clean_up_tokenization_spaces=False), text
        if byte_level:
            assert decoded == text


def test_a_text_begins_as_the_configuration_says(files, tmp_path):
    byte_level, directory = files
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}', encoding="utf-8")
    theirs, ours = CLASSES[byte_level].from_pretrained(tmp_path), load_tokenizer(tmp_path)
    for text in TEXT:
        assert ours.encode(text).ids == theirs.encode(text), text


@pytest.mark.parametrize("way", [save_tokenizer, save_bpe])
@pytest.mark.parametrize("said", [True, False])
def test_how_a_text_begins_beside_a_tokenizer_json_and_saved(files, said, way, tmp_path):
    """tokenizer_config.json counts, as in transformers, and what is written says so."""
    byte_level, directory = files
    save_tokenizer(load_tokenizer(directory), tmp_path / "a")
    config = tmp_path / "a" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"add_prefix_space": said}))
    ours = load_tokenizer(tmp_path / "a")
    way(ours, tmp_path / "b")
    again = load_tokenizer(tmp_path / "b")
    for text in TEXT:
        wanted = CLASSES[byte_level].from_pretrained(tmp_path / "a").encode(text)
        assert ours.encode(text).ids == again.encode(text).ids == wanted, text
        assert CLASSES[byte_level].from_pretrained(tmp_path / "b").encode(text) == wanted, text


def test_saved_it_is_the_same_here_and_in_transformers(files, tmp_path):
    byte_level, directory = files
    ours = load_tokenizer(directory)
    save_tokenizer(ours, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    again, theirs = load_tokenizer(tmp_path), CLASSES[byte_level].from_pretrained(tmp_path)
    for text in TEXT + ODD:
        assert again.encode(text).ids == ours.encode(text).ids == theirs.encode(text), text


def test_it_cuts_on_the_side_that_the_configuration_says(files, tmp_path):
    byte_level, directory = files
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "truncation_side": "left"}))
    theirs = CLASSES[byte_level].from_pretrained(tmp_path)
    saved = {"files": save_bpe, "tokenizer.json": save_tokenizer}
    for name, save in saved.items():
        save(load_tokenizer(tmp_path), tmp_path / name)
    for place in (tmp_path, *(tmp_path / name for name in saved)):
        ours = load_tokenizer(place)
        assert ours.encode(TEXT[0]).ids == theirs.encode(TEXT[0])
        cut_at(ours, 4)
        assert ours.encode(TEXT[0]).ids == theirs.encode(TEXT[0], truncation=True, max_length=4)


def test_shards_of_it_are_read_from_left_to_right(files, tmp_path):
    _, directory = files
    documents = [(f"document {d}", [TEXT[(d + s) % 4] for s in range(5)]) for d in range(6)]
    prepare(documents, directory, tmp_path / "data", num_workers=1)
    shards = ShardSet.open(tmp_path / "data")
    special = special_ids(load_tokenizer(directory))
    assert special.cls == special.sep == special.pad == special.mask
    data = PretrainingData(shards, SampleConfig(max_seqlen=64, objective="causal", nsp=False))
    batch = data.collate(0, data.batches(0, 256)[0])
    assert set(batch.input_ids[batch.cu_seqlens[:-1].long()].tolist()) == {special.cls}
    assert shards.tokenizer().encode(TEXT[0]).ids == load_tokenizer(directory).encode(TEXT[0]).ids
    with pytest.raises(DataError, match=r"vocabulary with \[MASK\]"):
        PretrainingData(shards, SampleConfig(max_seqlen=64))


def test_files_that_do_not_fit_are_named(files, tmp_path):
    _, directory = files
    vocab = json.loads((directory / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    with pytest.raises(InputError, match=r"expected merges\.txt beside it"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nnot there\n")
    with pytest.raises(InputError, match=r"merges\.txt: expected merges of pieces in vocab\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("[]")
    with pytest.raises(InputError, match=r"vocab\.json: expected a vocabulary"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(InputError, match=r"expected the token <\|endoftext\|>"):
        load_tokenizer(tmp_path)
    with pytest.raises(InputError, match="at least 257, got 256"):
        train_bpe(TEXT, 256)


NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}


def test_bytes_with_berts_own_names(tmp_path):
    """As ModernBERT has them."""
    own = train_bpe(TEXT * 3, 400)
    own.add_special_tokens(list(BERT_NAMES))
    cls, sep = (("[CLS]", own.token_to_id("[CLS]")), ("[SEP]", own.token_to_id("[SEP]")))
    own.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[cls, sep]
    )
    own.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    assert names_of(ours) == BERT_NAMES
    assert special_ids(ours).mask == own.token_to_id("[MASK]")
    for text in (("The dog",), ("The dog", " sleeps")):
        assert ours.encode(*text).ids == own.encode(*text).ids
        assert ours.encode(*text).type_ids == own.encode(*text).type_ids


def test_a_berts_bytes_are_not_pre_trained_on(tmp_path):
    own = train_bpe(TEXT * 3, 400)
    own.add_special_tokens(list(NAMES.values()))
    marks = [(name, own.token_to_id(name)) for name in ("</s>", "<s>")]
    own.post_processor = processors.RobertaProcessing(*marks)
    own.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("A model reads.\n")
    with pytest.raises(InputError, match=r"or a GPT's byte pairs, to .* got a BPE tokenizer that makes <s> "):
        prepare([tmp_path / "text.txt"], tmp_path / "tokenizer.json", tmp_path / "DATA")


@pytest.mark.parametrize("marks", ["roberta", "bert", "template", "none"])
def test_the_files_names_go_with_a_berts_bytes(tmp_path, marks):
    own = train_bpe(TEXT * 3, 400)
    own.add_special_tokens(list(NAMES.values()))
    cls, sep = (("<s>", own.token_to_id("<s>")), ("</s>", own.token_to_id("</s>")))
    own.post_processor = {
        "roberta": processors.RobertaProcessing(sep, cls),
        "bert": processors.BertProcessing(sep, cls),
        "template": processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[cls, sep]
        ),
        "none": processors.ByteLevel(),
    }[marks]
    own.save(str(tmp_path / "tokenizer.json"))
    # What the file itself says without those beside it.
    assert names_of(load_tokenizer(tmp_path)) == (BERT_NAMES if marks == "none" else XLMR_NAMES)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": "right", **NAMES})
    )
    ours = load_tokenizer(tmp_path)
    (tmp_path / "again").mkdir()
    ours.save(str(tmp_path / "again" / "tokenizer.json"))
    (tmp_path / "again" / "tokenizer_config.json").write_text((tmp_path / "tokenizer_config.json").read_text())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for tokenizer in (ours, Tokenizer.from_str(ours.to_str()), load_tokenizer(tmp_path / "again")):
        assert names_of(tokenizer)._asdict() == NAMES
        for text in (("The <mask> dog",), ("The dog", " sleeps <mask>")):
            wanted, got = own.encode(*text), tokenizer.encode(*text)
            assert (got.ids, got.type_ids, got.offsets) == (wanted.ids, wanted.type_ids, wanted.offsets)
            assert got.sequence_ids == wanted.sequence_ids
            assert got.ids == theirs(*text)["input_ids"]
    assert ours.to_str() == load_tokenizer(tmp_path / "again").to_str()
