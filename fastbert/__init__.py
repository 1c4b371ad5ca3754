"""fastbert: BERT, the whole of it, at the speed of the hardware."""

from __future__ import annotations

import importlib

from . import hardware as _hardware

# Before torch runs its first matrix product: see hardware.cap_onednn.
_hardware.cap_onednn()

__version__ = "0.1.0.dev0"

# Public name -> module that holds it: loaded at first use, so that `import fastbert` stays quick.
_LAZY = {
    "BertConfig": "config",
    "BertEncoder": "modules.encoder",
    "BertModel": "models",
    "BertForPreTraining": "models",
    "BertForMaskedLM": "models",
    "BertForNextSentencePrediction": "models",
    "BertForSequenceClassification": "models",
    "BertForTokenClassification": "models",
    "BertForQuestionAnswering": "models",
    "BertForMultipleChoice": "models",
    "ElmoConfig": "elmo_config",
    "ElmoModel": "models.elmo",
    "ElmoForPreTraining": "models.elmo",
    "GPTConfig": "gpt_config",
    "GPT2Config": "gpt_config",
    "GPTModel": "models.gpt",
    "GPTForPreTraining": "models.gpt",
    "SentenceEncoder": "interop.sentence_encoder",
    "load_tokenizer": "data.tokenizer",
    "patch": "interop.patch",
    "unpatch": "interop.patch",
    "PackedBatch": "packing",
    "quantize": "modules.quantized",
    "backend": "ops",
    "batch_invariant": "ops",
    "environment": "_environment",
}
_SUBMODULES = ("ops", "optim", "packing", "data", "models", "tasks", "train")

__all__ = ["__version__", *_LAZY, *_SUBMODULES]


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'fastbert' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
