"""The command line's door: help, unknown commands, and every failure as one sentence."""

import array
import dataclasses
import errno
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch

from fastbert.cli import doctor, finetune, pretrain
from fastbert.cli import main as cli
from fastbert.errors import DataError


def fastbert(*args, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "fastbert", *args], capture_output=True, text=True, timeout=120, **kwargs
    )


def one_sentence(text: str) -> bool:
    return text.startswith("fastbert: ") and text.count("\n") == 1 and "Traceback" not in text


def test_help_lists_every_command_and_is_quick():
    done = fastbert("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("finetune", "auto = on one GPU, if the head allows it; on = fail if it is not possible"),
        ("pretrain", "every token from those before it. A BERT with new weights"),
    ],
)
def test_sentences_of_an_options_help_are_not_broken_where_the_source_is(command, sentence):
    assert sentence in fastbert(command, "--help", env={**os.environ, "COLUMNS": "1000"}).stdout


def test_help_of_a_command_can_be_asked_for_in_two_ways(capsys):
    assert cli.main(["encode", "--help"]) == 0
    told = capsys.readouterr().out
    assert cli.main(["help", "encode"]) == 0
    assert capsys.readouterr().out == told
    assert cli.main(["help", "nosuch"]) == 2


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_keeps_to_the_screen_but_for_commands_to_copy(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if len(line) > 80 and not line.startswith("    fastbert ")]


@pytest.mark.parametrize("width", ["1", "20"])
def test_help_of_a_terminal_that_is_too_narrow(width):
    """In a process, since tyro would never end in 1 column."""
    narrow, wider = (fastbert("encode", "--help", env={**os.environ, "COLUMNS": each}) for each in (width, "40"))
    assert narrow.returncode == wider.returncode == 0
    assert narrow.stdout == wider.stdout
    assert "--model" in narrow.stdout


@pytest.mark.parametrize("command", ["encode", "finetune"])
def test_help_is_whole_where_python_strips_docstrings(command):
    told = [
        subprocess.run(
            [sys.executable, *flags, "-m", "fastbert", command, "--help"], capture_output=True, text=True, timeout=120
        )
        for flags in ([], ["-OO"])
    ]
    assert told[0].stdout == told[1].stdout
    assert f"fastbert {command} " in told[1].stdout.partition("Example:")[2].partition("options")[0]


def test_version_is_the_packages(capsys):
    import fastbert as package

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"fastbert {package.__version__}\n"


def test_no_arguments_is_an_error_with_the_usage(capsys):
    assert cli.main([]) == 2
    told = capsys.readouterr()
    assert "usage: fastbert COMMAND" in told.err
    assert told.out == ""
    assert cli.main(["help"]) == 0
    assert "usage: fastbert COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "option"), [("pretrain", "verify-data"), ("pretrain", "offload"), ("finetune", "correct-bias")]
)
def test_help_shows_both_forms_of_a_switch(command, option):
    """What is on by default has a text that says what it does when it is on."""
    assert f"--{option}, --no-{option}" in fastbert(command, "--help", env={**os.environ, "COLUMNS": "120"}).stdout


@pytest.mark.parametrize("command", ["finetune", "evaluate", "predict"])
def test_help_names_what_an_option_of_several_takes(command, capsys, monkeypatch):
    """tyro's own form is {None}|{[STR [STR ...]]}."""
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--text-columns COLUMN [COLUMN]" in told
    assert "}|{" not in told


@pytest.mark.parametrize("said", [True, False])
def test_a_switch_of_a_file_of_options_can_be_put_either_way(tmp_path, said):
    config = tmp_path / "config.yaml"
    config.write_text(f"async_save: {said}\nverify_data: {said}\nsamples: {{nsp: {said}}}\n".lower())
    words = ["--config", str(config)]
    on, off = (
        ["--async-save", "--verify-data", "--samples.nsp"],
        ["--no-async-save", "--no-verify-data", "--samples.no-nsp"],
    )
    for given, expected in (([], said), (on, True), (off, False)):
        found = cli.parse(pretrain.Pretrain, "fastbert pretrain", [*words, *given], pretrain.defaults(words))
        assert [found.async_save, found.verify_data, found.samples.nsp] == [expected] * 3


@pytest.mark.parametrize("word", ["--no-correct-bias", "--correct-bias", "--no-skip-bad-rows", "--grid", "--no_grid"])
def test_the_task_is_found_after_a_switch(word):
    assert finetune.defaults([word, "swag", "--model", "DIR"]).batch_size == 16


