"""Checks that a row's model can be used for a column, before hours are spent on its pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError
from .cells import Cell, rows_of
from .definition import named

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How many rows are encoded at a time to see whether they fit.
_AT_ONCE = 1024


def check(cell: Cell) -> None:
    """Raises InputError if the fine-tuning would raise one."""
    from ..tasks import registry
    from ..tasks.fits import check_model
    from ..train.model_and_data import model_settings

    spec, config = cell.task, cell.task.config(cell.seed)
    task, kind, layers, longest = registry.get(spec.task), "static", 0, None
    if spec.features is not None:
        task.features = spec.features
    if cell.model.static is None:
        architecture, settings = model_settings(cell.model.config, None)
        kind, layers, longest = architecture.model_type, settings.num_hidden_layers, settings.max_position_embeddings
        _check_samples(cell, architecture.pretraining_class, settings.objectives)
    with named(f"row {cell.row!r}, task {spec.column}"):
        if longest is not None and config.max_seqlen > longest:
            raise InputError(f"max_seqlen must be at most the model's {longest}, got {config.max_seqlen}")
        check_model(task, kind, layers, config)


def check_lengths(cell: Cell, tokenizer: Tokenizer) -> None:
    """Raises InputError if a row does not fit into max_seqlen (a long question of SQuAD, a pair for a GPT)."""
    from ..train.model_and_data import model_settings

    config, settings = cell.task.config(cell.seed), None
    task, *parts = rows_of(cell)
    if cell.model.static is None and cell.task.features is None:
        _, settings = model_settings(cell.model.config, None)
        if hasattr(settings, "extract_token_id"):  # the fine-tuning sets them; here only the number matters
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
