"""Published files of tagged words whose first column is not the words: refused with a command that mends them, which is
run here."""

from __future__ import annotations

import re
import subprocess

import pytest

from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows

# Columns of the data sets named, rows made up.
WIKINEURAL = "0\tThe\tO\n1\tBonn\tB-LOC\n\n0\tJa\tO\n"  # and MultiNERD
GERMEVAL = (
    "#\thttp://de.wikipedia.org/wiki/X [2009-10-17]\n1\tThe\tO\tO\n2\tBonn\tB-LOC\tB-ORG\n\n#\tx [1]\n1\tJa\tO\tO\n"
)
CONLL_U = "# sent_id = 1\n# text = The Bonn\n1\tThe\tO\n2\tBonn\tB-LOC\n\n# text = Ja\n1\tJa\tO\n"
UNER = "# sent_id = 1\n# text = The Bonn\n1\tThe\tO\t-\t-\n2\tBonn\tB-LOC\t-\ts\n\n# text = Ja\n1\tJa\tO\tO#O\ts\n"
WIKIANN = "en:The\tO\nen:Bonn\tB-LOC\n\nen:Ja\tO\n"
MIT = "O\tThe\nB-LOC\tBonn\n\nO\tJa\n"
OF_2012 = """#begin document (bc/x/00/x_0000); part 000
bc/x 0 0 The DT (TOP(S* - - - Ann * (ARG0* -
bc/x 0 1 Bonn NNP * - - 1 Ann (GPE) *) (23)
bc/x 0 2 New NNP * - - 1 Ann (DATE* * -
bc/x 0 3 Year NNP *) - - - Ann *) * -

bc/x 0 0 # UH (TOP*) - - - Ann * -
#end document
"""
EWT = """# newdoc id = x
# text = The zum
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2-3\tzum\t_\t_\t_\t_\t_\t_\t_\t_
2\tzu\tzu\tADP\tAPPR\t_\t0\troot\t_\tSpaceAfter=No
3\tdem\tder\tDET\tART\t_\t2\tdet\t_\t_
3.1\tx\tx\tX\tX\t_\t_\t_\t_\t_

# text = 1. Mai
1\t1. Mai\t1. Mai\tNOUN\tNN\t_\t0\troot\t_\t_
"""
TWO = [(("The", "Bonn"), ("O", "B-LOC")), (("Ja",), ("O",))]


def read(path, content, predicting=False):
    path.write_text(content)
    task = registry.get("ner")
    task.predicting = predicting
    return [(row.texts, row.label) for row in task.read(path)]


@pytest.mark.parametrize("predicting", [False, True])
@pytest.mark.parametrize(
    ("content", "line", "reason", "command"),
    [
        (WIKINEURAL, 1, "got the numbers of words in every sentence", "grep -v '^#' FILE | cut -f 2-"),
        (GERMEVAL, 2, "got the numbers of words in every sentence", "grep -v '^#' FILE | cut -f 2,3"),
        (CONLL_U, 3, "got the numbers of words in every sentence", "grep -v '^#' FILE | cut -f 2-"),
        (UNER, 3, "got the numbers of words in every sentence", "grep -v '^#' FILE | cut -f 2,3"),
        (WIKIANN, 1, "got 'en:' before every word", "sed 's/^en://'"),
        (MIT, 1, "and its tag in the last, got tags in the first", "awk 'NF {print $2, $1; next} {print}'"),
    ],
)
def test_what_is_no_word_is_refused_and_the_command_helps(tmp_path, content, line, reason, command, predicting):
    path = tmp_path / "f.tsv"
    with pytest.raises(DataError, match=rf"f.tsv, line {line}: expected the word in the first .*{reason}") as refused:
        read(path, content, predicting)
    advised = re.search(r"\(((?:cut|grep|sed|awk) .*?) (?:does|keeps)", str(refused.value))[1]
    assert advised == command
    command = f"cat {path} | {command.replace('FILE', '')}"
    mended = subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True).stdout
    assert read(path, mended) == TWO


def by_sed(path, error):
    """What the command of grep or sed in an error's message makes of the file."""
    command = re.search(r"\(((?:grep|sed) .*?) (?:does|keeps)", error)[1].replace("FILE", "")
    command = f"cat {path} | LC_ALL=C {command}"
    return subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True).stdout


