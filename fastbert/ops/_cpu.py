"""Shared by the CPU kernels: checks of calls, conversion of tensors to pointers, registration of torch ops.

Each op is a torch op `fastbert::<name>` with a fake version and a formula for its gradient, so that it works under
autograd and `torch.compile(fullgraph=True)`. The kernels (csrc/cpu) take float32 and bfloat16; statistics, parameters
and their gradients are float32 there, whatever the parameter's own dtype.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd import profiler
from torch.overrides import BaseTorchFunctionMode

from .. import _native
from ..errors import BackendError, InputError
from ..rng import Dropout
from ..transforms import is_transformed
from ..wording import dtype_name
from ._contract import Contract

library = torch.library.Library("fastbert", "DEF")

# The dtypes of activations, and their codes in csrc/include/types.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_LOW63 = (1 << 63) - 1

_PLAIN_TENSORS = (Tensor, nn.Parameter)
# Whether a gradient stands for a batch of gradients, under the vmap of torch.autograd (is_grads_batched=True, and
# vectorize=True of torch.autograd.functional).
_is_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda _grad: False)
# Whether this torch has all private functions that `is_watched` and `is_traced` need.
_WATCHERS_ARE_KNOWN = hasattr(profiler, "_is_profiler_enabled") and all(
    hasattr(torch._C, name) for name in ("_len_torch_dispatch_stack", "_len_torch_function_stack", "_get_tracing_state")
)


def _follow_torch() -> None:
    """Lets the kernels use as many threads as torch in every Python thread. torch tells OpenMP its number of threads in
    the thread that sets it, and in another only when an op of its own asks there; so the kernels ask torch."""
    with contextlib.suppress(AttributeError, OSError):  # a torch without at::get_num_threads(): OpenMP's number counts
        count = ctypes.CDLL(torch._C.__file__)._ZN2at15get_num_threadsEv
        _native.extension().follow_threads(ctypes.cast(count, ctypes.c_void_p).value)


if _native.why_missing() is None:
    _follow_torch()


def why_not_device(*tensors: Tensor | None) -> str | None:
    """None if all tensors are on the CPU, else the reason why not: kernels are given addresses."""
    for tensor in tensors:  # a loop, as below: torch 2.6's compiler cannot trace next() with a default
        if tensor is not None and tensor.device.type != "cpu":
            return f"the CPU kernels take CPU tensors, got one on {tensor.device}"
    return None


def why_not(
    x: Tensor,
    *others: Tensor | None,
    parameters: tuple[Tensor | None, ...] = (),
    widened: tuple[torch.dtype, ...] = (),
) -> str | None:
    """None if the kernels can take these tensors, else the reason why not.

    Args:
        x, others: activations, which must have one dtype.
        parameters: tensors that will be converted to float32.
        widened: further dtypes that are accepted, since the caller converts them to float32.
    """
    if reason := why_not_device(x, *others, *parameters):
        return reason
    for tensor in (x, *others):
        if tensor is not None and tensor.dtype not in DTYPES and tensor.dtype not in widened:
            return f"the CPU kernels take float32 and bfloat16, got {dtype_name(tensor.dtype)}"
        if tensor is not None and tensor.dtype != x.dtype:
            return f"the CPU kernels take one dtype, got {x.dtype} and {tensor.dtype}"
    for tensor in parameters:
        if tensor is not None and tensor.dtype not in DTYPES and tensor.dtype not in widened:
            return f"the CPU kernels take float32 parameters, got {dtype_name(tensor.dtype)}"
    return None


def buffer(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uninitialised memory for a kernel to fill: on the CPU and of this dtype, whatever torch's defaults are."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def define(
    schema: str,
    kernel: Callable,
    fake: Callable,
    *,
    backward: Callable | None = None,
    setup_context: Callable | None = None,
    key: str = "CPU",
    tensors: str = "",
    rest: Callable[..., None] | None = None,
) -> Callable:
    """Registers a kernel launcher as the torch op ``fastbert::<name>``.

    Args:
        schema: in torch's notation, such as ``gelu(Tensor x) -> Tensor``.
        kernel: launches the kernel on CPU tensors.
        fake: returns empty tensors of the same shapes, strides and dtypes.
        backward, setup_context: as in `torch.library.register_autograd`; without them the op has no gradient, and
            asking for one is an error.
        key: the dispatch key of torch under which the kernel is registered.
        tensors, rest: what callers of the op by its name must pass (`_contract.Contract`).

    Returns:
        the op as a function of all its arguments, in order; it bypasses torch's dispatcher when nothing observes the
        call there (`_directly`).
    """
    name = schema[: schema.index("(")]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, _checked(kernel, Contract(schema, tensors, rest)) if tensors else kernel, key)
    torch.library.register_fake(f"fastbert::{name}", fake, lib=library)
    if backward is None:

        def backward(ctx, *_grads):
            raise BackendError(f"the op {name} has no gradient: call the functions of fastbert.ops")

    def gradient(ctx, *grads):
        # Without an incoming gradient there is none to pass on, as in torch's own ops.
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        if any(grad is not None and _is_batched(grad) for grad in grads):
            with BaseTorchFunctionMode():  # sends ops through the dispatcher, which unbatches such gradients
                return backward(ctx, *grads)
        return backward(ctx, *grads)

    torch.library.register_autograd(f"fastbert::{name}", gradient, setup_context=setup_context, lib=library)
    return _directly(getattr(torch.ops.fastbert, name), kernel, gradient, setup_context)


def _checked(kernel: Callable, contract: Contract) -> Callable:
    def run(*arguments):
        contract.check(*arguments)
        return kernel(*arguments)

    return run


def _directly(op: Callable, kernel: Callable, backward: Callable, setup_context: Callable | None) -> Callable:
    """A function that calls the kernel directly, and the op ``op`` only if something observes calls in the dispatcher.

    Going through torch's dispatcher takes as long as a small kernel, three times as long with a gradient, and longer
    still when weights have just evicted it from the processor's caches.
    """

    def forward(ctx, *args):
        out = kernel(*args)
        setup_context(ctx, args, out)
        return out

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(op.__name__, (torch.autograd.Function,), members)

    def call(*args):
        if torch.compiler.is_compiling() or is_watched():
            return op(*args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if any(type(tensor) not in _PLAIN_TENSORS for tensor in tensors):
            return op(*args)
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return kernel(*args)
        return op(*args) if setup_context is None else function.apply(*args)

    return call


def is_watched() -> bool:
    """Whether a profiler, a mode, a trace or a transform (`is_traced`) observes the ops in torch's dispatcher."""
    return not _WATCHERS_ARE_KNOWN or profiler._is_profiler_enabled or is_traced()


