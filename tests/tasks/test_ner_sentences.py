"""`predict ner` on plain sentences: entities with their places, beside transformers' pipeline and CoNLL's columns."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import tiny_bert

import fastbert
from fastbert.cli.main import main
from fastbert.models import BertForTokenClassification
from fastbert.tasks.conll import read_sentences
from fastbert.tasks.ner import NER
from fastbert.tasks.ner_sentences import Entity, NERSentences, PlainSentence
from fastbert.tasks.predict import predict, run_model
from fastbert.tasks.tagging import entities_of

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
PIECES = ["##s", "##e", "북", "北", "京", "caf", "##é", "\U0001f44d", "'", "paris", "s"]
SENTENCES = [
    "the film of paris is good .",
    "the capital of france, paris, was very great!",
    "a books of the frances in the paris",
    "good bad great poor dull fine very not and of in it",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Random weights, by which about half of the words are in entities."""
    vocab = list(dict.fromkeys([*tiny_bert.VOCAB, *PIECES]))
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {name: index for index, name in enumerate(LABELS)}}
    return tiny_bert.save(tmp_path_factory.mktemp("ner"), "BertForTokenClassification", vocab, num_labels=5, **labels)


def run(*args, status: int = 0) -> None:
    assert main(["predict", "ner", *map(str, args)]) == status


