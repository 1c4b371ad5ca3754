"""What somebody gets wrong on the first day is answered by what to do about it."""

from __future__ import annotations

import dataclasses
import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_bert

import fastbert
from fastbert import other_names
from fastbert.cli import _usage
from fastbert.cli.main import COMMANDS, command_class, main
from fastbert.errors import FastbertError
from fastbert.models import registry
from fastbert.tasks.trained import model_directory

HUB = "google-bert/bert-base-uncased"
NOT_DOWNLOADED = "models are not downloaded: `hf download NAME --local-dir DIR`"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty directory that commands run in, with a text file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a film\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"fill-mask --model {HUB} [MASK]", NOT_DOWNLOADED),
        (f"encode --model {HUB} text.txt", NOT_DOWNLOADED),
        (f"convert {HUB} DIR", NOT_DOWNLOADED),
        (
            "encode --model . text.txt",
            ".: expected a model directory with config.json, or a run directory, got a direc",
        ),
        (
            "encode --model / text.txt",
            "/: expected a model directory with config.json, or a run directory, got a direc",
        ),
        ("encode --model text.txt text.txt", "with config.json, or a run directory, got a file\n"),
        ("pretrain --data text.txt --out RUN", "text.txt: expected data that `fastbert prepare` made"),
        ("pretrain --data DATA --out RUN", "DATA: expected data that `fastbert prepare` made"),
        ("pretrain --data DATA", "out: expected the run directory to make (--out RUN)"),
        ("report", "expected at least one run directory of `fastbert pretrain`, got none"),
        ("evaluate sst2 --data dev.tsv", "expected either --model or --predictions, got neither"),
        ("evaluate sst2 --data dev.tsv --model M --predictions P", "either --model or --predictions, got both\n"),
        ("pretrain --steps 10k --out RUN", "--steps: expected a whole number such as 20000, got '10k'\n"),
        ("pretrain --steps=1e4 --out RUN", "--steps: expected a whole number such as 20000, got '1e4'\n"),
        ("pretrain --samples.max-seqlen 1.5 --out RUN", "--samples.max-seqlen: expected a whole number such as 20000"),
        ("pretrain --lr fast --out RUN", "--lr: expected a number such as 0.1 or 2e-5, got 'fast'\n"),
        ("vocab text.txt --size 10k --out v.txt", "--size: expected a whole number such as 20000, got '10k'\n"),
        ("pretrain --config .", ".: expected a YAML file, got a directory\n"),
        ("encode --model ~nobody-of-this-name text.txt", "~nobody-of-this-name: expected a model directory"),
        ("finetune sst2 --model M --train a --dev b --out c --lr 1e30", "lr must be above 0 and at most 1e+12, got"),
        ("extract --model M --layers last5 text.txt", "--layers: expected one of embeddings, second-to-last, last,"),
        ("encode --model M --pooling avg text.txt", "--pooling: expected one of mean, cls, max, got 'avg'\n"),
        ("bench speed", "fastbert: expected one of all, inference, training, kernels, data, report, got 'speed'\n"),
        ("pretrain --resume yes --steps", "--steps: expected a value after it, got none\n"),
        ("pretrain --betas 0.9 --steps 3", "--betas: expected 2 values after it, got fewer\n"),
        ("pretrain --betas 0.9 high", "--betas: expected numbers, got '0.9', 'high'\n"),
        ("pretrain --samples.mask-mix a b c", "--samples.mask-mix: expected numbers, got 'a', 'b', 'c'\n"),
        ("finetune sst2 --model M --train T --out RUN --grid-epochs 2 1.5", "--grid-epochs: expected "),
        ("finetune sst2 --skip-bad-rows=true", "--skip-bad-rows: expected no value, got 'true'\n"),
        ("finetune sst2 --epoch 3", "unknown option --epoch (perhaps --epochs); `fastbert finetune --help` shows"),
        ("finetune sst2 --train T --outt RUN", "unknown option --outt (perhaps --out); `fastbert finetune --help`"),
        ("pretrain --samples-max_seqlen=64", "unknown option --samples-max_seqlen (perhaps --samples.max-seqlen);"),
        ("finetune sst2 --learning_rate=1e-4", "unknown option --learning_rate (perhaps --lr); `fastbert finetune --"),
        ("finetune sst2 --train_batch_size 8", "--train_batch_size (perhaps --batch-size or --token-budget);"),
        ("finetune sst2 --fp16", "unknown option --fp16 (perhaps --precision); `fastbert finetune --help` shows"),
        ("pretrain --num_train_steps 9", "unknown option --num_train_steps (perhaps --steps); `fastbert pretrain"),
        ("pretrain --max_seq_length 9", "unknown option --max_seq_length (perhaps --samples.max-seqlen); `fastbert"),
        ("predict squad1 --predict_file F", "unknown option --predict_file (perhaps --data); `fastbert predict"),
        ("encode --mode M text.txt", "unknown option --mode (perhaps --model); `fastbert encode --help` shows"),
        ("encode --model M --quick=yes text.txt", "unknown option --quick; `fastbert encode --help` shows"),
        ("encode --model M a.txt b.txt", "expected no more words, got 'b.txt'; `fastbert encode --help` shows the op"),
        ("convert M", "expected DST, got none; `fastbert convert --help` shows the options\n"),
        ("predict", "--model and --data, got none; `fastbert predict --help` shows the options\n"),
        ("pretrain", "out: expected the run directory to make (--out RUN), got none\n"),
        ("finetune", "expected TASK, --model, --train and --out, got none; `fastbert finetune --help` shows the op"),
    ],
)
@pytest.mark.parametrize("width", ["120", "30"])
def test_a_command_says_what_to_do(place, capsys, monkeypatch, command, said, width):
    """tyro's boxes, from which a part is read, are as wide as the terminal."""
    monkeypatch.setenv("COLUMNS", width)
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("word", ["", " ", "\n", " b", "a,b", ","])
@pytest.mark.parametrize("width", ["120", "30"])
def test_a_word_too_many_of_which_little_is_printed(place, capsys, monkeypatch, word, width):
    """`"$MORE"` where nothing is in MORE."""
    monkeypatch.setenv("COLUMNS", width)
    assert main(["convert", "M", "N", word]) == 2
    said = f"expected no more words, got {word!r}; `fastbert convert --help` shows the options"
    assert capsys.readouterr().err == f"fastbert: {said}\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["vocab", "text.txt", "--out", ""], "--out"),
        (["vocab", "text.txt", "", "--out", "vocab.txt"], "corpus"),
        (["vocab", "--cased", "", "--out", "vocab.txt"], "corpus"),
        (["report", "RUN", "--out="], "--out"),
        (["finetune", "sst2", "--model", "M", "--train", "T", "--dev", "D", "--also", "A", "", "--out", "R"], "--also"),
        (["evaluate", "sst2", "--data", "dev.tsv", "--predictions", "P", "--report", ""], "--report"),
        (["predict", "sst2", "--model", "M", "--data", "dev.tsv", "--out", ""], "--out"),
        (["extract", "--model", "M", "text.txt", "--out", ""], "--out"),
        (["encode", "--model", "M", ""], "file"),
        (["convert", "M", ""], "dst"),
        (["pretrain", "--config", ""], "--config"),
        (["pretrain", "--data", "DATA", "--out", ""], "--out"),
        (["pretrain", "--data", "", "--out", "RUN"], "--data"),
        (["pretrain", "--data", "DATA", "--out", "RUN", "--resume", ""], "--resume"),
        (["pretrain", "--data", "DATA", "--out", "RUN", "--deepspeed", ""], "--deepspeed"),
        (["finetune", "rte", "--model=M", "--train=T", "--dev=D", "--out=R", "--deepspeed="], "--deepspeed"),
        (["study", "table5", "--data-dir", ""], "--data-dir"),
    ],
)
def test_an_empty_text_is_not_the_working_directory(place, capsys, command, option):
    """`--out "$OUT"` where nothing is in OUT."""
    assert main(command) == 2
    assert capsys.readouterr().err.startswith(f"fastbert: {option}: expected a path, got an empty text")
    assert [path.name for path in place.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("demo --quick --out -", "--out"),
        ("vocab text.txt --out -", "--out"),
        ("prepare text.txt --vocab V --out=-", "--out"),
        ("pretrain --data DATA --out -", "--out"),
        ("report RUN --out -", "--out"),
        ("finetune sst2 --model M --train T --dev D --out -", "--out"),
        ("evaluate sst2 --model M --data - --report -", "--report"),
        ("extract --model M text.txt --out -", "--out"),
        ("encode --model M - --out -", "--out"),
        ("convert M -", "dst"),
        ("study table5 --out -", "--out"),
        ("study table5 --cache -", "--cache"),
        ("bench --out -", "--out"),
        ("bench report --page -", "--page"),
        ("report RUN --out /dev/stdout", "--out"),
    ],
)
def test_nothing_is_made_that_is_called_as_standard_output(place, capsys, command, option):
    assert main(command.split()) == 2
    said = f"fastbert: {option}: expected a name to write under, got {command.split('=')[-1].split()[-1]}: only"
    assert capsys.readouterr().err.startswith(said)
    assert [path.name for path in place.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_path_is_of_a_type_that_refuses_what_is_none(command):
    """Of tyro's own an empty text is the working directory, and - a name as others."""
    for field in dataclasses.fields(command_class(command)):
        assert "Path" not in re.sub("InputPath|OutputPath", "", field.type), field.name


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (lambda text: text.encode("utf-16"), ": expected text in UTF-8, got UTF-16, as PowerShell's > writes it"),
        (lambda text: gzip.compress(text.encode()), ": expected text in UTF-8, got a file that gzip compressed"),
        (lambda text: text.encode() + b"\n# caf\xe9\n", ", line 2: expected UTF-8, got 0xe9"),
    ],
    ids=["utf-16", "gzip", "latin-1"],
)
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("vocab.txt", "prepare text.txt --vocab vocab.txt --out DATA"),
        ("run.yaml", "pretrain --config run.yaml"),
        ("config.json", "encode --model . text.txt"),
    ],
)
def test_a_file_in_another_encoding_is_told_what_it_is(place, capsys, name, command, content, got):
    (place / name).write_bytes(content("steps: 2"))
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert f"{name}{got}" in error
    assert error.count("\n") == 1


