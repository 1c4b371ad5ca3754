"""What trainers and scripts expect of any transformers model: copies, ties, sizes, outputs, checkpointing, adapters."""

from __future__ import annotations

import copy
import pickle

import hf_parity as hf
import pytest
import torch
import transformers
from torch import nn

import fastbert
from fastbert import rng
from fastbert.errors import InputError
from fastbert.packing import PackedBatch

CLASSES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
)
every_class = pytest.mark.parametrize("name", CLASSES)


def _arguments(name):
    given = {**hf.inputs(), "attention_mask": hf.masks()["prefix"]}
    return {key: x.view(2, 2, hf.LENGTH) for key, x in given.items()} if name == "BertForMultipleChoice" else given


def _labels(name):
    return {
        "BertModel": {},
        "BertForPreTraining": {
            "labels": hf.inputs()["input_ids"].masked_fill(hf.masks()["prefix"] == 0, -100),
            "next_sentence_label": torch.tensor([0, 1, 1, 0]),
        },
        "BertForMaskedLM": {"labels": hf.inputs()["input_ids"].masked_fill(hf.masks()["prefix"] == 0, -100)},
        "BertForNextSentencePrediction": {"labels": torch.tensor([0, 1, 1, 0])},
        "BertForSequenceClassification": {"labels": torch.tensor([0, 1, 2, 0])},
        "BertForTokenClassification": {"labels": torch.full((hf.BATCH, hf.LENGTH), 2)},
        "BertForQuestionAnswering": {"start_positions": torch.zeros(4).long(), "end_positions": torch.ones(4).long()},
        "BertForMultipleChoice": {"labels": torch.tensor([1, 0])},
    }[name]


# --- copies ---


@every_class
@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_says_the_same_and_shares_nothing(name, twin):
    _, ours = hf.pair(name)
    again = twin(ours.eval())
    for x, y in zip(ours(**_arguments(name)).values(), again(**_arguments(name)).values(), strict=True):
        assert torch.equal(x, y)
    assert not {p.data_ptr() for p in ours.parameters()} & {p.data_ptr() for p in again.parameters()}
    assert again.num_parameters() == ours.num_parameters(), "a tie was lost"


@every_class
def test_there_and_back_through_transformers_bit_for_bit(name, tmp_path):
    theirs, ours = hf.pair(name)
    ours.save_pretrained(tmp_path / "ours")
    loaded, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    loaded.save_pretrained(tmp_path / "theirs")
    back = getattr(fastbert, name).from_pretrained(tmp_path / "theirs")
    truth = theirs.state_dict()
    assert back.state_dict().keys() == truth.keys()
    for key, tensor in back.state_dict().items():
        assert torch.equal(tensor, truth[key]), key
    assert back.config.num_labels == theirs.config.num_labels


# --- sizes and parts ---


@every_class
def test_parts_and_sizes_are_those_of_transformers(name):
    theirs, ours = hf.pair(name)
    assert ours.num_parameters() == theirs.num_parameters()
    assert ours.num_parameters(exclude_embeddings=True) == ours.num_parameters() - hf.VOCAB * 32
    assert ours.base_model_prefix == theirs.base_model_prefix
    assert set(ours._no_split_modules) == {"BertEmbeddings", "BertLayer"}
    kinds = {type(module).__name__ for module in ours.modules()}
    assert set(ours._no_split_modules) <= kinds
    assert ours.device == torch.device("cpu")
    assert ours.dtype == torch.float32
    assert ours.get_input_embeddings().weight.shape == (hf.VOCAB, 32)
    decoder = ours.get_output_embeddings()
    assert (decoder is None) == (theirs.get_output_embeddings() is None)
    if decoder is not None:
        assert decoder.weight is ours.get_input_embeddings().weight


def test_initial_weights():
    torch.manual_seed(3)
    config = fastbert.BertConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=2, vocab_size=500)
    model = fastbert.BertForPreTraining(config)
    for name, parameter in model.named_parameters():
        if "LayerNorm.weight" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif parameter.dim() == 1:
            assert not parameter.any(), name
        elif parameter.numel() > 10_000:
            # Standard error of a standard deviation over n numbers: sigma / sqrt(2 n), here below 0.7 %.
            assert abs(float(parameter.detach().std()) / 0.02 - 1) < 0.03, name
            assert abs(float(parameter.detach().mean())) < 0.001, name
    assert not model.bert.embeddings.word_embeddings.weight[config.pad_token_id].any()


