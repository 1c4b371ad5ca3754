"""LAMB over shards of flat buffers is LAMB over whole tensors: two and three processes against one and the papers."""

from __future__ import annotations

import numpy as np
import plain_lamb
import pytest
import rank_runs
import sharded_cases as cases
import torch
from plain_lamb import largest_relative

from fastbert.optim import Lamb
from fastbert.optim.sharded import ShardedLamb, ShardLayout


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3])
def results(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(f"shards{request.param}")
    return rank_runs.launch(cases.main, request.param, directory)


def by_the_papers(variant: str, scale: float) -> list[np.ndarray]:
    params, gradients = cases.start_and_gradients(scale)
    return plain_lamb.lamb(params, gradients, cases.DECAYS, cases.LR, variant)


@pytest.mark.parametrize(("variant", "scale", "dtype"), cases.CASES)
def test_50_steps_are_those_of_one_process_and_of_the_papers(results, variant, scale, dtype):
    got = results[0][variant, scale, dtype]
    bound = 1e-12 if dtype == "float64" else 1e-6
    assert largest_relative(got, by_the_papers(variant, scale)) < bound
    assert largest_relative(got, cases.whole(variant, scale, dtype)) < bound


def test_every_process_comes_to_the_same_bits(results):
    for other in results[1:]:
        for name, tensors in results[0].items():
            assert all(torch.equal(a, b) for a, b in zip(tensors, other[name], strict=True))


@pytest.mark.parametrize("bug", ["flat norm", "no reduce"])
def test_a_norm_of_the_shard_in_place_of_the_tensor_is_found_out(results, bug):
    assert largest_relative(results[0][bug], by_the_papers("apex", 3.0)) > 1e-2


def test_borders_do_cut_through_tensors():
    for size in (2, 3):
        for first, end, _ in cases.GROUPS:
            sizes = [int(np.prod(shape)) for shape in cases.SHAPES[first:end]]
            ends = set(np.cumsum(sizes).tolist())
            assert all(cases.border(rank, size, sum(sizes)) not in ends for rank in range(1, size))


def test_layouts_of_ranges():
    sizes = [4, 3, 5]
    assert ShardLayout.of_range(sizes, 0, 6).parts == ((4, 0), (2, 1))
    assert ShardLayout.of_range(sizes, 6, 14).parts == ((1, 1), (5, 2), (2, None))
    assert ShardLayout.of_range(sizes, 12, 15).parts == ((3, None),)
    assert ShardLayout.of_range(sizes, 14, 16).parts == ((2, None),)
    assert ShardLayout.of_range([4, 0, 2], 1, 5).parts == ((3, 0), (1, 2))
    spans = ShardLayout.of_range([4, 3, 5], 2, 14, offsets=[0, 5, 8])
    assert spans.parts == ((2, 0), (1, None), (3, 1), (5, 2), (1, None))
    for begin in range(14):
        for end in range(begin, 16):
            assert ShardLayout.of_range(sizes, begin, end).size == end - begin
    assert ShardLayout.of_pieces([2, 0, 3], [3, 1, 3]).parts == ((2, 0), (1, None), (1, None), (3, 2))


def test_pieces_are_views_of_the_shard():
    flat = torch.arange(8.0)
    pieces = ShardLayout.of_range([4, 3, 5], 6, 14).pieces(flat)
    assert [piece.tolist() for piece in pieces] == [[0.0], [1.0, 2.0, 3.0, 4.0, 5.0]]
    pieces[1].zero_()
    assert flat.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 7.0]


def test_without_layouts_it_is_lamb():
    params, gradients = cases.start_and_gradients(3.0)
    params = [torch.nn.Parameter(torch.tensor(p)) for p in params]
    groups = [{"params": params[a:b], "weight_decay": decay} for a, b, decay in cases.GROUPS]
    optimizer = ShardedLamb(groups, lambda squares: None, **cases.settings("nvlamb"))
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
    assert largest_relative([p.detach() for p in params], by_the_papers("nvlamb", 3.0)) < 1e-12


@pytest.mark.parametrize("none", [None, 0.0])
def test_without_a_largest_norm_nothing_is_divided(none):
    def after(max_grad_norm):
        p = torch.nn.Parameter(torch.arange(1.0, 7.0))
        optimizer = ShardedLamb([p], lambda squares: None, max_grad_norm=max_grad_norm)
        optimizer.layouts[p] = ShardLayout.of_range([4, 2], 0, 6)
        p.grad = torch.full((6,), 5.0)
        optimizer.step()
        return p

    assert torch.equal(after(none), after(1e9))


