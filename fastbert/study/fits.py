"""Whether a row's model can do what a column asks of it: told before hours go into pre-training it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError
from .cells import Cell
from .definition import named

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Kinds that no task trains: they are looked at.
_FROZEN = ("elmo", "static")

# Rows that are encoded together to see whether they fit, and then forgotten.
_AT_ONCE = 1024


def check(cell: Cell) -> None:
    """Raises InputError, one sentence, where a fine-tuning would end in one."""
    from ..tasks import registry
    from ..tasks.text import TextTask
    from ..train.pretrain import model_settings

    spec, config = cell.task, cell.task.config(cell.seed)
    where = f"row {cell.row!r}, task {spec.column}"
    kind, layers = "static", 0
    if cell.model.static is None:
        architecture, settings = model_settings(cell.model.config, None)
        kind, layers, longest = architecture.model_type, settings.num_hidden_layers, settings.max_position_embeddings
        _check_samples(cell, architecture.model_class, settings.objectives)
        if longest is not None and config.max_seqlen > longest:
            raise InputError(f"{where}: max_seqlen must be at most the model's {longest}, got {config.max_seqlen}")
    if spec.features is not None:
        _check_layers(spec.features, layers, where)
    elif kind in _FROZEN:
        raise InputError(f"{where}: a model of type {kind} is not fine-tuned, expected features, got none")
    elif kind != "bert" and spec.task != "swag" and not isinstance(registry.get(spec.task), TextTask):
        raise InputError(f"{where}: a model of type {kind} has no head for {spec.task}, expected features or a BERT")
    if config.bilstm is not None and spec.features is None and kind != "bert":
        raise InputError(f"{where}: a BiLSTM stands on a BERT, got bilstm for a model of type {kind}")
    if config.auxiliary_lm and (spec.features is not None or kind in (*_FROZEN, "bert")):
        raise InputError(f"{where}: auxiliary_lm is a loss of a GPT that is fine-tuned, got a model of type {kind}")


def check_lengths(cell: Cell, tokenizer: Tokenizer) -> None:
    """Raises InputError where a row has no room in max_seqlen (a long question of SQuAD, a pair for a GPT)."""
    from ..train.pretrain import model_settings
    from .cells import rows_of

    config, settings = cell.task.config(cell.seed), None
    task, *parts = rows_of(cell)
    task.configure(config)
    if cell.model.static is None and cell.task.features is None:
        _, settings = model_settings(cell.model.config, None)
        if hasattr(settings, "extract_token_id"):  # which ids is for the fine-tuning to say: here they are counted
            settings.start_token_id = settings.delimiter_token_id = settings.extract_token_id = 0
        task.adopt(settings)
    with named(f"row {cell.row!r}, task {cell.task.column}"):
        for rows in parts:
            for begin in range(0, len(rows), _AT_ONCE):
                task.encode(rows[begin : begin + _AT_ONCE], tokenizer, config.max_seqlen)


def _check_samples(cell: Cell, model_class: type, objectives: tuple[str, ...]) -> None:
    samples = cell.model.config.samples
    pairs = samples.nsp and not getattr(model_class, "next_sentence", True)
    if samples.objective not in objectives or pairs:
        raise InputError(
            f"row {cell.row!r}: a {cell.model.name} needs samples of objective {' or '.join(objectives)}"
            f"{' and nsp false' if pairs else ''}, got {samples.objective} and nsp {str(samples.nsp).lower()}"
        )


def _check_layers(features: str, layers: int, where: str) -> None:
    from ..tasks.features import MIX, check_layers

    if features != MIX:
        try:
            check_layers(features, max(layers, 1))  # static vectors are a layer of their own
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
