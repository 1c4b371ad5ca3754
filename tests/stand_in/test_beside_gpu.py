"""Tests that pass on a CPU pass beside a GPU. On the reference: Triton's interpreter is slow."""

from __future__ import annotations

TASKS = ("finetune", "squad", "swag", "gpt_tasks", "features_of_kinds")


def test_commands_come_to_their_ends(run_tests):
    chosen = "to_the_end and not plan and not restarts"
    run_tests("cli/test_device.py", chosen=chosen, backend="reference")


def test_models_are_finetuned(run_tests):
    """Every kind of head, and of model."""
    files = [f"tasks/test_{name}.py" for name in TASKS]
    chosen = "step_for_step or whole_story or learns_to_answer or learns_and_writes or by_the_command or in_commands"
    run_tests(*files, chosen=chosen, backend="reference")


def test_patched_models_are_trained_by_transformers(run_tests):
    run_tests("interop/test_trainer.py", chosen="test", backend="reference")


def test_sentences_become_vectors(run_tests):
    run_tests("interop/test_sentence_encoder.py", chosen="test", backend="reference")
