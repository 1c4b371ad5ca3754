"""`fastbert.patch`: what a caller could do with his model before, he can do after."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle

import hf_parity as hf
import pytest
import torch
import torch.nn.functional as F
import transformers
from patched import V5, arguments, assert_same, twins
from torch import nn

import fastbert
from fastbert.errors import InputError
from fastbert.interop.patch import is_patched
from fastbert.modules.said import say_once


@hf.every_class
def test_names_copies_and_files_are_as_before(name, tmp_path):
    theirs, ours = twins(name)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert repr(ours) == repr(theirs)
    assert isinstance(ours.base_model, transformers.BertModel)
    given = arguments(name)
    with torch.no_grad():
        theirs(**given)  # it notes the kind of problem in its configuration
        wanted = ours(**given)
        for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert is_patched(twin.base_model)
            for key, x in twin(**given).items():
                assert torch.equal(x, wanted[key]), key
            assert not {p.data_ptr() for p in ours.parameters()} & {p.data_ptr() for p in twin.parameters()}
    theirs.save_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    files = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "ours").iterdir())
    for file in files:
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes(), file
    again = type(theirs).from_pretrained(tmp_path / "ours")
    assert not is_patched(again.base_model)


@hf.every_class
def test_unpatch_gives_the_class_back(name):
    theirs, ours = twins(name)
    given = arguments(name)
    with torch.no_grad():
        ours(**given)
        assert fastbert.unpatch(ours) is ours
        for x, y in zip(ours.modules(), theirs.modules(), strict=True):
            assert type(x) is type(y)
            assert vars(x).keys() == vars(y).keys()
        for key, x in ours(**given).items():
            assert torch.equal(x, theirs(**given)[key]), key
    assert fastbert.unpatch(ours) is ours


def test_a_model_of_another_class_than_the_patched_one_is_not_unpatched_in_silence():
    # FSDP's fully_shard gives a module a class of its own, made of the one that it had.
    _, ours = twins("BertForSequenceClassification")
    patched = type(ours.bert)
    ours.bert.__class__ = type("FSDPBertModel", (patched,), {})
    with pytest.raises(InputError, match="BertModel cannot be unpatched: its class has become FSDPBertModel since"):
        fastbert.unpatch(ours)
    ours.bert.__class__ = patched
    assert type(fastbert.unpatch(ours).bert) is transformers.BertModel


def test_a_model_that_the_patched_class_has_made_is_unpatched_as_any():
    _, ours = twins("BertModel")
    made = type(ours)(ours.config)
    assert is_patched(made)
    assert type(fastbert.unpatch(made)) is transformers.BertModel


def test_patching_twice_is_patching_once():
    _, ours = twins("BertModel")
    cls = type(ours)
    assert type(fastbert.patch(ours)) is cls
    assert type(fastbert.unpatch(ours)) is transformers.BertModel


def test_other_models_of_the_class_are_left_alone():
    theirs, ours = twins("BertModel")
    assert is_patched(ours)
    assert not is_patched(theirs)
    assert transformers.BertModel.forward is type(theirs).forward is not type(ours).forward


def test_resized_vocabulary_and_replaced_parts_are_followed(only_ours):
    theirs, ours = twins("BertForMaskedLM")
    given = arguments("BertForMaskedLM", labels=False)
    ours(**given)
    new = nn.Linear(32, 32)
    for model in (theirs, ours):
        torch.manual_seed(2)
        model.resize_token_embeddings(hf.VOCAB + 3, mean_resizing=False)
        model.bert.encoder.layer[1].intermediate.dense.load_state_dict(
            model.bert.encoder.layer[1].intermediate.dense.state_dict()
        )
        model.bert.encoder.layer[0].attention.self.query = copy.deepcopy(new)
    given["input_ids"] = given["input_ids"].clone()
    given["input_ids"][0, 1] = hf.VOCAB + 2
    with torch.no_grad():
        wanted = theirs(**given)
        only_ours()
        assert_same(ours(**given), wanted, "prefix")


@pytest.mark.parametrize("size", [hf.VOCAB + 5, hf.VOCAB - 5])
def test_a_vocabulary_resized_alone_is_followed(size, only_ours):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    given["input_ids"] = given["input_ids"] % (size - 1)
    given["input_ids"][0, 1] = size - 1
    for model in (theirs, ours):
        torch.manual_seed(2)
        model.resize_token_embeddings(size, mean_resizing=False)
        model.embeddings.position_embeddings.weight = nn.Parameter(torch.randn(hf.LENGTH, 32))
    with torch.no_grad():
        wanted = theirs(**given)
        only_ours()
        assert_same(ours(**given), wanted, "prefix")
    given["input_ids"][0, 1] = size
    with pytest.raises(InputError, match=f"between 0 and {size - 1}"):
        ours(**given)


def _per_example(model, given):
    # Version 5 looks at the values of a mask of two dimensions, which a transform forbids; version 4 takes no other.
    def loss(weights, mask, ids):
        call = {"input_ids": ids[None], "attention_mask": mask[None, None, None] if V5 else 1 - mask[None]}
        return torch.func.functional_call(model, weights, (), call)[0].square().sum()

    weights = dict(model.named_parameters())
    masks = torch.zeros(given["input_ids"].shape)
    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, masks, given["input_ids"])


@pytest.mark.parametrize("kind", ["forward", "forward without gradients", "gradients of each example"])
def test_transforms_of_torch_are_transformers_own(kind):
    theirs, ours = twins("BertModel", attention="eager")
    given = arguments("BertModel", "none")
    if kind == "gradients of each example":
        found, wanted = (_per_example(model, given) for model in (ours, theirs))
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            assert torch.equal(found[name], gradient), name
        return
    torch.manual_seed(4)
    point, direction = torch.randn(2, 2, 5, 32).unbind()
    made = []
    for model in (ours, theirs):
        with torch.set_grad_enabled(kind == "forward"):
            made.append(torch.func.jvp(lambda x, model=model: model(inputs_embeds=x)[0], (point,), (direction,))[1])
    assert torch.equal(*made)
    assert made[0].abs().max() > 0.1


def test_shapes_without_values():
    theirs, ours = twins("BertModel")
    given = arguments("BertModel", "none")
    meta = copy.deepcopy(ours).to("meta")
    mask = None if V5 else torch.ones(4, 11, device="meta")  # version 4 looks for pads where none is given
    assert meta(given["input_ids"].to("meta"), mask)[0].shape == theirs(given["input_ids"])[0].shape


@pytest.mark.parametrize("gradients", [True, False])
def test_dtypes_under_autocast_are_transformers(gradients):
    theirs, ours = twins("BertModel")
    with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
        found, wanted = (model(**arguments("BertModel"), output_hidden_states=True) for model in (ours, theirs))
    dtypes = [[x.dtype for x in (out[0], out.pooler_output, *out.hidden_states)] for out in (found, wanted)]
    assert dtypes[0] == dtypes[1]
    keep = hf.kept_tokens(hf.masks()["prefix"])
    assert (found[0] - wanted[0])[keep].abs().max() < 0.1


@pytest.mark.parametrize("mask_name", ["none", "prefix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_probabilities_under_autocast_have_transformers_dtype(dtype, mask_name):
    theirs, ours = twins("BertModel")
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = (
            model.to(dtype)(**arguments("BertModel", mask_name), output_attentions=True) for model in (ours, theirs)
        )
    assert [x.dtype for x in found.attentions] == [x.dtype for x in wanted.attentions]


def test_patching_again_keeps_what_was_said_of_pads():
    _, ours = twins("BertForQuestionAnswering")
    given = arguments("BertForQuestionAnswering")
    wanted = ours(**given).loss
    fastbert.patch(ours.bert)
    assert torch.equal(ours(**given).loss, wanted)


def test_a_head_for_question_answering_by_another_name():
    theirs, _ = twins("BertForQuestionAnswering")

    class Reader(transformers.BertForQuestionAnswering):
        pass

    given = arguments("BertForQuestionAnswering")
    wanted = theirs(**given).loss
    reader = copy.deepcopy(theirs)
    reader.__class__ = Reader
    hf.assert_near(fastbert.patch(reader)(**given).loss, wanted, torch.float32, "loss")


def test_hooks_of_the_caller_see_what_they_always_saw(caplog):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    seen = {}
    for who, model in (("theirs", theirs), ("ours", ours)):
        model.encoder.layer[1].attention.self.register_forward_hook(
            lambda module, args, out, who=who: seen.update({who: out[0]})
        )
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="fastbert"):
        ours(**given), theirs(**given)
    hf.assert_near(seen["ours"], seen["theirs"], torch.float32, "hooked")
    assert "there is a hook on its BertS" in caplog.text


def _cap_the_positions(bert):
    bert.embeddings.position_embeddings.max_norm = 0.01


def _cap_the_words(bert):
    bert.embeddings.word_embeddings.max_norm = 0.01


def _sharpen(bert):
    bert.encoder.layer[1].attention.self.scaling = 3.0


@pytest.mark.parametrize("change", [_cap_the_positions, _cap_the_words, _sharpen])
@pytest.mark.parametrize("when", ["before the patch", "after a pass"])
def test_what_the_caller_changes_in_a_module_counts(change, when):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    with torch.no_grad():
        before = ours(**given).last_hidden_state
        if when == "before the patch":
            fastbert.unpatch(ours)
        change(theirs), change(ours)
        fastbert.patch(ours)
        wanted = theirs(**given)
        assert_same(ours(**given), wanted, "prefix")
    assert not torch.allclose(before, wanted.last_hidden_state, atol=1e-3)


def test_a_parametrised_table_is_named_in_one_line(caplog):
    theirs, ours = twins("BertModel")
    for model in (theirs, ours):
        nn.utils.parametrizations.weight_norm(model.embeddings.token_type_embeddings)
    given = arguments("BertModel")
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="fastbert"):
        assert_same(ours(**given), theirs(**given), "prefix")
    said = [record.getMessage() for record in caplog.records if "token_type_embeddings" in record.getMessage()]
    assert len(said) == 1
    assert "\n" not in said[0]


@pytest.mark.parametrize("place", ["output.dense", "output.LayerNorm"])
def test_a_plain_tensor_in_a_parameters_place(place, only_ours):
    # So hypernetworks and torch's replicas have them.
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    with torch.no_grad():
        ours(**given)
        for model in (theirs, ours):
            module = model.encoder.layer[1].get_submodule(place)
            weight = module.weight * 2
            del module.weight
            module.weight = weight
        wanted = theirs(**given)
        only_ours()
        assert_same(ours(**given), wanted, "prefix")


class _MeanPooler(nn.Module):
    def forward(self, hidden):
        return hidden.mean(1)


@pytest.mark.parametrize("mask", ["none", "left"])
def test_a_pooler_of_the_callers_is_given_every_token(mask, only_ours):
    theirs, ours = twins("BertModel")
    fastbert.patch(ours, pads="computed")
    for model in (theirs, ours):
        model.pooler = _MeanPooler()
    given = arguments("BertModel", mask)
    with torch.no_grad():
        wanted = theirs(**given).pooler_output
        only_ours()
        hf.assert_near(ours(**given).pooler_output, wanted, torch.float32, "pooled by another")


def test_a_hook_on_the_pooler_sees_every_token(only_ours):
    theirs, ours = twins("BertModel")
    given, seen = arguments("BertModel", "none"), []
    for model in (theirs, ours):
        model.pooler.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        theirs(**given)
        only_ours()
        ours(**given)
    hf.assert_near(seen[1], seen[0], torch.float32, "what the pooler is given")


def test_a_hook_that_is_there_before_the_patch_is_heard_as_long_as_it_stays(caplog, only_ours):
    theirs, ours = twins("BertModel")
    ours = fastbert.unpatch(ours)
    given, seen = arguments("BertModel"), []
    handle = ours.encoder.layer[0].register_forward_hook(lambda module, args, out: seen.append(out))
    fastbert.patch(ours)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="fastbert"):
        wanted = theirs(**given)
        assert_same(ours(**given), wanted, "prefix")
        assert len(seen) == 1
        handle.remove()
        only_ours()
        assert_same(ours(**given), wanted, "prefix")
    assert len(seen) == 1


def test_a_hook_on_all_modules_sees_what_it_always_saw():
    theirs, ours = twins("BertModel")
    given, seen = arguments("BertModel"), {"theirs": 0, "ours": 0}
    for who, model in (("theirs", theirs), ("ours", ours)):

        def count(module, args, out, who=who):
            seen[who] += 1

        handle = torch.nn.modules.module.register_module_forward_hook(count)
        try:
            with torch.no_grad():
                model(**given)
        finally:
            handle.remove()
    assert seen["ours"] == seen["theirs"]


@pytest.fixture
def at_once(monkeypatch):
    """A list that gets an entry for every encoder that is computed in one call."""
    from fastbert.modules import stack

    ran, plain = [], stack.ops.fused_encoder

    def count(*args, **options):
        states = plain(*args, **options)
        ran.extend([1] * (states is not None))
        return states

    monkeypatch.setattr(stack.ops, "fused_encoder", count)
    return ran


@pytest.mark.parametrize(("which", "calls"), [(slice(None), 1), (slice(0, 1), 0)])
def test_activations_are_the_modules_and_not_the_configurations(which, calls, at_once):
    theirs, ours = twins("BertModel")
    ours.eval(), theirs.eval()
    for model in (theirs, ours):
        for layer in model.encoder.layer[which]:
            layer.intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")
    given = arguments("BertModel")
    with torch.no_grad():
        assert_same(ours(**given), theirs(**given), "prefix")
    assert len(at_once) == calls


def test_kin_with_another_epsilon_take_the_whole_encoder_at_once(at_once):
    """1e-5 is RoBERTa's; the calls layer by layer are slower."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    theirs = transformers.RobertaModel(transformers.RobertaConfig(**sizes, vocab_size=50, layer_norm_eps=1e-5)).eval()
    ours = fastbert.patch(copy.deepcopy(theirs))
    ids = torch.randint(5, 50, (2, 7))
    with torch.no_grad():
        hf.assert_near(ours(ids).last_hidden_state, theirs(ids).last_hidden_state, torch.float32, "RoBERTa")
    assert at_once


