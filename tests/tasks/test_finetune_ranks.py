"""Fine-tuning in two processes is that of one: under torch DDP, and under DeepSpeed's ZeRO."""

import importlib.util
import os

import pytest
import rank_runs
import torch
from tiny_bert import rows_of

import fastbert
from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import finetune
from fastbert.train import distributed

DEEPSPEED = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed (pip install 'fastbert[deepspeed]')",
)


def run(directory, out, auxiliary_lm=0.0, **options) -> list[dict]:
    """The history. 33 rows in batches of 8: the last batch has a row for one of two processes."""
    torch.manual_seed(0)
    task = registry.get("sst2")
    model, tokenizer = task.model(directory), fastbert.load_tokenizer(directory)
    # Dropout goes by places in the batch, and each process has a batch of its own.
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = model.dropout.p = 0.0
    recipe = {"epochs": 2, "batch_size": 8, "lr": 1e-3, "max_seqlen": 16, "auxiliary_lm": auxiliary_lm}
    config = FinetuneConfig(**recipe, **options)
    with distributed.joined(always=bool(options)):
        history = finetune(task, model, tokenizer, rows_of(33, 1), rows_of(16, 2), config, out=out).history
    return [{name: row[name] for name in ("train_loss", "dev_loss", "accuracy")} for row in history]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 3},
        *(
            pytest.param(given, marks=[DEEPSPEED, pytest.mark.slow])
            for given in ({"zero": 2}, {"zero": 2, "accumulate": 3})
        ),
    ],
    ids=["ddp", "ddp-parts", "zero2", "zero2-parts"],
)
def test_two_processes_come_to_what_one_does(directory, tmp_path, options):
    expected = run(directory, tmp_path / "one")
    results = rank_runs.launch(lambda: run(directory, tmp_path / "two", **options), 2, tmp_path)
    for history in results:
        for got, row in zip(history, expected, strict=True):
            assert got == {name: pytest.approx(value, rel=1e-4) for name, value in row.items()}
    assert {p.name for p in (tmp_path / "two").iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}


def test_they_do_with_a_gpts_second_loss(still_gpt, tmp_path):
    """Which is a mean over the words of a part, of which another process has more, and an idle one none."""
    options = {"auxiliary_lm": 0.5}
    expected = run(still_gpt, tmp_path / "one", **options)
    for history in rank_runs.launch(lambda: run(still_gpt, tmp_path / "two", accumulate=3, **options), 2, tmp_path):
        for got, row in zip(history, expected, strict=True):
            assert got == {name: pytest.approx(value, rel=1e-4) for name, value in row.items()}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"weight_decay": 0.1}, "weight_decay 0.1 on rank 1 and 0.01"),
        ({"accumulate": 2}, "accumulate 2 on rank 1 and 1"),
    ],
)
def test_processes_started_with_other_options_are_refused(directory, tmp_path, options, told):
    def work() -> str:
        given = options if os.environ["RANK"] == "1" else {}
        try:
            run(directory, tmp_path / "run", **given)
        except InputError as error:
            return str(error)

    what = f"expected all 2 processes to be started alike, got {told} on rank 0"
    assert rank_runs.launch(work, 2, tmp_path) == [what, what]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"zero": 3}, "goes up to ZeRO stage 2"),
        ({"zero": 1, "precision": "bf16"}, "under DeepSpeed must be in fp32, got bf16"),
        ({"zero": 7}, "zero must be 0, 1, 2 or 3"),
    ],
)
def test_what_it_does_not_do_is_refused(directory, options, what):
    task = registry.get("sst2")
    tokenizer, rows = fastbert.load_tokenizer(directory), rows_of(8, 1)
    with pytest.raises(InputError, match=what):
        finetune(task, task.model(directory), tokenizer, rows, rows, FinetuneConfig(max_seqlen=16, **options))
