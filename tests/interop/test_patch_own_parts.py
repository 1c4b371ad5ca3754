"""`fastbert.patch`: what is the caller's own in a model has its effect, or is said."""

from __future__ import annotations

import copy
import functools
import pickle

import hf_parity as hf
import pytest
import torch
import transformers
from patched import V5, arguments, assert_same, twins
from torch import nn
from torch.nn.utils import prune

import fastbert
from fastbert.errors import InputError
from fastbert.modules.said import say_once


@pytest.fixture(autouse=True)
def _everything_is_said_again():
    say_once.cache_clear()


def _assert_alike(change, mask="prefix", backward=True):
    """A patched model that has run, and transformers', to which the same is done: outputs and gradients."""
    theirs, ours = twins("BertModel", attention="sdpa")
    given, keep = arguments("BertModel", mask), hf.kept_tokens(hf.masks()[mask])
    before = ours(**given).last_hidden_state
    wanted, got = [], []
    for model, outputs in ((theirs, wanted), (ours, got)):
        torch.manual_seed(3)
        change(model)
        outputs.append(model(**given))
        if backward:
            outputs[0].last_hidden_state[keep].square().sum().backward()
        with torch.no_grad():
            outputs.append(model.eval()(**given))
    for x, y in zip(got, wanted, strict=True):
        assert_same(x, y, mask)
    assert (before - wanted[0].last_hidden_state)[keep].abs().max() > 1e-3, "the change changes nothing"
    if backward:
        hf.assert_same_gradients(ours, theirs, torch.float32)
    return ours


def _not_a_gelu(model):
    for layer in model.encoder.layer:
        layer.intermediate.intermediate_act_fn.act = torch.nn.functional.relu


def test_a_function_in_the_place_of_gelu(caplog):
    _assert_alike(_not_a_gelu)
    assert "the function of a GELUActivation has been replaced" in caplog.text
    model = twins("BertModel")[0]
    _not_a_gelu(model)
    with pytest.raises(InputError, match="activation of a layer is GELUActivation, not a GELU as it was made"):
        fastbert.patch(model)


@pytest.mark.parametrize("act", ["gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh"])
def test_the_functions_with_which_activations_are_made(act, caplog):
    theirs, ours = twins("BertModel", hidden_act=act)
    given = arguments("BertModel")
    for model in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same(model(**given), theirs(**given), "prefix")
    assert "transformers' own code" not in caplog.text


@pytest.mark.parametrize(("name", "row"), [("token_type_embeddings", 0), ("position_embeddings", 2)])
def test_a_row_of_a_table_that_is_not_trained(name, row):
    def fix(model):
        table = getattr(model.embeddings, name)
        table.padding_idx = row
        with torch.no_grad():
            table.weight.mul_(1.5)

    ours = _assert_alike(fix)
    assert not getattr(ours.embeddings, name).weight.grad[row].any()


def _twice_as_sharp(module, query, *args, **kwargs):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, 2 * query, *args, **kwargs)


def _sees_all(*args, **kwargs):
    return None


@pytest.mark.skipif(not V5, reason="transformers 4's BERT does not ask who is registered")
@pytest.mark.parametrize("name", ["sdpa", "of_mine"])
def test_attention_that_the_caller_registered(name, monkeypatch, caplog):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def register(model):
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, _twice_as_sharp)
        model.config._attn_implementation = name

    _assert_alike(register, "none")
    assert f"its attention implementation {name} is not one of transformers" in caplog.text


@pytest.mark.skipif(not V5, reason="transformers 4's BERT does not ask who is registered")
def test_attention_that_the_caller_registered_for_one_layer(monkeypatch, caplog):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def register(model):
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "of_mine", _twice_as_sharp)
        attention = model.encoder.layer[1].attention.self
        attention.config = copy.deepcopy(model.config)
        attention.config._attn_implementation = "of_mine"

    _assert_alike(register, "none")
    assert "its attention implementation of_mine is not one of transformers" in caplog.text


@pytest.mark.skipif(not V5, reason="transformers 4 makes BERT's masks otherwise")
def test_masks_that_the_caller_registered(monkeypatch):
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def register(model):
        monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sdpa", _sees_all)

    _assert_alike(register)


def _look_back_only(model):
    for layer in model.encoder.layer:
        layer.attention.self.is_causal = True


@pytest.mark.skipif(not V5, reason="transformers 4 does not ask the module")
def test_attention_that_was_made_causal():
    _assert_alike(_look_back_only, "none")


