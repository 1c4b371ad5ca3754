"""SQuAD's files of questions."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import DataError
from ..text_files import without_gz
from .bad_rows import BadRows, called
from .base import Row
from .files import check_text, load_json, parse_json, read_lines, shorten
from .hub_files import Record, is_hub_file, json_list_records, read_records
from .squad_answers import answers_of, has_plausible_answers
from .typed import TYPED, has_form, json_or_none, read_typed

_log = logging.getLogger("fastbert")
_LINES = (("question", "context"), ("context", "qas"), ("header",), ("question", "plot"), ("plot", "qa"))
"""The keys of an object that is a line of JSON: a hub's question, MRQA's context and the header before it, DuoRC's."""
_DUORC = {"plot": "context", "question_id": "id", "no_answer": "is_impossible", "qa": "qas"}
"""DuoRC's keys, and SQuAD's or MRQA's for them."""
_IDS = ("id", "qid", "guid", "question_id", "key")
"""The keys of a question's id, in SQuAD, MRQA, KLUE, iapp_wiki_qa_squad, and MRQA's sets by another loader."""
# A key of `_IDS` with a string or a number; inside of a string, its quotes would be escaped.
_ID = re.compile(rf'"({"|".join(_IDS)})"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)')


def read_questions(
    path: str | os.PathLike, bad_rows: BadRows, *, impossible: bool, ignore_answers: bool = False
) -> list[Row]:
    """Rows of (question, context), labelled with `Answers`, or with None if the file has no answers.

    Args:
        path: the file; ``-`` for standard input.
        bad_rows: what to do with questions that cannot be used.
        impossible: whether the task has questions without an answer (version 2.0).
        ignore_answers: whether invalid answers count as none, instead of making the question a bad row.

    Raises:
        DataError: the file has another form or no usable question; or by bad_rows.
    """
    if os.fspath(path) == TYPED:
        found = _typed(bad_rows)
    elif is_hub_file(path) and (not without_gz(path).lower().endswith(".json") or _has_lines(path, bad_rows)):
        found = _of_records(read_records(path, bad_rows), bad_rows)
    else:  # files in SQuAD's own form are called .json too
        found = _of_json(path, *_load(path, bad_rows), bad_rows)
    rows, seen, told = [], set(), ignore_answers
    for asked in found:
        try:
            row = _row(asked, impossible, ignore_answers)
            if row.id in seen:
                raise ValueError(f"expected every id once, got {row.id} again")
        except ValueError as error:
            bad_rows.refuse(f"{asked.where()}: {error}")
            continue
        seen.add(row.id)
        rows.append(row)
        if asked.plausible and not told:
            told, where = True, asked.where()
            _log.warning("%s: expected no answers to an impossible question, got some, which are left out", where)
    if not rows:
        raise bad_rows.none_left(path, "questions")
    return rows


@dataclass(frozen=True)
class _Asked:
    """A question as in its file.

    Args:
        question: the object with its text, its id and its answers; something else is described in words.
        context: the text in which the answer is.
        where: tells the place in the file, for messages. A function, since lines are only counted for bad questions.
        article: what the context was taken from, if the file tells it.
        plausible: whether answers that are only plausible have been left out of the question.
    """

    question: Any
    context: Any
    where: Callable[[], str]
    article: Hashable = None
    plausible: bool = False


def _load(path: str | os.PathLike, bad_rows: BadRows) -> tuple[Any, str]:
    """The value of a JSON file, and its text. Raises DataError as `load_json` does, and for a table."""
    try:
        return load_json(path, bad_rows)
    except DataError:
        if not without_gz(path).lower().endswith((".csv", ".tsv")):
            raise
        raise DataError(
            f"{path}: expected questions as JSON or Parquet, got a table, in which answers have no usual form; "
            "pandas' to_json(OUT, orient='records', lines=True) makes .jsonl of a data frame, whose answers have to be "
            "objects (ast.literal_eval makes them of texts)"
        ) from None


def _has_lines(path: str | os.PathLike, bad_rows: BadRows) -> bool:
    """Whether a file has one object per line, by its first line. In SQuAD's own form there is only one line, or no line
    is a complete object."""
    if not os.path.isfile(path):  # a pipe can only be read once
        return False
    unread = BadRows(skip=True, encoding=bad_rows.encoding)
    lines = (line for _, line in read_lines(path, unread) if line.strip())
    first, second = next(lines, ""), next(lines, None)
    return second is not None and has_form(json_or_none(first), _LINES)


