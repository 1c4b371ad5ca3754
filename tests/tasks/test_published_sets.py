"""Data sets as they are published: DuoRC, MCTest, ComVE, KLUE-STS, KorQuAD 2.0, and some that are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row, require_labels
from fastbert.tasks.config import TaskOptions
from fastbert.tasks.squad_answers import Answers


def write(path: Path, values: list[dict]) -> Path:
    """In the form that the name tells."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values), path)
    else:
        text = json.dumps(values) if path.suffix == ".json" else "".join(json.dumps(value) + "\n" for value in values)
        path.write_text(text)
    return path


def task_of(name: str, skip: bool = False, **options):
    task = registry.get(name)
    task.bad_rows = BadRows(skip=skip)
    task.configure(TaskOptions(**options))
    return task


PLOT = "Bob goes to Bonn. He sleeps."
DUORC = [
    {"question_id": "b4-1", "question": "Where does Bob go?", "answers": ["Bonn", "a town"], "no_answer": False},
    {"question_id": "b4-2", "question": "Who eats?", "answers": [], "no_answer": True},
]
OF_DUORC = [
    Row("b4-1", ("Where does Bob go?", PLOT), Answers(("Bonn", "a town"), (-1, -1))),
    Row("b4-2", ("Who eats?", PLOT), Answers()),
]


@pytest.mark.parametrize("name", ["dev.parquet", "dev.jsonl", "SelfRC_dev.json", "own.jsonl"])
def test_questions_about_plots(name, tmp_path):
    """On hubs, and the authors' own: they are scored as SQuAD 2.0's; training needs positions, which they have not."""
    about = {"plot": PLOT, "title": "Bob"}
    own = [{"id" if key == "question_id" else key: value for key, value in question.items()} for question in DUORC]
    nested = "own" in name or name.startswith("SelfRC")
    values = [{"id": "/m/03", **about, "qa": own}] if nested else [{"plot_id": "/m/03", **about, **q} for q in DUORC]
    path, task = write(tmp_path / name, values), task_of("squad2")
    rows = task.read(path)
    assert [(row.id, row.texts, row.label) for row in rows] == [(row.id, row.texts, row.label) for row in OF_DUORC]
    with pytest.raises(DataError, match=r"question b4-1: expected the character where 'Bonn' begins in its context"):
        task.for_training(rows, path)
    with pytest.raises(DataError, match="got an impossible one, which belongs to squad2"):
        task_of("squad1").read(path)


CHOICES = ("a dog", "a cat", "a cow", "a pig")
STORY = "Tom had a dog. It was red."
MCTEST = ("mc160.dev.0", "Author: 1;Work Time(s): 2", "Tom had a dog.\\newlineIt was red.")
QUESTIONS = ("one: What had Tom?", "multiple: What was red: say?", "one: Who?", "one: What?")
LINE = "\t".join([*MCTEST, *("\t".join([question, *CHOICES]) for question in QUESTIONS)]) + "\n"


