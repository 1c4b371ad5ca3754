"""Who computes an op: the first that can, or the one that was asked for by name, or nobody."""

from __future__ import annotations

import logging

import pytest
import torch

from fastbert import ops
from fastbert.errors import BackendError, InputError
from fastbert.ops import _dispatch


@pytest.fixture(autouse=True)
def op(monkeypatch) -> None:
    """An op of which each backend returns its name: triton is not there, and cpu takes no float64."""
    monkeypatch.setattr(_dispatch, "_table", {})
    monkeypatch.setattr(_dispatch, "_logged", set())

    def narrow(x: torch.Tensor) -> str | None:
        return "it takes no float64" if x.dtype == torch.float64 else None

    def absent(_x: torch.Tensor) -> None:
        raise AssertionError("a backend that is not there is not asked about a call")

    _dispatch.register("op", "triton", available=lambda: "it is not installed", accepts=absent)(lambda _: "triton")
    _dispatch.register("op", "cpu", accepts=narrow)(lambda _: "cpu")
    _dispatch.register("op", "reference")(lambda _: "reference")


NARROW, WIDE = torch.zeros(2), torch.zeros(2, dtype=torch.float64)


def test_the_first_that_can_serves_and_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "fastbert")
    assert [_dispatch.call("op", x) for x in (NARROW, WIDE, NARROW, WIDE)] == ["cpu", "reference", "cpu", "reference"]
    assert caplog.messages == ["op is served by backend cpu", "op is served by backend reference"]
    caplog.clear()
    _dispatch._logged.clear()
    with ops.backend("cpu"):
        assert _dispatch.call("op", NARROW) == "cpu"
    assert not caplog.messages, "a choice of the caller's is no news"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("triton", "it is not installed"),
        ("cpu", "it takes no float64"),
        ("cuda", "it has no implementation of this op"),
    ],
)
def test_a_backend_by_name_serves_or_says_why_not(name, reason):
    with (
        ops.backend(name),
        pytest.raises(BackendError, match=f"op: backend '{name}' was asked for by name but cannot serve: {reason}"),
    ):
        _dispatch.call("op", WIDE)


def test_fused_is_a_kernel_or_nothing():
    assert _dispatch.fused("op", NARROW)(NARROW) == "cpu"
    assert _dispatch.fused("op", WIDE) is None
    for name in ("reference", "triton"):
        with ops.backend(name):
            assert _dispatch.fused("op", NARROW) is None


@pytest.mark.parametrize("name", ["auto", "reference"])
def test_the_reference_is_given_no_meta_tensors(name):
    with ops.backend(name), pytest.raises(InputError, match="op: expected tensors with numbers, got one on the meta"):
        _dispatch.call("op", WIDE.to("meta"))
