"""The examples of docs/drop-in.md, run as they stand in a directory with a tiny model."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tiny_bert import save

import fastbert
from fastbert.cli.main import main
from fastbert.interop.convert import convert
from fastbert.interop.patch import is_patched

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "drop-in.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.split("#")[0] for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """A directory with ``model``, a tiny classifier, and ``sentences``, its sentence-transformers directory."""
    save(tmp_path / "model", "BertForSequenceClassification", num_labels=2)
    convert(tmp_path / "model", tmp_path / "sentences", to="sentence-transformers")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_its_examples():
    assert len(EXAMPLES) == 12
    assert len(COMMANDS) == 7
    assert all(command.startswith("fastbert convert ") for command in COMMANDS)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number, desk):
    code = EXAMPLES[number]
    for library, package in (
        ("Trainer", "accelerate"),
        ("peft", "peft"),
        ("sentence_transformers", "sentence_transformers"),
        ("onnxruntime", "onnxruntime"),
        ("onnxruntime", "onnxscript"),
    ):
        if library in code:
            pytest.importorskip(package, exc_type=ImportError)
    row = {"input_ids": torch.tensor([2, 7, 3]), "attention_mask": torch.ones(3).long(), "labels": torch.tensor(1)}
    names = {"rows": [row] * 8}
    if "bert.onnx" in code:
        convert(desk / "model", desk / "bert.onnx", to="onnx")
    if "convert(" in code:
        shutil.rmtree(desk / "sentences")  # made for another example
    exec(compile(code, f"docs/drop-in.md, example {number}", "exec"), names)
    if "session" in names:
        model = fastbert.BertForSequenceClassification.from_pretrained(desk / "model").eval()
        given = {name: torch.tensor(x) for name, x in names["batch"].items()}
        torch.testing.assert_close(torch.tensor(names["outputs"][0]), model(**given).logits, rtol=1e-5, atol=1e-6)
        assert names["config"]["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    if "program" in names:
        given = torch.tensor([[2, 7, 3], [2, 3, 0], [5, 3, 2]]), torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1]])
        outputs = names["program"].module()(*given), names["model"](*given)
        torch.testing.assert_close(*(output.last_hidden_state for output in outputs), rtol=1e-5, atol=1e-6)
    elif "encoder" in names:
        assert not names["states"][0, 3:].any()
    elif "model" in names:
        assert any(is_patched(module) for module in names["model"].modules())
    if "Ranker" in names:
        ids = torch.tensor([[2, 7, 3], [2, 3, 0]])
        assert names["model"](ids, (ids > 0).long()).shape == (2, 1)
    if "penalty" in names:
        assert names["embeddings"].grad.abs().max() > 0
    if "vectors" in names:
        assert names["vectors"].shape == (2, 32)
    if "ignore" in names:
        assert not names["out"][names["ignore"]].any()
    if "convert(" in code:
        assert (desk / "google" / "bert_model.ckpt.index").is_file()
        assert (desk / "sentences" / "modules.json").is_file()


def test_the_commands(desk, capsys):
    save(desk / "made", "BertForPreTraining")
    shutil.rmtree(desk / "sentences")
    for number, command in enumerate(COMMANDS):
        words = shlex.split(command)[1:]
        source, target = desk / words[1], desk / words[2]
        if number == 0:
            convert(desk / "made", source, to="tf1")
        elif words[1] == "roberta-base":
            sizes = {"vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
            transformers.RobertaModel(transformers.RobertaConfig(**sizes, intermediate_size=48)).save_pretrained(source)
        elif words[1] == "old-model":
            convert(desk / "made", source, to="pickle")
        elif words[1].endswith(".pt"):
            torch.save({"model": torch.load(desk / "old-model" / "pytorch_model.bin")}, source)
            os.replace(desk / "google" / "bert_config.json", desk / "bert_config.json")
        if "onnx" in words:
            continue  # its own test exports it, which takes long
        assert main(words) == 0, capsys.readouterr().err
        assert target.exists()
