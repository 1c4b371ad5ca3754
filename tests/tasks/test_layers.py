"""`--freeze` and `--layer-decay`: what is not trained, and what is trained more slowly."""

from __future__ import annotations

import contextlib
import importlib.util

import finetune_runs as runs
import pytest
import rank_runs
import tiny_bert
import tiny_gpt
import torch
import transformers
from tiny_bert import rows_of

import fastbert
from fastbert.cli.main import main
from fastbert.errors import InputError
from fastbert.models.gpt_heads import GPTForSequenceClassification
from fastbert.tasks import registry
from fastbert.tasks.config import SearchConfig
from fastbert.tasks.finetune import Callbacks, finetune
from fastbert.tasks.fits import check_model
from fastbert.tasks.layers import freeze, lr_scales
from fastbert.tasks.stepper import Stepper
from fastbert.train import checkpoint, distributed

DEEPSPEED = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed (pip install 'fastbert[deepspeed]')",
)
LAYERS = [f"bert.encoder.layer.{number}." for number in range(4)]
BELOW = ["bert.embeddings.", *LAYERS]


def is_below(name: str, count: int) -> bool:
    """Whether a parameter is of the embeddings or of the first so many layers."""
    return name.startswith(tuple(BELOW[: count + 1]))


def stepper_of(directory, **options) -> Stepper:
    task = registry.get("sst2")
    torch.manual_seed(0)
    model = task.model(directory)
    for module in model.modules():  # transformers' draws other elements
        if hasattr(module, "p"):
            module.p = 0.0
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    examples = task.encode(rows_of(32, 1), fastbert.load_tokenizer(directory), 24)
    return Stepper(model, task, examples, runs.config(batch_size=8, **options), 10)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_frozen_layers_keep_their_bits_and_get_no_gradients(directory, tmp_path, monkeypatch, count):
    frozen, step = [], Stepper.step

    def noted(stepper, indices):
        record = step(stepper, indices)
        frozen.append([name for name, p in stepper.model.named_parameters() if not p.requires_grad])
        return record

    monkeypatch.setattr(Stepper, "step", noted)
    before = registry.get("sst2").model(directory).state_dict()
    result, model = runs.run(directory, tmp_path / "run", freeze=count, epochs=1)
    assert result.history[0]["train_loss"] > 0
    for name, value in model.state_dict().items():
        head = name.startswith("classifier")
        assert head or torch.equal(value, before[name]) == is_below(name, count), name
    assert frozen == [[name for name, _ in model.named_parameters() if is_below(name, count)]] * 8


@pytest.mark.parametrize("end", ["its end", "an error", "a recipe that is refused"])
def test_what_a_training_changes_of_a_model_ends_with_it(directory, end):
    """So that the next one of the same model trains all of it, but for what its user froze."""
    task, tokenizer = registry.get("sst2"), fastbert.load_tokenizer(directory)
    model, rows = task.model(directory), rows_of(16, 1)
    model.bert.pooler.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}

    def on_step(_total):
        assert model.is_gradient_checkpointing
        if end == "an error":
            raise KeyError

    options = {"cuda_graph": "on", "accumulate": 2} if end == "a recipe that is refused" else {}
    config = runs.config(epochs=1, freeze=2, activation_checkpointing=True, **options)
    with contextlib.nullcontext() if end == "its end" else pytest.raises((KeyError, InputError)):
        finetune(task, model, tokenizer, rows, rows, config, callbacks=Callbacks(on_step=on_step))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert not model.is_gradient_checkpointing
    model.gradient_checkpointing_enable()
    finetune(task, model, tokenizer, rows, rows, runs.config(epochs=1, activation_checkpointing=True))
    assert model.is_gradient_checkpointing, "the user's own"


@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True}, {"accumulate": 2}, {"precision": "bf16"}])
def test_nothing_is_recorded_for_the_backward_pass_of_what_is_frozen(directory, options):
    stepper, recorded = stepper_of(directory, freeze=2, **options), []

    def note(_module, _given, out):
        recorded.append((out if isinstance(out, torch.Tensor) else out[0]).requires_grad)

    for module in (stepper.model.bert.embeddings, *stepper.model.bert.encoder.layer):
        module.register_forward_hook(note)
    stepper.step(range(8))
    assert recorded[:5] == [False, False, False, True, True]
    state = stepper.engine.optimizer.state
    for name, parameter in stepper.model.named_parameters():
        assert (parameter in state) == (not is_below(name, 2)), name


def gradients_of_a_step(stepper: Stepper) -> dict[str, torch.Tensor]:
    """Makes a step; returns its gradients by the names of their parameters."""
    gradients = {}
    for name, parameter in stepper.model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradients.update({name: p.grad.clone()}))
    stepper.engine.gradients_in_place = False
    stepper.step(range(8))
    return gradients


