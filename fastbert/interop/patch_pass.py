"""One forward pass of a transformers encoder, computed packed: reading its arguments, building its output."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops, rng
from ..errors import InputError
from ..models.inputs import Tokens, open_packed, open_padded
from ..modules import hooks
from ..modules.encoder import IGNORED, asks_for_nothing
from ..modules.layout import PaddedLayout, additive_mask, keys_kept, with_bias, with_first_column
from ..modules.linear import is_watched
from ..packing import PackedBatch
from .patch_checks import Unservable
from .patch_families import Family, is_before_5
from .patch_view import view_of

# The key in a patched encoder's __dict__ for the option ``pads`` of `patch`.
PADS_KEY = "_fastbert_pads"
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_SERVED = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
    *("output_hidden_states", "output_attentions", "return_dict", *_PACKED),
)
# Arguments of decoders and trainers that an encoder ignores; and the outputs that models of sentence-transformers add
# to their input dictionary, which may be encoded again, by a loss or by a student after its teacher.
_IGNORED = (*IGNORED, "token_embeddings", "sentence_embedding", "all_layer_embeddings", "scores")
# The functions by which transformers' layers and masks are computed, as the modules of the families name them.
_FUNCTIONS = (
    *("eager_attention_forward", "apply_chunking_to_forward"),
    *("create_bidirectional_mask", "_prepare_4d_attention_mask_for_sdpa"),
)


class Pass:
    """One forward pass, computed by `run`.

    Args:
        model: the patched encoder.
        family: its family.
        given: the arguments, by name.

    Raises:
        Unservable: the pass cannot be computed packed.
    """

    def __init__(self, model: nn.Module, family: Family, given: dict[str, Any]) -> None:
        self.model, self.family, self.given = model, family, given
        config = model.config
        _check_functions(config, family.module)
        _check_call(config, given, family.inputs)
        self.packed = given.get("cu_seq_lens_q") is not None
        ids_or_embeds = _tokens_of(given)
        shape = tuple(ids_or_embeds.shape[:2])
        self._check_mask(given.get("attention_mask"), shape)
        for name in ("token_type_ids", "position_ids"):
            more = given.get(name)
            if more is not None and not self.packed and more.shape not in (shape, (1, shape[1]), shape[1:]):
                raise Unservable(f"{name} of another shape than the tokens")  # no numbers: each reason is logged once
        self.states, self.attentions, self.return_dict = self._asked()
        if self.packed and (self.attentions or family.embed is not None):
            raise Unservable("packed tokens")
        if family.bias is not None and ids_or_embeds.device.type != "cpu":
            raise Unservable("its attention adds a bias to its scores, which fastbert's kernels do on the CPU alone")
        self.view = view_of(model, family)
        for layer in self.view.layers:
            own = layer.scoring[0].__dict__.get("config", config)
            if own is not config:  # one layer may be given another attention
                _check_functions(own, family.module)
        self.key = rng.current() if self.view.follow() else None

    def _check_mask(self, mask: Tensor | None, shape: tuple[int, int]) -> None:
        """Raises Unservable for a mask that our encoder does not read as transformers does."""
        if mask is None:
            return
        if self.packed or not (tuple(mask.shape) == shape or (is_square_mask(mask, shape) and not is_before_5())):
            raise Unservable(f"{described(mask)}, expected one of (batch, tokens)")
        if is_before_5() and mask.dtype != torch.bool and not torch.equal(mask == 1, mask != 0):
            raise Unservable(
                "an attention mask with other numbers than 0 and 1, of which transformers 4 keeps the 1 alone"
            )
        check_bool_mask(mask, self.model.config)

    def _asked(self) -> tuple[bool, bool, bool]:
        """Whether hidden states, attention probabilities and an object, not a tuple, are to be returned."""
        given, config = self.given, self.model.config
        states = flag(given, "output_hidden_states", config.output_hidden_states)
        attentions = flag(given, "output_attentions", config.output_attentions)
        asked = given.get("return_dict")
        if asked is None:
            asked = getattr(config, "use_return_dict" if is_before_5() else "return_dict", True)
        return states, attentions, asked

    def run(self):
        """Computes the pass; returns the output that transformers would return, an object of its class or a tuple."""
        tokens, hidden = self._embedded()
        layout, bias = tokens.layout, self.family.bias
        last, states, attentions = self.view.encoder.run_as_transformers(
            hidden,
            layout if bias is None else with_bias(layout, partial(bias, self.view.source)),
            self.key,
            show=tokens.shape.show if self.states else None,
            mask_dtype=self._mask_dtype(hidden),
        )
        shown = states[-1] if states else tokens.unpack(last)  # the same tensor, as in transformers
        return self._output(
            shown,
            self._pooled(tokens, shown, last),
            tuple(states) if states else None,
            tuple(attentions) if self.attentions else None,
        )

    def _pooled(self, tokens: Tokens, shown: Tensor, last: Tensor) -> Tensor | None:
        """The pooler's output (B, H) for the last state (T, H), which the caller is given as ``shown``; None if the
        model has no pooler."""
        pooler = self.model._modules.get("pooler")
        if pooler is None:
            return None
        if self.family.pool is not None:
            return self.family.pool(self.model, tokens.pooled_of(shown, last))
        # transformers' own pooler only reads column 0; another pooler, forward, or a hook on it may read all columns.
        own = type(pooler).__module__ == self.family.module and hooks.replaced_method(type(pooler)) is None
        reads_first = own and (self.packed or not is_watched(pooler))
        return pooler(tokens.pooled_of(shown, last)[:, None] if reads_first else shown)

    def _mask_dtype(self, hidden: Tensor) -> torch.dtype | None:
        """The dtype of the mask that transformers adds to its scores, if probabilities are returned; None if it adds
        none, as version 5 does if nothing is masked."""
        mask = self.given.get("attention_mask")
        if not self.attentions or (mask is None and not is_before_5()):
            return None
        if mask is not None and mask.dim() == 4:
            return mask.dtype if mask.is_floating_point() else None
        return hidden.dtype if is_before_5() or not bool((mask != 0).all()) else None

    def _embedded(self) -> tuple[Tokens, Tensor]:
        """The tokens and their (T, H) embeddings."""
        given, view = self.given, self.view
        if self.family.embed is None:
            tokens = self._tokens(given.get("input_ids"), given.get("inputs_embeds"))
            ids = (tokens.input_ids, tokens.token_type_ids, tokens.position_ids)
            return tokens, view.embeddings(*ids, self.key, tokens.inputs_embeds)
        tokens = self._tokens(None, self.family.embedded(self.model, given), positions=False)
        return tokens, tokens.inputs_embeds

    def _tokens(self, input_ids, inputs_embeds, positions: bool = True) -> Tokens:
        given, config = self.given, self.view.config
        types = given.get("token_type_ids") if positions else None
        position_ids = given.get("position_ids") if positions else None
        if self.packed:
            return open_packed(
                config,
                self.key,
                input_ids=input_ids,
                inputs_embeds=inputs_embeds,
                token_type_ids=types,
                position_ids=position_ids,
                cu_seqlens=given["cu_seq_lens_q"],
                max_seqlen=given.get("max_length_q"),
            )
        mask = given.get("attention_mask")
        shape = tuple((input_ids if inputs_embeds is None else inputs_embeds).shape[:2])
        keep = _keys_of(mask, shape) if self.model.__dict__.get(PADS_KEY) == "computed" else None
        tokens = open_padded(
            config,
            self.key,
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=mask if keep is None else None,
            token_type_ids=types,
            position_ids=position_ids,
            # Poolers, and heads of models without one, read column 0 even if it is masked.
            needs_first_column=True,
            needs_attentions=self.attentions,
            needs_distances=self.family.bias is not None,
        )
        if keep is not None:
            if not bool(keep.all()):
                ops.refuse_variant(
                    'pads are computed where a head reads their outputs; patch(model, pads="zeros") leaves them out'
                )
                keep = keep.to(tokens.cu_seqlens.device)
                return replace(tokens, layout=PaddedLayout(additive_mask(keep), *shape, self.attentions))
        elif tokens.shape.keep is not None:
            return replace(tokens, shape=replace(tokens.shape, keep=with_first_column(tokens.shape.keep)))
        return tokens

    def _output(self, last, pooled, states, attentions):
        fields: dict[str, Any] = {"last_hidden_state": last, "hidden_states": states, "attentions": attentions}
        cls = self.family.output_class()
        if "pooler_output" in cls.__dataclass_fields__:
            fields["pooler_output"] = pooled
        old = self.family.is_as_before_5()
        if attentions is not None and "cross_attentions" in cls.__dataclass_fields__ and not old:
            # transformers 5 returns an empty tuple of cross-attentions for an encoder.
            fields["cross_attentions"] = ()
        output = cls(**fields)
        if self.return_dict:
            return output
        # In version 4, the tuple of a model without a pooler contains None for its output.
        if "pooler_output" in fields and old:
            return (last, pooled, *(x for x in (states, attentions) if x is not None))
        return output.to_tuple()


def _check_functions(config: Any, module: str) -> None:
    """Raises Unservable if attention, masks or another function of the family's Python module are the caller's."""
    functions = vars(sys.modules[module])
    own = _someones_attention(config, functions)
    if own is not None:
        raise Unservable(f"its attention implementation {own} is not one of transformers")
    for name in _FUNCTIONS:
        if hooks.is_someones(functions.get(name)):
            raise Unservable(f"{name} of {module} has been replaced")


def _check_call(config: Any, given: dict[str, Any], inputs: tuple[str, ...]) -> None:
    """Raises Unservable for a configuration or an argument that our encoder does not support; ``inputs`` are the
    arguments of the family's embeddings."""
    known = {*_SERVED, *_IGNORED, *inputs}
    for name, value in given.items():
        if name not in known and not asks_for_nothing(value):
            raise Unservable(f"the argument {name} was given")
    for name in ("is_decoder", "add_cross_attention"):  # `patch` checks them, but they may be set later
        if getattr(config, name, False):
            raise Unservable(f"{name} of its configuration is true")


