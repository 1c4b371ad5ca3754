"""A pre-trained model's figures on held-out documents, without training."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from fastbert import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel
from fastbert.cli.main import main
from fastbert.data.config import SampleConfig
from fastbert.data.prepare import prepare
from fastbert.data.tokenizer import load_tokenizer
from fastbert.errors import CheckpointError, DataError, InputError
from fastbert.train.phase_options import Phase
from fastbert.train.pretrain import pretrain
from fastbert.train.score import score

CAUSAL = SampleConfig(max_seqlen=32, objective="causal", nsp=False)


@pytest.fixture
def saved(recipe, prepared, tmp_path):
    """Saves a tiny model of a class beside the data's vocabulary, and returns a recipe that names it."""

    def save(cls, **changes):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(load_tokenizer(prepared).get_vocab()), hidden_size=32, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=64, max_position_embeddings=32,
        )  # fmt: skip
        directory = tmp_path / cls.__name__
        cls(config).save_pretrained(directory)
        shutil.copy(prepared / "vocab.txt", directory)
        return recipe(model=str(directory), **changes)

    return save


def test_a_run_and_its_model_have_the_same_figures(recipe, prepared, capsys):
    result = pretrain(recipe(steps=6, eval_every=6, warmup=0.0), quiet=True)
    options = ["--data", str(prepared), "--model", str(result.run_dir), "--samples.max-seqlen", "32"]
    assert main(["pretrain", *options, "--evaluate", "heldout"]) == 0
    row = json.loads(capsys.readouterr().out)
    of_run = {name: result.heldout[name] for name in row if name not in ("model", "split", "perplexity")}
    assert {name: row[name] for name in of_run} == pytest.approx(of_run, rel=1e-6)
    assert row["split"] == "heldout"
    assert row["perplexity"] == pytest.approx(torch.tensor(row["mlm_loss"], dtype=torch.float64).exp().item())


def test_the_start_of_a_run_is_not_taken_for_the_run(recipe, prepared, saved, capsys, caplog):
    """Its config.yaml names the model that it started from."""
    run = pretrain(saved(BertForPreTraining, steps=2, eval_every=2, warmup=0.0), quiet=True).run_dir
    given = ["pretrain", "--config", str(run / "config.yaml"), "--evaluate", "heldout"]
    start = str(run.parent / "BertForPreTraining")
    said = f"scored is {start}, which this run started from; --model {run} scores the run"
    for options, model, told in ([], start, True), (["--model", str(run)], str(run / "model"), False):
        caplog.clear()
        assert main([*given, *options]) == 0
        assert json.loads(capsys.readouterr().out)["model"] == model
        assert (said in caplog.text) == told
    recipe = run.parent / "recipe.yaml"  # which no run has written
    recipe.write_text((run / "config.yaml").read_text())
    caplog.clear()
    assert main(["pretrain", "--config", str(recipe), "--evaluate", "heldout"]) == 0
    assert "which this run started from" not in caplog.text
    assert main(["pretrain", "--data", str(prepared), "--evaluate", "heldout"]) == 2
    assert "--evaluate scores the model in --model, a run or a model directory, got none" in capsys.readouterr().err
    assert main([*given, "--plan"]) == 2
    assert "expected --plan or --evaluate, got both" in capsys.readouterr().err


