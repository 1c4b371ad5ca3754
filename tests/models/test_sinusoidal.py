"""Sinusoidal positions (Vaswani et al. 2017, section 3.5): hand-worked values, and a table that nothing changes."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from packaging.version import Version

from fastbert import BertConfig, BertModel
from fastbert.modules.embeddings import sinusoids

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = {**SIZES, "max_position_embeddings": 20, "position_embedding_type": "sinusoidal"}


def test_values_worked_by_hand():
    """size 4: the angles of position p are p / 10000^(0/4) = p and p / 10000^(2/4) = p / 100."""
    table = sinusoids(101, 4)
    assert table.shape == (101, 4)
    by_hand = {
        0: [0.0, 1.0, 0.0, 1.0],
        1: [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
        2: [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
        100: [-0.5063656411, 0.8623188723, 0.8414709848, 0.5403023059],
    }
    for position, row in by_hand.items():
        torch.testing.assert_close(table[position], torch.tensor(row), rtol=0, atol=1e-7)


def test_an_odd_size_and_late_positions():
    table = sinusoids(5000, 7)
    assert table.shape == (5000, 7)
    for position, column in ((4999, 0), (4999, 1), (4321, 6)):
        angle = position / 10000 ** (2 * (column // 2) / 7)
        expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
        assert float(table[position, column]) == pytest.approx(expected, abs=1e-7)


def test_the_encoder_adds_them_to_words_scaled_as_in_the_paper():
    """LayerNorm(sqrt(d) E + PE), sections 3.4 and 3.5; segments are scaled as words are."""
    torch.manual_seed(0)
    embeddings = BertModel(BertConfig(**CONFIG)).double().eval().embeddings
    ids, types = torch.randint(0, 40, (20,)), torch.randint(0, 2, (20,))
    words, kinds = embeddings.word_embeddings.weight, embeddings.token_type_embeddings.weight
    x = math.sqrt(16) * (words[ids] + kinds[types]) + sinusoids(20, 16).double()
    expected = torch.nn.functional.layer_norm(x, (16,), eps=0.0)
    got = embeddings(ids, types, torch.arange(20), None)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_the_table_is_no_parameter_and_training_leaves_it():
    torch.manual_seed(0)
    model = BertModel(BertConfig(**CONFIG)).train()
    assert not any("position" in name for name, _ in model.named_parameters())
    assert model.num_parameters() == model.config.num_parameters()
    before = model.embeddings.position_embeddings.weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randint(0, 40, (2, 7))).last_hidden_state.square().sum().backward()
    optimizer.step()
    assert torch.equal(model.embeddings.position_embeddings.weight, before)


def test_saved_it_loads_here_and_in_transformers(tmp_path):
    torch.manual_seed(0)
    model = BertModel(BertConfig(**CONFIG, initializer_range=0.3)).eval()
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 40, (2, 20))
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        assert torch.equal(BertModel.from_pretrained(tmp_path)(ids).last_hidden_state, expected)
        if Version(transformers.__version__) < Version("5.0.0.dev0"):
            return  # leaves out positions of another kind than "absolute"
        theirs = transformers.BertModel.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(theirs(ids).last_hidden_state, expected, rtol=0, atol=1e-5)


def test_learned_positions_of_a_file_do_not_take_its_place(tmp_path):
    BertModel(BertConfig(**{**CONFIG, "position_embedding_type": "absolute"})).save_pretrained(tmp_path)
    model = BertModel.from_pretrained(tmp_path, position_embedding_type="sinusoidal")
    torch.testing.assert_close(model.embeddings.position_embeddings.weight * 4, sinusoids(20, 16))
