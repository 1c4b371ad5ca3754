"""The rows of multiple-choice data sets: context, endings and label, by `choice_forms`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import Row
from .choice_conversions import converted, usual
from .choice_forms import LETTERS, REGULAR, Form, form_of, is_passage, is_passage_name, is_table
from .files import shorten
from .hub_files import NO_LABEL, class_number

_OTHERS = (
    "HellaSwag, CODAH, RACE, MuTual, QuaRTz, ARC, OpenBookQA, CommonsenseQA, JCommonsenseQA, QASC, MMLU, C-Eval, "
    "CMMLU, MMLU-Pro, SuperGPQA, MedQA, MedMCQA, AQuA, AGIEval, ScienceQA, WIQA, DREAM, ReClor, QuAIL, LogiQA, MCTest, "
    "SciQ, COPA, PIQA, SocialIQA, CosmosQA, Belebele, CaseHOLD, WinoGrande, alphaNLI, ComVE or Story Cloze"
)
_ALONE = (("question",), ("Question",), ("question_stem",), ("hint",))
"""The contexts of data sets whose questions have no passage of another name."""


class OtherCount(ValueError):
    """A label whose number shows that all labels of the file count from another number than those of its form: none of
    them can be trusted, so that it is no matter of one row."""


def row_of(index: int, values: dict[str, Any], ignore_label: bool) -> Row:
    """The row for the values of a record; its label is the number of an ending, from 0, as a string.

    Args:
        index: the number of the row, which becomes its id.
        values: by column.
        ignore_label: whether a label that is not one of the endings counts as no label; otherwise it is an error.

    Raises:
        ValueError: the row cannot be used; the message says what was expected.
        OtherCount: nor can the file.
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
    context = " ".join(_text(values[column]) for column in form.context).strip()
    if not context and not form.open:
        raise ValueError("expected a text before the endings, got an empty one")
    try:
        label = _place(values.get(form.label), form, endings, names)
    except ValueError:
        if not ignore_label:
            raise
        label = None
    return Row(str(index), (context, *texts), label)


def _endings(form: Form, values: dict[str, Any]) -> tuple[Sequence[Any], Sequence[str] | None]:
    """The endings of a row, and the names that the row itself gives them, to which its label may refer, or None."""
    if len(form.endings) > 1:
        return [values.get(column) for column in form.endings], None
    endings = values[form.endings[0]]
    if not is_table(endings):
        return endings, None
    names = endings.get("label")
    return endings["text"], [str(name) for name in names] if names and isinstance(names, list) else None


def _text(value: Any) -> str:
    """The text of a context, whose parts may be a list."""
    return " ".join(part.strip() for part in value) if isinstance(value, list) else str(value).strip()


def _check_passage(form: Form, values: dict[str, Any]) -> None:
    """Raises ValueError for a question about a text in a column that the form does not have: without the text it can
    only be guessed at."""
    if form.context not in _ALONE:
        return
    others = (name for name in values if is_passage_name(name) and name not in form.columns)
    text = next((name for name in others if is_passage(values[name])), None)
    if text is not None:
        raise ValueError(
            f"expected a question that stands alone, or RACE's columns (article, question, options, answer), got "
            f"{form.beginning or form.context[0]} and also {text}, which would be left out: call the columns as RACE "
            f"does, or remove {text}"
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


def _place(value: Any, form: Form, endings: Sequence[Any], names: Sequence[str] | None) -> str | None:
    """The number of the right ending, from 0, as a string; None for no label.

    Args:
        value: the label in the file: the name, the letter or the number of an ending, or in a list its text.
        form: of the row.
        endings: of the row.
        names: of the endings, if the row has any.

    Raises:
        ValueError: it is none of these, or may be a number as well as a text.
        OtherCount: it is a number, and the file's numbers begin with another one.
    """
    text, count, first = label_of(value), len(endings), form.first
    if not text:
        return None
    known = list(LETTERS if names is None else names)[:count]
    if text in known:
        return str(known.index(text))
    if text.upper() in known and len(text) == 1:
        place = known.index(text.upper())
    else:
        place = int(text) - first if text.isdecimal() else -1
    _check_kind(text, form, known)
    if names is None and len(form.endings) == 1:
        same = [number for number, ending in enumerate(endings) if _is_same(value, ending)]
        if len(same) == 1 and same != [place]:
            if place >= 0 if not text.isdecimal() else int(text) <= count:
                raise ValueError(
                    f"expected the letter or the number of an ending, or its text, got {text!r}, which is the text of "
                    "one and may mean another"
                )
            return str(same[0])
    if not 0 <= place < count:
        expected = f"expected the label to be one of {first} to {first + count - 1}, got {text!r}"
        if text.isdecimal() and place in ((count,) if first == 0 else (-1,)):
            raise OtherCount(
                f"{expected}, which shows that the labels of this file count from {1 - first}: all of them have to be "
                f"{'lowered' if first == 0 else 'raised'} by one"
            )
        raise ValueError(expected)
    return str(place)


def _check_kind(text: str, form: Form, known: Sequence[str]) -> None:
    """Raises ValueError for a label that is none of the known names, and a number that may mean several endings."""
    if form.lettered and form.label != "label" and text.upper() not in known:
        unsure = ": numbers may count from 0 or from 1" if text.isdecimal() else ""
        raise ValueError(f"expected a letter, {known[0]} to {known[-1]}, got {text!r}{unsure}")
    if text.isdecimal() and all(map(str.isdecimal, known)):  # the names do not begin with any number
        raise ValueError(f"expected the label to be one of {', '.join(known)}, got {text!r}")


def _is_same(value: Any, ending: Any) -> bool:
    """Whether a label is the text of an ending. A number is no text: MMLU's 1 is the number of an ending even if one of
    them is "1"."""
    return isinstance(value, (str, type(ending))) and str(value).strip() == str(ending).strip()