def test_a_directory_may_have_the_name_of_a_size(saved, prepared, tmp_path, monkeypatch, capsys):
    """Of the one that --model has where it is not given."""
    shutil.move(saved(BertForPreTraining).model, tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", "--data", str(prepared), "--samples.max-seqlen", "32", "--evaluate", "heldout"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "base"


def test_every_sample_counts_once_whatever_the_batches_are(saved):
    """`eval_tokens`, which bounds a run's evaluations, is no bound here."""
    rows = [score(saved(BertForPreTraining, token_budget=budget, eval_tokens=1), "train") for budget in (32, 160, 4096)]
    assert rows[0] == pytest.approx(rows[1], rel=1e-6)
    assert rows[0] == pytest.approx(rows[2], rel=1e-6)
    assert rows[0]["pairs"] > 22
    other = saved(BertForPreTraining, samples=SampleConfig(max_seqlen=32, seed=1))
    assert score(other, "train")["mlm_loss"] != rows[0]["mlm_loss"]


def test_progress_is_told_after_every_batch_with_its_tokens_and_all(saved):
    for budget, least in ((32, 10), (4096, 1)):
        told = []
        row = score(saved(BertForPreTraining, token_budget=budget), "heldout", lambda *one, to=told: to.append(one))
        assert {whole for _, whole in told} == {row["tokens"]}
        assert sum(tokens for tokens, _ in told) == row["tokens"]
        assert max(tokens for tokens, _ in told) <= budget
        assert len(told) >= least


def test_it_computes_in_the_precision_that_is_asked_for(saved):
    wide, narrow = (score(saved(BertForPreTraining, precision=precision), "heldout") for precision in ("fp32", "bf16"))
    assert narrow["mlm_loss"] != wide["mlm_loss"]
    assert narrow["mlm_loss"] == pytest.approx(wide["mlm_loss"], rel=0.01)


def test_a_run_of_a_gpt(recipe, caplog):
    config = recipe(steps=2, eval_every=2, model="gpt2-2x32x2", samples=CAUSAL)
    result = pretrain(config, quiet=True)
    row = score(dataclasses.replace(config, model=str(result.run_dir / "model")), "heldout")
    assert row["mlm_loss"] == pytest.approx(result.heldout["mlm_loss"], rel=1e-6)
    assert not caplog.records


def test_without_targets_there_is_no_perplexity_and_without_a_number_for_it_it_is_infinite(saved):
    config = saved(BertForPreTraining, samples=SampleConfig(max_seqlen=32, mlm_probability=0.0))
    row = score(config, "heldout")
    assert row["targets"] == 0
    assert "perplexity" not in row
    config = saved(BertForPreTraining)
    model = BertForPreTraining.from_pretrained(config.model)
    with torch.no_grad():
        model.cls.predictions.bias[0] = 1e4
    model.save_pretrained(config.model)
    assert score(config, "heldout")["perplexity"] == float("inf")


def test_what_does_not_fit_is_refused(saved, prepared, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="max_seqlen"):  # the model has 32 positions
        score(saved(BertForPreTraining, samples=SampleConfig(max_seqlen=64)), "heldout")
    damaged = tmp_path / "damaged"
    shutil.copytree(prepared, damaged)
    file = next(damaged.rglob("heldout/*.bin"))
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    config = saved(BertForPreTraining, data=str(damaged))
    with pytest.raises(DataError, match=file.name):
        score(config, "heldout")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="a model is scored by one process, got 2"):
        score(config, "heldout")


def test_other_warnings_of_loading_are_shown(saved, caplog):
    """Of a model whose next-sentence head has no weights, and which has a number that is none."""
    config = saved(BertForMaskedLM)
    model = BertForMaskedLM.from_pretrained(config.model)
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight[31] = float("nan")  # of the longest samples only
    model.save_pretrained(config.model)
    caplog.clear()
    score(config, "heldout")
    assert "its results are meaningless" in caplog.text
    assert "newly initialised" not in caplog.text


def test_without_a_head_for_pairs_there_are_no_pairs(saved, caplog):
    config = saved(BertForMaskedLM)
    row = score(config, "heldout")
    assert "nsp_acc" not in row
    assert row["pairs"] == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{config.model}: has no weights that predict next sentences: scored without sentence pairs, as "
        "--samples.no-nsp does"
    ]
    caplog.clear()
    assert score(saved(BertForMaskedLM, samples=SampleConfig(max_seqlen=32, nsp=False)), "heldout") == row
    assert not caplog.records


