"""AdamW, LAMB and the gradients' norm by the Triton kernels: all tensors in a constant number of launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .. import transforms
from ..errors import BackendError
from ..ops import _dispatch, _triton
from .base import Batch
from .device import Outcome, Rows, is_capturing
from .rates import is_corrected, lr_scale, rates


def _plain(tensor: Tensor) -> str | None:
    # Checked first: the memory of a DTensor or of a sparse tensor is not what its shape says.
    if type(tensor) not in transforms.PLAIN_TENSORS or tensor.layout is not torch.strided:
        return f"the Triton kernels take plain dense tensors, got a {type(tensor).__name__} ({tensor.layout})"
    return _triton.why_not(tensor)


# These checks run for every tensor of a model in every step: whole lists at a time, in few Python instructions.


def _of_each_kind(tensors: list[Tensor]) -> list[Tensor]:
    """One tensor of each kind for which `_plain` gives the same answer."""
    return list({(type(t), t.layout, t.dtype, t.device): t for t in tensors}.values())


def accepts_norm(tensors: list[Tensor]) -> str | None:
    kinds = _of_each_kind(tensors)
    if not kinds:
        return "there is no tensor"
    if len({t.device for t in kinds}) > 1:
        return "the Triton kernels take tensors of one device, got several"
    return next((reason for t in kinds if (reason := _plain(t))), None)


def accepts(batches: list[Batch], scale: Tensor | float = 1.0) -> str | None:
    params = [p for batch in batches for p in batch.params]
    gradients = [gradient for batch in batches for gradient in batch.gradients]
    return accepts_norm(params) or _why_not_gradients(gradients, params[0].device) or _why_not_states(batches)


def _why_not_gradients(gradients: list[Tensor], device: torch.device) -> str | None:
    for gradient in _of_each_kind(gradients):
        if reason := _plain(gradient):
            return reason
        if gradient.device != device:
            return f"the Triton kernels take gradients on the device of their parameters, got one on {gradient.device}"
    return None


def _why_not_states(batches: list[Batch]) -> str | None:
    if not all(p.is_contiguous() for batch in batches for p in batch.params):
        return _NOT_CONTIGUOUS
    for batch in batches:
        sizes = list(map(Tensor.numel, batch.params))
        for states in (batch.targets, batch.first, batch.second):
            if not all(map(Tensor.is_contiguous, states)):
                return _NOT_CONTIGUOUS
            if not {state.dtype for state in states} <= {torch.float32} or list(map(Tensor.numel, states)) != sizes:
                kinds = ", ".join(sorted({str(state.dtype) for state in states}))
                return f"the Triton kernels take float32 states of their parameter's size, got {kinds}"
    return None


_NOT_CONTIGUOUS = "the Triton kernels take contiguous parameters and states, got one that is not"


def _upload(rows: list, dtype: torch.dtype, device: torch.device) -> Tensor:
    host = torch.tensor(rows, dtype=dtype, device="cpu")  # whatever torch's default device is
    if device.type != "cuda":
        return host
    # Copying from pinned memory does not wait for the device; the allocator keeps the memory until it is done.
    return host.pin_memory().to(device, non_blocking=True)


def _refuse_capture(what: str, device: torch.device) -> None:
    """Replays would read tables of addresses from memory that was freed after the capture."""
    if is_capturing(device):
        raise BackendError(f"{what} cannot be captured in a CUDA graph: expected fastbert.optim.device_step")


def _aligned(places: list[tuple[int, ...]]) -> bool:
    return not any((p | grad | master | m | v) % 16 for p, grad, master, m, v, _size, _count in places)


@_dispatch.register("grad_norm", "triton", available=_triton.why_missing, accepts=accepts_norm)
def grad_norm(tensors: list[Tensor]) -> Tensor:
    from ..triton_kernels import optimizer as kernels

    _refuse_capture("the norm of gradients", tensors[0].device)
    tensors = sorted((t.contiguous() for t in tensors), key=lambda t: str(t.dtype))
    places = [(0, t.data_ptr(), 0, 0, 0, t.numel(), 0) for t in tensors]
    kinds = tuple((t.dtype, t.dtype) for t in tensors)
    device = tensors[0].device
    sizes = tuple(t.numel() for t in tensors)
    tables = kernels.Tables(kinds, sizes, _upload(places, torch.int64, device), None, _aligned(places))
    return kernels.square_sums(tables).double().sum().sqrt().float()


def _places(batch: Batch, gradients: list[Tensor], counts: Iterable[int]) -> list[tuple[int, ...]]:
    """Each tensor's row of the table: addresses of its parameter, gradient, target and moments, size, and count."""
    columns = (batch.params, gradients, batch.targets, batch.first, batch.second)
    pointers = (map(Tensor.data_ptr, column) for column in columns)
    return list(zip(*pointers, map(Tensor.numel, batch.params), counts, strict=True))


