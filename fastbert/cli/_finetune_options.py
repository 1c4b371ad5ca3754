"""The options of ``fastbert finetune``, and checks of their combinations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from ..errors import InputError
from ..options import fitted_options
from ..tasks.config import FEATURE_RECIPE, RECIPES, FinetuneConfig, SearchConfig, TaskOptions
from ..text_files import read_yaml
from ..wording import counted
from ._options import check_one_of, option, value_of
from ._paths import InputName, InputPath, OutputPath

if TYPE_CHECKING:
    from ..tasks.base import Task


@dataclass(kw_only=True)
class Finetune(FinetuneConfig, SearchConfig):
    """Fine-tunes a pre-trained model on a task, evaluates it after each epoch and keeps the best; Ctrl-C saves,
    --resume auto continues.

    OUT holds config.yaml, metrics.jsonl, model/ (a Hugging Face directory with the tokenizer), loss.png and, for the
    dev file, the metrics, the predictions in the official format, tables (per class, confusion) and the wrongly
    predicted rows. squad1, squad2, swag, ner and --features have their own defaults: `fastbert finetune squad1 --help`
    shows them.

    Example:
        fastbert finetune sst2 --model DIR --train train.tsv --dev dev.tsv --out RUN
        fastbert finetune rte --model DIR --train train.tsv --dev dev.tsv --out RUN --restarts 5
        fastbert finetune mrpc --model DIR --train train.tsv --dev dev.tsv --out RUN --grid
        fastbert finetune mrpc --model DIR --train train.tsv --dev dev.tsv --out RUN --grid --resume auto
        fastbert finetune --config RUN/config.yaml --seed 1 --out OTHER
        fastbert evaluate sst2 --model RUN --data dev.tsv
    """

    task: Positional[Annotated[str, arg(metavar="TASK")]]
    """Name of the task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, squad1, squad2, swag, ner; or, for
    files of your own (--text-columns, --label-column), text-classification, text-multilabel (any number of labels a
    text) or text-regression."""
    config: Annotated[InputPath | None, arg(metavar="FILE")] = None
    """A YAML file of options, which the command line overrides, such as the config.yaml of a run."""
    model: Annotated[InputPath, arg(metavar="DIR")]
    """A pre-trained model directory, or a run of `fastbert pretrain`."""
    train: Annotated[tuple[InputPath, ...], arg(metavar="FILE [FILE ...]")]
    """The training file, or several that are read one after the other, such as the parts of a large data set."""
    dev: Annotated[InputPath | None, arg(metavar="FILE")] = None
    """The file to evaluate on."""
    dev_share: float | None = None
    """In place of --dev: the share of the training rows to evaluate on, the same rows for every --seed. Rows from the
    same article, document or video, and pairs with the same first text, stay together."""
    # Fields of the recipe, with the types and names of the command line.
    deepspeed: InputName | None = None
    text_columns: Annotated[tuple[str, ...] | None, arg(metavar="COLUMN [COLUMN]")] = None
    label_columns: Annotated[tuple[str, ...] | None, arg(metavar="COLUMN [COLUMN ...]")] = None
    also: Annotated[tuple[InputPath, ...], arg(metavar="FILE...")] = ()
    """Further files to evaluate the best model on, such as MNLI's dev_mismatched.tsv."""
    out: Annotated[OutputPath, arg(metavar="OUT")]
    """The run directory to make."""
    features: (
        Literal["embeddings", "second-to-last", "last", "last4-sum", "last4-concat", "all12-sum", "mix", "all"] | None
    ) = None
    """ner and tasks of texts: train a BiLSTM on these features of the frozen model, instead of the model itself
    (section 5.3 of the paper). The model may then be an ELMo or static vectors. "mix" learns ELMo's mix of all layers;
    "all" trains with each of the first six and fine-tunes the whole model, and prints one table."""
    feature_units: int | None = None
    """With --features: units of the BiLSTM in each direction; by default 768, as in the paper."""
    skip_bad_rows: bool = False
    """Leave out rows that cannot be used, and print how many and why; otherwise the first one ends the command."""
    fallback_encoding: str | None = None
    """Read lines that are not UTF-8 in this single-byte encoding (latin-1, windows-1252, ...), and print their number;
    otherwise they are bad rows."""

    def __post_init__(self) -> None:
        FinetuneConfig.__post_init__(self)
        SearchConfig.__post_init__(self)

    def recipe(self) -> FinetuneConfig:
        """The options of the training itself."""
        return FinetuneConfig(**{f.name: getattr(self, f.name) for f in fields(FinetuneConfig)})


_IN_PLACE_OF = (
    ("dev", "dev_share"),
    ("batch_size", "token_budget"),
    ("label_column", "label_columns"),
    ("zero", "deepspeed"),
)
"""Options of which one is in place of the other."""


