"""Evaluation mode for a while leaves every part of a model as it was."""

from __future__ import annotations

import pytest
from torch import nn

from fastbert.modules.mode import evaluating


def test_parts_that_were_frozen_stay_frozen():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    model[1].eval()
    before = [module.training for module in model.modules()]
    assert before == [True, True, False, False, False]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before


def test_an_error_leaves_the_modes_too():
    model = nn.Dropout()
    with pytest.raises(ValueError, match="in between"), evaluating(model):
        raise ValueError("in between")
    assert model.training
