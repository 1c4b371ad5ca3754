"""`fastbert.patch`: models that wrap an encoder, other families, and what is refused."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import weakref

import hf_parity as hf
import pytest
import torch
import transformers
from patched import V5, arguments, assert_same, twins
from torch import nn
from transformers.models.bert.modeling_bert import BertEncoder

import fastbert
from fastbert.errors import InputError
from fastbert.interop.patch import is_patched


class _Someones(nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.towers = nn.ModuleList([bert, copy.deepcopy(bert)])

    def forward(self, **given):
        return torch.stack([tower(**given).last_hidden_state for tower in self.towers])


def test_every_encoder_inside_a_module_is_patched(only_ours):
    theirs, _ = hf.pair("BertModel")
    outer = _Someones(theirs)
    given = arguments("BertModel")
    with torch.no_grad():
        wanted = outer(**given)
        assert fastbert.patch(outer) is outer
        only_ours()
        keep = hf.masks()["prefix"].bool()
        hf.assert_near(outer(**given)[:, keep], wanted[:, keep], torch.float32, "wrapped")
    fastbert.unpatch(outer)
    assert [type(tower) for tower in outer.towers] == [transformers.BertModel] * 2


_KIN = {
    "data2vec.data2vec_text": ("Data2VecTextModel", ("Data2VecTextSelfAttention",), {"pad_token_id": 1}),
    "ernie": ("ErnieModel", ("ErnieSelfAttention",), {"use_task_id": True}),
    "rembert": ("RemBertModel", ("RemBertSelfAttention",), {"input_embedding_size": 16}),
    "splinter": ("SplinterModel", ("SplinterSelfAttention",), {}),
    "layoutlm": ("LayoutLMModel", ("LayoutLMSelfAttention",), {"max_2d_position_embeddings": 20}),
    "markuplm": ("MarkupLMModel", ("MarkupLMSelfAttention",), {"max_depth": 3}),
    "chinese_clip": ("ChineseCLIPTextModel", ("ChineseCLIPTextSelfAttention",), {}),
    "clap": ("ClapTextModel", ("ClapTextSelfAttention",), {"pad_token_id": 1}),
    "roberta": ("RobertaModel", ("RobertaSelfAttention",), {"pad_token_id": 1}),
    "xlm_roberta": ("XLMRobertaModel", ("XLMRobertaSelfAttention",), {"pad_token_id": 1}),
    "camembert": ("CamembertModel", ("CamembertSelfAttention",), {"pad_token_id": 1}),
    "albert": ("AlbertModel", ("AlbertAttention",), {"embedding_size": 16}),
    "mpnet": ("MPNetModel", ("MPNetSelfAttention",), {"pad_token_id": 1}),
    "electra": ("ElectraModel", ("ElectraSelfAttention",), {"embedding_size": 16}),
    "distilbert": (
        "DistilBertModel",
        ("DistilBertSelfAttention" if V5 else "MultiHeadSelfAttention",),
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "dropout": 0.0, "attention_dropout": 0.0},
    ),
}


_SOFTMAX_IN_FLOAT32 = ("splinter", "layoutlm", "markuplm", "chinese_clip", "clap")


@pytest.mark.parametrize("room", _KIN)
@pytest.mark.parametrize("mask", ["none", "prefix", "left"])
def test_kin_of_bert_outputs_and_gradients(room, mask, only_ours):
    name, attention, changes = _KIN[room]
    sizes = hf.hf_config().to_dict()
    config = getattr(transformers, name).config_class
    fields = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    rest = ("max_position_embeddings", "initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob")
    config = config(
        **{key: sizes[key] for key in (*fields, *rest) if room != "distilbert" or key in rest[:2]}, **changes
    )
    config._attn_implementation = "eager"
    # Of some families it has its softmax in float32, whatever the dtype.
    dtype, tolerance = (torch.float32, 1e-4) if room in _SOFTMAX_IN_FLOAT32 else (torch.float64, 1e-10)
    if room == "distilbert":
        config.vocab_size = hf.VOCAB
    torch.manual_seed(1)
    theirs = getattr(transformers, name)(config).to(dtype).train()
    ours = fastbert.patch(copy.deepcopy(theirs))
    keep = hf.kept_tokens(hf.masks()[mask])
    ids = hf.inputs()["input_ids"].clamp(min=2).masked_fill(~keep, 1)
    given = {"input_ids": ids, "attention_mask": hf.masks()[mask], "output_hidden_states": True}
    weights = torch.randn(*ids.shape, 32, dtype=dtype)

    def backward(out):
        """Through what a hook makes of the gradient of the last state, of which the pooler's is a part."""
        out[0].retain_grad()
        out[0].register_hook(lambda grad: grad * 0.5)
        pooled = getattr(out, "pooler_output", None)
        ((out[0] * weights)[keep].sum() + (0 if pooled is None else pooled.square().sum())).backward()

    wanted = theirs(**given)
    backward(wanted)
    for name in attention:
        only_ours(room, (name,))
    got = ours(**given)
    backward(got)
    assert type(got) is type(wanted)
    assert float((got[0].grad - wanted[0].grad)[keep].abs().max()) <= tolerance * float(wanted[0].grad.abs().max())
    assert_same(got, wanted, mask, dtype)
    for (key, x), y in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if y.grad is None or not key.endswith(("key.bias", "k_lin.bias")):
            assert (x.grad is None) == (y.grad is None), key
            if y.grad is not None:
                assert float((x.grad - y.grad).abs().max()) <= tolerance * max(1.0, float(y.grad.abs().max())), key


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        *((kind, "") for kind in ("Bert", "Roberta", "Electra", "Albert", "MPNet", "DistilBert")),
        *((kind, "encoder") for kind in ("Bert", "Roberta", "Electra")),
    ],
)
def test_nothing_keeps_a_patched_module_alive(kind, part):
    """A server that reads one model after the other would run out of memory."""
    config = getattr(transformers, f"{kind}Config")(vocab_size=60)
    for name, size in {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}.items():
        setattr(config, name, size)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    fastbert.patch(model.get_submodule(part))
    with torch.no_grad():
        model(torch.randint(5, 60, (2, 7)))
    found = weakref.ref(model.get_submodule(part))
    del model
    gc.collect()
    assert found() is None


