"""A task fine-tuned by fastbert and by transformers: same weights, head, batches, recipe, seeds, interleaved.

Prints the dev metric and the time of both for every seed, then the means. The two sides share the initial weights, the
order of the rows, the windows of long texts and the task's metric; model, loss, optimiser, schedule and evaluation are
each their own: transformers' side is its AutoModelFor... on batches padded to their longest sequence with torch's fused
AdamW, as its Trainer has it. Float32 products are what each side computes by default, on AMX fastbert's in two bfloat16
parts (docs/cpu-performance.md); `--float32-matmul-precision` sets one precision for both. Beside the seconds of
training stand the processor seconds of all, an evaluation after every epoch included (fastbert's early check of a few
hundred rows too): on a machine that does other work too they are what counts.

    python benchmarks/finetune_against_transformers.py sst2 --train train.tsv --dev dev.tsv --train-examples 4000
    python benchmarks/finetune_against_transformers.py mrpc --train msr_paraphrase_train.txt --dev-share 0.1 --epochs 3
    python benchmarks/finetune_against_transformers.py squad1 --train a.json b.json --dev c.json --max-seqlen 384
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
from fastbert import hardware
from fastbert.bench.models import minilm
from fastbert.bench.peers.transformers_ import parameter_groups
from fastbert.study.machine import made_by
from fastbert.tasks import registry
from fastbert.tasks.batching import hold_out, training_batches
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import finetune


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", help="one of GLUE's tasks, ner, squad1 or squad2")
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="files; their rows are put together")
    dev = parser.add_mutually_exclusive_group(required=True)
    dev.add_argument("--dev", type=Path)
    dev.add_argument("--dev-share", type=float, help="share of the training rows, as `fastbert finetune` holds out")
    parser.add_argument("--model", type=Path, help="model directory; all-MiniLM-L6-v2 of its PyPI package by default")
    parser.add_argument("--train-examples", type=int, help="the first N training rows; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them, to share seeds between processes")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--max-seqlen", type=int, default=128)
    parser.add_argument("--dropout", type=float, help="in place of the model's own; 0 leaves nothing to chance")
    parser.add_argument("--float32-matmul-precision", choices=("auto", "highest", "high"), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON of the figures, after every seed; seeds that it holds are kept")
    return parser.parse_args()


def save_start(task, directory: Path, start: Path, seed: int, dropout: float | None) -> None:
    """One initial model for both sides, the new classifier included."""
    torch.manual_seed(seed)
    task.model(directory).save_pretrained(start)
    if dropout is not None:
        config = json.loads((start / "config.json").read_text())
        config |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        (start / "config.json").write_text(json.dumps(config))


class Peer:
    """transformers' side of a kind of task: its class, the labels of a padded batch, outputs as the task decodes."""

    def __init__(self, task) -> None:
        import transformers

        self.kind = "tags" if task.name == "ner" else "spans" if task.name.startswith("squad") else "texts"
        head = {"tags": "TokenClassification", "spans": "QuestionAnswering", "texts": "SequenceClassification"}
        self.model_class = getattr(transformers, f"AutoModelFor{head[self.kind]}")

    def labels(self, examples, width: int) -> dict[str, torch.Tensor]:
        if self.kind == "texts":
            return {"labels": torch.tensor([e.label for e in examples])}
        if self.kind == "spans":
            positions = torch.tensor([e.label for e in examples])
            return {"start_positions": positions[:, 0], "end_positions": positions[:, 1]}
        tags = torch.full((len(examples), width), -100)
        for row, example in enumerate(examples):
            tags[row, : example.num_tokens] = torch.from_numpy(example.label)
        return {"labels": tags}

    def outputs(self, out, examples) -> list:
        if self.kind == "texts":
            return list(out.logits.numpy())
        scores = out.logits if self.kind == "tags" else torch.stack((out.start_logits, out.end_logits), -1)
        return [row[: e.num_tokens].numpy() for row, e in zip(scores, examples, strict=True)]

    def evaluate(self, model, examples) -> list:
        """Outputs of all examples, in batches of neighbours padded to the longest."""
        model.eval()
        outputs = []
        with torch.inference_mode():
            for begin in range(0, len(examples), 64):
                chosen = examples[begin : begin + 64]
                outputs += self.outputs(model(**padded(chosen)), chosen)
        return outputs


def run_fastbert(task, model, tokenizer, train_rows, dev_rows, config) -> tuple[float, float]:
    """The first metric after the last epoch, and seconds of training without evaluation."""
    result = finetune(task, model, tokenizer, train_rows, dev_rows, config)
    return result.history[-1][task.metrics[0]], sum(epoch["train_seconds"] for epoch in result.history)


