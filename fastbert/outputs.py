"""What models return: attribute, key, index and tuple access, as transformers' ModelOutput offers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

# A field that has a name but is not in the tuple, because transformers' tuple does not have it.
_EXTRA = {"extra": True}


class _Dictionary(dict):
    """What makes a dataclass of outputs a dictionary of its fields that are not None, which the Trainer, accelerate and
    DataParallel expect of an output."""

    def __post_init__(self) -> None:
        # These build an output anew from a dictionary or from pairs.
        first, *others = (f.name for f in fields(self))
        given = getattr(self, first)
        if isinstance(given, (Mapping, Iterator)) and all(getattr(self, name) is None for name in others):
            setattr(self, first, None)
            for name, value in dict(given).items():
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name not in self.__dataclass_fields__:
            return
        if value is None:
            dict.pop(self, name, None)
        else:
            dict.__setitem__(self, name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{type(self).__name__}: its fields stay: set one to None to leave it out")

    __delitem__ = pop = popitem = setdefault = update = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return _put_together, (type(self), self.values(), self.keys())


# torch 2.6 compiles no whole graph that makes a dictionary of a class of one's own.
_BASE: type = _Dictionary if torch.__version__ >= (2, 7) else object


@dataclass
class ModelOutput(_BASE):
    """Base class: fields are read by attribute, by name (``out["logits"]``), by index, or as a tuple (`to_tuple`). It
    is a ``dict``, as transformers' outputs are, but not with torch 2.6.

    Fields that are None are left out of keys, indices and tuples. Those that transformers' output does not have
    (``mlm_loss``, ``mlm_logits``, ...) have no index. Letters: B sequences, S columns of a padded batch, T tokens of a
    packed one, N labelled tokens, H hidden size, V vocabulary, L layers. Losses have shape () and are in nats, except
    for regression.
    """

    def __init_subclass__(cls) -> None:
        # torch.export and torch.func must know the class as a container of tensors.
        name = f"{cls.__module__}.{cls.__qualname__}"
        _pytree.register_pytree_node(cls, _taken_apart, partial(_put_together, cls), serialized_type_name=name)

    def _present(self, with_extra: bool = True) -> list[tuple[str, Any]]:
        pairs = [(f, getattr(self, f.name)) for f in fields(self)]
        return [(f.name, v) for f, v in pairs if v is not None and (with_extra or not f.metadata.get("extra"))]

    def to_tuple(self) -> tuple:
        """The fields that are not None, in order, as transformers' models return them with ``return_dict=False``."""
        return tuple(value for _, value in self._present(with_extra=False))

    def keys(self) -> list[str]:
        """Names of the fields that are not None."""
        return [name for name, _ in self._present()]

    def values(self) -> list:
        """The fields that are not None, in the order of `keys`."""
        return [value for _, value in self._present()]

    def items(self) -> list[tuple[str, Any]]:
        """Pairs of `keys` and `values`."""
        return self._present()

    def get(self, name: str, default=None):
        """The field of that name; ``default`` if it is None or does not exist."""
        return dict(self._present()).get(name, default)

    def __getitem__(self, key: str | int | slice):
        return dict(self._present())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __contains__(self, name: str) -> bool:
        return name in self.keys()

    def __iter__(self):
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.to_tuple())


def _taken_apart(output: ModelOutput) -> tuple[list[Any], list[str]]:
    return output.values(), output.keys()


def _put_together(cls: type[ModelOutput], values: Iterable[Any], names: list[str]) -> ModelOutput:
    return cls(**dict(zip(names, values, strict=True)))


@dataclass
class EncoderOutput(ModelOutput):
    """What `BertEncoder` returns: ``last_hidden_state`` (B, S, H) or (T, H) and, if asked for, ``hidden_states``, L+1
    of these with the input first, and ``attentions``, L of (B, heads, S, S). The rest is always None."""

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    # transformers' BertModel reads these from whatever encoder stands in it; ours has none of them. Up to version 5.23
    # it reads `past_key_values`, from 5.24 on `cache`.
    past_key_values: None = None
    cache: None = None
    cross_attentions: None = None


@dataclass
class BertModelOutput(ModelOutput):
    """What models without a head return: ``last_hidden_state`` (B, S, H), (T, H) or (1, T, H), as the tokens came;
    ``pooler_output`` (B, H), None without a pooler; if asked for, ``hidden_states``, the embeddings and then each
    layer's states, L+1 in all, and ``attentions``, L of (B, heads, S, S)."""

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class PreTrainingOutput(ModelOutput):
    """What `BertForPreTraining` returns (and `ElmoForPreTraining`, with ``mlm_loss`` alone): ``loss``, ``mlm_loss``,
    ``nsp_loss``; ``prediction_logits`` (B, S, V) or (T, V); ``seq_relationship_logits`` = ``nsp_logits`` (B, 2);
    ``mlm_logits`` (N, V) at the labelled tokens; ``hidden_states``, ``attentions`` as in `BertModelOutput`."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    mlm_loss: Tensor | None = field(default=None, metadata=_EXTRA)
    nsp_loss: Tensor | None = field(default=None, metadata=_EXTRA)
    mlm_logits: Tensor | None = field(default=None, metadata=_EXTRA)
    nsp_logits: Tensor | None = field(default=None, metadata=_EXTRA)


@dataclass
class LogitsOutput(ModelOutput):
    """What heads with one kind of logits return: ``loss`` if there are labels; ``logits``, which are (B, labels),
    (B, choices), (B, S, labels) or (T, labels), depending on the head; ``mlm_logits`` (N, V) of a masked-LM head only;
    ``hidden_states``, ``attentions`` as in `BertModelOutput`."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    mlm_logits: Tensor | None = field(default=None, metadata=_EXTRA)


@dataclass
class CausalLMOutput(LogitsOutput):
    """What `GPTForPreTraining` returns: ``loss`` = ``mlm_loss``; ``logits`` (B, S, V) or (T, V); ``mlm_logits``
    (N, V)."""

    mlm_loss: Tensor | None = field(default=None, metadata=_EXTRA)
    # The training loop reads these for sentence pairs, about which this model predicts nothing.
    nsp_loss: None = field(default=None, metadata=_EXTRA)
    nsp_logits: None = field(default=None, metadata=_EXTRA)


@dataclass
class QuestionAnsweringOutput(ModelOutput):
    """What `BertForQuestionAnswering` returns: ``loss`` if both positions are given; ``start_logits``, ``end_logits``
    (B, S) or (T,); ``hidden_states``, ``attentions`` as in `BertModelOutput`."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