class _SeesAll(transformers.BertModel):
    def get_extended_attention_mask(self, attention_mask, *args, **kwargs):  # transformers 4
        return super().get_extended_attention_mask(torch.ones_like(attention_mask), *args, **kwargs)

    def _create_attention_masks(self, attention_mask, **kwargs):  # transformers 5
        return super()._create_attention_masks(attention_mask=None, **kwargs)


def test_a_method_of_the_callers_own_that_makes_masks(caplog):
    theirs, ours = twins("BertModel", attention="eager")
    given = arguments("BertModel")
    plain = theirs(**given)[0]
    theirs.__class__ = _SeesAll
    wanted = theirs(**given)
    with pytest.raises(InputError, match=r"cannot be patched: expected .*mask.* of transformers' BertModel, got one"):
        fastbert.patch(theirs)
    name = "_create_attention_masks" if V5 else "get_extended_attention_mask"
    setattr(ours, name, functools.partial(getattr(theirs, name)))
    assert_same(ours(**given), wanted, "prefix")
    assert f"{name} has been replaced" in caplog.text
    assert (plain - wanted[0]).abs().max() > 1e-3


def _without_the_first_head(layer):
    attention, rest = layer.attention.self, layer.attention.output
    for name in ("query", "key", "value"):
        dense = getattr(attention, name)
        dense.weight, dense.bias = nn.Parameter(dense.weight[8:].detach()), nn.Parameter(dense.bias[8:].detach())
    rest.dense.weight = nn.Parameter(rest.dense.weight[:, 8:].detach())
    attention.num_attention_heads, attention.all_head_size = 3, 24


@pytest.mark.parametrize("which", [slice(None), slice(1, 2)])
def test_heads_that_the_caller_pruned(which, caplog):
    def prune(model):
        for layer in model.encoder.layer[which]:
            _without_the_first_head(layer)

    pruned = _assert_alike(prune)
    assert "heads of a layer have been pruned" in caplog.text
    with pytest.raises(InputError, match="cannot be patched: heads of a layer have been pruned"):
        fastbert.patch(fastbert.unpatch(pruned))


def _keep_half_of_hidden(model):
    """What structural pruning (torch-pruning) leaves: hidden states of 16 numbers, heads of the size that they had."""
    for name, parameter in model.named_parameters():
        rows = slice(None) if "self" in name or "intermediate" in name or "_embeddings" in name else slice(16)
        reads_hidden = parameter.dim() == 2 and not name.endswith("output.dense.weight")
        parameter.data = parameter.data[rows, :16] if reads_hidden else parameter.data[rows]
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.normalized_shape = (16,)


@pytest.mark.parametrize("train", [False, True])
def test_hidden_states_that_the_caller_pruned(train, caplog):
    theirs, ours = (model.train(train) for model in twins("BertModel"))
    for model in (theirs, ours):
        _keep_half_of_hidden(model)
    given = arguments("BertModel")
    assert_same(ours(**given), theirs(**given), "prefix")
    assert "hidden states have been pruned: a dense layer of 32 outputs has 16 inputs" in caplog.text
    with pytest.raises(InputError, match="cannot be patched: hidden states have been pruned"):
        fastbert.patch(fastbert.unpatch(ours))


def _widen(model):
    layer = model.encoder.layer[1]
    layer.intermediate.dense, layer.output.dense = nn.Linear(32, 80), nn.Linear(80, 32)


def test_a_layer_of_another_width():
    _assert_alike(_widen)


def test_a_layer_that_the_caller_took_out():
    _assert_alike(lambda model: model.encoder.layer.__delitem__(0), backward=False)


class _Steered(nn.Module):
    """Turns the first token of every sequence around."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def forward(self, x):
        y = self.dense(x).clone()
        y[:, 0] *= -1
        return y


class _Centred(nn.Linear):
    """Takes a sequence's mean from its tokens."""

    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(1, keepdim=True)


