"""Task files as data-set hubs export them, and official ones with everything that goes wrong on the way."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hub_files import HUB, exported, parquet

from fastbert.cli._tasks import read_rows
from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row
from fastbert.tasks.mnli import Diagnostic
from fastbert.tasks.squad_answers import Answers

RTE = "sentence1,sentence2,label,idx\n"


@pytest.fixture
def read(tmp_path):
    def read(task, content: bytes, name: str, skip: bool = False) -> list[Row]:
        path = tmp_path / name
        path.write_bytes(content)
        task = registry.get(task) if isinstance(task, str) else task
        task.bad_rows = BadRows(skip=skip)
        return task.read(path)

    return read


TEXTS = ('He said "no".', '"No"', 'a ""b"" c', 'no "quotes', "plain", '"')


@pytest.mark.parametrize("columns", [("text", "label"), ("text",)])
def test_quotes_that_a_csv_writer_put_into_a_file_of_ones_own_are_undone(read, columns):
    """As pandas writes with tabs. In GLUE's files the same quotes are a part of the text, as its readers have it."""
    written = io.StringIO()
    writer = csv.writer(written, delimiter="\t", lineterminator="\n")
    writer.writerows([columns, *((text, "x")[: len(columns)] for text in TEXTS)])
    content = written.getvalue()
    assert '"He said ""no""."' in content
    assert [row.texts for row in read("text-classification", content.encode(), "own.tsv")] == [(t,) for t in TEXTS]
    plain = "\t".join(columns) + "\n" + "".join("\t".join((text, "x")[: len(columns)]) + "\n" for text in TEXTS[:2])
    assert [row.texts for row in read("text-classification", plain.encode(), "own.tsv")] == [(t,) for t in TEXTS[:2]]
    glue = content.replace("text", "sentence").replace("\tx\n", "\t1\n")
    assert read("sst2", glue.encode(), "train.tsv")[0].texts == ('"He said ""no""."',)


