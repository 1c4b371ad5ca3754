"""RELIABILITY 7 and 23: several at once, each as if it were alone."""

from __future__ import annotations

import os
import threading
import traceback

import pretraining_runs as runs
import pytest
import torch

import fastbert
from fastbert import BertConfig, fp8, ops, rng
from fastbert.errors import CheckpointError
from fastbert.optim import AdamW
from fastbert.train import checkpoint
from fastbert.train.engine import LocalEngine

ROUNDS = 100


def test_a_reader_meets_only_whole_checkpoints_while_others_are_written_and_pruned(tmp_path):
    """A writer in another process saves and prunes 100 times; what the reader loads is always one whole save."""
    checkpoint.save(tmp_path, 0, {"w": torch.full((50_000,), 0.0)}, {"n": 0})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for n in range(1, ROUNDS + 1):
                # Every third time a step that is there is written again.
                step = n if n % 3 else n - 1
                checkpoint.save(tmp_path, step, {"w": torch.full((50_000,), float(n))}, {"n": n}, keep=1)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    seen, lost, done = set(), 0, False
    while not done:
        done = os.waitpid(child, os.WNOHANG)[0] == child
        try:
            path, _ = checkpoint.latest_valid(tmp_path)
            tensors, state, _ = checkpoint.load(path) if path else (None, None, None)
        except CheckpointError:
            lost += 1  # pruned between its finding and its loading, and said so in one sentence
            continue
        if tensors is None:
            continue
        assert torch.equal(tensors["w"], torch.full((50_000,), float(state["n"])))
        assert not seen or state["n"] >= max(seen) - 1, "an older one came back"
        seen.add(state["n"])
    assert len(seen) > 5
    tensors, state, _ = checkpoint.load(checkpoint.latest_valid(tmp_path)[0])
    assert state["n"] in (ROUNDS, ROUNDS - 1)


def train(seed: int, steps: int = 6) -> list[torch.Tensor]:
    """The weights after some steps with dropout, and an inference between them."""
    generator = torch.Generator().manual_seed(seed)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_attention_heads=2, num_hidden_layers=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    with rng.use(rng.DropoutKey(seed, 0)):
        model = fastbert.BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    engine = LocalEngine(model.train(), AdamW(model.parameters(), lr=1e-3), seed=seed)
    for _ in range(steps):
        ids = torch.randint(5, 60, (4, 24), generator=generator)
        engine.backward(lambda ids=ids: model(ids, labels=ids).loss)
        engine.step(1e-3)
        with torch.no_grad():
            model.eval()(ids)
        model.train()
    return [p.detach().clone() for p in model.parameters()]


def same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_two_models_in_two_threads_are_as_in_turn():
    wanted = [train(seed) for seed in (1, 2)]
    assert not same(*wanted)
    got: dict[int, list] = {}
    threads = [threading.Thread(target=lambda s=seed: got.__setitem__(s, train(s))) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(got[1], wanted[0])
    assert same(got[2], wanted[1])


def test_what_a_block_chooses_holds_in_its_thread_alone():
    weight = torch.nn.Parameter(torch.ones(1))

    def look() -> tuple:
        return ops.current_backend(), ops.is_batch_invariant(), ops._in_place.is_allowed(weight), fp8.current()

    seen = [look()]
    policy = fp8.Policy(fp8.Scales([], torch.device("cpu")), [], [])
    with fastbert.backend("reference"), fastbert.batch_invariant(), ops.gradients_in_place(), fp8.use(policy):
        assert look() == ("reference", True, True, policy)
        thread = threading.Thread(target=lambda: seen.append(look()))
        thread.start()
        thread.join()
    assert seen == [seen[0]] * 2
    assert seen[0][1:] == (False, False, None)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_forked_after_training_trains_the_same(threads, tmp_path):
    """Kernels keep scratch memory and a pool of threads; neither may be lost in a copy of the process."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        wanted = train(3)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)  # a forked OpenMP pool has lost its threads
                status = 0 if same(train(3), wanted) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert same(train(3), wanted)
    finally:
        torch.set_num_threads(before)


def test_two_runs_in_two_threads_are_as_in_turn(tmp_path):
    from fastbert.train.pretrain import pretrain

    data = runs.prepare_data(tmp_path / "data")
    for name in ("a", "b"):
        pretrain(runs.config(data, tmp_path / f"alone-{name}", steps=6, seed=ord(name)), quiet=True)
    threads = [
        threading.Thread(
            target=pretrain,
            args=(runs.config(data, tmp_path / f"beside-{name}", steps=6, seed=ord(name), async_save=True),),
            kwargs={"quiet": True},
        )
        for name in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b"):
        runs.assert_same_run(tmp_path / f"beside-{name}", tmp_path / f"alone-{name}", 6)
