"""Hints to append to an error message if the user has probably named the wrong thing; "" if there is none."""

from __future__ import annotations

import os
from pathlib import Path

# The suffixes of files of weights, and how the names of other such files begin or end, left by trainers and adapters.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".index")
_BESIDE = ("adapter_model.", "optimizer.", "rng_state", "scaler.", "scheduler.", "training_args.")
_OPTIMIZER = "optim_states.pt"
_VOCABULARIES = ("vocab.txt", "tokenizer.json")


def download_hint(path: str | os.PathLike) -> str:
    """A hint for a model that is not on this machine: most likely a name on a hub."""
    if Path(path).exists():
        return ""
    return "; models are not downloaded: `hf download NAME --local-dir DIR` fetches one from the hub, then give DIR"


def run_hint(directory: str | os.PathLike) -> str:
    """A hint for a run's directory that was given in place of the model's inside it."""
    model = Path(directory) / "model"
    return f"; the model of this run is {model}" if (model / "config.json").is_file() else ""


def inner_hint(directory: str | os.PathLike) -> str:
    """A hint for a directory around that of a model: where an archive was unpacked, or a hub's cache
    (``models--OWNER--NAME``), which has a directory for each revision."""
    found = set()
    for name in ("config.json", "bert_config.json"):
        for place in ("*", "snapshots/*"):
            found |= {path.parent for path in Path(directory).glob(f"{place}/{name}")}
    # Other directories have a config.json too, such as sentence-transformers' 1_Pooling.
    models = sorted(str(path) for path in found if any((path / name).is_file() for name in _VOCABULARIES))
    if not models:
        return ""
    return f"; the model is in {models[0]}" if len(models) == 1 else f"; models are in {', '.join(models[:5])}"


def adapter_hint(directory: str | os.PathLike) -> str:
    """A hint for a directory that holds a PEFT adapter, whose weights belong to another model."""
    if not (Path(directory) / "adapter_config.json").is_file():
        return ""
    return (
        "; it holds a PEFT adapter: load it onto its model with peft, and save what `merge_and_unload()` gives with "
        "`save_pretrained`"
    )


def is_weights(path: str | os.PathLike) -> bool:
    """Whether it is a file with the suffix of a file of weights, or a TensorFlow checkpoint, whose files have longer
    names."""
    return (Path(path).suffix in _WEIGHTS and Path(path).is_file()) or Path(f"{path}.index").is_file()


def checkpoint_hint(directory: str | os.PathLike) -> str:
    """A hint for a directory that holds files of weights under other names, or DeepSpeed's checkpoints: the newest one
    is probably meant."""
    home = Path(directory)
    files = [path for path in (*home.glob("*"), *home.glob("global_step*/mp_rank_*")) if is_weights(path)]
    found = [path for path in files if not path.name.startswith(_BESIDE)]
    found = [path for path in found if not path.name.endswith(_OPTIMIZER)]
    if not found:
        return ""
    newest = max(found, key=lambda path: (path.stat().st_mtime, path.name))
    return f"; `fastbert convert {newest} NEW` makes a model directory of that file, if it holds a model"
