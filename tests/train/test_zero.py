"""Our optimisers inside DeepSpeed's ZeRO are the papers': stages 0 to 3 on two and three gloo processes.

The gradients are given, so that nothing but the optimiser is on trial; each is the sum of unequal shares of the ranks
and micro-batches. No shard ends where a tensor does.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import rank_runs
import torch
import zero_cases
from plain_lamb import largest_relative

from fastbert.train.distributed import World
from fastbert.train.engines.zero import layouts

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install 'fastbert[deepspeed]')")

BOUND = 1e-6


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    zero_cases.load()
    return rank_runs.launch(zero_cases.quick, 3, tmp_path_factory.mktemp("quick"))


@pytest.fixture(scope="module", params=[2, 3])
def every(request, tmp_path_factory):
    zero_cases.load()
    return rank_runs.launch(zero_cases.every, request.param, tmp_path_factory.mktemp("every"), seconds=1500)


def check(results: list[dict], case, kind: str, scale: float) -> None:
    got = results[0][case]
    assert largest_relative(got["weights"], zero_cases.expected(kind, scale)) < BOUND, case
    # A NaN in one rank's gradient: no rank takes the step, and training goes on as if it had not been.
    for result in results:
        assert not math.isfinite(result[case]["norm of NaN"])
        assert result[case]["kept"]
        assert result[case]["skipped"] == [0] * 7 + [1] * (len(result[case]["skipped"]) - 7)
        assert result[case]["norms"] == got["norms"]
        # By which those go who keep a weight packed.
        assert min(result[case]["versions"]) > 0


@pytest.mark.parametrize(("kind", "stage"), zero_cases.QUICK)
def test_50_steps_are_those_of_whole_tensors(quick, kind, stage):
    check(quick, (kind, stage), kind, 3.0)


def test_shards_taken_for_tensors_are_found_out(quick):
    assert largest_relative(quick[0]["bug"]["weights"], zero_cases.expected("apex", 3.0, steps=10)) > 1e-2


def test_five_in_a_row_end_the_training_on_all_ranks(quick):
    for said, kept in (result["diverged"] for result in quick):
        assert "5 steps in a row" in said
        assert kept


def test_layouts_have_the_gaps_between_tensors():
    """DeepSpeed leaves them where a tensor begins at a multiple of more elements."""
    flats = [torch.zeros(6), torch.zeros(4)]
    sizes = [[3, 5, 2], [4, 3]]
    inner = SimpleNamespace(
        single_partition_of_fp32_groups=flats,
        round_robin_bit16_meta=[[torch.empty(size, device="meta") for size in group] for group in sizes],
        round_robin_bit16_offsets=[[0, 4, 10], [0, 4]],
    )
    first, second = (layouts(inner, World(rank, 2)) for rank in (0, 1))
    assert [first[flat].parts for flat in flats] == [((3, 0), (1, None), (2, 1)), ((4, 0),)]
    assert [second[flat].parts for flat in flats] == [((3, 1), (1, None), (2, 2)), ((3, 1), (1, None))]


def check_left_out(cases, directory) -> None:
    got = rank_runs.launch(zero_cases.leave_out, 2, directory, cases)[0]
    for case, (plain, left_out, skipped) in got.items():
        assert all(map(torch.equal, left_out["weights"], plain["weights"])), case
        assert (left_out["scale"], left_out["skipped"]) == (plain["scale"], 0), case
        if case[0] != "fp16":  # whose scale follows
            assert all(map(torch.equal, skipped["weights"], plain["weights"])), case
        assert skipped["skipped"] == 1, case


@pytest.mark.usefixtures("fp16_anywhere")
def test_a_step_that_is_left_out_leaves_nothing_behind(tmp_path):
    """Neither in the padding of stage 3, nor in offloaded sums, nor in the loss scale; a NaN does not either."""
    check_left_out(zero_cases.LEFT_OUT, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("fp16_anywhere")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_step_that_is_left_out_leaves_nothing_behind_in_any_stage(tmp_path, precision):
    check_left_out([(precision, s, o) for s in range(4) for o in (False, True) if s or not o], tmp_path)


@pytest.mark.slow
def test_all_variants_stages_offload_and_accumulation(every):
    for case in zero_cases.ALL:
        kind, scale, *_ = case
        check(every, case, kind, scale)
    for stage in (0, 1, 3):
        assert all("5 steps in a row" in result["diverged", stage][0] for result in every)


@pytest.mark.slow
@pytest.mark.usefixtures("fp16_anywhere")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_updates_float32_masters(tmp_path, precision, stage):
    zero_cases.load()
    got = rank_runs.launch(lambda: zero_cases.narrow(precision, stage), 2, tmp_path)[0]
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    # What is written for others are the masters, with bits that the weights of the forward pass do not have.
    assert not any(torch.equal(w, w.to(narrow).float()) for w in got["weights"][:3])
    assert got["kept"]
