"""Reads the files of a sentence-transformers directory: its modules, pooling, prompts and longest input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import InputError
from ..text_files import read_json
from ..weights.reading import has_weights
from .sentence_modules import KINDS, Dropout, Normalize, read_module

CONFIG = "config_sentence_transformers.json"
POOLING_KEYS = {  # in the order in which sentence-transformers concatenates them
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# The prompts that sentence-transformers defines by default.
_PROMPTS = {"query": "", "document": ""}
# Keys of sentence_bert_config.json that affect tokens or vectors, and the values that are supported.
_COMPUTED = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "processing_kwargs": {},
    **dict.fromkeys(("query_length", "document_length", "query_expansion")),  # of prompts named query and document
}
_ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
# The entries of these arguments that change neither tokens nor, except for rounding, vectors.
_HARMLESS = {
    *("trust_remote_code", "revision", "token", "cache_dir", "local_files_only", "use_fast", "use_safetensors"),
    *("torch_dtype", "dtype", "attn_implementation", "add_pooling_layer", "low_cpu_mem_usage"),
}


@dataclass(frozen=True)
class SentenceSettings:
    """The settings in a sentence-transformers directory.

    Args:
        model_directory: the directory of the model and its tokenizer.
        pooling_file: the pooling's config.json; None for a plain model.
        pooling: the pooling modes, whose vectors are concatenated.
        include_prompt: whether the prompt's tokens are pooled too.
        modules: the modules after the pooling, without a last Normalize.
        normalize: whether there is a last Normalize.
        max_seqlen: the longest input in tokens; None if the files do not tell.
        do_lower_case: whether texts are lower-cased first.
        prompts: the prompts by name.
        prompt: the default prompt; empty for none.
        truncate_dim: the length to which vectors are cut; None keeps all.
        config: the content of config_sentence_transformers.json.
    """

    model_directory: Path
    pooling_file: Path | None = None
    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    modules: tuple[nn.Module, ...] = ()
    normalize: bool = False
    max_seqlen: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: dict(_PROMPTS))
    prompt: str = ""
    truncate_dim: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


def read_settings(directory: Path) -> SentenceSettings:
    """The settings of a sentence-transformers directory; for a plain model, the defaults and the tokenizer's limit.

    Raises:
        InputError: a file has another form, or asks for a module or a pooling that is not supported.
        CheckpointError: the weights of a module after the pooling are missing, damaged or of other shapes.
    """
    modules_file = directory / "modules.json"
    if not modules_file.is_file():
        return SentenceSettings(directory, max_seqlen=_model_max_length(directory))
    kinds, paths = _read_modules(modules_file)
    transformer, pooling, *rest = (_inside(directory, path, modules_file) for path in paths)
    modules = [read_module(kind, path) for kind, path in zip(kinds[2:], rest, strict=True)]
    modes, include_prompt = _read_pooling(pooling / "config.json")
    max_seqlen, do_lower_case = _read_transformer(transformer)
    config = _read_optional(directory / CONFIG)
    prompts, prompt = _read_prompts(directory / CONFIG, config)
    truncate_dim = config.get("truncate_dim")
    if truncate_dim is not None and (type(truncate_dim) is not int or truncate_dim < 1):
        raise InputError(f"{directory / CONFIG}: expected truncate_dim of 1 or more, got {truncate_dim!r:.100}")
    # Only a last Normalize is optional; those between other modules belong to the model.
    kept = [module for module in modules if not isinstance(module, Dropout)]
    normalize = bool(kept) and isinstance(kept[-1], Normalize)
    return SentenceSettings(
        model_directory=transformer,
        pooling_file=pooling / "config.json",
        pooling=modes,
        include_prompt=include_prompt,
        modules=tuple(kept[:-1] if normalize else kept),
        normalize=normalize,
        max_seqlen=max_seqlen,
        do_lower_case=do_lower_case,
        prompts=prompts,
        prompt=prompt,
        truncate_dim=truncate_dim,
        config=config,
    )


def transformer_directory(directory: Path) -> Path:
    """The directory of the BERT in a sentence-transformers directory: older releases put it into 0_Transformer."""
    modules_file = directory / "modules.json"
    # Not by config.json, since the first releases wrote one with their version beside modules.json.
    if not modules_file.is_file() or has_weights(directory):
        return directory
    return _inside(directory, _read_modules(modules_file)[1][0], modules_file)


def checked_modes(modes: Any, source) -> tuple[str, ...]:
    """Pooling modes as a tuple. Raises InputError, which names ``source``, if they are not valid."""
    known = tuple(POOLING_KEYS.values())
    if not isinstance(modes, (list, tuple)) or not modes or not all(mode in known for mode in modes):
        raise InputError(f"{source}: expected pooling modes among {', '.join(known)}, got {modes!r:.100}")
    return tuple(modes)


def _read_modules(path: Path) -> tuple[list[str], list[str]]:
    """The kinds and the directories of the modules."""
    modules = read_json(path, list)
    try:
        types = [str(module["type"]) for module in modules]
        paths = [str(module.get("path", "")) for module in modules]
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: expected a list of modules with type and path, got another form") from error
    # A class of another package may also be called Transformer and compute something else.
    kinds = [name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name for name in types]
    begins = kinds[:2] == ["Transformer", "Pooling"]
    strange = [kind for kind in kinds[2:] if kind not in KINDS]
    if strange or not begins:
        got = f"{strange[0]} among " if begins else ""
        raise InputError(
            f"{path}: expected the modules Transformer, Pooling and then any of {', '.join(KINDS)}, got {got}"
            f"{', '.join(kinds) or 'none'}{_of_cross_encoder(path)}"
        )
    return kinds, paths


def _of_cross_encoder(path: Path) -> str:
    """The end of a message about a CrossEncoder's modules.json; "" for any other."""
    if _read_optional(path.with_name(CONFIG)).get("model_type") != "CrossEncoder":
        return ""
    return ": a cross-encoder has no sentence vectors, its scores are written by `fastbert predict text-regression`"


