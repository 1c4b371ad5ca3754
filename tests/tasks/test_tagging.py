"""IOBES and BILOU: read, told apart from IOB, scored as seqeval does, learned, and written as they came."""

import json
import random

import pytest
import tiny_bert
from seqeval.metrics import sequence_labeling, v1
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB2, IOBES

import fastbert
from fastbert.cli.main import main
from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.tagging import (
    CONVERTERS,
    entities_of,
    in_scheme_of,
    letters_of,
    scheme,
    to_bilou,
    to_iob1,
    to_iob2,
    to_iobes,
)

STRICT = {"IOB2": IOB2, "IOBES": IOBES, "BILOU": BILOU}


def test_by_hand():
    two = ["B-A", "I-A", "I-A", "O", "B-B", "I-B", "B-B", "O", "B-A"]
    assert to_iobes(two) == ["B-A", "I-A", "E-A", "O", "B-B", "E-B", "S-B", "O", "S-A"]
    assert to_bilou(two) == ["B-A", "I-A", "L-A", "O", "B-B", "L-B", "U-B", "O", "U-A"]
    for convert in (to_iobes, to_bilou, to_iob1, to_iob2):
        assert entities_of(convert(two)) == [("A", 0, 3), ("B", 4, 6), ("B", 6, 7), ("A", 8, 9)]
        assert to_iob2(convert(two)) == two
    # After an end another one of the same type begins, whatever its letter.
    assert entities_of(["S-A", "I-A", "E-A", "E-A", "S-A"]) == [("A", 0, 1), ("A", 1, 3), ("A", 3, 4), ("A", 4, 5)]


def sequences(letters: str, count: int, seed: int) -> list[list[str]]:
    """Tags drawn by chance, most of them no whole entities."""
    draw = random.Random(seed)
    tags = ["O", *(f"{letter}-{kind}" for letter in letters for kind in ("A", "B-C"))]
    return [draw.choices(tags, k=draw.randint(1, 12)) for _ in range(count)]


