"""Words of plain text: CoNLL-2003's own, with exact places, in every script."""

from __future__ import annotations

import random
import unicodedata

import pytest

from fastbert.tasks.conll import read_sentences
from fastbert.tasks.words import word_spans


def words(text: str) -> list[str]:
    return [text[begin:end] for begin, end in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Angela Merkel's visit.", "Angela|Merkel|'s|visit|."),
        ("He can't say they\u2019ve won, don\u2019t they?", "He|ca|n't|say|they|\u2019ve|won|,|do|n\u2019t|they|?"),
        ("O'Brien lost to N'Senga 6-4 7-6 on 1996-08-22", "O'Brien|lost|to|N'Senga|6-4|7-6|on|1996-08-22"),
        ("The U.S.-led talks in the U.S. on 5 a.m. news", "The|U.S.-led|talks|in|the|U.S.|on|5|a.m.|news"),
        ("J. Smith of Apple Inc., and Mr. T", "J.|Smith|of|Apple|Inc.|,|and|Mr.|T"),
        ("Mr.Smith and J.Smith of St.Louis", "Mr.|Smith|and|J.Smith|of|St.|Louis"),
        ("Vitamin C. He sold Apple Inc.", "Vitamin|C.|He|sold|Apple|Inc|."),
        ("US$ 10,000.50 and £5, +44 .500 10:30 3-1/2%", "US$|10,000.50|and|£|5|,|+44|.500|10:30|3-1/2|%"),
        ("(Paris) [Rome] \"Bonn\" 'Oslo'", "(|Paris|)|[|Rome|]|\"|Bonn|\"|'|Oslo|'"),
        ("met J.. l'n't", "met|J|..|l'|n't"),
        ("Wait... no -- S&P, AT&T!!", "Wait|...|no|--|S&P|,|AT&T|!!"),
        (
            "in Paris.He uses Node.js, example.com and snake_case",
            "in|Paris|.|He|uses|Node.js|,|example.com|and|snake_case",
        ),
        ("l'Allemagne et L\u2019Oréal, dell'Italia, qu'il", "l'|Allemagne|et|L\u2019|Oréal|,|dell'|Italia|,|qu'|il"),
        ("Türkiye'nin rock'n'roll Hawai'i", "Türkiye'nin|rock'n'roll|Hawai'i"),
        ("我爱北京。In 上海,yes", "我|爱|北|京|。|In|上|海|,|yes"),
        ("東京タワー नई दिल्ली", "東|京|タワー|नई|दिल्ली"),
        (
            "Cafe\u0301 Paris\U0001f44d 1\ufe0f\u20e3 \U0001f469\u200d\U0001f467",
            "Cafe\u0301|Paris|\U0001f44d|1\ufe0f\u20e3|\U0001f469|\U0001f467",
        ),
        ("\u200bParis\u200b na\u00adive \u0301 \u202e", "Paris|na\u00adive"),
        ("a\tb  c\u00a0d\u3000e\u2028f\x85g", "a|b|c|d|e|f|g"),
        ("", ""),
        (" \t\u3000", ""),
    ],
)
def test_words_by_hand(text, expected):
    assert words(text) == (expected.split("|") if expected else [])


def test_every_letter_is_in_one_word():
    """Whatever the characters are, words follow each other, and leave out only what is not seen."""
    draw = random.Random(0)
    usual = "abcXYZ019 .,'\u2019-&$:/\t\u0301\u200b\u200d北ー\U0001f44dn't's"
    for _ in range(3000):
        drawn = range(draw.randrange(30))
        text = "".join(draw.choice(usual) if draw.random() < 0.9 else chr(draw.randrange(0x11000)) for _ in drawn)
        spans, last = list(word_spans(text)), 0
        for begin, end in [*spans, (len(text), len(text))]:
            assert last <= begin
            for left_out in text[last:begin]:
                assert left_out.isspace() or unicodedata.category(left_out)[0] in "CM", repr(text)
            assert begin < end or begin == len(text)
            assert not any(c.isspace() for c in text[begin:end])
            last = end


@pytest.mark.parametrize(
    "part", ["a.", "a'", "x", "\u200b", "A-", ".", "a\u200b", "é'", "9,", "\u2019", "n't", "l'", "a\u0301"]
)
def test_a_long_line_is_read_in_a_moment(part):
    """In time that grows with the line, not with its square: that would be hours."""
    text = part * 100_000
    assert list(word_spans(text)) or part == "\u200b"


def test_conlls_words_are_found_again(shared_data):
    """In sentences as people write them, with no blanks before full stops and commas."""
    missed = total = 0
    for row in read_sentences(shared_data / "conll2003" / "eng.testa"):
        text, places = plain(row.texts)
        total += len(places)
        missed += len(places - set(word_spans(text)))
    assert total == 51_362
    assert missed < 0.005 * total


ENDINGS = ("'s", "n't", "'re", "'m", "'ve", "'ll", "'d", "'")


def plain(tokens) -> tuple[str, set[tuple[int, int]]]:
    """A sentence of CoNLL-2003 as people write it, and the places of its words."""
    text, places, joined, quoted = "", set(), True, False
    for token in tokens:
        left = token in (*".,;:?!)]%", "...", "..") or token.lower() in ENDINGS
        if token == '"':
            quoted = not quoted
            left = not quoted
        text += "" if joined or left else " "
        places.add((len(text), len(text) + len(token)))
        text += token
        joined = token in "([" or token.endswith("$") or (token == '"' and quoted)
    return text, places
