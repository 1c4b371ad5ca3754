"""Phases: borders, rates and batches against hand-worked numbers; a run over a border, cut anywhere, to the bit."""

from __future__ import annotations

import dataclasses

import pretraining_runs as runs
import pytest

from fastbert.cli.main import main
from fastbert.data.config import SampleConfig
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import CheckpointError, InputError
from fastbert.optim import AdamW, Lamb, schedules
from fastbert.train import phases, recipes
from fastbert.train import pretrain as module
from fastbert.train.batch_source import BatchSource
from fastbert.train.config import PretrainConfig
from fastbert.train.distributed import World
from fastbert.train.loop import PretrainLoop
from fastbert.train.model_and_data import build_model
from fastbert.train.phase_options import Phase
from fastbert.train.pretrain import pretrain


def phases_of(config: PretrainConfig) -> list[phases.RunPhase]:
    return phases.of_run(config, phases.total_steps(config))


def steps_of(config: PretrainConfig) -> list[int]:
    """How many steps fall into each phase, found step by step."""
    found, total = phases_of(config), phases.total_steps(config)
    where = [phases.at(found, step / total).index for step in range(total)]
    assert where == sorted(where)
    return [where.count(index) for index in range(len(found))]


@pytest.mark.parametrize("steps", [3, 7, 10, 997, 7038])
def test_every_step_is_in_the_phase_that_the_recipe_says(steps):
    """No border is missed by a rounding of the division."""
    counted = PretrainConfig(phases=(Phase(steps=steps), Phase(steps=1), Phase(steps=2 * steps)))
    assert steps_of(counted) == [steps, 1, 2 * steps]


def test_phases_are_scaled_to_the_steps_asked_for():
    config = PretrainConfig(steps=100, phases=(Phase(share=0.9), Phase(share=0.1)))
    assert steps_of(config) == [90, 10]
    assert steps_of(dataclasses.replace(config, steps=3)) == [2, 1], "no phase is lost"
    assert steps_of(PretrainConfig(steps=60, phases=(Phase(steps=200), Phase(steps=100)))) == [40, 20]


def test_by_the_clock_phases_are_shares_of_it():
    config = PretrainConfig(max_minutes=10.0, phases=(Phase(share=0.75), Phase(share=0.25)))
    found = phases_of(config)
    assert phases.total_steps(config) is None
    assert [phases.at(found, progress).index for progress in (0.0, 0.7499, 0.75, 0.99, 1.0)] == [0, 0, 1, 1, 1]


def rates(config: PretrainConfig) -> list[float]:
    found, total = phases_of(config), phases.total_steps(config)
    return [phases.learning_rate(config, phases.at(found, n / total), n / total) for n in range(total)]


def test_a_phase_without_a_schedule_goes_on_in_the_runs():
    """One warm-up and one fall over both phases, as in the paper."""
    config = PretrainConfig(steps=20, lr=2.0, warmup=0.25, phases=(Phase(share=0.9), Phase(share=0.1)))
    expected = [2.0 * n / 5 if n < 5 else 2.0 * (20 - n) / 15 for n in range(20)]
    assert rates(config) == pytest.approx(expected, rel=1e-12)


def test_nvidias_schedule_warms_up_again_and_jumps_where_the_warm_up_ends():
    """step / total / warm-up, then (1 - step / total) ** 0.5, counted from each phase's beginning."""
    shape = {"schedule": "poly", "warmup": 0.25}
    config = PretrainConfig(phases=(Phase(steps=8, lr=6e-3, **shape), Phase(steps=16, lr=4e-3, **shape)))
    first = [0.0, 3e-3] + [6e-3 * (1 - n / 8) ** 0.5 for n in range(2, 8)]
    second = [4e-3 * n / 4 for n in range(4)] + [4e-3 * (1 - n / 16) ** 0.5 for n in range(4, 16)]
    assert rates(config) == pytest.approx(first + second, rel=1e-12)