def _read_transformer(directory: Path) -> tuple[int | None, bool]:
    """The longest input in tokens, or None, and whether texts are lower-cased first."""
    path = directory / "sentence_bert_config.json"
    if not path.exists():  # early releases named it after the kind of model, such as sentence_roberta_config.json
        path = next(iter(sorted(directory.glob("sentence_*_config.json"))), path)
    values = _read_optional(path)
    _check_computed(path, values)
    length = values.get("max_seq_length")
    if length is None:  # as in files of sentence-transformers 6
        length = _model_max_length(directory)
    elif isinstance(length, bool) or not isinstance(length, int) or length < 3:
        raise InputError(f"{path}: expected max_seq_length of 3 or more, got {length!r:.100}")
    return length, bool(values.get("do_lower_case", False))


def _check_computed(path: Path, values: Mapping[str, Any]) -> None:
    """Raises InputError for what sentence_bert_config.json changes of tokens or vectors, except their length."""
    for name, computed in _COMPUTED.items():
        if values.get(name) not in (None, computed):
            raise InputError(f"{path}: expected {name} {computed!r}, got {values[name]!r:.100}")
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    modalities = values.get("modality_config")
    if modalities is not None and (not isinstance(modalities, dict) or modalities.get("text") != text):
        raise InputError(f"{path}: expected a modality_config with the text {text}, got {modalities!r:.100}")
    for name in _ARGUMENTS:
        given = values.get(name) or {}
        other = sorted(set(given) - _HARMLESS) if isinstance(given, dict) else [given]
        if other:
            raise InputError(f"{path}: expected no {name} that change what is computed, got {other[0]!s:.100}")


def _model_max_length(directory: Path) -> int | None:
    """The limit in tokenizer_config.json; None if there is none, for which it may have a huge number."""
    values = _read_optional(directory / "tokenizer_config.json")
    length = values.get("model_max_length", values.get("max_len"))  # the older name
    return length if type(length) is int and 3 <= length < 1 << 30 else None


def _read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    values = read_json(path)
    modes = values.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in POOLING_KEYS.items() if values.get(key)] or ["mean"]
    return checked_modes([modes] if isinstance(modes, str) else modes, path), bool(values.get("include_prompt", True))


def _read_prompts(path: Path, values: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The prompts by name, and the default one; empty for none."""
    given = {} if values.get("prompts") is None else values["prompts"]
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise InputError(f"{path}: expected prompts, names and texts, got {given!r:.100}")
    prompts = {**_PROMPTS, **{name: text or "" for name, text in given.items()}}
    name = values.get("default_prompt_name")
    if name is None:
        return prompts, ""
    if not isinstance(name, str) or name not in prompts:
        raise InputError(f"{path}: expected a prompt named {name!r:.100}, got none")
    return prompts, prompts[name]


def _inside(directory: Path, path: str, source: Path) -> Path:
    target = directory / path
    try:
        inside = target.resolve().is_relative_to(directory.resolve())
        target.stat()
    except FileNotFoundError:  # whoever reads it says what is missing
        pass
    except (OSError, ValueError):  # a name that no file can have, such as one of 10,000 letters
        inside = False
    if not inside:
        raise InputError(f"{source}: expected paths inside its own directory, got {path!r:.200}")
    return target


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
