"""A tiny study from the file to the report: cached, shared, killed and gone on with, the same to the bit."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import levels
import pretraining_runs
import pytest
import study_runs
import torch

from fastbert import _native
from fastbert.cli.main import main
from fastbert.data.shards import ShardSet
from fastbert.errors import InputError
from fastbert.files import sha256
from fastbert.study import cells, corpus, definition, page, pretrained, run, spec
from fastbert.tasks.config import FinetuneConfig


def test_a_finished_study_does_nothing_again(place, done):
    cache, found = done
    again, lines = study_runs.complete(study_runs.read(place), cache)
    assert lines == []
    assert study_runs.same_in_every_run(again) == study_runs.same_in_every_run(found)


def test_two_runs_agree_to_the_bit_also_side_by_side(place, done, tmp_path):
    again, lines = study_runs.complete(study_runs.read(place, seeds=(0,)), tmp_path / "cache", jobs=2)
    assert len(lines) == 5
    one, other = study_runs.kept(tmp_path / "cache"), study_runs.kept(done[0])
    assert len(one) == 5
    assert one.items() <= other.items()
    assert again["rows"][0]["pretraining"]["weights"] == done[1]["rows"][0]["pretraining"]["weights"][:1]


def test_more_seeds_compute_those_that_are_new(place, done, tmp_path):
    cache = shutil.copytree(done[0], tmp_path / "cache")
    found, lines = study_runs.complete(study_runs.read(place, seeds=(0, 7, 1)), cache)
    assert len(lines) == 2 + 3
    assert all("seed 7" in line for line in lines)
    _, lines = study_runs.complete(study_runs.read(place, seeds=(1,)), cache)
    assert lines == []
    values = [row["figures"]["ner"]["values"] for row in found["rows"]]
    assert [[one, other] for one, _, other in values] == [list(r["figures"]["ner"]["values"]) for r in done[1]["rows"]]


def test_a_missing_cell_is_computed_alone_and_to_the_same_bits(place, done):
    cache, found = done
    cell = run.work_of(study_runs.read(place), cache).cells[2]
    before = cell.result()
    cell.path.unlink()
    again, lines = study_runs.complete(study_runs.read(place), cache)
    assert len(lines) == 1
    assert lines[0].startswith(f"[1/1] {cell.row} on ner, seed {cell.seed}")
    assert cell.result()["metrics"] == before["metrics"]
    assert study_runs.same_in_every_run(again) == study_runs.same_in_every_run(found)


def test_who_waits_for_another_study_says_so_once(place, done, caplog):
    cell = run.work_of(study_runs.read(place), done[0]).cells[0]
    with open(f"{cell.path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waits = threading.Thread(target=cells.compute, args=(cell,))
        waits.start()
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
        fcntl.flock(file, fcntl.LOCK_UN)
        waits.join()
    holder = f"process {os.getpid()}" if Path("/proc/locks").exists() else "another process"
    assert [record.message for record in caplog.records] == [f"waiting for {cell.path}.lock, which {holder} holds"]


def test_prepared_data_are_taken_without_a_lock(place, done):
    """So that a cache that cannot be written serves a finished study."""
    work = run.work_of(study_runs.read(place), done[0])
    lock = Path(f"{work.data}.lock")
    lock.unlink(missing_ok=True)
    assert run.work_of(study_runs.read(place), done[0]).missing == ([], [])
    assert not lock.exists()


def test_the_same_bytes_as_text_and_as_json_lines_are_two_corpora(place, tmp_path):
    """What a file's name says of it is part of which corpus it is, though rows are read as such under either name."""
    lines = (place / "corpus.txt").read_text().split("\n\n")
    rows = "".join(json.dumps({"text": document}) + "\n\n" for document in lines)
    made = {}
    for kind in ("txt", "jsonl", "text"):
        (tmp_path / f"corpus.{kind}").write_text(rows)
        study = spec.read(place / "tiny.yaml", "smoke", corpus=(str(tmp_path / f"corpus.{kind}"),))
        made[kind] = corpus.prepared(study, tmp_path / "cache")
    assert made["txt"] == made["text"] != made["jsonl"]
    for kind in ("txt", "jsonl"):
        assert '"' not in ShardSet.open(made[kind]).tokenizer().get_vocab()
    missing = spec.read(place / "tiny.yaml", "smoke", corpus=(str(tmp_path / "none.txt"),))
    with pytest.raises(InputError, match=r"none\.txt: expected a text file or a directory, got nothing there"):
        corpus.prepared(missing, tmp_path / "cache")


