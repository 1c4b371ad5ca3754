"""A whole training step of fixed shape on the Triton kernels: right, repeatable, and never waiting for the device.

Like test_triton_kernels.py in Triton's interpreter, or on a GPU, where the step is captured in a graph.
"""

from __future__ import annotations

import os
from itertools import accumulate
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fastbert
from fastbert import BertConfig, BertForPreTraining, PackedBatch, ops, optim
from fastbert.data.budget import BatchShape, fill_up
from fastbert.models import inputs, pretraining_heads, task_heads
from fastbert.train import graph, shaped_steps
from fastbert.train.engine import LocalEngine
from fastbert.train.precision import why_no_fp8
from fastbert.train.shaped_steps import ShapedSteps

pytest.importorskip("triton")
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETING and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)
DEVICE = "cpu" if INTERPRETING else "cuda"
SHAPE = BatchShape(tokens=16, sequences=4, predictions=5, max_seqlen=16)
LENGTHS = ((5, 9), (1, 8, 4))


class NoHostSync(TorchDispatchMode):
    """Fails where the host would read a number from the device, or make a shape of one."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "repeat_interleave.Tensor")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.")
        assert not any(name == word or name.startswith(word + ".") for word in self.FORBIDDEN), f"{function} waits"
        return function(*args, **(kwargs or {}))


def batches(steps: int):
    generator = torch.Generator().manual_seed(3)
    for number in range(steps):
        lengths = LENGTHS[number % len(LENGTHS)]
        batch = PackedBatch.from_sequences([torch.randint(5, 20, (n,), generator=generator) for n in lengths])
        starts = [0, *accumulate(lengths)][:-1]
        labels = torch.randint(5, 20, (len(lengths),), generator=generator)
        nsp = torch.randint(0, 2, (len(lengths),), generator=generator)
        kept = {name: getattr(batch, name) for name in ("input_ids", "token_type_ids", "position_ids", "cu_seqlens")}
        positions = torch.tensor(starts)
        plain = PackedBatch(**kept, max_seqlen=16, mlm_positions=positions, mlm_labels=labels, nsp_labels=nsp)
        yield fill_up(plain, SHAPE, 0)


def run(backend: str, steps: int = 3, precision: str = "fp32", forbid: bool = False) -> tuple[list[float], list]:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=1, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    model = BertForPreTraining(config).to(DEVICE).train()
    model.last_layer = "needed"
    optimizer = optim.AdamW(optim.param_groups(model, 0.01), lr=1e-3)
    engine = LocalEngine(model, optimizer, precision=precision, seed=(0x9123 << 48) + 5, on_device=True)
    losses = []
    with ops.backend(backend):
        step = graph.make(engine, SHAPE, pairs=True, accumulate=1)
        for number, batch in enumerate(batches(steps)):
            if forbid and number:  # the first step makes what the others find
                with NoHostSync():
                    step.run([batch], 1e-3)
            else:
                step.run([batch], 1e-3)
            losses.append(float(step.take_sums()[0]))
    engine.settle()
    return losses, [p.detach() for p in engine.parameters]


def leave_out_checks(monkeypatch) -> None:
    """On a CPU these look at the ids; on a GPU they return at once."""
    if INTERPRETING:
        monkeypatch.setattr(inputs, "check_ids", lambda *_: None)
        monkeypatch.setattr(pretraining_heads, "check_labels", lambda *_: None)
        monkeypatch.setattr(pretraining_heads, "check_range", lambda *_: None)
        monkeypatch.setattr(task_heads, "check_labels", lambda *_: None)


def test_a_step_is_right_and_never_waits_for_the_device(monkeypatch):
    """The kernels read seed and offset from memory, the reference is told them: the dropout is the same."""
    expected, same = run("reference", 2) if INTERPRETING else (None, None)
    leave_out_checks(monkeypatch)
    losses, weights = run("triton", 2, forbid=True)
    if INTERPRETING:  # a graph cannot be told numbers
        assert losses == pytest.approx(expected, rel=1e-5)
        for a, b in zip(weights, same, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


NO_FP8 = why_no_fp8(torch.device(DEVICE))


@pytest.mark.skipif(bool(NO_FP8), reason=str(NO_FP8))
def test_a_step_in_8_bits_never_waits_either(monkeypatch):
    """Scales are made and read where the tensors are."""
    leave_out_checks(monkeypatch)
    run("triton", 2, "fp8", forbid=True)


if not INTERPRETING:

    @pytest.mark.parametrize("precision", ["fp32", *([] if NO_FP8 else ["fp8"])])
    def test_replays_of_a_graph_are_steps_that_were_not_captured(monkeypatch, precision):
        """Eight steps, five of them replayed; twice to the same bits."""
        captured = run("triton", 8, precision)
        again = run("triton", 8, precision)
        assert captured[0] == again[0]
        assert all(torch.equal(a, b) for a, b in zip(captured[1], again[1], strict=True))
        monkeypatch.setattr(graph, "_WARM_UP", 100)
        plain = run("triton", 8, precision)
        assert captured[0] == plain[0]
        assert all(torch.equal(a, b) for a, b in zip(captured[1], plain[1], strict=True))


FINETUNED = {
    "vocab_size": 20, "hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 16,
    "max_position_embeddings": 16,
}  # fmt: skip
HEADS = ("SequenceClassification", "Regression", "TokenClassification", "QuestionAnswering", "MultipleChoice")


def labelled_batches(head: str, steps: int, shapes: int = 2):
    """Two shapes by turns, or one."""
    generator = torch.Generator().manual_seed(3)
    for number in range(steps):
        lengths = ((5, 3, 1, 2), (9, 7, 16, 4))[number % shapes]
        batch = PackedBatch.from_sequences([torch.randint(1, 20, (n,), generator=generator) for n in lengths])
        rows = len(lengths) // (2 if head == "MultipleChoice" else 1)
        labels = torch.randint(0, 2, (batch.num_tokens,), generator=generator)
        if head == "TokenClassification":
            yield batch, {"labels": labels}
        elif head == "Regression":
            yield batch, {"labels": 5 * torch.rand(rows, generator=generator)}
        elif head == "QuestionAnswering":
            yield batch, {"start_positions": labels[:rows], "end_positions": 1 - labels[:rows]}
        else:
            yield batch, {"labels": labels[:rows]} | ({"num_choices": 2} if head == "MultipleChoice" else {})


def finetune(
    head: str, steps: int, capture: bool = True, forbid: bool = False, changes=None, layers: int = 2, shapes: int = 2
):
    """``changes``: what is done to the engine before the step of each number."""
    torch.manual_seed(0)
    kind, outputs = ("SequenceClassification", 1) if head == "Regression" else (head, 2)
    config = BertConfig(**FINETUNED, num_hidden_layers=layers, num_labels=outputs)
    model = getattr(fastbert, f"BertFor{kind}")(config).to(DEVICE).train()
    optimizer = optim.AdamW(optim.param_groups(model, 0.01), lr=1e-3)
    engine = LocalEngine(model, optimizer, precision="fp32", seed=5, on_device=True)
    shaped, found = ShapedSteps(engine, 3, 16), []
    with ops.backend("auto" if capture else "triton"), mock.patch.object(shaped_steps, "LEAST_TOKENS", 8):
        for number, (batch, labels) in enumerate(labelled_batches(head, steps, shapes)):
            assert shaped.takes(batch, labels)
            if not capture:
                shaped._may_capture = False
            if changes and number in changes:
                changes[number](engine)
            if forbid and number >= shapes:  # a shape's first step makes what the others find
                with NoHostSync():
                    out = shaped.run(batch, labels, 1e-3, {})
            else:
                out = shaped.run(batch, labels, 1e-3, {})
            found.append(out.tolist())
    engine.settle()
    captured = sum(one.replay.is_captured for one in shaped._by_shape.values())
    return found, [p.detach() for p in engine.parameters], captured


def unfreeze_and_load(engine: LocalEngine) -> None:
    engine.model.bert.requires_grad_(True)
    engine.optimizer.load_state_dict(engine.optimizer.state_dict())


# With two shapes by turns, the first is captured in step 2 and replayed in step 4; after the change in step 5 the other
# one is captured in step 7 and replayed in step 9.
CHANGES = {0: lambda engine: engine.model.bert.requires_grad_(False), 5: unfreeze_and_load}


SHORT = ("TokenClassification", "MultipleChoice")


@pytest.mark.parametrize(
    "head",
    [pytest.param(head, marks=pytest.mark.slow if INTERPRETING and head not in SHORT else ()) for head in HEADS],
)
def test_nothing_in_a_step_of_fine_tuning_waits_for_the_device(monkeypatch, head):
    """In the interpreter with all layers and shapes below one head alone: what is below is of all heads the same."""
    leave_out_checks(monkeypatch)
    many = 1 if INTERPRETING and head != "QuestionAnswering" else 2
    found, _, _ = finetune(head, many + 1, capture=False, forbid=True, layers=many, shapes=many)
    assert all(loss > 0 and norm > 0 for loss, norm in found)


if not INTERPRETING:

    @pytest.mark.parametrize("head", HEADS)
    def test_replays_of_fine_tuning_have_the_bits_of_steps_that_are_not_captured(head):
        found, weights, captured = finetune(head, 10)
        plain, expected, none = finetune(head, 10, capture=False)
        assert (captured, none) == (2, 0)
        assert found == plain
        assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))

    def test_replays_of_fine_tuning_follow_what_was_replaced():
        """In a loop of one's own: layers are unfrozen, the optimiser's state is loaded."""
        found, weights, captured = finetune("SequenceClassification", 10, changes=CHANGES)
        plain, expected, _ = finetune("SequenceClassification", 10, capture=False, changes=CHANGES)
        assert captured == 1, "the second shape; the first one's graph is gone"
        assert found == plain
        assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
