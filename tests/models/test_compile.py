"""torch.compile of whole models: the eager results, hardly a recompile over all lengths, the layers in one op."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import fastbert
from fastbert import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PackedBatch,
    _native,
    rng,
)
from fastbert.modules.said import say_once

LENGTHS = (128, 2, 512, 1, 300)


def config(**options) -> BertConfig:
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertConfig(vocab_size=100, max_position_embeddings=512, **{**sizes, **rates, **options})


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def packed(length: int) -> PackedBatch:
    batch = PackedBatch.from_sequences([torch.randint(5, 100, (n,)) for n in (length, max(length // 2, 1))])
    positions = torch.arange(0, batch.num_tokens, 5)
    labels, nsp = positions % 90, torch.tensor([0, 1])
    return dataclasses.replace(batch, mlm_positions=positions, mlm_labels=labels, nsp_labels=nsp)


def results(model, given) -> list[torch.Tensor]:
    model.zero_grad()
    out = model(given)
    found = [out.loss if isinstance(model_of(model), BertForPreTraining) else out.last_hidden_state]
    if model_of(model).training:
        found[0].square().mean().backward()
        found.append(model_of(model).get_parameter(next(iter(dict(model_of(model).named_parameters())))).grad.clone())
    return [t.detach() for t in found]


def model_of(model):
    return getattr(model, "_orig_mod", model)


@pytest.mark.parametrize(
    ("kind", "train"),
    [
        ("packed", True),
        ("padded", False),
        pytest.param("packed", False, marks=pytest.mark.slow),
        pytest.param("padded", True, marks=pytest.mark.slow),
    ],
)
def test_one_recompile_over_all_lengths(kind, train):
    """Lengths of 1 are a shape of their own to the compiler; all others share one graph."""
    model = (BertModel if kind == "padded" else BertForPreTraining)(config()).train(train)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for length in LENGTHS:
        given = torch.randint(5, 100, (3, length)) if kind == "padded" else packed(length)
        for got, wanted in zip(results(compiled, given), results(model, given), strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)
    assert counter.frame_count <= 2


def test_dropout_is_drawn_anew_in_every_call_and_by_the_seed():
    """Of all four places: after embeddings, in attention, after its projection and the feed-forward network's."""
    model = BertForPreTraining(config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)).train()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (12, 7):
        given, found = packed(length), []
        for either in (compiled, model, compiled):
            torch.manual_seed(length)
            model.zero_grad()
            either(given).loss.backward()
            found.append([p.grad.clone() for p in model.parameters()])
        for got, wanted, again in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)
            assert torch.equal(got, again)
        assert len({compiled(given).loss.item() for _ in range(3)}) == 3


def test_dropout_of_a_batch_that_is_computed_with_its_padding():
    model = BertModel(config(attention_probs_dropout_prob=0.3)).train()
    compiled = torch.compile(model, backend="eager")
    ids, left = torch.randint(5, 100, (2, 6)), torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    states = []
    for either in (compiled, model):
        torch.manual_seed(2)
        states.append(either(ids, left).last_hidden_state)
    torch.testing.assert_close(*states, rtol=2e-5, atol=2e-6)


def _drawn(x: torch.Tensor) -> torch.Tensor:
    """What a dropout draws, such as it shows: x times a number of its own, squared."""
    return (x * (rng.current().state[0] % 9973 + 1)).square()


def test_two_passes_of_one_compiled_function_draw_apart():
    """As two passes over one batch do for contrastive learning; equal ops without arguments would be one."""
    both = torch.compile(lambda x: (_drawn(x), _drawn(x)), fullgraph=True, backend="aot_eager")
    one = torch.ones(1, dtype=torch.float64, requires_grad=True)  # graphs of training are those that are simplified
    first, second = both(one), both(one)
    assert len({drawn.item() for drawn in (*first, *second)}) == 4
    torch.manual_seed(0)
    once = both(one)
    torch.manual_seed(0)
    assert once == both(one)