def run_transformers(task, directory, examples, dev_examples, dev_rows, config) -> tuple[float, float]:
    """The same recipe in plain transformers and torch."""
    from transformers import get_linear_schedule_with_warmup

    peer = Peer(task)
    torch.manual_seed(config.seed)
    model = peer.model_class.from_pretrained(directory)
    groups = parameter_groups(model, config.weight_decay)
    optimizer = adamw(groups, config.lr)
    lengths = [e.num_tokens for e in examples]
    epochs = [
        training_batches(lengths, seed=config.seed, epoch=epoch, batch_size=config.batch_size)
        for epoch in range(config.epochs)
    ]
    total = sum(map(len, epochs))
    schedule = get_linear_schedule_with_warmup(optimizer, round(config.warmup * total), total)
    seconds = 0.0
    for batches in epochs:
        model.train()
        start = time.perf_counter()
        for indices in batches:
            chosen = [examples[i] for i in indices]
            inputs = padded(chosen)
            labels = peer.labels(chosen, inputs["input_ids"].shape[1])
            model(**inputs, **labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seconds += time.perf_counter() - start
        predictions = task.decode(dev_rows, dev_examples, peer.evaluate(model, dev_examples))
        value = task.metric(dev_rows, predictions)[task.metrics[0]]
    return value, seconds


def adamw(groups: list[dict], lr: float) -> torch.optim.AdamW:
    """AdamW as transformers' Trainer has it by default: fused, unless this torch cannot on a CPU."""
    options = {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6}
    try:
        # Copies, since an optimiser writes its options into its groups, even if it is then refused.
        return torch.optim.AdamW([dict(group) for group in groups], fused=True, **options)
    except RuntimeError:
        return torch.optim.AdamW(groups, **options)


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
    if args.float32_matmul_precision != "auto":
        torch.set_float32_matmul_precision(args.float32_matmul_precision)
    # fastbert's engine would do it when it first trains; until then the other side would be without it.
    hardware.keep_freed_memory()
    directory = args.model or minilm()
    task = registry.get(args.task)
    metric = task.metrics[0]
    tokenizer = fastbert.load_tokenizer(directory)
    train_rows = [row for path in args.train for row in task.for_training(task.read(path), path)]
    if args.dev is None:
        train_rows, dev_rows = hold_out(train_rows, args.dev_share, task.sources)
    else:
        dev_rows = task.read(args.dev)
    train_rows = train_rows[: args.train_examples]
    task.learn(train_rows)
    task.configure(FinetuneConfig(max_seqlen=args.max_seqlen))
    examples, dev_examples = (task.encode(rows, tokenizer, args.max_seqlen) for rows in (train_rows, dev_rows))
    runs = earlier_runs(args)
    wanted = range(args.first_seed, args.first_seed + args.seeds)
    for seed in sorted(set(wanted) - {run["seed"] for run in runs}):
        config = FinetuneConfig(
            epochs=args.epochs,
            batch_size=args.batch_size,
            lr=args.lr,
            max_seqlen=args.max_seqlen,
            seed=seed,
            float32_matmul_precision=args.float32_matmul_precision,
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
            result = {"seed": seed, "made_by": made_by()}
            for side in order:
                began = time.process_time()
                value, seconds = sides[side]()
                result[side] = {metric: value, "train_seconds": seconds, "cpu_seconds": time.process_time() - began}
                print(f"seed {seed}: {side} {metric} {points(task) * value:.2f} in {seconds:.1f} s", flush=True)
        runs = sorted([*earlier_runs(args), result], key=lambda run: run["seed"]) if args.out else [*runs, result]
        write(args, runs)
    report(metric, points(task), runs)


def points(task) -> float:
    """What makes a metric points: SQuAD's figures are in percent already."""
    return 1.0 if task.name.startswith("squad") else 100.0


def settings_of(args: argparse.Namespace) -> dict:
    """What a seed's figures depend on, as JSON gives it back."""
    kept = {k: v for k, v in vars(args).items() if k not in ("out", "seeds", "first_seed")}
    kept["peer_optimizer"] = "fused"  # figures of an earlier version are of the one that is not
    return json.loads(json.dumps(kept, default=str))


def earlier_runs(args: argparse.Namespace) -> list[dict]:
    """The seeds that ``--out`` holds: hours of a slow machine need not be spent at once."""
    if args.out is None or not args.out.exists():
        return []
    earlier = json.loads(args.out.read_text())
    if earlier["settings"] != settings_of(args):
        raise SystemExit(f"{args.out}: expected figures of these settings to add to, got others, which are left alone")
    return earlier["runs"]


def write(args: argparse.Namespace, runs: list[dict]) -> None:
    if args.out:
        args.out.write_text(json.dumps({"settings": settings_of(args), "runs": runs}, indent=2) + "\n")


def report(metric: str, scale: float, runs: list[dict]) -> None:
    """Means of both sides and their difference in points."""
    means = {
        side: {
            key: statistics.fmean(run[side][key] for run in runs) for key in (metric, "train_seconds", "cpu_seconds")
        }
        for side in ("fastbert", "transformers")
    }
    difference = scale * (means["fastbert"][metric] - means["transformers"][metric])
    for side, mean in means.items():
        print(
            f"mean of {len(runs)}: {side} {metric} {scale * mean[metric]:.2f}, {mean['train_seconds']:.1f} s", end=", "
        )
        print(f"{mean['cpu_seconds']:.1f} processor seconds in all")
    print(f"difference {difference:+.2f} points, transformers' time / fastbert's", end=" ")
    ratios = [means["transformers"][key] / means["fastbert"][key] for key in ("train_seconds", "cpu_seconds")]
    print(f"{ratios[0]:.2f} in training, {ratios[1]:.2f} in processor time of all")


if __name__ == "__main__":
    main()
