"""AdamW against its formula in plain Python floats (double precision) and against torch's own."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch

from fastbert import ops
from fastbert.errors import InputError
from fastbert.optim import AdamW, Lamb, clipped_step, device_step, prepare

LR, BETA1, BETA2, EPS, DECAY = 0.01, 0.9, 0.999, 1e-6, 0.1
START = [0.5, -1.25, 3.0, 0.0]
# Three steps; zeros and very different sizes are in there on purpose.
GRADIENTS = [[0.1, -2.0, 1e-5, 0.0], [0.3, 1.0, 2e-5, 0.0], [-0.2, 0.5, 1e3, 1e-8]]


def by_hand(correct_bias: bool) -> list[list[float]]:
    """Parameters after each step: m, v, p of one element at a time, in Python's own floats."""
    after = [list(START) for _ in GRADIENTS]
    for i, p in enumerate(START):
        m = v = 0.0
        for t, gradients in enumerate(GRADIENTS, start=1):
            m = BETA1 * m + (1 - BETA1) * gradients[i]
            v = BETA2 * v + (1 - BETA2) * gradients[i] ** 2
            m_hat, v_hat = (m / (1 - BETA1**t), v / (1 - BETA2**t)) if correct_bias else (m, v)
            p = p - LR * (m_hat / (math.sqrt(v_hat) + EPS) + DECAY * p)
            after[t - 1][i] = p
    return after


def run(optimizer_of, dtype: torch.dtype, gradients=GRADIENTS) -> list[list[float]]:
    p = torch.nn.Parameter(torch.tensor(START, dtype=dtype))
    optimizer, after = optimizer_of([p]), []
    for gradient in gradients:
        p.grad = torch.tensor(gradient, dtype=dtype)
        optimizer.step()
        after.append(p.tolist())
    return after


def ours(correct_bias: bool):
    return lambda params: AdamW(params, LR, (BETA1, BETA2), EPS, DECAY, correct_bias)


@pytest.mark.parametrize("correct_bias", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
def test_every_step_is_the_formula(correct_bias, dtype, rtol):
    got, expected = run(ours(correct_bias), dtype), by_hand(correct_bias)
    for step, (row, want) in enumerate(zip(got, expected, strict=True)):
        assert row == pytest.approx(want, rel=rtol, abs=1e-12), f"step {step + 1}"


def test_first_step_without_correction_is_the_known_number():
    # m / sqrt(v) of the first step is (1 - b1) / sqrt(1 - b2) = 3.1623: BERT's well-known large first steps.
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    p.grad = torch.ones(1, dtype=torch.float64)
    AdamW([p], lr=1.0, eps=0.0, weight_decay=0.0).step()
    assert p.item() == pytest.approx(-math.sqrt(10), rel=1e-12)


def test_defaults_are_those_of_bert():
    group = AdamW([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-4, (0.9, 0.999), 1e-6, 0.01)
    assert group["correct_bias"] is False


def random_pair(seed: int, dtype=torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in ((7, 5), (5,), (1,), (33, 3))]


def feed(params, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype) * 10 ** torch.randint(-3, 2, (1,)).item()


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float64, 1e-12, 1e-14), (torch.float32, 1e-5, 1e-7)])
def test_corrected_is_torch_adamw(dtype, rtol, atol):
    mine, theirs = random_pair(0, dtype), random_pair(0, dtype)
    groups = [{"params": mine[:2], "weight_decay": 0.1}, {"params": mine[2:], "weight_decay": 0.0, "lr": 3e-3}]
    torch_groups = [
        {"params": theirs[:2], "weight_decay": 0.1},
        {"params": theirs[2:], "weight_decay": 0.0, "lr": 3e-3},
    ]
    a = AdamW(groups, lr=1e-2, eps=1e-6, correct_bias=True)
    b = torch.optim.AdamW(torch_groups, lr=1e-2, eps=1e-6)
    for step in range(20):
        torch.manual_seed(step)
        feed(mine, step)
        for p, q in zip(mine, theirs, strict=True):
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_have_master_weights(dtype):
    # 1000 updates of about 1e-5 on 1.0: each alone is lost in bf16 (spacing 2^-8 below 1), together they are 0.01.
    p = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    reference = torch.nn.Parameter(torch.ones(3))
    a, b = (AdamW([q], lr=1e-5, weight_decay=0.0, correct_bias=True) for q in (p, reference))
    for _ in range(1000):
        p.grad, reference.grad = torch.ones(3, dtype=dtype), torch.ones(3)
        a.step()
        b.step()
    state = a.state[p]
    assert {state[name].dtype for name in ("master", "exp_avg", "exp_avg_sq")} == {torch.float32}
    assert p.dtype == dtype
    assert reference[0].item() == pytest.approx(0.99, abs=1e-4)
    torch.testing.assert_close(state["master"], reference.detach(), rtol=0, atol=0)
    assert torch.equal(p.detach(), reference.detach().to(dtype))


