"""Tagging: CoNLL's columns and schemes, conlleval's figures, windows of words, document context, and whole runs."""

import json

import numpy as np
import pytest
import tiny_bert
import torch

import fastbert
from fastbert.cli.main import main
from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.conll import read_sentences, read_tags, tagged_lines
from fastbert.tasks.conll_columns import split
from fastbert.tasks.finetune import finetune
from fastbert.tasks.ner import NER
from fastbert.tasks.predict import predict, run_model
from fastbert.tasks.tagging import entities_of, in_scheme_of, scheme, to_iob1, to_iob2

# Each line: IOB1, IOB2, entities.
SCHEMES = [
    ("I-A I-A O I-B", "B-A I-A O B-B", [("A", 0, 2), ("B", 3, 4)]),
    ("I-A B-A I-A", "B-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),
    ("I-A I-B B-B", "B-A B-B B-B", [("A", 0, 1), ("B", 1, 2), ("B", 2, 3)]),
    ("O I-A-X O", "O B-A-X O", [("A-X", 1, 2)]),
    ("O O", "O O", []),
]


@pytest.mark.parametrize(("one", "two", "entities"), SCHEMES)
def test_schemes_and_back(one, two, entities):
    one, two = one.split(), two.split()
    assert entities_of(one) == entities_of(two) == entities
    assert to_iob2(one) == to_iob2(two) == two
    assert to_iob1(one) == to_iob1(two) == one


def test_which_scheme_a_file_has():
    assert scheme([["I-A", "B-A"]]) == "IOB1"
    assert scheme([["B-A", "I-A", "O"], ["O"]]) == "IOB2"
    assert scheme([["B-A", "I-B"]]) == "IOB1"
    assert scheme([["B-A", "B-A", "O", "B-B"]]) == "IOB2"


def test_a_broken_tag_changes_no_scheme(tmp_path):
    task = registry.get("ner")
    rows = task.read(write(tmp_path, "a B-X\nb I-X\n\nc B-Y\n\nd O\ne I-Y\n"))
    found = in_scheme_of(rows, [row.label for row in rows])
    assert found == [("B-X", "I-X"), ("B-Y",), ("O", "B-Y")]
    assert task.metric(rows, found) == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 0.8}


def test_real_files(shared_data):
    task = registry.get("ner")
    train, dev = (task.read(shared_data / "conll2003" / name) for name in ("eng.train", "eng.testa"))
    assert [len(rows) for rows in (train, dev)] == [14_041, 3_250]
    assert [sum(len(row.texts) for row in rows) for rows in (train, dev)] == [203_621, 51_362]
    assert [train[-1].source, dev[-1].source] == [945, 215]
    assert scheme([row.label for row in train]) == "IOB1"
    task.learn(train)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    # A file is held whole: of a word that comes again there is one.
    assert len({id(word) for row in train for word in row.texts}) == len({word for row in train for word in row.texts})
    again = [tuple(to_iob1(to_iob2(row.label))) == row.label for row in dev]
    assert all(again)


def test_figures_are_conllevals(shared_data):
    directory = shared_data / "conll2003" / "conlleval"
    found = read_sentences(directory / "output.txt")
    gold = [Row(s.id, s.texts, tuple(split(line)[-2] for line in s.lines)) for s in found]
    tags = [s.label for s in found]
    assert sum(map(len, tags)) == 961
    figures = {name: f"{100 * value:.2f}" for name, value in registry.get("ner").metric(gold, tags).items()}
    printed = (directory / "result.txt").read_text()
    assert (
        f"accuracy:  {figures['accuracy']}%; precision:  {figures['precision']}%; recall:  {figures['recall']}%; "
        f"FB1:  {figures['f1']}" in printed
    )
    table = registry.get("ner").tables(gold, tags)["entities"]
    for kind, *shares, _, predicted in table[1:]:
        precision, recall, f1 = (f"{100 * share:6.2f}" for share in shares)
        assert f"{kind:>17}: precision: {precision}%; recall: {recall}%; FB1: {f1}  {predicted}\n" in printed
    assert len(table) - 1 == printed.count("precision") - 1
    counts = f"with {sum(row[4] for row in table[1:])} phrases; found: {sum(row[5] for row in table[1:])} phrases"
    assert counts in printed


