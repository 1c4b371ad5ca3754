"""Launches of a step, taken down: Triton's kernels, of which the compiler's first form tells what they read and write,
and torch's operators. What is assumed is in gpu_step_table.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from math import prod

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
