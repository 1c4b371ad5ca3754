"""The optimisers' Triton kernels: AdamW and LAMB as published, and the steps that the host does not follow.

In the interpreter or on a GPU, as test_triton_kernels.py.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import weakref
from types import SimpleNamespace

import pytest
import torch
from close import assert_close
from optimizers_by_hand import (
    BETA1,
    BETA2,
    EPS,
    VARIANTS,
    adamw_by_hand,
    groups_of,
    hold,
    hold_bounds_of_trust,
    lamb_by_hand,
    start,
)

from fastbert import ops
from fastbert.errors import BackendError, InputError
from fastbert.graph_capture import Replay
from fastbert.optim import AdamW, Lamb, clipped_step, device, device_step, prepare
from fastbert.optim.base import global_norm

pytest.importorskip("triton")
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETING and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)

from fastbert.optim import _triton as triton_step  # noqa: E402
from fastbert.triton_kernels import adamw as adamw_kernels  # noqa: E402
from fastbert.triton_kernels import lamb as lamb_kernels  # noqa: E402
from fastbert.triton_kernels import optimizer as kernels  # noqa: E402

DEVICE = "cpu" if INTERPRETING else "cuda"
# Nothing, at and off a power of two, at and off the 16,384 elements of a chunk.
SIZES = [0, 1, 7, 16, 65, 1000, 16384, 16385, 20000]
SHIPPED_BLOCK = kernels.BLOCK


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    if INTERPRETING:  # whose time goes by the number of operations, not by their size
        monkeypatch.setattr(kernels, "BLOCK", kernels.CHUNK.value)
    with ops.backend("triton"):
        yield


def some(sizes, scale=1.0):
    """Parameters and the gradients of two steps."""
    params, gradients = start(sizes, scale)
    return params, gradients[:2]


def adamw(groups):
    return AdamW(groups, 0.01, (BETA1, BETA2), EPS, correct_bias=True)


def lamb(variant):
    return lambda groups: Lamb(groups, 0.02, (BETA1, BETA2), EPS, variant=variant)


MAKES = [adamw, *(lamb(variant) for variant in VARIANTS)]


def train(make, params, gradients, backend="triton", dtype=torch.float32, step=lambda optimizer: optimizer.step()):
    """[parameters..., first moments..., second moments...] on the CPU after all steps, and the optimiser."""
    params = [torch.nn.Parameter(p.to(DEVICE, dtype, copy=True)) for p in params]
    optimizer = make(groups_of(params))
    with ops.backend(backend):
        for given in gradients:
            for p, g in zip(params, given, strict=True):
                p.grad = g.to(DEVICE, dtype)
            versions = [p._version for p in params]
            step(optimizer)
            # By which those go who keep a weight in 8 bits or packed: torch does not see what the kernels write.
            assert all(p._version > version for p, version in zip(params, versions, strict=True))
    results = [p.detach().cpu() for p in params]
    for name in ("exp_avg", "exp_avg_sq"):
        results += [optimizer.state[p][name].cpu() for p in params]
    return results, optimizer


def on_device(rate, **options):
    lr = torch.tensor([rate], device=DEVICE)
    return lambda optimizer: device_step(optimizer, lr, **options)


@pytest.mark.parametrize("corrected", [False, True])
def test_adamw_is_the_algorithm(corrected):
    params, gradients = some(SIZES)

    def make(groups):
        return AdamW(groups, 0.01, (BETA1, BETA2), EPS, correct_bias=corrected)

    same, _ = train(make, params, gradients, "reference")
    got, _ = train(make, params, gradients)
    hold(got, adamw_by_hand(params, gradients, 0.01, corrected), same, SIZES)


@pytest.mark.parametrize("scale", [1e-4, 10.0])
@pytest.mark.parametrize("variant", VARIANTS)
def test_lamb_is_the_algorithm(variant, scale):
    params, gradients = some(SIZES, scale)
    same, _ = train(lamb(variant), params, gradients, "reference")
    got, _ = train(lamb(variant), params, gradients)
    hold(got, lamb_by_hand(params, gradients, 0.02, variant), same, SIZES)


@pytest.mark.parametrize("make", [adamw, lamb("apex")])
def test_the_block_that_ships(make, monkeypatch):
    params, gradients = some([16384, 16385])
    expected, _ = train(make, params, gradients[:1])
    monkeypatch.setattr(kernels, "BLOCK", SHIPPED_BLOCK)
    got, _ = train(make, params, gradients[:1])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_trust_is_held_to_its_bounds():
    hold_bounds_of_trust(train)


def test_lamb_of_zeros_has_trust_one():
    p, still = (torch.nn.Parameter(f(20, device=DEVICE)) for f in (torch.zeros, torch.ones))
    p.grad, still.grad = torch.ones(20, device=DEVICE), torch.zeros(20, device=DEVICE)
    Lamb([p, still], lr=0.5, weight_decay=0.0, variant="apex", max_grad_norm=1e9).step()
    # u = 1 / (1 + eps) in every element.
    torch.testing.assert_close(p.detach().cpu(), torch.full((20,), -0.5), rtol=3e-6, atol=0.0)
    assert torch.equal(still.detach().cpu(), torch.ones(20))


@pytest.mark.parametrize("make", MAKES)
def test_narrow_parameters_are_the_float32_run_rounded(make):
    """float16: the interpreter cuts bfloat16 off where it should round."""
    params, gradients = some([0, 5, 16, 1000, 16385])
    params, gradients = [p.half() for p in params], [[g.half() for g in step] for step in gradients]
    narrow, optimizer = train(make, params, gradients, dtype=torch.float16)
    wide, _ = train(make, params, gradients)
    for p, w in zip(narrow[: len(params)], wide, strict=False):
        assert torch.equal(p, w.half())
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert torch.equal(p.detach(), optimizer.state[p]["master"].half())


@pytest.mark.parametrize("step", [Lamb.step, on_device(0.02)], ids=["host", "device"])
def test_kinds_and_addresses_of_all_sorts_in_one_step(step):
    """Two dtypes of parameters in turn, gradients that are views, and tensors that begin at any address."""
    generator = torch.Generator().manual_seed(1)
    store = torch.randn(5000, generator=generator).to(DEVICE)
    params = [torch.nn.Parameter(store[1 + 700 * i :][:600].view(20, 30)) for i in range(3)]
    params = [q for p in params for q in (p, torch.nn.Parameter(p.detach().half()))]
    for p in params:
        p.grad = torch.randn(30, 20, generator=generator).to(DEVICE, p.dtype).t()
    other = [torch.nn.Parameter(p.detach().clone()) for p in params]
    for p, q in zip(params, other, strict=True):
        q.grad = p.grad
    step(Lamb(params, 0.02, variant="apex"))
    with ops.backend("reference"):
        step(Lamb(other, 0.02, variant="apex"))
    for p, q in zip(params, other, strict=True):
        torch.testing.assert_close(p, q)


def test_launches_do_not_grow_with_the_tensors(monkeypatch):
    launches = []

    class Counted:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            launches.append(self.kernel)
            return self.kernel[grid]

    for module in (adamw_kernels, lamb_kernels, kernels):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Counted(getattr(module, name)))
    counts = []
    for many in (2, 12):
        params = [torch.nn.Parameter(torch.ones(3 + i, device=DEVICE)) for i in range(many)]
        for p in params:
            p.grad = torch.ones_like(p)
        for optimizer in (AdamW(params), Lamb(params)):
            launches.clear()
            optimizer.step()
            counts.append(len(launches))
            device_step(optimizer, torch.ones(1, device=DEVICE), max_norm=1.0)
            counts.append(len(launches) - counts[-1])
    # AdamW: one, and with norm and control three. LAMB: the norm and three, and with control five.
    assert counts == [1, 3, 4, 5] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_norm_of_gradients(dtype):
    _, (gradients, *_) = start(SIZES)
    gradients = [g.to(DEVICE, dtype) for g in gradients]
    got = global_norm(gradients)
    truth = torch.cat([g.double() for g in gradients]).norm()
    assert (got.shape, got.dtype) == ((), torch.float32)
    torch.testing.assert_close(got.double(), truth, rtol=1e-6, atol=0.0)
    gradients[-1][-1] = float("nan")
    assert global_norm(gradients).isnan()


@pytest.mark.parametrize("make", MAKES)
def test_a_step_on_the_device_is_a_clipped_step(make):
    params, gradients = some([0, 1, 16, 65, 1000, 16385])
    rate = make([torch.nn.Parameter(torch.ones(1))]).param_groups[0]["lr"]

    def in_double(optimizer):  # the clip is no part of the published algorithm: torch's arithmetic in fp64
        return clipped_step(optimizer, 5.0)

    truth, _ = train(make, [p.double() for p in params], gradients, "reference", torch.float64, in_double)
    same, host = train(make, params, gradients, "reference", step=lambda optimizer: clipped_step(optimizer, 5.0))
    got, optimizer = train(make, params, gradients, step=on_device(rate, max_norm=5.0))
    again, _ = train(make, params, gradients, step=on_device(rate, max_norm=5.0))
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    for k in range(3):
        part = slice(k * len(params), (k + 1) * len(params))
        together = [torch.cat(x[part]) for x in (got, truth, same)]
        assert_close(*together, what=("parameters", "exp_avg", "exp_avg_sq")[k])
    steps = [state["step"] for state in optimizer.state_dict()["state"].values()]
    assert steps == [state["step"] for state in host.state_dict()["state"].values()] == [2] * len(params)


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("make", [adamw, lamb("nvlamb")])
def test_a_group_has_its_share_of_the_rate_on_the_device(backend, make):
    """As on the host, where each group has a rate of its own; also if the share changes between two steps."""
    params, gradients = some([7, 300, 16385])

    def shared(optimizer):
        first, *others = optimizer.param_groups
        first["lr_scale"] = 0.25 if optimizer.rows is None else 0.5
        assert not any("lr_scale" in group for group in others)
        device_step(optimizer, torch.tensor([0.02], device=DEVICE))

    def on_host(optimizer):
        done = max((state["step"] for state in optimizer.state.values()), default=0)
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = 0.02 * ((0.25, 0.5)[done] if number == 0 else 1.0)
        optimizer.step()

    got, _ = train(make, params, gradients, backend, step=shared)
    expected, _ = train(make, params, gradients, "reference", step=on_host)
    plain, _ = train(make, params, gradients, "reference", step=on_device(0.02))
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(got, plain, strict=True) if a.numel())


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("make", [adamw, lamb("nvlamb")])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_gradient_changes_nothing_and_is_not_counted(backend, make, bad):
    params, gradients = some([3, 16385])
    with ops.backend(backend):
        _, optimizer = train(make, params, gradients, backend, step=on_device(0.01, max_norm=1.0))
        before = copy.deepcopy(optimizer.state_dict()["state"])
        kept = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
        last = optimizer.param_groups[-1]["params"][-1]
        last.grad[-1] = bad
        outcome = device_step(optimizer, torch.full((), 0.01, device=DEVICE))
        assert (float(outcome.finite), math.isfinite(float(outcome.norm))) == (0.0, False)
        for index, state in optimizer.state_dict()["state"].items():
            assert state["step"] == before[index]["step"] == 2
            assert torch.equal(state["exp_avg"], before[index]["exp_avg"])
            assert torch.equal(state["exp_avg_sq"], before[index]["exp_avg_sq"])
        now = [p for group in optimizer.param_groups for p in group["params"]]
        assert all(torch.equal(a, b) for a, b in zip(now, kept, strict=True))
        last.grad[-1] = 0.0
        assert float(device_step(optimizer, torch.full((), 0.01, device=DEVICE)).finite) == 1.0
        assert {state["step"] for state in optimizer.state_dict()["state"].values()} == {3}


@pytest.mark.parametrize("make", [adamw, lamb("apex")])
def test_a_loss_scale_on_the_device_is_divided_out_before_the_clip(make):
    params, gradients = some([5, 300])
    plain, _ = train(make, params, gradients, step=on_device(0.01, max_norm=2.0))
    large = [[g * 1024 for g in step] for step in gradients]
    inverse = torch.full((), 1 / 1024, device=DEVICE)
    scaled, optimizer = train(make, params, large, step=on_device(0.01, max_norm=2.0, grad_scale=inverse))
    # A power of two: not even a rounding lies between the two.
    assert all(torch.equal(a, b) for a, b in zip(plain, scaled, strict=True))
    norm = device_step(optimizer, torch.zeros(1, device=DEVICE), grad_scale=inverse).norm
    truth = torch.cat([g.double() for g in gradients[-1]]).norm().float()
    torch.testing.assert_close(norm.cpu(), truth, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_counts_travel_between_host_and_device(backend):
    params, gradients = start([5, 300])
    whole, _ = train(adamw, params, gradients, "reference")

    def alternate(optimizer):
        """Steps on the device, one by the host, and a checkpoint after each."""
        number = optimizer.state_dict()["state"].get(0, {"step": 0})["step"]
        if number == 1:
            optimizer.step()
        else:
            device_step(optimizer, torch.full((1,), 0.01, device=DEVICE))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    got, optimizer = train(adamw, params, gradients, backend, step=alternate)
    assert {state["step"] for state in optimizer.state_dict()["state"].values()} == {4}
    for a, b in zip(got, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_a_parameter_without_gradient_stays_and_does_not_count(backend):
    with ops.backend(backend):
        p, still = (torch.nn.Parameter(torch.ones(n, device=DEVICE)) for n in (7, 9))
        optimizer = AdamW([p, still], 0.1)
        p.grad = torch.ones_like(p)
        device_step(optimizer, torch.full((1,), 0.1, device=DEVICE))
        optimizer.settle()
        assert (optimizer.state[p]["step"], optimizer.state[still]["step"]) == (1, 0)
        assert torch.equal(still.detach(), torch.ones_like(still))
        assert not torch.equal(p.detach(), torch.ones_like(p))


def test_what_changes_between_steps_is_seen():
    """Another address, dtype or state of any tensor, and another rate, group or checkpoint."""
    given, (gradients, _) = some([7, 300])

    def run(backend):
        with ops.backend(backend):
            params = [torch.nn.Parameter(p.to(DEVICE, copy=True)) for p in given]
            optimizer, lr = adamw(groups_of(params)), torch.full((1,), 0.01, device=DEVICE)

            def step(dtype=torch.float32, scale=1.0):
                for p, g in zip(params, gradients, strict=False):
                    p.grad = None
                    p.data = p.data.to(dtype)
                    p.grad = (scale * g).to(DEVICE, dtype)
                device_step(optimizer, lr)

            step()
            step(torch.float16)
            step()
            params[0].data = params[0].data.clone()
            step()
            params[1].grad = None
            device_step(optimizer, lr)
            state = optimizer.state[params[1]]
            state["exp_avg"] = state["exp_avg"] * 2
            state["exp_avg_sq"] = state["exp_avg_sq"].double()
            step()
            optimizer.param_groups[0]["weight_decay"] = 0.3
            step()
            params.append(torch.nn.Parameter(torch.ones(7, device=DEVICE)))
            optimizer.add_param_group({"params": params[2:]})
            params[2].grad = torch.ones_like(params[2])
            step(scale=2.0)
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            step()
            other = copy.deepcopy(optimizer)
            step()
            assert [state["step"] for state in other.state_dict()["state"].values()] == [9, 8, 2]
            found = optimizer.state_dict()["state"].values()
            assert [state["step"] for state in found] == [10, 9, 3]
            return [*params, *(state[name] for state in found for name in ("exp_avg", "exp_avg_sq"))]

    for got, expected in zip(run("triton"), run("reference"), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)


def test_what_a_captured_step_reads_outlives_other_optimisers():
    """The cache of layouts forgets one after 32 others."""
    p = torch.nn.Parameter(torch.ones(7, device=DEVICE))
    p.grad = torch.ones_like(p)
    optimizer = AdamW([p])
    device_step(optimizer, torch.full((1,), 0.1, device=DEVICE))
    chunks, bounds, *_ = kernels._layout(((torch.float32,) * 2,), (7,), p.device)
    read = [weakref.ref(t) for t in (chunks, bounds)]
    assert kernels._layout.cache_info().hits > 0
    del chunks, bounds
    kernels._layout.cache_clear()
    assert all(t() is not None for t in read)


def test_what_a_captured_step_reads_outlives_a_change_of_rates():
    p = torch.nn.Parameter(torch.ones(7, device=DEVICE))
    p.grad = torch.ones_like(p)
    optimizer, lr = AdamW([p]), torch.full((1,), 0.1, device=DEVICE)
    device_step(optimizer, lr)
    prepared = optimizer.rows.prepared["triton"]
    prepared._captured.append(prepared._table)  # as in a capture
    captured = weakref.ref(prepared)
    del prepared
    for decay in (0.2, 0.3):
        optimizer.param_groups[0]["weight_decay"] = decay
        device_step(optimizer, lr)
    assert captured() is not None
    assert len(optimizer.rows.prepared["triton"].replaced) == 1, "tables that no graph reads are kept"


def load(optimizer: AdamW) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


REPLACE = {
    "unfrozen": lambda optimizer: optimizer.param_groups[0]["params"][1].requires_grad_(True),
    "loaded": load,
    "stepped on the host": lambda optimizer: optimizer.step(),
    "begun afresh": lambda optimizer: optimizer.state.clear(),
}


@pytest.mark.parametrize("replace", REPLACE.values(), ids=REPLACE)
@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("owner", ["somebody", "a Replay"])
def test_what_a_captured_step_reads_outlives_what_replaces_it(monkeypatch, owner, backend, replace):
    """As long as the graph, or the optimiser if it is not known whose graph it is: a replay would write to memory that
    by then is somebody else's."""
    params = [torch.nn.Parameter(torch.ones(7, device=DEVICE)) for _ in range(2)]
    params[1].requires_grad_(False)
    optimizer, lr = AdamW(params), torch.full((1,), 0.1, device=DEVICE)

    def step() -> None:
        with ops.backend(backend):
            device_step(optimizer, lr)

    def capture(_replay: Replay, function) -> SimpleNamespace:
        with monkeypatch.context() as patch:
            for module in (device, triton_step):
                patch.setattr(module, "is_capturing", lambda _device: True, raising=False)
            function()
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr(Replay, "_captured", capture)
    params[0].grad = torch.ones_like(params[0])
    step()
    replay = Replay("a stream", pool=None)
    if owner == "somebody":
        capture(replay, step)
    else:
        replay(step)
    rows, state = optimizer.rows, optimizer.state[params[0]]
    read = [rows.counts, state["exp_avg"], state["exp_avg_sq"]]
    if backend == "triton":
        prepared = rows.prepared["triton"]
        read += [prepared._table, prepared.rates, prepared.hyper]
        del prepared
    read = [weakref.ref(t) for t in read]
    del rows, state
    replace(optimizer)
    step()
    gc.collect()
    assert all(t() is not None for t in read)
    del replay
    if owner == "somebody":
        del optimizer
    gc.collect()
    assert read[0]() is None, "what nobody replays is kept"


