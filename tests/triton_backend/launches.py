"""Starts the Triton kernels as on a GPU, without one: what a launch is given decides what is compiled.

Triton compiles a kernel for the values of its arguments: 1 becomes a constant, multiples of 16 are noted. The
interpreter does none of it, and aot.py names types alone. Here Triton's own launcher, beside a driver that stands for
that of an sm_90 GPU, takes tensors on the CPU and turns each kernel into Triton's first form, where its language is
checked; nothing is computed, so results are rubbish.

``python tests/triton_backend/launches.py`` runs every op, the optimisers and training steps, and prints how many
kernels they were.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

import torch
import triton.compiler
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.driver import driver

from fastbert import BertConfig, BertForPreTraining, PackedBatch, ops, optim
from fastbert.data.budget import BatchShape, fill_up
from fastbert.ops import _dispatch, _triton
from fastbert.rng import Dropout
from fastbert.train import graph
from fastbert.train.engine import LocalEngine
from fastbert.triton_kernels import common

TARGET = GPUTarget("cuda", 90, 32)
compiled: list[str] = []
started: deque[_Kernel] = deque(maxlen=2)


class _Kernel:
    """What a compiled kernel is to a launch, with its first form."""

    function = packed_metadata = 0

    def __init__(self, module, context) -> None:
        self.module, self.context = module, context  # which the module's memory is of

    def launch_metadata(self, *_arguments) -> None: ...

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable:
        """As Triton's own."""
        return lambda *arguments: self.run(*grid, *arguments)

    def run(self, *arguments) -> None:
        started.append(self)
        for size, most in zip(arguments, (2**31 - 1, 65535, 65535), strict=False):
            assert 0 < size <= most, f"CUDA starts no grid of {arguments[:3]} programs"


def _compile(source, target, options, **_) -> _Kernel:
    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options(dict(options))
    assert options.enable_fp_fusion, f"{source.fn.__name__} depends on whether this Triton makes multiply-adds unasked"
    given = {
        "target": target,
        "options": options,
        "codegen_fns": backend.get_codegen_implementation(options),
        "module_map": backend.get_module_map(),
        "context": context,
    }
    # Triton 3.3 asks for no target.
    module = source.make_ir(**{name: given[name] for name in inspect.signature(source.make_ir).parameters})
    compiled.append(source.fn.__name__)
    return _Kernel(module, context)


def stand_in() -> None:
    """From now on Triton finds a GPU, and the ops take what is on the CPU for what is there."""
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "0"  # as it will be from Triton 3.10 on
    device = {"get_current_device": lambda: 0, "get_current_stream": lambda _: 0, "get_current_target": lambda: TARGET}
    driver.set_active(SimpleNamespace(**device))
    triton.compiler.compile = _compile
    _triton.why_not_device = lambda _: None
    for implementations in _dispatch._table.values():
        if "triton" in implementations:
            object.__setattr__(implementations["triton"], "available", lambda: None)


def ask_triton_too() -> None:
    """From now on what fastbert starts without Triton's search is held to what that finds."""
    launch = common.kernel._launch

    def held(self, grid, device, arguments, options) -> None:
        for _ in range(2):  # the second one is known
            launch(self, grid, device, arguments, options)
        assert self._compiled
        self.jitted[grid](*arguments, **options)
        assert started[0] is started[1], f"{self.jitted.fn.__name__} was started as compiled for other arguments"

    common.kernel._launch = held


def _both(function, *leaves: torch.Tensor) -> None:
    given = [leaf.requires_grad_() for leaf in leaves]
    out = function(*given)
    out.backward(torch.ones_like(out))


