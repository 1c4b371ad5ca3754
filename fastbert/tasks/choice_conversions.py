"""Multiple-choice data sets whose rows are not as in `choice_forms`: conversions; objects with several questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .choice_forms import FORMS, FULL, LETTERS, REGULAR, SCIQ, form_of, is_passage_name, with_further
from .files import shorten
from .hub_files import Record


def converted(index: int, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a row as columns of one of `choice_forms.FORMS`, if there is a form for it.

    Args:
        index: the number of the row. If the right ending stands in a column of its own, its place depends on this.
        values: by column.

    Raises:
        ValueError: there are fewer than four endings; or as `usual` does.
    """
    if set(FULL[:-1]) <= set(values) and form_of(values) is None:
        values = _regular(index, values)
    elif set(SCIQ) <= set(values):
        values = _of_sciq(index, values)
    return usual(values)


def usual(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a row, with the peculiarities of some sets (`_UNUSUAL`) converted to columns of `FORMS`.

    Raises:
        ValueError: a sentence without a gap for its options, or a first observation without a second.
    """
    for columns, change in _UNUSUAL:
        if all(column in values for column in columns):
            values = values | change(values)
    return values


def _regular(index: int, values: dict[str, Any]) -> dict[str, Any]:
    """A row in SWAG's "full" form, converted to the regular one."""
    four, place = _placed(index, values["gold-ending"], [values.get(name) for name in FULL[3:]])
    endings = dict(zip(REGULAR.endings, four, strict=True))
    return {"sent1": values["sent1"], "sent2": values["sent2"], **endings, "label": place}


def _of_sciq(index: int, values: dict[str, Any]) -> dict[str, Any]:
    """A row of SciQ with its answers as a list; not every question has a supporting text."""
    wrong = [values.get(name) for name in with_further(SCIQ[2:], values)]
    answers, place = _placed(index, values["correct_answer"], wrong, 1 + len(wrong))
    return {"support": values.get("support", ""), "question": values["question"], "answers": answers, "label": place}


def _placed(index: int, right: Any, wrong: Sequence[Any], count: int = 4) -> tuple[list[Any], int]:
    """So many endings, and the index of the right one, which depends on the row's number so that all are equally
    frequent.

    Raises:
        ValueError: there are fewer.
    """
    wrong = [ending for ending in wrong if ending is not None and str(ending).strip()]
    place = index % count
    endings = [*wrong[:place], right, *wrong[place : count - 1]]
    if len(endings) != count:
        raise ValueError(f"expected {count} endings, got {len(endings)}")
    return endings, place


def _of_question(values: dict[str, Any]) -> dict[str, Any]:
    """ARC, OpenBookQA, CommonsenseQA, QASC and WIQA as their authors publish them have the choices in the question; and
    WIQA the paragraph."""
    question = values["question"]
    if not isinstance(question, dict) or not isinstance(question.get("choices"), list):
        return {}
    choices = [choice for choice in question["choices"] if isinstance(choice, dict)]
    table = {"text": [choice.get("text") for choice in choices], "label": [choice.get("label") for choice in choices]}
    if "para_steps" in question:
        paragraph = {"question_stem": question.get("stem"), "question_para_step": question["para_steps"]}
        label = "answer_label_as_choice"
        return {**paragraph, "choices": table, **({label: question[label]} if label in question else {})}
    beside = {name: text for name, text in question.items() if is_passage_name(name) and name not in values}
    return {**beside, "question": question.get("stem"), "choices": table}


def _of_options(values: dict[str, Any], column: str = "options") -> dict[str, Any]:
    """MedQA's and MCTest's options are an object, whose keys are their letters."""
    options = values[column]
    if not isinstance(options, dict) or isinstance(options.get("text"), list):
        return {}
    return {column: {"text": list(options.values()), "label": list(options)}}


def _of_dialogue(values: dict[str, Any]) -> dict[str, Any]:
    """DREAM's turns are a list, and its answer is the text of a choice."""
    turns, choices, answer = values["dialogue"], values["choice"], values.get("answer")
    found = {"dialogue": " ".join(map(str, turns)) if isinstance(turns, list) else turns}
    if isinstance(choices, list) and answer not in (None, ""):
        # With repr's quotes, an answer that is none of the choices is not taken for a number or letter.
        found["answer"] = choices.index(answer) if answer in choices else repr(answer)
    return found


def _of_premise(values: dict[str, Any]) -> dict[str, Any]:
    """COPA's question is the word cause or effect; it is replaced by what its authors asked people."""
    asked = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
    return {"question": asked.get(str(values["question"]), values["question"])}


def _of_sentence(values: dict[str, Any]) -> dict[str, Any]:
    """WinoGrande's options fill a gap; an ending is an option with the text after the gap, as its authors do it."""
    parts = str(values["sentence"]).split("_")
    if len(parts) != 2:
        raise ValueError(f"expected a sentence with one _, got {shorten(str(values['sentence']))!r}")
    options = with_further(("option1", "option2"), values)
    return {"sentence": parts[0], **{name: _before(values.get(name, ""), parts[1]) for name in options}}


def _of_observations(values: dict[str, Any]) -> dict[str, Any]:
    """alphaNLI's hypotheses lie between two observations: the second is appended to each.

    Raises:
        ValueError: there is no second observation.
    """
    after = str(values.get("obs2", "")).strip()
    if not after:
        raise ValueError("expected a second observation in obs2, got an empty one")
    return {name: _before(values.get(name, ""), f" {after}") for name in with_further(("hyp1", "hyp2"), values)}


def _before(option: Any, more: str) -> str:
    """An ending: an option and the text after it; empty, and so refused, if the option is empty."""
    return f"{option}{more}" if str(option).strip() else ""


def _hub_observations(values: dict[str, Any]) -> dict[str, Any]:
    columns = ("observation_1", "observation_2", *with_further(("hypothesis_1", "hypothesis_2"), values))
    return {column[:3] + column.rpartition("_")[2]: values.get(column, "") for column in columns}


_UNUSUAL: tuple[tuple[tuple[str, ...], Callable[[dict[str, Any]], dict[str, Any]]], ...] = (
    (("question",), _of_question),
    (("question", "options"), _of_options),
    (("story", "answer_options"), partial(_of_options, column="answer_options")),
    (("dialogue", "question", "choice"), _of_dialogue),
    (("premise", "choice1", "choice2", "question"), _of_premise),
    (("sentence", "option1", "option2"), _of_sentence),
    (("observation_1", "hypothesis_1", "hypothesis_2"), _hub_observations),
    (("obs1", "hyp1", "hyp2"), _of_observations),
)
PLACES = ("dialogue", "questions", "id")
"""The names for the parts of DREAM's dialogues, which are lists."""


def apart(values: dict[str, Any]) -> list[dict[str, Any]]:
    """One object per question, each with the context, if an object has several questions as in RACE and DREAM;
    otherwise the object itself.

    Raises:
        ValueError: the parts of the object do not belong together; the message says what was expected.
    """
    questions = values.get("questions")
    if not isinstance(questions, list):
        return [values]
    rest = {name: value for name, value in values.items() if name != "questions"}
    if "dialogue" in values:
        if not all(isinstance(question, dict) for question in questions):
            raise ValueError(f"expected objects as the questions of a dialogue, got {shorten(repr(questions))}")
        return [rest | question for question in questions]
    columns = {"question": questions, "options": values.get("options"), "answer": values.get("answers")}
    columns = {name: column for name, column in columns.items() if column is not None}
    if any(not isinstance(column, list) or len(column) != len(questions) for column in columns.values()):
        raise ValueError(f"expected options and answers for each of {len(questions)} questions, got others")
    return [rest | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


OBJECTS = (
    ("article", "questions", "options"),  # RACE's own
    *((*form.context, *form.endings) for form in FORMS),
    FULL[:-1],  # the last distractor is not used
    SCIQ,
    *(columns for columns, _ in _UNUSUAL),
)
"""The sets of keys by which a row in JSON is recognised: it has all keys of one of them."""


def values_of(record: Record) -> dict[str, Any]:
    """The values of a record as in its authors' files: a class that has a letter or a number as its name is called by
    it. MedMCQA numbers the right answers from 1, but in Parquet files, where they are classes, from 0."""
    values = dict(record.values)
    for column, names in record.names.items():
        number = values.get(column)
        if isinstance(number, int) and 0 <= number < len(names):
            if column == "cop":
                values[column] = number + 1
            elif all(name in LETTERS or name.isdecimal() for name in names):
                values[column] = names[number]
    return values
