"""Tiles, warps and programs of the kernels that memory bounds, beside those that ship; with BERT's sizes of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from kernels import DROPOUT, milliseconds, where

from fastbert import ops

SMS = 132  # what the shipped numbers of programs are multiples of


class Tile(NamedTuple):
    """``programs``, of one multiprocessor: they share the rows of a reduction, ``together`` rows side by side."""

    rows: int
    columns: int
    warps: int
    programs: int = 0
    together: bool = True
    registers: int = 0

    def name(self) -> str:
        parts = [f"M={self.rows}", f"N={self.columns}", f"warps={self.warps}"]
        parts += [f"programs={self.programs}"] if self.programs else []
        parts += [] if self.together else ["apart"]
        return " ".join([*parts, f"registers={self.registers}"] if self.registers else parts)

    def launch(self, columns: int) -> dict:
        made = {"BLOCK_M": self.rows, "BLOCK_N": self.columns, "num_warps": self.warps}
        if self.programs:
            made |= {"INTERLEAVED": self.together, "programs": SMS * self.programs // -(-columns // self.columns)}
        return made | ({"maxnreg": self.registers} if self.registers else {})


class Row(NamedTuple):
    """Of cross-entropy: a program has one row, and takes so many columns at a time."""

    columns: int
    warps: int

    def name(self) -> str:
        return f"N={self.columns} warps={self.warps}"

    def launch(self, _columns: int) -> dict:
        return {"BLOCK": self.columns, "GROUP": 8, "num_warps": self.warps}


# None: what ships. Programs of one multiprocessor are those of all blocks of columns.
GELU_BACKWARD = (
    None,
    Tile(1, 1024, 4, 12, together=False),
    Tile(1, 1024, 4, 24),
    Tile(1, 1024, 4, 48, together=False),
    Tile(2, 1024, 4, 7),
    Tile(2, 512, 2, 14),
    Tile(4, 1024, 4, 4),
)
LAYER_NORM_FORWARD = (
    None,
    Tile(1, 1024, 2),
    Tile(1, 1024, 4),
    Tile(2, 1024, 2),
    Tile(4, 1024, 2),
    Tile(4, 1024, 4),
    Tile(8, 1024, 4),
)
LAYER_NORM_BACKWARD = (
    None,
    Tile(1, 1024, 2, 6, together=False),
    Tile(1, 1024, 2, 12),
    Tile(1, 1024, 4, 4, together=False),
    Tile(1, 1024, 4, 5),
    Tile(2, 1024, 2, 4),
    Tile(2, 1024, 4, 3),
    Tile(2, 1024, 4, 4, registers=128),
)
BIAS_GRADIENT = (
    None,
    Tile(8, 1024, 4, 8, together=False),
    Tile(8, 1024, 4, 16),
    Tile(4, 1024, 4, 12),
    Tile(16, 1024, 4, 7),
)
CROSS_ENTROPY_FORWARD = (None, Row(2048, 8), Row(2048, 4), Row(4096, 4), Row(8192, 8), Row(8192, 16))


class Case(NamedTuple):
    """``make``: shape -> function that is measured; ``arrays``: how often numbers of the shape are moved, at least."""

    module: str
    function: str
    settings: tuple
    shapes: tuple
    arrays: int
    make: Callable


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda" if torch.cuda.is_available() else "cpu")


def _gradient(out: torch.Tensor, leaves: list[torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    dout = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def _gelu_backward(rows: int, columns: int, dtype: torch.dtype) -> Callable:
    leaves = [_random(rows, columns).to(dtype).requires_grad_(), _random(columns).requires_grad_()]
    return _gradient(ops.gelu(*leaves), leaves)


def _layer_norm_forward(rows: int, columns: int, dtype: torch.dtype, whole: bool = False) -> Callable:
    x, residual = (_random(rows, columns).to(dtype).requires_grad_() for _ in range(2))
    weight, bias, x_bias = (_random(columns).requires_grad_() for _ in range(3))

    def forward() -> tuple[torch.Tensor, ...]:
        return (ops.layer_norm(x, weight, bias, 1e-12, x_bias=x_bias, residual=residual, dropout=DROPOUT),)

    return _gradient(*forward(), [x, weight, bias, x_bias, residual]) if whole else forward


def _layer_norm_backward(rows: int, columns: int, dtype: torch.dtype) -> Callable:
    return _layer_norm_forward(rows, columns, dtype, whole=True)


def _cross_entropy_forward(rows: int, columns: int, dtype: torch.dtype) -> Callable:
    logits = _random(rows, -(-columns // 16) * 16).to(dtype)[:, :columns]  # rows apart, as the product writes them
    labels = torch.randint(columns, (rows,), device=logits.device)
    return lambda: (ops.cross_entropy(logits, labels, reduction="none"),)


def _bias_gradient(rows: int, columns: int, dtype: torch.dtype) -> Callable:
    dout = _random(rows, columns).to(dtype)
    if dout.device.type == "cpu":  # a rehearsal without a GPU
        return lambda: (dout.sum(0),)
    from fastbert.triton_kernels.linear import sum_over_rows

    return lambda: (sum_over_rows(dout),)


_HIDDEN = ((32768, 1024), (32768, 768))
CASES = {
    "gelu backward": Case(
        "gelu", "backward_settings", GELU_BACKWARD, ((32768, 4096), (32768, 3072)), 3, _gelu_backward
    ),
    # Input, residual, output, and their sum for backward; there two gradients in and, with dropout, two out.
    "layer_norm forward": Case(
        "layer_norm", "forward_settings", LAYER_NORM_FORWARD, _HIDDEN, 4, _layer_norm_forward
    ),
    "layer_norm backward": Case(
        "layer_norm", "backward_settings", LAYER_NORM_BACKWARD, _HIDDEN, 4, _layer_norm_backward
    ),
    "bias gradient": Case("linear", "sum_settings", BIAS_GRADIENT, ((32768, 3072),), 1, _bias_gradient),
    "cross_entropy forward": Case(
        "cross_entropy", "forward_settings", CROSS_ENTROPY_FORWARD, ((5120, 30522),), 1, _cross_entropy_forward
    ),
}  # fmt: skip


@contextmanager
def _in_place(case: Case, setting: Tile | Row | None, columns: int) -> Iterator[None]:
    """The launches of one kernel take this setting."""
    if setting is None:
        yield
        return
    from importlib import import_module

    module = import_module(f"fastbert.triton_kernels.{case.module}")
    made = setting.launch(columns)
    kept = getattr(module, case.function)
    setattr(module, case.function, lambda *_: dict(made))
    try:
        yield
    finally:
        setattr(module, case.function, kept)


def measure(case: Case, setting: Tile | Row | None, shape: tuple[int, int], dry: bool) -> dict:
    """Time, bytes that must move over it, and the largest difference from what ships."""
    device, dtype = where(dry)
    torch.manual_seed(0)
    run = case.make(*((8, 48) if dry else shape), dtype)
    expected = run()
    with _in_place(case, setting if device == "cuda" else None, shape[1]):
        found = run()
        taken = milliseconds(run, dry)
    difference = max(float((a - b).detach().abs().max()) for a, b in zip(found, expected, strict=True))
    moved = case.arrays * shape[0] * shape[1] * 2
    return {"ms": taken, "GB/s": moved / taken / 1e6, "difference": difference}


def measurements(dry: bool) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, what measures it)."""
    for what, case in CASES.items():
        for shape in case.shapes:
            for setting in case.settings:
                name = f"{what} {shape[0]}x{shape[1]} {'shipped' if setting is None else setting.name()}"
                yield name, lambda c=case, s=setting, n=shape: measure(c, s, n, dry)
