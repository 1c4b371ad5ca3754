"""Commands that use a model, in process on a tiny one: what they write, and how they fail."""

import io
import json
import shutil
import signal

import numpy as np
import pytest
import tiny_bert

from fastbert import SentenceEncoder
from fastbert.cli import finetune
from fastbert.cli.main import main, parse
from fastbert.interop.convert import convert
from fastbert.tasks.config import FEATURE_RECIPE, RECIPES

ROWS = [("the film is good", 1), ("a dull book .", 0), ("great , very great !", 1), ("it was poor", 0)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.tsv"
    path.write_text("sentence\tlabel\n" + "".join(f"{text} \t{label}\n" for text, label in ROWS * 4), encoding="utf-8")
    return path


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{text}\n" for text, _ in ROWS), encoding="utf-8")
    return path


def run(*args) -> int:
    return main([str(arg) for arg in args])


def fails(capsys, *args) -> str:
    """Runs a command that must exit with status 2 and one line on stderr; returns it."""
    capsys.readouterr()
    assert run(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fastbert: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_fill_mask_prints_candidates(model, capsys):
    assert run("fill-mask", "--model", model, "--top-k", 3, "--json", "the film is [MASK] .", "[MASK] [MASK]") == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [len(mask) for mask in first["masks"]] == [3]
    assert [len(mask) for mask in second["masks"]] == [3, 3]
    assert run("fill-mask", "--model", model, "the film is [MASK] .") == 0
    assert first["masks"][0][0]["token"] in capsys.readouterr().out.splitlines()[1]


def test_fill_mask_shows_the_words_that_were_asked_for(model, capsys):
    text = "the film is [MASK] ."
    assert run("fill-mask", "--model", model, text, "--json", "--targets", "dull", "Good", "paris") == 0
    [mask] = json.loads(capsys.readouterr().out)["masks"]
    assert {found["token"] for found in mask} == {"dull", "good", "paris"}
    assert run("fill-mask", "--model", model, text, "--targets", *tiny_bert.VOCAB) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(tiny_bert.VOCAB)  # also more than --top-k
    said = "--top-k belongs to a search of the whole vocabulary, got it with --targets"
    assert said in fails(capsys, "fill-mask", "--model", model, text, "--top-k", 2, "--targets", "good")


def test_fill_mask_shows_small_probabilities(capsys):
    from fastbert.cli.fill_mask import _show
    from fastbert.tasks.fill_mask import Candidate

    _show("[MASK]", [[Candidate("a", 1, 0.9), Candidate("b", 2, 0.0001), Candidate("c", 3, 1.94e-7)]], False)
    assert capsys.readouterr().out.splitlines()[1:] == ["   0.9000  a", "   0.0001  b", "  1.9e-07  c"]


def test_fill_mask_failures(model, tmp_path, capsys):
    assert "expected at least one [MASK]" in fails(capsys, "fill-mask", "--model", model, "no mask")
    long = "the " * 5000 + "[MASK]"
    error = fails(capsys, "fill-mask", "--model", model, "--truncate", long)
    assert "at least one [MASK] in the first 32 tokens of the text, got 'the the" in error
    assert len(error) < 200
    # What a terminal in Latin-1 sends.
    assert "expected a text in UTF-8, got" in fails(capsys, "fill-mask", "--model", model, "caf\udce9 [MASK]")
    assert "the model takes at most 32" in fails(capsys, "fill-mask", "--model", model, "the " * 50 + "[MASK]")
    assert "nothing of that name" in fails(capsys, "fill-mask", "--model", tmp_path / "no", "[MASK]")
    maskless = tiny_bert.save(tmp_path / "maskless", vocab=[word for word in tiny_bert.VOCAB if word != "[MASK]"])
    assert "[MASK]" in fails(capsys, "fill-mask", "--model", maskless, "the [MASK]")


def test_fill_mask_answers_the_lines_of_standard_input(model, monkeypatch, capsys):
    def typed(raw: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))

    texts = ["the film is [MASK] .", "a [MASK] book"]
    assert run("fill-mask", "--model", model, "--json", *texts) == 0
    wanted = capsys.readouterr().out
    typed(b"the film is [MASK] .\r\n\na [MASK] book")
    assert run("fill-mask", "--model", model, "--json", "-") == 0
    assert capsys.readouterr().out == wanted
    typed(b"a [MASK] book\nno mask\n")
    assert run("fill-mask", "--model", model, "--json", "-") == 2
    captured = capsys.readouterr()
    assert captured.out == wanted.splitlines(keepends=True)[1]
    assert captured.err.startswith("fastbert: standard input, line 2: ")
    assert captured.err.count("\n") == 1
    typed(b"")
    assert run("fill-mask", "--model", model, "-") == 2
    assert capsys.readouterr().err == "fastbert: standard input: expected lines with [MASK], got none\n"


def test_a_model_without_the_head_is_no_masked_language_model(tmp_path, capsys):
    headless = tiny_bert.save(tmp_path / "headless", "BertModel")
    assert "cls.predictions" in fails(capsys, "fill-mask", "--model", headless, "the [MASK]")


def test_extract_writes_features_and_index(model, lines, tmp_path, capsys):
    out = tmp_path / "features"
    assert run("extract", "--model", model, "--layers", "last4-concat", "--out", out, lines) == 0
    assert capsys.readouterr().out.split() == [str(out / "features.npy"), str(out / "tokens.jsonl")]
    index = [json.loads(line) for line in (out / "tokens.jsonl").read_text().splitlines()]
    assert [row["line"] for row in index] == [1, 2, 3, 4]
    assert index[0]["tokens"] == ["[CLS]", "the", "film", "is", "good", "[SEP]"]
    assert [row["start"] for row in index[1:]] == [row["end"] for row in index[:-1]]
    assert np.load(out / "features.npy").shape == (index[-1]["end"], 4 * 32)


def test_extract_reads_googles_pairs(model, tmp_path):
    """As extract_features.py of google-research/bert: the last mark parts the two, and needs blanks around it."""
    out, lines = tmp_path / "features", tmp_path / "pairs.txt"
    lines.write_text("the film ||| good\nit|||bad\n the ||| book ||| is ||| \n")
    assert run("extract", "--model", model, "--layers", "last", "--out", out, lines) == 0
    index = [json.loads(line) for line in (out / "tokens.jsonl").read_text().splitlines()]
    assert index[0]["tokens"] == ["[CLS]", "the", "film", "[SEP]", "good", "[SEP]"]
    assert [row["tokens"].count("[SEP]") for row in index] == [2, 1, 2]
    assert index[2]["tokens"][-1] == "[SEP]"


@pytest.mark.parametrize("command", ["encode", "extract"])
@pytest.mark.parametrize(
    ("name", "content", "got"),
    [
        ("a.csv", "text,label\nthe film,good\n", "a table or JSON by its name"),
        ("a.tsv.gz", "", "a table or JSON by its name"),
        ("a.parquet", "", "a table or JSON by its name"),
        ("a.jsonl", '{"text": "the film"}\n', "a table or JSON by its name"),
        ("a.txt", '\ufeff{"text": "the film"}\n', """JSON, '{"text": "the film"}'"""),
    ],
)
def test_tables_and_json_are_not_lines_of_text(model, tmp_path, capsys, command, name, content, got):
    """Their header, or each object, would be a text."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    said = fails(capsys, command, "--model", model, "--out", tmp_path / "out.npy", path)
    told = "name the column of its texts (--column), or write them to a file, a line each"
    assert f"{path}: expected a text in each line, got {got}: {told}" in said


def test_extract_failures_leave_nothing(model, tmp_path, capsys):
    out, bad = tmp_path / "features", tmp_path / "bad.txt"
    for content, reason in (
        (b"fine\n" + b"the " * 50 + b"\n", f"{bad}, line 2: expected at most the model's 32 tokens unless told to"),
        (b"fine\n\xff\n", "line 2: expected UTF-8, got 0xff"),
        (b"", "got an empty file"),
    ):
        bad.write_bytes(content)
        assert reason in fails(capsys, "extract", "--model", model, "--out", out, bad)
        assert not out.exists()
    assert "No such file" in fails(capsys, "extract", "--model", model, "--out", out, tmp_path / "none")
    bad.write_bytes(b"the " * 50 + b"\n")
    assert run("extract", "--model", model, "--out", out, "--truncate", bad) == 0
    assert len(np.load(out / "features.npy")) == 32


def test_labels_that_config_json_counts_otherwise_are_told_once(data, lines, tmp_path, caplog):
    model = tiny_bert.save(tmp_path / "model", "BertForSequenceClassification", num_labels=2)
    labels = {"num_labels": 3, "id2label": {"0": "negative", "1": "positive"}}
    values = json.loads((model / "config.json").read_text()) | labels
    (model / "config.json").write_text(json.dumps(values))
    for command in (
        ["extract", "--model", model, "--out", tmp_path / "features", lines],
        ["predict", "sst2", "--model", model, "--data", data, "--max-seqlen", 16, "--out", tmp_path / "out.tsv"],
    ):
        caplog.clear()
        assert run(*command) == 0
        said = f"{model / 'config.json'}: num_labels is 3, but id2label names 2: the names are used"
        assert caplog.messages == [said]


SAID = [{"return_dict": False}, {"output_attentions": True}, {"output_hidden_states": True}]


@pytest.mark.parametrize("said", SAID)
def test_what_config_json_says_to_return_changes_nothing(said, data, lines, tmp_path, capsys):
    plain = tiny_bert.save(tmp_path / "plain", "BertForSequenceClassification", num_labels=2)
    told = tmp_path / "told"
    shutil.copytree(plain, told)
    (told / "config.json").write_text(json.dumps(json.loads((plain / "config.json").read_text()) | said))
    options = ["--data", data, "--max-seqlen", 16]
    assert run("predict", "sst2", "--model", plain, *options) == 0
    wanted = capsys.readouterr().out
    assert run("predict", "sst2", "--model", told, *options) == 0
    assert capsys.readouterr().out == wanted
    for directory in (plain, told):
        assert run("extract", "--model", directory, "--out", tmp_path / directory.name / "features", lines) == 0
    values = [np.load(tmp_path / name / "features" / "features.npy") for name in ("plain", "told")]
    np.testing.assert_array_equal(*values)
    options = ["--train", data, "--dev", data, "--epochs", 1, "--max-seqlen", 16]
    assert run("finetune", "sst2", "--model", told, *options, "--out", tmp_path / "run") == 0
    options += ["--features", "last", "--feature-units", 8]
    assert run("finetune", "sst2", "--model", told, *options, "--out", tmp_path / "on-features") == 0


def test_googles_directories_are_used_as_they_are(model, lines, tmp_path, capsys):
    google = tmp_path / "google"
    convert(model, google, to="tf1")
    assert run("fill-mask", "--model", model, "the [MASK] is good") == 0
    wanted = capsys.readouterr().out
    assert run("fill-mask", "--model", google, "the [MASK] is good") == 0
    assert capsys.readouterr().out == wanted
    for directory in (model, google):
        assert run("encode", "--model", directory, "--out", tmp_path / f"{directory.name}.npy", lines) == 0
    np.testing.assert_array_equal(np.load(tmp_path / f"{model.name}.npy"), np.load(tmp_path / "google.npy"))
    assert "name its directory" in fails(capsys, "fill-mask", "--model", google / "bert_model.ckpt", "a [MASK]")
    for file in google.glob("bert_model.ckpt.*"):
        file.unlink()
    (google / "ckpt_8601.pt").write_bytes(b"")
    error = fails(capsys, "fill-mask", "--model", google, "a [MASK]")
    assert "got bert_config.json without weights that are read as they are: `fastbert convert`" in error


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"problem_type": "multi_label_classification"}, "expected a model of one label a text, got problem_type m"),
        ({"id2label": {0: "a\tb", 1: "c"}}, "expected an id2label of names without tabs or line ends, got 'a\\tb'"),
        ({"id2label": {0: "a", 1: "c\nd"}}, "expected an id2label of names without tabs or line ends, got 'c\\nd'"),
    ],
)
def test_a_model_whose_answers_are_no_lines_of_one_label_is_refused(said, reason, tmp_path, capsys):
    trained = tiny_bert.save(tmp_path / "trained", "BertForSequenceClassification", **said)
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\nthe film\n")
    options = ["--model", trained, "--data", rows, "--max-seqlen", 16]
    assert reason in fails(capsys, "predict", "text-classification", *options)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("max_seqlen: many", "max_seqlen must be a whole number, got 'many'"),
        ("max_seqlen:", "max_seqlen must be a whole number, got None"),
        ("document_context: 7", "document_context must be true or false, got 7"),
    ],
)
def test_a_run_whose_options_were_edited_by_hand_is_told(option, said, data, tmp_path, capsys):
    trained = tiny_bert.save(tmp_path / "trained", "BertForSequenceClassification")
    (trained / "config.yaml").write_text(f"task: sst2\n{option}\n")
    error = fails(capsys, "predict", "sst2", "--model", trained, "--data", data)
    assert error == f"fastbert: {trained / 'config.yaml'}: {said}\n"


def test_a_model_type_that_is_no_word_is_told(data, tmp_path, capsys):
    trained = tiny_bert.save(tmp_path / "trained", "BertForSequenceClassification")
    values = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps({**values, "model_type": ["bert"]}))
    error = fails(capsys, "predict", "sst2", "--model", trained, "--data", data)
    assert "config.json: model_type must be one of bert, openai-gpt, gpt2, elmo, static, got ['bert']" in error


@pytest.mark.parametrize(("task", "held", "needed"), [("sst2", 1, 2), ("sst2", 3, 2), ("stsb", 2, 1)])
def test_a_head_of_another_size_is_told_with_both_sizes(task, held, needed, tmp_path, capsys):
    trained = tiny_bert.save(tmp_path / "trained", "BertForSequenceClassification", num_labels=held)
    rows = tmp_path / "rows.tsv"
    rows.write_text({"sst2": "sentence\nfine\n", "stsb": "sentence1\tsentence2\na\tb\n"}[task])
    options = ["--model", trained, "--data", rows, "--max-seqlen", 16]
    expected = f"expected a trained BertForSequenceClassification with a head of size {needed}, got one of size {held}"
    assert f"{trained}: {expected} (classifier.weight)\n" in fails(capsys, "predict", task, *options)


@pytest.mark.parametrize(("task", "rows"), [("sst2", "sentence\nfine\n"), ("ner", "fine\n")])
def test_a_model_that_is_not_fine_tuned_is_told_what_to_do(task, rows, model, tmp_path, capsys):
    """A run of `fastbert pretrain` first, then its model alone, as any other without a head."""
    shutil.copytree(model, tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text("data: DATA\nmodel: tiny\nout: run\n")
    (tmp_path / "rows").write_text(rows)
    options = ["--data", tmp_path / "rows", "--max-seqlen", 16]
    told = "expected a fine-tuned model, got a run of `fastbert pretrain`"
    first = f"; fine-tune it first (fastbert finetune {task} --model {{}} ...)"
    for command in ("predict", "evaluate"):
        error = fails(capsys, command, task, "--model", tmp_path / "run", *options)
        assert error == f"fastbert: {tmp_path / 'run'}: {told}{first.format(tmp_path / 'run')}\n"
    error = fails(capsys, "predict", task, "--model", model, *options)
    if task == "ner":
        assert error.endswith("got LABEL_0, LABEL_1; fine-tune it first\n")
    else:
        assert error.endswith(f", classifier.weight, classifier.bias{first.format(model)}\n")


def test_convert_takes_the_directory_of_a_run(model, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(model, run_dir / "model")
    assert run("convert", run_dir, tmp_path / "out") == 0
    name = "model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (model / name).read_bytes()


def test_encode_writes_a_vector_a_line(model, lines, tmp_path, capsys):
    out = tmp_path / "vectors.npy"
    assert run("encode", "--model", model, "--out", out, lines) == 0
    vectors = np.load(out)
    assert vectors.shape == (4, 32)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    lines.write_text("")
    out.unlink()
    assert "got an empty file" in fails(capsys, "encode", "--model", model, "--out", out, lines)
    assert not out.exists()


def test_encode_takes_a_sentence_directory_of_the_older_layout(model, lines, tmp_path):
    """Its model stands in 0_Transformer, so config.json is not at the top."""
    shutil.copytree(model, tmp_path / "old" / "0_Transformer")
    parts = [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in parts]
    (tmp_path / "old" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "old" / "1_Pooling").mkdir()
    (tmp_path / "old" / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    for name, options in (("old", []), ("plain", ["--pooling", "cls"])):
        directory = tmp_path / "old" if name == "old" else model
        assert run("encode", "--model", directory, "--out", tmp_path / f"{name}.npy", *options, lines) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "old.npy"), np.load(tmp_path / "plain.npy"))


def test_encode_with_a_prompt(model, lines, tmp_path, capsys):
    lines.write_text("film\nbook of france\n", encoding="utf-8")
    (tmp_path / "full.txt").write_text("the film\nthe book of france\n", encoding="utf-8")
    convert(model, tmp_path / "st", to="sentence-transformers")
    config = {"prompts": {"query": "the "}, "default_prompt_name": "query"}
    (tmp_path / "st" / "config_sentence_transformers.json").write_text(json.dumps(config))

    def encode(file, *options):
        assert run("encode", "--model", tmp_path / "st", "--out", tmp_path / "vectors.npy", *options, file) == 0
        return np.load(tmp_path / "vectors.npy")

    wanted = encode(tmp_path / "full.txt", "--prompt", "")
    # Of length 1, as that directory says, unless something else is asked for.
    np.testing.assert_allclose(np.linalg.norm(wanted, axis=1), 1, atol=1e-6)
    raw = encode(tmp_path / "full.txt", "--prompt", "", "--normalize", "no")
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    for options in ([], ["--prompt-name", "query"], ["--prompt", "the "]):
        np.testing.assert_array_equal(encode(lines, *options), wanted)
    assert not np.allclose(encode(lines, "--prompt-name", "document"), wanted, atol=1e-2)
    (tmp_path / "vectors.npy").unlink()
    error = fails(
        capsys, "encode", "--model", tmp_path / "st", "--prompt-name", "x", "--out", tmp_path / "vectors.npy", lines
    )
    assert "prompt_name must be one of query, document, got 'x'" in error
    assert not (tmp_path / "vectors.npy").exists()


def test_encode_in_every_form(model, lines, tmp_path, monkeypatch):
    def encode(*options):
        out = tmp_path / "vectors.npy"
        assert run("encode", "--model", model, "--out", out, *options, lines) == 0
        return np.load(out)

    plain = encode()
    unit = encode("--normalize", "yes")
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert np.allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    for pooling in ("cls", "max"):
        assert not np.allclose(encode("--pooling", pooling), plain, atol=1e-2)
    assert np.array_equal(encode("--batch-invariant", "--token-budget", 1), encode("--batch-invariant"))
    given, computed = [], SentenceEncoder.encode
    monkeypatch.setattr(SentenceEncoder, "encode", lambda *args, **kw: given.append(kw) or computed(*args, **kw))
    encode("--batch-invariant", "--token-budget", 7, "--prompt", "the ")
    assert given == [{"batch_invariant": True, "token_budget": 7, "prompt": "the ", "prompt_name": None}]
    monkeypatch.undo()
    for precision in ("bf16", "int8"):
        got = encode("--precision", precision, "--normalize", "yes")
        assert got.dtype == np.float32
        assert not np.array_equal(got, unit)
        assert ((got * unit).sum(1) > 0.99).all()


def test_finetune_evaluate_predict(model, data, tmp_path, capsys):
    out = tmp_path / "run"
    options = ["--train", data, "--dev", data, "--epochs", 8, "--batch-size", 4, "--lr", 3e-3, "--max-seqlen", 16]
    assert run("finetune", "sst2", "--model", model, *options, "--out", out) == 0
    capsys.readouterr()
    assert run("evaluate", "sst2", "--model", out, "--data", data) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["task"] == "sst2"
    assert score["rows"] == 16
    assert score["accuracy"] == 1.0
    assert score["loss"] == pytest.approx(json.loads((out / "dev_metrics.json").read_text())["dev_loss"], rel=1e-5)
    for precision in ("bf16", "int8"):
        assert run("evaluate", "sst2", "--model", out, "--data", data, "--precision", precision) == 0
        rounded = json.loads(capsys.readouterr().out)
        assert rounded["accuracy"] == 1.0
        assert rounded["loss"] != score["loss"]
        assert rounded["loss"] == pytest.approx(score["loss"], abs=0.05)
    test = tmp_path / "test.tsv"
    test.write_text("index\tsentence\n" + "".join(f"{i}\t{text}\n" for i, (text, _) in enumerate(ROWS)))
    predictions = tmp_path / "SST-2.tsv"
    assert run("predict", "sst2", "--model", out, "--data", test, "--out", predictions) == 0
    assert predictions.read_text() == "index\tprediction\n0\t1\n1\t0\n2\t1\n3\t0\n"
    # A name that ends in a slash is that of a directory, also before there is one.
    assert run("predict", "sst2", "--model", out, "--data", test, "--out", f"{tmp_path}/new/") == 0
    assert (tmp_path / "new" / "SST-2.tsv").read_text() == predictions.read_text()
    capsys.readouterr()
    for name in ("-", "/dev/stdout"):  # a link, in whose place no file must come
        assert run("predict", "sst2", "--model", out, "--data", test, "--out", name) == 0
        assert capsys.readouterr().out == predictions.read_text()
    assert "already" in fails(capsys, "finetune", "sst2", "--model", model, *options, "--out", out)


@pytest.mark.parametrize(
    "before",
    [
        *([], ["--out", "RUN"], ["--out=RUN"], ["--weight-decay=0.1", "--out", "squad2"]),
        *(["--no-correct-bias"], ["--no_correct_bias"], ["--skip-bad-rows"], ["--skip_bad_rows"], ["--grid"]),
    ],
)
def test_a_task_has_its_recipe_wherever_it_stands(before):
    def parsed(task, *options):
        argv = [*before, task, *options, "--model", "M", "--train", "T", "--out", "O"]
        return vars(parse(finetune.Finetune, "finetune", argv, finetune.defaults(argv)))

    assert parsed("squad1").items() >= RECIPES["squad1"].items()
    assert parsed("squad1", "--lr", "1e-5", "--seed=1").items() >= {"max_seqlen": 384, "lr": 1e-5, "seed": 1}.items()
    assert parsed("cola").items() >= {"max_seqlen": 128, "lr": 2e-5}.items()
    assert parsed("ner", "--features=last").items() >= FEATURE_RECIPE.items()


def test_where_nothing_can_be_written_is_told_before_the_model_runs(model, data, tmp_path, capsys, monkeypatch):
    from fastbert.cli import _tasks

    def run_model(*_args):
        raise AssertionError("the model ran")

    monkeypatch.setattr(_tasks, "run_model", run_model)
    trained = tiny_bert.save(tmp_path / "trained", "BertForSequenceClassification", num_labels=2)
    below = tmp_path / "file" / "below"
    below.parent.write_text("no directory")
    common = ["sst2", "--model", trained, "--data", data, "--max-seqlen", 16]
    assert f"{below.parent}: " in fails(capsys, "predict", *common, "--out", below)
    assert f"{below}: " in fails(capsys, "evaluate", *common, "--report", below)
    out = tmp_path / "kept.tsv"
    out.write_text("kept")
    monkeypatch.setenv("FASTBERT_DEBUG", "1")
    with pytest.raises(AssertionError, match="the model ran"):
        run("predict", *common, "--out", out)
    assert out.read_text() == "kept"
    new = tmp_path / "new" / "SST-2.tsv"
    with pytest.raises(AssertionError, match="the model ran"):
        run("predict", *common, "--out", new)
    assert not new.parent.exists()


def test_results_of_standard_input_have_a_name(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.read_bytes())))
    predictions = tmp_path / "p.tsv"
    predictions.write_text("index\tprediction\n" + "".join(f"{i}\t1\n" for i in range(16)))
    out = tmp_path / "report"
    assert run("evaluate", "sst2", "--data", "-", "--predictions", predictions, "--report", out) == 0
    kinds = ("classes.tsv", "confusion.tsv", "errors.jsonl", "metrics.json", "predictions.tsv")
    assert sorted(path.name for path in out.iterdir()) == [f"stdin_{kind}" for kind in kinds]
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.5


def test_evaluate_scores_a_predictions_file(data, tmp_path, capsys):
    predictions = tmp_path / "p.tsv"
    predictions.write_text("index\tprediction\n" + "".join(f"{i}\t1\n" for i in range(16)))
    assert run("evaluate", "sst2", "--data", data, "--predictions", predictions) == 0
    assert json.loads(capsys.readouterr().out) == {"task": "sst2", "rows": 16, "accuracy": 0.5}
    assert "either --model or --predictions" in fails(capsys, "evaluate", "sst2", "--data", data)
    # What is read is not written over, as a report of dev.tsv beside dev_predictions.tsv would do.
    same = predictions.rename(tmp_path / f"{data.stem}_predictions.tsv")
    error = fails(capsys, "evaluate", "sst2", "--data", data, "--predictions", same, "--report", tmp_path)
    assert "expected an output file that is not the input" in error


def test_an_option_that_would_do_nothing_is_refused(data, tmp_path, capsys):
    given = ("evaluate", "squad2", "--data", data, "--predictions", tmp_path / "p.json")
    assert "--null-threshold belongs to --model" in fails(capsys, *given, "--null-threshold", 1)
    assert "--max-seqlen belongs to --model" in fails(capsys, *given, "--max-seqlen", 64)
    assert "--na-prob-threshold belongs to --na-prob" in fails(capsys, *given, "--na-prob-threshold", 0.5)
    for option in ("--plan-ranks", "--plan-throughput"):
        error = fails(capsys, "pretrain", "--data", tmp_path, "--out", tmp_path / "run", option, 8)
        assert f"{option} belongs to --plan, got it without, which would train" in error
    given = ("finetune", "sst2", "--train", data, "--dev", data, "--model", tmp_path, "--out", tmp_path / "run")
    for option in ("grid-lrs", "grid-epochs", "grid-batch-sizes"):
        assert f"{option.replace('-', '_')} belongs to grid" in fails(capsys, *given, f"--{option}", 8)
    for command in ("evaluate", "predict"):
        error = fails(capsys, command, "sst2", "--data", data, "--model", tmp_path, "--null-threshold", 1)
        assert "--null-threshold belongs to squad2, got the task sst2" in error


@pytest.mark.parametrize("length", [0, 2, 33])
def test_a_length_that_no_sequence_fits_is_refused(length, data, tmp_path, capsys):
    """0 is no way to ask for the length of the run."""
    trained = tiny_bert.save(tmp_path / "trained", "BertForSequenceClassification")
    given = ("sst2", "--model", trained, "--data", data, "--max-seqlen", length)
    for command in ("predict", "evaluate"):
        assert f"max_position_embeddings, 32, got {length}\n" in fails(capsys, command, *given)


def test_finetune_failures_leave_nothing(model, data, tmp_path, capsys):
    out = tmp_path / "run"
    common = ["finetune", "sst2", "--train", data, "--dev", data, "--out", out]
    assert "nothing of that name" in fails(capsys, *common, "--model", tmp_path / "no")
    assert "max_position_embeddings, 32, got 512" in fails(capsys, *common, "--model", model, "--max-seqlen", 512)
    assert "lr must be above 0" in fails(capsys, *common, "--model", model, "--lr", 0)
    bad = tmp_path / "bad.tsv"
    bad.write_text("sentence\tlabel\nfine\t7\n")
    options = ["--model", model, "--max-seqlen", 32, "--train", data, "--dev", bad, "--out", out]
    assert f"{bad}, line 2: expected the label" in fails(capsys, "finetune", "sst2", *options)
    assert "no such task: sst3" in fails(capsys, "finetune", "sst3", *options)
    assert not out.exists()


def test_missing_encoder_weights_are_listed(model, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    broken = tiny_bert.save(tmp_path / "broken", "BertModel")
    weights = load_file(broken / "model.safetensors")
    del weights["encoder.layer.2.output.dense.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    lines = tmp_path / "lines.txt"
    lines.write_text("the film\n")
    assert run("extract", "--model", broken, "--out", tmp_path / "features", lines) == 2
    error = capsys.readouterr().err
    assert "encoder.layer.2.output.dense.weight" in error
    assert "Traceback" not in error
    assert not (tmp_path / "features").exists()


def test_a_full_disk_is_one_sentence(model, lines, tmp_path, capsys, monkeypatch):
    import errno

    from fastbert.tasks import files

    def fsync(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fsync)
    out = tmp_path / "features"
    error = fails(capsys, "extract", "--model", model, "--out", out, lines)
    assert "features.npy: No space left on device" in error
    assert not out.exists()
    assert "vectors.npy: No space left" in fails(
        capsys, "encode", "--model", model, "--out", tmp_path / "vectors.npy", lines
    )
    assert not (tmp_path / "vectors.npy").exists()


@pytest.mark.parametrize("command", ["encode", "extract", "finetune", "prepare"])
def test_sigterm_leaves_no_unfinished_file(model, data, lines, tmp_path, monkeypatch, command):
    from fastbert import SentenceEncoder
    from fastbert.data import prepare as preparing
    from fastbert.tasks import features
    from fastbert.tasks.feature_files import Cached

    out = tmp_path / "out"
    out.mkdir()
    seen = []

    def terminated(*args, **kwargs):
        seen.extend(out.rglob("*"))
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the test's own process would end"
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(SentenceEncoder, "encode", terminated)
    monkeypatch.setattr(features, "token_features", terminated)
    monkeypatch.setattr(Cached, "add", terminated)
    monkeypatch.setattr(preparing.Encoder, "__call__", terminated)
    given = {
        "encode": [lines, "--out", out / "vectors.npy"],
        "extract": [lines, "--out", out / "features"],
        "finetune": ["sst2", "--features", "last", "--train", data, "--dev", data, "--out", out / "run"],
        "prepare": [lines, "--out", out / "data"],
    }
    options = ["--max-seqlen", 16] if command == "finetune" else []
    source = "--vocab" if command == "prepare" else "--model"
    assert run(command, source, model, *given[command], *options) == 128 + signal.SIGTERM
    assert seen
    assert not list(out.rglob("*"))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_is_read_is_never_written_over(model, lines, data, tmp_path, capsys):
    corpus, rows = lines.read_bytes(), data.read_bytes()
    same = "expected an output file that is not the input"
    assert same in fails(capsys, "encode", "--model", model, "--out", lines, tmp_path / "." / lines.name)
    assert same in fails(capsys, "vocab", lines, "--out", lines)
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "tokens.jsonl").symlink_to(lines)
    assert same in fails(capsys, "extract", "--model", model, "--out", tmp_path / "features", lines)
    assert same in fails(capsys, "predict", "sst2", "--model", model, "--data", data, "--out", data)
    assert (lines.read_bytes(), data.read_bytes()) == (corpus, rows)
