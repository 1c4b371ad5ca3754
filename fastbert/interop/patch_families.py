"""The encoders of transformers whose layers compute what ours compute, and where each keeps its parts.

A layer is that of Vaswani et al. 2017, section 3 (post-LN, full attention) with GELU; families differ in names, in
embeddings, in whether layers share parameters and in what their models return.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..weights import distilbert

# The parts of a layer, under BERT's names: the dense layers and norms that we read or call, ...
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
# ... and the modules that our code replaces, which is only possible if they are the family's own.
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


def _own_layers(encoder: nn.Module) -> tuple[list[nn.Module], list[nn.Module]] | None:
    stack = encoder._modules.get("layer")
    return None if stack is None else ([], list(stack._modules.values()))


@dataclass(frozen=True, eq=False)  # there is one object of each
class Family:
    """One architecture.

    Args:
        module: the Python module of transformers.
        model: the name of the model class in it.
        output: the class in transformers.modeling_outputs that the model returns.
        encoder: the attribute of the model with the layers; None if the model is an encoder alone, without embeddings.
        layers: maps the encoder to the modules besides it whose code calls the layers, and to the layers in the order
            in which they run, repeated if they run several times; or to None if there are no layers.
        rename: our name of a layer's part -> the family's name, None for a part that is missing; BERT's by default.
        config: a field of our configuration -> the family's name.
        embed: maps the model and the arguments of its embeddings (those of `_INPUTS` and ``inputs``, None for what the
            pass does not have) to embeddings (B, S, H); None if the embeddings are BERT's own.
        bias: maps the encoder and R to a bias (nheads, 2R-1) as in `ops.attention`; None if scores have no bias.
        table: the attribute of the encoder in which ``bias`` looks up values.
        pool: maps the model and first tokens (B, H) to the pooled output; None if the model's pooler reads (B, S, H).
        inputs: the arguments of the family's embeddings besides BERT's.
        as_in_4: whether its code in version 5 of transformers is still written in the style of version 4.
    """

    module: str
    model: str
    output: str = "BaseModelOutputWithPoolingAndCrossAttentions"
    encoder: str | None = "encoder"
    layers: Callable[[nn.Module], tuple[list[nn.Module], list[nn.Module]] | None] = _own_layers
    rename: Mapping[str, str | None] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    embed: Callable[[nn.Module, dict[str, Any]], Tensor] | None = None
    bias: Callable[[nn.Module, int], Tensor] | None = None
    table: str | None = None
    pool: Callable[[nn.Module, Tensor], Tensor] | None = None
    inputs: tuple[str, ...] = ()
    as_in_4: bool = False

    def model_class(self) -> type:
        return getattr(importlib.import_module(self.module), self.model)

    def output_class(self) -> type:
        return getattr(importlib.import_module("transformers.modeling_outputs"), self.output)

    def encoder_of(self, model: nn.Module) -> nn.Module | None:
        """The module with the layers; None if it is missing."""
        return model if self.encoder is None else model._modules.get(self.encoder)

    def path(self, name: str) -> str | None:
        """The family's name for our name of a layer's part; None if it has no such part."""
        return self.rename.get(name, name)

    def part(self, layer: nn.Module, name: str) -> nn.Module | None:
        """A layer's part by our name for it; None if it is missing."""
        path = self.path(name)
        return None if path is None else find(layer, path)

    def embedded(self, model: nn.Module, given: dict[str, Any]) -> Tensor:
        """The embeddings (B, S, H) by the family's own code, for the arguments of a pass."""
        return self.embed(model, {name: given.get(name) for name in (*_INPUTS, *self.inputs)})

    def is_as_before_5(self) -> bool:
        """Whether the installed code of the family is written in the style of version 4."""
        return self.as_in_4 or is_before_5()


def find(module: nn.Module, path: str | tuple[str, ...]) -> nn.Module | None:
    """The module at a path below another, as a dotted string or a tuple of names; None if there is none."""
    for name in path.split(".") if isinstance(path, str) else path:
        module = module._modules.get(name)
        if module is None:
            return None
    return module


@cache
def is_before_5() -> bool:
    """Whether the installed transformers is version 4."""
    import transformers
    from packaging.version import Version

    return Version(transformers.__version__) < Version("5.0.0.dev0")


_INPUTS = ("input_ids", "position_ids", "token_type_ids", "inputs_embeds")


def _embed(model: nn.Module, given: dict[str, Any]) -> Tensor:
    """The family's own embeddings of the padded batch, whose position ids depend on the padding."""
    x = model.embeddings(**given)
    project = model._modules.get("embeddings_project") or model.encoder._modules.get("embedding_hidden_mapping_in")
    return x if project is None else project(x)


def _embed_boxes(model: nn.Module, given: dict[str, Any]) -> Tensor:
    """LayoutLM's embeddings; without ``bbox``, all words are in the corner of the page."""
    if given["bbox"] is None:
        tokens = given["input_ids"] if given["inputs_embeds"] is None else given["inputs_embeds"]
        given = {**given, "bbox": torch.zeros(*tokens.shape[:2], 4, dtype=torch.int64, device=tokens.device)}
    return _embed(model, given)


def _embed_distilbert(model: nn.Module, given: dict[str, Any]) -> Tensor:
    rest = () if given["position_ids"] is None else (given["position_ids"],)
    return model.embeddings(given["input_ids"], given["inputs_embeds"], *rest)