def _apart(records: Iterable[Record | None]) -> Iterator[Record | None]:
    """Records with one question each, from records that may have several about a context, as in MRQA and DuoRC; headers
    are skipped."""
    for record in records:
        duorc = record is not None and "plot" in record.values
        if duorc:
            record = replace(record, values={_DUORC.get(key, key): value for key, value in record.values.items()})
        questions = None if record is None else record.values.get("qas")
        if isinstance(questions, list) and "context" in record.values:
            context = record.values["context"]
            for number, question in enumerate(questions, 1):
                own = question if isinstance(question, dict) else {}
                own = {_DUORC.get(key, key) if duorc else key: value for key, value in own.items()}
                name = own.get("qid", own.get("id"))  # official predictions use qid
                yield Record.of(f"{record.where}, question {number}", {**own, "id": name, "context": context})
        elif record is None or set(record.values) != {"header"}:
            yield record


def _is_flat(value: Any) -> bool:
    """Whether ``data`` is a list of questions with their contexts, as on hubs, instead of SQuAD's articles: the form
    that the examples of transformers read."""
    data = value.get("data") if isinstance(value, dict) else None
    return (
        isinstance(data, list) and bool(data) and isinstance(data[0], dict) and {"question", "context"} <= set(data[0])
    )


class _Lines:
    """The line numbers of ids in a JSON text. The text is searched once, when the first is asked for: there may be
    many, as a third of SQuAD 2.0 are bad rows in version 1.1."""

    def __init__(self, text: str):
        self._text = text
        self._lines: dict[tuple[str, str], list[int]] | None = None

    def of(self, identity: tuple[str, str], before: int) -> int | None:
        """The line of an id, given with its key, after ``before`` earlier occurrences of the same; None if there is
        none."""
        if self._lines is None:
            self._lines = self._found()
        found = self._lines.get(identity, [])
        return found[before] if before < len(found) else None

    def _found(self) -> dict[tuple[str, str], list[int]]:
        lines: dict[tuple[str, str], list[int]] = {}
        line, end = 1, 0
        for match in _ID.finditer(self._text):
            line += self._text.count("\n", end, match.start(2))
            end = match.start(2)
            lines.setdefault((match[1], str(json.loads(match[2]))), []).append(line)
        return lines


def _typed(bad_rows: BadRows) -> Iterator[_Asked]:
    """The questions on standard input: JSON as in files, or lines of a question, a tab and its context, which are
    numbered from 0."""
    records, typed = read_typed(TYPED, read_lines(TYPED, bad_rows), _LINES, bad_rows)
    if records is not None:
        yield from _of_records(records, bad_rows)
        return
    lines = list(typed)
    written = [(number, line) for number, line in lines if line.strip()]
    if not lines or (written and written[0][1].lstrip().startswith(("{", "["))):
        text = "\n".join(line for _, line in lines)
        yield from _of_json(TYPED, parse_json(text, TYPED), text, bad_rows)
        return
    for index, (number, line) in enumerate(written):
        where, texts = f"{called(TYPED)}, line {number}", line.split("\t")
        if len(texts) == 2 and all(map(str.strip, texts)):
            question, context = map(str.strip, texts)
            yield _Asked({"question": question, "id": index}, context, partial(str, where))
        else:
            expected = "SQuAD's JSON, or a question and its context with a tab between them"
            bad_rows.refuse(f"{where}: expected {expected}, got {shorten(line)!r}")


def _of_records(records: Iterable[Record | None], bad_rows: BadRows) -> Iterator[_Asked]:
    """Questions in the form of data-set hubs, each with its context; a record that is None has been refused."""
    for record in _apart(records):
        if record is None:
            continue
        if "context" not in (*record.values, *record.nulls):  # as in CMRC, where every key has another name
            got = shorten(", ".join(map(str, record.values))) or "nothing"
            bad_rows.refuse(f"{record.where}: expected a question and its context under these names, got {got}")
            continue
        title, question = record.values.get("title"), record.values
        article = title if isinstance(title, str) and title.strip() else None
        plausible = has_plausible_answers(question)
        question = {**question, "answers": []} if plausible else question
        yield _Asked(question, record.values.get("context"), partial(str, record.where), article, plausible)


