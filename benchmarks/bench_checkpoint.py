"""How fast checkpoints of a BERT with its optimiser are written, what saving costs training, how soon a resume trains.

    python benchmarks/bench_checkpoint.py --model base --rounds 5 --dir /path/on/the/disk
    python benchmarks/bench_checkpoint.py --model 2x128 --rounds 3          # a rehearsal

Three figures:
- rate: a checkpoint's bytes a second beside a plain write and fsync of one file of as many bytes on the same disk, in
  turn, through the page cache and past it (O_DIRECT);
- blocked: the share of a training run for which training stood still, saving in the background and in line;
- resume: seconds from the start of a process to its first step, of `fastbert pretrain --resume auto`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fastbert import BertConfig, BertForPreTraining, optim
from fastbert.data.config import SampleConfig
from fastbert.data.prepare import prepare
from fastbert.data.tokenizer import train_wordpiece
from fastbert.train import checkpoint
from fastbert.train.background_save import BackgroundSave
from fastbert.train.config import PretrainConfig
from fastbert.train.engine import LocalEngine

_RESUME = """
import time
began = time.time()
import sys
from fastbert.train import loop, pretrain
from fastbert.train.config import PretrainConfig
real = loop.PretrainLoop.train_step
def first(self):
    sys.stdout.write(f"{time.time()} {began}\\n"); sys.stdout.flush()
    real(self)
    sys.stdout.write(f"{time.time()}\\n"); sys.stdout.flush()
    raise SystemExit
