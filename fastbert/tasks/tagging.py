"""Tagging schemes: entities of words as a tag a word, and back.

IOB2: B- begins each entity, I- goes on. IOB1: B- begins only one that follows another of its type at once. IOBES
(BIOES): E- ends an entity of several words, S- is one of a single word; BILOU has L- and U- for these.

One rule reads all of them, that of conlleval and of seqeval's default mode: an entity begins at B-, S- or U-, and at
I-, E- or L- after O, after another type or after an end; it ends at E-, L-, S- or U-, and before whatever does not go
on with it. Where every entity is whole, that is what seqeval's strict mode says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from .base import Row

LETTERS = {"IOB": "BI", "IOBES": "BIES", "BILOU": "BILU"}
"""What tags other than O begin with; IOB1 and IOB2 have the same letters."""
_TAGS = {name: re.compile(rf"O|[{letters}]-.+") for name, letters in LETTERS.items()}
_ENDINGS = {"IOBES": ("E", "S"), "BILOU": ("L", "U")}  # of several words, and of one
_ENDS = frozenset("ELSU")
_INSIDE = frozenset("IEL")
_BARE = frozenset("BIESLU")
UNTYPED = "_"
"""The type of an entity whose tags have none, as seqeval calls it."""


def is_tag(text: str, letters: str = "IOB") -> bool:
    """Whether a text is O, or a tag with these letters (a key of `LETTERS`)."""
    return _TAGS[letters].fullmatch(text) is not None


def expected(letters: str) -> str:
    """What tags with these letters are, for a message."""
    names = ["O", *(f"{letter}-TYPE" for letter in LETTERS[letters])]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def with_types(sentences: Sequence[Sequence]) -> list[list]:
    """The tags of a file; where its entities have no types (BioBERT's files: B, I and O) they are of `UNTYPED`.

    Such a file has letters of one scheme for most of its tags, and none with a type.

    Args:
        sentences: tags, or what else stands in their place, which stays.
    """
    counts = Counter(text for tags in sentences for text in tags if isinstance(text, str))
    bare = {text for text in counts if text in _BARE}
    typed = any(text[1:2] == "-" and is_tag(text, name) for text in counts for name in LETTERS)
    known = 2 * sum(counts[text] for text in ("O", *bare)) > counts.total()
    one_scheme = any(bare <= set(letters) for letters in LETTERS.values())
    if not bare or typed or not known or not one_scheme:
        return [list(tags) for tags in sentences]
    written = {text: f"{text}-{UNTYPED}" for text in bare}
    return [[written.get(text, text) if isinstance(text, str) else text for text in tags] for tags in sentences]


def without_type(tag: str) -> str:
    """A tag as a file without types has it."""
    return tag.removesuffix(f"-{UNTYPED}")


def chunks(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Entities of a sentence: (type, first word, word after the last)."""
    found, begin, kind, ended = [], 0, "", False
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if prefix in _INSIDE and name == kind and not ended:
            ended = prefix in _ENDS
            continue
        if kind:
            found.append((kind, begin, index))
        begin, kind, ended = index, name, prefix in _ENDS
    return found


def letters_of(sentences: Iterable[Sequence[str]]) -> str:
    """Which letters the tags of a file have: "IOB", "IOBES" or "BILOU".

    In files of the latter two every entity has its end, in IOB files none has. So they are these where at least half of
    the words have such tags and more entities are whole than are not: a slip of the pen in an IOB file changes nothing,
    and is no tag there.

    Args:
        sentences: tags, or what else stands in their place.
    """
    sentences = list(sentences)
    seen = {text[:2] for tags in sentences for text in tags}
    for name, (last, single) in _ENDINGS.items():
        if not seen & {f"{single}-", f"{last}-"}:
            continue
        known = [[text if is_tag(text, name) else "O" for text in tags] for tags in sentences]
        strange = sum(not is_tag(text, name) for tags in sentences for text in tags)
        whole = broken = 0
        for tags in known:
            for _, begin, end in chunks(tags):
                prefixes = "".join(tag[0] for tag in tags[begin:end])
                is_whole = prefixes in (single, "B" + "I" * (end - begin - 2) + last)
                whole, broken = whole + is_whole, broken + (not is_whole)
        if whole > broken and 2 * strange <= sum(map(len, sentences)):
            return name
    return "IOB"


def scheme(sentences: Sequence[Sequence[str]]) -> str:
    """The scheme that most entities are tagged by: IOB1, IOB2, IOBES or BILOU.

    Files of the first two have some of the other: one that begins with I- is none of IOB2, one that begins with B- away
    from others of its type none of IOB1.
    """
    letters = letters_of(sentences)
    if letters != "IOB":
        return letters
    ones = twos = 0
    for tags in sentences:
        last = ("", 0)
        for kind, begin, end in chunks(tags):
            ones += tags[begin].startswith("I-")
            twos += tags[begin].startswith("B-") and last != (kind, begin)
            last = (kind, end)
    return "IOB1" if ones and ones >= twos else "IOB2"


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities in IOB2."""
    return _written(tags, lambda kind, length: [f"B-{kind}", *[f"I-{kind}"] * (length - 1)])


def to_iobes(tags: Sequence[str]) -> list[str]:
    """The same entities in IOBES."""
    return _written(tags, lambda kind, length: _with_ends(kind, length, *_ENDINGS["IOBES"]))


def to_bilou(tags: Sequence[str]) -> list[str]:
    """The same entities in BILOU."""
    return _written(tags, lambda kind, length: _with_ends(kind, length, *_ENDINGS["BILOU"]))


def to_iob1(tags: Sequence[str]) -> list[str]:
    """The same entities in IOB1."""
    out, last = ["O"] * len(tags), ("", 0)
    for kind, begin, end in chunks(tags):
        first = "B" if last == (kind, begin) else "I"
        out[begin:end] = [f"{first}-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
        last = (kind, end)
    return out


def _written(tags: Sequence[str], write: Callable[[str, int], list[str]]) -> list[str]:
    out = ["O"] * len(tags)
    for kind, begin, end in chunks(tags):
        out[begin:end] = write(kind, end - begin)
    return out


def _with_ends(kind: str, length: int, last: str, single: str) -> list[str]:
    if length == 1:
        return [f"{single}-{kind}"]
    return [f"B-{kind}", *[f"I-{kind}"] * (length - 2), f"{last}-{kind}"]


CONVERTERS = {"IOB1": to_iob1, "IOB2": to_iob2, "IOBES": to_iobes, "BILOU": to_bilou}


def in_scheme_of(rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The predicted entities in the scheme of the rows' own tags; where these have no entities, with the letters of the
    predictions, and of IOB in IOB2."""
    gold = [row.label for row in rows if row.label is not None]
    name = scheme(gold)
    if not any(chunks(tags) for tags in gold):
        letters = _letters_said(predictions)
        name = "IOB2" if letters == "IOB" else letters
    return [tuple(CONVERTERS[name](tags)) for tags in predictions]


def _letters_said(predictions: Sequence[Sequence[str]]) -> str:
    """The letters of tags that a model or a file of one scheme gives, whole entities or not."""
    said = {tag[0] for tags in predictions for tag in tags if tag != "O"}
    return next((name for name, endings in _ENDINGS.items() if said & set(endings)), "IOB")
