"""Sets of multiple choice as they are published: their columns, their labels, and questions of several sizes."""

import csv
import gzip
import io
import json

import pytest
import tiny_bert
import torch
from hub_files import parquet

import fastbert
from fastbert.cli.main import main
from fastbert.errors import DataError, InputError
from fastbert.models.logits import choice_logits
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row, require_labels
from fastbert.tasks.predict import run_model

ASKED = {"premise": "It cast a shadow.", "choice1": "The sun rose.", "choice2": "It fell.", "idx": 0}
WINO = {"qID": "q", "sentence": "Ian ate it because _ likes soup.", "option1": "Ian", "option2": "Dennis"}
ART = {"obs1": "A.", "obs2": "D.", "hyp1": "B.", "hyp2": "C."}
CLOZE = {f"InputSentence{i}": f"S{i}." for i in range(1, 5)} | {f"RandomFifthSentenceQuiz{i}": f"E{i}." for i in (1, 2)}


FIVE = {"question": "Q", **{letter: letter.lower() for letter in "ABCDE"}, "answer": "E"}
COUNTED = {"question": "How many?", "choices": ["2", "3", "4", "1914"]}


def stem(letters, **more):
    choices = [{"text": f"t{letter}", "label": letter} for letter in letters]
    return {"id": "x", "question": {"stem": "Q?", "choices": choices, **more}, "answerKey": letters[-1]}


