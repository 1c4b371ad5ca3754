"""Two and three processes under torch DDP compute what one does."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import ddp_cases
import pretraining_runs
import pytest
import rank_runs
import torch

from fastbert.data import ranks
from fastbert.errors import InputError
from fastbert.train.distributed import World, joined, launched, total
from fastbert.train.loop import PretrainLoop
from fastbert.train.metrics import from_line
from fastbert.train.pretrain import pretrain


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3])
def runs(request, tmp_path_factory):
    """(results by rank, the directory); the processes also pre-train in DIRECTORY/run."""
    directory = tmp_path_factory.mktemp(f"ranks{request.param}")
    pretraining_runs.prepare_data(directory / "data")
    return rank_runs.launch(ddp_cases.main, request.param, directory, directory), directory


def alone(**options) -> dict:
    return ddp_cases.train(World(), ddp_cases.micro_batches(6), **options)


def test_gradients_are_those_of_the_whole_batch_in_one_process(runs):
    expected = alone()
    for got in (result["plain"] for result in runs[0]):
        assert got["labels"] == expected["labels"]
        torch.testing.assert_close(got["gradients"], expected["gradients"], rtol=1e-10, atol=1e-14)
        assert got["norms"] == pytest.approx(expected["norms"], rel=1e-10)


def test_steps_by_the_kernels_are_those_of_one_process(runs):
    """In one process the word table's gradient is added to in place, which ranks that have summed it would not see."""
    expected = alone(steps=3, dtype=torch.float32)
    for got in (result["float32"] for result in runs[0]):
        torch.testing.assert_close(got["gradients"], expected["gradients"], rtol=1e-4, atol=1e-6)
        assert got["norms"] == pytest.approx(expected["norms"], rel=1e-3)


def test_the_mean_over_ranks_would_have_been_another_gradient():
    batches = ddp_cases.micro_batches(6)
    means = [ddp_cases.train(World(), batches[rank::2], steps=1)["gradients"] for rank in range(2)]
    name = "cls.predictions.bias"
    mean, whole = (means[0][name] + means[1][name]) / 2, alone(steps=1)["gradients"][name]
    assert (mean - whole).norm() > 0.05 * whole.norm()


def test_all_ranks_hold_the_same_bits(runs):
    results = runs[0]
    for case in ("plain", "nan", "float32"):
        for other in results[1:]:
            for key, value in results[0][case].items():
                if key.startswith("weights"):
                    assert all(torch.equal(v, other[case][key][name]) for name, v in value.items())


def test_a_nan_in_one_gradient_skips_the_step_on_all_ranks(runs):
    for got in (result["nan"] for result in runs[0]):
        assert got["skipped"] == [0, 1, 1, 1]
        assert all(torch.equal(v, got["weights1"][name]) for name, v in got["weights0"].items())
        assert not all(torch.equal(v, got["weights2"][name]) for name, v in got["weights1"].items())


def test_every_rank_learns_all_values(runs):
    size = len(runs[0])
    assert all(result["gathered"] == [[r, 10.0 * r] for r in range(size)] for result in runs[0])


def test_ranks_have_the_8_bit_scales_of_all(runs):
    """Each has other tokens, and so other largest values; what the first rank saves holds for all."""
    own, history = (torch.stack([result["fp8"][name] for result in runs[0]]) for name in ("own", "history"))
    assert (own != own[0]).any()
    assert (history == history[0]).all()
    assert torch.equal(history[0, :, 0], own.amax(0))


