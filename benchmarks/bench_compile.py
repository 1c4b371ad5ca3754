"""Models as they are and under `torch.compile`: transformers', patched ones, and fastbert's own.

    python benchmarks/bench_compile.py --rounds 7
    python benchmarks/bench_compile.py --rounds 7 --train
    python benchmarks/bench_compile.py --size 6x384 --shapes 1x8        # one short sentence

Every model computes the same padded batches of several shapes in turn. Prints how many graphs were compiled for them,
how often a graph broke, and the median of the rounds' processor time a batch.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
import transformers
from torch._dynamo.utils import counters

import fastbert
from fastbert.bench.turns import in_turn

SHAPES = ("16x48", "16x56", "12x64", "16x40", "8x72", "14x33")


def batch_of(shape: str, vocabulary: int) -> dict[str, torch.Tensor]:
    rows, columns = map(int, shape.split("x"))
    generator = torch.Generator().manual_seed(columns)
    lengths = torch.randint(8, columns + 1, (rows, 1), generator=generator)
    lengths[0] = columns
    mask = (torch.arange(columns) < lengths).long()
    ids = torch.randint(5, vocabulary, (rows, columns), generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask}


def seconds(model, batches, train: bool) -> float:
    """Processor time of a pass over each batch, in training with its gradients."""
    start = time.process_time()
    for batch in batches:
        with torch.set_grad_enabled(train):
            logits = model(**batch).logits
        if train:
            model.zero_grad()
            logits.square().mean().backward()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="4x256", help="a named size, as base or 6x384")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="rows x columns (8 or more) of each batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--train", action="store_true", help="forward and backward, with dropout")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = fastbert.BertConfig.from_name(args.size)
    theirs = transformers.BertForSequenceClassification(transformers.BertConfig(**config.to_dict())).train(args.train)
    own = fastbert.BertForSequenceClassification(config).train(args.train)
    models = {"transformers": theirs, "patched": fastbert.patch(copy.deepcopy(theirs)), "fastbert's own": own}
    batches = [batch_of(shape, config.vocab_size) for shape in args.shapes]
    rows = {}
    for name, model in models.items():
        rows[name] = model
        compiled = rows[f"{name}, compiled"] = torch.compile(copy.deepcopy(model))
        counters.clear()
        begun = time.process_time()
        for _ in range(2):  # in the first a size is taken for a constant, from the second shape on for a variable
            seconds(compiled, batches, args.train)
        graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        took = time.process_time() - begun
        print(f"{name}: {graphs} graphs for {len(batches)} shapes, {breaks} breaks, compiled in {took:.0f} s")
    passes = {name: lambda model=model: seconds(model, batches, args.train) for name, model in rows.items()}
    for name, found in in_turn(passes, args.rounds).items():
        took = [1e3 * each / len(batches) for each in found]
        print(f"{name:26} {statistics.median(took):8.2f} ms a batch  {min(took):.2f}-{max(took):.2f}")


if __name__ == "__main__":
    main()
