"""What a captured pre-training step on a GPU launches, without a GPU: `python benchmarks/gpu_step_table.py`.

The step is that of `train.graph.StaticStep`, of a model of full size, on tensors that have shapes and no numbers.
Triton's launcher works as on a GPU of capability 9.0 (tests/triton_backend/launches.py), torch takes itself to have one
(tests/stand_in_gpu.py), and all that is launched while the step is captured is taken down: Triton's kernels, of which
the compiler's first form tells what they read and write, and torch's operators. Nothing is computed or measured.

A launch takes at least as long as its bytes, its products or (attention) its other instructions take at the rates that
the hardware is stated to have. What is assumed: a tensor is read once and written once, whatever lies in a cache; every
sequence has the full length; an operator of torch is one launch (a sort is several), in which nothing is read but its
arguments; a launch by itself takes no time.

    python benchmarks/gpu_step_table.py --model large --seqlen 128 --optimizer lamb    # a row for each kernel
    python benchmarks/gpu_step_table.py --shapes                                       # for each shape of its argument
    python benchmarks/gpu_step_table.py --summary                                      # for each model and length
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
import triton  # before the stand-in: what is imported after it runs in the interpreter
from gpu_step_launches import CARDS, DENSE, Launch, Recorder

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "triton_backend")]

SIZES = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}  # hidden, layers, heads, inner
PREDICTED = {128: 20, 512: 80}  # tokens of a sequence, as in BERT's own data


def _beside_a_gpu() -> bool:
    """Whether this process has the stand-in; if not, one that has does all of its work, in a minute of compiling first.
    FASTBERT_STAND_IN_GPU names a library that was built before."""
    import stand_in_gpu  # first of all that imports torch

    if os.environ.get(stand_in_gpu.ENVIRONMENT):
        triton.knobs.runtime.interpret = False
        return True
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "stand_in_gpu.so"
        stand_in_gpu.build(library)
        environment = os.environ | {stand_in_gpu.ENVIRONMENT: str(library)}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
    return False


@contextlib.contextmanager
def _recording(recorder: Recorder) -> Iterator[None]:
    """A block in which tensors have no numbers, and what a capture begins and ends with is taken down."""
    from unittest.mock import patch

    import torch
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
    from triton.runtime.jit import JITFunction

    from fastbert import transforms
    from fastbert.modules import stack
    from fastbert.ops import _watchers
    from fastbert.triton_kernels import common, optimizer

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten._local_scalar_dense.default:
                assert not recorder.capturing, "the host reads the device in a captured step"
                return 1  # before it, of no importance
            pinned = function is torch.ops.aten._pin_memory.default
            results = args[0] if pinned else function(*args, **(kwargs or {}))
            recorder.operator(function, args, kwargs or {}, results)
            return results

    @contextlib.contextmanager
    def capture(_graph, **_options):
        recorder.capturing = True
        yield
        recorder.capturing = False

    run, layout, tables = JITFunction.run, optimizer._layout, optimizer.Tables.__init__

    def launch(self, *args, **options):
        kernel = run(self, *args, **options)
        recorder.kernel(self.fn.__name__, kernel, dict(zip(self.arg_names, args, strict=False)) | options)
        return kernel

    def laid_out(kinds, sizes, device):
        with _disable_current_modes():  # the host reads what it makes
            chunks, bounds, *numbers = layout(kinds, sizes, torch.device("cpu"))
        return *(torch.empty(x.shape, dtype=x.dtype, device=device) for x in (chunks, bounds)), *numbers

    def made(self, kinds, sizes, places, *rest) -> None:
        recorder.elements[id(places)] = sum(sizes)
        tables(self, kinds, sizes, places, *rest)

    patches = [
        patch.object(JITFunction, "run", launch),
        patch.object(common.kernel, "is_direct", False),
        patch.object(torch.cuda, "graph", capture),
        patch.object(torch.cuda.CUDAGraph, "replay", lambda _: None),
        patch.object(optimizer, "_layout", laid_out),
        patch.object(optimizer.Tables, "__init__", made),
        # Beside a GPU nobody looks on, and tensors are torch's own.
        *(patch.object(_watchers, name, lambda: False) for name in ("is_traced", "is_watched")),
        patch.object(transforms, "PLAIN_TENSORS", (*transforms.PLAIN_TENSORS, FakeTensor)),
        patch.object(stack, "Tensor", FakeTensor),
    ]
    with contextlib.ExitStack() as held:
        for one in patches:
            held.enter_context(one)
        held.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        held.enter_context(FakeTensorMode())
        held.enter_context(Operators())
        yield


def step(model: str, seqlen: int, tokens: int, dropout: float, optimizer: str) -> tuple[list[Launch], float]:
    """All launches of a captured step on full sequences, in their order, and its model flops."""
    import torch

    from fastbert import BertConfig, BertForPreTraining, optim
    from fastbert.data.budget import BatchShape
    from fastbert.train import flops, graph
    from fastbert.train.engine import LocalEngine

    hidden, layers, heads, inner = SIZES[model]
    config = BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    sequences = tokens // seqlen
    shape = BatchShape(sequences * seqlen, sequences, sequences * PREDICTED[seqlen], seqlen)
    recorder = Recorder(sequences * seqlen**2 * heads, hidden // heads)
    with _recording(recorder):
        with torch.device("cuda"):
            bert = BertForPreTraining(config).train()
        bert.last_layer = "needed"  # as `fastbert pretrain` has it
        kind = {"adamw": optim.AdamW, "lamb": optim.Lamb}[optimizer]
        engine = LocalEngine(bert, kind(optim.param_groups(bert, 0.01), lr=1e-4), precision="bf16", on_device=True)
        captured = graph.make(engine, shape, pairs=True, accumulate=1)
        batch = graph._empty_batch(shape, True, torch.device("cpu"))
        for _ in range(graph._WARM_UP + 1):
            captured.run([batch], 1e-4)
    return recorder.launches, flops.batch_flops(config, [seqlen] * sequences, shape.predictions)


def _sums(launches: list[Launch]) -> list[str]:
    read, written, flops = (sum(getattr(one, name) for one in launches) for name in ("read", "written", "flops"))
    times = (1e3 * sum(one.seconds(card) for one in launches) for card in CARDS)
    return [str(len(launches)), f"{read / 1e9:.2f}", f"{written / 1e9:.2f}", f"{flops / 1e12:.2f}"] + [
        f"{time:.2f}" for time in times
    ]


def _print(*rows: list[str]) -> None:
    for row in rows:
        print(f"| {' | '.join(row)} |")


def print_table(launches: list[Launch], model_flops: float, shapes: bool, least: float) -> None:
    groups: dict[tuple, list[Launch]] = defaultdict(list)
    for one in launches:
        name = f"product, {one.name}" if one.name in DENSE else one.name
        groups[(name, one.shapes if shapes else "")].append(one)
    ordered = sorted(groups.items(), key=lambda item: -sum(one.seconds("H100") for one in item[1]))
    heads = ["launch", *(["first operand"] if shapes else []), "count", "GB read", "GB written", "TFLOP"]
    _print([*heads, *(f"ms, {card}" for card in CARDS)], ["---"] * (len(heads) + len(CARDS)))
    others: list[Launch] = []
    for (name, of_shape), ones in ordered:
        if sum(one.seconds("H100") for one in ones) * 1e3 < least:
            others += ones
        else:
            _print([name, *([of_shape] if shapes else []), *_sums(ones)])
    _print([f"others, under {least:g} ms each", *([""] if shapes else []), *_sums(others)])
    _print(["all", *([""] if shapes else []), *_sums(launches)])
    print()
    for card in CARDS:
        print(f"{card}: {_verdict(launches, model_flops, card)}")


def _verdict(launches: list[Launch], model_flops: float, card: str) -> str:
    total, dense = (sum(one.seconds(card) for one in launches if every or one.name in DENSE) for every in (True, False))
    return f"MFU at most {model_flops / total / CARDS[card][1]:.1%}, {1 - dense / total:.1%} not in dense products"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SIZES), default="base")
    parser.add_argument("--seqlen", type=int, choices=sorted(PREDICTED), default=512)
    parser.add_argument("--tokens", type=int, default=32768, help="of the batch")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--optimizer", choices=("adamw", "lamb"), default="adamw")
    parser.add_argument("--shapes", action="store_true", help="a row for each shape")
    parser.add_argument("--least", type=float, default=0.08, help="milliseconds under which a row is one of the others")
    parser.add_argument("--summary", action="store_true", help="a row for each model and length")
    args = parser.parse_args()
    if not _beside_a_gpu():
        return
    import launches

    launches.stand_in()
    sizes = args.tokens, args.dropout, args.optimizer
    if not args.summary:
        print_table(*step(args.model, args.seqlen, *sizes), args.shapes, args.least)
        return
    _print(["model", "batch", "launches", "GB read", "GB written", "TFLOP", *(f"ms, {card}" for card in CARDS), *CARDS])
    _print(["---"] * (8 + len(CARDS)))
    for model in SIZES:
        for seqlen in PREDICTED:
            taken, model_flops = step(model, seqlen, *sizes)
            verdicts = [_verdict(taken, model_flops, card) for card in CARDS]
            _print([model, f"{args.tokens // seqlen} x {seqlen}", *_sums(taken), *verdicts])


if __name__ == "__main__":
    main()