def test_offset_power_and_where_the_warm_up_rises_from():
    shape = {"schedule": "poly", "warmup": 0.5, "offset": True, "power": 1.0, "warmup_from": 0.5}
    config = PretrainConfig(lr=1.0, phases=(Phase(steps=8, **shape),))
    assert rates(config) == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 0.75, 0.5, 0.25], rel=1e-12)


def test_a_phase_can_be_a_part_of_a_longer_schedule():
    config = PretrainConfig(lr=1.0, phases=(Phase(steps=5, schedule="linear", span=(0.5, 1.0)),))
    assert rates(config) == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1], rel=1e-12)


def test_poly_with_an_offset_is_continuous():
    assert schedules.poly(0.3, 0.3, offset=True) == 1.0
    assert schedules.poly(0.3, 0.3) == pytest.approx(0.7**0.5)
    assert schedules.poly(0.65, 0.3, 2.0, offset=True) == pytest.approx(0.25)


def test_yaml_gives_phases_back(tmp_path):
    config = PretrainConfig(
        optimizer="lamb", lamb_variant="apex",
        phases=(Phase(steps=3, max_seqlen=64, batch_sequences=8), Phase(steps=2, schedule="poly", span=(0.1, 0.9))),
    )  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert PretrainConfig.from_yaml(path) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("phases: 3", "expected phases to be a list"),
        ("phases: [3]", "expected phases to be a list"),
        ("phases: [{steps: 3}, {step: 3}]", r"yaml, phase 2: unknown option step; did you mean steps\?$"),
        ("phases: [{steps: many}]", "steps must be"),
        ("phases: [{}]", "needs steps or a share"),
        ("phases: [{steps: 1, share: 1.0}]", "not both"),
        ("phases: [{steps: 0}]", "steps of a phase must be at least 1, got 0"),
        ("phases: [{steps: 1}, {share: 1.0}]", "every phase has steps or every phase has a share"),
        ("phases: [{share: 0.5}, {share: 0.4}]\nsteps: 9", "add up to 1, got 0.9"),
        ("phases: [{share: 1.0}]", "length of the run"),
        ("phases: [{steps: 1}]\nepochs: 2", "got epochs"),
        ("phases: [{steps: 5}, {steps: 5}]\nsteps: 1", "at least the number of phases, 2, got 1"),
        ("phases: [{steps: 1, batch_tokens: 9, accumulate: 2}]", "got accumulate and batch_tokens"),
        ("phases: [{steps: 1, warmup: 0.1}]", "belong to its own schedule"),
        ("phases: [{steps: 1, schedule: cosine}]", "schedule must be"),
        ("phases: [{steps: 1, schedule: poly, span: [0.5, 0.5]}]", "span must be two rising shares"),
        ("phases: [{steps: 1, lr: .nan}]", "lr of a phase must be above 0"),
        ("optimizer: sgd", "optimizer must be"),
        ("lamb_variant: plain", "lamb_variant must be"),
    ],
)
def test_phases_that_do_not_fit_are_one_sentence(tmp_path, text, said):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        PretrainConfig.from_yaml(path)
    assert "\n" not in str(error.value)


def test_micro_batches_follow_from_the_batch_wanted():
    def count(wanted: dict, ranks: int) -> int:
        (phase,) = phases_of(PretrainConfig(token_budget=4096, phases=(Phase(steps=1, **wanted),)))
        return phase.micro_batches((32.0, 4000.0), ranks)

    assert count({"batch_sequences": 256}, 1) == 8
    assert count({"batch_sequences": 256}, 8) == 1
    assert count({"batch_sequences": 250}, 2) == 4
    assert count({"batch_tokens": 131072}, 4) == 8
    assert count({"accumulate": 3}, 4) == 3
    # One micro-batch may be half as much again as the batch.
    assert count({"batch_sequences": 22}, 1) == 1
    with pytest.raises(InputError, match="token_budget of at most 2,688 on 1 rank"):
        count({"batch_sequences": 21}, 1)
    with pytest.raises(InputError, match="token_budget of at most 1,024 on 32 rank"):
        count({"batch_sequences": 256}, 32)
    with pytest.raises(InputError, match="must be of at most 1,000,000 micro-batches on a rank, got 250,000,000"):
        count({"batch_tokens": 10**12}, 1)


