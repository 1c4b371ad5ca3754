"""A study of seconds: a made-up corpus, two small tasks, two rows; and what of two runs must be equal to the bit."""

from __future__ import annotations

import json
import random
from pathlib import Path

from fastbert.study import results, run, spec

_WORDS = "red blue green grey cat dog bird fish sees eats likes finds today here now again".split()  # noqa: SIM905
_GOOD, _BAD = _WORDS[:4], _WORDS[4:8]

TINY = """
title: A tiny study
vocab_size: 100
heldout: 0.2
seeds: [0, 1]
pretrain:
  model: 4x32x2
  token_budget: 256
  steps: 12
  eval_every: 4
  eval_tokens: 400
  samples: {max_seqlen: 32}
rows:
  - {name: full, paper: {A: 80, B: 90}}
  - {name: no NSP, pretrain: {samples: {nsp: false}}, paper: {A: 70, B: 95}}
  - {name: on features, task: {features: last4-concat}, paper: {B: 85}}
tasks:
  ner:
    train: tags.txt
    dev: tags-dev.txt
    paper: B
    feature_units: 16
    finetune: {epochs: 2, batch_size: 8, lr: 1e-3, max_seqlen: 32}
    feature_finetune: {epochs: 1, batch_size: 8, lr: 1e-3, max_seqlen: 32}
"""


def write_files(directory: Path) -> Path:
    """Writes corpus.txt, tags.txt, tags-dev.txt and texts.jsonl; returns the directory."""
    draw = random.Random(0)
    directory.mkdir(parents=True, exist_ok=True)

    def sentence() -> list[str]:
        return draw.choices(_WORDS, k=draw.randint(3, 9))

    documents = ["\n".join(" ".join(sentence()) for _ in range(12)) for _ in range(30)]
    (directory / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    for name, count in (("tags.txt", 24), ("tags-dev.txt", 12)):
        tagged = (
            "\n".join(f"{word} X X {'I-GOOD' if word in _GOOD else 'O'}" for word in sentence()) for _ in range(count)
        )
        (directory / name).write_text("\n\n".join(tagged) + "\n")
    rows = ({"text": " ".join(words := sentence()), "label": str(words[0] in _BAD)} for _ in range(40))
    (directory / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def read(place: Path, name: str = "tiny.yaml", **given) -> spec.Study:
    return spec.read(place / name, "smoke", data_dir=str(place), corpus=(str(place / "corpus.txt"),), **given)


def complete(study: spec.Study, cache: Path, **options) -> tuple[dict, list[str]]:
    """Runs a study to the end; its results, and a line for each job that was done."""
    lines: list[str] = []
    work = run.work_of(study, cache)
    run.execute(work, say=lines.append, **options)
    return results.collect(work, "fastbert study"), lines


def same_in_every_run(results: dict) -> dict:
    """Without what a clock or the machine decides."""
    return {name: value for name, value in results.items() if name != "measured"}


def kept(cache: Path) -> dict:
    """The results of all jobs in a cache, by kind and key."""
    paths = [*cache.glob("cells/*.json"), *cache.glob("models/*/result.json")]
    found = (json.loads(path.read_text()) for path in paths)
    return {result["key"]: same_in_every_run(result) for result in found}
