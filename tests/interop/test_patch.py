"""`fastbert.patch`: results and training are those of transformers, and our code did the work."""

from __future__ import annotations

import contextlib
import copy

import hf_parity as hf
import pytest
import torch
import transformers
from patched import V5, arguments, assert_same, twins
from torch import nn

import fastbert
from fastbert import reference
from fastbert.errors import InputError


@hf.every_class
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_outputs_and_hidden_states_under_every_mask(name, attention, only_ours):
    theirs, ours = twins(name, attention=attention)
    truth = {}
    # A choice without a token has no defined score, and it counts in the others' softmax.
    masks = [mask for mask in hf.MASKS if name != "BertForMultipleChoice" or "empty" not in mask]
    with torch.no_grad():
        for mask in masks:
            labels = "empty" not in mask  # a row of pads only has no defined loss in a head that reads its pooled token
            truth[mask] = theirs(**arguments(name, mask, labels), output_hidden_states=True)
        only_ours()
        for mask, wanted in truth.items():
            assert_same(ours(**arguments(name, mask, "empty" not in mask), output_hidden_states=True), wanted, mask)


@hf.every_class
@pytest.mark.parametrize("mask", ["none", "prefix", "left", "holes"])
def test_gradients_of_every_parameter(name, mask, only_ours):
    theirs, ours = twins(name, torch.float64)
    given = arguments(name, mask)

    def loss(model):
        out = model(**given)
        if name == "BertModel":
            keep = hf.kept_tokens(hf.masks()[mask])
            weights = torch.randn(out[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
            return (out[0] * weights)[keep].sum() + out[1].sum()
        return out.loss

    expected = loss(theirs)
    expected.backward()
    only_ours()
    got = loss(ours)
    got.backward()
    hf.assert_near(got, expected, torch.float64, "loss")
    # A softmax over whole rows does not see a shift of all its scores.
    zero = {
        "BertForQuestionAnswering": ("qa_outputs.bias", "layer.2.output.LayerNorm.bias"),
        "BertForMultipleChoice": ("classifier.bias",),
    }
    hf.assert_same_gradients(ours, theirs, torch.float64, zero.get(name, ()))


def test_a_masked_first_column_is_computed_for_heads_that_read_it(only_ours):
    """As RoBERTa's classifier does, which has no pooler; zeros stand at the other masked tokens."""
    theirs, ours = twins("BertModel")
    mask = hf.masks()["left"]
    assert not mask[:, 0].all()
    with torch.no_grad():
        wanted = theirs(**arguments("BertModel", "left", labels=False)).last_hidden_state[:, 0]
        only_ours()
        got = ours(**arguments("BertModel", "left", labels=False)).last_hidden_state[:, 0]
    hf.assert_near(got, wanted, torch.float32, "the first column")


@pytest.mark.parametrize("name", ["BertModel", "BertForTokenClassification"])
def test_attention_probabilities(name):
    theirs, ours = twins(name)
    for mask in ("none", "prefix", "holes"):
        with torch.no_grad():
            given = arguments(name, mask, labels=False)
            got, wanted = (model(**given, output_attentions=True) for model in (ours, theirs))
            assert len(got.attentions) == 3
            for x, y in zip(got.attentions, wanted.attentions, strict=True):
                keep = hf.kept_tokens(hf.masks()[mask])
                hf.assert_near(x.transpose(1, 2)[keep], y.transpose(1, 2)[keep], torch.float32, "attentions")


@hf.every_class
def test_tuples_have_the_same_places(name):
    theirs, ours = twins(name)
    given = arguments(name)
    with torch.no_grad():
        for extra in ({}, {"output_hidden_states": True}):
            got, wanted = (model(**given, **extra, return_dict=False) for model in (ours, theirs))
            assert isinstance(got, tuple)
            assert [type(x) for x in got] == [type(x) for x in wanted]
            tensors = [(x, y) for x, y in zip(got, wanted, strict=True) if isinstance(x, torch.Tensor)]
            assert [x.shape for x, _ in tensors] == [y.shape for _, y in tensors]


@pytest.mark.parametrize("said", [{"torchscript": True}, {"return_dict": False}])
def test_the_configuration_says_whether_an_output_is_a_tuple(said):
    """transformers 4 gives one to a model that is to be traced."""
    theirs, ours = twins("BertModel", **said)
    with torch.no_grad():
        got, wanted = (model(**arguments("BertModel")) for model in (ours, theirs))
    assert type(got) is type(wanted)


@pytest.mark.parametrize("states", [False, True])
def test_places_of_attention_probabilities(states):
    # transformers 5 gives a model () for the cross-attention that it has not.
    theirs, ours = twins("BertModel")
    given = {**arguments("BertModel", "none"), "output_attentions": True, "output_hidden_states": states}
    with torch.no_grad():
        got, wanted = ours(**given), theirs(**given)
        assert list(got.keys()) == list(wanted.keys())
        got, wanted = (model(**given, return_dict=False) for model in (ours, theirs))
    assert [len(x) if isinstance(x, tuple) else x.shape for x in got] == [
        len(x) if isinstance(x, tuple) else x.shape for x in wanted
    ]


def test_what_the_configuration_asks_for_is_given():
    theirs, ours = twins("BertModel")
    for model in (theirs, ours):
        model.config.output_hidden_states = True
    given = arguments("BertModel")
    with torch.no_grad():
        got, wanted = ours(**given), theirs(**given)
    assert_same(got, wanted, "prefix")
    assert len(got.hidden_states) == 4


def test_embeddings_positions_and_four_dimensional_masks_as_input(only_ours):
    theirs, ours = twins("BertModel", attention="sdpa")
    ids = hf.inputs()["input_ids"]
    embeds = theirs.embeddings.word_embeddings(ids).detach()
    keep = hf.masks()["prefix"].bool()
    calls = [
        {"inputs_embeds": embeds, "attention_mask": hf.masks()["prefix"]},
        {"input_ids": ids, "position_ids": torch.arange(hf.LENGTH).flip(0)[None]},
        {"input_ids": ids, "attention_mask": keep},
        {"input_ids": ids, "attention_mask": keep.float()},
    ]
    if V5:
        causal = torch.ones(hf.LENGTH, hf.LENGTH, dtype=torch.bool).tril()[None, None].expand(hf.BATCH, 1, -1, -1)
        calls += [
            {"input_ids": ids, "attention_mask": keep[:, None, None].expand(-1, 1, hf.LENGTH, -1)},
            {"input_ids": ids, "attention_mask": causal},
        ]
    with torch.no_grad():
        wanted = [theirs(**call) for call in calls]
        only_ours()
        for i, (call, expected) in enumerate(zip(calls, wanted, strict=True)):
            masked = call.get("attention_mask") is not None and i != 5
            assert_same(ours(**call), expected, "prefix" if masked else "none")


@pytest.mark.skipif(not V5, reason="version 4 converts ready 4-D masks")
def test_a_ready_bool_mask_that_eager_attention_adds():
    theirs, ours = twins("BertModel", attention="eager")
    ids, keep = hf.inputs()["input_ids"], hf.masks()["prefix"].bool()
    causal = torch.ones(hf.LENGTH, hf.LENGTH, dtype=torch.bool).tril()[None, None].expand(hf.BATCH, 1, -1, -1)
    with torch.no_grad():
        for mask in (keep[:, None, None].expand(-1, 1, hf.LENGTH, -1), causal):
            assert_same(ours(ids, attention_mask=mask), theirs(ids, attention_mask=mask), "none")


def test_packed_tokens_under_the_names_of_transformers(only_ours):
    only_ours()
    _, ours = twins("BertModel")
    lengths = hf.masks()["prefix"].sum(1)
    rows = [ids[:n] for ids, n in zip(hf.inputs()["input_ids"], lengths, strict=True)]
    bounds = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    with torch.no_grad():
        padded = ours(input_ids=hf.inputs()["input_ids"], attention_mask=hf.masks()["prefix"]).last_hidden_state
        out = ours(
            input_ids=torch.cat(rows)[None],
            position_ids=torch.cat([torch.arange(n) for n in lengths])[None],
            cu_seq_lens_q=bounds,
            cu_seq_lens_k=bounds,
            max_length_q=11,
            max_length_k=11,
        )
    assert out.last_hidden_state.shape == (1, int(lengths.sum()), 32)
    kept = padded[hf.masks()["prefix"].bool()]
    hf.assert_near(out.last_hidden_state[0], kept, torch.float32, "packed")


@pytest.mark.skipif(not V5, reason="heads of transformers 4 take no bounds of sequences")
@pytest.mark.parametrize("seq_idx", [False, True])
def test_sequences_that_transformers_collator_lays_end_to_end(seq_idx, only_ours):
    theirs, ours = twins("BertForMaskedLM")
    lengths = hf.masks()["prefix"].sum(1)
    rows = [ids[:n].tolist() for ids, n in zip(hf.inputs()["input_ids"], lengths, strict=True)]
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=seq_idx)
    batch = collate([{"input_ids": row, "labels": row} for row in rows])
    with torch.no_grad():
        # The collator has no label for the first token of a sequence.
        logits = torch.cat([theirs(torch.tensor([row])).logits[0, 1:] for row in rows])
        wanted = torch.nn.functional.cross_entropy(logits, torch.tensor([x for row in rows for x in row[1:]]))
        only_ours()
        hf.assert_near(ours(**batch).loss, wanted, torch.float32, "loss")


def test_masked_tokens_are_zero_unless_they_are_asked_for():
    theirs, _ = hf.pair("BertModel")
    given = arguments("BertModel")
    pads = ~hf.masks()["prefix"].bool()
    with torch.no_grad():
        wanted = theirs(**given)
        assert not fastbert.patch(copy.deepcopy(theirs))(**given).last_hidden_state[pads].any()
        computed = fastbert.patch(copy.deepcopy(theirs), pads="computed")(**given)
    hf.assert_near(computed.last_hidden_state, wanted.last_hidden_state, torch.float32, "pads")


def test_a_mask_of_three_dimensions_is_named(caplog):
    """Of a query and a key each, as span-marker's. Version 4 computes it, version 5 does not."""
    model = fastbert.patch(hf.pair("BertModel")[0])
    ids = hf.inputs()["input_ids"]
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        model(ids, attention_mask=torch.ones(*ids.shape, ids.shape[1], dtype=torch.bool))
    assert "an attention mask of torch.bool with 3 dimensions, expected one of (batch, tokens)" in caplog.text


def test_pads_that_are_computed_take_no_matrix_of_scores(monkeypatch):
    """With one a reader of answers took 1.6 times as long as transformers by SDPA, for windows of 384 tokens."""
    theirs, _ = hf.pair("BertForQuestionAnswering")
    ours, given = fastbert.patch(copy.deepcopy(theirs)), arguments("BertForQuestionAnswering")
    wanted = theirs(**given).loss
    monkeypatch.setattr(reference, "attention_padded", None)
    hf.assert_near(ours(**given).loss, wanted, torch.float32, "loss")


@pytest.mark.skipif(not V5, reason="version 4 converts ready 4-D masks")
@pytest.mark.parametrize("name", ["BertModel", "BertForQuestionAnswering"])
def test_masked_tokens_are_computed_under_a_ready_mask_too(name):
    theirs, _ = hf.pair(name, attention="sdpa")
    keep = hf.masks()["prefix"][:, None, None].bool()
    given = arguments(name)
    with torch.no_grad():
        wanted = theirs(**given)
        ours = fastbert.patch(copy.deepcopy(theirs), pads="computed" if name == "BertModel" else None)
        for mask in (keep, torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)):
            got = ours(**{**given, "attention_mask": mask})
            for key, value in wanted.items():
                hf.assert_near(got[key], value, torch.float32, key)
        with pytest.raises(InputError, match="a 4-D attention_mask must be"):
            ours(**{**given, "attention_mask": keep[:3]})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_further_from_the_truth_than_transformers(dtype):
    truth, _ = hf.pair("BertForSequenceClassification", torch.float64)
    theirs = copy.deepcopy(truth).to(dtype)
    ours = fastbert.patch(copy.deepcopy(theirs))
    given = arguments("BertForSequenceClassification", labels=False)
    with torch.no_grad():
        right = truth(**given).logits
        error = (ours(**given).logits.double() - right).abs().max()
        allowed = (theirs(**given).logits.double() - right).abs().max()
    assert error <= 2 * allowed + torch.finfo(dtype).eps / 2 * right.abs().max()