def every_op(tokens: int, columns: int, site: int, dtype: torch.dtype) -> None:
    """Forward and backward; all that is counted from 1 on is 1 somewhere."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(dtype)

    dropout = Dropout(0.1, 1, 2, site)
    weight, bias = torch.ones(columns), torch.zeros(columns)
    zeros = torch.zeros(tokens, dtype=torch.int64)
    bounds = torch.tensor([0, tokens], dtype=torch.int32)
    _both(lambda x: ops.dropout(x, dropout), random(tokens, columns))
    for options in ({}, {"x_bias": bias, "residual": random(tokens, columns), "dropout": dropout}):
        _both(lambda x, o=options: ops.layer_norm(x, weight, bias, 1e-12, **o), random(tokens, columns))
    for given in (None, dropout):
        _both(
            lambda *tables, g=given: ops.embedding(
                zeros, zeros, zeros, *tables, weight, bias, 1e-12, padding_idx=1, dropout=g
            ),
            *(random(rows, columns) for rows in (9, 1, 16)),
        )
    # Attention's kernels go by the longest sequence that there may be: up to 64 tokens, to 128, and longer.
    for given, causal, more in itertools.product((None, dropout), (False, True), (0, 64, 512)):
        _both(
            lambda q, k, v, g=given, c=causal, m=tokens + more: ops.attention(q, k, v, bounds, m, dropout=g, causal=c),
            *(random(tokens, 1, 16) for _ in "qkv"),
        )
    for approximate in ("none", "tanh"):
        _both(lambda x, a=approximate: ops.gelu(x, bias, a), random(tokens, columns))
    _both(lambda x: ops.cross_entropy(x, zeros, ignore_index=1), random(tokens, columns))


def large_batches() -> None:
    """Of more sequences and rows than CUDA counts in a grid's second and third dimensions."""
    many = 70_000
    _both(
        lambda q, k, v: ops.attention(q, k, v, torch.arange(many + 1, dtype=torch.int32), 1),
        *(torch.randn(many, 1, 16, dtype=torch.bfloat16) for _ in "qkv"),
    )
    every_op(many, 8, 1, torch.bfloat16)


def optimizers() -> None:
    params = [torch.nn.Parameter(torch.ones(n).to(dtype)) for n in (1, 20) for dtype in (torch.float32, torch.bfloat16)]
    for p in params:
        p.grad = torch.ones_like(p)
    for make in (optim.AdamW, optim.Lamb):
        optimizer = make(params)
        optimizer.step()
        optim.device_step(optimizer, torch.ones(1), max_norm=1.0)


def training(precision: str, steps: int = 2) -> None:
    """Whole steps, the second of which casts as all later ones do."""
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=1, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    model = BertForPreTraining(config).train()
    model.last_layer = "needed"
    optimizer = optim.AdamW(optim.param_groups(model, 0.01), lr=1e-3)
    engine = LocalEngine(model, optimizer, precision=precision, on_device=True)
    shape = BatchShape(tokens=16, sequences=2, predictions=2, max_seqlen=16)
    positions, one = torch.tensor([0, 7]), torch.tensor([1, 1])
    packed = PackedBatch.from_sequences([torch.arange(5, 12), torch.arange(5, 14)])
    names = ("input_ids", "token_type_ids", "position_ids", "cu_seqlens")
    kept = {name: getattr(packed, name) for name in names}
    batch = PackedBatch(**kept, max_seqlen=16, mlm_positions=positions, mlm_labels=one, nsp_labels=one)
    step = graph.make(engine, shape, pairs=True, accumulate=1)
    for _ in range(steps):
        step.run([fill_up(batch, shape, 0)], 1e-3)


def main() -> None:
    stand_in()
    ask_triton_too()
    torch.manual_seed(0)
    with ops.backend("triton"):
        for tokens, columns in ((1, 1), (16, 64)):
            every_op(tokens, columns, 1, torch.bfloat16)
        known = len(compiled)
        # Other numbers of tokens, and another layer.
        for tokens, site in ((32, 1), (33, 2), (48, 16)):
            every_op(tokens, 64, site, torch.bfloat16)
        assert compiled[known:] == [], f"a kernel is compiled anew for another batch or layer: {compiled[known:]}"
        large_batches()
        for first in (0, 1):  # on a whole 16 bytes, and not
            x = torch.randn(16 * 64 + 1)[first:][: 16 * 64].view(16, 64)
            _both(lambda x: ops.dropout(x, Dropout(0.1, 1, 2, 1)), x)
        optimizers()
        training("bf16")
        if ops._dispatch._table["linear_fp8"]["cpu"].available() is None:  # torch multiplies 8 bits here
            training("fp8")
    print(len(compiled), "kernels")


if __name__ == "__main__":
    main()