def test_rates_must_be_numbers_on_the_device():
    p = torch.nn.Parameter(torch.ones(7, device=DEVICE))
    p.grad = torch.ones_like(p)
    for bad in (0.1, torch.ones(2, device=DEVICE), torch.ones(1, dtype=torch.float64, device=DEVICE)):
        with pytest.raises(InputError, match="lr must be one float32 number in a tensor"):
            device_step(AdamW([p]), bad)
    with pytest.raises(InputError, match="lr must be on the parameters' device"):
        device_step(AdamW([p]), torch.ones(1, device="meta"))


def test_what_the_kernels_do_not_take():
    p = torch.nn.Parameter(torch.ones(7, dtype=torch.float64, device=DEVICE))
    p.grad = torch.ones_like(p)
    with pytest.raises(BackendError, match="float16, bfloat16 and float32, got float64"):
        AdamW([p]).step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, state: setattr(p, "data", torch.ones(20, 3, device=DEVICE).t()), "contiguous parameters"),
        (lambda p, state: state.update(exp_avg=torch.ones(20, 3, device=DEVICE).t()), "contiguous parameters"),
        (lambda p, state: state.update(exp_avg_sq=torch.ones(59, device=DEVICE)), "of their parameter's size"),
        (lambda p, state: setattr(p, "grad", p.detach().to_sparse()), "gradients must be dense"),
        (lambda p, state: setattr(p, "grad", p.detach().as_subclass(Other)), "plain dense tensors, got a Other"),
    ],
)
def test_one_odd_tensor_among_many_is_found(change, message):
    params = [torch.nn.Parameter(torch.ones(3, 20, device=DEVICE)) for _ in range(4)]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = AdamW(params)
    lr = torch.full((1,), 0.1, device=DEVICE)
    device_step(optimizer, lr)
    change(params[2], optimizer.state[params[2]])
    with pytest.raises((BackendError, InputError), match=message):
        device_step(optimizer, lr)