def test_a_pretraining_is_called_by_its_rows(place, tmp_path):
    work = run.work_of(study_runs.read(place, seeds=(0,)), tmp_path / "cache")
    shared, own = (work.model_of[row, 0] for row in ("full", "no NSP"))
    assert run._name(shared, work) == "full and 1 other row: pre-training 4x32x2, seed 0"
    assert run._name(own, work) == "no NSP: pre-training 4x32x2, seed 0"


def test_two_studies_of_one_name_are_refused(place, tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(study_runs.TINY)
    files = [str(place / "tiny.yaml"), str(tmp_path / "tiny.yaml")]
    assert main(["study", *files, "--data-dir", str(place), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert (
        f"expected studies of different names, got two whose report would be {tmp_path / 'out' / 'tiny-smoke'}" in told
    )
    assert not (tmp_path / "out").exists()


def test_another_study_finds_the_models_and_the_cells(place, done):
    cache, _ = done
    text = study_runs.TINY.replace("name: full", "name: another name").replace("seeds: [0, 1]", "seeds: [1]")
    (place / "other.yaml").write_text(text)
    _, lines = study_runs.complete(study_runs.read(place, "other.yaml"), cache)
    assert lines == []


def test_what_determines_a_model_makes_another(place, done, tmp_path):
    cache, _ = done
    study = study_runs.read(place)
    keys = {model.key for model in run.work_of(study, cache).models}
    (place / "changed.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 13"))
    assert not keys & {model.key for model in run.work_of(study_runs.read(place, "changed.yaml"), cache).models}
    # How often a line is told changes nothing.
    (place / "same.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 12\n  log_every: 3"))
    assert keys == {model.key for model in run.work_of(study_runs.read(place, "same.yaml"), cache).models}
    cells = {cell.key for cell in run.work_of(study, cache).cells}
    same, other = (
        study_runs.TINY.replace("lr: 1e-3", f"lr: 1e-3, {option}") for option in ("log_every: 3", "warmup: 0.3")
    )
    (place / "same.yaml").write_text(same)
    assert cells == {cell.key for cell in run.work_of(study_runs.read(place, "same.yaml"), cache).cells}
    (place / "other-cells.yaml").write_text(other)
    assert cells != {cell.key for cell in run.work_of(study_runs.read(place, "other-cells.yaml"), cache).cells}
    # Dropout is no option of the recipe.
    (place / "dropout.yaml").write_text(study_runs.TINY.replace("paper: B\n", "paper: B\n    dropout: 0.3\n"))
    assert not cells & {cell.key for cell in run.work_of(study_runs.read(place, "dropout.yaml"), cache).cells}
    # How many rows there are, and what features of the model are read by how large a new one.
    for number, (option, of_rows) in enumerate(
        {
            "feature_units: 16\n    train_rows: 5": {"full", "no NSP", "on features"},
            "feature_units: 16\n    dev_rows: 5": {"full", "no NSP", "on features"},
            "feature_units: 8": {"on features"},
        }.items()
    ):
        (place / f"other-{number}.yaml").write_text(study_runs.TINY.replace("feature_units: 16", option))
        others = run.work_of(study_runs.read(place, f"other-{number}.yaml"), cache).cells
        assert of_rows <= {cell.row for cell in others if cell.key not in cells}, option
    (place / "last.yaml").write_text(study_runs.TINY.replace("last4-concat", "last"))
    assert cells - {cell.key for cell in run.work_of(study_runs.read(place, "last.yaml"), cache).cells}
    # So does what stands in the files: the corpus a model, the rows the cells alone.
    files = shutil.copytree(place, tmp_path / "files")
    (files / "tags-dev.txt").write_text((place / "tags-dev.txt").read_text() + "\nred X X O\n")
    work = run.work_of(study_runs.read(files), cache)
    assert keys == {model.key for model in work.models}
    assert not cells & {cell.key for cell in work.cells}
    (files / "corpus.txt").write_text((place / "corpus.txt").read_text() + "\nred cat\n")
    assert not keys & {model.key for model in run.work_of(study_runs.read(files), cache).models}


@pytest.fixture
def keys_with(place, done):
    """The keys of the cells of a study whose recipes have one more option."""

    def keys_with(option: str) -> set[str]:
        (place / "option.yaml").write_text(study_runs.TINY.replace("lr: 1e-3", f"lr: 1e-3, {option}"))
        return {cell.key for cell in run.work_of(study_runs.read(place, "option.yaml"), done[0]).cells}

    return keys_with


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
def test_cells_whose_products_are_in_two_parts_are_others(keys_with):
    """By default those of a processor with AMX; with "highest" they are the ones that other processors have."""
    with levels.at_level(levels.TILES):
        in_parts, exact = keys_with("log_every: 3"), keys_with("float32_matmul_precision: highest")
        assert keys_with("float32_matmul_precision: high") == in_parts
        narrow = keys_with("precision: bf16")
    assert in_parts.isdisjoint(exact)
    with levels.at_level("scalar"):
        assert keys_with("log_every: 3") == exact
        assert keys_with("precision: bf16") == narrow


def test_a_new_option_makes_other_cells_only_where_it_is_given(keys_with, monkeypatch):
    before = keys_with("log_every: 3")
    later = dataclasses.field(default=None, kw_only=True)
    newer = dataclasses.make_dataclass("FinetuneConfig", [("later", int | None, later)], bases=(FinetuneConfig,))
    monkeypatch.setattr(definition, "FinetuneConfig", newer)
    assert keys_with("log_every: 3") == before
    assert keys_with("later: 3") != before
    # In micro-batches sums are rounded otherwise, and dropout draws other bits.
    assert keys_with("accumulate: 2") != before
    assert keys_with("activation_checkpointing: true") == before


def test_a_cell_is_trained_with_the_dropout_of_its_task(place, done, monkeypatch):
    cache, _ = done
    (place / "dropout.yaml").write_text(study_runs.TINY.replace("paper: B\n", "paper: B\n    dropout: 0.3\n"))
    cell = next(cell for cell in run.work_of(study_runs.read(place, "dropout.yaml"), cache).cells if cell.row == "full")

    def look(task, model, *_):
        assert model.bert.embeddings.config.hidden_dropout_prob == model.dropout.p == 0.3
        assert {rate for layer in model.train().bert.encoder.layer for rate in layer.rates} == {0.3}
        raise KeyboardInterrupt

    monkeypatch.setattr("fastbert.tasks.finetune.finetune", look)
    with pytest.raises(KeyboardInterrupt):
        cells.compute(cell)
    assert cell.result() is None


def test_a_cell_has_its_own_seed_and_the_figures_of_its_best_epoch(place, done, tmp_path, monkeypatch):
    """The seed draws the new head too."""
    work = run.work_of(study_runs.read(place), shutil.copytree(done[0], tmp_path / "cache"))
    heads: dict[int, list[torch.Tensor]] = {}

    def finetune(task, model, _tokenizer, _train, _dev, config):
        heads.setdefault(config.seed, []).append(model.classifier.weight.detach().clone())
        rows = [
            {"epoch": epoch, "train_loss": 1.0, "tokens_per_second": 50.0, "train_seconds": 2.0}
            | dict.fromkeys(task.metrics, value)
            for epoch, value in ((1, 0.5), (2, 0.25))
        ]
        return SimpleNamespace(history=rows, best=rows[0], guess={})

    monkeypatch.setattr("fastbert.tasks.finetune.finetune", finetune)
    for cell in [cell for cell in work.cells if cell.row == "full"] * 2:
        cell.path.unlink()
        result = cells.compute(cell)
        assert (result["epoch"], set(result["metrics"].values()), result["tokens"]) == (1, {0.5}, 200)
    assert set(heads) == {0, 1}
    assert all(torch.equal(*twice) for twice in heads.values())
    assert not torch.equal(heads[0][0], heads[1][0])


def test_static_vectors_see_as_many_tokens_as_a_pretraining(place, tmp_path):
    pytest.importorskip("gensim")
    static = "rows:\n  - {name: static, static: {size: 16}, task: {features: embeddings}}\n"
    text = (
        study_runs.TINY[: study_runs.TINY.index("rows:")] + static + study_runs.TINY[study_runs.TINY.index("tasks:") :]
    )
    (place / "static.yaml").write_text(text.replace("token_budget: 256", "token_budget: 256\n  accumulate: 4"))
    model, other = run.work_of(study_runs.read(place, "static.yaml"), tmp_path / "cache").models
    tokens = ShardSet.open(model.config.data).num_tokens
    passes = round(12 * 4 * 256 / tokens)
    assert passes > 1
    made = pretrained.make(model)
    assert made["tokens"] == passes * tokens
    assert made["weights"] != pretrained.make(other)["weights"], "they are of two seeds"


def test_a_model_is_taken_from_the_middle_and_the_end_stays_the_same(place, done):
    cache, found = done
    text = study_runs.TINY.replace("rows:", "at: [0.25, 1]\nrows:").replace("seeds: [0, 1]", "seeds: [0]")
    (place / "at.yaml").write_text(text)
    with pytest.raises(InputError, match=r"every 4 of 12 steps, got 0\.25: the nearest is 0\.333333"):
        run.work_of(study_runs.read(place, "at.yaml"), cache)
    text = text.replace("0.25", "0.333")
    (place / "at.yaml").write_text(text)
    after, lines = study_runs.complete(study_runs.read(place, "at.yaml"), cache)
    # The two models again, since their weights after 4 steps had not been kept, and the cells from there.
    assert len(lines) == 2 + 3
    early, end = after["rows"][0]["pretraining"], after["rows"][1]["pretraining"]
    assert (early["steps"], end["steps"]) == (4, 12)
    assert end["weights"][0] == found["rows"][0]["pretraining"]["weights"][0]
    assert early["losses"][0] == early["curve"][0]["mlm_loss"]
    assert early["tokens"] == [round(end["tokens"][0] / 3)]
    taken = run.work_of(study_runs.read(place, "at.yaml"), cache).models[0].model_at(4) / "model.safetensors"
    assert early["weights"] == [sha256(taken)] != end["weights"]
    shown = page.write(after, place / "at")
    assert (place / "at" / "steps-ner.svg") in shown


def test_a_killed_study_goes_on_and_comes_to_the_same_bits(place, tmp_path):
    rows = study_runs.TINY.index("  - {name: no NSP"), study_runs.TINY.index("tasks:")
    text = study_runs.TINY[: rows[0]] + study_runs.TINY[rows[1] :]
    text = text.replace("steps: 12", "steps: 40").replace("eval_every: 4", "eval_every: 2")
    (place / "long.yaml").write_text(text.replace("seeds: [0, 1]", "seeds: [0]"))
    straight, _ = study_runs.complete(study_runs.read(place, "long.yaml"), tmp_path / "straight")
    cache, out = tmp_path / "killed", tmp_path / "out"
    command = ["study", str(place / "long.yaml"), "--data-dir", str(place), "--corpus", str(place / "corpus.txt")]
    command += ["--cache", str(cache), "--out", str(out)]
    child = subprocess.Popen(
        [sys.executable, "-m", "fastbert", *command], env=pretraining_runs.environment(), stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not any(cache.glob("models/*/run/checkpoints/step_*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    assert not any(cache.glob("models/*/result.json"))
    assert any(cache.glob("models/*/run/checkpoints/step_*"))
    assert main(command) == 0
    assert study_runs.kept(cache) == study_runs.kept(tmp_path / "straight")
    found = json.loads((out / "long-smoke" / "results.json").read_text())
    assert study_runs.same_in_every_run(found) == json.loads(json.dumps(study_runs.same_in_every_run(straight)))


def test_a_signal_leaves_no_unfinished_file_of_a_cell(place, done, tmp_path, monkeypatch, capsys):
    from fastbert.tasks.feature_files import Cached

    cache = tmp_path / "cache"
    shutil.copytree(done[0], cache)
    cell = next(
        cell for cell in run.work_of(study_runs.read(place, seeds=(0,)), cache).cells if cell.task.features is not None
    )
    cell.path.unlink()
    whole, seen = set(cell.path.parent.glob("*.json")), []

    def terminated(*args):
        seen.extend(path for path in cell.path.parent.iterdir() if path.is_dir())
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the test's own process would end"
        signal.raise_signal(signal.SIGTERM)

    command = ["study", str(place / "tiny.yaml"), "--data-dir", str(place), "--corpus", str(place / "corpus.txt")]
    command += ["--cache", str(cache), "--out", str(tmp_path / "out"), "--seeds", "0"]
    with monkeypatch.context() as patch:
        patch.setattr(Cached, "add", terminated)
        assert main(command) == 128 + signal.SIGTERM
    told = capsys.readouterr().err
    assert "tiny: on features on ner, seed 0 begins\n" in told
    assert "0 pre-trainings and 1 fine-tuning are left; the same command goes on" in told
    assert seen
    assert {path for path in cell.path.parent.iterdir() if path.suffix != ".lock"} == whole
    # What a kill leaves there is removed when the cell is computed.
    seen[0].mkdir()
    (seen[0] / "features").write_bytes(b"half")
    assert main(command) == 0
    assert {path for path in cell.path.parent.iterdir() if path.suffix != ".lock"} == {*whole, cell.path}


GPT = "model: gpt-2x32x2, init: bert, samples: {objective: causal, nsp: false}"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (f"pretrain: {{{GPT}}}", "a model of type openai-gpt has no head for ner"),
        (f"pretrain: {{{GPT.replace('gpt', 'elmo')}}}", "a model of type elmo cannot be fine-tuned, expected features"),
        ("static: {size: 8}", "a model of type static cannot be fine-tuned, expected features"),
        ("static: {sz: 8}, task: {features: last}", "row 'r', static: unknown option sz"),
        ("static: {seed: 8}, task: {features: last}", "row 'r', static: seed is the study's own to decide"),
        (
            "keep: [0.9]",
            "row 'r': a share of the pre-training must end with an evaluation, every 4 of 12 steps",
        ),
        ("task: {dev: null, dev_share: 0.01}", "task ner: dev_share must leave rows on both sides, got 0.01 of 24"),
        ("pretrain: {model: 2x32x2}, task: {features: last4-sum}", "needs a model of at least 4 layers, got 2"),
        ("task: {finetune: {auxiliary_lm: 0.5}}", "auxiliary_lm is a loss of a GPT that is fine-tuned"),
        ("task: {finetune: {max_seqlen: 5000}}", "max_seqlen must be at most the model's 512, got 5000"),
        ("pretrain: {token_budget: 8}", "row 'r': token_budget must hold a sample of max_seqlen 32 tokens, got 8"),
        (f"pretrain: {{{GPT}}}, task: {{features: last, feature_finetune: {{bilstm: 8}}}}", None),
        (
            "pretrain: {model: gpt-2x32x2, init: bert}",
            "needs samples of objective causal and nsp false, got mlm and nsp true",
        ),
    ],
)
def test_what_a_model_cannot_do_is_told_before_it_is_pretrained(place, tmp_path, row, sentence):
    text = study_runs.TINY[: study_runs.TINY.index("rows:")] + f"rows:\n  - {{name: r, {row}}}\n"
    (place / "cannot.yaml").write_text(text + study_runs.TINY[study_runs.TINY.index("tasks:") :])
    if sentence is None:
        run.work_of(study_runs.read(place, "cannot.yaml"), tmp_path)
        return
    with pytest.raises(InputError) as error:
        run.work_of(study_runs.read(place, "cannot.yaml"), tmp_path)
    assert sentence in str(error.value)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("model", "task", "sentence"),
    [
        (
            "2x32x2",
            "squad2: {finetune: {max_seqlen: 8}}",
            "task squad2: max_seqlen must be at least 10 for",
        ),
        (
            "gpt-2x32x2",
            "mrpc: {finetune: {max_seqlen: 4}}",
            "task mrpc: max_seqlen must hold the 3 tokens",
        ),
        ("gpt-2x32x2", "mrpc: {finetune: {max_seqlen: 5}}", None),
        ("gpt-2x32x2", "mrpc: {features: last, feature_finetune: {max_seqlen: 4}}", None),
    ],
)
def test_rows_that_have_no_room_are_told_before_a_model_is_pretrained(place, tmp_path, model, task, sentence):
    pairs = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *(f"{n % 2}\t1\t2\tred cat\tblue dog" for n in range(6))]
    (place / "pairs.txt").write_text("\n".join(pairs) + "\n")
    asked = [
        {"id": f"q{n}", "question": "red " * (3 * n + 3), "answers": [{"text": "cat", "answer_start": 0}]}
        for n in range(2)
    ]
    squad = {"version": "1", "data": [{"title": "", "paragraphs": [{"context": "cat sees dog", "qas": asked}]}]}
    (place / "squad.json").write_text(json.dumps(squad))
    name = task.partition(":")[0]
    file = {"squad2": "squad.json", "mrpc": "pairs.txt"}[name]
    task = task.replace("{", f"{{train: {file}, dev: {file}, dev_share: null, ", 1)
    pretrain = f"pretrain: {{model: {model}, init: bert, samples: {{objective: causal, nsp: false}}}}"
    text = study_runs.TINY[: study_runs.TINY.index("rows:")] + f"rows: [{{name: r, {pretrain}}}]\ntasks: {{{task}}}\n"
    (place / "room.yaml").write_text(text)
    if sentence is None:
        run.work_of(study_runs.read(place, "room.yaml"), tmp_path)
        return
    with pytest.raises(InputError, match=f"row 'r', {sentence}"):
        run.work_of(study_runs.read(place, "room.yaml"), tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["table9"], "no study is called 'table9'"),
        (
            ["table5", "--data-dir", "nowhere"],
            "study table5 needs nowhere/mrpc/msr_paraphrase_train.txt, found no such",
        ),
        ([], "expected a study, got none; there are"),
        (["table5", "--jobs", "0"], "jobs must be between 1 and 4096, got 0"),
        (["table5", "--threads", "100000000000"], "threads must be between 1 and 4096, got 100000000000"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(options, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["study", *options]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_studies_of_one_command_pretrain_a_model_once(place, tmp_path, capsys):
    """The second takes it from the middle too, of which the first knows nothing."""
    for name, more in (("whole", ""), ("shares", "at: [0.6666666666666666, 1]\n")):
        head, tail = study_runs.TINY.index("rows:"), study_runs.TINY.index("tasks:")
        text = study_runs.TINY[:head].replace("[0, 1]", "[0]") + "rows: [{name: full}]\n" + study_runs.TINY[tail:]
        (place / f"{name}.yaml").write_text(more + text.replace("    paper: B\n", ""))
    options = ["--data-dir", str(place), "--corpus", str(place / "corpus.txt"), "--out", str(tmp_path)]
    assert main(["study", str(place / "whole.yaml"), str(place / "shares.yaml"), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("]")[0] for line in lines if "pre-trained" in line] == ["[1/2"]
    assert [line.split("]")[0] for line in lines if " on ner" in line] == ["[2/2", "[1/1"]
    found = [json.loads((tmp_path / f"{name}-smoke" / "results.json").read_text()) for name in ("whole", "shares")]
    (whole,), (_, end) = (each["rows"] for each in found)
    assert whole["pretraining"]["weights"] == end["pretraining"]["weights"]
    jobs = [json.loads(path.read_text()) for path in tmp_path.glob("cache/*/**/*.json") if path.name != "manifest.json"]
    took = [job["measured"]["processor_seconds"] / 3600 for job in jobs if "measured" in job]
    assert len(took) == 1 + 2  # the model, the cell of both studies and that of the middle
    assert all(took)
    assert lines[-1].startswith("2 studies: ")
    assert lines[-1].endswith(f", processor time {sum(took):.2f} hours")


def test_a_line_of_progress_has_the_tables_metric(place, done):
    (place / "recall.yaml").write_text(study_runs.TINY.replace("    paper: B\n", "    paper: B\n    metric: recall\n"))
    work = run.work_of(study_runs.read(place, "recall.yaml"), done[0])
    cell = work.cells[0]
    said = f"{cell.row} on ner, seed 0: recall {cell.result()['metrics']['recall']:.4f}"
    assert run._line(cell, cell.result()).startswith(said)


def test_the_list_of_studies(capsys):
    assert main(["study", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == spec.names()