def test_a_scale_is_a_gradient_that_was_multiplied():
    """Also in the norm by which all gradients are divided."""

    def after(factor):
        p = torch.nn.Parameter(torch.arange(1.0, 7.0))
        optimizer = ShardedLamb([p], lambda squares: None, variant="apex")
        optimizer.layouts[p] = ShardLayout.of_range([4, 2], 0, 6)
        for step in (1.0, 3.0):
            p.grad = torch.arange(6.0) * step * factor
            optimizer.step(grad_scale=1 / factor)
        return p

    assert torch.equal(after(1.0), after(1024.0))  # a power of two


def test_a_shard_of_which_nothing_was_in_use_is_updated_with_the_others():
    """It may have been in use in another process, and all sum up together."""
    sums = []
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = ShardedLamb(params, lambda squares: sums.append(squares.clone()), variant="apex", lr=0.5)
    optimizer.layouts = {p: ShardLayout.of_range([2, 2], 0, 3) for p in params}
    params[0].grad = torch.ones(3)
    optimizer.step()
    assert [len(squares) for squares in sums] == [1, 4, 4]  # the norm of all, and two tensors' of each shard
    assert [optimizer.state[p]["step"] for p in params] == [1, 1]
    torch.testing.assert_close(params[1].detach(), torch.full((3,), 0.5))  # by its decay, scaled to its own length


def test_only_shards_of_the_step_get_zeros():
    """DeepSpeed gives one group at a time: zeros for the others would stay in memory until the next step."""
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = ShardedLamb([{"params": [p]} for p in params[:2]], lambda squares: None, variant="clamped")
    optimizer.layouts = {p: ShardLayout.of_range([3], 0, 3) for p in params}
    for group in optimizer.param_groups:
        optimizer.param_groups = [group]
        optimizer.step()
        group["params"][0].grad = None
    assert [p.grad for p in params] == [None] * 3
    assert [optimizer.state[p]["step"] for p in params[:2]] == [1, 1]


def test_groups_and_settings_are_those_of_the_lamb_and_each_group_has_its_own():
    def after(make):
        params = [torch.nn.Parameter(torch.arange(1.0, 4.0)) for _ in range(2)]
        groups = [{"params": params[:1], "lr": 0.5, "weight_decay": 0.0}, {"params": params[1:]}]
        optimizer = make(Lamb(groups, lr=0.125, betas=(0.5, 0.75), eps=1e-3, variant="apex", max_grad_norm=2.0))
        for p in params:
            p.grad = torch.arange(3.0)
        optimizer.step()
        assert optimizer.defaults["variant"] == "apex"  # of groups that are added later
        return torch.stack([p.detach() for p in params])

    def sharded(lamb):
        optimizer = ShardedLamb.of(lamb, lambda squares: None)
        (one,), (other,) = (group["params"] for group in optimizer.param_groups)
        optimizer.layouts = {p: ShardLayout.of_range([3], 0, 3) for p in (one, other)}
        return optimizer

    torch.testing.assert_close(after(sharded), after(lambda lamb: lamb), rtol=1e-6, atol=0.0)


def test_the_norm_that_is_given_is_what_gradients_are_divided_by():
    """With one group at a time the others' gradients are not there to sum up."""

    def after(norm, largest):
        p = torch.nn.Parameter(torch.arange(1.0, 7.0))
        optimizer = ShardedLamb([p], lambda squares: None, variant="apex", eps=0.5, max_grad_norm=largest)
        optimizer.layouts[p], optimizer.grad_norm = ShardLayout.of_range([4, 2], 0, 6), norm
        p.grad = torch.full((6,), 8.0)
        optimizer.step()
        return p

    assert torch.equal(after(lambda: 64.0, 1.0), after(lambda: 128.0, 2.0))
    assert torch.equal(after(lambda: 0.5, 1.0), after(None, None))
    assert not torch.equal(after(lambda: 64.0, 1.0), after(None, 1.0))


def test_a_shard_in_16_bits_is_its_float32_shard_rounded():
    """Of padding too, which no update changes."""
    narrow, wide = (torch.nn.Parameter(torch.arange(1.0, 7.0).to(dtype)) for dtype in (torch.bfloat16, torch.float32))
    for p in (narrow, wide):
        optimizer = ShardedLamb([p], lambda squares: None, lr=0.3)
        optimizer.layouts[p] = ShardLayout.of_range([3, 2], 0, 6)
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert wide[:5].tolist() != [1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(narrow.detach(), wide.detach().bfloat16())
    assert narrow[5].item() == 6.0
