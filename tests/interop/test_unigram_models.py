"""Sentence models with a Unigram tokenizer, against sentence-transformers and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import unigram
from hf_parity import assert_near, assert_near_gradient
from sentence_library import library as st
from sentence_library import modules as theirs_of
from unigram import TEXTS

import fastbert
from fastbert import SentenceEncoder
from fastbert.cli.main import main
from fastbert.interop.convert import convert

PROMPTS = {"query": "query: ", "passage": "passage: "}


def saved(path: Path, kind: str, form: str = "split", *, normalize=False, include_prompt=True, **options) -> Path:
    """A directory as sentence-transformers writes it, with an input of at most 12 tokens."""
    unigram.save(path / "bert", kind=kind, form=form)
    pooling = theirs_of.Pooling(32, pooling_mode="mean", include_prompt=include_prompt)
    transformer = theirs_of.Transformer(str(path / "bert"), max_seq_length=12)
    parts = [transformer, pooling, *([theirs_of.Normalize()] if normalize else [])]
    st.SentenceTransformer(modules=parts, device="cpu", **options).save(str(path / "st"))
    return path / "st"


def assert_equal(ours: SentenceEncoder, directory: Path, texts=TEXTS, **options) -> None:
    theirs = st.SentenceTransformer(str(directory), device="cpu")
    np.testing.assert_allclose(ours.encode(texts, **options), theirs.encode(texts, **options), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "form"),
    [("XLMRobertaTokenizer", "split"), ("XLMRobertaTokenizer", "blanks"), ("PreTrainedTokenizerFast", "own")],
)
def test_vectors_are_those_of_sentence_transformers(kind, form, tmp_path):
    directory = saved(tmp_path, kind, form, normalize=True, prompts=PROMPTS)
    ours = SentenceEncoder.from_pretrained(directory)
    assert (ours.max_seqlen, ours.normalize) == (12, True)
    # Blanks at the sides, which are tokens here, are cut off by sentence-transformers until version 6.
    texts = [text.strip() for text in TEXTS if text.strip()] if form == "own" else TEXTS
    assert_equal(ours, directory, texts)
    assert_equal(ours, directory, texts, prompt_name="query")
    # A plain directory too, whose pad is 0 in config.json and 1 in the tokenizer.
    assert_equal(SentenceEncoder.from_pretrained(tmp_path / "bert"), tmp_path / "bert", texts)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_default_prompt(include_prompt, tmp_path):
    directory = saved(
        tmp_path,
        "XLMRobertaTokenizer",
        prompts=PROMPTS,
        default_prompt_name="passage",
        include_prompt=include_prompt,
    )
    ours = SentenceEncoder.from_pretrained(directory)
    for options in ({}, {"prompt_name": "query"}, {"prompt": ""}):
        assert_equal(ours, directory, **options)
    assert (ours.encode(TEXTS[:1]) != ours.encode(TEXTS[:1], prompt="")).any()


def test_what_is_written_keeps_the_tokenizer(tmp_path, capsys):
    directory = saved(tmp_path, "XLMRobertaTokenizer", normalize=True, prompts=PROMPTS)
    (directory / "sentencepiece.bpe.model").write_bytes(b"its own file")
    ours = SentenceEncoder.from_pretrained(directory)
    ours.save_pretrained(tmp_path / "saved")
    convert(directory, tmp_path / "sentences", to="sentence-transformers")
    convert(directory, tmp_path / "plain", to="safetensors")
    for place in ("saved", "sentences", "plain"):
        for name in ("tokenizer.json", "tokenizer_config.json", "sentencepiece.bpe.model"):
            assert (tmp_path / place / name).read_bytes() == (directory / name).read_bytes()
    for place in ("saved", "sentences"):
        assert_equal(ours, tmp_path / place, prompt_name="query")
    # From the tokenizer alone, where nothing lies beside the model.
    ours.model.tokenizer_source = None
    ours.save_pretrained(tmp_path / "alone")
    assert_equal(ours, tmp_path / "alone")
    convert(directory, tmp_path / "tf1", to="tf1")
    assert not (tmp_path / "tf1" / "vocab.txt").exists()


def test_the_commands(tmp_path):
    directory = saved(tmp_path, "XLMRobertaTokenizer", normalize=True, prompts=PROMPTS)
    lines = [text for text in TEXTS if "\n" not in text and text.strip()]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    told = ["--model", str(directory), str(tmp_path / "lines.txt"), "--out"]
    assert main(["encode", *told, str(tmp_path / "v.npy"), "--prompt-name", "query"]) == 0
    wanted = st.SentenceTransformer(str(directory), device="cpu").encode(lines, prompt_name="query")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, rtol=0, atol=1e-5)
    assert main(["extract", *told, str(tmp_path / "features"), "--layers", "last", "--truncate"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "features" / "tokens.jsonl").read_text().splitlines()]
    values, tokenizer = np.load(tmp_path / "features" / "features.npy"), unigram.make()
    tokenizer.no_padding()
    tokenizer.enable_truncation(32)
    model = transformers.BertModel.from_pretrained(directory).eval()
    for line, row in zip(lines, rows, strict=True):
        encoding = tokenizer.encode(line)
        assert (row["tokens"], row["ids"]) == (encoding.tokens, encoding.ids)
        with torch.no_grad():
            states = model(torch.tensor([row["ids"]])).last_hidden_state[0]
        np.testing.assert_allclose(values[row["start"] : row["end"]], states, rtol=0, atol=1e-5)


def test_a_pad_that_is_another_token_for_the_tokenizer(tmp_path):
    """As in the published models: config.json's pad, 0, begins every sequence, and the tokenizer's is 1."""
    directory = unigram.save(tmp_path / "bert")
    theirs = transformers.BertModel.from_pretrained(directory, attn_implementation="eager").eval()
    ours = fastbert.BertModel.from_pretrained(directory).eval()
    given = transformers.AutoTokenizer.from_pretrained(directory)(TEXTS[:4], padding=True, return_tensors="pt")
    ids, kept = given["input_ids"], given["attention_mask"]
    assert (ids[:, 0] == 0).all()
    assert (ids == 1).any()
    for mask in (kept, None):  # which masks nothing
        states, tables = [], []
        for model in (ours, theirs):
            model.zero_grad()
            found = model(ids, attention_mask=mask).last_hidden_state[(kept if mask is None else mask) != 0]
            found.sin().sum().backward()
            states.append(found)
            tables.append(model.embeddings.word_embeddings.weight.grad)
        assert_near(*states, torch.float32, "states")
        assert not tables[0][0].any()
        assert tables[0][2].any()
        assert_near_gradient(*tables, torch.float32, "the table", tables[1])
