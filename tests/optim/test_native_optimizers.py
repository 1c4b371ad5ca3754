"""The optimisers' CPU kernels: AdamW and LAMB as published, in numpy's float64, at every instruction-set level."""

from __future__ import annotations

import copy
import itertools
import math
import subprocess
import sys

import pytest
import torch
from levels import LEVELS, Guarded, at_level, threads
from optimizers_by_hand import (
    BETA1,
    BETA2,
    EPS,
    SIZES,
    VARIANTS,
    adamw_by_hand,
    groups_of,
    hold,
    hold_bounds_of_trust,
    lamb_by_hand,
    start,
    train,
)

from fastbert import _native, ops
from fastbert.errors import BackendError, InputError
from fastbert.ops import _dispatch
from fastbert.optim import AdamW, Lamb, clip_grad_norm, clipped_step
from fastbert.optim.base import global_norm

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))


@pytest.fixture(params=LEVELS)
def level(request):
    with at_level(request.param):
        yield request.param


@pytest.mark.parametrize("corrected", [False, True])
def test_adamw_is_the_algorithm(level, corrected):
    params, gradients = start()

    def make(groups):
        return AdamW(groups, 0.01, (BETA1, BETA2), EPS, correct_bias=corrected)

    same, _ = train(make, params, gradients, "reference")
    hold(train(make, params, gradients, "cpu")[0], adamw_by_hand(params, gradients, 0.01, corrected), same)


@pytest.mark.parametrize("scale", [1e-4, 10.0])
@pytest.mark.parametrize("variant", VARIANTS)
def test_lamb_is_the_algorithm(level, variant, scale):
    params, gradients = start(scale=scale)

    def make(groups):
        return Lamb(groups, 0.02, (BETA1, BETA2), EPS, variant=variant)

    same, _ = train(make, params, gradients, "reference")
    hold(train(make, params, gradients, "cpu")[0], lamb_by_hand(params, gradients, 0.02, variant), same)


def test_a_second_moment_fades_as_beta_says(level):
    """Rounded to float32, 0.9999 is off by 1.7e-4 of its distance to one, which is what counts."""
    p = torch.nn.Parameter(torch.zeros(99))
    optimizer = AdamW([p], 0.01, (BETA1, 0.9999), EPS)
    p.grad = torch.zeros(99)
    with ops.backend("cpu"):
        optimizer.step()
        square = optimizer.state[p]["exp_avg_sq"].uniform_(1, 2)
        before = square.double()
        for _ in range(300):
            optimizer.step()
    assert (square / before).mean().item() == pytest.approx(0.9999**300, rel=5e-7)


def test_trust_is_held_to_its_bounds(level):
    hold_bounds_of_trust(lambda *given: train(*given, "cpu"))


def test_a_single_element_at_the_end_moves(level):
    params = [torch.nn.Parameter(torch.zeros(size)) for size in (100, 1)]
    for p in params:
        p.grad = torch.ones_like(p)
    with ops.backend("cpu"):
        AdamW(params, 0.5, (BETA1, BETA2), EPS).step()
    assert params[1].item() == params[0][0].item() < 0


def test_lamb_of_zeros_has_trust_one(level):
    p, still = torch.nn.Parameter(torch.zeros(20)), torch.nn.Parameter(torch.ones(20))
    p.grad, still.grad = torch.ones(20), torch.zeros(20)
    with ops.backend("cpu"):
        Lamb([p, still], lr=0.5, weight_decay=0.0, variant="apex", max_grad_norm=1e9).step()
    # u = 1 / (1 + eps) in every element.
    torch.testing.assert_close(p.detach(), torch.full((20,), -0.5), rtol=3e-6, atol=0.0)
    assert torch.equal(still.detach(), torch.ones(20))


def every_optimizer():
    yield lambda groups: AdamW(groups, 0.01, correct_bias=True)
    for variant in VARIANTS:
        yield lambda groups, variant=variant: Lamb(groups, 0.02, variant=variant)


