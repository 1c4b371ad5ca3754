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
import re
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
import triton  # before the stand-in: what is imported after it runs in the interpreter

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "triton_backend")]

# Bytes and flops of dense bfloat16 products a second, as NVIDIA states them for the SXM modules.
CARDS = {"H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}
# Instructions a second of all lanes: 132 multiprocessors of 128 lanes at 1.7 GHz.
INSTRUCTIONS = 132 * 128 * 1.7e9
# Of attention's kernels, by name and whether a gradient is made in one pass: instructions a score, from sm_90's machine
# code for a head of 64 in bfloat16 with dropout (the shorter forward's are taken to be the longer's), and products a
# score, of 2 head_dim flops each.
ATTENTION = {
    ("_attention_fwd_kernel", False): (25.8, 2),
    ("_attention_fwd_block_kernel", False): (25.8, 2),
    ("_attention_bwd_dkdv_kernel", False): (20.8, 4),
    ("_attention_bwd_dq_kernel", False): (21.5, 3),
    ("_attention_bwd_dq_kernel", True): (25.0, 5),
}
SIZES = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}  # hidden, layers, heads, inner
PREDICTED = {128: 20, 512: 80}  # tokens of a sequence, as in BERT's own data
DENSE = ("mm", "addmm", "addmm_", "bmm")


@dataclass
class Launch:
    """One launch: bytes, flops of products, and attention's other instructions."""

    name: str
    shapes: str
    read: float
    written: float
    flops: float = 0.0
    instructions: float = 0.0

    def seconds(self, card: str) -> float:
        memory, products = CARDS[card]
        return max((self.read + self.written) / memory, self.flops / products, self.instructions / INSTRUCTIONS)


# --- Triton's kernels ---


@dataclass
class Roles:
    """What a kernel reads and writes: arguments by name; of tensors that a table points to, the bytes an element."""

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    read_by_table: int = 0
    written_by_table: int = 0


def roles_of(kernel) -> Roles:
    if not hasattr(kernel, "roles"):
        from triton._C.libtriton import ir, passes

        manager = ir.pass_manager(kernel.context)
        passes.common.add_inliner(manager)
        try:
            manager.run(kernel.module, "gpu_step_table")
        except TypeError:  # before Triton 3.6 passes had no name
            manager.run(kernel.module)
        kernel.roles = read_roles(str(kernel.module))
    return kernel.roles


_RESULT = re.compile(r"^\s*(%\w+)(?::\d+)? = (.*)$")
_CARRIED = re.compile(r"(%\w+) = (%\w+)")
_ACCESS = re.compile(r"(tt\.load|tt\.store|tt\.atomic_rmw \w+, \w+, \w+,) (%\w+)")
_POINTERS = ("tt.splat", "tt.addptr", "tt.broadcast", "tt.expand_dims", "arith.select", "scf.for")
_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "i8": 1}


def read_roles(text: str) -> Roles:
    """From a kernel in Triton's own form, without calls: follows the pointer of each access to where it comes from."""
    made_of: dict[str, list[str]] = defaultdict(list)
    arguments: set[str] = set()
    of_table: dict[str, int] = {}
    accesses = []
    for line in text.splitlines():
        if "tt.func" in line:
            arguments.update(re.findall(r"(%\w+): !tt\.ptr", line))
            continue
        line = line.split(" loc(")[0]
        if "iter_args" in line:
            for name, value in _CARRIED.findall(line.partition("iter_args")[2]):
                made_of[name].append(value)
        found = _RESULT.match(line)
        if found and found[2].startswith("tt.int_to_ptr"):
            of_table[found[1]] = _BYTES[re.findall(r"!tt\.ptr<(\w+)>", line)[-1]]
        elif found and found[2].startswith(_POINTERS):
            made_of[found[1]] += re.findall(r"%\w+", found[2])
        accesses += [(kind, pointer, "tensor<" in line) for kind, pointer in _ACCESS.findall(line)]
    roles, counted = Roles(), set()
    for access, pointer, is_block in accesses:
        for root in _roots(pointer, made_of, arguments | set(of_table)):
            for kind in {"tt.load": ["read"], "tt.store": ["written"]}.get(access, ["read", "written"]):
                if root in arguments:
                    getattr(roles, kind).add(root[1:])
                elif is_block and (root, kind) not in counted:
                    counted.add((root, kind))
                    setattr(roles, f"{kind}_by_table", getattr(roles, f"{kind}_by_table") + of_table[root])
    return roles


def _roots(name: str, made_of: dict[str, list[str]], ends: set[str]) -> set[str]:
    todo, seen = [name], set()
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += [] if one in ends else made_of.get(one, [])
    return seen & ends


# --- what is launched ---