@pytest.mark.parametrize("name", HUB)
@pytest.mark.parametrize("form", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_the_hubs_columns_and_numbers(name, form, read):
    content, rows = exported(name, form)
    assert read(name, content, f"train.{form}") == rows
    if form != "parquet":
        assert read(name, b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"), f"windows.{form}") == rows
    content, rows = exported(name, form, labels=False)
    assert read(name, content, f"test.{form}") == rows
    assert all(row.label is None for row in rows)


def test_the_number_of_a_label_is_gluess_whatever_order_a_model_has(read):
    from fastbert.config import BertConfig

    task = registry.get("mnli")
    task.restore(BertConfig(num_labels=3, id2label={0: "contradiction", 1: "neutral", 2: "entailment"}))
    content, rows = exported("mnli", "csv")
    assert task.labels[0] == "contradiction"
    assert read(task, content, "train.csv") == rows


@pytest.mark.parametrize(
    ("task", "file", "content", "rows"),
    [
        # pandas writes its own index first, and label names beside the numbers.
        ("mrpc", "a.csv", ",text1,text2,label,idx,label_text\n0,A,B,1,7,equivalent\n", [Row("7", ("A", "B"), "1")]),
        ("sst2", "a.csv", 'text,label\n"one\ntwo, three",1\n', [Row("0", ("one\ntwo, three",), "1")]),
        ("text-classification", "a.csv", 'text,label\n"a, b",x\n', [Row("0", ("a, b",), "x")]),
        # The diagnostic set has no labels.
        ("mnli", "ax.tsv", "premise\thypothesis\tlabel\tidx\nA\tB\t-1\t0\n", [Diagnostic("0", ("A", "B"), None)]),
        # MultiNLI's own JSON lines, words for labels.
        (
            "mnli",
            "multinli.jsonl",
            '{"gold_label": "neutral", "sentence1": "A", "sentence2": "B", "pairID": "x", "genre": "g"}\n',
            [Row("0", ("A", "B"), "neutral")],
        ),
        # XNLI's training files: MultiNLI, translated.
        (
            "mnli",
            "multinli.train.de.tsv",
            'premise\thypo\tlabel\nEr "kam" .\tEr ging .\tcontradictory\nA\tB\tneutral\n',
            [Row("0", ('Er "kam" .', "Er ging ."), "contradiction"), Row("1", ("A", "B"), "neutral")],
        ),
        # ANLI's, whose labels are letters.
        (
            "mnli",
            "train.jsonl",
            '{"uid": "x", "context": "A", "hypothesis": "B", "label": "c", "model_label": "e"}\n',
            [Row("0", ("A", "B"), "contradiction")],
        ),
        # HANS, whose header is like MultiNLI's.
        (
            "rte",
            "heuristics_evaluation_set.jsonl",
            '{"gold_label": "non-entailment", "sentence1": "A", "sentence2": "B", "label": "non-entailment"}\n',
            [Row("0", ("A", "B"), "not_entailment")],
        ),
        # GLUE's diagnostic set with its labels.
        (
            "mnli",
            "diagnostic-full.tsv",
            'Logic\tDomain\tPremise\tHypothesis\tLabel\nNegation\t\tA "b".\tB\tcontradiction\n',
            [Diagnostic("0", ('A "b".', "B"), "contradiction")],
        ),
        # An id beside the authors' own columns.
        ("sst2", "a.tsv", "id\tsentence\tlabel\nx7\tA\t1\n", [Row("x7", ("A",), "1")]),
        ("rte", "a.tsv", "id\tindex\tsentence1\tsentence2\nx7\t3\tA\tB\n", [Row("3", ("A", "B"), None)]),
        ("text-classification", "a.csv", "Text,Label\nA,x\n", [Row("0", ("A",), "x")]),
        ("text-classification", "a.csv", "text,label\nA,-1\nB,1\n", [Row("0", ("A",), "-1"), Row("1", ("B",), "1")]),
        ("text-classification", "a.csv", "text,label\nA,-1\nB,-1\n", [Row("0", ("A",), None), Row("1", ("B",), None)]),
        # Names of labels, and what pandas makes of numbers.
        ("sst2", "a.jsonl", '{"sentence": "A", "label": "Positive"}\n', [Row("0", ("A",), "1")]),
        ("cola", "a.csv", "sentence,label,idx\nA,unacceptable,4\n", [Row("4", ("A",), "0")]),
        ("rte", "a.csv", "sentence1,sentence2,label\nA,B,1.0\n", [Row("0", ("A", "B"), "not_entailment")]),
        (
            "mnli",
            "a.jsonl",
            '{"premise": "A", "hypothesis": "B", "label": "Neutral"}\n',
            [Row("0", ("A", "B"), "neutral")],
        ),
        # The task's own text columns, and the label as hubs call it.
        ("stsb", "a.tsv", "sentence1\tsentence2\tlabel\nA\tB\t2.5\n", [Row("0", ("A", "B"), 2.5)]),
        ("mnli", "a.tsv", "sentence1\tsentence2\tlabel\nA\tB\t1\n", [Row("0", ("A", "B"), "neutral")]),
        ("qqp", "a.jsonl", '{"question1": "A", "question2": "B", "label": true}\n', [Row("0", ("A", "B"), "1")]),
        # Quora's own file.
        (
            "qqp",
            "train.csv",
            '"id","qid1","qid2","question1","question2","is_duplicate"\n"5","1","2","What is ""x"", then?","B","1"\n',
            [Row("5", ('What is "x", then?', "B"), "1")],
        ),
        # Authors' quotes in a tab-separated export that a CSV writer did not make stay what they are.
        (
            "rte",
            "a.tsv",
            'sentence1\tsentence2\tlabel\tidx\n"A" b\t"c\t1\t0\n"""A"" or "B"?"\tc\t0\t1\n',
            [Row("0", ('"A" b', '"c'), "not_entailment"), Row("1", ('"""A"" or "B"?"', "c"), "entailment")],
        ),
        # A sentence of PAWS that is one quotation.
        (
            "mrpc",
            "train.tsv",
            'id\tsentence1\tsentence2\tlabel\n7\t"The 1975"\t"""X"", he said"\t0\n',
            [Row("7", ('"The 1975"', '"X", he said'), "0")],
        ),
    ],
)
def test_other_exports(task, file, content, rows, read):
    assert read(task, content.encode(), file) == rows


@pytest.mark.parametrize(
    ("task", "file", "content", "column"),
    [
        ("sst2", "a.csv", "sentence,label,sentence\nA,1,B\n", "sentence"),
        ("sst2", "a.csv", "sentence,label,label\nA,1,0\n", "label"),
        ("sst2", "a.tsv", "sentence\tlabel\tidx\tidx\nA\t1\t0\t1\n", "idx"),
        ("sst2", "a.tsv", "sentence\tlabel\tsentence\nA\t1\tB\n", "sentence"),
        ("sst2", "a.tsv", "id\tsentence\tid\n1\tA\t2\n", "id"),
        ("swag", "a.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label,label\nA,B,c,d,e,f,0,3\n", "label"),
    ],
)
def test_a_column_that_is_there_twice_is_refused(task, file, content, column, read):
    with pytest.raises(DataError, match=f"{file}, line 1: expected one column '{column}', got 2$"):
        read(task, content.encode(), file)


def test_columns_that_nobody_reads_may_be_there_twice(read):
    assert read("sst2", b"sentence,label,,\nA,1,,\n", "a.csv") == [Row("0", ("A",), "1")]
    assert read("sst2", b"idx,id,id,sentence,label\n5,6,7,A,1\n", "a.csv") == [Row("5", ("A",), "1")]
    assert read("rte", b"index\tid\tid\tsentence1\tsentence2\n5\t6\t7\tA\tB\n", "a.tsv") == [Row("5", ("A", "B"), None)]
    pair = b"question1,question2,is_duplicate,label,label\nA,B,1,0,0\n"
    assert read("qqp", pair, "a.csv") == [Row("0", ("A", "B"), "1")]


@pytest.mark.parametrize("predicting", [False, True])
def test_an_id_that_breaks_the_lines_of_a_submission_is_refused(predicting, read):
    task = registry.get("sst2")
    task.predicting = predicting  # evaluation writes predictions too
    with pytest.raises(DataError, match=r"line 1: expected an id without tabs and line ends, got 'a\\tb'"):
        read(task, b'{"id": "a\\tb", "sentence": "A", "label": 1}\n', "a.jsonl")


@pytest.mark.parametrize(
    ("task", "file", "content", "reason"),
    [
        (
            "rte",
            "a.csv",
            RTE + "A,B,0,0\nC,D,2,1\n",
            "line 3: expected the label to be one of",
        ),
        ("rte", "a.csv", RTE + "A,B,0,0\nC,1,1\n", "line 3: expected the columns sentence1"),
        (
            "rte",
            "a.csv",
            RTE + 'A,B,0,0\n"C,D,1,1\n',
            "line 3: expected the columns sentence1",
        ),
        ("rte", "a.jsonl", '{"sentence1": "A", "sentence2": 3, "label": 0}\n', "line 1: expected texts in sentence1"),
        ("rte", "a.jsonl", '{"sentence1": "A", "sentence2": " ", "label": 0}\n', "line 1: expected a text in every"),
        (
            "rte",
            "a.jsonl",
            '{"sentence1": "A", "label": 0}\n',
            "line 1: expected the columns sentence1, s",
        ),
        ("rte", "a.jsonl", '{"sentence1": "A"\n', "line 1: expected a JSON object"),
        # SuperGLUE's WiC: false was read as the first label, entailment.
        (
            "rte",
            "a.jsonl",
            '{"sentence1": "A", "sentence2": "B", "label": false}\n',
            "line 1: expected the label to be one of entailment, not_entailment, got 'False'",
        ),
        # QNLI's: its sentences alone were read.
        (
            "text-classification",
            "a.tsv",
            "question\tsentence\tlabel\nA?\tB\t1\n",
            "line 2: expected one text, got a pair in question, sentence .--text-columns",
        ),
        ("stsb", "a.csv", RTE + "A,B,5.5,0\n", "line 2: expected a number from 0 to 5"),
        ("cola", "a.csv", "sentence,label,idx\nA,1,0\n\xff,1,1\n", "line 3: expected UTF-8"),
        ("sst2", "a.csv", "sentence,label,idx\n", "expected rows, got none"),
        ("sst2", "a.csv", "phrase,label\nA,1\n", "line 1: expected the header"),
    ],
)
def test_what_cannot_be_used_is_named(task, file, content, reason, read):
    with pytest.raises(DataError, match=reason) as refused:
        read(task, content.encode("latin-1"), file)
    assert "\n" not in str(refused.value)


def test_a_quote_that_never_closes_costs_its_row_alone(read):
    rows = "".join(f"A{n},B{n},{n % 2},{n}\n" for n in range(60))
    content = 'sentence1,sentence2,label,idx\nx,"never closed,0,99\n' + rows
    found = read("rte", content.encode(), "a.csv", skip=True)
    assert [row.id for row in found] == [str(n) for n in range(60)]


def test_glues_own_forms_are_read_as_before(read):
    # A column idx alone, or a comma in a text, makes no export of them.
    official = b'index\tsentence1\tsentence2\tlabel\n0\t"A", b\t"c"\tentailment\n'
    assert read("rte", official, "train.tsv") == [Row("0", ('"A", b', '"c"'), "entailment")]
    assert read("cola", b"gj04\t1\t\tHe, she\n", "train.tsv") == [Row("0", ("He, she",), "1")]
    assert read("stsb", b'g\tf\t2012\t1\t2.5\tA, b\t"C\n', "sts-train.csv") == [Row("0", ("A, b", '"C'), 2.5)]
    with pytest.raises(DataError, match="got '-1'"):
        read("wnli", b"index\tsentence1\tsentence2\tlabel\n0\tA\tB\t-1\n", "train.tsv")


def test_quora_pairs_with_an_empty_question_are_rows(read):
    header = b"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    expected = [Row("0", ("How?", ""), "0"), Row("1", ("", "Why?"), "0")]
    assert read("qqp", header + b"0\t1\t2\tHow?\t\t0\n1\t3\t4\t\tWhy?\t0\n", "train.tsv") == expected
    quora = header.replace(b"\t", b",") + b'"0","1","2","How?","","0"\n"1","3","4","","Why?","0"\n'
    assert read("qqp", quora, "train.csv") == expected
    hub = b'{"question1": "How?", "question2": "", "label": 0, "idx": 0}\n'
    assert read("qqp", hub, "train.jsonl") == expected[:1]
    with pytest.raises(DataError, match="line 2: expected a text in every text column, got an empty one"):
        read("qqp", header + b"0\t1\t2\t\t\t0\n", "train.tsv")


def test_broken_rows_of_quora_pairs_are_counted(read):
    header = b"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    broken = b"1\t2\t3\tWhat is\n\tthis?\tAnd that?\t0\n"  # one row over two lines, as in GLUE's own train.tsv
    content = header + b"0\t1\t2\tA?\tB?\t1\n" + broken + b"4\t5\t6\tC?\tD?\t0\n"
    with pytest.raises(DataError, match="line 3: expected 6 tab-separated columns"):
        read("qqp", content, "train.tsv")
    assert [row.id for row in read("qqp", content, "train.tsv", skip=True)] == ["0", "4"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "text\tlabel\ngood\tpos\nbad\tneg\nnone\t\n"),
        ("a.csv", "text,label\ngood,pos\nbad,neg\nnone,\n"),
        (
            "a.jsonl",
            '{"text": "good", "label": "pos"}\n{"text": "bad", "label": "neg"}\n{"text": "none", "label": ""}\n',
        ),
    ],
)
def test_an_empty_label_is_no_class(read, name, content):
    with pytest.raises(DataError, match="expected a label, got an empty one"):
        read("text-classification", content.encode(), name)
    assert [row.label for row in read("text-classification", content.encode(), name, skip=True)] == ["pos", "neg"]


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        ("mnli", "dev.txt", "gold_label\tsentence1\tsentence2\n-\tA\tB\nneutral\tA\tB\n"),
        ("sst2", "test.tsv", "sentence\tlabel\nA\t-1\nB\t1\n"),
        ("sst2", "test.tsv", "sentence\tlabel\nA\t\nB\t1\n"),
        ("text-classification", "test.csv", "text,label\nA,\nB,x\n"),
    ],
)
def test_labels_that_nobody_needs_may_be_any(read, task, name, content):
    task = registry.get(task)
    task.predicting = True
    first, second = read(task, content.encode(), name)
    assert first.label is None
    assert second.label is not None


