"""Adapters of fastbert itself: its backends, its int8 model, its training step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import fastbert

from . import Adapter

_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}


class Inference(Adapter):
    """`BertModel` on a padded batch with a mask, as a user of transformers would call it."""

    backend = "cpu"

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        torch.set_num_threads(threads)
        # Suitable for a long-lived process of inference; the library itself does not change glibc's settings.
        self.model = fastbert.BertModel.from_pretrained(directory, add_pooling_layer=False).to(_DTYPES[dtype]).eval()
        if dtype == "int8":
            self.model = fastbert.quantize(self.model)

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        self.inputs = {
            name: torch.from_numpy(batch[name]) for name in ("input_ids", "attention_mask", "token_type_ids")
        }

    def _forward(self) -> torch.Tensor:
        with torch.inference_mode(), fastbert.backend(self.backend):
            return self.model(**self.inputs).last_hidden_state

    def answer(self) -> dict[str, np.ndarray]:
        return {"hidden": self._forward().double().numpy()}

    def step(self) -> None:
        self._forward()


class ReferenceInference(Inference):
    """Inference on the reference backend, which is plain torch."""

    backend = "reference"


class Training(Adapter):
    """`BertForPreTraining` on a packed batch through the engine of `fastbert pretrain`, with its defaults."""

    backend = "cpu"

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        from fastbert import optim
        from fastbert.train.config import PretrainConfig
        from fastbert.train.engine import LocalEngine

        torch.set_num_threads(threads)
        self.model = fastbert.BertForPreTraining.from_pretrained(directory).to(
            torch.float64 if dtype == "fp64" else torch.float32
        )
        defaults = PretrainConfig()
        self.model.last_layer = defaults.last_layer
        self.rate = rate(self.model.config.hidden_size)
        optimizer = optim.AdamW(optim.param_groups(self.model, 0.01), lr=self.rate)
        self.engine = LocalEngine(self.model, optimizer, precision="bf16" if dtype == "bf16" else "fp32")

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        lengths = batch["attention_mask"].sum(1)
        ids, types, labels = (
            [row[:length] for row, length in zip(batch[name], lengths, strict=True)]
            for name in ("input_ids", "token_type_ids", "labels")
        )
        flat = np.concatenate(labels)
        (positions,) = np.nonzero(flat != -100)
        self.batch = fastbert.PackedBatch.from_sequences(
            ids,
            types,
            mlm_positions=torch.from_numpy(positions),
            mlm_labels=torch.from_numpy(flat[positions]),
            nsp_labels=torch.from_numpy(batch["next_sentence_label"]),
        )

    def answer(self) -> dict[str, np.ndarray]:
        restore(self.model, self.directory)
        self.model.eval()
        with fastbert.backend(self.backend):
            loss = self.engine.backward(lambda: self.model(self.batch).loss)
        return taken(self.model, loss)

    def step(self) -> float:
        self.model.train()
        with fastbert.backend(self.backend):
            loss = self.engine.backward(lambda: self.model(self.batch).loss)
            self.engine.step(self.rate)
        return float(loss)


class ReferenceTraining(Training):
    """Training on the reference backend, which is plain torch."""

    backend = "reference"


# Parameters whose gradients are compared: both ends of the encoder, every kind of layer, and the heads.
_COMPARED = (
    "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.LayerNorm.weight",
    "bert.encoder.layer.0.attention.self.query.weight",
    "bert.encoder.layer.0.intermediate.dense.bias",
    "bert.encoder.layer.{last}.attention.self.value.weight",
    "bert.encoder.layer.{last}.attention.output.LayerNorm.bias",
    "bert.encoder.layer.{last}.output.dense.weight",
    "bert.pooler.dense.weight",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.bias",
    "cls.seq_relationship.weight",
)


def rate(hidden_size: int) -> float:
    """A learning rate at which the loss on one batch falls within a few steps; the same for all libraries.

    The output of a wide model changes more if each of its weights changes by the same amount. There is no warm-up here,
    and the first steps of BERT's AdamW, which has no bias correction, are three times as large: 1e-4 was too much for
    768 units.
    """
    return 2e-5 * 768 / hidden_size


def restore(model: torch.nn.Module, directory: Path) -> None:
    """Restores the directory's weights in a BertForPreTraining of any library, after training steps have changed them.

    One tensor after another: a second set of weights would be counted as the library's memory.
    """
    from safetensors import safe_open

    with safe_open(directory / "model.safetensors", "pt") as file, torch.no_grad():
        held = set(file.keys())
        for name, parameter in model.named_parameters():
            if name not in held:
                raise ValueError(f"{directory}: expected {name} among its tensors, got {len(held)} others")
            parameter.copy_(file.get_tensor(name))


def taken(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, np.ndarray]:
    """The loss and the compared gradients of a BertForPreTraining of any library; clears all gradients."""
    parameters = dict(model.named_parameters())
    last = model.config.num_hidden_layers - 1
    names = [name.format(last=last) for name in _COMPARED]
    found = {name: parameters[name].grad.double().numpy() for name in names}
    model.zero_grad(set_to_none=True)
    return {"loss": loss.detach().double().numpy(), **found}
