"""A tiny study from the file to the report: cached, shared, killed and gone on with, the same to the bit."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pretraining_runs
import pytest
import study_runs

from fastbert.cli.main import main
from fastbert.data.shards import ShardSet
from fastbert.errors import DataError, InputError
from fastbert.study import cells, corpus, page, results, run, senses, spec
from fastbert.train.engine import TrainingDiverged


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with the files of the tasks, the corpus and tiny.yaml."""
    directory = study_runs.write_files(tmp_path_factory.mktemp("study"))
    (directory / "tiny.yaml").write_text(study_runs.TINY)
    return directory


def read(place: Path, name: str = "tiny.yaml", **given) -> spec.Study:
    return spec.read(place / name, "smoke", data_dir=str(place), corpus=(str(place / "corpus.txt"),), **given)


def complete(study: spec.Study, cache: Path, **options) -> tuple[dict, list[str]]:
    """Runs a study to the end; its results, and a line for each job that was done."""
    lines: list[str] = []
    work = run.work_of(study, cache)
    run.execute(work, say=lines.append, **options)
    return results.collect(work, "fastbert study"), lines


@pytest.fixture(scope="module")
def done(place, tmp_path_factory) -> tuple[Path, dict]:
    """The cache of a finished study and its results."""
    cache = tmp_path_factory.mktemp("cache")
    found, lines = complete(read(place), cache)
    # Two rows share their pre-training: two models and three cells, for two seeds.
    assert len(lines) == 2 * 2 + 2 * 3
    return cache, found


def test_a_finished_study_does_nothing_again(place, done):
    cache, found = done
    again, lines = complete(read(place), cache)
    assert lines == []
    assert study_runs.same_in_every_run(again) == study_runs.same_in_every_run(found)


def test_two_runs_agree_to_the_bit_also_side_by_side(place, done, tmp_path):
    again, lines = complete(read(place, seeds=(0,)), tmp_path / "cache", jobs=2)
    assert len(lines) == 5
    one, other = study_runs.kept(tmp_path / "cache"), study_runs.kept(done[0])
    assert len(one) == 5
    assert one.items() <= other.items()
    assert again["rows"][0]["pretraining"]["weights"] == done[1]["rows"][0]["pretraining"]["weights"][:1]


def test_more_seeds_compute_those_that_are_new(place, done, tmp_path):
    cache = shutil.copytree(done[0], tmp_path / "cache")
    found, lines = complete(read(place, seeds=(0, 7, 1)), cache)
    assert len(lines) == 2 + 3
    assert all("seed 7" in line for line in lines)
    _, lines = complete(read(place, seeds=(1,)), cache)
    assert lines == []
    values = [row["figures"]["ner"]["values"] for row in found["rows"]]
    assert [[one, other] for one, _, other in values] == [list(r["figures"]["ner"]["values"]) for r in done[1]["rows"]]


def test_a_missing_cell_is_computed_alone_and_to_the_same_bits(place, done):
    cache, found = done
    cell = run.work_of(read(place), cache).cells[2]
    before = cell.result()
    cell.path.unlink()
    again, lines = complete(read(place), cache)
    assert len(lines) == 1
    assert lines[0].startswith(f"[1/1] {cell.row} on ner, seed {cell.seed}")
    assert cell.result()["metrics"] == before["metrics"]
    assert study_runs.same_in_every_run(again) == study_runs.same_in_every_run(found)


