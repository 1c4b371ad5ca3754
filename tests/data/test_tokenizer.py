"""Ids are those of transformers' BertTokenizer on every text of the real data."""

from __future__ import annotations

import json
import random
import shutil
import unicodedata

import pytest
from tokenizers import Tokenizer, processors

from fastbert.data.alphabet import alphabet
from fastbert.data.tokenizer import (
    load_tokenizer,
    save_tokenizer,
    save_vocab,
    special_ids,
    train_wordpiece,
    vocab_size,
    vocab_text,
)
from fastbert.data.truncation import cut_at, side_of
from fastbert.data.vocab_files import resolved_settings
from fastbert.errors import InputError

VOCABULARIES = {"uncased": True, "cased": False, "chinese": True}
TEXT_SUFFIXES = {".txt", ".tsv", ".csv", ".json", ".train", ".testa", ".md", ""}


def real_texts(root) -> list[str]:
    """Every line of every text file, and the unescaped strings of the JSON files."""
    texts = set()
    for path in sorted(root.rglob("*")):
        if not path.is_file() or path.suffix not in TEXT_SUFFIXES or path.name == "SHA256SUMS":
            continue
        text = path.read_bytes().decode("utf-8")
        if path.suffix == ".json" and "squad" in str(path):
            stack = [json.loads(text)]
            while stack:
                item = stack.pop()
                if isinstance(item, str):
                    texts.add(item)
                elif isinstance(item, dict):
                    stack += item.values()
                elif isinstance(item, list):
                    stack += item
        elif path.suffix != ".json":
            texts.update(text.split("\n"))
    return sorted(texts)


@pytest.fixture(scope="module")
def texts(shared_data):
    texts = real_texts(shared_data)
    # All of them take minutes for three vocabularies and two tokenizers; the slow test goes through all.
    return texts, random.Random(0).sample(texts, 5_000)


def reference(path, lower):
    transformers = pytest.importorskip("transformers")
    return transformers.BertTokenizer(vocab=str(path), vocab_file=str(path), do_lower_case=lower)


