"""Dense layers on the CPU: our own products with packed weights where they are faster than torch's, else torch's.

Bfloat16 is always computed here, also in training: without AMX, torch's bfloat16 product is slower than its float32
product, and it ends the process with an illegal instruction on a processor that announces AMX but has no tiles.
Float32 without a gradient is computed here for few rows, where reading the weights takes most of the time. Float32 of
many rows, also in training, is computed on AMX tiles, in two bfloat16 parts, if `torch.set_float32_matmul_precision` or
`products_in_two_parts` allows it.
On AMD processors with AVX-512 all float32 is computed here, except the smallest products in training: the library in
torch reaches 45 to 85 % of our rate, and on Zen 4 and 5 ours is Winograd's inner product, which is faster than
multiply-adds can be (docs/cpu-performance.md).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .. import _native, hardware, reference
from ..errors import InputError
from . import _cpu, _define, _dispatch, _invariant
from ._double_backward import differentiable_by
from ._float32_products import float32_matmul_precision
from ._needed_gradients import needed_gradients
from ._weight_cache import WeightCache
from .linear import linear_by_torch, second_derivatives

# Against torch's float32 product on AVX-512, one thread, weights of BERT-base: 1.15 to 1.4 times its speed at 32 rows,
# even at 128, 0.8 to 1.0 times at 1,024 (docs/LOG.md).
FLOAT32_ROWS = 64
# On AMD processors, products in training are ours from this many rows and multiply-adds on. Weights change in every
# step and are packed three times in it, which takes longer than it saves in smaller products (docs/LOG.md).
TRAINING_ROWS, TRAINING_PRODUCTS = 24, 1 << 24
# For the same reason, on AMX's tiles from this many rows on, and from more for weights of a vocabulary. Weights with
# fewer rows or columns than a pair of tiles are torch's.
TWO_PARTS_TRAINING_ROWS, ROWS_OF_LARGE = 128, 1024
TWO_PARTS_LARGE, TWO_PARTS_NARROW = 1 << 23, 32

# Further forms of a packed float32 weight (DType in csrc/include/types.h): each number as the sum of two bfloat16
# numbers, and numbers scaled for Winograd's inner product.
_TWO_PARTS = 2
_WINOGRAD = 3

# For each weight {(form, transposed): (`_state` of the weight, packed weight)}.
_packed = WeightCache()


def _state(weight: Tensor) -> tuple:
    """Changes when the parameter does. A write through `.data` does not change the version, hence the fingerprint."""
    version, address = 0 if weight.is_inference() else weight._version, weight.data_ptr()
    return version, address, _native.extension().fingerprint(address, _cpu.span(weight))


class _Allowed(threading.local):
    def __init__(self) -> None:
        self.depth = 0


_allowed = _Allowed()


def has_two_parts() -> bool:
    """Whether `products_in_two_parts` makes a difference here: on this processor, by the backend in use."""
    used = _dispatch.current_backend() in ("auto", "cpu") and _native.why_missing() is None
    return used and _native.extension().has_bf16x2()


@contextmanager
def products_in_two_parts() -> Iterator[None]:
    """Inside the block, this thread's float32 products may round each factor to the sum of two bfloat16 numbers where
    that is faster, as torch's "high" allows everywhere. For products of a backward pass, the block in which it runs
    counts."""
    _allowed.depth += 1
    try:
        yield
    finally:
        _allowed.depth -= 1


def two_parts(dtype: torch.dtype, rows: int) -> bool:
    """Whether float32 products of this many rows are computed on AMX tiles, each factor rounded to the sum of two
    bfloat16 numbers.

    With few rows, reading the weights takes the time, which are as large in two parts as in float32.
    """
    return (
        dtype == torch.float32
        and rows > FLOAT32_ROWS
        and (_allowed.depth > 0 or float32_matmul_precision("cpu") != "highest")
        and not _invariant.active()
        and _native.extension().has_bf16x2()
    )


def packed_form(dtype: torch.dtype, rows: int) -> int:
    """Code of the form in which a weight is packed for products with this many rows of float32 or bfloat16."""
    if two_parts(dtype, rows):
        return _TWO_PARTS
    if dtype == torch.float32:
        return _WINOGRAD if _native.extension().has_winograd() else 0
    return 1


def packed_weight(weight: Tensor, form: int, transposed: bool = False, keep: bool = True) -> Tensor:
    """The packed weight (bytes,) uint8, cached until the weight changes or its memory is freed.

    Args:
        weight: (N, K) float32 or bfloat16.
        form: code of the packed form (`packed_form`).
        transposed: packs W^T, for the gradient of a layer's input.
        keep: whether a newly packed weight is cached; a cached one is used in any case.
    """
    state = _state(weight)
    forms = _packed.of(weight) if keep else _packed.find(weight)
    kept = forms.get((form, transposed))
    if kept is not None and kept[0] == state:
        return kept[1]
    source = weight.detach()
    source = source if source.stride(1) == 1 else source.contiguous()
    extension = _native.extension()
    n, k = source.shape[::-1] if transposed else source.shape
    packed = _cpu.buffer(extension.packed_size(form, n, k), torch.uint8)
    extension.pack_weight(
        form, source.data_ptr(), _cpu.code(source), source.stride(0), n, k, transposed, packed.data_ptr()
    )
    if keep:
        forms[form, transposed] = state, packed
    return packed


def _product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, transposed: bool = False, keep: bool = True
) -> None:
    (m, k), n = rows.shape, out.shape[-1]
    form = packed_form(rows.dtype, m)
    packed = packed_weight(weight, form, transposed, keep)
    pointers = rows.data_ptr(), rows.stride(0), packed.data_ptr(), _cpu.pointer(bias), 0, 0, out.data_ptr()
    _native.extension().gemm(form, *pointers, n, _cpu.code(out), m, n, k)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, keep: bool) -> Tensor:
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    _product(_cpu.contiguous_rows(x), weight, _cpu.as_float32(bias), out, keep=keep)
    return out


def _forward_fake(x: Tensor, weight: Tensor, bias: Tensor | None, keep: bool) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _backward(dout: Tensor, x: Tensor | None, weight: Tensor, wants: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    dy = _cpu.contiguous_rows(dout)
    dx, dw, db = _backward_fake(dout, x, weight, wants)
    if wants[0]:
        _product(dy, weight, None, dx, transposed=True, keep=dy.dtype == torch.bfloat16 or not wants[1])
    if wants[1] or wants[2]:
        (m, n), k = dy.shape, weight.shape[1]
        rows = _cpu.contiguous_rows(x) if wants[1] else None
        matrices = dy.data_ptr(), dy.stride(0), _cpu.pointer(rows), k if rows is None else rows.stride(0)
        gradient = dw.data_ptr() if wants[1] else 0, k, _cpu.code(dw), db.data_ptr() if wants[2] else 0
        form = _TWO_PARTS if two_parts(dy.dtype, m) else _cpu.code(dy)
        _native.extension().weight_grad(form, *matrices, *gradient, m, n, k)
    return dx, dw, db


def _backward_fake(dout: Tensor, x: Tensor | None, weight: Tensor, wants: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    dx = dout.new_empty((*dout.shape[:-1], weight.shape[1]) if wants[0] else 0)
    dw = weight.new_empty(weight.shape if wants[1] else 0)
    return dx, dw, weight.new_empty(weight.shape[0] if wants[2] else 0, dtype=torch.float32)


def _keep(ctx, x: Tensor, weight: Tensor) -> None:
    """Saves what the gradients need: of a frozen weight (LoRA, BitFit) not the input, which can take most memory."""
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)


def _setup_context(ctx, inputs, output) -> None:
    x, weight, bias, _ = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    _keep(ctx, x, weight)


def _second(_ctx, saved, grads, upstream, wants) -> tuple[Tensor | None, ...]:
    return second_derivatives(*grads, *saved, upstream[:3], wants)


@differentiable_by(_second)
def _gradient(ctx, saved, dout: Tensor):
    x, weight = saved
    wants = needed_gradients(ctx, ctx.needs_input_grad[:3])
    dx, dw, db = _linear_backward(dout, x, weight, wants)
    return dx if wants[0] else None, dw if wants[1] else None, db.to(ctx.bias_dtype) if wants[2] else None, None


def _check_wants(_dout: Tensor, x: Tensor | None, _weight: Tensor, wants: list[bool]) -> None:
    if len(wants) != 3:
        raise InputError(f"linear_backward: expected wants for 3 gradients, got {len(wants)}")
    if wants[1] and x is None:
        raise InputError("linear_backward: expected x, of which the weight's gradient is made, got None")


_linear_backward = _define.define(
    "linear_backward(Tensor dout, Tensor? x, Tensor weight, bool[] wants) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    tensors="dout: activation (..., N); x: activation (..., K); weight: parameter (N, K)",
    rest=_check_wants,
)
_linear = _define.define(
    "linear(Tensor x, Tensor weight, Tensor? bias, bool keep) -> Tensor",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
    tensors="x: activation (..., K); weight: parameter (N, K); bias: parameter (N)",
)


def _is_ours(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if x.dtype == torch.bfloat16:
        return weight.dtype in _cpu.DTYPES and (bias is None or bias.dtype in _cpu.DTYPES)
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or torch.compiler.is_compiling():
        return False
    return _invariant.active() or _is_quicker(_count(x), weight, *_recorded(x, weight, bias))


def _recorded(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[bool, bool]:
    """Whether autograd needs the gradient of the weight, and whether it needs any gradient."""
    if not torch.is_grad_enabled():
        return False, False
    return weight.requires_grad, any(t is not None and t.requires_grad for t in (x, weight, bias))


def _count(x: Tensor) -> int:
    """The number of rows of (..., C)."""
    return _cpu.rows_and_columns(x)[0]


def _is_quicker(rows: int, weight: Tensor, trains: bool, records: bool) -> bool:
    """Whether our float32 product is faster than torch's.

    Args:
        trains: the gradient of the weight is needed.
        records: any gradient is needed.
    """
    isa = _native.isa()
    if two_parts(torch.float32, rows):
        return not trains or _trains_in_two_parts(rows, weight)
    if hardware.is_amd() and isa.startswith("avx512"):
        return not trains or (rows >= TRAINING_ROWS and rows * weight.numel() >= TRAINING_PRODUCTS)
    return not records and rows <= FLOAT32_ROWS and isa.startswith(("avx512", "amx"))


def _trains_in_two_parts(rows: int, weight: Tensor) -> bool:
    enough = ROWS_OF_LARGE if weight.numel() > TWO_PARTS_LARGE else TWO_PARTS_TRAINING_ROWS
    return rows >= enough and min(weight.shape) >= TWO_PARTS_NARROW


# Float32 in a compiler's graph. The graph serves any number of rows, so the choice is made when it runs.
def _either(x: Tensor, weight: Tensor, bias: Tensor | None, trains: bool, records: bool) -> Tensor:
    if _invariant.active() or _is_quicker(_count(x), weight, trains, records):
        return _forward(x, weight, bias, keep=not trains)
    return reference.linear(x, weight, bias).contiguous()


def _either_fake(x: Tensor, weight: Tensor, bias: Tensor | None, trains: bool, records: bool) -> Tensor:
    return _forward_fake(x, weight, bias, not trains)


def _either_backward(
    dout: Tensor, x: Tensor | None, weight: Tensor, wants: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    if _is_quicker(_count(dout), weight, wants[1], records=True):
        return _backward(dout, x, weight, wants)
    dy = _cpu.contiguous_rows(dout)
    dx, dw, db = _backward_fake(dout, x, weight, wants)
    if wants[0]:
        torch.mm(dy, weight, out=dx.view(dy.shape[0], weight.shape[1]))
    if wants[1]:
        torch.mm(dy.t(), _cpu.contiguous_rows(x), out=dw)
    if wants[2]:
        torch.sum(dy, 0, out=db)
    return dx, dw, db


@differentiable_by(_second)
def _either_gradient(ctx, saved, dout: Tensor):
    x, weight = saved
    wants = needed_gradients(ctx, ctx.needs_input_grad[:3])
    gradients = _linear_float32_backward(dout, x, weight, wants)
    return *(g if wanted else None for g, wanted in zip(gradients, wants, strict=True)), None, None


_linear_float32_backward = _define.define(
    "linear_float32_backward(Tensor dout, Tensor? x, Tensor weight, bool[] wants) -> (Tensor, Tensor, Tensor)",
    _either_backward,
    _backward_fake,
    tensors="dout: float32 (..., N); x: float32 (..., K); weight: float32 (N, K)",
    rest=_check_wants,
)
_linear_float32 = _define.define(
    "linear_float32(Tensor x, Tensor weight, Tensor? bias, bool trains, bool records) -> Tensor",
    _either,
    _either_fake,
    backward=_either_gradient,
    setup_context=lambda ctx, inputs, output: _keep(ctx, *inputs[:2]),
    tensors="x: float32 (..., K); weight: float32 (N, K); bias: float32 (N)",
)


def _accepts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    return _cpu.why_not_device(x, weight, bias)


@_dispatch.register("linear", "cpu", available=_native.why_missing, accepts=_accepts)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        # Products in float16 are left to torch. The weight stays as it is, since packing converts it.
        narrows = torch.get_autocast_dtype("cpu") == torch.bfloat16
        if not (narrows and x.is_floating_point() and x.dtype != torch.float64):
            return linear_by_torch(x, weight, bias)
        x = x.to(torch.bfloat16)
    float32 = all(t is None or t.dtype == torch.float32 for t in (x, weight, bias))
    if torch.compiler.is_compiling() and float32:
        return _linear_float32(x, weight, bias, *_recorded(x, weight, bias))
    if not _is_ours(x, weight, bias):
        return linear_by_torch(x, weight, bias)
    # Training in float32 packs every weight again in every step: caching it would only take memory.
    trains = torch.is_grad_enabled() and weight.requires_grad
    return _linear(x, weight, bias, x.dtype == torch.bfloat16 or not trains)
