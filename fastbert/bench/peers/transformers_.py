"""transformers with its eager and its SDPA attention, as it is and under torch.compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from . import Adapter
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


class Inference(Adapter):
    attention = "sdpa"
    compiled = False

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        from transformers import BertModel

        torch.set_num_threads(threads)
        self.model = _load(BertModel, directory, self.attention, add_pooling_layer=False).eval()
        if dtype == "bf16":
            self.model.bfloat16()
        self.forward = _compile(self.model) if self.compiled else self.model

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        self.inputs = _tensors(batch)

    def _hidden(self) -> torch.Tensor:
        # torch.compile refuses tensors made under inference_mode in some versions; no_grad costs nothing here.
        with torch.no_grad():
            return self.forward(**self.inputs).last_hidden_state

    def answer(self) -> dict[str, np.ndarray]:
        return {"hidden": self._hidden().double().numpy()}

    def step(self) -> None:
        self._hidden()


class EagerInference(Inference):
    attention = "eager"


class CompiledInference(Inference):
    compiled = True


class Training(Adapter):
    """transformers' BertForPreTraining with torch's fused AdamW; bf16 is autocast on float32 weights."""

    compiled = False

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        from transformers import BertForPreTraining

        torch.set_num_threads(threads)
        self.model = _load(BertForPreTraining, directory, "sdpa")
        self.forward = _compile(self.model) if self.compiled else self.model
        groups = parameter_groups(self.model, 0.01)
        self.optimizer = torch.optim.AdamW(groups, lr=rate(self.model.config.hidden_size), eps=1e-6, fused=True)

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        self.inputs = _tensors(batch)

    def _backward(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bf16"):
            loss = self.forward(**self.inputs).loss
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
    """Compiled for each batch's shape, which is the fastest that torch.compile offers."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64
    return torch.compile(model, dynamic=False)
