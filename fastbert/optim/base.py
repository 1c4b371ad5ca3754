"""What both optimisers share: state in float32 and, for narrow parameters, float32 master weights."""

from __future__ import annotations

import torch
from torch import Tensor


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The L2 norm of all elements of all tensors: a () float32 tensor, float64 where a tensor is float64."""
    wide = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    norms = torch._foreach_norm(tensors, dtype=wide)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm()


class MasterWeightOptimizer(torch.optim.Optimizer):
    """Collects the tensors of a group as lists for multi-tensor arithmetic.

    Parameters in bfloat16 or float16 get a float32 copy, ``master``, which is what is updated: small updates would be
    lost in the rounding of the narrow type.
    """

    def _collect(self, group: dict) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        """parameters, gradients, what to update, first and second moments; of parameters that have a gradient."""
        params = [p for p in group["params"] if p.grad is not None]
        targets, first, second = [], [], []
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = 0
                wide = torch.float64 if p.dtype == torch.float64 else torch.float32
                state["exp_avg"] = torch.zeros_like(p, dtype=wide)
                state["exp_avg_sq"] = torch.zeros_like(p, dtype=wide)
                if p.dtype != wide:
                    state["master"] = p.detach().to(wide)
            state["step"] += 1
            targets.append(state.get("master", p))
            first.append(state["exp_avg"])
            second.append(state["exp_avg_sq"])
        gradients = [p.grad.to(t.dtype) for p, t in zip(params, targets, strict=True)]
        return params, gradients, targets, first, second

    @staticmethod
    def _write_back(params: list[Tensor], targets: list[Tensor]) -> None:
        """Rounds the master weights into the parameters."""
        for p, target in zip(params, targets, strict=True):
            if p is not target:
                p.copy_(target)

    def load_state_dict(self, state_dict: dict) -> None:
        """As torch does, but moments and master weights stay float32, which torch would cast to the narrow type."""
        super().load_state_dict(state_dict)
        order = [p for group in self.param_groups for p in group["params"]]
        indices = [i for group in state_dict["param_groups"] for i in group["params"]]
        for p, index in zip(order, indices, strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][name] = value.detach().clone().to(p.device)
