"""The doctor shows all that `fastbert.environment` found."""

import json

import fastbert
from fastbert.cli.doctor import show
from fastbert.cli.main import main


def test_every_op_and_its_backend_are_shown(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for row in fastbert.environment()["ops"]:
        assert any(row["op"] in line and row["backend"] in line for line in shown.splitlines())
    assert "why not" in shown
    assert "reference, which is plain PyTorch, always can" in shown


def test_a_backend_that_the_environment_asks_for_is_told(capsys, monkeypatch):
    monkeypatch.delenv("FASTBERT_BACKEND", raising=False)
    assert not any("asked for" in note for note in fastbert.environment()["notes"])
    monkeypatch.setenv("FASTBERT_BACKEND", "reference")
    assert main(["doctor"]) == 0
    assert "backend 'reference' is asked for by name" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("FASTBERT_BACKEND", "refrence")
    assert main(["doctor"]) == 2
    assert "FASTBERT_BACKEND must be one of auto, cuda" in capsys.readouterr().err


def test_json_is_the_whole_environment(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == set(fastbert.environment())
    assert found["ops"]


def test_sections_of_any_form_are_shown(capsys):
    show({"version": "1.2", "gpu": {"name": "none", "why": ["a", "b"]}, "notes": ["[not markup]"], "empty": []})
    shown = capsys.readouterr().out
    for text in ("version: 1.2", "none", "a, b", "- [not markup]"):
        assert text in shown
    assert "empty" not in shown