def test_a_compiled_recomputation_draws_what_was_drawn():
    again = torch.compile(lambda x: checkpoint(_drawn, x, use_reentrant=False), fullgraph=True, backend="aot_eager")
    x = torch.full((1,), 3.0, dtype=torch.float64, requires_grad=True)
    out = again(x)
    out.backward()
    assert x.grad.item() == pytest.approx(2 * out.item() / 3)


needs_kernels = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))


def in_inference(kind: str) -> BertModel:
    model = BertModel(config(num_hidden_layers=2), add_pooling_layer=False).eval()
    return fastbert.quantize(model) if kind == "int8" else model.to(getattr(torch, kind))


def state(model, *given) -> torch.Tensor:
    with torch.no_grad():
        return model(*given).last_hidden_state


def names(counter: CompileCounterWithBackend) -> list[str]:
    """Of the ops of ours in the last graph."""
    found = [str(node.target) for node in counter.graphs[-1].graph.nodes if node.op == "call_function"]
    return [name.removeprefix("fastbert.") for name in found if name.startswith("fastbert.")]


@needs_kernels
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_all_layers_are_one_op(kind):
    model, counter = in_inference(kind), CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    given = packed(9) if kind == "bfloat16" else torch.randint(5, 100, (3, 7))
    with fastbert.backend("cpu"):  # else the layers serve below AVX2
        assert torch.equal(state(compiled, given), state(model, given))
    assert names(counter) == ["embedding", "encoder"]


@needs_kernels
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_autocast_the_layers_are_one_op_too(backend):
    model, counter = in_inference("float32"), CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    ids = torch.randint(5, 100, (3, 7))
    with fastbert.backend("cpu"), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(state(compiled, ids), state(model, ids), rtol=2**-6, atol=2**-6)
    assert "encoder" in names(counter)


@needs_kernels
def test_a_part_that_is_put_there_after_compiling_is_called():
    model, ids = in_inference("float32"), torch.randint(5, 100, (2, 6))
    compiled = torch.compile(model, backend="eager")
    before = state(compiled, ids)
    model.encoder.layer[0].intermediate.dense = nn.Sequential(model.encoder.layer[0].intermediate.dense, nn.Tanh())
    after = state(compiled, ids)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, state(model, ids), rtol=2e-5, atol=2e-6)


def _step(model: BertModel) -> None:
    model.train()(torch.randint(5, 100, (2, 6))).last_hidden_state[..., 0].sum().backward()
    fastbert.optim.AdamW(model.parameters(), lr=0.1).step()
    model.eval()


def _other(model: BertModel) -> dict[str, torch.Tensor]:
    return {name: t * 1.5 for name, t in model.state_dict().items()}


CHANGES = {
    "a step": _step,
    "load_state_dict": lambda model: model.load_state_dict(_other(model)),
    "assign": lambda model: model.load_state_dict(_other(model), assign=True),
    "through .data": lambda model: model.encoder.layer[1].output.dense.weight.data.mul_(1.5),
    "another .data": lambda model: setattr(p := model.encoder.layer[0].output.dense.weight, "data", p.data * 1.5),
    "int8": fastbert.quantize,
}


@needs_kernels
@pytest.mark.parametrize("how", CHANGES)
def test_weights_that_change_after_compiling_are_seen(how):
    model, ids = in_inference("float32"), torch.randint(5, 100, (3, 7))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    before = state(compiled, ids)
    CHANGES[how](model)
    after = state(compiled, ids)
    assert not torch.equal(after, before)
    assert torch.equal(after, state(model, ids))


