"""``fastbert pretrain``: masked LM and next-sentence prediction on prepared data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ..train.config import PretrainConfig


@dataclass(kw_only=True)
class Pretrain(PretrainConfig):
    """Pre-trains a BERT on the shards that `fastbert prepare` made; Ctrl-C saves, --resume auto goes on.

    OUT holds config.yaml, metrics.jsonl, tensorboard/, checkpoints/, loss.png and model/, a Hugging Face directory of
    the model with the least held-out loss.

    Example:
        fastbert pretrain --data DATA --model 4x256 --steps 10000 --lr 5e-4 --out RUN
        fastbert pretrain --config RUN/config.yaml --resume auto
    """

    config: Annotated[Path | None, arg(metavar="FILE")] = None
    """A YAML file of options; those given on the command line win."""

    def __post_init__(self) -> None:
        """Options are checked in `run`: tyro would wrap the sentence in a box of its own."""


def defaults(argv: Sequence[str]) -> Pretrain | None:
    """What options are that the command line does not give: those of the file of --config, if it names one."""
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == "--config" and (equals or position + 1 < len(argv)):
            path = Path(value if equals else argv[position + 1])
            base = PretrainConfig.from_yaml(path)
            return Pretrain(**{f.name: getattr(base, f.name) for f in fields(PretrainConfig)}, config=path)
    return None


def run(args: Pretrain) -> None:
    config = PretrainConfig(**{f.name: getattr(args, f.name) for f in fields(PretrainConfig)})
    from ..train.pretrain import pretrain

    result = pretrain(config)
    if result.interrupted:
        print(f"stopped by {result.interrupted} after step {result.steps}; go on with --resume auto")
    minutes = result.seconds / 60
    print(f"{result.steps} steps, {result.tokens:,} tokens in {minutes:.1f} minutes")
    for path in result.paths:
        print(path)
