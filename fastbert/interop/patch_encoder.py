"""One forward pass of a transformers encoder in someone's own module, which gives it hidden states and a 4-D mask."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from ..errors import InputError
from .patch_checks import Unservable
from .patch_families import Family, is_before_5
from .patch_pass import Pass, check_bool_mask, described, flag, is_square_mask


class EncoderPass(Pass):
    """One forward pass of an encoder alone; the arguments and errors are those of `Pass`."""

    def __init__(self, model: nn.Module, family: Family, given: dict[str, Any]) -> None:
        super().__init__(model, family, {"inputs_embeds": given.pop("hidden_states", None), **given})

    def run(self):
        states, size = self.given["inputs_embeds"], self.view.config.hidden_size
        if states.shape[-1] != size:
            raise InputError(f"hidden_states must be (B, S, {size}), got {tuple(states.shape)}")
        return super().run()

    def _check_mask(self, mask: Tensor | None, shape: tuple[int, int]) -> None:
        if mask is None:
            return
        if not is_square_mask(mask, shape):
            raise Unservable(f"{described(mask)}, expected one of (batch, 1, 1 or tokens, tokens)")
        check_bool_mask(mask, self.model.config)

    def _asked(self) -> tuple[bool, bool, bool]:
        # The encoder of version 5 returns the last state alone, whatever is asked; the model around it may collect
        # what its layers return.
        if not is_before_5():
            if _is_collecting():
                raise Unservable("the model around it collects what each layer returns")
            return False, False, True
        if flag(self.given, "output_attentions", False):  # which depend on the attention that it is configured with
            raise Unservable("attention probabilities were asked for")
        return flag(self.given, "output_hidden_states", False), False, self.given.get("return_dict", True)


def _is_collecting() -> bool:
    """Whether a model of transformers 5 that is being called wants what its modules return, by hooks on them."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    if capturing is None:
        return False
    collector = getattr(capturing, "_active_collector", None)  # not a public name
    return collector is None or bool(collector.get())
