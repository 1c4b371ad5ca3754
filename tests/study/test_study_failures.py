"""A study that meets damage, a lack or a divergence: made anew to the same bits, or told in one sentence."""

from __future__ import annotations

import json
import math
import shutil
import sys

import pytest
import study_runs

from fastbert.errors import DataError, InputError
from fastbert.study import cells, corpus, page, run, senses
from fastbert.train.engine import TrainingDiverged

CUT = ["key", "measured", "figures", "no number", "no time", "no rows", "a truth", "no sentences", "no guess"]
NO_RESULT = [b"", b'{\n  "key": "1', b"\xff\xfe", b"[]", b"{}", *CUT]


@pytest.fixture
def damaged(request, place, done, tmp_path) -> tuple:
    """A finished study of one seed, of whose first cell and first model the results are no more what was written."""
    how = request.param
    cache = shutil.copytree(done[0], tmp_path / "cache")
    study, figures = study_runs.read(place, seeds=(0,)), ("metrics", "heldout")
    work = run.work_of(study, cache)
    files = [work.cells[0].path, work.models[0].directory / "result.json"]
    for file in files:
        whole = json.loads(file.read_bytes())
        cut = {"key": {"key": whole["key"]}, "measured": {**whole, "measured": {}}}  # JSON, and not all of it
        cut["figures"] = {**whole, "metrics": {}, "heldout": {}}
        cut["no number"] = {**whole, **{name: _with(whole[name], math.nan) for name in figures if name in whole}}
        cut["a truth"] = {**whole, **{name: _with(whole[name], True) for name in figures if name in whole}}
        cut["no time"] = {**whole, "measured": {**whole["measured"], "seconds": 0}}
        cut["no rows"] = {**whole, "rows": [], "curve": []}
        cut["no sentences"] = {**whole, "heldout": {**whole.get("heldout", {}), "nsp_acc": None}, "guess": {"f1": "x"}}
        curve = [{**point, "nsp_acc": None} for point in whole.get("curve", [])]
        cut["no guess"] = {**whole, "guess": {"f1": math.nan}, "curve": curve}
        file.write_bytes(json.dumps(cut[how]).encode() if how in cut else how)
    return study, cache, [f"{file} is damaged: its result is computed again" for file in files]


@pytest.mark.parametrize("damaged", NO_RESULT, indirect=True)
def test_a_damaged_result_is_left_to_be_made(damaged, caplog):
    study, cache, told = damaged
    work = run.work_of(study, cache)
    assert work.missing == (work.models[:1], work.cells[:1])
    assert [record.message for record in caplog.records] == told


@pytest.mark.parametrize("damaged", [b"", "no guess"], indirect=True)
def test_a_damaged_result_is_made_anew_to_the_same_bits(damaged, done, caplog):
    study, cache, told = damaged
    _, lines = study_runs.complete(study, cache)
    assert len(lines) == 2
    assert [record.message for record in caplog.records] == told
    assert study_runs.kept(cache) == study_runs.kept(done[0])


def _with(values: dict, value: object) -> dict:
    return dict.fromkeys(values, value)


def test_a_pretraining_without_a_valid_checkpoint_begins_anew(place, done, tmp_path, caplog):
    cache = tmp_path / "cache"
    shutil.copytree(done[0], cache)
    before, study = study_runs.kept(cache), study_runs.read(place, seeds=(0,))
    model = run.work_of(study, cache).models[0]
    (model.directory / "result.json").unlink()
    damaged = model.directory / "run" / "checkpoints" / "step_00000004"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{}")
    study_runs.complete(study, cache)
    (told,) = (
        r.message for r in caplog.records if r.message.startswith(f"{damaged.parent}: none of its 1 checkpoints")
    )
    assert f"starts from the beginning; the first: {damaged / 'manifest.json'}: cannot be read" in told
    assert study_runs.kept(cache) == before


@pytest.mark.parametrize("damage", ["one bit", "cut short", "gone"])
def test_damaged_weights_make_no_figure(place, done, tmp_path, damage):
    cache = tmp_path / "cache"
    shutil.copytree(done[0], cache)
    study = study_runs.read(place, seeds=(0,))
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
    study_runs.complete(study, cache)
    assert study_runs.kept(cache) == study_runs.kept(done[0])


def test_damaged_weights_from_the_middle_make_no_figure(place, tmp_path):
    """Neither in a task nor in the polysemy test."""
    text = study_runs.TINY[: study_runs.TINY.index("  - {name: no NSP")].replace("name: full", "name: full, at: 0.5")
    text = text.replace("steps: 12", "steps: 4").replace("eval_every: 4", "eval_every: 2")
    (place / "half.yaml").write_text(text + study_runs.TINY[study_runs.TINY.index("tasks:") :])
    study = study_runs.read(place, "half.yaml", seeds=(0,))
    study_runs.complete(study, tmp_path)
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
        run.work_of(study_runs.read(place, "static.yaml"), tmp_path / "cache")


