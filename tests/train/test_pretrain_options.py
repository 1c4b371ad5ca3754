"""Options from YAML and the command line, and what a run refuses before it writes anything."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from fastbert import BertConfig, BertForPreTraining
from fastbert.cli import pretrain as command
from fastbert.cli.main import main
from fastbert.data.config import SampleConfig
from fastbert.errors import CheckpointError, DataError, FastbertError, InputError
from fastbert.tasks.config import FinetuneConfig
from fastbert.train import pretrain as module
from fastbert.train.config import PretrainConfig
from fastbert.train.phase_options import Phase
from fastbert.train.pretrain import pretrain


def test_yaml_gives_back_every_option(tmp_path):
    config = PretrainConfig(
        data="DATA", out="a: b", steps=7, max_minutes=1.5, betas=(0.8, 0.95), eps=1e-12, dropout=None, precision="bf16",
        samples=SampleConfig(max_seqlen=64, mask_mix=(1.0, 0.0, 0.0), duplication=3, nsp=False),
    )  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert PretrainConfig.from_yaml(path) == config


def test_yaml_a_person_writes(tmp_path):
    """1e-4 without a point is text in YAML 1.1, and an integer is a float where one is meant."""
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-4\nepochs: 3\nbetas: [0.9, 1e-1]\nsamples: {max_seqlen: 64}\n")
    config = PretrainConfig.from_yaml(path)
    assert (config.lr, config.epochs, config.betas, config.samples.max_seqlen) == (1e-4, 3.0, (0.9, 0.1), 64)
    assert config.warmup == PretrainConfig().warmup
    path.write_text("")
    assert PretrainConfig.from_yaml(path) == PretrainConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rate: 1", r"unknown option learning_rate; did you mean lr\?$"),
        ("max_seqlen: 64", r"unknown option max_seqlen; did you mean samples: max_seqlen\?$"),
        ("samples: {max_seq_length: 64}", r"samples: unknown option max_seq_length; did you mean max_seqlen\?$"),
        ("train_steps: 1\nmax_steps: 2", r"unknown option max_steps, train_steps; did you mean steps by max_steps\?$"),
        (
            "task: a\nweight-decay: 1",
            r"unknown option task, weight-decay; did you mean weight_decay by weight-decay\?$",
        ),
        ("task: a", r"unknown option task$"),
        ("stesp: 1", r"config\.yaml: unknown option stesp; did you mean steps\?$"),
        (
            "steps: 10\nlr 1e-4\nseed: 1",
            "got while scanning a simple key in line 2, could not find expected ':' in line 3$",
        ),
        ("samples: {seq_len: 1}", "yaml, samples: unknown option seq_len"),
        ("lr: fast", "lr must be a number, got 'fast'"),
        ("lr: true", "lr must be a number, got True"),
        ("steps: 1.5", "steps must be a whole number or null, got 1.5"),
        ("betas: [0.9]", "betas must be"),
        ("betas: 3", r"betas must be a list \(a number, a number\), got 3"),
        ("nsp: true", "unknown option nsp"),
        ("samples: 3", "samples to be a mapping"),
        ("- a\n- b", "expected a mapping, got list"),
        ("a: [", "expected YAML"),
        ("[a, b]: 1", "unknown option|expected YAML"),
        ("lr: 1.0e-4\nsteps: 3\nlr: 1.0e-3", "the key 'lr' twice.* line 3"),
        ("samples: &below {samples: *below}", "got one that contains itself"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20)), "a0"),
        ("samples: {1: 3, 1.0: 4}", "the key '1.0', the same as '1'.* line 1"),
        ("samples: {yes: 3, true: 4}", "the key 'true', the same as 'yes'.* line 1"),
        ("precision: int4", "precision must be"),
        ("lr: !!python/object/apply:os.system ['true']", "expected YAML"),
    ],
)
def test_yaml_that_does_not_fit_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        PretrainConfig.from_yaml(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (PretrainConfig, {"init": "large"}, "init must be one of bert, small, got 'large'"),
        (PretrainConfig, {"optimizer": "sgd"}, "optimizer must be one of adamw, lamb, got 'sgd'"),
        (Phase, {"steps": 1, "schedule": "step"}, "schedule must be one of linear, poly, constant, none, got 'step'"),
        (FinetuneConfig, {"precision": "fp64"}, "precision must be one of fp32, bf16, fp16, got 'fp64'"),
        (SampleConfig, {"objective": "clm"}, "objective must be one of mlm, causal, got 'clm'"),
    ],
)
def test_a_word_is_one_of_those_that_the_type_lists(kind, options, said):
    with pytest.raises(InputError, match=said):
        kind(**options)


@pytest.mark.parametrize("make", [PretrainConfig, lambda **options: Phase(steps=1, **options)])
def test_more_micro_batches_than_a_step_can_hold(make):
    with pytest.raises(InputError, match=r"accumulate .*must be at most 1000000, got 1000000000000"):
        make(accumulate=10**12)


def test_a_run_is_not_called_as_standard_output(tmp_path, monkeypatch):
    """The command line's own check sees no YAML file, and no call from Python."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="expected a run directory, got -, which is the name of standard output"):
        module._resume_point(PretrainConfig(out="-"), Path("-"), False)


