"""The one place that chooses who computes an op.

There is one table: (op, backend) -> implementation. An implementation that cannot serve a call gives a reason:
``available`` returns reasons that hold for the whole process (an extension that was not built), ``accepts`` those that
hold for one call (a dtype, a device). "auto" takes the first backend of `ORDER` without a reason, and logs the choice
once per op; a backend that was asked for by name either serves the call or raises.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import BackendError, InputError
from ..transforms import is_transformed

ORDER = ("cuda", "triton", "cpu", "reference")
_log = logging.getLogger("fastbert")


def _nothing(*_args, **_kwargs) -> None:
    return None


@dataclass(frozen=True)
class Implementation:
    """An entry of the table: ``available`` and ``accepts`` return None, or a reason why ``function`` cannot serve."""

    op: str
    backend: str
    function: Callable
    available: Callable[[], str | None]
    accepts: Callable[..., str | None]


_table: dict[str, dict[str, Implementation]] = {}
_logged: set[tuple[str, str]] = set()


class _Choice(threading.local):
    """The choice of `backend` in this thread. A compiled function keeps the one that held when it was traced."""

    name: str | None = None


_choice = _Choice()


def register(
    op: str,
    backend: str,
    *,
    available: Callable[[], str | None] = _nothing,
    accepts: Callable[..., str | None] = _nothing,
) -> Callable[[Callable], Callable]:
    """Decorator that adds an implementation to the table.

    Args:
        op, backend: its key in the table.
        available: returns None, or why no call of this process can be served.
        accepts: called with the op's arguments; returns None, or why this call cannot be served.
    """

    def enter(function: Callable) -> Callable:
        _table.setdefault(op, {})[backend] = Implementation(op, backend, function, available, accepts)
        return function

    return enter


def _checked(name: str, source: str) -> str:
    if name != "auto" and name not in ORDER:
        raise InputError(f"{source} must be one of auto, {', '.join(ORDER)}; got {name!r}")
    return name


def current_backend() -> str:
    """The backend chosen in this thread: by the innermost `backend` block, else by FASTBERT_BACKEND, else "auto".

    Raises:
        InputError: FASTBERT_BACKEND names no backend.
    """
    return _choice.name or _checked(os.environ.get("FASTBERT_BACKEND") or "auto", "FASTBERT_BACKEND")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Chooses the backend that computes every op inside the block, in this thread.

    Args:
        name: "auto" takes, for each call, the first of cuda, triton, cpu and reference that can serve it; "reference"
            is plain PyTorch; "cpu", "triton" and "cuda" insist on those kernels. The environment variable
            FASTBERT_BACKEND does the same for a whole process.

    Raises:
        InputError: no backend has that name.
        BackendError: (from an op inside) the backend that was named cannot serve that op; it never falls back silently.
    """
    before, _choice.name = _choice.name, _checked(name, "backend")
    try:
        yield
    finally:
        _choice.name = before


def _wanted() -> str:
    """The backend chosen for a call; "reference" if torch must see the ops inside (`is_transformed`)."""
    name = current_backend()
    if name == "reference" or not is_transformed():
        return name
    if name != "auto":
        raise BackendError(
            f"backend {name!r} was asked for by name but cannot serve an export, forward-mode differentiation or "
            f"torch.func: expected backend 'reference' or 'auto'"
        )
    return "reference"


def _first(op: str, names: tuple[str, ...], args: tuple, kwargs: dict) -> Implementation | None:
    """The first of these backends that can serve a call, or None."""
    for name in names:
        one = _table[op].get(name)
        if one is not None and not one.available() and not one.accepts(*args, **kwargs):
            return one
    return None


def choose(op: str, *args, **kwargs) -> Implementation:
    """The implementation that serves this call.

    Raises:
        BackendError: the backend that was asked for by name cannot serve it; the message says why.
        InputError: a tensor is on the meta device.
    """
    wanted = _wanted()
    found = _first(op, ORDER if wanted == "auto" else (wanted,), args, kwargs)
    if found is None:
        raise BackendError(_why_refused(op, wanted, args, kwargs))
    if found.backend == "reference":  # no kernel accepts meta tensors, so they end up here
        _refuse_meta(op, args, kwargs)
    if wanted == "auto" and not torch.compiler.is_compiling() and (op, found.backend) not in _logged:
        _logged.add((op, found.backend))
        _log.info("%s is served by backend %s", op, found.backend)
    return found


def _why_refused(op: str, wanted: str, args: tuple, kwargs: dict) -> str:
    if wanted == "auto":
        return f"{op}: no backend can serve this call"
    one = _table[op].get(wanted)
    reason = "it has no implementation of this op" if one is None else one.available() or one.accepts(*args, **kwargs)
    return f"{op}: backend {wanted!r} was asked for by name but cannot serve: {reason}"


def _refuse_meta(op: str, args: tuple, kwargs: dict) -> None:
    """Raises InputError for a tensor on the meta device, before torch fails with an error that does not help."""
    if not torch.compiler.is_compiling() and any(getattr(x, "is_meta", False) for x in (*args, *kwargs.values())):
        raise InputError(
            f"{op}: expected tensors with numbers, got one on the meta device: load the weights first, with "
            f"load_state_dict(..., assign=True) or from_pretrained"
        )


def fused(op: str, *args, **kwargs) -> Callable | None:
    """The kernel that would serve this call, or None if the reference would. For an op that the caller can also compose
    of smaller ones, which is faster than its reference.

    Args:
        op: its name, such as "mlp".
        args, kwargs: those of the call.
    """
    wanted = _wanted()
    if wanted == "reference":
        return None
    found = _first(op, ORDER[:-1] if wanted == "auto" else (wanted,), args, kwargs)
    return None if found is None else found.function


def is_fused(op: str, *args: Any, **kwargs: Any) -> bool:
    """Whether a kernel, and not the reference, would serve this call (see `fused`)."""
    return fused(op, *args, **kwargs) is not None


def call(op: str, *args, **kwargs):
    """Runs an op on the backend chosen for this call."""
    return choose(op, *args, **kwargs).function(*args, **kwargs)


def table() -> list[dict]:
    """A row per op: the backend that serves it here by default, and why the others do not."""
    rows = []
    for op, implementations in sorted(_table.items()):
        reasons = {
            name: implementations[name].available() if name in implementations else "no implementation"
            for name in ORDER
        }
        serving = next(name for name in ORDER if reasons[name] is None)
        rows.append({"op": op, "backend": serving, "why_not": {n: r for n, r in reasons.items() if r is not None}})
    return rows


def served() -> str:
    """For a run's header: the backend that serves the ops now, by default or by name, and which ops others serve."""
    name = current_backend()
    if name != "auto":
        return name
    ops: dict[str, list[str]] = {}
    for row in table():
        ops.setdefault(row["backend"], []).append(row["op"])
    most = max(ops, key=lambda backend: len(ops[backend]))
    others = [f"{backend} for {', '.join(ops[backend])}" for backend in ORDER if backend in ops and backend != most]
    return "; ".join([most, *others])
