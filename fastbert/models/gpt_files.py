"""GPT and GPT-2 in files: transformers' names, and weights of dense layers as (in, out)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..weights.names import unwrapped_name

PREFIX = "transformer"
_HEAD = "lm_head.weight"
_BARE = ("wte.", "wpe.", "tokens_embed.", "positions_embed.", "h.", "ln_f.")
# transformers' Conv1D multiplies x W and not x W^T.
_TRANSPOSED = tuple(f"{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"))
# Causal masks and position ids, which older releases of transformers saved.
_COMPUTED = (".attn.bias", ".attn.masked_bias", "position_ids")


def from_file(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, of a bare model or of one with a head, as our modules have them."""
    ours = {}
    for name, tensor in state.items():
        name = unwrapped_name(name)
        if name.startswith(_BARE):
            name = f"{PREFIX}.{name}"
        if not name.endswith(_COMPUTED):
            ours[name] = tensor.t() if name.endswith(_TRANSPOSED) and tensor.dim() == 2 else tensor
    # A tied weight is written once, and OpenAIGPTDoubleHeadsModel's under the head's name.
    if _HEAD in ours and f"{PREFIX}.positions_embed.weight" in ours:
        ours.setdefault(f"{PREFIX}.tokens_embed.weight", ours[_HEAD])
    return ours


def to_file(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of our modules as files have them: the inverse of `from_file`."""
    return {
        name: tensor.t().contiguous() if name.endswith(_TRANSPOSED) and tensor.dim() == 2 else tensor
        for name, tensor in state.items()
    }
