"""Sentence vectors from a sentence-transformers directory or from a plain BERT, computed without padding."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, normalizers
from torch import nn

from .. import hardware, ops
from ..config import BertConfig
from ..data.chunks import batches_by_length, chunks
from ..data.tokenizer import load_tokenizer, warn_if_larger
from ..data.truncation import cut_at, encode_beginnings
from ..errors import InputError
from ..model_config import read_config_file
from ..models import BertModel
from ..modules.mode import evaluating, plain_outputs
from ..modules.precision import device_for, in_precision
from ..packing import PackedBatch
from ..weights.kin import read_bert_config
from .patch_families import FAMILIES
from .sentence_files import checked_modes, read_settings
from .sentence_modules import dim_after, first_tokens, pool
from .sentence_positions import check_positions

_TOKENIZE_AT_ONCE = 4096
# The default token budget. Threads take groups of 512 tokens (csrc/encoder.cpp) and wait for the last of a batch: 16
# groups a thread, but no more memory than for 32,768 tokens, unless that leaves some thread without a group.
_GROUP, _GROUPS_A_THREAD, _MOST_TOKENS, _GPU_TOKENS = 512, 16, 32_768, 4096


def _read_config(directory: Path) -> BertConfig:
    """`read_bert_config`, with a hint in the error for models that `fastbert.patch` supports."""
    try:
        return read_bert_config(directory)
    except InputError as error:
        room = str(read_config_file(directory)[1].get("model_type")).replace("-", "_")
        if "model_type must be" in str(error) and any(
            f".{room}." in family.module or family.module.endswith(f".modeling_{room}") for family in FAMILIES
        ):
            raise InputError(f"{error}; within sentence-transformers, fastbert.patch(model) supports it") from error
        raise


class SentenceEncoder:
    """Turns sentences into vectors, as sentence-transformers does.

    Args:
        model: a `BertModel`, with or without pooler.
        tokenizer: as `load_tokenizer` returns it; it has to add the special tokens that the model expects.
        pooling: one or several of sentence-transformers' modes, whose vectors are concatenated; can be set later too.
        modules: applied in this order to the pooled vectors, (N, C) float32, such as `sentence_modules.Dense`.
        normalize: whether `encode` scales vectors to length 1 by default.
        max_seqlen: longer inputs are cut to this many tokens, special tokens included; can be set later too.
        do_lower_case: whether texts are lower-cased before they are tokenized.
        prompts: texts by name; `encode` puts the chosen one in front of every sentence.
        prompt: the text to put there if none is chosen.
        include_prompt: whether the prompt's tokens are pooled together with the sentence's.
        truncate_dim: vectors are cut to this many dimensions; None keeps all.

    Raises:
        InputError: a pooling mode is unknown, a module expects vectors of another length, or a number is out of range.
    """

    def __init__(
        self,
        model: BertModel,
        tokenizer: Tokenizer,
        *,
        pooling: str | Sequence[str] = ("mean",),
        modules: Sequence[nn.Module] = (),
        normalize: bool = False,
        max_seqlen: int | None = None,
        do_lower_case: bool = False,
        prompts: Mapping[str, str] | None = None,
        prompt: str = "",
        include_prompt: bool = True,
        truncate_dim: int | None = None,
    ) -> None:
        # Its own: the length of inputs and lower-casing are settings of a tokenizer, and the caller's must not change.
        with suppress(Exception):  # `tokenizers` raises no other where a part is written in Python: that one is shared
            tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.model, self.tokenizer = model.eval(), tokenizer
        self.modules = nn.Sequential(*modules).eval()
        self.pooling, self.normalize, self.truncate_dim = pooling, normalize, truncate_dim
        if not isinstance(normalize, bool):
            raise InputError(f"normalize must be True or False, got {normalize!r:.50}")
        self.prompts, self.prompt, self.include_prompt = dict(prompts or {}), prompt, include_prompt
        self.do_lower_case = do_lower_case
        # The content of config_sentence_transformers.json, to be written back.
        self.config: dict = {}
        self.tokenizer.no_padding()
        self.max_seqlen = max_seqlen
        self._normalizer = tokenizer.normalizer
        if do_lower_case:
            own = [] if self._normalizer is None else [self._normalizer]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str],
        *,
        precision: str = "fp32",
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
        device: torch.device | str | None = None,
    ) -> SentenceEncoder:
        """Reads a sentence-transformers directory, or one of a BERT, DistilBERT, RoBERTa, XLM-R, CamemBERT or ELECTRA,
        with mean pooling, not normalised.

        Args:
            directory: on this machine; nothing is downloaded.
            precision: "fp32", "bf16" or "int8" (`fastbert.quantize`), for the BERT; pooling and the modules after it
                are always computed in float32.
            pooling, normalize: override the directory's settings; None keeps them.
            device: where to compute; None takes the GPU if there is one, as in sentence-transformers, and the CPU for
                int8.

        Raises:
            InputError: a file has another form, or asks for a module or a pooling that is not supported; the device
                does not exist, or is not the CPU for int8.
            CheckpointError: the weights are missing or damaged.
            BackendError: int8 needs the C++ extension, which was not built.
        """
        device = device_for(precision, None if device is None else _checked_device(device))
        settings = read_settings(Path(directory))
        config = _read_config(settings.model_directory)
        model = BertModel.from_pretrained(settings.model_directory, config=config, add_pooling_layer=False)
        tokenizer = load_tokenizer(settings.model_directory)
        check_positions(settings.model_directory, tokenizer)
        warn_if_larger(tokenizer, config.vocab_size, settings.model_directory)
        encoder = cls(
            in_precision(model, precision, device),
            tokenizer,
            pooling=settings.pooling if pooling is None else pooling,
            modules=settings.modules,
            normalize=settings.normalize if normalize is None else normalize,
            max_seqlen=settings.max_seqlen,
            do_lower_case=settings.do_lower_case,
            prompts=settings.prompts,
            prompt=settings.prompt,
            include_prompt=settings.include_prompt,
            truncate_dim=settings.truncate_dim,
        )
        encoder.config = dict(settings.config)
        return encoder

    def save_pretrained(self, directory: str | os.PathLike[str]) -> Path:
        """Writes a sentence-transformers directory: the BERT, its tokenizer, pooling, modules, prompts.

        Returns:
            the directory.

        Raises:
            InputError: sentence-transformers does not have one of the modules.
            CheckpointError: a file cannot be written, or the model is quantised.
        """
        from .convert_sentence import write_encoder

        return write_encoder(self, Path(directory))

    @property
    def max_seqlen(self) -> int:
        """Longer inputs are cut to this many tokens; setting None allows as many as the model has positions for."""
        return self._max_seqlen

    @max_seqlen.setter
    def max_seqlen(self, value: int | None) -> None:
        value, longest = _checked_whole("max_seqlen", value, 3), self.model.config.max_position_embeddings
        self._max_seqlen = longest if value is None else min(value, longest)
        cut_at(self.tokenizer, self._max_seqlen)

    @property
    def pooling(self) -> tuple[str, ...]:
        """The modes by which a sentence's tokens become one vector; the vectors of several modes are concatenated."""
        return self._pooling

    @pooling.setter
    def pooling(self, value: str | Sequence[str]) -> None:
        value = checked_modes((value,) if isinstance(value, str) else value, "pooling")
        self._whole_dim = dim_after(self.modules, self.model.config.hidden_size * len(value))
        self._pooling = value

    @property
    def truncate_dim(self) -> int | None:
        """Vectors are cut to this many dimensions; None keeps all."""
        return self._truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, value: int | None) -> None:
        self._truncate_dim = _checked_whole("truncate_dim", value, 1)

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self._whole_dim if self.truncate_dim is None else min(self._whole_dim, self.truncate_dim)

    def own_tokenizer(self) -> Tokenizer:
        """A copy of the tokenizer as it was given, without the truncation and lower-casing that this class adds."""
        tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        tokenizer.normalizer = self._normalizer
        cut_at(tokenizer, None)
        return tokenizer

    @torch.inference_mode()
    def encode(
        self,
        sentences: Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        token_budget: int | None = None,
        normalize: bool | None = None,
        batch_invariant: bool = False,
        show_progress: bool = False,
    ) -> np.ndarray[Any, Any]:
        """Computes the vectors of sentences, in their order.

        Args:
            sentences: N texts; an empty one is encoded as ``[CLS] [SEP]``, and repeated ones are computed once.
            prompt_name: which of `prompts` to put in front of every sentence; None for the encoder's ``prompt``.
            prompt: a text to put there, instead of naming one; "" for none.
            token_budget: the most tokens in a batch (a longer sentence is a batch of its own); None for 4,096 on a
                GPU, and on a CPU for 8,192 per thread up to 32,768, or 512 per thread if that is more.
            normalize: True scales vectors to length 1 after they are cut to `truncate_dim`; False does not. None
                follows the encoder's ``normalize``, which is applied before they are cut.
            batch_invariant: whether a sentence's vector has the same bits whatever else is encoded with it.
                Off, vectors of length 1 may differ by up to 1e-5 from those of float32 products where shorter ones
                are faster (on AMX, docs/cpu-performance.md).
            show_progress: whether to draw a progress bar on stderr.

        Returns:
            (N, `dim`) float32 numpy array.

        Raises:
            InputError: sentences are not a list of strings (a single string is refused), the prompt's name is unknown,
                or an option is out of range.
            BackendError: batch_invariant is not possible on this device.

        Ref:
            Reimers & Gurevych 2019, section 3.
        """
        sentences = _checked_texts(sentences)
        prompt = self._chosen_prompt(prompt_name, prompt)
        device = self.model.device
        if token_budget is None:
            token_budget = _default_budget(device)
        if normalize is not None and not isinstance(normalize, bool):
            raise InputError(f"normalize must be True, False or None, got {normalize!r:.50}")
        if not _is_whole(token_budget, 1):
            raise InputError(f"token_budget must be a whole number, at least 1, got {token_budget!r:.50}")
        with torch.inference_mode(False):  # moved in inference mode, parameters could no longer be trained
            self.modules.to(device)  # the model may have been moved
        places = {text: place for place, text in enumerate(dict.fromkeys(sentences))}
        rows = self._tokenize(list(places), prompt)
        skip = 0 if self.include_prompt else self._prompt_length(prompt)
        has_unit_length = self.normalize if normalize is None else normalize
        products = ops.products_in_two_parts() if has_unit_length else nullcontext()
        out = np.empty((len(rows), self.dim), dtype=np.float32)
        # The model may have been put into training mode between two calls.
        with ops.batch_invariant() if batch_invariant else nullcontext(), products, evaluating(self.model):
            batches = batches_by_length([len(row) for row in rows], token_budget)
            for members in _progress(iter(batches), len(rows), show_progress):
                out[members] = self._vectors([rows[i] for i in members], device, normalize, skip)
        return out if len(places) == len(sentences) else out[[places[text] for text in sentences]]

    def _chosen_prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            if name is not None:
                raise InputError(f"encode takes a prompt or a prompt_name, got both, {prompt!r:.50} and {name!r:.50}")
            return _checked_texts([prompt], "prompts")[0]
        if name is None:
            return self.prompt
        if not isinstance(name, str) or name not in self.prompts:
            known = ", ".join(self.prompts) or "no names here"
            raise InputError(f"prompt_name must be one of {known:.200}, got {name!r:.50}")
        return self.prompts[name]

    def _prompt_length(self, prompt: str) -> int:
        """The number of tokens before those of the sentence: the prompt's, and the special token at the start; 0 for an
        empty prompt."""
        return sum(self.tokenizer.encode(prompt).attention_mask) - 1 if prompt else 0

    def _vectors(self, rows: list[np.ndarray], device: torch.device, normalize: bool | None, skip: int) -> np.ndarray:
        batch = PackedBatch.from_sequences(rows).to(device)
        if self.pooling == ("cls",) and device.type == "cpu" and self.model.last_layer_is_unseen():
            # The last layer is computed for these tokens alone.
            options = {"output_hidden_states": False, "output_attentions": False}
            vectors = self.model.encode(batch, only=first_tokens(batch.cu_seqlens, skip), **options).hidden.float()
        else:
            hidden = self.model(batch, **plain_outputs(self.model)).last_hidden_state
            vectors = torch.cat([pool(hidden, batch.cu_seqlens, mode, skip) for mode in self.pooling], dim=-1)
        vectors = self.modules(vectors)
        if normalize is None and self.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        vectors = vectors[:, : self.truncate_dim]
        return (torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors).cpu().numpy()

    def _tokenize(self, sentences: Sequence[str], prompt: str) -> list[np.ndarray]:
        rows: list[np.ndarray] = []
        for texts in chunks((prompt + text for text in sentences), _TOKENIZE_AT_ONCE):
            encodings = encode_beginnings(self.tokenizer, texts)
            found = [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]
            if self.tokenizer.padding is not None:  # set by somebody who shares the tokenizer; pads are removed
                masks = (np.asarray(encoding.attention_mask, dtype=bool) for encoding in encodings)
                found = [ids[mask] for ids, mask in zip(found, masks, strict=True)]
            rows += found
        return rows


