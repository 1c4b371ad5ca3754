"""How time grows with the batch and with the length: flat per token, and quadratic only in attention.

    python benchmarks/bench_scaling.py --model base --threads 2 --rounds 5
    python benchmarks/bench_scaling.py --model 4x256 --dtype int8

First, batches of 1 to 64 full sequences of one length: seconds a token beside those of the largest batch. Then the same
number of tokens as sequences of 128 to 2,048: attention's products are proportional to the length, all else in a layer
is not, so seconds a token should lie on a straight line a + b*S. The line is fitted by least squares; printed are the
share of b*S in the longest, what the counted products make of that share at equal speed, and the largest distance from
the line. All sizes are timed in turn in every round; printed are medians.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import torch

import fastbert
from fastbert.bench.turns import timed_in_turn

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (128, 256, 512, 1024, 2048)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="base", help="a named size, as base or 6x384")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "int8"), default="fp32")
    parser.add_argument("--seqlen", type=int, default=128, help="length in the first part")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a batch in the second part")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def model_of(args: argparse.Namespace) -> fastbert.BertModel:
    torch.manual_seed(0)
    config = fastbert.BertConfig.from_name(args.model, max_position_embeddings=max(LENGTHS))
    model = fastbert.BertModel(config).eval()
    if args.dtype == "bf16":
        return model.bfloat16()
    return fastbert.quantize(model) if args.dtype == "int8" else model


def batch_of(config: fastbert.BertConfig, sequences: int, length: int) -> fastbert.PackedBatch:
    return fastbert.PackedBatch.from_sequences(torch.randint(0, config.vocab_size, (sequences, length)).unbind())


def seconds_per_token(model: fastbert.BertModel, batches: list[fastbert.PackedBatch], rounds: int) -> list[float]:
    """Medians over the rounds; one round more goes before to warm up."""
    calls = {f"batch {number}": lambda batch=batch: model(batch) for number, batch in enumerate(batches)}
    with torch.inference_mode():
        took = timed_in_turn(calls, rounds, warm=1).values()
    return [statistics.median(times) / batch.num_tokens for times, batch in zip(took, batches, strict=True)]


def counted_share(config: fastbert.BertConfig, length: int) -> float:
    """Attention's products, 4SH a token and layer, among all of a layer's: 8H^2 + 4HI and these."""
    hidden, inner = config.hidden_size, config.intermediate_size
    attention = 4 * length * hidden
    return attention / (8 * hidden**2 + 4 * hidden * inner + attention)


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    model = model_of(args)
    config = model.config
    print(f"{args.model} {args.dtype}, {args.threads} threads, {args.rounds} rounds")

    times = seconds_per_token(model, [batch_of(config, n, args.seqlen) for n in BATCHES], args.rounds)
    for size, each in zip(BATCHES, times, strict=True):
        print(f"{size:3} x {args.seqlen}: {1e6 * each:7.1f} us a token, {each / times[-1]:.3f} of the largest batch's")

    lengths = [length for length in LENGTHS if length <= args.tokens]
    times = seconds_per_token(model, [batch_of(config, args.tokens // n, n) for n in lengths], args.rounds)
    slope, constant = np.polyfit(lengths, times, 1)
    for length, each in zip(lengths, times, strict=True):
        line = constant + slope * length
        print(f"S = {length:4}: {1e6 * each:7.1f} us a token, {100 * (each / line - 1):+5.1f} % beside the line")
    share = slope * lengths[-1] / (constant + slope * lengths[-1])
    counted = 100 * counted_share(config, lengths[-1])
    print(f"attention's share at S = {lengths[-1]}: {100 * share:.0f} % of the time, {counted:.0f} % of the products")


if __name__ == "__main__":
    main()