class Other(torch.Tensor):
    pass


if not INTERPRETING:

    @pytest.mark.parametrize("what", ["optimizer.step", "the norm of gradients"])
    def test_what_cannot_be_captured(what):
        p = torch.nn.Parameter(torch.ones(7, device=DEVICE))
        p.grad = torch.ones_like(p)
        optimizer = AdamW([p])
        optimizer.step()
        call = optimizer.step if what == "optimizer.step" else lambda: global_norm([p.grad])
        with pytest.raises(BackendError, match=f"{what} cannot be captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            call()

    def own_step() -> SimpleNamespace:
        """A parameter of ones whose gradient is 2, an optimiser, and their step."""
        p = torch.nn.Parameter(torch.ones(8, device=DEVICE))
        optimizer, lr = AdamW([p], weight_decay=0.0), torch.full((1,), 0.01, device=DEVICE)

        def run(kept: bool = False, **options):
            optimizer.zero_grad(set_to_none=not kept)
            (p * 2.0).sum().backward()
            return device_step(optimizer, lr, **options)

        return SimpleNamespace(p=p, optimizer=optimizer, run=run)

    def capture(one: SimpleNamespace, **options) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one.run(**options)
        return graph

    @pytest.mark.parametrize("why", ["prepare", "rates"])
    def test_the_step_after_a_captured_one_was_refused_is_right(why):
        """Tables of rates that the refused capture had made were never filled."""
        one, expected = own_step(), own_step()
        for each in (one, expected):
            if why == "rates":
                each.run()
                each.optimizer.param_groups[0]["weight_decay"] = 0.5
        prepare(one.optimizer)
        with pytest.raises(BackendError, match="must run once, with the same rates, before it is captured"):
            capture(one)
        for each in (one, expected):
            assert float(each.run().finite) == 1.0
        assert torch.equal(one.p, expected.p)
        assert one.optimizer.state_dict()["state"][0]["step"] == 1 + (why == "rates")

    def test_a_plain_step_after_a_captured_one_without_a_scale_is_right():
        one, expected = own_step(), own_step()
        scale = torch.ones(1, device=DEVICE)
        one.run(grad_scale=scale)
        graph = capture(one)
        assert float(one.run().finite) == 1.0
        for _ in range(2):
            expected.run()
        assert torch.equal(one.p, expected.p)
        graph.replay()
        expected.run()
        assert torch.equal(one.p, expected.p)

    def test_a_captured_steps_table_is_read_by_no_other_step():
        """It is filled by a replay: a plain step, or another graph's replay, wrote to wherever its memory pointed."""
        one, expected = own_step(), own_step()
        one.run()
        one.optimizer.zero_grad(set_to_none=True)
        graph = capture(one)
        with pytest.raises(BackendError, match="must run once before it is captured, got none since the last"):
            capture(one, kept=True)
        one.run(kept=True)
        second = capture(one, kept=True)
        for again in (second, graph, second):
            again.replay()
        for _ in range(5):
            expected.run()
        assert torch.equal(one.p, expected.p)

    def test_prepare_tells_a_captured_step_what_was_written():
        """To a 16-bit parameter, between two replays."""
        params = [torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16, device=DEVICE)) for _ in range(2)]
        optimizers, lr = [AdamW([p], weight_decay=0.0) for p in params], torch.full((1,), 0.01, device=DEVICE)
        for p, optimizer in zip(params, optimizers, strict=True):
            p.grad = torch.ones_like(p)
            device_step(optimizer, lr)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            device_step(optimizers[0], lr)
        for write in (False, True):
            if write:
                with torch.no_grad():
                    for p in params:
                        p[:2] = 7.0
                prepare(optimizers[0])
            graph.replay()
            device_step(optimizers[1], lr)
        masters = [optimizer.state[p]["master"] for p, optimizer in zip(params, optimizers, strict=True)]
        assert torch.equal(*masters)
        assert torch.equal(*params)
        assert masters[0].min() < 1 < 6.9 < masters[0].max() < 7

    @pytest.mark.parametrize("make", MAKES)
    def test_a_captured_step_replays(make):
        """Gradients are born inside the graph; the learning rate changes between replays."""
        params, gradients = start([5, 300, 16385])
        expected, _ = train(make, params, gradients, "reference", step=lambda o: clipped_step(o, 5.0))
        params = [torch.nn.Parameter(p.to(DEVICE)) for p in params]
        optimizer = make(groups_of(params))
        static = [g.to(DEVICE, copy=True) for g in gradients[0]]
        lr = torch.zeros(1, device=DEVICE)
        rows = prepare(optimizer)

        def step():
            for p, g in zip(params, static, strict=True):
                p.grad = g * 1.0
            return device_step(optimizer, lr, max_norm=5.0)

        kept = [p.detach().clone() for p in params]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outcome = step()
        rows.counts.zero_()
        for p, old in zip(params, kept, strict=True):
            p.data.copy_(old)
            for name in ("exp_avg", "exp_avg_sq"):
                optimizer.state[p][name].zero_()
        lr.fill_(make([torch.nn.Parameter(torch.ones(1))]).param_groups[0]["lr"])
        for given in gradients:
            for buffer, g in zip(static, given, strict=True):
                buffer.copy_(g)
            graph.replay()
        assert float(outcome.finite) == 1.0
        for p, e in zip(params, expected, strict=False):
            torch.testing.assert_close(p.detach().cpu(), e, rtol=1e-5, atol=1e-7)
        assert {state["step"] for state in optimizer.state_dict()["state"].values()} == {4}