def test_hidden_states_asked_for_before_the_patch_do_not_stand_in_its_way(only_ours):
    # transformers 5 leaves hooks of its own in a model that was asked for hidden states.
    theirs, _ = hf.pair("BertModel")
    given = arguments("BertModel")
    with torch.no_grad():
        wanted = theirs(**given, output_hidden_states=True)
        ours = fastbert.patch(theirs)
        only_ours()
        assert_same(ours(**given, output_hidden_states=True), wanted, "prefix")


@pytest.mark.skipif(V5, reason="transformers 5 has no head masks")
def test_a_head_mask_is_transformers_own_affair():
    theirs, ours = twins("BertModel")
    mask = torch.ones(3, 4)
    mask[1, 2] = 0
    given = arguments("BertModel")
    with torch.no_grad():
        assert_same(ours(**given, head_mask=mask), theirs(**given, head_mask=mask), "prefix")
        assert_same(ours(**given, head_mask=[None] * 3), theirs(**given), "prefix")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("factor", [2, 0.5])
def test_a_mask_of_other_numbers_than_one_means_what_it_means_to_transformers(factor, attention):
    """Version 5 keeps every number but 0, version 4 the 1 alone."""
    theirs, ours = twins("BertModel", attention=attention)
    given = arguments("BertModel")
    given["attention_mask"] = given["attention_mask"] * torch.tensor([1, factor] * 5 + [1])
    with torch.no_grad():
        assert_same(ours(**given), theirs(**given), "prefix")


