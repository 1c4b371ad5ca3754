"""GLUE's tasks: published files with their traps, bad rows, submission files, and the real data at hand."""

import io
import json
import os
import random
import threading

import numpy as np
import pytest
import tiny_bert
import torch
import transformers
from glue_files import LABELLED, MNLI_COLUMNS, MNLI_FILLER, SUBMISSIONS, UNLABELLED, VOTES, WRONG_LABEL

import fastbert
from fastbert.cli.main import main
from fastbert.config import BertConfig
from fastbert.errors import CheckpointError, DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import finetune
from fastbert.tasks.predict import run_model

TASKS = sorted(LABELLED)


@pytest.fixture
def write(tmp_path):
    def write(content: bytes, name: str = "data.tsv"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("name", TASKS)
def test_a_labelled_file(name, write):
    content, rows = LABELLED[name]
    assert registry.get(name).read(write(content)) == rows


@pytest.mark.parametrize("name", TASKS)
def test_a_test_file_has_no_labels_and_its_own_numbers(name, write):
    content, texts = UNLABELLED[name]
    assert registry.get(name).read(write(content)) == [Row(str(i), pair) for i, pair in enumerate(texts)]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_ends_byte_order_mark_and_a_missing_last_line_end(name, bom, end, write):
    content, rows = LABELLED[name]
    plain = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").removesuffix(b"\n")
    assert registry.get(name).read(write(bom + plain.replace(b"\n", end))) == rows


@pytest.mark.parametrize("name", TASKS)
def test_a_wrong_label_is_named_or_skipped(name, write):
    content, rows = LABELLED[name]
    old, new, line, expected = WRONG_LABEL[name]
    path = write(content.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"data\.tsv, line {line}: expected {expected}(, which|$)"):
        registry.get(name).read(path)
    task = registry.get(name)
    task.bad_rows = BadRows(skip=True)
    assert task.read(path) == rows[1:]
    assert len(task.bad_rows.reasons) == 1


@pytest.mark.parametrize("name", TASKS)
def test_a_row_without_text_or_of_another_width_is_named(name, write):
    content, rows = LABELLED[name]
    without = content
    for text in rows[1].texts if name == "qqp" else rows[1].texts[:1]:  # in qqp one text of two is enough
        without = without.replace(text.encode(), b" ")
    line = 2 if name == "cola" else 3
    with pytest.raises(DataError, match=rf"line {line}: expected a text in every text column, got an empty one"):
        registry.get(name).read(write(without))
    with pytest.raises(DataError, match=rf"line {line}: expected \d+ tab-separated columns \(.*\), got \d+: "):
        registry.get(name).read(write(b" ".join(content.rsplit(b"\t", 1))))


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"cola", "stsb"}))
def test_a_file_without_its_header_is_not_read_as_data(name, write):
    content, _ = LABELLED[name]
    with pytest.raises(
        DataError,
        match=r"line 1: expected the header of a tab-separated file \(or .csv\) with the "
        r"(column '\w+'|columns '.*', '.*') \(optional: '(label|is_duplicate|Quality|gold_label)'",
    ):
        registry.get(name).read(write(content.split(b"\n", 1)[1]))


def test_mnli_dev_files_have_five_votes(write):
    votes = b"\tneutral\tneutral\tentailment\tneutral\tneutral\tneutral\n"
    path = write(MNLI_COLUMNS + VOTES + b"7" + MNLI_FILLER + b"A\tB" + votes)
    assert registry.get("mnli").read(path) == [Row("7", ("A", "B"), "neutral")]


def test_mnli_as_its_authors_publish_it(write):
    """gold_label comes first, and is - where the voters did not agree."""
    path = write(b"gold_label\tsentence1\tsentence2\tpairID\nneutral\tA\tB\t1n\n-\tC\tD\t2e\n")
    task = registry.get("mnli")
    task.bad_rows = BadRows(skip=True)
    assert task.read(path) == [Row("0", ("A", "B"), "neutral")]
    assert "got '-'" in task.bad_rows.reasons[0]


def test_a_first_row_that_is_no_utf_8_is_counted_once_and_keeps_its_number(write):
    task = registry.get("cola")
    task.bad_rows = BadRows(skip=True)
    assert task.read(write(b"a\t1\t\tcaf\xe9\nb\t0\t*\tgood\n")) == [Row("1", ("good",), "0")]
    assert len(task.bad_rows.reasons) == 1