_OWN_INPUTS = {
    "ErnieModel": {"task_type_ids": (11,)},
    "LayoutLMModel": {"bbox": (11, 4)},
    "MarkupLMModel": {"xpath_tags_seq": (11, 3), "xpath_subs_seq": (11, 3)},
}


@pytest.mark.parametrize("name", _OWN_INPUTS)
def test_what_other_families_embed_beside_words(name, only_ours):
    config = getattr(transformers, name).config_class
    sizes = {key: getattr(hf.hf_config(), key) for key in ("vocab_size", "hidden_size", "num_attention_heads")}
    own = {"use_task_id": True, "max_2d_position_embeddings": 20, "max_depth": 3}
    theirs = getattr(transformers, name)(
        config(**sizes, **own, num_hidden_layers=2, intermediate_size=64, initializer_range=0.2)
    ).eval()
    ours = fastbert.patch(copy.deepcopy(theirs))
    given = arguments("BertModel")
    numbers = torch.Generator().manual_seed(3)
    # In ascending order, as the two corners of a box are.
    more = {
        key: torch.randint(3, (hf.BATCH, *shape), generator=numbers).sort(-1).values
        for key, shape in _OWN_INPUTS[name].items()
    }
    with torch.no_grad():
        wanted, without = theirs(**given, **more), theirs(**given)
        only_ours(name.removesuffix("Model").lower(), (name.removesuffix("Model") + "SelfAttention",))
        got = ours(**given, **more)
    assert_same(got, wanted, "prefix")
    keep = hf.kept_tokens(hf.masks()["prefix"])
    assert float((wanted.last_hidden_state - without.last_hidden_state)[keep].abs().max()) > 0.1


def _small(room: str, **changes) -> nn.Module:
    name, _, own = _KIN[room]
    sizes = {key: getattr(hf.hf_config(), key) for key in ("vocab_size", "hidden_size", "num_attention_heads")}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 64, "hidden_dropout_prob": 0.0}
    config = getattr(transformers, name).config_class(**sizes, **own, **changes)
    config._attn_implementation = "eager"
    torch.manual_seed(2)
    return getattr(transformers, name)(config)


@pytest.mark.parametrize("return_dict", [True, False])
@pytest.mark.parametrize("room", ["rembert", "ernie"])
def test_what_is_there_of_attention_that_an_encoder_has_not(room, return_dict, only_ours):
    """Version 5 answers for cross-attention where its code was written anew, which RemBERT's was not."""
    theirs = _small(room).eval()
    ours = fastbert.patch(copy.deepcopy(theirs))
    given = arguments("BertModel") | {"output_attentions": True, "return_dict": return_dict}
    with torch.no_grad():
        wanted, got = theirs(**given), ours(**given)
    if return_dict:
        assert list(got.keys()) == list(wanted.keys())
    else:
        assert [type(x) for x in got] == [type(x) for x in wanted]