@pytest.mark.parametrize("damaged", [b"", b'{\n  "key": "1', b"\xff\xfe", b"[]", b"{}", "key", "measured"])
def test_a_damaged_result_is_made_anew_to_the_same_bits(place, done, tmp_path, damaged, caplog):
    cache = tmp_path / "cache"
    shutil.copytree(done[0], cache)
    before, study = study_runs.kept(cache), read(place, seeds=(0,))
    work = run.work_of(study, cache)
    files = [work.cells[0].path, work.models[0].directory / "result.json"]
    for file in files:
        whole = json.loads(file.read_bytes())
        cut = {"key": {"key": whole["key"]}, "measured": {**whole, "measured": {}}}  # JSON, and not all of it
        file.write_bytes(json.dumps(cut[damaged]).encode() if damaged in cut else damaged)
    _, lines = complete(study, cache)
    assert len(lines) == 2
    assert [record.message for record in caplog.records] == [
        f"{f} is damaged: its result is made anew" for f in files[::-1]
    ]
    assert study_runs.kept(cache) == before


def test_who_waits_for_another_study_says_so_once(place, done, caplog):
    cell = run.work_of(read(place), done[0]).cells[0]
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
    work = run.work_of(read(place), done[0])
    lock = Path(f"{work.data}.lock")
    lock.unlink(missing_ok=True)
    assert run.work_of(read(place), done[0]).missing == ([], [])
    assert not lock.exists()


def test_the_same_bytes_as_text_and_as_json_lines_are_two_corpora(place, tmp_path):
    """A corpus that was named .txt by mistake must not serve the one that is then named as it should be."""
    lines = (place / "corpus.txt").read_text().split("\n\n")
    rows = "".join(json.dumps({"text": document}) + "\n\n" for document in lines)
    made = {}
    for kind in ("txt", "jsonl", "text"):
        (tmp_path / f"corpus.{kind}").write_text(rows)
        study = spec.read(place / "tiny.yaml", "smoke", corpus=(str(tmp_path / f"corpus.{kind}"),))
        made[kind] = corpus.prepared(study, tmp_path / "cache")
    assert made["txt"] == made["text"] != made["jsonl"]
    as_text, as_rows = (ShardSet.open(made[kind]).tokenizer().get_vocab() for kind in ("txt", "jsonl"))
    assert '"' in as_text
    assert '"' not in as_rows
    missing = spec.read(place / "tiny.yaml", "smoke", corpus=(str(tmp_path / "none.txt"),))
    with pytest.raises(InputError, match=r"none\.txt: expected a text file or a directory, got nothing there"):
        corpus.prepared(missing, tmp_path / "cache")


