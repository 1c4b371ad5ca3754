"""`extract --json`: the lines of google-research/bert's extract_features.py, and layers by their numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny_bert
import torch
import transformers

from fastbert.cli.main import main

TEXTS = "the film is good\n\na great book ||| not bad\nzebra\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("model"), "BertModel")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "lines.txt").write_text(TEXTS)
    return tmp_path / "lines.txt"


def run(model, file, *args) -> int:
    return main(["extract", "--model", str(model), "--out", str(file.parent / "out"), str(file), *args])


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ([], [-1, -2, -3, -4]),
        (["--layers", "last4-concat"], [-1, -2, -3, -4]),
        (["--layers", "last"], [-1]),
        (["--layers=second-to-last"], [-2]),
        (["--layers=0,-1,3"], [0, -1, 3]),
        (["--layers", "-4"], [-4]),
    ],
)
def test_the_values_are_transformers(model, file, given, numbers, capsys):
    assert run(model, file, "--json", *given) == 0
    path = file.parent / "out" / "features.jsonl"
    assert capsys.readouterr().out == f"{path}\n"
    assert [file.name for file in path.parent.iterdir()] == ["features.jsonl"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [list(line) for line in lines] == [["linex_index", "features"]] * 4
    assert [line["linex_index"] for line in lines] == [0, 1, 2, 3]
    bert = transformers.BertModel.from_pretrained(model).eval()
    tokenizer = transformers.BertTokenizer(str(model / "vocab.txt"))
    for line, texts in zip(lines, TEXTS.splitlines(), strict=True):
        inputs = tokenizer(*texts.split(" ||| "), return_tensors="pt")
        tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        assert [list(token) for token in line["features"]] == [["token", "layers"]] * len(tokens)
        assert [token["token"] for token in line["features"]] == tokens
        with torch.inference_mode():
            states = bert(**inputs, output_hidden_states=True).hidden_states[1:]
        for place, token in enumerate(line["features"]):
            assert [list(layer) for layer in token["layers"]] == [["index", "values"]] * len(numbers)
            assert [layer["index"] for layer in token["layers"]] == numbers
            for layer in token["layers"]:
                np.testing.assert_allclose(layer["values"], states[layer["index"]][0, place].numpy(), atol=1e-5)
                assert all(value == round(value, 6) for value in layer["values"])


def test_numbers_of_layers_make_arrays_too(model, file):
    """The features of the layers follow each other in the order of the numbers."""
    arrays = {}
    for layers in ("last", "second-to-last", "-1,-2", "3,2"):
        assert run(model, file, f"--layers={layers}") == 0
        arrays[layers] = np.load(file.parent / "out" / "features.npy")
    wanted = np.concatenate([arrays["last"], arrays["second-to-last"]], 1)
    np.testing.assert_array_equal(arrays["-1,-2"], wanted)
    np.testing.assert_array_equal(arrays["3,2"], wanted)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--layers=-1,-5"], "layers must be numbers from -4 to 3 for a model's 4, got -5"),
        (["--layers=4", "--json"], "layers must be numbers from -4 to 3 for a model's 4, got 4"),
        (
            ["--layers", "first"],
            "--layers: expected one of embeddings, second-to-last, last, last4-sum, ",
        ),
        (["--layers=-1,"], "or numbers such as --layers=-1,-2, got '-1,'"),
        (["--json", "--layers", "all12-sum"], "--json writes layers by their numbers, as in --layers=-1,-2,-3,-4, got"),
        (["--json", "--layers", "embeddings"], "got --layers embeddings"),
    ],
)
def test_other_layers_are_refused(model, file, capsys, given, said):
    assert run(model, file, *given) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list((file.parent / "out").glob("*"))


def test_an_empty_file_leaves_nothing(model, file, capsys):
    file.write_text("")
    assert run(model, file, "--json") == 2
    assert "expected lines of text, got an empty file" in capsys.readouterr().err
    assert not list((file.parent / "out").glob("*"))