def test_a_missing_yaml(tmp_path):
    with pytest.raises(InputError, match="found none"):
        PretrainConfig.from_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("token_budget", 0), ("accumulate", 0), ("steps", 0), ("epochs", 0.0), ("lr", 0.0), ("lr", float("nan")),
        ("warmup", 1.5), ("num_workers", -1), ("keep", 0), ("clip", 0.0), ("dropout", 1.0), ("schedule", "cosine"),
        ("precision", "int4"), ("max_minutes", -1.0), ("seed", 1 << 64), ("betas", (0.9, 1.0)), ("betas", (0.9,)),
        ("spike_window", 1), ("spike_sigma", -2.0), ("num_workers", 99999),
    ],
)  # fmt: skip
def test_values_that_make_no_sense(option, value):
    with pytest.raises(InputError, match=f"{option}.* got .*{re.escape(str(value))}"):
        PretrainConfig(**{option: value})


@pytest.mark.parametrize("name", ["max_predictions", "duplication"])
def test_counts_of_samples_that_make_no_sense(name):
    """numpy holds no more than 64 bits."""
    for value in (0, 10**20):
        with pytest.raises(InputError, match=rf"{name} must be at least 1 and below 2\^63, or none, got {value}"):
            SampleConfig(**{name: value})


def test_a_seed_of_more_than_64_bits():
    for seed in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(InputError, match="seed must fit in 64 bits"):
            SampleConfig(seed=seed)
    assert PretrainConfig(seed=(1 << 64) - 1).seed == SampleConfig(seed=(1 << 64) - 1).seed


def test_steps_and_epochs_together():
    with pytest.raises(InputError, match="got both"):
        PretrainConfig(steps=1, epochs=1.0)


@pytest.fixture
def called(monkeypatch):
    """What `fastbert pretrain` hands to `pretrain`, which does not run."""
    seen = []

    def record(config):
        seen.append(config)
        raise InputError("seen")

    monkeypatch.setattr(module, "pretrain", record)
    return seen


def test_the_command_line_wins_over_the_file(tmp_path, called, capsys):
    """Also where what it gives is the default, and without losing the file's other sample options."""
    path = tmp_path / "config.yaml"
    path.write_text("lr: 0.5\nsteps: 3\naccumulate: 8\nsamples: {max_seqlen: 64, whole_word: true}\n")
    assert main(["pretrain", "--config", str(path), "--lr", "1e-4", "--samples.max-seqlen", "32"]) == 2
    assert main(["pretrain", f"--config={path}", "--out", "RUN"]) == 2
    first, second = called
    assert (first.lr, first.steps, first.accumulate) == (1e-4, 3, 8)
    assert first.samples == SampleConfig(max_seqlen=32, whole_word=True)
    assert type(first) is PretrainConfig
    assert second == dataclasses.replace(PretrainConfig.from_yaml(path), out="RUN")


def test_an_option_is_not_the_value_of_the_one_before():
    """`--config --out RUN` looked for a file called --out."""
    assert command.defaults(["--config", "--out", "RUN"]) is None
    assert command.defaults(["--out", "RUN", "--config"]) is None


