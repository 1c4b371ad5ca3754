"""Files of one's own: whatever their columns are called, or numbered; written here as their publishers write them."""

import json

import numpy as np
import pytest
import tiny_bert

from fastbert.cli.main import main
from fastbert.config import BertConfig
from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row, require_labels
from fastbert.tasks.batching import hold_out
from fastbert.tasks.config import TaskOptions
from fastbert.tasks.text_classification import TextClassification

PAWS = "id\tsentence1\tsentence2\tlabel\n1\tIn Paris , \"a\" b\tIn B , ''c''\t0\n2\tD\tE\t1\n"
JIGSAW = '"id","comment_text","toxic","severe_toxic"\n"0a","He said ""no"".\n\nThen, left","0","0"\n"0b","Bad",1,0\n'
SNLI = {"gold_label": "neutral", "sentence1": "A", "sentence2": "B", "pairID": "1.jpg#0", "annotator_labels": ["x"]}
BOOLQ = [
    {"question": "is it", "passage": "It is.", "idx": 3, "label": True},
    {"question": "was it", "passage": "No. \u201cIt\u201d", "idx": 5, "label": False},
]
SCITAIL = {"gold_label": "entails", "sentence1": "P", "sentence2": "H", "sentence2_parse": "("}

FORMS = {
    # AG News, DBpedia, Yahoo, Yelp and Amazon as Zhang et al. publish them: no header, the class first, quotes doubled.
    "agnews.csv": (
        '"3","Wall St. ""Bears""","Short-sellers, Wall\\nStreet"\r\n"4","T","D"\r\n',
        ("2", "3"),
        "1",
        [Row("0", ('Wall St. "Bears"', "Short-sellers, Wall\\nStreet"), "3"), Row("1", ("T", "D"), "4")],
    ),
    "amazon.csv": (
        '"2","","No title"\n"1","Title",""\n',
        ("2", "3"),
        "1",
        [Row("0", ("", "No title"), "2"), Row("1", ("Title", ""), "1")],
    ),
    "halves.tsv": (
        "text1\ttext2\tlabel\n\tb\t2\na\t\t1\n",
        ("text1", "text2"),
        None,
        [Row("0", ("", "b"), "2"), Row("1", ("a", ""), "1")],
    ),
    "yelp.csv": (
        '"1","Bad, ""very"""\n"2","two\nlines"\n',
        ("2",),
        "1",
        [("0", 'Bad, "very"', "1"), ("1", "two\nlines", "2")],
    ),
    "imdb.csv": (
        '\ufeffreview,sentiment\r\n"One.<br /><br />""Two"", three",positive\r\nplain,negative\r\n',
        ("review",),
        "sentiment",
        [("0", 'One.<br /><br />"Two", three', "positive"), ("1", "plain", "negative")],
    ),
    "boolq.jsonl": (
        "".join(json.dumps(row) + "\n" for row in BOOLQ),
        ("question", "passage"),
        "label",
        [Row("3", ("is it", "It is."), "true"), Row("5", ("was it", "No. \u201cIt\u201d"), "false")],
    ),
    "cb.jsonl": (
        json.dumps({"premise": "P", "hypothesis": "H", "label": "contradiction", "idx": 7}),
        ("premise", "hypothesis"),
        "label",
        [Row("7", ("P", "H"), "contradiction")],
    ),
    "paws.tsv": (
        PAWS,
        ("sentence1", "sentence2"),
        "label",
        [Row("1", ('In Paris , "a" b', "In B , ''c''"), "0"), Row("2", ("D", "E"), "1")],
    ),
    "snli.jsonl": (json.dumps(SNLI), ("sentence1", "sentence2"), "gold_label", [Row("0", ("A", "B"), "neutral")]),
    "scitail.txt": (json.dumps(SCITAIL), ("sentence1", "sentence2"), "gold_label", [Row("0", ("P", "H"), "entails")]),
    "scitail.tsv": (
        'P, "q\tH\tneutral\nR\tS\tentails\n',
        ("1", "2"),
        "3",
        [Row("0", ('P, "q', "H"), "neutral"), Row("1", ("R", "S"), "entails")],
    ),
    "sms.tsv": ("ham\tGo, \"now\"..\nspam\tWin\n", ("2",), "1", [("0", 'Go, "now"..', "ham"), ("1", "Win", "spam")]),
    "amazon.jsonl": (
        json.dumps({"label": 1, "title": "T", "content": "C"}),
        ("title", "content"),
        "label",
        [Row("0", ("T", "C"), "1")],
    ),
    "jigsaw.csv": (
        JIGSAW,
        ("comment_text",),
        "toxic",
        [("0a", 'He said "no".\n\nThen, left', "0"), ("0b", "Bad", "1")],
    ),
    # A header of numbers, as pandas writes a table without names.
    "pandas.csv": ("0,1\nbad,-1\ngood,1\n", ("0",), "1", [("0", "bad", "-1"), ("1", "good", "1")]),
}  # fmt: skip