@needs_kernels
def test_weights_are_packed_once_for_all_calls(monkeypatch):
    """Of a model that is compiled and of the same one that is not."""
    from fastbert.ops import _cpu_encoder

    model, made, pack = in_inference("float32"), [], _cpu_encoder._pack
    monkeypatch.setattr(_cpu_encoder, "_pack", lambda *given: made.append(1) or pack(*given))
    compiled, ids = torch.compile(model, fullgraph=True, backend="aot_eager"), torch.randint(5, 100, (2, 9))
    with fastbert.backend("cpu"):
        for either in (model, compiled, model, compiled):
            state(either, ids)
    assert made == [1]


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_batches_with_a_mask_share_their_graphs(train):
    """A graph would end where the host reads the mask, in every function from there up, and begin anew."""
    model = BertForSequenceClassification(config(hidden_dropout_prob=0.1)).train(train)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter)
    for rows, columns, kept in ((2, 7, 5), (3, 9, 9), (4, 12, 1), (5, 6, 3)):
        ids, mask = torch.randint(5, 100, (rows, columns)), torch.ones(rows, columns, dtype=torch.int64)
        mask[1:, kept:] = 0
        found = []
        for either in (compiled, model):
            torch.manual_seed(0)
            model.zero_grad()
            logits = either(ids, attention_mask=mask).logits
            logits.square().sum().backward()
            found.append([logits, *(p.grad.clone() for p in model.parameters())])
        for got, wanted in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)
    assert counter.frame_count <= 2


RIGHT = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 2 + [0] * 5])
MASKS = {"right": RIGHT, "left": RIGHT.flip(1), "middle": RIGHT.roll(3, 1), "4-D": (RIGHT != 0)[:, None, None]}


def both(model, counter, given: dict, **options) -> list[list[torch.Tensor]]:
    """The outputs and, in training, the gradients of a model in one whole graph, and of the same one uncompiled."""
    compiled, found = torch.compile(model, fullgraph=True, backend=counter, **options), []
    for either in (compiled, model):
        torch.manual_seed(0)
        model.zero_grad()
        out = either(**given)
        values = [x for x in vars(out).values() if x is not None]
        found.append([x for value in values for x in (value if isinstance(value, tuple) else [value])])
        if model.training:
            sum(x.float().square().mean() for x in found[-1]).backward()
            found[-1] += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def assert_equal(found: list[list[torch.Tensor]]) -> None:
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)


# All masks are one addend by the time of the layers, and training alike for all: two in either. The others: slow.
@pytest.mark.parametrize(
    ("mask", "train"),
    [
        pytest.param(mask, train, id=f"{mask}-{mode}", marks=[pytest.mark.slow] * (mode not in modes))
        for mask, modes in {"right": "train", "left": "eval", "middle": "train", "4-D": "eval"}.items()
        for mode, train in {"eval": False, "train": True}.items()
    ],
)
def test_a_mask_in_one_whole_graph(mask, train, caplog):
    """Its padding is computed, since the host cannot read the mask; zeros there all the same. The log says so."""
    say_once.cache_clear()
    model, counter = BertModel(config(num_hidden_layers=2)).train(train), CompileCounterWithBackend("aot_eager")
    given = {"input_ids": torch.randint(5, 100, (3, 7)), "attention_mask": MASKS[mask]}
    assert_equal(both(model, counter, given))
    assert counter.frame_count == 1
    told = [record.message for record in caplog.records if "whole graph" in record.message]
    assert len(told) == 1
    assert told[0].startswith("BertModel: in one whole graph (fullgraph=True) padding is computed")


def test_masks_of_all_shapes_share_one_whole_graph():
    model, counter = BertForSequenceClassification(config()).eval(), CompileCounterWithBackend("eager")
    for rows, columns, kept in ((2, 7, 5), (3, 9, 9), (4, 12, 1), (5, 6, 3)):
        mask = torch.ones(rows, columns, dtype=torch.int64)
        mask[1:, kept:] = 0
        given = {"input_ids": torch.randint(5, 100, (rows, columns)), "attention_mask": mask}
        assert_equal(both(model, counter, given, dynamic=True))
    assert counter.frame_count == 1


LABELS = torch.where(RIGHT != 0, 1, -100)
HEADS = {
    "states and probabilities": (BertModel, {"output_hidden_states": True, "output_attentions": True}),
    "left to right": (BertModel, {}),
    "sequences": (BertForSequenceClassification, {"labels": torch.tensor([0, 1, 1])}),
    "tokens": (BertForTokenClassification, {"labels": LABELS}),
    "masked words": (BertForMaskedLM, {"labels": LABELS}),
    "answers": (BertForQuestionAnswering, {"start_positions": LABELS[:, 0], "end_positions": LABELS[:, 1]}),
}


