"""What a study says: its report and plan, its curves, its rows of every kind."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path

import pytest
import study_runs

from fastbert.cli.main import main
from fastbert.data.shards import ShardSet
from fastbert.errors import InputError
from fastbert.study import compare, page, results, run, senses
from fastbert.wording import duration


def test_the_report_says_where_rows_learn_from_other_numbers_of_rows(place, done, tmp_path):
    text = study_runs.TINY.replace("name: no NSP,", "name: few, task: {train_rows: 8},").replace("[0, 1]", "[0]")
    (place / "few.yaml").write_text(text)
    found, _ = study_runs.complete(study_runs.read(place, "few.yaml"), done[0])
    assert found["columns"][0]["rows_of"] == {"full": [24, 12], "few": [8, 12], "on features": [24, 12]}
    page.write(found, tmp_path)
    said = "Training and dev rows: ner 24 and 12 (full), 8 and 12 (few), 24 and 12 (on features)."
    assert said in (tmp_path / "report.md").read_text()
    assert "rows_of" not in done[1]["columns"][0]
    found["rows"][1]["figures"]["ner"]["guess"] = 12.5
    page.write(found, tmp_path)
    assert (
        "| one answer for all rows | 0.0 (full), 12.5 (few), 0.0 (on features) |"
        in (tmp_path / "report.md").read_text()
    )


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


def test_rows_with_a_place_of_their_own_make_no_curve_of_several_uses(place, done, tmp_path):
    rows = "  - {name: half, at: 0.6666666666666666}\n  - {name: full}\n"
    rows += "  - {name: 'half, frozen', at: 0.6666666666666666, task: {features: last}}\n"
    rows += "  - {name: 'full, frozen', task: {features: last}}\n"
    head, tail = study_runs.TINY.index("rows:"), study_runs.TINY.index("tasks:")
    text = study_runs.TINY[:head].replace("[0, 1]", "[0]") + "rows:\n" + rows + study_runs.TINY[tail:]
    (place / "places.yaml").write_text(text.replace("    paper: B\n", ""))
    found, _ = study_runs.complete(study_runs.read(place, "places.yaml"), tmp_path / "cache")
    names = [path.name for path in page.write(found, tmp_path)]
    assert [name for name in names if name.endswith(".svg")] == ["pretraining.svg"]
    assert "have the weights of the step named" in (tmp_path / "report.md").read_text()


def test_a_curve_of_a_pretraining_has_no_share_in_its_name(place, done, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(page.svg, "line_chart", lambda lines, *_: drawn.append(lines) or "<svg></svg>")
    found = json.loads(json.dumps(done[1]))
    for number, row in enumerate(found["rows"]):
        row["row"] = f"full, {40 + number} %"
    rate = next(iter(found["measured"]["tokens_per_second"].values()))
    found["measured"]["tokens_per_second"] = dict.fromkeys((row["row"] for row in found["rows"]), rate)
    page.write(found, tmp_path)  # other pre-trainings, which happen to be called so
    assert [line.label for line in drawn[0]] == ["full, 40 %", "full, 41 %"]
    found["rows"][0]["pretraining"]["steps"] = 4
    page.write(found, tmp_path)
    assert next(line.label for line in drawn[1]) == "full"


def test_a_report_that_cannot_be_written_is_told_before_anything_is_computed(place, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    command = ["study", str(place / "tiny.yaml"), "--data-dir", str(place), "--corpus", str(place / "corpus.txt")]
    assert main([*command, "--cache", str(tmp_path / "cache"), "--out", str(taken)]) == 2
    assert str(taken) in capsys.readouterr().err
    assert not (tmp_path / "cache" / "models").exists()


def test_the_report_has_the_file_as_it_was_when_it_was_read(place, done):
    """A study runs for hours, in which its file may be changed for the next one."""
    (place / "before.yaml").write_bytes(b"\xef\xbb\xbf" + study_runs.TINY.replace("\n", "\r\n").encode())
    study = study_runs.read(place, "before.yaml")
    (place / "before.yaml").unlink()
    assert results.collect(run.work_of(study, done[0]), "the command")["file"] == study_runs.TINY
    (place / "text.yaml").write_text(f"text: it\n{study_runs.TINY}")
    with pytest.raises(InputError, match="unknown key text; known are"):
        study_runs.read(place, "text.yaml")


def test_names_that_are_not_utf8_are_in_the_report(place, done, tmp_path, monkeypatch):
    """From a command line in another encoding; only names of files are so, and each is read by its bytes."""
    try:
        files = shutil.copytree(place, tmp_path / "T\udce9")
    except OSError:
        pytest.skip("the file system takes no such names")
    names = ["--data-dir", str(files), "--corpus", str(files / "corpus.txt"), "--out", str(tmp_path / "o\udce9")]
    command = ["study", str(place / "tiny.yaml"), *names, "--cache", str(done[0])]
    monkeypatch.setattr("sys.argv", ["fastbert", *command])
    assert main(command) == 0
    found = json.loads((tmp_path / "o\udce9" / "tiny-smoke" / "results.json").read_text())
    escaped = str(files).replace("\udce9", r"\udce9")
    assert found["corpus"] == [f"{escaped}/corpus.txt"]
    assert f"--data-dir '{escaped}'" in found["measured"]["command"]
    assert f"Corpus: {escaped}/corpus.txt," in (tmp_path / "o\udce9" / "tiny-smoke" / "report.md").read_text()


def test_a_row_that_predicts_no_words_has_no_loss(place, tmp_path):
    head, tail = study_runs.TINY.index("rows:"), study_runs.TINY.index("tasks:")
    rows = "rows:\n  - {name: sentences alone, pretrain: {samples: {mlm_probability: 0.0, nsp: true}}}\n"
    text = study_runs.TINY[:head].replace("[0, 1]", "[0]") + rows + study_runs.TINY[tail:]
    (place / "sentences.yaml").write_text(text.replace("    paper: B\n", ""))
    found, lines = study_runs.complete(study_runs.read(place, "sentences.yaml"), tmp_path / "cache")
    pretraining = found["rows"][0]["pretraining"]
    assert (pretraining["losses"], pretraining["margins"], pretraining["curve"]) == ([], [], [])
    assert len(pretraining["next_sentence"]) == 1
    assert lines[0].endswith(f"; held-out next sentence {100 * pretraining['next_sentence'][0]:.1f} %")
    page.write(found, tmp_path)
    (line,) = (line for line in (tmp_path / "report.md").read_text().splitlines() if "predicts no words" in line)
    assert [cell.strip() for cell in line.split("|")[3:5]] == ["12", f"{pretraining['weights_of_step'][0]}"]
    assert f"| {100 * pretraining['next_sentence'][0]:.1f} % |" in line


@pytest.mark.parametrize("option", ["corpus", "seeds"])
def test_an_option_with_nothing_after_it_is_told(place, capsys, option):
    assert main(["study", str(place / "tiny.yaml"), f"--{option}"]) == 2
    assert f"expected a value or several after --{option}, got none" in capsys.readouterr().err


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
    with pytest.raises(InputError, match="init small is only for a BERT, got model 'elmo-2x32x2'"):
        run.work_of(study_runs.read(place, "kinds.yaml"), tmp_path / "cache")
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


def test_the_seed_that_has_learned_least_says_whether_a_row_has_begun(place, done, monkeypatch):
    cache, found = done
    seen = []
    monkeypatch.setattr(compare.Pair, "agrees", False)
    monkeypatch.setattr(compare, "reason", lambda pair, figures, margins, uses: seen.append(margins))
    results.collect(run.work_of(study_runs.read(place), cache), "the command")
    by_seed = {row["row"]: row["pretraining"]["margins"] for row in found["rows"]}
    assert any(len(set(margins)) > 1 for margins in by_seed.values())
    assert seen[0] == {row: min(margins) for row, margins in by_seed.items() if margins}


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
    worked = [found["measured"][f"{part}_processor_seconds"] for part in ("pretraining", "finetuning")]
    assert min(worked) > 0
    assert f"{sum(worked) / 3600:.2f} hours of processor time" in text
    # Of the jobs, whatever the process has that reads their results.
    assert found["measured"]["threads"] == [1]
    assert ", 1 thread each, " in text
    assert study_runs.TINY in text
    page_text = (tmp_path / "report.html").read_text()
    assert "<svg" in page_text
    assert "http" not in page_text.replace("http://www.w3.org/2000/svg", "")


def test_jobs_that_rows_share_are_counted_once(place, done, tmp_path):
    cache = shutil.copytree(done[0], tmp_path / "cache")
    work = run.work_of(study_runs.read(place), cache)
    model = work.model_of["full", 0]
    assert model.key == work.model_of["on features", 0].key
    path = model.directory / "result.json"
    path.write_text(json.dumps({**model.result(), "best_step": 8}))
    found = results.collect(work, "the command")
    models, cells = ([job.result() for job in jobs] for jobs in (work.models, work.cells))
    for name, own in (("pretraining", models), ("finetuning", cells)):
        assert found["measured"][f"{name}_seconds"] == pytest.approx(sum(r["measured"]["seconds"] for r in own))
        assert found["measured"][f"{name[:-3]}ed_tokens"] == sum(result["tokens"] for result in own)
    by_row = {row["row"]: row["pretraining"] for row in found["rows"]}
    assert by_row["full"]["weights_of_step"] == [8, work.model_of["full", 1].result()["best_step"]]


def test_senses_are_asked_of_every_seed_and_drawn_of_the_first(place, done, tmp_path):
    cache, _ = done
    found = senses.measure(run.work_of(study_runs.read(place), cache), tmp_path)
    drawn = json.loads((tmp_path / "polysemy.json").read_text())["means"]
    assert list(found["rows"]) == list(drawn) == ["full", "no NSP"]
    for name, of in found["rows"].items():
        first, other = of["silhouette"]
        assert first == drawn[name]["silhouette"] != other
    assert found["words"][-1] == ["mean", *(drawn[name][what] for name in drawn for what in ("accuracy", "silhouette"))]


def test_the_plan_counts_tokens_and_leaves_nothing_behind(place, done, tmp_path, capsys):
    from fastbert.study import plan

    work = run.work_of(study_runs.read(place), tmp_path / "cache")
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
    assert f"\n{duration(seconds / 2)} to go with 2 at the same time\n" in text
    assert f" M tokens, {duration(seconds)}\n" in text
    assert text.count("counted above") == 1 + 3
    cache, _ = done
    finished = plan.make_plan(run.work_of(study_runs.read(place), cache), rate_of=lambda model: 1000.0)
    assert all(p.pretraining.seconds_done == p.pretraining.seconds for p in finished)


def test_the_plan_knows_how_wide_the_features_of_a_directorys_model_are(place, done, tmp_path):
    from fastbert.study import plan

    cache, found = done
    directory = cache / "models" / found["rows"][0]["pretraining"]["keys"][0] / "run" / "model"
    text = study_runs.TINY.replace("model: 4x32x2", f"model: {directory}").replace("[0, 1]", "[0]")
    (place / "directory.yaml").write_text(text)
    work = run.work_of(study_runs.read(place, "directory.yaml"), tmp_path)
    *_, on_features = plan.make_plan(work, rate_of=lambda model: 1000.0)
    assert on_features.finetuning.seconds > 0
    assert plan._lstm_sizes(work.cells[-1]) == (4 * 32, 16)
