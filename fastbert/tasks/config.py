"""The recipe of a fine-tuning, importable without torch: `fastbert finetune --help` reads it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError
from ..options import check_at_least_one, check_choices
from ..train.phase_options import MOST

RECIPES: dict[str, dict] = {
    "squad1": {"epochs": 3, "batch_size": 32, "lr": 5e-5, "max_seqlen": 384},
    "squad2": {"epochs": 2, "batch_size": 48, "lr": 5e-5, "max_seqlen": 384},
    "swag": {"epochs": 3, "batch_size": 16, "lr": 2e-5},
    "ner": {"epochs": 3, "batch_size": 32, "lr": 5e-5},
}
"""The paper's recipe for a task (sections 4.2 to 4.4; NER's, in 5.3, is not given), where it differs from
`FinetuneConfig`'s defaults."""

FEATURE_RECIPE = {"epochs": 10, "batch_size": 32, "lr": 1e-3}
"""The recipe for a randomly initialised BiLSTM on the features of a frozen BERT; the paper does not give one."""


_MOST = 100_000
"""Upper limit of epochs and of trainings. They are planned one by one, so a far larger number would never start."""

# Options that a run may be resumed with other values of: how often and where something is written, what a step is
# divided into and how it rounds, which changes rounding and dropout's draws (a resumed run says so) or not even these.
NEUTRAL = {"log_every", "save_every", "keep", "wandb", "resume", "accumulate", "activation_checkpointing"}
NEUTRAL |= {"float32_matmul_precision"}


@dataclass(kw_only=True)
class TaskOptions:
    """Options that some tasks have."""

    doc_stride: int = 128
    """squad1, squad2: tokens between the starts of two windows over a long context."""
    max_answer_length: int | None = None
    """squad1, squad2: the longest answer that is predicted, in tokens; by default 30."""
    document_context: bool = False
    """ner: read a sentence together with its neighbours in the document, as many as fit."""
    bilstm: int | None = None
    """Put a randomly initialised BiLSTM of N units in each direction between encoder and head (the paper's table 5)."""
    auxiliary_lm: float = 0.0
    """For a GPT: weight of the next-word loss on the task's texts, added to its own (0.5 in Radford et al. 2018)."""
    text_columns: tuple[str, ...] | None = None
    """Tasks of texts: the column of the text, or the two columns of a pair, in files with other names. In files without
    a header they are numbers, from 1."""
    label_column: str | None = None
    """Tasks of texts: the column of the labels, given like --text-columns."""
    label_columns: tuple[str, ...] | None = None
    """text-multilabel: in place of one column of labels, a column for each label, with 1 for a text that has it and 0
    for one that does not."""
    label_separator: str | None = None
    """text-multilabel: what separates the labels of a text in one column and in predictions, as in --label-separator
    " " for blanks; by default a comma (in files also a semicolon or a vertical bar)."""

    def __post_init__(self) -> None:
        self._check_columns()
        if not self.auxiliary_lm >= 0:
            raise InputError(f"auxiliary_lm must be at least 0, got {self.auxiliary_lm}")
        check_at_least_one(self, "doc_stride", "max_answer_length")
        if self.bilstm is not None and self.bilstm < 1:
            raise InputError(f"bilstm must be at least 1 unit or none, got {self.bilstm}")

    def _check_columns(self) -> None:
        named = [*(self.text_columns or ()), *([] if self.label_column is None else [self.label_column])]
        named += self.label_columns or ()
        if self.text_columns == () or not all(map(str.strip, named)) or len(set(named)) < len(named):
            options = "text_columns and label_column" + ("" if self.label_columns is None else "s")
            raise InputError(f"{options} must be different names, got {', '.join(map(repr, named)) or 'none'}")
        if self.label_columns is not None and len(self.label_columns) < 2:
            got = ", ".join(self.label_columns) or "none"
            raise InputError(f"label_columns are two or more, one for each label, got {got}")
        if self.label_columns is not None and self.label_column is not None:
            raise InputError("label_columns are in place of one column of labels, got label_column too")
        if self.label_separator is not None and (not self.label_separator or set(self.label_separator) & set("\t\r\n")):
            got = repr(self.label_separator)
            raise InputError(f"label_separator must be a character or several, no tab or line end, got {got}")