@pytest.mark.parametrize("name", TASKS)
def test_a_pipe_is_read_once(name, tmp_path):
    """As from the shell's <(zcat train.tsv.gz)."""
    content, rows = LABELLED[name]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
    writer.start()
    assert registry.get(name).read(pipe) == rows
    writer.join(10)
    assert not writer.is_alive()


def test_the_similarity_benchmarks_own_files(write):
    """No header, tabs despite the name, and notes on licences in further columns."""
    path = write(
        b'main-forum\tanswers\t2015\t0001\t4.500\t"So\tThus\n'
        b"main-news\theadlines\t2016\t2\t0\tA\tB\tlicence note\thttps://x\n",
        "sts-dev.csv",
    )
    assert registry.get("stsb").read(path) == [Row("0", ('"So', "Thus"), 4.5), Row("1", ("A", "B"), 0.0)]


@pytest.mark.parametrize("kind", [LABELLED, UNLABELLED])
@pytest.mark.parametrize("path", ["file", "-"])
def test_glues_similarities_without_their_header_are_not_the_benchmarks(kind, path, write, monkeypatch):
    """They have its seven columns and more: the score was taken from the number, or a text from the year."""
    content = kind["stsb"][0].split(b"\n", 1)[1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    for predicting in (False, True):
        task = registry.get("stsb")
        task.predicting = predicting
        with pytest.raises(DataError, match=r"expected the header .* 'sentence1', 'sentence2' .*, or 7 columns"):
            task.read(write(content) if path == "file" else path)


def test_further_columns_of_similarities_are_the_benchmarks_alone(write, monkeypatch):
    with pytest.raises(DataError, match="line 2: expected 3 tab-separated columns"):
        registry.get("stsb").read(write(b"sentence1\tsentence2\tscore\nA\tB\t1\tC\n"))
    for typed in (b"A\tB\tC\n", b"A\tB\nA\tB\tC\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed)))
        with pytest.raises(DataError, match=f"line {typed.count(10)}: expected"):
            registry.get("stsb").read("-")


@pytest.mark.parametrize("score", ["", "nan", "inf", "-0.1", "high"])
def test_a_score_that_is_no_number_of_the_scale(score, write):
    path = write(f"g\tf\t2012\t1\t{score}\tA\tB\n".encode())
    with pytest.raises(DataError, match=rf"line 1: expected a number from 0 to 5, got '{score}'"):
        registry.get("stsb").read(path)


@pytest.mark.parametrize("name", TASKS)
def test_the_submission_file_exactly_and_back(name, tmp_path, write):
    task, (file_name, predictions, lines) = registry.get(name), SUBMISSIONS[name]
    rows = task.read(write(UNLABELLED[name][0]))
    path = tmp_path / task.submission_name("test.tsv")
    assert path.name == file_name
    task.write_predictions(rows, predictions, path)
    assert path.read_bytes() == b"index\tprediction\n" + lines.encode()
    assert task.read_predictions(rows[::-1], path) == predictions[::-1]


def test_mnlis_submission_is_called_after_the_data():
    task = registry.get("mnli")
    hub = "test-00000-of-00001.parquet"
    named = {
        "MNLI-m.tsv": ["test_matched.tsv", "mismatched/dev.tsv", "ax/test.tsv", f"mnli/{hub}", f"mnli_matched/{hub}"],
        "MNLI-mm.tsv": ["TEST_Mismatched.tsv", f"mnli_mismatched/{hub}", f"mnli/test_mismatched-{hub}"],
        "AX.tsv": ["x/diagnostic.tsv", "AX.tsv", f"glue/ax/{hub}"],
    }
    for name, files in named.items():
        assert {task.submission_name(file) for file in files} == {name}


def test_the_diagnostic_set_is_scored_by_matthews_correlation(write, capsys):
    header, row = b"Lexical Semantics\tDomain\tPremise\tHypothesis\tLabel\n", b"Quantifiers\tNews\tA\tB\t%b\n"
    labels = [b"entailment", b"entailment", b"neutral", b"contradiction"]
    content, sub = header + b"".join(row % label for label in labels), b"index\tprediction\n0\tentailment\n1\tneutral\n"
    sub = write(sub + b"2\tneutral\n3\tentailment\n", "AX.tsv")
    scores = {}
    for name in ("diagnostic-full.tsv", "pairs.tsv"):
        assert main(["evaluate", "mnli", "--data", str(write(content, name)), "--predictions", str(sub)]) == 0
        scores[name] = json.loads(capsys.readouterr().out)
    # Gorodkin's R_K by hand: 4 rows, 2 right; of the labels 2, 1, 1, of the predictions 2, 2, 0.
    expected = (2 * 4 - (2 * 2 + 1 * 2 + 1 * 0)) / ((16 - 4 - 4) * (16 - 4 - 1 - 1)) ** 0.5
    assert scores["diagnostic-full.tsv"] == {
        **{"task": "mnli", "rows": 4, "matthews": pytest.approx(expected), "accuracy": 0.5}
    }
    assert scores["pairs.tsv"] == {"task": "mnli", "rows": 4, "accuracy": 0.5}


def test_similarities_stay_on_the_scale_that_glue_takes(tmp_path):
    task = registry.get("stsb")
    assert task.decode([], [], [[-0.3], [5.2], [1.0]]) == [0.0, 5.0, 1.0]
    path = tmp_path / "STS-B.tsv"
    path.write_text("index\tprediction\n0\t5.2\n")
    with pytest.raises(DataError, match=r"line 2: expected a number from 0 to 5, got '5\.2'"):
        task.read_predictions([Row("0", ("a", "b"), 1.0)], path)


def test_classes_are_taken_in_the_order_that_a_model_names():
    """Published MNLI models have their classes in any order, and in capitals."""
    task = registry.get("mnli")
    task.restore(BertConfig(id2label={0: "CONTRADICTION", 1: "ENTAILMENT", 2: "NEUTRAL"}))
    assert task.labels == ("contradiction", "entailment", "neutral")
    assert task.decode([], [], [[0.0, 2.0, 1.0]]) == ["entailment"]
    task = registry.get("sst2")
    task.restore(BertConfig(id2label={0: "positive", 1: "negative"}))
    assert (task.labels, task.label_names, task.positive) == (("1", "0"), ("positive", "negative"), "1")
    task = registry.get("rte")
    task.restore(BertConfig(id2label={0: "LABEL_0", 1: "LABEL_1"}))
    assert task.labels == ("entailment", "not_entailment")


def test_a_model_that_names_no_classes_is_told_where_their_order_matters(caplog):
    """Two names are there by default: google-research's and NVIDIA's configurations of three classes have none."""
    for name, count, told in (("mnli", 3, True), ("mnli", 2, True), ("rte", 2, False), ("sst2", 2, False)):
        caplog.clear()
        with caplog.at_level("WARNING", "fastbert"):
            registry.get(name).restore(BertConfig(id2label={n: f"LABEL_{n}" for n in range(count)}))
        assert len(caplog.messages) == told
        assert all("the task's order, entailment, neutral, contradiction" in message for message in caplog.messages)


@pytest.mark.parametrize("form", ["tsv", "csv"])
def test_half_of_a_pair_is_enough_to_predict_with_or_without_labels(form, tmp_path):
    between = {"tsv": "\t", "csv": ","}[form]
    path = tmp_path / f"labelled.{form}"
    lines = ["index sentence1 sentence2 label", "0 a b entailment", "1 a  entailment"]
    path.write_text("".join(line.replace(" ", between) + "\n" for line in lines))
    task = registry.get("rte")
    with pytest.raises(DataError, match="expected a text in every text column, got an empty one"):
        task.read(path)
    task.predicting = True
    assert [row.texts for row in task.read(path)] == [("a", "b"), ("a", "")]


def test_a_model_with_other_classes_than_the_task_is_told(caplog):
    task = registry.get("mnli")
    with caplog.at_level("WARNING", "fastbert"):
        task.restore(BertConfig(id2label={0: "negative", 1: "neutral", 2: "positive"}))
    [said] = caplog.messages
    assert said == (
        "expected a model whose classes are entailment, neutral, contradiction, "
        "got one of negative, neutral, positive: they are taken in this order"
    )
    with pytest.raises(CheckpointError, match="neutral, contradiction, got one of entailment, not_entailment"):
        task.restore(BertConfig(id2label={0: "entailment", 1: "not_entailment"}))


@pytest.mark.parametrize(
    ("name", "file", "count", "positive"),
    [
        ("cola", "cola/in_domain_train.tsv", 8551, None),
        ("cola", "cola/in_domain_dev.tsv", 527, None),
        ("mrpc", "mrpc/msr_paraphrase_train.txt", 4076, 2753),
        ("stsb", "stsb/sts-train.csv", 5749, None),
        ("stsb", "stsb/sts-dev.csv", 1500, None),
        ("sst2", "sst2/dev.tsv", 872, None),
    ],
)
def test_the_real_files(shared_data, name, file, count, positive):
    rows = registry.get(name).read(shared_data / file)
    assert len(rows) == count
    assert all(text == text.strip() != "" for row in rows for text in row.texts)
    assert not any("\t" in text for row in rows for text in row.texts)
    if positive is not None:
        assert sum(row.label == "1" for row in rows) == positive
    if name == "stsb":
        assert (rows[0].label, rows[-1].label) == (5.0, 0.0)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_from_training_to_submission(name, directory, tmp_path, write, capsys):
    """The three commands on published forms: trained, scored by the model and by its file, and a test file answered."""
    train, test, run = write(LABELLED[name][0], "train.tsv"), write(UNLABELLED[name][0], "test.tsv"), tmp_path / "run"
    recipe = ["--epochs", "1", "--batch-size", "2", "--max-seqlen", "32"]
    files = ["--model", str(directory), "--train", str(train), "--dev", str(train), "--out", str(run)]
    assert main(["finetune", name, *files, *recipe]) == 0
    capsys.readouterr()
    assert main(["evaluate", name, "--model", str(run), "--data", str(train)]) == 0
    by_model = json.loads(capsys.readouterr().out)
    assert main(["evaluate", name, "--data", str(train), "--predictions", f"{run}/dev_predictions.tsv"]) == 0
    by_file = json.loads(capsys.readouterr().out)
    metrics = registry.get(name).metrics
    assert set(metrics) <= set(by_file)
    for metric in metrics:
        assert by_file[metric] == by_model[metric]
    out = tmp_path / "submissions"
    out.mkdir()
    assert main(["predict", name, "--model", str(run), "--data", str(test), "--out", str(out)]) == 0
    lines = (out / SUBMISSIONS[name][0]).read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["index", "0", "1"]


def test_a_task_may_start_from_another_with_other_labels(directory, tmp_path, write, caplog):
    """MNLI, then RTE with two labels, then STS-B with a number: only the head is new."""
    start = directory
    for name in ("mnli", "rte", "stsb"):
        path, run = write(LABELLED[name][0], f"{name}.tsv"), tmp_path / name
        files = ["--model", str(start), "--train", str(path), "--dev", str(path), "--out", str(run)]
        caplog.clear()
        assert main(["finetune", name, *files, "--epochs", "1", "--max-seqlen", "32"]) == 0
        assert "2 newly initialised (classifier.weight, classifier.bias)" in caplog.text
        start = run
    assert main(["evaluate", "rte", "--model", str(tmp_path / "mnli" / "model"), "--data", f"{tmp_path}/rte.tsv"]) == 2


@pytest.mark.parametrize(
    ("name", "typed", "texts"),
    [
        ("sst2", b"a fine film\nthe dull book\n", [("a fine film",), ("the dull book",)]),
        ("cola", b"a fine film\n", [("a fine film",)]),
        ("cola", LABELLED["cola"][0], [row.texts for row in LABELLED["cola"][1]]),
        ("rte", b"a film\tthe book is good\n", [("a film", "the book is good")]),
        ("rte", UNLABELLED["rte"][0], UNLABELLED["rte"][1]),
        ("rte", b'idx,premise,hypothesis\n0,"a film, good",the book\n', [("a film, good", "the book")]),
        ("cola", b"idx\tsentence\n0\ta fine film\n", [("a fine film",)]),
        # JSON with the task's columns, and what only looks like it.
        ("sst2", b'{"text": "a fine film", "x": 1}\n\n{"text": "dull"}\n', [("a fine film",), ("dull",)]),
        ("sst2", b'\n{"sentence": "a fine film"}', [("a fine film",)]),
        (
            "rte",
            b'{"premise": "a", "hypothesis": "b"}\n{"premise": "c", "hypothesis": null}\n',
            [("a", "b"), ("c", "")],
        ),
        ("sst2", b'[\n {"sentence": "a"},\n {"sentence": "b"}\n]\n', [("a",), ("b",)]),
        ("text-classification", b'{"sentence": "a"}\n{"text": "b"}\n', [("a",), ("b",)]),
        ("text-classification", b'[{"text": "a"}, {"text": "b"}]', [("a",), ("b",)]),
        ("sst2", b'{"phrase": "a"}\n', [('{"phrase": "a"}',)]),
        ("sst2", b'[1, 2]\n{"text": "a"}\n', [("[1, 2]",), ('{"text": "a"}',)]),
        ("sst2", b"[sic] a film\ngood\n", [("[sic] a film",), ("good",)]),
        # The name of a text column, alone in the first line.
        ("sst2", b"text\na fine film\ndull\n", [("a fine film",), ("dull",)]),
        ("text-classification", b"sentence\na fine film\n", [("a fine film",)]),
        ("sst2", b"text\n\n", [("text",)]),
        ("sst2", b"a text\ntext\n", [("a text",), ("text",)]),
    ],
)
def test_texts_on_standard_input(name, typed, texts, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed)))
    task = registry.get(name)
    task.predicting = True
    assert [row.texts for row in task.read("-")] == texts


