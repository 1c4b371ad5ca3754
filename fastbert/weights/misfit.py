"""Why the weights in a file do not fit a model, in a sentence that says what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

_SHOWN = 10
# NVIDIA's and DeepSpeed's examples pad the vocabulary to a multiple of this, but not its size in the configuration.
_PADDED_TO = 8


def padded_vocabulary(rows: int, vocab_size: int) -> bool:
    """Whether a table with this many rows is the configuration's vocabulary with such padding."""
    return vocab_size < rows == -(-vocab_size // _PADDED_TO) * _PADDED_TO


def fits(value: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor of a file can be copied into one of a model."""
    return value.shape == parameter.shape and value.is_floating_point() == parameter.is_floating_point()


def shown(what: str, names: Sequence[str]) -> str:
    """How many names there are, what they are, and the first of them."""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}" + (f" ({', '.join(names[:_SHOWN])}{more})" if names else "")


@dataclass(frozen=True)
class Misfit:
    """What does not fit, with canonical names.

    Args:
        model: the model.
        prefix: the name of its attribute with the encoder.
        needed: what the names of embeddings and encoder begin with.
        state, own: the tensors of the file and of the model.
        missing, unexpected: names that only the model, or only the file, has.
        mismatched: names of tensors that do not fit (`fits`).
    """

    model: nn.Module
    prefix: str
    needed: tuple[str, ...]
    state: Mapping[str, Tensor]
    own: Mapping[str, Tensor]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]

    def sentence(self) -> str:
        """What was expected and what was got, and a hint for each known cause."""
        hints = (self._under_others, self._padded, self._another_head, self._pruned, self._own_code)
        return (
            f"expected the weights of a {type(self.model).__name__} of this configuration, got "
            f"{shown('missing', self.missing)}; {shown('mismatched', [*map(self._difference, self.mismatched)])}; "
            f"{shown('unexpected', self.unexpected)}{''.join(hint() for hint in hints)}"
        )

    def _difference(self, name: str) -> str:
        value, parameter = self.state[name], self.own[name]
        if value.shape != parameter.shape:
            return f"{name} is {tuple(value.shape)} for {tuple(parameter.shape)}"
        return f"{name} is {value.dtype} for {parameter.dtype}"

    def _under_others(self) -> str:
        """Missing tensors are in the file under the names of outer modules."""
        names = (name.removeprefix(f"{self.prefix}.") for name in self.missing if name.startswith(f"{self.prefix}."))
        name = next(names, None)
        found = [other.removesuffix(name) for other in self.unexpected if name and other.endswith(f".{name}")]
        if not found:
            return ""
        return f": the weights are under {' and '.join(found[:3])} there; save the state_dict() of that module alone"

    def _padded(self) -> str:
        """The word embeddings have padding."""
        name = f"{self.prefix}.embeddings.word_embeddings.weight"
        if name not in self.state or name not in self.own or self.state[name].dim() != 2:
            return ""
        rows = self.state[name].shape[0]
        if not padded_vocabulary(rows, self.own[name].shape[0]):
            return ""
        return f": its vocabulary was padded; `fastbert convert` makes a directory of it, or set vocab_size to {rows}"

    def _another_head(self) -> str:
        """Only heads have another size, as for a task with other labels."""
        state, own = self.state, self.own
        sizes = all(state[name].shape != own[name].shape for name in self.mismatched)
        if not sizes or any(name.startswith(self.needed) for name in (*self.missing, *self.mismatched)):
            return ""
        reads, name = "", "classifier.weight"
        # One output scores choices too.
        if name in self.mismatched and state[name].dim() == 2 and own[name].shape[0] > 1:
            reads = f"reads this head with num_labels={state[name].shape[0]}, and "
        return (
            f": from_pretrained {reads}starts a head of another size with new weights if ignore_mismatched_sizes=True"
        )

    def _pruned(self) -> str:
        """A layer in the file has fewer attention heads."""
        biases = (name for name in self.mismatched if name.endswith(".attention.self.query.bias"))
        if not any(len(self.state[name]) < len(self.own[name]) for name in biases):
            return ""
        return ": heads were pruned from its layers, and a model of ours has the same number of heads in every layer"

    def _own_code(self) -> str:
        """Weights are missing, and the model has code of its own."""
        if not self.missing or not getattr(self.model.config, "auto_map", None):
            return ""
        return ": by its config.json it is computed by code of its own (auto_map), not as a BERT"