@pytest.fixture(scope="module")
def helps() -> dict[str, list]:
    """Of every command what its help is, how it ended, and which heavy modules were there after it: of one process."""
    code = (
        "import contextlib, io, json, sys\n"
        "from fastbert.cli.main import COMMANDS, main\n"
        "found = {}\n"
        "for command in COMMANDS:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as told:\n"
        "        status = main([command, '--help'])\n"
        "    heavy = {'torch', 'transformers', 'matplotlib', 'tensorboard'} & set(sys.modules)\n"
        "    found[command] = [status, sorted(heavy), told.getvalue()]\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help_with_an_example_and_needs_no_torch(helps, command):
    status, heavy, told = helps[command]
    assert (status, heavy) == (0, [])
    assert "Example" in told
    assert f"fastbert {command}" in told.split("Example", 1)[1]


def test_unknown_command_names_the_known(capsys):
    assert cli.main(["studies"]) == 2
    error = capsys.readouterr().err
    assert one_sentence(error)
    assert "no such command: studies; known are demo, vocab" in error


def test_windows_is_refused_in_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(cli.sys, "platform", "win32")
    assert cli.main(["doctor"]) == 2
    error = capsys.readouterr().err
    assert one_sentence(error)
    assert "expected Linux or macOS, got Windows" in error


def test_unknown_option_exits_2(capsys):
    assert cli.main(["doctor", "--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


@pytest.fixture
def failing(monkeypatch):
    """Makes ``fastbert doctor`` raise the given error."""

    def arrange(error):
        def run(args):
            raise error

        monkeypatch.delenv("FASTBERT_DEBUG", raising=False)
        monkeypatch.setattr(doctor, "run", run)

    return arrange


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (DataError("x.tsv, line 3: bad"), 2, "fastbert: x.tsv, line 3: bad\n"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "x"),
            2,
            "fastbert: x: No such file or directory\n",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "fastbert: No space left on device\n"),
        (RuntimeError('IoError(Os { code: 28, kind: StorageFull, message: "..." })'), 2, "No space left on device"),
        (RuntimeError(f"I/O error (os error {errno.EDQUOT})"), 2, f"fastbert: {os.strerror(errno.EDQUOT)}\n"),
        (RuntimeError("I/O error: Permission denied (os error 13)"), 1, "internal error"),
        (UnicodeEncodeError("utf-8", "caf\udce9", 3, 4, "surrogates not allowed"), 2, "in UTF-8, got 'caf\\udce9'\n"),
        (ModuleNotFoundError("no", name="tyro.conf"), 2, "the package tyro, which fastbert needs, is not installed"),
        (ModuleNotFoundError("no", name="fastbert.cli.nothing"), 1, "internal error"),
        (MemoryError(), 2, "fastbert: not enough memory\n"),
        (
            MemoryError("Unable to allocate 7.45 GiB for an array with shape"),
            2,
            "memory: 7.45 GiB more could not be had\n",
        ),
        (KeyboardInterrupt(), 130, "fastbert: interrupted\n"),
        (TypeError("oops"), 1, "internal error, please report it: TypeError: oops"),
    ],
)
def test_failures_are_one_sentence(failing, capsys, error, status, sentence):
    failing(error)
    assert cli.main(["doctor"]) == status
    message = capsys.readouterr().err
    assert sentence in message
    assert one_sentence(message)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB"
        ),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_gpu_of_too_little_memory_is_no_bug(error):
    message, status = cli.explain(error, "finetune")
    assert status == 2
    asked = ": 2.00 GiB more could not be had" if "2.00" in str(error) else ""
    assert message.startswith(f"not enough memory on the GPU{asked}; try --accumulate 2 or more, which makes the same")


def test_nor_is_a_machine_of_too_little_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8, device="cpu")
    message, status = cli.explain(caught.value, "predict")
    assert (message, status) == (
        "not enough memory: 1152921504606846976 bytes more could not be had; try a smaller --token-budget",
        2,
    )


class PanicException(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        RuntimeError("can't start new thread"),
        PanicException("The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(Os { "),
    ],
)
def test_a_limit_of_processes_is_no_bug(failing, capsys, error):
    failing(error)
    assert cli.main(["doctor"]) == 2
    message = capsys.readouterr().err
    assert message == (
        "fastbert: no more processes or threads may be started: see `ulimit -u`, or the container's limit\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe can be set on Linux")