def test_a_type_that_is_invented_has_a_line_of_its_own():
    gold = [Row("0", ("Paris", "said"), ("B-PER", "O"))]
    header, *lines = registry.get("ner").tables(gold, [("B-PER", "B-LOC")])["entities"]
    assert header == ("type", "precision", "recall", "f1", "entities", "found")
    assert lines == [("LOC", 0.0, 0.0, 0.0, 0, 1), ("PER", 1.0, 1.0, 1.0, 1, 1)]


def write(tmp_path, text, name="f.txt"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


CONLL = (
    "-DOCSTART- -X- O O\n\nthe DT I-NP O\nFilm NN I-NP I-MISC\n\nparis NNP I-NP I-LOC\nfrance NNP B-NP B-LOC\n\n"
    "-DOCSTART- -X- O O\n\nit PRP I-NP O\n"
)


def test_columns_documents_and_line_ends(tmp_path):
    for text in (CONLL, CONLL.replace("\n", "\r\n"), "\ufeff" + CONLL.replace(" ", "\t") + "\n \n\n"):
        rows = registry.get("ner").read(write(tmp_path, text))
        assert [row.texts for row in rows] == [("the", "Film"), ("paris", "france"), ("it",)]
        assert [row.label for row in rows] == [("O", "I-MISC"), ("I-LOC", "B-LOC"), ("O",)]
        assert [row.source for row in rows] == [0, 0, 1]
    # Words alone, or with columns that are no tags: nothing to score against.
    rows = registry.get("ner").read(write(tmp_path, "the\nfilm\n\nit\n"))
    assert [row.label for row in rows] == [None, None]
    assert registry.get("ner").read(write(tmp_path, "the DT\nfilm NN\n"))[0].label is None
    # A no-break space is part of a word, and an empty line within a document is none.
    assert registry.get("ner").read(write(tmp_path, "a\u00a0b O\n"))[0].texts == ("a\u00a0b",)


@pytest.mark.parametrize("header", ["word pos chunk ner", "Token\tPOS\tChunk\tTag", "word pos chunk ner\n"])
def test_a_header_is_no_word(tmp_path, header):
    between = "\t" if "\t" in header else " "
    lines = [between.join(line.split()) for line in ("EU NNP I-NP B-ORG", "rejects VBZ I-VP O")]
    path = tmp_path / "x.txt"
    path.write_text("\n".join([header, *lines, "", *lines]) + "\n")
    for ignore_tags in (False, True):
        rows = read_sentences(path, ignore_tags=ignore_tags)
        assert [row.texts for row in rows] == [("EU", "rejects")] * 2
        assert [row.label for row in rows] == [("B-ORG", "O")] * 2
    predicted = list(tagged_lines(rows, [("O", "O")] * 2))
    assert predicted == [f"{line}{between}O" for line in lines] + [""] + [f"{line}{between}O" for line in lines] + [""]
    path.write_text("\n".join([header, *predicted]) + "\n")
    assert read_tags(path, rows) == [("O", "O")] * 2
    # Without tags, and with untyped ones.
    path.write_text("\n".join(["word pos", "EU NNP", "rejects VBZ"]) + "\n")
    [row] = read_sentences(path, ignore_tags=True)
    assert row.texts == ("EU", "rejects")
    path.write_text("\n".join(["token tag", "EU B", "rejects O"]) + "\n")
    [row] = read_sentences(path)
    assert (row.texts, row.label) == (("EU", "rejects"), ("B-_", "O"))


@pytest.mark.parametrize("text", ["word\nof\n", "Word O\nof O\nthe I-MISC\n", "token NN\nring NN\n"])
def test_words_that_a_header_may_have_are_words(tmp_path, text):
    (tmp_path / "x.txt").write_text(text)
    [row] = read_sentences(tmp_path / "x.txt", ignore_tags=True)
    assert row.texts == tuple(line.split()[0] for line in text.splitlines())


def test_comments_before_a_sentence(tmp_path):
    text = "# id 1 domain=en\nJohn _ _ B-PER\n# _ _ O\n\n# id 2 domain=en\n# text = # 1\n# _ _ O\n1 _ _ O\n\n# end\n"
    task, path = registry.get("ner"), tmp_path / "p.txt"
    rows = task.read(write(tmp_path, text))
    assert [row.texts for row in rows] == [("John", "#"), ("#", "1")]
    assert [row.label for row in rows] == [("B-PER", "O"), ("O", "O")]
    task.write_predictions(rows, [row.label for row in rows], path)  # conlleval knows no comments
    assert path.read_text() == "John _ _ B-PER B-PER\n# _ _ O O\n\n# _ _ O O\n1 _ _ O O\n\n"
    assert task.read_predictions(rows, path) == [row.label for row in rows]
    assert task.read_predictions(rows, write(tmp_path, text)) == [row.label for row in rows]
    # Without tags the number of columns tells.
    assert [row.texts for row in task.read(write(tmp_path, "# id 1\nJohn\n#\n\n#\n1\n"))] == [("John", "#"), ("#", "1")]
    for line in ("# O", "#", "film # id 1"):  # no comments: a column or a tag is missing
        with pytest.raises(DataError, match=r"line [12]: expected"):
            task.read(write(tmp_path, f"{line}\nJohn _ _ B-PER\n"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("film NN I-LOC", "line 2: expected 4 columns, got 3"),
        ("film NN I-NP LOC", "line 2: expected the tag O, B-TYPE or I-TYPE, got 'LOC'"),
        ("film NN I-NP B-", "line 2: expected the tag"),
        ("film NN I-NP M-LOC", "line 2: expected the tag"),
    ],
)
def test_bad_rows_are_named(tmp_path, line, reason):
    path = write(tmp_path, f"the DT I-NP O\n{line}\n\nit PRP I-NP O\n")
    with pytest.raises(DataError, match=f"f.txt, {reason}"):
        registry.get("ner").read(path)
    task = registry.get("ner")
    task.bad_rows = BadRows(skip=True)
    assert [row.texts for row in task.read(path)] == [("it",)]
    assert len(task.bad_rows.reasons) == 1


def test_a_file_of_one_column_has_no_two(tmp_path):
    with pytest.raises(DataError, match="line 2: expected 1 column, got 3: 'film NN O'"):
        registry.get("ner").read(write(tmp_path, "the\nfilm NN O\n"))


def test_a_sentence_is_never_left_without_a_word(tmp_path):
    path = tmp_path / "f.txt"
    path.write_bytes(b"-DOCSTART- O\n\na O\n\xe9 O\nb O\n\n\xe9 O\n\n\xe9 O\nc O\n\nd O\n\xe9 O\n\ne O\n")
    with pytest.raises(DataError, match="line 4: expected UTF-8, got 0xe9"):
        registry.get("ner").read(path)
    task = registry.get("ner")
    task.bad_rows = BadRows(skip=True)
    assert [row.texts for row in task.read(path)] == [("e",)]
    assert [row.opening for row in task.read(path)] == ["-DOCSTART- O"]


def test_a_sentence_with_unreadable_lines_is_one_bad_row(tmp_path):
    path = tmp_path / "f.txt"
    path.write_bytes(b"a O\n\xe9 O\nb O\n\xe9 O\n\n\xe9 O\n\nc B-X\n\nd O\n\xe9 O")
    task = registry.get("ner")
    task.bad_rows = BadRows(skip=True)
    rows = task.read(path)
    assert [(row.id, row.texts) for row in rows] == [("2", ("c",))]
    assert [reason.split(": ")[0] for reason in task.bad_rows.reasons] == [f"{path}, line {n}" for n in (2, 6, 11)]
    with pytest.raises(DataError, match="line 2: expected UTF-8, got 0xe9 at byte 1"):
        task.read_predictions(rows, path)


def test_tags_of_a_poor_tagger_may_have_the_letters_of_the_gold_ones(tmp_path):
    """Of its own entities most are incomplete, so that they do not tell the scheme."""
    task = registry.get("ner")
    rows = task.read(write(tmp_path, "EU S-ORG\nsaid O\nNew B-LOC\nYork I-LOC\nCity E-LOC\n\nParis S-LOC\n"))
    tags = [("S-ORG", "O", "O", "I-LOC", "E-LOC"), ("E-LOC",)]
    lines = (
        "\n".join(" ".join(pair) for pair in zip(row.texts, of, strict=True))
        for row, of in zip(rows, tags, strict=True)
    )
    path = write(tmp_path, "\n\n".join(lines) + "\n", "p.txt")
    assert task.read_predictions(rows, path) == tags
    assert task.metric(rows, tags)["f1"] == pytest.approx(2 / 3)
    with pytest.raises(DataError, match=r"line 7: expected the tag O, B-TYPE, I-TYPE, E-TYPE or S-TYPE, got 'U-LOC'"):
        task.read_predictions(rows, write(tmp_path, path.read_text()[:-6] + "U-LOC\n", "p.txt"))


def test_a_first_word_with_a_byte_order_mark_is_read_back(tmp_path):
    task = registry.get("ner")
    source, path = tmp_path / "f.jsonl", tmp_path / "p.txt"
    source.write_text(json.dumps({"tokens": ["\ufeffEU", "says"], "ner_tags": ["B-ORG", "O"]}) + "\n")
    rows = task.read(source)
    task.write_predictions(rows, [("B-ORG", "O")], path)
    assert task.read_predictions(rows, path) == [("B-ORG", "O")]


def test_words_with_blanks_where_tabs_part_the_columns(tmp_path):
    task = registry.get("ner")
    text = "is \tVBZ\tO\nNew York\tNNP\tB-LOC\n\n2 1/2\t\tO\ntons\tNNS\tO\n"
    rows = task.read(write(tmp_path, text))
    assert [row.texts for row in rows] == [("is", "New York"), ("2 1/2", "tons")]
    assert [row.label for row in rows] == [("O", "B-LOC"), ("O", "O")]
    path = tmp_path / "p.txt"
    task.write_predictions(rows, [("O", "B-X"), ("O", "O")], path)
    assert path.read_text().splitlines()[1] == "New York\tNNP\tB-LOC\tB-X"
    assert task.read_predictions(rows, path) == [("O", "B-X"), ("O", "O")]
    # A column that was pasted with a tab to others, and a line without any: blanks part them as before.
    rows = task.read(write(tmp_path, "EU NNP I-ORG\tI-ORG\nrejects VBZ O\tO\n\nit PRP O O\n"))
    assert [row.texts for row in rows] == [("EU", "rejects"), ("it",)]


def test_numbers_of_words_are_not_taken_for_words(tmp_path):
    """GermEval's columns are number, word, outer tag, inner tag: 1, 2, 3 were the words."""
    path = tmp_path / "germeval.tsv"
    lines = ["#\thttp://de.wikipedia.org", "1\tBei\tO\tO", "2\tBonn\tB-LOC\tO", "", "#\thttp", "1\tJa\tO\tO", ""]
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match="line 2: expected the word in the first column, got the numbers of words"):
        registry.get("ner").read(path)
    path.write_text("1\tCD\tO\n\n1\tCD\tO\n2\tCD\tO\n\n3\tCD\tO\n")
    assert [row.texts for row in registry.get("ner").read(path)] == [("1",), ("1", "2"), ("3",)]