@dataclass(kw_only=True)
class FinetuneConfig(TaskOptions):
    """BERT's recipe: 2-4 epochs of batches of 16 or 32, peak learning rate 2e-5 to 5e-5, warm-up, linear decay."""

    epochs: int = 3
    """Passes over the training rows; the model is evaluated after each and the best is kept."""
    eval_every: int | None = None
    """Evaluate every N steps too, and keep the best of all evaluations."""
    patience: int | None = None
    """End earlier, after so many epochs (with --eval-every, evaluations) without a better result."""
    batch_size: int = 32
    """Rows in a batch (for squad1 and squad2, windows)."""
    token_budget: int | None = None
    """Tokens in a batch, instead of --batch-size: as many rows as fit."""
    accumulate: int = 1
    """Micro-batches of a step: the batch is computed in so many parts, whose gradients are added up. Less memory for
    the same step, but for dropout's draws."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass: less memory, a third more arithmetic."""
    lr: float = 2e-5
    """Peak learning rate; the paper tries 2e-5, 3e-5, 4e-5 and 5e-5."""
    freeze: int | None = None
    """Do not train the embeddings and the first N layers (0: only the embeddings), which then get no gradients: less
    time and memory."""
    layer_decay: float | None = None
    """Train lower layers more slowly: the top layer at --lr, each layer at F times the rate of the one above, the
    embeddings below the first (0.95 in Sun et al. 2019)."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises; afterwards it falls linearly to zero."""
    weight_decay: float = 0.01
    """AdamW's weight decay; none on biases and LayerNorm."""
    correct_bias: bool = True
    """Adam's bias correction. Google's code had none, which makes fine-tuning on few rows unstable (Mosbach et al.
    2021, Zhang et al. 2021)."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    max_seqlen: int = 128
    """Longest sequence in tokens; longer ones are cut."""
    seed: int = 0
    """Seed of the new head, the order of the rows and dropout."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """bf16 and fp16 keep fp32 weights and multiply in these types; fp16, for GPUs without bfloat16, also scales the
    loss, and skips steps until the scale fits."""
    float32_matmul_precision: Literal["auto", "highest", "high"] = "auto"
    """How the factors of float32 products are rounded in training steps: highest = not at all; high = to 16 bits on a
    CPU with AMX, to TF32 on a GPU; auto = high on a CPU with AMX, otherwise torch's own setting. Evaluations are not
    changed."""
    cuda_graph: Literal["auto", "on", "off"] = "auto"
    """Pad batches to a few shapes, for each of which a GPU replays one graph of the whole step: auto = on one GPU, if
    the head allows it; on = fail if it is not possible (a CPU computes the same batches without a graph)."""
    zero: int | None = None
    """Train under DeepSpeed with this stage of ZeRO, 0, 1 or 2; several processes without it train under torch DDP."""
    deepspeed: str | None = None
    """In place of --zero: a DeepSpeed configuration in JSON (docs/distributed.md)."""
    limit_train: int | None = None
    """Use only the first N training rows."""
    limit_dev: int | None = None
    """Use only the first N dev rows."""
    log_every: int = 20
    """Steps between two lines of metrics.jsonl."""
    wandb: str | None = None
    """Also log to this project of Weights & Biases; WANDB_MODE=offline keeps the log on this machine."""
    save_every: int | None = None
    """Steps between checkpoints; by default one every ten minutes. They are removed when the run has ended normally."""
    keep: int = 2
    """Checkpoints kept; each has three to five times the model's size."""
    resume: Literal["auto"] | None = None
    """auto = continue from the newest valid checkpoint of --out, or start anew; finished trainings of --restarts and
    --grid are not repeated. With the same kernels and as many threads as before, the run ends with the same bits as one
    that was never interrupted, and what differs is reported; another recipe, model or data is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "epochs", "batch_size", "token_budget", "accumulate", "limit_train", "limit_dev")
        check_at_least_one(self, "eval_every", "patience", "log_every", "save_every", "keep")
        if self.epochs > _MOST:
            raise InputError(f"epochs must be at most {_MOST}, got {self.epochs}")
        if not 0 <= self.warmup <= 1:
            raise InputError(f"warmup is a share of the steps, between 0 and 1, got {self.warmup}")
        if not 0 < self.lr <= MOST:
            raise InputError(f"lr must be above 0 and at most {MOST:g}, got {self.lr}")
        if self.freeze is not None and self.freeze < 0:
            raise InputError(f"freeze must be at least 0 layers, got {self.freeze}")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise InputError(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}")
        if not 0 < self.clip < math.inf:
            raise InputError(f"clip must be above 0 and finite, got {self.clip}")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if self.max_seqlen < 3:
            raise InputError(f"max_seqlen must be at least 3, got {self.max_seqlen}")
        check_choices(self)
        if not 0 <= self.seed < 1 << 64:
            raise InputError(f"seed must be at least 0 and below 2^64, got {self.seed}")


@dataclass(kw_only=True)
class SearchConfig:
    """Several trainings in one process, of which the best on the dev rows is kept."""

    restarts: int = 1
    """How many times to train, with the seeds SEED, SEED + 1, ..., to keep the best: on few rows fine-tuning sometimes
    fails by chance."""
    grid: bool = False
    """Train with every combination of the three lists below, the paper's by default: 18 trainings, times --restarts."""
    grid_batch_sizes: tuple[int, ...] = (16, 32)
    """Batch sizes of the grid."""
    grid_lrs: tuple[float, ...] = (5e-5, 3e-5, 2e-5)
    """Peak learning rates of the grid."""
    grid_epochs: tuple[int, ...] = (2, 3, 4)
    """Numbers of epochs of the grid."""

    def __post_init__(self) -> None:
        if not 1 <= self.restarts <= _MOST:
            raise InputError(f"restarts must be between 1 and {_MOST}, got {self.restarts}")
        for name in ("grid_batch_sizes", "grid_lrs", "grid_epochs"):
            if self.grid and not getattr(self, name):
                raise InputError(f"{name} must hold at least one value, got none")
            if not self.grid and getattr(self, name) != getattr(SearchConfig, name):
                raise InputError(f"{name} belongs to grid, got it without grid, which trains only once")

    def trials(self, config: FinetuneConfig) -> list[FinetuneConfig]:
        """The recipes of all trainings; those of one combination follow each other.

        Raises:
            InputError: a value of the grid is not valid in a recipe, or token_budget is set, which makes the grid's
                batch sizes meaningless.
        """
        if self.grid and config.token_budget is not None:
            raise InputError(f"the grid tries batch sizes, expected no token_budget, got {config.token_budget}")
        axes = {"batch_size": self.grid_batch_sizes, "lr": self.grid_lrs, "epochs": self.grid_epochs}
        points = (
            [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())] if self.grid else [{}]
        )
        seeds = [config.seed + restart for restart in range(self.restarts)]
        return [dataclasses.replace(config, **point, seed=seed) for point in points for seed in seeds]
