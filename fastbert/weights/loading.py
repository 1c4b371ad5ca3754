"""Loads weights into a model, under Hugging Face's names.

Every published variant of the names is converted to those of transformers' ``BertForPreTraining``
(``bert.embeddings...``, ``bert.encoder...``, ``bert.pooler...``, ``cls...``), and so are the model's own names. A bare
BertModel's file can thus be loaded into a model with a head, and the reverse.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, InputError
from .distilbert import from_distilbert
from .materialise import materialise
from .misfit import Misfit, fits, shown
from .names import canonical_name, is_computed, is_same, owner, unwrapped_name

_logger = logging.getLogger("fastbert")

# What the names of tensors of heads begin with, in files of BERTs and GPTs.
_HEADS = ("cls.", "classifier.", "qa_outputs.", "lm_head.")


@dataclass(frozen=True)
class LoadReport:
    """The result of loading weights, with canonical names.

    Args:
        missing: tensors of the model that the file lacks (heads and pooler); they are newly initialised.
        unexpected: tensors of the file that the model lacks.
        mismatched: tensors with another shape in the file, which count as missing: (name, shape in the file, shape in
            the model).
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]


def check_unquantized(config, source) -> None:
    """Raises CheckpointError if a configuration says that the weights beside it are quantized: some formats use other
    names, but others store 8-bit floats under BERT's names, which are wrong without their scales.

    Args:
        config: any object with the fields of config.json.
        source: the path, for messages.
    """
    said = getattr(config, "quantization_config", None)
    if said:
        # Before transformers 4.34, files do not name the method, which is always bitsandbytes.
        method = said.get("quant_method", "bitsandbytes") if isinstance(said, Mapping) else said
        raise CheckpointError(
            f"{source}: expected float weights, got ones that {method!s:.50} has quantized (quantization_config in "
            "config.json): take the model that they were made of, and fastbert.quantize for int8"
        )


def canonical_keys(state: Mapping[str, Tensor], prefix: str = "bert") -> dict[str, Tensor]:
    """The same tensors under the names of transformers' BertForPreTraining; computed buffers are left out.

    Raises:
        CheckpointError: two different tensors get the same name.
    """
    canonical: dict[str, Tensor] = {}
    under = owner(state, prefix)
    for name, tensor in from_distilbert(state).items():
        new = canonical_name(unwrapped_name(name).removeprefix(under), prefix)
        if is_computed(new):
            continue
        if is_same(canonical.setdefault(new, tensor), tensor):
            continue
        if new != "cls.predictions.bias":
            raise CheckpointError(f"{name}: expected one tensor for {new}, got two that differ")
        # transformers 5 stores two biases for an untied decoder, and computes with the decoder's own.
        if name.endswith("decoder.bias"):
            canonical[new] = tensor
    return canonical


@contextlib.contextmanager
def warnings_held() -> Iterator[list[logging.LogRecord]]:
    """While the block runs, the package's log records are collected instead of shown. Loading warns of a new head,
    which in some places is intended or was reported before, and in others becomes an error, to be reported once."""
    kept: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        kept.append(record)
        return False

    _logger.addFilter(keep)
    try:
        yield kept
    finally:
        _logger.removeFilter(keep)


def load_into(
    model: nn.Module,
    state: Mapping[str, Tensor],
    *,
    prefix: str = "bert",
    trunk: tuple[str, ...] = ("embeddings.", "encoder."),
    ignore_mismatched_sizes: bool = False,
    source,
) -> LoadReport:
    """Copies a state dictionary with any variant of the names into a model, in the model's dtype; all or nothing.

    Args:
        model: has its encoder as the attribute ``prefix``, or is a bare BertModel. If it is on the meta device, it gets
            new tensors on the CPU; otherwise its parameters are written in place.
        state: name -> tensor, as from ``read_state_dict``.
        prefix: the name of the attribute.
        trunk: prefixes, after ``prefix``, of the names of tensors that must not be missing.
        ignore_mismatched_sizes: whether tensors of another shape are left out, except in the trunk.
        source: the path, for messages.

    Returns:
        which tensors were missing, unexpected, or of another shape.

    Raises:
        CheckpointError: a tensor of the embeddings or the encoder is missing, or a shape differs; nothing was written.
        InputError: the model was made under DeepSpeed's ZeRO-3 and has no whole tensors to write to.
    """
    state = canonical_keys(state, prefix)
    own = _own_tensors(model, prefix, trunk)
    if any(hasattr(tensor, "ds_id") for tensor in own.values()):
        raise InputError(
            f"{source}: expected a model with whole weights to read it into, got one that deepspeed.zero.Init has "
            "divided: call from_pretrained outside of that block, deepspeed.initialize divides the model"
        )

    needed = tuple(f"{prefix}.{part}" for part in trunk)
    left_out = _leave_out(state, own, needed) if ignore_mismatched_sizes else ()

    # A tied parameter has several names, of which the file needs only one.
    found: dict[int, str] = {}
    for name, tensor in own.items():
        if name in state:
            found.setdefault(id(tensor), name)
    missing = tuple(name for name, tensor in own.items() if id(tensor) not in found)
    unexpected = tuple(name for name in state if name not in own)
    mismatched = tuple(name for name, tensor in own.items() if name in state and not fits(state[name], tensor))
    if mismatched or any(name.startswith(needed) for name in missing):
        misfit = Misfit(model, prefix, needed, state, own, missing, unexpected, mismatched)
        raise CheckpointError(f"{source}: {misfit.sentence()}")

    _untie(model, own, state, found, source)
    values = {key: state[name] for key, name in found.items()}
    if any(tensor.is_meta for tensor in own.values()):
        materialise(model, values)
    else:
        _copy(own, values)
    report = LoadReport(missing, unexpected, left_out)
    loaded = [name for name in found.values() if not name.startswith(f"{prefix}.")]
    _warn(source, report, prefix, bool(loaded), [name for name in found.values() if not _is_finite(state[name])])
    return report


