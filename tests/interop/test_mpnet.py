"""`fastbert.patch` of MPNet (Song et al. 2020), whose scores have a bias by the distance of a key."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import transformers
from close import assert_close
from kept import IDS, MASK, assert_copied_and_saved, assert_near_each, gradients, kept
from patched import V5
from torch import nn

import fastbert
from fastbert import _native
from fastbert.errors import InputError
from fastbert.interop import patch_pass
from fastbert.ops import _cpu_encoder

_native_only = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

SIZES = {
    **{"vocab_size": 90, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 144, "max_position_embeddings": 42},
}
CUDA = torch.device("cuda")
# Of a sequence in the middle one token is not seen, of the last one the first; and a mask of all queries.
HOLES = MASK.clone()
HOLES[2, 5] = HOLES[3, 0] = 0
SQUARE = torch.ones(4, 1, 21, 21).tril() * MASK[:, None, None] > 0


def new(head: str = "MPNetModel", **changes) -> nn.Module:
    torch.manual_seed(3)
    model = getattr(transformers, head)(transformers.MPNetConfig(**SIZES | changes)).eval()
    for p in model.parameters():
        nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.15)
    nn.init.normal_(model.base_model.encoder.relative_attention_bias.weight, 0.0, 2.0)  # large enough to be missed
    return model


def twins(head: str = "MPNetModel", **changes) -> tuple[nn.Module, nn.Module]:
    theirs = new(head, **changes)
    return theirs, fastbert.patch(copy.deepcopy(theirs))


def test_states_and_gradients(passes):
    theirs, ours = twins()
    with torch.no_grad():
        assert_near_each(kept(ours, output_hidden_states=True), kept(theirs, output_hidden_states=True))
    # The second is recorded op by op, since a backward pass has come.
    for _ in range(2):
        got, wanted = gradients(ours), gradients(theirs)
        assert_near_each(got, wanted, 1e-4)
    assert len(passes) == 3
    table = theirs.encoder.relative_attention_bias.weight.grad
    # Distances of 0 to 20 to the left are in 11 buckets, those of 1 to 20 to the right in 10.
    assert int((table != 0).any(1).sum()) == 21


def test_every_bucket(passes):
    """Distances of up to 128 have buckets of their own, those beyond share one."""
    theirs, ours = twins(max_position_embeddings=303)
    ids = torch.randint(5, 90, (2, 300))
    mask = torch.ones_like(ids)
    mask[1, 40:] = 0
    weights = torch.randn(2, 300, 64) * mask[..., None]
    for model in (theirs, ours):
        (model(ids, attention_mask=mask)[0] * weights).sum().backward()
    wanted, got = (model.encoder.relative_attention_bias.weight.grad for model in (theirs, ours))
    assert int((wanted != 0).any(1).sum()) == 31
    assert_near_each([got], [wanted], 1e-4)
    assert len(passes) == 1


@_native_only
@pytest.mark.parametrize("quantized", [False, True])
def test_all_layers_in_one_call(quantized, monkeypatch):
    model = fastbert.patch(new())
    model = fastbert.quantize(model) if quantized else model
    calls, true = [], _cpu_encoder._run
    monkeypatch.setattr(_cpu_encoder, "_run", lambda *args: calls.append(args[7]) or true(*args))
    with torch.no_grad():
        kept(model)
    assert [tuple(bias.shape) for bias in calls] == [(4, 41)]


@_native_only
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_ones(dtype, passes):
    theirs, ours = twins()
    true = kept(copy.deepcopy(theirs).double())
    for got, rounded, exact in zip(kept(ours.to(dtype)), kept(theirs.to(dtype)), true, strict=True):
        assert_close(got, exact, rounded)
    assert len(passes) == 1


def test_under_autocast(passes):
    theirs, ours = twins()
    true = kept(copy.deepcopy(theirs).double())
    with torch.autocast("cpu", torch.bfloat16):
        got, rounded = kept(ours), kept(theirs)
    for x, y, exact in zip(got, rounded, true, strict=True):
        assert x.dtype == y.dtype
        assert_close(x, exact, y)
    assert len(passes) == 1


@pytest.mark.parametrize("mask", ["holes", "square", "none"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_rectangles(mask, probabilities, passes):
    if mask == "square" and not V5:
        pytest.skip("version 4 reads such a mask otherwise")
    given = {"attention_mask": {"holes": HOLES, "square": SQUARE, "none": None}[mask]}
    theirs, ours = twins(attn_implementation="eager")
    if mask == "square":
        floats = torch.zeros(SQUARE.shape).masked_fill(~SQUARE, torch.finfo(torch.float32).min)
        given = {"attention_mask": floats}
    results = []
    for model in (ours, theirs):
        out = model(IDS, **given, output_attentions=probabilities)
        keep = (HOLES if mask == "holes" else MASK).bool()
        (out[0] * torch.linspace(-1, 1, 64))[keep].sum().backward()
        weights = [p for name, p in model.named_parameters() if not name.endswith(".k.bias") and p.grad is not None]
        assert model.encoder.relative_attention_bias.weight.grad is not None
        probs = [x.transpose(1, 2)[keep] for x in out.attentions] if probabilities else []
        results.append(([out[0][keep], *probs], [p.grad for p in weights]))
    for limit, got, wanted in zip((1e-5, 1e-4), *results, strict=True):
        assert_near_each(got, wanted, limit)
    assert len(passes) == 1


@pytest.mark.parametrize("empty", [[], [1], [1, 3]])
def test_a_hole_counts_in_distances(empty, passes):
    """A token behind one that is masked is no nearer to those before it; packed it would be."""
    mask = MASK.clone()
    mask[2, 3:7] = 0
    mask[empty] = 0
    results = []
    for model in twins():
        states = model(IDS, attention_mask=mask, output_hidden_states=True).hidden_states
        (states[-1] * torch.linspace(-1, 1, 64))[mask.bool()].sum().backward()
        weights = [p for name, p in model.named_parameters() if not name.endswith(".k.bias") and p.grad is not None]
        results.append(([x[mask.bool()] for x in states], [p.grad for p in weights]))
    for limit, wanted, got in zip((1e-5, 1e-4), *results, strict=True):
        assert_near_each(got, wanted, limit)
    assert len(passes) == 1


@pytest.mark.parametrize("what", ["attention", "branches"])
def test_what_is_dropped(what, passes):
    """All of it, which needs no luck."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    models = twins(**rates)
    for model in models:
        model.train()
        for layer in model.encoder.layer:
            if what == "attention":
                layer.attention.attn.dropout.p = 1.0
            else:
                layer.attention.dropout.p = layer.output.dropout.p = 1.0
    theirs, ours = map(kept, models)
    assert_near_each(ours, theirs)
    assert len(passes) == 1
    assert float((theirs[0] - kept(models[0].eval())[0]).detach().abs().max()) > 0.1


