"""steps.jsonl: a row for every step, with its figures and where its time went; whole after any interruption."""

from __future__ import annotations

import dataclasses
import json
import math
import time

import pretraining_runs as runs
import pytest
import torch

from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.train import step_rows
from fastbert.train.metrics import from_line, read_metrics, to_line
from fastbert.train.model_and_data import build_model
from fastbert.train.pretrain import pretrain
from fastbert.train.timing import StepTimer, _covered
from fastbert.train.window import Window

STEPS = 7
NAMES = {
    "step", "epoch", "loss", "mlm_loss", "nsp_loss", "mlm_acc", "nsp_acc", "grad_norm", "lr", "loss_scale",
    "skipped_steps", "tokens_per_second", "executed_tokens_per_second", "mfu", "memory_mib", "seconds", "data_seconds",
    "forward_seconds", "backward_seconds", "optimizer_seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("rows") / "data")


def short(data, out, **changes):
    """Lines come every third step, and a step has two micro-batches."""
    options = {"model": "1x32x2", "steps": STEPS, "eval_every": 100, "log_every": 3}
    return runs.config(data, out, **{**options, **changes})


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    pretrain(short(data, out), quiet=True)
    return out


def step_rows_of(run) -> list[dict]:
    """With what was measured by a clock."""
    return [from_line(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def test_every_step_has_a_row_of_its_own_figures(data, whole, tmp_path):
    """The same run with a line a step has the same figures in its lines."""
    rows = step_rows_of(whole)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(set(row) == NAMES for row in rows)
    pretrain(short(data, tmp_path / "run", log_every=1), quiet=True)
    lines = [row for row in runs.rows(tmp_path / "run") if row["kind"] == "train"]
    assert len({row["loss"] for row in rows}) == STEPS
    for row, line in zip(runs.rows(whole, "steps.jsonl"), lines, strict=True):
        assert row == pytest.approx({k: v for k, v in line.items() if k != "kind"}, rel=1e-9)


def test_lines_are_means_over_their_steps(whole):
    rows = step_rows_of(whole)
    lines = [row for row in read_metrics(whole / "metrics.jsonl") if row["kind"] == "train"]
    assert [line["step"] for line in lines] == [3, 6, 7]
    for line, steps in zip(lines, (rows[:3], rows[3:6], rows[6:]), strict=True):
        assert line["loss"] == pytest.approx(sum(row["loss"] for row in steps) / len(steps))
        for name in ("seconds", "data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds"):
            assert line[name] == pytest.approx(sum(row[name] for row in steps), rel=1e-6, abs=1e-9)


def test_each_row_is_strict_json(data, tmp_path):
    """Also of a step whose gradient is not finite."""
    config = short(data, tmp_path / "run", steps=2)
    pretraining = PretrainingData(ShardSet.open(data), config.samples)
    model = build_model(config, pretraining)
    with torch.no_grad():
        model.cls.predictions.bias[0] = math.nan
    pretrain(config, model=model, data=pretraining, quiet=True)

    def refuse(word: str):
        raise ValueError(word)

    lines = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [(row["loss"], row["skipped_steps"]) for row in rows] == [("NaN", 1), ("NaN", 2)]


def test_a_resumed_run_has_each_step_once(data, whole, tmp_path):
    """Rows behind the checkpoint, of steps that are done again, go; so does a line that a crash cut off."""
    out = tmp_path / "run"
    config = short(data, out, save_every=2)
    pretrain(config, callbacks=[runs.stop_after(6)], quiet=True)
    for path in (out / "checkpoints").glob("step_[56]"):
        path.rename(out / path.name)
    with open(out / "steps.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 7, "lo')
    pretrain(dataclasses.replace(config, resume="auto"), quiet=True)
    runs.assert_same_run(out, whole, STEPS)


def test_a_line_goes_on_with_another_number_of_ranks():
    """Each with its own sums, or the first with those of all: then the line counts everything once."""
    none = [0] * (len(Window().sums()) - 1)
    saved = [Window().with_sums([loss, *none]).state() for loss in (1.0, 2.0)]

    def losses(ranks):
        return [Window.of_rank(saved, rank, ranks).sums()[0] for rank in range(ranks)]

    assert (losses(1), losses(2), losses(3)) == ([3.0], [1.0, 2.0], [3.0, 0.0, 0.0])


@pytest.mark.parametrize("tail", ["", '{"step": 9', "\n", "\x00\x00", "no json\n", '{"step": null}\n'])
@pytest.mark.parametrize("last", [0, 1, 250, 400])
def test_rows_are_cut_from_the_end(tmp_path, last, tail):
    path = tmp_path / "steps.jsonl"
    lines = [to_line({"step": n, "text": "x" * (n % 97)}) for n in range(1, 301)]
    path.write_text("".join(lines) + tail)
    step_rows._cut(path, last)
    assert path.read_text() == "".join(lines[:last])


class Slow(PretrainingData):
    """Data that take their time."""

    def collate(self, epoch, sample_ids):
        time.sleep(0.02)
        return super().collate(epoch, sample_ids)


def test_time_is_booked_where_it_is_spent(data, tmp_path):
    """20 ms of sleep in each place; two micro-batches a step."""
    config = short(data, tmp_path / "run", steps=3)
    pretraining = Slow(ShardSet.open(data), config.samples)
    model = build_model(config, pretraining)
    model.register_forward_pre_hook(lambda *_: time.sleep(0.03))
    model.cls.predictions.bias.register_hook(lambda gradient: time.sleep(0.04))
    slept = {"data": 0.04, "forward": 0.06, "backward": 0.08}
    pretrain(config, model=model, data=pretraining, quiet=True)
    for row in step_rows_of(tmp_path / "run"):
        parts = {name: row[f"{name}_seconds"] for name in (*slept, "optimizer")}
        assert all(parts[name] >= seconds for name, seconds in slept.items())
        assert sum(parts.values()) <= row["seconds"] * 1.001
        # What a part does besides sleeping is a few milliseconds; a part that took another's sleep would have 20 more.
        assert parts["optimizer"] < 0.5 * row["seconds"]


def test_spans_that_overlap_count_once():
    assert _covered([(0.0, 1.0), (0.5, 2.0), (3.0, 4.0), (3.2, 3.4)]) == pytest.approx(3.0)
    assert _covered([]) == 0.0


def test_the_timer_tells_steps_apart():
    timer = StepTimer(torch.device("cpu"))
    for pause in (0.01, 0.03):
        with timer.part("forward"):
            time.sleep(pause)
        timer.end_step()
    timer.end_step()
    first, second, third = timer.seconds()
    assert first["forward"] >= 0.01
    assert second["forward"] >= 0.03
    assert third == {}
    assert timer.seconds() == []