def assert_same_ids(shared_data, name, texts):
    path = shared_data / "vocab" / f"bert-base-{name}-vocab.txt"
    theirs = reference(path, VOCABULARIES[name])
    ours = load_tokenizer(path)
    got = ours.encode_batch_fast(texts)
    for start in range(0, len(texts), 4000):
        chunk = texts[start : start + 4000]
        expected = theirs(chunk)["input_ids"]
        for text, mine, their in zip(chunk, got[start : start + 4000], expected, strict=True):
            assert mine.ids == their, text
    pairs = texts[:100], texts[100:200]
    expected = theirs(*pairs)
    for mine, ids, types in zip(
        ours.encode_batch(list(zip(*pairs, strict=True))),
        expected["input_ids"],
        expected["token_type_ids"],
        strict=True,
    ):
        assert (mine.ids, mine.type_ids) == (ids, types)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_equal_transformers(shared_data, texts, name):
    assert_same_ids(shared_data, name, texts[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_equal_transformers_on_every_text(shared_data, texts, name):
    assert_same_ids(shared_data, name, texts[0])


@pytest.mark.parametrize("name", VOCABULARIES)
def test_odd_texts(shared_data, name):
    odd = [
        "",
        " ",
        "[MASK] it",
        "a[SEP]b",
        "\u200b\u00ad",
        "x" * 101,
        "ÀÉÎ ñ ß İ",
        "日本語 テスト",
        "e\u0301",
        "1,000.5%",
    ]
    odd += ["\ufffd\t\r\n x", "don't", "🙂 ok", "\x07bell", "ＦＵＬＬ", "𠀀𠀁"]  # noqa: RUF001
    assert_same_ids(shared_data, name, odd * 15)


def test_save_and_load_in_every_form(shared_data, tmp_path):
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    sentence = "Étude of Unaffable [MASK] things"
    for name in VOCABULARIES:
        ours = load_tokenizer(shared_data / "vocab" / f"bert-base-{name}-vocab.txt")
        ids = ours.encode(sentence).ids
        directory = tmp_path / name
        paths = save_tokenizer(ours, directory)
        for path in (directory, directory / "vocab.txt", directory / "tokenizer.json"):
            assert load_tokenizer(path).encode(sentence).ids == ids
        assert paths[0].read_text(encoding="utf-8") == (
            shared_data / "vocab" / f"bert-base-{name}-vocab.txt"
        ).read_text(encoding="utf-8")
        assert AutoTokenizer.from_pretrained(directory)(sentence)["input_ids"] == ids
        # The pair of old files alone must do as well: cased and uncased by the configuration, not by guess.
        (directory / "tokenizer.json").unlink()
        assert load_tokenizer(directory).encode(sentence).ids == ids


def test_a_token_that_stands_twice_leaves_every_id_its_row(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfilm\nbook\nfilm\ngood\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("film good").ids == [2, 7, 8, 3]
    assert vocab_size(tokenizer) == 9
    assert vocab_text(tokenizer) == "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused_id_5]\nbook\nfilm\ngood\n"


def test_tokens_that_are_blanks_are_kept(tmp_path):
    """As Google's Chinese vocabulary has them."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "##\u2028", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    assert load_tokenizer(tmp_path).get_vocab() == {word: number for number, word in enumerate(words)}


def test_blanks_at_the_end_of_a_line_are_no_part_of_a_token(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK] \n[CLS]\t\n[SEP]\n[MASK]\nfilm \r\ngood\u3000\n", "utf-8")
    transformers = pytest.importorskip("transformers")
    sentence = "A film, good film"
    ids = load_tokenizer(tmp_path).encode(sentence).ids
    assert ids == [2, 1, 5, 1, 6, 5, 3]
    assert ids == transformers.BertTokenizer.from_pretrained(tmp_path)(sentence)["input_ids"]


def test_configuration_beats_the_guess(shared_data, tmp_path):
    shutil.copyfile(shared_data / "vocab" / "bert-base-uncased-vocab.txt", tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert load_tokenizer(tmp_path).encode("Hello", add_special_tokens=False).tokens == ["[UNK]"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("École", add_special_tokens=False).tokens == ["[UNK]"]  # no é in there
    save_vocab(tokenizer, tmp_path / "again" / "vocab.txt")
    assert load_tokenizer(tmp_path / "again").encode("École", add_special_tokens=False).tokens == ["[UNK]"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load_tokenizer(tmp_path).encode("École", add_special_tokens=False).tokens == ["ecole"]


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "film",
    "new",
    "tok",
    "<",
    ">",
    "[",
    "]",
    "##s",
    "[unused1]",
]
ADDED = ["a <tok> film", "A<TOK>film [NEW] films", "[new] [NEW][NEW] a", "x[unused1]films <tok>s"]


def test_split_special_tokens_is_told(tmp_path, caplog):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    for split in (False, True):
        assert not caplog.messages
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"split_special_tokens": split}))
        load_tokenizer(tmp_path)
    [said] = caplog.messages
    assert said.startswith(f"{tmp_path / 'tokenizer_config.json'}: split_special_tokens is not followed: ")


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
def test_a_class_of_which_nothing_is_known_is_told(tmp_path, caplog, form):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    if form == "tokenizer.json":  # which says itself how texts are cut
        load_tokenizer(tmp_path).save(str(tmp_path / form))
    for name in ("BertTokenizer", "ElectraTokenizerFast", "TokenizersBackend", None):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "do_lower_case": True}))
        load_tokenizer(tmp_path)
        assert not caplog.messages
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "JiebaTokenizer"}))
    load_tokenizer(tmp_path)
    assert len(caplog.messages) == (form == "vocab.txt")
    assert all("nothing is known of the tokenizer_class JiebaTokenizer" in said for said in caplog.messages)


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens.json": {"<tok>": 15, "[NEW]": 16}},
        {"added_tokens.json": {"[NEW]": 15}, "special_tokens_map.json": {"additional_special_tokens": ["[NEW]"]}},
        {
            "tokenizer_config.json": {
                "do_lower_case": True,
                "added_tokens_decoder": {
                    "0": {"content": "[PAD]", "special": True, "normalized": False},
                    "14": {"content": "[unused1]", "special": True, "normalized": False},
                    "15": {"content": "<tok>", "special": False, "normalized": True, "single_word": True},
                    "16": {"content": "[NEW]", "special": True, "normalized": False, "lstrip": True},
                },
            }
        },
        {"tokenizer_config.json": {"additional_special_tokens": ["<tok>", "[unused1]"]}},
        {
            "tokenizer_config.json": {"additional_special_tokens": ["[NEW]"]},
            "added_tokens.json": {"[NEW]": 15},
            "special_tokens_map.json": {"additional_special_tokens": ["<tok>"]},
        },
        {"special_tokens_map.json": {"additional_special_tokens": ["<tok>"], "extra_special_tokens": ["[NEW]"]}},
        {"special_tokens_map.json": {"extra_special_tokens": {"b_token": "<tok>"}, "a_token": "[NEW]"}},
        {"tokenizer_config.json": {"extra_special_tokens": ["[NEW]", "<tok>"], "additional_special_tokens": ["a"]}},
        {"tokenizer_config.json": {"extra_special_tokens": {"b_token": "[NEW]"}, "a_token": "<tok>"}},
        {
            "tokenizer_config.json": {
                "added_tokens_decoder": {"15": {"content": "[NEW]", "special": True, "normalized": False}}
            },
            "added_tokens.json": {"<tok>": 16},
            "special_tokens_map.json": {"additional_special_tokens": ["<tok>"]},
        },
    ],
)
@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json", "PreTrainedTokenizerFast"])
def test_tokens_added_beside_a_vocabulary(tmp_path, files, form):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    kind = transformers.BertTokenizer
    if form != "vocab.txt":
        load_tokenizer(tmp_path).save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "vocab.txt").unlink()
    if form == "PreTrainedTokenizerFast":
        kind, settings["tokenizer_class"] = transformers.PreTrainedTokenizerFast, form
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        settings |= dict(zip(names, WORDS, strict=False))
    for name, content in ({"tokenizer_config.json": {}} | files).items():
        content = settings | content if name == "tokenizer_config.json" else content
        (tmp_path / name).write_text(json.dumps(content))
    theirs = kind.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    assert [ours.encode(text).ids for text in ADDED] == theirs(ADDED)["input_ids"]
    assert ours.get_vocab(with_added_tokens=True) == theirs.get_vocab()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("added_tokens.json", {"<tok>": 7}, "expected the added token '<tok>' to have id 7, got 15"),
        ("added_tokens.json", {"<tok>": "x"}, "expected ids of added tokens, got 'x'"),
        ("added_tokens.json", {"<tok>": float("inf")}, "expected ids of added tokens, got inf"),
        ("added_tokens.json", [1], "expected a JSON object, got list"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"15": {"special": True}}}, "as texts, got None"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder as a dictionary, got [1]"),
        ("tokenizer_config.json", {"do_lower_case": "false"}, "do_lower_case to be true, false or null, got 'false'"),
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "cuts Japanese into words first"),
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}, "cuts Japanese into words first"),
        ("tokenizer_config.json", {"tokenizer_class": "RoFormerTokenizerFast"}, "cuts Chinese into words first"),
        ("tokenizer_config.json", {"tokenizer_class": "WoBertTokenizer"}, "cuts Chinese into words first"),
        ("tokenizer_config.json", {"extra_special_tokens": "<tok>"}, "as a list or a dictionary, got '<tok>'"),
        ("tokenizer_config.json", {"extra_special_tokens": [4]}, "expected added tokens as texts, got 4"),
        ("tokenizer_config.json", {"model_input_names": "input_ids"}, "model_input_names as a list of names, got"),
        ("tokenizer_config.json", {"truncation_side": "both"}, "truncation_side to be right or left, got 'both'"),
        ("tokenizer_config.json", {"truncation_side": ["left"]}, "truncation_side to be right or left, got ['left']"),
    ],
)
def test_files_beside_a_vocabulary_that_cannot_be_used(tmp_path, name, content, said):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        load_tokenizer(tmp_path)
    assert said in str(error.value)


def test_a_tokenizer_json_without_its_unknown_token(tmp_path):
    """[UNK] among the added tokens is not enough: the first unknown word would be an error of the library."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    load_tokenizer(tmp_path).save(str(tmp_path / "tokenizer.json"))
    held = json.loads((tmp_path / "tokenizer.json").read_text())
    del held["model"]["vocab"]["[UNK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    with pytest.raises(InputError, match=r"tokenizer\.json: expected \[UNK\] in the model's vocabulary, since"):
        load_tokenizer(tmp_path)


def test_case_is_told_by_the_tokens_that_have_one(tmp_path):
    """They are few of a Chinese vocabulary; Google's has two in upper case and is none of case."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(0x4E00, 0x4E00 + 1000)), "B", "b"]
    for more, tokens in (
        ([], ["B", "\u4e00"]),
        ([f"##{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"], ["b", "\u4e00"]),
    ):
        (tmp_path / "vocab.txt").write_text("\n".join([*words, *more]) + "\n", "utf-8")
        assert load_tokenizer(tmp_path).encode("B\u4e00").tokens[1:-1] == tokens


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["で", "か", "##が", "ガ"], "かが で ガ"),
        (["में", "दू", "##सरी"], "में दूसरी"),
        (["мой", "ёлка", "й"], "мой ёлка й"),
        (["영화", "##는", "그"], "영화는 그"),
    ],
    ids=["Japanese", "Hindi", "Russian", "Korean"],
)
def test_accents_are_kept_for_a_vocabulary_that_has_them(tokens, text, tmp_path):
    """Of text without capitals `vocab --cased` makes no capitals, whatever the file is called."""
    path, words = tmp_path / "own.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [unicodedata.normalize("NFC", token) for token in tokens]
    path.write_text("\n".join([*words, *tokens]) + "\n", "utf-8")
    tokenizer = load_tokenizer(path)
    assert "[UNK]" not in tokenizer.encode(unicodedata.normalize("NFC", text)).tokens
    assert set(tokenizer.encode(text).tokens[1:-1]) <= set(tokens)
    # A hundredth of them may be slips, as Google's Chinese vocabulary has two in upper case.
    path.write_text("\n".join([*words, "é", "e", *map(chr, range(0x4E00, 0x4E00 + 100))]) + "\n", "utf-8")
    assert load_tokenizer(path).encode("é").tokens[1:-1] == ["e"]


def test_koreans_syllables_are_taken_apart_for_a_vocabulary_of_its_letters(tmp_path):
    """KR-BERT's of sub-characters, whose own code normalises texts first; where a file says something, that counts."""
    transformers = pytest.importorskip("transformers")
    letters = [unicodedata.normalize("NFD", part) for part in ("영", "화")]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", letters[0], "##" + letters[1], "영화", "B", "b"]

    def read(words, settings=None):
        (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
        (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
        if settings is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return load_tokenizer(tmp_path).encode("영화 B").tokens[1:-1]

    of_letters = [word for word in words if word != "영화"]
    assert read(of_letters) == [letters[0], "##" + letters[1], "B"]
    saved = resolved_settings(tmp_path / "vocab.txt")
    assert read(of_letters, json.loads(saved)) == [letters[0], "##" + letters[1], "B"]
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert theirs.tokenize("영화 B") == [letters[0], "##" + letters[1], "B"]
    assert read(words) == ["영화", "B"]
    assert read([*of_letters, *(f"W{n}" for n in range(20))]) == ["[UNK]", "B"]  # of other languages' some have a few
    assert read(of_letters, {"do_lower_case": False}) == ["[UNK]", "B"]


def test_a_vocabulary_of_sentencepiece_is_refused(tmp_path):
    """KoBERT's, of which each word was [UNK]; a WordPiece may begin with the same character."""
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁", "▁the", "film"]) + "\n", "utf-8")
    with pytest.raises(InputError, match=r"expected WordPieces, whose words go on with ##, got Sentence.* \('▁the'\)"):
        load_tokenizer(tmp_path)
    path.write_text("\n".join([*WORDS, "▁", "▁the"]) + "\n", "utf-8")
    assert load_tokenizer(tmp_path).token_to_id("▁the") == len(WORDS) + 1


@pytest.mark.parametrize("settings", [{"do_lower_case": False}, {"strip_accents": False}, {"do_lower_case": True}, {}])
def test_the_configuration_beats_tokenizer_json_too(tmp_path, settings):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "é", "e", "É", "F"]) + "\n")
    save_tokenizer(load_tokenizer(tmp_path), tmp_path)
    own = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own | settings))
    texts = ["Film É é F", "FILMS a"]
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert [load_tokenizer(tmp_path).encode(text).ids for text in texts] == theirs(texts)["input_ids"]


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
def test_a_setting_of_null_is_as_one_that_is_not_there(tmp_path, form):
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "中", "国", "中国", "Film"]) + "\n", "utf-8")
    settings = {"do_lower_case": False, "tokenize_chinese_chars": False}
    if form == "tokenizer.json":  # which keeps its own
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        save_tokenizer(load_tokenizer(tmp_path), tmp_path)

    def read(settings):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return load_tokenizer(tmp_path / form).encode("Film 中国").tokens[1:-1]

    silent = read({})
    assert silent == (["Film", "中国"] if form == "tokenizer.json" else ["Film", "中", "国"])
    assert read(dict.fromkeys(settings)) == silent


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    "settings",
    [
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
        {"tokenizer_class": "DistilBertTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]},
        {"tokenizer_class": "DistilBertTokenizerFast"},
        {"tokenizer_class": "DistilBertTokenizer"},
    ],
)
def test_a_model_that_gets_no_token_types_reads_pairs_with_zeros(tmp_path, settings, form):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    if form == "tokenizer.json":
        load_tokenizer(tmp_path).save(str(tmp_path / form))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **settings}))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("a film", "new films")
    ours = load_tokenizer(tmp_path)
    save_tokenizer(ours, tmp_path / "again")
    for tokenizer in (ours, load_tokenizer(tmp_path / "again")):
        pair = tokenizer.encode("a film", "new films")
        assert pair.ids == theirs["input_ids"]
        assert pair.type_ids == theirs.get("token_type_ids", [0] * len(pair.ids))