loop.PretrainLoop.train_step = first
pretrain.pretrain(PretrainConfig.from_yaml(sys.argv[1]), quiet=True)
"""


def tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    moments, _ = checkpoint.optimizer_tensors(optimizer, list(model.named_parameters()))
    return {f"model.{name}": value.data for name, value in model.named_parameters()} | moments


def trained(size: str) -> tuple[BertForPreTraining, LocalEngine]:
    """A model after one step, so that the optimiser has its moments."""
    model = BertForPreTraining(BertConfig.from_name(size)).train()
    engine = LocalEngine(model, optim.AdamW(optim.param_groups(model, 0.01), lr=1e-4))
    step(model, engine, 16)
    return model, engine


def step(model: BertForPreTraining, engine: LocalEngine, tokens: int) -> None:
    ids = torch.randint(1000, 2000, (max(tokens // 128, 1), min(tokens, 128)))
    labels = torch.zeros(len(ids), dtype=torch.int64)
    engine.backward(lambda: model(ids, labels=ids, next_sentence_label=labels).loss)
    engine.step(1e-4)


def measure_rate(tensors: dict[str, torch.Tensor], home: Path, rounds: int) -> dict:
    size = sum(value.numel() * value.element_size() for value in tensors.values())
    times = {"cached": [], "direct": [], "checkpoint": []}
    for number in range(rounds + 1):
        for way in ("cached", "direct"):
            times[way].append(plain_write(home / "plain", size, direct=way == "direct"))
        began = time.perf_counter()
        checkpoint.save(home / "saves", number, tensors, {}, keep=1)
        times["checkpoint"].append(time.perf_counter() - began)
        shutil.rmtree(home / "saves")
    times = {way: took[1:] for way, took in times.items()}  # the first round warms the disk's cache
    shares = [min(a, b) / c for a, b, c in zip(*times.values(), strict=True)]
    return {
        "bytes": size,
        **{f"{way}_gb_per_second": size / statistics.median(took) / 1e9 for way, took in times.items()},
        "share_of_faster_plain_write": statistics.median(shares),
        "shares": [round(share, 3) for share in shares],
    }


def plain_write(path: Path, size: int, direct: bool) -> float:
    """Seconds for a file of ``size`` bytes, 16 MiB at a time, forced to the disk."""
    block = mmap.mmap(-1, 16 << 20)
    block.write(os.urandom(16 << 20))
    view = memoryview(block)
    began = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0))
    for _ in range(size // len(view)):
        os.write(descriptor, view)
    os.fsync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - began
    os.unlink(path)
    # The last, short piece was left out.
    return seconds * size / max(size // len(view) * len(view), 1)


def measure_blocking(model, engine, home: Path, steps: int, every: int, tokens: int) -> dict:
    """Each way of saving in a run of its own; ``blocked_in_background`` and ``blocked_in_line`` are the shares of
    a run that its loop waited inside saving."""
    found = {}
    for way in ("none", "background", "in line", "none", "background", "in line"):
        background, still, began = BackgroundSave(), 0.0, time.perf_counter()
        for number in range(1, steps + 1):
            step(model, engine, tokens)
            before = time.perf_counter()
            if way != "none" and number % every == 0:
                tensors = tensors_of(model, engine.optimizer)
                save = background.submit if way == "background" else checkpoint.save
                save(home / "saves", number, tensors, {}, keep=1)
            still += time.perf_counter() - before
        seconds = time.perf_counter() - began
        background.wait()
        shutil.rmtree(home / "saves", ignore_errors=True)
        found.setdefault(way, []).append((seconds, still))
    best = {way: min(runs) for way, runs in found.items()}
    return {
        "steps": steps,
        "save_every": every,
        "seconds_without": best["none"][0],
        "blocked_in_background": best["background"][1] / best["background"][0],
        "slower_in_background": best["background"][0] / best["none"][0] - 1,
        "blocked_in_line": best["in line"][1] / best["in line"][0],
    }


def measure_resume(size: str, home: Path, rounds: int) -> dict:
    from fastbert.train.pretrain import pretrain

    words = "red blue green grey cat dog bird fish sees eats likes finds today here now again".split()  # noqa: SIM905
    texts = [(f"d{d}", [" ".join(words[(d + s + w) % 16] for w in range(9)) for s in range(30)]) for d in range(40)]
    data = home / "data"
    prepare(texts, train_wordpiece((s for _, text in texts for s in text), 100), data, num_workers=1)
    samples = SampleConfig(max_seqlen=64)
    options = {"data": str(data), "model": size, "token_budget": 64, "save_every": 1000, "samples": samples}
    model = BertForPreTraining(BertConfig.from_name(size))  # the vocabulary of the named size, not the data's
    model.tokenizer_source = data
    model.save_pretrained(home / "start")
    options["model"] = str(home / "start")
    pretrain(PretrainConfig(out=str(home / "run"), steps=1, **options), quiet=True)
    path = home / "options.yaml"
    path.write_text(PretrainConfig(out=str(home / "run"), steps=3, resume="auto", **options).to_yaml())
    first, stepped = [], []
    for _ in range(rounds):
        began = time.time()
        done = subprocess.run([sys.executable, "-c", _RESUME, str(path)], capture_output=True, text=True, check=True)
        ready, _, end = done.stdout.split()[:3]
        first.append(float(ready) - began)
        stepped.append(float(end) - began)
    return {"seconds_to_first_step": statistics.median(first), "seconds_to_its_end": statistics.median(stepped)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=2048, help="in a training step of the second figure")
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--only", choices=("rate", "blocked", "resume"), default=None)
    options = parser.parse_args()
    home, result = Path(tempfile.mkdtemp(dir=options.dir, prefix="bench-checkpoint-")), {}
    try:
        if options.only in (None, "rate", "blocked"):
            model, engine = trained(options.model)
            if options.only != "blocked":
                result["rate"] = measure_rate(tensors_of(model, engine.optimizer), home, options.rounds)
            if options.only != "rate":
                result["blocked"] = measure_blocking(
                    model, engine, home, options.steps, options.save_every, options.tokens
                )
            del model, engine
        if options.only in (None, "resume"):
            result["resume"] = measure_resume(options.model, home, min(options.rounds, 3))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
