"""What 8-bit products cost in accuracy: one pre-training in fp32, bf16 and fp8, same seeds, on the built-in corpus.

    python benchmarks/fp8_accuracy.py --model 2x64 --steps 400 --seeds 2 --out fp8.json

Prints for each precision the training loss over the last steps and the figures on held-out documents, as means over the
seeds, beside the largest distance of a seed from fp32's of that seed and the spread of fp32's own seeds. Needs no GPU;
figures of the weights are taken in float32 for all three.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from fastbert.data import builtin_corpus
from fastbert.data.config import SampleConfig
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.data.tokenizer import train_wordpiece
from fastbert.models import BertForPreTraining
from fastbert.train.config import PretrainConfig
from fastbert.train.evaluation import evaluate
from fastbert.train.pretrain import pretrain
from fastbert.wording import markdown_table

PRECISIONS = ("fp32", "bf16", "fp8")
_LAST = 50  # steps whose mean loss is that of the end


def run(data: Path, options: argparse.Namespace, precision: str, seed: int) -> dict:
    """One run: its losses at the end."""
    with tempfile.TemporaryDirectory() as out:
        config = PretrainConfig(
            data=str(data),
            out=out,
            model=options.model,
            init="small",
            dropout=0.0,
            steps=options.steps,
            lr=options.lr,
            warmup=0.1,
            betas=(0.9, 0.98),
            token_budget=1024,
            precision=precision,
            seed=seed,
            eval_every=options.steps,
            save_every=options.steps,
            log_every=_LAST,
            samples=SampleConfig(max_seqlen=64, seed=seed),
        )
        began = time.perf_counter()
        result = pretrain(config, quiet=True)
        seconds = time.perf_counter() - began
        last = [row for row in result.history if row["kind"] == "train"][-1]
        heldout = PretrainingData(ShardSet.open(data, "heldout"), config.samples)
        figures = evaluate(BertForPreTraining.from_pretrained(result.model_dir), heldout, epochs=2)
    row = {"precision": precision, "seed": seed, "train": last["loss"], "skipped": last["skipped_steps"]}
    row |= {name: figures[name] for name in ("mlm_loss", "mlm_acc", "nsp_acc", "unigram_entropy")}
    return row | {"seconds": round(seconds, 1)}


def table(rows: list[dict]) -> str:
    """Markdown: a line a precision."""
    names = {"train": "training loss", "mlm_loss": "held-out MLM loss", "mlm_acc": "held-out MLM accuracy"}
    exact = {row["seed"]: row for row in rows if row["precision"] == "fp32"}
    heads = [part for name in names.values() for part in (name, "largest distance from fp32")]
    lines = []
    for precision in PRECISIONS:
        own = [row for row in rows if row["precision"] == precision]
        cells = []
        for name in names:
            far = max((abs(row[name] - exact[row["seed"]][name]) for row in own), default=0.0)
            cells += [f"{statistics.mean(row[name] for row in own):.4f}", f"{far:.4f}" if precision != "fp32" else ""]
        lines.append((precision, *cells, sum(row["skipped"] for row in own)))
    spread = max(r["mlm_loss"] for r in exact.values()) - min(r["mlm_loss"] for r in exact.values())
    unigram = statistics.mean(row["unigram_entropy"] for row in exact.values())
    shown = markdown_table(("precision", *heads, "skipped steps"), lines)
    return "\n".join(
        [*shown, "", f"fp32's own seeds lie {spread:.4f} apart in held-out MLM loss; unigram entropy {unigram:.4f}."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="2x64", help="a named size, as 4x256")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON of every run, written after each")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        data, documents = Path(place) / "data", list(builtin_corpus.documents())
        tokenizer = train_wordpiece((sentence for _, sentences in documents for sentence in sentences), 2000)
        prepare(documents, tokenizer, data, heldout=0.05, num_workers=1)
        for seed in range(options.seeds):
            for precision in PRECISIONS:
                rows.append(run(data, options, precision, seed))
                print(json.dumps(rows[-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
