"""Writes a model as an ONNX graph: the padded computation in plain operators, with dynamic batch and sequence sizes."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import BertConfig
from ..errors import CheckpointError, InputError
from ..files import whole
from ..result_files import check_writable
from .convert_source import Source

OPSET = 18
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class PaddedBert(nn.Module):
    """A model's computation on a padded (B, S) batch, for exporters: nothing depends on the values of a tensor.

    Args:
        model: one of fastbert's own, whose modules are used.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def dims(self) -> int:
        """The number of dimensions of an input."""
        return 3 if type(self.model).__name__ == "BertForMultipleChoice" else 2

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """The tensors of `named`, in their order."""
        return tuple(self.named(input_ids, attention_mask, token_type_ids).values())

    def named(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        """Computes the model's outputs, by the names in the graph; those of tokens are 0 at masked ones.

        Args:
            input_ids, attention_mask, token_type_ids: (B, S) int64, or (B, choices, S) for multiple choice.
        """
        model, name = self.model, type(self.model).__name__
        bert = getattr(model, "bert", model)
        choices = input_ids.shape[:2]
        if self.dims == 3:
            input_ids, attention_mask, token_type_ids = (
                x.flatten(0, 1) for x in (input_ids, attention_mask, token_type_ids)
            )
        keep = (attention_mask != 0).unsqueeze(-1)
        hidden = self._encode(bert, input_ids, attention_mask, token_type_ids)
        # As the model's own: the first column whatever its mask, and zeros of a row of which nothing is kept.
        first = hidden[:, 0] * keep.any(1)
        pooled = None if bert.pooler is None else torch.tanh(bert.pooler.dense(first))
        if name == "BertModel":
            last = {"last_hidden_state": hidden * keep}
            return last if pooled is None else {**last, "pooler_output": pooled}
        if name == "BertForMultipleChoice":
            return {"logits": model.classifier(pooled).reshape(choices)}
        if name == "BertForSequenceClassification":
            return {"logits": model.classifier(pooled)}
        if name == "BertForTokenClassification":
            return {"logits": model.classifier(hidden) * keep}
        if name == "BertForQuestionAnswering":
            return dict(zip(("start_logits", "end_logits"), (model.qa_outputs(hidden) * keep).unbind(-1), strict=True))
        if name == "BertForMaskedLM":
            return {"logits": self._words(hidden) * keep}
        sentences = model.cls.seq_relationship(pooled)
        if name == "BertForNextSentencePrediction":
            return {"logits": sentences}
        return {"prediction_logits": self._words(hidden) * keep, "seq_relationship_logits": sentences}

    def _words(self, x: Tensor) -> Tensor:
        head = self.model.cls.predictions
        x = F.gelu(head.transform.dense(x), approximate=head.transform.approximate)
        return head.decoder(head.transform.LayerNorm(x))

    @staticmethod
    def _encode(bert: nn.Module, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        tables = bert.embeddings
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = tables.word_embeddings(input_ids) + tables.token_type_embeddings(token_type_ids)
        x = tables.LayerNorm(x + tables.position_embeddings(positions)[None])
        # Not -inf, which would make a row without tokens NaN.
        scores = torch.finfo(x.dtype).min * (attention_mask == 0).to(x.dtype)[:, None, None]
        heads = bert.config.num_attention_heads
        for layer in bert.encoder.layer:
            own = layer.attention.self
            q, k, v = (
                linear(x).unflatten(-1, (heads, -1)).transpose(1, 2) for linear in (own.query, own.key, own.value)
            )
            weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + scores, dim=-1)
            context = (weights @ v).transpose(1, 2).flatten(2)
            output = layer.attention.output
            x = output.LayerNorm(output.dense(context) + x)
            inner = F.gelu(layer.intermediate.dense(x), approximate=layer.intermediate.approximate)
            x = layer.output.LayerNorm(layer.output.dense(inner) + x)
        return x


def write_onnx(found: Source, target: Path) -> None:
    """Writes the graph as one file, with inputs `input_ids`, `attention_mask` and `token_type_ids`, each int64 (batch,
    sequence), or (batch, choices, sequence) for multiple choice.

    The graph computes in the dtype of the weights, or in the widest if there are several. Its metadata has the model's
    config.json under ``config.json``: the names of classes, a regression's ``label_mean``, a ``null_threshold``.

    Raises:
        InputError: the packages onnx and onnxscript are not installed, the target is a directory or a file of another
            name that exists, or the model is a decoder, has a BiLSTM or only one position.
        CheckpointError: the weights have 2 GiB or more, or the file cannot be written.
    """
    _check(found.model.config, target)
    model = found.model
    dtypes = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    if len(dtypes) > 1:  # an operator's inputs must have one dtype; the widest holds every number of the others
        model = copy.deepcopy(model).to(functools.reduce(torch.promote_types, dtypes))
    module = PaddedBert(model).eval()
    total = sum(p.numel() * p.element_size() for p in module.parameters())
    if total >= 1 << 31:
        raise CheckpointError(f"{target}: an ONNX file holds at most 2 GiB, and the model's weights are {total} bytes")
    # Three separate tensors: the exporter would make a tensor that is given twice a single input.
    length = min(8, model.config.max_position_embeddings)
    shape = (2, 3, length) if module.dims == 3 else (2, length)
    example = tuple(torch.zeros(shape, dtype=torch.int64) for _ in _INPUTS)
    try:
        import onnx  # noqa: F401 - torch's exporter imports them itself, after a while
        import onnxscript  # noqa: F401

        check_writable(target)
        program = _export(module, example)
        program.model.metadata_props["config.json"] = found.model.config.to_json_string()
        with whole(target) as temporary:
            program.save(temporary, external_data=False)
    except ImportError as error:
        needed = "onnx and onnxscript (pip install 'fastbert[onnx]')"
        raise InputError(f"writing ONNX needs {needed}, got: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{target}: expected to write it, got: {error.strerror or error}") from error


def _check(config: BertConfig, target: Path) -> None:
    """Raises InputError for a model that has no graph here, or a place where none can be written."""
    if target.is_dir():
        raise InputError(f"{target}: expected the name of an .onnx file, got a directory")
    if target.is_file() and target.suffix != ".onnx":  # perhaps the weights that are converted
        raise InputError(f"{target}: expected a new file or an .onnx file to replace, got another file that exists")
    if config.is_decoder:
        raise InputError(f"{target}: only encoders can be written as ONNX, got a model with is_decoder (left to right)")
    if config.bilstm_units is not None:
        raise InputError(f"{target}: only encoders with their heads can be written as ONNX, got a model with a BiLSTM")
    if config.max_position_embeddings < 2:  # the exporter makes a size that is always 1 a constant
        raise InputError(f"{target}: a graph has inputs of any length: expected a model of 2 positions or more, got 1")


def _export(module: PaddedBert, example: tuple[Tensor, ...]) -> Any:
    batch = torch.export.Dim("batch")
    sequence = torch.export.Dim("sequence", max=module.model.config.max_position_embeddings)
    sizes = {0: batch, 1: sequence}
    if module.dims == 3:
        sizes = {0: batch, 1: torch.export.Dim("choices"), 2: sequence}
    # The exporter prints to standard output, and warns.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        names = list(module.named(*example))
        return torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(_INPUTS),
            output_names=names,
            dynamic_shapes=(sizes,) * len(_INPUTS),
            verbose=False,
        )