@pytest.mark.parametrize("predicting", [False, True])
@pytest.mark.parametrize(
    "places",
    [("1", "2", "3", "4", "5"), ("1-1", "1-2", "1-3", "2-1", "2-2"), ("0:3", "4:8", "9:11", "12:15", "15:16")],
    ids=["words of a file", "sentence and word", "characters"],
)
def test_rising_numbers_are_no_words(tmp_path, places, predicting):
    """WebAnno's files have sentence and word, for example."""
    words, tags = ("The", "Bonn", "is", "Yes", "!"), ("O", "B-LOC", "O", "O", "O")
    lines = ["\t".join(of_line) for of_line in zip(places, words, tags, strict=True)]
    text = "\n".join([*lines[:3], "", *lines[3:], ""])
    with pytest.raises(DataError, match=r"f.tsv, line 1: .* got the numbers of words in every sentence") as refused:
        read(tmp_path / "f.tsv", text, predicting)
    assert read(tmp_path / "g.tsv", by_sed(tmp_path / "f.tsv", str(refused.value))) == [
        (words[:3], tags[:3]),
        (words[3:], tags[3:]),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1999 CD O\n2000 CD O\n", ("1999", "2000")),
        ("3 CD O\n2 CD B-X\n5 CD O\n", ("3", "2", "5")),
        ("1 a O\n2 b O\n3 c O\n\nx d O\n", ("1", "2", "3")),
    ],
)
def test_other_numbers_are_words(tmp_path, text, words):
    assert read(tmp_path / "f.txt", text)[0][0] == words


@pytest.mark.parametrize("predicting", [False, True])
def test_places_of_characters_in_words_are_no_part_of_them(tmp_path, predicting):
    """Weibo's files have them; the second word of the first sentence has eleven characters, the third is a 7."""
    long = "abcdefghijk"
    words = ("去", *long, "7")
    places = (0, *range(len(long)), 0)
    lines = [f"{word}{place}\tO" for word, place in zip(words, places, strict=True)]
    text = "\n".join([*lines, "", "波0\tB-LOC.NAM", "恩1\tI-LOC.NAM", ""])
    with pytest.raises(
        DataError, match=r"f.conll, line 1: expected a word, got characters with their places"
    ) as refused:
        read(tmp_path / "f.conll", text, predicting)
    mended = by_sed(tmp_path / "f.conll", str(refused.value))
    assert [texts for texts, _ in read(tmp_path / "g.conll", mended)] == [words, ("波", "恩")]
    # Words that look so, but whose digits do not count.
    for others in (("A0", "B0", "C1"), ("Ä0", "B2", "C1")):
        text = "".join(f"{word} O\n" for word in others)
        assert read(tmp_path / "h.txt", text, predicting) == [(others, ("O", "O", "O"))]


def test_tags_that_join_several_are_told_of(tmp_path, caplog):
    """Some write nested entities so, as types of their own."""
    text = "IL-2\tB-protein|B-DNA\ngene\tI-DNA\nis\tO\n"
    assert read(tmp_path / "f.tsv", text) == [(("IL-2", "gene", "is"), ("B-protein|B-DNA", "I-DNA", "O"))]
    [message] = caplog.messages
    assert "tags such as B-protein|B-DNA join several, and are taken for types of their own" in message
    kept = by_sed(tmp_path / "f.tsv", message)
    caplog.clear()
    assert read(tmp_path / "g.tsv", kept)[0][1] == ("B-protein", "I-DNA", "O")
    read(tmp_path / "f.tsv", text, predicting=True)
    read(tmp_path / "h.tsv", "a\tB-x|y\nb\tO\n")
    assert caplog.messages == []


def mended(path, error):
    """What the command in an error's message makes of the file."""
    command = re.search(r"\(((?:awk|python3) .*?) does", error)[1].replace("FILE", str(path))
    return subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True).stdout


