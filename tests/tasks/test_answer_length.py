"""`--max-answer-length`: the longest answer of SQuAD's tasks, by the run's option or a command's own."""

from __future__ import annotations

import json

import finetune_runs as runs
import pytest
import tiny_bert
from transformers import BertTokenizer

from fastbert.cli.main import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run with answers of one token at most, and its data."""
    directory = tmp_path_factory.mktemp("answers")
    tiny_bert.save(directory / "model")
    data = directory / "data.json"
    data.write_text(runs.squad_of(12, 1))
    given = ["--model", directory / "model", "--train", data, "--dev", data, "--out", directory / "run"]
    options = ["--max-seqlen", 32, "--epochs", 1, "--max_answer_length", 1]  # as run_squad.py writes it
    assert main(list(map(str, ["finetune", "squad2", *given, *options]))) == 0
    return directory


def longest(directory, nbest) -> int:
    """Tokens of the longest answer in a file of n best answers."""
    tokenizer = BertTokenizer(str(directory / "model" / "vocab.txt"))
    listed = json.loads(nbest.read_text()).values()
    return max(len(tokenizer.tokenize(entry["text"])) for entries in listed for entry in entries)


def test_predict_takes_that_of_the_run_or_its_own(trained):
    for model, option, length in (("run", [], 1), ("run/model", [], 1), ("run", ["--max-answer-length", 3], 3)):
        given = ["--model", trained / model, "--data", trained / "data.json", "--out", trained / "predictions.json"]
        assert main(list(map(str, ["predict", "squad2", *given, *option]))) == 0
        assert longest(trained, trained / "nbest_predictions.json") == length


def test_evaluate_takes_it_too(trained):
    for option, length in (([], 1), (["--max-answer-length", 4], 4)):
        given = ["--model", trained / "run", "--data", trained / "data.json", "--report", trained / "report"]
        assert main(list(map(str, ["evaluate", "squad2", *given, *option]))) == 0
        assert longest(trained, trained / "report" / "data_nbest_predictions.json") == length


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("finetune sst2 --train a --dev a --out b", "would change nothing: the task sst2 has no use for it"),
        ("predict sst2 --data a", "--max-answer-length belongs to squad1 and squad2, got the task sst2"),
        ("evaluate squad2 --data a --predictions b", "--max-answer-length belongs to --model, got it with"),
        ("predict squad2 --data a --max-answer-length 0", "max_answer_length must be at least 1, got 0"),
    ],
)
def test_where_it_means_nothing_it_is_refused(trained, monkeypatch, capsys, words, said):
    monkeypatch.chdir(trained)
    words = words.split()
    model = [] if "--predictions" in words else ["--model", "model" if "finetune" in words else "run"]
    length = [] if "--max-answer-length" in words else ["--max-answer-length", "9"]
    (trained / "a").write_text("sentence\nthe film is good\n")
    if "sst2" in words and "predict" in words:
        model = ["--model", str(tiny_bert.save(trained / "texts", "BertForSequenceClassification"))]
    assert main([*words, *model, *length]) == 2
    assert said in capsys.readouterr().err
