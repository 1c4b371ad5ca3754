"""Sentence vectors beside sentence-transformers: the same texts and model, in turn, with the largest difference.

    python benchmarks/bench_encode.py --sentences 10000 --rounds 3
    python benchmarks/bench_encode.py --texts books.txt --sentences 10000 --threads 2 --out encode.json
    python benchmarks/bench_encode.py --sentences 200 --one-by-one --precision bf16 int8
    python benchmarks/bench_encode.py --sentences 2000 --peer-precision bf16 --precision bf16

Without --texts the sentences are random words whose numbers of tokens are log-normal (median 16, one in ten beyond 45),
some of them cut at the model's length. Both sides are timed from texts to vectors in memory, tokenizing included; which
goes first alternates. With --one-by-one every sentence is a call of its own, as a server's queries are, and the figure
is the median of their milliseconds. sentence-transformers computes in float32 with torch, or as --peer-backend and
--peer-precision say. Differences are from its float32 with torch; one of our float32 above 1e-5 is an error: there is
no figure then. On a machine that
others use, --cpu-time counts the seconds that a processor worked for this process, with one thread. --matmul-precision
high is torch's switch by which float32 products may be made of bfloat16 parts (docs/cpu-performance.md), for both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fastbert import SentenceEncoder
from fastbert.bench.models import minilm
from fastbert.bench.turns import in_turn, seconds

LARGEST_DIFFERENCE = 1e-5
# What sentence-transformers imports for a backend; it names each as an extra, such as sentence-transformers[onnx].
NEEDED = {"torch": (), "onnx": ("onnxruntime", "optimum.onnxruntime"), "openvino": ("openvino", "optimum.intel")}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a sentence-transformers directory; all-MiniLM-L6-v2 by default")
    parser.add_argument("--texts", type=Path, help="lines of text to take the sentences from, spread over the file")
    parser.add_argument("--sentences", type=int, help="by default 10,000, of --texts all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch-size", type=int, nargs="*", default=[32, 128], help="sentence-transformers' own")
    parser.add_argument("--peer-backend", choices=tuple(NEEDED), default="torch", help="sentence-transformers' own")
    parser.add_argument("--peer-precision", choices=("fp32", "bf16"), default="fp32", help="bf16 with torch only")
    parser.add_argument("--precision", choices=("bf16", "int8"), nargs="*", default=[], help="further rows of ours")
    parser.add_argument("--matmul-precision", choices=("highest", "high"), default="highest", help="torch's, of both")
    parser.add_argument("--cpu-time", action="store_true", help="the processor's seconds in place of the clock's")
    parser.add_argument("--one-by-one", action="store_true", help="a call for every sentence: milliseconds of each")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time adds up the seconds of all threads: expected --threads 1")
    if args.peer_precision == "bf16" and args.peer_backend != "torch":
        parser.error(f"--peer-precision bf16 is torch's: expected --peer-backend torch, got {args.peer_backend}")
    missing = [name for name in NEEDED[args.peer_backend] if not installed(name)]
    if missing:
        extra = f"pip install 'sentence-transformers[{args.peer_backend}]'"
        parser.error(f"--peer-backend {args.peer_backend} needs {missing[0]}, which is not installed ({extra})")
    return args


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it is a part of is not
        return False


def peer_options(backend: str, precision: str, threads: int) -> dict:
    """Arguments of SentenceTransformer; the other backends do not heed torch's number of threads."""
    if backend == "onnx":
        import onnxruntime

        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = threads
        return {"backend": backend, "model_kwargs": {"session_options": session, "provider": "CPUExecutionProvider"}}
    if backend == "openvino":
        # Where a processor has bfloat16, OpenVINO would choose that by itself.
        config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        return {"backend": backend, "model_kwargs": {"ov_config": config}}
    return {"model_kwargs": {"dtype": torch.bfloat16}} if precision == "bf16" else {}


