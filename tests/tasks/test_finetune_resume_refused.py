"""What a fine-tuning does not go on from, and what it finds where it does: other recipes, damage, ended runs."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import finetune_runs as runs
import levels
import pretraining_runs
import pytest
import tiny_bert
import torch
from tiny_bert import rows_of

import fastbert
from fastbert import _native, files
from fastbert.cli.main import main
from fastbert.errors import CheckpointError, InputError
from fastbert.tasks import registry, saving
from fastbert.tasks.config import SearchConfig
from fastbert.tasks.finetune import Callbacks
from fastbert.train import checkpoint
from fastbert.train.pretrain import pretrain


@pytest.fixture
def stopped(directory, tmp_path):
    """A run that ended at step 13."""
    out = tmp_path / "run"
    runs.run(directory, out, callbacks=runs.stop_after(13))
    return out


def test_what_is_another_run_is_refused(directory, stopped, tmp_path):
    def refused(sentence: str, where: Path = directory, **changes) -> None:
        before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
        with pytest.raises(CheckpointError, match=sentence):
            runs.run(where, stopped, resume="auto", **changes)
        assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before

    refused("step_13: expected the lr that it was trained with, 0.002, got 0.001; go on with", lr=1e-3)
    refused("the epochs that it was trained with, 3, got 4", epochs=4)
    refused("the precision that it was trained with, fp32, got bf16", precision="bf16")
    refused("the seed that it was trained with, 0, got 1", seed=1)
    refused("the bilstm that it was trained with, None, got 8", bilstm=8)
    train, dev = rows_of(64, 1), rows_of(40, 2)
    refused("the training rows that it was trained with, 64, SHA-256 .*, got 63, SHA", rows=(train[:63], dev))
    swapped = [*train[:-1], dataclasses.replace(train[-1], label=str(1 - int(train[-1].label)))]
    refused("the training rows that it was trained with, 64, SHA-256 .*, got 64, SHA", rows=(swapped, dev))
    refused("the dev rows that it was trained with", rows=(train, dev[1:]))
    refused("the task that it was trained with, sst2, got cola", name="cola")
    other = tiny_bert.save(tmp_path / "other", "BertModel", hidden_dropout_prob=0.2)
    refused("the model's hidden_dropout_prob that it was trained with, 0.1, got 0.2", other)
    other = tiny_bert.save(tmp_path / "third", "BertModel")
    weights = fastbert.BertModel.from_pretrained(other)
    weights.embeddings.word_embeddings.weight.data[7, 3] += 1e-3
    weights.save_pretrained(other)
    refused("the model's weights that it was trained with, SHA-256 .*, got SHA-256", other)
    shutil.copytree(directory, tmp_path / "fourth")
    vocabulary = [*tiny_bert.VOCAB[:-2], *reversed(tiny_bert.VOCAB[-2:])]
    (tmp_path / "fourth" / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    refused("the tokenizer that it was trained with", tmp_path / "fourth")
    with pytest.raises(CheckpointError, match="the number of trainings that it was trained with, 1, got 2"):
        runs.several(directory, stopped, configs=SearchConfig(restarts=2).trials(runs.config(resume="auto")))
    with pytest.raises(InputError, match="already holds a run: resume it with --resume auto"):
        runs.run(directory, stopped)
    # What changes no figure may be another.
    assert runs.run(directory, stopped, resume="auto", save_every=2, keep=1)[0].interrupted is None


def test_what_a_run_is_compared_by_lacks_only_options_that_change_no_figure(directory):
    task, tokenizer = registry.get("sst2"), fastbert.load_tokenizer(directory)
    told = saving.identity(task, task.model(directory), tokenizer, [], [], [runs.config()])
    names = {field.name for field in dataclasses.fields(runs.config())}
    # A resumed run may divide a step otherwise, or multiply in another precision, and says so.
    rounding = {"accumulate", "activation_checkpointing", "float32_matmul_precision"}
    assert names - told.keys() == {"log_every", "save_every", "keep", "wandb", "resume"} | rounding


def test_what_one_of_two_identities_lacks_is_a_difference():
    """A newer version has options of which an older one's run says nothing, and the other way round."""
    for saved, now in (({"lr": 1, "new": 2}, {"lr": 1}), ({"lr": 1}, {"lr": 1, "new": 2})):
        expected = f"^run: expected the new that it was trained with, {saved.get('new')}, got {now.get('new')};"
        with pytest.raises(CheckpointError, match=expected):
            saving.check_same("run", saved, now)