HEADS = {
    "MPNetForMaskedLM": {"labels": IDS.masked_fill(MASK == 0, -100)},
    "MPNetForSequenceClassification": {"labels": torch.arange(4) % 2},
    "MPNetForTokenClassification": {"labels": (IDS % 2).masked_fill(MASK == 0, -100)},
    "MPNetForQuestionAnswering": {"start_positions": torch.arange(4), "end_positions": torch.arange(4) + 1},
}


@pytest.mark.parametrize("head", HEADS)
def test_heads(head, passes):
    theirs, ours = twins(head)
    assert_near_each(kept(ours, **HEADS[head]), kept(theirs, **HEADS[head]), 1e-4)
    assert len(passes) == 1


@pytest.mark.parametrize("asked", ["a tuple", "embeddings", "positions"])
def test_other_ways_to_call(asked, passes):
    theirs, ours = twins()
    with torch.no_grad():
        if asked == "a tuple":
            given = {"input_ids": IDS, "return_dict": False, "output_hidden_states": True}
        elif asked == "embeddings":
            given = {"inputs_embeds": theirs.embeddings.word_embeddings(IDS)}
        else:
            given = {"input_ids": IDS, "position_ids": torch.arange(21).flip(0)[None]}
        results = [model(attention_mask=MASK, **given) for model in (ours, theirs)]
    got, wanted = (out if isinstance(out, tuple) else out.to_tuple() for out in results)
    assert type(results[0]) is type(results[1])
    assert len(got) == len(wanted)
    assert_near_each([got[0][MASK.bool()], got[1]], [wanted[0][MASK.bool()], wanted[1]])
    assert len(passes) == 1