def test_pretraining_is_that_of_one_process_with_as_many_micro_batches(runs, tmp_path, monkeypatch):
    results, directory = runs
    monkeypatch.setattr("fastbert.train.flops.measured_peak", lambda *_: (1e9, "made up"))
    options = {"steps": 6, "accumulate": 6, "eval_every": 4, "save_every": 3}
    expected = pretrain(pretraining_runs.config(directory / "data", tmp_path / "one", **options), quiet=True)
    assert all((got["steps"], got["tokens"]) == (6, expected.tokens) for got in results)
    for file in ("metrics.jsonl", "steps.jsonl"):
        got_rows, rows = (pretraining_runs.rows(path, file) for path in (directory / "run", tmp_path / "one"))
        assert [row["step"] for row in got_rows] == [row["step"] for row in rows]
        for got, row in zip(got_rows, rows, strict=True):
            assert got.keys() == row.keys()
            for name, value in row.items():
                assert got[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4)), name
        # The same arithmetic, in the time that it took, as a share of what as many processes can do.
        got_done, done = (
            [
                row["mfu"] * row["seconds"]
                for row in map(from_line, (path / file).read_text().splitlines())
                if "mfu" in row
            ]
            for path in (directory / "run", tmp_path / "one")
        )
        assert got_done == pytest.approx([each / len(results) for each in done])


def test_pretraining_without_pairs_is_that_of_one_process(runs, tmp_path):
    """torch waits for a gradient of every parameter, and two heads have none."""
    _, directory = runs
    pretrain(ddp_cases.without_pairs(directory / "data", tmp_path / "one", 6), quiet=True)
    got, expected = (pretraining_runs.checkpoint_of(run, 3)[0] for run in (directory / "unpaired", tmp_path / "one"))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6, msg=name)
    idle = [name for name in got if "pooler" in name or "seq_relationship" in name]
    assert len(idle) == 4, "weights, and no moments"
    assert all(torch.equal(got[name], expected[name]) for name in idle)


def test_an_elmo_is_that_of_one_process(runs, tmp_path):
    """Its table of characters is a buffer of 16-bit integers, which gloo and NCCL do not send."""
    _, directory = runs
    pretrain(ddp_cases.of_elmo(directory / "data", tmp_path / "one", 6), quiet=True)
    got, expected = (pretraining_runs.checkpoint_of(run, 2)[0] for run in (directory / "elmo", tmp_path / "one"))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_time_of_communication_is_counted(runs):
    """Gradients travel during backward; what ranks agree on before is the rest."""
    for row in map(from_line, (runs[1] / "run" / "steps.jsonl").read_text().splitlines()):
        assert 0 < row["communication_seconds"] <= row["seconds"]


def test_another_number_of_processes_goes_on_with_the_run(runs, tmp_path):
    """From the checkpoint of several after three steps, one process does the other three."""
    _, directory = runs
    source = directory / "run" / "checkpoints" / "step_3"
    options = {"steps": 6, "accumulate": 6, "eval_every": 4, "save_every": 3}
    config = pretraining_runs.config(directory / "data", tmp_path / "on", resume=str(source), **options)
    pretrain(config, quiet=True)
    before, state = pretraining_runs.checkpoint_of(directory / "run", 3)
    assert state["micro_step"] == 18
    got, got_state = pretraining_runs.checkpoint_of(tmp_path / "on", 6)
    expected, expected_state = pretraining_runs.checkpoint_of(directory / "run", 6)
    for key in ("place", "micro_step", "tokens", "step"):
        assert got_state[key] == expected_state[key]
    assert before.keys() == got.keys() == expected.keys()
    for name, value in expected.items():
        if name.startswith("model.") and not name.endswith("key.bias"):  # whose gradient is rounding and nothing else
            moved = (value - before[name]).norm()
            assert (value - got[name]).norm() <= 1e-3 * moved + 1e-7, name


def test_ranks_get_the_batches_of_the_global_order(runs):
    _, directory = runs
    _, state = pretraining_runs.checkpoint_of(directory / "run", 3)
    from fastbert.data.config import SampleConfig
    from fastbert.data.pretraining import PretrainingData
    from fastbert.data.shards import ShardSet

    data = PretrainingData(ShardSet.open(directory / "data"), SampleConfig(max_seqlen=32))
    assert tuple(state["place"]) == ranks.after(lambda epoch: len(data.batches(epoch, 256)), (0, 0), 18)