PUBLISHED = {
    "COPA": (
        ASKED | {"question": "cause", "label": 1},
        ("It cast a shadow.", "What was the cause of this? The sun rose.", "What was the cause of this? It fell."),
        "1",
    ),
    "COPA's effect": (
        ASKED | {"question": "effect"},
        ("It cast a shadow.", "What happened as a result? The sun rose.", "What happened as a result? It fell."),
        None,
    ),
    "PIQA": ({"goal": "To boil,", "sol1": "heat", "sol2": "cool", "label": 0}, ("To boil,", "heat", "cool"), "0"),
    "SocialIQA": (
        {"context": "C", "question": "Q?", "answerA": "a", "answerB": "b", "answerC": "c", "label": "3"},
        ("C", "Q? a", "Q? b", "Q? c"),
        "2",
    ),
    "CosmosQA": (
        {"context": "C", "question": "Q?", **{f"answer{i}": "abcd"[i] for i in range(4)}, "label": 0},
        ("C", "Q? a", "Q? b", "Q? c", "Q? d"),
        "0",
    ),
    "CommonsenseQA": (stem("ABCDE", question_concept="p"), ("Q?", "tA", "tB", "tC", "tD", "tE"), "4"),
    "CommonsenseQA on hubs": (
        {"question": "Q", "choices": {"text": list("abcde"), "label": list("ABCDE")}, "answerKey": "E"},
        ("Q", *"abcde"),
        "4",
    ),
    "ARC": (stem("123"), ("Q?", "t1", "t2", "t3"), "2"),
    "WinoGrande": (
        WINO | {"answer": "2"},
        ("Ian ate it because", "Ian likes soup.", "Dennis likes soup."),
        "1",
    ),
    "WinoGrande's gap at the beginning": (
        WINO | {"sentence": "_'s soup is hot.", "answer": ""},
        ("", "Ian's soup is hot.", "Dennis's soup is hot."),
        None,
    ),
    "alphaNLI": (ART | {"label": 2}, ("A.", "B. D.", "C. D."), "1"),
    "alphaNLI on hubs": (
        {"observation_1": "A.", "observation_2": "D.", "hypothesis_1": "B.", "hypothesis_2": "C.", "label": 1},
        ("A.", "B. D.", "C. D."),
        "0",
    ),
    "MMLU-Pro": (
        {"question": "Q", "options": list("abcdefghij"), "answer": "J", "label": 1},
        ("Q", *"abcdefghij"),
        "9",
    ),
    "MedQA": (
        {"question": "Q", "answer": "x", "options": {"A": "x", "B": "y"}, "answer_idx": "B"},
        ("Q", "x", "y"),
        "1",
    ),
    "MedMCQA": (
        {"question": "Q", "opa": "a", "opb": "b", "opc": "c", "opd": "d", "cop": 4, "choice_type": "single"},
        ("Q", *"abcd"),
        "3",
    ),
    "SciQ": (
        {"question": "Q?", "distractor3": "d", "distractor1": "b", "distractor2": "c"}
        | {"correct_answer": "a", "support": "S."},
        ("S.", "Q? a", "Q? b", "Q? c", "Q? d"),
        "0",
    ),
    "SocialIQA's own release": (
        {"context": "C", "question": "Q?", "answerA": "a", "answerB": "b", "answerC": "c", "correct": "B"},
        ("C", "Q? a", "Q? b", "Q? c"),
        "1",
    ),
    "CaseHOLD": ({"context": "C <HOLDING>", "endings": list("abcde"), "label": 4}, ("C <HOLDING>", *"abcde"), "4"),
    "CaseHOLD's own": (
        {"example_id": 0, "citing_prompt": "C", **{f"holding_{i}": "abcde"[i] for i in range(5)}, "label": "4"},
        ("C", *"abcde"),
        "4",
    ),
    "WIQA's own": (
        {
            "question": {"stem": "suppose X", "para_steps": ["S1.", "S2."], "answer_label": "less"}
            | {"answer_label_as_choice": "B", "choices": [{"label": "A", "text": "m"}, {"label": "B", "text": "l"}]},
            "metadata": {"ques_id": "x"},
        },
        ("S1. S2.", "suppose X m", "suppose X l"),
        "1",
    ),
    "JCommonsenseQA": (
        {"q_id": 1, "question": "Q", **{f"choice{i}": "abcde"[i] for i in range(5)}, "label": 4},
        ("Q", *"abcde"),
        "4",
    ),
    "LogiQA by EleutherAI": (
        {"label": "c", "context": "C", "question": "Q?", "options": list("wxyz")},
        ("C", "Q? w", "Q? x", "Q? y", "Q? z"),
        "2",
    ),
    "ScienceQA": (
        {"question": "Q?", "choices": ["a", "b"], "answer": 1, "hint": "H.", "task": "closed choice", "lecture": "L"},
        ("H.", "Q? a", "Q? b"),
        "1",
    ),
    "ScienceQA without a hint": (
        {"question": "Q?", "choices": ["a", "b"], "answer": 0, "hint": "", "lecture": "L"},
        ("", "Q? a", "Q? b"),
        "0",
    ),
    "WIQA": (
        {"question_stem": "suppose X", "question_para_step": ["S1.", " S2. "], "answer_label": "no effect"}
        | {"answer_label_as_choice": "B", "choices": {"text": ["more", "no effect"], "label": ["A", "B"]}},
        ("S1. S2.", "suppose X more", "suppose X no effect"),
        "1",
    ),
    "SuperGPQA": (
        {"uuid": "x", "question": "Q", "options": ["1", "2", "3", "4"], "answer": "3", "answer_letter": "C"},
        ("Q", *"1234"),
        "2",
    ),
    "a text as the answer": (COUNTED | {"answer": "1914"}, ("How many?", "2", "3", "4", "1914"), "3"),
    "a text in its place": (COUNTED | {"choices": ["0", "1"], "answer": "1"}, ("How many?", "0", "1"), "1"),
    "a number is no text": (COUNTED | {"answer": 2}, ("How many?", "2", "3", "4", "1914"), "2"),
    "five letters": (FIVE, ("Q", *"abcde"), "4"),
    "four of five letters": (FIVE | {"E": "", "answer": "d"}, ("Q", *"abcd"), "3"),
    "MedMCQA with five": (
        {"question": "Q", "opa": "a", "opb": "b", "opc": "c", "opd": "d", "ope": "e", "cop": 5},
        ("Q", *"abcde"),
        "4",
    ),
    "SocialIQA with four": (
        {"context": "C", "question": "Q?", **{f"answer{letter}": letter for letter in "ABCD"}, "label": "4"},
        ("C", "Q? A", "Q? B", "Q? C", "Q? D"),
        "3",
    ),
    "WinoGrande with three": (
        WINO | {"option3": "Bo", "answer": "3"},
        ("Ian ate it because", "Ian likes soup.", "Dennis likes soup.", "Bo likes soup."),
        "2",
    ),
    "alphaNLI on hubs with three": (
        {"observation_1": "A.", "observation_2": "D.", **{f"hypothesis_{i}": f"H{i}" for i in (1, 2, 3)}, "label": 3},
        ("A.", "H1 D.", "H2 D.", "H3 D."),
        "2",
    ),
    "SciQ with five": (
        {"question": "Q?", "correct_answer": "a", **{f"distractor{i}": f"w{i}" for i in range(1, 5)}, "support": "S."},
        ("S.", "Q? a", "Q? w1", "Q? w2", "Q? w3", "Q? w4"),
        "0",
    ),
    "AQuA": ({"question": "Q", "options": ["A)2", "B)3"], "rationale": "r", "correct": "B"}, ("Q", "A)2", "B)3"), "1"),
    "ReClor": (
        {"context": "C", "question": "Q?", "answers": list("abcd"), "label": 3, "id_string": "x"},
        ("C", "Q? a", "Q? b", "Q? c", "Q? d"),
        "3",
    ),
    "QuAIL": (
        {"context": "C", "question": "Q?", "answers": list("abcd"), "correct_answer_id": 0},
        ("C", "Q? a", "Q? b", "Q? c", "Q? d"),
        "0",
    ),
    "LogiQA": (
        {"context": "C", "query": "Q?", "options": list("abcd"), "correct_option": 2},
        ("C", "Q? a", "Q? b", "Q? c", "Q? d"),
        "2",
    ),
    "LogiQA 2.0": (
        {"id": 218, "text": "C", "type": {"x": True}, "question": "Q?", "options": list("abcd"), "answer": 3},
        ("C", "Q? a", "Q? b", "Q? c", "Q? d"),
        "3",
    ),
    "AGIEval": (
        {"passage": "C", "question": "Q?", "options": ["(A)a", "(B)b"], "label": "B", "answer": None, "other": None},
        ("C", "Q? (A)a", "Q? (B)b"),
        "1",
    ),
    "AGIEval's questions without a passage": (
        {"passage": None, "question": "Q?", "options": ["(A)a", "(B)b"], "label": "A", "answer": None, "other": None},
        ("Q?", "(A)a", "(B)b"),
        "0",
    ),
    "a passage of a blank": (
        {"passage": " ", "question": "Q", "choices": ["a", "b"], "answer": 1},
        ("Q", "a", "b"),
        "1",
    ),
    "Story Cloze": (CLOZE | {"AnswerRightEnding": 1}, ("S1. S2. S3. S4.", "E1.", "E2."), "0"),
    "XStoryCloze": (
        {f"input_sentence_{i}": f"S{i}." for i in range(1, 5)}
        | {"sentence_quiz1": "E1.", "sentence_quiz2": "E2.", "answer_right_ending": 2},
        ("S1. S2. S3. S4.", "E1.", "E2."),
        "1",
    ),
    "QuaRTz": (stem("AB") | {"para": "P.", "para_id": "1"}, ("P.", "Q? tA", "Q? tB"), "1"),
    "QuaRTz on hubs": (
        {"question": "Q?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A", "para": "P."},
        ("P.", "Q? a", "Q? b"),
        "0",
    ),
    "MuTual": ({"article": "m : A", "options": list("abcd"), "answers": "C", "id": "x"}, ("m : A", *"abcd"), "2"),
    "C-Eval": (
        {"id": 0, "question": "Q", "A": "a", "B": "b", "C": "c", "D": "d", "answer": "C", "explanation": "e"},
        ("Q", *"abcd"),
        "2",
    ),
    "C-Eval's test file": ({"id": 0, "question": "Q", "A": "a", "B": "b", "C": "c", "D": "d"}, ("Q", *"abcd"), None),
    "CMMLU": ({"Question": "Q", "A": "a", "B": "b", "C": "c", "D": "d", "Answer": "D"}, ("Q", *"abcd"), "3"),
    "Belebele": (
        {"flores_passage": "P.", "question": "Q?", **{f"mc_answer{i}": f"a{i}" for i in range(1, 5)}}
        | {"correct_answer_num": "2", "dialect": "eng_Latn"},
        ("P.", "Q? a1", "Q? a2", "Q? a3", "Q? a4"),
        "1",
    ),
}