def defaults(argv: Sequence[str]) -> Finetune | None:
    """The options in the file of --config, and those of the paper's recipe for the task, all of which the command line
    may override; None if there are neither."""
    path = value_of("--config", argv)
    values, tasks = {}, RECIPES
    if path:  # an empty one is refused later, with all paths
        from ..tasks.registry import TASKS as tasks

        values = _options_in(Path(os.path.expanduser(path)), argv)
    # The task is the word that is not the value of an option.
    pairs = zip(["", *argv], argv, strict=False)
    task = next((word for before, word in pairs if word in tasks and not _waits(before)), values.get("task"))
    recipe = RECIPES.get(task, {})
    if values.get("features") is not None or any(word.partition("=")[0] == "--features" for word in argv):
        recipe = FEATURE_RECIPE
    if not recipe and not path:
        return None
    needed = dict.fromkeys(("task", "model", "train", "out"), tyro.MISSING)
    return Finetune(**{**needed, **recipe, **values})


def _options_in(path: Path, argv: Sequence[str]) -> dict[str, Any]:
    """The options in a YAML file, without those in whose place another is on the command line.

    Raises:
        InputError: there is no such file, or it has an unknown option or a value of another type.
    """
    values = read_yaml(path)
    if "config" in values:
        raise InputError(f"{path}: expected options, got config, which names such a file")
    if isinstance(values.get("train"), str):
        values["train"] = [values["train"]]
    values = fitted_options(values, Finetune, path)
    if "train" in values and not values["train"]:
        raise InputError(f"{path}: train: expected a file, got an empty list")
    given = {word.partition("=")[0].replace("_", "-") for word in argv}
    for one, other in (*_IN_PLACE_OF, *(pair[::-1] for pair in _IN_PLACE_OF)):
        if option(one) in given:
            values.pop(other, None)
    return {**values, "config": path}


def _waits(word: str) -> bool:
    """Whether a word of the command line is an option that takes the next word as its value."""
    switches = [f.name.replace("_", "-") for f in fields(Finetune) if f.type == "bool"]
    alone = {f"--{no}{name}" for name in switches for no in ("", "no-")}
    return word.startswith("-") and "=" not in word and word.replace("_", "-") not in alone


def check_options(args: Finetune, task: Task) -> None:
    """Raises InputError for options that do not fit each other or the task."""
    from ..config import BertConfig
    from ..tasks.feature_task import FeatureTask
    from ..tasks.results import results_name
    from ..train.wandb_log import check_installed

    check_installed(args.wandb)
    check_one_of(args, "dev", "dev_share")
    if args.dev_share is not None and not 0 < args.dev_share < 1:
        raise InputError(f"--dev-share is a share of the training rows, between 0 and 1, got {args.dev_share}")
    if args.features is not None and not isinstance(task, FeatureTask):
        raise InputError(f"--features belongs to ner and to tasks of texts, got the task {args.task}")
    most = BertConfig.limits["bilstm_units"]
    if args.feature_units is not None and (args.features is None or not 1 <= args.feature_units <= most):
        raise InputError(
            f"--feature-units is a number between 1 and {most} and belongs to --features, got {args.feature_units}"
        )
    if len({results_name(path) for path in args.also}) < len(args.also):
        names = ", ".join(path.name for path in args.also)
        raise InputError(f"--also: expected files of different names, by which their results are called, got {names}")


def refuse_idle(args: Finetune, task: Task) -> None:
    """Raises InputError for an option that was given and would change nothing."""
    usual = {f.name: f.default for f in fields(Finetune)}
    usual |= FEATURE_RECIPE if args.features is not None else RECIPES.get(args.task, {})
    idle = {f.name: f"the task {args.task} has no use for it" for f in fields(TaskOptions) if not hasattr(task, f.name)}
    if args.features not in (None, "all"):
        idle["bilstm"] = "--features has one of its own"
    if args.features is not None:
        idle["activation_checkpointing"] = "--features trains a BiLSTM, which keeps its activations"
        idle["freeze"] = idle["layer_decay"] = "--features trains a BiLSTM, and nothing of the model"
    if args.token_budget is not None:
        idle["batch_size"] = "--token-budget says how large a batch is"
    if args.grid:
        idle |= {name: f"--grid tries those of {option(f'grid_{name}s')}" for name in ("batch_size", "lr")}
        idle["epochs"] = "--grid tries those of --grid-epochs"
    epochs = max(args.grid_epochs) if args.grid else args.epochs
    over = args.patience is not None and args.eval_every is None and args.patience >= epochs - 1
    # The config.yaml of a --grid has its patience, and the epochs of the best training, which may be few.
    if over and (args.config is None or read_yaml(args.config).get("patience") != args.patience):
        idle["patience"] = f"a training of {counted(epochs, 'epoch')} is over by then"
    for name, reason in idle.items():
        value = getattr(args, name)
        if value != usual[name]:
            said = "" if value is True else f" {' '.join(value) if isinstance(value, tuple) else value}"
            raise InputError(f"{option(name)}{said} would change nothing: {reason}")
