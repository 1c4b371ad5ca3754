"""Pre-training from shards to a model directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..data.pretraining import PretrainingData
from ..data.shards import ShardSet
from ..errors import CheckpointError, DataError, InputError
from ..files import check_run_name, remove_unfinished, write_whole
from ..processes import check_may_start
from . import arithmetic, checkpoint, distributed, phases
from .config import NEUTRAL, PretrainConfig
from .console import Console
from .deepspeed_options import DeepSpeedOptions
from .distributed import World
from .engines.deepspeed_config import configuration
from .loop import PretrainLoop
from .model_and_data import begins_with, build_model, check_fit, check_heldout, open_data, other_words
from .result import PretrainResult
from .run_header import header
from .run_lock import only_run
from .wandb_log import check_installed

_log = logging.getLogger("fastbert")

# The paper's million steps are about this many epochs (Devlin et al. 2019, appendix A.2).
DEFAULT_EPOCHS = 40.0

# The time from a worker's closed socket to the SIGCHLD of its parent: milliseconds, more on a busy machine.
WORKER_ENDS_S = 2.0

# Directories that a run must not be written into, by the file that identifies them.
_OTHERS = {"ended.json": "a run of `fastbert finetune`", "manifest.json": "prepared data", "config.json": "a model"}


def pretrain(
    config: PretrainConfig,
    *,
    model: torch.nn.Module | None = None,
    data: PretrainingData | None = None,
    heldout: PretrainingData | None = None,
    callbacks: Sequence[Callable[[dict], None]] = (),
    quiet: bool = False,
) -> PretrainResult:
    """Pre-trains a model; Ctrl-C and SIGTERM save and return.

    Args:
        config: the recipe.
        model: in place of ``config.model``; of a kind that `models.registry` describes.
        data, heldout: in place of the splits in ``config.data``.
        callbacks: called with every row of metrics.jsonl.
        quiet: print nothing.

    Raises:
        InputError: options, data and model do not fit together, which is checked before anything is written; processes
            cannot meet or were started with different options; another run is using the directory; or ``max_minutes``
            are over before the first step.
        DataError: the data directory is damaged.
        CheckpointError: weights or a checkpoint cannot be read, or a checkpoint cannot be written.
        TrainingDiverged: the gradient was not finite in five steps in a row.
        RankLost: another process of the run has died, or does not answer any more.
    """
    if not config.out:
        raise InputError("out: expected the run directory to make (--out RUN), got none")
    if phases.total_steps(config) is None and config.epochs is None and config.max_minutes is None:
        config = dataclasses.replace(config, epochs=DEFAULT_EPOCHS)
    options = DeepSpeedOptions(config.deepspeed, config.zero, config.offload)
    with distributed.joined(always=options.asked) as world, contextlib.ExitStack() as held:
        loop = _prepare(config, world, model, data, heldout, callbacks, Console(quiet or not world.first), held)
        try:
            result = _run(loop)
            # Rank 0 is still writing when the others are done, and a launcher may end it when they end.
            distributed.barrier(world)
        except BrokenPipeError:  # the reader of what is printed has ended
            raise
        except (RuntimeError, ConnectionError, EOFError) as error:
            # A worker has died. torch's signal handler raises RuntimeError, for which there is no subclass, wherever
            # the loop happens to be; or a batch was on its way through a socket.
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            why = str(error).split(". ")[0].rstrip(". ")
            raise DataError(f"a process that makes batches has died ({why}); go on with --resume auto") from error
        return result


def _run(loop: PretrainLoop) -> PretrainResult:
    loop.console.say(header(loop))
    try:
        return loop.run()
    except (ConnectionError, EOFError):
        # When a worker dies, its socket closes before SIGCHLD arrives. torch's handler of that signal raises once,
        # wherever this thread is then: better here than while the run is being closed.
        if loop.config.num_workers:
            time.sleep(WORKER_ENDS_S)
        raise


def _prepare(
    config: PretrainConfig,
    world: World,
    model: torch.nn.Module | None,
    data: PretrainingData | None,
    heldout: PretrainingData | None,
    callbacks: Sequence[Callable[[dict], None]],
    console: Console,
    held: contextlib.ExitStack,
) -> PretrainLoop:
    """The loop at its starting point; nothing is written before everything has been checked.

    Args:
        held: gets the lock on the run directory.
    """
    run_dir = Path(config.out)
    check_may_start(config.num_workers, 0)

    def lock() -> None:
        distributed.on_first(world, lambda: held.enter_context(only_run(run_dir)))

    # Before all else: with other ones, a rank would take part in other collectives than the rest.
    distributed.same_on_all(world, {"resume": config.resume, "out": config.out})
    restarted = distributed.restarted(world)
    # Locked before it looks for a checkpoint, which a run that is under way might be writing or removing.
    goes_on = config.resume is not None and distributed.on_first(world, run_dir.is_dir)
    if goes_on:
        lock()
    resume_from = distributed.on_first(world, lambda: _resume_point(config, run_dir, restarted))
    if data is None:
        data, heldout = open_data(config)
        # All ranks take part, also those of a machine that is not to verify its copy.
        distributed.on_each_machine(world, lambda: data.shards.verify() if config.verify_data else None)
    deepspeed = deepspeed_of(config)
    distributed.same_on_all(world, _started_with(config, data.shards, deepspeed))
    named = model is None
    if named:
        model = build_model(config, data)
    check_fit(config, model, data)
    others = other_words(config, data.shards) if world.first else None
    if others is not None:
        _log.warning("%s", others)
    check_heldout(heldout)
    check_installed(config.wandb)
    distributed.place(model, world)
    loop = PretrainLoop(config, model, data, heldout, run_dir, console, callbacks, world, deepspeed)
    if resume_from is not None:
        _resume(loop, resume_from)
    elif named:
        console.say(begins_with(config, model))
    run_dir.mkdir(parents=True, exist_ok=True)
    if not goes_on:
        lock()
    if resume_from is not None:
        _go_back(loop, asked=resume_from == Path(config.resume))
    if world.first:
        _write_options(config, run_dir, deepspeed)
    return loop


def _resume(loop: PretrainLoop, path: Path) -> None:
    """Restores a checkpoint; says so, and which options differ from those of its run."""
    loop.checkpoints.restore(path)
    loop.console.say(f"resumed from {path} at step {loop.step}")
    others = _other_options(loop.config, path.parent.parent / "config.yaml")
    if others:
        loop.console.say(f"other options than before: {', '.join(others)}")


def _write_options(config: PretrainConfig, run_dir: Path, deepspeed: dict | None) -> None:
    """Writes config.yaml and, for a run under DeepSpeed, deepspeed.json."""
    remove_unfinished(run_dir)
    # A run goes back to a step once: who starts it again with this file does not want to lose what came after it.
    kept = dataclasses.replace(config, resume="auto" if config.resume == "auto" else None)
    write_whole(run_dir / "config.yaml", kept.to_yaml(), CheckpointError)
    if deepspeed is not None:
        write_whole(run_dir / "deepspeed.json", json.dumps(deepspeed, indent=1) + "\n", CheckpointError)


def _started_with(config: PretrainConfig, shards: ShardSet, deepspeed: dict | None) -> dict:
    """What has to be the same in every process of a run. The data's path may differ between machines."""
    from .. import __version__

    options = {name: value for name, value in config.options().items() if name not in NEUTRAL | {"deepspeed"}}
    every = {"save_every": config.save_every, "log_every": config.log_every}  # both need all ranks
    return options | every | {"data": shards.manifest.digest(), "DeepSpeed": deepspeed, "fastbert": __version__}