@pytest.mark.parametrize("size", [hf.VOCAB + 5, hf.VOCAB - 20])
def test_resizing_the_vocabulary(size):
    theirs, ours = hf.pair("BertForPreTraining")
    theirs.resize_token_embeddings(size, mean_resizing=False)
    assert ours.resize_token_embeddings(size) is ours.get_input_embeddings()
    kept = min(size, hf.VOCAB)
    for ours_x, theirs_x in (
        (ours.get_input_embeddings().weight, theirs.get_input_embeddings().weight),
        (ours.get_output_embeddings().bias, theirs.get_output_embeddings().bias),
    ):
        assert ours_x.shape == theirs_x.shape
        assert torch.equal(ours_x[:kept], theirs_x[:kept])
    assert ours.config.vocab_size == ours.bert.config.vocab_size == size
    assert ours.get_output_embeddings().weight is ours.get_input_embeddings().weight
    ids = hf.inputs()["input_ids"].clamp(max=kept - 1)
    logits = ours(ids).prediction_logits
    assert logits.shape[-1] == size
    hf.assert_near(logits[..., :kept], theirs(ids).prediction_logits[..., :kept], torch.float32, "logits")


def test_setting_embeddings_keeps_the_tie():
    _, ours = hf.pair("BertForMaskedLM")
    new = nn.Embedding(hf.VOCAB, 32)
    ours.set_input_embeddings(new)
    assert ours.get_input_embeddings() is new
    assert ours.get_output_embeddings().weight is new.weight


def test_a_model_on_the_meta_device_has_no_memory():
    with torch.device("meta"):
        model = fastbert.BertForMaskedLM(fastbert.BertConfig.large())
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("which", ["the model", "the input", "both"])
def test_a_pass_without_numbers_is_refused_in_one_sentence(which):
    config = fastbert.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    models = fastbert.BertModel(config), fastbert.BertForSequenceClassification(config)
    given = {"input_ids": torch.zeros(1, 3).long(), "attention_mask": torch.ones(1, 3)}
    if which != "the input":
        models = [model.to("meta") for model in models]
    if which != "the model":
        given = {name: tensor.to("meta") for name, tensor in given.items()}
    for model in models:
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients), pytest.raises(InputError, match="on the meta device") as refused:
                model(**given)
            assert "\n" not in str(refused.value)
            with pytest.raises(InputError, match="on the meta device"), torch.set_grad_enabled(gradients):
                model(given["input_ids"])


# --- outputs ---


@every_class
def test_outputs_open_as_those_of_transformers(name):
    theirs, ours = hf.pair(name)
    labels = _labels(name)
    options = {"output_hidden_states": True, **_arguments(name), **labels}
    full = {"output_logits": True} if "labels" in labels and name in ("BertForPreTraining", "BertForMaskedLM") else {}
    expected = theirs(**options)
    got = ours(**options, **full)
    shared = list(expected.keys())
    assert [key for key in got.keys() if key in shared] == shared  # noqa: SIM118 (the order of keys, not membership)
    as_tuple = ours(**options, **full, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert len(as_tuple) == len(shared) == len(got.to_tuple())
    for position, key in enumerate(shared):
        assert got[key] is getattr(got, key)
        assert got[position] is got[key]
        assert got[position:][0] is got[key]
        first, truth = (x[0] if isinstance(x, tuple) else x for x in (as_tuple[position], expected[position]))
        assert first.shape == truth.shape
    assert len(got.hidden_states) == 4


def test_the_configuration_may_ask_for_outputs():
    _, ours = hf.pair("BertModel", output_hidden_states=True, output_attentions=True)
    out = ours(**hf.inputs())
    assert len(out.hidden_states) == 4
    assert len(out.attentions) == 3


# --- adapters and hooks ---


class _Adapted(nn.Module):
    """A dense layer with a low-rank addition, as LoRA puts in the place of one."""

    def __init__(self, base: nn.Linear, dropout: float = 0.0) -> None:
        super().__init__()
        self.base, self.dropout = base, nn.Dropout(dropout)
        self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.3)
        self.b = nn.Parameter(torch.randn(base.out_features, 2) * 0.3)

    @property
    def weight(self):
        return self.base.weight

    @property
    def bias(self):
        return self.base.bias

    def forward(self, x):
        return self.base(x) + self.dropout(x) @ self.a.T @ self.b.T


