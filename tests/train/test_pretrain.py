"""What a pre-training run computes and leaves behind."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pretraining_runs import stop_after

from fastbert import BertForPreTraining, rng
from fastbert.data.config import SampleConfig
from fastbert.data.loader import make_loader
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import InputError
from fastbert.train import checkpoint
from fastbert.train.batch_source import BatchSource
from fastbert.train.distributed import World
from fastbert.train.evaluation import evaluate
from fastbert.train.loop import PretrainLoop
from fastbert.train.metrics import MetricsLog
from fastbert.train.model_and_data import build_model
from fastbert.train.pretrain import pretrain
from fastbert.train.run_clock import RunClock


def weights(run_dir) -> dict:
    newest, skipped = checkpoint.latest_valid(run_dir / "checkpoints")
    assert not skipped
    return {name: value for name, value in checkpoint.load(newest)[0].items() if name.startswith("model.")}


def test_run_directory_and_lines(recipe, capsys, pictures):
    heard = []
    result = pretrain(recipe(eval_every=2, save_every=2), callbacks=[heard.append])
    run = result.run_dir
    assert {p.name for p in run.iterdir()} == {
        "config.yaml", "metrics.jsonl", "tensorboard", "checkpoints", "model", "loss.png", "report.html", "steps.jsonl",
    }  # fmt: skip
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"step_2", "step_4"}
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert all(path.exists() for path in result.paths)
    assert (result.steps, result.interrupted) == (4, None)

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows == result.history == heard
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if row["kind"] == "heldout"] == [2, 4]
    # Warm-up over 0.4 steps, then linearly to zero at step 4; a step has the rate of the steps done before it.
    assert [row["lr"] for row in rows if row["kind"] == "train"] == pytest.approx(
        [0.0] + [2e-3 * (1 - done / 4) / 0.9 for done in (1, 2, 3)]
    )
    best = min((row for row in rows if row["kind"] == "heldout"), key=lambda row: row["mlm_loss"] + row["nsp_loss"])
    assert result.heldout["step"] == best["step"]
    out = capsys.readouterr().out
    assert ["step", "loss", "mlm_acc", "nsp_acc", "grad_norm", "lr", "tok/s", "MFU", "mem"] in [
        line.split() for line in out.splitlines()
    ]
    assert out.count("held out at step") == 2


def test_tensorboard_holds_the_rows(recipe):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = pretrain(recipe(steps=2), quiet=True)
    events = EventAccumulator(str(result.run_dir / "tensorboard")).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [
        (row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in result.history if row["kind"] == "train"
    ]


def test_logged_figures_are_those_of_the_model(recipe, prepared, tiny_model):
    """The first step's loss and norm, worked out again from the model and the first batch."""
    result = pretrain(recipe(steps=1, warmup=0.0), quiet=True)
    data = PretrainingData(ShardSet.open(prepared), SampleConfig(max_seqlen=32))
    batch = next(make_loader(data, 160))[2]
    model = BertForPreTraining.from_pretrained(tiny_model).eval()
    out = model(batch)
    (out.mlm_loss + out.nsp_loss).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).double().norm()
    row = next(row for row in result.history if row["kind"] == "train")
    assert row["loss"] == pytest.approx(float((out.mlm_loss + out.nsp_loss).detach()), rel=1e-6)
    assert row["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert row["mlm_acc"] == pytest.approx(
        float((out.mlm_logits.argmax(-1) == batch.mlm_labels).float().mean()), abs=1e-9
    )


def test_the_best_model_is_saved_and_scores_what_was_said(recipe, prepared):
    result = pretrain(recipe(steps=6, eval_every=2, warmup=0.0), quiet=True)
    model = BertForPreTraining.from_pretrained(result.model_dir)
    heldout = PretrainingData(ShardSet.open(prepared, "heldout"), SampleConfig(max_seqlen=32))
    again = evaluate(model, heldout, max_tokens=400)
    assert again["mlm_loss"] == pytest.approx(result.heldout["mlm_loss"], rel=1e-6)
    assert again["nsp_loss"] == pytest.approx(result.heldout["nsp_loss"], rel=1e-6)
    assert (result.model_dir / "vocab.txt").read_bytes() == (prepared / "vocab.txt").read_bytes()


