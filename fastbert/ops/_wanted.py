"""Which of its gradients a backward pass asks an op for.

``ctx.needs_input_grad`` says which inputs have gradients. ``torch.autograd.grad(loss, embeddings)``, as saliency maps,
integrated gradients and adversarial training call it, asks for fewer: torch's own ops then leave the weights' out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Torch has no public word for it: one that has lost this has all gradients computed.
_will_run = getattr(torch._C, "_will_engine_execute_node", lambda _node: True)


def wanted(ctx, needed: Sequence[bool]) -> list[bool]:
    """For each of an op's first inputs whether its gradient is used in this backward pass.

    Args:
        ctx: of an `autograd.Function` or an op, in its backward.
        needed: what ``ctx.needs_input_grad`` says of these inputs: tensors, or None after the last of them.
    """
    edges = ctx.next_functions
    return [need and _is_run(edges[index][0]) for index, need in enumerate(needed)]


def _is_run(node) -> bool:
    try:
        return _will_run(node)
    except RuntimeError:  # torch does not tell of a leaf whose gradient is what was asked for
        return True
