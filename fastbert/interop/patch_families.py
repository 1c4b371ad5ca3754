"""The encoders of transformers whose layers compute what ours compute, and where each keeps its parts.

A layer is Vaswani et al. 2017, section 3 (post-LN, full attention, GELU); families differ in names, in their embeddings
and in what their models return.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from ..weights import distilbert

# What a layer holds, under the names of BERT: the dense layers and norms that we read or call, ...
LEAVES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
# ... and the modules whose work is done for them: one that does anything else is not ours to replace.
INNER = (
    "attention",
    "attention.self",
    "attention.self.dropout",
    "attention.output",
    "attention.output.dropout",
    "intermediate",
    "intermediate.intermediate_act_fn",
    "output",
    "output.dropout",
)


@dataclass(frozen=True)
class Family:
    """One architecture.

    Args:
        module: where transformers keeps it.
        model: the name of its model class there.
        output: the class in transformers.modeling_outputs that the model returns.
        encoder: the attribute of the model that holds ``layer``.
        rename: our names of a layer's parts to the family's; those of BERT where not given, None for what it lacks.
        config: our configuration's fields to the family's.
        embed: None where the embeddings are BERT's own, else model and keywords to (B, S, H).
    """

    module: str
    model: str
    output: str = "BaseModelOutputWithPoolingAndCrossAttentions"
    encoder: str = "encoder"
    rename: tuple[tuple[str, str | None], ...] = ()
    config: tuple[tuple[str, str], ...] = ()
    embed: Callable[[nn.Module, dict[str, Any]], Tensor] | None = None

    def model_class(self) -> type:
        return getattr(importlib.import_module(self.module), self.model)

    def output_class(self) -> type:
        return getattr(importlib.import_module("transformers.modeling_outputs"), self.output)

    def path(self, name: str) -> str | None:
        """Our name of a layer's part in the family's words; None for what it does not have."""
        return dict(self.rename).get(name, name)

    def part(self, layer: nn.Module, name: str) -> nn.Module | None:
        """A layer's part by our name of it; None for what is not there."""
        path = self.path(name)
        return None if path is None else find(layer, path)

    def field(self, name: str) -> str:
        return dict(self.config).get(name, name)


def find(module: nn.Module, path: str | tuple[str, ...]) -> nn.Module | None:
    """The module at a path below another, in one string or by its names; None where there is none."""
    for name in path.split(".") if isinstance(path, str) else path:
        module = module._modules.get(name)
        if module is None:
            return None
    return module


@cache
def is_before_5() -> bool:
    """Whether transformers is of version 4."""
    import transformers
    from packaging.version import Version

    return Version(transformers.__version__) < Version("5.0.0.dev0")


def _embed(model: nn.Module, given: dict[str, Any]) -> Tensor:
    """The family's own embeddings of the (B, S) rectangle: their positions follow the pads, so they need them."""
    names = ("input_ids", "position_ids", "token_type_ids", "inputs_embeds")
    x = model.embeddings(**{name: given.get(name) for name in names})
    project = model._modules.get("embeddings_project")
    return x if project is None else project(x)


def _embed_distilbert(model: nn.Module, given: dict[str, Any]) -> Tensor:
    position_ids = given.get("position_ids")
    rest = () if position_ids is None else (position_ids,)
    return model.embeddings(given.get("input_ids"), given.get("inputs_embeds"), *rest)


def _roberta(name: str, model: str) -> Family:
    return Family(f"transformers.models.{name}.modeling_{name}", model, embed=_embed)


BERT = Family("transformers.models.bert.modeling_bert", "BertModel")
DISTILBERT = Family(
    "transformers.models.distilbert.modeling_distilbert",
    "DistilBertModel",
    output="BaseModelOutput",
    encoder="transformer",
    rename=distilbert.PARTS,
    config=distilbert.FIELDS,
    embed=_embed_distilbert,
)
FAMILIES = (
    BERT,
    _roberta("roberta", "RobertaModel"),
    _roberta("xlm_roberta", "XLMRobertaModel"),
    _roberta("camembert", "CamembertModel"),
    Family(
        "transformers.models.electra.modeling_electra",
        "ElectraModel",
        output="BaseModelOutputWithPastAndCrossAttentions",
        embed=_embed,
    ),
    DISTILBERT,
)


def family_of(model_class: type) -> Family | None:
    """The family of a class of models, or of what it inherits from; no module of transformers is imported for it."""
    names = {(cls.__module__, cls.__name__) for cls in model_class.__mro__}
    return next((family for family in FAMILIES if (family.module, family.model) in names), None)
