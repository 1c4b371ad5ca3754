"""GPT and GPT-2 against transformers' OpenAIGPT and GPT2: weights, logits, gradients, files."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
import transformers
from tiny_gpt import KINDS, SIZES, ids, theirs
from torch import nn

import fastbert
from fastbert import PackedBatch
from fastbert.errors import CheckpointError, InputError
from fastbert.gpt_config import GPT2Config, GPTConfig
from fastbert.models.gpt import GPTForPreTraining, GPTModel
from fastbert.models.gpt_heads import GPTForMultipleChoice, GPTForSequenceClassification


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpt")
    for kind in KINDS:
        theirs(kind).save_pretrained(root / kind)
    return root


def as_file(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return GPTForPreTraining.tensors_to_file(gradients)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_and_gradients_are_those_of_transformers(directories, kind, backend):
    reference, model = theirs(kind), GPTForPreTraining.from_pretrained(directories / kind)
    assert not model.load_report.missing
    assert not model.load_report.unexpected
    tokens = ids(3, 13)
    with fastbert.backend(backend):
        mine = model(tokens, labels=tokens, output_logits=True)
        other = reference(tokens, labels=tokens)
        torch.testing.assert_close(mine.logits, other.logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(mine.loss, other.loss, rtol=1e-5, atol=1e-6)
        mine.loss.backward()
    other.loss.backward()
    gradients = as_file({name: p.grad for name, p in model.named_parameters()})
    expected = {name: p.grad for name, p in reference.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("room", "function"), [(F, "layer_norm"), (nn.Embedding, "forward")], ids=["norm", "table"])
def test_what_torch_computes_modules_by_may_be_replaced(directories, kind, room, function, monkeypatch):
    reference, model = theirs(kind), GPTForPreTraining.from_pretrained(directories / kind).eval()
    before, torchs = model(ids(3, 13)).logits, getattr(room, function)
    monkeypatch.setattr(room, function, lambda *inputs, **options: torchs(*inputs, **options).clamp(max=0.2))
    expected, got = reference(ids(3, 13)).logits, model(ids(3, 13)).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(got, before, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_hidden_states_are_those_of_transformers(directories, kind):
    found = []
    for model in (theirs(kind), GPTForPreTraining.from_pretrained(directories / kind)):
        more = {"output_logits": True} if isinstance(model, GPTForPreTraining) else {}
        out = model.eval()(ids(3, 13), output_hidden_states=True, **more)
        found.append(torch.autograd.grad(out.logits.square().sum(), out.hidden_states))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("kind", KINDS)
def test_packed_padded_and_masked_are_one(directories, kind):
    reference, model = theirs(kind), GPTForPreTraining.from_pretrained(directories / kind)
    rows = [ids(13).tolist(), ids(20)[13:].tolist(), ids(1).tolist()]
    with torch.no_grad():
        each = [reference(torch.tensor([row])).logits[0] for row in rows]
        batch = PackedBatch.from_sequences(rows, [[1] * len(row) for row in rows])  # ids of segments mean nothing
        torch.testing.assert_close(model(batch).logits, torch.cat(each), rtol=0, atol=1e-5)
        padded, mask = torch.zeros(3, 13, dtype=torch.int64), torch.zeros(3, 13, dtype=torch.int64)
        for b, row in enumerate(rows):
            padded[b, : len(row)], mask[b, : len(row)] = torch.tensor(row), 1
        logits = model(padded, attention_mask=mask).logits
        for b, expected in enumerate(each):
            torch.testing.assert_close(logits[b, : len(expected)], expected, rtol=0, atol=1e-5)
            assert not logits[b, len(expected) :].any()
        left = torch.cat([torch.zeros(1, 4, dtype=torch.int64), torch.tensor([rows[0][:9]])], 1)
        keep = torch.tensor([[0] * 4 + [1] * 9])
        want = reference(left, attention_mask=keep).logits[0, 4:]
        torch.testing.assert_close(model(left, attention_mask=keep).logits[0, 4:], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["openai-gpt", "gpt2"])
@pytest.mark.parametrize("head", ["Model", "LMHeadModel", "DoubleHeadsModel", "ForSequenceClassification"])
def test_a_directory_of_any_head_has_the_decoder(kind, head, tmp_path):
    reference = theirs(kind, head)
    reference.save_pretrained(tmp_path)
    decoder = reference if head == "Model" else reference.transformer
    for model in (GPTModel.from_pretrained(tmp_path), GPTForPreTraining.from_pretrained(tmp_path).transformer):
        with torch.no_grad():
            mine, other = model(ids(2, 9)).last_hidden_state, decoder(ids(2, 9)).last_hidden_state
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["openai-gpt", "gpt2"])
def test_hidden_states(directories, kind):
    reference, model = theirs(kind, "Model"), GPTModel.from_pretrained(directories / kind)
    reference.load_state_dict(theirs(kind).transformer.state_dict())
    with torch.no_grad():
        mine = model(ids(2, 9), output_hidden_states=True)
        other = reference(ids(2, 9), output_hidden_states=True)
    torch.testing.assert_close(mine.last_hidden_state, other.last_hidden_state, rtol=0, atol=1e-5)
    assert len(mine.hidden_states) == len(other.hidden_states) == 3
    for a, b in zip(mine.hidden_states, other.hidden_states, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    with torch.no_grad():
        embeds = getattr(model, model.names[0])(ids(2, 9))
        assert torch.equal(model(inputs_embeds=embeds).last_hidden_state, mine.last_hidden_state)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_it_loads_in_transformers_and_here_to_the_bit(directories, tmp_path, kind):
    model = GPTForPreTraining.from_pretrained(directories / kind)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again).__name__ == model.architecture
    expected = theirs(kind).state_dict()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    once_more = GPTForPreTraining.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), once_more.parameters(), strict=True))


def test_bare_files_and_old_buffers_load(directories, tmp_path):
    """The published gpt2 has bare names, and masks that are no weights."""
    reference = theirs("gpt2", "Model")
    reference.save_pretrained(tmp_path)
    state = reference.state_dict() | {
        "h.0.attn.bias": torch.ones(1, 1, 4, 4),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    model = GPTForPreTraining.from_pretrained(tmp_path)
    assert not model.load_report.missing
    assert not model.load_report.unexpected
    with torch.no_grad():
        hidden = model.transformer(ids(1, 5)).last_hidden_state
        torch.testing.assert_close(hidden, reference(ids(1, 5)).last_hidden_state, rtol=0, atol=1e-5)
    assert model.lm_head.weight is model.transformer.wte.weight
    del state["h.1.mlp.c_fc.weight"]
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"1 missing \(transformer\.h\.1\.mlp\.c_fc\.weight\)"):
        GPTForPreTraining.from_pretrained(tmp_path)


def test_no_sequence_of_packed_tokens_predicts_the_next_one(directories):
    model = GPTForPreTraining.from_pretrained(directories / "gpt2")
    tokens, bounds = ids(9), torch.tensor([0, 4, 4, 9])  # the second is empty
    loss = model(tokens, cu_seqlens=bounds, labels=tokens).loss
    first, last = (model(part[None], labels=part[None]).loss for part in (tokens[:4], tokens[4:]))
    torch.testing.assert_close(loss, (3 * first + 4 * last) / 7)
    with pytest.raises(InputError, match=r"labels must be one a token, 9 of them, got \(8,\)"):
        model(tokens, cu_seqlens=bounds, labels=tokens[:8])


@pytest.mark.parametrize("kind", ["openai-gpt", "gpt2"])
def test_labels_of_a_packed_batch_and_recomputed_layers(directories, kind):
    model = GPTForPreTraining.from_pretrained(directories / kind).train()
    batch = PackedBatch.from_sequences([ids(9).tolist(), ids(15)[9:].tolist()])
    places = torch.tensor([*range(8), *range(9, 14)])
    batch = dataclasses.replace(batch, mlm_positions=places, mlm_labels=batch.input_ids[places + 1])
    found = []
    for recompute in (False, True):
        model.zero_grad()
        (model.gradient_checkpointing_enable if recompute else model.gradient_checkpointing_disable)()
        torch.manual_seed(7)  # the dropout of one forward pass
        out = model(batch)
        assert out.loss is out.mlm_loss
        assert out.mlm_logits.shape == (13, 61)
        assert out.nsp_logits is None
        out.loss.backward()
        found.append([out.loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", [GPTForSequenceClassification, GPTForMultipleChoice])
def test_a_task_adds_the_loss_of_next_words_while_it_trains(directories, kind, head):
    """L3 = L2 + lambda L1 (Radford et al. 2018, section 3.3)."""
    model = head.from_pretrained(directories / kind, **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0))
    batch = PackedBatch.from_sequences([ids(9).tolist(), ids(15)[9:].tolist()])
    places = torch.tensor([*range(8), *range(9, 14)])
    batch = dataclasses.replace(batch, mlm_positions=places, mlm_labels=batch.input_ids[places + 1])
    options = (
        {"labels": torch.tensor([1, 0])} if head is GPTForSequenceClassification else {"labels": torch.tensor([1])}
    )
    options |= {} if head is GPTForSequenceClassification else {"num_choices": 2}
    words = model.transformer(batch).last_hidden_state[places] @ model.get_input_embeddings().weight.T
    alone, added = model(batch, **options).loss, torch.nn.functional.cross_entropy(words, batch.mlm_labels)
    assert torch.equal(model(batch, **options, lm_weight=0.5).loss, alone), "an evaluation has the task's loss"
    torch.testing.assert_close(model.train()(batch, **options, lm_weight=0.5).loss, alone + 0.5 * added)
    with pytest.raises(InputError, match="lm_weight needs a packed batch with the labels of next words"):
        model(dataclasses.replace(batch, mlm_positions=None, mlm_labels=None), **options, lm_weight=0.5)


def test_new_weights_begin_as_the_papers_say():
    torch.manual_seed(0)
    model = GPTForPreTraining(GPT2Config.from_name("gpt2-2x256", vocab_size=500, n_positions=64))
    std = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.dim() == 2}
    for name, value in std.items():
        expected = 0.02 / 2 if name.endswith("c_proj.weight") else 0.02  # 1 / sqrt(2 * 2 layers)
        assert value == pytest.approx(expected, rel=0.05), name
    assert model.num_parameters() == model.config.num_parameters()


def test_names_of_sizes():
    config = GPTConfig.from_name("gpt-small")
    assert (config.n_layer, config.n_embd, config.n_head, config.model_type) == (4, 512, 8, "openai-gpt")
    assert (GPT2Config.from_name("gpt2").n_layer, GPT2Config.from_name("GPT2-6x768x3").n_head) == (12, 3)
    with pytest.raises(InputError, match="gpt-enormous"):
        GPTConfig.from_name("gpt-enormous")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_embd": 30}, "n_embd"),
        ({"n_layer": 0}, "n_layer"),
        ({"afn": "relu"}, "activation"),
        ({"attn_pdrop": 2}, "attn_pdrop"),
        ({"extract_token_id": 61}, "extract_token_id"),
        ({"vocab_size": 1 << 30}, "vocab_size"),
        ({"model_type": "gpt2"}, "model_type"),
    ],
)
def test_a_value_that_does_not_fit_is_named_in_one_sentence(changes, named):
    with pytest.raises(InputError, match=named):
        GPTConfig(**{**SIZES, **changes})


@pytest.mark.parametrize("inner", ["wide", -3, 0, True])
def test_a_width_that_is_none_is_named_in_one_sentence(inner):
    with pytest.raises(InputError, match="n_inner must be none or an integer"):
        GPT2Config(**SIZES, n_inner=inner)


def test_inputs_that_do_not_fit_are_named(directories):
    model = GPTForPreTraining.from_pretrained(directories / "gpt2")
    with pytest.raises(InputError, match="at most max_position_embeddings = 24"):
        model(ids(1, 25))
    with pytest.raises(InputError, match="input_ids must be between 0 and 60"):
        model(torch.tensor([[61]]))
    with pytest.raises(InputError, match="unknown argument of the model: past_key_values"):
        model(ids(1, 3), past_key_values=())
    mask, bounds = torch.ones(1, 3), torch.tensor([0, 3])
    with pytest.raises(InputError, match="no attention_mask with a PackedBatch"):
        model(PackedBatch.from_sequences([[1, 2, 3]]), mask)
    with pytest.raises(InputError, match="no attention_mask with cu_seqlens"):
        model(ids(1, 3), mask, cu_seqlens=bounds)
    with pytest.raises(InputError, match="model_type must be 'bert'"):
        fastbert.BertModel.from_pretrained(directories / "gpt2")


def test_a_small_gpt2_with_the_large_ones_first_token(tmp_path, caplog):
    """What GPT2Config's defaults give to whoever makes a small one."""
    small = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(small).eval()
    theirs.save_pretrained(tmp_path)
    ours = fastbert.GPTForPreTraining.from_pretrained(tmp_path)
    assert ours.config.bos_token_id is None
    assert "bos_token_id 50256 is not below vocab_size 99" in caplog.text
    ids = torch.randint(0, 99, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("orders", [0, 2])
def test_sequences_that_do_not_make_whole_examples_are_refused(orders):
    model = GPTForSequenceClassification(GPTConfig(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=4))
    with pytest.raises(InputError, match=f"orders must divide the 3 sequences, got {orders}"):
        model(PackedBatch.from_sequences([[1], [2, 3], [4]]), orders=orders)
