"""Pre-trained models in a cache: each is made once, is resumed after an interruption, and is found by its key."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError, InputError
from ..files import whole_directory
from ..options import fitted_options
from ..result_files import write_json
from ..train.config import PretrainConfig
from . import corpus, keys, locks
from .definition import RowSpec, Study, named

_log = logging.getLogger("fastbert")
_WEIGHTS = "model.safetensors"
# The hash of weights that are kept before the end; result.json is written at the end and has that of the last weights.
_DIGEST = "weights.sha256"
_LOSSES = ("mlm_loss", "unigram_entropy", "mlm_acc")
_POINT = {"step": keys.is_count, "tokens_seen": keys.is_count, **dict.fromkeys(_LOSSES, keys.is_number)}
_STATIC = {"heldout": dict, "steps": keys.is_count, "tokens": keys.is_count, "curve": list, "weights": str}


def _is_curve(value: object) -> bool:
    """Whether a value is a curve: points with all the numbers that reports show."""
    return keys.fits(value, [_POINT]) and all(map(keys.is_number, (n for point in value for n in point.values())))


def _is_heldout(value: object) -> bool:
    return keys.fits(value, dict.fromkeys(_LOSSES, keys.is_finite)) and all(map(keys.is_finite, value.values()))


_HOLDS = {**_STATIC, "heldout": _is_heldout, "best_step": keys.is_count, "curve": _is_curve}
_CURVE = ("step", "mlm_loss", "mlm_acc", "unigram_entropy", "nsp_loss", "nsp_acc", "tokens_seen")


@dataclass(frozen=True)
class Wanted:
    """A model that a study needs.

    Args:
        config: the recipe of its pre-training.
        key: the hash of everything that determines it.
        steps: the steps after which its weights are kept, besides the last.
        static: options of word2vec, if static vectors are needed in place of a model.
    """

    config: PretrainConfig
    key: str
    steps: tuple[int, ...] = ()
    static: dict | None = None

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self.config.model if self.static is None else "word2vec"

    @property
    def sentence_name(self) -> str:
        """Its name in error messages, without that of a row, since several rows may share it."""
        return f"the pre-training of {self.name}, seed {self.config.seed}, lr {self.config.lr:g}"

    @property
    def directory(self) -> Path:
        """Its directory in the cache."""
        return Path(self.config.out).parent

    def model_at(self, step: int) -> Path:
        """The directory of the model after this step; for the last step, of the one with the lowest held-out loss."""
        return self.directory / "steps" / str(step) if step < self.config.steps else Path(self.config.out) / "model"

    def result(self) -> dict | None:
        """Its result, if it is finished and all of its steps' weights exist; else None."""
        holds = _HOLDS if self.static is None else _STATIC
        found = keys.result_of(self.key, self.directory / "result.json", holds)
        return None if self.missing() else found

    def missing(self) -> list[int]:
        """The steps whose weights are needed and do not exist."""
        return [step for step in self.steps if not (self.model_at(step) / _DIGEST).is_file()]


def wanted(study: Study, row: RowSpec, seed: int, data: Path, cache: Path) -> Wanted:
    """The model of a row. Raises InputError if its options do not fit its kind."""
    from ..train.model_and_data import model_settings
    from ..train.word2vec import check_installed

    config = study.pretraining(row, seed, data, "")
    if row.static is None:
        with named(f"{study.source}, row {row.name!r}"):
            model_settings(config, None)
    key = keys.of_pretraining(config, data / "manifest.json")
    if row.static is not None:
        if row.at != 1.0 or row.keep:
            raise InputError(
                f"{study.source}, row {row.name!r}: static vectors are taken at their end, got another place"
            )
        _word2vec(config, row.static, f"{study.source}, row {row.name!r}, static")
        key = keys.digest({"static": row.static, "like": key})
        made = Wanted(dataclasses.replace(config, out=str(cache / "models" / key / "run")), key, (), row.static)
        if made.result() is None:
            check_installed()
        return made
    config = dataclasses.replace(config, out=str(cache / "models" / key / "run"))
    with named(f"{study.source}, row {row.name!r}"):
        steps = sorted({step_at(config, share) for share in (*row.keep, row.at)} - {config.steps})
    return Wanted(config, key, tuple(steps))