@pytest.mark.parametrize(
    ("rank", "size", "what"),
    [
        ("one", "2", "must be numbers"),
        ("2", "2", "RANK must be at least 0 and below WORLD_SIZE, got 2 of 2"),
        ("0", "0", "got 0 of 0"),
    ],
)
def test_the_launcher_s_words_must_be_those_of_a_process(monkeypatch, rank, size, what):
    assert launched() == World()
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(InputError, match=what):
        launched()


def test_processes_that_cannot_meet_say_where(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(InputError, match=r"where the 2 processes of the run meet, got .*'MASTER_PORT': None"), joined():
        pass
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(InputError, match=rf"rank 0 cannot meet .* 127.0.0.1, port {port}: .*in use"), joined():
            pass

    nobody_else = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda *_: iter([(nobody_else, 0, 2)]))
    for message in (
        "Gloo connectFullMesh failed with: Connection refused",
        "The server socket has failed to listen on any local network address: in use",  # torch 2.6's
    ):

        def refused(*_arguments, message=message, **_options):
            raise RuntimeError(f"{message}\nand more")

        monkeypatch.setattr(torch.distributed, "init_process_group", refused)
        with pytest.raises(InputError, match=rf"rank 0 cannot meet .*: {message}$"), joined():
            pass


def test_a_group_leaves_the_environment_as_it_was(monkeypatch):
    """DeepSpeed reads LOCAL_RANK, which without a launcher nobody has set."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with joined(always=True) as world:
        assert (world, os.environ["LOCAL_RANK"]) == (World(), "0")
    assert "LOCAL_RANK" not in os.environ


def test_more_processes_than_gpus_are_told_in_one_sentence(monkeypatch):
    """It was an internal error: torch's "invalid device ordinal"."""
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    told = pytest.raises(InputError, match="LOCAL_RANK must be the number of one of the 2 GPUs here, got 2")
    with told, joined():
        pass


def test_processes_that_do_not_know_their_gpu_are_told_in_one_sentence(monkeypatch):
    """All of them took the first one, and NCCL's error said that another process had ended."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    told = (
        r"LOCAL_RANK must say which of the 8 GPUs here rank 1 of 2 processes trains on, .*=\$SLURM_LOCALID\), got none"
    )
    with pytest.raises(InputError, match=told), joined():
        pass
    with monkeypatch.context() as patch:  # a group that was opened by the caller
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_rank", lambda: 1)
        patch.setattr(torch.distributed, "get_world_size", lambda: 2)
        with pytest.raises(InputError, match=told), joined():
            pass
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # srun --gpus-per-task 1: each sees its own
    with pytest.raises(InputError, match="MASTER_ADDR and MASTER_PORT must say"), joined():
        pass


def test_of_the_time_ranks_take_the_first_ones_clock():
    """It is agreed on by a sum: of all ranks' clocks that would be time that nobody trained."""
    given = []

    def reduce(numbers):
        given.append(numbers)
        return numbers

    for first, seconds in ((True, 60.0), (False, 61.0)):
        engine = SimpleNamespace(world=SimpleNamespace(size=2, first=first), reduce=reduce)
        clock, stop = SimpleNamespace(seconds=seconds), SimpleNamespace(asked=None)
        rank = SimpleNamespace(engine=engine, clock=clock, _stop=stop)
        PretrainLoop._agree(rank, [])
    assert [sum(numbers) for numbers in zip(*given, strict=True)] == [0, 0, 0, 60.0, False]


def test_groups_follow_one_another_in_the_store_of_a_launcher_as_torchrun_has_it(tmp_path):
    """Without a mark of its own the next group finds the addresses of the last, and waits for them: by chance, but
    hardly ever not once in twenty times."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def meet_again() -> list[float]:
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
        totals = []
        for number in range(20):
            with joined() as world:
                totals += total([world.rank + number])
        return totals

    assert rank_runs.launch(meet_again, 2, tmp_path, seconds=20.0) == [[2.0 * n + 1 for n in range(20)]] * 2
