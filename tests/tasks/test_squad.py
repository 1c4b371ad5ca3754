"""SQuAD: files and their traps, windows, spans, the threshold for no answer, and whole runs of a tiny model."""

import dataclasses
import io
import json
import sys

import numpy as np
import pytest
import tiny_bert
import torch

import fastbert
from fastbert.cli.main import main
from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Example, Row
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import finetune
from fastbert.tasks.predict import predict, run_model
from fastbert.tasks.squad import Answer
from fastbert.tasks.squad_windows import Span, Window, answer_text, best_spans
from fastbert.tasks.training import Best, EvaluationSet
from fastbert.tasks.windows import plan_windows


def squad(*questions, context="the film is good . the book was bad ."):
    """A file's value: (id, question, answers or None) in one context."""
    qas = []
    for name, text, answers in questions:
        qas.append({"id": name, "question": text})
        if answers is not None:
            qas[-1] |= {"answers": [{"text": t, "answer_start": s} for t, s in answers], "is_impossible": not answers}
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}


def write(tmp_path, value, name="f.json"):
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_bert.save(
        tmp_path_factory.mktemp("squad"), "BertModel", max_position_embeddings=96, num_hidden_layers=2
    )


@pytest.fixture
def tokenizer(directory):
    return fastbert.load_tokenizer(directory)


def test_real_files(shared_data):
    rows = registry.get("squad1").read(shared_data / "squad" / "dev-v1.1-articles01-36.json")
    assert len(rows) == 8123
    assert {len(row.label.texts) for row in rows} == {1, 2, 3, 4, 5, 6}
    rows = registry.get("squad2").read(shared_data / "squad" / "dev-v2.0-part.json")
    assert (len(rows), sum(not row.label.texts for row in rows)) == (3749, 2014)


@pytest.mark.parametrize("name", ["xquad.de.json", "xquad.zh.json"])
def test_offsets_through_accents_and_chinese(shared_data, name):
    """The labelled tokens of every window cover the answer, and no token more than they must."""
    tokenizer = fastbert.load_tokenizer(shared_data / "vocab" / "bert-base-chinese-vocab.txt")
    task = registry.get("squad1")
    rows = task.read(shared_data / "xquad" / name)[:300]
    seen = set()
    for example in task.encode(rows, tokenizer, 256):
        if example.label != (0, 0):
            row, window = rows[example.row], example.meta
            begin, end = (index - window.first for index in example.label)
            start, length = row.label.starts[0], len(row.label.texts[0])
            assert window.starts[begin] <= start < window.ends[begin]
            assert window.starts[end] < start + length <= window.ends[end]
            seen.add(example.row)
    assert seen == set(range(300))


def test_bom_and_missing_answers(tmp_path):
    path = write(tmp_path, "\ufeff" + json.dumps(squad(("q", "what is good", None))))
    assert registry.get("squad1").read(path)[0].label is None
    assert registry.get("squad2").read(path)[0].label is None
    # Marked as impossible a question has no answer, with or without the key; of two that say otherwise one is wrong.
    for answers in (None, []):
        value = squad(("q", "what is good", answers))
        value["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
        assert registry.get("squad2").read(write(tmp_path, value))[0].label.texts == ()
    value = squad(("q", "what is good", [("film", 4)]))
    value["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    with pytest.raises(DataError, match="question q: expected no answer to an impossible question, got one"):
        registry.get("squad2").read(write(tmp_path, value))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"data": [}', "line 1: expected JSON"),
        ("[]", "line 1: expected SQuAD's JSON"),
        (squad(("q", "", [("film", 4)])), "question q: expected a text as the question"),
        (squad(("q", "what", []), ("r", "what", [("film", 4)])), "line 11, .*question q: .* belongs to squad2"),
        (squad(("q", "what", [("film", 4)]), ("q", "who", [("film", 4)])), "question q: expected every id once"),
        (squad(("", "what", [("film", 4)])), "article 1, paragraph 1, question 1: expected an id, since .*, got ''"),
        (squad((" ", "what", [("film", 4)])), "question 1: expected an id, since .*, got ' '"),
        (squad(("q", "what", [("film", 4)]), context=" "), "expected a text as the context"),
        ({"data": [{"title": "no paragraphs"}]}, "article 1: expected articles with paragraphs"),
    ],
)
def test_bad_files_are_named(tmp_path, value, reason):
    path = write(tmp_path, value)
    with pytest.raises(DataError, match=reason) as caught:
        registry.get("squad1").read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("yes", "no"), [(True, False), ("true", "false"), ("True", "False"), (1, 0), (1.0, 0.0), ("1", "0"), (True, None)]
)
def test_what_says_that_there_is_no_answer(tmp_path, yes, no):
    value = squad(("q", "what is good", [("film", 4)]), ("r", "what", []))
    answered, impossible = value["data"][0]["paragraphs"][0]["qas"]
    answered["is_impossible"], impossible["is_impossible"] = no, yes
    rows = registry.get("squad2").read(write(tmp_path, value))
    assert [row.label.texts for row in rows] == [("film",), ()]
    answered["is_impossible"] = "n/a"
    with pytest.raises(DataError, match="question q: expected is_impossible to be true or false, got 'n/a'"):
        registry.get("squad2").read(write(tmp_path, value))


