"""What trainers and scripts expect of any transformers model: copies, ties, sizes, outputs, checkpointing, adapters."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from functools import partial

import hf_parity as hf
import pytest
import torch
import transformers
from levels import LEVELS, at_level
from torch import nn

import fastbert
from fastbert import rng
from fastbert.errors import InputError
from fastbert.gpt_config import GPT2Config
from fastbert.models.gpt import GPTForPreTraining
from fastbert.modules.layer import BertAttention
from fastbert.packing import PackedBatch


@hf.every_class
@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_says_the_same_and_shares_nothing(name, twin):
    _, ours = hf.pair(name)
    again = twin(ours.eval())
    for x, y in zip(ours(**hf.arguments(name)).values(), again(**hf.arguments(name)).values(), strict=True):
        assert torch.equal(x, y)
    assert not {p.data_ptr() for p in ours.parameters()} & {p.data_ptr() for p in again.parameters()}
    assert again.num_parameters() == ours.num_parameters(), "a tie was lost"


@hf.every_class
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


@hf.every_class
def test_parts_and_sizes_are_those_of_transformers(name):
    theirs, ours = hf.pair(name)
    for model in (ours, theirs):
        getattr(model, "bert", model).encoder.layer[1].requires_grad_(False)
    assert ours.num_parameters() == theirs.num_parameters()
    assert ours.num_parameters(exclude_embeddings=True) == theirs.num_parameters(exclude_embeddings=True)
    assert ours.num_parameters(only_trainable=True) == theirs.num_parameters(only_trainable=True)
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


@pytest.mark.parametrize("pad", [-1, -hf.VOCAB, hf.VOCAB - 1])
def test_the_pads_row_is_counted_as_transformers_counts_it(pad):
    theirs, ours = hf.pair("BertModel", pad_token_id=pad)
    row = theirs.embeddings.word_embeddings.padding_idx
    assert ours.embeddings.word_embeddings.padding_idx == row == pad % hf.VOCAB
    assert not type(ours)(ours.config).embeddings.word_embeddings.weight[row].any()
    ids = torch.tensor([[5, row, 7]])
    for model in (theirs, ours):
        states = model(ids).last_hidden_state
        (states * torch.linspace(-1, 1, states.numel()).reshape(states.shape).cos()).sum().backward()
    gradients = [model.embeddings.word_embeddings.weight.grad for model in (theirs, ours)]
    hf.assert_near(gradients[1], gradients[0], torch.float32, "gradients")
    assert gradients[1][5].any()
    assert not gradients[1][row].any()


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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_what_is_frozen_stays_so_in_another_vocabulary(kind, tied):
    """As in transformers, which decides it matrix by matrix."""
    if kind == "bert":
        model = fastbert.BertForMaskedLM(hf.hf_config(tie_word_embeddings=tied))
    else:
        sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "bos_token_id": None}
        model = GPTForPreTraining(GPT2Config(**sizes, eos_token_id=None, tie_word_embeddings=tied))
    for frozen in (True, False):
        model.get_input_embeddings().weight.requires_grad_(not frozen)
        if not tied:
            model.get_output_embeddings().weight.requires_grad_(frozen)
        if kind == "bert":
            model.get_output_embeddings().bias.requires_grad_(not frozen)
        before = {name: p.requires_grad for name, p in model.named_parameters()}
        model.resize_token_embeddings(model.config.vocab_size + 8)
        assert {name: p.requires_grad for name, p in model.named_parameters()} == before


def test_setting_embeddings_keeps_the_tie():
    _, ours = hf.pair("BertForMaskedLM")
    new = nn.Embedding(hf.VOCAB, 32)
    ours.set_input_embeddings(new)
    assert ours.get_input_embeddings() is new
    assert ours.get_output_embeddings().weight is new.weight


@pytest.mark.parametrize("rows", [hf.VOCAB + 20, hf.VOCAB - 8])
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_embeddings_with_other_rows(name, rows, tmp_path):
    theirs, ours = hf.pair(name)
    new = nn.Embedding(rows, 32, _weight=0.2 * torch.randn(rows, 32))
    given = hf.arguments(name, "none")
    given["input_ids"] = given["input_ids"] % rows
    given["input_ids"][0, :2] = rows - 1
    for model in (theirs, ours):
        model.set_input_embeddings(new)
        model.tie_weights()
    got, expected = ours(**given)[0], theirs(**given)[0]
    assert got.shape == expected.shape
    hf.assert_near(got, expected, torch.float32, "states")
    with pytest.raises(InputError, match=f"between 0 and {rows - 1} "):
        ours(torch.tensor([[rows]]))
    ours.save_pretrained(tmp_path)
    torch.testing.assert_close(type(ours).from_pretrained(tmp_path).eval()(**given)[0], got)


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


@pytest.mark.parametrize("part", ["encoder.layer.1.attention.self.query", "encoder.layer.0.output.LayerNorm"])
def test_a_pass_through_one_part_without_numbers_is_refused(part):
    """One that a file of weights did not have."""
    config = fastbert.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
    model = fastbert.BertModel(config).eval()
    ids = torch.zeros(1, 3).long()
    model(ids)
    model.get_submodule(part).to("meta")
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), pytest.raises(InputError, match="on the meta device"):
            model(ids)


@hf.every_class
def test_outputs_open_as_those_of_transformers(name):
    theirs, ours = hf.pair(name)
    labels = hf.labels(name)
    options = {"output_hidden_states": True, **hf.arguments(name), **labels}
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


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PromptEncoderConfig"])
def test_pefts_prompts_in_front_of_a_text(kind):
    peft = pytest.importorskip("peft")
    theirs, ours = hf.pair("BertForSequenceClassification")
    given, prompted = hf.arguments("BertForSequenceClassification"), []
    del given["token_type_ids"]  # PEFT has none for its prompts
    for model in (theirs, ours):
        torch.manual_seed(2)
        model = peft.get_peft_model(model, getattr(peft, kind)(task_type="SEQ_CLS", num_virtual_tokens=3)).eval()
        prompted.append(model(**given, labels=torch.tensor([0, 1, 2, 0])))
    assert "text_config" not in ours.config
    hf.assert_near(prompted[1].logits, prompted[0].logits, torch.float32, "logits")
    hf.assert_near(prompted[1].loss, prompted[0].loss, torch.float32, "loss")


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


def test_hooks_on_norms_tables_and_attention_fire():
    _, ours = hf.pair("BertForMaskedLM")
    wanted = (nn.LayerNorm, nn.Embedding, BertAttention)
    listened = [module for module in ours.modules() if isinstance(module, wanted)]
    assert len(listened) == 3 + 1 + 3 * 3 + 1
    expected = ours(**hf.inputs()).logits
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        seen = []
        handles = [getattr(module, register)(lambda module, *_, to=seen: to.append(module)) for module in listened]
        got = ours(**hf.inputs()).logits
        assert len(seen) == len(listened)
        assert set(seen) == set(listened)
        hf.assert_near(got, expected, torch.float32, "logits")
        for handle in handles:
            handle.remove()


class _RMSNorm(nn.LayerNorm):
    """Another norm with all that a LayerNorm has."""

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("make", [_RMSNorm, partial(nn.LayerNorm, bias=False)], ids=["a class of its own", "no bias"])
def test_another_norm_in_the_place_of_a_layer_norm_is_called(make, gradient):
    theirs, ours = hf.pair("BertForMaskedLM")
    for model in (theirs, ours):
        for module in list(model.modules()):
            if hasattr(module, "LayerNorm"):
                module.LayerNorm = make(32)
                nn.init.uniform_(module.LayerNorm.weight)
        model.load_state_dict(theirs.state_dict())
    with torch.set_grad_enabled(gradient):
        got, expected = ours(**hf.inputs()).logits, theirs(**hf.inputs()).logits
    hf.assert_near(got, expected, torch.float32, "logits")


def test_another_module_in_the_place_of_the_positions_is_called():
    class Reversed(nn.Embedding):
        def forward(self, ids):
            return super().forward(self.num_embeddings - 1 - ids)

    theirs, ours = hf.pair("BertModel")
    for model in (theirs, ours):
        table = model.embeddings.position_embeddings
        model.embeddings.position_embeddings = Reversed.from_pretrained(table.weight.detach())
    got, expected = ours(**hf.inputs())[0], theirs(**hf.inputs())[0]
    hf.assert_near(got, expected, torch.float32, "last_hidden_state")


def test_a_forward_put_in_place_of_a_dense_layers_is_called():
    model = hf.pair("BertModel")[1].eval()
    given = {**hf.inputs(), "attention_mask": hf.masks()["prefix"]}
    dense = model.encoder.layer[0].output.dense
    plain = dense.forward
    with torch.no_grad():
        before = model(**given).last_hidden_state
        dense.forward = lambda x: 2 * plain(x)
        assert not torch.allclose(model(**given).last_hidden_state, before, atol=1e-3)
        del dense.forward
        assert torch.equal(model(**given).last_hidden_state, before)


def test_a_forward_of_another_module_of_the_class_is_that_ones():
    """Weights that two layers share so; of a module's own forward, which accelerate leaves there, nothing is to see."""
    model = hf.pair("BertModel")[1].eval()
    one, other = (model.encoder.layer[i].output.dense for i in (0, 1))
    one.forward = other.forward
    got = model(**hf.inputs()).last_hidden_state
    del one.forward
    one.load_state_dict(other.state_dict())
    hf.assert_near(got, model(**hf.inputs()).last_hidden_state, torch.float32, "last_hidden_state")


