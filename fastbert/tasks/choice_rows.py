"""The rows of multiple-choice data sets: context, endings and label, by `choice_forms`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import Row
from .choice_conversions import converted, usual
from .choice_forms import LETTERS, REGULAR, Form, form_of, is_table
from .files import shorten
from .hub_files import NO_LABEL, class_number

_OTHERS = (
    "HellaSwag, CODAH, RACE, MuTual, QuaRTz, ARC, OpenBookQA, CommonsenseQA, QASC, MMLU, C-Eval, CMMLU, MMLU-Pro, "
    "MedQA, MedMCQA, AQuA, AGIEval, DREAM, ReClor, QuAIL, LogiQA, MCTest, SciQ, COPA, PIQA, SocialIQA, CosmosQA, "
    "Belebele, WinoGrande, alphaNLI, ComVE or Story Cloze"
)
_ALONE = (("question",), ("question_stem",))
"""The contexts of data sets whose questions have no passage."""
_PASSAGES = ("passage", "article", "story", "text", "context", "paragraph", "document", "dialogue")
"""The names of the column with the text that a question is about, in various data sets."""


def row_of(index: int, values: dict[str, Any], ignore_label: bool) -> Row:
    """The row for the values of a record; its label is the number of an ending, from 0, as a string.

    Args:
        index: the number of the row, which becomes its id.
        values: by column.
        ignore_label: whether a label that is not one of the endings counts as no label; otherwise it is an error.

    Raises:
        ValueError: the row cannot be used; the message says what was expected.
    """
    values = converted(index, values)
    form = form_of(values)
    if form is None:
        raise ValueError(
            f"expected all columns of SWAG ({', '.join(REGULAR.columns)}), {_OTHERS}, got {shorten(', '.join(values))}"
        )
    _check_passage(form, values)
    endings, names = _endings(form, values)
    # pandas writes the numbers of rows into a column whose name is empty.
    texts = _joined(values.get(form.beginning) if form.beginning else None, endings)
    context = " ".join(str(values[column]).strip() for column in form.context).strip()
    if not context and not form.open:
        raise ValueError("expected a text before the endings, got an empty one")
    try:
        label = _place(values.get(form.label), names, form.first, len(texts))
    except ValueError:
        if not ignore_label:
            raise
        label = None
    return Row(str(index), (context, *texts), label)


def _endings(form: Form, values: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The endings of a row, and their names, to which its label may refer."""
    if len(form.endings) > 1:
        return [values[column] for column in form.endings], list(LETTERS) if form.lettered else []
    endings = values[form.endings[0]]
    if not is_table(endings):
        return endings, list(LETTERS)
    names = endings.get("label")
    return endings["text"], names if isinstance(names, list) else list(LETTERS)


def _check_passage(form: Form, values: dict[str, Any]) -> None:
    """Raises ValueError for a question about a text in a column that the form does not have: without the text it can
    only be guessed at."""
    if form.context not in _ALONE:
        return
    text = next((name for name in _PASSAGES if isinstance(values.get(name), str) and values[name].strip()), None)
    if text is not None:
        raise ValueError(
            f"expected a question that stands alone, or RACE's columns (article, question, options, answer), got "
            f"{form.context[0]} and also {text}, which would be left out"
        )


def label_column(values: dict[str, Any]) -> str:
    """The name of the column of labels, for a row with these values by column."""
    try:
        form = form_of(usual(values))
    except ValueError:
        form = None
    return "label" if form is None else form.label


def _joined(beginning: str | None, endings: Sequence[Any]) -> list[str]:
    texts = ["" if ending is None else str(ending).strip() for ending in endings]
    if len(texts) < 2 or not all(texts):
        got = len(texts) if len(texts) < 2 else "an empty one"
        raise ValueError(f"expected {max(len(texts), 2)} endings, got {got}")
    return [f"{str(beginning or '').strip()} {text}".strip() for text in texts]


def label_of(value: Any) -> str:
    """A label as a string; empty if it is missing, which data-set hubs write as -1. "2.0" becomes "2": pandas writes
    integers in this way if the column has missing ones."""
    text = "" if value is None else str(value).strip()
    number = class_number(text)
    return "" if text in NO_LABEL else text if number is None else str(number)


def _place(value: Any, names: Sequence[Any], first: int, count: int) -> str | None:
    """The number of the right ending, from 0, as a string; None for no label."""
    text = label_of(value)
    if not text:
        return None
    known = [str(name) for name in names][:count]
    number = known.index(text) if text in known else int(text) - first if text.isdecimal() else -1
    if not 0 <= number < count:
        raise ValueError(f"expected the label to be one of {first} to {first + count - 1}, got {text!r}")
    return str(number)