def test_two_studies_of_one_name_are_refused(place, tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(study_runs.TINY)
    files = [str(place / "tiny.yaml"), str(tmp_path / "tiny.yaml")]
    assert main(["study", *files, "--data-dir", str(place), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert (
        f"expected studies of different names, got two whose report would be {tmp_path / 'out' / 'tiny-smoke'}" in told
    )
    assert not (tmp_path / "out").exists()


def test_the_report_says_where_rows_learn_from_other_numbers_of_rows(place, done, tmp_path):
    text = study_runs.TINY.replace("name: no NSP,", "name: few, task: {train_rows: 8},").replace("[0, 1]", "[0]")
    (place / "few.yaml").write_text(text)
    found, _ = complete(read(place, "few.yaml"), done[0])
    assert found["columns"][0]["rows_of"] == {"full": [24, 12], "few": [8, 12], "on features": [24, 12]}
    page.write(found, tmp_path)
    said = "Training and dev rows: ner 24 and 12 (full), 8 and 12 (few), 24 and 12 (on features)."
    assert said in (tmp_path / "report.md").read_text()
    assert "rows_of" not in done[1]["columns"][0]


def test_curves_against_steps_are_one_a_use_and_each_in_its_own_file(place, done, tmp_path, monkeypatch):
    results = json.loads(json.dumps(done[1]))
    full = results["rows"][0]
    results["rows"] = []
    for number, (name, steps) in enumerate((("full", 4), ("full", 12), ("frozen", 4), ("frozen", 12))):
        row = json.loads(json.dumps(full))
        row["row"], row["pretraining"]["steps"] = f"{name}, {steps} %", steps
        row["figures"]["ner"]["mean"] = float(number)
        row["figures"]["n-r"] = row["figures"]["n r"] = row["figures"]["ner"]
        results["rows"].append(row)
    results["columns"] += [{**results["columns"][0], "column": name} for name in ("n-r", "n r")]
    rates, results["against_the_paper"] = results["measured"]["tokens_per_second"], []
    results["measured"]["tokens_per_second"] = dict.fromkeys((row["row"] for row in results["rows"]), rates["full"])
    results["orders"] |= dict.fromkeys(("n-r", "n r"), results["orders"]["ner"])
    drawn = []
    monkeypatch.setattr(page.svg, "line_chart", lambda lines, *_: drawn.append(lines) or "<svg></svg>")
    paths = page.write(results, tmp_path)
    assert [(line.points, line.label) for line in drawn[1]] == [
        ([(4, 0.0), (12, 1.0)], "full"),
        ([(4, 2.0), (12, 3.0)], "frozen"),
    ]
    assert [path.name for path in paths if "steps-" in path.name] == [
        "steps-ner.svg",
        "steps-n-r.svg",
        "steps-n-r-.svg",
    ]


@pytest.mark.parametrize("damage", ["one bit", "cut short", "gone"])
def test_damaged_weights_make_no_figure(place, done, tmp_path, damage):
    cache = tmp_path / "cache"
    shutil.copytree(done[0], cache)
    study = read(place, seeds=(0,))
    work = run.work_of(study, cache)
    weights = work.models[0].model_at(12) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content if damage == "one bit" else content[:1000])
    if damage == "gone":
        shutil.rmtree(weights.parent)
    work.cells[0].path.unlink()
    got = "none" if damage == "gone" else "others"
    with pytest.raises(DataError, match=f"expected the weights .* got {got}; remove {work.models[0].directory}, and"):
        run.execute(work)
    assert not work.cells[0].path.exists()
    shutil.rmtree(work.models[0].directory)
    complete(study, cache)
    assert study_runs.kept(cache) == study_runs.kept(done[0])


def test_damaged_weights_from_the_middle_make_no_figure(place, tmp_path):
    """Neither in a task nor in the polysemy test."""
    text = study_runs.TINY[: study_runs.TINY.index("  - {name: no NSP")].replace("name: full", "name: full, at: 0.5")
    text = text.replace("steps: 12", "steps: 4").replace("eval_every: 4", "eval_every: 2")
    (place / "half.yaml").write_text(text + study_runs.TINY[study_runs.TINY.index("tasks:") :])
    study = read(place, "half.yaml", seeds=(0,))
    complete(study, tmp_path)
    work = run.work_of(study, tmp_path)
    weights = work.models[0].model_at(2) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    work.cells[0].path.unlink()
    sentence = f"{weights}: expected the weights .* got others; remove {work.models[0].directory}, and"
    with pytest.raises(DataError, match=sentence):
        run.execute(work)
    assert not work.cells[0].path.exists()
    with pytest.raises(DataError, match=sentence):
        senses.measure(work, tmp_path)


def test_without_gensim_static_vectors_are_refused_at_once(place, tmp_path, monkeypatch):
    rows = study_runs.TINY.index("rows:"), study_runs.TINY.index("tasks:")
    static = "rows:\n  - {name: static, static: {size: 16}, task: {features: embeddings}}\n"
    (place / "static.yaml").write_text(study_runs.TINY[: rows[0]] + static + study_runs.TINY[rows[1] :])
    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(InputError, match="word2vec needs gensim: pip install"):
        run.work_of(read(place, "static.yaml"), tmp_path / "cache")


def test_damaged_data_are_found_before_a_model_is_trained_on_them(place, tmp_path):
    work = run.work_of(read(place, seeds=(0,)), tmp_path / "cache")
    shard = next(work.data.rglob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=rf"{shard.name}.*; remove {work.data}, and the same command makes it anew$"):
        run.execute(work)


@pytest.mark.parametrize("name", ["manifest.json", "vocab.txt", "heldout/shard-00000.idx"])
@pytest.mark.parametrize("left", [None, 20])
def test_data_of_which_a_file_is_missing_or_cut_off_are_made_anew(place, tmp_path, caplog, name, left):
    data = corpus.prepared(read(place), tmp_path)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    file = data / name
    file.unlink() if left is None else file.write_bytes(file.read_bytes()[:left])
    assert corpus.prepared(read(place), tmp_path) == data
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert [r.message.endswith(": the data are made anew") for r in caplog.records] == [True]


def test_another_study_finds_the_models_and_the_cells(place, done):
    cache, _ = done
    text = study_runs.TINY.replace("name: full", "name: another name").replace("seeds: [0, 1]", "seeds: [1]")
    (place / "other.yaml").write_text(text)
    _, lines = complete(read(place, "other.yaml"), cache)
    assert lines == []


def test_what_determines_a_model_makes_another(place, done):
    cache, _ = done
    study = read(place)
    keys = {model.key for model in run.work_of(study, cache).models}
    (place / "changed.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 13"))
    assert not keys & {model.key for model in run.work_of(read(place, "changed.yaml"), cache).models}
    # How often a line is told changes nothing.
    (place / "same.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 12\n  log_every: 3"))
    assert keys == {model.key for model in run.work_of(read(place, "same.yaml"), cache).models}
    cells = {cell.key for cell in run.work_of(study, cache).cells}
    same, other = (
        study_runs.TINY.replace("epochs: 2", f"epochs: 2, {option}") for option in ("log_every: 3", "warmup: 0.3")
    )
    (place / "same.yaml").write_text(same)
    assert cells == {cell.key for cell in run.work_of(read(place, "same.yaml"), cache).cells}
    (place / "other-cells.yaml").write_text(other)
    assert cells != {cell.key for cell in run.work_of(read(place, "other-cells.yaml"), cache).cells}