def _of_json(path: str | os.PathLike, value: Any, text: str, bad_rows: BadRows) -> Iterator[_Asked]:
    """Questions in SQuAD's own form, or in a list as on hubs; ``value`` is what the JSON text of a file holds."""
    listed = value["data"] if _is_flat(value) else value
    if isinstance(listed, list) and listed:
        yield from _of_records(json_list_records(path, listed, bad_rows), bad_rows)
        return
    if not isinstance(value, dict) or not isinstance(value.get("data"), list):
        got = _described(value)
        raise DataError(f"{called(path)}, line 1: expected SQuAD's JSON, an object with a list under 'data', got {got}")
    lines, times = _Lines(text), Counter()
    for article, context, question, name in _questions(value["data"]):
        identity = _identity(question)
        yield _Asked(question, context, partial(_where, path, lines, identity, times[identity], name), article)
        times[identity] += 1


def _where(path: str | os.PathLike, lines: _Lines, identity: tuple[str, str] | None, before: int, name: str) -> str:
    """The place of a question whose id comes after ``before`` equal ones; ``name``: its article and paragraph."""
    line = None if identity is None else lines.of(identity, before)
    return f"{called(path)}, {name}" if line is None else f"{called(path)}, line {line}, {name}"


def _questions(articles: list) -> Iterator[tuple[int, Any, Any, str]]:
    """(number of its article, context, question, location in words) for every question. Where a list is expected and
    something else found, that is yielded once, described in words, as a question. An article may be a paragraph itself,
    as in KorQuAD 2.0."""
    for a, article in enumerate(articles, 1):
        whole = isinstance(article, dict) and "qas" in article
        paragraphs = [article] if whole else article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            yield a, None, _described(article), f"article {a}"
            continue
        for p, paragraph in enumerate(paragraphs, 1):
            questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
            if not isinstance(questions, list):
                yield a, None, _described(paragraph), f"article {a}, paragraph {p}"
                continue
            for q, question in enumerate(questions, 1):
                identity = _identity(question)
                named = identity[1] if identity is not None and identity[1].strip() else q
                asked = question if isinstance(question, dict) else _described(question)
                yield a, paragraph.get("context"), asked, f"article {a}, paragraph {p}, question {named}"


def _described(value: Any) -> str:
    """A value of JSON in words, for messages: an object by its keys."""
    return f"the keys {shorten(', '.join(map(str, value)))}" if isinstance(value, dict) else shorten(repr(value))


def _identity(question: Any) -> tuple[str, str] | None:
    """The key and the id of a question, preferably of one that is not empty; None if it has none."""
    named = question if isinstance(question, dict) else {}
    found = [(name, str(named[name])) for name in _IDS if isinstance(named.get(name), (str, int))]
    return next((pair for pair in found if pair[1].strip()), found[0] if found else None)


def _row(asked: _Asked, impossible: bool, ignore_answers: bool) -> Row:
    question, context = asked.question, asked.context
    if not isinstance(question, dict):
        found = f"got {question}"
        raise ValueError(f"expected articles with paragraphs, these with context and qas, questions in these, {found}")
    if not isinstance(context, str) or not context.strip():
        raise ValueError(f"expected a text as the context, got {shorten(repr(context))}")
    text, identity = question.get("question"), _identity(question)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"expected a text as the question, got {shorten(repr(text))}")
    if identity is None:
        keys = f"{', '.join(_IDS[:-1])} or {_IDS[-1]}"
        got = shorten(repr({key: question[key] for key in _IDS if key in question} or None))
        raise ValueError(f"expected an id under the key {keys}, since predictions are matched by id, got {got}")
    name = identity[1]
    if not name.strip():
        raise ValueError(f"expected an id, since predictions are matched by id, got {name!r}")
    try:
        answers = answers_of(question, context, impossible)
    except ValueError:
        if not ignore_answers:
            raise
        answers = None
    for part in (context, text, name, *(answers.texts if answers is not None else ())):
        try:
            check_text(part)
        except ValueError as error:
            raise ValueError(f"expected UTF-8, got {error}") from None
    return Row(name, (text, context), answers, source=asked.article)