def _with_post_processor(directory, processor, settings):
    (directory / "vocab.txt").write_text("\n".join([*WORDS, "b"]) + "\n")
    load_tokenizer(directory).save(str(directory / "tokenizer.json"))
    held = json.loads((directory / "tokenizer.json").read_text())
    held["post_processor"] = None if processor is None else json.loads(processor.__getstate__())
    (directory / "tokenizer.json").write_text(json.dumps(held))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), WORDS, strict=False))
    (directory / "tokenizer_config.json").write_text(json.dumps(names | {"do_lower_case": True} | settings))
    (directory / "config.json").write_text('{"model_type": "bert"}')


_MARKS = (("[SEP]", 3), ("[CLS]", 2))
_SPECIAL = {"special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}
STRANGE = {
    "none": (None, "a"),
    "no_sep": (processors.TemplateProcessing(single="[CLS] $A", pair="[CLS] $A $B", **_SPECIAL), "[CLS] a"),
    "roberta": (processors.RobertaProcessing(*_MARKS), "[CLS] a [SEP] [SEP] b [SEP]"),
}


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "TokenizersBackend", "ATokenizerOfTheirOwn"])
@pytest.mark.parametrize("name", ["none", "no_sep"])
def test_marks_that_are_not_berts_are_refused_where_they_count(tmp_path, name, kind):
    processor, makes = STRANGE[name]
    _with_post_processor(tmp_path, processor, {"tokenizer_class": kind})
    with pytest.raises(InputError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'tokenizer.json'}: expected a post_processor that makes [CLS] a")
    assert str(error.value).endswith(f"got one that makes {makes}")


