"""What follows the encoder in a sentence-transformers directory: pooling, and the modules after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import ops
from ..errors import CheckpointError, InputError
from ..text_files import read_json
from ..weights.reading import read_state_dict

# The activations of `Dense`: element-wise, without parameters and arguments.
_ACTIVATIONS = (
    *("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "ELU", "LeakyReLU", "Mish", "ReLU6", "SELU"),
    *("Softplus", "Hardtanh"),
)
_HOMES = ("torch.nn.modules.activation", "torch.nn.modules.linear", "torch.nn.modules", "torch.nn")
_EMBEDDING = "sentence_embedding"
_LARGEST = 1 << 20


def first_tokens(cu_seqlens: Tensor, skip: int = 0) -> Tensor:
    """(B,) int64, the tokens that ``cls`` pools; arguments as in `pool`."""
    starts, ends = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    return torch.where(ends - starts > skip, starts + skip, starts)


def pool(hidden: Tensor, cu_seqlens: Tensor, mode: str, skip: int = 0) -> Tensor:
    """One vector per sequence.

    Args:
        hidden: (T, H) floating.
        cu_seqlens: (B+1,) int32; no sequence is empty.
        mode: a pooling mode of sentence-transformers.
        skip: the number of tokens at the start of each sequence, those of a prompt, that are left out; they count in
            positions. For a sequence without other tokens, ``cls`` gives its first token, ``max`` minus infinity, any
            other mode 0.

    Returns:
        (B, H) float32.
    """
    hidden = hidden.float()
    lengths = cu_seqlens.diff().long()
    if mode == "cls":
        return hidden[first_tokens(cu_seqlens, skip)]
    if mode == "lasttoken":
        return hidden[cu_seqlens[1:].long() - 1] * (lengths > skip)[:, None]
    if skip or mode == "weightedmean":
        starts = torch.repeat_interleave(cu_seqlens[:-1].long(), lengths)
        positions = torch.arange(len(hidden), device=hidden.device) - starts
    if skip:
        kept = positions >= skip
        hidden, positions, lengths = hidden[kept], positions[kept], (lengths - skip).clamp(min=0)
    if mode == "max":
        return torch.segment_reduce(hidden, "max", lengths=lengths, axis=0)
    if mode == "weightedmean":
        weights = positions + 1
        total = _sums(hidden * weights[:, None], lengths)
        return total / (lengths * (2 * skip + lengths + 1) / 2).clamp(min=1e-9)[:, None]
    total = _sums(hidden, lengths)
    if skip:
        lengths = lengths.clamp(min=1)  # without tokens the total is 0
    return total / (lengths.sqrt() if mode == "mean_sqrt_len_tokens" else lengths)[:, None]


def _sums(rows: Tensor, lengths: Tensor) -> Tensor:
    """(B, H), the sums of that many rows (T, H) each."""
    if rows.device.type != "cpu":
        return torch.segment_reduce(rows, "sum", lengths=lengths, axis=0)
    # The same bits in a tenth of the time.
    starts, every = lengths.cumsum(0) - lengths, torch.arange(len(rows), device=rows.device)
    return torch.nn.functional.embedding_bag(every, rows, starts, mode="sum")


class Dense(nn.Module):
    """activation(x W^T + b), computed in float32; the parameters keep the dtype of their file.

    Args:
        in_features, out_features, bias, use_residual: as in sentence-transformers; the residual is x, or x R^T if the
            sizes differ.
        activation_function: the name of a class of `torch.nn`, with or without its module.

    Raises:
        InputError: the activation is unknown, or an argument is out of range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation_function: str = "torch.nn.modules.activation.Tanh",
        use_residual: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if type(value) is not int or not 1 <= value <= _LARGEST:
                raise InputError(f"{name} must be a whole number between 1 and {_LARGEST}, got {value!r:.50}")
        for name, value in (("bias", bias), ("use_residual", use_residual)):
            if not isinstance(value, bool):
                raise InputError(f"{name} must be true or false, got {value!r:.50}")
        home, _, name = str(activation_function).rpartition(".")
        if name not in _ACTIVATIONS or home not in ("", *_HOMES):
            known = ", ".join(_ACTIVATIONS)
            raise InputError(f"activation_function must be one of torch.nn's {known}, got {activation_function!r:.100}")
        self.in_features, self.out_features = in_features, out_features
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_function = getattr(nn, name)()
        self.use_residual = use_residual
        self.residual = nn.Linear(in_features, out_features, bias=False) if use_residual else None
        if in_features == out_features:
            self.residual = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_features) float32 -> (N, out_features) float32."""
        bias = None if self.linear.bias is None else self.linear.bias.float()
        out = self.activation_function(ops.linear(x, self.linear.weight.float(), bias))
        if not self.use_residual:
            return out
        return out + (x if self.residual is None else ops.linear(x, self.residual.weight.float()))

    def settings(self) -> dict[str, Any]:
        """The content of its config.json, without keys that older releases lack if they have the default value."""
        activation = type(self.activation_function)
        values = {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
        }
        return values | ({"use_residual": True} if self.use_residual else {})


class LayerNorm(nn.Module):
    """LayerNorm of the vectors, in float32.

    Args:
        dimension: the length of the vectors.

    Raises:
        InputError: the dimension is out of range.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        if type(dimension) is not int or not 1 <= dimension <= _LARGEST:
            raise InputError(f"dimension must be a whole number between 1 and {_LARGEST}, got {dimension!r:.50}")
        self.in_features = self.out_features = dimension
        self.norm = nn.LayerNorm(dimension)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) float32 -> (N, C) float32."""
        return ops.layer_norm(x, self.norm.weight.float(), self.norm.bias.float(), self.norm.eps)

    def settings(self) -> dict[str, Any]:
        return {"dimension": self.in_features}


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) -> (N, C)."""
        return nn.functional.normalize(x, dim=-1)

    def settings(self) -> dict[str, Any]:
        return {}


