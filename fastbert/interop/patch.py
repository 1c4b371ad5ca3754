"""`patch` and `unpatch`: encoders of transformers and of torch computed by fastbert, in place.

Each encoder inside the model is given a subclass of its own class, of the same name, whose ``forward`` is ours. Nothing
else is touched: parameters, modules and their names, configuration and heads stay the objects they were, so optimisers,
adapters, trainers, copies and files do not notice. Whatever a packed pass cannot serve (see `Unservable`), and every
pass that is compiled or traced, is computed by the class's own ``forward``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from .. import ops, rng
from ..errors import InputError
from ..models import door
from ..models.door import Tokens
from ..modules.layout import PaddedLayout, additive_mask
from ..modules.linear import is_watched
from . import patch_torch
from .patch_families import Family, family_of
from .patch_view import Unservable, View, forget, heard, our_config, view_for, view_of

_log = logging.getLogger("fastbert")

PADS = ("zeros", "computed")
_PADS = "_fastbert_pads"
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_SERVED = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
    *("output_hidden_states", "output_attentions", "return_dict", *_PACKED),
)
# Arguments of decoders and of trainers that say nothing to an encoder.
_IDLE = ("use_cache", "cache_position", "num_items_in_batch", "past_key_values_length")

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, *, pads: str | None = None) -> Model:
    """Makes every BERT-like encoder inside a model compute packed, by our kernels; in place.

    Args:
        model: a BertModel, RobertaModel (and XLM-RoBERTa, CamemBERT), ElectraModel or DistilBertModel of transformers,
            a `torch.nn.TransformerEncoder` (see `patch_torch`), or any module that holds some: a head, a PEFT model,
            a SentenceTransformer.
        pads: "zeros" leaves the outputs of masked tokens zero and does not compute them; "computed" computes them as
            transformers does, which costs what they cost there. None is "zeros", but "computed" under a head for
            question answering, whose loss in transformers reads them, and what it was for an encoder that is patched
            already. torch's encoders know "zeros" only.

    Returns:
        the model itself, so that ``Trainer(model=fastbert.patch(model))`` works. Patching twice changes nothing.

    Raises:
        InputError: there is no such encoder inside, or one of them is a decoder, has relative positions, another
            activation, pruned heads or parts of someone's own; nothing has been changed then.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"patch takes a torch module that holds a transformers encoder, got {type(model).__name__}")
    if pads is not None and pads not in PADS:
        raise InputError(f"pads must be one of {', '.join(PADS)} or None, got {pads!r:.50}")
    found: list[tuple[nn.Module, Family | None]] = []
    for module in model.modules():
        family = family_of(module)
        if family is not None or patch_torch.is_encoder(module):
            _check(module, family)
            found.append((module, family))
    if not found:
        raise InputError(
            f"patch needs a BertModel of transformers, or one of its RoBERTa, ELECTRA and DistilBERT kin, or a "
            f"TransformerEncoder of torch inside the model; {type(model).__name__} holds none"
        )
    if pads == "computed" and any(family is None for _, family in found):
        raise InputError("pads='computed' is for transformers' models, got a TransformerEncoder of torch")
    answering = {child for module in model.modules() for child in _read_at_pads(module)}
    for module, family in found:
        module.__dict__[_PADS] = pads or ("computed" if module in answering else module.__dict__.get(_PADS, "zeros"))
        if not is_patched(module):
            module.__class__ = patched_class(type(module), family)
    return model


def unpatch(model: Model) -> Model:
    """Gives every patched encoder inside a model its own class back; returns the model."""
    for module in model.modules():
        if is_patched(module):
            module.__class__ = type(module)._fastbert_original
            module.__dict__.pop(_PADS, None)  # one that its patched class has made has none
            forget(module)
    return model


def is_patched(module: nn.Module) -> bool:
    """Whether this very module, not one inside it, is computed by fastbert."""
    return "_fastbert_original" in vars(type(module))


def _read_at_pads(module: nn.Module) -> list[nn.Module]:
    """The encoders of a span head: its softmax runs over the whole row."""
    answers = any(cls.__name__.endswith("ForQuestionAnswering") for cls in type(module).__mro__)
    return list(module.children()) if answers else []


def _check(module: nn.Module, family: Family | None) -> None:
    """Raises InputError for an encoder that can never be served."""
    original = getattr(type(module), "_fastbert_original", type(module))
    where = f"{original.__name__} cannot be patched"
    if family is None:
        try:
            patch_torch.check(module, original.forward)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        return
    if original.forward is not family.model_class().forward:
        raise InputError(f"{where}: expected the forward of transformers' {family.model}, got one of its own")
    try:
        our_config(module.config, family)
        view_for(module, family)
    except (InputError, Unservable) as error:
        raise InputError(f"{where}: {error}") from error


