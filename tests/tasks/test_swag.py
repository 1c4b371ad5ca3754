"""Multiple choice: SWAG's and CODAH's files with their traps, the four sequences, and a run of a tiny model."""

import io
import json

import numpy as np
import pytest
import tiny_bert
import torch
import transformers

import fastbert
from fastbert.cli.main import main
from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row, require_labels
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import finetune
from fastbert.tasks.predict import run_model

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("swag"), "BertModel", num_hidden_layers=2)


def write(tmp_path, text, name="f.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_real_files(shared_data):
    task = registry.get("swag")
    rows = task.read(shared_data / "swag" / "swag_part1.csv")
    assert len(rows) == 600
    assert {row.label for row in rows} == set("0123")
    assert rows[0].texts[0].startswith("In the quadrangle, someone sits")  # the comma is within quotes
    assert rows[0].texts[1] == "His classmates play the drums on their mother as someone smiles."
    test = task.read(shared_data / "swag" / "swag_sample_test.csv")
    assert (len(test), {row.label for row in test}) == (40, {None})
    full = task.read(shared_data / "swag" / "swag_sample_val_full.csv")
    assert len(full) == 20
    assert full[0].texts[1:] == (
        "She walks slowly towards someone.",
        "She wheels around as her dog thunders out.",
        "She pats her shoulder, then saunters toward someone.",
        "She turns with two students.",
    )
    right = [full[i].texts[1 + int(full[i].label)] for i in (0, 1)]
    assert right[0] == "She walks slowly towards someone."
    assert right[1].startswith("He exits the building and rides the motorcycle into a casino where he performs")
    codah = task.read(shared_data / "codah" / "dev.tsv")
    assert (len(codah), codah[0].texts[2], codah[0].label) == (556, "walked inside and bought a lotto ticket.", "1")


def test_quotes_line_ends_and_byte_order_mark(tmp_path):
    text = '0,v,0,x,"He said ""no"", and","He\r\nthen",gold,a,"b,c",d,"e ",2'
    path = write(tmp_path, "\ufeff" + HEADER + ",label\r\n" + text + "\r\n\r\n")
    (row,) = registry.get("swag").read(path)
    assert row.texts[0] == 'He said "no", and'
    assert [ending.split("\n")[-1].strip() for ending in row.texts[1:]] == ["then a", "then b,c", "then d", "then e"]
    assert row.label == "2"


def test_a_full_row_takes_the_distractors_that_it_has(tmp_path):
    """Some rows have three of the four, and not always the first; the right ending goes round the places."""
    header = "video-id,sent1,sent2,gold-ending,distractor-0,distractor-1,distractor-2,distractor-3"
    task = registry.get("swag")
    rows = task.read(write(tmp_path, f"{header}\nv,a,b,gold,,x,y,z\nv,a,b,gold,w,x,,z\n"))
    assert [row.texts[1:] for row in rows] == [("b gold", "b x", "b y", "b z"), ("b w", "b gold", "b x", "b z")]
    assert [row.label for row in rows] == ["0", "1"]
    wrong = {"id": "0", "context": "a", "right": "b gold", "chosen": "b y"}
    assert list(task.errors(rows, ["2", "1"])) == [wrong]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,v,0,x,a,b,gold,e,f,g,h,5", "expected the label to be one of 0 to 3, got '5'"),
        ("1,v,0,x,a,b,gold,e,f,g,,0", "expected 4 endings, got an empty one"),
        ("1,v,0,x,,b,gold,e,f,g,h,0", "expected a text before the endings"),
        ("1,v,0,x,a,b,gold,e,f,g,0", "expected all columns of the header, with closed quotes"),
        ('1,v,0,x,"a,b,gold,e,f,g,h,0', "with closed quotes"),
    ],
)
def test_bad_rows_are_named_and_swallow_nothing(tmp_path, line, reason):
    good = "0,v,0,x,a,b,gold,e,f,g,h,1"
    path = write(tmp_path, "\n".join([HEADER + ",label", good, line, good.replace("e", "k"), ""]))
    with pytest.raises(DataError, match=f"f.csv, line 3: .*{reason}"):
        registry.get("swag").read(path)
    task = registry.get("swag")
    task.bad_rows = BadRows(skip=True)
    assert [(row.id, row.texts[1]) for row in task.read(path)] == [("0", "b e"), ("2", "b k")]
    assert len(task.bad_rows.reasons) == 1


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"line 1: expected a \.csv header with sent1, sent2, ending0"):
        registry.get("swag").read(write(tmp_path, "sentence\tlabel\na\t1\n"))
    with pytest.raises(DataError, match=r"line 1: expected a \.csv header with .*, got 'question'"):
        registry.get("swag").read(write(tmp_path, "question\nWhat?\n"))
    task = registry.get("swag")
    task.bad_rows = BadRows(skip=True)
    path = write(tmp_path, "")
    path.write_bytes(b"caf\xe9\nwhat\n")
    with pytest.raises(DataError, match=r"line 2: expected a \.csv header with .*, got 'what'"):
        task.read(path)
    with pytest.raises(DataError, match=r"line 2: expected 7 tab-separated columns \(category, prompt"):
        registry.get("swag").read(write(tmp_path, "o\tp\ta\tb\tc\td\t1\no\tp\ta\n"))