def _leave_out(
    state: dict[str, Tensor], own: Mapping[str, Tensor], needed: tuple[str, ...]
) -> tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]:
    """Removes tensors of another shape from ``state``, except needed ones; returns `LoadReport.mismatched`."""
    other = [n for n in own if n in state and state[n].shape != own[n].shape and not n.startswith(needed)]
    return tuple((name, tuple(state.pop(name).shape), tuple(own[name].shape)) for name in other)


def _warn(source, report: LoadReport, prefix: str, has_head: bool, broken: Sequence[str]) -> None:
    """Logs what a user should know about a successful load.

    Args:
        has_head: whether the weights of a head were loaded.
        broken: tensors with numbers that are not finite.
    """
    if broken:
        _logger.warning("%s: %s: its results are meaningless", source, shown("with NaN or infinite numbers", broken))
    if report.missing:
        _logger.warning("%s: %s: train the model before use", source, shown("newly initialised", report.missing))
    if report.unexpected:
        # Unused heads of known kinds are normal. Unused encoder tensors are not, nor is what belongs to the head that
        # was loaded, such as the CRF after a classifier of tokens.
        looked_at = "" if has_head else f"{prefix}."
        known = (f"{prefix}.pooler.", *_HEADS)
        unknown = any(name.startswith(looked_at) and not name.startswith(known) for name in report.unexpected)
        level = logging.WARNING if unknown else logging.INFO
        _logger.log(level, "%s: %s", source, shown("not used", report.unexpected))


def is_complete(model: nn.Module, state: Mapping[str, Tensor], *, prefix: str = "bert", trunk: tuple[str, ...]) -> bool:
    """Whether `load_into` would overwrite every parameter and buffer of a model.

    Args:
        model: may be on the meta device.
        state, prefix, trunk: as in `load_into`.
    """
    state = canonical_keys(state, prefix)
    own = _own_tensors(model, prefix, trunk)
    found = {id(tensor) for name, tensor in own.items() if name in state and fits(state[name], tensor)}
    return all(id(tensor) in found for tensor in (*model.parameters(), *model.buffers()))


def _own_tensors(model: nn.Module, prefix: str, trunk: tuple[str, ...]) -> dict[str, Tensor]:
    """A model's tensors under canonical names, a tied one under each of its names; without computed buffers."""
    own: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        name = canonical_name(name, prefix)
        own.setdefault(f"{prefix}.{name}" if name.startswith(trunk) else name, tensor)
    return {name: tensor for name, tensor in own.items() if not is_computed(name)}


@torch.no_grad()
def _untie(
    model: nn.Module, own: dict[str, Tensor], state: Mapping[str, Tensor], found: dict[int, str], source
) -> None:
    """Unties a tied parameter for which the file has two different values, as transformers 5 does."""
    for name, tensor in own.items():
        first = found.get(id(tensor), name)
        if name == first or name not in state or torch.equal(state[name], state[first]):
            continue
        _logger.warning("%s: %s differs from %s: they are not tied, whatever config.json says", source, name, first)
        own[name] = nn.Parameter(torch.empty_like(tensor), requires_grad=tensor.requires_grad)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, own[name])
        found[id(own[name])] = name
        model.config.tie_word_embeddings = False


def _is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite; the minimum and maximum, which need no temporary tensor, are NaN if one is."""
    wide = tensor.float() if tensor.itemsize == 1 else tensor  # torch has no maximum of 8-bit floats
    return not wide.numel() or all(bool(end.isfinite()) for end in torch.aminmax(wide))


@torch.no_grad()
def _copy(own: Mapping[str, Tensor], values: Mapping[int, Tensor]) -> None:
    for parameter in {id(tensor): tensor for tensor in own.values()}.values():
        if id(parameter) in values:
            parameter.copy_(values[id(parameter)])
