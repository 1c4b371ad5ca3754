"""Which gradients the current backward pass uses, so that an op need not compute the others.

``ctx.needs_input_grad`` only says which inputs require gradients. ``torch.autograd.grad(loss, embeddings)``, as used
for saliency maps, integrated gradients and adversarial training, asks for fewer, and torch's own ops then skip the
weights'.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# A private function of torch's: in a release without it, all gradients are computed.
_will_run = getattr(torch._C, "_will_engine_execute_node", lambda _node: True)


def needed_gradients(ctx, needed: Sequence[bool]) -> list[bool]:
    """Whether each input's gradient is used in the current backward pass.

    Args:
        ctx: that of an `autograd.Function` or of an op, in its backward.
        needed: ``ctx.needs_input_grad`` of the op's tensor inputs, which come first, or of the first few of them.
    """
    edges = ctx.next_functions
    return [need and _is_run(edges[index][0]) for index, need in enumerate(needed)]


def _is_run(node) -> bool:
    try:
        return _will_run(node)
    except RuntimeError:  # torch cannot tell for a leaf that is an input of torch.autograd.grad
        return True