def test_json_on_standard_input_has_its_lines_and_numbers(monkeypatch):
    content = b'{"sentence": "\xff"}\n{"sentence": "a"}\n{"sentence": 3}\n{"sentence": "b"}\n{"text"\n'
    for name in ("sst2", "text-classification"):
        typed = content if name == "sst2" else content.replace(b"sentence", b"text")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed)))
        task = registry.get(name)
        task.bad_rows = BadRows(skip=True)
        assert [(row.id, row.texts) for row in task.read("-")] == [("1", ("a",)), ("3", ("b",))]
        assert [reason.split(": ")[0] for reason in task.bad_rows.reasons] == [
            f"standard input, line {n}" for n in (1, 3, 5)
        ]


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("rte", "test.tsv", "index\tsentence1\tsentence2\n{}\ta\tb\n{}\tc\td\n"),
        ("rte", "test.csv", "idx,premise,hypothesis\n{},a,b\n{},c,d\n"),
        ("cola", "test.jsonl", '{{"idx": "{}", "sentence": "a"}}\n{{"idx": "{}", "sentence": "b"}}\n'),
        ("text-classification", "test.jsonl", '{{"id": "{}", "text": "a"}}\n{{"id": "{}", "text": "b"}}\n'),
    ],
)
def test_a_submission_has_every_row_once(name, file, content, write):
    """Also where rows have labels: what reads a submission goes by their ids."""
    task, last = registry.get(name), content.count("\n")
    once = write(content.format("3", "4").encode(), file)
    task.predicting = True
    assert [row.id for row in task.read(once)] == ["3", "4"]
    for ids, reason in (
        (("3", "3"), "expected every id once, .* got 3 again"),
        (("3", " "), "expected an id, .* empty"),
    ):
        path = write(content.format(*ids).encode(), file)
        with pytest.raises(DataError, match=f"{file}, line {last}: {reason}"):
            task.read(path)
    # To train on rows nobody needs their ids.
    assert len(registry.get(name).read(path)) == 2


