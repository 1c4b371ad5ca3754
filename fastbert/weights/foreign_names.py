"""Translates the names of BERT's tensors in TensorFlow 1 checkpoints and in DeepSpeed's fused layers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError

# Optimisers' tensors in a checkpoint.
_SLOTS = re.compile(r"(^|/)(adam_[mv]|Adam(_1)?|lamb_[mv]|LAMB.*|momentum|Momentum|global_step|beta[12]_power)$")

# Output layers, whose TensorFlow weights are (out, in) as ours are; dense "kernel"s are (in, out).
_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_HEADS_BACK = {ours: theirs for theirs, ours in _HEADS.items()}
_TABLE = re.compile(r"bert/embeddings/(word|position|token_type)_embeddings")
_SCOPED = re.compile(r"(.+/)?bert/embeddings/word_embeddings")
_INNER = re.compile(
    r"(bert/embeddings|bert/encoder/layer_\d+/attention/(?:self|output)|bert/encoder/layer_\d+/(?:intermediate|output)"
    r"|bert/pooler|cls/predictions/transform)/(dense|LayerNorm|query|key|value)/(kernel|bias|gamma|beta)"
)
_LEAF = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def is_weight(name: str) -> bool:
    """Whether a name of a TensorFlow checkpoint is a tensor of the model, not of an optimiser."""
    return _SLOTS.search(name) is None


def from_tensorflow(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A TensorFlow checkpoint's tensors under the names of transformers' heads, kernels transposed.

    A name that is not a BERT's is kept as it is, for messages about unused tensors. A scope around the model, such as
    TF Hub's ``module/``, is removed if there is only one model.
    """
    out: dict[str, Tensor] = {}
    scopes = [found[1] or "" for found in map(_SCOPED.fullmatch, state) if found is not None]
    scope = scopes[0] if len(scopes) == 1 else ""
    for full, tensor in state.items():
        name = full.removeprefix(scope)
        inner = _INNER.fullmatch(name)
        if name in _HEADS:
            out[_HEADS[name]] = tensor
        elif _TABLE.fullmatch(name):
            out[name.replace("/", ".") + ".weight"] = tensor
        elif inner:
            path = re.sub(r"layer_(\d+)", r"layer.\1", inner[1]).replace("/", ".")
            # Made contiguous, since a transposed view would be slow to copy later.
            value = tensor.t().contiguous() if inner[3] == "kernel" and tensor.dim() == 2 else tensor
            out[f"{path}.{inner[2]}.{_LEAF[inner[3]]}"] = value
        else:
            out[name] = tensor
    return out


def to_tensorflow(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under transformers' names, with the names and layout of google-research/bert.

    Raises:
        CheckpointError: the decoder is not tied to the word embeddings, or a tensor has no name there.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name == "cls.predictions.decoder.bias":
            continue  # an alias of cls.predictions.bias
        if name == "cls.predictions.decoder.weight":
            words = state.get("bert.embeddings.word_embeddings.weight")
            if words is None or not (
                words is tensor or (words.shape == tensor.shape and bool((words == tensor).all()))
            ):
                raise CheckpointError(
                    "a TensorFlow checkpoint of BERT has no separate decoder: expected one tied to the word "
                    "embeddings, got another matrix"
                )
            continue
        out[_tensorflow_name(name)] = tensor.t() if _is_kernel(name) else tensor
    return out


def _is_kernel(name: str) -> bool:
    plain = name in _HEADS_BACK or name.endswith("_embeddings.weight")
    return name.endswith(".weight") and not plain and "LayerNorm" not in name


def _tensorflow_name(name: str) -> str:
    if name in _HEADS_BACK:
        return _HEADS_BACK[name]
    path, _, leaf = name.rpartition(".")
    path = re.sub(r"layer\.(\d+)", r"layer_\1", path).replace(".", "/")
    if _TABLE.fullmatch(path):
        return path
    if path.endswith("LayerNorm"):
        leaf = {"weight": "gamma", "bias": "beta"}[leaf]
    theirs = f"{path}/{'kernel' if leaf == 'weight' else leaf}"
    if not _INNER.fullmatch(theirs):
        raise CheckpointError(
            f"{name}: expected a tensor of a BERT, got one for which google-research/bert has no name"
        )
    return theirs


# DeepSpeed's DeepSpeedTransformerLayer (post-LN) keeps a layer's tensors under short names, query, key, value as one.
_FUSED = {
    "attn_ow": "attention.output.dense.weight",
    "attn_ob": "attention.output.dense.bias",
    "attn_nw": "attention.output.LayerNorm.weight",
    "attn_nb": "attention.output.LayerNorm.bias",
    "inter_w": "intermediate.dense.weight",
    "inter_b": "intermediate.dense.bias",
    "output_w": "output.dense.weight",
    "output_b": "output.dense.bias",
    "norm_w": "output.LayerNorm.weight",
    "norm_b": "output.LayerNorm.bias",
}
_FUSED_QKV = {"attn_qkvw": "weight", "attn_qkvb": "bias"}


def from_deepspeed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Splits the tensors of DeepSpeed's fused layers; any other state dictionary is returned as it is.

    Raises:
        CheckpointError: a layer is pre-LN, which is another model; a fused matrix cannot be split into three; or a
            tensor occurs both fused and separately, with different values.
    """
    out: dict[str, Tensor] = {}

    def put(name: str, tensor: Tensor, source: str) -> None:
        if name in out and not (out[name].shape == tensor.shape and torch.equal(out[name], tensor)):
            raise CheckpointError(f"{source}: expected one tensor for {name}, got two that differ, fused and apart")
        out[name] = tensor

    for name, tensor in state.items():
        layer, _, leaf = name.rpartition(".")
        if name.endswith(("FinalLayerNorm.weight", "FinalLayerNorm.bias")) or ".PreAttentionLayerNorm." in name:
            raise CheckpointError(
                f"{name}: expected layers that normalise after their sums, as BERT's, got pre-LN ones"
            )
        if leaf in _FUSED:
            put(f"{layer}.{_FUSED[leaf]}", tensor, name)
        elif leaf in _FUSED_QKV:
            if tensor.dim() == 0 or tensor.shape[0] % 3:
                raise CheckpointError(f"{name}: expected query, key and value in one, got {tuple(tensor.shape)}")
            for part, value in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                put(f"{layer}.attention.self.{part}.{_FUSED_QKV[leaf]}", value, name)
        else:
            # NVIDIA's name for dense layers with a fused activation.
            put(name.replace(".dense_act.", ".dense."), tensor, name)
    return out
