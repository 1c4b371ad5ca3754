"""Refuses modules under names that transformers' parts have and ours do not: they would be kept and never called."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from ..errors import InputError


class ModuleWithout(nn.Module):
    """A module without some parts of transformers' module of the same name, since an op computes them.

    Raises:
        InputError: such a part is set to a module (``layer.intermediate.intermediate_act_fn = nn.ReLU()``).
    """

    computed_by_ops: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.computed_by_ops and isinstance(value, nn.Module):
            raise InputError(
                f"{type(self).__name__}.{name} is computed by fastbert's kernels as the model's configuration says: "
                f"expected no module of that name, got {type(value).__name__}; patch a transformers model instead"
            )
        super().__setattr__(name, value)
