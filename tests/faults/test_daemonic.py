"""In a daemonic process, as of a multiprocessing pool or of Celery, which Python lets start no other."""

from __future__ import annotations

import multiprocessing

import pretraining_runs
import pytest

from fastbert.data import prepare as module
from fastbert.data.prepare import prepare
from fastbert.data.tokenizer import train_wordpiece
from fastbert.errors import InputError
from fastbert.train.pretrain import pretrain


@pytest.fixture
def daemonic(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)


@pytest.fixture
def documents(monkeypatch):
    """As much text as is shared out to processes."""
    monkeypatch.setattr(module, "_SERIAL_CHARS", 100)
    monkeypatch.setattr(module, "num_cores", lambda: 2)
    return [(f"document {number}", ["the cat sees a dog", "a bird"] * 20) for number in range(4)]


def test_data_are_prepared_by_the_process_itself(daemonic, documents, tmp_path):
    tokenizer = train_wordpiece(documents[0][1], 60)
    assert prepare(documents, tokenizer, tmp_path / "data").counts["train"]["documents"] == 4
    with pytest.raises(InputError, match=r"num_workers must be 1 in a daemonic process .*, got 2"):
        prepare(documents, tokenizer, tmp_path / "other", num_workers=2)
    assert not (tmp_path / "other").exists()


def test_a_run_with_workers_is_refused_before_it_writes_anything(daemonic, tmp_path):
    data = pretraining_runs.prepare_data(tmp_path / "data")
    config = pretraining_runs.config(data, tmp_path / "run", steps=1, num_workers=1)
    with pytest.raises(InputError, match=r"num_workers must be 0 in a daemonic process .*, got 1"):
        pretrain(config, quiet=True)
    assert not (tmp_path / "run").exists()