def answers(model, content: bytes, tmp_path, capsys, *options, name: str = "s.txt") -> list[dict]:
    (tmp_path / name).write_bytes(content)
    capsys.readouterr()
    run("--model", model, "--data", tmp_path / name, *(options or ("--sentences",)))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refusal(capsys, *args) -> str:
    capsys.readouterr()
    run(*args, status=2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("strategy", ["first", "simple"])
def test_entities_are_transformers(model, tmp_path, capsys, strategy):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.BertTokenizerFast(str(model / "vocab.txt"))
    pipeline = transformers.pipeline(
        "token-classification", model=str(model), tokenizer=tokenizer, aggregation_strategy=strategy
    )
    # "simple" has a tag for every piece of a word, so words of several pieces may be cut there.
    sentences = SENTENCES if strategy == "first" else [SENTENCES[0], SENTENCES[1], SENTENCES[3]]
    found = answers(model, "\n".join(sentences).encode(), tmp_path, capsys)
    assert [line["text"] for line in found] == sentences
    for number, (line, sentence) in enumerate(zip(found, sentences, strict=True)):
        wanted = pipeline(sentence)
        assert wanted
        assert line["index"] == number
        ours = [(entity["type"], entity["start"], entity["end"]) for entity in line["entities"]]
        assert ours == [(entity["entity_group"], entity["start"], entity["end"]) for entity in wanted]
        scores = [entity["score"] for entity in line["entities"]]
        np.testing.assert_allclose(scores, [entity["score"] for entity in wanted], atol=2e-6)


LINES = (
    "the capital of france\r\n"
    "\r\n"
    "  paris\tis  not\u00a0great , \u3000and paris\t\r\n"
    "cafe\u0301 paris \U0001f44d\U0001f3fd\U0001f469\u200d\U0001f467 北京 paris\u200b 북\u0338 paris.\r\n"
    "\u200b\r\n" + "the capital of france , paris is very great . " * 40 + "\r\n" + "paris's film"
)


def test_places_are_those_of_the_line(model, tmp_path, capsys):
    """Blanks of any kind, marks, characters that are not seen, a line of many windows; a byte-order mark and line ends
    are not of a line."""
    found = answers(model, b"\xef\xbb\xbf" + LINES.encode(), tmp_path, capsys)
    assert [line["text"] for line in found] == LINES.split("\r\n")
    assert [line["index"] for line in found] == list(range(7))
    assert [bool(line["entities"]) for line in found] == [True, False, True, True, False, True, True]
    assert found[5]["entities"][-1]["start"] > 1000
    for line in found:
        for entity in line["entities"]:
            assert entity["text"] == line["text"][entity["start"] : entity["end"]] != ""
            assert list(entity) == ["type", "text", "start", "end", "score"]
            assert 0.2 <= entity["score"] <= 1
            assert entity["score"] == round(entity["score"], 6)


def test_entities_are_those_of_the_same_words_in_columns(model, tmp_path, capsys):
    """Windows over long lines too: tags do not depend on how the words are given."""
    sentences = [PlainSentence.of(text) for text in LINES.split("\r\n") if text.strip("\u200b")]
    (tmp_path / "words.txt").write_text("\n".join("".join(f"{w}\n" for w in s.texts) for s in sentences))
    run("--model", model, "--data", tmp_path / "words.txt", "--out", tmp_path / "tagged.txt")
    tagged = read_sentences(tmp_path / "tagged.txt")
    found = [line for line in answers(model, LINES.encode(), tmp_path, capsys) if line["text"].strip("\u200b")]
    for line, sentence, row in zip(found, sentences, tagged, strict=True):
        wanted = [(k, sentence.spans[b][0], sentence.spans[e - 1][1]) for k, b, e in entities_of(row.label)]
        assert [(entity["type"], entity["start"], entity["end"]) for entity in line["entities"]] == wanted


def test_a_score_is_the_mean_of_its_words(model):
    task = NERSentences()
    task.restore(fastbert.BertConfig.from_pretrained(model))
    row = PlainSentence.of("paris , france's film")
    examples = task.encode([row], fastbert.load_tokenizer(model), 32)
    scores = np.full((examples[0].num_tokens, 5), -100.0, np.float32)
    for position, (tag, share) in zip(
        examples[0].meta.positions, [(3, 0.9), (0, 0.8), (1, 0.5), (2, 0.7), (4, 0.6)], strict=True
    ):
        scores[position] = np.log((1 - share) / 4)
        scores[position, tag] = np.log(share)
    found = task.decode([row], examples, [scores])[0]
    assert [(e.type, e.text, e.start, e.end) for e in found] == [
        ("LOC", "paris", 0, 5),
        ("PER", "france's", 8, 16),
        ("LOC", "film", 17, 21),
    ]
    assert [e.score for e in found] == pytest.approx([0.9, 0.6, 0.6])


def test_in_python(model):
    task, weights = NERSentences(), BertForTokenClassification.from_pretrained(model).eval()
    task.restore(weights.config)
    rows = [PlainSentence.of(text) for text in ("", SENTENCES[0])]
    nothing, found = predict(task, weights, rows, task.encode(rows, fastbert.load_tokenizer(model), 32))
    assert [row.id for row in rows] == ["0", "0"]
    assert nothing == []
    assert all(isinstance(entity, Entity) for entity in found)
    alone = task.encode(rows[:1], fastbert.load_tokenizer(model), 32)
    assert task.decode(rows[:1], alone, run_model(task, weights, alone).values) == [[]]


def test_a_column_of_a_table(model, tmp_path, capsys):
    wanted = [line["entities"] for line in answers(model, "\n".join(SENTENCES[:2]).encode(), tmp_path, capsys)]
    for name, content in (
        ("t.tsv", f"id\tbody\n7\t{SENTENCES[0]}\n7\t {SENTENCES[1]} \n"),
        ("t.csv", f'id,body\n7,"{SENTENCES[0]}"\n7,"{SENTENCES[1]}"\n'),
        ("t.jsonl", "".join(json.dumps({"id": 7, "body": text}) + "\n" for text in SENTENCES[:2])),
    ):
        found = answers(model, content.encode(), tmp_path, capsys, "--column", "body", name=name)
        assert [line["entities"] for line in found] == wanted
        assert [(line["index"], line["text"]) for line in found] == list(enumerate(SENTENCES[:2]))
    bare = f"{SENTENCES[0]}\t7\n{SENTENCES[1]}\t7\n".encode()
    found = answers(model, bare, tmp_path, capsys, "--column", "1", "--sentences", name="b.tsv")
    assert [line["entities"] for line in found] == wanted


def test_a_file_read_at_once_and_written_as_text(tmp_path):
    (tmp_path / "s.txt").write_text("café paris\n\n北京\n", encoding="utf-8")
    task = NERSentences()
    rows = task.read(tmp_path / "s.txt")
    assert [(row.id, row.text, row.texts) for row in rows] == [
        ("0", "café paris", ("café", "paris")),
        ("1", "", ()),
        ("2", "北京", ("北", "京")),
    ]
    task.write_predictions(rows, [[Entity("LOC", "paris", 5, 10, 1 / 3)], [], []], tmp_path / "out")
    first, *_ = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    entity = '{"type": "LOC", "text": "paris", "start": 5, "end": 10, "score": 0.333333}'
    assert first == f'{{"index": 0, "text": "café paris", "entities": [{entity}]}}'


def test_standard_input_and_files_of_results(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SENTENCES[0].encode())))
    run("--model", model, "--data", "-", "--sentences", "--out", f"{tmp_path}/out/", "--probabilities", tmp_path / "p")
    [line] = map(json.loads, (tmp_path / "out" / "ner_entities.jsonl").read_text().splitlines())
    assert line["text"] == SENTENCES[0]
    header, *words = [row.split("\t") for row in (tmp_path / "p").read_text().splitlines()]
    assert header == ["index", "word", *LABELS]
    assert [row[:2] for row in words] == [["0", word] for word in SENTENCES[0].split()]


