"""Tiny fine-tunings: their rows, their options, and what of two runs must be equal to the bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pretraining_runs
import pytest
import tiny_bert
import torch
import yaml
from tiny_bert import rows_of

import fastbert
from fastbert.tasks import registry
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import Callbacks, finetune
from fastbert.tasks.search import search

# What a clock decides.
_MEASURED = {"train_seconds", "tokens_per_second", "seconds_left", "wall_seconds"}
# Products in float32 also with AMX, since runs are held to each other within its rounding.
_OPTIONS = {"epochs": 3, "batch_size": 8, "lr": 2e-3, "max_seqlen": 24, "log_every": 1}
_OPTIONS |= {"float32_matmul_precision": "highest"}
STEPS = 24  # of 64 rows


def config(**changes) -> FinetuneConfig:
    return FinetuneConfig(**{**_OPTIONS, **changes})


def run(directory, out, rows=None, *, name="sst2", callbacks=None, prepare=lambda task: None, **changes):
    """A fine-tuning of 64 rows; returns its result and its model."""
    task = registry.get(name)
    train, dev = rows or (rows_of(64, 1), rows_of(40, 2))
    task.learn(train)
    prepare(task)
    torch.manual_seed(0)
    model = task.model(directory)
    tokenizer = fastbert.load_tokenizer(directory)
    return finetune(task, model, tokenizer, train, dev, config(**changes), out=out, callbacks=callbacks), model


def several(directory, out, *, configs, callbacks=None, on_trial=None):
    task = registry.get("sst2")
    torch.manual_seed(configs[0].seed)
    given = (task, task.model(directory), lambda: task.model(directory), fastbert.load_tokenizer(directory))
    more = {"out": out, "callbacks": callbacks, "on_trial": on_trial}
    return search(*given, rows_of(64, 1), rows_of(40, 2), configs, **more)


def stop_after(step: int, number: int = signal.SIGTERM) -> Callbacks:
    """Asks for the end as a user would, once so many steps are done."""
    done = []

    def on_step(_total: int) -> None:
        done.append(1)
        if len(done) == step:
            signal.raise_signal(number)

    return Callbacks(on_step=on_step)


def command_in_child(arguments: list[str], told: Path) -> None:
    """`fastbert` with these arguments as the target of a child process; what it prints goes to a file."""
    from fastbert.cli.main import main

    torch.set_num_threads(1)
    pretraining_runs.leave_out_pictures(pytest.MonkeyPatch())
    with open(told, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))


def plain(value):
    """Without what a clock decides, and without the options of going on."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in _MEASURED | {"resume", "save_every", "keep"}}
    return [plain(v) for v in value] if isinstance(value, list) else value


def read(path: Path):
    """The content of a file of a run, in a form in which two runs can be compared."""
    if path.suffix == ".jsonl":
        return [plain(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return plain(json.loads(path.read_text()))
    return plain(yaml.safe_load(path.read_text())) if path.name == "config.yaml" else path.read_bytes()


def assert_same_run(got: Path, expected: Path) -> None:
    """All files: the model to the bit, every logged figure, predictions, tables. No checkpoint is left."""
    files = [
        {p.relative_to(d) for p in d.rglob("*") if p.is_file() and "tfevents" not in p.name} for d in (got, expected)
    ]
    assert files[0] == files[1]
    for name in files[0]:
        assert read(got / name) == read(expected / name), name
    assert not (got / "checkpoints").exists()


def assert_goes_on_twice(directory, out: Path, whole: Path, **changes) -> None:
    """A run that was stopped amid an evaluation comes to the same files as ``whole``, and so it does from the same
    checkpoint once more, as if the first one had been killed after it had made the evaluation up."""
    left = out.with_name("left")
    shutil.copytree(out / "checkpoints", left)
    run(directory, out, resume="auto", **changes)
    assert_same_run(out, whole)
    (out / "ended.json").unlink()
    left.rename(out / "checkpoints")
    run(directory, out, resume="auto", **changes)
    assert_same_run(out, whole)


def squad_of(count: int, seed: int) -> str:
    draw, paragraphs = random.Random(seed), []
    for number in range(count):
        words = draw.choices(["the", "film", "book", "is", "a", "city", "in", "of", "."], k=draw.randint(6, 20))
        at, answers = draw.randrange(len(words)), []
        if number % 3:
            words[at] = "good"
            answers = [{"text": "good", "answer_start": len(" ".join(words[:at])) + (at > 0)}]
        qas = [{"id": str(number), "question": "what is it ?", "answers": answers, "is_impossible": not answers}]
        paragraphs.append({"context": " ".join(words), "qas": qas})
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})


def swag_of(count: int, seed: int) -> str:
    draw = random.Random(seed)
    lines = [",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"]
    for index in range(count):
        endings, right = [f"very {draw.choice(tiny_bert.BAD)}" for _ in range(4)], draw.randrange(4)
        endings[right] = draw.choice(tiny_bert.GOOD)
        lines.append(f"{index},v,0,x,the film .,it is,gold,{','.join(endings)},{right}")
    return "\n".join(lines) + "\n"


def conll_of(count: int, seed: int) -> str:
    draw, lines = random.Random(seed), []
    for _ in range(count):
        for word in draw.choices([*tiny_bert.GOOD, *tiny_bert.BAD, "the", "film", "."], k=draw.randint(3, 9)):
            lines.append(f"{word} {'B-GOOD' if word in tiny_bert.GOOD else 'O'}")
        lines.append("")
    return "\n".join(lines) + "\n"


def stsb_of(count: int, seed: int) -> str:
    draw, lines = random.Random(seed), ["sentence1\tsentence2\tscore"]
    for _ in range(count):
        one, two = (draw.choice(tiny_bert.GOOD + tiny_bert.BAD) for _ in range(2))
        alike = (one in tiny_bert.GOOD) == (two in tiny_bert.GOOD)
        lines.append(f"the film is {one}\tthe book is {two}\t{5.0 if alike else 1.0}")
    return "\n".join(lines) + "\n"
