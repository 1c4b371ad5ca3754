"""Windows of tokens over a question and its context, and the answer's span of characters from their scores.

The windows are those of Devlin et al. 2019: ``[CLS] question [SEP] part of the context [SEP]``, each starting a stride
after the previous one. A token of the context may be in several; its score as a start of an answer counts in the one
where it has most context. Between question and context there are as many separators as the tokenizer puts into a pair.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.special_tokens import marked, names_of, separators
from ..errors import InputError
from .base import Example, Row
from .encoding import encodings_of, private_copy
from .squad_answers import span
from .windows import plan_windows


@dataclass(frozen=True)
class Text:
    """The tokens of a text: their ids, and their starts and ends in characters; all (n,) int32.

    White space around a token is left out, since pieces of SentencePiece and GPT-2 include the blank before a word. A
    token that is only white space starts at the next letter and ends after the previous one.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class Window:
    """What `best_spans` needs of an example.

    Args:
        first: the index of the first token of the context among the example's tokens.
        starts, ends: (n,) int32, the characters at which its context tokens start and end.
        owned: (n,) bool, the context tokens that have most context in this window.
    """

    first: int
    starts: np.ndarray
    ends: np.ndarray
    owned: np.ndarray


def encode_unique(texts: Sequence[str], tokenizer) -> dict[str, Text]:
    """The tokens of every distinct text, by text."""
    encoder, found = private_copy(tokenizer), {}
    unique = list(dict.fromkeys(texts))
    for text, encoding in zip(unique, encodings_of(unique, encoder, add_special_tokens=False), strict=True):
        offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        letters = np.array([i for i, letter in enumerate(text) if not letter.isspace()], dtype=np.int32)
        starts, ends = (np.searchsorted(letters, side) for side in offsets.T)
        starts, ends = np.append(letters, np.int32(len(text)))[starts], np.append(np.int32(0), letters + 1)[ends]
        found[text] = Text(np.array(encoding.ids, dtype=np.int32), starts, ends)
    return found


def encode_windows(
    rows: Sequence[Row], tokenizer, max_seqlen: int, doc_stride: int, max_question: int
) -> list[Example]:
    """Examples of at most max_seqlen tokens that together contain every token of every context.

    The label is the (first, last) token of the answer among the example's tokens; (0, 0) if the question has no answer
    or the window does not contain all of it; None if the row has no label, or an answer that is not in its context.

    Args:
        rows: rows of (question, context).
        tokenizer: the model's tokenizer.
        max_seqlen, doc_stride, max_question: in tokens; see `Squad`.

    Raises:
        InputError: max_seqlen has no room for a question and one token of its context.
    """
    texts = encode_unique([text for row in rows for text in row.texts], tokenizer)
    names = names_of(tokenizer)
    cls, sep = tokenizer.token_to_id(names.cls_token), tokenizer.token_to_id(names.sep_token)
    pair = marked(tokenizer)[1]
    between, second = separators(pair), int(any(pair.type_ids))
    examples = []
    for index, row in enumerate(rows):
        question, context = texts[row.texts[0]].ids[:max_question], texts[row.texts[1]]
        taken = len(question) + between + 2
        room = max_seqlen - taken
        if room < 1:
            raise InputError(
                f"max_seqlen must be at least {taken + 1} for question {row.id} of {len(question)} tokens, "
                f"got {max_seqlen}"
            )
        head = np.concatenate(([cls], question, [sep] * between)).astype(np.int32)
        target = _target(row, context)
        begins, owners = plan_windows(len(context.ids), room, min(doc_stride, room))
        for number, begin in enumerate(begins):
            part = slice(begin, begin + room)
            ids = np.concatenate((head, context.ids[part], [sep])).astype(np.int32)
            types = np.zeros(len(ids), np.int32)
            types[len(head) :] = second
            window = Window(len(head), context.starts[part], context.ends[part], owners[part] == number)
            label = _label(target, begin, len(window.starts), len(head))
            examples.append(Example(index, ids, types, label, truncated=len(begins) > 1, meta=window))
    return examples


def _target(row: Row, context: Text) -> tuple[int, int] | None:
    """The first and last token of the answer in the context; (-1, -1) without an answer, None if it is unknown."""
    if row.label is None:
        return None
    if not row.label.texts:
        return -1, -1
    found = span(row.texts[1], row.label)
    if found is None:
        return None
    # The smallest run of tokens that covers the answer: it may begin or end within one.
    first = int(np.searchsorted(context.ends, found[0], side="right"))
    last = int(np.searchsorted(context.starts, found[1], side="left")) - 1
    # An answer of characters that make no token, such as zero-width ones, cannot be predicted.
    return (first, last) if first <= last else (-1, -1)


def _label(target: tuple[int, int] | None, begin: int, count: int, head: int) -> tuple[int, int] | None:
    if target is None:
        return None
    first, last = target[0] - begin, target[1] - begin
    if target[0] < 0 or first < 0 or last >= count:
        return 0, 0
    return head + first, head + last


@dataclass(frozen=True)
class Span:
    """A span of the context, from character ``begin`` up to ``end``, with its scores."""

    begin: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def best_spans(window: Window, scores: np.ndarray, n_best: int, max_answer: int) -> list[Span]:
    """The n_best spans of at most max_answer tokens whose first token is owned by this window, the best first.

    Args:
        window: of the example.
        scores: (tokens, 2) float, the start and end scores of the example's tokens.
    """
    context = scores[window.first : window.first + len(window.starts)]
    starts = np.flatnonzero(window.owned)
    starts = starts[_top(context[starts, 0], n_best)]
    ends = _top(context[:, 1], n_best)
    length = ends[None, :] - starts[:, None] + 1
    at = np.argwhere((length >= 1) & (length <= max_answer))
    pairs = np.stack((starts[at[:, 0]], ends[at[:, 1]]), 1)
    total = context[pairs[:, 0], 0].astype(np.float64) + context[pairs[:, 1], 1]
    return [
        Span(int(window.starts[s]), int(window.ends[e]), float(context[s, 0]), float(context[e, 1]))
        for s, e in pairs[np.argsort(-total, kind="stable")[:n_best]]
    ]


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the largest values, in descending order, earlier ones first among equals."""
    return np.argsort(-values, kind="stable")[:count]


def answer_text(context: str, found: Span) -> str:
    """The original text of a span, with combining accents and vowel signs (category Mn) that follow its last letter,
    even if the tokenizer strips them, as BERT's does."""
    end = found.end
    while end < len(context) and unicodedata.category(context[end]) == "Mn":
        end += 1
    return context[found.begin : end]
