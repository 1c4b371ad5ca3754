"""Registers kernels as torch ops, whatever they run on.

Each op is a torch op `fastbert::<name>` with a fake version and a formula for its gradient, so that it works under
autograd and `torch.compile(fullgraph=True)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from .. import transforms
from ..errors import BackendError
from . import _watchers
from ._contract import Contract

library = torch.library.Library("fastbert", "DEF")

# Whether a gradient stands for a batch of gradients, under the vmap of torch.autograd (is_grads_batched=True, and
# vectorize=True of torch.autograd.functional).
_is_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda _grad: False)


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
        kernel: launches the kernel.
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
        if torch.compiler.is_compiling() or _watchers.is_watched():
            return op(*args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if any(type(tensor) not in transforms.PLAIN_TENSORS for tensor in tensors):
            return op(*args)
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return kernel(*args)
        return op(*args) if setup_context is None else function.apply(*args)

    return call


def in_shape(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The rows that a kernel has written, in the shape of the op's result; for the ``forward`` of an autograd function.

    Not a view, although it is the same memory: autograd would forbid the caller to write to the result in place.
    """
    return rows if rows.shape == shape else torch.ops.aten._unsafe_view.default(rows, shape)
