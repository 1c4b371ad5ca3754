"""How training steps multiply float32: on AMX each factor as the sum of two bfloat16 numbers, unless told otherwise."""

from __future__ import annotations

import contextlib

import finetune_runs as runs
import levels
import pytest
import tiny_bert
import torch

from fastbert import _native, ops
from fastbert.cli.main import main
from fastbert.ops import _cpu_linear
from fastbert.train.precision import float32_products, use_float32_products

CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_kernels = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("pretrained"))


MODULES = [m for m in (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)) if m is not None]
needs_newer = pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="torch's newer switch is that of torch 2.9"
)


def switches() -> tuple:
    """What torch's newer switch says, and its older one."""
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    return *(getattr(module, "fp32_precision", None) for module in MODULES), older


@needs_kernels
def test_which_precision_a_recipe_has():
    """By default a CPU's own way to be faster, or else what torch was told."""
    with levels.at_level(levels.TILES):
        assert [float32_products(asked, CPU) for asked in ("auto", "high", "highest")] == ["high", "high", "highest"]
        assert float32_products("auto", GPU) == "highest"
    with levels.at_level("scalar"):
        assert float32_products("auto", CPU) == "highest"
        assert float32_products("high", CPU) == "high"
        torch.set_float32_matmul_precision("medium")
        assert [float32_products(asked, CPU) for asked in ("auto", "highest")] == ["medium", "highest"]


@needs_kernels
def test_where_a_precision_holds():
    """On a CPU in this thread's products; on a GPU, and to undo torch's setting, in that setting, which comes back."""
    with levels.at_level(levels.TILES):
        in_parts = lambda: _cpu_linear.two_parts(torch.float32, 1000)  # noqa: E731
        with use_float32_products("high", CPU):
            assert in_parts()
            assert torch.get_float32_matmul_precision() == "highest"
        assert not in_parts()
        with contextlib.suppress(KeyError), use_float32_products("high", GPU):
            assert torch.get_float32_matmul_precision() == "high"
            raise KeyError
        assert torch.get_float32_matmul_precision() == "highest"
        torch.set_float32_matmul_precision("high")
        with use_float32_products("highest", CPU):
            assert not in_parts()
        assert in_parts()


