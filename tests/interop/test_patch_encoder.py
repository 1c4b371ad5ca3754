"""`fastbert.patch` of transformers' encoder alone: in a module of the caller's, or in a model that is left as it is."""

from __future__ import annotations

import copy
import importlib
import pickle

import hf_parity as hf
import pytest
import torch
from patched import V5, arguments
from torch import nn

import fastbert
from fastbert.errors import BackendError, InputError
from fastbert.interop.patch import is_patched

ENCODERS = {
    "bert": "BertEncoder",
    "roberta": "RobertaEncoder",
    "xlm_roberta": "XLMRobertaEncoder",
    "camembert": "CamembertEncoder",
    "electra": "ElectraEncoder",
}


def _encoder(room="bert", dtype=torch.float32, **changes):
    """An encoder with large random weights and the patched copy of it."""
    torch.manual_seed(1)
    module = importlib.import_module(f"transformers.models.{room}.modeling_{room}")
    config = hf.hf_config(**changes)
    try:
        theirs = getattr(module, ENCODERS[room])(config).to(dtype).eval()
    except KeyError as error:
        pytest.skip(f"this version of transformers has no attention {error} there")
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1 if parameter.dim() == 1 else 0))
    return theirs, fastbert.patch(copy.deepcopy(theirs))


def _states(dtype=torch.float32, seed=0):
    return torch.randn(hf.BATCH, hf.LENGTH, 32, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _ready(kind, dtype, mask="prefix"):
    """A mask as such modules make it for their encoder."""
    keep = hf.masks()[mask][:, None, None] != 0
    if kind == "bool":
        return keep
    if kind == "tenthousand":
        return (1 - keep.to(dtype)) * -10000
    least = torch.zeros_like(keep, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)
    return least if kind == "least" else least.expand(-1, 1, hf.LENGTH, -1)


@pytest.mark.parametrize("room", ENCODERS)
@pytest.mark.parametrize(
    ("attention", "kind"),
    [("sdpa", "bool"), ("sdpa", "square"), ("eager", "least"), ("eager", "tenthousand"), ("eager", "none")],
)
def test_states_and_gradients(room, attention, kind, only_ours):
    theirs, ours = _encoder(room, torch.float64, attn_implementation=attention)
    mask = None if kind == "none" else _ready(kind, torch.float64)
    keep = hf.kept_tokens(None if kind == "none" else hf.masks()["prefix"])
    weights = _states(torch.float64, 3)[keep]
    found = []
    for model in (theirs, ours):
        if model is ours:
            only_ours(room, (ENCODERS[room].removesuffix("Encoder") + "SelfAttention",))
        x = _states(torch.float64).requires_grad_()
        output = model(x, mask)
        assert list(output.keys()) == ["last_hidden_state"]
        (output[0][keep] * weights).sum().backward()
        found.append((output[0], x.grad))
    (wanted, of_input), (got, grad) = found
    hf.assert_near(got[keep], wanted[keep], torch.float64, "states")
    assert not got[~keep].any()
    hf.assert_near_gradient(grad[keep], of_input[keep], torch.float64, "hidden_states", of_input)
    for (name, p), truth in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if not name.endswith("self.key.bias"):  # 0 by arithmetic
            hf.assert_near_gradient(p.grad, truth.grad, torch.float64, name, truth.grad)


def test_pads_are_computed_if_they_are_read(only_ours):
    theirs, ours = _encoder(attn_implementation="sdpa")
    fastbert.patch(ours, pads="computed")
    mask = _ready("bool", torch.float32)
    with torch.no_grad():
        wanted = theirs(_states(), mask)[0]
        only_ours()
        hf.assert_near(ours(_states(), mask)[0], wanted, torch.float32, "pads too")


def test_a_bias_that_each_head_adds_to_its_scores(only_ours):
    theirs, ours = _encoder(attn_implementation="eager")
    bias = torch.randn(1, 4, hf.LENGTH, hf.LENGTH, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = theirs(_states(), bias)[0]
        only_ours()
        hf.assert_near(ours(_states(), bias)[0], wanted, torch.float32, "states")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: {"attention_mask": _ready("bool", torch.float32)}, "eager attention adds to its scores"),
        (lambda: {"attention_mask": torch.zeros(hf.LENGTH, hf.LENGTH)}, "torch.float32 with 2 dimensions"),
        (lambda: {"attention_mask": torch.zeros(hf.BATCH, 1, 1, 1)}, "torch.float32 with 4 dimensions"),
    ],
)
def test_what_transformers_reads_otherwise_is_its_own_affair(given, said):
    theirs, ours = _encoder(attn_implementation="eager")
    with fastbert.batch_invariant(), pytest.raises(BackendError, match=said):
        ours(_states(), **given())
    with torch.no_grad():
        try:
            wanted = theirs(_states(), **given())[0]
        except IndexError:
            pytest.skip("this version of transformers takes four dimensions alone")
        assert torch.equal(ours(_states(), **given())[0], wanted)


def test_a_configuration_that_names_no_attention_has_the_eager_one():
    theirs, ours = _encoder()
    given = _states(), _ready("bool", torch.float32)
    with torch.no_grad():
        try:
            wanted = theirs(*given)[0]
        except KeyError:
            pytest.skip("this version of transformers wants a name")
        assert torch.equal(ours(*given)[0], wanted)