def test_two_separators_are_kept_where_they_count(tmp_path):
    transformers = pytest.importorskip("transformers")
    _with_post_processor(tmp_path, STRANGE["roberta"][0], {"tokenizer_class": "PreTrainedTokenizerFast"})
    ours = load_tokenizer(tmp_path)
    save_tokenizer(ours, tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text('{"model_type": "bert"}')
    wanted = transformers.AutoTokenizer.from_pretrained(tmp_path)("a film", "films")["input_ids"]
    for tokenizer in (ours, load_tokenizer(tmp_path / "again")):
        found = tokenizer.encode("a film", "films")
        assert (found.ids, set(found.type_ids)) == (wanted, {0})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert theirs("a film", "films")["input_ids"] == wanted


@pytest.mark.parametrize("kind", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_special_tokens_that_a_tokenizer_json_does_not_list(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    _with_post_processor(tmp_path, processors.BertProcessing(*_MARKS), {"tokenizer_class": kind})
    held = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**held, "added_tokens": []}))
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "a [MASK] film[SEP]b"
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert "[MASK]" in ours.encode(text).tokens


@pytest.mark.parametrize("kind", ["BertTokenizer", "BertTokenizerFast", "ElectraTokenizerFast", None])
@pytest.mark.parametrize("name", STRANGE)
def test_berts_classes_put_their_marks_in_themselves(tmp_path, name, kind):
    transformers = pytest.importorskip("transformers")
    _with_post_processor(tmp_path, STRANGE[name][0], {"tokenizer_class": kind} if kind else {})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("a film", "films")
    ours = load_tokenizer(tmp_path).encode("a film", "films")
    assert (ours.ids, ours.type_ids) == (theirs["input_ids"], theirs["token_type_ids"])


