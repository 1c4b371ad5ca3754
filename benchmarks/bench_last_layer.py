"""What a classifier gains if its last layer computes only the pooled tokens: with and without, in turn.

    python benchmarks/bench_last_layer.py --size base
    python benchmarks/bench_last_layer.py --size 6x384 --training

Prints the median of the rounds' ratios of the processor's time (with / without) and their spread; in evaluation also
whether the logits have the same bits; in training (with --training: forward and backward pass, with dropout) the
relative differences of the losses and of the norm of all gradients.
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
from fastbert import rng
from fastbert.bench.turns import timed_in_turn

EVALUATION = {"1 x 24": [24], "16 of 8 to 68": [8, 12, 17, 23, 31, 40, 57, 68] * 2}
TRAINING = {
    "32 of 7 to 17 (CoLA)": [7, 8, 9, 11, 12, 13, 14, 17] * 4,
    "32 of 34 to 70 (MRPC)": [34, 45, 52, 53, 54, 57, 59, 70] * 4,
}


@contextmanager
def whole_layers() -> Iterator[None]:
    with mock.patch.object(fastbert.BertModel, "last_layer_is_unseen", return_value=False):
        yield


def evaluate(model, batch: fastbert.PackedBatch) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(batch).logits]


def train(model, batch: fastbert.PackedBatch) -> list[torch.Tensor]:
    """The loss and all gradients."""
    model.zero_grad()
    with rng.use(rng.DropoutKey(1, 2)):
        loss = model(batch, labels=torch.arange(len(batch.cu_seqlens) - 1) % 2).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> str:
    if all(map(torch.equal, a, b)):
        return "the same bits"
    if len(a) == 1:
        return "OTHER BITS"
    loss, *gradients = zip(a, b, strict=True)
    # Together: the gradients of keys' biases are zero but for rounding.
    off = sum(float((x - y).square().sum()) for x, y in gradients) / sum(float(y.square().sum()) for _, y in gradients)
    return f"loss off by {abs(float(loss[0] / loss[1]) - 1):.1e}, gradients by {off**0.5:.1e}"


def compare(name: str, step, model, lengths: list[int], rounds: int) -> None:
    batch = fastbert.PackedBatch.from_sequences([torch.randint(1000, 2000, (n,)) for n in lengths])
    results: dict[str, list[torch.Tensor]] = {}

    def run(way: str, mode) -> None:
        with mode():
            results[way] = step(model, batch)

    modes = {"with": nullcontext, "without": whole_layers}
    calls = {way: lambda way=way, mode=mode: run(way, mode) for way, mode in modes.items()}
    took = timed_in_turn(calls, rounds, warm=2, clock=time.process_time)
    ratios = [a / b for a, b in zip(took["with"], took["without"], strict=True)]
    spread = f"[{min(ratios):.2f}-{max(ratios):.2f}]"
    print(f"{name}: {statistics.median(ratios):.3f} {spread}, {difference(results['with'], results['without'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="base", help="a named size, as base or 6x384")
    parser.add_argument("--training", action="store_true", help="forward and backward passes instead of evaluation")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.size}, {args.threads} threads, {args.rounds} rounds")
    for precision in ("fp32",) if args.training else ("fp32", "int8"):
        torch.manual_seed(0)
        model = fastbert.BertForSequenceClassification(fastbert.BertConfig.from_name(args.size)).train(args.training)
        model = fastbert.quantize(model) if precision == "int8" else model
        step, batches = (train, TRAINING) if args.training else (evaluate, EVALUATION)
        for name, lengths in batches.items():
            compare(f"{precision}, {name} tokens", step, model, lengths, args.rounds)


if __name__ == "__main__":
    main()
