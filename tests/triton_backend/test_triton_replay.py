"""Inference by CUDA graphs: the states of the plain pass, whatever is done to the model and the batch between passes.

Like test_triton_kernels.py in Triton's interpreter, where a replay calls the captured function, or on a GPU. By the
stand-in for a GPU, where a graph replays its launches: tests/stand_in.
"""

from __future__ import annotations

import itertools
import os
from contextlib import nullcontext

import pytest
import torch

from fastbert import BertConfig, BertModel, PackedBatch, ops
from fastbert.errors import InputError
from fastbert.modules.stack import _stacks
from fastbert.ops import _triton_encoder, _triton_replay

pytest.importorskip("triton")
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETING and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)
DEVICE = "cpu" if INTERPRETING else "cuda"
PARTS = ("attention.self.query", "intermediate.dense", "output.dense")
LENGTHS = ((5, 9), (1, 8, 4), (16,), (7,))
# Passes after which a shape's graph was replayed.
ENOUGH = 2 if INTERPRETING else _triton_replay.CAPTURED_PASS + 1


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    monkeypatch.setattr(_triton_replay, "LEAST_TOKENS", 8)  # so that several shapes occur
    with ops.backend("triton"):
        yield


@pytest.fixture
def shapes(monkeypatch):
    """(tokens, sequences) of every pass of the layers."""
    seen, forward = [], _triton_encoder._forward

    def spy(x, p, call, *rest, **options):
        seen.append((len(x), call.cu_seqlens.numel() - 1))
        return forward(x, p, call, *rest, **options)

    monkeypatch.setattr(_triton_encoder, "_forward", spy)
    return seen


def model(**options) -> BertModel:
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 16, "max_position_embeddings": 16}
    return BertModel(BertConfig(vocab_size=30, num_hidden_layers=1, **sizes | options)).to(DEVICE).eval()


def batch(*lengths: int) -> PackedBatch:
    starts = [0, *itertools.accumulate(lengths)]
    return PackedBatch.from_sequences([5 + torch.arange(a, b) % 20 for a, b in itertools.pairwise(starts)]).to(DEVICE)


@torch.no_grad()
def states(bert: BertModel, *lengths: int, graphs: bool = True) -> torch.Tensor:
    with ops.cuda_graphs(graphs):
        return bert(batch(*lengths)).last_hidden_state


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def streams(bert: BertModel) -> list:
    """What is kept of a model, by stream and dtype."""
    return [*_stacks[bert.encoder].packed.held["triton graphs"]._streams.values()]


def test_states_are_those_of_the_plain_pass_batch_after_batch(shapes):
    bert = model()
    plain = [states(bert, *lengths, graphs=False) for lengths in LENGTHS]
    assert shapes == [(sum(lengths), len(lengths)) for lengths in LENGTHS]
    shapes.clear()
    found = [[states(bert, *lengths) for lengths in LENGTHS] for _ in range(ENOUGH)]
    assert set(shapes) == {(16, 8), (8, 8)}
    for one in found:
        for got, first, expected in zip(one, found[0], plain, strict=True):
            close(got, expected)
            assert torch.equal(got, first), "a captured pass has other bits than those before it"


def test_a_batch_with_a_longer_sequence_has_another_shape():
    bert = model(max_position_embeddings=65)
    for lengths in ((35, 35), (65, 5)):
        close(states(bert, *lengths), states(bert, *lengths, graphs=False))


def test_results_are_not_overwritten_by_later_passes():
    bert = model()
    first = states(bert, 5, 9)
    kept = first.clone()
    states(bert, 9, 5)
    assert torch.equal(first, kept)


def test_added_rows_reach_no_other():
    bert = model()
    expected = states(bert, 5, 4)
    (stream,) = streams(bert)
    stream._x.fill_(float("nan"))
    assert torch.equal(states(bert, 5, 4), expected)


@pytest.mark.parametrize("change", ["trained", "moved", "loaded", "halved"])
def test_a_graph_follows_the_model(change):
    bert = model()
    for _ in range(ENOUGH):
        before = states(bert, 5, 9)
    with torch.no_grad():
        if change == "trained":
            for parameter in bert.parameters():
                parameter.mul_(0.5)
        elif change == "moved":  # what `Module.to` does
            for parameter in bert.encoder.parameters():
                parameter.data = parameter.data * 0.5
        elif change == "loaded":
            bert.load_state_dict({name: x * 0.5 for name, x in bert.state_dict().items()}, assign=True)
        else:
            bert.half()
    expected, found = states(bert, 5, 9, graphs=False), states(bert, 5, 9)
    assert not torch.equal(found.float(), before)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3 if change == "halved" else 1e-6)


