"""Each op of `fastbert.ops` against torch, forward and backward, with its share of the machine's peak.

The two run in turn in this process. GB/s counts the bytes that an op must read and write once, GFLOP/s the arithmetic
that it must do, whatever the competitor does. An op whose error against float64 exceeds the tolerance rule gets no
figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native, ops, reference
from ..packing import cu_seqlens_from_lengths
from ..rng import Dropout
from .shapes import ATTENTION_SHAPES, LAYER_SHAPES, LOSS_SHAPES, PRODUCT_SHAPES
from .turns import timed_in_turn

DROPOUT = Dropout(p=0.1, seed=1, offset=0, site=1)


@dataclass
class Case:
    """An op at a shape.

    Args:
        op, shape: their names.
        kernel, eager, truth: our, torch's and the reference's function of the leaves.
        leaves: the differentiable arguments, float32.
        dout: the gradient of the result.
        num_bytes: the bytes that forward and backward must move, with 4 bytes per element.
        flops: those of matrix products, forward and backward; 0 if there are none.
        activations: which leaves are bfloat16 in a bf16 run.
    """

    op: str
    shape: str
    kernel: Callable
    eager: Callable
    truth: Callable
    leaves: list[Tensor]
    dout: Tensor
    num_bytes: float
    flops: float = 0.0
    activations: tuple[int, ...] = (0,)


def gelu(shape: str) -> Case:
    """Bias and GELU on (T, F)."""
    tokens, _, width = LAYER_SHAPES[shape]
    leaves = [torch.randn(tokens, width), torch.randn(width)]
    num_bytes = 4 * 5 * tokens * width  # x, out; dout, x, dx
    dout = torch.randn(tokens, width)
    return Case(
        "bias + gelu",
        shape,
        ops.gelu,
        lambda x, bias: F.gelu(x + bias.to(x.dtype)),
        reference.gelu,
        leaves,
        dout,
        num_bytes,
    )


def layer_norm(shape: str) -> Case:
    """Bias, residual and LayerNorm at the end of a layer's branch, on (T, H)."""
    tokens, hidden, _ = LAYER_SHAPES[shape]
    leaves = [torch.randn(tokens, hidden), *(torch.randn(hidden) for _ in range(3)), torch.randn(tokens, hidden)]

    def kernel(x, weight, bias, x_bias, residual):
        return ops.layer_norm(x, weight, bias, 1e-12, x_bias=x_bias, residual=residual, dropout=DROPOUT)

    def eager(x, weight, bias, x_bias, residual):
        x = residual + F.dropout(x + x_bias.to(x.dtype), DROPOUT.p)
        return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), 1e-12)

    def truth(x, weight, bias, x_bias, residual):
        return reference.layer_norm(x, weight, bias, 1e-12, x_bias=x_bias, residual=residual, dropout=DROPOUT)

    num_bytes = 4 * 8 * tokens * hidden  # x, residual, sum, out; dout, sum, dx, dresidual
    dout = torch.randn(tokens, hidden)
    return Case(
        "dropout + residual + layer_norm",
        shape,
        kernel,
        eager,
        truth,
        leaves,
        dout,
        num_bytes,
        activations=(0, 4),
    )


def dropout(shape: str) -> Case:
    """Dropout on (T, H)."""
    tokens, hidden, _ = LAYER_SHAPES[shape]
    x, dout = torch.randn(tokens, hidden), torch.randn(tokens, hidden)
    return Case(
        "dropout",
        shape,
        lambda x: ops.dropout(x, DROPOUT),
        lambda x: F.dropout(x, DROPOUT.p),
        lambda x: reference.dropout(x, DROPOUT),
        [x],
        dout,
        4 * 4 * tokens * hidden,
    )


def cross_entropy(shape: str) -> Case:
    """The masked-LM loss on (N, V)."""
    rows, vocabulary = LOSS_SHAPES[shape]
    labels = torch.randint(vocabulary, (rows,))
    eager = lambda x: F.cross_entropy(x, labels)  # noqa: E731
    return Case(
        "cross_entropy",
        shape,
        lambda x: ops.cross_entropy(x, labels),
        eager,
        eager,
        [torch.randn(rows, vocabulary)],
        torch.tensor(1.0),
        4 * 3 * rows * vocabulary,  # logits; logits, dlogits
    )


def linear(shape: str) -> Case:
    """A dense layer, (T, in) -> (T, out)."""
    tokens, width_in, width_out = PRODUCT_SHAPES[shape]
    leaves = [torch.randn(tokens, width_in), torch.randn(width_out, width_in) / width_in**0.5, torch.randn(width_out)]
    moved = tokens * (width_in + width_out) + width_in * width_out
    return Case(
        "linear",
        shape,
        ops.linear,
        F.linear,
        reference.linear,
        leaves,
        torch.randn(tokens, width_out),
        4 * 3 * moved,
        6.0 * tokens * width_in * width_out,
        activations=(0, 1, 2),
    )