def test_without_a_pooler(passes):
    theirs = new()
    theirs.pooler = None
    ours = fastbert.patch(copy.deepcopy(theirs))
    got, wanted = (model(IDS, attention_mask=MASK, return_dict=False) for model in (ours, theirs))
    assert [x is None for x in got] == [x is None for x in wanted] == [False, True]
    assert len(passes) == 1


def test_batch_invariant(passes):
    model = fastbert.patch(new())
    with torch.no_grad(), fastbert.batch_invariant():
        together = model(IDS, attention_mask=MASK)[0]
        for row, length in enumerate(MASK.sum(1)):
            alone = model(IDS[row : row + 1, :length])[0]
            assert torch.equal(alone[0], together[row, :length])
    assert len(passes) == 5


def test_a_table_that_is_hooked_or_of_ones_own(passes):
    """A hook sees distances of all pairs with transformers, and would see those of one row here."""
    theirs, ours = twins()
    handles = [model.encoder.relative_attention_bias.register_forward_hook(lambda *_: None) for model in (theirs, ours)]
    assert_near_each(kept(ours), kept(theirs))
    assert not passes
    handles[1].remove()
    kept(ours)
    assert len(passes) == 1

    class Doubled(nn.Embedding):
        def forward(self, ids):
            return 2 * super().forward(ids)

    for model in (theirs, ours):
        table = Doubled(32, 4)
        table.weight = model.encoder.relative_attention_bias.weight
        model.encoder.relative_attention_bias = table
    assert_near_each(kept(ours), kept(theirs))
    assert len(passes) == 1


def test_a_table_that_is_changed(passes):
    theirs, ours = twins()
    kept(ours)
    for model in (theirs, ours):
        with torch.no_grad():
            model.encoder.relative_attention_bias.weight.mul_(-1.0)
    assert_near_each(kept(ours), kept(theirs))
    assert len(passes) == 2


@_native_only
def test_int8():
    theirs, model = twins()
    exact, got = kept(theirs)[0], kept(fastbert.quantize(model))[0]
    assert 0 < float((got - exact).detach().square().mean().sqrt() / exact.detach().std()) < 0.05


def test_copies_and_files(tmp_path, passes):
    assert_copied_and_saved(*twins(), tmp_path)
    assert len(passes) == 3


def test_compiled(passes):
    theirs, ours = twins("MPNetForSequenceClassification")
    compiled = torch.compile(ours, backend="eager")
    assert_near_each(kept(compiled), kept(theirs))
    assert len(passes) == 1


def test_on_a_gpu_transformers_own_code_runs(passes, monkeypatch, caplog):
    """No kernel there has a bias; a device is all that is made up here."""
    theirs, ours = twins()
    monkeypatch.setattr(patch_pass, "_tokens_of", lambda _given: SimpleNamespace(shape=IDS.shape, device=CUDA))
    assert_near_each(kept(ours), kept(theirs))
    assert not passes
    assert "its attention adds a bias to its scores" in caplog.text


def test_our_own_encoder_says_who_serves_it(tmp_path):
    """It is no BERT by any other name."""
    new().save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=r"got 'mpnet'; within sentence-transformers, fastbert\.patch\(model\) supports it$"
    ):
        fastbert.SentenceEncoder.from_pretrained(tmp_path)
    transformers.T5EncoderModel(transformers.T5Config(d_model=8, d_ff=8, num_layers=1)).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match=r"got 't5'$"):
        fastbert.SentenceEncoder.from_pretrained(tmp_path / "t5")
