"""The reference answers of a question, in the forms that files of questions have them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .bad_rows import called
from .base import Row
from .files import shorten
from .squad_metrics import normalise

_log = logging.getLogger("fastbert")
# Thai and Lao, Burmese, Khmer, kana, Chinese characters. Korean has blanks between words.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff]"
)
_KOREAN = re.compile("[\uac00-\ud7a3]")
# The text of an object, of a list of objects, or of a list of texts.
_LITERAL = re.compile(
    r"""\s*(\{\s*['"](text|answer_start)['"]\s*:|\[\s*\{\s*['"]|\[\s*(['"]).*\3\s*\]\s*$)""", re.DOTALL
)
_YES = ("true", "1", "1.0")  # is_impossible, in small letters


@dataclass(frozen=True)
class Answers:
    """The reference answers of a question, as in the file; none if it has no answer.

    Args:
        texts: the text of each answer.
        starts: where each begins in the context, in characters; -1 if the file does not tell.
        found: (begin, end) in characters of passages of the context that match an answer, perhaps in another spelling;
            only from files that have them besides the answers.
    """

    texts: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    found: tuple[tuple[int, int], ...] = ()


def span(context: str, answers: Answers) -> tuple[int, int] | None:
    """(begin, end) in characters of the first answer that is in the context at its position; None if there is none."""
    for begin, end in answers.found:
        if end <= len(context) and context[begin:end].strip():
            return begin, end
    for text, start in zip(answers.texts, answers.starts, strict=True):
        if text.strip() and start >= 0 and context.startswith(text, start):
            lead = len(text) - len(text.lstrip())
            return start + lead, start + len(text.rstrip())
    return None


def answers_of(question: dict, context: str, impossible: bool) -> Answers | None:
    """The reference answers of a question; None if the file does not tell them.

    Args:
        question: as in its file.
        context: the text in which the answers are.
        impossible: whether the task has questions without an answer (version 2.0).

    Raises:
        ValueError: they have another form, or do not belong to the version of the task; says what was expected.
    """
    given, marked = question.get("answers", question.get("answer")), _is_impossible(question.get("is_impossible"))
    if given is None:
        return Answers() if marked and impossible else None
    values = _listed(given)
    if not impossible and marked:
        raise ValueError("expected a question with an answer, got an impossible one, which belongs to squad2")
    if not impossible and not values:
        raise ValueError("expected a question with an answer, got one without, as squad2 has them")
    if marked and any(value["text"].strip() for value in values):
        raise ValueError("expected no answer to an impossible question, got one")
    values = [] if marked else values  # some files have an empty text
    texts, starts = tuple(v["text"] for v in values), tuple(_start(v.get("answer_start")) for v in values)
    found = tuple(_detected(question.get("detected_answers")))
    if texts and not found and max(starts) < 0:
        found = _labelled(question.get("labels"), context, texts)
    return Answers(texts, starts, found)


def has_plausible_answers(question: dict) -> bool:
    """Whether an impossible question has answers all the same, in a hub's object of lists: KLUE's loader puts plausible
    ones there. In SQuAD's own form, where these have a key of their own, that is an error."""
    answers = question.get("answers")
    texts = _list(answers.get("text")) if isinstance(answers, dict) else []
    return any(map(str.strip, map(str, texts))) and str(question.get("is_impossible")).lower() in _YES


def _listed(values: Any) -> list[dict]:
    """Answers in SQuAD's form, a list of objects, from any of the forms that files have: a text, a list of texts, an
    object, or an object of lists, as on hubs. Raises ValueError for anything else, and for one of them as the text of
    Python's or JSON's that a table has in its place: the whole of it would be the answer."""
    if isinstance(values, str) and _LITERAL.match(values):
        raise ValueError(f"expected answers as JSON, got them as one text, as in tables: {shorten(repr(values))}")
    if isinstance(values, str):
        values = [values] if values.strip() else []
    elif isinstance(values, dict) and isinstance(values.get("text"), list):
        starts = values.get("answer_start")
        starts = starts if isinstance(starts, list) else [None] * len(values["text"])
        if len(starts) != len(values["text"]):
            raise ValueError(f"expected a start for each of {len(values['text'])} answers, got {len(starts)}")
        values = [{"text": text, "answer_start": s} for text, s in zip(values["text"], starts, strict=True)]
    elif isinstance(values, dict):
        values = [values]
    if isinstance(values, list) and all(isinstance(v, str) for v in values):
        values = [{"text": text} for text in values]
    if not isinstance(values, list) or not all(isinstance(v, dict) and isinstance(v.get("text"), str) for v in values):
        raise ValueError(f"expected answers with a text each, got {shorten(repr(values))}")
    return values


def _is_impossible(value: Any) -> bool:
    """Whether a question has no answer. Tables have the word as a string, and "false" would be true in Python."""
    word = str(False if value is None else value).lower()
    if word not in (*_YES, "false", "0", "0.0"):
        raise ValueError(f"expected is_impossible to be true or false, got {shorten(repr(value))}")
    return word in _YES


def _detected(values: Any) -> Iterator[tuple[int, int]]:
    """(begin, end) of MRQA's detected answers in the context. The file has pairs, or on hubs a list of begins and one
    of ends; its ends are inclusive."""
    of_hub = isinstance(values, dict)
    for part in _list(values.get("char_spans") if of_hub else values):
        named = part if isinstance(part, dict) else {}
        columns = (_list(named.get(name)) for name in ("start", "end"))
        for found in zip(*columns, strict=False) if of_hub else _list(named.get("char_spans")):
            places = [place for place in found if isinstance(place, int) and place >= 0] if _is_pair(found) else []
            if len(places) == 2:
                yield places[0], places[1] + 1


def _labelled(values: Any, context: str, texts: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """(begin, end) of the places that MRQA's sets have under ``labels`` where lucadiliello published them. Nothing in
    such a file says that its ends are inclusive, so a place counts only if one of the answers is there, perhaps in
    another spelling.

    Raises:
        ValueError: there are places, but an answer at none of them.
    """
    parts = [part for part in _list(values) if isinstance(part, dict) and {"start", "end"} <= set(part)]
    places = [pair for part in parts for pair in zip(_list(part["start"]), _list(part["end"]), strict=False)]
    numbers = [(begin, end + 1) for begin, end in places if isinstance(begin, int) and isinstance(end, int)]
    found = tuple(place for place in numbers if place[0] >= 0 and _agrees(context[slice(*place)], texts))
    if parts and not found:
        raise ValueError(
            f"expected labels with the first and the last character of {shorten(repr(texts[0]))} in its context, got "
            f"{shorten(repr(values))}"
        )
    return found


def _agrees(part: str, texts: tuple[str, ...]) -> bool:
    """Whether a part of a context is one of these answers, perhaps in another spelling, but without the blank or the
    full stop after it, which it has if the file's ends are not inclusive."""
    if part.lower() in map(str.lower, texts):
        return True
    whole = part[:1].isalnum() and part[-1:].isalnum()
    return whole and normalise(part) in map(normalise, texts)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []


def _start(value: Any) -> int:
    """The number of a character, -1 for none. Tables with gaps have integers as 4.0, TQuAD (Turkish) has strings."""
    digits = str(value).removesuffix(".0")
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def say_if_of_characters(path: str | os.PathLike, rows: Iterable[Row]) -> bool:
    """Warns if most answers are in a script whose official figures are of characters, and returns whether that is so:
    the words that SQuAD's F1 compares are divided by blanks."""
    texts = [row.label.texts[0] for row in rows if row.label is not None and row.label.texts]

    def most(script: re.Pattern) -> bool:
        return 2 * sum(2 * len(script.findall(text)) > len(text) for text in texts) > len(texts)

    if most(_UNSPACED):
        _log.warning(
            "%s: most answers are in a script without blanks between words, for which SQuAD's F1 is hardly more than "
            "exact match: the official figures of DRCD, CMRC 2018, MLQA or JaQuAD are of characters or of segmented "
            "words",
            called(path),
        )
        return True
    if most(_KOREAN):
        _log.warning(
            "%s: most answers are in Korean, and these figures are SQuAD's: KorQuAD's own F1 is of characters, and its "
            "exact match leaves out more brackets and quotes",
            called(path),
        )
        return True
    return False
