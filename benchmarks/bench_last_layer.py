"""What a classifier gains in evaluation if its last layer computes only the pooled tokens: with and without, in turn.

    python benchmarks/bench_last_layer.py --size base

Prints the median of the rounds' ratios of the processor's time (with / without), their spread, and whether the logits
have the same bits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch

import fastbert
from fastbert.bench.turns import timed_in_turn


@contextmanager
def whole_layers() -> Iterator[None]:
    with mock.patch.object(fastbert.BertModel, "last_layer_is_unseen", return_value=False):
        yield


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="base", help="a named size, as base or 6x384")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.size}, {args.threads} threads, {args.rounds} rounds")
    for precision in ("fp32", "int8"):
        torch.manual_seed(0)
        model = fastbert.BertForSequenceClassification(fastbert.BertConfig.from_name(args.size)).eval()
        model = fastbert.quantize(model) if precision == "int8" else model
        for name, lengths in {"1 x 24": [24], "16 of 8 to 68": [8, 12, 17, 23, 31, 40, 57, 68] * 2}.items():
            ids = [torch.randint(1000, 2000, (n,)) for n in lengths]
            batch = fastbert.PackedBatch.from_sequences(ids)
            results: dict[str, torch.Tensor] = {}

            def run(way: str, mode, batch=batch, model=model, results=results) -> None:
                with mode():
                    results[way] = model(batch).logits

            modes = {"with": nullcontext, "without": whole_layers}
            calls = {way: lambda way=way, mode=mode, run=run: run(way, mode) for way, mode in modes.items()}
            took = timed_in_turn(calls, args.rounds, warm=2, clock=time.process_time)
            ratios = [a / b for a, b in zip(took["with"], took["without"], strict=True)]
            same = "the same bits" if torch.equal(results["with"], results["without"]) else "OTHER BITS"
            spread = f"[{min(ratios):.2f}-{max(ratios):.2f}]"
            print(f"{precision}, {name} tokens: {statistics.median(ratios):.3f} {spread}, {same}")


if __name__ == "__main__":
    main()