@pytest.mark.parametrize(
    ("processor", "types"),
    [
        (processors.BertProcessing(*_MARKS), [0, 0, 0, 1, 1]),
        (
            processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:0 [SEP]:0", special_tokens=_SPECIAL["special_tokens"]
            ),
            [0] * 5,
        ),
    ],
)
def test_berts_marks_in_another_writing(tmp_path, processor, types):
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    _with_post_processor(tmp_path, processor, {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    ours = load_tokenizer(tmp_path).encode("a", "b")
    assert (ours.tokens, ours.type_ids) == (["[CLS]", "a", "[SEP]", "b", "[SEP]"], types)


def test_the_generic_class_of_transformers_5_gives_no_token_types(tmp_path):
    """Its own directories, which transformers 4 cannot read."""
    transformers = pytest.importorskip("transformers", minversion="5")
    pair = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", _SPECIAL["special_tokens"])
    _with_post_processor(tmp_path, pair, {"tokenizer_class": "TokenizersBackend"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("a", "b")
    ours = load_tokenizer(tmp_path).encode("a", "b")
    assert "token_type_ids" not in theirs
    assert (ours.ids, ours.type_ids) == (theirs["input_ids"], [0] * 5)


@pytest.mark.parametrize(
    ("in_json", "in_config", "side"),
    [(None, "left", "left"), ("left", None, "left"), ("left", "right", "right"), ("right", "left", "left")],
)
def test_texts_are_cut_on_the_side_that_the_files_say(tmp_path, in_json, in_config, side):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, *"abcdefghij"]) + "\n")
    if in_json is not None:
        tokenizer = load_tokenizer(tmp_path)
        tokenizer.enable_truncation(8, direction=in_json)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    if in_config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"truncation_side": in_config}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, tokenizer_type="bert")
    ours = load_tokenizer(tmp_path)
    save_tokenizer(ours, tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again", tokenizer_type="bert")
    for found in (ours, load_tokenizer(tmp_path / "again"), Tokenizer.from_str(ours.to_str())):
        assert (side_of(found), found.encode("a b " * 10).ids) == (side, theirs("a b " * 10)["input_ids"])
        for length in (5, 6, 7):
            cut_at(found, length)
            for text in (("a b c d e f g h",), ("a b c d e f", "g h i"), ("a b", "c d e f g h i")):
                expected = theirs(*text, truncation=True, max_length=length)["input_ids"]
                assert (
                    found.encode(*text).ids == expected == again(*text, truncation=True, max_length=length)["input_ids"]
                )
        cut_at(found, None)
        assert len(found.encode("a b " * 10)) == 22


@pytest.mark.parametrize("missing", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
def test_missing_special_token(tmp_path, missing):
    tokens = [t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a") if t != missing]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(tokens))
    with pytest.raises(InputError) as error:
        load_tokenizer(path)
    assert "vocab.txt" in str(error.value)
    assert str(error.value).endswith(f"got none for {missing}")


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{", b"[1]"])
def test_damaged_files(tmp_path, name, content):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_there(tmp_path):
    for path in (tmp_path, tmp_path / "vocab.txt"):
        with pytest.raises(InputError, match="expected"):
            load_tokenizer(path)


def test_training(shared_data):
    lines = (shared_data / "corpus" / "books.txt").read_text(encoding="utf-8").split("\n")[:4000]
    tokenizer = train_wordpiece(iter(lines), 2000)
    assert tokenizer.get_vocab_size() == 2000
    ids = special_ids(tokenizer)
    assert (ids.pad, ids.unk, ids.cls, ids.sep, ids.mask, ids.all) == (0, 1, 2, 3, 4, (0, 1, 2, 3, 4))
    encoding = tokenizer.encode("The Family of Dashwood")
    assert encoding.tokens[0] == "[CLS]"
    assert tokenizer.decode(encoding.ids) == "the family of dashwood"
    # Every piece of running text is known, and the commonest words are whole.
    assert ids.unk not in tokenizer.encode(" ".join(lines[:200])).ids
    assert {"the", "and", "of", "that"} <= set(tokenizer.get_vocab())
    cased = train_wordpiece(iter(lines), 2000, lowercase=False)
    assert cased.decode(cased.encode("The Family").ids) == "The Family"


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_length_that_no_text_has_cuts_none(side):
    """Of a model without positions every length is one; the library holds no number of more than 64 bits."""
    tokenizer = train_wordpiece(["a b c"], 20)
    cut_at(tokenizer, 10**20, side)
    assert tokenizer.encode("a b c " * 1000).tokens.count("a") == 1000


def test_training_on_nothing():
    with pytest.raises(InputError, match="got none"):
        train_wordpiece(iter(["", " "]), 100)
    for size in (5, 6):
        with pytest.raises(InputError, match=f"expected at least 7 .*, got {size}"):
            train_wordpiece(iter(["a b"]), size)
    assert train_wordpiece(iter(["a b"]), 7).get_vocab_size() <= 7
    for size in (10**9, 10**20):  # tens of gigabytes set aside, of which the process died; no number of 64 bits
        with pytest.raises(InputError, match=f"at most 16777216, .*got {size}"):
            train_wordpiece(["a b"], size)
    for count in (-1, 10**20):
        with pytest.raises(InputError, match=rf"min_frequency must be at least 1 and below 2\^63, got {count}"):
            train_wordpiece(["a b"], 50, min_frequency=count)


@pytest.mark.parametrize("alphabet", [None, list("abcdefgt ")])
def test_words_that_are_unknown_for_their_length_give_no_tokens(alphabet):
    texts = ["abc def"] * 4
    kept, left_out = "abé" * 33 + "t", "cdÉ" * 33 + "fb"  # of 100 and 101 characters
    texts += [f"{kept},{left_out} {left_out}"] * 2 + ["ag" * 100_000]  # which took the trainer a quarter of a minute
    tokenizer = train_wordpiece(texts if alphabet is None else iter(texts), 200, alphabet=alphabet)
    assert tokenizer.encode(kept.upper()).tokens[1:-1] == ["abe" * 33 + "t"]
    assert tokenizer.encode(left_out).tokens[1:-1] == ["[UNK]"]
    assert not [token for token in tokenizer.get_vocab() if "cde" in token or "ag" in token]
    assert json.loads(tokenizer.to_str())["pre_tokenizer"] == {"type": "BertPreTokenizer"}


def test_texts_that_can_be_read_twice_give_one_vocabulary():
    letters = "abcdefghij"
    texts = [a + b for a in letters for b in letters for _ in range(3)]
    vocabularies = [train_wordpiece(texts, 60).get_vocab() for _ in range(4)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)


def test_the_alphabet_is_what_wordpiece_sees():
    texts = ["Ä b", "ÄÖ", "a\u0301 \t\x07"]
    assert alphabet(texts) == ["a", "b", "o"]
    assert alphabet(texts, lowercase=False) == ["Ä", "a", "b", "Ö", "\u0301"]
    assert alphabet(texts, strip_accents=False) == ["ä", "a", "b", "ö", "\u0301"]


def test_a_script_of_many_characters_has_them_in_its_vocabulary():
    """Of Chinese the thousand commonest alone were kept: 5.5 % of XQuAD's tokens were [UNK] to its own vocabulary."""
    characters = [chr(0x4E00 + number) for number in range(1500)]
    texts = ["".join(characters)] * 4
    tokenizer = train_wordpiece(texts, 4000)
    assert special_ids(tokenizer).unk not in tokenizer.encode(texts[0]).ids
    # What is rarer than one in two thousand is kept where there is room among a thousand.
    rare = alphabet(["ab" * 2_000_000, *texts[:1]])
    assert (len(rare), rare[:3]) == (1000, ["a", "b", characters[0]])
    assert len(alphabet(["ab" * 1000, *texts])) == 1499 + 2


def test_with_an_alphabet_a_vocabulary_does_not_depend_on_chance():
    # Every pair of letters occurs equally often, so all that decides between them are ties.
    letters = "abcdefghij"
    texts = [a + b for a in letters for b in letters for _ in range(3)]
    vocabularies = [train_wordpiece(texts, 60, alphabet=list(letters)).get_vocab() for _ in range(4)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)
    tokenizer = train_wordpiece(texts, 60, alphabet=list(letters))
    assert tokenizer.get_vocab_size() == 60
    assert tokenizer.encode("ab").tokens[1:-1] in (["ab"], ["a", "##b"])
    # Continuations are words' parts and no special tokens.
    assert tokenizer.decode(tokenizer.encode("abc").ids) == "abc"


def test_a_broken_post_processor_is_no_panic(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    load_tokenizer(tmp_path).save(str(tmp_path / "tokenizer.json"))
    text = (tmp_path / "tokenizer.json").read_text()
    held = '"[SEP]": {'
    assert text.count(held) == 1
    (tmp_path / "tokenizer.json").write_text(text.replace(held, '"[SEPT]": {'))
    (tmp_path / "vocab.txt").unlink()
    load_tokenizer(tmp_path)  # as a BERT's class does, which puts its own there
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(zip(names, WORDS, strict=False))}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="post_processor that can be used"):
        load_tokenizer(tmp_path)