def lines_of(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows(name, tmp_path, monkeypatch):
    values, texts, label = PUBLISHED[name]
    assert registry.get("swag").read(write(tmp_path / "f.jsonl", lines_of(values))) == [Row("0", texts, label)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines_of(values).encode())))
    assert registry.get("swag").read("-") == [Row("0", texts, label)]


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize(
    "name",
    [
        *("COPA", "WinoGrande", "Story Cloze", "SciQ", "MedMCQA", "C-Eval", "C-Eval's test file", "CMMLU"),
        *("SocialIQA", "SocialIQA's own release", "JCommonsenseQA", "five letters", "four of five letters"),
        *("MedMCQA with five", "WinoGrande with three", "SciQ with five"),
    ],
)
def test_columns_of_a_table(name, separator, tmp_path):
    """The first column has no name: pandas writes the number of the row there."""
    values, texts, label = PUBLISHED[name]
    values = {"": 7} | values
    with open(tmp_path / "f.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, values, delimiter=separator)
        writer.writeheader()
        writer.writerow(values)
    assert registry.get("swag").read(tmp_path / "f.csv") == [Row("0", texts, label)]


def test_quotes_between_tabs(tmp_path):
    """XStoryCloze's files have Story Cloze's columns; a row with another number of them swallows no other."""
    row = ["x", "A", '"B', "C, D", "E", "f", 'g"', "2"]
    columns = ["InputStoryid", *CLOZE, "AnswerRightEnding"]
    path = write(tmp_path / "f.tsv", "\n".join("\t".join(fields) for fields in (columns, row, row[1:], row)))
    task = registry.get("swag")
    with pytest.raises(DataError, match="line 3: expected all columns of the header"):
        task.read(path)
    task.bad_rows = BadRows(skip=True)
    texts = ('A "B C, D E', "f", 'g"')
    assert task.read(path) == [Row("0", texts, "1"), Row("2", texts, "1")]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (WINO | {"answer": "3"}, "expected the label to be one of 1 to 2, got '3'"),
        (WINO | {"sentence": "No gap."}, "expected a sentence with one _, got 'No gap.'"),
        (stem("ABC") | {"answerKey": "D"}, "expected the label to be one of 0 to 2, got 'D'"),
        ({"question": "Q", "choices": ["a"], "answer": 0}, "expected 2 endings, got 1"),
        ({"goal": " ", "sol1": "a", "sol2": "b"}, "expected a text before the endings"),
        (WINO | {"option2": " "}, "expected 2 endings, got an empty one"),
        (ART | {"hyp1": ""}, "expected 2 endings, got an empty one"),
        (ART | {"obs2": None}, "expected a second observation in obs2, got an empty one"),
        ({"observation_1": "A.", "hypothesis_1": "B.", "hypothesis_2": "C."}, "expected a second observation"),
        (
            {"story": "S", "question": "Q?", "choices": ["a", "b"], "answer": "A"},
            "expected a question that stands alone, .* got question and also story, which would be left out: call the "
            "columns as RACE does, or remove story",
        ),
        (
            {"passages": ["S", ""], "hint": "H", "question": "Q?", "choices": ["a", "b"], "answer": 0},
            "expected a question that stands alone, .* got question and also passages, which would be left out",
        ),
        (
            {"Content": "S", "question": "Q?", "choices": ["a", "b"], "answer": 0},
            ".* got question and also Content, which",
        ),
        (
            {"Evidence": "S", "Question": "Q", **dict(zip("ABCD", "abcd", strict=True)), "Answer": "A"},
            ".* also Evidence",
        ),
        (stem("ABC", passage="S") | {"answerKey": "A"}, ".* got question and also passage, which would"),
        (FIVE | {"E": " ", "F": "f"}, "expected 6 endings, got an empty one"),
        (FIVE | {"answer": "F"}, "expected a letter, A to E, got 'F'"),
        (FIVE | {"answer": 2}, "expected a letter, A to E, got '2': numbers may count from 0 or from 1"),
        (stem("123") | {"answerKey": "0"}, "expected the label to be one of 1, 2, 3, got '0'"),
        (COUNTED | {"answer": "2"}, "expected the letter or the number .* got '2', which is the text of one and may"),
        (COUNTED | {"answer": "4"}, "expected the letter or the number .* got '4', which is the text of one and may"),
        (COUNTED | {"choices": ["b", "a"], "answer": "a"}, "expected the letter or the number .* got 'a', which is"),
        (COUNTED | {"answer": "five"}, "expected the label to be one of 0 to 3, got 'five'"),
        (COUNTED | {"choices": ["2", "2"], "answer": "two"}, "expected the label to be one of 0 to 1, got 'two'"),
        ({"article": "A", "questions": ["q"]}, "expected all columns of SWAG .*, got article, question"),
        # ReClor's columns and LogiQA's: the question would be left out.
        ({"context": "C", "query": "Q?", "answers": ["a", "b"], "label": 0}, "expected all columns of SWAG .*, query"),
    ],
)
def test_bad_rows(values, reason, tmp_path):
    path = write(tmp_path / "f.jsonl", lines_of(PUBLISHED["PIQA"][0], values))
    with pytest.raises(DataError, match=f"line 2: {reason}"):
        registry.get("swag").read(path)
    task = registry.get("swag")
    task.bad_rows = BadRows(skip=True)
    assert [row.id for row in task.read(path)] == ["0"]


