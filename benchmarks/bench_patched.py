"""Encoders of transformers with and without `fastbert.patch`, recorded by autograd or not, and in int8, in turn.

    python benchmarks/bench_patched.py                                  # BERT-base and its kin, 4 x 64, half padding
    python benchmarks/bench_patched.py --sizes 6x384 base --lengths 8   # one short sentence
    python benchmarks/bench_patched.py --sizes 6x384 --lengths 32 --train

Prints medians of milliseconds (processor time, one thread by default), and except in training by how much outputs of
kept tokens differ from transformers' at most. Weights are random: errors of int8 on trained ones are in
docs/quantization.md.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import transformers

import fastbert
from fastbert.bench.turns import timed_in_turn

# The defaults are those of the largest ALBERT.
ALBERT_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
KIN = {
    "bert": (transformers.BertModel, transformers.BertConfig),
    "roberta": (transformers.RobertaModel, transformers.RobertaConfig),
    "distilbert": (transformers.DistilBertModel, transformers.DistilBertConfig),
    "albert": (transformers.AlbertModel, partial(transformers.AlbertConfig, **ALBERT_BASE)),
    "mpnet": (transformers.MPNetModel, transformers.MPNetConfig),
    "electra": (transformers.ElectraModel, transformers.ElectraConfig),
}


def model_of(name: str) -> torch.nn.Module:
    """A family's model of its usual size, or a BERT of a named size."""
    torch.manual_seed(0)
    if name in KIN:
        cls, config = KIN[name]
        return cls(config()).eval()
    size = fastbert.BertConfig.from_name(name)
    fields = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return transformers.BertModel(transformers.BertConfig(**{field: getattr(size, field) for field in fields})).eval()


def batch_of(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, S) ids, and which of them are kept."""
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(1000, 2000, keep.shape, generator=torch.Generator().manual_seed(0)), keep


def passes(name: str, ids: torch.Tensor, keep: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """A pass of each kind."""
    theirs = model_of(name)
    patched = fastbert.patch(copy.deepcopy(theirs))
    trained = copy.deepcopy(patched)
    int8 = fastbert.quantize(copy.deepcopy(patched))

    def run(model: torch.nn.Module, records: bool) -> Callable[[], torch.Tensor]:
        def once() -> torch.Tensor:
            with torch.set_grad_enabled(records):
                return model(ids, attention_mask=keep.long()).last_hidden_state

        return once

    run(trained, True)().sum().backward()  # from now on it is recorded layer by layer
    return {
        "transformers": run(theirs, False),
        "transformers, recorded": run(theirs, True),
        "patched": run(patched, False),
        "patched, recorded": run(patched, True),
        "patched, recorded, after a backward pass": run(trained, True),
        "patched, int8": run(int8, False),
    }


def training_steps(name: str, ids: torch.Tensor, keep: torch.Tensor) -> dict[str, Callable[[], None]]:
    """Forward, with dropout, and backward."""

    def step(model: torch.nn.Module) -> Callable[[], None]:
        def once() -> None:
            model.zero_grad()
            model(ids, attention_mask=keep.long()).last_hidden_state.square().mean().backward()

        return once

    theirs = model_of(name).train()
    return {"transformers, trained": step(theirs), "patched, trained": step(fastbert.patch(copy.deepcopy(theirs)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=list(KIN), help=f"{', '.join(KIN)}, or sizes such as 6x384")
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 40, 20, 4], help="tokens of each sequence")
    parser.add_argument("--train", action="store_true", help="forward and backward, with dropout: no differences")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ids, keep = batch_of(args.lengths)
    for name in args.sizes:
        functions = (training_steps if args.train else passes)(name, ids, keep)
        took = timed_in_turn(functions, args.rounds, warm=2, clock=time.process_time)
        print(f"{name}, sequences of {', '.join(map(str, args.lengths))} tokens")
        for kind, seconds in took.items():
            line = f"  {kind:42}{1e3 * statistics.median(seconds):8.1f} ms"
            if not args.train:
                difference = functions[kind]()[keep] - functions["transformers"]()[keep]
                line += f"   largest difference {float(difference.detach().abs().max()):.1e}"
            print(line)


if __name__ == "__main__":
    main()