def test_a_model_is_taken_from_the_middle_and_the_end_stays_the_same(place, done):
    cache, found = done
    text = study_runs.TINY.replace("rows:", "at: [0.25, 1]\nrows:").replace("seeds: [0, 1]", "seeds: [0]")
    (place / "at.yaml").write_text(text)
    with pytest.raises(InputError, match=r"every 4 of 12 steps, got 0\.25: the nearest is 0\.333333"):
        run.work_of(read(place, "at.yaml"), cache)
    text = text.replace("0.25", "0.333")
    (place / "at.yaml").write_text(text)
    after, lines = complete(read(place, "at.yaml"), cache)
    # The two models again, since their weights after 4 steps had not been kept, and the cells from there.
    assert len(lines) == 2 + 3
    early, end = after["rows"][0]["pretraining"], after["rows"][1]["pretraining"]
    assert (early["steps"], end["steps"]) == (4, 12)
    assert end["weights"][0] == found["rows"][0]["pretraining"]["weights"][0]
    assert early["losses"][0] == early["curve"][0]["mlm_loss"]
    shown = page.write(after, place / "at")
    assert (place / "at" / "steps-ner.svg") in shown


def test_a_killed_study_goes_on_and_comes_to_the_same_bits(place, tmp_path):
    rows = study_runs.TINY.index("  - {name: no NSP"), study_runs.TINY.index("tasks:")
    text = study_runs.TINY[: rows[0]] + study_runs.TINY[rows[1] :]
    text = text.replace("steps: 12", "steps: 40").replace("eval_every: 4", "eval_every: 2")
    (place / "long.yaml").write_text(text.replace("seeds: [0, 1]", "seeds: [0]"))
    straight, _ = complete(read(place, "long.yaml"), tmp_path / "straight")
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
    cell = next(cell for cell in run.work_of(read(place, seeds=(0,)), cache).cells if cell.task.features is not None)
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
    assert "0 pre-trainings and 1 fine-tunings are left; the same command goes on" in capsys.readouterr().err
    assert seen
    assert {path for path in cell.path.parent.iterdir() if path.suffix != ".lock"} == whole
    # What a kill leaves there is removed when the cell is computed.
    seen[0].mkdir()
    (seen[0] / "features").write_bytes(b"half")
    assert main(command) == 0
    assert {path for path in cell.path.parent.iterdir() if path.suffix != ".lock"} == {*whole, cell.path}


