"""Training throughput of several gloo processes beside one process with as many threads in all, on the same cores.

    python benchmarks/bench_distributed.py --rounds 9                       # 2 x 1 thread against 1 x 2, ZeRO-1
    python benchmarks/bench_distributed.py --model 2x64 --tokens 512 --steps 3 --rounds 3       # a rehearsal
    python benchmarks/bench_distributed.py --engine ddp --optimizer lamb

Both sides take the same steps: the same micro-batches, of which each process computes its share. All processes stay up
and are warm; each round lets one side take its steps and then the other, and the ratio is that of the round. The losses
of both sides are printed: they have to agree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import ranks
import torch


def batch_of(tokens: int, seqlen: int, vocabulary: int, seed: int):
    """Full sequences of random tokens, 15 % of them labelled."""
    from fastbert.packing import PackedBatch

    generator = torch.Generator().manual_seed(seed)
    count = max(tokens // seqlen, 1)
    total = count * seqlen
    labelled = torch.randperm(total, generator=generator)[: round(0.15 * total)].sort().values
    return PackedBatch(
        input_ids=torch.randint(vocabulary, (total,), generator=generator),
        token_type_ids=torch.zeros(total, dtype=torch.int64),
        position_ids=torch.arange(seqlen).repeat(count),
        cu_seqlens=torch.arange(count + 1, dtype=torch.int32) * seqlen,
        max_seqlen=seqlen,
        mlm_positions=labelled,
        mlm_labels=torch.randint(vocabulary, (len(labelled),), generator=generator),
        nsp_labels=torch.randint(2, (count,), generator=generator),
    )


def work(options: argparse.Namespace) -> None:
    """One process: for each line "N" on stdin takes N steps and answers with seconds and loss."""
    from fastbert import BertConfig, BertForPreTraining
    from fastbert.optim import AdamW, Lamb, param_groups
    from fastbert.train import distributed, engines
    from fastbert.train.deepspeed_options import DeepSpeedOptions
    from fastbert.train.engines.deepspeed_config import configuration

    torch.set_num_threads(options.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed prints
    zero = None if options.engine == "ddp" else int(options.engine.removeprefix("zero"))
    with distributed.joined() as world:
        config = BertConfig.from_name(options.model, vocab_size=options.vocabulary)
        config.max_position_embeddings = max(config.max_position_embeddings, options.seqlen)
        torch.manual_seed(0)
        model = BertForPreTraining(config).train()
        model.last_layer = "needed"
        kind = Lamb if options.optimizer == "lamb" else AdamW
        optimizer = kind(param_groups(model, 0.01), lr=1e-4)
        several = world.size > 1 and zero is not None
        deepspeed = configuration(DeepSpeedOptions(zero=zero), "fp32", 1.0) if several else None
        engine = engines.make(model, optimizer, world, deepspeed=deepspeed)
        parts = [batch_of(options.tokens, options.seqlen, options.vocabulary, seed) for seed in range(options.micro)]
        own = parts[world.rank :: world.size]
        for line in sys.stdin:
            began, loss = time.perf_counter(), 0.0
            for _ in range(int(line)):
                losses = [
                    engine.backward(lambda b=b: engine.forward(b).loss / len(parts), last=b is own[-1]) for b in own
                ]
                engine.step(1e-4)
                loss = engine.reduce([float(sum(losses))])[0]
            answers.write(json.dumps([time.perf_counter() - began, loss]) + "\n")
            answers.flush()


class Side:
    """Processes that train together, each started with a number of threads."""

    def __init__(self, arguments: list[str], processes: int, threads: int) -> None:
        command = [sys.executable, __file__, "--threads", str(threads), *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.running = [subprocess.Popen(command, env=env, **pipes) for env in ranks.environments(processes, threads)]

    def take(self, steps: int) -> tuple[float, float]:
        """Seconds of the slowest process, and the loss of the last step."""
        for process in self.running:
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.running]
        return max(seconds for seconds, _ in answers), answers[0][1]

    def end(self) -> None:
        for process in self.running:
            process.stdin.close()
        for process in self.running:
            process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="zero1", choices=["zero0", "zero1", "zero2", "zero3", "ddp"])
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "lamb"])
    parser.add_argument("--model", default="4x256")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--seqlen", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=2048, help="in a micro-batch")
    parser.add_argument("--micro", type=int, default=4, help="micro-batches in a step, over all processes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="in a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads is not None:
        work(options)
        return
    sides = {1: Side(sys.argv[1:], 1, options.processes), options.processes: Side(sys.argv[1:], options.processes, 1)}
    try:
        for side in sides.values():
            side.take(2)
        ratios = []
        for number in range(options.rounds):
            order = list(sides) if number % 2 == 0 else list(sides)[::-1]
            took = {processes: sides[processes].take(options.steps) for processes in order}
            (one, loss), (several, other) = took[1], took[options.processes]
            ratios.append(one / several)
            rate = options.steps * options.micro * options.tokens
            print(
                f"round {number + 1}: 1 process {rate / one:,.0f} tokens/s, {options.processes} processes "
                f"{rate / several:,.0f}, ratio {ratios[-1]:.3f}; loss {loss:.5f} and {other:.5f}",
                flush=True,
            )
    finally:
        for side in sides.values():
            side.end()
    print(
        f"{options.engine}, {options.optimizer}, {options.model}: {options.processes} processes x 1 thread have "
        f"{statistics.median(ratios):.3f} times the throughput of 1 process x {options.processes} threads "
        f"(median of {options.rounds} rounds, {min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