@pytest.mark.parametrize("name", ["f.json", "hub.jsonl", "hub.json"])
def test_questions_without_an_answer_are_said_to_be_squad2_s(tmp_path, name):
    """A hub's squad_v2 says it by empty lists alone."""
    value = squad(("q", "what is good", [("film", 4)]), ("r", "what", []))
    paragraph = value["data"][0]["paragraphs"][0]
    for question in paragraph["qas"]:
        question.pop("is_impossible", None)
    if name != "f.json":
        answers = ({"text": ["film"], "answer_start": [4]}, {"text": [], "answer_start": []})
        rows = [
            {**q, "context": paragraph["context"], "answers": a} for q, a in zip(paragraph["qas"], answers, strict=True)
        ]
        value = "\n".join(map(json.dumps, rows)) if name == "hub.jsonl" else json.dumps(rows)
    path = write(tmp_path, value, name)
    with pytest.raises(DataError, match="expected a question with an answer, got one without, as squad2 has them"):
        registry.get("squad1").read(path)
    assert [row.label.texts for row in registry.get("squad2").read(path)] == [("film",), ()]
    task = registry.get("squad1")
    task.predicting = True
    assert [row.id for row in task.read(path)] == ["q", "r"]


def test_bad_questions_may_be_skipped(tmp_path):
    task = registry.get("squad1")
    task.bad_rows = BadRows(skip=True)
    nameless = ("", "what is good", [("film", 4)])
    value = squad(("a", "what is good", [("film", 4)]), ("b", "what", []), ("c", "what", [("book", 0)]), nameless)
    rows = task.read(write(tmp_path, value))
    assert [row.id for row in rows] == ["a", "c"]
    # c's answer is not where the file says: no harm to the metric, but nothing to learn from.
    assert [row.id for row in task.for_training(rows, "f.json")] == ["a"]
    assert len(task.bad_rows.reasons) == 3
    assert task.bad_rows.reasons[2] == "f.json, question c: expected 'book' at character 0 of its context, got 'the '"
    with pytest.raises(DataError, match="question c: expected 'book' at character 0"):
        registry.get("squad1").for_training(rows, "f.json")


@pytest.mark.parametrize("escaped", [True, False])
def test_every_bad_question_has_its_own_line(tmp_path, escaped):
    """The text is gone through once for all of them, where each of SQuAD 2.0's 43,498 took a search of its own from the
    beginning: half an hour."""
    task = registry.get("squad1")
    task.bad_rows = BadRows(skip=True)
    good, bad = ("a", "what is good", [("film", 4)]), [(name, "what", []) for name in ("b", "\u00e9 /", "b")]
    text = json.dumps(squad(bad[0], good, *bad[1:]), indent=1, ensure_ascii=escaped)
    assert [row.id for row in task.read(write(tmp_path, text))] == ["a"]
    lines = [number for number, line in enumerate(text.split("\n"), 1) if '"id"' in line]
    got = [int(reason.split(", line ")[1].split(",")[0]) for reason in task.bad_rows.reasons]
    assert got == [lines[0], *lines[2:]]
    # Written otherwise than Python does, as PHP writes a slash.
    task.bad_rows = BadRows(skip=True)
    task.read(write(tmp_path, text.replace(" /", " \\/").replace("\u00e9", "\\u00E9")))
    assert [int(reason.split(", line ")[1].split(",")[0]) for reason in task.bad_rows.reasons] == got


def test_the_line_of_an_id_that_is_there_again_is_that_of_the_second_place(tmp_path):
    twice = squad(("a", "what is good", [("film", 4)]), (5, "what", [("film", 4)]), ("a", "what", [("film", 4)]))
    twice["data"][0]["paragraphs"][0]["qas"][1]["question"] = " "
    text = json.dumps(twice, indent=1)
    path = write(tmp_path, text)
    lines = [number for number, line in enumerate(text.split("\n"), 1) if '"id"' in line]
    task = registry.get("squad1")
    task.bad_rows = BadRows(skip=True)
    task.read(path)
    bad, again = task.bad_rows.reasons
    assert bad.startswith(
        f"{path}, line {lines[1]}, article 1, paragraph 1, question 5: expected a text as the question"
    )
    assert again == f"{path}, line {lines[2]}, article 1, paragraph 1, question a: expected every id once, got a again"


@pytest.mark.parametrize("impossible", [False, True])
def test_questions_of_klue_are_called_by_their_guid(tmp_path, impossible):
    answers = [] if impossible else [{"text": "the", "answer_start": 0}]
    question = {"guid": "klue-7", "question": "What?", "answers": answers, "is_impossible": impossible}
    own = {"data": [{"paragraphs": [{"context": "the book", "qas": [question]}]}]}
    for name, value in {"f.json": own, "f.jsonl": {**question, "context": "the book"}}.items():
        path = write(tmp_path, json.dumps(value), name)
        [row] = registry.get("squad2").read(path)
        assert (row.id, bool(row.label.texts)) == ("klue-7", not impossible)
        if impossible:
            with pytest.raises(DataError, match=rf"{name}, line 1.*belongs to squad2"):
                registry.get("squad1").read(path)


def test_tables_and_directories_are_told(tmp_path):
    (tmp_path / "f.csv").write_text("id,context,question,answers\na,b,c,\"{'text': array(['b'], dtype=object)}\"\n")
    with pytest.raises(DataError, match=r"f\.csv: expected questions as JSON or Parquet, got a table, .* to_json\("):
        registry.get("squad1").read(tmp_path / "f.csv")
    with pytest.raises(InputError, match="is a directory, expected a file"):
        registry.get("squad1").read(tmp_path)


