"""Options that would change nothing, or that the model cannot follow, are refused before any file of rows is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_bert

from fastbert.cli.main import main
from fastbert.train import recipes
from fastbert.train.config import PretrainConfig


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("model"), num_hidden_layers=2)


def refused(capsys, *words) -> str:
    """Runs a command that must say one sentence and nothing else; its files of rows are not there."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sst2 --doc-stride 64", "--doc-stride 64 would change nothing: the task sst2 has no use for it"),
        ("ner --doc-stride 64", "--doc-stride 64 would change nothing: the task ner has no use for it"),
        ("squad1 --document-context", "--document-context would change nothing: the task squad1 has no use for it"),
        ("ner --features last --bilstm 8", "--bilstm 8 would change nothing: --features has one of its own"),
        (
            "ner --features last --activation-checkpointing",
            "--activation-checkpointing would change nothing: --features trains a BiLSTM, which keeps its activations",
        ),
        ("mrpc --token-budget 256 --batch-size 8", "--batch-size 8 would change nothing: --token-budget says how"),
        ("mrpc --grid --lr 1e-4", "--lr 0.0001 would change nothing: --grid tries those of --grid-lrs"),
        ("mrpc --grid --epochs 9", "--epochs 9 would change nothing: --grid tries those of --grid-epochs"),
        ("mrpc --grid --batch-size 8", "--batch-size 8 would change nothing: --grid tries those of --grid-batch-sizes"),
        ("sst2 --patience 2", "--patience 2 would change nothing: a training of 3 epochs is over by then"),
        ("sst2 --grid --patience 3", "--patience 3 would change nothing: a training of 4 epochs is over by then"),
        ("sst2 --label-columns a b", "--label-columns a b would change nothing: the task sst2 has no use for it"),
        ("text-multilabel --label-columns a", "label_columns are two or more, one for each label, got a"),
        ("sst2 --eval-every 0", "eval_every must be at least 1, got 0"),
        ("sst2 --patience 0", "patience must be at least 1, got 0"),
        ("sst2 --auxiliary-lm 0.5", "auxiliary_lm is a loss of a GPT that is fine-tuned, got a model of type bert"),
        ("sst2 --max-seqlen 64", "max_seqlen must be between 3 and the model's max_position_embeddings, 32, got 64"),
        ("sst2 --features last4-sum", "layers last4-sum needs a model of at least 4 layers, got 2"),
        ("ner --features all", "layers last4-sum needs a model of at least 4 layers, got 2"),
        ("sst2 --zero 3", "fine-tuning goes up to ZeRO stage 2"),
        ("sst2 --deepspeed none.json", "none.json"),
        ("sst2 --also a/dev.tsv b/dev.tsv", "--also: expected files of different names"),
        ("sst2 --also m.tsv --also mm.tsv", "expected --also once, with all its values after it, got it 2 times"),
        ("sst2 --grid --grid-lrs=1e-4 --grid-lrs=2e-4", "expected --grid-lrs once, with all its values after it"),
        ("sst2 --model none", "none: expected a model directory"),
        ("sst2 --out /dev/null/run", "/dev/null"),
        ("sst2 --out caf\udce9", "expected a run directory with a name in UTF-8"),  # Latin-1's, on a command line
    ],
)
def test_finetune_refuses_what_it_need_not_read_rows_for(model, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    given = ["--model", model, "--max-seqlen", 32, "--train", "train.tsv", "--dev", "dev.tsv", "--out", "RUN"]
    assert said in refused(capsys, "finetune", *given, *words.split())
    assert not list(tmp_path.iterdir())


def test_a_task_that_an_option_of_several_values_has_taken(model, capsys):
    given = ["--train", "train.tsv", "sst2", "--model", model, "--dev", "dev.tsv", "--out", "RUN"]
    said = "expected TASK before --train, which takes all words up to the next option; the last is sst2"
    assert said in refused(capsys, "finetune", *given)
    given.remove("sst2")  # no option has taken it
    assert "expected TASK, got none" in refused(capsys, "finetune", *given)


@pytest.mark.parametrize("share", ["0", "1", "-1", "nan"])
def test_finetune_refuses_a_share_that_is_none(model, tmp_path, monkeypatch, capsys, share):
    monkeypatch.chdir(tmp_path)
    given = ["--model", model, "--train", "train.tsv", "--dev-share", share, "--out", "RUN"]
    assert "--dev-share is a share of the training rows, between 0 and 1" in refused(capsys, "finetune", "sst2", *given)


@pytest.mark.parametrize(
    "words",
    [
        "squad1 --doc-stride 16",
        "ner --document-context",
        "sst2 --doc-stride 128",  # the default
        "squad1 --batch-size 32 --token-budget 256",  # the task's own, which the paper has
        "mrpc --grid --warmup 0.2",
        "ner --features embeddings --epochs 2",
        "sst2 --bilstm 8",
    ],
)
def test_options_that_change_something_are_taken(model, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    given = ["--model", model, "--max-seqlen", 32, "--train", "train.tsv", "--dev", "dev.tsv", "--out", "RUN"]
    assert "train.tsv: No such file" in refused(capsys, "finetune", *given, *words.split())


def test_a_threshold_is_a_number(capsys):
    given = ["evaluate", "squad2", "--data", "dev.json", "--predictions", "predictions.json", "--na-prob", "odds.json"]
    assert "--na-prob-threshold must be a number, got nan" in refused(capsys, *given, "--na-prob-threshold", "nan")


@pytest.mark.parametrize(
    "words",
    [
        "nvlamb --warmup 0.1",
        "nvlamb --samples.max-seqlen 256",
        "nvlamb --samples.max-predictions 40",
        "paper --samples.max-seqlen 256",
        "paper --samples.max-predictions 40",
    ],
)
def test_pretrain_refuses_what_every_phase_sets(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    said = f"{words.partition(' ')[2]} would change nothing: every phase of the file sets its own"
    assert said in refused(capsys, "pretrain", "--recipe", *words.split(), "--data", "DATA", "--out", "RUN")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "--recipe paper --warmup 0.02",  # the run's schedule goes through all phases
        "--recipe day --samples.max-predictions 40",
        "--recipe nvlamb --samples.max-seqlen 128 --warmup 0.01",  # the recipe's, and the default
        "--config config.yaml --resume auto",
        "--config config.yaml --resume auto --warmup 0.3 --samples.max-predictions 40",
    ],
)
def test_pretrain_takes_what_a_phase_lacks_and_what_the_file_says(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    config = PretrainConfig.from_yaml(recipes.path("nvlamb"))
    of_run = replace(config, warmup=0.3, samples=replace(config.samples, max_predictions=40))
    (tmp_path / "config.yaml").write_text(of_run.to_yaml())
    assert "DATA" in refused(capsys, "pretrain", *words.split(), "--data", "DATA", "--out", "RUN")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_no_tokens_in_a_batch_are_refused_before_anything_is_read_or_printed(model, capsys, command):
    given = [command, "sst2", "--model", model, "--data", "none.tsv", "--token-budget", 0]
    assert "token_budget must be at least 1, got 0" in refused(capsys, *given)


@pytest.mark.parametrize("option", ["--max-seqlen", "--token-budget", "--null-threshold", "--precision"])
def test_predictions_are_final(capsys, option):
    value = "int8" if option == "--precision" else "16"
    given = ["evaluate", "squad2", "--data", "dev.json", "--predictions", "predictions.json", option, value]
    assert f"{option} belongs to --model, got it with --predictions" in refused(capsys, *given)