def _adapt(model, dropout=0.0):
    """Replaces every dense layer of the encoder and the pooler; returns how many."""
    places = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear
    ]
    for module, name, child in places:
        setattr(module, name, _Adapted(child, dropout))
    return len(places)


def test_an_adapter_in_the_place_of_a_dense_layer_is_called():
    torch.manual_seed(0)
    theirs, ours = hf.pair("BertModel")
    assert _adapt(ours) == 3 * 6 + 1
    with torch.no_grad():
        for name, module in ours.named_modules():
            if isinstance(module, _Adapted):
                theirs.get_submodule(name).weight += module.b @ module.a
    expected, got = theirs(**hf.inputs()), ours(**hf.inputs())
    hf.assert_near(got.last_hidden_state, expected.last_hidden_state, torch.float32, "last_hidden_state")
    hf.assert_near(got.pooler_output, expected.pooler_output, torch.float32, "pooler_output")


def test_an_adapter_in_the_place_of_the_word_embeddings_is_called():
    class Shifted(nn.Embedding):
        def forward(self, ids):
            return super().forward(ids) + 1.5

    theirs, ours = hf.pair("BertModel")
    for model in (theirs, ours):
        shifted = Shifted(hf.VOCAB, 32, padding_idx=0)
        shifted.load_state_dict(model.get_input_embeddings().state_dict())
        model.set_input_embeddings(shifted)
    got, expected = ours(**hf.inputs())[0], theirs(**hf.inputs())[0]
    hf.assert_near(got, expected, torch.float32, "last_hidden_state")


def test_hooks_on_dense_layers_fire():
    _, ours = hf.pair("BertModel")
    linears = [module for module in ours.modules() if type(module) is nn.Linear]
    expected = ours(**hf.inputs()).last_hidden_state
    seen = []
    for module in linears:
        module.register_forward_hook(lambda module, _inputs, _output: seen.append(module))
    got = ours(**hf.inputs()).last_hidden_state
    assert seen == linears
    hf.assert_near(got, expected, torch.float32, "last_hidden_state")


# --- dropout and activation checkpointing ---

RATES = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}


def _gradients(model, key, name):
    model.zero_grad()
    with rng.use(key):
        out = model(**_arguments(name), **_labels(name))
    loss = out.loss if "loss" in out else out.last_hidden_state.square().sum() + out.pooler_output.sum()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_class
def test_activation_checkpointing_replays_the_same_dropout(name):
    _, ours = hf.pair(name, **RATES)
    key = rng.DropoutKey(11, 3)
    expected = _gradients(ours, key, name)
    ours.gradient_checkpointing_enable({"use_reentrant": False})
    assert ours.is_gradient_checkpointing
    got = _gradients(ours, key, name)
    ours.gradient_checkpointing_disable()
    assert not ours.is_gradient_checkpointing
    assert got.keys() == expected.keys()
    for parameter, gradient in got.items():
        assert torch.equal(gradient, expected[parameter]), parameter
    other = _gradients(ours, rng.DropoutKey(12, 3), name)
    assert any(not torch.equal(gradient, other[parameter]) for parameter, gradient in got.items())


def test_activation_checkpointing_recomputes_the_layers():
    _, ours = hf.pair("BertModel")
    calls = []
    for layer in ours.encoder.layer:
        layer.register_forward_pre_hook(lambda module, _inputs: calls.append(module.index))
    ours.activation_checkpointing_enable()
    loss = ours(**hf.inputs()).last_hidden_state.sum()
    assert calls == [0, 1, 2]
    loss.backward()
    assert sorted(calls) == [0, 0, 1, 1, 2, 2]
    ours.eval()
    calls.clear()
    ours(**hf.inputs()).last_hidden_state.sum().backward()
    assert calls == [0, 1, 2]


def test_activation_checkpointing_replays_an_adapters_own_dropout():
    torch.manual_seed(0)
    _, ours = hf.pair("BertModel", **RATES)
    _adapt(ours, dropout=0.5)
    torch.manual_seed(5)
    expected = _gradients(ours, rng.DropoutKey(1), "BertModel")
    ours.gradient_checkpointing_enable()
    torch.manual_seed(5)
    got = _gradients(ours, rng.DropoutKey(1), "BertModel")
    for parameter, gradient in got.items():
        assert torch.equal(gradient, expected[parameter]), parameter


