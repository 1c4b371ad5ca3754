"""The formulas of fastbert.train.scale against every byte that gloo's processes hand to the kernel."""

from __future__ import annotations

import sys

import pytest
import rank_runs
import scale_cases
import torch

from fastbert import BertConfig, BertForPreTraining
from fastbert.train import scale

# Stage, optimiser, and at stage 3 whether small tensors are cut up too, and whether what was gathered is kept.
CASES = [
    (None, "adamw", ""),
    (1, "lamb", ""),
    (2, "adamw", ""),
    (3, "adamw", "all"),
    (3, "lamb", ""),
    (3, "adamw", "all twice"),
]
PARAMETERS = scale_cases.LAYERS * scale_cases.WIDTH * (scale_cases.WIDTH + 1)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/io counts the bytes")


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=() if n == 2 else pytest.mark.slow) for n in (2, 3, 4)],
)
def counted(request, tmp_path_factory):
    """(ranks, results by rank)."""
    try:
        import zero_cases

        zero_cases.load()
        cases = CASES[:4] if request.param == 2 else CASES
    except Exception as error:
        if "DeepSpeed" not in str(error):
            raise
        cases = CASES[:1]
    return request.param, rank_runs.launch(scale_cases.main, request.param, tmp_path_factory.mktemp("scale"), cases)


def expected(case: tuple) -> list[scale.Collective]:
    stage, kind, how = case
    return scale.collectives(
        PARAMETERS,
        zero=stage,
        micro_batches=scale_cases.MICRO,
        lamb_tensors=2 * scale_cases.LAYERS if kind == "lamb" else 0,
        persistent=0 if "all" in how else PARAMETERS,
        reused="twice" not in how,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bytes_are_those_of_the_formulas(counted, case):
    """Within what messages have around them: 1 % and a kilobyte for a collective and rank."""
    ranks, results = counted
    if case not in results[0]:
        pytest.skip("for the slow tests, or DeepSpeed is not installed (pip install 'fastbert[deepspeed]')")
    step = expected(case)
    wanted = scale.sent(step, ranks, gloo=True)
    for result in results:
        got = result[case]["sent"]
        print(
            f"{ranks} ranks, {case}: {got:,} bytes, by the formulas {wanted:,.0f} ({100 * got / wanted - 100:+.2f} %)"
        )
        assert wanted * 0.999 <= got <= wanted * 1.01 + 1024 * ranks * len(step) * scale_cases.MICRO


def test_what_ddp_and_lamb_give_to_collectives_is_exact(counted):
    """Gradients once, although there are two micro-batches; under LAMB two float64 for each tensor besides."""
    _, results = counted
    for result in results:
        assert result[CASES[0]]["payload"] == {"all_reduce": 4 * PARAMETERS}
        if CASES[1] in result:
            # Besides gradients and norms DeepSpeed agrees on one float32 for the norm and one for overflow.
            summed = 4 * PARAMETERS + 16 * 2 * scale_cases.LAYERS + 8
            assert result[CASES[1]]["payload"]["all_reduce"] == summed


def test_a_formula_that_forgets_something_would_be_noticed(counted):
    """A stage 2 that summed gradients once a step, as DDP does."""
    ranks, results = counted
    if CASES[2] not in results[0]:
        pytest.skip("DeepSpeed is not installed (pip install 'fastbert[deepspeed]')")
    wrong = scale.sent(scale.collectives(PARAMETERS, zero=2, micro_batches=1), ranks, gloo=True)
    assert results[0][CASES[2]]["sent"] > 1.3 * wrong


def test_a_step_of_ddp_by_hand():
    """2 x 3 / 4 of 400 bytes, and of the 40 that are agreed on."""
    assert scale.sent(scale.collectives(100), 4) == pytest.approx(600 + 60)
    assert scale.sent(scale.collectives(100), 1) == 0


def test_a_step_of_stage_3_by_hand():
    """On 2 ranks: half of 400 bytes of gradients and twice half of 400 of weights, for each of 5 micro-batches."""
    step = scale.collectives(100, zero=3, micro_batches=5, lamb_tensors=7, reused=False)
    assert scale.sent(step, 2) == pytest.approx(5 * 200 + 10 * 200 + 40 + 16 * 7)
    assert scale.sent(step, 2, gloo=True) == pytest.approx(5 * 400 + 10 * 200 + 40 + 16 * 7)


def test_more_ranks_than_micro_batches():
    few, many = (scale.step(1000, ranks, 64, 16, 100.0) for ranks in (2, 64))
    assert (few.micro_batches, many.micro_batches) == (2, 1)
    assert (few.compute, many.compute) == (0.32, 0.01)
    assert many.longest == many.compute + many.communication
    assert few.shortest == max(few.compute, few.communication)


def test_the_page_shows_what_the_formulas_say():
    from pathlib import Path

    with torch.device("meta"):
        large = BertForPreTraining(BertConfig.large())
    page = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text()
    for text in scale_cases.page_tables(large):
        assert text in page
