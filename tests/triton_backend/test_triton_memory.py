"""What watches memory in the interpreter finds what is wrong in kernels made for it, and nothing in right ones."""

from __future__ import annotations

import os

import memory_watch
import pytest
import torch

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)
tl = triton.language
BLOCK = 8


@triton.jit
def _apart(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def _overlap(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * (BLOCK - 1) + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def _of_the_one_before(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(out_ptr + at - BLOCK, mask=at >= BLOCK, other=0.0)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + before)


@triton.jit
def _read_back(x_ptr, out_ptr, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))
    if BARRIER:
        tl.debug_barrier()
    turned = tl.load(out_ptr + tl.program_id(0) * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK))
    if BARRIER:
        tl.debug_barrier()
    tl.store(out_ptr + at, turned)


@triton.jit
def _two_values(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at // 2, tl.load(x_ptr + at))


@triton.jit
def _counted(x_ptr, out_ptr, READ: tl.constexpr, RESET: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if RESET:
        tl.store(out_ptr, 0.0)
    if READ:
        tl.store(out_ptr + 1 + tl.program_id(0), tl.load(out_ptr))
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + at)))


@pytest.mark.parametrize(
    ("kernel", "options", "expected"),
    [
        (_apart, {}, None),
        (_overlap, {}, memory_watch.WRITTEN_TWICE),
        (_of_the_one_before, {}, memory_watch.ANOTHERS),
        (_read_back, {"BARRIER": False}, memory_watch.NO_BARRIER),
        (_read_back, {"BARRIER": True}, None),
        (_two_values, {}, memory_watch.TWO_VALUES),
        (_counted, {"READ": False, "RESET": False}, None),
        (_counted, {"READ": True, "RESET": False}, memory_watch.ANOTHERS_ATOMICS),
        (_counted, {"READ": False, "RESET": True}, memory_watch.BOTH_WAYS),
    ],
)
def test_found(monkeypatch, kernel, options, expected):
    with monkeypatch.context() as patch:
        found = memory_watch.watch(patch)
        kernel[(3,)](torch.arange(1.0, 25.0), torch.zeros(64), **options, BLOCK=BLOCK)
        assert expected in found[kernel.fn.__name__] if expected else not found[kernel.fn.__name__]


def test_a_mask_keeps_places_apart(monkeypatch):
    @triton.jit
    def _masked(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK // 2 + tl.arange(0, BLOCK)
        mine = tl.arange(0, BLOCK) < n
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mine), mask=mine)

    with monkeypatch.context() as patch:
        found = memory_watch.watch(patch)
        _masked[(3,)](torch.arange(24.0), torch.zeros(64), BLOCK // 2, BLOCK=BLOCK)
        assert not found["_masked"]
        _masked[(3,)](torch.arange(24.0), torch.zeros(64), BLOCK, BLOCK=BLOCK)
        assert memory_watch.WRITTEN_TWICE in found["_masked"]


@triton.jit
def _long(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0))


@pytest.mark.parametrize(("n", "wrong"), [(7, False), (8, True)])
def test_what_lies_beside_a_tensor_is_not_its_own(monkeypatch, n, wrong):
    x = torch.zeros(30)[1:8]
    with monkeypatch.context() as patch:
        found = memory_watch.watch(patch)
        _long[(1,)](x, torch.zeros(BLOCK), n, BLOCK=BLOCK)
    assert (memory_watch.BESIDE in found["_long"]) == wrong