def test_float32_has_no_second_copy():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = AdamW([p])
    optimizer.step()
    assert set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq"}


def test_parameters_without_gradient_stand_still():
    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    optimizer = AdamW([p, q], weight_decay=0.5)
    optimizer.step()
    assert torch.equal(q.detach(), torch.ones(2))
    assert not optimizer.state.get(q)
    AdamW([q]).step()  # a group in which nothing has a gradient


def test_a_late_parameter_corrects_by_its_own_steps():
    # Bias correction counts a parameter's own updates, as torch does.
    mine, theirs = ([torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2)] for _ in range(2))
    a = AdamW(mine, lr=0.1, correct_bias=True)
    b = torch.optim.AdamW(theirs, lr=0.1, eps=1e-6, weight_decay=0.01)
    for step in range(4):
        for params, optimizer in ((mine, a), (theirs, b)):
            params[0].grad = torch.full((2,), 0.5 + step, dtype=torch.float64)
            params[1].grad = torch.full((2,), 2.0, dtype=torch.float64) if step >= 2 else None
            optimizer.step()
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_dict_goes_on_bit_for_bit(dtype):
    straight = random_pair(1, dtype)
    optimizer = AdamW(straight, lr=1e-2)
    for step in range(3):
        feed(straight, step)
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in straight]
    other = AdamW(resumed, lr=5.0, betas=(0.1, 0.2), correct_bias=True)  # all of it is overwritten
    other.load_state_dict(saved)
    for p, q in zip(straight, resumed, strict=True):
        for name, value in optimizer.state[p].items():
            if torch.is_tensor(value):
                assert value.dtype == other.state[q][name].dtype
                assert torch.equal(value, other.state[q][name]), name
    for step in range(3, 6):
        for params, each in ((straight, optimizer), (resumed, other)):
            torch.manual_seed(step)
            feed(params, step)
            each.step()
    assert all(torch.equal(p, q) for p, q in zip(straight, resumed, strict=True))


def test_closure_runs_with_gradients_and_its_loss_comes_back():
    p = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = AdamW([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert p.item() < 2.0


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"lr": -1.0}, "lr"),
        ({"eps": -1e-8}, "eps"),
        ({"weight_decay": math.nan}, "weight_decay"),
        ({"lr": math.inf}, "lr"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"lr": "1e-4"}, "lr must be at least 0 and finite, got '1e-4'"),  # as YAML reads it
        ({"betas": 0.9}, "betas must be two numbers"),
        ({"betas": (0.9, 0.99, 0.999)}, "betas must be two numbers"),
    ],
)
def test_rates_that_make_no_sense(wrong, name):
    parameter = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(InputError, match=name):
        AdamW([parameter], **wrong)
    with pytest.raises(InputError, match=name):
        AdamW([{"params": [parameter], **wrong}])