def _tokens_of(given: dict[str, Any]) -> Tensor:
    """The ids (B, S) or the embeddings (B, S, E) among the arguments.

    Raises:
        Unservable: there are both or neither, or they have other dimensions.
        InputError: input_ids is a `PackedBatch`.
    """
    ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
    if isinstance(ids, PackedBatch):
        raise InputError("a patched model takes tensors, as before, got a PackedBatch: fastbert.BertModel reads it")
    tokens = ids if embeds is None else embeds
    if (ids is None) == (embeds is None) or tokens.dim() != (2 if embeds is None else 3):
        raise Unservable("it must refuse this input itself")
    return tokens


def described(mask: Tensor) -> str:
    """A mask's dtype and dimensions in words; no sizes, since each reason is logged once."""
    return f"an attention mask of {mask.dtype} with {mask.dim()} dimensions"


def check_bool_mask(mask: Tensor, config: Any) -> None:
    """Raises Unservable for a 4-D bool mask that transformers adds to its scores, so that True adds 1."""
    # An encoder alone, made from a configuration that no model has prepared, names no attention and has the eager one.
    adds = getattr(config, "_attn_implementation", None) in ("eager", None)
    if mask.dim() == 4 and mask.dtype == torch.bool and adds:
        raise Unservable("a bool attention mask of 4 dimensions, which eager attention adds to its scores")