def test_stories_of_mctest(tmp_path):
    path, task = tmp_path / "mc160.dev.tsv", task_of("swag")
    path.write_text(LINE * 2)
    rows = task.read(path)
    assert rows[1] == Row("1", (STORY, *(f"What was red: say? {choice}" for choice in CHOICES)), None)
    assert len(rows) == 8
    (tmp_path / "mc160.dev.ans").write_text("A\tB\tC\tD\nD\tD\tD\tA\n")
    assert "".join(row.label for row in task.read(path)) == "01233330"
    path.with_name("mc160.dev.tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert task.read(path.with_name("mc160.dev.tsv.gz")) == task.read(path)
    path.write_text(LINE.replace("one:", "multiple:") + LINE.replace("\tone: Who?", "") + LINE)
    (tmp_path / "mc160.dev.ans").write_text("A\tB\tC\tD\n" * 3)
    with pytest.raises(DataError, match=r"tsv, line 2, question 1: expected MCTest's 23 tab-separated columns, got 22"):
        task.read(path)
    task = task_of("swag", skip=True)
    kept = task.read(path)
    assert "".join(row.label for row in kept) == "01230123"
    assert [row.id for row in kept] == ["0", "1", "2", "3", "8", "9", "10", "11"]
    assert len(task.bad_rows.reasons) == 4
    (tmp_path / "mc160.dev.ans").write_text("A\tB\tC\tD\n")
    with pytest.raises(DataError, match=r"mc160\.dev\.ans: expected four answers for each of the 3 stories"):
        task.read(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("options", [dict(zip("ABCD", CHOICES, strict=True)), list(CHOICES)], ids=["object", "list"])
def test_mctest_on_hubs(name, options, tmp_path):
    value = {"idx": {"story": "mc160.dev.0", "question": 0}, "question": "What had Tom?", "story": STORY}
    value |= {"properties": {"author": "1"}, "answer_options": options, "answer": "C", "question_is_multiple": False}
    [row] = task_of("swag").read(write(tmp_path / name, [value]))
    assert row == Row("0", (STORY, *(f"What had Tom? {choice}" for choice in CHOICES)), "2")


@pytest.mark.parametrize(
    ("header", "fields", "label", "row"),
    [
        ("id,sent0,sent1", "7,He eats milk.,He drinks it.", "0", (("", "He eats milk.", "He drinks it."), "0")),
        ("id,FalseSent,OptionA,OptionB,OptionC", "7,He eats milk.,tasty,solid,fruit", "B",
         (("He eats milk.", "tasty", "solid", "fruit"), "1")),
    ],
)  # fmt: skip
def test_sentences_against_common_sense(header, fields, label, row, tmp_path):
    """The answers are files of their own; here they have become a column."""
    path, task = tmp_path / "subtask.csv", task_of("swag")
    path.write_text(f"{header},label\n{fields},{label}\n")
    assert task.read(path) == [Row("0", *row)]
    [value] = [dict(zip(header.split(","), fields.split(","), strict=True))]
    assert task.read(write(tmp_path / "a.jsonl", [value | {"label": label}])) == [Row("0", *row)]
    path.write_text(f"{header}\n{fields}\n")
    rows = task.read(path)
    assert rows == [Row("0", row[0], None)]
    with pytest.raises(DataError, match="line 1: expected a column label with the label of every row, got the columns"):
        require_labels(task, rows, path)
    path.write_text(f"{header},label\n{fields},4\n")
    with pytest.raises(DataError, match="expected the label to be one of 0 to"):
        task.read(path)


@pytest.mark.parametrize("name", ["klue-sts-v1.1_dev.json", "dev.jsonl", "dev.parquet"])
def test_labels_of_klue_sts(name, tmp_path):
    """Three of a pair in one object: a score, the same not rounded, and a class."""
    pair = {"guid": "klue-sts-v1_dev_00000", "source": "airbnb-rtt", "sentence1": "A b", "sentence2": "A c"}
    values = [pair | {"labels": {"label": 3.7 - n, "real-label": 3.714 - n, "binary-label": 1 - n}} for n in range(2)]
    path, texts = write(tmp_path / name, values), ("sentence1", "sentence2")
    assert task_of("stsb").read(path) == [Row("0", ("A b", "A c"), 3.7), Row("1", ("A b", "A c"), 2.7)]
    for task, column, labels in (
        ("text-regression", None, [3.7, 2.7]),
        ("text-regression", "real-label", [3.714, 2.714]),
        ("text-classification", "binary-label", ["1", "0"]),
    ):
        rows = task_of(task, text_columns=texts, label_column=column).read(path)
        assert [row.label for row in rows] == pytest.approx(labels)


CONTEXT = "Bob lives in Bonn."
BONN = {"text": "Bonn", "answer_start": 13}


@pytest.mark.parametrize(
    ("answers", "read"),
    [
        ({"answer": BONN | {"html_answer_start": 20}}, Answers(("Bonn",), (13,))),
        ({"answer": "Bonn"}, Answers(("Bonn",), (-1,))),
        ({"answers": [BONN], "answer": "a town"}, Answers(("Bonn",), (13,))),
        ({"answers": [{"text": "", "answer_start": -1}], "is_impossible": True}, Answers()),
        ({"answers": {"text": ["", " "], "answer_start": [-1, -1]}, "is_impossible": True}, Answers()),
        ({"answer": "", "is_impossible": True}, Answers()),
    ],
)
def test_answers_under_other_names_and_without_a_text(answers, read, tmp_path):
    """KorQuAD 2.0 has a single answer, in articles without paragraphs; some sets have an empty one if there is none."""
    question = {"question": "Where?", "id": 7, **answers}
    article = {"title": "Bob", "url": "u", "context": CONTEXT, "qas": [question]}
    rows = [Row("7", ("Where?", CONTEXT), read)]
    (tmp_path / "v2.json").write_text(json.dumps({"version": "2", "data": [article]}))
    assert task_of("squad2").read(tmp_path / "v2.json") == rows
    assert task_of("squad2").read(write(tmp_path / "f.jsonl", [question | {"context": CONTEXT}])) == rows


PLAUSIBLE = {"guid": "k-1", "question": "Who sleeps?", "answers": {"text": ["Bob"], "answer_start": [0]}}


@pytest.mark.parametrize(
    ("name", "place"), [("klue.jsonl", "line 2"), ("klue.parquet", "row 2"), ("klue.json", "object 2")]
)
def test_plausible_answers_of_klue_are_none(name, place, tmp_path, caplog):
    """Its loader on hubs puts them where the answers to other questions are; SQuAD's own form has a key for them."""
    asked = [{**PLAUSIBLE, "guid": f"k-{number}", "is_impossible": number > 0} for number in range(3)]
    path = write(tmp_path / name, [{**question, "context": CONTEXT} for question in asked])
    rows = task_of("squad2").read(path)
    assert [row.label for row in rows] == [Answers(("Bob",), (0,)), Answers(), Answers()]
    [said] = caplog.messages
    assert said == f"{path}, {place}: expected no answers to an impossible question, got some, which are left out"
    caplog.clear()
    task = task_of("squad2")
    task.predicting = True
    assert len(task.read(path)) == 3
    assert len(task_of("squad1", skip=True).read(path)) == 1
    assert not caplog.messages
    own = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": asked[1:]}]}]}
    path.with_suffix(".json").write_text(json.dumps(own))
    with pytest.raises(DataError, match="expected no answer to an impossible question, got one"):
        task_of("squad2").read(path.with_suffix(".json"))


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ({"Data": [], "Domain": "Web"}, "line 1: .*a list under 'data', got the keys Data, Domain"),
        ([{"context_id": "x", "context_text": "C", "qas": [{}]}], "object 1: .*, got context_id, context_text, qas"),
        ({"data": [{"story": "S", "questions": [], "answers": []}]}, "article 1: .*, got the keys story, questions, a"),
        ({"data": [{"paragraphs": [{"text": "S"}]}]}, "article 1, paragraph 1: .*, got the keys text"),
        ({"data": [{"paragraphs": [{"context": "C", "qas": ["Who?"]}]}]}, "question 1: .*, got 'Who\\?'"),
        ({"data": ["a"]}, "article 1: .*, got 'a'"),
    ],
)
def test_other_sets_of_questions_are_refused_with_their_keys(value, got, tmp_path):
    """The first three are TriviaQA, CMRC 2018 and CoQA."""
    path = tmp_path / "f.json"
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match=f"f.json.*{got}"):
        task_of("squad1").read(path)