def step_at(config: PretrainConfig, share: float) -> int:
    """The step after which a share of the pre-training is done. Before the end it must be a step with an evaluation,
    since weights are kept there, and an additional evaluation could select another best model.

    Raises:
        InputError: there is no evaluation within 0.005 of the share.
    """
    every = config.eval_every
    step = config.steps if share == 1 else min(max(round(share * config.steps / every), 1) * every, config.steps)
    if abs(step / config.steps - share) > 0.005:
        raise InputError(
            f"a share of the pre-training must end with an evaluation, every {every} of {config.steps} steps, got "
            f"{share:g}: the nearest is {step / config.steps:g}"
        )
    return step


def merged(models: Sequence[Wanted]) -> list[Wanted]:
    """The distinct models, in order, each with all the steps that are needed of it."""
    found: dict[str, Wanted] = {}
    for model in models:
        steps = {*model.steps, *(found[model.key].steps if model.key in found else ())}
        found[model.key] = dataclasses.replace(model, steps=tuple(sorted(steps)))
    return list(found.values())


def check_weights(model: Wanted, step: int) -> None:
    """Raises DataError unless the weights are those that the pre-training wrote; results of others must not be kept."""
    made, file = model.result(), model.model_at(step) / _WEIGHTS
    if made is None:
        raise DataError(
            f"{model.directory}: expected a finished pre-training, got one that another study has begun again; "
            "the same command waits for it"
        )
    if not file.is_file() or digest_at(model, made, step) != keys.file_digest(file):
        what = "others" if file.is_file() else "none"
        raise DataError(
            f"{file}: expected the weights that the pre-training left, got {what}; remove {model.directory}, and "
            "the same command makes them again"
        )


def digest_at(model: Wanted, made: dict, step: int) -> str:
    """The SHA-256 that was recorded when the weights after this step were written; ``made``: the model's result."""
    if step == model.config.steps:
        return made["weights"]
    return (model.model_at(step) / _DIGEST).read_text(errors="replace")


def make(model: Wanted) -> dict:
    """The model's result. If there is none, the model is pre-trained first, from its last checkpoint if it has one.

    Raises:
        KeyboardInterrupt: a signal ended the pre-training, which has saved a checkpoint or is finished.
    """
    directory = model.directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Another study with the same cache may be making it.
    with locks.held(directory):
        done = model.result()
        if done is None:
            _leave_behind(model)
            done = _pretrain(model) if model.static is None else _train_static(model)
    return done


def _pretrain(model: Wanted) -> dict:
    result = _run(model)
    if model.missing():  # it was resumed from a later step
        _forget(model)
        result = _run(model)
    if not result.heldout:
        raise InputError(
            f"{model.sentence_name}: expected a finite held-out loss at some evaluation, got none; another lr or "
            "precision may help"
        )
    found = _figures(model, result)
    write_json(found, model.directory / "result.json")
    shutil.rmtree(Path(model.config.out) / "checkpoints")  # three times the size of the model, and no longer needed
    if result.late_signal:  # the signal is for the study, which has more to do
        raise KeyboardInterrupt
    return found


def _forget(model: Wanted) -> None:
    """Makes the next run start from the beginning, by removing the checkpoints and the result, not the model."""
    shutil.rmtree(Path(model.config.out) / "checkpoints", ignore_errors=True)
    (model.directory / "result.json").unlink(missing_ok=True)


