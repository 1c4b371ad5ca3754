"""``fastbert convert``: converts a model from one published format to another."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ..wording import counted
from ._paths import InputPath, OutputPath


@dataclass
class Convert:
    """Converts a model between TensorFlow 1 checkpoints, PyTorch pickles, safetensors directories and more.

    Example:
        fastbert convert uncased_L-12_H-768_A-12 bert-base
        fastbert convert bert-base bert.onnx --to onnx
    """

    src: Positional[Annotated[InputPath, arg(metavar="SRC")]]
    """A model or run directory, a TensorFlow checkpoint (bert_model.ckpt), or a file of weights."""
    dst: Positional[Annotated[OutputPath, arg(metavar="DST")]]
    """The directory to write; for onnx, the file."""
    to: Literal["safetensors", "pickle", "tf1", "onnx", "sentence-transformers"] = "safetensors"
    """The format to write."""
    config: Annotated[InputPath | None, arg(metavar="FILE")] = None
    """config.json or bert_config.json, if it is not beside the weights."""


def run(args: Convert) -> None:
    """Converts the model; prints the tensors that were not used on stderr, and the path on stdout."""
    from ..interop.convert import convert
    from ..signals import removed_on_sigterm
    from ..tasks.trained import model_directory

    of_run = (args.src / "model" / "config.json").is_file()
    source = model_directory(args.src) if of_run else args.src
    with removed_on_sigterm():
        found = convert(source, args.dst, to=args.to, config=args.config)
    config = found.model.config
    layers = counted(config.num_hidden_layers, "layer")
    print(f"{type(found.model).__name__}: {layers} of {config.hidden_size}", file=sys.stderr)
    if found.unused:
        shown = ", ".join(found.unused[:5]) + (", ..." if len(found.unused) > 5 else "")
        print(f"not used: {counted(len(found.unused), 'tensor')} ({shown})", file=sys.stderr)
    if found.left_out:
        print(f"left out: {', '.join(found.left_out)}", file=sys.stderr)
    print(args.dst)