def test_similarities_of_0_to_1_are_told(read, caplog):
    """sentence-transformers/stsb has a fifth of GLUE's scores under the same names of columns."""
    for scale, told in ((5, False), (1, True)):
        caplog.clear()
        lines = [f"A,B,{scale * n / 20}\n" for n in range(21)]
        assert len(read("stsb", ("sentence1,sentence2,score\n" + "".join(lines)).encode(), "train.csv")) == 21
        assert ("train.csv: expected scores from 0 to 5, got 21 from 0 to 1" in caplog.text) == told


@pytest.mark.parametrize(
    ("task", "content", "reason"),
    [
        ("cola", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n", "of 4 columns .*'sentence1'"),
        ("cola", "code\tclass\tstar\tphrase\ngj04\t1\t\tA\n", "of 4 columns without a header .* 0, 1, got 'class'"),
        (
            "swag",
            "category\tprompt\ta\tb\tc\td\tlabel\nx\tA\ta\tb\tc\td\t0\n",
            "of CODAH's 7 columns .* 0 to 3, got 'label'",
        ),
        ("swag", "id\tquestion\tanswerA\tanswerB\tanswerC\tanswerD\n7\tA\ta\tb\tc\td\n", "expected a .csv .* got 'id"),
        ("swag", "What is it?\ta\tb\tc\td\tA\n", "expected a .csv .* got 'What"),
        ("stsb", "a\tb\t2012\td\te\tf\tg\n", "of 7 columns .* expected a number from 0 to 5, got 'e'"),
        ("stsb", "a\tb\tc\td\t1\tf\tg\n", "expected the header .* or 7 columns without a header"),
    ],
)
def test_a_file_of_as_many_columns_is_not_the_tasks(read, task, content, reason):
    task = registry.get(task)
    for task.predicting in (False, True):
        with pytest.raises(DataError, match=f"line 1: {reason if task.predicting else 'expected'}"):
            read(task, content.encode(), "test.tsv")


def test_swag_as_json_lines(read):
    values = {"video-id": "v", "sent1": "A man.", "sent2": "He", **{f"ending{i}": f"goes {i}." for i in range(4)}}
    lines = [{**values, "label": 2, "fold-ind": None}, {**values, "label": -1}]
    rows = read("swag", "".join(json.dumps(line) + "\n" for line in lines).encode(), "swag.jsonl")
    texts = ("A man.", *(f"He goes {i}." for i in range(4)))
    assert rows == [Row("0", texts, "2"), Row("1", texts, None)]
    with pytest.raises(DataError, match="line 1: expected all columns"):
        read("swag", b'{"sent1": "A"}\n', "swag.jsonl")


def test_json_lines_called_json(read):
    """So CLUE's are called, and what `datasets` writes."""
    swag = {"sent1": "A man.", "sent2": "He", **{f"ending{i}": f"goes {i}." for i in range(4)}, "label": 2}
    [row] = read("swag", (json.dumps(swag) + "\n").encode(), "train.json")
    assert row.label == "2"
    content = json.dumps({"tokens": ["EU", "says"], "ner_tags": ["B-ORG", "O"]}).encode()
    for predicting in (False, True):
        task = registry.get("ner")
        task.predicting = predicting
        [row] = read(task, content, "train.json")
        assert (row.texts, row.label) == (("EU", "says"), ("B-ORG", "O"))
    flat = b'{"id": "1", "context": "a b", "question": "Q?", "answers": {"text": ["b"], "answer_start": [2]}}\n'
    rows = read("squad1", flat + b"\n" + flat.replace(b'"1"', b'"2"'), "train.json")
    assert [(row.id, row.texts, row.label) for row in rows] == [(n, ("Q?", "a b"), Answers(("b",), (2,))) for n in "12"]
    with pytest.raises(DataError, match=r"train\.json, line 2: expected every id once, got 1 again"):
        read("squad1", flat * 2, "train.json")
    with pytest.raises(DataError, match=r"line 2: expected JSON, .*; JSON lines are read from a file called \.jsonl"):
        read("squad1", b'{"version": "1"}\n' + flat, "train.json")


def test_json_under_another_name(read):
    """SciBERT's sets of texts are JSON lines called .txt."""
    lines = b'{"text": "A", "label": "x", "metadata": {}}\n{"text": "B", "label": "y", "metadata": [0]}\n'
    rows = [Row("0", ("A",), "x"), Row("1", ("B",), "y")]
    assert read("text-classification", lines, "train.txt") == rows
    assert read("text-classification", b"[" + lines.strip().replace(b"\n", b",\n") + b"]", "train") == rows
    with pytest.raises(DataError, match=r"train.txt, line 3: expected the column text, got label"):
        read("text-classification", lines + b'{"label": "x"}\n', "train.txt")
    pair = b'{"premise": "A", "hypothesis": "B", "label": "entailment", "idx": 7}\n'
    assert read("rte", b"\xef\xbb\xbf" + pair, "val.txt") == [Row("7", ("A", "B"), "entailment")]
    swag = {"sent1": "A man.", "sent2": "He", **{f"ending{i}": f"goes {i}." for i in range(4)}, "label": 2}
    assert read("swag", (json.dumps(swag) + "\n").encode(), "train")[0].label == "2"


@pytest.mark.parametrize("name", ["sts-test.tsv", "sts-test.jsonl"])
def test_korsts_ids_are_those_of_its_sources(read, name):
    """Beside genre, filename and year an id is told apart by these alone: by itself it comes again."""
    header = ("genre", "filename", "year", "id", "score", "sentence1", "sentence2")
    values = [
        ("news", "MSRpar", "2012test", "0079", "3.5", "A", "B"),
        ("news", "headlines", "2013", "0079", "1", "C", "D"),
    ]
    if name.endswith(".tsv"):
        content = "\n".join(map("\t".join, [header, *values, ()]))
    else:
        content = "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in values)
    task = registry.get("stsb")
    task.predicting = True
    assert read(task, content.encode(), name) == [Row("0", ("A", "B"), 3.5), Row("1", ("C", "D"), 1.0)]
    assert read(task, b"id\tsentence1\tsentence2\n0079\tA\tB\n", "test.tsv") == [Row("0079", ("A", "B"), None)]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_objects(read, indent):
    """KLUE's files, and what pandas writes."""
    values = [{"guid": "klue-nli", "premise": f"A{n}", "hypothesis": "B", "gold_label": "neutral"} for n in range(3)]
    content = json.dumps(values, indent=indent, ensure_ascii=False).encode()
    for prefix in (b"", b"\xef\xbb\xbf", b"\n"):
        rows = read("mnli", prefix + content, "dev.json")
        assert rows == [Row(str(n), (f"A{n}", "B"), "neutral") for n in range(3)]
    values[1:2] = [values[1] | {"gold_label": "-"}, 7, values[1] | {"premise": "\ud800"}]
    content = json.dumps(values, indent=indent).encode()
    with pytest.raises(DataError, match=r"dev.json, object 2: expected a label that most annotators chose, got '-'"):
        read("mnli", content, "dev.json")
    assert [row.id for row in read("mnli", content, "dev.json", skip=True)] == ["0", "4"]
    with pytest.raises(DataError, match=r"dev.json, line 1: expected JSON, got an error in it"):
        read("mnli", content.replace(b"\n", b"")[:-1], "dev.json")
    with pytest.raises(DataError, match=r"object 1: expected a list of words .* tokens or words, got the columns guid"):
        read("ner", b'[{"guid": "klue"}]', "dev.json")


FOUR = ["goes.", "sits.", "runs.", "is."]


@pytest.mark.parametrize(
    ("values", "texts", "label"),
    [
        # SWAG's "full" form, HellaSwag as published and on hubs, with and without label, CODAH on hubs.
        (
            {"sent1": "A man.", "sent2": "He", "gold-ending": "goes.", "distractor-0": "sits.", "distractor-1": "runs."}
            | {"distractor-2": "is.", "distractor-3": None},
            ("A man.", "He goes.", "He sits.", "He runs.", "He is."),
            "0",
        ),
        (
            {"ctx_a": "A man.", "ctx_b": "he", "ctx": "A man. he", "ending_options": FOUR, "label": 3},
            ("A man.", "he goes.", "he sits.", "he runs.", "he is."),
            "3",
        ),
        ({"ctx_a": "A man.", "ctx_b": "", "endings": FOUR, "label": "2"}, ("A man.", *FOUR), "2"),
        ({"ctx_a": "A man.", "ctx_b": "", "endings": FOUR, "label": ""}, ("A man.", *FOUR), None),
        ({"question_propmt": "A man", "candidate_answers": FOUR, "correct_answer_idx": 1}, ("A man", *FOUR), "1"),
        ({"question_propmt": "A man", "candidate_answers": FOUR, "correct_answer_idx": -1}, ("A man", *FOUR), None),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_sets_of_four_endings_on_hubs(values, texts, label, form, read):
    content = parquet([values]) if form == "parquet" else (json.dumps(values) + "\n").encode()
    assert read("swag", content, f"train.{form}") == [Row("0", texts, label)]


def test_rows_without_a_label_among_others_are_bad_rows(tmp_path, capsys):
    """SNLI on hubs has -1 where its annotators did not agree."""
    path = tmp_path / "train.parquet"
    path.write_bytes(parquet([{"premise": "A", "hypothesis": h, "label": l} for h, l in (("B", 0), ("C", -1))]))
    with pytest.raises(DataError, match=r"parquet, the row of index 1: expected a label as in other rows, got none"):
        read_rows(registry.get("mnli"), path, False, labelled=True)
    assert read_rows(registry.get("mnli"), path, True, labelled=True) == [Row("0", ("A", "B"), "entailment")]
    assert "1 bad row skipped, 1 row kept" in capsys.readouterr().err
    assert len(read_rows(registry.get("mnli"), path, False)) == 2


@pytest.mark.parametrize("name", ["squad1", "squad2"])
def test_squad_as_json_lines(name, read):
    context = "Z\u00fcrich lies by a lake. \U0001f600 It is old."
    start = context.index("a lake")
    row = {"id": "5a", "title": "t", "context": context, "question": "Where?"}
    right = {**row, "answers": {"text": ["a lake"], "answer_start": [start]}}
    [found] = read(name, (json.dumps(right) + "\n").encode(), "dev.jsonl")
    assert (found.id, found.texts) == ("5a", ("Where?", context))
    assert (found.label.texts, found.label.starts) == (("a lake",), (start,))
    none = {**row, "answers": {"text": [], "answer_start": []}}
    task = registry.get(name)
    task.predicting = name == "squad1"  # to which such questions belong in a test file alone
    [found] = read(task, (json.dumps(none) + "\n").encode(), "dev.jsonl")
    assert found.label is None if name == "squad1" else found.label.texts == ()
    uneven = {**row, "answers": {"text": ["a lake"], "answer_start": []}}
    with pytest.raises(DataError, match="line 1: expected a start for each of 1 answers, got 0"):
        read(name, (json.dumps(uneven) + "\n").encode(), "dev.jsonl")
    with pytest.raises(DataError, match="line 2: expected every id once"):
        read(name, (json.dumps(right) + "\n").encode() * 2, "dev.jsonl")


def test_questions_of_hubs_under_data(read):
    """As transformers' examples of question answering read them."""
    answers = {"text": ["Paris"], "answer_start": [3]}
    rows = [{"id": n, "title": "T", "context": "In Paris.", "question": "Where?", "answers": answers} for n in "ab"]
    expected = Answers(("Paris",), (3,))
    content = json.dumps({"version": "0.1", "data": rows}).encode()
    assert read("squad1", content, "train.json") == [Row(n, ("Where?", "In Paris."), expected) for n in "ab"]
    content = json.dumps({"data": [rows[0], {**rows[1], "context": ""}]}).encode()
    with pytest.raises(DataError, match=r"train\.json, object 2: expected a text as the context, got ''"):
        read("squad1", content, "train.json")


def test_squad_with_a_byte_order_mark_escapes_and_windows_line_ends(read):
    context = "Caf\u00e9 \u201cX\u201d\r\nis \U0001f600 open."
    answer = {"text": "open", "answer_start": context.index("open")}
    question = {"id": "q", "question": "Is it?", "answers": [answer]}
    value = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}]}
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only, indent=1).replace("\n", "\r\n")
        [row] = read("squad1", b"\xef\xbb\xbf" + text.encode(), "dev.json")
        assert row.texts[1] == context
        assert context[row.label.starts[0] :].startswith("open")
    with pytest.raises(DataError, match="expected text in UTF-8, got UTF-16"):
        read("squad1", json.dumps(value, ensure_ascii=False).encode("utf-16"), "dev.json")