def test_numbers_in_another_column_than_glues_may_have_another_order(tmp_path, caplog):
    """ASSIN 2 as a table: its 1 is entailment, GLUE's is not."""
    pairs = [{"premise": "A", "hypothesis": "B", "label": number, "judgment": number} for number in (1, 0)]
    path = write(tmp_path / "train.jsonl", pairs)
    for options, told in (({}, []), ({"label_column": "judgment"}, ["judgment"])):
        assert [row.label for row in task_of("rte", **options).read(path)] == ["not_entailment", "entailment"]
        assert caplog.messages == [
            f"{path}: the numbers in the column {name} are taken for 0 entailment, 1 not_entailment" for name in told
        ]


@pytest.mark.parametrize(
    ("name", "row"),
    [("rte", {"premise": "A", "hypothesis": "B", "gold": 1}), ("swag", {"goal": "G", "sol1": "a", "sol2": "b"})],
)
def test_the_columns_are_told_although_the_first_row_is_bad(name, row, tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(f"no JSON\n{json.dumps(row)}\n")
    task = task_of(name, skip=True)
    rows = task.read(path)
    with pytest.raises(DataError, match=f"line 2: expected a column label .*, got the columns {', '.join(row)}"):
        require_labels(task, rows, path)


def test_numbers_are_told_although_the_first_row_is_bad(tmp_path, caplog):
    path = tmp_path / "train.csv"
    path.write_text("premise,hypothesis,judgment\nA,B\nA,B,1\n")
    assert [row.id for row in task_of("rte", skip=True, label_column="judgment").read(path)] == ["1"]
    assert caplog.messages == [
        f"{path}: the numbers in the column judgment are taken for 0 entailment, 1 not_entailment"
    ]


@pytest.mark.parametrize("key", ["question_id", "key"])
def test_ids_under_other_keys(key, tmp_path):
    """iapp_wiki_qa_squad has the first. What else is called so is no id where there is one."""
    question = {key: "q-1", "question": "Where?", "answers": {"text": ["Bonn"], "answer_start": [13]}}
    other = {**question, "id": "own", "question": "Where else?"}
    values = [{**asked, "context": CONTEXT} for asked in (question, {**question, key: "q-2", "id": ""}, other)]
    rows = task_of("squad1").read(write(tmp_path / "f.jsonl", values))
    assert [row.id for row in rows] == ["q-1", "q-2", "own"]
    del values[0][key]
    expected = "line 1: expected an id under the key id, qid, guid, question_id or key, since .* by id, got None"
    with pytest.raises(DataError, match=expected):
        task_of("squad1").read(write(tmp_path / "f.jsonl", values))


def test_the_line_of_a_question_is_not_that_of_its_number_in_an_answer(tmp_path):
    """GermanQuAD's answers have a question_id too."""
    answer = {"answer_id": 1, "question_id": 7, **BONN}
    asked = [{"id": 7, "question": "Where?", "answers": [answer]}, {"id": 7, "question": "Who?", "answers": [answer]}]
    text = json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": asked}]}]}, indent=1)
    (tmp_path / "f.json").write_text(text)
    line = [number for number, line in enumerate(text.split("\n"), 1) if '"id"' in line][1]
    with pytest.raises(DataError, match=f"f.json, line {line}, .*question 7: expected every id once, got 7 again"):
        task_of("squad1").read(tmp_path / "f.json")


UNSPACED = "most answers are in a script without blanks between words, for which SQuAD's F1 is hardly more"
KOREAN = "most answers are in Korean, and these figures are SQuAD's: KorQuAD's own F1 is of characters, and its exact"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["北京大學", "2010年", "東京"], UNSPACED),
        (["ローマ"], UNSPACED),
        (["กรุงเทพ", "Bonn"], None),  # as many in either
        (["서울 대학교", "Bonn"], None),
        (
            ["서울 대학교", "《임꺽정》", "Bonn"],
            KOREAN,
        ),
        (["Bonn (波恩)"], None),
        ([], None),
    ],
)
@pytest.mark.parametrize("name", ["squad1", "squad2"])
def test_answers_whose_figures_are_of_characters_are_told_of_once(name, answers, told, tmp_path, caplog):
    """SQuAD's F1 compares words between blanks, so that 北京大學 and 北京大學的 have nothing in common."""
    values = [{"id": str(n), "question": "Q", "context": f"x {text}"} for n, text in enumerate([*answers, "."])]
    for value, text in zip(values, answers, strict=False):
        value["answers"] = {"text": [text], "answer_start": [2]}
    path, task = write(tmp_path / "f.jsonl", values), task_of(name)
    assert task.read(path) == task.read(path)
    assert len(caplog.messages) == (told is not None)
    assert all(message.startswith(f"{path}: {told}") for message in caplog.messages)
    caplog.clear()
    task = task_of(name)
    task.predicting = True
    task.read(path)
    assert not caplog.messages


