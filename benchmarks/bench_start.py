"""What a process takes to give its first sentence vector, and the memory that it then holds, beside other libraries.

    python benchmarks/bench_start.py                 # BERT-base with random weights, and all-MiniLM-L6-v2's vocabulary
    python benchmarks/bench_start.py --model DIR --rounds 5 --threads 2

Every row is a process of its own, started in turn with the others: seconds until the library is imported, until the
model is read (and quantised), and until the first sentence has its vector; then, after batches of 32 sentences, the
memory of the process alone and the files that it has mapped, which processes share (Linux). Medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VARIANTS = ("fastbert fp32", "fastbert bf16", "fastbert int8", "transformers fp32", "sentence-transformers fp32")
SENTENCES = ["one sentence of a few words", "another", "and one that is a little longer than the two before it"] * 11


def base_model(directory: Path) -> Path:
    """A directory of BERT-base with random weights."""
    import fastbert
    from fastbert.bench.models import minilm

    fastbert.BertModel(fastbert.BertConfig.base()).save_pretrained(directory)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((minilm() / name).read_bytes())
    return directory


def encoder(variant: str, directory: str):
    """Yields after the import, and then a function from texts to vectors."""
    library, precision = variant.split()
    if library == "fastbert":
        from fastbert import SentenceEncoder

        yield
        yield SentenceEncoder.from_pretrained(directory, precision=precision).encode
    elif library == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        yield
        yield SentenceTransformer(directory, device="cpu").encode
    else:
        import torch
        from transformers import AutoModel, AutoTokenizer

        yield
        tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()

        def encode(texts: list[str]):
            batch = tokenizer(texts, padding=True, return_tensors="pt")
            with torch.inference_mode():
                states, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            return (states * mask).sum(1) / mask.sum(1)

        yield encode


def child(variant: str, directory: str, started: float) -> None:
    steps, seconds = encoder(variant, directory), {}
    next(steps)
    seconds["import"] = time.time() - started
    encode = next(steps)
    seconds["read"] = time.time() - started
    encode(SENTENCES[:1])
    seconds["vector"] = time.time() - started
    for _ in range(5):
        encode(SENTENCES[:32])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = {name: int(status[of].split()[0]) / 1024 for name, of in (("own", "RssAnon"), ("files", "RssFile"))}
    print(json.dumps(seconds | memory))


def start(variant: str, directory: Path, threads: int) -> dict[str, float]:
    """What the process of a variant says of itself."""
    command = [sys.executable, __file__, "--child", variant, str(directory), str(time.time())]
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"error: {variant}: {run.stderr.strip().splitlines()[-1]}")
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model directory with a tokenizer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(*args.child[:2], float(args.child[2]))
    from fastbert.bench.turns import in_turn  # not for the children, whose imports are timed

    with tempfile.TemporaryDirectory() as folder:
        directory = args.model or base_model(Path(folder))
        starts = {variant: lambda variant=variant: start(variant, directory, args.threads) for variant in VARIANTS}
        rows = in_turn(starts, args.rounds)
        print("seconds until              imported   read   vector     memory of its own   mapped files")
        for variant, taken in rows.items():
            of = {name: statistics.median(run[name] for run in taken) for name in taken[0]}
            times = f"{of['import']:8.2f} {of['read']:6.2f} {of['vector']:8.2f}"
            print(f"{variant:26} {times} {of['own']:17.0f} MiB {of['files']:10.0f} MiB")


if __name__ == "__main__":
    main()
