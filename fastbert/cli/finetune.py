"""``fastbert finetune``: fine-tunes a pre-trained model on a task."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ._finetune_options import Finetune, check_options, defaults, refuse_idle

if TYPE_CHECKING:
    from ..tasks.base import Task

__all__ = ["Finetune", "defaults", "run"]


def run(args: Finetune) -> None:
    """Fine-tunes in this process, or in those of torchrun or deepspeed, of which the first prints and writes."""
    from ..tasks.world import deepspeed_of
    from ..train import distributed

    config = args.recipe()
    if distributed.launched().size == 1 and deepspeed_of(config) is None:
        _run(args)
        return
    if len(args.trials(config)) > 1 or args.features is not None:
        raise InputError("--restarts, --grid and --features run in one process, got several or DeepSpeed")
    with distributed.joined(always=True) as world, contextlib.ExitStack() as stack:
        if not world.first:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        _run(args)
        distributed.barrier(world)


def _run(args: Finetune) -> None:
    """Fine-tunes. Errors are raised before anything is read if possible, else before anything is written."""
    from ..tasks import registry
    from ..tasks.batching import hold_out
    from ..tasks.runs import started
    from ..tasks.trained import model_directory
    from . import _features
    from . import _finetune_report as report
    from ._finetune_training import Inputs, train
    from ._tasks import read_rows, read_training

    task = registry.get(args.task)
    check_options(args, task)
    refuse_idle(args, task)
    config = args.recipe()
    configs = args.trials(config)
    directory = model_directory(args.model)
    task.configure(config)
    _check_model(args, task, directory)
    if args.features != "all" or args.resume is None:  # else each of its trainings has its own directory
        with started(args.out, args.resume):
            pass
    policy = args.skip_bad_rows, args.fallback_encoding
    rows = read_training(task, args.train, *policy)
    held_out = args.dev is None
    train_rows, dev_rows = hold_out(rows, args.dev_share, task.sources) if held_out else (rows, [])
    task.learn(rows, train_rows[: args.limit_train])
    if not held_out:
        dev_rows = read_rows(task, args.dev, *policy, labelled=True)
    also = {path: read_rows(task, path, *policy, labelled=True) for path in args.also}
    report.one_answer(task, args, train_rows, dev_rows)
    inputs = Inputs(task, directory, train_rows, dev_rows, also)
    if args.features is None:
        train(args, inputs, configs)
    else:
        _features.train(args, inputs, configs)


def _check_model(args: Finetune, task: Task, directory: Path) -> None:
    """Raises InputError if the model cannot be used with these options."""
    from .. import load_tokenizer
    from ..models.encoders import read_config
    from ..tasks.base import check_fit
    from ..tasks.feature_task import FeatureTask
    from ..tasks.features import LAYERS
    from ..tasks.fits import check_model

    config = read_config(directory)
    check_fit(task, load_tokenizer(directory), config, args.max_seqlen)
    for name in (*LAYERS, None) if args.features == "all" else (args.features,):
        if isinstance(task, FeatureTask):
            task.features = name
        check_model(task, config.model_type, config.num_hidden_layers, args)