@pytest.mark.parametrize("letters", ["BI", "BIES"])
def test_any_tags_are_the_entities_of_seqevals_default_mode(letters):
    for tags in sequences(letters, 3000, 1):
        assert entities_of(tags) == [(kind, begin, end + 1) for kind, begin, end in get_entities(tags)], tags
        if letters == "BIES":  # which seqeval's default mode reads in these letters alone
            other = [{"E": "L", "S": "U"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
            assert entities_of(other) == entities_of(tags)


@pytest.mark.parametrize("name", STRICT)
def test_whole_entities_are_scored_as_by_seqevals_strict_mode(name):
    gold, found = (list(map(CONVERTERS[name], sequences("BI", 400, seed))) for seed in (2, 3))
    # Of which some are right.
    pairs = list(zip(gold, found, strict=True))
    found = [g if index % 3 else f[: len(g)] + ["O"] * (len(g) - len(f)) for index, (g, f) in enumerate(pairs)]
    found = list(map(CONVERTERS[name], found))
    task = registry.get("ner")
    from fastbert.tasks.base import Row

    rows = [Row(str(n), tuple("w" * len(tags)), tuple(tags)) for n, tags in enumerate(gold)]
    strict = v1.precision_recall_fscore_support(gold, found, scheme=STRICT[name], average="micro")
    got = task.metric(rows, found)
    assert 0.3 < got["f1"] < 0.9
    assert (got["precision"], got["recall"], got["f1"]) == pytest.approx(strict[:3], abs=1e-12)
    columns = v1.precision_recall_fscore_support(gold, found, scheme=STRICT[name], average=None)
    for line, *shares in zip(task.tables(rows, found)["entities"][1:], *columns, strict=True):
        assert line[1:5] == pytest.approx(shares, abs=1e-12)


def test_which_scheme_a_file_has():
    for name, convert in CONVERTERS.items():
        tagged = [convert(tags) for tags in sequences("BI", 50, 4)]
        assert scheme(tagged) == name
        assert letters_of(tagged) == ("IOB" if name.startswith("IOB") and name != "IOBES" else name)
    assert scheme([["I-A", "B-A", "B-A"]]) == "IOB1"  # in which those that follow another begin with B- as well
    assert scheme([["S-A"], ["O"]]) == "IOBES"
    assert scheme([["O", "U-A"]]) == "BILOU"
    assert scheme([["O"]]) == "IOB2"
    assert letters_of([]) == "IOB"


@pytest.mark.parametrize("name", ["IOB1", "IOB2"])
def test_no_iob_file_is_taken_for_another(name):
    """Whatever slips of the pen it has, as long as most of its entities are as they should be."""
    for seed in range(300):
        draw, tagged = random.Random(seed), [CONVERTERS[name](tags) for tags in sequences("BI", 6, seed)]
        count = sum(len(entities_of(tags)) for tags in tagged)
        for _ in range(max(count // 3 - 1, 0)):
            tags = draw.choice(tagged)
            tags[draw.randrange(len(tags))] = draw.choice(["S-A", "E-A", "U-A", "L-A", "S-B-C", "E-B-C"])
        assert letters_of(tagged) == "IOB"
    # Words, in a file without a column of tags.
    assert letters_of([["die", "S-Bahn"], ["ein", "U-Boot"], ["per", "E-Mail", "an", "uns"]]) == "IOB"


def file(path, sentences, separator=" "):
    lines = [line for words, tags in sentences for line in (*map(separator.join, zip(words, tags, strict=True)), "")]
    path.write_text("\n".join(lines) + "\n")
    return path


PHRASES = [("good", "GOOD"), ("bad dull", "BAD"), ("poor great fine", "BAD"), ("the", ""), ("film", ""), (".", "")]


def praise(count: int, seed: int, convert) -> list:
    """Entities of one, two and three words."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words, tags = [], []
        for phrase, kind in draw.choices(PHRASES, k=draw.randint(2, 6)):
            first, *rest = phrase.split()
            words += [first, *rest]
            tags += [f"B-{kind}", *(f"I-{kind}" for _ in rest)] if kind else ["O"]
        found.append((words, convert(tags)))
    return found


@pytest.mark.parametrize("name", ["IOBES", "BILOU"])
def test_a_slip_is_a_bad_row_of_the_files_scheme(tmp_path, name):
    sentences = praise(20, 1, CONVERTERS[name])
    other = "U" if name == "IOBES" else "S"
    sentences[3] = (["the", "film"], ["O", f"{other}-GOOD"])
    path = file(tmp_path / "f.txt", sentences)
    ends = "E-TYPE or S-TYPE" if name == "IOBES" else "L-TYPE or U-TYPE"
    with pytest.raises(DataError, match=f"expected the tag O, B-TYPE, I-TYPE, {ends}, got '{other}-GOOD'"):
        registry.get("ner").read(path)
    task = registry.get("ner")
    task.bad_rows = BadRows(skip=True)
    assert len(task.read(path)) == 19
    # An IOB file says what it said.
    path = file(tmp_path / "g.txt", [*praise(20, 1, to_iob2), (["good"], ["S-GOOD"])])
    with pytest.raises(DataError, match="expected the tag O, B-TYPE or I-TYPE, got 'S-GOOD'"):
        registry.get("ner").read(path)


def test_hub_files_have_them_too(tmp_path):
    path = tmp_path / "f.jsonl"
    tagged = praise(20, 1, to_bilou)
    path.write_text("".join(json.dumps({"tokens": words, "ner_tags": tags}) + "\n" for words, tags in tagged))
    rows = registry.get("ner").read(path)
    assert [list(row.label) for row in rows] == [tags for _, tags in tagged]
    path.write_text(path.read_text() + json.dumps({"tokens": ["a"], "ner_tags": ["S-GOOD"]}) + "\n")
    with pytest.raises(
        DataError, match=r"expected tags O, B-TYPE, I-TYPE, L-TYPE or U-TYPE, or numbers .*, got 'S-GOOD'"
    ):
        registry.get("ner").read(path)


@pytest.mark.parametrize("convert", [list, to_iob1, to_iob2, to_iobes])
def test_tags_without_types_are_scored_as_by_seqeval(tmp_path, convert):
    """As BioBERT's files have them; broken entities too, but of IOBES."""
    gold, other = ([[tag[0] for tag in convert(tags)] for tags in sequences("BI", 300, seed)] for seed in (4, 5))
    found = [
        tags if n % 3 else (guess + ["O"] * len(tags))[: len(tags)]
        for n, (tags, guess) in enumerate(zip(gold, other, strict=True))
    ]
    path = file(tmp_path / "gold.txt", [([f"w{n}" for n, _ in enumerate(tags)], tags) for tags in gold])
    task = registry.get("ner")
    rows = task.read(path)
    assert [entities_of(row.label) for row in rows] == [
        [(k, b, e + 1) for k, b, e in get_entities(tags)] for tags in gold
    ]
    predictions = tmp_path / "found.txt"
    for columns in ("{line} {tag}", "{tag}"):
        lines = [
            "\n".join(columns.format(line=line, tag=tag) for line, tag in zip(row.lines, tags, strict=True))
            for row, tags in zip(rows, found, strict=True)
        ]
        predictions.write_text("\n\n".join(lines) + "\n")
        read = task.read_predictions(rows, predictions)
        expected = sequence_labeling.precision_recall_fscore_support(gold, found, average="micro")
        got = task.metric(rows, read)
        assert 0.3 < got["f1"] < 1
        assert (got["precision"], got["recall"], got["f1"]) == pytest.approx(expected[:3], abs=1e-12)
        assert got["accuracy"] == pytest.approx(sequence_labeling.accuracy_score(gold, found), abs=1e-12)


def test_tags_without_types_are_written_without(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("of O\nbreast B\ncancer I\n\nnone O\n")
    task = registry.get("ner")
    rows = task.read(path)
    assert [row.label for row in rows] == [("O", "B-_", "I-_"), ("O",)]
    task.learn(rows)
    assert task.labels == ("O", "B-_", "I-_")
    written = tmp_path / "out.txt"
    task.write_predictions(rows, [("B-_", "I-_", "O"), ("B-_",)], written)
    assert written.read_text() == "of O B\nbreast B I\ncancer I O\n\nnone O B\n\n"
    assert task.read_predictions(rows, written) == [("B-_", "I-_", "O"), ("B-_",)]
    task.restore(fastbert.BertConfig(id2label={0: "B", 1: "I", 2: "O"}))  # as published models have them
    assert task.labels == ("B-_", "I-_", "O")


def test_hub_files_have_tags_without_types_too(tmp_path):
    path = tmp_path / "f.jsonl"
    lines = [{"tokens": ["of", "cancer"], "ner_tags": ["O", "B"]}, {"tokens": ["a"], "ner_tags": ["O"]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row.label for row in registry.get("ner").read(path)] == [("O", "B-_"), ("O",)]
    path.write_text(path.read_text() + json.dumps({"tokens": ["b"], "ner_tags": [["B"]]}) + "\n")
    with pytest.raises(DataError, match=r"line 3: expected tags O, B-TYPE or I-TYPE, or numbers"):
        registry.get("ner").read(path)


def test_one_tag_without_a_type_among_others_is_a_bad_row(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("of O\nParis B-LOC\n\nBonn B\n")
    with pytest.raises(DataError, match="line 4: expected the tag O, B-TYPE or I-TYPE, got 'B'"):
        registry.get("ner").read(path)


def test_real_files(shared_data):
    """CoNLL-2003 in the four schemes: the same entities, the scheme found out, the same figures."""
    rows = registry.get("ner").read(shared_data / "conll2003" / "eng.testa")
    gold = [row.label for row in rows]
    assert scheme(gold) == "IOB1"
    spans = [entities_of(tags) for tags in gold]
    for name, convert in CONVERTERS.items():
        tagged = [convert(tags) for tags in gold]
        assert scheme(tagged) == name
        assert [entities_of(tags) for tags in tagged] == spans
        assert [tuple(to_iob1(tags)) for tags in tagged] == gold


@pytest.mark.parametrize("name", ["IOBES", "BILOU"])
def test_commands(tmp_path, capsys, name):
    """Learned with labels of its own, written as the file has it, scored alike by `evaluate` and seqeval."""
    model = tiny_bert.save(tmp_path / "model", "BertModel")
    convert = CONVERTERS[name]
    train, dev = (file(tmp_path / f"{n}.txt", praise(c, s, convert)) for n, c, s in (("train", 120, 1), ("dev", 40, 2)))
    run = tmp_path / "run"
    given = ["--model", str(model), "--train", str(train), "--dev", str(dev), "--out", str(run), "--max-seqlen", "24"]
    assert main(["finetune", "ner", *given, "--epochs", "5", "--batch-size", "8", "--lr", "3e-3"]) == 0
    labels = set(fastbert.BertConfig.from_pretrained(run / "model").id2label.values())
    letters = {"IOBES": "BIES", "BILOU": "BILU"}[name]
    assert labels == {"O", *(f"{letter}-{kind}" for letter in letters for kind in ("GOOD", "BAD"))}
    metrics = json.loads((run / "dev_metrics.json").read_text())
    assert metrics["f1"] > 0.5
    lines = [line.split() for line in (run / "dev_predictions.txt").read_text().split("\n\n") if line]
    gold, found = [block[1::3] for block in lines], [block[2::3] for block in lines]
    strict = v1.precision_recall_fscore_support(gold, found, scheme=STRICT[name], average="micro")
    assert metrics["f1"] == pytest.approx(strict[2], abs=1e-12)
    # Words alone: there is no scheme to follow but the model's.
    words = file(tmp_path / "words.txt", [(words, ["x"] * len(words)) for words, _ in praise(40, 2, convert)])
    capsys.readouterr()
    assert main(["predict", "ner", "--model", str(run), "--data", str(words)]) == 0
    assert [block.split()[2::3] for block in capsys.readouterr().out.split("\n\n") if block.strip()] == found
    # The same entities in a file of another scheme: the same figures, and predictions in that one.
    other = file(tmp_path / "other.txt", [(w, to_iob2(tags)) for w, tags in praise(40, 2, convert)])
    assert main(["evaluate", "ner", "--model", str(run), "--data", str(other), "--report", str(tmp_path / "r")]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] == pytest.approx(metrics["f1"], abs=1e-12)
    written = (tmp_path / "r" / "other_predictions.txt").read_text()
    assert [b.split()[2::3] for b in written.split("\n\n") if b.strip()] == [to_iob2(tags) for tags in found]
    predictions = file(tmp_path / "p.txt", [(["w"] * len(t), t) for t in map(to_iob2, found)])
    predictions.write_text("\n".join(line.split()[-1] if line else "" for line in predictions.read_text().split("\n")))
    assert main(["evaluate", "ner", "--data", str(dev), "--predictions", str(predictions)]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] == pytest.approx(metrics["f1"], abs=1e-12)


def test_predictions_follow_the_rows(tmp_path):
    rows = registry.get("ner").read(file(tmp_path / "f.txt", [(["a", "b"], ["B-X", "E-X"])]))
    assert in_scheme_of(rows, [("I-X", "I-X")]) == [("B-X", "E-X")]
    plain = registry.get("ner").read(file(tmp_path / "g.txt", [(["a", "b"], ["O", "O"])]))
    assert in_scheme_of(plain, [("I-X", "U-X")]) == [("U-X", "U-X")]
    assert in_scheme_of(plain, [("I-X", "I-X")]) == [("B-X", "I-X")]
