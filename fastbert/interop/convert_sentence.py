"""Writes a sentence-transformers directory: the model, its pooling, and the modules after it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import nn

from ..data.tokenizer import load_tokenizer, tokenizer_texts
from ..errors import CheckpointError, InputError
from ..text_files import read_json
from ..weights import saving
from ..weights.loading import warnings_held
from ..weights.reading import SAFETENSORS
from .convert_source import Source
from .sentence_files import CONFIG, POOLING_KEYS, read_settings
from .sentence_modules import KINDS, Normalize, dim_after

POOLINGS = ("mean", "cls", "max")
# The package in which every release so far finds its modules.
_PLACE = "sentence_transformers.models"


def write_sentence_transformers(
    found: Source,
    target: Path,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_seqlen: int | None = None,
) -> None:
    """Writes the encoder of a model as a directory for `SentenceTransformer` and for our `SentenceEncoder`.

    If the source is such a directory too, its modules, prompts and other settings are kept, and arguments that are None
    are taken from it.

    Args:
        found: the model; a head on its encoder is left out.
        target: the directory to write.
        pooling: one of `POOLINGS`; None means "mean" for a plain model.
        normalize: whether vectors are scaled to length 1 at the end; None means True for a plain model.
        max_seqlen: longer texts are cut to this many tokens; None means the smaller of the tokenizer's limit and the
            model's for a plain model.

    Raises:
        InputError: the pooling is unknown, or does not fit a Dense after it; there are no tokenizer files beside the
            weights; the source computes its vectors in a way that is not supported; or max_seqlen is out of range.
        CheckpointError: a file cannot be written.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r:.50}")
    if not saving.has_vocabulary(file.name for file in saving.tokenizer_files(found.tokenizer)):
        raise InputError(f"{found.tokenizer}: expected the tokenizer's files beside the weights, found none")
    source = read_settings(found.directory)
    if normalize is None:
        normalize = source.normalize or source.pooling_file is None
    longest = found.model.config.max_position_embeddings
    if max_seqlen is None:
        max_seqlen = min(source.max_seqlen or longest, longest)
    elif type(max_seqlen) is not int or not 3 <= max_seqlen <= longest:
        raise InputError(
            f"max_seqlen must be a whole number between 3 and the model's longest input, {longest}, got "
            f"{max_seqlen!r:.50}"
        )
    model = getattr(found.model, "bert", found.model)
    dim_after(source.modules, model.config.hidden_size * (1 if pooling else len(source.pooling)))
    if pooling is None and source.pooling_file is not None:
        pooled = read_json(source.pooling_file)
    else:
        pooled = _pooling_config(model, (pooling or "mean",), source.include_prompt)
    sentence = {"max_seq_length": max_seqlen, "do_lower_case": source.do_lower_case}
    modules = [*source.modules, *([Normalize()] if normalize else [])]
    writers = _writers(pooled, modules, sentence, source.config)
    config = {name: value for name, value in model.config.to_dict().items() if name != "bilstm_units"}  # of a head
    saving.save_directory(model, target, config, found.tokenizer, writers)


def heads_of(model: nn.Module) -> tuple[str, ...]:
    """The parts of a model with weights that are not its encoder's, in words."""
    parts = model.named_children() if hasattr(model, "bert") else ()
    return tuple(f"the head {name}" for name, part in parts if name != "bert" and any(True for _ in part.parameters()))


def parts_beside(directory: Path) -> tuple[str, ...]:
    """What a sentence-transformers directory contains besides its model, in words; empty for any other directory."""
    if not (directory / "modules.json").is_file():
        return ()
    try:
        source = read_settings(directory)
        beside = source.model_directory / "tokenizer_config.json"  # a file that is copied
        own = read_json(beside).get("model_max_length") if beside.is_file() else None
    except (InputError, CheckpointError) as error:  # the model can be read nevertheless
        return (f"what stands beside the model, which cannot be read: {error}",)
    kinds = [type(module).__name__ for module in source.modules] + ["Normalize"] * source.normalize
    prompts = [name for name, text in source.prompts.items() if text]
    longest = None if source.max_seqlen == own else source.max_seqlen
    said = {
        "max_seq_length": longest is not None,
        "do_lower_case": source.do_lower_case,
        "truncate_dim": source.truncate_dim is not None,
    }
    return (
        f"pooling {' and '.join(source.pooling)}",
        *kinds,
        *([f"prompts {' and '.join(prompts)}"] if prompts else []),
        *(name for name, given in said.items() if given),
    )