def test_sciq_s_right_answers_have_no_place_of_their_own(tmp_path):
    """Some questions have no text that supports them, and a row without an answer is a bad one."""
    row = {"question": "Q?", "correct_answer": "a", **{f"distractor{i}": f"w{i}" for i in (1, 2, 3)}, "support": ""}
    rows = registry.get("swag").read(write(tmp_path / "f.jsonl", lines_of(*[row] * 5)))
    assert [row.label for row in rows] == ["0", "1", "2", "3", "0"]
    assert [row.texts[1 + int(row.label)] for row in rows] == ["Q? a"] * 5
    assert rows[1].texts == ("", "Q? w1", "Q? a", "Q? w2", "Q? w3")
    path = write(tmp_path / "f.jsonl", lines_of(row, row | {"distractor2": " "}))
    with pytest.raises(DataError, match="line 2: expected 4 endings, got 3"):
        registry.get("swag").read(path)


def test_medmcqa_s_answers_count_from_one_but_as_classes_from_nought(tmp_path):
    row = dict(PUBLISHED["MedMCQA"][0])
    for right, label in ((3, "3"), (0, "0"), (-1, None)):
        (tmp_path / "f.parquet").write_bytes(parquet([row | {"cop": right}], classes={"cop": list("abcd")}))
        assert registry.get("swag").read(tmp_path / "f.parquet")[0].label == label
    with pytest.raises(DataError, match="line 1: expected the label to be one of 1 to 4, got '0'"):
        registry.get("swag").read(write(tmp_path / "f.jsonl", lines_of(row | {"cop": 0})))


