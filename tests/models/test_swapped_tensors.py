"""Models whose tensors torch swaps where it converts or loads them: a weight that was used is swapped as any other."""

from __future__ import annotations

import copy

import hf_parity as hf
import pytest
import torch

import fastbert

NAME = "BertForSequenceClassification"


@pytest.fixture(autouse=True)
def _swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def logits(model) -> torch.Tensor:
    """What the model says, and that a copy, of which nothing is packed yet, says the same."""
    with torch.inference_mode():
        got, again = (m(**hf.arguments(NAME)).logits for m in (model, copy.deepcopy(model)))
    assert torch.equal(got, again)
    return got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["native", "patched"])
def test_weights_that_were_packed_are_swapped(kind, dtype):
    """torch refuses it for a tensor that has a weak reference."""
    theirs, ours = hf.pair(NAME, dtype)
    model = ours.eval() if kind == "native" else fastbert.patch(theirs).eval()
    before = logits(model)
    model(**hf.arguments(NAME), **hf.labels(NAME)).loss.backward()
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
    assert not torch.allclose(logits(model), before, rtol=0.1)
    for other in (torch.float64, dtype, torch.bfloat16, torch.float32):
        assert logits(model.to(other)).dtype == other