def _dropping(**rates):
    changes = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3, **rates}
    return hf.pair("BertForSequenceClassification", torch.float64, **changes)[0]


def test_dropout_is_drawn_from_torchs_generator():
    theirs = _dropping()
    ours = fastbert.patch(copy.deepcopy(theirs))
    given = arguments("BertForSequenceClassification")

    def losses(model, seed):
        torch.manual_seed(seed)
        return [float(model(**given).loss) for _ in range(3)]

    assert losses(ours, 1) == losses(ours, 1) != losses(ours, 2)
    assert len(set(losses(ours, 1))) == 3
    ours.eval()
    assert len(set(losses(ours, 1))) == 1
    hf.assert_near(ours(**given).logits, theirs.eval()(**given).logits, torch.float64, "logits")


def test_rates_are_read_from_the_modules_as_they_are_now():
    ours = fastbert.patch(_dropping())
    given = arguments("BertForSequenceClassification", labels=False)
    for module in ours.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert torch.equal(ours(**given).logits, ours(**given).logits)
    # Dropout in evaluation (Monte Carlo dropout): a model in eval() whose dropouts were switched on again.
    ours = fastbert.patch(_dropping()).eval()
    for module in ours.bert.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(ours(**given).logits, ours(**given).logits)
    # A layer that drops more after its feed-forward network than after its attention is transformers' to run.
    theirs = _dropping(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    theirs.bert.encoder.layer[0].output.dropout.p = 1.0
    ours = fastbert.patch(copy.deepcopy(theirs))
    hf.assert_near(ours(**given).logits, theirs(**given).logits, torch.float64, "logits")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attentions_probabilities_are_dropped_where_transformers_drops_them(attention):
    """It asks the attention, its dropout or a number, by its version and kind of attention."""
    given = arguments("BertForSequenceClassification", labels=False)

    def repeats(training: bool, mode_of_dropouts: bool, rate: float) -> tuple[bool, bool]:
        theirs = _dropping(hidden_dropout_prob=0.0, attention=attention).train(training)
        for layer in theirs.bert.encoder.layer:
            layer.attention.self.dropout.train(mode_of_dropouts).p = rate
        models = theirs, fastbert.patch(copy.deepcopy(theirs))
        return tuple(torch.equal(model(**given).logits, model(**given).logits) for model in models)

    assert repeats(True, True, 0.3) == (False, False)
    assert repeats(False, False, 0.3) == (True, True)
    of_version_4 = not V5 and attention == "eager"
    assert repeats(False, True, 0.3) == (not of_version_4,) * 2
    assert repeats(True, False, 0.3) == (of_version_4,) * 2
    assert repeats(True, True, 0.0) == (V5 or attention == "eager",) * 2


_PLACES = {
    "embeddings": ["embeddings.dropout"],
    "probabilities of the first layer": ["encoder.layer.0.attention.self.dropout"],
    "probabilities of the last layer": ["encoder.layer.2.attention.self.dropout"],
    "hidden states of the first layer": [f"encoder.layer.0.{name}.dropout" for name in ("attention.output", "output")],
    "hidden states of the last layer": [f"encoder.layer.2.{name}.dropout" for name in ("attention.output", "output")],
}


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("dropping", [True, False])
def test_each_module_drops_by_its_own_rate_and_mode(place, dropping, only_ours):
    """All or nothing, at one place, in a model whose mode is the other: so that nothing is left to chance."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = _dropping(**none, attention="eager").bert.train(not dropping)
    plain = fastbert.patch(copy.deepcopy(theirs))
    for name in _PLACES[place]:
        module = theirs.get_submodule(name)
        module.p, module.training = 1.0, dropping
        if "self" in name:  # which of the two is asked is a matter of transformers' version
            theirs.get_submodule(name.removesuffix(".dropout")).training = dropping
    ours, given = fastbert.patch(copy.deepcopy(theirs)), arguments("BertModel")
    keep = hf.kept_tokens(hf.masks()["prefix"])
    wanted = theirs(**given).last_hidden_state
    only_ours()
    got = ours(**given).last_hidden_state
    hf.assert_near(got[keep], wanted[keep], torch.float64, place)
    assert torch.equal(got, plain(**given).last_hidden_state) is not dropping


def test_a_pass_without_dropout_leaves_the_generator_alone():
    _, ours = twins("BertForSequenceClassification")
    state = torch.random.get_rng_state()
    ours(**arguments("BertForSequenceClassification"))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_repeats_the_dropout(reentrant, only_ours):
    plain, recomputing = (fastbert.patch(_dropping()) for _ in range(2))
    recomputing.gradient_checkpointing_enable({"use_reentrant": reentrant})
    only_ours()
    given = arguments("BertForSequenceClassification")
    kept = []
    for model in (plain, recomputing):
        saved = []
        torch.manual_seed(4)
        with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x.numel()) or x, lambda x: x):
            loss = model(**given).loss
        loss.backward()
        kept.append(sum(saved))
    for (name, x), y in zip(plain.named_parameters(), recomputing.parameters(), strict=True):
        assert torch.equal(x.grad, y.grad), name
    assert kept[1] < kept[0] / 2


def test_an_optimiser_made_before_keeps_working(only_ours):
    only_ours()
    model, _ = hf.pair("BertForSequenceClassification")
    before = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fastbert.patch(model)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    given = arguments("BertForSequenceClassification")
    losses = []
    for _ in range(20):
        loss = model(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 4