@pytest.mark.parametrize(
    ("name", "values", "first"),
    [
        ("f.jsonl", PUBLISHED["PIQA"][0] | {"label": 2}, 1),
        ("f.jsonl", PUBLISHED["CosmosQA"][0] | {"label": "4"}, 1),
        ("f.jsonl", {"question": "Q", "choices": ["a", "b"], "answer": 2}, 1),
        ("f.jsonl", {"context": "C", "endings": ["a", "b"], "label": 2}, 1),
        ("f.jsonl", {"FalseSent": "S", **{f"Option{letter}": letter for letter in "ABC"}, "label": 3}, 1),
        ("f.jsonl", WINO | {"answer": "0"}, 0),
        ("f.csv", {"sent1": "A", "sent2": "b", **{f"ending{i}": f"e{i}" for i in range(4)}, "label": 4}, 1),
        ("f.csv", PUBLISHED["MedMCQA"][0] | {"cop": 0}, 0),
    ],
)
def test_a_number_one_beyond_shows_that_the_file_counts_from_another(name, values, first, tmp_path):
    """Its other labels would be off by one, so that it is no bad row, whose neighbours are kept."""
    text = lines_of(values) if name == "f.jsonl" else f"{','.join(values)}\n{','.join(map(str, values.values()))}\n"
    task = registry.get("swag")
    task.bad_rows = BadRows(skip=True)
    with pytest.raises(DataError, match=rf"expected the label to be one of .* this file count from {first}: all of"):
        task.read(write(tmp_path / name, text))
    task.predicting = True
    assert [row.label for row in task.read(tmp_path / name)] == [None]