@pytest.mark.parametrize("optimizer_class", [AdamW, Lamb])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_model_of_another_dtype_goes_on_with_the_state(optimizer_class, dtype, loaded):
    plain, other = random_pair(1, torch.float32), random_pair(1, torch.float32)
    optimizers = [optimizer_class(params, lr=1e-2) for params in (plain, other)]
    for params, optimizer in zip((plain, other), optimizers, strict=True):
        torch.manual_seed(0)
        feed(params, 0)
        optimizer.step()
    for p in other:
        p.grad, p.data = None, p.detach().to(dtype)
    if loaded:
        state = optimizers[1].state_dict()
        optimizers[1] = optimizer_class(other, lr=1e-2)
        optimizers[1].load_state_dict(state)
    for p, q in zip(plain, other, strict=True):
        q.data = p.detach().to(dtype)
        p.data = q.detach().float()
        q.grad = torch.ones_like(q)
        p.grad = q.grad.float()
    for optimizer in optimizers:
        optimizer.step()
    for p, q in zip(plain, other, strict=True):
        state = optimizers[1].state[q]
        torch.testing.assert_close(state.get("master", q).double(), p.double(), rtol=1e-6, atol=1e-7)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert {value.dtype for value in state.values() if isinstance(value, torch.Tensor)} == {wide}


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("make", [AdamW, partial(AdamW, correct_bias=True), Lamb])
def test_a_rate_may_be_a_tensor(make, backend):
    stepped = []
    for rate in (0.125, torch.tensor(0.125), torch.tensor([0.125])):
        params = random_pair(1)
        torch.manual_seed(0)
        feed(params, 0)
        with ops.backend(backend):
            make(params, lr=rate).step()
        stepped.append([p.detach() for p in params])
    for other in stepped[1:]:
        torch.testing.assert_close(stepped[0], other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("make", [AdamW, partial(Lamb, variant="clamped"), partial(Lamb, max_grad_norm=None)])
@pytest.mark.parametrize("large", [1e20, 1e30])
def test_a_gradient_whose_square_overflows(make, backend, large):
    """torch's AdamW goes on too: an average of squares that was infinite made the next step's weight NaN."""
    found = []
    for dtype in (torch.float32, torch.float64):
        p = torch.nn.Parameter(torch.ones(40, dtype=dtype))
        optimizer = make([p], lr=1e-3)
        for size in (1e-2, large, 1e-2, 1e-2):
            p.grad = torch.full_like(p, 1e-2)
            p.grad[3] = size
            with ops.backend(backend if dtype == torch.float32 else "reference"):
                optimizer.step()
        found.append(p.detach())
    assert found[0].isfinite().all()
    assert (found[0] < 1).all()
    if large < 1e30:  # whose square times 0.001 is a number of float32
        torch.testing.assert_close(found[0].double(), found[1], rtol=0, atol=1e-6)


def test_tensors_of_two_sizes_and_dtypes_divided_by_their_norm():
    params = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)), torch.nn.Parameter(torch.tensor(1.0))]
    for p in params:
        p.grad = torch.full_like(p, 9.0)
    with ops.backend("reference"):
        Lamb(params).step()
    assert params[1].dtype == torch.float32
    assert all((p < 1).all() for p in params)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("optimizer_class", [AdamW, Lamb])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_others_write_to_a_narrow_parameter_counts(optimizer_class, dtype, backend):
    narrow, wide = random_pair(1, dtype), [torch.nn.Parameter(p.detach().float()) for p in random_pair(1, dtype)]
    optimizers = [optimizer_class(params, lr=1e-2) for params in (narrow, wide)]

    def step(seed):
        for p, q in zip(narrow, wide, strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
            q.grad = p.grad.float()
        with ops.backend(backend):
            for optimizer in optimizers:
                optimizer.step()

    step(1)
    step(2)
    with torch.no_grad():
        for params in (narrow, wide):
            params[0][:3] = 0.5  # the other rows keep the digits that only their masters have
            params[1].copy_(torch.arange(5))
    step(3)
    for p, q in zip(narrow, wide, strict=True):
        torch.testing.assert_close(optimizers[0].state[p]["master"], q.detach(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(p.detach(), q.detach().to(dtype), rtol=2**-7, atol=1e-7)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("optimizer_class", [AdamW, Lamb])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_model_that_becomes_wide_goes_on_from_its_masters(optimizer_class, backend, loaded):
    params, plain = (
        random_pair(1, torch.bfloat16),
        [torch.nn.Parameter(p.float()) for p in random_pair(1, torch.bfloat16)],
    )
    optimizers = [optimizer_class(list_of, lr=1e-2) for list_of in (params, plain)]
    with ops.backend(backend):
        for p, q in zip(params, plain, strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
            q.grad = p.grad.float()
        for optimizer in optimizers:
            optimizer.step()
        for p, q in zip(params, plain, strict=True):
            p.grad, p.data = None, p.detach().float()
            p.grad = q.grad
        if loaded:
            state = optimizers[0].state_dict()
            optimizers[0] = optimizer_class(params, lr=1e-2)
            optimizers[0].load_state_dict(state)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(params, plain, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
        assert "master" not in optimizers[0].state[p]


def test_a_state_may_be_loaded_again():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([p])
    for step in range(3):
        p.grad = torch.full_like(p, step)
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[p]["step"] == 3
    # An optimiser that goes on from the state of another leaves that one its own.
    q, held = torch.nn.Parameter(torch.ones(3)), copy.deepcopy(optimizer.state[p])
    other = AdamW([q])
    other.load_state_dict(optimizer.state_dict())
    q.grad = torch.ones_like(q)
    other.step()
    assert all(torch.equal(optimizer.state[p][name], held[name]) for name in ("exp_avg", "exp_avg_sq"))


def test_steps_of_the_device_and_of_the_host_go_on_from_each_other():
    """The counts, which bias correction needs, whoever made the steps before and whoever asks for them."""
    host, device = random_pair(1, torch.float32), random_pair(1, torch.float32)
    optimizers = [AdamW(params, lr=1e-2, correct_bias=True) for params in (host, device)]
    lr = torch.tensor([1e-2])
    for number, on_device in enumerate((True, True, False, True, True, False, True), 1):
        for params, optimizer in zip((host, device), optimizers, strict=True):
            torch.manual_seed(number)
            feed(params, number)
            if on_device and params is device:
                device_step(optimizer, lr)
            else:
                optimizer.step()
        saved = optimizers[1].state_dict()["state"] if number % 2 else copy.deepcopy(optimizers[1]).state
        assert {state["step"] for state in saved.values()} == {number}
        if number == 4:
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    for p, q in zip(host, device, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    assert {state["step"] for state in optimizers[1].state_dict()["state"].values()} == {7}


def test_parameters_that_come_and_go_leave_the_others_their_counts():
    """A layer that is trained for a while, and one that comes in later, between steps on the device."""
    host, device = random_pair(1, torch.float32), random_pair(1, torch.float32)
    optimizers = [AdamW(params[:2], lr=1e-2, correct_bias=True) for params in (host, device)]
    for number in range(1, 7):
        for params, optimizer in zip((host, device), optimizers, strict=True):
            torch.manual_seed(number)
            feed(params, number)
            params[1].requires_grad_(number in (3, 4))
            if not params[1].requires_grad:
                params[1].grad = None
            if number == 5:
                optimizer.add_param_group({"params": params[2:]})
            optimizer.step() if params is host else device_step(optimizer, torch.tensor([1e-2]))
    optimizers[1].settle()
    for params, optimizer in zip((host, device), optimizers, strict=True):
        assert [optimizer.state[p]["step"] for p in params] == [6, 2, 2, 2]
    for p, q in zip(host, device, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_a_frozen_parameter_has_no_state_on_the_device():
    trained, frozen = random_pair(1)[:2]
    frozen.requires_grad_(False)
    optimizer = AdamW([trained, frozen], lr=1e-2)
    trained.grad = torch.ones_like(trained)
    device_step(optimizer, torch.tensor([1e-2]))
    assert list(optimizer.state) == [trained]


def test_another_optimisers_state_is_refused():
    (p, *_) = params = random_pair(1, torch.float32)
    feed(params, 0)
    for other, lacks in ((torch.optim.AdamW(params), "correct_bias"), (Lamb(params), "correct_bias")):
        other.step()
        with pytest.raises(InputError, match=rf"state_dict of a fastbert\.optim\.AdamW, .*{lacks}"):
            AdamW(params).load_state_dict(other.state_dict())
    with pytest.raises(InputError, match=r"a fastbert\.optim\.Lamb, .*max_grad_norm, trust_range, variant"):
        Lamb(params).load_state_dict(AdamW(params).state_dict())
    assert p.isfinite().all()


@pytest.mark.parametrize("optimizer_class", [AdamW, Lamb])
def test_gradients_and_parameters_that_there_is_no_update_of(optimizer_class):
    table = torch.nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer = optimizer_class(table.parameters())
    for step in (optimizer.step, lambda: clipped_step(optimizer, 1.0), lambda: device_step(optimizer, torch.ones(1))):
        with pytest.raises(InputError, match=r"gradients must be dense, got one in torch\.sparse_coo"):
            step()
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    p.grad = torch.ones(2, dtype=torch.complex64)
    optimizer = optimizer_class([p], **({"max_grad_norm": None} if optimizer_class is Lamb else {}))
    with pytest.raises(InputError, match=r"real floating numbers, got one of torch\.complex64"):
        optimizer.step()


def test_a_step_on_the_device_is_for_one_device_and_has_dtypes_side_by_side():
    """Each run of a dtype is a launch."""
    kinds = (torch.float32, torch.bfloat16, torch.float32)
    params = [torch.nn.Parameter(torch.zeros(1, dtype=dtype)) for dtype in kinds]
    assert [id(p) for p in prepare(AdamW(params)).params] == [id(params[i]) for i in (1, 0, 2)]
    params.append(torch.nn.Parameter(torch.zeros(1, device="meta")))
    with pytest.raises(InputError, match=r"parameters of one device, got \['cpu', 'meta'\]"):
        prepare(AdamW(params))