def test_a_run_that_another_process_is_at_is_not_even_read(directory, stopped, tmp_path, monkeypatch, capsys):
    """It might be removing the checkpoint that is read. By the command too, before the rows are read."""
    one = [runs.config(seed=s, resume="auto") for s in (1, 2)]
    with pretraining_runs.another_run_in(stopped) as other, monkeypatch.context() as patch:
        patch.setattr(checkpoint, "newest", lambda found: pytest.fail(f"{found} was read"))
        with pytest.raises(InputError, match=f"no other run in this directory, got one by process {other}"):
            runs.run(directory, stopped, resume="auto")
        with pytest.raises(InputError, match=f"got one by process {other}"):
            runs.several(directory, stopped, configs=one)
        (tmp_path / "rows.tsv").write_text("no rows")
        rows = str(tmp_path / "rows.tsv")
        given = ["--model", str(directory), "--train", rows, "--dev", rows, "--max-seqlen", "24"]
        assert main(["finetune", "sst2", *given, "--out", str(stopped), "--resume", "auto"]) == 2
        assert f"got one by process {other}" in capsys.readouterr().err
    assert runs.run(directory, stopped, resume="auto")[0].interrupted is None
    assert not (stopped / "run.lock").exists()


@pytest.mark.skipif(len(levels.LEVELS) < 2, reason="needs C++ kernels of two levels")
def test_a_resume_says_what_computes_otherwise(directory, stopped, whole, caplog):
    """In one line; the same conditions are nothing to tell, and lead to the same bits."""
    before, count = _native.isa(), torch.get_num_threads()
    callbacks = runs.stop_after(1)
    with levels.at_level("scalar"), levels.threads(count + 1):
        runs.run(directory, stopped, resume="auto", callbacks=callbacks)
    others = f"kernels scalar ({before} before), threads {count + 1} ({count} before)"
    end = f"continues under other conditions, so its bits will differ from those of an uninterrupted run: {others}"
    assert f"{stopped}/checkpoints/step_13 {end}\n" in caplog.text
    caplog.clear()
    runs.run(directory, stopped, resume="auto")
    assert caplog.text.count("other conditions") == 1
    assert f"kernels {before} (scalar before)" in caplog.text
    with pytest.raises(AssertionError):
        runs.assert_same_run(stopped, whole[0])


def test_a_search_that_was_left_between_two_trainings_says_what_computes_otherwise(
    directory, tmp_path, monkeypatch, caplog
):
    monkeypatch.delenv("FASTBERT_BACKEND", raising=False)
    configs = SearchConfig(restarts=2).trials(runs.config(epochs=1))

    def on_trial(_line: dict) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.several(directory, tmp_path / "run", configs=configs, on_trial=on_trial)
    resumed = [dataclasses.replace(config, resume="auto") for config in configs]
    monkeypatch.setenv("FASTBERT_BACKEND", "reference")
    runs.several(directory, tmp_path / "run", configs=resumed)
    told = [record.message for record in caplog.records if "other conditions" in record.message]
    assert [line.split(": ")[1] for line in told] == ["backend reference (auto before)"]


def test_a_damaged_checkpoint_is_passed_over(directory, whole, tmp_path, caplog):
    out = tmp_path / "run"
    runs.run(directory, out, callbacks=runs.stop_after(13), save_every=4)
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["step_12", "step_13"]
    state = out / "checkpoints" / "step_13" / "optimizer.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    shutil.copytree(out, tmp_path / "both")
    told = []
    runs.run(directory, out, resume="auto", callbacks=Callbacks(on_resume=lambda *given: told.append(given)))
    assert told == [(out / "checkpoints" / "step_12", 12)]
    assert "step_13 was skipped: " in caplog.text
    runs.assert_same_run(out, whole[0])
    (tmp_path / "both" / "checkpoints" / "step_12" / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="none of its 2 checkpoints is valid; the first: "):
        runs.run(directory, tmp_path / "both", resume="auto")


def test_of_the_two_commands_neither_takes_the_others_run(directory, stopped, tmp_path):
    data = pretraining_runs.prepare_data(tmp_path / "data")
    with pytest.raises(
        CheckpointError, match="expected a checkpoint of fastbert pretrain, got one of fastbert finetune"
    ):
        pretrain(pretraining_runs.config(data, stopped, resume="auto"), quiet=True)
    pretrain(pretraining_runs.config(data, tmp_path / "pretrained", steps=1), quiet=True)
    with pytest.raises(
        CheckpointError, match="expected a checkpoint of fastbert finetune, got one of fastbert pretrain"
    ):
        runs.run(directory, tmp_path / "pretrained", resume="auto")


def test_auto_where_there_is_nothing_to_go_on_from(directory, whole, tmp_path):
    """No directory; a run that was killed before its first checkpoint; somebody else's directory."""
    out = tmp_path / "run"
    runs.run(directory, out, resume="auto")
    runs.assert_same_run(out, whole[0])

    def killed(_total: int) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        runs.run(directory, out, callbacks=Callbacks(on_step=killed))
    assert not list((out / "checkpoints").iterdir())
    runs.run(directory, out, resume="auto")
    runs.assert_same_run(out, whole[0])
    assert len(list((out / "tensorboard").iterdir())) == 1
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="already exists and is not empty"):
        runs.run(directory, strange, resume="auto")