def _default_budget(device: torch.device) -> int:
    if device.type != "cpu":
        return _GPU_TOKENS
    groups = _GROUP * torch.get_num_threads()
    return max(groups, min(_GROUPS_A_THREAD * groups, _MOST_TOKENS))


def _is_whole(value: object, least: int) -> bool:
    """Whether a value is an integer, of Python or numpy, of at least ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= least


def _checked_whole(name: str, value: object, least: int) -> int | None:
    """The value as a Python int, which JSON can write, or None. Raises InputError for anything else."""
    if value is not None and not _is_whole(value, least):
        raise InputError(f"{name} must be a whole number, at least {least}, or None, got {value!r:.50}")
    return None if value is None else int(value)


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:  # which one depends on the missing device
        got = f"{device!s:.50}: {str(error).partition(chr(10))[0]:.200}"
        raise InputError(
            f"device must be one that torch can use here, such as {hardware.default_device()}, got {got}"
        ) from error
    return found


def _checked_texts(sentences: Sequence[str], name: str = "sentences") -> list[str]:
    if isinstance(sentences, (str, bytes, Mapping)):  # list() would give their letters or keys
        got = "one string" if isinstance(sentences, str) else type(sentences).__name__
        raise InputError(f"sentences must be a list of strings, got {got}")
    try:
        sentences = list(sentences)
    except TypeError:
        raise InputError(f"sentences must be a list of strings, got {type(sentences).__name__}") from None
    strange = next((type(text).__name__ for text in sentences if not isinstance(text, str)), None)
    if strange is not None:
        raise InputError(f"{name} must be strings, got one of type {strange}")
    for number, text in enumerate(sentences):
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                got = f"the lone surrogate {text[error.start]!r} in number {number}"
                raise InputError(f"{name} must be texts that UTF-8 can write, got {got}") from None
    return sentences


def _progress(batches: Iterator[np.ndarray], total: int, show: bool) -> Iterator[np.ndarray]:
    if not show:
        yield from batches
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("sentences", total=total)
        for members in batches:
            yield members
            progress.advance(task, len(members))