def has_dispatch_mode() -> bool:
    """Whether a `TorchDispatchMode` is active; also True in a release of torch that cannot tell."""
    return not _WATCHERS_ARE_KNOWN or bool(torch._C._len_torch_dispatch_stack())


def is_traced(own_modes: int = 0) -> bool:
    """Whether a mode, a trace or a transform would miss calls that bypass torch's dispatcher; also True in a release of
    torch that cannot tell.

    Args:
        own_modes: how many of the active `TorchFunctionMode`s are this package's, which need not see such calls.
    """
    if has_dispatch_mode():
        return True
    if torch._C._len_torch_function_stack() > own_modes:
        return True
    return is_transformed()


def code(x: Tensor) -> int:
    """The code of a tensor's dtype in the kernels (csrc/include/types.h)."""
    return code_of(x.dtype)


def code_of(dtype: torch.dtype) -> int:
    """The code of float32 or bfloat16 in the kernels."""
    return DTYPES[dtype]


def pointer(x: Tensor | None) -> int:
    """Address of the first element, 0 for None."""
    return 0 if x is None else x.data_ptr()


def rows_and_columns(x: Tensor) -> tuple[int, int]:
    """(..., C) as (rows, C)."""
    columns = x.shape[-1]
    return (x.numel() // columns if columns else 0), columns


def contiguous_rows(x: Tensor) -> Tensor:
    """(..., C) as (rows, C) with contiguous rows, which need not follow each other."""
    x = x.reshape(rows_and_columns(x)) if x.shape[-1] else x.new_empty(x.shape[:-1].numel(), 0)
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def in_shape(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The rows that a kernel has written, in the shape of the op's result; for the ``forward`` of an autograd function.

    Not a view, although it is the same memory: autograd would forbid the caller to write to the result in place.
    """
    return rows if rows.shape == shape else torch.ops.aten._unsafe_view.default(rows, shape)


def span(x: Tensor) -> int:
    """The bytes from a tensor's first number to its last, which may be fewer or more than it has numbers."""
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size() if x.numel() else 0


def as_float32(x: Tensor | None) -> Tensor | None:
    """A bias or a norm's parameter for the kernels: a few kilobytes, so a copy costs little compared with the op."""
    return None if x is None else x.to(torch.float32).contiguous()


def reduction_workspace(rows: int, columns: int) -> Tensor:
    """Memory for the partial sums of a reduction over rows."""
    return buffer(_native.extension().reduction_chunks(rows) * columns)


# The arguments of a schema that stand for a `Dropout`; threshold 0 means none. If seed and offset are only known when
# the op runs, as in a compiler's graph, they are in rng, (2,) int64, which the op only reads.
DROPOUT_SCHEMA = "int threshold, int seed, int offset, int site, Tensor? rng"
DROPOUT_TENSORS = "rng: int64 (2)"


def dropout_of(threshold: int, seed: int, offset: int, site: int, rng: Tensor | None) -> Dropout | None:
    """The inverse of `dropout_arguments`, but for the numbers of a key whose numbers are in memory."""
    if not threshold:
        return None
    known = (seed, offset) if rng is None else (None, None)
    return Dropout(threshold / 65536, *known, site, rng)


def dropout_arguments(dropout: Dropout | None) -> tuple[int, int, int, int, Tensor | None]:
    """(threshold, seed, offset, site, rng) for a schema, in torch's signed integers."""
    if dropout is None:
        return 0, 0, 0, 0, None
    if dropout.seed is None:
        return dropout.threshold, 0, 0, dropout.site, dropout.state
    seed = dropout.seed & 0xFFFFFFFFFFFFFFFF
    return dropout.threshold, seed if seed <= _LOW63 else seed - (1 << 64), dropout.offset, dropout.site, None


def native_dropout(threshold: int, seed: int, offset: int, site: int, rng: Tensor | None, rows: Tensor | None = None):
    """The kernels' Dropout object for the arguments that `dropout_arguments` made.

    ``rows`` (R,) int64, contiguous, are the numbers of an op's rows; they must live as long as the object.
    """
    if not 0 <= threshold <= 65536:
        raise InputError(f"expected a dropout's threshold of 0 to 65536, got {threshold}")
    if rng is not None:
        seed, offset = rng.tolist()
    return _native.extension().Dropout(
        seed=seed & 0xFFFFFFFFFFFFFFFF,
        offset=offset & 0xFFFFFFFF,
        site=site & 0xFFFFFFFF,
        threshold=threshold,
        row_numbers=pointer(rows),
    )