def test_dropout_follows_torchs_seed_and_evaluation_has_none():
    _, ours = hf.pair("BertModel", **RATES)

    def run(seed):
        torch.manual_seed(seed)
        return ours(**hf.inputs()).last_hidden_state

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    theirs, _ = hf.pair("BertModel")
    ours.eval()
    assert torch.equal(run(1), run(2))
    hf.assert_near(run(1), theirs(**hf.inputs()).last_hidden_state, torch.float32, "evaluation")


def test_dropout_does_not_know_whether_the_batch_came_padded():
    _, ours = hf.pair("BertModel", **RATES)
    mask = hf.masks()["prefix"]
    lengths = mask.sum(1).tolist()
    rows = [hf.inputs()[x] for x in ("input_ids", "token_type_ids")]
    batch = PackedBatch.from_sequences(*([row[:n] for row, n in zip(x, lengths, strict=True)] for x in rows))
    with rng.use(rng.DropoutKey(4, 4)):
        padded = ours(**hf.inputs(), attention_mask=mask)
        packed = ours(batch)
    assert torch.equal(padded.last_hidden_state[mask.bool()], packed.last_hidden_state)
    assert torch.equal(padded.pooler_output, packed.pooler_output)


def test_hidden_dropout_drops_as_often_as_it_says():
    # One token type, one position, one word: with attention and branches at zero only the embeddings' dropout is seen.
    _, ours = hf.pair("BertModel", num_hidden_layers=1, hidden_dropout_prob=0.25)
    x = ours.embeddings(
        torch.zeros(4000, dtype=torch.int64),
        torch.zeros(4000, dtype=torch.int64),
        torch.zeros(4000, dtype=torch.int64),
        rng.DropoutKey(8),
    )
    dropped = float((x == 0).float().mean())
    # 128,000 elements: a standard error of 0.0012.
    assert abs(dropped - 0.25) < 0.006
    kept = ours.eval().embeddings(*[torch.zeros(1, dtype=torch.int64)] * 3, None) / 0.75
    columns = x.abs().amax(0)
    assert torch.allclose(columns, kept.abs()[0], rtol=1e-5, atol=1e-6)


# --- other dtypes ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_errs_no_more_than_twice_as_much_as_transformers(dtype):
    truth, _ = hf.pair("BertModel", torch.float64)
    theirs, ours = hf.pair("BertModel")
    # Weights of both sides and of the truth are the ones that the narrow dtype can hold.
    ours, theirs = ours.to(dtype).eval(), theirs.to(dtype).eval()
    truth.load_state_dict({key: tensor.double() for key, tensor in theirs.state_dict().items()})
    assert ours.dtype == dtype
    mask = hf.masks()["holes"]
    kept = mask.bool()
    with torch.no_grad():
        expected = truth.eval()(**hf.inputs(), attention_mask=mask).last_hidden_state[kept]
        errors = [
            (model(**hf.inputs(), attention_mask=mask).last_hidden_state[kept].double() - expected)
            .square()
            .mean()
            .sqrt()
            for model in (ours, theirs)
        ]
    assert float(errors[0]) <= 2 * float(errors[1])