@pytest.mark.parametrize("head", HEADS)
def test_heads_and_losses_in_one_whole_graph(head):
    if head == "masked words" and not torch._dynamo.config.capture_dynamic_output_shape_ops:
        pytest.skip("this torch's compiler breaks a graph where labels are looked for")
    kind, more = HEADS[head]
    model = kind(config(is_decoder=head == "left to right")).train()
    given = {"input_ids": torch.randint(5, 100, (3, 7)), "attention_mask": RIGHT, **more}
    assert_equal(both(model, "aot_eager", given))


def test_probabilities_without_a_mask_in_one_whole_graph(caplog):
    say_once.cache_clear()
    given = {"input_ids": torch.randint(5, 100, (3, 7)), "output_attentions": True}
    assert_equal(both(BertModel(config()).eval(), "eager", given))
    (told,) = [record.message for record in caplog.records if "pads" in record.message]
    assert told.endswith("which computes pads too: attention probabilities were asked for")


def test_dropout_in_one_whole_graph_is_drawn_anew_and_by_the_seed():
    model = BertModel(config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)).train()
    compiled, ids = torch.compile(model, fullgraph=True, backend="aot_eager"), torch.randint(5, 100, (3, 7))

    def drawn() -> torch.Tensor:
        return compiled(ids, attention_mask=RIGHT).last_hidden_state

    first = [torch.manual_seed(1) and drawn() for _ in range(2)]
    assert torch.equal(*first)
    assert not torch.allclose(drawn(), first[0])


def test_a_whole_graph_refuses_batch_invariant_mode():
    model, ids = BertModel(config()).eval(), torch.randint(5, 100, (3, 7))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    state(compiled, ids, RIGHT)
    with fastbert.batch_invariant(), pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(ids, attention_mask=RIGHT)


def test_a_graph_that_may_break_packs():
    """After the same model was compiled into a whole one."""
    model, ids = BertModel(config()).eval(), torch.randint(5, 100, (3, 7))
    state(torch.compile(model, fullgraph=True, backend="eager"), ids, RIGHT)
    torch._dynamo.reset()
    seen = []
    model.encoder.layer[0].register_forward_hook(lambda _, given, __: seen.append(given[0].shape[0]))
    state(torch.compile(model, backend="eager"), ids, RIGHT)
    assert seen == [int(RIGHT.sum())]


@pytest.mark.parametrize("masked", [False, True], ids=["all", "mask"])
def test_compiled_activation_checkpointing(masked):
    """Which torch refused, because of the contexts that a recomputation has in a model that is not compiled."""
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    model, ids = BertModel(config(num_hidden_layers=2, **rates)).train(), torch.randint(5, 100, (3, 7))
    compiled, found = torch.compile(model, backend="aot_eager"), []
    for enabled in (False, True):
        model.gradient_checkpointing_enable() if enabled else model.gradient_checkpointing_disable()
        model.zero_grad()
        torch.manual_seed(0)
        compiled(ids, attention_mask=RIGHT if masked else None).last_hidden_state.square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert_equal(found)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends(backend):
    model = BertModel(config()).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for length in (64, 17, 200):
        ids = torch.randint(5, 100, (2, length))
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(ids).last_hidden_state, model(ids).last_hidden_state, rtol=2e-5, atol=2e-6
            )


@pytest.mark.parametrize("compiled", [False, True], ids=["uncompiled", "compiled"])
def test_a_model_that_is_gone_leaves_no_weights_behind(compiled):
    def weight_of_a_model_that_ran():
        model = BertModel(config()).eval()
        call = torch.compile(model, backend="eager") if compiled else model
        with torch.inference_mode():
            call(torch.tensor([[1, 2, 3]]))
        return weakref.ref(model.encoder.layer[-1].output.dense.weight)

    weight = weight_of_a_model_that_ran()
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None