def test_logits_are_transformers(tmp_path):
    directory = tiny_bert.save(tmp_path / "m", "BertForMultipleChoice")
    task, words = registry.get("swag"), tiny_bert.WORDS.split()
    rows = [Row(str(i), ("the film is", *(" ".join(words[i + j : i + 2 * j + 1]) for j in range(4)))) for i in range(5)]
    rows = [Row(row.id, row.texts, str(i % 4)) for i, row in enumerate(rows)]
    examples = task.encode(rows, fastbert.load_tokenizer(directory), 24)
    found = run_model(task, task.model(directory), examples, token_budget=64)
    padder = transformers.BertTokenizer(str(directory / "vocab.txt"))
    theirs = transformers.BertForMultipleChoice.from_pretrained(directory).eval()
    inputs = padder([r.texts[0] for r in rows for _ in range(4)], [t for r in rows for t in r.texts[1:]], padding=True)
    with torch.inference_mode():
        given = {name: torch.tensor(value).view(5, 4, -1) for name, value in inputs.items()}
        expected = theirs(**given, labels=torch.tensor([int(row.label) for row in rows]))
    torch.testing.assert_close(torch.tensor(np.array(found.values)), expected.logits, atol=1e-5, rtol=0)
    assert found.loss == pytest.approx(expected.loss.item(), abs=1e-5)
    # No pad token, and no label where there is none.
    unlabelled = task.encode([Row(row.id, row.texts) for row in rows], fastbert.load_tokenizer(directory), 24)
    batch, keywords = task.collate(unlabelled)
    assert (batch.num_tokens, batch.num_sequences, keywords) == (
        sum(e.num_tokens for e in examples),
        20,
        {"num_choices": 4},
    )
    assert run_model(task, task.model(directory), unlabelled).loss is None


def csv_of(count, seed):
    """The right ending is the one that praises."""
    generator = torch.Generator().manual_seed(seed)
    lines = [HEADER + ",label"]
    for index in range(count):
        right, good = (int(torch.randint(0, n, (1,), generator=generator)) for n in (4, 3))
        bad = [tiny_bert.BAD[int(i)] for i in torch.randint(0, 3, (4,), generator=generator)]
        endings = [tiny_bert.GOOD[good] if i == right else f"very {bad[i]}" for i in range(4)]
        lines.append(f"{index},v,0,x,the film .,it is,gold,{','.join(endings)},{right}")
    return "\n".join(lines) + "\n"


def test_learns_and_writes(directory, tmp_path):
    task = registry.get("swag")
    train, dev = task.read(write(tmp_path, csv_of(96, 1))), task.read(write(tmp_path, csv_of(32, 2)))
    torch.manual_seed(0)
    config = FinetuneConfig(epochs=4, batch_size=8, lr=3e-3, max_seqlen=16)
    tokenizer = fastbert.load_tokenizer(directory)
    result = finetune(task, task.model(directory), tokenizer, train, dev, config, out=tmp_path / "run")
    assert result.best["accuracy"] == 1.0
    written = tmp_path / "run" / "dev_predictions.csv"
    assert task.read_predictions(dev, written) == [row.label for row in dev]
    assert written.read_text().splitlines()[:2] == ["index,label", f"0,{dev[0].label}"]
    assert (tmp_path / "run" / "dev_endings.tsv").read_text().splitlines()[0] == "ending\tright\tchosen\tboth"