def write_encoder(encoder, target: Path) -> Path:
    """Writes a `SentenceEncoder` as such a directory; returns the directory. Raises as `save_pretrained` does."""
    prompts, default = dict(encoder.prompts), None
    if encoder.prompt:
        free = next(name for name in ("default", *map("default_{}".format, range(len(prompts)))) if name not in prompts)
        default = next((name for name, text in prompts.items() if text == encoder.prompt), free)
        prompts[default] = encoder.prompt
    model = encoder.model
    config = {**encoder.config, "prompts": prompts, "default_prompt_name": default}
    config["truncate_dim"] = encoder.truncate_dim
    sentence = {"max_seq_length": encoder.max_seqlen, "do_lower_case": encoder.do_lower_case}
    pooled = _pooling_config(model, encoder.pooling, encoder.include_prompt)
    modules = [*encoder.modules, *([Normalize()] if encoder.normalize else [])]
    writers = _writers(pooled, modules, sentence, config)
    source, tokenizer = model.tokenizer_source, encoder.own_tokenizer()
    if not _is_from(tokenizer, source):
        source = None
        writers = {name: saving.text_writer(text) for name, text in tokenizer_texts(tokenizer).items()} | writers
    return saving.save_directory(model, target, model.config.to_dict(), source, writers)


def _is_from(tokenizer: Tokenizer, source: Path | None) -> bool:
    """Whether the files of a model's directory still describe a tokenizer, which may have been given or changed."""
    if not saving.has_vocabulary(file.name for file in saving.tokenizer_files(source)):
        return False
    try:
        with warnings_held():  # which were shown when the model was read
            there = load_tokenizer(source)
    except InputError:
        return False
    texts = [Tokenizer.from_str(each.to_str()) for each in (tokenizer, there)]
    for each in texts:
        each.no_padding()
    return texts[0].to_str() == texts[1].to_str()


def _pooling_config(model: nn.Module, modes: Sequence[str], include_prompt: bool) -> dict[str, Any]:
    """The pooling's config.json: with flags, which every release reads, or with names if the modes are in another order
    than the flags."""
    # Only the flags that are needed: early releases refuse unknown ones.
    flags = {flag: mode in modes for flag, mode in POOLING_KEYS.items() if mode in (*POOLINGS, *modes)}
    in_order = [mode for flag, mode in POOLING_KEYS.items() if flags.get(flag)] == list(modes)
    config = {"word_embedding_dimension": model.config.hidden_size}
    config |= flags if in_order else {"pooling_mode": list(modes)}
    return config if include_prompt else {**config, "include_prompt": False}


def _writers(
    pooled: Mapping[str, Any], modules: Sequence[nn.Module], sentence: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, saving.Writer]:
    """Functions that write the files other than the model's and the tokenizer's, by name."""
    kinds = [type(module).__name__ for module in modules]
    strange = next((kind for kind, module in zip(kinds, modules, strict=True) if not hasattr(module, "settings")), None)
    if strange is not None:
        raise InputError(f"expected only modules of sentence-transformers ({', '.join(KINDS)}) to save, got {strange}")
    paths = ["", "1_Pooling", *(f"{i}_{kind}" for i, kind in enumerate(kinds, 2))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_PLACE}.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, ("Transformer", "Pooling", *kinds), strict=True))
    ]
    writers: dict[str, saving.Writer] = {"1_Pooling/config.json": _json_writer(pooled)}
    for path, module in zip(paths[2:], modules, strict=True):
        writers[f"{path}/config.json"] = _json_writer(module.settings())
        if module.state_dict():
            writers[f"{path}/{SAFETENSORS}"] = _weights_writer(module)
    defaults = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    return {
        **writers,
        "sentence_bert_config.json": _json_writer(sentence),
        CONFIG: _json_writer({**defaults, **config}),
        "modules.json": _json_writer(listed),  # last, since the directory is recognised by it
    }


def _json_writer(value: Any) -> saving.Writer:
    return saving.text_writer(json.dumps(value, indent=2) + "\n")


def _weights_writer(module: nn.Module) -> saving.Writer:
    return lambda path: saving.write_safetensors(saving.tensors_of(module), path)