def recipe(name: str) -> PretrainConfig:
    return PretrainConfig.from_yaml(recipes.path(name))


def test_the_papers_recipe():
    """Devlin et al. 2019, appendix A.2."""
    config = recipe("paper")
    assert (config.model, config.optimizer, config.schedule) == ("base", "adamw", "linear")
    assert (config.lr, config.betas, config.weight_decay) == (1e-4, (0.9, 0.999), 0.01)
    assert (config.eps, config.correct_bias) == (1e-6, False)
    assert config.warmup * config.steps == 10_000
    first, second = phases_of(config)
    assert (first.steps, first.changes["max_seqlen"], first.batch_sequences) == (900_000, 128, 256)
    assert (second.steps, second.changes["max_seqlen"], second.batch_sequences) == (100_000, 512, 256)
    assert (first.own, second.own) == (None, None)


def test_nvidias_recipe():
    config = recipe("nvlamb")
    assert (config.model, config.optimizer, config.lamb_variant) == ("large", "lamb", "nvlamb")
    found = [
        (s.steps, s.changes["max_seqlen"], s.changes["max_predictions"], s.batch_sequences, s.lr, s.own.warmup)
        for s in phases_of(config)
    ]
    assert found == [(7038, 128, 20, 65536, 6e-3, 0.2843), (1563, 512, 80, 32768, 4e-3, 0.128)]
    assert {(p.schedule, p.power, p.offset) for p in config.phases} == {("poly", 0.5, False)}


@pytest.mark.parametrize("name", recipes.names())
def test_recipes_fit_together_and_say_what_they_are(name):
    config = recipe(name)
    said = [phases.describe(config, phase) for phase in phases_of(config)]
    assert all(f"at most {p.max_seqlen}," in line for p, line in zip(config.phases, said, strict=False))
    assert 20 < len(recipes.summary(name)) < 120
    assert "\n" not in recipes.summary(name)