def test_a_report_that_cannot_be_written_is_told_before_anything_is_computed(place, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    command = ["study", str(place / "tiny.yaml"), "--data-dir", str(place), "--corpus", str(place / "corpus.txt")]
    assert main([*command, "--cache", str(tmp_path / "cache"), "--out", str(taken)]) == 2
    assert str(taken) in capsys.readouterr().err
    assert not (tmp_path / "cache" / "models").exists()


def test_vectors_without_context_and_an_elmo_are_rows_too(place, tmp_path):
    pytest.importorskip("gensim")
    rows = study_runs.TINY.index("rows:"), study_runs.TINY.index("tasks:")
    text = f"""{study_runs.TINY[: rows[0]]}polysemy: true
rows:
  - {{name: BERT}}
  - name: ELMo
    pretrain: {{model: elmo-2x32x2, init: bert, samples: {{objective: causal, nsp: false}}}}
    task: {{features: mix}}
  - {{name: "BERT, frozen", task: {{features: mix}}}}
  - {{name: static, static: {{size: 16}}, task: {{features: embeddings}}}}
{study_runs.TINY[rows[1] :]}"""
    text = text.replace("steps: 12", "steps: 4").replace("seeds: [0, 1]", "seeds: [0]")
    (place / "kinds.yaml").write_text(text.replace("init: bert, ", ""))
    with pytest.raises(InputError, match="init small is a start for a BERT, got model 'elmo-2x32x2'"):
        run.work_of(read(place, "kinds.yaml"), tmp_path / "cache")
    (place / "kinds.yaml").write_text(text)
    options = ["--data-dir", str(place), "--corpus", str(place / "corpus.txt"), "--out", str(tmp_path)]
    assert main(["study", str(place / "kinds.yaml"), *options]) == 0
    found = json.loads((tmp_path / "kinds-smoke" / "results.json").read_text())
    bert, elmo, frozen, static = (row["pretraining"] for row in found["rows"])
    assert frozen["weights"] == bert["weights"]
    assert (bert["model"], elmo["model"], static["model"]) == ("4x32x2", "elmo-2x32x2", "word2vec")
    assert len(bert["margins"]) == len(elmo["margins"]) == 1
    assert static["losses"] == []
    assert all(row["figures"]["ner"]["values"] for row in found["rows"])
    senses = found["polysemy"]["rows"]
    # A model that two rows use in two ways is asked once.
    assert list(senses) == ["BERT", "ELMo", "static"]
    # A vector that is the same in every sentence has each of the fifteen others as its nearest.
    assert senses["static"]["accuracy"] == [pytest.approx(found["polysemy"]["chance"])]
    report = (tmp_path / "kinds-smoke" / "report.md").read_text()
    assert "predicts no words" in report
    assert "polysemy.png" in report


def test_the_model_of_frequencies_counts_the_training_text(done):
    cache, found = done
    data = cache / "data" / found["data"]
    train, held = ([int(i) for n in range(s.num_sentences) for i in s.sentence(n)] for s in open_splits(data))
    vocab = json.loads((data / "manifest.json").read_text())["vocab_size"]
    expected = [-math.log((train.count(i) + 0.5) / (len(train) + 0.5 * vocab)) for i in held]
    assert found["unigram_loss"] == pytest.approx(sum(expected) / len(held), rel=1e-12)
    # The entropy of what was held out is the least that any table of frequencies costs there.
    shares = [held.count(i) / len(held) for i in set(held)]
    assert found["unigram_loss"] > -sum(share * math.log(share) for share in shares)


def open_splits(data: Path) -> list[ShardSet]:
    return [ShardSet.open(data, split) for split in ("train", "heldout")]


def test_the_report_says_what_was_found(place, done, tmp_path):
    _, found = done
    paths = page.write(found, tmp_path)
    assert {path.name for path in paths} == {"report.md", "report.html", "results.json", "pretraining.svg"}
    text = (tmp_path / "report.md").read_text()
    for row in found["rows"]:
        held = row["pretraining"]
        assert held["margins"] == [e - l for e, l in zip(held["unigram_entropies"], held["losses"], strict=True)]
        figure = row["figures"]["ner"]
        assert f"{figure['mean']:.1f} ± {figure['sd']:.1f}" in text
        counted = [found["unigram_loss"] - loss for loss in held["losses"]]
        for margins in (held["margins"], counted):
            assert f"{statistics.fmean(margins):.3f} (least {min(margins):.3f})" in text
    assert found["orders"]["ner"] in text
    for pair in found["against_the_paper"]:
        assert pair["reason"] in text
    assert f"reaches {found['unigram_loss']:.3f} on the held-out text" in text
    assert found["measured"]["command"] in text
    # Of the jobs, whatever the process has that reads their results.
    assert found["measured"]["threads"] == [1]
    assert ", 1 thread each, " in text
    assert study_runs.TINY in text
    page_text = (tmp_path / "report.html").read_text()
    assert "<svg" in page_text
    assert "http" not in page_text.replace("http://www.w3.org/2000/svg", "")


def test_the_plan_counts_tokens_and_leaves_nothing_behind(place, done, tmp_path, capsys):
    from fastbert.study import plan

    work = run.work_of(read(place), tmp_path / "cache")
    plans = plan.make_plan(work, rate_of=lambda model: 1000.0)
    assert [p.shared for p in plans] == [False, False, True]
    for p in plans[:2]:
        # 12 steps of at most 256 tokens, for two seeds.
        assert 0.6 * 2 * 12 * 256 < p.pretraining.tokens <= 2 * 12 * 256
        assert p.pretraining.seconds > p.pretraining.tokens / 1000
    # Two epochs over the training sentences, for two seeds.
    sentences = (place / "tags.txt").read_text().strip().split("\n\n")
    words = sum(len(sentence.splitlines()) for sentence in sentences)
    assert plans[0].finetuning.tokens >= 2 * 2 * (words + 2 * len(sentences))
    assert not (tmp_path / "cache" / "models").exists()
    text = plan.text([work, work], 2, rate_of=lambda model: 1000.0)
    assert "4 pre-trainings and 6 fine-tunings" in text
    seconds = sum(p.pretraining.seconds + p.finetuning.seconds for p in plans)
    # The second time all is counted already.
    assert f"{seconds / 2 / 3600:.2f} hours to go with 2" in text
    assert text.count("counted above") == 1 + 3
    cache, _ = done
    finished = plan.make_plan(run.work_of(read(place), cache), rate_of=lambda model: 1000.0)
    assert all(p.pretraining.seconds_done == p.pretraining.seconds for p in finished)


GPT = "model: gpt-2x32x2, init: bert, samples: {objective: causal, nsp: false}"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (f"pretrain: {{{GPT}}}", "a model of type openai-gpt has no head for ner"),
        (f"pretrain: {{{GPT.replace('gpt', 'elmo')}}}", "a model of type elmo is not fine-tuned, expected features"),
        ("static: {size: 8}", "a model of type static is not fine-tuned, expected features"),
        ("static: {sz: 8}, task: {features: last}", "row 'r', static: unknown option sz"),
        ("pretrain: {model: 2x32x2}, task: {features: last4-sum}", "needs a model of at least 4 layers, got 2"),
        ("task: {finetune: {auxiliary_lm: 0.5}}", "auxiliary_lm is a loss of a GPT that is fine-tuned"),
        ("task: {finetune: {max_seqlen: 5000}}", "max_seqlen must be at most the model's 512, got 5000"),
        ("pretrain: {token_budget: 8}", "row 'r': token_budget must hold a sample of max_seqlen 32 tokens, got 8"),
        (f"pretrain: {{{GPT}}}, task: {{features: last, finetune: {{bilstm: 8}}}}", None),
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
        run.work_of(read(place, "cannot.yaml"), tmp_path)
        return
    with pytest.raises(InputError) as error:
        run.work_of(read(place, "cannot.yaml"), tmp_path)
    assert sentence in str(error.value)
    assert not (tmp_path / "models").exists()


def test_a_pretraining_that_diverges_is_told_in_one_sentence(place, tmp_path):
    (place / "diverges.yaml").write_text(
        study_runs.TINY.replace("steps: 12", "steps: 4, lr: 1e9".replace(", ", "\n  "))
    )
    with pytest.raises(InputError, match=r"4x32x2, seed 0, lr 1e\+09: expected a finite held-out loss"):
        complete(read(place, "diverges.yaml", seeds=(0,)), tmp_path)


def test_what_diverges_is_named(place, done, tmp_path, monkeypatch):
    """Both run through one engine, which knows nothing of rows."""
    (place / "wild.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 12\n  lr: 1e30\n  warmup: 0"))
    with pytest.raises(TrainingDiverged, match=r"^the pre-training of 4x32x2, seed 0, lr 1e\+30: training stopped: "):
        complete(read(place, "wild.yaml", seeds=(0,)), tmp_path)

    def diverge(*_):
        raise TrainingDiverged("training stopped")

    work = run.work_of(read(place), shutil.copytree(done[0], tmp_path / "cache"))
    work.cells[1].path.unlink()
    monkeypatch.setattr(cells, "compute", diverge)
    with pytest.raises(TrainingDiverged, match=r"^no NSP on ner, seed 0: training stopped$"):
        run.execute(work)