def test_lines_that_are_no_text_are_left_out_and_keep_their_numbers(model, tmp_path, capsys):
    raw = b"the film\n\xe9 film\nthe paris\n"
    (tmp_path / "s.txt").write_bytes(raw)
    given = "--model", model, "--data", tmp_path / "s.txt", "--sentences"
    assert "line 2: expected UTF-8, got 0xe9" in refusal(capsys, *given)
    found = answers(model, raw, tmp_path, capsys, "--sentences", "--skip-bad-rows")
    assert [(line["index"], line["text"]) for line in found] == [(0, "the film"), (2, "the paris")]
    found = answers(model, raw, tmp_path, capsys, "--sentences", "--fallback-encoding", "latin-1")
    assert [line["text"] for line in found] == ["the film", "é film", "the paris"]


CONLL = "-DOCSTART- -X- O O\n\nthe DT I-NP O\nfilm NN I-NP O\n. . O O\n\nparis NNP I-NP I-LOC\n"


@pytest.mark.parametrize(
    "content",
    [
        CONLL,
        CONLL.partition("\n\n")[2],
        CONLL.partition("\n\n")[2].replace(" ", "\t"),
        "the O\nfilm O\n",
        "# id 1\nthe O\nfilm B-X\n\n# id 2\nfilm O\nthe O\n",
        "the DT\nfilm NN\n. .\n",
        "the\nfilm\n.\n\nparis\n",
        "我\n爱\n北\n京\n。\n",
    ],
)
def test_words_with_columns_are_not_read_as_sentences(model, tmp_path, capsys, content):
    (tmp_path / "c.txt").write_text(content, encoding="utf-8")
    said = refusal(capsys, "--model", model, "--data", tmp_path / "c.txt", "--sentences")
    assert "c.txt, line 1: expected a sentence in each line, got a word a line with CoNLL's columns" in said
    run("--model", model, "--data", tmp_path / "c.txt")


@pytest.mark.parametrize(
    "content", ["paris\nfrance\n", "My blood type is O\n", "- a film\n- the book\n", "a 1\nb 2\n", "O\n"]
)
def test_short_lines_are_sentences(model, tmp_path, capsys, content):
    assert len(answers(model, content.encode(), tmp_path, capsys)) == content.count("\n")


@pytest.mark.parametrize(
    "content",
    [
        "the capital of france is paris.\n",
        "the film of paris.\nthe book of france.\n",
        "Angela Merkel\nBarack Obama\n",
        "the film is good .\nthe capital of france is paris .\nit is\n",
        "the film.\n\nthe capital of paris.\n\nparis!\n",
        "我爱 北京\n他在 上海\n",
    ],
)
def test_sentences_are_not_read_as_words_with_columns(model, tmp_path, capsys, content):
    """Nor are some of them, where bad rows are left out."""
    (tmp_path / "s.txt").write_text(content, encoding="utf-8")
    for more in ([], ["--skip-bad-rows"]):
        said = refusal(capsys, "--model", model, "--data", tmp_path / "s.txt", *more)
        assert "s.txt, line 1: expected a word a line and an empty line after each sentence, got several" in said
        assert "--sentences reads a sentence a line" in said
    assert len(answers(model, content.encode(), tmp_path, capsys)) == content.count("\n")


