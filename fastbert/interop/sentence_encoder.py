"""Sentence vectors from a sentence-transformers directory or from a plain BERT, computed without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..data.tokenizer import load_tokenizer
from ..errors import InputError
from ..files import read_json
from ..models import BertModel
from ..modules.mode import evaluating
from ..modules.quantized import quantize
from ..packing import PackedBatch

_POOLING_KEYS = {  # in the order in which sentence-transformers concatenates them
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_TOKENIZE_AT_ONCE = 4096
PRECISIONS = ("fp32", "bf16", "int8")


def pool(hidden: Tensor, cu_seqlens: Tensor, mode: str) -> Tensor:
    """One vector per sequence.

    Args:
        hidden: (T, H) floating.
        cu_seqlens: (B+1,) int32; no sequence is empty.
        mode: a pooling mode of sentence-transformers.

    Returns:
        (B, H) float32.
    """
    hidden = hidden.float()
    starts, ends = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    lengths = ends - starts
    if mode == "cls":
        return hidden[starts]
    if mode == "lasttoken":
        return hidden[ends - 1]
    if mode == "max":
        return torch.segment_reduce(hidden, "max", lengths=lengths, axis=0)
    if mode == "weightedmean":
        weights = torch.arange(len(hidden), device=hidden.device) - torch.repeat_interleave(starts, lengths) + 1
        total = torch.segment_reduce(hidden * weights[:, None], "sum", lengths=lengths, axis=0)
        return total / (lengths * (lengths + 1) / 2)[:, None]
    total = torch.segment_reduce(hidden, "sum", lengths=lengths, axis=0)
    return total / (lengths.sqrt() if mode == "mean_sqrt_len_tokens" else lengths)[:, None]


@dataclass(frozen=True)
class Settings:
    """What the files beside the weights say."""

    model_directory: Path
    pooling_file: Path | None = None
    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_seqlen: int | None = None
    do_lower_case: bool = False
    prompt: str = ""
    truncate_dim: int | None = None


class SentenceEncoder:
    """Turns sentences into vectors.

    Args:
        model: a `BertModel`, with or without pooler.
        tokenizer: a `tokenizers.Tokenizer` with BERT's template.
        pooling: modes of sentence-transformers, concatenated.
        normalize: whether vectors are scaled to length 1 unless `encode` is told otherwise.
        max_seqlen: longer inputs are cut to this many tokens, specials included.
        do_lower_case: whether texts are lower-cased before the tokenizer sees them.
        prompt: what stands in front of every text.
        truncate_dim: only so many of the first numbers of a vector are kept; None for all.

    Raises:
        InputError: a pooling that is not known, or a number out of range.
    """

    def __init__(
        self,
        model: BertModel,
        tokenizer,
        *,
        pooling: Sequence[str] = ("mean",),
        normalize: bool = False,
        max_seqlen: int | None = None,
        do_lower_case: bool = False,
        prompt: str = "",
        truncate_dim: int | None = None,
    ) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.pooling, self.normalize = _checked_modes(pooling, "pooling"), normalize
        for name, value, least in (("max_seqlen", max_seqlen, 3), ("truncate_dim", truncate_dim, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"{name} must be a whole number, at least {least}, or None, got {value!r:.50}")
        longest = model.config.max_position_embeddings
        self.max_seqlen = longest if max_seqlen is None else min(max_seqlen, longest)
        self.do_lower_case, self.prompt, self.truncate_dim = do_lower_case, prompt, truncate_dim
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_seqlen)

    @classmethod
    def from_pretrained(
        cls,
        directory,
        *,
        precision: str = "fp32",
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
    ) -> SentenceEncoder:
        """Reads a sentence-transformers directory, or a plain BERT directory (mean pooling, not normalised).

        Args:
            precision: "fp32", "bf16", or "int8" (`fastbert.quantize`); vectors are float32 in every case.
            pooling, normalize: in place of what the directory says.

        Raises:
            InputError: a file does not fit, or it asks for a module or a pooling that is not supported.
            CheckpointError: the weights are missing or damaged.
            BackendError: int8 without the C++ extension.
        """
        if precision not in PRECISIONS:
            raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r:.50}")
        settings = read_settings(Path(directory))
        model = BertModel.from_pretrained(settings.model_directory, add_pooling_layer=False)
        if precision == "bf16":
            model = model.bfloat16()
        pooling = settings.pooling if pooling is None else pooling
        encoder = cls(
            model,
            load_tokenizer(settings.model_directory),
            pooling=(pooling,) if isinstance(pooling, str) else pooling,
            normalize=settings.normalize if normalize is None else normalize,
            max_seqlen=settings.max_seqlen,
            do_lower_case=settings.do_lower_case,
            prompt=settings.prompt,
            truncate_dim=settings.truncate_dim,
        )
        return quantize(encoder) if precision == "int8" else encoder

    @property
    def dim(self) -> int:
        """The length of a vector."""
        whole = self.model.config.hidden_size * len(self.pooling)
        return whole if self.truncate_dim is None else min(whole, self.truncate_dim)

    @torch.inference_mode()
    def encode(
        self,
        sentences: Sequence[str],
        *,
        token_budget: int = 4096,
        normalize: bool | None = None,
        batch_invariant: bool = False,
        show_progress: bool = False,
    ) -> np.ndarray:
        """The vectors of sentences, in their order.

        Args:
            sentences: N texts; an empty one is ``[CLS] [SEP]``.
            token_budget: tokens computed at a time (a longer sentence goes alone).
            normalize: whether to scale vectors to length 1; as the directory says where it is None, which is before
                numbers are cut off.
            batch_invariant: a sentence's vector has the same bits whatever it is encoded together with.
            show_progress: draw a progress bar on stderr.

        Returns:
            (N, `dim`) float32.
        """
        if isinstance(sentences, str):
            raise InputError("sentences must be a list of strings, got one string")
        try:
            sentences = list(sentences)
        except TypeError:
            raise InputError(f"sentences must be a list of strings, got {type(sentences).__name__}") from None
        strange = next((type(text).__name__ for text in sentences if not isinstance(text, str)), None)
        if strange is not None:
            raise InputError(f"sentences must be strings, got one of type {strange}")
        for number, text in enumerate(sentences):
            if not text.isascii():
                try:
                    text.encode("utf-8")
                except UnicodeEncodeError as error:
                    got = f"the lone surrogate {text[error.start]!r} in number {number}"
                    raise InputError(f"sentences must be texts that UTF-8 can write, got {got}") from None
        if isinstance(token_budget, bool) or not isinstance(token_budget, int) or token_budget < 1:
            raise InputError(f"token_budget must be a whole number, at least 1, got {token_budget!r:.50}")
        rows = self._tokenize(sentences)
        out = np.empty((len(rows), self.dim), dtype=np.float32)
        # The model may be in training between two calls.
        with ops.batch_invariant() if batch_invariant else nullcontext(), evaluating(self.model):
            for members in _progress(_batches(rows, token_budget), len(rows), show_progress):
                out[members] = self._vectors([rows[i] for i in members], normalize)
        return out

    def _vectors(self, rows: list[np.ndarray], normalize: bool | None) -> np.ndarray:
        batch = PackedBatch.from_sequences(rows).to(self.model.device)
        hidden = self.model(batch).last_hidden_state
        vectors = torch.cat([pool(hidden, batch.cu_seqlens, mode) for mode in self.pooling], dim=-1)
        if normalize is None and self.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        vectors = vectors[:, : self.truncate_dim]
        return (torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors).cpu().numpy()

    def _tokenize(self, sentences: Sequence[str]) -> list[np.ndarray]:
        rows: list[np.ndarray] = []
        for start in range(0, len(sentences), _TOKENIZE_AT_ONCE):
            texts = [self.prompt + text for text in sentences[start : start + _TOKENIZE_AT_ONCE]]
            if self.do_lower_case:
                texts = [text.lower() for text in texts]
            rows += [np.asarray(encoding.ids, dtype=np.int64) for encoding in self.tokenizer.encode_batch(texts)]
        return rows


def _batches(rows: Sequence[np.ndarray], token_budget: int) -> Iterator[list[int]]:
    """Indices of rows, longest first: sequences of a batch are alike, and memory is at its peak at the start."""
    members: list[int] = []
    tokens = 0
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        if members and tokens + len(rows[i]) > token_budget:
            yield members
            members, tokens = [], 0
        members.append(i)
        tokens += len(rows[i])
    if members:
        yield members


def _progress(batches: Iterator[list[int]], total: int, show: bool) -> Iterator[list[int]]:
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


# --- the files of a sentence-transformers directory ---


def read_settings(directory: Path) -> Settings:
    """Of a sentence-transformers directory; of a plain one the defaults, with the tokenizer's longest input.

    Raises:
        InputError: a file does not fit, or it asks for a module or a pooling that is not supported.
    """
    modules_file = directory / "modules.json"
    if not modules_file.is_file():
        return Settings(directory, max_seqlen=_model_max_length(directory))
    modules = read_json(modules_file, list)
    try:
        types = [str(module["type"]) for module in modules]
        paths = [str(module.get("path", "")) for module in modules]
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{modules_file}: expected a list of modules with type and path, got another form") from error
    # A class of another package may be called Transformer too and compute something else.
    kinds = [name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name for name in types]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(
            f"{modules_file}: expected the modules Transformer, Pooling and perhaps Normalize, got {', '.join(kinds)}"
        )
    transformer, pooling = (_inside(directory, path, modules_file) for path in paths[:2])
    modes, include_prompt = _read_pooling(pooling / "config.json")
    sentence_file = _sentence_file(transformer)
    sentence = _read_optional(sentence_file)
    max_seqlen = sentence.get("max_seq_length")
    if max_seqlen is None:  # as sentence-transformers 6 writes it
        max_seqlen = _model_max_length(transformer)
    elif isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int) or max_seqlen < 3:
        raise InputError(f"{sentence_file}: expected max_seq_length of 3 or more, got {max_seqlen!r:.100}")
    config_file = directory / "config_sentence_transformers.json"
    prompt, truncate_dim = _read_prompt(config_file), _read_optional(config_file).get("truncate_dim")
    if truncate_dim is not None and (type(truncate_dim) is not int or truncate_dim < 1):
        raise InputError(f"{config_file}: expected truncate_dim of 1 or more, got {truncate_dim!r:.100}")
    if prompt and not include_prompt:
        raise InputError(f"{pooling / 'config.json'}: pooling without the prompt is not supported")
    return Settings(
        transformer,
        pooling / "config.json",
        modes,
        "Normalize" in kinds,
        max_seqlen,
        bool(sentence.get("do_lower_case", False)),
        prompt,
        truncate_dim,
    )


def _sentence_file(directory: Path) -> Path:
    """Where the longest input stands; early releases named it after the model (``sentence_roberta_config.json``)."""
    newest = directory / "sentence_bert_config.json"
    return newest if newest.exists() else next(iter(sorted(directory.glob("sentence_*_config.json"))), newest)


def _model_max_length(directory: Path) -> int | None:
    """What tokenizer_config.json says; None where it says nothing, or the huge number that stands for it."""
    length = _read_optional(directory / "tokenizer_config.json").get("model_max_length")
    return length if type(length) is int and 3 <= length < 1 << 30 else None


def _read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    values = read_json(path)
    modes = values.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _POOLING_KEYS.items() if values.get(key)] or ["mean"]
    return _checked_modes([modes] if isinstance(modes, str) else modes, path), bool(values.get("include_prompt", True))


def _checked_modes(modes: Any, source) -> tuple[str, ...]:
    known = tuple(_POOLING_KEYS.values())
    if not isinstance(modes, (list, tuple)) or not modes or not all(mode in known for mode in modes):
        raise InputError(f"{source}: expected pooling modes among {', '.join(known)}, got {modes!r:.100}")
    return tuple(modes)


def _read_prompt(path: Path) -> str:
    values = _read_optional(path)
    name, prompts = values.get("default_prompt_name"), values.get("prompts")
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise InputError(f"{path}: expected a prompt named {name!r:.100}, got none")
    return prompts[name]


def _inside(directory: Path, path: str, source: Path) -> Path:
    target = directory / path
    if "\0" in path or not target.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{source}: expected paths inside its own directory, got {path!r:.200}")
    return target


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