@pytest.mark.parametrize("predicting", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_conll_us_ten_columns_are_refused_with_what_makes_parts_of_speech_of_them(tmp_path, predicting, end):
    path = tmp_path / "x.conllu"
    with pytest.raises(DataError, match=r"x.conllu, line 3: expected .*, got the ten columns of CoNLL-U") as refused:
        read(path, EWT.replace("\n", end), predicting)
    assert read(tmp_path / "f.tsv", mended(path, str(refused.value))) == [
        (("The", "zu", "dem"), ("B-DET", "B-ADP", "B-DET")),
        (("1. Mai",), ("B-NOUN",)),
    ]


@pytest.mark.parametrize("predicting", [False, True])
def test_conll_2012_is_refused_with_what_takes_words_and_entities(tmp_path, predicting):
    path = tmp_path / "x.gold_conll"
    with pytest.raises(DataError, match=r"line 1: .*, got a document of CoNLL-2012 \(OntoNotes\)") as refused:
        read(path, OF_2012, predicting)
    assert read(tmp_path / "f.txt", mended(path, str(refused.value))) == [
        (("The", "Bonn", "New", "Year"), ("O", "B-GPE", "B-DATE", "I-DATE")),
        (("#",), ("O",)),
    ]


def test_germevals_test_file_has_numbers_and_words(tmp_path):
    text = "#\thttp://de.wikipedia.org/wiki/X [2009-10-17]\n1\tThe\n2\tBonn\n\n#\tx [1]\n1\tO\n"
    # One of its 96,499 words has tags all the same.
    with pytest.raises(DataError, match=r"line 2: expected the word .*got the numbers of words .*\| cut -f 2 does\)"):
        read(tmp_path / "f.tsv", text, predicting=True)
    # Numbers with tags are words.
    assert read(tmp_path / "f.tsv", "1\tO\n2\tO\n") == [(("1", "2"), ("O", "O"))]


def test_lines_without_a_word_are_refused_with_what_leaves_them_out(tmp_path):
    """KLUE's tokens are characters, and those between words have tags too."""
    text = "## CHAR\tNE_TAG\n## dev_0\t<a:OG>\na\tB-OG\nb\tI-OG\n \tI-OG\nc\tI-OG\n\tO\n.\tO\n"
    path = tmp_path / "f.tsv"
    with pytest.raises(DataError, match=r"line 5: expected 2 columns, got 1: .* leaves out lines without a") as refused:
        read(path, text)
    command = re.search(r"; (sed .*) leaves out", str(refused.value))[1].replace("FILE", str(path))
    mended = subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True).stdout
    assert read(path, mended) == [(("a", "b", "c", "."), ("B-OG", "I-OG", "I-OG", "O"))]


def test_conll_us_words_of_several_parts(tmp_path):
    text = "1-2\tzum\t_\n1\tzu\tO\n2\tdem\tO\n2.1\tx\tO\n3\tBonn\tB-LOC\n"
    with pytest.raises(DataError, match="got the numbers of words"):
        read(tmp_path / "f.tsv", text, predicting=True)


@pytest.mark.parametrize("predicting", [False, True])
@pytest.mark.parametrize("between", ["", "\n"], ids=["no empty lines", "empty lines"])
@pytest.mark.parametrize("header", ["", "sentence_id\twords\tlabels\n"], ids=["", "header"])
def test_numbers_of_sentences_are_no_words(tmp_path, header, between, predicting):
    """As simpletransformers has them."""
    sentences = ["7\tEU\tB-ORG\n7\tsays\tO\n7\tno\tO\n", "8\tWe\tO\n8\tsay\tO\n8\tyes\tO\n"]
    path = tmp_path / "f.tsv"
    with pytest.raises(DataError, match=r"expected the word in the first .*got the same in most lines") as refused:
        read(path, header + between.join(sentences), predicting)
    path.write_text(between.join(sentences))
    rows = [(("EU", "says", "no"), ("B-ORG", "O", "O")), (("We", "say", "yes"), ("O", "O", "O"))]
    assert read(tmp_path / "g.tsv", mended(path, str(refused.value))) == rows
    # Words come again too.
    assert len(read(path, "no\tX\tO\nno\tX\tO\nno\tX\tO\n.\tX\tO\n")) == 1
    assert len(read(path, "no\tX\tO\nno\tX\tO\nno\tX\tO\nno\tX\tO\nEU\tX\tB-ORG\nis\tX\tO\n.\tX\tO\n")) == 1