def test_a_question_without_an_id_has_no_line(tmp_path):
    path = write(
        tmp_path, json.dumps({"data": [{"paragraphs": [{"context": "a film", "qas": [{"question": "what"}]}]}]})
    )
    with pytest.raises(DataError, match=f"^{path}, article 1, paragraph 1, question 1: expected an id"):
        registry.get("squad1").read(path)


@pytest.mark.parametrize("text", ["", " "])
def test_an_answer_without_text_is_nothing_to_learn_from(tmp_path, text):
    rows = registry.get("squad1").read(write(tmp_path, squad(("q", "what", [(text, 3)]))))
    with pytest.raises(DataError, match=f"question q: expected an answer with a text, got {text!r}"):
        registry.get("squad1").for_training(rows, "f.json")


def test_windows_by_hand():
    # Ten tokens, windows of 5 that begin 3 apart: 0-4, 3-7, 6-9. Context of token 3: min(3, 1) = 1 in the first,
    # 0 in the second; of token 4: 0 and 1; of 6: 1 and 0; of 7: 0 and min(1, 2) = 1.
    begins, owners = plan_windows(10, 5, 3)
    assert begins == [0, 3, 6]
    assert owners.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    # 0-5 and 3-8: token 4 has a context of 1 in both, and the earlier keeps it.
    assert plan_windows(9, 6, 3)[1].tolist() == [0] * 5 + [1] * 4
    assert plan_windows(5, 5, 3)[0] == [0]
    assert plan_windows(0, 5, 3)[0] == [0]
    # A hundredth for each token of a window's length counts too: of 0-299 and 200-349, token 250 has 49 + 3 in the
    # first and 50 + 1.5 in the second, token 251 has 48 + 3 and 51 + 1.5.
    assert plan_windows(350, 300, 200)[1].tolist() == [0] * 251 + [1] * 99


