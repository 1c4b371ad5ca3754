"""Sentence vectors against sentence-transformers."""

import json
import shutil
from itertools import islice, product
from string import ascii_lowercase

import numpy as np
import pytest
import tokenizers
import torch
from levels import LEVELS, TILES, at_level
from tiny_bert import save as save_tiny

import fastbert
from fastbert import SentenceEncoder, _native
from fastbert.errors import InputError
from fastbert.interop.sentence_modules import pool

SENTENCES = [
    "A man is eating food.",
    "",
    "   ",
    "word " * 400,  # beyond max_seq_length: cut
    "The quick brown Fox jumps over the lazy dog!",
    "Zürich, naïve café; 你好世界 and \u200b\ufffd odd characters\n\ttoo.",
    "x",
    "A man is eating food.",
]
ST = "sentence_transformers.models"
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def theirs(directory):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    return sentence_transformers.SentenceTransformer(str(directory), device="cpu")


@pytest.fixture(scope="module")
def encoder(minilm):
    return SentenceEncoder.from_pretrained(minilm)


def st_directory(path, pooling, normalize=False, **sentence):
    """A sentence-transformers directory around the tiny model, in the files' older form."""
    save_tiny(path, "BertModel")
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalize
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    (path / "sentence_bert_config.json").write_text(json.dumps(sentence))
    (path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
    return path


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
def test_vectors_of_length_one_may_be_made_of_shorter_products(minilm):
    """On AMX's tiles, which the plain C++ of a level stands in for; others and batch-invariant ones are float32's."""
    texts = [f"{number} more words, and then a full stop." for number in range(10)]
    options = {"unit": {}, "raw": {"normalize": False}, "invariant": {"batch_invariant": True}}
    encoder = SentenceEncoder.from_pretrained(minilm, device="cpu")
    with fastbert.backend("cpu"):
        with at_level(next(level for level in reversed(LEVELS) if level != "amx")):
            plain = {name: encoder.encode(texts, **given) for name, given in options.items()}
        with at_level(TILES):
            tiles = {name: encoder.encode(texts, **given) for name, given in options.items()}
    differences = {name: np.abs(tiles[name] - plain[name]).max() for name in options}
    assert 5e-7 < differences["unit"] <= 1e-5
    assert differences["raw"] <= 2e-6  # of elements up to 2
    assert differences["invariant"] <= 3e-7


def test_minilm_agrees_with_sentence_transformers(minilm, encoder):
    vectors = encoder.encode(SENTENCES)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(SENTENCES), 384)
    np.testing.assert_allclose(vectors, theirs(minilm).encode(SENTENCES), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_order_and_batching_do_not_show(encoder):
    vectors = encoder.encode(SENTENCES)
    close = {"rtol": 0, "atol": 1e-5 if "amx" in LEVELS else 1e-6}  # on AMX short batches have exact products
    np.testing.assert_allclose(encoder.encode(SENTENCES, token_budget=np.int64(1)), vectors, **close)
    np.testing.assert_allclose(encoder.encode(SENTENCES[::-1])[::-1], vectors, **close)
    assert np.abs(vectors[0] - vectors[4]).max() > 0.01


def texts(count: int) -> list[str]:
    """Different ones of three words, five tokens with the special ones."""
    return [" ".join(words) for words in islice(product(ascii_lowercase, repeat=3), count)]


def test_a_text_that_comes_again_is_computed_once(encoder, monkeypatch):
    seen = []
    forward = encoder.model.forward
    monkeypatch.setattr(encoder.model, "forward", lambda batch, **told: seen.append(batch) or forward(batch, **told))
    first, second = texts(2)
    vectors = encoder.encode([first, second, first, first], prompt="of ")
    assert [batch.cu_seqlens.tolist() for batch in seen] == [[0, 6, 12]]
    assert np.array_equal(vectors[[0, 0]], vectors[2:])
    np.testing.assert_allclose(vectors[:2], encoder.encode(["of " + first, "of " + second]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("word", ["word ", "w" * 400 + " ", "w" * 9000])
def test_a_long_text_is_cut_where_sentence_transformers_cuts_it(word, minilm, encoder):
    """Also where its words are so long that its beginning, which is tokenized first, has too few tokens."""
    given = [word * (100_000 // len(word)), "one more"]
    np.testing.assert_allclose(encoder.encode(given), theirs(minilm).encode(given), rtol=0, atol=1e-5)


def test_a_batch_stays_within_the_token_budget(encoder, monkeypatch):
    seen = []
    forward = encoder.model.forward
    monkeypatch.setattr(encoder.model, "forward", lambda batch, **told: seen.append(batch) or forward(batch, **told))
    encoder.encode(texts(20), token_budget=26)
    assert [batch.num_tokens for batch in seen] == [25, 25, 25, 25]


@pytest.mark.parametrize(
    ("threads", "batches"),
    [(1, [*[8190] * 6, 5860]), (2, [*[16380] * 3, 5860]), (8, [32765, 22235]), (100, [51200, 3800])],
)
def test_many_threads_have_tokens_for_each_where_nothing_is_said(encoder, monkeypatch, threads, batches):
    seen = []
    monkeypatch.setattr(encoder, "_vectors", lambda rows, *_: seen.append(sum(map(len, rows))) or 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    encoder.encode(texts(11_000))
    # Elsewhere the threads of the CPU say nothing.
    assert seen == (batches if encoder.model.device.type == "cpu" else [*[4095] * 13, 1765])


def test_a_model_that_is_being_trained_is_evaluated_for_it(tmp_path):
    encoder = SentenceEncoder.from_pretrained(st_directory(tmp_path / "model", {"pooling_mode_mean_tokens": True}))
    vectors = encoder.encode(SENTENCES)
    encoder.model.train()
    np.testing.assert_array_equal(encoder.encode(SENTENCES), vectors)
    assert all(module.training for module in encoder.model.modules())


@pytest.mark.parametrize("said", [{"return_dict": False}, {"output_attentions": True}, {"output_hidden_states": True}])
def test_what_config_json_says_to_return_changes_nothing(tmp_path, said):
    directory = save_tiny(tmp_path, "BertModel")
    wanted = SentenceEncoder.from_pretrained(directory).encode(["the film", "paris"])
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | said))
    np.testing.assert_array_equal(SentenceEncoder.from_pretrained(directory).encode(["the film", "paris"]), wanted)


def test_normalisation_can_be_told(encoder):
    raw = encoder.encode(SENTENCES[:2], normalize=False)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    unit = encoder.encode(SENTENCES[:2])
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), unit, atol=1e-6)


def test_no_sentences_give_no_vectors(encoder):
    assert encoder.encode([]).shape == (0, 384)


def test_what_is_no_list_of_strings_is_refused(encoder):
    for wrong in ("one string", ["a", None], [b"bytes"], {"text": "a"}):
        with pytest.raises(InputError, match="sentences"):
            encoder.encode(wrong)
    with pytest.raises(InputError, match="token_budget"):
        encoder.encode(["a"], token_budget=0)
    with pytest.raises(InputError, match="normalize must be True, False or None, got 'no'"):
        encoder.encode(["a"], normalize="no")
    with pytest.raises(InputError, match="token_budget must be a whole number, at least 1, got '5'"):
        encoder.encode(["a"], token_budget="5")
    with pytest.raises(InputError, match="list of strings, got bytes"):
        encoder.encode(b"bytes")
    with pytest.raises(InputError, match="list of strings, got NoneType"):
        encoder.encode(None)
    with pytest.raises(InputError, match=r"the lone surrogate '.ud800' in number 1"):
        encoder.encode(["a", "b\ud800"])
    for name, value in (("truncate_dim", 0), ("truncate_dim", -3), ("max_seqlen", 1), ("max_seqlen", "9")):
        with pytest.raises(InputError, match=f"{name} must be a whole number"):
            SentenceEncoder(encoder.model, encoder.tokenizer, **{name: value})


@pytest.mark.parametrize("device", ["gpu", "mps", "xpu", 3.5])
def test_a_device_that_is_not_there_is_told(device, tmp_path):
    with pytest.raises(InputError, match=f"device must be one that torch can use here, such as .*, got {device}: "):
        SentenceEncoder.from_pretrained(tmp_path, device=device)


def test_numbers_of_numpy_can_be_saved(encoder, tmp_path):
    made = SentenceEncoder(encoder.model, encoder.tokenizer, max_seqlen=np.int64(16), truncate_dim=np.int64(8))
    made.save_pretrained(tmp_path / "saved")
    assert SentenceEncoder.from_pretrained(tmp_path / "saved").dim == 8


def test_a_progress_bar_goes_to_stderr(encoder, capsys):
    encoder.encode(["a", "b"], show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "sentences" in err


@pytest.mark.parametrize("mode", MODES)
def test_pooling_of_numbers_worked_out_by_hand(mode):
    hidden = torch.tensor([[1.0, 2.0], [3.0, -6.0], [5.0, 4.0], [-7.0, 9.0]])
    cu_seqlens = torch.tensor([0, 3, 4], dtype=torch.int32)
    expected = {
        "cls": [[1, 2], [-7, 9]],
        "max": [[5, 4], [-7, 9]],
        "mean": [[3, 0], [-7, 9]],
        "mean_sqrt_len_tokens": [[9 / 3**0.5, 0], [-7, 9]],
        "weightedmean": [[(1 + 6 + 15) / 6, (2 - 12 + 12) / 6], [-7, 9]],
        "lasttoken": [[5, 4], [-7, 9]],
    }[mode]
    torch.testing.assert_close(pool(hidden, cu_seqlens, mode), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize(
    "pooling",
    [
        *(
            {f"pooling_mode_{mode}" + ("" if mode.endswith("tokens") or mode == "lasttoken" else "_tokens"): True}
            for mode in MODES[1:]
        ),
        {"pooling_mode_cls_token": True},
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": "max"},
        {"pooling_mode": ["mean", "cls"]},
        {},
    ],
    ids=str,
)
def test_every_pooling_agrees_with_sentence_transformers(tmp_path, pooling):
    directory = st_directory(tmp_path / "model", pooling, max_seq_length=9)
    texts = ["the film was great", "bad", "", "the capital of france is paris . and the book is not very good ! " * 2]
    expected = theirs(directory).encode(texts)
    np.testing.assert_allclose(SentenceEncoder.from_pretrained(directory).encode(texts), expected, rtol=1e-5, atol=1e-5)


def test_settings_of_the_directory_are_followed(tmp_path):
    directory = st_directory(tmp_path / "model", {"pooling_mode_mean_tokens": True}, True, do_lower_case=True)
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    (directory / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "the film "}, "default_prompt_name": "query"})
    )
    texts = ["WAS great", "bad"]
    vectors = SentenceEncoder.from_pretrained(directory).encode(texts)
    np.testing.assert_allclose(vectors, theirs(directory).encode(texts), rtol=1e-5, atol=1e-5)
    (directory / "modules.json").unlink()
    plain = SentenceEncoder.from_pretrained(directory)  # a plain BERT: mean, not normalised, no prompt, cased
    reference = plain.encode(["the film was great"], normalize=True)
    np.testing.assert_allclose(vectors[:1], reference, rtol=1e-5, atol=1e-5)
    assert abs(np.linalg.norm(plain.encode(["bad"])) - 1) > 0.1


@pytest.mark.parametrize("normalize", [False, True])
def test_a_directory_that_sentence_transformers_has_saved_again(tmp_path, normalize):
    """Version 6 keeps the longest input in the tokenizer's file, and where vectors are cut off in its own."""
    model = theirs(st_directory(tmp_path / "old", {"pooling_mode_mean_tokens": True}, normalize, max_seq_length=6))
    model.truncate_dim = 8
    model.save(str(tmp_path / "new"))
    ours = SentenceEncoder.from_pretrained(tmp_path / "new")
    again = theirs(tmp_path / "new")
    texts = ["the film was great and the book is not very good !", "bad"]
    assert ours.max_seqlen == 6
    assert ours.encode(texts).shape[1] == ours.dim == again.encode(texts).shape[1]
    np.testing.assert_allclose(ours.encode(texts), again.encode(texts), rtol=1e-5, atol=1e-5)
    expected = again.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(ours.encode(texts, normalize=True), expected, rtol=1e-5, atol=1e-5)


def test_the_longest_input_under_the_name_of_early_releases(tmp_path):
    directory = st_directory(tmp_path, {"pooling_mode_mean_tokens": True}, max_seq_length=6)
    (directory / "sentence_bert_config.json").rename(directory / "sentence_roberta_config.json")
    assert SentenceEncoder.from_pretrained(directory).max_seqlen == 6
    assert theirs(directory).max_seq_length == 6


def test_the_longest_input_can_be_set_later(tmp_path):
    encoder = SentenceEncoder.from_pretrained(st_directory(tmp_path / "st", {"pooling_mode_mean_tokens": True}))
    longest = encoder.max_seqlen
    whole = encoder.encode(SENTENCES[:5])
    encoder.max_seqlen = np.int64(6)
    cut = encoder.encode(SENTENCES[:5])
    assert np.abs(cut[3] - whole[3]).max() > 1e-4
    encoder.save_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(
        SentenceEncoder.from_pretrained(tmp_path / "saved").encode(SENTENCES[:5]), cut, atol=1e-6
    )
    for value in (2, 7.5, "all"):
        with pytest.raises(InputError, match=r"^max_seqlen must be a whole number, at least 3, or None, got"):
            encoder.max_seqlen = value
    assert encoder.max_seqlen == 6
    for value in (None, 10**6):
        encoder.max_seqlen = value
        assert encoder.max_seqlen == longest
    np.testing.assert_array_equal(encoder.encode(SENTENCES[:5]), whole)


def test_pooling_and_its_cut_can_be_set_later(tmp_path):
    directory = st_directory(tmp_path / "st", {"pooling_mode_mean_tokens": True})
    encoder = SentenceEncoder.from_pretrained(directory)
    for pooling, truncate_dim in (("cls", None), (("mean", "max"), 5), (["max"], np.int64(3))):
        encoder.pooling, encoder.truncate_dim = pooling, truncate_dim
        modes = (pooling,) if isinstance(pooling, str) else tuple(pooling)
        whole = SentenceEncoder.from_pretrained(directory, pooling=pooling).encode(SENTENCES[:3])
        assert encoder.pooling == modes
        np.testing.assert_array_equal(encoder.encode(SENTENCES[:3]), whole[:, :truncate_dim])
        assert encoder.dim == (truncate_dim or whole.shape[1])
    for value in (("x",), "x", ()):
        with pytest.raises(InputError, match=r"^pooling: expected pooling modes among cls, "):
            encoder.pooling = value
    for value in (0, -1, 1.5, "all"):
        with pytest.raises(InputError, match=r"^truncate_dim must be a whole number, at least 1, or None, got"):
            encoder.truncate_dim = value
    assert (encoder.pooling, encoder.truncate_dim) == (("max",), 3)


@pytest.mark.parametrize("padding", [{}, {"length": 20}, {"length": 20, "direction": "left"}])
def test_a_tokenizer_that_somebody_else_makes_pad(tmp_path, padding):
    directory = st_directory(tmp_path / "st", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    encoder = SentenceEncoder.from_pretrained(directory)
    expected = encoder.encode(SENTENCES, prompt="a man: ")
    encoder.tokenizer.enable_padding(**padding)
    np.testing.assert_array_equal(encoder.encode(SENTENCES, prompt="a man: "), expected)
    assert encoder.tokenizer.padding is not None


def test_a_tokenizer_that_is_given_stays_as_it_is(encoder):
    text, capitals = "a man is eating food . " * 10, "A Man"
    tokenizer = fastbert.load_tokenizer(encoder.model.tokenizer_source)
    before = tokenizer.to_str()
    whole = SentenceEncoder(encoder.model, tokenizer)
    expected = whole.encode([text, capitals])
    SentenceEncoder(encoder.model, tokenizer, pooling="cls", max_seqlen=8, do_lower_case=True)
    assert tokenizer.to_str() == before
    np.testing.assert_array_equal(whole.encode([text, capitals]), expected)
    tokenizer.no_truncation()
    assert len(whole.encode([text * 100])) == 1


def test_a_tokenizer_with_a_part_in_python(encoder):
    class Lower:
        def normalize(self, text):
            text.lowercase()

    tokenizer = fastbert.load_tokenizer(encoder.model.tokenizer_source)
    tokenizer.normalizer = tokenizers.normalizers.Normalizer.custom(Lower())
    made = SentenceEncoder(encoder.model, tokenizer, normalize=True)
    np.testing.assert_allclose(made.encode(["A Man"]), encoder.encode(["a man"]), atol=1e-6)


def test_the_default_device_is_not_the_encoders(encoder):
    """Another default device than the model's once left the sums unwritten."""
    expected = encoder.encode(SENTENCES)
    with torch.device("meta"):
        np.testing.assert_array_equal(encoder.encode(SENTENCES), expected)


def test_a_prompt_gets_a_name_that_is_free(encoder, tmp_path):
    prompts = {"default": "a: ", "default_0": "b: "}
    made = SentenceEncoder(encoder.model, encoder.tokenizer, prompts=prompts, prompt="c: ")
    made.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path)
    assert again.prompt == "c: "
    assert again.prompts.items() >= prompts.items()


def test_vectors_that_are_cut_off(tmp_path):
    directory = st_directory(tmp_path / "old", {"pooling_mode_mean_tokens": True}, True)
    (directory / "config_sentence_transformers.json").write_text('{"truncate_dim": 8}')
    ours = SentenceEncoder.from_pretrained(directory)
    (directory / "config_sentence_transformers.json").unlink()
    whole = SentenceEncoder.from_pretrained(directory).encode(["bad"])
    np.testing.assert_array_equal(ours.encode(["bad"]), whole[:, :8])
    cut = ours.encode(["bad"], normalize=True)
    np.testing.assert_allclose(cut, whole[:, :8] / np.linalg.norm(whole[:, :8]), rtol=1e-5)
    assert ours.dim == 8


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("modules.json", "{", "modules.json"),
        ("modules.json", "{}", "a JSON array, got dict"),
        ("modules.json", '[{"path": ""}]', "modules"),
        ("modules.json", f'[{{"type": "{ST}.Transformer"}}, {{"type": "{ST}.Dense", "path": "x"}}]', "Dense"),
        ("modules.json", f'[{{"type": "own.Transformer"}}, {{"type": "{ST}.Pooling"}}]', r"got own\.Transformer"),
        (
            "modules.json",
            f'[{{"type": "{ST}.Transformer"}}, {{"type": "{ST}.Pooling", "path": "../1_Pooling"}}]',
            "inside",
        ),
        ("1_Pooling/config.json", '{"pooling_mode": "median"}', "median"),
        ("1_Pooling/config.json", '{"pooling_mode": 3}', "pooling modes"),
        ("sentence_bert_config.json", '{"max_seq_length": "long"}', "max_seq_length"),
        ("config_sentence_transformers.json", '{"truncate_dim": 0}', "truncate_dim of 1 or more, got 0"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "passage", "prompts": {}}', "passage"),
    ],
)
def test_what_is_not_supported_is_said_in_one_sentence(tmp_path, file, content, named):
    directory = st_directory(tmp_path / "model", {"pooling_mode_mean_tokens": True})
    (directory / file).write_text(content)
    with pytest.raises(InputError, match=named) as caught:
        SentenceEncoder.from_pretrained(directory)
    assert "\n" not in str(caught.value)


def test_a_missing_pooling_file_is_named(tmp_path):
    directory = st_directory(tmp_path / "model", {})
    shutil.rmtree(directory / "1_Pooling")
    with pytest.raises(InputError, match="1_Pooling"):
        SentenceEncoder.from_pretrained(directory)