def test_autocast_trains_float32_weights():
    theirs, ours = hf.pair("BertForPreTraining")
    for model in (ours, theirs):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(**_arguments("BertForPreTraining"), **_labels("BertForPreTraining"))
        assert out.loss.dtype == torch.float32
        out.loss.backward()
    exact, _ = hf.pair("BertForPreTraining")
    truth = exact(**_arguments("BertForPreTraining"), **_labels("BertForPreTraining")).loss
    truth.backward()
    assert abs(out.loss.item() - truth.item()) < 0.1
    for (name, p), q, t in zip(ours.named_parameters(), theirs.parameters(), exact.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        if "key.bias" not in name:
            # Three times the error of transformers under autocast, and what its own rounding of the largest leaves.
            floor = float(t.grad.abs().max()) * 2**-7
            assert float((p.grad - t.grad).abs().max()) <= 3 * float((q.grad - t.grad).abs().max()) + floor, name


# --- one sentence for what does not fit ---


def _one_sentence(model, *words, **given):
    with pytest.raises(InputError) as caught:
        model(**given)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message


def test_inputs_that_do_not_fit():
    _, ours = hf.pair("BertModel")
    ids, types = (hf.inputs()[x] for x in ("input_ids", "token_type_ids"))
    outside = ids.clone()
    outside[1, 2] = hf.VOCAB
    _one_sentence(ours, "input_ids", hf.VOCAB, input_ids=outside)
    outside[1, 2] = -1
    _one_sentence(ours, "input_ids", -1, input_ids=outside)
    _one_sentence(ours, "token_type_ids", 2, input_ids=ids, token_type_ids=types + 1)
    _one_sentence(ours, "position_ids", 24, input_ids=ids, position_ids=torch.full_like(ids, 24))
    long = torch.zeros(1, 25, dtype=torch.int64)
    _one_sentence(ours, "max_position_embeddings", 24, 25, input_ids=long)
    _one_sentence(ours, 24, 25, input_ids=PackedBatch.from_sequences([[1], [1] * 25]))
    _one_sentence(ours, 24, 25, input_ids=long[0], cu_seqlens=torch.tensor([0, 25]))
    _one_sentence(ours, "attention_mask", (4, 5), input_ids=ids, attention_mask=torch.ones(4, 5))
    _one_sentence(ours, "token_type_ids", (4, 5), input_ids=ids, token_type_ids=types[:, :5])
    _one_sentence(ours, "input_ids", "inputs_embeds", input_ids=ids, inputs_embeds=torch.zeros(4, 11, 32))
    _one_sentence(ours, "input_ids", "inputs_embeds")
    _one_sentence(ours, "no_such_argument", input_ids=ids, no_such_argument=1)
    _one_sentence(ours, "encoder_hidden_states", input_ids=ids, encoder_hidden_states=torch.zeros(4, 11, 32))
    _one_sentence(ours, "head_mask", input_ids=ids, head_mask=torch.ones(3, 4))
    batch = PackedBatch.from_sequences([[1, 2]])
    _one_sentence(ours, "attention", input_ids=batch, output_attentions=True)
    _one_sentence(ours, "input_ids", "float32", input_ids=ids.float())
    _one_sentence(ours, "token_type_ids", "uint8", input_ids=ids, token_type_ids=types.byte())
    _one_sentence(ours, "input_ids", "torch tensor", "list", input_ids=ids.tolist())
    _one_sentence(ours, "attention_mask", "torch tensor", "ndarray", input_ids=ids, attention_mask=ids.numpy())
    _one_sentence(ours, "token_type_ids", "torch tensor", "list", input_ids=ids, token_type_ids=types.tolist())
    _one_sentence(ours, "attention_mask", "meta device", input_ids=ids, attention_mask=ids.to("meta"))
    assert ours(ids, head_mask=[None] * 3, use_cache=False, past_key_values=None).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("row", [[1.5], ["a"], "text", 3, None, [[1, 2]]])
def test_sequences_that_are_no_ids(row):
    with pytest.raises(InputError, match="input_ids must be sequences of ids, got"):
        PackedBatch.from_sequences([[1, 2], row])
    with pytest.raises(InputError, match="token_type_ids must be sequences of ids, got"):
        PackedBatch.from_sequences([[1]], [row])


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForTokenClassification", "BertForPreTraining"])
def test_labels_of_another_dtype(name):
    _, ours = hf.pair(name)
    ids = hf.inputs()["input_ids"]
    options = {"next_sentence_label": torch.zeros(len(ids)).long()} if name == "BertForPreTraining" else {}
    with pytest.raises(InputError, match="labels must be int64, got int32"):
        ours(ids, labels=torch.zeros_like(ids).int(), **options)


@every_class
def test_labels_that_are_no_tensor(name):
    _, ours = hf.pair(name)
    for key, given in _labels(name).items():
        said = "labels" if name in ("BertForNextSentencePrediction", "BertForPreTraining") else key
        with pytest.raises(InputError, match=f"^{said} must be a torch tensor, got list$"):
            ours(**_arguments(name), **{**_labels(name), key: given.tolist()})


@every_class
def test_embeddings_of_another_width(name):
    _, ours = hf.pair(name)
    shape = (2, 2, 5, 31) if name == "BertForMultipleChoice" else (2, 5, 31)
    with pytest.raises(InputError, match=r"^inputs_embeds must have a last dimension of hidden_size = 32, got "):
        ours(inputs_embeds=torch.zeros(shape))
    if name != "BertForMultipleChoice":
        with pytest.raises(InputError, match="hidden_size = 32"):
            ours(inputs_embeds=torch.zeros(5, 31), cu_seqlens=torch.tensor([0, 5]))


def test_what_would_be_left_unread_beside_packed_tokens():
    _, ours = hf.pair("BertModel")
    batch, bounds = PackedBatch.from_sequences([[1, 2], [3]]), torch.tensor([0, 2, 3])
    for name, value in (
        ("attention_mask", torch.ones(1, 3)),
        ("token_type_ids", torch.zeros(3, dtype=torch.int64)),
        ("position_ids", torch.arange(3)),
        ("inputs_embeds", torch.zeros(3, 32)),
        ("cu_seqlens", bounds),
    ):
        _one_sentence(ours, f"no {name}", "PackedBatch", **{"input_ids": batch, name: value})
    packed = {"input_ids": batch.input_ids, "cu_seqlens": bounds}
    _one_sentence(ours, "attention_mask", "cu_seqlens", **packed, attention_mask=torch.zeros(1, 3))
    assert ours(**packed).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("bounds", [[], [0], [0, 2], [1, 3], [0, 4], [0, 2, 1, 3]])
def test_bounds_that_are_not_those_of_the_tokens(bounds):
    _, ours = hf.pair("BertModel")
    ids, given = torch.ones(3, dtype=torch.int64), torch.tensor(bounds, dtype=torch.int32)
    _one_sentence(ours, "cu_seqlens", "the 3 tokens", bounds, input_ids=ids, cu_seqlens=given)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("bounds", [[0], [0, 2], [1, 3], [0, 4], [0, 2, 1, 3], [0.0, 3.0], [[0, 3]]])
def test_bounds_of_an_encoder_that_are_not_those_of_the_tokens(bounds, backend):
    encoder = hf.pair("BertModel")[1].encoder
    with fastbert.backend(backend), pytest.raises(InputError, match="cu_seqlens must"):
        encoder(torch.randn(3, 32), cu_seqlens=torch.tensor(bounds))


def test_what_an_encoder_does_not_take():
    encoder = hf.pair("BertModel")[1].encoder
    packed, bounds = torch.randn(3, 32), torch.tensor([0, 3])
    for words, given in (
        ("no .* attention_mask beside packed tokens", {"cu_seqlens": bounds, "attention_mask": torch.ones(1, 3)}),
        (r"probabilities are kept for \(B, S\) batches only", {"cu_seqlens": bounds, "output_attentions": True}),
        ("must be a tensor of int32 or int64, got list", {"cu_seqlens": [0, 3]}),
    ):
        with pytest.raises(InputError, match=words):
            encoder(packed, **given)
    for states in (packed[0], packed[None, None]):
        with pytest.raises(InputError, match=r"hidden_states must be \(B, S, H\), or \(T, H\) packed, got"):
            encoder(states)


def test_a_masked_token_is_not_looked_at():
    _, ours = hf.pair("BertModel")
    ids = hf.inputs()["input_ids"]
    mask = hf.masks()["prefix"]
    assert ours(ids.masked_fill(mask == 0, 10**6), mask).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("BertForMaskedLM", torch.full((hf.BATCH, hf.LENGTH), hf.VOCAB)),
        ("BertForMaskedLM", torch.zeros(hf.BATCH, 3, dtype=torch.int64)),
        ("BertForNextSentencePrediction", torch.tensor([0, 1, 2, 0])),
        ("BertForSequenceClassification", torch.tensor([0, 1, 3, 0])),
        ("BertForSequenceClassification", torch.tensor([0, 1, -1, 0])),
        ("BertForTokenClassification", torch.full((hf.BATCH, hf.LENGTH), 3)),
    ],
)
def test_labels_that_do_not_fit(name, labels):
    _, ours = hf.pair(name)
    _one_sentence(ours, "labels", **hf.inputs(), labels=labels)