def _other_options(config: PretrainConfig, path: Path) -> list[str]:
    """What differs from the options that a run was last started with: on purpose, or because one was forgotten."""
    try:
        before, now = PretrainConfig.from_yaml(path).options(), config.options()
    except InputError:  # none there, or of another version
        return []
    return arithmetic.differing(before, {name: value for name, value in now.items() if name not in NEUTRAL})


def _go_back(loop: PretrainLoop, *, asked: bool) -> None:
    """Sets the checkpoints after the one that the run resumes from aside, so that a later resume does not take one of
    them for the newest, and none that is damaged counts as one of those to keep.

    Args:
        asked: whether the user asked for this checkpoint, to give up what came after it: the model in the run directory
            may come from there, so it no longer counts as the best. A run that passes over damaged checkpoints comes to
            the same model again.
    """
    directory = loop.run_dir / "checkpoints"
    left = distributed.on_first(loop.engine.world, lambda: checkpoint.leave_behind(directory, loop.step))
    if left:
        if asked:
            loop.best = {}
        loop.console.say(f"left behind, and not removed: {', '.join(path.name for path in left)}")


def deepspeed_of(config: PretrainConfig) -> dict | None:
    """DeepSpeed's configuration; None for a run without DeepSpeed."""
    options = DeepSpeedOptions(config.deepspeed, config.zero, config.offload)
    if not options.asked:
        return None
    if config.async_save:
        raise InputError("async_save does not go with DeepSpeed, whose ranks write their shards together")
    return configuration(options, config.precision, config.clip)


