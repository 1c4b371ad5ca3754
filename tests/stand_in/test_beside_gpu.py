"""Tests that pass on a CPU pass beside a GPU. On the reference: Triton's interpreter is slow."""

from __future__ import annotations

# Every kind of head, and of model. SQuAD 2.0's is that of 1.1, and null answers are looked at besides.
FINETUNED = (
    "step_for_step or whole_story or squad2 and learns_to_answer or learns_and_writes or by_the_command or in_commands"
)
TASKS = ("finetune", "squad", "swag", "gpt_tasks", "features_of_kinds")


def test_commands_models_trainers_and_encoders_come_to_their_ends(run_tests):
    """In one process: torch, transformers and the device are found once."""
    chosen = {
        "cli/test_device.py": "to_the_end and not plan and not restarts",
        **{f"tasks/test_{name}.py": FINETUNED for name in TASKS},
        "stand_in/trainer_on_device.py": "test",
        "interop/test_sentence_encoder.py": "test and not shorter_products and not minilm_agrees",
    }
    run_tests(chosen, backend="reference")
