"""Pre-training without sentence pairs: what nothing trains is in no file, as if somebody had trained it."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from fastbert import BertConfig, BertForMaskedLM
from fastbert.data.config import SampleConfig
from fastbert.train.model_and_data import build_model, open_data
from fastbert.train.pretrain import pretrain

PAIRS = {f"{part}.{name}" for part in ("bert.pooler.dense", "cls.seq_relationship") for name in ("weight", "bias")}


@pytest.mark.parametrize("start", ["new", "of masked words alone"])
@pytest.mark.parametrize(("objective", "head"), [("mlm", "BertForMaskedLM"), ("causal", "BertLMHeadModel")])
def test_what_a_run_without_pairs_never_trains_is_not_written(
    recipe, tiny_model, tmp_path, capsys, start, objective, head
):
    """A pooler that was as it had been drawn looked like a trained one to whoever read the file."""
    model = "1x32x2"
    if start != "new":
        model = tmp_path / "words"
        config = BertConfig.from_pretrained(tiny_model, is_decoder=objective == "causal")
        BertForMaskedLM(config).save_pretrained(model)
    options = {"samples": SampleConfig(max_seqlen=32, objective=objective, nsp=False), "eval_every": 2}
    made = pretrain(recipe(model=str(model), steps=2, **options)).model_dir
    said = capsys.readouterr().out
    assert "nothing trains bert.pooler.dense and cls.seq_relationship: left out of model/" in said
    assert not PAIRS & load_file(made / "model.safetensors").keys()
    assert json.loads((made / "config.json").read_text())["architectures"] == [head]
    _, info = getattr(transformers, head).from_pretrained(made, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert pretrain(recipe(model=str(model), steps=4, resume="auto", **options), quiet=True).steps == 4
    assert not PAIRS & load_file(made / "model.safetensors").keys()


def test_a_pooler_that_such_a_run_was_given_is_kept(recipe, tiny_model, capsys):
    samples = SampleConfig(max_seqlen=32, nsp=False)
    made = pretrain(recipe(samples=samples)).model_dir
    assert "left out" not in capsys.readouterr().out
    before, after = (load_file(directory / "model.safetensors") for directory in (tiny_model, made))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in PAIRS)
    assert not torch.equal(after["cls.predictions.bias"], before["cls.predictions.bias"])
    assert json.loads((made / "config.json").read_text())["architectures"] == ["BertForPreTraining"]


def test_a_model_of_such_a_run_that_is_then_given_pairs_is_written_whole(recipe):
    config = recipe(model="1x32x2", samples=SampleConfig(max_seqlen=32, nsp=False))
    model = build_model(config, open_data(config)[0])
    assert model.untrained == PAIRS
    made = pretrain(recipe(), model=model, quiet=True).model_dir
    assert load_file(made / "model.safetensors").keys() >= PAIRS


def test_heads_that_a_directory_lacks_are_drawn_by_the_seed(recipe, tiny_model, tmp_path):
    BertForMaskedLM(BertConfig.from_pretrained(tiny_model)).save_pretrained(tmp_path / "words")
    drawn = []
    for seed in (0, 0, 1):
        config = recipe(model=str(tmp_path / "words"), seed=seed)
        drawn.append(build_model(config, open_data(config)[0]).bert.pooler.dense.weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
