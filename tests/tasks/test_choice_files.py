"""Sets of multiple choice in their authors' own files: RACE's and MMLU's directories, DREAM's dialogues, COPA's XML."""

import io
import json

import pytest
import tiny_bert

from fastbert.cli.main import main
from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row

RACE = {"id": "high1.txt", "article": "Ann\nran.", "questions": ["Who?", "Did _ ?"], "answers": ["B", "C"]}
RACE |= {"options": [["Al", "Ann", "Bo", "Cy"], ["a", "b", "c", "d"]]}
TALK = ["W: Two?", "M: No, three."]
DREAM = [
    [TALK, [{"question": "When?", "choice": ["At 2", "At 3", "At 4"], "answer": "At 3"}], "5-510"],
    [
        ["W: Hi.", "M: 2.0"],
        [
            {"question": "Which?", "choice": ["2", "2.0", "1"], "answer": "2.0"},
            {"question": "Who?", "choice": ["a", "b", "c"], "answer": "a"},
        ],
        "3-18",
    ],
]
COPA = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE copa-corpus SYSTEM "copa.dtd">
<copa-corpus version="1.0">
<item id="501" asks-for="cause" most-plausible-alternative="1">
<p>It cast a shadow.</p>
<a1>The sun &amp; moon rose.</a1>
<a2>It fell.</a2>
</item>
<item id="502" asks-for="effect" most-plausible-alternative="2"><p>A.</p><a1>B.</a1><a2>C.</a2></item>
</copa-corpus>
"""
MMLU = '"Which is (x, ""y"")\n of two?",0,"1, or 2",2,3,B\nWho?,a,b,c,d,D\n'


def read(path, text, skip=False, predicting=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    task = registry.get("swag")
    task.bad_rows, task.predicting = BadRows(skip=skip), predicting
    return task.read(path)


OF_RACE = [
    Row("0", ("Ann\nran.", "Who? Al", "Who? Ann", "Who? Bo", "Who? Cy"), "1"),
    Row("1", ("Ann\nran.", "Did _ ? a", "Did _ ? b", "Did _ ? c", "Did _ ? d"), "2"),
]
OF_MMLU = [
    Row("0", ('Which is (x, "y")\n of two?', "0", "1, or 2", "2", "3"), "1"),
    Row("1", ("Who?", "a", "b", "c", "d"), "3"),
]


@pytest.mark.parametrize("name", ["1.txt", "race.jsonl", "race.json"])
def test_several_questions_about_an_article(tmp_path, name):
    assert read(tmp_path / name, json.dumps(RACE) + "\n") == OF_RACE
    unlabelled = {key: value for key, value in RACE.items() if key != "answers"}
    assert [row.label for row in read(tmp_path / name, json.dumps(unlabelled) + "\n")] == [None, None]


def test_directories_of_articles(tmp_path):
    """Rows are numbered through all files, which are read in the order of their names."""
    for folder, name, article in (("high", "2.txt", "H2"), ("high", "10.txt", "H10"), ("middle", "1.txt", "M1")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(json.dumps(RACE | {"article": article}))
    (tmp_path / "middle" / "._1.txt").write_bytes(b"\0")
    (tmp_path / "middle" / "notes.md").write_text("none")
    task = registry.get("swag")
    rows = task.read(tmp_path)
    assert [(row.id, row.texts[0], row.label) for row in rows] == [
        (str(i), article, "12"[i % 2]) for i, article in enumerate(["H10", "H10", "H2", "H2", "M1", "M1"])
    ]
    assert [row.id for row in task.read(tmp_path / "middle")] == ["0", "1"]
    (tmp_path / "high" / "2.txt").write_text(json.dumps(RACE | {"answers": ["B", "E"]}))
    with pytest.raises(DataError, match=r"high/2\.txt, line 1, question 2: expected the label to be one of 0 to 3"):
        task.read(tmp_path)
    task.bad_rows = BadRows(skip=True)
    assert [row.id for row in task.read(tmp_path)] == ["0", "1", "2", "4", "5"]
    for part in ("dev", "train"):
        read(tmp_path / "RACE" / part / "high" / "1.txt", json.dumps(RACE))
    with pytest.raises(DataError, match="RACE: expected the directory of one part, got one that has dev, train"):
        task.read(tmp_path / "RACE")
    assert len(task.read(tmp_path / "RACE" / "dev")) == 2
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none: expected files called \.txt or \.csv in the directory, got none"):
        task.read(tmp_path / "none")


def test_dialogues(tmp_path):
    rows = read(tmp_path / "train.json", json.dumps(DREAM, indent=1))
    assert rows == [
        Row("0", ("W: Two? M: No, three.", "When? At 2", "When? At 3", "When? At 4"), "1"),
        Row("1", ("W: Hi. M: 2.0", "Which? 2", "Which? 2.0", "Which? 1"), "1"),
        Row("2", ("W: Hi. M: 2.0", "Who? a", "Who? b", "Who? c"), "0"),
    ]
    hub = {"id": 0, "dialogue_id": "5-510", "dialogue": TALK, **DREAM[0][1][0]}
    assert read(tmp_path / "a.jsonl", json.dumps(hub) + "\n") == rows[:1]
    # The text of no choice is no number of one either.
    for answer in ("At 5", "1"):
        odd = json.dumps(hub | {"answer": answer}) + "\n"
        with pytest.raises(DataError, match=f"expected the label to be one of 0 to 2, got .'{answer}'"):
            read(tmp_path / "a.jsonl", odd)
        [row] = read(tmp_path / "a.jsonl", odd, predicting=True)
        assert row.label is None


def test_items_of_xml(tmp_path, monkeypatch):
    rows = read(tmp_path / "copa-dev.xml", COPA)
    cause, effect = "What was the cause of this?", "What happened as a result?"
    assert rows == [
        Row("0", ("It cast a shadow.", f"{cause} The sun & moon rose.", f"{cause} It fell."), "0"),
        Row("1", ("A.", f"{effect} B.", f"{effect} C."), "1"),
    ]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(COPA.encode())))
    assert registry.get("swag").read("-") == rows


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.xml", COPA.replace("</item>", ""), "a.xml: expected XML, got an error in it: mismatched tag: line 10"),
        ("a.xml", "<?xml version='1.0'?>\n<html/>", "a.xml: expected COPA's XML with items, got none in <html>"),
        ("a.xml", COPA.replace('ve="2"', 've="3"'), "item 502: expected the label to be one of 0 to 1, got '2'"),
        ("a.xml", COPA.replace("<p>A.</p>", ""), "item 502: expected all columns of SWAG"),
        ("a.csv", MMLU.replace(",D\n", ",E\n"), "line 3: expected the label to be one of 0 to 3, got 'E'"),
        ("a.csv", MMLU + "Why?,a,b,c,D\n", r"line 4: expected MMLU's six columns \(question, four answers, letter\)"),
        ("a.csv", MMLU.replace(",B\n", ",5\n"), "or MMLU's 6 of a .csv, got '\"Which"),
        ("a.csv", "n,Q,A,B,C,D\n1,Why?,a,b,c,d\n", "or MMLU's 6 of a .csv, got 'n,Q,A,B,C,D'"),
        ("a.tsv", "ID\tQuestion Stem\tChoices\tKey\n", "Key'; ARC, OpenBookQA and others are read from JSON"),
        ("a.json", json.dumps([*DREAM, [1]]), "object 3: expected a JSON object, got list"),
        ("a.json", json.dumps([[TALK, ["Who?"], "1"]]), "object 1: expected objects as the questions of a dialogue"),
        (
            "1.txt",
            json.dumps(RACE | {"answers": ["A"]}),
            "1.txt, line 1: expected options and answers for each of 2 ",
        ),
    ],
)
def test_bad_rows(tmp_path, name, text, reason):
    with pytest.raises(DataError, match=reason):
        read(tmp_path / name, text)


def test_a_csv_without_a_header(tmp_path):
    assert read(tmp_path / "a_test.csv", MMLU) == OF_MMLU
    assert read(tmp_path / "b_test.csv", MMLU) == OF_MMLU
    rows = registry.get("swag").read(tmp_path)
    assert [(row.id, row.texts) for row in rows] == [(str(i), OF_MMLU[i % 2].texts) for i in range(4)]


def test_from_a_directory_to_scores(tmp_path, capsys):
    model = tiny_bert.save(tmp_path / "model", num_hidden_layers=1)
    train, run = tmp_path / "train", tmp_path / "run"
    read(train / "high" / "1.txt", json.dumps(RACE))
    read(train / "middle" / "2.txt", json.dumps(RACE))
    given = ["--model", str(model), "--train", str(train), "--dev-share", "0.5", "--also", str(train)]
    assert main(["finetune", "swag", *given, "--out", str(run), "--epochs", "1", "--max-seqlen", "16"]) == 0
    assert json.loads((run / "also_train_metrics.json").read_text())
    out = tmp_path / "p.csv"
    assert main(["predict", "swag", "--model", str(run), "--data", str(train), "--out", str(out)]) == 0
    predicted = [line.split(",") for line in out.read_text().splitlines()[1:]]
    assert [index for index, _ in predicted] == ["0", "1", "2", "3"]
    capsys.readouterr()
    assert main(["evaluate", "swag", "--data", str(train), "--predictions", str(out)]) == 0
    right = sum(label == "12"[int(index) % 2] for index, label in predicted)
    assert json.loads(capsys.readouterr().out) == {"task": "swag", "rows": 4, "accuracy": right / 4}