def test_damaged_data_are_found_before_a_model_is_trained_on_them(place, tmp_path):
    work = run.work_of(study_runs.read(place, seeds=(0,)), tmp_path / "cache")
    shard = next(work.data.rglob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=rf"{shard.name}.*; remove {work.data}, and the same command makes it again$"):
        run.execute(work)


@pytest.mark.parametrize("name", ["manifest.json", "vocab.txt", "heldout/shard-00000.idx"])
@pytest.mark.parametrize("left", [None, 20])
def test_data_of_which_a_file_is_missing_or_cut_off_are_made_anew(place, tmp_path, caplog, name, left):
    data = corpus.prepared(study_runs.read(place), tmp_path)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    file = data / name
    file.unlink() if left is None else file.write_bytes(file.read_bytes()[:left])
    assert corpus.prepared(study_runs.read(place), tmp_path) == data
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert [r.message.endswith(": the data are made again") for r in caplog.records] == [True]


def test_a_pretraining_that_diverges_is_told_in_one_sentence(place, tmp_path):
    (place / "diverges.yaml").write_text(
        study_runs.TINY.replace("steps: 12", "steps: 4, lr: 1e9".replace(", ", "\n  "))
    )
    with pytest.raises(InputError, match=r"4x32x2, seed 0, lr 1e\+09: expected a finite held-out loss"):
        study_runs.complete(study_runs.read(place, "diverges.yaml", seeds=(0,)), tmp_path)


def test_what_diverges_is_named(place, done, tmp_path, monkeypatch):
    """Both run through one engine, which knows nothing of rows."""
    (place / "wild.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 12\n  lr: 1e12\n  warmup: 0"))
    with pytest.raises(TrainingDiverged, match=r"^the pre-training of 4x32x2, seed 0, lr 1e\+12: training stopped: "):
        study_runs.complete(study_runs.read(place, "wild.yaml", seeds=(0,)), tmp_path)

    def diverge(*_):
        raise TrainingDiverged("training stopped")

    work = run.work_of(study_runs.read(place), shutil.copytree(done[0], tmp_path / "cache"))
    work.cells[1].path.unlink()
    monkeypatch.setattr(cells, "compute", diverge)
    with pytest.raises(TrainingDiverged, match=r"^no NSP on ner, seed 0: training stopped$"):
        run.execute(work)


def test_a_loss_without_a_perplexity_is_told_in_one_sentence(place, tmp_path):
    text = study_runs.TINY.replace("title:", "perplexity: LM\ntitle:").replace("steps: 12", "steps: 4\n  lr: 30")
    (place / "steep.yaml").write_text(text.replace("eval_every: 4", "eval_every: 4\n  warmup: 0"))
    with pytest.raises(InputError, match=r"row 'full': expected a held-out loss that has a perplexity, got \d+"):
        study_runs.complete(study_runs.read(place, "steep.yaml", seeds=(0,)), tmp_path)


def test_a_loss_that_is_infinite_on_the_way(place, done, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(done[0], cache)
    study = study_runs.read(place)
    work = run.work_of(study, cache)
    file = work.models[0].directory / "result.json"
    found = json.loads(file.read_bytes())
    found["curve"][0]["mlm_loss"] = math.inf
    file.write_text(json.dumps(found))
    found, _ = study_runs.complete(study, cache)
    text = json.dumps(found, allow_nan=False)
    assert found["rows"][0]["pretraining"]["curve"][0]["mlm_loss"] is None
    page.write(json.loads(text), tmp_path / "out")
    chart = (tmp_path / "out" / "pretraining.svg").read_text()
    assert "inf" not in chart
    assert "nan" not in chart
    assert chart.count("<circle") == 5  # three evaluations of each of two models, but for one


def test_a_row_that_is_taken_where_its_loss_is_infinite_is_told_in_one_sentence(place, tmp_path):
    (place / "third.yaml").write_text(study_runs.TINY.replace("rows:", "at: [0.3333, 1]\nrows:"))
    study = study_runs.read(place, "third.yaml", seeds=(0,))
    study_runs.complete(study, tmp_path)
    file = run.work_of(study, tmp_path).models[0].directory / "result.json"
    found = json.loads(file.read_bytes())
    found["curve"][0]["mlm_loss"] = math.inf
    file.write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"row 'full, 33.33 %': expected a finite held-out loss after step 4, got inf"):
        study_runs.complete(study, tmp_path)