def test_standard_output_that_does_not_block_gets_all_of_it():
    """A parent may have set that, and read slowly; all but the first part was lost, without an error."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    command = [sys.executable, "-m", "fastbert", "pretrain", "--help"]
    env = {**os.environ, "COLUMNS": "1000"}
    with subprocess.Popen(command, stdout=writing, env=env) as process, open(reading) as pipe:
        os.close(writing)
        held = array.array("i", [0])
        while not held[0] and process.poll() is None:
            time.sleep(0.05)
            fcntl.ioctl(reading, termios.FIONREAD, held)
        time.sleep(0.5)  # until it does not all go into the pipe
        told = pipe.read()
    assert process.returncode == 0
    assert told == fastbert("pretrain", "--help", env=env).stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_status_does_not_depend_on_what_can_be_printed(unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fastbert", "nosuch"]
        assert subprocess.run(command, stderr=full, timeout=60, env=environment).returncode == 2


def test_a_panic_is_one_sentence(failing, capsys):
    failing(PanicException("no entry found"))
    assert cli.main(["doctor"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("fastbert: internal error, please report it: PanicException: no entry found")
    assert one_sentence(message)


@pytest.mark.parametrize("command", cli.LESS_MEMORY)
def test_what_to_try_then_are_options_of_the_command(command):
    names = {field.name.replace("_", "-") for field in dataclasses.fields(cli.command_class(command))}
    options = re.findall(r"--([a-z-]+)", cli.LESS_MEMORY[command])
    assert options
    assert set(options) <= names


def test_debug_shows_the_traceback(failing, monkeypatch):
    failing(TypeError("oops"))
    monkeypatch.setenv("FASTBERT_DEBUG", "1")
    with pytest.raises(TypeError, match="oops"):
        cli.main(["doctor"])


def test_names_that_are_no_utf_8_are_printed_as_they_came(monkeypatch):
    monkeypatch.setattr(doctor, "run", lambda args: print("caf\udce9.tsv"))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8"))
    assert cli.main(["doctor"]) == 0
    assert written.getvalue() == b"caf\xe9.tsv\n"


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "written"),
    [(io.TextIOWrapper, "é \u2192 caf".encode() + b"\xe9\n"), (Terminal, rb"\xe9 \u2192 caf" + b"\xe9\n")],
    ids=["pipe", "terminal"],
)
def test_what_a_locale_has_no_letters_for_is_no_bug_of_ours(monkeypatch, kind, written):
    """A pipe gets UTF-8, as files do; a terminal what it can show."""
    monkeypatch.setattr(doctor, "run", lambda args: print("é \u2192 caf\udce9"))
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", kind(held, "ascii"))
    assert cli.main(["doctor"]) == 0
    assert held.getvalue() == written


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m fastbert --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_table_into_a_closed_pipe_is_no_bug_of_ours(tmp_path):
    command = f"{{ sleep 1; {sys.executable} -m fastbert doctor; }} | true; exit ${{PIPESTATUS[0]}}"
    # The package under test: in a checkout whose sources have no kernels Python would warn of them.
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, **place)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
@pytest.mark.parametrize("argument", ["--help", "--version", "encode --help", "doctor --help"])
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_behind_standard_output_is_one_sentence(argument, unbuffered):
    command = f"{sys.executable} -m fastbert {argument} > /dev/full"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert one_sentence(done.stderr)
    assert "No space left on device" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_command_that_met_a_full_standard_output_says_so_once(failing, monkeypatch, capfd):
    failing(OSError(errno.ENOSPC, "No space left on device"))
    with open("/dev/full", "w") as full:
        full.write("what the command could not write")
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["doctor"]) == 2
    assert capfd.readouterr().err == "fastbert: standard output: No space left on device\n"


def test_a_full_disk_elsewhere_is_not_that_of_standard_output(failing, capfd):
    failing(OSError(errno.ENOSPC, "No space left on device"))
    assert cli.main(["doctor"]) == 2
    assert capfd.readouterr().err == "fastbert: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="descriptors of a POSIX shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_if_it_led_nowhere(tmp_path, closed):
    program = (
        "import sys\n"
        "from fastbert.cli import main as cli\n"
        "from fastbert.tasks.files import read_lines\n"
        "from fastbert.cli._progress import progress\n"
        "def run(command, argv):\n"
        "    with progress('lines', None, 'lines'):\n"
        "        print(len(list(read_lines('-'))))\n"
        "cli.run_command = run\n"
        f"open({str(tmp_path / 'status')!r}, 'w').write(str(cli.main(['doctor'])))\n"
    )
    command = f'{sys.executable} -c "$0" < /dev/null {closed}'
    done = subprocess.run(["bash", "-c", command, program], capture_output=True, text=True, timeout=60)
    assert (tmp_path / "status").read_text() == "0", done.stderr
    assert (done.returncode, done.stderr) == (0, "")
