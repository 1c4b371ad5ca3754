"""A table's gradient of which few rows are written: the optimisers read nothing else, and get the same bits."""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path

import pytest
import torch
from levels import LEVELS, at_level, threads

from fastbert import BertConfig, BertForSequenceClassification, _native, ops, optim
from fastbert.ops import _few_rows, _in_place
from fastbert.optim.base import global_norm
from fastbert.packing import PackedBatch
from fastbert.train.engine import LocalEngine

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

ROWS, COLUMNS = 3000, 40
CHUNK = 0 if _native.why_missing() else _native.extension().OPTIMIZER_CHUNK


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    monkeypatch.setattr(_few_rows, "_LEAST_BYTES", 0)


def table(rows: int = ROWS, columns: int = COLUMNS, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    torch.manual_seed(0)
    return torch.nn.Parameter(torch.randn(rows, columns).to(dtype))


def add(parameter: torch.nn.Parameter, ids: list[int]) -> None:
    torch.manual_seed(sum(ids))
    _in_place.add_rows(parameter, torch.tensor(ids), torch.randn(len(ids), parameter.shape[1]), -1)


def has_numbers(gradient: torch.Tensor) -> list[bool]:
    return [bool(part.any()) for part in gradient.reshape(-1).split(CHUNK)]


@pytest.mark.parametrize("columns", [1, 40, CHUNK // 2 + 1, CHUNK, 2 * CHUNK + 9])
def test_the_chunks_of_the_rows_are_noted(columns):
    parameter = table(max(24, 6 * CHUNK // columns), columns)
    last = len(parameter) - 1
    for ids in ([0], [last, last], [5, last // 2]):
        parameter.grad = None
        add(parameter, ids)
        assert _few_rows.written_chunks(parameter.grad).bool().tolist() == has_numbers(parameter.grad)
    add(parameter, [1])  # a second micro-batch
    assert _few_rows.written_chunks(parameter.grad).bool().tolist() == has_numbers(parameter.grad)


def test_with_other_processes_nothing_is_known(monkeypatch):
    """torch does not count what a collective writes: rows of other processes would be taken for zero."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for size in (1, 2):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda size=size: size)
        parameter = table()
        add(parameter, [3])
        assert (_few_rows.written_chunks(parameter.grad) is None) == (size > 1)


@pytest.mark.parametrize("write", ["add_", "mul_", "zero_"])
def test_after_another_write_nothing_is_known(write):
    parameter = table()
    add(parameter, [3])
    getattr(parameter.grad, write)(*[] if write == "zero_" else [1.0])
    assert _few_rows.written_chunks(parameter.grad) is None
    add(parameter, [4])
    assert _few_rows.written_chunks(parameter.grad) is None


def test_after_an_exchange_nothing_is_known():
    parameter = table()
    add(parameter, [3])
    parameter.grad.data = torch.ones(ROWS, COLUMNS)
    assert _few_rows.written_chunks(parameter.grad) is None


def test_a_copy_has_no_note():
    parameter = table()
    add(parameter, [3])
    assert _few_rows.written_chunks(copy.deepcopy(parameter.grad)) is None


def test_many_rows_are_not_noted():
    parameter = table()
    add(parameter, list(range(ROWS // 8 + 1)))
    assert _few_rows.written_chunks(parameter.grad) is None


def test_small_tables_are_not_noted(monkeypatch):
    monkeypatch.undo()
    parameter = table()
    add(parameter, [3])
    assert _few_rows.written_chunks(parameter.grad) is None


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [optim.AdamW, optim.Lamb])
@pytest.mark.parametrize("level", LEVELS)
def test_the_same_bits(level, kind, dtype, count):
    """Rows are read for the first time, again, and no longer; other parameters lie before and behind the table."""
    reads = [[7, 1000], [7, 2999], [2999, 2998, 4], [500], [], [7]]
    found = []
    for noted in (False, True):
        parameters = [torch.nn.Parameter(torch.full((99,), 0.5, dtype=dtype)), table(dtype=dtype), table(50, 7)]
        optimizer = kind(parameters, lr=0.01, weight_decay=0.1)
        with at_level(level), threads(count), ops.backend("cpu"):
            for ids in reads:
                for parameter in parameters:
                    parameter.grad = torch.ones_like(parameter)
                parameters[1].grad = None if ids else torch.zeros_like(parameters[1])
                if ids:
                    add(parameters[1], ids)
                    assert _few_rows.written_chunks(parameters[1].grad) is not None
                if not noted:
                    parameters[1].grad = parameters[1].grad.clone()
                norm = optim.clipped_step(optimizer, 3.0, grad_scale=0.5)
                found.append((noted, norm))
        values = itertools.chain(*(state.values() for state in optimizer.state.values()))
        moments = [value for value in values if isinstance(value, torch.Tensor)]
        found.append((noted, *(t.detach().clone() for t in (*parameters, *moments))))
    plain, own = ([numbers for noted, *numbers in found if noted is which] for which in (False, True))
    for a, b in zip(itertools.chain(*plain), itertools.chain(*own), strict=True):
        assert a.equal(b)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("beta", "size"), [(0.0, 1.0), (0.9, 1e-30)], ids=["the first", "the second"])
def test_one_moment_is_zero_and_the_other_fades(level, beta, size):
    """The square of 1e-30 is zero in float32."""
    parameter = table()
    optimizer = optim.AdamW([parameter], lr=0.01, betas=(beta, 0.999))
    with at_level(level), ops.backend("cpu"):
        for row in (0, ROWS - 1, ROWS - 1):
            parameter.grad = None
            _in_place.add_rows(parameter, torch.tensor([row]), torch.full((1, COLUMNS), size), -1)
            optimizer.step()
    wanted = {"exp_avg": (1 - beta) * beta**2 * size, "exp_avg_sq": 0.001 * 0.999**2 * size**2}
    for name, number in wanted.items():
        found = optimizer.state[parameter][name][0]
        torch.testing.assert_close(found, torch.full((COLUMNS,), number), rtol=1e-4, atol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_other_chunks_are_not_read(level):
    parameter = table()
    add(parameter, [0])
    parameter.grad.numpy().reshape(-1)[CHUNK:] = float("nan")  # which torch does not count as a write
    optimizer = optim.AdamW([parameter], lr=0.01, weight_decay=0.1)
    with at_level(level), ops.backend("cpu"):
        assert global_norm([parameter.grad]).isfinite()
        optimizer.step()
    assert parameter.isfinite().all()
    assert all(optimizer.state[parameter][name].isfinite().all() for name in ("exp_avg", "exp_avg_sq"))


def anonymous_bytes(tensor: torch.Tensor) -> int:
    """The memory that a tensor's mapping, with its neighbours, has of its own."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            inside = int(bounds[1], 16) <= tensor.data_ptr() < int(bounds[2], 16)
        elif inside and line.startswith("Anonymous:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the tensor is in no mapping")


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="the system does not tell what a mapping takes")
@pytest.mark.parametrize("level", LEVELS)
def test_what_never_moved_takes_no_memory(level):
    parameter = table(20_000, 400)  # 32 MB
    optimizer = optim.AdamW([parameter], lr=0.01, weight_decay=0.1)
    with at_level(level), ops.backend("cpu"):
        for ids in ([3, 19_000], [7, 10_000]):
            parameter.grad = None
            add(parameter, ids)
            optim.clipped_step(optimizer, 1.0)
    state = optimizer.state[parameter]
    for tensor in (parameter.grad, state["exp_avg"], state["exp_avg_sq"]):
        assert tensor.any()
        assert anonymous_bytes(tensor) < 4 << 20


def test_a_training_engine_uses_it(monkeypatch):
    config = BertConfig(
        vocab_size=ROWS, hidden_size=COLUMNS, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=40,
    )  # fmt: skip
    batch = PackedBatch.from_sequences([torch.tensor([2, 5, 3]), torch.tensor([2, 2900, 7, 3])])
    weights = []
    for noted in (False, True):
        torch.manual_seed(0)
        model = BertForSequenceClassification(config).train()
        engine = LocalEngine(model, optim.AdamW(model.parameters(), lr=0.01), clip=0.1)
        table = model.get_parameter("bert.embeddings.word_embeddings.weight")
        if not noted:
            monkeypatch.setattr(_few_rows, "zeros_for", lambda parameter, ids: torch.zeros_like(parameter))
        for _ in range(3):
            for _ in range(2):
                engine.backward(lambda model=model: model(batch, labels=torch.tensor([0, 1])).loss)
            assert (_few_rows.written_chunks(table.grad) is not None) is noted
            engine.step(0.01)
        weights.append([p.detach() for p in model.parameters()])
        monkeypatch.undo()
        monkeypatch.setattr(_few_rows, "_LEAST_BYTES", 0)
    assert all(a.equal(b) for a, b in zip(*weights, strict=True))
