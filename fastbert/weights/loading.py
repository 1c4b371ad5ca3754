"""Loads weights into a model, under Hugging Face's names.

Every published variant of the names is converted to those of transformers' ``BertForPreTraining``
(``bert.embeddings...``, ``bert.encoder...``, ``bert.pooler...``, ``cls...``), and so are the model's own names. A bare
BertModel's file can thus be loaded into a model with a head, and the reverse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, InputError
from .distilbert import from_distilbert
from .materialise import materialise
from .names import canonical_name, is_computed, owner, unwrapped_name

_logger = logging.getLogger("fastbert")

_SHOWN = 10
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

    @property
    def newly_initialised(self) -> tuple[str, ...]:
        """Another name of ``missing``."""
        return self.missing


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
        held = canonical.setdefault(new, tensor)
        if held is tensor or (held.shape == tensor.shape and torch.equal(held, tensor)):
            continue
        if new != "cls.predictions.bias":
            raise CheckpointError(f"{name}: expected one tensor for {new}, got two that differ")
        # transformers 5 stores two biases for an untied decoder, and computes with the decoder's own.
        if name.endswith("decoder.bias"):
            canonical[new] = tensor
    return canonical


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
    mismatched = tuple(name for name, tensor in own.items() if name in state and not _fits(state[name], tensor))
    if mismatched or any(name.startswith(needed) for name in missing):
        shapes = [_difference(n, state[n], own[n]) for n in mismatched]
        raise CheckpointError(
            f"{source}: expected the weights of a {type(model).__name__} of this configuration, got "
            f"{_shown('missing', missing)}; {_shown('mismatched', shapes)}; {_shown('unexpected', unexpected)}"
            f"{_under_others(prefix, missing, unexpected)}{_of_padded(prefix, state, own)}"
            f"{_of_another_head(needed, missing, mismatched, state, own)}{_of_pruned(mismatched, state, own)}"
            f"{_of_own_code(model, missing)}"
        )

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
        _logger.warning("%s: %s: its results are meaningless", source, _shown("with NaN or infinite numbers", broken))
    if report.missing:
        _logger.warning("%s: %s: train the model before use", source, _shown("newly initialised", report.missing))
    if report.unexpected:
        # Unused heads of known kinds are normal. Unused encoder tensors are not, nor is what belongs to the head that
        # was loaded, such as the CRF after a classifier of tokens.
        looked_at = "" if has_head else f"{prefix}."
        known = (f"{prefix}.pooler.", *_HEADS)
        unknown = any(name.startswith(looked_at) and not name.startswith(known) for name in report.unexpected)
        level = logging.WARNING if unknown else logging.INFO
        _logger.log(level, "%s: %s", source, _shown("not used", report.unexpected))


def is_complete(model: nn.Module, state: Mapping[str, Tensor], *, prefix: str = "bert", trunk: tuple[str, ...]) -> bool:
    """Whether `load_into` would overwrite every parameter and buffer of a model.

    Args:
        model: may be on the meta device.
        state, prefix, trunk: as in `load_into`.
    """
    state = canonical_keys(state, prefix)
    own = _own_tensors(model, prefix, trunk)
    found = {id(tensor) for name, tensor in own.items() if name in state and _fits(state[name], tensor)}
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


def _fits(value: Tensor, parameter: Tensor) -> bool:
    return value.shape == parameter.shape and value.is_floating_point() == parameter.is_floating_point()


def _is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite; the minimum and maximum, which need no temporary tensor, are NaN if one is."""
    wide = tensor.float() if tensor.itemsize == 1 else tensor  # torch has no maximum of 8-bit floats
    return not wide.numel() or all(bool(end.isfinite()) for end in torch.aminmax(wide))


def _difference(name: str, value: Tensor, parameter: Tensor) -> str:
    if value.shape != parameter.shape:
        return f"{name} is {tuple(value.shape)} for {tuple(parameter.shape)}"
    return f"{name} is {value.dtype} for {parameter.dtype}"


def _shown(what: str, names) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}" + (f" ({', '.join(names[:_SHOWN])}{more})" if names else "")


# NVIDIA's and DeepSpeed's examples pad the vocabulary to a multiple of this, but not its size in the configuration.
_PADDED_TO = 8


def padded_vocabulary(rows: int, vocab_size: int) -> bool:
    """Whether a table with this many rows is the configuration's vocabulary with such padding."""
    return vocab_size < rows == -(-vocab_size // _PADDED_TO) * _PADDED_TO


def _of_padded(prefix: str, state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """The end of an error message if the word embeddings have padding; "" otherwise."""
    name = f"{prefix}.embeddings.word_embeddings.weight"
    if name not in state or name not in own or state[name].dim() != 2:
        return ""
    rows, size = state[name].shape[0], own[name].shape[0]
    if not padded_vocabulary(rows, size):
        return ""
    return f": its vocabulary was padded; `fastbert convert` makes a directory of it, or set vocab_size to {rows}"


def _under_others(prefix: str, missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """The end of an error message if missing tensors are in the file under the names of outer modules; "" otherwise."""
    name = next((name.removeprefix(f"{prefix}.") for name in missing if name.startswith(f"{prefix}.")), None)
    found = [other.removesuffix(name) for other in unexpected if name is not None and other.endswith(f".{name}")]
    if not found:
        return ""
    return f": the weights are under {' and '.join(found[:3])} there; save the state_dict() of that module alone"


def _of_pruned(mismatched: Iterable[str], state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """The end of an error message if a layer in the file has fewer attention heads; "" otherwise."""
    if not any(n.endswith(".attention.self.query.bias") and len(state[n]) < len(own[n]) for n in mismatched):
        return ""
    return ": heads were pruned from its layers, and a model of ours has the same number of heads in every layer"


def _of_own_code(model: nn.Module, missing: Sequence[str]) -> str:
    """The end of an error message if weights are missing and the model has code of its own; "" otherwise."""
    if not missing or not getattr(model.config, "auto_map", None):
        return ""
    return ": by its config.json it is computed by code of its own (auto_map), not as a BERT"


def _of_another_head(needed: tuple[str, ...], missing, mismatched, state, own) -> str:
    """The end of an error message if only heads have another size, as for a task with other labels; "" otherwise."""
    sizes = all(state[name].shape != own[name].shape for name in mismatched)
    if not sizes or any(name.startswith(needed) for name in (*missing, *mismatched)):
        return ""
    reads, name = "", "classifier.weight"
    if name in mismatched and state[name].dim() == 2 and own[name].shape[0] > 1:  # one output scores choices too
        reads = f"reads this head with num_labels={state[name].shape[0]}, and "
    return f": from_pretrained {reads}starts a head of another size with new weights if ignore_mismatched_sizes=True"


@torch.no_grad()
def _copy(own: Mapping[str, Tensor], values: Mapping[int, Tensor]) -> None:
    for parameter in {id(tensor): tensor for tensor in own.values()}.values():
        if id(parameter) in values:
            parameter.copy_(values[id(parameter)])