def test_a_loss_without_a_perplexity_is_told_in_one_sentence(place, tmp_path):
    text = study_runs.TINY.replace("title:", "perplexity: LM\ntitle:").replace("steps: 12", "steps: 4\n  lr: 30")
    (place / "steep.yaml").write_text(text.replace("eval_every: 4", "eval_every: 4\n  warmup: 0"))
    with pytest.raises(InputError, match=r"row 'full': expected a held-out loss that has a perplexity, got \d+"):
        complete(read(place, "steep.yaml", seeds=(0,)), tmp_path)


def test_a_loss_that_is_infinite_on_the_way(place, done, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(done[0], cache)
    study = read(place)
    work = run.work_of(study, cache)
    file = work.models[0].directory / "result.json"
    found = json.loads(file.read_bytes())
    found["curve"][0]["mlm_loss"] = math.inf
    file.write_text(json.dumps(found))
    found, _ = complete(study, cache)
    text = json.dumps(found, allow_nan=False)
    assert found["rows"][0]["pretraining"]["curve"][0]["mlm_loss"] is None
    page.write(json.loads(text), tmp_path / "out")
    chart = (tmp_path / "out" / "pretraining.svg").read_text()
    assert "inf" not in chart
    assert "nan" not in chart
    assert chart.count("<circle") == 5  # three evaluations of each of two models, but for one


def test_a_row_that_is_taken_where_its_loss_is_infinite_is_told_in_one_sentence(place, tmp_path):
    (place / "third.yaml").write_text(study_runs.TINY.replace("rows:", "at: [0.3333, 1]\nrows:"))
    study = read(place, "third.yaml", seeds=(0,))
    complete(study, tmp_path)
    file = run.work_of(study, tmp_path).models[0].directory / "result.json"
    found = json.loads(file.read_bytes())
    found["curve"][0]["mlm_loss"] = math.inf
    file.write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"row 'full, 33.33 %': expected a finite held-out loss after step 4, got inf"):
        complete(study, tmp_path)


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


def test_the_list_of_studies(capsys):
    assert main(["study", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == spec.names()