@pytest.mark.parametrize("name", ["token_type_ids", "position_ids"])
@pytest.mark.parametrize("shape", [(4, 1), (1, 1), (4, 5)])
def test_ids_of_other_shapes_are_transformers_affair(name, shape):
    theirs, ours = twins("BertModel")
    given = {"input_ids": hf.inputs()["input_ids"], name: torch.ones(shape).long()}
    with torch.no_grad():
        if shape == (4, 5):
            for model in (theirs, ours):
                with pytest.raises(RuntimeError):
                    model(**given)
        else:
            assert_same(ours(**given), theirs(**given), "none")


@pytest.mark.parametrize("given", [{}, {"input_ids": torch.zeros(1, 2).long(), "inputs_embeds": torch.zeros(1, 2, 32)}])
def test_wrong_input_is_refused_as_transformers_refuses_it(given):
    theirs, ours = twins("BertModel")
    with pytest.raises(ValueError, match=r".+") as expected:
        theirs(**given)
    with pytest.raises(ValueError, match=r".+") as got:
        ours(**given)
    assert str(got.value) == str(expected.value)


_WRONG = {
    "a word": ({"input_ids": torch.full((2, 5), 1000)}, "input_ids must be between 0 and 60"),
    "a type": ({"input_ids": torch.ones(2, 5).long(), "token_type_ids": torch.full((2, 5), 2)}, "token_type_ids must"),
    "a position": ({"input_ids": torch.ones(2, 5).long(), "position_ids": torch.full((2, 5), -1)}, "position_ids must"),
    "too long": ({"input_ids": torch.ones(2, 25).long()}, "at most max_position_embeddings = 24 tokens"),
    "floats": ({"input_ids": torch.ones(2, 5)}, "input_ids must be int64 or int32"),
    "narrow": ({"inputs_embeds": torch.ones(2, 5, 30)}, "inputs_embeds must have a last dimension of hidden_size = 32"),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("what", _WRONG)
def test_wrong_tokens_raise_what_transformers_raises_with_our_sentence(what, recorded):
    theirs, ours = twins("BertModel")
    given, said = _WRONG[what]
    with torch.set_grad_enabled(recorded):
        with pytest.raises((IndexError, RuntimeError)) as expected:
            theirs(**given)
        with pytest.raises(expected.type, match=said) as got:
            ours(**given)
    assert isinstance(got.value, InputError)
    assert str(got.value.__cause__) == str(expected.value)
    again = pickle.loads(pickle.dumps(got.value))
    assert type(again) is type(got.value)
    assert str(again) == str(got.value)


def test_an_argument_given_twice_is_refused_as_transformers_refuses_it():
    ids = hf.inputs()["input_ids"]
    for model in twins("BertModel"):
        with pytest.raises(TypeError, match="multiple values for argument 'input_ids'"):
            model(ids, input_ids=ids)


def test_an_evaluation_between_forward_and_backward_leaves_recomputation_alone():
    _, model = twins("BertModel", hidden_dropout_prob=0.3)
    model.train()
    model.gradient_checkpointing_enable()
    given = arguments("BertModel", labels=False)

    def gradient(between):
        model.zero_grad()
        torch.manual_seed(4)
        loss = model(**given).pooler_output.pow(2).sum()
        if between:
            model.eval()
            with torch.no_grad():
                model(**given)
            model.train()
        loss.backward()
        return model.encoder.layer[0].output.dense.weight.grad.clone()

    torch.testing.assert_close(gradient(True), gradient(False), rtol=0, atol=0)


def kin(name, **changes):
    """A small model of transformers in evaluation mode, and a patched copy."""
    cls = getattr(transformers, name)
    sizes = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = cls.config_class(
        **sizes, intermediate_size=70, hidden_dim=70, max_position_embeddings=40, initializer_range=0.2, **changes
    )
    theirs = cls(config).eval()
    return theirs, fastbert.patch(copy.deepcopy(theirs))


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "ElectraModel", "DistilBertModel"])
def test_positions_that_begin_again_need_no_longer_table(name, only_ours):
    theirs, ours = kin(name)
    most = theirs.config.max_position_embeddings
    length, steps = most + 6, most // 2
    ids = torch.randint(5, 50, (2, length))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name == "DistilBertModel":  # it takes no positions: its table may be longer than its configuration says
        for model in (theirs, ours):
            table = torch.nn.Embedding(length, model.config.dim)
            table.weight.data = torch.sin(torch.arange(table.weight.numel())).reshape(table.weight.shape)
            model.embeddings.position_embeddings = table
            model.embeddings.register_buffer("position_ids", torch.arange(length)[None], persistent=False)
    else:
        given["position_ids"] = (torch.arange(length) % steps + 1)[None]
        given["token_type_ids"] = torch.zeros_like(ids)  # transformers 4 has as many as positions
    with torch.no_grad():
        expected, got = (model(**given).last_hidden_state for model in (theirs, ours))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_positions_of_a_distilbert_that_takes_them(only_ours):
    theirs, ours = kin("DistilBertModel")
    if "position_ids" not in inspect.signature(theirs.forward).parameters:
        pytest.skip("this release of transformers gives DistilBERT no positions")
    ids = torch.randint(5, 50, (2, 7))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": torch.arange(7).flip(0)[None]}
    with torch.no_grad():
        expected, got = (model(**given).last_hidden_state for model in (theirs, ours))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_decoder_that_was_made_one_after_the_patch_is_computed_as_one():
    theirs, ours = twins("BertModel", attn_implementation="eager")
    given = arguments("BertModel", labels=False)
    theirs.eval(), ours.eval()
    with torch.no_grad():
        ours(**given)
        theirs.config.is_decoder = ours.config.is_decoder = True
        expected, got = (model(**given).last_hidden_state for model in (theirs, ours))
    torch.testing.assert_close(got, expected)