def test_an_empty_file(tmp_path):
    with pytest.raises(DataError, match="expected sentences of one word a line, got none"):
        registry.get("ner").read(write(tmp_path, "\n\n"))
    with pytest.raises(DataError, match="expected entities in the training rows"):
        NER().learn(registry.get("ner").read(write(tmp_path, "a O\n")))


def test_predictions_keep_the_columns_and_the_scheme(tmp_path):
    task = registry.get("ner")
    rows = task.read(write(tmp_path, CONLL))
    path = tmp_path / "p.txt"
    task.write_predictions(rows, [("O", "B-MISC"), ("B-LOC", "B-LOC"), ("I-PER",)], path)
    assert path.read_text() == (
        "-DOCSTART- -X- O O O\n\nthe DT I-NP O O\nFilm NN I-NP I-MISC I-MISC\n\nparis NNP I-NP I-LOC I-LOC\n"
        "france NNP B-NP B-LOC B-LOC\n\n-DOCSTART- -X- O O O\n\nit PRP I-NP O I-PER\n\n"
    )
    assert task.read_predictions(rows, path) == [("O", "I-MISC"), ("I-LOC", "B-LOC"), ("I-PER",)]
    unlabelled = task.read(write(tmp_path, "the\tx\nfilm\ty\n"))
    task.write_predictions(unlabelled, [("I-A", "I-A")], path)
    assert path.read_text() == "the\tx\tB-A\nfilm\ty\tI-A\n\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("the O\nFilm O\n\nit O\n", "expected 3 sentences, got 2"),
        ("the O\n\nparis O\nfrance O\n\nit O\n", r"line 1: expected a sentence of 2 words \('the Film'\), got 1"),
        ("the O\nfilm O\n\nparis O\nfrance O\n\nit O\n", "line 2: expected the word 'Film', got 'film'"),
        ("the O\nFilm MISC\n\nparis O\nfrance O\n\nit O\n", "line 2: expected the tag"),
    ],
)
def test_predictions_that_do_not_fit(tmp_path, text, reason):
    rows = registry.get("ner").read(write(tmp_path, CONLL))
    with pytest.raises(DataError, match=reason):
        registry.get("ner").read_predictions(rows, write(tmp_path, text, "p.txt"))


