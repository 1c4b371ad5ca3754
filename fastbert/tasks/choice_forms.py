"""The forms of published multiple-choice data sets: which columns hold context, endings and right answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .base import Row
from .files import shorten
from .hub_files import NO_LABEL, Record, class_number

LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class Form:
    """The columns of a data set.

    Args:
        context: the columns of the text before the endings, which are joined by a blank.
        endings: a column of lists, or a column for each ending.
        label: the column that says which ending is right, by its number or letter, or by its name in a column of lists.
        beginning: the column of a text with which every ending begins; empty if there is none. If it is a question, a
            row must have it.
        first: the number of the first ending in the label column.
        open: whether the context may be empty.
        lettered: whether the label is the letter of an ending, where each has a column.
    """

    context: tuple[str, ...]
    endings: tuple[str, ...]
    label: str
    beginning: str = ""
    first: int = 0
    open: bool = False
    lettered: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns but the label's, as in a header."""
        return (*self.context, *((self.beginning,) if self.beginning else ()), *self.endings)


def _numbered(name: str, numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{name}{number}" for number in numbers)


REGULAR = Form(("sent1",), _numbered("ending", range(4)), "label", "sent2")
"""SWAG's .csv; a "full" one has the columns `FULL`."""
FULL = ("sent1", "sent2", "gold-ending", *_numbered("distractor-", range(4)))
SCIQ = ("question", "correct_answer", *_numbered("distractor", range(1, 4)))
CODAH = ("category", "prompt", *_numbered("ending", range(4)), "label")
"""Columns of files without a header."""

FORMS = (
    REGULAR,
    Form(("ctx_a",), ("endings",), "label", "ctx_b"),  # HellaSwag
    Form(("ctx_a",), ("ending_options",), "label", "ctx_b"),  # and in its first release
    Form(CODAH[1:2], CODAH[2:-1], "label"),
    Form(("question_propmt",), ("candidate_answers",), "correct_answer_idx"),  # CODAH on hubs, misspelt there
    Form(("article",), ("options",), "answer", "question"),  # RACE
    Form(("article",), ("options",), "answers"),  # MuTual, whose options go on with a dialogue
    Form(("para",), ("choices",), "answerKey", "question"),  # QuaRTz
    Form(("question",), ("choices",), "answerKey"),  # ARC, CommonsenseQA, QASC
    Form(("question_stem",), ("choices",), "answerKey"),  # OpenBookQA on hubs
    Form(("question",), ("choices",), "answer"),  # MMLU
    Form(("passage",), ("options",), "label", "question"),  # AGIEval
    Form(("text",), ("options",), "answer", "question"),  # LogiQA 2.0
    Form(("question",), ("options",), "answer_idx"),  # MedQA, whose answer is a text
    Form(("question",), ("options",), "answer"),  # MMLU-Pro
    Form(("question",), ("options",), "correct"),  # AQuA
    Form(("question",), ("options",), "label"),  # AGIEval where its passage is null
    Form(("story",), ("answer_options",), "answer", "question"),  # MCTest
    Form(("question",), tuple("ABCD"), "answer", lettered=True),  # C-Eval
    Form(("Question",), tuple("ABCD"), "Answer", lettered=True),  # CMMLU
    Form(("question",), ("opa", "opb", "opc", "opd"), "cop", first=1),  # MedMCQA
    Form(("dialogue",), ("choice",), "answer", "question"),  # DREAM
    Form(("context",), ("answers",), "label", "question"),  # ReClor
    Form(("support",), ("answers",), "label", "question", open=True),  # SciQ, as `_of_sciq` makes it
    Form(("context",), ("answers",), "correct_answer_id", "question"),  # QuAIL
    Form(("context",), ("options",), "correct_option", "query"),  # LogiQA on hubs
    Form(("premise",), ("choice1", "choice2"), "label", "question"),  # COPA
    Form(("goal",), ("sol1", "sol2"), "label"),  # PIQA
    Form(("context",), ("answerA", "answerB", "answerC"), "label", "question", first=1),  # SocialIQA
    Form(("context",), _numbered("answer", range(4)), "label", "question"),  # CosmosQA
    # Belebele
    Form(("flores_passage",), _numbered("mc_answer", range(1, 5)), "correct_answer_num", "question", first=1),
    Form(("sentence",), ("option1", "option2"), "answer", first=1, open=True),  # WinoGrande
    Form(("obs1",), ("hyp1", "hyp2"), "label", first=1),  # alphaNLI
    Form((), ("sent0", "sent1"), "label", open=True),  # ComVE: the sentence against common sense
    Form(("FalseSent",), ("OptionA", "OptionB", "OptionC"), "label", lettered=True),  # and why it is
    Form(
        _numbered("InputSentence", range(1, 5)),
        _numbered("RandomFifthSentenceQuiz", (1, 2)),
        "AnswerRightEnding",  # Story Cloze
        first=1,
    ),
    Form(
        _numbered("input_sentence_", range(1, 5)),
        _numbered("sentence_quiz", (1, 2)),
        "answer_right_ending",  # XStoryCloze on hubs
        first=1,
    ),
)
_OTHERS = (
    "HellaSwag, CODAH, RACE, MuTual, QuaRTz, ARC, OpenBookQA, CommonsenseQA, QASC, MMLU, C-Eval, CMMLU, MMLU-Pro, "
    "MedQA, MedMCQA, AQuA, AGIEval, DREAM, ReClor, QuAIL, LogiQA, MCTest, SciQ, COPA, PIQA, SocialIQA, CosmosQA, "
    "Belebele, WinoGrande, alphaNLI, ComVE or Story Cloze"
)
_ALONE = (("question",), ("question_stem",))
"""The contexts of data sets whose questions have no passage."""
_QUESTIONS = ("question", "query")
_PASSAGES = ("passage", "article", "story", "text", "context", "paragraph", "document", "dialogue")
"""The names of the column with the text that a question is about, in various data sets."""


def label_column(values: dict[str, Any]) -> str:
    """The name of the column of labels, for a row with these values by column."""
    try:
        form = _form_of(_usual(values))
    except ValueError:
        form = None
    return "label" if form is None else form.label


def _form_of(values: dict[str, Any]) -> Form | None:
    """The one of `FORMS` that fits a row; of several, preferably one whose label column it has."""

    def fits(form: Form) -> bool:
        asked = [form.beginning] if form.beginning in _QUESTIONS else []
        if not all(isinstance(values.get(column), str) for column in (*form.context, *asked)):
            return False
        found = [values.get(column) for column in form.endings]
        if len(found) > 1:
            return None not in found
        return isinstance(found[0], list) and not any(isinstance(ending, (list, dict)) for ending in found[0])

    values = {name: value["text"] if _is_table(value) else value for name, value in values.items()}
    found = [form for form in FORMS if fits(form)]
    return next((form for form in found if form.label in values), found[0] if found else None)


def _usual(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a row, with the peculiarities of some sets (`_UNUSUAL`) converted to columns of `FORMS`.

    Raises:
        ValueError: a sentence without a gap for its options, or a first observation without a second.
    """
    for columns, change in _UNUSUAL:
        if all(column in values for column in columns):
            values = values | change(values)
    return values


def _of_question(values: dict[str, Any]) -> dict[str, Any]:
    """ARC, OpenBookQA, CommonsenseQA and QASC as their authors publish them have the choices in the question."""
    question = values["question"]
    if not isinstance(question, dict) or not isinstance(question.get("choices"), list):
        return {}
    choices = [choice for choice in question["choices"] if isinstance(choice, dict)]
    table = {"text": [choice.get("text") for choice in choices], "label": [choice.get("label") for choice in choices]}
    return {"question": question.get("stem"), "choices": table}


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
    return {"sentence": parts[0], **{name: _before(values[name], parts[1]) for name in ("option1", "option2")}}


def _of_observations(values: dict[str, Any]) -> dict[str, Any]:
    """alphaNLI's hypotheses lie between two observations: the second is appended to each.

    Raises:
        ValueError: there is no second observation.
    """
    after = str(values.get("obs2", "")).strip()
    if not after:
        raise ValueError("expected a second observation in obs2, got an empty one")
    return {name: _before(values[name], f" {after}") for name in ("hyp1", "hyp2")}


def _before(option: Any, more: str) -> str:
    """An ending: an option and the text after it; empty, and so refused, if the option is empty."""
    return f"{option}{more}" if str(option).strip() else ""


def _hub_observations(values: dict[str, Any]) -> dict[str, Any]:
    names = (("observation_", "obs"), ("hypothesis_", "hyp"))
    return {f"{own}{number}": values.get(f"{name}{number}", "") for name, own in names for number in (1, 2)}


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
    """The values of a record as in its authors' files: MedMCQA numbers the right answers from 1, but in Parquet files,
    where they are classes, from 0."""
    right = record.values.get("cop")
    is_class = "cop" in record.names and isinstance(right, int) and right >= 0
    return record.values | {"cop": right + 1} if is_class else record.values


def row_of(index: int, values: dict[str, Any], ignore_label: bool) -> Row:
    """The row for the values of a record; its label is the number of an ending, from 0, as a string.

    Args:
        index: the number of the row, which becomes its id.
        values: by column.
        ignore_label: whether a label that is not one of the endings counts as no label; otherwise it is an error.

    Raises:
        ValueError: the row cannot be used; the message says what was expected.
    """
    if set(FULL[:-1]) <= set(values) and _form_of(values) is None:
        values = _regular(index, values)
    elif set(SCIQ) <= set(values):
        values = _of_sciq(index, values)
    values = _usual(values)
    form = _form_of(values)
    if form is None:
        raise ValueError(
            f"expected all columns of SWAG ({', '.join(REGULAR.columns)}), {_OTHERS}, got {shorten(', '.join(values))}"
        )
    _check_passage(form, values)
    endings, names = [values[column] for column in form.endings], list(LETTERS) if form.lettered else []
    if len(endings) == 1:
        [endings], names = endings, list(LETTERS)
        if _is_table(endings):
            own = endings.get("label")
            endings, names = endings["text"], own if isinstance(own, list) else names
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


def _is_table(value: Any) -> bool:
    """Whether a value is a table of two lists: the endings and their names, which the label refers to."""
    return isinstance(value, dict) and isinstance(value.get("text"), list)


def _regular(index: int, values: dict[str, Any]) -> dict[str, Any]:
    """A row in SWAG's "full" form, converted to the regular one."""
    four, place = _placed(index, values["gold-ending"], [values.get(name) for name in FULL[3:]])
    endings = dict(zip(REGULAR.endings, four, strict=True))
    return {"sent1": values["sent1"], "sent2": values["sent2"], **endings, "label": place}


def _of_sciq(index: int, values: dict[str, Any]) -> dict[str, Any]:
    """A row of SciQ with its answers as a list; not every question has a supporting text."""
    four, place = _placed(index, values["correct_answer"], [values[name] for name in SCIQ[2:]])
    return {"support": values.get("support", ""), "question": values["question"], "answers": four, "label": place}


def _placed(index: int, right: Any, wrong: Sequence[Any]) -> tuple[list[Any], int]:
    """Four endings, and the index of the right one, which depends on the row's number so that all are equally frequent.

    Raises:
        ValueError: there are fewer than four.
    """
    wrong = [ending for ending in wrong if ending is not None and str(ending).strip()]
    place = index % 4
    four = [*wrong[:place], right, *wrong[place:3]]
    if len(four) != 4:
        raise ValueError(f"expected 4 endings, got {len(four)}")
    return four, place


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
