"""Positions that sentence-transformers gives otherwise than `SentenceEncoder`: a sentence says where vectors differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_library import library, modules
from tiny_bert import VOCAB
from tiny_bert import save as save_tiny

import fastbert
from fastbert import SentenceEncoder
from fastbert.errors import InputError

KNOWN = ["the film was great .", "france", "a bad and dull book of france is not good ."]
UNKNOWN = "the strange film"


def directory_of(path: Path, pad: int | None = None, **settings) -> Path:
    """A sentence-transformers directory with lasttoken pooling, of a BERT or, with a pad, of a RoBERTa."""
    bert = save_tiny(path / "bert", "BertModel")
    if pad is not None:
        import transformers

        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
        config = transformers.RobertaConfig(
            vocab_size=len(VOCAB), max_position_embeddings=60, type_vocab_size=1, pad_token_id=pad,
            initializer_range=0.5, **sizes,
        )  # fmt: skip
        torch.manual_seed(2)
        transformers.RobertaModel(config).save_pretrained(bert)
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    said = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **settings}
    (bert / "tokenizer_config.json").write_text(json.dumps(said))
    parts = [modules.Transformer(str(bert)), modules.Pooling(32, pooling_mode="lasttoken")]
    library.SentenceTransformer(modules=parts, device="cpu").save(str(path / "st"))
    return path / "st"


def vectors(directory: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Ours, and sentence-transformers'."""
    theirs = library.SentenceTransformer(str(directory), device="cpu")
    return SentenceEncoder.from_pretrained(directory).encode(texts), theirs.encode(texts)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_the_left_moves_a_berts_positions_and_a_warning_says_so(side, tmp_path, caplog):
    directory = directory_of(tmp_path, padding_side=side)
    ours, theirs = vectors(directory, KNOWN)
    alone = np.concatenate([vectors(directory, [text])[1] for text in KNOWN])
    np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-5)
    assert np.allclose(ours, theirs, atol=1e-5) == (side == "right")
    assert ("padding_side is left: in sentence-transformers a text's vector depends" in caplog.text) == (side == "left")


def test_padding_on_the_left_does_not_move_a_robertas_positions(tmp_path, caplog):
    ours, theirs = vectors(directory_of(tmp_path, pad=0, padding_side="left"), KNOWN)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert not caplog.text


def test_a_robertas_pad_that_is_another_token_of_the_tokenizer(tmp_path, caplog):
    """As [UNK] is where a model with RoBERTa's pad has BERT's vocabulary. Texts without it have equal vectors."""
    directory = directory_of(tmp_path, pad=1)
    ours, theirs = vectors(directory, [*KNOWN, UNKNOWN])
    np.testing.assert_allclose(ours[:-1], theirs[:-1], rtol=0, atol=1e-5)
    assert not np.allclose(ours[-1], theirs[-1], atol=1e-2)
    said = (
        "expected pad_token_id to be that of the tokenizer, 0, got 1, which is its token '[UNK]': texts with this token"
    )
    assert f"config.json: {said}" in caplog.text


@pytest.mark.parametrize("pad", [2, 3])
def test_a_robertas_pad_that_is_a_token_of_all_texts_is_refused(pad, tmp_path):
    directory = directory_of(tmp_path, pad=pad)
    with pytest.raises(
        InputError, match=rf"config.json: expected pad_token_id .* 0, got {pad}, .* fastbert.patch\(model"
    ):
        SentenceEncoder.from_pretrained(directory)
    theirs, patched = (library.SentenceTransformer(str(directory), device="cpu") for _ in range(2))
    fastbert.patch(patched)
    np.testing.assert_allclose(patched.encode(KNOWN), theirs.encode(KNOWN), rtol=0, atol=1e-4)