def test_predictions_from_standard_input_to_standard_output(directory, tmp_path, write, capfd, monkeypatch):
    train, run = write(LABELLED["sst2"][0], "train.tsv"), tmp_path / "run"
    files = ["--model", str(directory), "--train", str(train), "--dev", str(train), "--out", str(run)]
    assert main(["finetune", "sst2", *files, "--epochs", "1", "--max-seqlen", "16"]) == 0
    capfd.readouterr()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a fine film\nthe dull book\n")))
    assert main(["predict", "sst2", "--model", str(run), "--data", "-"]) == 0
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["index", "0", "1"]
    assert {line[1] for line in lines[1:]} <= {"0", "1"}


def test_damaged_files_are_read_or_refused_in_one_sentence(write):
    rng, read, refused = random.Random(0), 0, []
    for _ in range(500):
        name = rng.choice(TASKS)
        content = bytearray(rng.choice([LABELLED, UNLABELLED])[name][0])
        for _ in range(rng.randint(1, 3)):
            at, byte = rng.randrange(len(content)), rng.choice(b'\t\n\r" \xff\xef\x85a')
            kind = rng.randrange(3)
            content[at : at + (kind > 0)] = b"" if kind == 2 else bytes([byte])
        task, path = registry.get(name), write(bytes(content))
        task.bad_rows = BadRows(skip=rng.random() < 0.5)
        try:
            rows = task.read(path)
        except DataError as error:
            refused.append(str(error))
        else:
            assert rows
            assert all(any(row.texts) for row in rows)
            read += 1
    assert all(message.startswith(str(path)) and "\n" not in message for message in refused)
    assert min(read, len(refused)) > 50