@pytest.mark.parametrize("room", [*_SOFTMAX_IN_FLOAT32, "rembert"])
@pytest.mark.parametrize("what", ["number", "dropout", "mode"])
def test_attentions_probabilities_are_dropped_where_other_families_drop_them(room, what):
    """Most keep a number of their own beside a dropout that they do not call; RemBERT has the dropout alone, and
    calls it."""
    if (room, what) == ("rembert", "number"):
        pytest.skip("it has none")
    theirs = _small(room, attention_probs_dropout_prob=0.3).train()
    for layer in theirs.encoder.layer:
        attention = layer.attention.self
        if what == "number":
            attention.attention_dropout = 0.0
        elif what == "dropout":
            attention.dropout.p = 0.0
        else:
            attention.dropout.eval()
    models = theirs, fastbert.patch(copy.deepcopy(theirs))
    given = {"input_ids": hf.inputs()["input_ids"].clamp(min=2), "attention_mask": hf.masks()["prefix"]}
    repeats = [torch.equal(*(model(**given)[0] for _ in range(2))) for model in models]
    assert repeats == [(what == "number") != (room == "rembert")] * 2


def test_sentence_transformers(minilm, only_ours):
    library = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    model = library.SentenceTransformer(str(minilm), device="cpu")
    texts = ["A man eats.", "The quick brown fox jumps over the lazy dog, twice.", "", "Berlin"]
    wanted = model.encode(texts)
    assert fastbert.patch(model) is model
    only_ours()
    got = model.encode(texts)
    hf.assert_near(torch.tensor(got), torch.tensor(wanted), torch.float32, "vectors")
    assert ((got * wanted).sum(1) / (got**2).sum(1) ** 0.5 / (wanted**2).sum(1) ** 0.5).min() >= 0.9999


def _decoder(**changes):
    return transformers.BertModel(hf.hf_config(is_decoder=True, **changes))


def _with_relative_positions():
    config = hf.hf_config()
    config.position_embedding_type = "relative_key"
    return transformers.BertModel(config)


class Embedding(nn.Embedding):
    """Named as torch's, as PEFT's adapters are."""


def _with_part(name, part):
    model = transformers.BertModel(hf.hf_config())
    setattr(model.embeddings, name, part)
    return model


def _with_embeddings(module):
    model = transformers.BertModel(hf.hf_config())
    model.embeddings = module
    return model


def _wrapped(model):
    """As accelerate's hooks do, and its `prepare` for mixed precision."""
    model.forward = functools.partial(model.forward)
    return model


_TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}


class _Overridden(transformers.BertModel):
    def forward(self, input_ids):
        return self.encoder(self.embeddings(input_ids))[0]


