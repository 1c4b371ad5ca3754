"""csrc/cuda's kernels on a CPU: the .cu files compiled by g++ with tests/cuda/emulation in place of CUDA's headers.

Threads of a block take turns there from barrier to barrier, so what they read of one another is tested too.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from close import assert_close
from optimizers_by_hand import BETA1, BETA2, EPS, VARIANTS, groups_of, hold_bounds_of_trust, lamb_by_hand, start
from optimizers_by_hand import train as by_hand_train

from fastbert import ops
from fastbert.errors import InputError
from fastbert.ops import RoomPacking, _cuda, _cuda_packing
from fastbert.optim import Lamb
from fastbert.packing import Packing

REPO = Path(__file__).resolve().parents[2]
I64, I32, VOID = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p


def fields(**types) -> type[ctypes.Structure]:
    return type("Args", (ctypes.Structure,), {"_fields_": list(types.items())})


# The structs of csrc/include/cuda.h.
PACK = fields(mask=VOID, b=I64, s=I64, capacity=I64, i=VOID, p=VOID, slots=VOID, cu=VOID, statistics=VOID)
GATHER = fields(x=VOID, places=VOID, wide=ctypes.c_bool, out=VOID, rows=I64, row_bytes=I64)
LAMB = fields(
    **dict.fromkeys(("places", "rates", "chunks", "bounds", "control", "squares", "trusts"), VOID),
    **dict.fromkeys(("first_chunk", "num_chunks", "num_tensors"), I64),
    **dict.fromkeys(("param_type", "grad_type"), I32),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("no g++")
    out = tmp_path_factory.mktemp("emulated") / "cuda.so"
    here = REPO / "tests" / "cuda" / "emulation"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{here}"]
    command += [f"-I{REPO / 'csrc' / 'cuda'}", f"-I{REPO / 'csrc' / 'include'}", here / "entry.cpp", "-o", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(out))


@pytest.fixture
def emulated(library, monkeypatch):
    """`_cuda.call` goes to the emulation; backend "cuda" takes CPU tensors."""

    def call(name, device, *arguments):
        if name == "cuda_pack":
            *head, out = arguments
            error = library.emulated_pack(ctypes.byref(PACK(*head, *out)))
        elif name == "cuda_gather_rows":
            error = library.emulated_gather(ctypes.byref(GATHER(*arguments)))
        else:
            tables, tensors, kinds = arguments
            runs = (LAMB * len(kinds))(*(LAMB(*tables, first, n, tensors, p, g) for p, g, first, n in kinds))
            error = library.emulated_lamb(runs, len(kinds))
        assert error == 0

    monkeypatch.setattr(_cuda, "call", call)


MASKS = {
    "rows of every length": torch.arange(300)[None] < torch.tensor([0, 1, 31, 32, 33, 255, 256, 257, 300, 0])[:, None],
    "holes": torch.rand(7, 70, generator=torch.Generator().manual_seed(0)) > 0.4,
    "left padding": torch.arange(9)[None] >= torch.tensor([0, 3, 8])[:, None],
    "nothing": torch.zeros(2, 5, dtype=torch.bool),
    "more rows than threads": torch.rand(300, 3, generator=torch.Generator().manual_seed(1)) > 0.5,
    "no rows": torch.zeros(0, 5, dtype=torch.bool),
}


def by_hand(mask, capacity):
    """What each field must be, token by token."""
    kept = [(b, s) for b, row in enumerate(mask.tolist()) for s, keep in enumerate(row) if keep]
    lengths = [sum(row) for row in mask.tolist()]
    indices = [b * mask.shape[1] + s for b, s in kept][:capacity]
    slots = [-1] * mask.numel()
    for slot, place in enumerate(indices):
        slots[place] = slot
    room = [0] * (capacity - len(indices))
    return {
        "indices": [*indices, *([-1] * len(room))],
        "position_ids": [*(s for _, s in kept[:capacity]), *room],
        "slots": slots,
        "cu_seqlens": [min(sum(lengths[:b]), capacity) for b in range(len(lengths) + 1)],
        "statistics": [len(kept), max(lengths, default=0)],
    }


@pytest.mark.parametrize("how", ["cuda", "reference"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("room", [0, 5, -3])
def test_packing(emulated, how, name, room):
    """With the very room there is need for, with more, and with too little."""
    mask = MASKS[name]
    capacity = max(int(mask.sum()) + room, 1)
    if how == "cuda":
        packing = RoomPacking(*_cuda_packing.pack(mask, capacity), tuple(mask.shape))
    else:
        with ops.backend("reference"):
            packing = RoomPacking.from_mask(mask, capacity)
    for field, expected in by_hand(mask, capacity).items():
        assert getattr(packing, field).tolist() == expected, field


@pytest.mark.parametrize("how", ["cuda", "reference"])
@pytest.mark.parametrize("shape", [(), (3,), (5, 2), (8,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_is_packed_comes_back(emulated, how, shape, dtype, monkeypatch):
    mask = MASKS["holes"]
    capacity = int(mask.sum()) + 4
    if how == "cuda":
        monkeypatch.setattr(ops._dispatch, "call", lambda op, *given: getattr(_cuda_packing, op)(*given))
    packing = RoomPacking.from_mask(mask, capacity)
    x = torch.randint(1, 100, (*mask.shape, *shape)).to(dtype)
    packed = packing.pack(x)
    same = Packing.from_mask(mask)
    assert torch.equal(packed[:-4], same.pack(x))
    assert not packed[-4:].any()
    assert torch.equal(packing.unpack(packed), same.unpack(same.pack(x)))


@pytest.mark.parametrize("how", ["cuda", "reference"])
def test_the_gradient_of_packing_is_unpacking(emulated, how, monkeypatch):
    if how == "cuda":
        monkeypatch.setattr(ops._dispatch, "call", lambda op, *given: getattr(_cuda_packing, op)(*given))
    mask = MASKS["holes"]
    packing = RoomPacking.from_mask(mask, int(mask.sum()) - 5)  # five tokens without a place, and without a gradient
    x = torch.randn(*mask.shape, 6, requires_grad=True)
    weights = torch.randn(*mask.shape, 6)
    (packing.unpack(packing.pack(x)) * weights).sum().backward()
    kept = (packing.slots >= 0).view(mask.shape)
    assert torch.equal(x.grad, torch.where(kept[..., None], weights, 0.0))


def test_what_cannot_be_packed():
    with pytest.raises(InputError, match=r"must be \(B, S\) to be packed, got shape \(3,\)"):
        RoomPacking.from_mask(torch.ones(3), 4)
    with pytest.raises(InputError, match="capacity must be a number of tokens"):
        RoomPacking.from_mask(torch.ones(3, 4), 0)
    packing = RoomPacking.from_mask(torch.ones(3, 4), 12)
    with pytest.raises(InputError, match="what is packed must begin with"):
        packing.pack(torch.ones(4, 3))
    with pytest.raises(InputError, match="what is unpacked must begin with"):
        packing.unpack(torch.ones(11, 2))
    for move, shape in ((packing.pack, (3, 4)), (packing.unpack, (12, 2))):
        with pytest.raises(InputError, match="must be on the device of the mask, cpu, got meta"):
            move(torch.ones(shape, device="meta"))


def test_places_on_another_device_are_addresses_like_any_other(monkeypatch):
    """To a kernel on the GPU of x. torch, which then serves, tells of it."""
    monkeypatch.setattr(_cuda, "why_not_measured", lambda *_: None)
    here, there = torch.device("cuda", 0), torch.device("cuda", 1)

    def on(device: torch.device, dtype: torch.dtype = torch.int64) -> SimpleNamespace:
        return SimpleNamespace(device=device, dtype=dtype)

    accepts = _cuda_packing._accepts_gather
    assert accepts(on(here), on(here), on(here, torch.int32)) is None
    for places, inverse in ((there, here), (here, there), (torch.device("cpu"), here)):
        assert "take tensors on one device, got cuda:0" in accepts(on(here), on(places), on(inverse))


def train(params, gradients, variant, dtype, step):
    params = [torch.nn.Parameter(p.to(dtype, copy=True)) for p in params]
    optimizer = Lamb(groups_of(params), 0.02, (BETA1, BETA2), EPS, variant=variant)
    with ops.backend("reference"):
        for given in gradients:
            for p, g in zip(params, given, strict=True):
                p.grad = g.to(dtype)
            step(optimizer)
    states = [optimizer.state[p] for p in params]
    masters = [state.get("master", p).detach() for state, p in zip(states, params, strict=True)]
    return params, [*masters, *(s["exp_avg"] for s in states), *(s["exp_avg_sq"] for s in states)]


CASES = list(zip(VARIANTS, (torch.float32, torch.bfloat16, torch.float16), strict=True))


@pytest.fixture
def lamb_by_cuda(emulated, monkeypatch):
    """Once called, backend "reference" steps by the emulation; its calls are noted in the list that it returns."""
    pytest.importorskip("triton")  # whose tables it takes
    from fastbert.ops._dispatch import _table
    from fastbert.optim import _cuda as cuda_optim

    def begin():
        calls = []

        def by_cuda(batches, scale=1.0):
            calls.append(scale)
            cuda_optim.lamb(batches, scale)

        entry = _table["lamb"]["reference"]
        by_cuda = type(entry)("lamb", "reference", by_cuda, entry.available, entry.accepts)
        monkeypatch.setitem(_table["lamb"], "reference", by_cuda)
        return calls

    return begin


@pytest.mark.parametrize(("variant", "dtype"), CASES)
def test_lamb_is_the_algorithm(lamb_by_cuda, variant, dtype):
    params, gradients = start([0, 1, 7, 16, 1000, 16384, 16387])
    params, gradients = [p.to(dtype).float() for p in params], [[g.to(dtype).float() for g in s] for s in gradients[:2]]
    _, same = train(params, gradients, variant, dtype, lambda optimizer: optimizer.step())
    calls = lamb_by_cuda()
    narrow, got = train(params, gradients, variant, dtype, lambda optimizer: optimizer.step())
    again = train(params, gradients, variant, dtype, lambda optimizer: optimizer.step())[1]
    truth = lamb_by_hand(params, gradients, 0.02, variant)
    assert len(calls) == 4
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    for k, name in enumerate(("parameters", "exp_avg", "exp_avg_sq")):
        part = slice(k * len(params), (k + 1) * len(params))
        assert_close(torch.cat(got[part]), torch.cat(truth[part]), torch.cat(same[part]), what=name)
    for p, master in zip(narrow, got, strict=False):
        assert torch.equal(p.detach(), master.to(dtype))


def test_trust_is_held_to_its_bounds_and_one_of_zeros(lamb_by_cuda):
    lamb_by_cuda()
    hold_bounds_of_trust(lambda *given: by_hand_train(*given, "reference"))
    p, still = torch.nn.Parameter(torch.zeros(20)), torch.nn.Parameter(torch.ones(20))
    p.grad, still.grad = torch.ones(20), torch.zeros(20)
    with ops.backend("reference"):
        Lamb([p, still], lr=0.5, weight_decay=0.0, variant="apex", max_grad_norm=1e9).step()
    torch.testing.assert_close(p.detach(), torch.full((20,), -0.5), rtol=3e-6, atol=0.0)
    assert torch.equal(still.detach(), torch.ones(20))


def beside(x):
    """x in the middle of other numbers, at a whole 16 bytes."""
    whole = torch.full((64,), 777.0)
    whole[4 : 4 + x.numel()] = x
    return whole, whole[4 : 4 + x.numel()]


@pytest.mark.parametrize("decay", [0.0, 0.1])  # without a trust, and with one
def test_nothing_is_written_beside_a_tensor(lamb_by_cuda, decay):
    lamb_by_cuda()
    whole, inside = beside(torch.randn(7))
    p, wholes = torch.nn.Parameter(inside), [whole]
    optimizer = Lamb([p], lr=0.5, weight_decay=decay, variant="nvlamb")
    p.grad = torch.randn(7)
    with ops.backend("reference"):
        optimizer.step()
        for name in ("exp_avg", "exp_avg_sq"):
            whole, optimizer.state[p][name] = beside(optimizer.state[p][name])
            wholes.append(whole)
        optimizer.step()
    for whole in wholes:
        assert (whole[:4] == 777.0).all()
        assert (whole[11:] == 777.0).all()
        assert (whole[4:11] != 777.0).all()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_where_the_norm_is_not_finite_nothing_changes(lamb_by_cuda, decay, monkeypatch):
    lamb_by_cuda()
    from fastbert.optim import _cuda as cuda_optim

    update = cuda_optim.update
    monkeypatch.setattr(cuda_optim, "update", lambda tables, control: update(tables, control * torch.tensor([1, 1, 0])))
    before = torch.randn(7)
    p = torch.nn.Parameter(before.clone())
    p.grad = torch.ones(7)
    optimizer = Lamb([p], lr=0.5, weight_decay=decay, variant="nvlamb")
    with ops.backend("reference"):
        optimizer.step()
    assert torch.equal(p.detach(), before)
    assert not optimizer.state[p]["exp_avg"].any()
    assert not optimizer.state[p]["exp_avg_sq"].any()