def sentences(args: argparse.Namespace, directory: Path) -> list[str]:
    draw = random.Random(0)
    if args.texts is not None:
        lines = [line.strip() for line in args.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
        number = len(lines) if args.sentences is None else args.sentences
        if not 1 <= number <= len(lines):
            sys.exit(f"error: {args.texts} has {len(lines)} lines of text, {number} were asked for")
        return draw.sample(lines, number)
    vocabulary = (directory / "vocab.txt").read_text(encoding="utf-8").split()
    words = [word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 2]
    number = 10_000 if args.sentences is None else args.sentences
    lengths = (max(1, round(draw.lognormvariate(2.77, 0.8))) for _ in range(number))
    return [" ".join(draw.choices(words, k=length)) for length in lengths]


def report(name: str, sentences: int, took: list, peer: list | None, error: float | None, one_by_one: bool) -> dict:
    """A row: for every round the seconds of all sentences, or one by one the median of each call's."""
    if one_by_one:
        row = {"name": name, "milliseconds": 1000 * statistics.median(took), "seconds": took}
        line = f"{name:40} {row['milliseconds']:9.2f} ms a sentence"
    else:
        row = {"name": name, "sentences_per_second": sentences / statistics.median(took), "seconds": took}
        line = f"{name:40} {row['sentences_per_second']:9.1f} sentences/s"
    if peer is not None:
        ratios = [theirs / ours for theirs, ours in zip(peer, took, strict=True)]
        row.update(ratio=statistics.median(ratios), ratios=ratios)
        line += f"   {row['ratio']:5.2f}x [{min(ratios):.2f}-{max(ratios):.2f}]"
    if error is not None:
        row["largest_difference"] = error
        line += f"   largest difference {error:.2g}"
    print(line, flush=True)
    return row


def time_round(encode: Callable, texts: list[str], clock: Callable[[], float], one_by_one: bool) -> float:
    """Seconds of all texts at once, or the median of a call for each."""
    calls = [[text] for text in texts] if one_by_one else [texts]
    return statistics.median([seconds(lambda given=given: encode(given), clock) for given in calls])


def main() -> int:
    args = parse()
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    directory = args.model or minilm()
    texts = sentences(args, directory)
    options = peer_options(args.peer_backend, args.peer_precision, args.threads)
    theirs = SentenceTransformer(str(directory), device="cpu", **options)
    kind = "".join(f", {name}" for name in (args.peer_backend, args.peer_precision) if name not in ("torch", "fp32"))
    sides = {}
    for size in args.batch_size:
        name = f"sentence-transformers{kind}, batches of {size}"
        sides[name] = lambda t, size=size: theirs.encode(t, batch_size=size)
    for precision in ("fp32", *args.precision):
        encoder = SentenceEncoder.from_pretrained(directory, precision=precision)
        sides[f"fastbert, {precision}"] = encoder.encode
    tokens = sum(len(row.ids) for row in theirs.tokenizer(texts[:1000])._encodings) / min(len(texts), 1000)
    measure = "processor seconds" if args.cpu_time else "wall seconds"
    setting = f"{args.threads} threads, {args.rounds} rounds, {measure}"
    print(f"{len(texts)} sentences, {tokens:.1f} tokens on average, {setting}")
    vectors = {name: np.asarray(encode(texts)) for name, encode in sides.items()}  # also the warm-up
    true = vectors[next(iter(sides))]
    if options:
        true = SentenceTransformer(str(directory), device="cpu").encode(texts, batch_size=args.batch_size[0])
    errors = {name: float(np.abs(v - true).max()) for name, v in vectors.items()}
    if errors["fastbert, fp32"] > LARGEST_DIFFERENCE:
        sys.exit(f"error: vectors differ by {errors['fastbert, fp32']:.3g}, {LARGEST_DIFFERENCE:g} allowed: no figures")
    clock = time.process_time if args.cpu_time else time.perf_counter
    rounds = {name: lambda e=encode: time_round(e, texts, clock, args.one_by_one) for name, encode in sides.items()}
    took = in_turn(rounds, args.rounds)
    # Held to the quicker of the peer's batch sizes.
    peers = [name for name in sides if name.startswith("sentence-transformers")]
    best = min(peers, key=lambda name: statistics.median(took[name]))
    count = len(texts)
    rows = [report(name, count, took[name], None, errors[name] if options else None, args.one_by_one) for name in peers]
    ours = [name for name in sides if name not in peers]
    rows += [report(name, count, took[name], took[best], errors[name], args.one_by_one) for name in ours]
    if args.out:
        args.out.write_text(json.dumps({"sentences": len(texts), "threads": args.threads, "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