STS = "split\tgenre\tdataset\tyear\tsid\tscore\tsentence1\tsentence2\n"
NLI = "split\tdataset\tfilename\tsentence1\tsentence2\tlabel\n"


@pytest.mark.parametrize(
    ("task", "name", "text", "told"),
    [
        ("stsb", "b.tsv", STS + "".join(f"{part}\tg\td\ty\ts\t5.0\tA\tB\n" for part in ("dev", "train", "test", "x")),
         "dev, train and test, and the rows of all are taken (awk -F'\\t' 'NR == 1 || $1 == \"train\"' FILE keeps"),
        ("mnli", "AllNLI.tsv.gz", NLI + "".join(f"{part}\tSNLI\tx\tA\tB\tneutral\n" for part in ("dev", "test")),
         "dev and test, and the rows of all are taken (zcat FILE | awk -F'\\t' 'NR == 1 || $1 == \"dev\"' keeps"),
        ("sst2", "a.csv", "sentence,label,split\n" + "a,1,Train\nb,0,Test\n",
         "Train and Test, and the rows of all are taken (pandas' frame[frame.split == 'Train'] keeps"),
        ("stsb", "b.tsv", STS + "train\tg\td\ty\ts\t5.0\tA\tB\n" * 2, None),
        ("sst2", "a.csv", "sentence,label,split\na,1,matched\nb,0,mismatched\nb,0,dev\n", None),
    ],
)  # fmt: skip
def test_all_parts_of_a_set_in_one_table_are_told_of(task, name, text, told, tmp_path, caplog):
    """sbert.net's stsbenchmark.tsv and AllNLI.tsv: a model would be tested on what it was trained on."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    reader = task_of(task)
    assert len(reader.read(path)) == text.count("\n") - 1
    expected = [] if told is None else [f"{path}: the column split has {told} those of one)"]
    assert caplog.messages == expected
    caplog.clear()
    reader.predicting = True
    reader.read(path)
    assert not caplog.messages


def test_numbers_of_tags_have_their_names_in_a_file_beside(tmp_path):
    """tner's sets: label.json beside train.json."""
    values = [{"tokens": ["Bob", "ran"], "tags": [2, 0]}, {"tokens": ["Bonn", "Ja"], "tags": [1, 0]}]
    path, beside = write(tmp_path / "train.jsonl", values), tmp_path / "label.json"
    without = "got 2: datasets' to_parquet keeps the names, to_json does not; or write label.json beside, "
    with pytest.raises(DataError, match=f"line 1: expected tags O, B-TYPE or I-TYPE, .*{without}"):
        task_of("ner").read(path)
    beside.write_text('{"B-LOC": 1, "O": 0, "B-PER": 2}')
    rows = task_of("ner").read(path)
    assert [row.label for row in rows] == [("B-PER", "O"), ("B-LOC", "O")]
    write(path, [{"tokens": ["a"], "tags": [3]}])
    with pytest.raises(DataError, match=r"line 1: .* got 3 \(the file names O, B-LOC, B-PER\)"):
        task_of("ner").read(path)
    beside.write_text("no JSON")  # and not read where tags have names
    assert task_of("ner").read(write(tmp_path / "other.jsonl", [{"tokens": ["a"], "tags": ["O"]}]))[0].label == ("O",)
    for text in ("no JSON", '{"O": 0, "B-LOC": 2}', '["O"]', '{"0": "O"}'):
        beside.write_text(text)
        with pytest.raises(DataError, match=r"label\.json"):
            task_of("ner").read(path)
        task = task_of("ner")
        task.predicting = True
        assert [row.label for row in task.read(path)] == [None]