@pytest.mark.parametrize(
    ("content", "words", "tags"),
    [
        ("U.N. I-ORG\nsays O\n", ("U.N.", "says"), ("I-ORG", "O")),  # two columns
        ("U.N.\tB-ORG\nsays\tO\n", ("U.N.", "says"), ("B-ORG", "O")),  # tabs
        ("a NN B-NP O \nb NN I-NP I-PER\t\n", ("a", "b"), ("O", "I-PER")),  # blanks at the ends
        ("-DOCSTART- -X- -X- O\n\na NN I-NP B-PER\n", ("a",), ("B-PER",)),
        ("-DOCSTART-\n\na NN I-NP B-PER\n", ("a",), ("B-PER",)),
        ("-DOCSTART-\tO\n\na\tB-PER\n\n\n\n", ("a",), ("B-PER",)),
        ("a\u00a0b X B-PER\n", ("a\u00a0b",), ("B-PER",)),  # a no-break space is part of a word
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_conll_in_its_many_forms(content, words, tags, end, read):
    [row] = read("ner", b"\xef\xbb\xbf" + content.replace("\n", end).encode(), "eng.txt")
    assert (row.texts, row.label) == (words, tags)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a O\nb X-PER\n", "line 2: expected the tag O, B-TYPE or I-TYPE.* got 'X-PER'"),
        (b"a X O\nb O\n", "line 2: expected 3 columns, got 2"),
        (b"caf\xe9 O\n", "line 1: expected UTF-8, got 0xe9 at byte 4; iconv -f windows-1252 -t utf-8"),
        (b"it\x92s O\n", "line 1: expected UTF-8, got 0x92 at byte 3; iconv -f windows-1252 -t utf-8"),
        (
            b"#begin document (nw/a); part 000\nnw/a 0 0 Paris NNP (TOP* - - - - (GPE) -\n\n#end document\n",
            "line 1: .* got a document of CoNLL-2012",
        ),
        (b"\n\n-DOCSTART- O\n\n", "expected sentences"),
    ],
)
def test_conll_that_cannot_be_read_is_named(content, reason, read):
    with pytest.raises(DataError, match=reason):
        read("ner", content, "eng.txt")