class _NotAsItsBase(_Overridden):
    def forward(self, input_ids):
        return super().forward(input_ids)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Linear(2, 2), "Linear holds none"),
        (lambda: "a model", "got str"),
        (_decoder, "is_decoder"),
        (lambda: _decoder(add_cross_attention=True), "add_cross_attention"),
        (_with_relative_positions, "relative_key"),
        (lambda: transformers.BertModel(hf.hf_config(hidden_act="relu")), "hidden_act"),
        (lambda: _wrapped(transformers.BertModel(hf.hf_config())), "its forward has been replaced"),
        (lambda: _wrapped(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 1)), "its forward has been replaced"),
        (lambda: _Overridden(hf.hf_config()), "does not call super().forward; fastbert.patch(model.encoder)"),
        (lambda: _NotAsItsBase(hf.hf_config()), "_NotAsItsBase cannot be patched: expected the forward of"),
        (lambda: transformers.DebertaModel(transformers.DebertaConfig(**_TINY)), "holds none"),
        (
            lambda: BertEncoder(hf.hf_config(hidden_act="relu", attn_implementation="eager")),
            "BertEncoder cannot be patched: hidden_act",
        ),
        (
            lambda: BertEncoder(hf.hf_config(is_decoder=True, attn_implementation="eager")),
            "BertEncoder cannot be patched: is_decoder",
        ),
        (lambda: _with_embeddings(nn.Embedding(61, 32)), "; fastbert.patch(model.encoder) computes its layers alone"),
        (lambda: _with_part("position_embeddings", Embedding(24, 32)), f"is {__name__}.Embedding, not torch's"),
        (lambda: _with_part("LayerNorm", nn.LayerNorm(32, bias=False)), "not torch's LayerNorm with weight and bias"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(make, said):
    model = make()
    with pytest.raises(InputError) as refused:
        fastbert.patch(model)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    if isinstance(model, nn.Module):
        assert not any(is_patched(module) for module in model.modules())


@pytest.mark.parametrize("function", [fastbert.patch, fastbert.unpatch])
def test_what_is_no_module_is_refused(function):
    with pytest.raises(InputError, match=r"^(un)?patch takes a torch module.*, got NoneType$"):
        function(None)


def test_one_encoder_that_is_refused_leaves_the_others_alone():
    pair = nn.ModuleList([transformers.BertModel(hf.hf_config()), _decoder()])
    with pytest.raises(InputError, match="is_decoder"):
        fastbert.patch(pair)
    assert type(pair[0]) is transformers.BertModel
    with pytest.raises(InputError, match="pads must be one of"):
        fastbert.patch(pair[0], pads="some")


def test_a_forward_that_is_wrapped_after_the_patch_is_ours():
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    _wrapped(ours)
    fastbert.patch(ours, pads="computed")
    with torch.no_grad():
        hf.assert_near(ours(**given)[0], theirs(**given)[0], torch.float32, "pads too")


def test_a_subclass_that_keeps_the_forward_is_patched():
    class Mine(transformers.BertModel):
        def extra(self):
            return 7

    torch.manual_seed(0)
    model = fastbert.patch(Mine(hf.hf_config()))
    assert is_patched(model)
    assert model.extra() == 7
    assert isinstance(model, Mine)
    assert type(fastbert.unpatch(model)) is Mine


class _First(transformers.BertModel):
    """As DPR's encoder of questions: its forward is one of its own that calls that of BertModel."""

    def __init__(self, config):
        super().__init__(config, add_pooling_layer=False)
        self.project = nn.Linear(config.hidden_size, 5)

    def forward(self, tokens, keep=None, *, factor=1.0):
        states = super().forward(tokens, attention_mask=keep).last_hidden_state
        return factor * self.project(states[:, 0])


class _Doubled(_First):
    def train(self, mode=True):
        self.was_training = mode
        return super().train(mode)

    @torch.enable_grad()
    def forward(self, *args, **kwargs):
        return 2 * super(_Doubled, self).forward(*args, **kwargs)  # noqa: UP008 - as older code has it


class _Roberta(transformers.RobertaModel):
    def forward(self, tokens, keep=None, *, factor=1.0):
        return factor * super().forward(tokens, attention_mask=keep).pooler_output


@pytest.mark.parametrize("cls", [_First, _Doubled, _Roberta])
def test_a_subclass_whose_forward_calls_that_of_its_base_is_patched(cls, only_ours):
    torch.manual_seed(0)
    theirs = cls(hf.hf_config() if cls is not _Roberta else transformers.RobertaConfig(**_TINY)).eval()
    ours = fastbert.patch(copy.deepcopy(theirs))
    assert is_patched(ours)
    assert isinstance(ours, cls)
    assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)
    given = arguments("BertModel")
    tokens, keep = given["input_ids"], given["attention_mask"]
    want, got = theirs(tokens, keep, factor=3.0), ours(tokens, keep, factor=3.0)
    hf.assert_near(got, want, torch.float32, "output")
    want.mean().backward()
    got.mean().backward()
    for (name, p), q in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            hf.assert_near(q.grad, p.grad, torch.float32, name)
    with torch.no_grad():
        for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), fastbert.patch(ours)):
            assert is_patched(twin)
            hf.assert_near(twin(tokens, keep), ours(tokens, keep), torch.float32, "a copy")
    ours.train()
    assert ours.training
    assert getattr(ours, "was_training", True)
    assert type(fastbert.unpatch(ours)) is cls
    assert type(ours).forward is cls.forward


def test_a_forward_that_is_replaced_in_a_subclass_counts(monkeypatch, only_ours):
    torch.manual_seed(0)
    theirs = _First(hf.hf_config()).eval()
    ours = fastbert.patch(copy.deepcopy(theirs))
    given = arguments("BertModel")["input_ids"]
    monkeypatch.setattr(_First, "forward", lambda self, tokens: 7 * self.embeddings(tokens).sum())
    assert torch.equal(ours(given), theirs(given))


def test_the_int8_weights_of_a_subclass_with_a_forward_of_its_own():
    torch.manual_seed(0)
    model = _First(hf.hf_config()).eval()
    given = arguments("BertModel")
    with torch.no_grad():
        want = model(given["input_ids"], given["attention_mask"])
        got = fastbert.quantize(fastbert.patch(model))(given["input_ids"], given["attention_mask"])
    assert 0 < (got - want).abs().max() < 0.05