class _Prompted(nn.Module):
    """A learned vector in the place of every sequence's first two words: prompt tuning as it is done by hand."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.prompt = nn.Parameter(torch.ones(2, 32))

    def forward(self, ids):
        return torch.cat([self.prompt.expand(len(ids), -1, -1), self.table(ids[:, 2:])], 1)


class _TwiceAsMuch(nn.Dropout):
    def forward(self, x):
        return 2 * x


class _Rectified(nn.GELU):
    def forward(self, x):
        return x.relu()


def _steer(model):
    model.encoder.layer[1].output.dense = _Steered(model.encoder.layer[1].output.dense)


def _steer_in_a_row(model):
    dense = model.encoder.layer[0].attention.output.dense
    model.encoder.layer[0].attention.output.dense = nn.Sequential(_Steered(dense), nn.Linear(32, 32))


def _centre(model):
    model.encoder.layer[2].intermediate.dense.__class__ = _Centred


def _prompt(model):
    model.set_input_embeddings(_Prompted(model.get_input_embeddings()))


def _drop_nothing(model):
    model.embeddings.dropout = _TwiceAsMuch(0.0)


def _drop_nothing_in_a_layer(model):
    model.encoder.layer[1].output.dropout = _TwiceAsMuch(0.0)


def _rectify(model):
    model.encoder.layer[1].intermediate.intermediate_act_fn = _Rectified()


OWN = (_steer, _steer_in_a_row, _centre, _prompt, _drop_nothing, _drop_nothing_in_a_layer, _rectify)


@pytest.mark.parametrize("change", OWN)
def test_a_module_of_the_callers_own_is_transformers_affair(change, caplog):
    # A hole would be a pad to a module that mixes tokens.
    changed = _assert_alike(change, "none", backward=change is not _prompt)
    assert "computed by transformers' own code" in caplog.text
    theirs = fastbert.unpatch(changed)
    if change not in (_steer, _steer_in_a_row, _centre, _prompt):
        with pytest.raises(InputError, match="cannot be patched"):
            fastbert.patch(theirs)
        return
    caplog.clear()
    say_once.cache_clear()
    given = arguments("BertModel", "none")
    wanted = theirs(**given)
    assert_same(fastbert.patch(theirs)(**given), wanted, "none")
    assert "set fastbert_tokenwise = True)" in caplog.text


class _LowRank(nn.Module):
    """LoRA as it is written by hand."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense
        self.down, self.up = nn.Linear(32, 2, bias=False), nn.Linear(2, 32, bias=False)

    def forward(self, x):
        return self.dense(x) + self.up(self.down(x))


@pytest.mark.parametrize("first", ["adapter", "patch"])
def test_an_adapter_of_the_callers_own_that_says_so_is_packed(first, only_ours):
    theirs, ours = (fastbert.unpatch(model) for model in twins("BertModel"))
    if first == "patch":
        fastbert.patch(ours)
    for model in (theirs, ours):
        torch.manual_seed(3)
        adapter = model.encoder.layer[1].attention.self.query = _LowRank(model.encoder.layer[1].attention.self.query)
        adapter.fastbert_tokenwise = True
    fastbert.patch(ours)
    given = arguments("BertModel")
    wanted = theirs(**given)
    only_ours()
    assert_same(ours(**given), wanted, "prefix")


def test_embeddings_without_dropout():
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    for model in (theirs, ours):
        model.embeddings.dropout = nn.Identity()
    assert_same(ours(**given), theirs(**given), "prefix")


def _norm_weights(model):
    for layer in model.encoder.layer:
        nn.utils.parametrizations.spectral_norm(layer.output.dense)
        nn.utils.parametrizations.weight_norm(layer.attention.self.value)


def _two_in_a_row(model):
    model.encoder.layer[1].output.dense = nn.Sequential(nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 32))


class _EveryThird(prune.BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t, default_mask):
        mask = default_mask.clone()
        mask.view(-1)[::3] = 0
        return mask


def _prune(model):
    prune.l1_unstructured(model.embeddings.word_embeddings, "weight", amount=0.4)
    for layer in model.encoder.layer:
        prune.l1_unstructured(layer.attention.self.query, "weight", amount=0.4)
        prune.ln_structured(layer.intermediate.dense, "weight", amount=0.4, n=2, dim=0)
        prune.random_unstructured(layer.intermediate.dense, "bias", amount=0.4)
        prune.l1_unstructured(layer.intermediate.dense, "weight", amount=0.1)  # a container of two methods
        prune.random_unstructured(layer.output.LayerNorm, "weight", amount=0.4)
        _EveryThird.apply(layer.output.dense, "weight")


def _norm_weights_by_hooks(model):
    for layer in model.encoder.layer:
        nn.utils.spectral_norm(layer.output.dense)
        nn.utils.weight_norm(layer.attention.self.value)