def task_of(name, texts=None, label=None):
    task = registry.get(name)
    task.configure(TaskOptions(text_columns=texts, label_column=label))
    return task


@pytest.mark.parametrize("name", FORMS)
def test_published_forms_are_read_by_the_names_of_their_columns(name, tmp_path):
    content, texts, label, expected = FORMS[name]
    path = tmp_path / name
    path.write_bytes(content.encode())
    rows = [row if isinstance(row, Row) else Row(row[0], (row[1],), row[2]) for row in expected]
    assert task_of("text-classification", texts, label).read(path) == rows
    task = task_of("text-classification", texts, label)
    task.predicting = True
    assert [row.texts for row in task.read(path)] == [row.texts for row in rows]


def test_booleans_are_called_as_the_model_calls_them(tmp_path):
    """Hubs' Parquet files of BoolQ name the classes False and True, its authors' JSON has false and true."""
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in BOOLQ))
    both = TextClassification(["True", "false", "true"])
    assert both.label_of(True, ()) == "true"
    task = TextClassification(["False", "True"])
    task.configure(TaskOptions(text_columns=("question", "passage")))
    assert [row.label for row in task.read(path)] == ["True", "False"]


@pytest.mark.parametrize("form", ["jsonl", "txt"])
@pytest.mark.parametrize("name", ["text-classification", "mnli"])
def test_rows_without_a_majority_have_no_class(name, form, tmp_path):
    """SNLI and MultiNLI have - as their gold label, in all files that have one."""
    path = tmp_path / f"snli.{form}"
    rows = [{**SNLI, "gold_label": label} for label in ("neutral", "-", "entailment")]
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        columns = ["gold_label", "sentence1", "sentence2", "pairID"]
        path.write_text(
            "\n".join(
                "\t".join(row[column] for column in columns) for row in [{column: column for column in columns}, *rows]
            )
        )
    own = (None, None) if name == "mnli" else (("sentence1", "sentence2"), "gold_label")
    where = 2 if form == "jsonl" else 3
    with pytest.raises(DataError, match=f"line {where}: expected a label that most annotators chose, got '-'"):
        task_of(name, *own).read(path)
    task = task_of(name, *own)
    task.bad_rows = BadRows(skip=True)
    assert [row.label for row in task.read(path)] == ["neutral", "entailment"]
    task = task_of(name, *own)
    task.predicting = True
    assert [row.label for row in task.read(path)] == ["neutral", None, "entailment"]