@needs_newer
@needs_kernels
@pytest.mark.parametrize(
    ("where", "value", "on_cpu", "on_gpu"),
    [
        ("mkldnn.matmul", "bf16", "medium", "highest"),
        ("mkldnn.matmul", "tf32", "high", "highest"),
        ("cuda.matmul", "tf32", "highest", "high"),
        ("", "tf32", "high", "high"),
        ("", "ieee", "highest", "highest"),
    ],
)
def test_torchs_newer_switch(directory, tmp_path, where, value, on_cpu, on_gpu):
    """Which makes its older one an error: trainings go on, and leave it as it is."""
    place = torch.backends
    for name in where.split(".") if where else ():
        place = getattr(place, name)
    place.fp32_precision = value
    before = switches()
    with levels.at_level(levels.TILES):
        assert (ops.float32_matmul_precision("cpu"), ops.float32_matmul_precision("cuda")) == (on_cpu, on_gpu)
        for precision in ("highest", "high"):
            with use_float32_products(precision, GPU):
                assert ops.float32_matmul_precision("cuda") == precision
            assert switches() == before
        trained(directory, tmp_path / "run", float32_matmul_precision="auto", save_every=1)
        x, weight = torch.randn(200, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
        ops.linear(x, weight).sum().backward()
    assert switches() == before


@needs_newer
def test_the_devices_follow_torchs_newer_switch_afterwards():
    """Also if it is set only then: none of them was left with a value of its own."""
    for value in ("none", "tf32"):
        torch.backends.fp32_precision = value
        with use_float32_products("highest" if value == "tf32" else "high", GPU):
            pass
        torch.backends.fp32_precision = "ieee"
        assert switches() == ("ieee", "ieee", "highest")
        torch.backends.fp32_precision = "tf32"
        assert switches() == ("tf32", "tf32", None)


def test_the_older_switch_comes_back_with_the_newer():
    torch.set_float32_matmul_precision("high")
    for module in MODULES[1:]:
        if hasattr(module, "fp32_precision"):
            module.fp32_precision = "ieee"
    before = switches()
    with use_float32_products("highest", GPU):
        pass
    assert switches() == before


@needs_kernels
def test_a_backend_without_tiles_has_no_other_precision():
    with levels.at_level(levels.TILES), ops.backend("reference"):
        assert float32_products("auto", CPU) == "highest"


def trained(directory, out, **changes):
    """A run whose batches have more tokens than a product in two parts needs; and its weights."""
    rows = tiny_bert.rows_of(64, 1), tiny_bert.rows_of(40, 2)
    result, model = runs.run(directory, out, rows, batch_size=32, epochs=1, **changes)
    return result.history, model.state_dict()


@needs_kernels
def test_a_training_multiplies_in_two_parts_by_default(directory, tmp_path, monkeypatch):
    """And is what it is with "high"; its evaluations are in float32."""
    monkeypatch.setattr(_cpu_linear, "TWO_PARTS_TRAINING_ROWS", _cpu_linear.FLOAT32_ROWS)
    true, asked = _cpu_linear.two_parts, []
    recorded = lambda *given: asked.append((true(*given), torch.is_grad_enabled())) or asked[-1][0]  # noqa: E731
    monkeypatch.setattr(_cpu_linear, "two_parts", recorded)
    with levels.at_level(levels.TILES):
        history, weights = trained(directory, tmp_path / "auto", float32_matmul_precision="auto")
        assert {training for in_parts, training in asked if in_parts} == {True, False}, "no backward pass was"
        _, same = trained(directory, tmp_path / "high", float32_matmul_precision="high")
        exact, others = trained(directory, tmp_path / "highest")
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert not all(torch.equal(weights[name], others[name]) for name in weights)
    assert history[0]["train_loss"] == pytest.approx(exact[0]["train_loss"], rel=1e-4)


@needs_kernels
def test_evaluations_are_in_float32(directory, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(_cpu_linear, "two_parts", lambda *_: asked.append(_cpu_linear._allowed.depth) or False)
    trained(directory, tmp_path / "trained", float32_matmul_precision="high", eval_every=1)
    assert set(asked) == {0, 1}
    asked.clear()
    trained(directory, tmp_path / "highest", float32_matmul_precision="highest")
    assert set(asked) == {0}


@needs_kernels
def test_the_command_says_so(directory, tmp_path, capsys):
    rows = tmp_path / "rows.tsv"
    rows.write_text("sentence\tlabel\n" + "a good film\t1\na bad film\t0\n" * 4)
    for number, (level, options, expected) in enumerate(
        [
            (levels.TILES, [], "fp32 (products: high)"),
            (levels.TILES, ["--float32-matmul-precision", "highest"], "fp32"),
            ("scalar", [], "fp32"),
        ]
    ):
        given = ["--model", str(directory), "--train", str(rows), "--dev", str(rows), "--max-seqlen", "24"]
        with levels.at_level(level):
            main(["finetune", "sst2", *given, "--epochs", "1", "--out", str(tmp_path / str(number)), *options])
        assert f"at most 24 tokens a row, {expected}, seed 0\n" in capsys.readouterr().out


@needs_kernels
def test_a_resumed_run_may_have_another_and_says_so(directory, tmp_path, caplog):
    out = tmp_path / "run"
    with levels.at_level(levels.TILES):
        runs.run(directory, out, callbacks=runs.stop_after(5), float32_matmul_precision="auto")
        runs.run(directory, out, resume="auto")
    assert "other conditions" in caplog.text
    assert caplog.text.rstrip().splitlines()[-1].endswith(": float32 products highest (high before)")
    caplog.clear()
    with levels.at_level(levels.TILES):  # in bfloat16 there are none
        other, options = tmp_path / "other", {"precision": "bf16"}
        runs.run(directory, other, callbacks=runs.stop_after(5), **options)
        runs.run(directory, other, resume="auto", float32_matmul_precision="auto", **options)
    assert "other conditions" not in caplog.text