@cache
def patched_class(original: type, family: Family | None) -> type:
    """The subclass that takes the place of an encoder's class: the same name, so that files and messages agree.

    ``family`` is None for torch's TransformerEncoder.
    """
    own_forward = original.forward
    run = _run_torch if family is None else _runner(family, own_forward)

    @wraps(own_forward)
    def forward(self, *args, **kwargs):
        # A compiler or tracer gets the class's own code: packing has shapes that depend on data.
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return own_forward(self, *args, **kwargs)
        try:
            _refuse_transforms(args, kwargs)
            ready = run(self, args, kwargs)
        except Unservable as reason:
            whose = "torch's" if family is None else "transformers'"
            ops.refuse_variant(f"this pass of {original.__name__} is computed by {whose} own code: {reason}")
            _say_original(original.__name__, whose, str(reason))
            return own_forward(self, *args, **kwargs)
        return ready()

    def __reduce_ex__(self, protocol):
        # Copies and pickles name the original class: ours is made anew on the other side.
        return _blank, (original, family), self.__getstate__()

    body = {
        "forward": forward,
        "__reduce_ex__": __reduce_ex__,
        "_fastbert_original": original,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    return type(original)(original.__name__, (original,), body)


def _refuse_transforms(args: tuple, kwargs: dict[str, Any]) -> None:
    """Raises Unservable for a pass that torch itself transforms: its code alone can be looked into."""
    if ops.is_transformed():
        raise Unservable("it runs under a transform of torch.func or in forward-mode differentiation")
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if any(isinstance(x, FakeTensor) or x.is_meta for x in given):
        raise Unservable("its tensors have shapes and no values")


def _runner(family: Family, own_forward: Callable) -> Callable:
    """What prepares a pass of one family: it raises Unservable, or returns the pass, to be called."""
    parameters = list(inspect.signature(own_forward).parameters)[1:]

    def run(model: nn.Module, args: tuple, kwargs: dict) -> Callable:
        return _Call(model, family, {**dict(zip(parameters, args, strict=False)), **kwargs}).run

    return run


def _run_torch(encoder: nn.Module, args: tuple, kwargs: dict) -> Callable:
    if any(getattr(x, "is_nested", False) for x in (*args, *kwargs.values())):
        raise Unservable("a nested tensor")
    try:
        patch_torch.check_parts(encoder)
    except InputError as error:
        raise Unservable(str(error)) from error
    heard(patch_torch.parts_of(encoder))
    return lambda: patch_torch.encode(encoder, *args, **kwargs)


def _blank(original: type, family: Family | None) -> nn.Module:
    cls = patched_class(original, family)
    return cls.__new__(cls)


@cache
def _say_original(name: str, whose: str, reason: str) -> None:
    _log.warning("%s: this pass is computed by %s own code: %s", name, whose, reason)


class _Call:
    """One forward pass.

    Raises:
        Unservable: it is not one for a packed pass.
    """

    def __init__(self, model: nn.Module, family: Family, given: dict[str, Any]) -> None:
        self.model, self.family, self.given = model, family, given
        config = model.config
        for name, value in given.items():
            idle = value is None or value is False or name in _IDLE
            if name in _SERVED or idle or (isinstance(value, (list, tuple)) and all(v is None for v in value)):
                continue
            raise Unservable(f"the argument {name} was given")
        ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
        tokens = ids if embeds is None else embeds
        if (ids is None) == (embeds is None) or tokens.dim() != (2 if embeds is None else 3):
            raise Unservable("it must refuse this input itself")
        self.packed = given.get("cu_seq_lens_q") is not None
        mask = given.get("attention_mask")
        shape = tuple(tokens.shape[:2])
        if mask is not None and (self.packed or not (_is_key_mask(mask, shape) or _is_square_mask(mask, shape))):
            raise Unservable(f"an attention mask of {mask.dtype} {tuple(mask.shape)}")
        for name in ("token_type_ids", "position_ids"):
            more = given.get(name)
            if more is not None and not self.packed and more.shape not in (shape, (1, shape[1]), shape[1:]):
                raise Unservable(f"{name} of {tuple(more.shape)} beside tokens of {shape}")
        self.states = _flag(given, "output_hidden_states", config.output_hidden_states)
        self.attentions = _flag(given, "output_attentions", config.output_attentions)
        if self.packed and (self.attentions or family.embed is not None):
            raise Unservable("packed tokens")
        asked = given.get("return_dict")
        self.return_dict = getattr(config, "return_dict", True) if asked is None else asked
        self.view = view_of(model, family)
        self.key = rng.current() if self.view.follow() else None

    def run(self):
        tokens, hidden = self._embedded()
        # Under autocast transformers' states have the dtype of its residuals, which is that of the embeddings.
        dtype = hidden.dtype if torch.is_autocast_enabled(hidden.device.type) else None
        show = (lambda state: tokens.show(state if dtype is None else state.to(dtype))) if self.states else None
        last, states, attentions = self.view.encoder.run(hidden, tokens.layout, self.key, bool(self.states), show=show)
        last = last if dtype is None else last.to(dtype)
        pooled = None
        pooler = self.model._modules.get("pooler")
        if pooler is not None:
            # transformers' own reads column 0 alone; whoever took its place, or listens to it, may read all of them.
            own = type(pooler).__module__ == self.family.module
            reads_first = own and (self.packed or not is_watched(pooler))
            pooled = pooler(tokens.pooled_tokens(last)[:, None] if reads_first else tokens.unpack(last))
        return self._output(
            tokens.unpack(last),
            pooled,
            tuple(states) if states else None,
            # A softmax under autocast is float32, there and here.
            tuple(p if dtype is None else p.float() for p in attentions) if self.attentions else None,
        )

    def _embedded(self) -> tuple[Tokens, Tensor]:
        """The tokens and their (T, H) embeddings."""
        given, view = self.given, self.view
        if self.family.embed is None:
            tokens = self._tokens(view, given.get("input_ids"), given.get("inputs_embeds"))
            ids = (tokens.input_ids, tokens.token_type_ids, tokens.position_ids)
            return tokens, view.embeddings(*ids, self.key, tokens.inputs_embeds)
        tokens = self._tokens(view, None, self.family.embed(self.model, given), positions=False)
        return tokens, tokens.inputs_embeds

    def _tokens(self, view: View, input_ids, inputs_embeds, positions: bool = True) -> Tokens:
        given = self.given
        types = given.get("token_type_ids") if positions else None
        position_ids = given.get("position_ids") if positions else None
        if self.packed:
            return door.open_packed(
                view.config,
                self.key,
                input_ids,
                inputs_embeds,
                types,
                position_ids,
                given["cu_seq_lens_q"],
                given.get("max_length_q"),
            )
        mask = given.get("attention_mask")
        keep = None if mask is None or mask.dim() != 2 else mask != 0
        whole = keep is not None and self.model.__dict__.get(_PADS) == "computed"
        tokens = door.open_padded(
            view.config,
            self.key,
            input_ids,
            inputs_embeds,
            None if whole else mask,
            types,
            position_ids,
            # Heads read column 0 also where it is masked: the pooler's, and those of models without one.
            needs_first_column=True,
            needs_attentions=bool(self.attentions),
        )
        if whole:
            padded = not bool(keep.all())
            if padded:
                batch_size, seqlen = keep.shape
                keep = keep.to(tokens.cu_seqlens.device)
                return replace(tokens, layout=PaddedLayout(additive_mask(keep), batch_size, seqlen))
        elif tokens.keep is not None:
            kept = tokens.keep.clone()
            kept[:, 0] |= kept.any(1)
            return replace(tokens, keep=kept)
        return tokens

    def _output(self, last, pooled, states, attentions):
        fields: dict[str, Any] = {"last_hidden_state": last, "hidden_states": states, "attentions": attentions}
        cls = self.family.output_class()
        if "pooler_output" in cls.__dataclass_fields__:
            fields["pooler_output"] = pooled
        if attentions is not None and "cross_attentions" in cls.__dataclass_fields__ and not _keeps_empty_pooler():
            # transformers 5 answers for the cross-attention that an encoder has not, too.
            fields["cross_attentions"] = ()
        output = cls(**fields)
        if self.return_dict:
            return output
        if "pooler_output" in fields and _keeps_empty_pooler():
            return (last, pooled, *(x for x in (states, attentions) if x is not None))
        return output.to_tuple()


@cache
def _keeps_empty_pooler() -> bool:
    """Whether the tuple of a model without a pooler has a None for it: so up to transformers 4."""
    import transformers
    from packaging.version import Version

    return Version(transformers.__version__) < Version("5.0.0.dev0")


def _flag(given: dict[str, Any], name: str, default: Any) -> bool:
    value = given.get(name)
    value = default if value is None else value
    if not isinstance(value, bool) and value is not None:
        raise Unservable(f"{name} selects some of them")
    return bool(value)


def _is_key_mask(mask: Tensor, shape: tuple[int, int]) -> bool:
    return mask.dim() == 2 and tuple(mask.shape) == shape


def _is_square_mask(mask: Tensor, shape: tuple[int, int]) -> bool:
    """A ready 4-D mask, as transformers 5 takes it; 4.x would convert it, so there it is not ours to read."""
    known = mask.dtype == torch.bool or mask.is_floating_point()
    return mask.dim() == 4 and known and mask.shape[-1] == shape[1] and not _keeps_empty_pooler()


__all__ = ["is_patched", "patch", "patched_class", "unpatch"]
