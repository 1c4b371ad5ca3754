"""The packing of a mask by the CPU kernel is the one that torch's words make."""

from __future__ import annotations

import pytest
import torch

import fastbert
from fastbert import _native, ops
from fastbert.errors import InputError
from fastbert.packing import Packing

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason="the C++ extension is not built")

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
MASKS = {
    "holes": [[1, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]],
    "left padding": [[0, 0, 1, 1], [1, 1, 1, 1]],
    "an empty row": [[1, 1], [0, 0], [1, 0]],
    "only empty rows": [[0, 0], [0, 0]],
    "full": [[1, 1, 1]],
    "one token": [[1]],
}


def both(mask: torch.Tensor, first_column: bool) -> list[Packing | None]:
    found = []
    torch.use_deterministic_algorithms(True)  # new tensors are full of other numbers: what is not written shows
    try:
        for name in ("cpu", "reference"):
            with fastbert.backend(name):
                found.append(ops.read_mask(mask, first_column=first_column))
    finally:
        torch.use_deterministic_algorithms(False)
    return found


def check_equal(ours: Packing | None, theirs: Packing | None) -> None:
    if ours is None or theirs is None:
        assert ours is theirs
        return
    for name in ("indices", "cu_seqlens"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert a.dtype == b.dtype
        assert torch.equal(a, b), name
    for name in ("min_seqlen", "max_seqlen", "batch_size", "seqlen"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("first_column", [False, True])
def test_every_dtype(dtype, name, first_column):
    mask = torch.tensor(MASKS[name]).to(dtype)
    ours, theirs = both(mask, first_column)
    check_equal(ours, theirs)
    assert (ours is None) == (first_column and name == "left padding")


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (40, 33)])
def test_sizes(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.7
    check_equal(*both(mask, False))
    check_equal(*both(mask, True))


@pytest.mark.parametrize("value", [-1.0, 0.5, float("nan"), float("-inf"), 1e-40, -0.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_any_number_but_a_zero_keeps(value, dtype):
    mask = torch.tensor([[1.0, value, 1.0]], dtype=dtype)
    ours, theirs = both(mask, True)
    check_equal(ours, theirs)
    assert ours.max_seqlen == (2 if value == 0 else 3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_the_least_whole_number_keeps(dtype):
    """Its bits are those of a negative zero."""
    mask = torch.tensor([[torch.iinfo(dtype).min, 0]], dtype=dtype)
    ours, theirs = both(mask, True)
    check_equal(ours, theirs)
    assert ours.max_seqlen == 1


def test_a_mask_that_is_no_block_of_memory():
    mask = (torch.arange(24).reshape(4, 6) % 5 != 0).T[:, ::2]
    check_equal(*both(mask, False))
    check_equal(*both(torch.tensor([[1], [0]]).expand(2, 3), False))


def test_another_shape_is_refused():
    with pytest.raises(InputError, match=r"\(B, S\).*\(2, 1, 3\)"):
        ops.read_mask(torch.ones(2, 1, 3), first_column=False)


def test_tokens_that_are_pooled_are_the_first_of_each_sequence():
    """With and without an empty sequence, where another path leads to them."""
    torch.manual_seed(3)
    config = fastbert.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    model = fastbert.BertModel(config).eval()
    ids = torch.randint(50, (3, 5))
    for lengths in ((5, 2, 4), (5, 0, 4)):
        mask = torch.arange(5) < torch.tensor(lengths)[:, None]
        with torch.no_grad():
            out = model(ids, mask)
            first = out.last_hidden_state[:, 0]
            torch.testing.assert_close(out.pooler_output, model.pooler(first))
