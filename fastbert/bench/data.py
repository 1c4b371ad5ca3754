"""Throughput of `prepare` against the tokenizers library alone, and memory against the size of the corpus.

The corpus is repeated to the requested size. Each round runs, in separate processes one after the other:
`tokenizers.Tokenizer.encode_batch` and `encode_batch_fast` over the corpus's lines, which are already in memory and
whose ids are discarded, and `prepare`, which reads, segments, encodes, writes and hashes. The library has as many
threads as `prepare` has processes. The ratio is that of the medians over rounds of the text's bytes per second;
starting Python and loading the vocabulary are not counted for either. Peak memory is measured for a tenth of the corpus
and for all of it, with shards small enough that both fill several.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import DataError
from ..hardware import peak_memory_mib
from .pool import module_command
from .scratch import scratch
from .turns import in_turn

PEERS = ("encode_batch", "encode_batch_fast")


def _plain_text(source: Path, size: int) -> bytes:
    """A corpus in any form that `prepare` reads, as plain text; of a large one only the first `size` bytes or more."""
    from ..data.corpus import read_raw_documents

    if source.is_file() and not source.stat().st_size:
        raise DataError(f"{source}: expected text to repeat, got an empty file")
    text = bytearray()
    for document in read_raw_documents([source]):
        text += "\n".join(document.lines).encode() + b"\n\n"
        if len(text) >= size:
            break
    return bytes(text)


def _make_corpus(source: Path, target: Path, size: int) -> int:
    """Repeats a corpus as plain text up to `size` bytes, with a blank line between documents; returns the bytes
    written."""
    text = _plain_text(source, size)
    with open(target, "wb") as file:
        while (left := size - file.tell()) > len(text):
            file.write(text)
        file.write(text[:left].rpartition(b"\n")[0] + b"\n")
        return file.tell()


def _run_tokenizers(corpus: Path, vocab: Path, method: str) -> dict:
    """Times only the library, in batches that fit in memory."""
    from ..data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    lines = [line for line in corpus.read_text(encoding="utf-8").split("\n") if line]
    encode = getattr(tokenizer, method)
    encode(lines[:100])
    start = time.perf_counter()
    for first in range(0, len(lines), 10_000):
        encode(lines[first : first + 10_000], add_special_tokens=False)
    return {"seconds": time.perf_counter() - start}


def _run_prepare(corpus: Path, vocab: Path, threads: int, shard_tokens: int) -> dict:
    """Times `prepare` and measures the peak of its process and of the largest of its workers."""
    from ..data.prepare import prepare
    from ..data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    with tempfile.TemporaryDirectory(dir=corpus.parent) as directory:
        start = time.perf_counter()
        manifest = prepare(corpus, tokenizer, Path(directory) / "data", num_workers=threads, shard_tokens=shard_tokens)
        seconds = time.perf_counter() - start
    # Not this process's ru_maxrss, which begins with the memory of the process that started it.
    peaks = [peak_memory_mib(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024]
    return {"seconds": seconds, "peak_mb": peaks, "tokens": manifest.counts["train"]["tokens"]}


def measure(what: str, corpus: Path, vocab: Path, threads: int, shard_tokens: int = 1 << 24) -> dict:
    """Runs one measurement in a separate process."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
        "PYTHONPATH": paths,
    }
    command = [*module_command("fastbert.bench.data"), what, str(corpus), str(vocab), str(threads), str(shard_tokens)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    if answer.returncode:
        raise DataError(f"{what} failed on {corpus.name}: {(answer.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(answer.stdout)


def compare(corpus: Path, size: int, vocab: Path, threads: int, rounds: int, say: Callable[[str], None]) -> list[dict]:
    """Measures in turn, in several rounds; returns a row with medians and ratios for each way of tokenising."""

    def rate(name: str) -> float:
        found = size / 1e6 / measure(name, corpus, vocab, threads)["seconds"]
        say(f"{name} {found:.2f} MB/s")
        return found

    rates = in_turn({name: lambda name=name: rate(name) for name in (*PEERS, "prepare")}, rounds)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return [
        {
            "what": f"tokenizers {name}" if name in PEERS else f"fastbert {name}",
            "mb": size / 1e6,
            "threads": threads,
            "rounds": rounds,
            "mb_per_s": median,
            "prepare_ratio": medians["prepare"] / median,
        }
        for name, median in medians.items()
    ]


def _compare_memory(corpus: Path, size: int, vocab: Path, threads: int, say: Callable[[str], None]) -> list[dict]:
    """Peak memory on a tenth of the corpus and on all of it."""
    small = corpus.with_name("tenth.txt")
    small_size = _make_corpus(corpus, small, size // 10)
    shard_tokens = max(1000, size // 200)  # about 5 tokens in 20 bytes: several shards from the tenth already
    rows = []
    for path, length in ((small, small_size), (corpus, size)):
        own, worker = measure("prepare", path, vocab, threads, shard_tokens)["peak_mb"]
        say(f"peak memory on {length / 1e6:.1f} MB: {own:.0f} MB, largest worker {worker:.0f} MB")
        rows.append({"mb": length / 1e6, "peak_mb": own, "largest_worker_mb": worker})
    return rows


def builtin(directory: Path) -> tuple[Path, Path]:
    """The built-in corpus as a file, and a vocabulary of BERT's size trained on it."""
    from ..data.builtin_corpus import documents
    from ..data.tokenizer import save_vocab, train_wordpiece

    corpus, vocab = directory / "builtin.txt", directory / "vocab.txt"
    texts = ["\n".join(sentences) for _, sentences in documents()]
    corpus.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    save_vocab(train_wordpiece(iter(texts), 30522), vocab)
    return corpus, vocab


def run(
    corpus: Path | None,
    vocab: Path | None,
    mb: float,
    threads: int,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, list[dict]]:
    """Measures throughput and memory on a corpus, by default the built-in one, repeated to ``mb`` megabytes."""
    with scratch() as directory:
        if corpus is None or vocab is None:
            own_corpus, own_vocab = builtin(directory)
            corpus, vocab = corpus or own_corpus, vocab or own_vocab
        repeated = directory / "corpus.txt"
        size = _make_corpus(corpus, repeated, int(mb * 1e6))
        return {
            "data": compare(repeated, size, vocab, threads, rounds, say),
            "data_memory": _compare_memory(repeated, size, vocab, threads, say),
        }


def main() -> None:
    """One measurement, for `measure`."""
    what, corpus, vocab, threads, shard_tokens = sys.argv[1:]
    if what == "prepare":
        answer = _run_prepare(Path(corpus), Path(vocab), int(threads), int(shard_tokens))
    else:
        answer = _run_tokenizers(Path(corpus), Path(vocab), what)
    print(json.dumps(answer))
