"""Filling masks against transformers' own model; what cannot be filled."""

import shutil

import pytest
import tiny_bert
import torch
import transformers

import fastbert
from fastbert.errors import InputError
from fastbert.tasks.fill_mask import fill_mask, token_ids


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("mlm"))


def test_candidates_are_transformers(directory):
    text = "The [MASK] of France is [MASK]."
    tokenizer = transformers.BertTokenizer(str(directory / "vocab.txt"))
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        logits = transformers.BertForMaskedLM.from_pretrained(directory).eval()(**inputs).logits[0]
    expected = torch.softmax(logits[inputs["input_ids"][0] == tokenizer.mask_token_id], -1).topk(4)
    model = fastbert.BertForMaskedLM.from_pretrained(directory)
    found = fill_mask(model, fastbert.load_tokenizer(directory), text, 4)
    assert len(found) == 2
    for candidates, ids, probabilities in zip(found, expected.indices, expected.values, strict=True):
        assert [c.id for c in candidates] == ids.tolist()
        assert [c.token for c in candidates] == tokenizer.convert_ids_to_tokens(ids.tolist())
        torch.testing.assert_close(torch.tensor([c.probability for c in candidates]), probabilities)


def test_targets_are_those_of_transformers_pipeline(directory):
    """`paris` is written in capitals, and twice; the probabilities are of the whole vocabulary."""
    tokenizer = transformers.BertTokenizer(str(directory / "vocab.txt"))
    plain = transformers.BertForMaskedLM.from_pretrained(directory)
    pipeline = transformers.pipeline("fill-mask", model=plain, tokenizer=tokenizer)
    model, tokenizer = fastbert.BertForMaskedLM.from_pretrained(directory), fastbert.load_tokenizer(directory)
    ids = token_ids(tokenizer, ["dull", "Paris", "paris", "france", "of", "a", "film"])
    assert len(ids) == 6
    expected = pipeline("The capital of [MASK].", targets=["dull", "paris", "france", "of", "a", "film"], top_k=6)
    [found] = fill_mask(model, tokenizer, "The capital of [MASK].", targets=ids)
    assert [(c.token, c.id) for c in found] == [(row["token_str"], row["token"]) for row in expected]
    torch.testing.assert_close([c.probability for c in found], [row["score"] for row in expected])


def test_targets_are_single_tokens(tmp_path):
    model = tiny_bert.save(tmp_path, vocab=[*tiny_bert.VOCAB, "##ing"])
    tokenizer = fastbert.load_tokenizer(model)
    assert token_ids(tokenizer, ["##ing", "[MASK]"]) == [len(tiny_bert.VOCAB), 4]
    with pytest.raises(InputError, match=r"expected words that are one token .*, got 'booking': book ##ing"):
        token_ids(tokenizer, ["book", "booking"])
    for word in ("zzz", "", "good film"):
        with pytest.raises(InputError, match=f"expected words that are one token .*, got '{word}'"):
            token_ids(tokenizer, [word])
    with pytest.raises(InputError, match="expected a text in UTF-8"):
        token_ids(tokenizer, ["caf\udce9"])


def test_targets_of_byte_pairs_are_words_within_a_text(tmp_path):
    """RoBERTa's pieces of words hold the blank before them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    table = {"<s>": 0, "</s>": 1, "<unk>": 2, "<pad>": 3, "<mask>": 4, "\u0120": 5, "a": 6, "\u0120a": 7}
    tokenizer = Tokenizer(models.BPE(table, [("\u0120", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert token_ids(tokenizer, ["a"]) == [7]


def test_what_cannot_be_filled(directory):
    model = fastbert.BertForMaskedLM.from_pretrained(directory)
    tokenizer = fastbert.load_tokenizer(directory)
    with pytest.raises(InputError, match=r"expected at least one \[MASK\]"):
        fill_mask(model, tokenizer, "the film is good")
    with pytest.raises(InputError, match="has 42 tokens, the model takes at most 32"):
        fill_mask(model, tokenizer, "the " * 39 + "[MASK]")
    assert len(fill_mask(model, tokenizer, "[MASK] " + "the " * 39, truncate=True)) == 1
    with pytest.raises(InputError, match=r"top_k must be between 1 and .*, got 0"):
        fill_mask(model, tokenizer, "[MASK]", 0)


def test_a_text_that_is_cut_on_the_left(directory, tmp_path):
    shutil.copy(directory / "vocab.txt", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    model, tokenizer = fastbert.BertForMaskedLM.from_pretrained(directory), fastbert.load_tokenizer(tmp_path)
    long = "the " * 39
    found = fill_mask(model, tokenizer, f"{long} film is [MASK]", truncate=True)
    assert found == fill_mask(model, tokenizer, f"{'the ' * 27} film is [MASK]")  # 32 tokens with [CLS] and [SEP]
    with pytest.raises(InputError, match=r"expected at least one \[MASK\] in the last 32 tokens of the text"):
        fill_mask(model, tokenizer, f"[MASK] {long}", truncate=True)


@pytest.mark.parametrize("said", [{"return_dict": False}, {"output_attentions": True}, {"output_hidden_states": True}])
def test_what_config_json_says_to_return_changes_nothing(directory, said):
    tokenizer = fastbert.load_tokenizer(directory)
    plain, told = (fastbert.BertForMaskedLM.from_pretrained(directory, **more) for more in ({}, said))
    assert fill_mask(told, tokenizer, "the [MASK]") == fill_mask(plain, tokenizer, "the [MASK]")


def test_rows_that_pad_the_vocabulary_are_no_candidates(directory):
    model = fastbert.BertForMaskedLM.from_pretrained(directory)
    tokenizer = fastbert.load_tokenizer(directory)
    words = model.config.vocab_size
    model.resize_token_embeddings(words + 8)
    with torch.no_grad():
        model.cls.predictions.bias[words:] = 30.0
    text = "the [MASK] of [MASK]"
    for top_k in (1, 3, words, words + 8):
        for candidates in fill_mask(model, tokenizer, text, top_k):
            assert len(candidates) == min(top_k, words)
            assert all(c.token == tokenizer.id_to_token(c.id) is not None for c in candidates)
            # Of the whole vocabulary, as transformers has it: what is left out keeps its share.
            assert sum(c.probability for c in candidates) < 1e-3
            assert candidates == sorted(candidates, key=lambda c: -c.probability)


def test_vocabulary_without_mask(directory, tmp_path):
    model = fastbert.BertForMaskedLM.from_pretrained(directory)
    other = tiny_bert.save(tmp_path / "other", vocab=[word for word in tiny_bert.VOCAB if word != "[MASK]"])
    with pytest.raises(InputError, match=r"\[MASK\]"):
        fill_mask(model, fastbert.load_tokenizer(other), "the [MASK]")