def test_windows_of_a_book_take_memory_by_its_tokens():
    begins, owners = plan_windows(300_000, 29, 29)
    assert len(begins) == 10_345
    assert (owners == np.arange(300_000) // 29).all()


def test_questions_from_standard_input(tmp_path, monkeypatch):
    def read(text, task="squad1"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return registry.get(task).read("-")

    assert read("who came\tBob came .\r\n\n who ?\tAnn\n") == [
        Row("0", ("who came", "Bob came ."), None),
        Row("1", ("who ?", "Ann"), None),
    ]
    document = write(tmp_path, squad(("q", "what is bad", [("book was", 23)]))).read_text()
    assert read("\ufeff" + document)[0].id == "q"
    assert read("\n \n" + document)[0].id == "q"
    with pytest.raises(DataError, match=r"line 2: expected SQuAD's JSON, or a question and its context with a tab"):
        read("a\tb\nwho came\n")
    lines = '{"id": 7, "question": "who", "context": "Ann"}\n{"id": "8", "question": "who", "context": "Bob"}\n'
    rows = [Row("7", ("who", "Ann"), None), Row("8", ("who", "Bob"), None)]
    assert read(lines, "squad2") == rows
    assert read(f"[{lines.strip().replace(chr(10), ', ')}]", "squad2") == rows
    with pytest.raises(DataError, match="line 2: expected a question and its context under these names, got id"):
        read(lines.replace("context", "text").replace("text", "context", 1))


def test_starts_as_tables_with_gaps_and_as_tquad_have_them(tmp_path):
    starts = [23.0, "28", "28.0", 23.5, "-1", "", None, True]
    value = squad(("q", "what is bad", [("was", start) for start in starts]))
    task = registry.get("squad1")
    [row] = task.read(write(tmp_path, value))
    assert row.label.starts == (23, 28, 28, -1, -1, -1, -1, -1)
    assert task.for_training([row], "f.json") == [row]
    value = squad(("q", "what is bad", [("was", None)]))
    with pytest.raises(DataError, match="question q: expected the character where 'was' begins in its context under "):
        task.for_training(task.read(write(tmp_path, value)), "f.json")


def test_windows_hold_everything_and_label_only_whole_answers(tmp_path, tokenizer):
    task = registry.get("squad1")
    task.doc_stride = 3
    context = "the film is good . the book was bad ."
    rows = task.read(write(tmp_path, squad(("q", "what is bad", [("book was", 23)]))))
    examples = task.encode(rows, tokenizer, 11)
    # [CLS] what is bad [SEP] and 5 tokens of the context and [SEP]; "what" is not in the vocabulary.
    ids = [tokenizer.id_to_token(i) for i in examples[1].input_ids]
    assert ids == ["[CLS]", "[UNK]", "is", "bad", "[SEP]", "good", ".", "the", "book", "was", "[SEP]"]
    assert list(examples[1].token_type_ids) == [0] * 5 + [1] * 6
    # Tokens 6 and 7 of the context: in windows 3-7 (as 8 and 9) and 6-9 (as 5 and 6), not in 0-4.
    assert [e.label for e in examples] == [(0, 0), (8, 9), (5, 6)]
    _, labels = task.collate(examples)
    assert {name: found.tolist() for name, found in labels.items()} == {
        "start_positions": [0, 8, 5], "end_positions": [0, 9, 6]
    }  # fmt: skip
    # Tokens 5 and 6: of window 6-9 they are not all, although their end is.
    before = task.read(write(tmp_path, squad(("q", "what is bad", [("the book", 19)]))))
    assert [e.label for e in task.encode(before, tokenizer, 11)] == [(0, 0), (7, 8), (0, 0)]
    # Tokens 4 and 5: the second is the first that window 0-4 has not.
    across = task.read(write(tmp_path, squad(("q", "what is bad", [(". the", 17)]))))
    assert [e.label for e in task.encode(across, tokenizer, 11)] == [(0, 0), (6, 7), (0, 0)]
    kept = [context[w.starts[i] : w.ends[i]] for w in (e.meta for e in examples) for i in np.flatnonzero(w.owned)]
    assert kept == context.split()
    # A stride that is longer than what a window has room for leaves nothing out.
    task.doc_stride = 128
    kept = [context[w.starts[i] : w.ends[i]] for w in (e.meta for e in task.encode(rows, tokenizer, 11))
            for i in np.flatnonzero(w.owned)]  # fmt: skip
    assert kept == context.split()
    with pytest.raises(InputError, match="max_seqlen must be at least 7 for question q of 3 tokens, got 6"):
        task.encode(rows, tokenizer, 6)


@pytest.mark.parametrize(
    ("answers", "label"),
    [
        ([("oo", 13)], (8, 8)),  # within "good"
        ([(" good ", 11)], (8, 8)),  # blanks around it
        ([("wrong", 0), ("is", 9)], (7, 7)),  # the first that stands where it says
        ([("\u200b", 37)], (0, 0)),  # leaves no token
        ([], (0, 0)),
        ([("wrong", 0)], None),
        (None, None),
    ],
)
def test_labels_of_odd_answers(tmp_path, tokenizer, answers, label):
    task = registry.get("squad2")
    context = "the film is good . the book was bad .\u200b"
    rows = task.read(write(tmp_path, squad(("q", "what is bad", answers), context=context)))
    (example,) = task.encode(rows, tokenizer, 32)
    assert example.label == label


def test_long_questions_are_cut(tmp_path, tokenizer):
    task = registry.get("squad1")
    rows = task.read(write(tmp_path, squad(("q", "film " + "good " * 100, [("film", 4)]))))
    examples = task.encode(rows, tokenizer, 80)
    assert examples[0].meta.first == 64 + 2
    assert tokenizer.id_to_token(examples[0].input_ids[1]) == "film"  # it is the end that goes
    # What google-research/bert's run_squad.py does without options.
    assert (task.doc_stride, task.max_question, task.max_answer_length, task.n_best) == (128, 64, 30, 20)


@pytest.mark.parametrize("types", [True, False])
def test_contexts_have_the_types_that_the_tokenizer_gives(tmp_path, types):
    names = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    directory = tiny_bert.save(tmp_path / "model", "BertModel")
    write(directory, {"do_lower_case": True, "model_input_names": names}, "tokenizer_config.json")
    rows = registry.get("squad1").read(write(tmp_path, squad(("a", "what is good ?", [("film", 4)]))))
    tokenizer = fastbert.load_tokenizer(directory)
    example, expected = registry.get("squad1").encode(rows, tokenizer, 32)[0], tokenizer.encode(*rows[0].texts)
    assert list(example.token_type_ids) == expected.type_ids
    assert max(example.token_type_ids) == int(types)


def test_spans_by_hand():
    window = Window(1, np.arange(4) * 10, np.arange(4) * 10 + 5, np.array([True, True, False, True]))
    scores = np.array([[9, 9], [1, 0], [3, 1], [8, 2], [0, 5], [9, 9]], dtype=np.float32)
    best = best_spans(window, scores, n_best=20, max_answer=2)
    # Token 2 begins best but is not owned; ends before starts and spans of 3 tokens are none.
    assert [(s.begin, s.end, s.score) for s in best] == [
        (10, 25, 5.0), (30, 35, 5.0), (10, 15, 4.0), (0, 15, 2.0), (0, 5, 1.0),
    ]  # fmt: skip
    assert len(best_spans(window, scores, n_best=1, max_answer=4)) == 1
    # Of equals the earlier comes first.
    places = np.arange(64)
    window = Window(0, places, places + 1, np.ones(64, bool))
    best = best_spans(window, np.stack([places % 3] * 2, 1).astype(np.float32), n_best=20, max_answer=1)
    assert [span.begin for span in best] == list(range(2, 62, 3))


def test_a_piece_without_letters_is_no_answer():
    """The blank before a word, of SentencePiece and GPT-2: from the letter after it to the one before."""
    window = Window(1, np.array([2, 2]), np.array([1, 3]), np.array([True, True]))
    example = Example(0, np.arange(4), np.zeros(4), meta=window)
    scores = np.array([[0, 0], [9, 9], [1, 1], [0, 0]], dtype=np.float32)
    [answer] = registry.get("squad2").decode([Row("q", ("what", "a b"), None)], [example], [scores])
    assert (answer.text, answer.null_odds) == ("b", -10.0)


def test_spans_are_listed_by_their_score_and_a_text_once():
    """Of a text that stands there twice the better span counts."""
    task = registry.get("squad2")
    task.max_answer_length = 1
    window = Window(0, np.array([0, 2, 4]), np.array([1, 3, 5]), np.ones(3, bool))
    scores = np.array([[1, 5], [4, 1], [2, 1]], dtype=np.float32)
    example = Example(0, np.arange(3), np.zeros(3), meta=window)
    [answer] = task.decode([Row("q", ("what", "b c b"), None)], [example], [scores])
    assert (answer.text, answer.null_odds) == ("b", 6.0 - 6.0)
    assert [(e["text"], e["start_logit"]) for e in answer.nbest if e["text"]] == [("b", 1.0), ("c", 4.0)]


def test_text_is_the_original():
    assert answer_text("The CAFE\u0301s, open", Span(4, 8, 0, 0)) == "CAFE\u0301"
    assert answer_text("a  b", Span(0, 4, 0, 0)) == "a  b"
    # Marks that an uncased tokenizer leaves out, whatever their combining class.
    for text, end in (("हिन्दु है", 5), ("ที่นี่ x", 4), ("❤\ufe0f!", 1)):
        assert answer_text(text, Span(0, end, 0, 0)) == text.split(" ")[0].rstrip("!")


def decoded(task, tmp_path, tokenizer, peaks):
    """Predictions where each question's tokens have the scores of `peaks`: (position, start or end, score)."""
    value = squad(("q", "what is bad", [("book", 23)]), ("r", "what is good", []))
    rows = task.read(write(tmp_path, value))
    examples = task.encode(rows, tokenizer, 32)
    outputs = []
    for example, chosen in zip(examples, peaks, strict=True):
        outputs.append(np.zeros((example.num_tokens, 2), np.float32))
        for position, column, score in chosen:
            outputs[-1][position, column] = score
    return rows, task.decode(rows, examples, outputs)


def test_no_answer_and_its_odds(tmp_path, tokenizer):
    task = registry.get("squad2")
    book = [(11, 0, 3), (11, 1, 2), (0, 0, 1)]  # "book" 5, no answer 1
    nothing = [(8, 0, 1), (8, 1, 1), (0, 0, 2), (0, 1, 2)]  # "good" 2, no answer 4
    rows, answers = decoded(task, tmp_path, tokenizer, [book, nothing])
    assert [(a.text, a.null_odds, a.span_text) for a in answers] == [("book", -4.0, "book"), ("", 2.0, "good")]
    entry = answers[0].nbest[0]
    assert (entry["text"], entry["start_logit"], entry["end_logit"]) == ("book", 3.0, 2.0)
    assert sum(e["probability"] for e in answers[0].nbest) == pytest.approx(1)
    assert "" in [e["text"] for e in answers[0].nbest]
    # Found on these rows: the odds of the last question that it pays to answer.
    config = fastbert.BertConfig()
    assert [a.text for a in task.settle(rows, answers, config)] == ["book", ""]
    assert config.null_threshold == -4.0
    again = registry.get("squad2")
    again.restore(fastbert.BertConfig.from_dict(config.to_dict()))
    assert again.null_threshold == -4.0
    figures = task.metric(rows, answers)
    assert (figures["f1"], figures["best_f1"], figures["best_f1_thresh"]) == (100.0, 100.0, -4.0)
    # What the best threshold would give is no matter of the one that is there.
    figures = task.metric(rows, [dataclasses.replace(answer, text="") for answer in answers])
    assert (figures["f1"], figures["best_f1"], figures["best_exact"]) == (50.0, 100.0, 100.0)
    # Where every answer is wrong, the threshold lies below all odds.
    wrong = [Answer("x", -7.0, "x"), Answer("y", -9.0, "y")]
    assert [a.text for a in task.settle(rows, wrong, config)] == ["", ""]
    # One of which no span was found is right as it is, and costs nothing that comes after it.
    empty = [Answer("x", -4.0, "book"), Answer("", -9.0, "")]
    assert [a.text for a in task.settle(rows, empty, config)] == ["book", ""]
    # Scores whose exponentials no float holds.
    _, answers = decoded(task, tmp_path, tokenizer, [[(11, 0, 500), (11, 1, 500)], nothing])
    assert [e["probability"] for e in answers[0].nbest][:2] == pytest.approx([1.0, 0.0])


def test_the_best_figures_are_those_after_the_threshold_was_found(tmp_path, tokenizer):
    """At the threshold that the task began with nothing was answered."""
    task = registry.get("squad2")
    rows, answers = decoded(task, tmp_path, tokenizer, [[(11, 0, 3), (0, 0, 9)], [(8, 0, 1), (0, 0, 19)]])
    assert [answer.text for answer in answers] == ["", ""]
    model, best = torch.nn.Linear(1, 1), Best("best_f1")
    model.config = fastbert.BertConfig()
    best.offer(task.metric(rows, answers), answers, model)
    assert (best.record["f1"], best.record["best_f1"]) == (50.0, 100.0)
    best.settle(task, EvaluationSet(rows, [], {}), model)
    assert best.record["f1"] == 100.0


def test_a_question_of_several_windows(tmp_path, tokenizer):
    """No answer has the least score that any window gives it; an answer that of the window which owns its beginning."""
    task = registry.get("squad2")
    task.doc_stride, task.n_best = 3, 2
    rows = task.read(write(tmp_path, squad(("q", "what is bad", [("book was", 23)]))))
    examples = task.encode(rows, tokenizer, 11)
    outputs = [np.zeros((example.num_tokens, 2), np.float32) for example in examples]
    for scores, nothing in zip(outputs, (4.0, 1.5, 3.0), strict=True):
        scores[0] = nothing
    outputs[1][8, 0], outputs[1][9, 1] = 3, 2
    outputs[2][5, 0] = 9  # "book" again, at the edge of a window
    [answer] = task.decode(rows, examples, outputs)
    assert (answer.text, answer.null_odds) == ("book was", 2 * 1.5 - 5)
    assert len(answer.nbest) == 3  # two spans, and none
    assert next(e["start_logit"] for e in answer.nbest if not e["text"]) == 1.5


def test_official_files_and_back(tmp_path, tokenizer):
    task = registry.get("squad2")
    rows, answers = decoded(task, tmp_path, tokenizer, [[(11, 0, 3), (11, 1, 2)], [(0, 0, 9)]])
    path = tmp_path / "predictions.json"
    written = task.write_predictions(rows, answers, path)
    assert json.loads(path.read_text()) == {"q": "book", "r": ""}
    assert json.loads((tmp_path / "null_odds.json").read_text()) == {"q": -5.0, "r": 9.0}
    assert json.loads((tmp_path / "nbest_predictions.json").read_text())["q"][0]["text"] == "book"
    assert [p.is_file() for p in written] == [True] * 3
    back = task.read_na_probs(rows, task.read_predictions(rows, path), tmp_path / "null_odds.json")
    assert [(a.text, a.null_odds) for a in back] == [("book", -5.0), ("", 9.0)]


def test_what_is_known_of_predictions_from_a_file_is_written_and_nothing_else(tmp_path):
    task = registry.get("squad2")
    rows = task.read(write(tmp_path, squad(("q", "what", [("film", 4)]), ("r", "what", []))))
    answers = task.read_predictions(rows, write(tmp_path, {"q": "film"}, "p.json"))
    path, odds = tmp_path / "dev_predictions.json", tmp_path / "dev_null_odds.json"
    nbest = write(tmp_path, {"q": ["a model's"]}, "dev_nbest_predictions.json")
    assert task.write_predictions(rows, answers, path) == [path]
    assert json.loads(path.read_text()) == {"q": "film"}
    assert json.loads(nbest.read_text()) == {"q": ["a model's"]}
    assert not odds.exists()
    answers = task.read_na_probs(rows, answers, write(tmp_path, {"q": 0.5}, "odds.json"))
    assert task.write_predictions(rows, answers, path) == [path, odds]
    assert json.loads(odds.read_text())["q"] == 0.5


def test_predictions_that_have_no_text_make_an_empty_object(tmp_path):
    task, rows = registry.get("squad1"), [Row("a", ("?", "the book"))]
    task.write_predictions(rows, [Answer(None)], tmp_path / "p.json")
    assert (tmp_path / "p.json").read_text() == "{}\n"


@pytest.mark.parametrize("name", ["squad1", "squad2"])
def test_no_questions_make_an_empty_object(name, tmp_path):
    """As other tasks write files without rows; nothing is known of answers that are not there."""
    registry.get(name).write_predictions([], [], tmp_path / "predictions.json")
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.json"]
    assert (tmp_path / "predictions.json").read_text() == "{}\n"


def test_odds_of_questions_without_a_prediction_are_not_asked_for(tmp_path):
    task = registry.get("squad2")
    rows = task.read(write(tmp_path, squad(("q", "what", [("film", 4)]), ("r", "what", []), ("s", "what", []))))
    path, odds = write(tmp_path, {"q": "film", "r": ""}, "p.json"), write(tmp_path, {"q": 0.25, "r": 0.75}, "odds.json")
    answers = task.read_na_probs(rows, task.read_predictions(rows, path), odds)
    figures = task.metric(rows, answers)
    assert (figures["total"], figures["exact"], figures["best_f1_thresh"]) == (2, 100, 0.25)
    # But the official script begins with all questions of the file that have no answer, s too: 3 of 2 are right.
    assert (figures["best_exact"], figures["best_f1"]) == (150, 150)
    with pytest.raises(InputError, match="expected a number for each predicted question, got none for r"):
        task.read_na_probs(rows, answers, write(tmp_path, {"q": 0.25}, "odds.json"))


@pytest.mark.parametrize("odds", [float("nan"), float("inf"), True, "0.5"])
def test_odds_are_finite_numbers(tmp_path, odds):
    """Others would sort questions by chance, and be thresholds."""
    task = registry.get("squad2")
    rows = task.read(write(tmp_path, squad(("q", "what", [("film", 4)]))))
    with pytest.raises(DataError, match=rf"odds\.json: expected numbers for question q, got {odds!r}$"):
        task.read_na_probs(rows, [Answer("film")], write(tmp_path, {"q": odds}, "odds.json"))


def test_half_of_a_pair_of_surrogates_is_a_bad_row(tmp_path):
    task = registry.get("squad1")
    task.bad_rows = BadRows(skip=True)
    value = squad(("a", "what \ud83d is", [("film", 4)]), ("b", "what is good", [("film", 4)]))
    assert [row.id for row in task.read(write(tmp_path, value))] == ["b"]
    assert task.bad_rows.reasons[0].endswith(r"question a: expected UTF-8, got a text with the lone surrogate '\ud83d'")


def test_an_empty_file_is_called_that(tmp_path):
    with pytest.raises(DataError, match=r"expected JSON, got an empty file$"):
        registry.get("squad1").read(write(tmp_path, ""))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"data": ' + "9" * 5000 + "}"])
def test_json_that_python_cannot_use_is_named(tmp_path, text):
    with pytest.raises(DataError, match="expected JSON, got an error in it"):
        registry.get("squad1").read(write(tmp_path, text))


def test_predictions_that_are_missing(tmp_path, caplog):
    task = registry.get("squad1")
    rows = task.read(write(tmp_path, squad(("q", "what", [("film", 4)]), ("r", "what", [("book", 23)]))))
    path = write(tmp_path, {"q": "film", "elsewhere": "x"}, "p.json")
    assert task.metric(rows, task.read_predictions(rows, path)) == {"exact_match": 50.0, "f1": 50.0}
    assert "no prediction for 1 of 2 questions (r), which count as wrong" in caplog.text
    with pytest.raises(DataError, match="got none of them"):
        task.read_predictions(rows, write(tmp_path, {"x": "film"}, "p.json"))
    with pytest.raises(DataError, match="expected texts for question q, got 3"):
        task.read_predictions(rows, write(tmp_path, {"q": 3}, "p.json"))
    with pytest.raises(DataError, match=r"p\.json: expected every question once, got q again"):
        task.read_predictions(rows, write(tmp_path, '{"q": "book", "r": "", "q": "film"}', "p.json"))


def trivial(count, seed, impossible):
    """Answers are the one word of praise in a context longer than a window; without one there is no answer."""
    generator = torch.Generator().manual_seed(seed)
    words, good = ["the", "film", "book", "is", "was", "very", "not", "of"], ["good", "great", "fine"]
    paragraphs = []
    for number in range(count):
        length, kind = (int(torch.randint(low, high, (1,), generator=generator)) for low, high in ((6, 24), (0, 3)))
        chosen = [words[int(i)] for i in torch.randint(0, len(words), (length,), generator=generator)]
        at, answers = int(torch.randint(0, length, (1,), generator=generator)), []
        if not (impossible and number % 3 == 0):
            chosen[at] = good[kind]
            answers = [{"text": good[kind], "answer_start": len(" ".join(chosen[:at])) + (at > 0)}]
        qas = [{"id": f"{seed}-{number}", "question": "what is it ?", "answers": answers}]
        qas[0]["is_impossible"] = not answers
        paragraphs.append({"context": " ".join(chosen), "qas": qas})
    return {"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.mark.parametrize(("name", "first"), [("squad1", "f1"), ("squad2", "best_f1")])
def test_learns_to_answer(directory, tokenizer, tmp_path, name, first):
    task = registry.get(name)
    rows = task.read(write(tmp_path, trivial(160, 1, name == "squad2")))
    dev = task.read(write(tmp_path, trivial(40, 2, name == "squad2")))
    torch.manual_seed(0)
    config = FinetuneConfig(epochs=5, batch_size=16, lr=5e-3, max_seqlen=20, doc_stride=8)
    result = finetune(task, task.model(directory), tokenizer, rows, dev, config, out=tmp_path / "run")
    assert result.best[first] > 95
    examples = task.encode(dev, tokenizer, 20)
    assert len(examples) > len(dev)
    # The figures are those of the written model with its own threshold.
    again = registry.get(name)
    again.configure(config)
    again.restore(fastbert.BertConfig.from_pretrained(result.model_dir))
    found = predict(again, again.model(result.model_dir), dev, examples)
    assert again.metric(dev, found)["f1"] == pytest.approx(result.best["f1"])
    batch, labels = task.collate(examples[:20])
    assert batch.num_tokens == sum(e.num_tokens for e in examples[:20])
    assert labels["start_positions"].tolist() == [e.label[0] for e in examples[:20]]


def test_commands(directory, tmp_path, capsys, monkeypatch):
    train = write(tmp_path, trivial(48, 1, True), "train.json")
    run = tmp_path / "run"
    options = ["--max-seqlen", "24", "--epochs", "1", "--doc-stride", "6"]
    given = ["--model", str(directory), "--train", str(train), "--dev", str(train), "--out", str(run)]
    assert main(["finetune", "squad2", *given, *options]) == 0
    out = capsys.readouterr().out
    assert "batches of 48 rows, lr 5e-05" in out  # the paper's recipe for this task
    for name in ("dev_predictions.json", "dev_nbest_predictions.json", "dev_null_odds.json", "dev_questions.tsv"):
        assert str(run / name) in out
        assert (run / name).is_file()
    assert (
        main(["predict", "squad2", "--model", str(run), "--data", str(train), "--out", str(tmp_path / "p.json")]) == 0
    )
    assert (tmp_path / "p_null_odds.json").is_file()
    assert json.loads((tmp_path / "p.json").read_text()) == json.loads((run / "dev_predictions.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", "squad2", "--model", str(run), "--data", str(train)]) == 0
    by_model = json.loads(capsys.readouterr().out)
    given = ["--data", str(train), "--predictions", str(tmp_path / "p.json")]
    assert main(["evaluate", "squad2", *given]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert {k: by_model[k] for k in by_file} == by_file
    # With the threshold raised nothing is "no answer".
    plain = ["--model", str(run), "--data", str(train), "--out", str(tmp_path / "all.json"), "--null-threshold", "1e9"]
    assert main(["predict", "squad2", *plain]) == 0
    assert "" not in json.loads((tmp_path / "all.json").read_text()).values()
    assert main(["evaluate", "squad1", *given, "--na-prob", str(tmp_path / "p_null_odds.json")]) == 2
    assert "--na-prob belongs to" in capsys.readouterr().err


def test_evaluate_prints_the_official_figures(shared_data, capsys):
    squad = shared_data / "squad"
    files = ["--data", squad / "dev-v2.0-part.json", "--predictions", squad / "oracle" / "predictions-v2.0.json"]
    odds = ["--na-prob", squad / "oracle" / "na-prob-v2.0.json"]
    assert main(["evaluate", "squad2", *map(str, files + odds)]) == 0
    found = json.loads(capsys.readouterr().out)
    # From Python 3.12 on sum() makes up for what rounding loses, in the official script too.
    f1 = 61.398025941847685 if sys.version_info >= (3, 12) else 61.39802594184766
    assert (found["exact"], found["f1"]) == (56.6284342491331, f1)
    assert (found["best_exact"], found["best_exact_thresh"]) == (54.20112029874633, 0.44)
    assert (found["best_f1"], found["best_f1_thresh"]) == (58.543931516667485, 1.0)


def test_the_threshold_on_probabilities_is_the_one_that_is_given(tmp_path, capsys):
    data = write(tmp_path, squad(("q", "what", [("film", 4)]), ("r", "what", [])))
    answers, odds = (
        write(tmp_path, {"q": "film", "r": "film"}, "p.json"),
        write(tmp_path, {"q": 0.2, "r": 0.7}, "o.json"),
    )
    given = ["evaluate", "squad2", "--data", data, "--predictions", answers, "--na-prob", odds]
    for threshold, exact in (([], 50.0), (["--na-prob-threshold", 0.5], 100.0), (["--na-prob-threshold", 0.1], 50.0)):
        assert main(list(map(str, given + threshold))) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["exact"], found["best_exact"]) == (exact, 100.0)


@pytest.mark.parametrize(("threshold", "exact", "told"), [([], 50.0, 1), (["--na-prob-threshold", "inf"], 100.0, 0)])
def test_score_differences_in_place_of_probabilities_are_told_of(threshold, exact, told, tmp_path, capsys, caplog):
    """A model answers what is below its own null_threshold, which may be above 1."""
    data = write(tmp_path, squad(("q", "what", [("film", 4)]), ("r", "what", [])))
    answers = write(tmp_path, {"q": "film", "r": ""}, "p.json")
    odds = write(tmp_path, {"q": 3.5, "r": 7.25}, "o.json")
    given = ["evaluate", "squad2", "--data", data, "--predictions", answers, "--na-prob", odds, *threshold]
    assert main(list(map(str, given))) == 0
    assert json.loads(capsys.readouterr().out)["exact"] == exact
    assert [message.partition(", which")[0] for message in caplog.messages] == [
        f"{odds}: expected probabilities, got numbers from 3.5 to 7.25"
    ] * told


def test_a_report_has_the_answers_that_its_figures_are_of(tmp_path, capsys):
    """By the threshold r is without an answer, and so right, and q is wrong; without a prediction s counts nowhere."""
    questions = ("q", "what", [("film", 4)]), ("r", "what", []), ("s", "what", []), ("t", "what", [("film", 4)])
    given = ["--data", write(tmp_path, squad(*questions))]
    given += ["--predictions", write(tmp_path, dict.fromkeys("qrt", "film"), "p.json")]
    given += ["--na-prob", write(tmp_path, {"q": 0.7, "r": 0.7, "t": 0.2}, "o.json"), "--na-prob-threshold", 0.5]
    assert main(["evaluate", "squad2", *map(str, given), "--report", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    (table,) = (tmp_path / "out").glob("*_questions.tsv")
    assert table.read_text().splitlines()[1:] == [f"what\t{found['exact']:.4f}\t{found['f1']:.4f}\t{found['total']}"]
    (errors,) = (tmp_path / "out").glob("*_errors.jsonl")
    assert [(e["id"], e["prediction"]) for e in map(json.loads, errors.read_text().splitlines())] == [("q", "")]


@pytest.mark.parametrize("name", ["squad1", "squad2"])
@pytest.mark.parametrize(
    "answers",
    [
        "{'text': ['film'], 'answer_start': [4]}",
        '{"text": [], "answer_start": []}',
        "{'answer_start': array([4]), 'text': array(['film'])}",
        "[{'text': 'film', 'answer_start': 4}]",
        "['film', 'a film']",
    ],
)
def test_answers_that_a_table_has_as_text_are_no_answer(name, answers, tmp_path):
    """A data frame that was read from a .csv writes them so."""
    row = {"id": "0", "context": "the film", "question": "what", "answers": answers}
    path = tmp_path / "f.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="line 1: expected answers as JSON, got them as one text, as in tables: "):
        registry.get(name).read(path)
    for text in ("{the} film", "[film]", "the 'film'", '"film"'):
        path.write_text(json.dumps(row | {"answers": text}) + "\n")
        assert registry.get(name).read(path)[0].label.texts == (text,)


def test_an_answer_that_is_not_found_costs_no_other_its_place_in_the_loss(directory, tokenizer, tmp_path):
    """The mean is over the windows of all other questions, and not over the batches that are free of it; without any
    answer that is found there is no loss."""
    task = registry.get("squad1")
    given = [("a", "what is good", [("film", 4)]), ("b", "what is bad", [("book", 23)])]
    lost = ("c", "what is it", [("paris", 0)])
    task.configure(FinetuneConfig(doc_stride=6))
    model, records = task.model(directory), []
    for questions in (given, [lost, *given], [lost]):
        rows = task.read(write(tmp_path, squad(*questions)))
        for budget in (8192, 1, 32):  # all at once, each alone, the lost one with one of the others
            examples = task.encode(rows, tokenizer, 16)
            assert [(e.num_tokens, e.label is None) for e in examples] == [(16, q is lost) for q in questions]
            records.append(run_model(task, model, examples, budget).loss)
    alone, one_by_one, by_twos, beside, *others = records
    assert beside == pytest.approx(alone, rel=1e-6)
    assert [one_by_one, by_twos, *others[:2]] == pytest.approx([alone] * 4, rel=1e-5)
    assert others[2:] == [None, None, None]
