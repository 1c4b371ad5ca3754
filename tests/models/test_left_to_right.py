"""Left-to-right BERT: causal on every path, equal to transformers' decoder, and pooled at the last token."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import transformers

import fastbert
from fastbert import BertConfig, BertForPreTraining, BertForSequenceClassification, BertModel, PackedBatch
from fastbert.errors import InputError

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CONFIG = {**SIZES, "max_position_embeddings": 24, "initializer_range": 0.3, "is_decoder": True}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """transformers' BertModel with is_decoder."""
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("decoder")
    transformers.BertModel(transformers.BertConfig(**CONFIG), add_pooling_layer=False).save_pretrained(path)
    return path


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 60, shape, generator=torch.Generator().manual_seed(1))


def ours(directory, **options) -> BertModel:
    return BertModel.from_pretrained(directory, add_pooling_layer=False, **options)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_hidden_states_and_gradients_are_those_of_transformers(directory, backend):
    theirs = transformers.BertModel.from_pretrained(directory, add_pooling_layer=False, attn_implementation="eager")
    mine = ours(directory)
    mask = torch.ones(3, 11, dtype=torch.int64)
    mask[1, 7:] = 0
    kept = mask[..., None]
    with fastbert.backend(backend):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                a = mine(ids(3, 11), attention_mask=mask).last_hidden_state
                b = theirs.eval()(ids(3, 11), attention_mask=mask).last_hidden_state * kept
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    (a * torch.linspace(-1, 1, 32)).sum().backward()
    (b * torch.linspace(-1, 1, 32)).sum().backward()
    expected = dict(theirs.named_parameters())
    for name, p in mine.named_parameters():
        torch.testing.assert_close(p.grad, expected[name].grad, rtol=1e-3, atol=2e-4, msg=name)