def test_numbers_of_letters_are_refused_unless_the_file_says_where_they_begin(tmp_path):
    """KMMLU and KorMedMCQA count from 1."""
    rows = [FIVE | {"answer": number} for number in (1, 4)]
    task = registry.get("swag")
    task.bad_rows = BadRows(skip=True)
    with pytest.raises(DataError, match=r"none that can be used; the first is bad: .* got '1': numbers may count from"):
        task.read(write(tmp_path / "f.jsonl", lines_of(*rows)))
    (tmp_path / "f.parquet").write_bytes(parquet(rows, classes={"answer": list("ABCDE")}))
    assert [row.label for row in task.read(tmp_path / "f.parquet")] == ["1", "4"]
    task.predicting = True
    assert [(len(row.texts), row.label) for row in task.read(tmp_path / "f.jsonl")] == [(6, None)] * 2


def test_classes_that_are_called_by_numbers(tmp_path):
    rows = [PUBLISHED["SocialIQA"][0] | {"label": number} for number in range(3)]
    (tmp_path / "f.parquet").write_bytes(parquet(rows, classes={"label": ["1", "2", "3"]}))
    assert [row.label for row in registry.get("swag").read(tmp_path / "f.parquet")] == ["0", "1", "2"]


def test_a_question_is_not_left_out_for_the_name_of_its_labels(tmp_path):
    """RACE's columns, but MuTual's name, whose options follow on an article alone."""
    row = {"article": "A", "question": "Q?", "options": ["a", "b"], "answers": "B"}
    assert registry.get("swag").read(write(tmp_path / "f.jsonl", lines_of(row))) == [Row("0", ("A", "Q? a", "Q? b"))]