def test_a_run_that_has_ended_gives_its_result_again(directory, whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole[0], out)
    steps = []
    result, model = runs.run(directory, out, resume="auto", callbacks=Callbacks(on_step=steps.append))
    assert not steps
    for name in ("history", "best", "predictions", "guess", "trials", "wall_seconds"):
        assert runs.plain(getattr(result, name)) == runs.plain(getattr(whole[1], name)), name
    assert [p.relative_to(out) for p in result.paths] == [p.relative_to(whole[0]) for p in whole[1].paths]
    written = registry.get("sst2").model(out / "model").state_dict()
    assert all(torch.equal(value, written[name]) for name, value in model.state_dict().items())
    with pytest.raises(
        CheckpointError, match=r"ended.json: expected the lr that it was trained with, 0.002, got 1e-05"
    ):
        runs.run(directory, out, resume="auto", lr=1e-5)


def test_of_an_ended_run_the_dev_rows_that_it_had_are_scored_again(directory, tmp_path):
    options = {"epochs": 1, "limit_train": 8, "limit_dev": 6}
    result, _ = runs.run(directory, tmp_path / "run", **options)
    again, _ = runs.run(directory, tmp_path / "run", resume="auto", **options)
    assert len(again.predictions) == 6
    for name in ("best", "predictions", "guess"):
        assert runs.plain(getattr(again, name)) == runs.plain(getattr(result, name)), name


@pytest.mark.parametrize(
    ("damage", "got"),
    [
        (lambda told: b"", "an empty file"),
        (lambda told: b"{", "something that cannot be read: .*"),
        (lambda told: b"[]", "list"),
        (lambda told: told | {"history": 5}, "something else"),
        (lambda told: told | {"history": told["history"][:1], "epoch": 2}, "something else"),
        (lambda told: told | {"history": [{"epoch": 1}]}, "no accuracy"),
        (lambda told: told | {"finetune": []}, "something else"),
        (lambda told: told | {"paths": None}, "something else"),
        (lambda told: {k: v for k, v in told.items() if k != "trials"}, "no trials"),
    ],
)
def test_a_damaged_record_of_an_ended_run_says_how_to_go_on(directory, whole, tmp_path, damage, got):
    """It cannot be made anew: no other file says of which model and rows the run was."""
    out = tmp_path / "run"
    shutil.copytree(whole[0], out)
    damaged = damage(json.loads((out / "ended.json").read_text()))
    (out / "ended.json").write_bytes(damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode())
    sentence = f"{out}/ended.json: expected the record of a run that has ended, got {got}; its model and results lie "
    with pytest.raises(CheckpointError, match=f"^{sentence}beside it, and to train it anew remove {out}$"):
        runs.run(directory, out, resume="auto")


def test_what_a_kill_left_of_a_file_goes(directory, whole, stopped):
    """But not what another command is writing there."""
    for name in ("config.yaml", "trials.jsonl", "ended.json", "dev_metrics.json"):
        (stopped / f".tmp-0123456789ab-{name}").write_text("half")
    with files.unfinished(stopped / "vectors.npy") as other:
        runs.run(directory, stopped, resume="auto")
        assert other.exists()
    runs.assert_same_run(stopped, whole[0])


@pytest.mark.parametrize("place", ["model", "dev_errors.jsonl", "ended.json"])
def test_killed_while_results_are_written(directory, whole, tmp_path, monkeypatch, place):
    """At the end all is trained, and not all is written."""
    from fastbert.tasks import runs as run_directories

    out, rename, write = tmp_path / "run", os.rename, run_directories.atomic_write

    def renamed(source, target):
        rename(source, target)
        if Path(target).name == place:
            raise KeyboardInterrupt

    def written(path, *more):
        if Path(path).name == place:
            raise KeyboardInterrupt
        return write(path, *more)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr("fastbert.result_files.atomic_write", written)
    with pytest.raises(KeyboardInterrupt):
        runs.run(directory, out, save_every=5)
    monkeypatch.undo()
    assert (out / "model").is_dir()
    runs.run(directory, out, resume="auto")
    runs.assert_same_run(out, whole[0])


def test_how_often_it_saves(directory, tmp_path, monkeypatch, caplog):
    """By the clock unless steps are said; a disk that is full on the way costs the checkpoint and not the run."""
    saved, save = [], checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda d, step, *a, **o: saved.append(step) or save(d, step, *a, **o))
    runs.run(directory, tmp_path / "a")
    assert saved == []
    monkeypatch.setattr(saving, "MINUTES", 0.0)
    runs.run(directory, tmp_path / "b")
    assert saved == list(range(1, runs.STEPS + 1))
    monkeypatch.undo()

    def full(directory, step, *arguments, **options):
        saved.append(step)
        raise CheckpointError("No space left on device")

    saved.clear()
    monkeypatch.setattr(checkpoint, "save", full)
    assert runs.run(directory, tmp_path / "c", save_every=10)[0].best
    assert saved == [10, 20]
    assert caplog.text.count("training goes on without it: No space left on device") == 2
    # What a signal asks for has to be there.
    with pytest.raises(CheckpointError, match="No space left"):
        runs.run(directory, tmp_path / "d", callbacks=runs.stop_after(2))
    for name in ("save_every", "keep"):
        with pytest.raises(InputError, match=f"{name} must be at least 1, got 0"):
            runs.config(**{name: 0})
    with pytest.raises(InputError, match="resume must be one of auto, none, got 'no'"):
        runs.config(resume="no")