@pytest.mark.parametrize("name", ["day", "mini", "nvlamb"])
def test_a_recipe_trains_a_small_model(data, name, tmp_path):
    """In three steps; the batch it asks for is not what a test can hold."""
    config = recipe(name)
    parts = [dataclasses.replace(p, batch_sequences=None, max_seqlen=(p.max_seqlen or 128) // 8) for p in config.phases]
    changed = dataclasses.replace(
        config, data=str(data), out=str(tmp_path / "run"), model="1x32x2", steps=max(3, len(parts)), token_budget=128,
        num_workers=0, max_minutes=None, phases=tuple(parts), eval_every=100, save_every=100, log_every=1,
        samples=dataclasses.replace(config.samples, max_seqlen=16),
    )  # fmt: skip
    result = pretrain(changed, quiet=True)
    assert result.steps == 3
    assert len({row.get("phase") for row in result.history}) == max(len(parts), 1)


def test_the_command_line_lists_and_takes_recipes(monkeypatch, capsys, tmp_path):
    assert main(["pretrain", "--recipe", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == recipes.names()
    seen = []

    def record(config):
        seen.append(config)
        raise InputError("seen")

    monkeypatch.setattr(module, "pretrain", record)
    assert main(["pretrain", "--recipe", "paper", "--data", "D", "--steps", "50", "--out", "R"]) == 2
    assert seen == [dataclasses.replace(recipe("paper"), data="D", steps=50, out="R")]
    capsys.readouterr()
    for argv, said in (
        (["--recipe", "none"], "no recipe is called 'none'; there are day"),
        (["--recipe", "paper", "--config", "x.yaml"], "got both"),
        (["--recipe", "nvlamb", "--lr", "1e-3", "--out", "R"], "--lr 0.001 would change nothing"),
    ):
        assert main(["pretrain", *argv]) == 2
        captured = capsys.readouterr()
        assert said in captured.err
        assert captured.err.count("\n") == 1


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("phases") / "data")


TWO = (
    Phase(name="short", steps=7, max_seqlen=16, accumulate=1, schedule="poly", warmup=0.25, lr=4e-3),
    Phase(name="long", steps=6, max_seqlen=32, token_budget=128, batch_tokens=512, schedule="linear", warmup=0.5),
)


def two_phases(data, out, **changes) -> PretrainConfig:
    options = {"steps": None, "phases": TWO, "optimizer": "lamb", "eval_every": 4, "log_every": 3, "warmup": 0.0}
    return runs.config(data, out, **{**options, **changes})


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    pretrain(two_phases(data, out), quiet=True)
    return out


def test_each_phase_has_its_own_batches_and_rates(data, tmp_path):
    config = two_phases(data, tmp_path / "run", log_every=1)
    pretraining = PretrainingData(ShardSet.open(data), config.samples)
    model = build_model(config, pretraining)
    seen: list[tuple[int, int]] = []

    def look(_module, args):
        if model.training:
            seen.append((args[0].max_seqlen, args[0].num_tokens))

    model.register_forward_pre_hook(look)
    result = pretrain(config, model=model, data=pretraining, quiet=True)
    rows = result.history
    assert [row["phase"] for row in rows] == ["short"] * 7 + ["long"] * 6
    expected = rates(config)
    assert [row["lr"] for row in rows] == expected
    assert expected[7] == 0.0, "the second phase warms up again"
    # 7 micro-batches of the first phase; 512 tokens are 4 or 5 micro-batches of at most 128, never quite full.
    lengths = PretrainingData(pretraining.shards, dataclasses.replace(config.samples, max_seqlen=32))
    each = lengths.lengths(0).sum() / len(lengths.batches(0, 128))
    assert round(512 / each) in (4, 5)
    assert len(seen) == 7 + 6 * round(512 / each)
    assert max(length for length, _ in seen[:7]) == 16
    assert max(length for length, _ in seen[7:]) == 32
    assert max(tokens for _, tokens in seen[:7]) > 128 >= max(tokens for _, tokens in seen[7:])


def test_the_best_model_is_one_of_the_last_phase(data, tmp_path, monkeypatch):
    """Losses of samples of another length are others: 1 after step 4 is of the first phase, the rest of the second. Of
    equals the first is kept."""
    found = iter([1.0, 3.0, 2.5, 2.5])
    names = ("mlm_acc", "unigram_entropy", "most_frequent_acc", "targets", "pairs", "tokens")
    monkeypatch.setattr(
        "fastbert.train.loop.evaluate", lambda *_, **__: {"mlm_loss": next(found), **dict.fromkeys(names, 1)}
    )
    result = pretrain(two_phases(data, tmp_path / "run"), quiet=True)
    assert (result.heldout["step"], result.heldout["loss"]) == (12, 2.5)
    state = runs.checkpoint_of(tmp_path / "run", 13)[1]
    assert (state["best"]["phase_index"], state["best"]["step"], state["phase"]) == (1, 12, 1)


def test_the_optimiser_is_the_one_asked_for(data, tmp_path):
    made = {}

    class Spy(PretrainLoop):
        def run(self):
            made[self.config.optimizer] = self.optimizer
            raise KeyboardInterrupt

    for name in ("lamb", "adamw"):
        config = two_phases(data, tmp_path / name, optimizer=name, lamb_variant="clamped", clip=0.5, eps=1e-5)
        config = dataclasses.replace(config, betas=(0.8, 0.95), correct_bias=True)
        pretraining = PretrainingData(ShardSet.open(data), config.samples)
        loop = Spy(config, build_model(config, pretraining), pretraining, None, tmp_path, None)
        with pytest.raises(KeyboardInterrupt):
            loop.run()
    assert (type(made["lamb"]), type(made["adamw"])) == (Lamb, AdamW)
    assert {(g["variant"], g["max_grad_norm"]) for g in made["lamb"].param_groups} == {("clamped", 0.5)}
    assert {g["correct_bias"] for g in made["adamw"].param_groups} == {True}
    for optimizer in made.values():
        assert sorted(g["weight_decay"] for g in optimizer.param_groups) == [0.0, 0.01]
        assert {(g["betas"], g["eps"]) for g in optimizer.param_groups} == {((0.8, 0.95), 1e-5)}


@pytest.mark.parametrize(("step", "phase"), [(7, 0), (9, 1)])
def test_cut_at_a_border_and_after_it(data, whole, tmp_path, step, phase):
    """Step 7 is the last of the first phase: its checkpoint has not seen the second."""
    out = tmp_path / "run"
    config = two_phases(data, out)
    first = pretrain(config, callbacks=[runs.stop_after(step)], quiet=True)
    assert (first.steps, first.interrupted) == (step, "SIGTERM")
    assert runs.checkpoint_of(out, step)[1]["phase"] == phase
    second = pretrain(dataclasses.replace(config, resume="auto"), quiet=True)
    assert (second.steps, second.interrupted) == (13, None)
    runs.assert_same_run(out, whole, 13)


def test_the_phases_data_are_not_those_of_the_epoch_before(data, whole):
    """A phase begins with an epoch of its own, so that masks and pairs are not drawn again."""
    epochs = {row["phase"]: row["epoch"] for row in runs.rows(whole) if row["kind"] == "train"}
    assert epochs["long"] > epochs["short"] == 0


def test_a_phase_begins_with_the_first_batch_of_its_epoch(data, whole):
    """Wherever in the epoch the phase before it ended."""
    source = BatchSource(two_phases(data, whole), PretrainingData(ShardSet.open(data), SampleConfig()), World(), False)
    source.place = (2, 5)
    source.next_epoch()
    assert source.place == (3, 0)


def test_losses_of_another_phase_make_no_spike(data, tmp_path):
    """A rule that leaves out whatever is over the mean: of a new phase it has to see so many steps first."""
    config = two_phases(data, tmp_path / "run", log_every=1, eval_every=100, spike_sigma=1e-3, spike_window=3)
    history = pretrain(config, quiet=True).history
    counts = [row["left_out_steps"] for row in history if row["kind"] == "train"]
    assert counts[:3] == [0] * 3
    assert counts[6:10] == [counts[6]] * 4


def test_a_phase_that_the_run_does_not_have(data, whole, tmp_path):
    path = str(whole / "checkpoints" / "step_13")
    config = two_phases(data, tmp_path / "run", phases=(dataclasses.replace(TWO[0], steps=20),), resume=path)
    with pytest.raises(CheckpointError, match="is of phase 2 of its run, and this run has 1"):
        pretrain(config, quiet=True)


def test_other_batches_in_the_checkpoints_phase_are_refused(data, whole, tmp_path):
    """In a phase before it they may be others: its place in the data has nothing to do with them."""
    path = str(whole / "checkpoints" / "step_13")
    longer = (TWO[0], dataclasses.replace(TWO[1], max_seqlen=24))
    with pytest.raises(CheckpointError, match=r"expected the samples.max_seqlen .* 32, .* got 24"):
        pretrain(two_phases(data, tmp_path / "run", phases=longer, resume=path), quiet=True)
    earlier = (dataclasses.replace(TWO[0], max_seqlen=24), dataclasses.replace(TWO[1], steps=8))
    result = pretrain(two_phases(data, tmp_path / "run", phases=earlier, resume=path), quiet=True)
    assert result.steps == 15


def test_a_phase_that_does_not_fit_is_refused_before_the_run(data, tmp_path):
    small = (TWO[0], dataclasses.replace(TWO[1], token_budget=24))
    with pytest.raises(InputError, match="token_budget must hold a sample of max_seqlen 32 tokens, got 24"):
        pretrain(two_phases(data, tmp_path / "run", phases=small), quiet=True)
    assert not (tmp_path / "run").exists()


def test_new_models_have_positions_for_the_longest_phase(data):
    config = PretrainConfig(model="1x32x2", phases=(Phase(steps=1, max_seqlen=600), Phase(steps=1)))
    pretraining = PretrainingData(ShardSet.open(data), SampleConfig())
    assert build_model(config, pretraining).config.max_position_embeddings == 600
