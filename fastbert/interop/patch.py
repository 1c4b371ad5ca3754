"""`patch` and `unpatch`: encoders of transformers and of torch computed by fastbert, in place.

The class of each encoder inside the model is replaced by a subclass of the same name with our ``forward``. Nothing else
changes: parameters, modules and their names, configuration and heads remain the same objects, so optimisers, adapters,
trainers, copies and files are not affected. Passes that cannot be computed packed (see `Unservable`), or that are
exported, traced or compiled with fullgraph=True, are computed by the class's own ``forward``. `torch.compile` does not
compile ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.fx import Proxy

from .. import ops
from ..errors import InputError, also_raised_as
from ..modules import hooks
from ..modules.encoder import BertEncoder
from ..modules.quantized_linear import check_trainable
from ..modules.said import say_once
from ..modules.uncompiled import must_be_whole, uncompiled
from ..transforms import callers_mode, is_exported, is_transformed
from . import patch_torch
from .patch_checks import OwnPart, Unservable
from .patch_encoder import EncoderPass
from .patch_families import Family, family_of, hint_of_encoder
from .patch_pass import PADS_KEY, Pass
from .patch_quantize import quantizable
from .patch_view import check_hooks, forget, our_config, view_for

PADS = ("zeros", "computed")
_READ_PADS = ("ForQuestionAnswering", "LMHeadModel", "ForCausalLM")

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, *, pads: str | None = None) -> Model:
    """Makes every BERT-like encoder inside a model compute without padding, with fastbert's kernels; in place.

    Args:
        model: a BertModel, RobertaModel, ElectraModel, AlbertModel, DistilBertModel or a related model
            (docs/drop-in.md) of transformers, a BertEncoder or RobertaEncoder alone, a `torch.nn.TransformerEncoder`,
            or any module that contains one or several of these: a model with a head, a PEFT model, a
            SentenceTransformer.
        pads: "zeros" skips masked tokens, whose outputs are then zero; "computed" computes them as transformers does,
            at its cost. None chooses "zeros", except if a loss or a head is known to read those outputs (question
            answering, next words, a ColBERT whose query expansion is not attended to, an ELECTRA for multiple choice
            whose ``summary_type`` is not "first"), and keeps the earlier choice for an encoder that is already patched.
            torch's encoders only support "zeros".

    Returns:
        the model itself, so that ``Trainer(model=fastbert.patch(model))`` works. Patching twice changes nothing.

    Raises:
        InputError: the model contains no such encoder; or one of them is a decoder, or has relative positions other
            than MPNet's, an activation other than GELU, pruned heads, custom dropout, activations or layers, a
            replaced ``forward``, or one of its own that does not call ``super().forward``. The model is then unchanged.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"patch takes a torch module that holds a transformers encoder, got {type(model).__name__}")
    if pads is not None and pads not in PADS:
        raise InputError(f"pads must be one of {', '.join(PADS)} or None, got {pads!r:.50}")
    found = _encoders(model)
    if pads == "computed" and any(family is None for _, family in found):
        raise InputError("pads='computed' is for transformers' models, got a TransformerEncoder of torch")
    answering = {child for module in model.modules() for child in _read_at_pads(module)}
    for module, family in found:
        before = module.__dict__.get(PADS_KEY, "zeros")
        module.__dict__[PADS_KEY] = pads or ("computed" if module in answering else before)
        if not is_patched(module):
            _change_class(module, patched_class(type(module), family))
    return model


def _encoders(model: nn.Module) -> list[tuple[nn.Module, Family | None]]:
    """The encoders that `patch` changes, each with its family, None for torch's; without those inside models of
    transformers that are changed themselves.

    Raises:
        InputError: there is none, or one cannot be patched.
    """
    found: list[tuple[nn.Module, Family | None]] = []
    inside: set[nn.Module] = set()  # encoders of models that are patched themselves
    for module in model.modules():
        family = family_of(type(module))
        if module in inside or (family is None and not patch_torch.is_encoder(module)):
            continue
        _check(module, family)
        found.append((module, family))
        if family is not None:
            inside.add(family.encoder_of(module))
    if not found and any(isinstance(module, BertEncoder) for module in model.modules()):
        raise InputError(f"patch needs a model of transformers or torch, got fastbert's own {type(model).__name__}")
    if not found:
        raise InputError(
            "patch needs a BertModel of transformers, a related model such as RoBERTa, ELECTRA or DistilBERT, or a "
            f"TransformerEncoder of torch inside the model; {type(model).__name__} holds none"
        )
    return found