@pytest.mark.parametrize("side", ["right", "left"])
def test_similarity_is_transformers_regression(tmp_path, write, side):
    """Packed pairs, some cut to length: numbers and mean squared error of transformers' model on padded batches."""
    directory = tiny_bert.save(tmp_path / "m", "BertForSequenceClassification", num_labels=1)
    (directory / "tokenizer_config.json").write_text(json.dumps({"truncation_side": side}))
    words, rng = tiny_bert.WORDS.split(), np.random.default_rng(0)
    rows = []
    for i in range(30):
        a, b = (" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(2))
        rows.append(Row(str(i), (a, b), float(rng.integers(0, 26)) / 5))
    task = registry.get("stsb")
    examples = task.encode(rows, fastbert.load_tokenizer(directory), 16)
    assert any(e.truncated for e in examples)
    assert len({e.num_tokens for e in examples}) > 3
    found = run_model(task, task.model(directory), examples, token_budget=64)

    # The only one of transformers 5; the other of version 4 has a rule of its own for which of two texts is cut.
    padder = transformers.BertTokenizerFast(str(directory / "vocab.txt"), truncation_side=side)
    pairs = [list(texts) for texts in zip(*(row.texts for row in rows), strict=True)]
    inputs = padder(*pairs, padding=True, truncation="longest_first", max_length=16, return_tensors="pt")
    theirs = transformers.BertForSequenceClassification.from_pretrained(directory).eval()
    with torch.inference_mode():
        expected = theirs(**inputs, labels=torch.tensor([row.label for row in rows]))
    torch.testing.assert_close(torch.tensor(np.array(found.values)), expected.logits, atol=1e-5, rtol=0)
    assert found.loss == pytest.approx(expected.loss.item(), rel=1e-5)


def test_bad_rows_are_counted_on_the_command_line(directory, tmp_path, write, capsys):
    content, _ = LABELLED["rte"]
    train, run = write(content + b"2\tonly two\n3\tA\tB\tmaybe\n4\tA\tB\tentailment\n", "train.tsv"), tmp_path / "run"
    files = ["--model", str(directory), "--train", str(train), "--dev", str(train), "--out", str(run)]
    files += ["--max-seqlen", "16"]
    assert main(["finetune", "rte", *files]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{train}, line 4: expected 4 tab-separated columns" in error
    assert error.endswith("(--skip-bad-rows leaves such rows out)\n")
    assert not run.exists()
    assert main(["finetune", "rte", *files, "--skip-bad-rows", "--epochs", "1"]) == 0
    shown = capsys.readouterr()
    assert f"{train}: 2 bad rows skipped, 3 rows kept" in shown.err
    assert f"{train}, line 5: expected the label to be one of entailment, not_entailment, got 'maybe'" in shown.err
    assert "3 training rows" in shown.out
    assert [line.split("\t")[0] for line in (run / "dev_predictions.tsv").read_text().splitlines()[1:]] == [
        "0",
        "1",
        "4",
    ]


def test_a_model_of_several_labels_a_text_is_a_fine_start(tmp_path):
    directory = tiny_bert.save(
        tmp_path / "model", "BertForSequenceClassification", num_labels=2, problem_type="multi_label_classification"
    )
    task = registry.get("sst2")
    rows, config = tiny_bert.rows_of(8, 0), FinetuneConfig(epochs=1, max_seqlen=32, batch_size=4)
    result = finetune(task, task.model(directory), fastbert.load_tokenizer(directory), rows, rows, config)
    assert 0 <= result.best["accuracy"] <= 1


def test_features_of_pairs_need_token_types(tmp_path):
    directory = tiny_bert.save(tmp_path / "model", "BertModel")
    settings = {"do_lower_case": True, "model_input_names": ["input_ids", "attention_mask"]}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    task = registry.get("rte")
    task.features = "last"
    with pytest.raises(InputError, match="told apart by token types"):
        task.encode([Row("0", ("a film", "a book"), "entailment")], fastbert.load_tokenizer(directory), 32)