def paths(model: BertModel, row: torch.Tensor, backend: str):
    """The last hidden states of a sequence (S, H) by every way there is to compute them."""
    found = {}
    mask = torch.ones(1, len(row), dtype=torch.int64)
    four = torch.zeros(1, 1, len(row), len(row))
    four[0, 0, 0, len(row) - 1] = -1.0  # an odd mask: nothing but the rectangle can have it
    with fastbert.backend(backend):
        with torch.no_grad():
            found["packed"] = model(PackedBatch.from_sequences([row.tolist()])).last_hidden_state
            found["cu_seqlens"] = model(row, cu_seqlens=torch.tensor([0, len(row)])).last_hidden_state
            found["padded"] = model(row[None], attention_mask=mask).last_hidden_state[0]
            found["4-D"] = model(row[None], attention_mask=four).last_hidden_state[0]
            found["attentions"] = model(row[None], output_attentions=True).last_hidden_state[0]
            found["states"] = model(row[None], output_hidden_states=True).hidden_states[-1][0]
            hidden = model.embeddings(row, row * 0, torch.arange(len(row)), None)
            found["encoder alone"] = model.encoder(hidden[None]).last_hidden_state[0]
            found["encoder packed"] = model.encoder(hidden, cu_seqlens=torch.tensor([0, len(row)])).last_hidden_state
        found["with gradients"] = model(row[None]).last_hidden_state[0]
        model.train()
        found["training"] = model(row[None]).last_hidden_state[0]
        model.gradient_checkpointing_enable()
        found["recomputed"] = model(row[None]).last_hidden_state[0]
        model.gradient_checkpointing_disable()
        model.eval()
    return found


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_no_path_sees_a_later_token(directory, backend):
    model = ours(directory, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    row = ids(9)
    changed = row.clone()
    changed[6:] = (changed[6:] + 1) % 60
    expected = None
    others = paths(model, changed, backend)
    for name, before in paths(model, row, backend).items():
        after = others[name]
        torch.testing.assert_close(after[:6], before[:6], rtol=0, atol=1e-6, msg=name)
        assert (after[6:] - before[6:]).abs().max() > 1e-2, name
        expected = before if expected is None else expected
        torch.testing.assert_close(before, expected, rtol=0, atol=2e-5, msg=name)


def test_quantized_too(directory):
    model = ours(directory)
    fastbert.quantize(model)
    row = ids(9)
    changed = row.clone()
    changed[-1] = (changed[-1] + 1) % 60
    with torch.no_grad():
        before, after = (model(x[None]).last_hidden_state[0] for x in (row, changed))
    torch.testing.assert_close(after[:-1], before[:-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", ["packed", "masked", "attentions"])
def test_the_last_token_is_pooled(way):
    """The first one sees nothing of the sequence."""
    torch.manual_seed(2)
    model = BertForSequenceClassification(BertConfig(**CONFIG, num_labels=3)).eval()
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 5:] = 0
    rows = ids(2, 8)
    with torch.no_grad():
        if way == "packed":
            logits = model(PackedBatch.from_sequences([rows[0].tolist(), rows[1, :5].tolist()])).logits
        else:
            logits = model(rows, attention_mask=mask, output_attentions=way == "attentions").logits
        states = model.bert(rows, attention_mask=mask).last_hidden_state
        pooled = torch.tanh(model.bert.pooler.dense(torch.stack([states[0, 7], states[1, 4]])))
    torch.testing.assert_close(logits, model.classifier(pooled), rtol=0, atol=1e-5)


def test_a_sequence_without_tokens_is_pooled_as_zeros_on_every_path():
    torch.manual_seed(2)
    model = BertForSequenceClassification(BertConfig(**CONFIG, num_labels=3)).eval()
    mask = torch.tensor([[1] * 8, [0] * 8])
    with torch.no_grad():
        nothing = model.classifier(torch.tanh(model.bert.pooler.dense(torch.zeros(32))))
        for attentions in (False, True):
            logits = model(ids(2, 8), attention_mask=mask, output_attentions=attentions).logits
            torch.testing.assert_close(logits[1], nothing, rtol=0, atol=1e-6)


def test_fine_tuned_and_saved_it_stays_causal(tmp_path):
    torch.manual_seed(2)
    BertForPreTraining(BertConfig(**CONFIG)).save_pretrained(tmp_path / "pretrained")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "pretrained", num_labels=2).train()
    batch = PackedBatch.from_sequences([ids(9).tolist()])
    model(batch, labels=torch.tensor([1])).loss.backward()
    model.save_pretrained(tmp_path / "tuned")
    again = BertForSequenceClassification.from_pretrained(tmp_path / "tuned")
    assert again.config.is_decoder
    other = dataclasses.replace(batch, input_ids=torch.cat([batch.input_ids[:-1], (batch.input_ids[-1:] + 1) % 60]))
    with torch.no_grad():
        a, b = (again.bert(x).last_hidden_state for x in (batch, other))
    torch.testing.assert_close(a[:-1], b[:-1], rtol=0, atol=1e-6)
    # transformers reads the same file as the same model
    theirs = transformers.BertModel.from_pretrained(tmp_path / "tuned", add_pooling_layer=False).eval()
    with torch.no_grad():
        expected = theirs(batch.input_ids[None]).last_hidden_state[0]
    torch.testing.assert_close(a, expected, rtol=0, atol=1e-5)


def test_next_word_loss_is_that_of_transformers_lm_head(tmp_path):
    torch.manual_seed(2)
    theirs = transformers.BertLMHeadModel(transformers.BertConfig(**CONFIG)).eval()
    theirs.save_pretrained(tmp_path)
    model = fastbert.BertForMaskedLM.from_pretrained(tmp_path)
    rows = [ids(9).tolist(), ids(20)[9:14].tolist()]
    batch = PackedBatch.from_sequences(rows)
    positions = torch.tensor([*range(8), *range(9, 13)])
    batch = dataclasses.replace(batch, mlm_positions=positions, mlm_labels=batch.input_ids[positions + 1])
    loss = model(batch).loss
    each = [theirs(torch.tensor([row]), labels=torch.tensor([row])).loss for row in rows]
    torch.testing.assert_close(loss, (each[0] * 8 + each[1] * 4) / 12, rtol=1e-5, atol=1e-6)


def test_what_cannot_look_left_alone_says_so(tmp_path):
    from fastbert.interop.convert import convert

    BertModel(BertConfig(**CONFIG)).save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="left to right"):
        convert(tmp_path / "model", tmp_path / "model.onnx", to="onnx")
    with pytest.raises(InputError, match="is_decoder"):
        fastbert.patch(transformers.BertModel(transformers.BertConfig(**CONFIG)))