def test_a_batch_of_nothing():
    _, ours = hf.pair("BertModel")
    out = ours(hf.inputs()["input_ids"], attention_mask=torch.zeros(hf.BATCH, hf.LENGTH))
    assert not out.last_hidden_state.any()
    assert out.pooler_output.isfinite().all()
    out = ours(torch.zeros(0, 5, dtype=torch.int64))
    assert out.last_hidden_state.shape == (0, 5, 32)
    assert out.pooler_output.shape == (0, 32)


# --- options of transformers' from_pretrained ---


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "bert"
    torch.manual_seed(0)
    transformers.BertModel(hf.hf_config()).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("options", [{"torch_dtype": torch.float16}, {"dtype": "float16"}, {"torch_dtype": "float16"}])
def test_both_names_of_the_dtype(saved, options):
    assert fastbert.BertModel.from_pretrained(saved, **options).dtype == torch.float16


def test_loading_options_that_change_nothing_are_passed_over(saved):
    model = fastbert.BertModel.from_pretrained(
        saved, low_cpu_mem_usage=True, attn_implementation="sdpa", device_map=None
    )
    assert not {"low_cpu_mem_usage", "attn_implementation", "device_map"} & set(model.config.to_dict())
    assert model.dtype == torch.float32


@pytest.mark.parametrize("name", ["device_map", "subfolder", "variant", "output_loading_info", "quantization_config"])
def test_loading_options_of_which_something_is_expected_are_refused(saved, name):
    with pytest.raises(InputError, match=f"^{name} is no option of from_pretrained here: "):
        fastbert.BertModel.from_pretrained(saved, **{name: "auto"})


