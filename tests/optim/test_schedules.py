"""Schedules against numbers worked out by hand and against transformers' schedulers."""

from __future__ import annotations

import pytest
import torch
import transformers

from fastbert.errors import InputError
from fastbert.optim import schedules

BY_HAND = [
    # name, warmup, progress, multiplier
    ("linear", 0.0, 0.0, 1.0),
    ("linear", 0.0, 0.25, 0.75),
    ("linear", 0.0, 1.0, 0.0),
    ("linear", 0.1, 0.0, 0.0),
    ("linear", 0.1, 0.05, 0.5),
    ("linear", 0.1, 0.1, 1.0),
    ("linear", 0.1, 0.55, 0.5),
    ("linear", 0.1, 1.0, 0.0),
    ("linear", 0.1, 1.2, 0.0),
    ("linear", 1.0, 0.5, 0.5),
    ("linear", 1.0, 1.0, 1.0),
    ("poly", 0.0, 0.75, 0.5),
    ("poly", 0.2, 0.1, 0.5),
    ("poly", 0.2, 0.36, 0.8),
    ("poly", 0.2, 1.0, 0.0),
    ("poly", 0.2, 1.1, 0.0),
    ("constant", 0.0, 0.0, 1.0),
    ("constant", 0.5, 0.25, 0.5),
    ("constant", 0.5, 0.99, 1.0),
]


@pytest.mark.parametrize(("name", "warmup", "progress", "expected"), BY_HAND)
def test_by_hand(name, warmup, progress, expected):
    assert getattr(schedules, name)(progress, warmup) == pytest.approx(expected, abs=1e-12)
    assert schedules.by_name(name)(progress, warmup) == pytest.approx(expected, abs=1e-12)


def test_poly_power():
    assert schedules.poly(0.5, 0.0, power=2.0) == pytest.approx(0.25)
    assert schedules.poly(1.0, 1.0, offset=True) == 0.0  # of which nothing is left after the warm-up


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("linear", lambda o: transformers.get_linear_schedule_with_warmup(o, 10, 100)),
        ("constant", lambda o: transformers.get_constant_schedule_with_warmup(o, 10)),
    ],
)
def test_is_transformers_at_every_step(name, theirs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = theirs(optimizer)
    schedule = schedules.by_name(name)
    for step in range(100):
        assert schedule(step / 100, 0.1) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12), step
        optimizer.step()
        scheduler.step()


def test_an_unknown_schedule_is_refused():
    with pytest.raises(InputError, match="linear, poly, constant"):
        schedules.by_name("cosine")


@pytest.mark.parametrize("name", ["linear", "poly", "constant"])
@pytest.mark.parametrize("warmup", [100, -0.1, float("nan")])
def test_a_warm_up_that_is_no_share_is_refused(name, warmup):
    with pytest.raises(InputError, match="warmup must be a share of the training, from 0 to 1, got"):
        schedules.by_name(name)(0.5, warmup)