def test_of_two_files_the_last_counts(tmp_path):
    """As of any option that is given twice; the defaults were those of the first."""
    paths = [tmp_path / "first.yaml", tmp_path / "second.yaml"]
    for lr, path in enumerate(paths, 1):
        path.write_text(f"lr: {lr}\n")
    first, second = map(str, paths)
    assert command.defaults(["--config", first, "--config", second]).lr == 2
    assert command.defaults([f"--config={second}", "--config", first]).lr == 1


def test_bad_options_at_the_command_line(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 1")
    for argv, said in (
        (["--config", str(path)], "unknown option learning_rate"),
        (["--steps", "None", "--lr", "None", "--out", "x"], "--lr: expected a number"),
        (["--lr", "1e4", "--steps", "1e4", "--out", "x"], "--steps: expected a whole number"),
        (["--lr", "0", "--steps", "1", "--out", "x"], "lr must be above 0"),
        (["--steps", "1"], "expected the run directory to make"),
    ):
        assert main(["pretrain", *argv]) == 2
        captured = capsys.readouterr()
        assert said in captured.err
        assert captured.err.count("\n") == 1


def refused(config, error: type[FastbertError], said: str, **given) -> None:
    from pathlib import Path

    before = {str(p) for p in Path(config.out).parent.rglob("*")} if config.out else set()
    with pytest.raises(error, match=said) as caught:
        pretrain(config, quiet=True, **given)
    assert "\n" not in str(caught.value)
    if config.out:
        assert {str(p) for p in Path(config.out).parent.rglob("*")} == before, "something was written"


def test_no_place_to_write(recipe, tmp_path):
    refused(recipe(out=""), InputError, "expected the run directory to make")
    (tmp_path / "file").write_text("")
    refused(recipe(out=str(tmp_path / "file")), InputError, "expected a directory for the run, got a file")
    refused(recipe(out=str(tmp_path / "caf\udce9")), InputError, "expected a run directory with a name in UTF-8")


def test_samples_longer_than_the_positions(recipe):
    refused(recipe(samples=SampleConfig(max_seqlen=64)), InputError, "max_seqlen 64 .* max_position_embeddings 48")


def test_positions_that_a_models_weights_do_not_have(recipe, tmp_path):
    """`position_embedding_type` is for new weights: with a directory it was passed over, and the run was another."""
    with pytest.raises(InputError, match=r"sinusoidal is only for new weights: .* was trained with absolute positions"):
        pretrain(recipe(position_embedding_type="sinusoidal"), quiet=True)
    assert not (tmp_path / "run").exists()
    made = pretrain(recipe(model="1x32x2", position_embedding_type="sinusoidal", steps=1, warmup=0.0), quiet=True)
    for asked in ("sinusoidal", "absolute"):  # the second is what nobody asked for
        options = {"model": str(made.model_dir), "position_embedding_type": asked, "out": str(tmp_path / asked)}
        more = pretrain(recipe(**options, steps=1, warmup=0.0), quiet=True)
        assert BertConfig.from_pretrained(more.model_dir).position_embedding_type == "sinusoidal"


@pytest.mark.parametrize("init", ["bert", "small"])
def test_whose_weights_a_run_begins_with_is_told(recipe, tiny_model, capsys, init):
    """A recipe for small models goes with a directory too; that its `init` does nothing there is said."""
    pretrain(recipe(init=init, steps=1))
    said = capsys.readouterr().out
    assert f"begins with the weights of {tiny_model}" in said
    assert ("init small is for new ones, and changes none of them" in said) is (init == "small")
    pretrain(recipe(init=init, steps=2, resume="auto"))
    assert "begins with" not in capsys.readouterr().out
    pretrain(recipe(model="1x64", init=init, steps=1, out=recipe().out + "-new"))
    said = capsys.readouterr().out
    assert f"begins with new weights, init {init}" in said
    advice = "with init small, lr 1e-3 and warmup 0.1 a model of this size learns within minutes"
    assert (advice in said) is (init == "bert")


def test_a_sample_longer_than_the_budget(recipe):
    refused(recipe(token_budget=31), InputError, "token_budget must hold a sample of max_seqlen 32 tokens, got 31")


def test_a_vocabulary_larger_than_the_models(recipe):
    torch.manual_seed(0)
    small = BertConfig.from_name("1x32x2", vocab_size=20, max_position_embeddings=48)
    refused(recipe(), InputError, "vocab_size is 20", model=BertForPreTraining(small))


def test_no_data(recipe, tmp_path):
    refused(recipe(data=""), InputError, "needs a data directory")
    refused(recipe(data=str(tmp_path / "none")), DataError, "none")


def test_no_such_model(recipe, tmp_path):
    for name in (str(tmp_path / "none"), "roberta-base"):
        said = f"model '{name}' is not a directory to go on from, and a model size must be one of"
        refused(recipe(model=name), InputError, re.escape(said))


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-large-cased", "uncased_L-12_H-768_A-12"])
def test_published_weights_that_are_not_there(recipe, name):
    """Each is also the name of a size: from another working directory, a run began with new weights."""
    refused(recipe(model=name), InputError, f"'{name}' names published weights, .* expected their directory; models")


def test_a_checkpoint_that_is_none(recipe, tmp_path):
    refused(recipe(resume=str(tmp_path / "none")), CheckpointError, "none")


def test_rates_the_optimiser_refuses(recipe):
    config = recipe()
    config.betas = (0.9, 1.0)  # behind the back of its own check
    refused(config, InputError, "betas")


@pytest.mark.parametrize("name", ["lr", "weight_decay", "eps", "epochs", "cache_gb", "max_minutes"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300, 1.7e308])
def test_rates_that_are_no_numbers(recipe, name, value):
    """Or become none, in float32 or as a number of bytes or batches."""
    with pytest.raises(InputError, match=re.escape(f"{name} must be") + ".* " + re.escape(f"1e+12, got {value}")):
        recipe(**{name: value})


@pytest.mark.parametrize("eps", [0.0, 1e-300])
def test_an_epsilon_that_is_0_in_float32(recipe, eps):
    """A token that no batch has had has neither gradient nor moments, and 0/0 made its weights NaN."""
    with pytest.raises(InputError, match=re.escape(f"eps must be between 1e-37 and 1e+12, got {eps}")):
        recipe(eps=eps)
    rows = pretrain(recipe(eps=1e-37, steps=3, log_every=1), quiet=True).history
    assert all(math.isfinite(row["loss"]) for row in rows if row["kind"] == "train")


def test_shards_that_were_altered_are_found_before_the_first_step(recipe, prepared, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    shard = next((data / "train").glob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(content)
    refused(recipe(data=str(data)), DataError, f"{shard.name}: expected SHA-256")
    assert pretrain(recipe(data=str(data), verify_data=False, steps=1), quiet=True).steps == 1


def test_documents_that_make_no_sample(recipe, prepared):
    from fastbert.data.pretraining import PretrainingData
    from fastbert.data.shards import ShardSet

    class Empty(PretrainingData):
        def lengths(self, epoch):
            return super().lengths(epoch)[:0]

    data = Empty(ShardSet.open(prepared), SampleConfig(max_seqlen=32))
    refused(recipe(), InputError, "make no sample", data=data)


def test_without_a_length_it_trains_as_long_as_the_paper(recipe, monkeypatch):
    class Stop(Exception):
        pass

    def loop(config, *_):
        raise Stop(config.epochs)

    monkeypatch.setattr(module, "PretrainLoop", loop)
    with pytest.raises(Stop, match=r"^40\.0$"):
        pretrain(recipe(steps=None), quiet=True)


def test_a_model_of_other_words_is_told(recipe, tiny_model, prepared, tmp_path, caplog):
    words = (prepared / "vocab.txt").read_text().splitlines()
    unused = [word if place < 20 else f"[unused{place}]" for place, word in enumerate(words)]
    turned = [*words[:20], *words[21:], words[20]]
    for name, vocabulary in {"same": words, "unused": unused, "turned": turned}.items():
        shutil.copytree(tiny_model, tmp_path / name)
        (tmp_path / name / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        pretrain(recipe(model=str(tmp_path / name), steps=1, out=str(tmp_path / f"run {name}")))
    (said,) = [record.getMessage() for record in caplog.records if "other words" in record.getMessage()]
    assert said.startswith(f"{tmp_path / 'turned'}: expected the vocabulary of the data")
    assert f"other words for {len(words) - 20} of {len(words)} ids (20 is {words[20]!r} in {prepared} and" in said
    assert f"and {words[21]!r} there" in said
