"""Throughput of `prepare` against the tokenizers library alone, and memory against the size of the corpus.

    python benchmarks/bench_data.py --corpus books.txt --vocab vocab.txt --mb 100 --rounds 3

The corpus is repeated to the size asked for. Each round runs, in processes of their own and one after the other:
`tokenizers.Tokenizer.encode_batch` and `encode_batch_fast` over the corpus's lines, which are in memory already and
whose ids are thrown away, and `prepare`, which reads, cuts into sentences, encodes, writes and hashes. Threads of the
one = processes of the other. The ratio is of medians over rounds, of the text's bytes per second; starting Python and
loading the vocabulary are not counted for either.
Peak memory is that of a tenth of the corpus and of the whole, with shards small enough that both fill several.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = ("encode_batch", "encode_batch_fast")


def make_corpus(source: Path, target: Path, size: int) -> int:
    """Repeats a corpus up to `size` bytes, with a blank line between copies; returns the bytes written."""
    text = source.read_bytes().strip() + b"\n\n"
    with open(target, "wb") as file:
        while (left := size - file.tell()) > len(text):
            file.write(text)
        file.write(text[:left].rpartition(b"\n")[0] + b"\n")
        return file.tell()


def run_tokenizers(corpus: Path, vocab: Path, method: str) -> dict:
    """Times the library alone, in batches that fit in memory."""
    from fastbert.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    lines = [line for line in corpus.read_text(encoding="utf-8").split("\n") if line]
    encode = getattr(tokenizer, method)
    encode(lines[:100])
    start = time.perf_counter()
    for first in range(0, len(lines), 10_000):
        encode(lines[first : first + 10_000], add_special_tokens=False)
    return {"seconds": time.perf_counter() - start}


def run_prepare(corpus: Path, vocab: Path, threads: int, shard_tokens: int) -> dict:
    """Times `prepare` and measures the peak of its process and of the largest of its workers."""
    from fastbert.data.prepare import prepare
    from fastbert.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    with tempfile.TemporaryDirectory(dir=corpus.parent) as directory:
        start = time.perf_counter()
        manifest = prepare(corpus, tokenizer, Path(directory) / "data", num_workers=threads, shard_tokens=shard_tokens)
        seconds = time.perf_counter() - start
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"seconds": seconds, "peak_mb": peaks, "tokens": manifest.counts["train"]["tokens"]}


def measure(what: str, corpus: Path, args: argparse.Namespace, shard_tokens: int = 1 << 24) -> dict:
    """Runs one measurement in a process of its own."""
    environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, __file__, "--corpus", str(corpus), "--vocab", str(args.vocab), "--only", what]
    command += ["--threads", str(args.threads), "--shard-tokens", str(shard_tokens)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(answer.stdout)


def compare(corpus: Path, size: int, args: argparse.Namespace) -> None:
    """Interleaved rounds, medians, ratios."""
    rates = {name: [] for name in (*PEERS, "prepare")}
    for number in range(1, args.rounds + 1):
        for name, found in rates.items():
            found.append(size / 1e6 / measure(name, corpus, args)["seconds"])
        print(
            f"round {number}: " + ", ".join(f"{name} {found[-1]:.2f} MB/s" for name, found in rates.items()), flush=True
        )
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(f"{size / 1e6:.0f} MB, {args.threads} threads, median of {args.rounds}:")
    for name, median in medians.items():
        print(f"  {name:<18} {median:6.2f} MB/s")
    for name in PEERS:
        print(f"  prepare / {name}: {100 * medians['prepare'] / medians[name]:.0f} %")


def compare_memory(corpus: Path, size: int, args: argparse.Namespace) -> None:
    """Peak memory on a tenth of the corpus and on all of it."""
    small = corpus.with_name("tenth.txt")
    small_size = make_corpus(args.corpus, small, size // 10)
    shard_tokens = size // 200  # about 5 tokens in 20 bytes: several shards from the tenth already
    for path, length in ((small, small_size), (corpus, size)):
        own, worker = measure("prepare", path, args, shard_tokens)["peak_mb"]
        print(f"peak memory on {length / 1e6:.1f} MB: {own:.0f} MB, largest worker {worker:.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--shard-tokens", type=int, default=1 << 24)
    parser.add_argument("--only", choices=[*PEERS, "prepare"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only == "prepare":
        print(json.dumps(run_prepare(args.corpus, args.vocab, args.threads, args.shard_tokens)))
    elif args.only:
        print(json.dumps(run_tokenizers(args.corpus, args.vocab, args.only)))
    else:
        with tempfile.TemporaryDirectory() as directory:
            corpus = Path(directory) / "corpus.txt"
            size = make_corpus(args.corpus, corpus, int(args.mb * 1e6))
            compare(corpus, size, args)
            compare_memory(corpus, size, args)


if __name__ == "__main__":
    main()