def test_the_best_is_by_both_losses_and_its_checkpoint_stays(recipe, monkeypatch):
    """The masked-LM loss falls to the end, the sum has its least at step 2; a loss that is no number is never best."""
    found = iter([(math.nan, 1.0), (2.0, 1.0), (1.9, 1.2), (1.8, 1.4)])
    names = "mlm_acc unigram_entropy most_frequent_acc nsp_acc targets pairs tokens"
    rest = dict.fromkeys(names.split(), 1)

    def scripted(*_args, **_options):
        mlm_loss, nsp_loss = next(found)
        return {"mlm_loss": mlm_loss, "nsp_loss": nsp_loss, **rest}

    monkeypatch.setattr("fastbert.train.loop.evaluate", scripted)
    result = pretrain(recipe(eval_every=1, save_every=1, keep=1, warmup=0.0), quiet=True)
    assert (result.heldout["step"], result.heldout["mlm_loss"]) == (2, 2.0)
    points = result.run_dir / "checkpoints"
    assert {path.name for path in points.iterdir()} == {"step_2", "step_4"}
    written = BertForPreTraining.from_pretrained(result.model_dir)
    saved = checkpoint.load(points / "step_2")[0]
    assert all(torch.equal(value, saved[f"model.{name}"]) for name, value in written.named_parameters())


@pytest.mark.parametrize("epochs", [1, 2])
def test_evaluation_against_plain_sums(recipe, prepared, tiny_model, epochs):
    """Every figure of an evaluation, sample by sample in padded form and with Python's own counting."""
    heldout = PretrainingData(ShardSet.open(prepared, "heldout"), SampleConfig(max_seqlen=32))
    model = BertForPreTraining.from_pretrained(tiny_model).eval()
    got = evaluate(model, heldout, epochs=epochs)
    samples = [(epoch, sample) for epoch in range(epochs) for sample in range(len(heldout.lengths(epoch)))]
    nll, pair_nll, right, pair_right, labels = 0.0, 0.0, 0, 0, []
    with torch.no_grad():
        for epoch, sample in samples:
            batch = heldout.collate(epoch, [sample])
            out = model.bert(input_ids=batch.input_ids[None], token_type_ids=batch.token_type_ids[None])
            logits = model.cls.predictions(out.last_hidden_state[0])
            pair_logits = model.cls.seq_relationship(out.pooler_output)
            chosen = logits[batch.mlm_positions].log_softmax(-1)
            nll -= float(chosen.gather(1, batch.mlm_labels[:, None]).sum())
            right += int((chosen.argmax(-1) == batch.mlm_labels).sum())
            labels += batch.mlm_labels.tolist()
            pair_nll -= float(pair_logits.log_softmax(-1)[0, batch.nsp_labels[0]])
            pair_right += int(pair_logits.argmax(-1)[0] == batch.nsp_labels[0])
    counts, pairs = Counter(labels), len(samples)
    assert got["mlm_loss"] == pytest.approx(nll / len(labels), rel=1e-5)
    assert got["mlm_acc"] == pytest.approx(right / len(labels))
    assert got["nsp_loss"] == pytest.approx(pair_nll / pairs, rel=1e-5)
    assert got["nsp_acc"] == pytest.approx(pair_right / pairs)
    assert got["unigram_entropy"] == pytest.approx(
        -sum(n / len(labels) * math.log(n / len(labels)) for n in counts.values())
    )
    assert got["most_frequent_acc"] == pytest.approx(max(counts.values()) / len(labels))
    assert (got["targets"], got["pairs"]) == (len(labels), pairs)
    # Nothing is dropped, and a model that was being trained goes on so.
    rates = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    dropping = BertForPreTraining.from_pretrained(tiny_model, **rates).train()
    assert evaluate(dropping, heldout, epochs=epochs) == got
    assert dropping.training
    # So many tokens as the first batch has, and not one more.
    few = int(heldout.lengths(0)[heldout.batches(0, 64)[0]].sum())
    assert evaluate(model, heldout, max_tokens=few, token_budget=64, epochs=epochs)["tokens"] == few


