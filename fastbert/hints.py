"""Ends of an error's sentence, where what was named is likely to be something else than was meant."""

from __future__ import annotations

import os
from pathlib import Path

# What files of weights are called, and how those begin or end that trainers and adapters leave beside them.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".index")
_BESIDE = ("adapter_model.", "optimizer.", "rng_state", "scaler.", "scheduler.", "training_args.")
_OPTIMIZER = "optim_states.pt"


def download_hint(path: str | os.PathLike) -> str:
    """The end of an error's sentence where the model named is not on this machine: a hub's name, most likely."""
    if Path(path).exists():
        return ""
    return "; models are not downloaded: `hf download NAME --local-dir DIR` fetches one from the hub, then give DIR"


def run_hint(directory: str | os.PathLike) -> str:
    """The end of an error's sentence where a run's directory was named in place of its model's."""
    model = Path(directory) / "model"
    return f"; the model of this run is {model}" if (model / "config.json").is_file() else ""


def adapter_hint(directory: str | os.PathLike) -> str:
    """The end of an error's sentence where a directory holds a PEFT adapter, weights that belong to another model."""
    if not (Path(directory) / "adapter_config.json").is_file():
        return ""
    return (
        "; it holds a PEFT adapter: load it onto its model with peft, and save what `merge_and_unload()` gives with "
        "`save_pretrained`"
    )


def is_weights(path: str | os.PathLike) -> bool:
    """Whether a file is called as files of weights are."""
    return Path(path).suffix in _WEIGHTS and Path(path).is_file()


def checkpoint_hint(directory: str | os.PathLike) -> str:
    """The end of an error's sentence where a directory holds a file of weights under another name, or DeepSpeed's
    checkpoints: the newest may be what was meant."""
    home = Path(directory)
    files = [path for path in (*home.glob("*"), *home.glob("global_step*/mp_rank_*")) if is_weights(path)]
    found = [path for path in files if not path.name.startswith(_BESIDE)]
    found = [path for path in found if not path.name.endswith(_OPTIMIZER)]
    if not found:
        return ""
    newest = max(found, key=lambda path: (path.stat().st_mtime, path.name))
    return f"; `fastbert convert {newest} NEW` makes a model directory of that file, if it holds a model"