@pytest.mark.parametrize("listed", [False, True])
def test_json_on_standard_input(listed, monkeypatch):
    """Of every form that a file called .jsonl may have, with the numbers of its lines."""
    ends = [f"e{i}" for i in range(4)]
    objects = [
        {"sent1": "c", "sent2": "b", **{f"ending{i}": end for i, end in enumerate(ends)}, "label": 2},
        {"ctx_a": "c", "ctx_b": "b", "endings": ends, "label": "2"},
        {"sent1": "c", "sent2": "b", "gold-ending": "e1", "distractor-0": "e0", "distractor-1": "e2"},
        {"sent1": "c", "sent2": "b", "gold-ending": "e3", **{f"distractor-{i}": ends[i] for i in range(3)}},
    ]
    typed = json.dumps(objects, indent=1) if listed else "\n".join(map(json.dumps, objects))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    task = registry.get("swag")
    task.bad_rows = BadRows(skip=True)
    texts = ("c", *(f"b {end}" for end in ends))
    assert task.read("-") == [Row("0", texts, "2"), Row("1", texts, "2"), Row("3", texts, "3")]
    where = "object" if listed else "line"
    assert [reason.split(": ")[0] for reason in task.bad_rows.reasons] == [f"standard input, {where} 3"]


def test_predictions_are_scored_by_hand(tmp_path, capsys):
    data = write(tmp_path, csv_of(4, 3))
    rows = registry.get("swag").read(data)
    lines = [f"{row.id},{(int(row.label) + (row.id == '2')) % 4}" for row in rows]
    predictions = write(tmp_path, "\n".join(["index,label", *lines[::-1]]) + "\n", "p.csv")
    assert main(["evaluate", "swag", "--data", str(data), "--predictions", str(predictions)]) == 0
    assert json.loads(capsys.readouterr().out) == {"task": "swag", "rows": 4, "accuracy": 0.75}
    (error,) = registry.get("swag").errors(rows, registry.get("swag").read_predictions(rows, predictions))
    assert (error["id"], error["right"]) == ("2", rows[2].texts[1 + int(rows[2].label)])
    for text, reason in (
        ("index,label\n0,1\n", "missing 1, 2, 3"),
        ("index,label\n0,7\n", "line 2: expected 'index,label'"),
    ):
        with pytest.raises(DataError, match=reason):
            registry.get("swag").read_predictions(rows, write(tmp_path, text, "p.csv"))


@pytest.mark.parametrize(("label", "read"), [(1.0, "1"), ("2.0", "2"), (-1.0, None), ("-1.0", None), (3, "3")])
def test_labels_as_pandas_writes_numbers_with_gaps(tmp_path, label, read):
    values = {"sent1": "A man.", "sent2": "He", **{f"ending{i}": f"goes {i}." for i in range(4)}, "label": label}
    [row] = registry.get("swag").read(write(tmp_path, json.dumps(values), "f.jsonl"))
    assert row.label == read
    [row] = registry.get("swag").read(write(tmp_path, f"{HEADER},label\n1,v,0,x,a,b,gold,e,f,g,h,{label}\n"))
    assert row.label == read


def test_a_number_that_is_no_whole_one_is_no_label(tmp_path):
    with pytest.raises(DataError, match=r"expected the label to be one of 0 to 3, got '1\.5'"):
        registry.get("swag").read(write(tmp_path, f"{HEADER},label\n1,v,0,x,a,b,gold,e,f,g,h,1.5\n"))


CHOICES = {"text": ["a", "b", "c", "d"], "label": ["A", "B", "C", "D"]}
NUMBERED = {**CHOICES, "label": ["1", "2", "3", "4"]}


@pytest.mark.parametrize(
    ("values", "texts", "label"),
    [
        ({"article": "A", "question": "Q", "options": CHOICES["text"], "answer": "D"}, ("A", "Q a"), "3"),  # RACE
        ({"question": "Q", "choices": CHOICES, "answerKey": "C"}, ("Q", "a"), "2"),  # ARC
        ({"question": "Q", "choices": NUMBERED, "answerKey": "1"}, ("Q", "a"), "0"),
        ({"question": "Q", "choices": CHOICES, "answerKey": ""}, ("Q", "a"), None),
        ({"question_stem": "Q", "choices": CHOICES, "answerKey": "B"}, ("Q", "a"), "1"),  # OpenBookQA
        ({"question": "Q", "choices": CHOICES["text"], "answer": 1}, ("Q", "a"), "1"),  # MMLU
    ],
)
def test_other_sets_of_four_answers(tmp_path, values, texts, label):
    [row] = registry.get("swag").read(write(tmp_path, json.dumps({"id": "x", **values}), "f.jsonl"))
    assert (row.texts[:2], row.label) == (texts, label)


def test_the_column_of_labels_that_is_missing_is_that_of_the_form(tmp_path):
    path = write(tmp_path, json.dumps({"question_stem": "Q", "choices": CHOICES}), "f.jsonl")
    task = registry.get("swag")
    with pytest.raises(DataError, match="expected a column answerKey with the label of every row, got the columns"):
        require_labels(task, task.read(path), path)