def _kinds(params: list[Tensor], gradients: list[Tensor]) -> list[tuple[torch.dtype, torch.dtype]]:
    return [(p.dtype, gradient.dtype) for p, gradient in zip(params, gradients, strict=True)]


def _update(name: str) -> Callable:
    from ..triton_kernels import adamw, lamb

    return {"adamw": adamw.adamw, "lamb": lamb.lamb}[name]


def run(name: str, batches: list[Batch], scale: Tensor | float, update: Callable | None = None) -> None:
    """Makes the step of the optimiser ``name``; ``update(tables, control)`` replaces the Triton kernel's function."""
    from ..triton_kernels import optimizer as kernels

    device = batches[0].params[0].device
    _refuse_capture("optimizer.step", device)
    gradients, entries = [], []  # copies of gradients must live until the kernels are launched
    for batch in batches:
        gradients.append([gradient.contiguous() for gradient in batch.gradients])
        of_step = {step: rates(name, batch.group, step) for step in set(batch.steps)}
        numbers = [of_step[step] for step in batch.steps]
        places = _places(batch, gradients[-1], [0] * len(numbers))
        entries += zip(_kinds(batch.params, gradients[-1]), places, numbers, strict=True)
    if len({kind for kind, _, _ in entries}) > 1:  # tensors of the same dtypes must be adjacent
        entries.sort(key=lambda entry: str(entry[0]))
    kinds, places, numbers = zip(*entries, strict=True)
    tables = kernels.Tables(
        kinds,
        tuple(row[5] for row in places),
        _upload(places, torch.int64, device),
        _upload(numbers, torch.float32, device),
        _aligned(places),
    )
    control = _upload([0.0, 1.0 if isinstance(scale, Tensor) else scale, 1.0], torch.float32, device)
    if isinstance(scale, Tensor):
        control[1] = scale
    (update or _update(name))(tables, control)
    torch.autograd.graph.increment_version([p for batch in batches for p in batch.params])


@_dispatch.register("adamw", "triton", available=_triton.why_missing, accepts=accepts)
def adamw(batches: list[Batch], scale: float = 1.0) -> None:
    run("adamw", batches, scale)


@_dispatch.register("lamb", "triton", available=_triton.why_missing, accepts=accepts)
def lamb(batches: list[Batch], scale: Tensor | float = 1.0) -> None:
    run("lamb", batches, scale)


def _accepts_device(kind: str, batches: list[Batch], rows: Rows, *_rates) -> str | None:
    return accepts(batches)


