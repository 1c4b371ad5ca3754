"""Checks of the arguments of a torch op that is called by its name (``torch.ops.fastbert.*``), in a graph or by hand.

Kernels read raw memory, trusting the sizes that they are given. The functions of `fastbert.ops` check their arguments
and then call the kernels directly; calls that reach a kernel through torch's dispatcher are checked here. Each op
describes its tensors in one line:

    x: activation (..., C); bias: parameter (C)

A letter stands for a size and is the same everywhere in the line; R is the number of rows, the product of the sizes
before the last. All activations have one dtype. A tensor that is optional in the schema may be missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..wording import dtype_name

_FLOATING = (torch.float32, torch.bfloat16)
_DTYPES = {
    "activation": _FLOATING,
    "parameter": _FLOATING,
    "state": (*_FLOATING, torch.float16),  # of the encoder, which widens it
    "float32": (torch.float32,),
    "int64": (torch.int64,),
    "index": (torch.int64, torch.int32),
    "uint8": (torch.uint8,),
}


class _Wanted(NamedTuple):
    place: int  # among the arguments
    name: str
    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[str, ...]  # begins with "..." if there may be further dimensions
    is_activation: bool


class Contract:
    """The requirements of one op.

    Args:
        schema: of the op, in torch's notation.
        tensors: the line for the op, as in the module's docstring.
        rest: called with all arguments; raises InputError for requirements other than shapes and dtypes.
    """

    def __init__(self, schema: str, tensors: str, rest: Callable[..., None] | None = None) -> None:
        self.op, _, after = schema.partition("(")
        names = [argument.split()[-1] for argument in after[: after.index(")")].split(",")]
        self._rest = rest
        self._wanted: list[_Wanted] = []
        self._passed: list[tuple | None] | None = None  # shapes and dtypes of the last call; most calls repeat them
        for one in tensors.split(";"):
            name, kind, sizes = re.fullmatch(r"\s*(\w+): (\w+) \((.*)\)\s*", one).groups()
            letters = tuple(filter(None, re.split(r",\s*", sizes)))
            self._wanted.append(_Wanted(names.index(name), name, _DTYPES[kind], letters, kind == "activation"))

    def check(self, *arguments: Any) -> None:
        """Raises InputError if an argument does not have the shape or dtype that the kernel assumes."""
        tensors = [arguments[wanted.place] for wanted in self._wanted]
        kinds = [None if x is None else (x.shape, x.dtype, x.layout) for x in tensors]
        if kinds != self._passed:
            self._check_tensors(tensors)
            self._passed = kinds
        if self._rest is not None:
            self._rest(*arguments)

    def _check_tensors(self, tensors: Sequence[Tensor | None]) -> None:
        known: dict[str, Any] = {}
        activation = None
        for wanted, x in zip(self._wanted, tensors, strict=True):
            if x is None:
                continue
            dtypes = wanted.dtypes if activation is None or not wanted.is_activation else (activation,)
            if x.dtype not in dtypes or x.layout is not torch.strided or not _fits(x.shape, wanted.sizes, known):
                raise InputError(f"{self.op}: {self._expected(wanted, dtypes, known)}, got {_described(x)}")
            if wanted.is_activation:
                activation = x.dtype

    def _expected(self, wanted: _Wanted, dtypes: Sequence[torch.dtype], known: dict[str, Any]) -> str:
        sizes = [str(n) for letter in wanted.sizes for n in _known_sizes(letter, known)]
        shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        return f"expected {wanted.name} {shape} in {' or '.join(dtype_name(dtype) for dtype in dtypes)}"


def _known_sizes(letter: str, known: dict[str, Any]) -> Sequence[int | str]:
    if letter == "...":
        return known.get(letter, ("...",))
    return (known.get(letter, letter),)


def _described(x: Tensor) -> str:
    layout = "" if x.layout is torch.strided else f" ({dtype_name(x.layout)})"
    return f"{tuple(x.shape)} in {dtype_name(x.dtype)}{layout}"


def _fits(shape: torch.Size, sizes: tuple[str, ...], known: dict[str, Any]) -> bool:
    """Whether a shape fits; records in ``known`` the sizes that are seen for the first time."""
    if sizes[:1] == ("...",):
        sizes = sizes[1:]
        split = len(shape) - len(sizes)
        if split < 0 or known.setdefault("...", shape[:split]) != shape[:split]:
            return False
        known["R"] = math.prod(shape[:split])
        shape = shape[split:]
    if len(shape) != len(sizes):
        return False
    return all(
        size == (int(letter) if letter.isdigit() else known.setdefault(letter, size))
        for size, letter in zip(shape, sizes, strict=True)
    )