def _resume_point(config: PretrainConfig, run_dir: Path, restarted: bool) -> Path | None:
    """The checkpoint to continue from, or None to start anew.

    Args:
        restarted: whether torchrun has started the processes again, with the same command.

    Raises:
        InputError: the directory is not for this run.
        CheckpointError: there is no checkpoint that can be read.
    """
    check_run_name(run_dir)
    if run_dir.exists() and not run_dir.is_dir():
        raise InputError(f"{run_dir}: expected a directory for the run, got a file")
    if config.resume is None:
        _check_new(run_dir)
        return None
    if config.resume != "auto":
        named = _named_checkpoint(Path(config.resume), run_dir)
        return _not_again(named, run_dir) if restarted else named
    newest = checkpoint.newest(run_dir / "checkpoints")
    if newest is None:
        _check_room(run_dir)
    return newest


def _check_new(run_dir: Path) -> None:
    if _has_checkpoints(run_dir):
        raise InputError(f"{run_dir} already holds a run: resume it with --resume auto, or choose another --out")
    if (run_dir / "model").exists() and (run_dir / "report.html").exists():  # the checkpoints were removed
        raise InputError(f"{run_dir} already holds the model of a run that has ended: choose another --out")
    _check_room(run_dir)


def _named_checkpoint(path: Path, run_dir: Path) -> Path:
    """The path, a checkpoint of this run, or of another one if there is none in this directory."""
    if (path / "checkpoints").is_dir():
        hint = f"--out {path} --resume auto continues it"
        raise InputError(f"{path}: expected auto or a checkpoint to resume from, got a run's directory; {hint}")
    if path.resolve().parent != (run_dir / "checkpoints").resolve():
        if _has_checkpoints(run_dir):
            raise InputError(
                f"{run_dir} already holds a run, of which {path} is no checkpoint: go on from one of its own, or "
                "choose another --out"
            )
        _check_room(run_dir)
    checkpoint.verify(path)
    return path


def _not_again(named: Path, run_dir: Path) -> Path:
    """The newest checkpoint, if the run has gone back to ``named`` and was then started again: each restart would go
    back once more. If it has not come as far as a checkpoint since, ``named`` (which it may not have gone back to yet).
    """
    directory = run_dir / "checkpoints"
    if named.resolve().parent != directory.resolve():
        return named
    newest = checkpoint.newest(directory)
    if newest is None or newest.name == named.name or checkpoint.launch_of(newest) != distributed.launch():
        return named
    _log.warning("torchrun has started the run again: it goes on from %s, and not back to %s", newest, named)
    return newest


def _has_checkpoints(run_dir: Path) -> bool:
    directory = run_dir / "checkpoints"
    return directory.is_dir() and any(directory.iterdir())


def _check_room(run_dir: Path) -> None:
    """Raises InputError if a new run would mix its files with something else, or overwrite another model."""
    for name, what in _OTHERS.items():
        if (run_dir / name).exists():
            raise InputError(f"{run_dir} already holds {what}: choose another --out")