def test_the_trained_layers_get_the_gradients_that_they_get_with_all(directory):
    everything, upper = (gradients_of_a_step(stepper_of(directory, **options)) for options in ({}, {"freeze": 2}))
    assert set(upper) == {name for name in everything if not is_below(name, 2)}
    for name, gradient in upper.items():
        torch.testing.assert_close(gradient, everything[name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_factors_by_hand(directory):
    """Four layers and a decay of a half: the top one has 1, the first 1/8, and the embeddings below it 1/16."""
    model = registry.get("sst2").model(directory)
    scales, expected = lr_scales(model, 0.5), {}
    for name, parameter in model.named_parameters():
        depth = next((at for at, start in enumerate(BELOW) if name.startswith(start)), None)
        expected[name] = {None: None, 0: 1 / 16, 1: 1 / 8, 2: 1 / 4, 3: 1 / 2, 4: 1}[depth]
        assert scales.get(parameter) == expected[name], name
    assert expected["bert.pooler.dense.weight"] is expected["classifier.bias"] is None
    assert expected["bert.embeddings.LayerNorm.bias"] == 1 / 16


def test_the_first_step_by_hand(directory):
    """With bias correction the first step of Adam is lr g / (|g| + eps), and decay takes lr 0.01 p from weights."""
    stepper = stepper_of(directory, layer_decay=0.5, warmup=0.0, lr=1e-3, clip=1e9)
    before = {name: value.clone() for name, value in stepper.model.state_dict().items()}
    gradients = gradients_of_a_step(stepper)
    depths = dict.fromkeys(before, 4) | {n: d for d, start in enumerate(BELOW) for n in before if n.startswith(start)}
    assert set(gradients) == set(dict(stepper.model.named_parameters()))
    for name, g in gradients.items():
        rate = 1e-3 * 0.5 ** (4 - depths[name])
        decay = 0.0 if name.endswith("bias") or "LayerNorm" in name else 0.01
        expected = before[name] - rate * (g / (g.abs() + 1e-6) + decay * before[name])
        torch.testing.assert_close(stepper.model.state_dict()[name], expected, rtol=1e-5, atol=1e-7, msg=name)


def test_steps_are_those_of_transformers_and_torch(directory):
    """Three steps, with groups as its users write them; and with the first layer frozen too."""
    stepper = stepper_of(directory, layer_decay=0.9, freeze=1, clip=1e9)
    theirs = transformers.BertForSequenceClassification.from_pretrained(directory)
    theirs.load_state_dict(stepper.model.state_dict())
    theirs.eval()  # without dropout
    groups = []
    for name, parameter in theirs.named_parameters():
        if is_below(name, 1):
            parameter.requires_grad_(False)
            continue
        depth = next((number for number, start in enumerate(LAYERS) if name.startswith(start)), 3)
        still = name.endswith("bias") or "LayerNorm" in name
        groups.append({"params": [parameter], "weight_decay": 0.0 if still else 0.01, "factor": 0.9 ** (3 - depth)})
    optimizer = torch.optim.AdamW(groups, lr=1e-3, eps=1e-6)
    for start in (0, 8, 16):
        indices = range(start, start + 8)
        record = stepper.step(indices)
        for group in optimizer.param_groups:
            group["lr"] = record["lr"] * group["factor"]
        examples = [stepper.examples[index] for index in indices]
        width = max(e.num_tokens for e in examples)
        padded = torch.tensor([[*e.input_ids, *[0] * (width - e.num_tokens)] for e in examples])
        labels = torch.tensor([e.label for e in examples])
        loss = theirs(padded, attention_mask=(padded != 0).long(), labels=labels).loss
        assert record["loss"] == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = theirs.state_dict()
    for name, value in stepper.model.state_dict().items():
        if not name.endswith("key.bias"):  # its exact gradient is zero, and Adam makes steps of rounding
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("kind", ["openai-gpt", "gpt2"])
def test_of_a_gpt(tmp_path, kind):
    tiny_gpt.theirs(kind).save_pretrained(tmp_path)
    model = GPTForSequenceClassification.from_pretrained(tmp_path)
    scales = {name: lr_scales(model, 0.5).get(p) for name, p in model.named_parameters()}
    tables = {"gpt2": ("wte", "wpe"), "openai-gpt": ("tokens_embed", "positions_embed")}[kind]
    assert {scales[f"transformer.{table}.weight"] for table in tables} == {0.25}
    assert {value for name, value in scales.items() if ".h.0." in name} == {0.5}
    assert {value for name, value in scales.items() if ".h.1." in name} == {1.0}
    assert scales["classifier.weight"] is None
    freeze(model, 1)
    still = {name for name, p in model.named_parameters() if not p.requires_grad}
    below = ("transformer.h.0.", *(f"transformer.{table}." for table in tables))
    assert still == {name for name in scales if name.startswith(below) or name.startswith("lm_head")}


@pytest.mark.parametrize("step", [3, 8, 13])
def test_a_training_goes_on_to_the_same_bits(directory, tmp_path, step):
    options = {"freeze": 1, "layer_decay": 0.8, "eval_every": 5}
    runs.run(directory, tmp_path / "whole", **options)
    first, _ = runs.run(directory, tmp_path / "run", callbacks=runs.stop_after(step), **options)
    saved = checkpoint.load(first.paths[0])[0]
    moments = {name.removeprefix("optimizer.exp_avg.") for name in saved if name.startswith("optimizer.exp_avg.")}
    assert not [name for name in moments if is_below(name, 1)]
    assert [name for name in moments if name.startswith(LAYERS[1])]
    runs.run(directory, tmp_path / "run", resume="auto", **options)
    runs.assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_search_has_them_in_every_training(directory, tmp_path):
    configs = SearchConfig(restarts=2).trials(runs.config(epochs=1, freeze=2, layer_decay=0.5))
    before = registry.get("sst2").model(directory).state_dict()
    _, model = runs.several(directory, tmp_path / "run", configs=configs)
    for name, value in model.state_dict().items():
        assert name.startswith("classifier") or torch.equal(value, before[name]) == is_below(name, 2), name


def _trained(directory, out, options) -> list:
    with distributed.joined(always=True):
        result, model = runs.run(directory, out, freeze=1, layer_decay=0.8, epochs=1, **options)
    return [result.history[0]["train_loss"], {name: value.numpy() for name, value in model.state_dict().items()}]


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"zero": 2}, marks=[DEEPSPEED, pytest.mark.slow])], ids=["ddp", "zero2"]
)
def test_two_processes_come_to_what_one_does(tmp_path, options):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    directory = tiny_bert.save(tmp_path / "model", "BertModel", **rates)
    expected = _trained(directory, tmp_path / "one", {})
    for loss, weights in rank_runs.launch(_trained, 2, tmp_path, directory, tmp_path / "two", options):
        assert loss == pytest.approx(expected[0], rel=1e-4)
        for name, value in expected[1].items():
            torch.testing.assert_close(torch.tensor(weights[name]), torch.tensor(value), rtol=1e-3, atol=1e-4, msg=name)
            assert not is_below(name, 1) or (weights[name] == value).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--freeze", 5], "freeze must be at most the model's number of layers, 4, got 5"),
        (["--freeze", -1], "freeze must be at least 0 layers, got -1"),
        (["--layer-decay", 0], "layer_decay must be above 0 and at most 1, got 0.0"),
        (
            ["--freeze", 3, "--layer-decay", 0.9],
            "layer_decay would change nothing: of the model's 4 layers, freeze 3 leaves the top one at most, which has",
        ),
        (["--layer-decay", 1.5], "layer_decay must be above 0 and at most 1, got 1.5"),
        (
            ["--features", "last", "--freeze", 2],
            "--freeze 2 would change nothing: --features trains a BiLSTM, and nothing of the model",
        ),
        (
            ["--features", "last", "--layer-decay", 0.9],
            "--layer-decay 0.9 would change nothing: --features trains a BiLSTM, and nothing of the model",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_rows_are_read(directory, tmp_path, capsys, options, said):
    given = ["--model", directory, "--train", "no.tsv", "--dev", "no.tsv", "--out", tmp_path / "run"]
    assert main(list(map(str, ["finetune", "sst2", *given, "--max-seqlen", 24, *options]))) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_still_changes_something_is_taken():
    check_model(registry.get("sst2"), "bert", 4, runs.config(freeze=2, layer_decay=0.9))
    check_model(registry.get("sst2"), "bert", 4, runs.config(freeze=4, layer_decay=None))
    assert runs.config(layer_decay=1.0).layer_decay == 1, "as in a search that begins without decay"


def test_in_python_too_a_model_has_the_layers_that_are_named(directory):
    with pytest.raises(InputError, match="freeze must be at most the model's number of layers, 4, got 5"):
        freeze(registry.get("sst2").model(directory), 5)
    with pytest.raises(InputError, match="freeze needs a model of layers, got a Linear"):
        freeze(torch.nn.Linear(2, 2), 0)
    with pytest.raises(InputError, match="layer_decay needs a model of layers, got a Linear"):
        lr_scales(torch.nn.Linear(2, 2), 0.5)