class _SameSamples(PretrainingData):
    """Four samples a batch, or one and three, whatever the budget: a step of either then holds the same samples."""

    parts = (4,)

    def _make_batches(self, epoch, token_budget, shuffle):
        order = iter([i for ids in super()._make_batches(epoch, token_budget, shuffle) for i in ids])
        return [list(islice(order, size)) for _ in range(len(self.lengths(epoch)) // 4) for size in self.parts]


@pytest.mark.parametrize("nsp", [True, False])
def test_accumulated_gradients_are_those_of_one_batch(recipe, prepared, tmp_path, nsp):
    samples = SampleConfig(max_seqlen=32, nsp=nsp)
    found = []
    for accumulate in (1, 2):
        data = _SameSamples(ShardSet.open(prepared), samples)
        data.parts = {1: (4,), 2: (1, 3)}[accumulate]
        # A rate that lets 4 steps move the weights by 0.01; Adam's division by tiny second moments is kept out by eps.
        config = recipe(
            out=str(tmp_path / str(accumulate)), accumulate=accumulate, token_budget=160 // accumulate,
            samples=samples, eps=1e-3, schedule="constant", warmup=0.0, lr=1e-3,
        )  # fmt: skip
        result = pretrain(config, data=data, quiet=True)
        found.append((weights(result.run_dir), [r for r in result.history if r["kind"] == "train"]))
    (one, rows_one), (two, rows_two) = found
    for name, value in one.items():
        assert float((value - two[name]).abs().max()) < 1e-6, name
    for a, b in zip(rows_one, rows_two, strict=True):
        for figure in ("loss", "mlm_loss", "grad_norm"):
            assert a[figure] == pytest.approx(b[figure], rel=1e-5), figure
        assert a["mlm_acc"] == b["mlm_acc"]


def test_a_small_start(recipe, prepared):
    """What `fastbert.train.initialisation` says of new weights, by hand."""
    config, data = recipe(model="2x32x2", init="small"), PretrainingData(ShardSet.open(prepared), recipe().samples)
    model, std = build_model(config, data).requires_grad_(False), 0.8 / 32**0.5
    for layer in model.bert.encoder.layer:
        assert torch.equal(layer.attention.self.key.weight, layer.attention.self.query.weight)
        assert float(layer.attention.self.query.weight.std()) == pytest.approx(std, rel=0.1)
        for branch in (layer.attention.output, layer.output):
            assert float(branch.dense.weight.std()) == pytest.approx(0.2 * std, rel=0.1)
    positions = model.bert.embeddings.position_embeddings.weight
    assert float(positions.square().mean().sqrt()) == pytest.approx(std, rel=1e-3)
    torch.testing.assert_close(positions[0], torch.tensor([0.0, std * 2**0.5]).repeat(16))
    found = Counter(int(token) for shard in data.shards.tokens for token in shard)
    vocabulary = data.shards.manifest.vocab_size
    shares = [(found[token] + 1) / (found.total() + vocabulary) for token in range(vocabulary)]
    torch.testing.assert_close(model.cls.predictions.bias.exp(), torch.tensor(shares))


def test_bf16_autocast_keeps_float32_weights_and_learns_the_same(recipe, tmp_path):
    rows = {}
    for precision in ("fp32", "bf16"):
        config = recipe(out=str(tmp_path / precision), precision=precision, steps=12, warmup=0.0)
        result = pretrain(config, quiet=True)
        assert {value.dtype for value in weights(result.run_dir).values()} == {torch.float32}
        rows[precision] = [row["loss"] for row in result.history if row["kind"] == "train"]
    # bfloat16 has 8 bits: losses agree to about 1 %, and are not the same ones.
    assert rows["bf16"] == pytest.approx(rows["fp32"], rel=0.02)
    assert rows["bf16"] != rows["fp32"]


def test_a_run_in_bf16_is_evaluated_in_bf16(recipe, prepared):
    result = pretrain(recipe(precision="bf16", steps=1, eval_every=1), quiet=True)
    heldout = PretrainingData(ShardSet.open(prepared, "heldout"), SampleConfig(max_seqlen=32))
    model = BertForPreTraining.from_pretrained(result.model_dir)
    with torch.autocast("cpu", torch.bfloat16):
        expected = evaluate(model, heldout, max_tokens=400)
    assert {name: result.heldout[name] for name in expected} == expected
    assert evaluate(model, heldout, max_tokens=400)["mlm_loss"] != expected["mlm_loss"]


def test_recomputed_activations_give_the_same_bits(prepared, tiny_model):
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    data = PretrainingData(ShardSet.open(prepared), SampleConfig(max_seqlen=32))
    batch = next(make_loader(data, 320))[2]
    gradients = []
    for recompute in (False, True):
        model = BertForPreTraining.from_pretrained(tiny_model, **rates).train()
        if recompute:
            model.gradient_checkpointing_enable()
        with rng.use(rng.DropoutKey(3, 7)):
            out = model(batch)
        (out.mlm_loss + out.nsp_loss).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    without, recomputed = gradients
    assert all(torch.equal(without[name], recomputed[name]) for name in without)
    with rng.use(rng.DropoutKey(3, 8)):
        other = model(batch)
    assert not torch.equal(other.mlm_logits, out.mlm_logits), "dropout is on"


def test_activation_checkpointing_option_changes_nothing(recipe, tmp_path):
    found = []
    for flag in (False, True):
        config = recipe(out=str(tmp_path / str(flag)), steps=2, dropout=0.1, activation_checkpointing=flag)
        found.append(weights(pretrain(config, quiet=True).run_dir))
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("epochs", [2, 1.5])
def test_epochs_are_passes(recipe, prepared, epochs):
    data = PretrainingData(ShardSet.open(prepared), SampleConfig(max_seqlen=32))
    batches = [len(data.batches(epoch, 320)) for epoch in (0, 1)]
    result = pretrain(recipe(steps=None, epochs=epochs, token_budget=320, log_every=100), quiet=True)
    assert result.steps == round(batches[0] + (epochs - 1) * batches[1])
    if epochs == 2:
        assert result.tokens == sum(int(data.lengths(epoch).sum()) for epoch in (0, 1))


def test_ranks_share_the_steps_of_an_epoch(recipe, prepared):
    data = PretrainingData(ShardSet.open(prepared), SampleConfig(max_seqlen=32))
    config = recipe(steps=None, epochs=1, token_budget=64, accumulate=2)
    batches = len(data.batches(0, 64))
    for size in (1, 3):
        source = BatchSource(config, data, World(rank=size - 1, size=size), fixed_shape=False)
        assert source.steps_of_run() == round(batches / (2 * size))


def test_the_clock_can_bound_a_run(recipe, monkeypatch):
    """By a clock that goes on by an eighth of a second with every step, so that no machine is too slow for it."""
    now = [100.0]

    def tick(row) -> None:
        now[0] += 0.125 * (row["kind"] == "train")

    clock = SimpleNamespace(monotonic=lambda: now[0], process_time=time.process_time)
    monkeypatch.setattr("fastbert.train.run_clock.time", clock)
    opened = MetricsLog.__enter__

    def open_slowly(log: MetricsLog) -> MetricsLog:
        """As where TensorBoard finds a TensorFlow to import, which is no training."""
        now[0] += 100.0
        return opened(log)

    monkeypatch.setattr(MetricsLog, "__enter__", open_slowly)
    result = pretrain(recipe(steps=None, max_minutes=0.02, warmup=0.0), quiet=True, callbacks=[tick])
    assert (result.steps, result.seconds) == (10, 1.25)
    rates = [row["lr"] for row in result.history if row["kind"] == "train"]
    shares = [1 - done * 0.125 / 1.2 for done in range(10)]
    assert rates == pytest.approx([rates[0] * share for share in shares]), "the schedule follows the clock"


@pytest.mark.parametrize(
    ("steps", "seconds", "progress"), [(100, 2.4, 0.02), (100, 6.0, 0.1), (100, 90.0, 1.0), (None, 2.4, 0.04)]
)
def test_the_first_seconds_of_a_run_that_steps_end_too_do_not_count(steps, seconds, progress):
    """Two steps of a hundred, or so many seconds of a minute, whichever is ahead; the clock from a twentieth on."""
    config = SimpleNamespace(max_minutes=1.0, epochs=None)
    run = SimpleNamespace(step=2, total_steps=steps, config=config, seconds=seconds)
    assert PretrainLoop.progress.fget(run) == pytest.approx(progress)


def test_a_clock_that_leaves_no_step_is_an_error_and_leaves_the_directory_free(recipe):
    """A script that takes 0 for a trained model would go on with the first weights."""
    with pytest.raises(InputError, match="max_minutes must leave time for a step, got 1e-09: the time was over before"):
        pretrain(recipe(steps=None, max_minutes=1e-9), quiet=True)
    assert not Path(recipe().out, "model").exists()
    result = pretrain(recipe(steps=1, warmup=0.0), quiet=True)
    assert result.steps == 1


@pytest.mark.parametrize(("changes", "said"), [({}, True), ({"warmup": 0.0}, False), ({"steps": 2}, False)])
def test_a_single_step_at_a_rate_of_0_is_told(recipe, tiny_model, capsys, changes, said):
    result = pretrain(recipe(**{"steps": 1, **changes}))
    assert ("at rate 0: no weight changes" in capsys.readouterr().out) is said
    before = BertForPreTraining.from_pretrained(tiny_model).state_dict()
    after = BertForPreTraining.from_pretrained(result.model_dir).state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items()) is said


def test_time_for_a_single_step_is_told(recipe, monkeypatch, capsys):
    """An accumulated step may take longer than the time for all of them."""
    told = "the time left one step, the first of the warm-up, at rate 0: no weight changes"
    for warmup, said in ((0.1, True), (0.0, False)):
        times = iter([0.0])
        monkeypatch.setattr(RunClock, "seconds", property(lambda clock, times=times: next(times, 1000.0)))
        changes = {"steps": None, "max_minutes": 1.0, "warmup": warmup, "out": str(recipe().out) + str(warmup)}
        assert pretrain(recipe(**changes)).steps == 1
        assert (told in capsys.readouterr().out) is said


@pytest.mark.parametrize(("share", "leads"), [(0.04, False), (0.06, True)])
def test_the_clock_leads_a_run_of_steps_after_the_first_twentieth_of_its_time(recipe, monkeypatch, share, leads):
    """A slow first step must not change a run that its steps end; a machine that is too slow must."""
    plain = pretrain(recipe(steps=40, log_every=1), quiet=True)
    # Both runs stand at this share of their time from the first step to the last.
    monkeypatch.setattr(RunClock, "seconds", property(lambda clock: 60 * share * 10.0))
    timed = pretrain(recipe(steps=40, log_every=1, out=str(plain.run_dir) + "-timed", max_minutes=10.0), quiet=True)
    rates = [[row["lr"] for row in run.history if row["kind"] == "train"] for run in (plain, timed)]
    assert (rates[0] != rates[1]) is leads
    assert rates[0][5:] == rates[1][5:], "steps are ahead of the clock from the third on"
    assert (timed.steps, timed.interrupted) == (40, None)


@pytest.mark.parametrize("cuda_graph", ["off", "on"])
def test_a_run_without_any_mlm_target_trains_the_pairs(recipe, cuda_graph):
    samples = SampleConfig(max_seqlen=16, mlm_probability=0.0)
    result = pretrain(recipe(steps=3, samples=samples, warmup=0.0, cuda_graph=cuda_graph), quiet=True)
    rows = [row for row in result.history if row["kind"] == "train"]
    assert [row["loss"] for row in rows] == pytest.approx([row["nsp_loss"] for row in rows])
    assert [row["skipped_steps"] for row in rows] == [0, 0, 0]
    assert [row["mlm_loss"] for row in rows] == [0.0] * 3
    assert all(torch.isfinite(value).all() for value in weights(result.run_dir).values())


def test_a_line_that_spans_an_interruption_is_whole(recipe, tmp_path):
    """Stopped at step 6 with a line every 4: the line of step 8 is over steps 5 to 8, as in a run left alone."""
    options = {"steps": 8, "log_every": 4, "eval_every": 6, "dropout": 0.1}
    alone = pretrain(recipe(out=str(tmp_path / "alone"), **options), quiet=True)
    assert pretrain(recipe(**options), callbacks=[stop_after(6, "heldout")], quiet=True).interrupted == "SIGTERM"
    resumed = pretrain(recipe(**options, resume="auto"), quiet=True)
    figures = ("kind", "step", "loss", "mlm_loss", "mlm_acc", "nsp_loss", "nsp_acc", "grad_norm", "lr")
    one, two = ([[row.get(name) for name in figures] for row in r.history] for r in (alone, resumed))
    assert one == two