class Dropout(nn.Module):
    """Keeps the dropout rate of training; in inference, vectors pass through unchanged."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) -> the same tensor."""
        return x

    def settings(self) -> dict[str, Any]:
        return {"dropout": self.dropout}


class _Kind(NamedTuple):
    """A module that may follow the pooling: its class, and the keys of its config.json by which that is made."""

    cls: type[nn.Module]
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


KINDS = {
    "Dense": _Kind(Dense, ("in_features", "out_features"), ("bias", "activation_function", "use_residual")),
    "Dropout": _Kind(Dropout, optional=("dropout",)),
    "LayerNorm": _Kind(LayerNorm, ("dimension",)),
    "Normalize": _Kind(Normalize),
}
"""The modules that may follow the pooling, by sentence-transformers' names."""


def dim_after(modules: Sequence[nn.Module], dim: int) -> int:
    """The length of vectors of length ``dim`` after these modules, which may have in_features and out_features.

    Raises:
        InputError: a module expects vectors of another length.
    """
    for module in modules:
        wanted = getattr(module, "in_features", dim)
        if wanted != dim:
            raise InputError(f"{type(module).__name__} expects vectors of {wanted} numbers, got those of {dim}")
        dim = getattr(module, "out_features", dim)
    return dim


def read_module(kind: str, directory: Path) -> nn.Module:
    """Reads a module after the pooling from its directory: config.json and, for `Dense` and `LayerNorm`, the weights.

    Args:
        kind: one of `KINDS`.
        directory: the module's directory.

    Raises:
        InputError: config.json is missing or asks for something that is not supported.
        CheckpointError: the weights are missing, damaged or of other shapes.
    """
    path = directory / "config.json"
    cls, needed, optional = KINDS[kind]
    values = read_json(path) if needed or path.is_file() else {}
    for name in ("module_input_name", "module_output_name"):
        if values.get(name) not in (None, _EMBEDDING):
            raise InputError(f"{path}: expected a {kind} of {_EMBEDDING}, got {name} {values[name]!r:.100}")
    absent = next((name for name in needed if name not in values), None)
    if absent:
        raise InputError(f"{path}: expected the {absent} of a {kind}, got none")
    try:
        with torch.device("meta"):
            module = cls(**{name: values[name] for name in (*needed, *optional) if name in values})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    wanted = module.state_dict()
    if not wanted:
        return module.eval()
    state = read_state_dict(directory)
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (wanted, state)]
    if shapes[0] != shapes[1] or not all(tensor.is_floating_point() for tensor in state.values()):
        raise CheckpointError(f"{directory}: expected the weights of a {kind}, {shapes[0]}, got {shapes[1]!s:.300}")
    # Copied, since safetensors returns memory-mapped parts of the file.
    module.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    return module.eval().requires_grad_(False)