def test_one_process_of_several_saves_what_they_have_gathered(tmp_path):
    _, ours = hf.pair("BertForMaskedLM")
    gathered = {name: tensor * 2 for name, tensor in ours.state_dict().items()}
    gathered["cls.predictions.decoder.weight"] = gathered["bert.embeddings.word_embeddings.weight"].view(hf.VOCAB, -1)
    ours.save_pretrained(tmp_path / "other", False, gathered)
    assert not (tmp_path / "other").exists()
    # As scripts that use accelerate call it.
    options = {"save_function": torch.save, "safe_serialization": True, "max_shard_size": "5GB", "push_to_hub": False}
    ours.save_pretrained(tmp_path / "main", is_main_process=True, state_dict=gathered, **options)
    loaded = fastbert.BertForMaskedLM.from_pretrained(tmp_path / "main").state_dict()
    assert all(torch.equal(tensor, gathered[name]) for name, tensor in loaded.items())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"push_to_hub": True}, "huggingface_hub"),
        ({"safe_serialization": False}, "--to pickle"),
        ({"variant": "fp16"}, "a directory of its own"),
        ({"state_dictionary": {}}, "leave it out"),
    ],
)
def test_saving_options_of_which_something_is_expected_are_refused(tmp_path, option, said):
    _, ours = hf.pair("BertModel")
    with pytest.raises(InputError, match=said):
        ours.save_pretrained(tmp_path / "out", **option)
    assert not (tmp_path / "out").exists()


def test_a_configuration_of_transformers(saved):
    theirs = transformers.BertConfig.from_pretrained(saved)
    model = fastbert.BertModel.from_pretrained(saved, config=theirs)
    assert isinstance(model.config, fastbert.BertConfig)
    assert fastbert.BertModel.from_pretrained(saved, config=theirs, num_labels=5).config.num_labels == 5


@pytest.mark.parametrize(("size", "multiple", "rows"), [(33, 8, 40), (40, 8, 40), (None, 64, 64)])
def test_a_vocabulary_of_a_multiple(saved, size, multiple, rows):
    model = fastbert.BertModel.from_pretrained(saved)
    before = model.get_input_embeddings().weight.detach().clone()
    assert len(before) == hf.VOCAB < rows or size is not None
    new = model.resize_token_embeddings(size, pad_to_multiple_of=multiple)
    assert new.num_embeddings == model.config.vocab_size == rows
    kept = min(rows, len(before))
    assert torch.equal(new.weight[:kept], before[:kept])
    with pytest.raises(InputError, match="pad_to_multiple_of must be at least 1, got 0"):
        model.resize_token_embeddings(8, pad_to_multiple_of=0)


def test_a_forward_put_in_place_of_a_dense_layers_is_called(saved):
    model = fastbert.BertModel.from_pretrained(saved).eval()
    given = {**hf.inputs(), "attention_mask": hf.masks()["prefix"]}
    dense = model.encoder.layer[0].output.dense
    plain = dense.forward
    with torch.no_grad():
        before = model(**given).last_hidden_state
        dense.forward = lambda x: 2 * plain(x)
        assert not torch.allclose(model(**given).last_hidden_state, before, atol=1e-3)
        del dense.forward
        assert torch.equal(model(**given).last_hidden_state, before)