_NO_LAUNCH = {
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
    *("detach", "alias", "_unsafe_view", "lift_fresh", "device", "_pin_memory"),
}
_ONLY_WRITE = {"zero_", "fill_", "copy_", "_foreach_copy_"}
_FILL_FIRST = {"constant_pad_nd", "slice_backward", "select_backward"}


def bytes_of(x) -> int:
    """Of a tensor, places that share memory counted once."""
    return prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride) * x.element_size()


def _shapes(tensors) -> str:
    kinds = {"bfloat16": "bf16", "float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32"}
    names = ((str(x.dtype).removeprefix("torch."), "x".join(map(str, x.shape))) for x in tensors)
    return ", ".join(f"{kinds.get(kind, kind)} {shape}".strip() for kind, shape in names)


class Recorder:
    """Takes launches down while ``capturing``.

    Args:
        scores: of attention, in a layer.
        head_dim: of its heads.
    """

    def __init__(self, scores: int, head_dim: int) -> None:
        self.launches: list[Launch] = []
        self.capturing = False
        self.scores, self.head_dim = scores, head_dim
        self.elements: dict[int, int] = {}  # of all tensors that an optimiser's table points to, by the table

    def kernel(self, name: str, kernel, arguments: dict) -> None:
        """One of Triton's."""
        if not self.capturing:
            return
        roles = roles_of(kernel)
        tensors = {key: x for key, x in arguments.items() if hasattr(x, "element_size")}
        moved = [
            float(sum(bytes_of(x) for key, x in tensors.items() if key in keys)) for keys in (roles.read, roles.written)
        ]
        if roles.read_by_table or roles.written_by_table:
            elements = self.elements[id(tensors["places_ptr"])]
            moved = [moved[0] + elements * roles.read_by_table, moved[1] + elements * roles.written_by_table]
        instructions, products = ATTENTION.get((name, bool(arguments.get("ONE_PASS"))), (0, 0))
        launch = Launch(name.strip("_").removesuffix("_kernel"), _shapes(list(tensors.values())[:1]), *moved)
        launch.flops, launch.instructions = self.scores * products * 2 * self.head_dim, self.scores * instructions
        self.launches.append(launch)

    def operator(self, function, args: tuple, kwargs: dict, results) -> None:
        """One of torch's."""
        import torch
        from torch.utils._pytree import tree_leaves

        def tensors(values) -> list:
            return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]

        name, schema = function.__name__.split(".")[0], function._schema
        is_view = any(result.alias_info and not result.alias_info.is_write for result in schema.returns)
        if not self.capturing or is_view or name in _NO_LAUNCH or torch.Tag.inplace_view in function.tags:
            return
        reads, writes = [], []
        for argument, value in [*zip(schema.arguments, args, strict=False), *((None, v) for v in kwargs.values())]:
            is_written = argument is not None and argument.alias_info is not None and argument.alias_info.is_write
            writes += tensors(value) if is_written else []
            reads += [] if is_written and name in _ONLY_WRITE else tensors(value)
        writes = writes or tensors(results)
        if not any(x.device.type == "cuda" for x in reads + writes):
            return
        read, written, flops = float(sum(map(bytes_of, reads))), float(sum(map(bytes_of, writes))), 0.0
        shown = reads or writes
        if name in DENSE:
            shown = [x for x in reads if x.dim() > 1][-2:]
            flops = 2.0 * shown[0].numel() * shown[1].shape[-1]
        elif name in _FILL_FIRST and written > read:
            self.launches.append(Launch(f"{name}, zeros", _shapes(writes), 0.0, written))
            written = read
        elif name == "index_add":  # in place in torch's gradient of a selection, but for tensors of another class
            name, read, written = "index_add_", read - bytes_of(reads[0]) + bytes_of(reads[-1]), bytes_of(reads[-1])
        self.launches.append(Launch(name, _shapes(shown), read, written, flops))


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

    import fastbert.optim._triton as optim_triton
    from fastbert.modules import stack
    from fastbert.ops import _cpu
    from fastbert.triton_kernels import optimizer

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
        patch.object(torch.cuda, "graph", capture),
        patch.object(torch.cuda.CUDAGraph, "replay", lambda _: None),
        patch.object(optimizer, "_layout", laid_out),
        patch.object(optimizer.Tables, "__init__", made),
        # Beside a GPU nobody looks on, and tensors are torch's own.
        *(patch.object(_cpu, name, lambda: False) for name in ("is_traced", "is_watched")),
        patch.object(_cpu, "_PLAIN_TENSORS", (*_cpu._PLAIN_TENSORS, FakeTensor)),
        patch.object(optim_triton, "_PLAIN", (*optim_triton._PLAIN, FakeTensor)),
        patch.object(stack, "PLAIN_TENSORS", (*stack.PLAIN_TENSORS, FakeTensor)),
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


# --- tables ---


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