def _someones_attention(config: Any, in_module: dict[str, Any]) -> str | None:
    """The name of the configured attention implementation if it, or its mask, is not transformers' own; else None.

    Args:
        in_module: the variables of the family's Python module, whose table of attention functions may be another one.
    """
    from transformers import masking_utils, modeling_utils

    name = getattr(config, "_attn_implementation", None)
    attention = in_module.get("ALL_ATTENTION_FUNCTIONS", modeling_utils.ALL_ATTENTION_FUNCTIONS)
    for functions in (attention, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS):
        function = functions.get(name)
        while isinstance(function, partial):
            function = function.func
        if function is not None and not getattr(function, "__module__", "").startswith("transformers."):
            return name
    return None


def flag(given: dict[str, Any], name: str, default: Any) -> bool:
    """An argument that is True, False or None for the default."""
    value = given.get(name)
    value = default if value is None else value
    if not isinstance(value, bool) and value is not None:
        raise Unservable(f"{name} is not True or False")
    return bool(value)


def _keys_of(mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    """(B, S) bool, the keys that a mask keeps; None without a mask, or if it does more than masking keys."""
    if mask is None or mask.dim() == 2:
        return None if mask is None else mask != 0
    fits = mask.shape[0] in (1, shape[0]) and mask.shape[2] in (1, shape[1])
    keep = keys_kept(mask) if fits else None
    return None if keep is None else keep.expand(shape)


def is_square_mask(mask: Tensor, shape: tuple[int, int]) -> bool:
    """Whether a mask is a 4-D mask that attention uses as it is; models of transformers 4 would convert it first."""
    known = mask.dtype == torch.bool or mask.is_floating_point()
    return mask.dim() == 4 and known and mask.shape[-1] == shape[1]