RATES = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}


def _gradients(model, key, name):
    model.zero_grad()
    with rng.use(key):
        out = model(**hf.arguments(name), **hf.labels(name))
    loss = out.loss if "loss" in out else out.last_hidden_state.square().sum() + out.pooler_output.sum()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@hf.every_class
def test_activation_checkpointing_replays_the_same_dropout(name):
    _, ours = hf.pair(name, **RATES)
    key = rng.DropoutKey(11, 3)
    expected = _gradients(ours, key, name)
    ours.gradient_checkpointing_enable({"use_reentrant": False})
    assert ours.is_gradient_checkpointing
    assert ours.is_activation_checkpointing
    got = _gradients(ours, key, name)
    ours.gradient_checkpointing_disable()
    assert not ours.is_gradient_checkpointing
    assert not ours.is_activation_checkpointing
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


@pytest.mark.parametrize("block", [lambda: fastbert.backend("reference"), fastbert.batch_invariant])
def test_activation_checkpointing_repeats_a_layer_as_its_block_computed_it(block):
    """Though backward runs outside of it: torch refuses a repetition that keeps other tensors."""
    _, ours = hf.pair("BertModel")
    ours.gradient_checkpointing_enable()
    found = []
    # A level at which the mode's products are not those that training takes.
    with at_level("scalar") if LEVELS else nullcontext():
        for _ in range(2):
            ours.zero_grad()
            with block():
                loss = ours(**hf.inputs()).last_hidden_state.square().sum()
            loss.backward()
            found.append(ours.encoder.layer[0].output.dense.weight.grad)
            ours.gradient_checkpointing_disable()
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["ours", "patched"])
def test_a_graph_that_is_kept_is_repeated_in_each_backward_pass(kind):
    theirs, ours = hf.pair("BertModel")
    model = ours if kind == "ours" else fastbert.patch(theirs)
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    loss = model(**hf.inputs()).last_hidden_state.square().sum()
    weight = model.encoder.layer[0].output.dense.weight
    once, again = (torch.autograd.grad(loss, weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, again)


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
            out = model(**hf.arguments("BertForPreTraining"), **hf.labels("BertForPreTraining"))
        assert out.loss.dtype == torch.float32
        out.loss.backward()
    exact, _ = hf.pair("BertForPreTraining")
    truth = exact(**hf.arguments("BertForPreTraining"), **hf.labels("BertForPreTraining")).loss
    truth.backward()
    assert abs(out.loss.item() - truth.item()) < 0.1
    for (name, p), q, t in zip(ours.named_parameters(), theirs.parameters(), exact.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        if "key.bias" not in name:
            # Three times the error of transformers under autocast, and what its own rounding of the largest leaves.
            floor = float(t.grad.abs().max()) * 2**-7
            assert float((p.grad - t.grad).abs().max()) <= 3 * float((q.grad - t.grad).abs().max()) + floor, name