class _OfCodes(nn.Linear):
    """Like bitsandbytes' Linear4bit: its weight is a column of codes, whatever the size of the layer."""

    fastbert_tokenwise = True

    def __init__(self, dense):
        super().__init__(dense.in_features, dense.out_features)
        codes = (dense.weight.detach() * 16).round().clamp(-8, 7) + 8
        low, high = codes.flatten().to(torch.uint8).view(-1, 2).unbind(1)
        self.weight = nn.Parameter((high * 16 + low)[:, None], requires_grad=False)

    def forward(self, x):
        codes = torch.stack([self.weight % 16, self.weight // 16], 1).view(self.out_features, self.in_features)
        return nn.functional.linear(x, codes.float() / 16 - 0.5, self.bias)


def _four_bits(model):
    for layer in model.encoder.layer:
        for owner, name in ((layer.attention.self, "query"), (layer.attention.self, "value"), (layer.output, "dense")):
            setattr(owner, name, _OfCodes(getattr(owner, name)))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("change", [_norm_weights, _norm_weights_by_hooks, _prune, _two_in_a_row, _four_bits])
def test_what_computes_each_token_by_itself_is_packed(change, only_ours):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    wanted = []
    for model in (theirs, ours):
        torch.manual_seed(3)
        change(model)
    for _ in range(2):  # spectral norms are a step nearer at every pass
        wanted.append(theirs(**given))
    only_ours()
    for expected in wanted:
        assert_same(ours(**given), expected, "prefix")
    fastbert.patch(fastbert.unpatch(ours))


def test_a_hook_inside_an_adapter_is_heard():
    peft = pytest.importorskip("peft")
    seen = []
    for model in twins("BertModel"):
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], init_lora_weights=False))
        adapted(**arguments("BertModel"))
        inner = adapted.base_model.model.encoder.layer[1].attention.self.query.lora_A.default
        inner.register_forward_hook(lambda module, args, out: seen.append(args[0].shape))
        adapted(**arguments("BertModel"))
    assert seen == [(4, 11, 32)] * 2


def test_an_adapter_that_mixes_tokens_is_transformers_affair(caplog):
    peft = pytest.importorskip("peft")
    if not hasattr(peft, "LilyConfig"):
        pytest.skip("this PEFT has no Lily, whose experts are chosen by the mean of all tokens")
    theirs, ours = twins("BertModel")
    logits = []
    for model in (theirs, ours):
        torch.manual_seed(3)
        adapted = peft.get_peft_model(model, peft.LilyConfig(target_modules=["query"], r=4))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lily" in name:
                    parameter.normal_()
            logits.append(adapted(**arguments("BertModel")))
    assert_same(logits[1], logits[0], "prefix")
    assert "which may read more than the token" in caplog.text


