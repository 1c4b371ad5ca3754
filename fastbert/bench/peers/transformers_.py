"""transformers with its eager and its SDPA attention, as it is and under torch.compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ... import hardware
from . import LABELLED, Adapter, PaddedInference
from .fastbert_ import rate, restore, taken


def _load(cls, directory: Path, attention: str, **options) -> torch.nn.Module:
    return cls.from_pretrained(directory, attn_implementation=attention, **options)


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
    """The usual groups with transformers: neither biases nor LayerNorms decay."""
    exempt = {n: n.endswith("bias") or "LayerNorm" in n for n, _ in model.named_parameters()}
    plain, others = ([p for n, p in model.named_parameters() if exempt[n] is of] for of in (False, True))
    return [{"params": plain, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def _tensors(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in batch.items()}


class Inference(PaddedInference):
    attention = "sdpa"

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        from transformers import BertModel

        torch.set_num_threads(threads)
        self.model = _load(BertModel, directory, self.attention, add_pooling_layer=False).eval()
        if dtype == "bf16":
            self.model.bfloat16()
        self.forward = self.model

    def inputs_of(self, batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return _tensors(batch)

    def hidden(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        # torch.compile refuses tensors made under inference_mode in some versions; no_grad costs nothing here.
        with torch.no_grad():
            return self.forward(**inputs).last_hidden_state

    def array_of(self, hidden: torch.Tensor) -> np.ndarray:
        return hidden.double().numpy()


class EagerInference(Inference):
    attention = "eager"


class CompiledInference(Inference):
    """Under torch.compile with Inductor's freezing: weights become constants, which are folded and packed for oneDNN.

    A batch in one call is compiled for its own shape. Where there are several calls, lengths are symbolic: to compile
    for each of W2's lengths would take half an hour. Each compiled graph has packed weights of its own, which torch
    never frees, so the memory grows with every workload.
    """

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        import torch._inductor.config

        torch._inductor.config.freezing = True
        self.model.requires_grad_(False)
        self.of_one_shape = _compile(self.model)
        # A function of its own: the model's compiled shapes and this one's must not be taken for each other.
        self.of_any_length = torch.compile(lambda **inputs: self.model(**inputs), dynamic=True)

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        self.forward = self.of_one_shape if self.way is None else self.of_any_length
        super().prepare(batch)


class Training(Adapter):
    """transformers' BertForPreTraining with torch's fused AdamW; bf16 is autocast on float32 weights.

    As `LABELLED`, the vocabulary's logits are computed for labelled tokens only, as fastbert does it.
    """

    compiled = False

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        from transformers import BertForPreTraining

        torch.set_num_threads(threads)
        self.model = _load(BertForPreTraining, directory, "sdpa")
        self.forward = _compile(self.model) if self.compiled else self.model
        groups = parameter_groups(self.model, 0.01)
        self.optimizer = torch.optim.AdamW(groups, lr=rate(self.model.config.hidden_size), eps=1e-6, fused=True)
        # As fastbert's engine does; otherwise each step maps its large tensors anew, which any program can avoid.
        hardware.keep_freed_memory()

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        self.inputs = _tensors(batch)
        if self.way == LABELLED:
            labels = self.inputs.pop("labels").flatten()
            self.positions = (labels != -100).nonzero().squeeze(1)
            self.mlm_labels, self.nsp_labels = labels[self.positions], self.inputs.pop("next_sentence_label")

    def _loss_of_labelled(self) -> torch.Tensor:
        hidden, pooled = self.model.bert(**self.inputs)[:2]
        words, pairs = self.model.cls(hidden.flatten(0, 1)[self.positions], pooled)
        return F.cross_entropy(words, self.mlm_labels) + F.cross_entropy(pairs, self.nsp_labels)

    def _backward(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bf16"):
            loss = self._loss_of_labelled() if self.way == LABELLED else self.forward(**self.inputs).loss
        loss.backward()
        return loss.detach()

    def answer(self) -> dict[str, np.ndarray]:
        restore(self.model, self.directory)
        self.model.eval()
        return taken(self.model, self._backward())

    def step(self) -> float:
        self.model.train()
        loss = self._backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss)


class CompiledTraining(Training):
    compiled = True


def _compile(model: torch.nn.Module):
    """Compiled for each batch's shape, in torch.compile's default mode: without a search for the fastest product."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64
    return torch.compile(model, dynamic=False)