def attention(shape: str) -> Case:
    """Attention over sequences of one length, (T, nheads, head_dim)."""
    batch, seqlen, nheads, head_dim = ATTENTION_SHAPES[shape]
    tokens = batch * seqlen
    leaves = [torch.randn(tokens, nheads, head_dim) for _ in range(3)]
    cu_seqlens = cu_seqlens_from_lengths(torch.full((batch,), seqlen))

    def eager(q, k, v):
        q, k, v = (t.view(batch, seqlen, nheads, head_dim).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(tokens, nheads, head_dim)

    return Case(
        "attention",
        shape,
        lambda q, k, v: ops.attention(q, k, v, cu_seqlens, seqlen),
        eager,
        lambda q, k, v: reference.attention(q, k, v, cu_seqlens, seqlen),
        leaves,
        torch.randn(tokens, nheads, head_dim),
        4 * 12 * tokens * nheads * head_dim,  # q, k, v, out; these and dout, dq, dk, dv
        # q k' and p v forward; dv, dp, dq, dk and the recomputed q k' backward
        14.0 * batch * nheads * seqlen * seqlen * head_dim,
        activations=(0, 1, 2),
    )


CASES = (
    *((gelu, shape) for shape in LAYER_SHAPES),
    *((layer_norm, shape) for shape in LAYER_SHAPES),
    *((dropout, shape) for shape in LAYER_SHAPES),
    *((cross_entropy, shape) for shape in LOSS_SHAPES),
    *((linear, shape) for shape in PRODUCT_SHAPES),
    *((attention, shape) for shape in ATTENTION_SHAPES),
)


def gradients(function: Callable, leaves: list[Tensor], dout: Tensor) -> list[Tensor]:
    """The result and the gradients of all leaves."""
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, dout.to(out.dtype))]


def _excess(got: Tensor, true: Tensor, same: Tensor, factor: float) -> float:
    """The largest error, divided by the largest that the tolerance rule allows: factor x that of rounding + 1 ulp."""
    if got.shape != true.shape or not got.isfinite().all():
        return float("inf")
    largest = true.abs().max().to(got.dtype)
    ulp = float((torch.nextafter(largest, torch.full_like(largest, float("inf"))) - largest).double())
    allowed = factor * float((same.double() - true).abs().max()) + ulp
    return float((got.double() - true).abs().max()) / allowed


def check(case: Case, leaves: list[Tensor]) -> str | None:
    """None, or the reason why the kernel is wrong; by the tests' rule (2 x rounding, 3 x for gradients)."""
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    true = gradients(case.truth, doubles, case.dout.double())
    same = gradients(case.truth, leaves, case.dout)
    got = gradients(case.kernel, leaves, case.dout)
    for index, results in enumerate(zip(got, true, same, strict=True)):
        excess = _excess(*(t.detach() for t in results), factor=3 if index else 2)
        if not excess <= 1:
            what = f"the gradient of argument {index}" if index else "the result"
            return f"wrong: the error of {what} is {excess:.2g} x what rounding explains"
    return None


def measure(case: Case, dtype: torch.dtype, rounds: int, peaks: dict[str, float]) -> dict:
    """A row of the table; without figures if the kernel is wrong or refuses the case.

    Args:
        case: the op and its shape.
        dtype: that of the activations.
        rounds: the number of rounds.
        peaks: this machine's GFLOP/s, as "fp32" and "bf16", and GB/s, as "copy".
    """
    name = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    leaves = [
        (leaf.to(dtype) if index in case.activations else leaf).detach().requires_grad_()
        for index, leaf in enumerate(case.leaves)
    ]
    row = {"op": case.op, "shape": case.shape, "dtype": name}
    figures = ("ours_ms", "torch_ms", "ratio", "gb_per_s", "of_copy", "gflops", "of_peak")
    try:
        wrong = check(case, leaves)
    # An op may refuse a dtype, which then is its row of the table.
    except Exception as error:
        wrong = f"failed: {type(error).__name__}: {error}"
    if wrong:
        return row | dict.fromkeys(figures) | {"reason": wrong}
    sides = {"ours": case.kernel, "torch": case.eager}
    calls = {side: lambda function=function: gradients(function, leaves, case.dout) for side, function in sides.items()}
    ours, torchs = map(statistics.median, timed_in_turn(calls, rounds).values())
    gb_per_s = case.num_bytes * (0.5 if dtype == torch.bfloat16 else 1) / ours / 1e9
    gflops = case.flops / ours / 1e9 if case.flops else None
    return row | {
        "ours_ms": 1e3 * ours,
        "torch_ms": 1e3 * torchs,
        "ratio": torchs / ours,
        "gb_per_s": gb_per_s,
        "of_copy": gb_per_s / peaks["copy"] if peaks.get("copy") else None,
        "gflops": gflops,
        "of_peak": gflops / peaks[name] if gflops and peaks.get(name) else None,
        "reason": None,
    }


def run(rounds: int, threads: int, quick: bool, say: Callable[[str], None]) -> list[dict]:
    """Measures all cases, a row each; ``quick`` only the first shape of each op, in float32."""
    from .peers.probe import Probe, peaks

    torch.set_num_threads(threads)
    probe = None if _native.why_missing() else Probe(None, "fp32", threads)
    rows, seen = [], set()
    for make, shape in CASES:
        if quick and make in seen:
            continue
        seen.add(make)
        torch.manual_seed(0)
        case = make(shape)
        for dtype in (torch.float32,) if quick else (torch.float32, torch.bfloat16):
            say(f"kernels: {case.op} {shape} {dtype}")
            rates = probe.rates() if probe else {}
            # The probe's loops evict the operands from the caches, so both sides start equally cold.
            rows.append(measure(case, dtype, rounds, peaks(rates) | {"copy": rates.get("copy", 0.0)}))
    return rows