def test_what_is_said_of_a_pass_is_said_once_whatever_its_length(caplog):
    say_once.cache_clear()
    _, ours = twins("BertModel")
    for length in (3, 4, 5):
        ids = torch.randint(5, 50, (2, length))
        with torch.no_grad():
            if V5:  # 4 refuses such a mask itself
                ours(ids, attention_mask=torch.ones(length).long())
            ours(ids, position_ids=torch.zeros(1, 1, dtype=torch.int64))
    said = [record.message for record in caplog.records if "own code" in record.message]
    assert len(said) == len(set(said)) == (2 if V5 else 1)


def test_a_packed_batch_is_for_our_models():
    _, ours = twins("BertModel")
    with pytest.raises(InputError, match="got a PackedBatch"):
        ours(fastbert.PackedBatch.from_sequences([[5, 6]]))


def test_the_first_pass_under_another_default_device():
    theirs, ours = twins("BertModel")
    given = arguments("BertModel", labels=False)
    with torch.no_grad():
        expected = theirs(**given).last_hidden_state
        with torch.device("meta"):
            got = ours(**given).last_hidden_state
    assert_same({"x": got}, {"x": expected}, "prefix")


@pytest.mark.parametrize("summary", ["mean", "last", "cls_index"])
def test_electras_head_for_choices_reads_pads_where_it_is_told_to(summary, only_ours):
    theirs, ours = kin("ElectraForMultipleChoice", summary_type=summary)
    ids = torch.randint(5, 50, (2, 2, 9))
    given = {
        "input_ids": ids,
        "attention_mask": torch.arange(9).expand_as(ids) < torch.tensor([[[9], [4]], [[6], [2]]]),
    }
    with torch.no_grad():
        hf.assert_near(ours(**given).logits, theirs(**given).logits, torch.float32, summary)