@pytest.mark.parametrize("assign", [True, False], ids=["another parameter", "the same parameter"])
@pytest.mark.parametrize("change", ["transposed", "narrower", "another dtype"])
def test_a_graph_does_not_outlive_the_layout_of_a_weight(change, assign):
    """The new weight begins at the old one's address, which a graph would read as before."""
    bert = model(intermediate_size=32)
    states(bert, 5, 9)
    before = streams(bert)
    query, wide, narrow = (bert.get_submodule(f"encoder.layer.0.{n}") for n in PARTS)
    replaced = {
        "transposed": [(query, "weight", lambda x: x.t())],
        "narrower": [(wide, n, lambda x: x[:16]) for n in ("weight", "bias")]
        + [(narrow, "weight", lambda x: x[:, :16])],
        "another dtype": [(query, "weight", lambda x: x.view(torch.bfloat16).flatten()[:256].view(16, 16))],
    }[change]
    for module, name, view in replaced:
        old = getattr(module, name)
        new = view(old.detach())
        assert new.data_ptr() == old.data_ptr()
        if assign:
            setattr(module, name, torch.nn.Parameter(new))
        else:
            old.data = new
    with torch.autocast(DEVICE, torch.bfloat16, enabled=change == "another dtype"):
        expected, found = states(bert, 5, 9, graphs=False), states(bert, 5, 9)
    assert not set(before) & set(streams(bert))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2 if change == "another dtype" else 1e-6)


def test_shapes_used_longest_ago_are_given_up(monkeypatch):
    monkeypatch.setattr(_triton_replay, "MOST_SHAPES", 2)
    bert = model()
    for lengths in ((4,), (16,), (4,), (10, 14), (4,)):
        close(states(bert, *lengths), states(bert, *lengths, graphs=False))
    (stream,) = streams(bert)
    assert [key[0] for key in stream._shapes] == [24, 8]


@pytest.mark.parametrize("why", ["recorded", "all states", "trained", "large", "many tokens", "by default"])
def test_passes_that_are_computed_as_they_are(monkeypatch, shapes, why):
    bert, given, options = model(), batch(5, 4), {"output_hidden_states": why == "all states"}
    bert.train(why == "trained")
    if why == "large":
        monkeypatch.setattr(_triton_replay, "MOST_WORK", 8 * 16 * 16)
    if why == "many tokens":
        monkeypatch.setattr(_triton_replay, "MOST_TOKENS", 8)
    graphs = nullcontext() if why == "by default" else ops.cuda_graphs()
    with torch.set_grad_enabled(why == "recorded"), graphs:
        bert(given, **options)
    assert shapes == [(9, 2)]


def test_autocast_and_plain_passes_each_have_their_graphs():
    bert = model()
    for _ in range(2):
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16):
                found, expected = states(bert, 5, 9), states(bert, 5, 9, graphs=False)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-2)


def test_inference_mode_and_no_grad_share_a_graph():
    bert = model()
    with torch.inference_mode():
        expected = states(bert, 5, 9)
    found = states(bert, 5, 9)
    assert torch.equal(found, expected)
    assert not found.is_inference()


def test_a_process_is_told_by_its_environment(monkeypatch, shapes):
    monkeypatch.setenv("FASTBERT_CUDA_GRAPHS", "1")
    bert = model()
    with torch.no_grad():
        bert(batch(5, 4))
        states(bert, 5, 4, graphs=False)
        assert shapes == [(16, 8), (9, 2)]
        monkeypatch.setenv("FASTBERT_CUDA_GRAPHS", "yes")
        with pytest.raises(InputError, match="FASTBERT_CUDA_GRAPHS must be 0 or 1, got 'yes'"):
            bert(batch(5, 4))


if not INTERPRETING:

    def test_a_shape_is_captured_once_and_replayed():
        bert = model()
        for _ in range(_triton_replay.CAPTURED_PASS + 2):
            close(states(bert, 5, 9), states(bert, 5, 9, graphs=False))
        (stream,) = streams(bert)
        assert [shape.replay.is_captured for shape in stream._shapes.values()] == [True]