@pytest.mark.parametrize(
    ("task", "name", "header"),
    [
        ("sst2", "a.csv", "sentence"),
        ("sst2", "A.CSV", '"text"'),
        ("cola", "a.csv", "Sentence"),
        ("text-classification", "a.csv", "text"),
    ],
)
def test_a_csv_of_one_column(task, name, header, read):
    content = f'{header}\n"Hello, world"\n"two\nlines"\nplain, with a comma\n"He" said\n'
    rows = read(task, content.encode(), name)
    assert [row.texts for row in rows] == [("Hello, world",), ("two\nlines",), ("plain, with a comma",), ('"He" said',)]
    with pytest.raises(DataError, match=f"{name}, line 2: expected the column "):
        read(task, f'{header}\n"one","two"\n'.encode(), name)
    # Under another name quotes are characters.
    if header == "sentence":
        assert read(task, content.encode(), "a.tsv")[0].texts == ('"Hello, world"',)


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet"])
def test_half_a_pair_that_is_null_is_an_empty_one(form, read):
    values = [{"sentence1": "A", "sentence2": "B", "label": 0}, {"sentence1": "A", "sentence2": None, "label": 1}]
    values.append({"sentence1": None, "sentence2": None, "label": 1})

    def content(count):
        lines = "".join(json.dumps(value) + "\n" for value in values[:count])
        return {"parquet": parquet(values[:count]), "jsonl": lines.encode()}.get(
            form, json.dumps(values[:count]).encode()
        )

    task = registry.get("rte")
    with pytest.raises(DataError, match=" 2: expected a text in every text column, got an empty one"):
        read(task, content(2), f"test.{form}")
    task.predicting = True
    assert [row.texts for row in read(task, content(2), f"test.{form}")] == [("A", "B"), ("A", "")]
    with pytest.raises(DataError, match=" 3: expected a text in every text column, got an empty one"):
        read(task, content(3), f"test.{form}")


def test_texts_under_two_names_of_which_one_is_null(read):
    content = b'{"sentence": null, "text": "A", "label": 1}\n{"sentence": "B", "text": null, "label": 0}\n'
    assert [row.texts for row in read("sst2", content, "both.jsonl")] == [("A",), ("B",)]


def test_a_column_of_labels_that_are_all_null_is_named(read, tmp_path):
    for name, text in (("sst2", "sentence"), ("text-classification", "text")):
        rows = read(name, f'{{"{text}": "A", "label": null}}\n'.encode(), "test.jsonl")
        assert [row.label for row in rows] == [None]
        with pytest.raises(DataError, match=r"test\.jsonl: expected labels in the column label, got none in all rows"):
            read_rows(registry.get(name), tmp_path / "test.jsonl", False, labelled=True)