@pytest.mark.parametrize("asked", ["output_hidden_states", "output_attentions"])
@pytest.mark.parametrize("return_dict", [True, False])
def test_what_is_asked_for_is_what_transformers_gives(asked, return_dict):
    theirs, ours = _encoder(attn_implementation="eager")
    with torch.no_grad():
        wanted, got = (model(_states(), **{asked: True, "return_dict": return_dict}) for model in (theirs, ours))
    assert type(got) is type(wanted)
    wanted, got = (tuple(x.values()) if isinstance(x, dict) else x for x in (wanted, got))
    assert [type(x) for x in got] == [type(x) for x in wanted]
    for x, y in zip(got, wanted, strict=True):
        for one, other in zip(x, y, strict=True) if isinstance(x, tuple) else [(x, y)]:
            hf.assert_near(one, other, torch.float32, asked)


def test_states_of_another_width_raise_what_transformers_raises_with_our_sentence():
    theirs, ours = _encoder(attn_implementation="eager")
    with pytest.raises(RuntimeError):
        theirs(_states()[..., :31])
    with pytest.raises(RuntimeError, match=r"^hidden_states must be \(B, S, 32\), got \(4, 11, 31\)$") as raised:
        ours(_states()[..., :31])
    assert isinstance(raised.value, InputError)


class _Noisy(nn.Module):
    """Embeddings of the caller's around those of a model."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs) * 1.5


def test_in_a_model_with_embeddings_of_its_own(passes):
    theirs, _ = hf.pair("BertModel", attention="sdpa")
    theirs.embeddings = _Noisy(theirs.embeddings)
    ours = copy.deepcopy(theirs)
    fastbert.patch(ours.encoder)
    given, keep = arguments("BertModel"), hf.kept_tokens(hf.masks()["prefix"])
    with torch.no_grad():
        hf.assert_near(ours(**given)[0][keep], theirs(**given)[0][keep], torch.float32, "states")
        assert len(passes) == 1
        wanted, got = (model(**given, output_hidden_states=True).hidden_states for model in (theirs, ours))
    assert len(got) == len(wanted) == 4
    for x, y in zip(got, wanted, strict=True):
        hf.assert_near(x[keep], y[keep], torch.float32, "hidden states")
    assert len(passes) == (1 if V5 else 2)  # version 5 collects what its own layers return


def test_patched_before_the_model_around_it(passes):
    theirs, _ = hf.pair("BertModel")
    ours = copy.deepcopy(theirs)
    fastbert.patch(ours.encoder)
    fastbert.patch(ours)
    given, keep = arguments("BertModel"), hf.kept_tokens(hf.masks()["prefix"])
    with torch.no_grad():
        hf.assert_near(ours(**given)[0][keep], theirs(**given)[0][keep], torch.float32, "states")
    assert [made.model for made in passes] == [ours]
    fastbert.unpatch(ours)
    assert type(ours.encoder) is type(theirs.encoder)
    assert type(ours) is type(theirs)


def test_the_encoder_of_a_patched_model_stays_as_it_is():
    theirs, _ = hf.pair("BertModel")
    fastbert.patch(theirs)
    assert not is_patched(theirs.encoder)


class _Ranker(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.score = nn.Linear(32, 1)

    def forward(self, x, keep):
        return self.score(self.encoder(x, keep[:, None, None])[0][:, 0])


def test_in_a_module_names_copies_and_files_are_as_before(tmp_path):
    encoder, _ = _encoder(attn_implementation="sdpa")
    theirs = _Ranker(encoder)
    ours = fastbert.patch(copy.deepcopy(theirs))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    given = _states(), hf.masks()["prefix"] != 0
    with torch.no_grad():
        wanted = theirs(*given)
        for twin in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert is_patched(twin.encoder)
            hf.assert_near(twin(*given), wanted, torch.float32, "scores")
    assert type(fastbert.unpatch(ours).encoder) is type(encoder)


def test_training_drops_by_torchs_generator_and_recomputation_drops_the_same(only_ours):
    _, ours = _encoder(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    ours.train()
    only_ours()
    drawn, grads = [], []
    for seed, recompute in ((0, False), (0, True), (1, False)):
        torch.manual_seed(seed)
        ours.zero_grad()
        for module in (ours, *ours.layer):  # version 4 reads it at the encoder, version 5 at its layers
            module.gradient_checkpointing = recompute
        output = ours(_states())[0]
        output.square().sum().backward()
        drawn.append(output.detach())
        grads.append(ours.layer[0].intermediate.dense.weight.grad.clone())
    hf.assert_near(drawn[1], drawn[0], torch.float32, "states")
    hf.assert_near_gradient(grads[1], grads[0], torch.float32, "weight", grads[0])
    assert not torch.equal(drawn[0], drawn[2])


def test_int8_weights():
    theirs, ours = _encoder(attn_implementation="sdpa")
    fastbert.quantize(ours)
    with torch.no_grad():
        got, wanted = ours(_states())[0], theirs(_states())[0]
    assert 0 < (got - wanted).abs().max() < 0.2 * wanted.abs().max()