@pytest.mark.parametrize(
    "content", ["word,tag\nEU,B-ORG\nsays,O\n", "Sentence #,Word,POS,Tag\n1,EU,NNP,B-org\n,of,IN,O\n"]
)
def test_commas_part_no_columns(tmp_path, content):
    for predicting in (False, True):
        with pytest.raises(DataError, match="line 1: expected columns separated by blanks or tabs, got commas"):
            read(tmp_path / "f.csv", content, predicting)


def test_sentences_of_a_table_are_refused_with_what_makes_columns_of_them(tmp_path):
    path = tmp_path / "ner_dataset.csv"
    text = 'Sentence #,Word,POS,Tag\nSentence: 1,The,DT,O\n,"""x,",NN,O\n,\u00c9,NNP,B-geo\nSentence: 2,Ja,UH,O\n'
    with pytest.raises(DataError, match="got commas: 'Sentence #,Word,POS,Tag'; take words and tags") as refused:
        read(path, text)
    expected = [(("The", '"x,', "\u00c9"), ("O", "O", "B-geo")), (("Ja",), ("O",))]
    assert read(tmp_path / "f.txt", mended(path, str(refused.value))) == expected
    # Kaggle's own file is in another encoding.
    path.write_bytes(text.encode("latin-1"))
    task = registry.get("ner")
    task.bad_rows = BadRows(encoding="latin-1")
    with pytest.raises(DataError, match="got commas") as refused:
        task.read(path)
    assert read(tmp_path / "f.txt", mended(path, str(refused.value))) == expected


@pytest.mark.parametrize(
    "content",
    [
        "http://a\nhttp://b\n",
        "O\nB-LOC\n",  # words that look like tags, without a second column
        "O O\nO O\n",
        "O NN\nO NN\n",
        "B-52 O\nI-95 O\n",
        "1 CD O\n\n2 CD O\n3 CD O\n",
        "1 CD O\n\n1 CD O\n",  # in sentences of one word they count nothing
        "a:b O\na:c O\n",
        "de:Haus\n",  # of one word nobody says that every word begins so
        ", ,\n. .\n",
    ],
)
def test_odd_words_are_words(tmp_path, content):
    rows = read(tmp_path / "f.txt", content)
    assert [word for words, _ in rows for word in words] == [line.split()[0] for line in content.splitlines() if line]


def test_comments_of_medline_and_klue(tmp_path):
    rows = read(tmp_path / "f.txt", "###MEDLINE:95369245\n\nThe\tO\nBonn\tB-LOC\n\n###MEDLINE:9\n\nJa\tO\n")
    assert rows == TWO
    text = "## klue-ner-v1_train_00000\t<Bonn:LC> x\nThe\tO\nBonn\tB-LOC\n\n## klue-ner-v1\tJa\nJa\tO\n\n##\tO\n"
    assert read(tmp_path / "f.txt", text) == [*TWO, (("##",), ("O",))]


@pytest.mark.parametrize("comment", ["# id 5239d808\tdomain=en", "# sent_id = 5"])
def test_comments_with_as_many_columns_as_words(tmp_path, comment):
    """MultiCoNER's test files have no tags, but places for them."""
    (tmp_path / "test.conll").write_text(f"{comment}\nit _ _ _\nrose _ _ _\n\n{comment}\n# _ _ _\n1 _ _ _\n")
    task = registry.get("ner")
    task.predicting = True
    assert [row.texts for row in task.read(tmp_path / "test.conll")] == [("it", "rose"), ("#", "1")]


def test_a_number_sign_that_opens_a_sentence_is_a_word(tmp_path):
    (tmp_path / "test.conll").write_text("# NN\n1 CD\n\nit PRP\nrose VBD\n")
    task = registry.get("ner")
    task.predicting = True
    assert [row.texts for row in task.read(tmp_path / "test.conll")] == [("#", "1"), ("it", "rose")]