def test_labels_in_a_file_beside(tmp_path):
    """AI2 publishes PIQA, SocialIQA and alphaNLI so. A row that is left out takes its label with it."""
    rows = [{"goal": f"G{i}", "sol1": "a", "sol2": "b"} for i in range(3)]
    path = write(tmp_path / "train.jsonl", lines_of(rows[0], {"goal": "no"}, *rows[1:]) + "{\n")
    task = registry.get("swag")
    with pytest.raises(DataError, match="expected a column label with the label of every row, got the columns goal, s"):
        require_labels(task, task.read(write(tmp_path / "f.jsonl", lines_of(*rows))), tmp_path / "f.jsonl")
    write(tmp_path / "train-labels.lst", "1\n0\n0\n1\n1\n")
    task.bad_rows = BadRows(skip=True)
    assert [(row.texts[0], row.label) for row in task.read(path)] == [("G0", "1"), ("G1", "0"), ("G2", "1")]
    packed = path.with_name("train.jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert task.read(packed) == task.read(path)
    for labels, count in (("1\n0\n0\n", 3), ("1\n0\n0\n1\n1\n0\n", 6)):
        write(tmp_path / "train-labels.lst", labels)
        with pytest.raises(DataError, match=rf"labels.lst: expected a label for each of the 5 rows of .*, got {count}"):
            task.read(path)


def test_questions_of_several_sizes_score_as_each_alone():
    scores = torch.tensor([[0.5], [1.0], [-2.0], [3.0], [0.0], [1.5], [2.0]], requires_grad=True)
    logits = choice_logits(scores, (2, 3, 2))
    loss = fastbert.ops.cross_entropy(logits, torch.tensor([1, 0, 1]))
    (grad,) = torch.autograd.grad(loss, scores)
    parts = [(scores[:2], 1), (scores[2:5], 0), (scores[5:], 1)]
    alone = [torch.nn.functional.cross_entropy(part.T, torch.tensor([label])) for part, label in parts]
    expected = sum(alone) / 3
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, scores)[0])
    for counts in ((2, 3), (2, 3, 3), (0, 7), 2):
        with pytest.raises(InputError, match="must hold num_choices"):
            choice_logits(scores, counts)


def test_a_batch_of_several_sizes(tmp_path):
    """Each row has the scores that it has alone, and the loss is the mean over the rows."""
    directory, task = tiny_bert.save(tmp_path / "m", "BertForMultipleChoice"), registry.get("swag")
    texts = ("the film is", "good", "bad", "very dull", "a book", "great")
    rows = [Row(str(n), texts[: n + 1], str(n - 1)) for n in (2, 5, 3)]
    model = task.model(directory)
    tokenizer = fastbert.load_tokenizer(directory)
    together = run_model(task, model, task.encode(rows, tokenizer, 24))
    alone = [run_model(task, model, task.encode([row], tokenizer, 24)) for row in rows]
    for row, found, own in zip(rows, together.values, alone, strict=True):
        torch.testing.assert_close(torch.tensor(found)[: len(row.texts) - 1], torch.tensor(own.values[0]))
    assert together.loss == pytest.approx(sum(own.loss for own in alone) / 3, rel=1e-5)


def test_from_training_to_scores(tmp_path, capsys):
    """ARC's questions have three to five answers; all of them count."""
    model = tiny_bert.save(tmp_path / "model", num_hidden_layers=1)
    data = write(tmp_path / "arc.jsonl", lines_of(stem("ABC"), stem("1234"), stem("ABCDE"), stem("AB")))
    given = ["--model", str(model), "--train", str(data), "--dev", str(data), "--out", str(tmp_path / "run")]
    assert main(["finetune", "swag", *given, "--epochs", "1", "--max-seqlen", "16"]) == 0
    assert len((tmp_path / "run" / "dev_endings.tsv").read_text().splitlines()) == 1 + 5
    out = write(tmp_path / "p.csv", "index,label\n0,2\n1,0\n2,4\n3,1\n")
    capsys.readouterr()
    assert main(["evaluate", "swag", "--data", str(data), "--predictions", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.75
    task = registry.get("swag")
    rows = task.read(data)
    with pytest.raises(DataError, match="line 2: expected 'index,label' with a label from 0 to 2 and every index once"):
        task.read_predictions(rows, write(out, "index,label\n0,3\n"))