def test_a_class_may_be_called_minus(tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("text\tlabel\na\t-\nb\t+\n")
    assert [row.label for row in task_of("text-classification").read(path)] == ["-", "+"]


def test_parquet_names_the_classes_of_the_column_that_is_chosen(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    kinds = {"fine_label": {"names": ["manner", "cremat"], "_type": "ClassLabel"}}
    kinds["coarse_label"] = {"names": ["ABBR", "DESC"], "_type": "ClassLabel"}
    table = pyarrow.table({"text": ["How", "What"], "coarse_label": [1, 0], "fine_label": [0, 1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": kinds}})})
    parquet.write_table(table, tmp_path / "f.parquet")
    for column, labels in (("coarse_label", ["DESC", "ABBR"]), ("fine_label", ["manner", "cremat"])):
        rows = task_of("text-classification", None, column).read(tmp_path / "f.parquet")
        assert [row.label for row in rows] == labels


def test_sick_s_labels_are_mnlis_in_capitals(tmp_path):
    path = tmp_path / "SICK_train.txt"
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA\tB\t4.5\tNEUTRAL\n"
    path.write_text(f"{header}2\tC\tD\t3\tENTAILMENT\n")
    task = task_of("mnli", ("sentence_A", "sentence_B"), "entailment_judgment")
    assert [row.label for row in task.read(path)] == ["neutral", "entailment"]
    path.write_text(f"{header}2\tC\tD\t3\tSAME\n")
    with pytest.raises(DataError, match=r"line 3: expected the label to be one of .*, got 'SAME'"):
        task.read(path)


def test_glue_s_tasks_read_columns_of_other_names_too(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("a,b,similar,label\nx,y,2.5,9\n")
    assert task_of("stsb", ("a", "b"), "similar").read(path) == [Row("0", ("x", "y"), 2.5)]
    path = tmp_path / "f.tsv"  # as many columns as CoLA's, whose form is not looked for any more
    path.write_text('src\tok\tmark\tsays\n"g"\t1\t\t"A" b\n')
    assert task_of("cola", ("says",), "ok").read(path) == [Row("0", ('"A" b',), "1")]


@pytest.mark.parametrize(
    ("name", "content", "texts", "label", "error"),
    [
        (
            "f.jsonl",
            '{"question": "a", "passage": "b"}',
            None,
            None,
            r"column text, got question, passage \(--text-c",
        ),
        ("f.csv", "a,b\nc,d\n", None, None, r"with the column 'text' .*got 'a,b' \(--text-columns and --label-column"),
        ("f.csv", "a,b\nc,d\n", ("a", "x"), "b", r"with the columns 'a', 'x'"),
        ("f.csv", '"1","a"\n', ("2", "3"), "1", "line 1: expected at least 3 columns without a header, .*, got 2: "),
        (
            "f.csv",
            '"1","a\n',
            ("2", "3"),
            "1",
            "at least 3 columns .*, got a quote that is not closed",
        ),
        (
            "f.csv",
            "text,label\na,1\n",
            None,
            "sentiment",
            "a column sentiment with the label of every row",
        ),
    ],
)
def test_columns_that_are_not_there(name, content, texts, label, error, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    task = task_of("text-classification", texts, label)
    with pytest.raises(DataError, match=error):
        require_labels(task, task.read(path), path)


@pytest.mark.parametrize(
    ("name", "texts", "label", "error"),
    [
        ("sst2", ("a", "b"), None, "text_columns of the task sst2 must be 1 in number, got a, b"),
        ("text-classification", ("a", "b", "c"), None, "text_columns of the task text-classification must be 1 or 2"),
        ("text-classification", ("a", "a"), None, "must be different names, got 'a', 'a'"),
        ("text-classification", ("a", "b"), "a", "must be different names, got 'a', 'b', 'a'"),
        ("text-classification", (), None, "must be different names, got none"),
    ],
)
def test_columns_that_a_task_cannot_have(name, texts, label, error):
    with pytest.raises(InputError, match=error):
        task_of(name, texts, label)


@pytest.mark.parametrize(
    ("name", "content", "texts", "expected"),
    [
        ("f.txt", "so, it is\nand that\n", ("1",), [("so, it is",), ("and that",)]),
        ("f.csv", '"so, it is"\nand that\n', ("1",), [("so, it is",), ("and that",)]),
        ("f.csv", '"1","a\tb"\n', ("2",), [("a\tb",)]),
        ("f.csv", "1\ta, b, c\n", ("2",), [("a, b, c",)]),
        ("f.csv", '"1","a\nb"\n2,c\n', ("2",), [("a\nb",), ("c",)]),
    ],
)
def test_what_separates_columns_without_a_header(name, content, texts, expected, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    task = task_of("text-classification", texts)
    task.predicting = True
    assert [row.texts for row in task.read(path)] == expected


def test_a_header_that_is_taken_for_a_row_is_told(tmp_path, caplog):
    path = tmp_path / "train.csv"
    path.write_text("Class Index,Title\n" + "1,a\n2,b\n" * 3)
    task = task_of("text-classification", ("2",), "1")
    task.for_training(task.read(path), path)
    assert f"{path}: the label of its first row, Class Index, occurs in no other row" in caplog.text
    caplog.clear()
    for content in "1,a\n2,b\n" * 3, "3,c\n" + "1,a\n2,b\n" * 2:  # of few rows, one alone says nothing
        path.write_text(content)
        task.for_training(task.read(path), path)
        assert not caplog.text
    path.write_text("label,text\n3,c\n" + "1,a\n2,b\n" * 3)
    task = task_of("text-classification")
    task.for_training(task.read(path), path)
    assert not caplog.text


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (map(str, range(11, -1, -1)), [str(number) for number in range(12)]),  # as words, 10 would be before 2
        (["10.0", "2.0", "-1.0"], ["-1.0", "2.0", "10.0"]),
        (["1", "01", "2"], ["01", "1", "2"]),
        (["10", "2", "b"], ["10", "2", "b"]),
    ],
    ids=["numbers", "floats", "equal", "words"],
)
def test_labels_that_are_numbers_are_in_the_order_of_their_size(labels, expected):
    task = task_of("text-classification")
    task.learn([Row(str(index), ("a film",), label) for index, label in enumerate(labels)])
    assert list(task.labels) == expected
    assert task.head()["id2label"] == dict(enumerate(expected))
    again = task_of("text-classification")
    again.restore(BertConfig(id2label={str(index): label for index, label in enumerate(expected)}))  # as JSON has them
    assert list(again.labels) == expected


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        # A comma alone, and a class that never stands alone, may be a name.
        (["trade", "food, drink", "trade,food", ",", "trade"], None),
        # OLID's second column of labels.
        (["TIN", "NULL", "UNT", "NULL"], "the label of 2 rows is NULL, which is taken for a class"),
        # Numbers that are to be estimated; few rows are any set's beginning.
        ([f"{n / 7:.3f}" for n in range(20)], "got 20 labels in 20 rows: text-regression estimates numbers"),
        ([f"{n / 7:.3f}" for n in range(19)], None),
        ([f"{n / 7:.3f}" for n in range(11)] * 2, None),
        # Files of stars that were put together.
        (["1", "2", "1.0", "2.0", "3.0"], "the labels 1 and 1.0 are the same number, but are taken for two classes"),
        (["+1", "-1", "1"], "the labels +1 and 1 are the same number, but are taken for two classes"),
        (["Pos", "neg", "pos"], "the labels Pos and pos are one word in two spellings, but are taken for two classes"),
        (["a  b", "c", "a b\u200b"], "the labels a  b and a b\u200b are one word in two spellings"),
        (["1", "2", "\uff11"], "the labels 1 and \uff11 are the same number"),
        (["STRASSE", "stra\u00dfe"], "the labels STRASSE and stra\u00dfe are one word in two spellings"),
    ],
    ids=["names", "missing", "estimates", "few", "twice", "spellings", "signs", "capitals", "blanks", "wide", "folded"],
)
def test_labels_that_are_hardly_classes_are_told_of(labels, told, tmp_path, caplog):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "".join(f"a film\t{label}\n" for label in labels))
    task = task_of("text-classification")
    assert len(task.for_training(task.read(path), path)) == len(labels)
    if told is None:
        assert caplog.messages == []
    else:
        [message] = caplog.messages
        assert message.startswith(f"{path}: ")
        assert told in message


@pytest.mark.parametrize(
    ("labels", "first", "kept"),
    [
        (["2", "5", "2,5", "5,2", "27"], r"2: expected one class a text, got several, '2,5'", ["2", "5", "27"]),
        (
            ["joy", "joy | anger", "anger"],
            r"1: expected one class a text, got several, 'joy \| anger'",
            ["joy", "anger"],
        ),
        (["[2]", "[5]", "[2, 5]", "[5 2]"], r"2: expected one class a text, got several, '\[2, 5\]'", ["[2]", "[5]"]),
        (["['a']", "['b']", "['b' 'a']"], r"2: expected one class a text, got several", ["['a']", "['b']"]),
    ],
    ids=["numbers", "words", "lists", "quoted"],
)
def test_texts_of_several_classes_are_bad_rows_of_a_training_file(labels, first, kept, tmp_path):
    """GoEmotions'. As a class of its own, 2,5 would teach that such a text is none of 2."""
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "".join(f"a film\t{label}\n" for label in labels))
    task = task_of("text-classification")
    with pytest.raises(DataError, match=f"train.tsv, the row of index {first}"):
        task.for_training(task.read(path), path)
    task.bad_rows = BadRows(skip=True)
    assert [row.label for row in task.for_training(task.read(path), path)] == kept


def test_the_ids_of_a_models_classes_are_labels_where_nobody_named_them(tmp_path):
    """transformers' Trainer leaves LABEL_0, LABEL_1, ...; its predictions may have them, and a file has its numbers."""
    path = tmp_path / "f.tsv"
    path.write_text("text\tlabel\nfine\t1\ndull\t0\n")
    task = task_of("text-classification")
    task.restore(BertConfig(num_labels=2))
    rows = task.read(path)
    assert [row.label for row in rows] == ["LABEL_1", "LABEL_0"]
    for predictions in ("0\tLABEL_1\n1\tLABEL_1\n", "0\t1\n1\t1\n"):
        (tmp_path / "p.tsv").write_text(f"index\tprediction\n{predictions}")
        assert task.metric(rows, task.read_predictions(rows, tmp_path / "p.tsv")) == {"accuracy": 0.5}
    path.write_text("text\tlabel\nfine\t2\n")
    with pytest.raises(DataError, match="line 2: expected the label to be one of LABEL_0, LABEL_1, got '2'"):
        task.read(path)
    task.restore(BertConfig(id2label={0: "LABEL_1", 1: "1"}))
    path.write_text("text\tlabel\nfine\t1\n")
    assert task.read(path)[0].label == "1"


def test_a_model_of_one_number_is_no_classifier():
    with pytest.raises(InputError, match="got one of a single number, as regressions and cross-encoders are: the task"):
        task_of("text-classification").restore(BertConfig(num_labels=1))


TEXT_COLUMN = {"sst2": "sentence", "text-classification": "text"}


def test_what_is_typed_is_a_text_for_a_model_of_numbered_columns(monkeypatch):
    def read(line, texts):
        monkeypatch.setattr("fastbert.tasks.files.binary_lines", lambda file: iter([line]))
        task = task_of("text-classification", texts, "1")
        task.predicting = True
        return [row.texts for row in task.read("-")]

    assert read(b"dull, very\n", ("2",)) == [("dull, very",)]
    assert read(b"A, b\tC\n", ("2", "3")) == [("A, b", "C")]
    assert read(b"9\tA\tC\n", ("2", "3")) == [("A", "C")]


@pytest.mark.parametrize("name", ["sst2", "text-classification"])
def test_a_sentence_that_is_typed_is_no_header(name, monkeypatch):
    def read(*lines):
        monkeypatch.setattr("fastbert.tasks.files.binary_lines", lambda file: iter(lines))
        task = task_of("text-classification") if name == "text-classification" else registry.get(name)
        task.predicting = True
        return [row.texts for row in task.read("-")]

    word = TEXT_COLUMN[name]
    for first in (f"{word.title()}, though short, matters.", f"{word.title()}, film.", f"{word}; or not"):
        lines = [first, "I liked it, really, a lot.", "Dull, slow, bad."]
        assert read(*(line.encode() for line in lines)) == [(line,) for line in lines]
    table = (f"id,{word}".encode(), b'1,"Dull, slow"')
    assert read(*table) == [("Dull, slow",)]


def test_regression_learns_the_size_of_its_numbers(tmp_path, capsys):
    """Prices in thousands from texts of two columns, in a file without a header; what is learned is kept."""
    model = tiny_bert.save(tmp_path / "model", num_hidden_layers=1)
    rows = [("good", 9000), ("bad", 5000), ("great", 9100), ("poor", 5100)] * 8
    data = tmp_path / "data.csv"
    data.write_text("".join(f'{price},"the film, a",{word}\n' for word, price in rows))
    run, columns = tmp_path / "run", ["--text-columns", "2", "3", "--label-column", "1"]
    recipe = ["--epochs", "6", "--batch-size", "4", "--lr", "3e-3", "--max-seqlen", "16"]
    given = ["--model", str(model), "--train", str(data), "--dev", str(data), "--out", str(run)]
    assert main(["finetune", "text-regression", *given, *columns, *recipe]) == 0
    lines = (run / "dev_differences.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == ["5000 to 5410", "8690 to 9100"]
    capsys.readouterr()
    assert main(["evaluate", "text-regression", "--model", str(run), "--data", str(data)]) == 0
    assert json.loads(capsys.readouterr().out)["pearson"] > 0.9
    test = tmp_path / "test.csv"
    test.write_text('w,t\ngood,"the film, a"\nbad,"the film, a"\n')
    again = ["predict", "text-regression", "--model", str(run), "--data", str(test), "--text-columns", "t", "w"]
    assert main(again) == 0
    high, low = (float(line.split("\t")[1]) for line in capsys.readouterr().out.splitlines()[1:])
    assert 2000 < low < high < 12_000


@pytest.mark.parametrize("options", [["--limit-train", "5"], ["--dev-share", "0.25"]])
def test_a_regression_is_standardised_by_the_rows_that_it_is_trained_on(options, tmp_path):
    model = tiny_bert.save(tmp_path / "model", num_hidden_layers=1)
    data, run = tmp_path / "data.tsv", tmp_path / "run"
    data.write_text("text\tlabel\n" + "".join(f"film {n}\t{n * n}\n" for n in range(20)))
    dev = ["--dev", str(data)] if "--limit-train" in options else []
    recipe = ["--epochs", "1", "--max-seqlen", "16", *options]
    given = ["--model", str(model), "--train", str(data), *dev, "--out", str(run), *recipe]
    assert main(["finetune", "text-regression", *given]) == 0
    rows = registry.get("text-regression").read(data)
    used = rows[:5] if dev else hold_out(rows, 0.25, registry.get("text-regression").sources)[0]
    config, labels = json.loads((run / "model" / "config.json").read_text()), [row.label for row in used]
    assert (len(used), config["label_mean"]) == (5 if dev else 15, pytest.approx(np.mean(labels)))
    assert config["label_deviation"] == pytest.approx(np.std(labels))


def test_a_regression_of_several_numbers_is_no_classifier():
    task = registry.get("text-classification")
    with pytest.raises(InputError, match="expected a model of classes, got a regression of 3 numbers"):
        task.restore(BertConfig(id2label={n: f"LABEL_{n}" for n in range(3)}, problem_type="regression"))


def test_labels_of_a_regression_are_numbers_and_not_all_the_same():
    task = registry.get("text-regression")
    rows = [Row(str(n), ("a",), 1000.0 * n) for n in range(5)]  # of a standard deviation of 1,414
    assert [error["id"] for error in task.errors(rows, [0.0, 900.0, 3999.0, 3000.0, 9000.0])] == ["4", "2"]
    assert task.parse("-1") == -1
    for text in ("inf", "nan", "x", "", "1_000"):
        with pytest.raises(ValueError, match="expected a number, got"):
            task.parse(text)
    with pytest.raises(DataError, match="expected different numbers as labels of the training rows, got 3 in all"):
        task.learn([Row("0", ("a",), 3.0), Row("1", ("b",), 3.0)])


def test_a_run_goes_on_with_its_columns(tmp_path, capsys):
    """A pair of columns of BoolQ's names, from training to a line that is typed."""
    model = tiny_bert.save(tmp_path / "model", num_hidden_layers=1)
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({**row, "idx": i}) + "\n" for i, row in enumerate(BOOLQ * 4)))
    given = ["--model", str(model), "--train", str(data), "--dev", str(data), "--out", str(tmp_path / "run")]
    columns = ["--text-columns", "question", "passage"]
    fast = ["--epochs", "1", "--max-seqlen", "16"]
    assert main(["finetune", "text-classification", *given, *columns, *fast]) == 0
    assert (tmp_path / "run" / "dev_classes.tsv").read_text().splitlines()[1].startswith("false\t")
    out = tmp_path / "out.tsv"
    run = ["text-classification", "--model", str(tmp_path / "run")]
    assert main(["predict", *run, "--data", str(data), "--out", str(out)]) == 0
    assert {line.split("\t")[1] for line in out.read_text().splitlines()[1:]} <= {"true", "false"}
    assert main(["evaluate", *run[:1], "--data", str(data), "--predictions", str(out), *columns]) == 0
    # The model's directory alone knows what it was trained with, on its way to somewhere else too.
    moved = (tmp_path / "run" / "model").rename(tmp_path / "moved")
    config = json.loads((moved / "config.json").read_text())
    columns_kept = {"text_columns": ["question", "passage"], "max_seqlen": 16, "task": "text-classification"}
    assert columns_kept.items() <= config["fastbert"].items()
    again = tmp_path / "again.tsv"
    assert main(["predict", run[0], "--model", str(moved), "--data", str(data), "--out", str(again)]) == 0
    assert again.read_text() == out.read_text()
    (moved / "config.json").write_text(json.dumps(config | {"fastbert": {**config["fastbert"], "task": "mnli"}}))
    assert main(["predict", run[0], "--model", str(moved), "--data", str(data), "--out", str(again)]) == 2
    assert "expected the column text, got question" in capsys.readouterr().err
    moved.rename(tmp_path / "run" / "model")
    assert main(["predict", "ner", *run[1:], "--data", str(data), *columns]) == 2
    assert "expected a model fine-tuned on ner" in capsys.readouterr().err
    assert main(["evaluate", "ner", "--data", str(data), "--predictions", str(out), *columns]) == 2
    assert "--text-columns belongs to tasks of texts, got the task ner" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize(
    ("kept", "given", "said"),
    [
        ({"text_columns": ["p", "h"]}, ["p"], "must be 2 in number, since the model was trained on p, h, got p"),
        ({}, ["p", "h"], "must be 1 in number, since the model was trained on text, got p, h"),
        ({"text_columns": ["b", "a"]}, ["p", "h"], None),
        ({"text_columns": ["a"]}, ["p"], None),
        (None, ["p", "h"], None),
    ],
)
def test_a_model_of_pairs_takes_no_single_texts(tmp_path, capsys, command, kept, given, said):
    model = tiny_bert.save(tmp_path / "model", "BertForSequenceClassification", num_hidden_layers=1)
    if kept is not None:
        config = json.loads((model / "config.json").read_text())
        config["fastbert"] = {"task": "text-classification", "max_seqlen": 16, **kept}
        (model / "config.json").write_text(json.dumps(config))
    data = tmp_path / "data.tsv"
    data.write_text("p\th\tlabel\ngood\tbad\t0\nfine\tfine\t1\n")
    columns = [command, "text-classification", "--model", str(model), "--data", str(data), "--text-columns", *given]
    assert main(columns) == (0 if said is None else 2)
    assert said is None or f"--text-columns {said}\n" in capsys.readouterr().err


@pytest.mark.parametrize("begin", ["", "sep=;\r\n", '"sep=;"\r\n'])
@pytest.mark.parametrize("mark", [";", "|"])
def test_semicolons_between_columns_as_excel_writes_where_numbers_have_commas(begin, mark, tmp_path):
    path = tmp_path / "own.csv"
    rows = ("id;Text;label", "7;good, fine;pos", '8;"bad;\r\n""dull""";neg')
    path.write_bytes(("\ufeff" + begin + "".join(f"{row}\r\n" for row in rows)).replace(";", mark).encode())
    assert [(row.id, row.texts, row.label) for row in task_of("text-classification").read(path)] == [
        ("7", ("good, fine",), "pos"),
        ("8", (f'bad{mark}\n"dull"',), "neg"),
    ]


@pytest.mark.parametrize("header", ["text\tlabel", "sentence\tlabel\tidx", "sentence\tlabel", None])
def test_an_empty_line_before_the_end_is_a_bad_row_of_every_form(header, tmp_path):
    """Without a word, later predictions would have other rows' numbers."""
    rows = ["a\t1\t0", "", "b\t0\t1", "", "\t\t"]
    if header is not None and not header.endswith("idx"):
        rows = ["\t".join(row.split("\t")[:2]) for row in rows]
    (tmp_path / "f.tsv").write_text("\n".join(([] if header is None else [header]) + rows) + "\n")
    task = task_of("text-classification", ("1",), "2") if header is None else task_of("sst2")
    with pytest.raises(DataError, match=f"f.tsv, line {2 if header is None else 3}: expected "):
        task.read(tmp_path / "f.tsv")
    task.bad_rows = BadRows(skip=True)
    assert [(row.texts, row.label) for row in task.read(tmp_path / "f.tsv")] == [(("a",), "1"), (("b",), "0")]
    assert len(task.bad_rows.reasons) == 1


@pytest.mark.parametrize(("mark", "texts"), [(";", None), (",", None), ("\t", None), (",", ("1",)), ("\t", ("1",))])
def test_rows_of_empty_fields_at_the_end_are_none(mark, texts, tmp_path):
    """Spreadsheets write them for rows that were once looked at; one between rows is a bad row still."""
    name = "f.tsv" if mark == "\t" else "f.csv"
    rows = ["" if texts else "text;label;;", "good;pos;;", "bad;neg;;"]
    lines = [row.replace(";", mark) for row in [*filter(None, rows), ";;;", "", ";;;"]]
    task = task_of("text-classification", texts, "2" if texts else None)
    (tmp_path / name).write_text("\r\n".join(lines) + "\r\n")
    assert [(row.texts[0], row.label) for row in task.read(tmp_path / name)] == [("good", "pos"), ("bad", "neg")]
    (tmp_path / name).write_text("\r\n".join([*lines, "fine;pos;;".replace(";", mark)]) + "\r\n")
    with pytest.raises(DataError, match=f"{name}, line {3 if texts else 4}: expected a "):
        task.read(tmp_path / name)


def test_a_row_of_several_lines_with_a_bad_one_is_bad(tmp_path):
    """It would be a text with a hole."""
    rows = b'text,label\nfine,pos\n"The food was\nnot caf\xe9 food, nor\ngood",pos\nbad,neg\n'
    (tmp_path / "f.csv").write_bytes(rows)
    task = task_of("text-classification")
    task.bad_rows = BadRows(skip=True)
    assert [(row.id, row.texts[0]) for row in task.read(tmp_path / "f.csv")] == [("0", "fine"), ("2", "bad")]
    assert [reason[: reason.index(":")] for reason in task.bad_rows.reasons] == [f"{tmp_path / 'f.csv'}, line 4"]


def test_labels_lose_the_quotes_of_a_csv_writer_as_texts_do(tmp_path):
    written = '"he said ""no"""\t"size 5"""\na\tsize 6\n'
    for name, header in (("a.tsv", "text\tlabel\n"), ("b.csv", "text,label\n")):
        (tmp_path / name).write_text(header + (written if name == "a.tsv" else written.replace("\t", ",")))
        rows = task_of("text-classification").read(tmp_path / name)
        assert [(*row.texts, row.label) for row in rows] == [('he said "no"', 'size 5"'), ("a", "size 6")]