def test_a_line_of_several_words_after_one_of_a_single_word(model, tmp_path, capsys):
    (tmp_path / "s.txt").write_text("Rome\nNew York\n")
    said = refusal(capsys, "--model", model, "--data", tmp_path / "s.txt")
    assert "line 2: expected 1 column, got 2: 'New York'; --sentences reads a sentence a line" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("O show\nB-T films\nO about\nB-L paris\n", "got tags in the first; swap the columns"),
        ("Sentence #,Word,POS,Tag\nSentence: 1,the,DT,O\n,film,NN,O\n", "got commas"),
        ("1 the\n2 film\n3 is\n", "got the numbers of words in every sentence; leave that column out"),
    ],
)
def test_columns_in_other_places_keep_their_own_advice(model, tmp_path, capsys, content, said):
    (tmp_path / "c.txt").write_text(content)
    assert said in refusal(capsys, "--model", model, "--data", tmp_path / "c.txt")


@pytest.mark.parametrize("content", ["the DT\nfilm NN\n", "the\tx\nfilm\ty\n", "the dt B-X\nfilm nn O\n"])
def test_columns_without_known_tags_stay_columns(model, tmp_path, content):
    (tmp_path / "c.txt").write_text(content)
    run("--model", model, "--data", tmp_path / "c.txt", "--out", tmp_path / "p.txt")
    assert [row.texts for row in read_sentences(tmp_path / "p.txt")] == [("the", "film")]


def test_what_does_not_go_together_is_refused(model, tmp_path, capsys):
    table = tmp_path / "t.jsonl"
    table.write_text('{"body": "the film"}\n')
    assert "text in each line, got a table or JSON by its name: name the column of its texts (--column)" in refusal(
        capsys, "--model", model, "--data", table, "--sentences"
    )
    assert "got the columns body; --column names one of plain sentences" in refusal(
        capsys, "--model", model, "--data", table
    )
    said = refusal(capsys, "--model", model, "--data", table, "--column", "text")
    assert "line 1: expected the column text, got body (--column names another)" in said
    (tmp_path / "j.txt").write_text('{"tokens": ["the", "film"]}\n')
    assert "got JSON, which is read from a file called .jsonl, without --sentences" in refusal(
        capsys, "--model", model, "--data", tmp_path / "j.txt", "--sentences"
    )
    (tmp_path / "e.txt").write_text("")
    assert "expected rows, got none" in refusal(capsys, "--model", model, "--data", tmp_path / "e.txt", "--sentences")
    for option in (["--sentences"], ["--column", "text"]):
        assert main(["predict", "sst2", "--model", str(model), "--data", str(table), *option]) == 2
        said = capsys.readouterr().err
        assert said == f"fastbert: {option[0]} belongs to ner, got the task sst2, whose columns are --text-columns\n"


def test_an_option_that_is_nearly_right_comes_first(model, capsys):
    assert main(["predict", "sst2", "--model", str(model), "--data", "-", "--text-column", "a"]) == 2
    assert "unknown option --text-column (perhaps --text-columns or --column)" in capsys.readouterr().err


def test_document_context_is_left_out_with_a_word(model, tmp_path, capsys, caplog):
    wanted = answers(model, "\n".join(SENTENCES).encode(), tmp_path, capsys)
    assert "stands alone" not in caplog.text
    config = json.loads((model / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config["fastbert"] = {"task": "ner", "document_context": True, "max_seqlen": 32}
    (other / "config.json").write_text(json.dumps(config))
    assert answers(other, "\n".join(SENTENCES).encode(), tmp_path, capsys) == wanted
    assert "here each stands alone" in caplog.text
    assert caplog.text.count("stands alone") == 1  # and not that documents were expected


def test_a_model_of_iobes_and_one_without_types():
    for labels, scores, wanted in (
        (("O", "B-X", "I-X", "E-X", "S-X"), [1, 2, 3, 4], [("X", "the film of"), ("X", "paris")]),
        (("O", "B-_", "I-_"), [1, 2, 0, 1], [("_", "the film"), ("_", "paris")]),
    ):
        task, row = NERSentences(), PlainSentence.of("the film of paris")
        task.labels = labels
        shares = np.eye(len(labels))[scores]
        assert [(entity.type, entity.text) for entity in task._entities(row, shares)] == wanted
    assert NER.streams is False  # sentences of a document belong together