class _Halved(torch.Tensor):
    """A weight that multiplies by code of its own, as torchao's quantised ones do: by half of itself."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function not in (nn.functional.linear, nn.functional.embedding):
            return super().__torch_function__(function, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            plain = (x.as_subclass(torch.Tensor) / 2 if isinstance(x, cls) else x for x in args)
            return function(*plain, **(kwargs or {}))


def _halve(module):
    module.weight = nn.Parameter(module.weight.detach().as_subclass(_Halved), requires_grad=False)


_HALVED = ("encoder.layer.1.output.dense", "encoder.layer.0.attention.self.key", "embeddings.word_embeddings")


@pytest.mark.parametrize("place", [*_HALVED, "embeddings.position_embeddings"])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_weight_that_multiplies_by_code_of_its_own(place, gradients):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    with torch.set_grad_enabled(gradients):
        plain = theirs(**given)[0]
        for model in (theirs, ours):
            _halve(model.requires_grad_(gradients).get_submodule(place))
        wanted = theirs(**given)
        assert_same(ours(**given), wanted, "prefix")
    assert (plain - wanted[0]).abs().max() > 1e-3


def test_a_weight_of_torchs_encoder_that_multiplies_by_code_of_its_own():
    torch.manual_seed(0)
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
    ours, x = fastbert.patch(copy.deepcopy(theirs)), torch.randn(2, 3, 8)
    plain = theirs(x)
    for model in (theirs, ours):
        _halve(model.layers[0].linear1)
    hf.assert_near(ours(x), theirs(x), torch.float32, "states")
    assert (plain - theirs(x)).abs().max() > 1e-3


def _count_from_two(model):
    model.embeddings.position_ids += 2


def _count_backwards(model):
    model.embeddings.position_ids = model.embeddings.position_ids.flip(1)


def _are_second_sentences(model):
    model.embeddings.token_type_ids = torch.ones_like(model.embeddings.token_type_ids)


@pytest.mark.parametrize("change", [_count_from_two, _count_backwards, _are_second_sentences])
def test_ids_that_stand_for_those_that_are_not_given(change):
    theirs, ours = twins("BertModel")
    given = {key: x for key, x in arguments("BertModel").items() if key != "token_type_ids"}
    plain = ours(**given)[0]
    for model in (theirs, ours):
        change(model)
    wanted = theirs(**given)
    assert_same(ours(**given), wanted, "prefix")
    assert (plain - wanted[0])[hf.masks()["prefix"].bool()].abs().max() > 1e-3


@pytest.mark.parametrize("first", ["adapter", "patch"])
def test_an_adapter_in_the_place_of_a_norm_is_transformers_affair(first, caplog):
    peft = pytest.importorskip("peft")
    if not hasattr(peft, "LNTuningConfig"):
        pytest.skip("this peft has no adapters of norms")
    theirs, ours = twins("BertModel")

    def adapted(model):
        return peft.get_peft_model(model, peft.LNTuningConfig(target_modules=["LayerNorm"]))

    given = arguments("BertModel", labels=False)
    with torch.no_grad():
        expected = theirs(**given).last_hidden_state
        if first == "patch":
            ours = adapted(ours)
        else:
            ours = fastbert.patch(adapted(fastbert.interop.patch.unpatch(ours)))
        got = ours(**given).last_hidden_state
    assert "LNTuningLayer" in caplog.text
    assert_same({"x": got}, {"x": expected}, "prefix")


@pytest.mark.parametrize("place", ["embeddings.LayerNorm", "encoder.layer.1.output.LayerNorm"])
@pytest.mark.parametrize("which", ["weight", "bias"])
def test_a_norm_that_loses_its_weight_or_bias_is_transformers_affair(place, which, caplog):
    _assert_alike(lambda model: setattr(model.get_submodule(place), which, None), backward=False)
    assert "a LayerNorm has lost its weight or bias" in caplog.text


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("gradients", [True, False])
def test_sparse_weights_are_packed(gradients, only_ours):
    theirs, ours = twins("BertModel")
    for model in (theirs, ours):
        dense = model.encoder.layer[1].intermediate.dense
        weight = dense.weight.detach().where(dense.weight > 0, 0).to_sparse_csr()
        dense.weight = nn.Parameter(weight, requires_grad=False)
    given = arguments("BertModel")
    with torch.set_grad_enabled(gradients):
        wanted = theirs(**given)
        only_ours()
        assert_same(ours(**given), wanted, "prefix")


def _doubling(forward):
    @functools.wraps(forward)
    def doubled(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        if isinstance(out, torch.Tensor):
            return 2 * out
        if isinstance(out, tuple):
            return 2 * out[0], *out[1:]
        return type(out)(**{**out, "last_hidden_state": 2 * out[0]})

    return doubled


_CLASSES = ("embeddings", "encoder.layer.0.attention.self", "encoder.layer.0.intermediate", "encoder.layer.0.output")


@pytest.mark.parametrize("place", ["", *_CLASSES, "encoder.layer.0.output.LayerNorm", "encoder.layer.0.output.dense"])
def test_a_forward_that_a_class_was_given_counts_while_it_is_there(place, monkeypatch, caplog, only_ours):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    with torch.no_grad():
        plain = ours(**given)
        cls = type(theirs.get_submodule(place))
        with monkeypatch.context() as changed:
            changed.setattr(cls, "forward", _doubling(cls.forward))
            wanted = theirs(**given)
            assert_same(ours(**given), wanted, "prefix")
        assert (plain[0] - wanted[0])[hf.masks()["prefix"].bool()].abs().max() > 1e-3
        assert ("its class has been given another forward" if not place else "forward has been replaced") in caplog.text
        only_ours()
        assert_same(ours(**given), plain, "prefix")


def test_a_forward_of_poolers_that_reads_every_token(monkeypatch, only_ours):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel", "none")
    with torch.no_grad():
        plain = ours(**given).pooler_output
        monkeypatch.setattr(type(ours.pooler), "forward", lambda self, hidden: self.dense(hidden.mean(1)).tanh())
        wanted = theirs(**given)
        only_ours()
        assert_same(ours(**given), wanted, "none")
    assert (plain - wanted.pooler_output).abs().max() > 1e-3


def test_a_forward_that_a_class_was_given_before_the_patch(monkeypatch):
    theirs, _ = hf.pair("BertModel")
    ours, given = copy.deepcopy(theirs), arguments("BertModel")
    part = type(ours.encoder.layer[0].attention.self)
    with monkeypatch.context() as changed:
        changed.setattr(part, "forward", _doubling(part.forward))
        assert_same(fastbert.patch(ours)(**given), theirs(**given), "prefix")
    monkeypatch.setattr(transformers.BertModel, "forward", _doubling(transformers.BertModel.forward))
    with pytest.raises(InputError, match="expected the forward of transformers' BertModel, got one of its own"):
        fastbert.patch(theirs)