def _leave_behind(model: Wanted) -> None:
    """Moves checkpoints aside if none of them is valid, so that the pre-training starts from the beginning: a study
    must not stop at something that it can make again."""
    from ..train import checkpoint

    directory = Path(model.config.out) / "checkpoints"
    found, skipped = checkpoint.latest_valid(directory)
    if found is not None or not skipped:
        return
    _log.warning(
        "%s: none of its %d checkpoints is valid, and the pre-training starts from the beginning; the first: %s",
        directory,
        len(skipped),
        skipped[0][1],
    )
    checkpoint.leave_behind(directory, -1)


def _run(model: Wanted):
    from ..train.model_and_data import build_model, open_data
    from ..train.pretrain import pretrain

    if (model.directory / "result.json").is_file():  # finished without some weights: repeated, with the same bits
        _forget(model)
    data, heldout = open_data(model.config)
    corpus.verify(data.shards)  # `pretrain` checks what it opens itself
    network = build_model(model.config, data)

    def keep(row: dict) -> None:
        if row["kind"] == "heldout" and row["step"] in model.steps:
            _save(network, model.model_at(row["step"]))

    config = dataclasses.replace(model.config, save_every=model.config.eval_every)
    result = pretrain(config, model=network, data=data, heldout=heldout, callbacks=[keep], quiet=True)
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def _train_static(model: Wanted) -> dict:
    """Trains word2vec on about as many tokens as the row's pre-training would see, in whole epochs."""
    from ..train.model_and_data import open_data
    from ..train.word2vec import ShardSentences, train_word2vec
    from .machine import Clock, made_by

    clock, config = Clock(), model.config
    shards = open_data(config)[0].shards
    epochs = max(round(config.steps * config.accumulate * config.token_budget / shards.num_tokens), 1)
    options = _word2vec(config, {"epochs": epochs, **model.static}, "static")
    manifest = shards.manifest
    network = train_word2vec(
        ShardSentences(shards),
        manifest.vocab_size,
        options,
        pad_token_id=manifest.special_ids.pad,
    )
    network.tokenizer_source = shards.directory
    target = model.model_at(config.steps)
    target.parent.mkdir(parents=True, exist_ok=True)
    _save(network, target)
    found = {
        "key": model.key,
        "heldout": {},
        "steps": config.steps,
        "tokens": options.epochs * shards.num_tokens,
        "curve": [],
        "weights": keys.file_digest(target / _WEIGHTS),
        "measured": {**clock.read(), **made_by()},
    }
    write_json(found, model.directory / "result.json")
    return found


def _word2vec(config: PretrainConfig, values: dict, where: str):
    """A row's options of word2vec. Raises InputError for an invalid one."""
    from ..train.word2vec import Word2VecConfig

    if "seed" in values:
        raise InputError(f"{where}: seed is the study's own to decide, expected no such option")
    with named(where):
        return Word2VecConfig(**fitted_options({**values, "seed": config.seed}, Word2VecConfig, where))


def _save(network, target: Path) -> None:
    """Writes a model directory, atomically."""
    with whole_directory(target) as fresh:
        network.save_pretrained(fresh)
        (fresh / _DIGEST).write_text(keys.file_digest(fresh / _WEIGHTS))


def _figures(model: Wanted, result) -> dict:
    """The result of a pre-training; everything that depends on time is under "measured"."""
    from .machine import made_by

    rows = [row for row in result.history if row["kind"] == "heldout"]
    each = result.tokens / result.steps
    curve = [
        {n: v for n, v in {**row, "tokens_seen": round(row["step"] * each)}.items() if n in _CURVE} for row in rows
    ]
    names = ("mlm_loss", "mlm_acc", "unigram_entropy", "most_frequent_acc", "nsp_acc")
    return {
        "key": model.key,
        "heldout": {name: result.heldout[name] for name in names if name in result.heldout},
        "best_step": result.heldout["step"],
        "steps": result.steps,
        "tokens": result.tokens,
        "curve": curve,
        "weights": keys.file_digest(Path(model.config.out) / "model" / _WEIGHTS),
        "measured": {"seconds": result.seconds, "processor_seconds": result.processor_seconds, **made_by()},
    }
