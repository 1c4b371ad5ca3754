"""The forms of published multiple-choice data sets: which columns hold context, endings and right answer."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

LETTERS = string.ascii_uppercase
PASSAGES = (
    *("passage", "article", "story", "text", "context", "paragraph", "document", "dialogue", "hint"),
    *("question_para_step", "passages", "paragraphs"),
)
"""The names of the column with the text that a question is about, in various data sets: a text, or a list of them."""
_OTHER_PASSAGES = (
    *("background", "content", "contexts", "conversation", "documents", "evidence", "narrative", "paragraph_text"),
    "support",
)
"""More of them, of sets that are not among `FORMS`."""


@dataclass(frozen=True)
class Form:
    """The columns of a data set.

    Args:
        context: the columns of the text before the endings, which are joined by a blank.
        endings: a column of lists, or a column for each ending, of which a row may have `further` ones.
        label: the column that says which ending is right, by its number or letter, or by its name in a column of lists.
        beginning: the column of a text with which every ending begins; empty if there is none. If it is a question, a
            row must have it.
        first: the number of the first ending in the label column.
        open: whether the context may be empty.
        lettered: whether the label is the letter of an ending, where each has a column; numbers in a column of another
            name than ``label`` are then refused, since some sets count from 0 (MMLU) and some from 1 (KMMLU).
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
    Form(("context",), ("endings",), "label"),  # CaseHOLD in LexGLUE
    Form(("citing_prompt",), _numbered("holding_", range(5)), "label"),  # and its authors'
    Form(CODAH[1:2], CODAH[2:-1], "label"),
    Form(("question_propmt",), ("candidate_answers",), "correct_answer_idx"),  # CODAH on hubs, misspelt there
    Form(("article",), ("options",), "answer", "question"),  # RACE
    Form(("article",), ("options",), "answers"),  # MuTual, whose options go on with a dialogue
    Form(("para",), ("choices",), "answerKey", "question"),  # QuaRTz
    Form(("question",), ("choices",), "answerKey"),  # ARC, CommonsenseQA, QASC
    Form(("question_para_step",), ("choices",), "answer_label_as_choice", "question_stem"),  # WIQA
    Form(("question_stem",), ("choices",), "answerKey"),  # OpenBookQA on hubs
    Form(("hint",), ("choices",), "answer", "question", open=True),  # ScienceQA
    Form(("question",), ("choices",), "answer"),  # MMLU
    Form(("passage",), ("options",), "label", "question"),  # AGIEval
    Form(("text",), ("options",), "answer", "question"),  # LogiQA 2.0
    Form(("context",), ("options",), "label", "question"),  # LogiQA by EleutherAI
    Form(("question",), ("options",), "answer_idx"),  # MedQA, whose answer is a text
    Form(("question",), ("options",), "answer_letter"),  # SuperGPQA, whose answer is one too
    Form(("question",), ("options",), "answer"),  # MMLU-Pro
    Form(("question",), ("options",), "correct"),  # AQuA
    Form(("question",), ("options",), "label"),  # AGIEval where its passage is null
    Form(("story",), ("answer_options",), "answer", "question"),  # MCTest
    Form(("question",), tuple("ABCD"), "answer", lettered=True),  # C-Eval
    Form(("Question",), tuple("ABCD"), "Answer", lettered=True),  # CMMLU
    Form(("question",), ("opa", "opb", "opc", "opd"), "cop", first=1),  # MedMCQA
    Form(("dialogue",), ("choice",), "answer", "question"),  # DREAM
    Form(("context",), ("answers",), "label", "question"),  # ReClor
    Form(("support",), ("answers",), "label", "question", open=True),  # SciQ, as `choice_conversions` makes it
    Form(("context",), ("answers",), "correct_answer_id", "question"),  # QuAIL
    Form(("context",), ("options",), "correct_option", "query"),  # LogiQA on hubs
    Form(("premise",), ("choice1", "choice2"), "label", "question"),  # COPA
    Form(("question",), ("choice0", "choice1"), "label"),  # JCommonsenseQA
    Form(("goal",), ("sol1", "sol2"), "label"),  # PIQA
    Form(("context",), ("answerA", "answerB", "answerC"), "label", "question", first=1),  # SocialIQA
    Form(("context",), ("answerA", "answerB", "answerC"), "correct", "question", lettered=True),  # in its own release
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
_QUESTIONS = ("question", "query", "question_stem")


@functools.cache
def further(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names that columns of more endings have after these: E, F, ... after A to D, answer4, ... after answer3."""
    name, mark = columns[-1][:-1], columns[-1][-1]
    if mark.isdecimal():
        return _numbered(name, range(int(mark) + 1, len(LETTERS)))
    letters = LETTERS if mark.isupper() else LETTERS.lower()
    return tuple(name + letter for letter in letters[letters.index(mark) + 1 :])


def with_further(columns: tuple[str, ...], values: dict[str, Any]) -> tuple[str, ...]:
    """The columns of a row's endings: these, and those of `further` up to the last that has a text. An option E that
    nobody reads may be the right one."""
    more = further(columns)
    filled = [number for number, name in enumerate(more, 1) if str(values.get(name, "")).strip()]
    return (*columns, *more[: max(filled, default=0)])


def form_of(values: dict[str, Any]) -> Form | None:
    """The one of `FORMS` that fits a row, with the columns of all its endings; of several, preferably one whose label
    column the row has."""

    def fits(form: Form) -> bool:
        asked = [form.beginning] if form.beginning in _QUESTIONS else []
        if not all(is_text(name, values.get(name)) for name in (*form.context, *asked)):
            return False
        if any(is_passage(values.get(name)) for name in _QUESTIONS if name not in form.columns):
            return False  # the question would be left out
        found = [values.get(column) for column in form.endings]
        if len(found) > 1:
            return None not in found
        return isinstance(found[0], list) and not any(isinstance(ending, (list, dict)) for ending in found[0])

    values = {name: value["text"] if is_table(value) else value for name, value in values.items()}
    found = [form for form in FORMS if fits(form)]
    form = next((form for form in found if form.label in values), found[0] if found else None)
    if form is None or len(form.endings) == 1:
        return form
    return replace(form, endings=with_further(form.endings, values))


def is_table(value: Any) -> bool:
    """Whether a value is a table of two lists: the endings and their names, which the label refers to."""
    return isinstance(value, dict) and isinstance(value.get("text"), list)


def is_text(column: str, value: Any) -> bool:
    """Whether the value of a column can be a context: a text, also an empty one, or, as a passage, a list of texts."""
    return isinstance(value, str) or (column in PASSAGES and isinstance(value, list) and is_passage(value))


def is_passage_name(column: str) -> bool:
    """Whether a column's name says that it has the text that a question is about."""
    return column.lower() in (*PASSAGES, *_OTHER_PASSAGES)


def is_passage(value: Any) -> bool:
    """Whether a value is a text that is not empty, or a list of texts of which one is not."""
    texts = value if isinstance(value, list) else [value]
    return all(isinstance(text, str) for text in texts) and any(map(str.strip, texts))