def test_a_byte_order_mark_is_no_part_of_what_is_read(place):
    """Windows' editors write one."""
    tiny_bert.save(place / "model", "BertModel")
    for name in ("config.json", "vocab.txt"):
        (place / "model" / name).write_bytes(b"\xef\xbb\xbf" + (place / "model" / name).read_bytes())
    assert fastbert.load_tokenizer(place / "model" / "vocab.txt").token_to_id("[PAD]") == 0
    assert fastbert.BertModel.from_pretrained(place / "model").config.hidden_size == 32


def test_an_empty_text_is_a_text_where_no_path_belongs(place, capsys):
    """`--prompt ''` is none; a text may be empty."""
    assert main(["encode", "--model", "M", "--prompt", "", "text.txt"]) == 2
    assert main(["fill-mask", "--model", "M", ""]) == 2
    assert capsys.readouterr().err.count("M: expected a model directory") == 2


@pytest.mark.parametrize(
    "load", [fastbert.BertModel.from_pretrained, fastbert.SentenceEncoder.from_pretrained, fastbert.load_tokenizer]
)
def test_a_hubs_name_is_not_a_directory(place, load):
    with pytest.raises(FastbertError, match=NOT_DOWNLOADED):
        load(HUB)
    (place / "there").mkdir()
    with pytest.raises(FastbertError, match="expected") as found:
        load("there")
    assert "downloaded" not in str(found.value)