def test_bmes_is_refused_with_what_makes_iobes_of_it(tmp_path):
    """The Chinese resumes and OntoNotes 4 are published so."""
    path, text = (
        tmp_path / "f.bmes",
        "\u9ad8 B-NAME\n\u52c7 E-NAME\nM-1 O\n\u4e2d B-CONT\n\u56fd M-CONT\n\u7c4d E-CONT\nx S-CONT\n",
    )
    with pytest.raises(
        DataError, match="line 5: expected tags of IOB, IOBES or BILOU, got 'M-CONT' of BMES"
    ) as refused:
        read(path, text)
    command = re.search(r"\((sed .*) does\)", str(refused.value))[1]
    mended = subprocess.run(["bash", "-c", f"{command} {path}"], capture_output=True, check=True, text=True).stdout
    [(words, tags)] = read(path, mended)
    assert words[2] == "M-1"
    assert tags == ("B-NAME", "E-NAME", "O", "B-CONT", "I-CONT", "E-CONT", "S-CONT")
    # Who asks for predictions needs no tags.
    [(found, _)] = read(path, text, predicting=True)
    assert found == words
    with pytest.raises(DataError, match="line 2: expected the tag O, B-TYPE or I-TYPE, got 'M-LOC'"):
        read(path, "a I-LOC\nb M-LOC\n")


@pytest.mark.parametrize("tab", ["\t", " "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_types_alone_are_refused_with_what_makes_iob_of_them(tmp_path, tab, end):
    """Stanford's NER and the Portuguese HAREM have them."""
    lines = ["-DOCSTART-", "", "The_O", "Bonn_LOC", "Bonn_LOC", "is_O", "", "Ja_O", "O_O", "Ann_PERS"]
    path, text = tmp_path / "f.tsv", end.join(line.replace("_", tab) for line in [*lines, ""])
    with pytest.raises(DataError, match="line 4: expected tags such as I-LOC, got 'LOC'; put a letter") as refused:
        read(path, text)
    command = re.search(r"\((awk .*) does\)", str(refused.value))[1]
    mended = subprocess.run(["bash", "-c", f"{command} {path}"], capture_output=True, check=True).stdout.decode()
    first, second = (
        (("The", "Bonn", "Bonn", "is"), ("O", "I-LOC", "I-LOC", "O")),
        (("Ja", "O", "Ann"), ("O", "O", "I-PERS")),
    )
    assert read(path, mended) == [first, second]
    assert [words for words, _ in read(path, text, predicting=True)] == [first[0], second[0]]


@pytest.mark.parametrize("tag", ["B_LOC", "LOC-B", "B", "I.LOC"])
def test_other_letters_are_no_types(tmp_path, tag):
    with pytest.raises(DataError, match=f"line 2: expected the tag O, B-TYPE or I-TYPE, got '{re.escape(tag)}'"):
        read(tmp_path / "f.txt", f"a O\nb {tag}\nc O\n\nd I-LOC\n" if tag == "B" else f"a O\nb {tag}\nc O\n")


def test_a_line_of_a_byte_order_mark_alone_is_empty(tmp_path):
    """WNUT17's dev file ends in one, and so does the first of two files with such marks that were joined."""
    rows = read(tmp_path / "f.txt", "\ufeffThe\tO\nBonn\tB-LOC\n\ufeff\nJa\tO\n\n\ufeff\n")
    assert rows == TWO


@pytest.mark.parametrize(
    "text",
    [
        "#\thttp://x [1]\nThe\tO\tO\nBonn\tB-LOC\tB-ORG\nUni\tI-LOC\tO\nx\tO\tB-LOC\n\n#\ty [2]\nJa\tO\tO\n",
        "The DT O O\nBonn NN B-LOC B-ORG\nUni NN I-LOC O\nx NN O B-LOC\n\nJa RB O O\n",
    ],
    ids=["tabs", "blanks"],
)
def test_two_columns_of_tags_are_told_of(text, tmp_path, caplog):
    """GermEval's without the numbers of words, and what `fastbert predict` and conlleval have."""
    path = tmp_path / "file.txt"
    assert read(path, text)[0][1] == ("O", "B-ORG", "O", "B-LOC")
    [message] = caplog.messages
    assert re.search(r"columns (2 and 3|3 and 4) both have tags of the types LOC; those of the last", message)
    command = re.search(r"\((.*) FILE keeps", message)[1]
    mended = subprocess.run(["bash", "-c", f"{command} {path}"], capture_output=True, check=True, text=True).stdout
    caplog.clear()
    assert read(path, mended)[0][1] == ("O", "B-LOC", "I-LOC", "O")
    # Who asks for predictions needs no tags; those of chunks have other types, and one column is of words.
    read(path, text, predicting=True)
    read(path, "The DT B-NP O\nBonn NN I-NP B-LOC\n")
    read(path, "B-LOC B-LOC\nO O\n")
    assert caplog.messages == []
