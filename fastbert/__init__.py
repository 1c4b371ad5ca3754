"""BERT from pre-training to use, on PyTorch with kernels in C++, Triton and CUDA.

`BertModel`, `BertForMaskedLM` and the other models read and write Hugging Face directories. `patch` makes an existing
transformers model compute with the same kernels, `SentenceEncoder` turns sentences into vectors, and `quantize`
converts a model to int8 for inference on a CPU. `fastbert.ops` has the individual ops, `fastbert.optim` the optimisers
and `fastbert.errors` the exceptions; `environment` describes what was found on this machine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import hardware as _hardware

if TYPE_CHECKING:
    # Type checkers and editors do not run `__getattr__`, so the names of _LAZY and _SUBMODULES are repeated for them.
    from . import data as data
    from . import errors as errors
    from . import models as models
    from . import ops as ops
    from . import optim as optim
    from . import packing as packing
    from . import tasks as tasks
    from . import train as train
    from ._environment import environment as environment
    from .config import BertConfig as BertConfig
    from .data.tokenizer import load_tokenizer as load_tokenizer
    from .elmo_config import ElmoConfig as ElmoConfig
    from .gpt_config import GPT2Config as GPT2Config
    from .gpt_config import GPTConfig as GPTConfig
    from .interop.patch import patch as patch
    from .interop.patch import unpatch as unpatch
    from .interop.sentence_encoder import SentenceEncoder as SentenceEncoder
    from .models import BertForMaskedLM as BertForMaskedLM
    from .models import BertForMultipleChoice as BertForMultipleChoice
    from .models import BertForNextSentencePrediction as BertForNextSentencePrediction
    from .models import BertForPreTraining as BertForPreTraining
    from .models import BertForQuestionAnswering as BertForQuestionAnswering
    from .models import BertForSequenceClassification as BertForSequenceClassification
    from .models import BertForTokenClassification as BertForTokenClassification
    from .models import BertModel as BertModel
    from .models.elmo import ElmoForPreTraining as ElmoForPreTraining
    from .models.elmo import ElmoModel as ElmoModel
    from .models.gpt import GPTForPreTraining as GPTForPreTraining
    from .models.gpt import GPTModel as GPTModel
    from .modules.encoder import BertEncoder as BertEncoder
    from .modules.quantized import quantize as quantize
    from .ops import backend as backend
    from .ops import batch_invariant as batch_invariant
    from .ops import cuda_graphs as cuda_graphs
    from .packing import PackedBatch as PackedBatch

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
    "cuda_graphs": "ops",
    "environment": "_environment",
}
_SUBMODULES = ("ops", "optim", "packing", "errors", "data", "models", "tasks", "train")

__all__ = ["__version__", *_LAZY, *_SUBMODULES]


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'fastbert' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
