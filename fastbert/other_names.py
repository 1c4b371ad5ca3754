"""What is called otherwise in the scripts of transformers, Google and NVIDIA, whose users bring their command lines."""

from __future__ import annotations

from collections.abc import Iterable

_NAMES = {
    "--accumulate": ("gradient-accumulation-steps",),
    "--activation-checkpointing": ("gradient-checkpointing", "checkpoint-activations"),
    "--batch-size": ("train-batch-size", "per-device-train-batch-size", "per-gpu-train-batch-size"),
    "--clip": ("max-grad-norm",),
    "--column": ("text-column", "text-columns", "column-name", "text-column-name"),
    "--data": ("predict-file", "test-file", "input-file", "input-dir"),
    "--dev": ("validation-file", "eval-file", "predict-file"),
    "--epochs": ("num-train-epochs", "num-epochs"),
    "--eval-every": ("eval-steps",),
    "--evaluate": ("do-eval",),
    "--float32-matmul-precision": ("tf32", "allow-tf32", "matmul-precision"),
    "--freeze": ("freeze-layers", "num-frozen-layers", "freeze-embeddings"),
    "--keep": ("save-total-limit",),
    "--layer-decay": ("layerwise-learning-rate-decay", "layer-wise-lr-decay", "layerwise-lr-decay", "lr-layer-decay"),
    "--layers": ("layer-indexes",),
    "--limit-dev": ("max-eval-samples",),
    "--limit-train": ("max-train-samples",),
    "--log-every": ("logging-steps", "log-freq"),
    "--lr": ("learning-rate",),
    "--max-seqlen": ("max-seq-length", "max-seq-len", "max-length"),
    "--model": ("model-name-or-path", "bert-model", "init-checkpoint", "model-name"),
    "--null-threshold": ("null-score-diff-threshold",),
    "--num-workers": ("dataloader-num-workers", "preprocessing-num-workers"),
    "--optimizer": ("optim", "optimizer-type"),
    "--out": ("output-dir", "output-file", "output"),
    "--patience": ("early-stopping-patience", "early-stopping"),
    "--precision": ("fp16", "bf16", "fp8", "amp", "use-fp16"),
    "--resume": ("resume-from-checkpoint",),
    "--samples.duplication": ("dupe-factor",),
    "--samples.max-predictions": ("max-predictions-per-seq",),
    "--samples.max-seqlen": ("max-seq-length", "max-seq-len", "max-seqlen"),
    "--samples.mlm-probability": ("masked-lm-prob",),
    "--samples.whole-word": ("do-whole-word-mask", "whole-word-mask", "wwm"),
    "--save-every": ("save-steps", "save-checkpoints-steps", "num-steps-per-checkpoint"),
    "--schedule": ("lr-scheduler-type", "lr-scheduler", "lr-policy"),
    "--seed": ("random-seed",),
    "--steps": ("max-steps", "num-train-steps"),
    "--token-budget": ("batch-size", "train-batch-size", "predict-batch-size", "per-device-eval-batch-size"),
    "--train": ("train-file", "training-file"),
    "--wandb": ("report-to", "wandb-project"),
    "--warmup": ("warmup-ratio", "warmup-proportion", "warmup-steps", "num-warmup-steps"),
}


def called_here(option: str, known: Iterable[str]) -> list[str]:
    """The names that an option of another program may have here, of those that a command knows (with dashes)."""
    name = option.removeprefix("--")
    return [ours for ours, theirs in _NAMES.items() if name in theirs and ours in known]
