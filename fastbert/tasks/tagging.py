"""Tagging schemes: converting between entities and one tag per word.

IOB2: B- begins each entity, I- continues it. IOB1: B- only begins an entity directly after another of the same type.
IOBES (BIOES): E- ends an entity of several words, S- is an entity of one word; BILOU has L- and U- instead.

All are read by one rule, that of conlleval and of seqeval's default mode: an entity begins at B-, S- or U-, and at I-,
E- or L- after O, after another type or after an end; it ends at E-, L-, S- or U-, and before any tag that does not
continue it. If every entity is complete, the result is that of seqeval's strict mode.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from .base import Row

LETTERS = {"IOB": "BI", "IOBES": "BIES", "BILOU": "BILU"}
"""The first letters of tags other than O; IOB1 and IOB2 have the same."""
_TAGS = {name: re.compile(rf"O|[{letters}]-.+") for name, letters in LETTERS.items()}
_ENDINGS = {"IOBES": ("E", "S"), "BILOU": ("L", "U")}  # the end of several words, and a single word
_ENDS = frozenset("ELSU")
_INSIDE = frozenset("IEL")
_BARE = frozenset("BIESLU")
UNTYPED = "_"
"""The type of entities whose tags have none, as in seqeval."""


def is_tag(text: str, letters: str = "IOB") -> bool:
    """Whether a text is O, or a tag with these letters (a key of `LETTERS`)."""
    return _TAGS[letters].fullmatch(text) is not None


def expected(letters: str) -> str:
    """A description of tags with these letters, for messages: "O, B-TYPE or I-TYPE"."""
    names = ["O", *(f"{letter}-TYPE" for letter in LETTERS[letters])]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def with_types(sentences: Sequence[Sequence]) -> list[list]:
    """The tags of a file, with the type `UNTYPED` added if its entities have no types (as B, I and O in BioBERT's
    files).

    In such a file more than half of the tags are O or letters of a single scheme, and no tag has a type.

    Args:
        sentences: the tags of each sentence; anything that is not a tag is left as it is.
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
    """The tag without the type `UNTYPED`, as in a file without types."""
    return tag.removesuffix(f"-{UNTYPED}")


def entities_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities of a sentence, as (type, index of the first word, index after the last word)."""
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
    """The letters of a file's tags: "IOB", "IOBES" or "BILOU".

    In IOBES and BILOU every entity has an end, in IOB none has one. So they are recognised by ends, if at least half of
    the words have valid tags and more entities are complete than not. A typing error in an IOB file therefore changes
    nothing, and is an invalid tag there.

    Args:
        sentences: the tags of each sentence, or whatever is in their place.
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
            for _, begin, end in entities_of(tags):
                prefixes = "".join(tag[0] for tag in tags[begin:end])
                is_whole = prefixes in (single, "B" + "I" * (end - begin - 2) + last)
                whole, broken = whole + is_whole, broken + (not is_whole)
        if whole > broken and 2 * strange <= sum(map(len, sentences)):
            return name
    return "IOB"


def scheme(sentences: Sequence[Sequence[str]]) -> str:
    """The scheme of most entities: IOB1, IOB2, IOBES or BILOU.

    Files in IOB1 and IOB2 may be mixed: an entity that begins with I- is not IOB2, and one that begins with B- without
    following another of its type is not IOB1.
    """
    letters = letters_of(sentences)
    if letters != "IOB":
        return letters
    ones = twos = 0
    for tags in sentences:
        last = ("", 0)
        for kind, begin, end in entities_of(tags):
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
    for kind, begin, end in entities_of(tags):
        first = "B" if last == (kind, begin) else "I"
        out[begin:end] = [f"{first}-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
        last = (kind, end)
    return out


def _written(tags: Sequence[str], write: Callable[[str, int], list[str]]) -> list[str]:
    out = ["O"] * len(tags)
    for kind, begin, end in entities_of(tags):
        out[begin:end] = write(kind, end - begin)
    return out


def _with_ends(kind: str, length: int, last: str, single: str) -> list[str]:
    if length == 1:
        return [f"{single}-{kind}"]
    return [f"B-{kind}", *[f"I-{kind}"] * (length - 2), f"{last}-{kind}"]


CONVERTERS = {"IOB1": to_iob1, "IOB2": to_iob2, "IOBES": to_iobes, "BILOU": to_bilou}


def in_scheme_of(rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The predicted entities in the scheme of the rows' own tags; if these have no entities, in the scheme by whose
    letters the predictions are written, IOB2 for those of IOB."""
    gold = [row.label for row in rows if row.label is not None]
    name = scheme(gold)
    if not any(entities_of(tags) for tags in gold):
        letters = _letters_said(predictions)
        name = "IOB2" if letters == "IOB" else letters
    return [tuple(CONVERTERS[name](tags)) for tags in predictions]


def _letters_said(predictions: Sequence[Sequence[str]]) -> str:
    """The letters of predicted tags, all in one scheme; unlike in `letters_of`, entities need not be complete."""
    said = {tag[0] for tags in predictions for tag in tags if tag != "O"}
    return next((name for name, endings in _ENDINGS.items() if said & set(endings)), "IOB")