# In the second list shares of two threads meet where a chunk begins inside a tensor, shares of three between tensors.
@pytest.mark.parametrize("sizes", [[*SIZES, 100_000, 5, 50_001], [32_768] * 3], ids=["odd", "whole"])
@pytest.mark.parametrize("make", list(every_optimizer()))
def test_bits_do_not_depend_on_threads_or_repetition(level, make, sizes):
    params, gradients = start(sizes)
    with threads(1):
        once, _ = train(make, params, gradients, "cpu")
        norm = global_norm(gradients[0])
    for count in (1, 2, 3, 4):
        with threads(count):
            again, _ = train(make, params, gradients, "cpu")
            assert torch.equal(norm, global_norm(gradients[0]))
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("make", list(every_optimizer()))
def test_levels_agree(make):
    params, gradients = start()
    results = []
    for name in LEVELS:
        with at_level(name):
            results.append(train(make, params, gradients, "cpu")[0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make", list(every_optimizer()))
def test_a_scale_is_a_gradient_that_was_multiplied(level, make):
    params, gradients = start()
    left, right = ([torch.nn.Parameter(p.clone()) for p in params] for _ in range(2))
    a, b = make(groups_of(left)), make(groups_of(right))
    for step in gradients:
        for p, q, g in zip(left, right, step, strict=True):
            p.grad, q.grad = g.clone(), g * 0.25
        a.step(grad_scale=0.25)
        b.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(left, step, strict=True))
    # A power of two: not even a rounding lies between the two.
    assert all(torch.equal(p, q) for p, q in zip(left, right, strict=True))


@pytest.mark.parametrize("make", list(every_optimizer()))
def test_bfloat16_is_the_float32_run_rounded(level, make):
    params, gradients = start()
    params, gradients = [p.bfloat16() for p in params], [[g.bfloat16() for g in step] for step in gradients]
    narrow, optimizer = train(make, params, gradients, "cpu", torch.bfloat16)
    wide, _ = train(make, params, gradients, "cpu", torch.float32)
    for p, w in zip(narrow, wide, strict=True):
        assert torch.equal(p, w.to(p.dtype))
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            assert {state[k].dtype for k in ("master", "exp_avg", "exp_avg_sq")} == {torch.float32}
            assert torch.equal(p.detach(), state["master"].bfloat16())


@pytest.mark.parametrize("make", list(every_optimizer()))
def test_a_master_is_rounded_as_torch_does(level, make):
    """Ties go to the even neighbour, also over the end of a binade and of the range; a NaN of any bits stays one."""
    bits = [0x3F808000, 0x3F818000, -0x407E8000, 0x3FFF8000, 0x3FFF7FFF, 0x7F7F8000, 0x7FFFFFFF, 0x7F800001]
    master = torch.tensor(bits * 5, dtype=torch.int32).view(torch.float32)
    p = torch.nn.Parameter(torch.ones(master.numel(), dtype=torch.bfloat16))
    optimizer = make([{"params": [p], "weight_decay": 0.0}])
    p.grad = torch.zeros_like(p)
    with ops.backend("cpu"):
        optimizer.step()
        optimizer.state[p]["master"].copy_(master)
        optimizer.step()
    torch.testing.assert_close(p.detach(), master.bfloat16(), rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", list(every_optimizer()))
def test_nothing_is_written_beside_a_tensor(level, make, dtype):
    guarded = Guarded()
    params, gradients = start(SIZES[:11])
    params = [torch.nn.Parameter(guarded(p.to(dtype))) for p in params]
    optimizer = make(groups_of(params))
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = guarded(g.to(dtype))
        with ops.backend("cpu"):
            optimizer.step()
        for p in params:
            for name, value in optimizer.state[p].items():
                if torch.is_tensor(value):
                    optimizer.state[p][name] = guarded(value)
    guarded.check()
    expected, _ = train(make, start(SIZES[:11])[0], gradients, "cpu", dtype)
    assert all(torch.equal(p, q) for p, q in zip(params, expected[: len(params)], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_of_gradients(level, dtype):
    _, (gradients, *_) = start()
    gradients = [g.to(dtype) for g in gradients]
    with ops.backend("cpu"):
        got = global_norm(gradients)
        assert global_norm([torch.empty(0)]) == 0.0
        assert global_norm([torch.randn(6, 8).t()[::2]]).isfinite()
        turned = torch.randn(30, 40)
        torch.testing.assert_close(global_norm([turned.t()]), turned.norm())
    truth = torch.cat([g.double() for g in gradients]).norm()
    assert (got.shape, got.dtype) == ((), torch.float32)
    # Sums of 16,384 squares in float32, in four times sixteen lanes; those in float64: far under a unit of 1e-6.
    torch.testing.assert_close(got.double(), truth, rtol=1e-6, atol=0.0)
    # Each of the others is less than half a unit of float32 beside the first, all of them are not.
    one_large = [torch.full((1,), 2.0**13, dtype=dtype), *[torch.ones(1, dtype=dtype)] * 600]
    with ops.backend("cpu"):
        assert global_norm(one_large).item() == pytest.approx(math.sqrt(2**26 + 600), rel=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_gradient_shows_in_the_norm_and_changes_nothing(level, bad):
    params, (gradients, *_) = start()
    params = [torch.nn.Parameter(p) for p in params]
    optimizer = AdamW(groups_of(params))
    for p, g in zip(params, gradients, strict=True):
        p.grad = g
    clipped_step(optimizer, 1.0)
    before = copy.deepcopy([(p.detach(), optimizer.state[p]) for p in params])
    params[-1].grad[16384 + 5] = bad
    with ops.backend("cpu"):
        assert not clipped_step(optimizer, 1.0).isfinite()
        assert not clip_grad_norm(params, 1.0).isfinite()
    for (value, state), p in zip(before, params, strict=True):
        assert torch.equal(value, p.detach())
        assert state["step"] == optimizer.state[p]["step"]
        assert torch.equal(state["exp_avg"], optimizer.state[p]["exp_avg"])


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_a_clipped_step_is_a_clip_and_a_step(level, max_norm):
    results = []
    for fused in (False, True):
        params, gradients = start()
        params = [torch.nn.Parameter(p) for p in params]
        optimizer = AdamW(groups_of(params))
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = g.clone()
            if fused:
                norm = clipped_step(optimizer, max_norm)
            else:
                norm = clip_grad_norm(params, max_norm)
                optimizer.step()
        results.append([norm, *params])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    assert results[0][0] > 100


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_another_optimizer_is_clipped_and_stepped(scale):
    p = torch.nn.Parameter(torch.zeros(4))
    p.grad = torch.full((4,), 3.0 * scale)
    norm = clipped_step(torch.optim.SGD([p], lr=1.0), 1.0, grad_scale=1 / scale)
    assert norm == 6.0
    torch.testing.assert_close(p.detach(), torch.full((4,), -0.5))
    p.grad = torch.tensor([1.0, math.nan, 1.0, 1.0])
    assert clipped_step(torch.optim.SGD([p], lr=1.0), 1.0).isnan()
    torch.testing.assert_close(p.detach(), torch.full((4,), -0.5))


@pytest.mark.parametrize("make", list(every_optimizer()))
def test_a_checkpoint_goes_on_under_either_backend(make):
    params, gradients = start()
    _, by_kernel = train(make, params, gradients, "cpu")
    _, by_torch = train(make, params, gradients, "reference")
    forms = []
    for optimizer, backend in itertools.product((by_kernel, by_torch), ("cpu", "reference")):
        own = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
        fresh = [torch.nn.Parameter(p) for p in own]
        half = len(optimizer.param_groups[0]["params"])
        other = make([{"params": fresh[:half]}, {"params": fresh[half:]}])
        saved = copy.deepcopy(optimizer.state_dict())
        forms.append([{k: getattr(v, "dtype", type(v)) for k, v in s.items()} for s in saved["state"].values()])
        other.load_state_dict(saved)
        for p in fresh:
            p.grad = torch.ones_like(p)
        with ops.backend(backend):
            other.step()
        gradients_left = [p.detach() for p in fresh]
        forms[-1].append(gradients_left)
    for form in forms[1:]:
        assert form[:-1] == forms[0][:-1]
        for a, b in zip(form[-1], forms[0][-1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def chosen(optimizer) -> str:
    """The backend that serves the optimiser's step, which it then takes."""
    batches = optimizer._collect()
    return _dispatch.choose("adamw" if isinstance(optimizer, AdamW) else "lamb", batches).backend


def pair(make_tensor, gradient=None, optimizer=AdamW):
    p = torch.nn.Parameter(make_tensor())
    p.grad = torch.ones_like(p) if gradient is None else gradient
    return p, optimizer([p], lr=0.1)


def test_who_computes_what():
    _, optimizer = pair(lambda: torch.ones(3))
    assert chosen(optimizer) == "cpu"
    with ops.backend("reference"):
        assert chosen(optimizer) == "reference"
    with ops.backend("triton"), pytest.raises(BackendError, match="cannot serve"):
        optimizer.step()
    for dtype in (torch.float64, torch.float16):
        assert chosen(pair(lambda dtype=dtype: torch.ones(3, dtype=dtype))[1]) == "reference"
    with ops.backend("cpu"), pytest.raises(BackendError, match="float32 and bfloat16 here, got float64"):
        pair(lambda: torch.ones(3, dtype=torch.float64))[1].step()


@pytest.mark.parametrize("optimizer", [AdamW, Lamb])
def test_parameters_and_gradients_that_are_not_contiguous(optimizer):
    expected, one = pair(lambda: torch.arange(12.0).reshape(3, 4), optimizer=optimizer)
    with ops.backend("reference"):
        one.step()
    strided, two = pair(lambda: torch.arange(12.0).reshape(3, 4).t().contiguous().t(), optimizer=optimizer)
    assert not strided.is_contiguous()
    with ops.backend("cpu"), pytest.raises(BackendError, match="contiguous"):
        two.step()
    two.state.clear()
    two.step()
    torch.testing.assert_close(strided.detach(), expected.detach())
    wide, three = pair(lambda: torch.arange(12.0).reshape(3, 4), torch.ones(()).expand(3, 4), optimizer)
    with ops.backend("cpu"):
        three.step()
    torch.testing.assert_close(wide.detach(), expected.detach())


def test_other_kinds_of_tensor_are_left_to_torch():
    class Kind(torch.Tensor):
        pass

    p, optimizer = pair(lambda: torch.ones(3))
    p.grad = torch.ones(3).as_subclass(Kind)
    assert chosen(optimizer) == "reference"
    q, optimizer = pair(lambda: torch.ones(4, 2))
    q.grad = torch.ones(4, 2).to_sparse()
    with ops.backend("cpu"):
        with pytest.raises(InputError, match="sparse"):
            optimizer.step()
        with pytest.raises(BackendError, match="sparse"):
            _dispatch.choose("grad_norm", [q.grad])


def test_many_small_tensors(level):
    params, _ = start([1 + i % 37 for i in range(600)])
    params = [torch.nn.Parameter(p) for p in params]
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.ones_like(p)
    with ops.backend("cpu"):
        AdamW(params, lr=0.5, weight_decay=0.0, correct_bias=True).step()
    for p, old in zip(params, before, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.5, rtol=1e-5, atol=1e-5)


def test_lists_that_are_no_tensors_are_refused():
    """The kernels take numbers and addresses, which they would read past the end of."""
    native = _native.extension()
    for optimize in (native.adamw, native.lamb):
        for places, rates in ((7, 10), (8, 9), (16, 10)):
            with pytest.raises(ValueError, match="a tensor is 8 integers and 10 floats"):
                optimize([0] * places, [0.0] * rates, 1.0)
    with pytest.raises(ValueError, match="a tensor is 4 integers"):
        native.grad_norm([0, 0, 0])
    with pytest.raises(ValueError, match="expected a size for each buffer"):
        native.fingerprints([0, 0], [0])


def test_autograd_and_caches_learn_of_a_change():
    p, optimizer = pair(lambda: torch.ones(3))
    version, loss = p._version, (p**2).sum()
    optimizer.step()
    assert p._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_optimizer_does_not_import_the_compiler():
    """torch's own optimisers import torch._dynamo when the first is made: seconds that a short run notices."""
    program = """
import sys, torch
from fastbert.optim import AdamW, Lamb
for kind in (AdamW, Lamb):
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = kind([p])
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    assert p.grad is None
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