def test_predictions_for_sentences_that_were_left_out(tmp_path):
    task = registry.get("ner")
    task.bad_rows = BadRows(skip=True)
    rows = task.read(write(tmp_path, "a O\n\nb O O\n\nc B-X\n"))
    assert [row.id for row in rows] == ["0", "2"]
    assert task.read_predictions(rows, write(tmp_path, "a O\n\nb B-X\n\nc B-X\n", "p.txt")) == [("O",), ("B-X",)]
    assert task.read_predictions(rows, write(tmp_path, "a O\n\nc B-X\n", "p.txt")) == [("O",), ("B-X",)]
    # A sentence with a tag that is none is predicted, one with a column too many is not.
    task.bad_rows = BadRows(skip=True)
    rows = task.read(write(tmp_path, "a O\n\nb O O\n\nc X\n\nd B-X\ne O\n\nf O\n\ng X\n"))
    assert [row.id for row in rows] == ["0", "3", "4"]
    sentences = ["a O", "c B-X", "d O\ne B-X", "f O", "g B-X"]
    path = write(tmp_path, "\n\n".join(sentences) + "\n", "p.txt")
    assert task.read_predictions(rows, path) == [("O",), ("O", "B-X"), ("O",)]
    for missing in (0, 2, 3):
        path = write(tmp_path, "\n\n".join(sentences[:missing] + sentences[missing + 1 :]) + "\n", "p.txt")
        with pytest.raises(DataError, match="expected 3 sentences, got 4"):
            task.read_predictions(rows, path)