@pytest.mark.parametrize(
    "load",
    [
        fastbert.BertModel.from_pretrained,
        fastbert.BertConfig.from_pretrained,
        fastbert.SentenceEncoder.from_pretrained,
        fastbert.load_tokenizer,
        registry.of_model,  # of `pretrain --model`
    ],
)
def test_of_a_run_it_is_told_where_its_model_is(place, load):
    """Commands take a run's directory as well; `pretrain` and the library a model's."""
    tiny_bert.save(place / "RUN" / "model", "BertModel")
    with pytest.raises(FastbertError, match=r"^RUN: expected .*; the model of this run is RUN/model$"):
        load("RUN")
    load("RUN/model")


@pytest.mark.parametrize(
    "load",
    [
        fastbert.BertModel.from_pretrained,
        fastbert.BertConfig.from_pretrained,
        fastbert.SentenceEncoder.from_pretrained,
        registry.of_model,
        model_directory,  # of the other commands
    ],
)
def test_of_an_adapter_it_is_told_how_a_model_is_made_of_it(place, load):
    (place / "adapter").mkdir()
    (place / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(FastbertError, match=r"it holds a PEFT adapter: .*`merge_and_unload\(\)`.*`save_pretrained`$"):
        load("adapter")


def test_so_it_is_beside_its_models_configuration(place):
    tiny_bert.save(place / "adapter", "BertModel")
    (place / "adapter" / "model.safetensors").rename(place / "adapter" / "adapter_model.safetensors")
    (place / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(FastbertError, match="found neither; it holds a PEFT adapter"):
        fastbert.BertModel.from_pretrained("adapter")


def test_an_adapter_beside_its_models_weights_is_not_left_unread(place):
    tiny_bert.save(place / "both", "BertModel")
    (place / "both" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(FastbertError, match="got a PEFT adapter beside them: remove adapter_config"):
        fastbert.BertModel.from_pretrained("both")


def test_a_directory_is_not_called_onnx(place, capsys):
    assert main(["convert", "model", "model.onnx"]) == 2
    assert "got an ONNX file's name: add --to onnx" in capsys.readouterr().err
    assert not (place / "model.onnx").exists()


def test_a_kind_of_model_without_heads_is_used_by_its_features():
    with pytest.raises(FastbertError, match=r"has none \(--features trains a BiLSTM"):
        registry.of_model("elmo-mini").head("sequence")


def test_our_own_model_needs_no_patch():
    model = fastbert.BertModel(fastbert.BertConfig.from_name("1x64"))
    with pytest.raises(FastbertError, match="got fastbert's own BertModel"):
        fastbert.patch(model)


def test_the_home_directory_is_meant_by_a_tilde_that_the_shell_has_left(place, monkeypatch, capsys):
    """`--out=~/x` made a directory called ~."""
    monkeypatch.setenv("HOME", str(place / "home"))
    assert main(["vocab", "text.txt", "--min-frequency=1", "--size=20", "--out=~/v/vocab.txt"]) == 0
    assert (place / "home" / "v" / "vocab.txt").is_file()
    (place / "run.yaml").write_text("data: ~/DATA\nout: ~/RUN\nsteps: 1\nmodel: 2x64\n", encoding="utf-8")
    assert main(["pretrain", "--config", "run.yaml"]) == 2
    assert f"fastbert: {place / 'home' / 'DATA'}: expected data" in capsys.readouterr().err
    assert not (place / "~").exists()


def test_a_runs_directory_is_told_what_to_give_of_it(place, capsys):
    (place / "RUN" / "checkpoints").mkdir(parents=True)
    (place / "RUN" / "config.yaml").write_text("steps: 1\n", encoding="utf-8")
    for words, said in (
        ("--config RUN", "RUN: expected a YAML file, got a directory; the options of this run are in RUN/config.yaml"),
        ("--data DATA --out OTHER --resume RUN", "got a run's directory; --out RUN --resume auto continues it"),
    ):
        assert main(["pretrain", *words.split()]) == 2
        assert f"{said}\n" in capsys.readouterr().err


def test_a_run_that_was_renamed_is_not_started_anew_under_its_old_name(place, capsys):
    (place / "NEW" / "checkpoints").mkdir(parents=True)
    (place / "NEW" / "config.yaml").write_text("steps: 1\nout: OLD\ndata: DATA\n", encoding="utf-8")
    assert main(["pretrain", "--config", "NEW/config.yaml", "--resume", "auto"]) == 2
    assert "says out: OLD, where there is no run to continue, but it is in one: --out NEW" in capsys.readouterr().err
    for words in (["--out", "NEW"], ["--out", "OTHER"]):
        assert main(["pretrain", "--config", "NEW/config.yaml", "--resume", "auto", *words]) == 2
        assert "DATA: expected data" in capsys.readouterr().err


def test_standard_input_is_a_corpus(place):
    for command in ("vocab - --min-frequency 1 --size 20 --out vocab.txt", "prepare - --vocab vocab.txt --out DATA"):
        words = [sys.executable, "-m", "fastbert", *command.split()]
        environment = {**os.environ, "PYTHONPATH": str(Path(fastbert.__file__).parents[1])}
        ended = subprocess.run(words, input="a film\n", capture_output=True, text=True, env=environment, timeout=120)
        assert ended.returncode == 0, ended.stderr
    assert "train: 1 document, 1 sentence, " in ended.stdout


def test_names_of_other_programs_stand_for_options_that_are_here():
    """Each for an option of some command, and none is an option of every such command itself."""
    commands = [{name for name, _ in _usage._options(command_class(command))} for command in COMMANDS]
    for ours, theirs in other_names._NAMES.items():
        having = [known for known in commands if ours in known]
        assert having, ours
        for name in theirs:
            assert any(f"--{name}" not in known for known in having), (ours, name)


@pytest.mark.parametrize("command", ["vocab", "prepare", "report", "fill-mask", "study"])
def test_help_shows_that_a_list_is_needed(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main([command, "--help"]) == 0
    first = capsys.readouterr().out.partition("positional arguments")[2].partition("options")[0]
    assert "(required)" in first
    assert "(default: )" not in first


@pytest.mark.parametrize("command", ["encode {} text.txt", "extract {} --layers last text.txt", "fill-mask {} [MASK]"])
def test_a_vocabulary_with_more_words_than_the_model_is_told_at_once(place, capsys, caplog, command):
    """Otherwise the first text with one of these words would tell, perhaps the last of a file."""
    tiny_bert.save(place / "model")
    with (place / "model" / "vocab.txt").open("a") as file:
        file.write("zebra\n")
    size = len(tiny_bert.VOCAB)
    words = command.format("--model model").split()
    assert main(words) == 0
    told = f"model: the tokenizer's ids go up to {size}, but the model's vocab_size is {size}: texts with the others"
    assert told in caplog.text
    if words[0] == "fill-mask":
        assert main([*words, "--targets", "zebra"]) == 2
        assert f"targets must be below the model's vocab_size {size}, got {size}" in capsys.readouterr().err