def test_the_last_phase_has_the_lengths(saved):
    phases = (Phase(steps=1, max_seqlen=16), Phase(steps=1, max_seqlen=24, max_predictions=2))
    last = SampleConfig(max_seqlen=24, max_predictions=2)
    rows = [score(saved(BertForPreTraining, **how), "heldout") for how in ({"phases": phases}, {"samples": last})]
    assert rows[0] == rows[1]


def test_a_model_without_the_head_is_refused(saved):
    with pytest.raises(CheckpointError, match=r"expected a trained .*, got no weights for cls"):
        score(saved(BertModel), "heldout")


def test_another_vocabulary_is_refused(saved):
    config = saved(BertForPreTraining)
    words = load_tokenizer(config.data).get_vocab()
    lines = sorted(words, key=words.get)
    with open(f"{config.model}/vocab.txt", "w") as file:
        file.write("\n".join([*lines[:5], *reversed(lines[5:])]) + "\n")
    with pytest.raises(InputError, match=r"expected the vocabulary of the data, got one with other words for \d+ of"):
        score(config, "heldout")


def test_a_vocabulary_whose_words_stand_where_the_models_has_unused_places_is_refused(saved):
    """As google's have below 999, where a small vocabulary of the data has all of its words."""
    config = saved(BertForPreTraining)
    words = load_tokenizer(config.data).get_vocab()
    lines = sorted(words, key=words.get)
    path = Path(config.model) / "vocab.txt"
    unused = [f"[unused{n}]" for n in range(len(lines))]
    path.write_text("\n".join([lines[0], *unused[1:], *lines[1:]]) + "\n")
    said = rf"words for {len(lines) - 1} of {len(lines)} ids \(1 is '{re.escape(lines[1])}' in .* and '\[unused1\]' th"
    with pytest.raises(InputError, match=said):
        score(config, "heldout")
    path.write_text("\n".join([*lines[:-1], "[unused0]"]) + "\n")  # which the data gave a word
    assert score(config, "heldout")["targets"]


def test_data_without_held_out_documents(saved, prepared, tmp_path):
    """A text of its own is the split train."""
    documents = [(str(n), ["the cat sees a dog", "one bird eats two fish", "a red fish likes birds"]) for n in range(3)]
    prepare(documents, load_tokenizer(prepared), tmp_path / "own", num_workers=1)
    config = saved(BertForPreTraining)
    config.data = str(tmp_path / "own")
    with pytest.raises(DataError, match="expected documents in split 'heldout', got none: --evaluate train"):
        score(config, "heldout")
    assert score(config, "train")["targets"]


def test_a_checkpoint_of_a_run_is_converted_first(recipe, prepared, tmp_path, capsys):
    """Each message says what to type next."""
    run = pretrain(recipe(steps=2, eval_every=2, warmup=0.0), quiet=True).run_dir
    step = run / "checkpoints" / "step_2"
    score_it = ["pretrain", "--data", str(prepared), "--samples.max-seqlen", "32", "--evaluate", "heldout", "--model"]
    convert = ["convert", str(step / "weights.safetensors"), str(tmp_path / "new")]
    assert main([*score_it, str(step)]) == 2
    assert f"`fastbert {' '.join(convert[:2])} NEW` makes a model directory" in capsys.readouterr().err
    assert main(convert) == 2
    known = ["--config", str(run / "model" / "config.json")]
    assert f"give {' '.join(known)}\n" in capsys.readouterr().err
    shutil.copytree(step, tmp_path / "apart")
    assert main(["convert", str(tmp_path / "apart" / "weights.safetensors"), str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.endswith("found neither: give --config\n")
    assert main([*convert, *known]) == 0
    capsys.readouterr()
    rows = []
    for model in (tmp_path / "new", run):
        assert main([*score_it, str(model)]) == 0
        rows.append(json.loads(capsys.readouterr().out) | {"model": ""})
    assert rows[0] == rows[1]