def test_errors_by_hand(tmp_path):
    rows = registry.get("ner").read(write(tmp_path, CONLL))
    assert list(registry.get("ner").errors(rows, [("O", "I-LOC"), ("I-LOC", "B-LOC"), ("O",)])) == [
        {"id": "0", "sentence": "the Film", "missed": ["MISC: Film"], "invented": ["LOC: Film"]}
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    vocab = [*tiny_bert.VOCAB, "Film", "pa", "##ris", "x", "##x"]
    vocab.remove("paris")
    return tiny_bert.save(tmp_path_factory.mktemp("ner"), "BertModel", vocab, num_hidden_layers=2)


@pytest.fixture
def tokenizer(directory):
    """Cased: the vocabulary has upper case."""
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    return fastbert.load_tokenizer(directory)


def test_first_sub_tokens_carry_the_labels_and_case_stays(tmp_path, tokenizer):
    task = registry.get("ner")
    rows = task.read(write(tmp_path, "Film I-MISC\nparis I-LOC\nfilm O\n\u200b I-PER\nparis. B-PER\n\u0007 O\n"))
    task.learn(rows)
    (example,) = task.encode(rows, tokenizer, 32)
    tokens = [tokenizer.id_to_token(i) for i in example.input_ids]
    assert tokens == ["[CLS]", "Film", "pa", "##ris", "film", "[UNK]", "pa", "##ris", ".", "[UNK]", "[SEP]"]
    names = [task.labels[label] if label >= 0 else None for label in example.label]
    assert names == [None, "B-MISC", "B-LOC", None, "O", "B-PER", "B-PER", None, None, "O", None]


def test_long_sentences_and_words_are_never_cut(tmp_path, tokenizer):
    task = registry.get("ner")
    words = ["paris"] * 25 + ["x" * 40] + ["film"] * 10
    rows = [Row("0", tuple(words), tuple("I-A" if i % 3 else "O" for i in range(36)))]
    task.learn(rows)
    examples = task.encode(rows, tokenizer, 16)
    # 100 tokens in windows of 14, a quarter of which comes again in the next, as context; three of the nine lie within
    # the long word, decide on nothing, and would have a loss over nothing.
    assert len(examples) == 6
    assert all(len(e.meta.words) for e in examples)
    assert max(e.num_tokens for e in examples) == 16
    assert examples[0].input_ids[12:15].tolist() == examples[1].input_ids[1:4].tolist()
    assert all(e.truncated for e in examples)
    assert [e.truncated for e in task.encode(rows, tokenizer, 128)] == [False]
    assert sorted(w for e in examples for w in e.meta.words) == list(range(36))
    assert sum((e.label >= 0).sum() for e in examples) == 36
    # The labels as scores come back as the labels.
    scores = [np.eye(3)[np.maximum(e.label, 0)] for e in examples]
    assert task.decode(rows, examples, scores) == [rows[0].label]


def test_the_loss_is_the_mean_over_words_whatever_the_batches(directory, tokenizer):
    task = registry.get("ner")
    rows = tiny_bert.tagged_rows(12, 0)
    task.learn(rows)
    unseen = Row("12", ("film", "paris"), ("I-NEW", "I-NEW"))  # of no class, which count in no loss
    torch.manual_seed(0)
    model, examples = task.model(directory), task.encode([*rows, unseen], tokenizer, 32)
    whole, few = (run_model(task, model, examples, budget) for budget in (4096, 8))
    logs = [
        torch.log_softmax(torch.from_numpy(scores), -1)[example.label >= 0, example.label[example.label >= 0]]
        for example, scores in zip(examples, whole.values, strict=True)
    ]
    expected = pytest.approx(-torch.cat(logs).mean().item(), rel=1e-5)
    assert (whole.loss, few.loss) == (expected, expected)
    assert run_model(task, model, examples[-1:]).loss is None


def test_document_context_by_hand(tmp_path, tokenizer, caplog):
    task = registry.get("ner")
    rows = task.read(write(tmp_path, CONLL))
    task.learn(rows)
    assert len(task.encode(rows, tokenizer, 16)) == 3
    task.document_context = True
    first, second = task.encode(rows, tokenizer, 16)
    tokens = [tokenizer.id_to_token(i) for i in first.input_ids]
    assert tokens == ["[CLS]", "the", "Film", "pa", "##ris", "france", "[SEP]"]
    assert (first.meta.rows.tolist(), first.meta.words.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert second.meta.rows.tolist() == [2]
    scores = [np.eye(len(task.labels))[np.maximum(e.label, 0)] for e in (first, second)]
    assert task.decode(rows, [first, second], scores) == [row.label for row in rows]
    # Rows that were neighbours in no file are no context to each other.
    assert len(task.encode([rows[0], rows[0]], tokenizer, 16)) == 2
    # Nor those before the first document.
    before = task.read(write(tmp_path, "a O\n\nb I-LOC\n\n-DOCSTART- O\n\nc O\n\nd O\n"))
    assert [e.meta.rows.tolist() for e in task.encode(before, tokenizer, 16)] == [[0], [1], [2, 3]]
    assert len(task.encode(task.read(write(tmp_path, "a O\n\nb I-LOC\n")), tokenizer, 16)) == 2
    assert "expected -DOCSTART- lines, got none" in caplog.text


def test_labels_of_other_models(tmp_path):
    task = registry.get("ner")
    task.restore(fastbert.BertConfig(id2label={3: "I-LOC", 1: "O", 0: "I-PER", 2: "B-LOC"}, num_labels=4))
    assert task.labels == ("I-PER", "O", "B-LOC", "I-LOC")
    # A model trained on IOB1 tags has no B-PER.
    assert task._labels([Row("0", ("a", "b"), ("B-PER", "B-ORG"))]).tolist() == [0, -100]
    with pytest.raises(InputError, match=r"expected a model with the labels O, B-TYPE and I-TYPE .*, got LABEL_0"):
        task.restore(fastbert.BertConfig(num_labels=2))
    # By their numbers: as texts, which JSON has, 10 would come before 2.
    names = ("O", *(f"{letter}-T{number}" for number in range(6) for letter in "BI"))
    task.restore(fastbert.BertConfig(id2label={str(number): name for number, name in enumerate(names)}))
    assert task.labels == names


def test_chunks_are_not_taken_for_entities(tmp_path, caplog):
    """CoNLL-2003's columns without the last: the third has tags too."""
    path = write(tmp_path, "EU NNP I-NP\nrejects VBZ I-VP\n. . O\n")
    task = NER(("O", "B-ORG", "I-ORG", "B-PER", "I-PER"))
    with pytest.raises(
        DataError, match=r"f\.txt: expected entities of the types ORG, PER, got NP, VP: the last column"
    ):
        task.read(path)
    with pytest.raises(DataError, match=r"expected entities of the types ORG, PER, got X$"):
        task.read(write(tmp_path, "EU B-X\n", "x.txt"))
    assert task.read(write(tmp_path, "EU B-X\nUN B-ORG\n", "x.txt"))  # types that training did not see are common
    assert task.read(write(tmp_path, "EU O\n", "x.txt"))
    task.predicting = True
    assert task.read(path)[0].texts == ("EU", "rejects", ".")
    assert not caplog.records
    # Who has no model yet may want a chunker.
    assert registry.get("ner").read(path)
    assert "the last column has the tags of chunks (NP, VP), not of entities" in caplog.text


def conll_of(count, seed):
    """Words of praise are GOOD, words of blame BAD; neighbours of one kind are entities of their own."""
    generator, lines = torch.Generator().manual_seed(seed), []
    words = [*tiny_bert.GOOD, *tiny_bert.BAD, "the", "film", "is", "very", "."]
    for index in range(count):
        if index % 8 == 0:
            lines += ["-DOCSTART- O", ""]
        chosen = [words[int(i)] for i in torch.randint(0, len(words), (3 + index % 9,), generator=generator)]
        kinds = ["GOOD" if w in tiny_bert.GOOD else "BAD" if w in tiny_bert.BAD else "" for w in chosen]
        for before, word, kind in zip(["", *kinds], chosen, kinds, strict=False):
            lines.append(f"{word} {('B-' if before == kind else 'I-') + kind if kind else 'O'}")
        lines.append("")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("context", [False, True])
def test_learns_to_tag(directory, tokenizer, tmp_path, context):
    task = registry.get("ner")
    train, dev = task.read(write(tmp_path, conll_of(120, 1))), task.read(write(tmp_path, conll_of(40, 2)))
    task.learn(train)
    torch.manual_seed(0)
    config = FinetuneConfig(epochs=10, batch_size=8, lr=3e-3, max_seqlen=24, document_context=context)
    result = finetune(task, task.model(directory), tokenizer, train, dev, config, out=tmp_path / "run")
    assert result.best["f1"] > 0.98
    examples = task.encode(dev, tokenizer, 24)
    assert (len(examples) < len(dev)) is context
    again = registry.get("ner")
    again.restore(fastbert.BertConfig.from_pretrained(result.model_dir))
    assert predict(again, again.model(result.model_dir), dev, examples) == result.predictions
    batch, labels = task.collate(examples)
    assert batch.num_tokens == sum(e.num_tokens for e in examples) == len(labels["labels"])


def test_commands(directory, tokenizer, tmp_path, capsys):
    data, run = write(tmp_path, conll_of(24, 1)), tmp_path / "run"
    given = ["--model", str(directory), "--train", str(data), "--dev", str(data), "--out", str(run)]
    assert main(["finetune", "ner", *given, "--max-seqlen", "20", "--epochs", "1", "--document-context"]) == 0
    assert "lr 5e-05" in capsys.readouterr().out
    assert (run / "dev_entities.tsv").read_text().splitlines()[0] == "type\tprecision\trecall\tf1\tentities\tfound"
    out = tmp_path / "p.txt"
    assert main(["predict", "ner", "--model", str(run), "--data", str(data), "--out", str(out)]) == 0
    # The run's own options are used: the same windows, the same tags.
    assert out.read_text() == (run / "dev_predictions.txt").read_text()
    capsys.readouterr()
    assert main(["evaluate", "ner", "--model", str(run), "--data", str(data)]) == 0
    by_model = json.loads(capsys.readouterr().out)
    assert main(["evaluate", "ner", "--data", str(data), "--predictions", str(out)]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert {name: by_model[name] for name in by_file} == by_file