def _albert_layers(encoder: nn.Module) -> tuple[list[nn.Module], list[nn.Module]] | None:
    """Layers that share parameters in groups (Lan et al. 2020, section 3.1)."""
    held = encoder._modules.get("albert_layer_groups")
    if held is None:
        return None
    groups, config = list(held._modules.values()), encoder.config
    share = config.num_hidden_layers / config.num_hidden_groups
    runs = [groups[int(number / share)] for number in range(config.num_hidden_layers)]
    return groups, [layer for group in runs for layer in group._modules["albert_layers"]._modules.values()]


def _mpnet_bias(encoder: nn.Module, longest: int) -> Tensor:
    """The bias (nheads, 2R-1) for all distances of a key from its query, by buckets (Raffel et al. 2020, section
    2.1)."""
    table = encoder._modules["relative_attention_bias"]
    weight = next(table.parameters())
    distances = torch.arange(1 - longest, longest, device=weight.device)
    return table(encoder.relative_position_bucket(distances)).transpose(0, 1)


def _kin(room: str, model: str, **changes: Any) -> Family:
    """A family whose layers have the same names as BERT's; ``room`` is PACKAGE.FILE, or one name for both."""
    where, _, file = room.rpartition(".")
    return Family(f"transformers.models.{where or file}.modeling_{file}", model, **{"embed": _embed, **changes})


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
_WITH_POOLING = "BaseModelOutputWithPooling"
ALBERT = Family(
    "transformers.models.albert.modeling_albert",
    "AlbertModel",
    output=_WITH_POOLING,
    layers=_albert_layers,
    rename={
        "attention.self": None,
        **{f"attention.self.{name}": f"attention.{name}" for name in ("query", "key", "value")},
        "attention.self.dropout": "attention.attention_dropout",
        "attention.output": None,
        **{f"attention.output.{name}": f"attention.{name}" for name in ("dense", "LayerNorm")},
        "attention.output.dropout": "attention.output_dropout",
        "intermediate": None,
        "intermediate.dense": "ffn",
        "intermediate.intermediate_act_fn": "activation",
        "output": None,
        "output.dense": "ffn_output",
        "output.LayerNorm": "full_layer_layer_norm",
        "output.dropout": None,  # the layers have one, but do not call it
    },
    embed=_embed,
    pool=lambda model, first: model.pooler_activation(model.pooler(first)),
)
MPNET = Family(
    "transformers.models.mpnet.modeling_mpnet",
    "MPNetModel",
    output=_WITH_POOLING,
    rename={
        "attention.self": "attention.attn",
        **{f"attention.self.{name}": f"attention.attn.{name[0]}" for name in ("query", "key", "value")},
        "attention.self.dropout": "attention.attn.dropout",
        "attention.output": None,
        "attention.output.dense": "attention.attn.o",
        "attention.output.LayerNorm": "attention.LayerNorm",
        "attention.output.dropout": "attention.dropout",
    },
    embed=_embed,
    bias=_mpnet_bias,
    table="relative_attention_bias",
    as_in_4=True,
)
_PATHS = ("xpath_tags_seq", "xpath_subs_seq")


def _alone(room: str, encoder: str) -> Family:
    """The encoder of a family in a module of someone's own, which gives it hidden states (B, S, H)."""
    output = "BaseModelOutputWithPastAndCrossAttentions"
    return _kin(room, encoder, output=output, encoder=None, embed=lambda _, given: given["inputs_embeds"])


FAMILIES = (
    BERT,
    _kin("roberta", "RobertaModel"),
    _kin("xlm_roberta", "XLMRobertaModel"),
    _kin("camembert", "CamembertModel"),
    _kin("data2vec.data2vec_text", "Data2VecTextModel"),
    _kin("electra", "ElectraModel", output="BaseModelOutputWithPastAndCrossAttentions"),
    _kin("ernie", "ErnieModel", inputs=("task_type_ids",)),
    _kin("rembert", "RemBertModel", as_in_4=True),
    _kin("splinter", "SplinterModel", output="BaseModelOutput"),
    _kin("layoutlm", "LayoutLMModel", output=_WITH_POOLING, embed=_embed_boxes, inputs=("bbox",)),
    _kin("markuplm", "MarkupLMModel", output=_WITH_POOLING, inputs=_PATHS),
    # The text towers of image and audio models.
    _kin("chinese_clip", "ChineseCLIPTextModel", output=_WITH_POOLING),
    _kin("clap", "ClapTextModel", output=_WITH_POOLING),
    DISTILBERT,
    ALBERT,
    MPNET,
    _alone("bert", "BertEncoder"),
    _alone("roberta", "RobertaEncoder"),
    _alone("xlm_roberta", "XLMRobertaEncoder"),
    _alone("camembert", "CamembertEncoder"),
    _alone("electra", "ElectraEncoder"),
)


def hint_of_encoder(family: Family) -> str:
    """The end of a sentence that refuses a model for what is around its layers; empty for families whose encoder
    `patch` does not take alone."""
    alone = family.encoder and any(other.encoder is None and other.module == family.module for other in FAMILIES)
    return f"; fastbert.patch(model.{family.encoder}) computes its layers alone" if alone else ""


def family_of(model_class: type) -> Family | None:
    """The family of a model class or of one of its base classes, else None; imports nothing of transformers."""
    names = {(cls.__module__, cls.__name__) for cls in model_class.__mro__}
    return next((family for family in FAMILIES if (family.module, family.model) in names), None)