@pytest.mark.parametrize("name", ["BertLMHeadModel", "RobertaForCausalLM"])
def test_the_loss_of_next_words_reads_pads(name, only_ours):
    theirs, ours = kin(name)
    ids = torch.randint(5, 50, (4, 9))
    mask = (torch.arange(9) >= torch.tensor([0, 4, 6, 2])[:, None]).long()
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    torch.testing.assert_close(ours(**given).loss, theirs(**given).loss, rtol=1e-4, atol=1e-4)


class _Reader(nn.Module):
    """Someone's own model for questions, as tutorials have it."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert
        torch.manual_seed(3)
        self.qa_outputs = nn.Linear(bert.config.hidden_size, 2)

    def forward(self, starts, **given):
        scores = self.qa_outputs(self.bert(**given).last_hidden_state)[..., 0]
        return F.cross_entropy(scores, starts)


def test_a_span_head_of_someone_s_own_under_its_usual_name_reads_pads():
    theirs, _ = kin("BertModel")
    ours = fastbert.patch(_Reader(copy.deepcopy(theirs)))
    ids = torch.randint(5, 50, (3, 9))
    given = {"input_ids": ids, "attention_mask": (torch.arange(9) < torch.tensor([9, 4, 6])[:, None]).long()}
    starts = torch.tensor([8, 1, 3])
    torch.testing.assert_close(ours(starts, **given), _Reader(theirs)(starts, **given), rtol=1e-4, atol=1e-4)