def unpatch(model: Model) -> Model:
    """Undoes `patch` for every encoder inside a model; returns the model.

    Raises:
        InputError: ``model`` is not a torch module, or an encoder's class has been replaced since the patch, as FSDP's
            ``fully_shard`` does. The model is then unchanged.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"unpatch takes a torch module, got {type(model).__name__}")
    for module in model.modules():
        if hasattr(type(module), "_fastbert_original") and not is_patched(module):
            raise InputError(
                f"{type(module)._fastbert_original.__name__} cannot be unpatched: its class has become "
                f"{type(module).__name__} since the patch; unpatch it before fully_shard, or what else changes classes"
            )
    for module in model.modules():
        if is_patched(module):
            _change_class(module, type(module)._fastbert_original)
            module.__dict__.pop(PADS_KEY, None)  # missing in an encoder that was created from the patched class
            forget(module)
    return model


def _change_class(module: nn.Module, cls: type) -> None:
    """Changes a module's class. If the old class's forward is also an attribute of the module, it is removed, since it
    would hide the new one."""
    if not hooks.is_forward_replaced(module):
        module.__dict__.pop("forward", None)
    module.__class__ = cls


def is_patched(module: nn.Module) -> bool:
    """Whether this module itself, not one inside it, is patched."""
    return "_fastbert_original" in vars(type(module))


def _read_at_pads(module: nn.Module) -> list[nn.Module]:
    """All modules inside this one if its head also reads encoder outputs at masked tokens, otherwise none.

    Such heads are: a span head, whose softmax is over the whole row, also one of a user's own under transformers' name
    for it, ``qa_outputs``; a head for next words, whose loss at a pad is that
    of the following token; a ColBERT whose queries are filled up with tokens that are not attended to; and ELECTRA's
    head for multiple choice, unless it summarises by the first token.
    """
    answers = any(cls.__name__.endswith(_READ_PADS) for cls in type(module).__mro__)
    answers = answers or isinstance(module._modules.get("qa_outputs"), nn.Linear)
    summary = getattr(getattr(module, "sequence_summary", None), "summary_type", "first")
    return list(module.modules()) if answers or _fills_queries(module) or summary != "first" else []


def _fills_queries(module: nn.Module) -> bool:
    """Whether a module is a ColBERT that reads vectors of [MASK] tokens which its queries' attention mask leaves out.

    A module with ``query_expansion`` is one of sentence-transformers. Others are known by their class's name
    (colbert-ai, rerankers, pylate), and fill their queries up unless they have pylate's settings that say otherwise.
    """
    expansion = getattr(module, "query_expansion", None)
    if isinstance(expansion, dict):
        return not expansion.get("attend", True)
    attends = getattr(module, "attend_to_expansion_tokens", False) or not getattr(module, "do_query_expansion", True)
    return not attends and any("colbert" in cls.__name__.lower() for cls in type(module).__mro__)


def _check(module: nn.Module, family: Family | None) -> None:
    """Raises InputError for an encoder whose passes could never be computed by fastbert."""
    original = getattr(type(module), "_fastbert_original", type(module))
    where = f"{original.__name__} cannot be patched"
    if not is_patched(module) and hooks.is_forward_replaced(module):
        raise InputError(
            f"{where}: its forward has been replaced, which hides the class's; patch it first, and have accelerate "
            "prepare or offload it, or wrap it, afterwards"
        )
    if family is None:
        try:
            patch_torch.check(module, original.forward)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        return
    model_class = family.model_class()
    expected = f"{where}: expected the forward of transformers' {family.model}, got one of its own"
    if hooks.is_class_forward_replaced(model_class):
        raise InputError(expected)
    if not _calls_forward_of(model_class, original):
        raise InputError(f"{expected} that does not call super().forward{hint_of_encoder(family)}")
    for name in hooks.called_methods(model_class):
        if getattr(original, name) is not getattr(model_class, name):
            raise InputError(f"{where}: expected {name} of transformers' {family.model}, got one of its own")
    try:
        our_config(module.config, family)
        view_for(module, family)
    except OwnPart:
        pass  # the part may be removed again; until then transformers' code computes the passes, with a warning
    except (InputError, Unservable) as error:
        raise InputError(f"{where}: {error}") from error


def _calls_forward_of(model_class: type, cls: type) -> bool:
    """Whether every forward of a subclass calls the next class's one, down to that of ``model_class``."""
    below = cls.__mro__[: cls.__mro__.index(model_class)]
    own = [inspect.unwrap(vars(each)["forward"]) for each in below if "forward" in vars(each)]
    names = [getattr(getattr(forward, "__code__", None), "co_names", ()) for forward in own]
    return all("super" in called and "forward" in called for called in names)