class _Prepared:
    """Tables that the kernels read and that cannot be made during a capture: in device memory, and pinned memory for
    one more. They have a row for every parameter of the optimiser, with or without a gradient.
    """

    def __init__(self, kind: str, rows: Rows, numbers: dict[int, tuple[float, ...]], before: _Prepared | None) -> None:
        self.row_of = {id(p): i for i, p in enumerate(rows.params)}
        self.numbers = numbers
        hyper = []
        for group in rows.groups:
            corrected = is_corrected(kind, group)
            logs = [math.log2(b) if b else -1e9 for b in group["betas"]] if corrected else [0.0, 0.0]
            hyper.append([*logs, lr_scale(group)])
        self.rates = _upload([rates(kind, group, 1) for group in rows.groups], torch.float32, rows.device)
        self.hyper = _upload(hyper, torch.float64, rows.device)
        # The tables of each layout. The replays of a graph read them, so they are kept.
        self.layouts: dict[tuple, tuple[Tensor, Tensor]] = {}
        self._places: list[tuple[int, ...]] | None = None
        self._table: Tensor | None = None
        self._spare: tuple[Tensor, Tensor] | None = None
        # Kept for the replays of graphs; those of other rates too.
        self._captured: list = []
        self.replaced: list[_Prepared] = []
        if before is not None:
            self.replaced = before.replaced + ([before] if before._captured else [])

    def places(self, places: list[tuple[int, ...]], device: torch.device) -> Tensor:
        """The table of these rows, in device memory. One that a captured step reads is kept for its replays."""
        capturing = is_capturing(device)
        if device.type == "cuda" and not capturing and self._spare is None:
            shape = (len(places), len(places[0]))
            pinned = torch.empty(shape, dtype=torch.int64, pin_memory=True, device="cpu")
            self._spare = pinned, torch.empty(shape, dtype=torch.int64, device=device)
        table = self._table if places == self._places else None
        if table is None and not capturing:
            self._places, table = places, _upload(places, torch.int64, device)
            self._table = table
        elif table is None:
            if self._spare is None:
                raise BackendError("a step on the device must run once before it is captured, got none since the last")
            # Filled by each replay and not before the first one: no other step may read it.
            pinned, table = self._spare
            self._spare = None
            pinned.copy_(torch.tensor(places, dtype=torch.int64, device="cpu"))
            table.copy_(pinned, non_blocking=True)
            self._captured.append(pinned)
        if capturing:
            self._captured.append(table)
        return table

    def check(self, layout: tuple, device: torch.device) -> None:
        """Raises BackendError during a capture if the tables of a layout are not in device memory yet."""
        if layout not in self.layouts and is_capturing(device):
            raise BackendError("a captured step on the device must have the gradients of the step that ran before it")


@_dispatch.register("device_step", "triton", available=_triton.why_missing, accepts=_accepts_device)
def step_on_device(
    kind: str,
    batches: list[Batch],
    rows: Rows,
    lr: Tensor,
    grad_scale: Tensor,
    max_norm: float,
    most_norm: float,
    update: Callable | None = None,
) -> Outcome:
    from ..triton_kernels import optimizer as kernels

    # By a group's address, which is unique while the rows hold the group; without lr, which is on the device.
    numbers = {address: (lr_scale(group), *rates(kind, group, 1)[1:]) for address, group in rows.by_address.items()}
    prepared = rows.prepared.get("triton")
    if prepared is None or prepared.numbers != numbers:
        if is_capturing(rows.device):  # what is made in a capture is not there before its first replay
            raise BackendError("a step on the device must run once, with the same rates, before it is captured")
        prepared = rows.prepared["triton"] = _Prepared(kind, rows, numbers, prepared)
    # A parameter without a gradient has no elements here, and its step is not counted.
    places = [(0,) * 7] * len(rows.params)
    kinds = _kinds(rows.params, rows.params)
    gradients, first_count = [], rows.counts.data_ptr()
    for batch in batches:
        gradients.append([gradient.contiguous() for gradient in batch.gradients])
        at = [prepared.row_of[address] for address in map(id, batch.params)]
        of_batch = _places(batch, gradients[-1], (first_count + 4 * row for row in at))
        for row, place, of_tensor in zip(at, of_batch, _kinds(batch.params, gradients[-1]), strict=True):
            places[row], kinds[row] = place, of_tensor
    layout = (tuple(kinds), tuple(row[5] for row in places))
    prepared.check(layout, rows.device)
    tables = kernels.Tables(*layout, prepared.places(places, rows.device), prepared.rates, _aligned(places))
    prepared.layouts.setdefault(layout, (tables.chunks, tables.bounds))
    partial = kernels.square_sums(tables)
    control = kernels.control(tables, partial, prepared.hyper, lr, grad_scale, max_norm, most_norm)
    (update or _update(kind))(tables, control)
    torch.autograd.graph.increment_version([p for batch in batches for p in batch.params])
    return Outcome(norm=control[0], finite=control[2])
