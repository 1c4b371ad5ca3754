"""What `fastbert.batch_invariant` costs: the same batches with and without it, in turn.

    python benchmarks/bench_batch_invariant.py --rounds 20

Prints the median of the rounds' ratios of time (with / without) and their spread: a model without and with gradients
recorded, with a masked-LM head for every token, and on the reference backend.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics

import torch

import fastbert
from fastbert.bench.turns import timed_in_turn


def batch_of(lengths: list[int], vocabulary: int) -> fastbert.PackedBatch:
    generator = torch.Generator().manual_seed(0)
    return fastbert.PackedBatch.from_sequences(
        [torch.randint(0, vocabulary, (n,), generator=generator) for n in lengths]
    )


def run(model, batch, mode) -> None:
    with mode():
        model(batch)


def ratios(model, batch, rounds: int) -> list[float]:
    """Time with the mode over time without, a number a round; which of the two goes first alternates."""
    modes = {"without": contextlib.nullcontext, "with": fastbert.batch_invariant}
    calls = {name: lambda mode=mode: run(model, batch, mode) for name, mode in modes.items()}
    took = timed_in_turn(calls, rounds, warm=2)
    return [within / without for within, without in zip(took["with"], took["without"], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="4x256", help="a named size, as base or 6x384")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = fastbert.BertConfig.from_name(args.size)
    lengths = [8, 12, 17, 23, 31, 40, 57, 68]
    batch = batch_of(lengths, config.vocab_size)
    print(
        f"{args.size}, {sum(lengths)} tokens in {len(lengths)} sequences, {args.threads} threads, {args.rounds} rounds"
    )
    rows = (
        ("BertModel, no gradient", "BertModel", "auto", False, args.rounds),
        ("BertModel, gradients recorded", "BertModel", "auto", True, args.rounds),
        ("BertForMaskedLM, all logits", "BertForMaskedLM", "auto", False, args.rounds),
        ("BertModel, reference backend", "BertModel", "reference", False, max(args.rounds // 5, 2)),
    )
    for what, name, backend, gradients, rounds in rows:
        model = getattr(fastbert, name)(config).eval()
        with torch.set_grad_enabled(gradients), fastbert.backend(backend):
            found = sorted(ratios(model, batch, rounds))
        low, high = found[len(found) // 5], found[-1 - len(found) // 5]
        print(f"{what:32} with / without {statistics.median(found):.2f} [{low:.2f}-{high:.2f}]")


if __name__ == "__main__":
    main()
