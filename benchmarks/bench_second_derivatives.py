"""A step with a gradient penalty: a patched model beside the same one of transformers, in turn.

    python benchmarks/bench_second_derivatives.py

The model is a BertModel of random weights whose attention is "eager", which has second derivatives. The penalty is the
squared norm of the gradient of a loss with respect to the word vectors. Prints the medians of the processor's time in
seconds, without the penalty and with it, and the relative difference of all gradients of the step with it.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
import transformers

import fastbert
from fastbert.bench.turns import timed_in_turn

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
LENGTHS = [16 + 3 * n for n in range(16)]


def step(model, ids: torch.Tensor, mask: torch.Tensor, penalty: bool) -> list[torch.Tensor]:
    """The gradients of all parameters that have one."""
    model.zero_grad()
    vectors = model.embeddings.word_embeddings(ids).detach().requires_grad_()
    loss = model(inputs_embeds=vectors, attention_mask=mask).last_hidden_state[:, 0].tanh().sum()
    if penalty:
        (slope,) = torch.autograd.grad(loss, vectors, create_graph=True)
        loss = loss + slope.square().sum()
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(**SIZES, attn_implementation="eager")).eval()
    models = {"fastbert": fastbert.patch(copy.deepcopy(theirs)), "transformers": theirs}
    ids = torch.randint(5, 1000, (len(LENGTHS), max(LENGTHS)))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    print(f"{len(LENGTHS)} texts of {min(LENGTHS)} to {max(LENGTHS)} tokens, {args.threads} threads")
    for penalty in (False, True):
        calls = {name: lambda m=model, p=penalty: step(m, ids, mask, p) for name, model in models.items()}
        took = timed_in_turn(calls, args.rounds, warm=1, clock=time.process_time)
        seconds = {name: statistics.median(times) for name, times in took.items()}
        ratio = statistics.median(b / a for a, b in zip(*(took[name] for name in models), strict=True))
        figures = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
        print(f"{'with' if penalty else 'without'} the penalty: {figures}; {ratio:.2f} times as fast")
    ours, others = (step(model, ids, mask, True) for model in models.values())
    off = sum(float((a - b).square().sum()) for a, b in zip(ours, others, strict=True))
    print(f"gradients differ by {(off / sum(float(b.square().sum()) for b in others)) ** 0.5:.1e}")


if __name__ == "__main__":
    main()
