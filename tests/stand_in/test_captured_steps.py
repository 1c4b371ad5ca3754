"""Steps captured in a CUDA graph, or compiled, by the Triton kernels, beside a stand-in for a GPU; and the stand-in
itself."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_the_stand_in_refuses_what_a_gpu_refuses(script):
    script("refusals.py")


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp8", marks=pytest.mark.slow)])
def test_a_captured_step_is_the_step_that_was_not_captured(script, precision):
    """One step before the capture, two replays; forward, backward and update."""
    assert f"{precision} equal" in script("replays.py", precision).splitlines()


SLOW = ("SequenceClassification", "Regression", "TokenClassification")


@pytest.mark.parametrize("head", ["QuestionAnswering", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_captured_fine_tuning_is_the_one_that_was_not_captured(script, head):
    """Two shapes, each with a step as it is, a capture and a replay. Two layers are captured by the test above too."""
    layers = "1" if head == "QuestionAnswering" else "2"
    assert script("finetuning_replays.py", head, layers) == "equal\n"


@pytest.mark.slow
def test_captured_fine_tuning_follows_what_was_replaced(script):
    """Layers are unfrozen and a state is loaded after one shape has its graph."""
    assert script("changed_replays.py") == "equal\n"


def test_captured_inference_is_the_pass_that_was_not_captured(script):
    """Two shapes, and weights that change between two replays."""
    assert script("inference_replays.py") == "equal\n"


def test_a_graph_does_not_add_to_the_gradients_of_the_one_before(script):
    assert script("graphs_in_turn.py").endswith("done\n")


def test_a_parameter_that_is_written_between_replays_keeps_its_new_value(script):
    """Of 16 bits: a replay took the old one from the master weights."""
    assert script("written_between_replays.py") == "done\n"


def test_a_step_on_another_device_than_the_current_one(run):
    """Triton and streams take the current device, where nobody says otherwise."""
    assert run(str(HERE / "other_device.py"), LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").endswith("done\n")


def test_a_compiled_step_is_the_step_that_was_not_compiled(script):
    """Under autocast, with dropout: every op's way to a kernel is one that torch's compiler can follow on a GPU."""
    assert script("compiled.py") == "equal\n"


def test_a_captured_update_replays(run_tests):
    """By the test that a GPU runs."""
    run_tests({"triton_backend/test_triton_optimizer.py": "captured"}, backend="auto")