@cache
def patched_class(original: type, family: Family | None) -> type:
    """The subclass that replaces an encoder's class. It has the same name, which files and messages contain.

    For a subclass of a transformers model it derives from both, the subclass and the patched model: then
    ``super().forward`` in a forward of the subclass is ours.

    Args:
        original: the encoder's class.
        family: None for torch's TransformerEncoder.
    """

    def __reduce_ex__(self, protocol):
        # Copies and pickles refer to the original class; `_blank` makes the subclass again, perhaps in another process.
        return _blank, (original,), object.__reduce_ex__(self, max(protocol, 2))[2]

    body = {
        "__reduce_ex__": __reduce_ex__,
        "_fastbert_original": original,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    model_class = original if family is None else family.model_class()
    if original is not model_class:
        return type(original)(original.__name__, (original, patched_class(model_class, family)), body)
    return type(original)(original.__name__, (original,), {**body, **_computing(original, family)})


def _computing(original: type, family: Family | None) -> dict[str, Any]:
    """The methods of the subclass that compute a model by fastbert; see `patched_class`."""
    own_forward = original.forward
    run = _run_torch if family is None else _runner(family, own_forward)
    whole = (
        f"{original.__name__}: in one whole graph (fullgraph=True) it is computed by {_whose(family)} own code, with "
        "padding; leave fullgraph=True out to have it computed by fastbert"
    )

    # Not compiled: since the host reads the mask and checks the model for changes, there would be many graph breaks,
    # and the graphs would only call the same kernels.
    @uncompiled("a patched model is computed by fastbert's kernels outside of the compiler's graphs")
    def computed_by_fastbert(self, args, kwargs):
        try:
            if original.forward is not own_forward:
                raise Unservable("its class has been given another forward")
            _check_surroundings(args, kwargs)
            ready = run(self, args, kwargs)
        except Unservable as reason:
            _say_original(self, reason)
            return original.forward(self, *args, **kwargs)
        try:
            return ready()
        except InputError as error:
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
            if family is None or any(x.device.type != "cpu" for x in given):  # a wrong id ends CUDA
                raise
            # Code around the model may expect the exception that transformers raises.
            with also_raised_as(error):
                output = original.forward(self, *args, **kwargs)
            _say_original(self, error)
            return output

    @wraps(own_forward)
    def forward(self, *args, **kwargs):
        # Exports, traces and whole graphs get the class's own code.
        if is_exported() or (must_be_whole(whole) if torch.compiler.is_compiling() else _is_traced(args, kwargs)):
            return original.forward(self, *args, **kwargs)
        return computed_by_fastbert(self, args, kwargs)

    def train(self, mode: bool = True):
        check_trainable(self, mode)
        return original.train(self, mode)

    return {"forward": forward, "train": train, "_fastbert_quantizable": quantizable}


def _is_traced(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether torch.fx traces a pass, whose arguments are then proxies."""
    return any(isinstance(x, Proxy) for x in (*args, *kwargs.values()))


def _check_surroundings(args: tuple, kwargs: dict[str, Any]) -> None:
    """Raises Unservable for a pass under a transform of torch, which cannot transform our kernels, or where a mode or a
    function of the caller's takes the place of torch's functions."""
    if is_transformed():
        raise Unservable("it runs under a transform of torch.func or in forward-mode differentiation")
    mode = callers_mode()
    if mode is not None:
        raise Unservable(f"it runs under a {mode}, a mode that may replace any call of torch")
    hooks.look_for_replaced()
    replaced = hooks.replaced_function()
    if replaced is not None:
        raise Unservable(f"torch's {replaced} has been replaced")
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if any(isinstance(x, FakeTensor) or x.is_meta for x in given):
        raise Unservable("its tensors have shapes and no values")


def _runner(family: Family, own_forward: Callable) -> Callable:
    """A function that prepares a pass of one family: it returns the pass as a function, or raises Unservable."""
    parameters = list(inspect.signature(own_forward).parameters)[1:]
    # Such as those that make masks. Our pass does not call them, so they must not be replaced.
    cls, methods = family.model_class(), hooks.called_methods(family.model_class())
    kind = EncoderPass if family.encoder is None else Pass

    def run(model: nn.Module, args: tuple, kwargs: dict) -> Callable:
        if len(args) > len(parameters) or not kwargs.keys().isdisjoint(parameters[: len(args)]):
            raise Unservable("it must refuse this input itself")
        for name in methods:
            if name in model.__dict__ or hooks.is_someones(getattr(cls, name)):
                raise Unservable(f"{name} has been replaced")
        return kind(model, family, {**dict(zip(parameters, args, strict=False)), **kwargs}).run

    return run


def _run_torch(encoder: nn.Module, args: tuple, kwargs: dict) -> Callable:
    if any(getattr(x, "is_nested", False) for x in (*args, *kwargs.values())):
        raise Unservable("a nested tensor")
    try:
        patch_torch.check_parts(encoder)
    except InputError as error:
        raise Unservable(str(error)) from error
    check_hooks(patch_torch.parts_of(encoder))
    return lambda: patch_torch.encode(encoder, *args, **kwargs)


def _blank(original: type) -> nn.Module:
    cls = patched_class(original, family_of(original))
    return cls.__new__(cls)


def _whose(family: Family | None) -> str:
    return "torch's" if family is None else "transformers'"


def _say_original(model: nn.Module, reason: Exception) -> None:
    """Warns, once for each reason, that a pass is computed without fastbert. Raises BackendError in batch-invariant
    mode."""
    name, whose = type(model).__name__, _whose(family_of(type(model)))
    ops.refuse_variant(f"this pass of {name} is computed by {whose} own code: {reason}")
    say_once(f"{name}: this pass is computed by {whose} own code: {reason}")
