"""Entry point of ``fastbert``: finds the command, parses its options, and turns every failure into one sentence.

A command is a module of this package with a dataclass named after it (``fill-mask`` -> ``FillMask``) and ``run(args)``.
A module is imported only for its own command, and imports torch only inside ``run``, so that help is quick.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import dataclasses
import errno
import importlib
import inspect
import io
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TextIO

from ..errors import FastbertError, InputError
from ..files import NO_ROOM
from ..hardware import start_no_more_threads_than_cores
from ..text_files import parse_python

COMMANDS = {
    "demo": "train and use a small BERT on a built-in corpus, with a report; no download",
    "vocab": "train a WordPiece vocabulary on text files",
    "prepare": "turn text files into token shards for pre-training",
    "pretrain": "pre-train a model by masked language modelling and next sentence prediction",
    "report": "compare pre-training runs: figures, options that differ, curves",
    "finetune": "fine-tune a model on a task: GLUE, SQuAD, SWAG, named entities, your own texts",
    "evaluate": "score a fine-tuned model, or a file of predictions, by the task's official metric",
    "predict": "write a task's predictions in its official submission format",
    "fill-mask": "show the most likely tokens for each [MASK] in a text",
    "extract": "write contextual features of every token of a text file",
    "encode": "write one sentence vector per line of a text file, or row of a table",
    "convert": "convert between safetensors, pickle, TensorFlow 1, ONNX and sentence-transformers models",
    "study": "repeat the BERT paper's comparisons on a small scale, beside the paper's figures",
    "bench": "measure speed beside the libraries installed on this machine",
    "doctor": "show what was found on this machine, and which backend serves each op",
}

# What to try if the memory is not enough.
LESS_MEMORY = {
    "pretrain": "a smaller --token-budget with a larger --accumulate, which makes the same batch, "
    "--activation-checkpointing, or --precision bf16",
    "finetune": "--accumulate 2 or more, which makes the same step in parts, --activation-checkpointing, or "
    "--precision bf16",
    **dict.fromkeys(("evaluate", "predict", "encode"), "a smaller --token-budget"),
}

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + getattr(signal, "SIGPIPE", 13)


def usage() -> str:
    """The text of ``fastbert --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fastbert COMMAND [OPTIONS]",
            "",
            "BERT from raw text to use: vocabulary, data, pre-training, fine-tuning, inference.",
            "",
            "commands:",
            *lines,
            "",
            "`fastbert demo --quick` is a first try; `fastbert COMMAND --help` shows its options and an example.",
            "`fastbert --version` shows the version; FASTBERT_DEBUG=1 shows the traceback of an error.",
        ]
    )


def _command_module(command: str) -> ModuleType:
    return importlib.import_module(f".{command.replace('-', '_')}", __package__)


def command_class(command: str) -> type:
    """The dataclass of a command's options, from ``fill-mask`` to ``FillMask``."""
    return getattr(_command_module(command), "".join(word.capitalize() for word in command.split("-")))


def run_command(command: str, argv: Sequence[str]) -> None:
    """Parses a command's options and runs it.

    Raises:
        SystemExit: help was asked for, or an option could not be read.
    """
    module, options = _command_module(command), command_class(command)
    from ._paths import refuse_unfit  # imports tyro, which may not be installed
    from ._usage import check_lists

    # A command may take the defaults of its options from a file.
    default = module.defaults(argv) if hasattr(module, "defaults") else None
    found = parse(options, f"fastbert {command}", argv, default)
    refuse_unfit(found)
    check_lists(found, argv)
    module.run(found)


def parse(options: type, prog: str, argv: Sequence[str], default=None):
    """Parses the command line into an instance of the dataclass.

    Args:
        options: the dataclass.
        prog: the command's name in messages.
        argv: the words of the command line.
        default: an instance with the values of options that are not given.

    Raises:
        FastbertError: the command line is not valid, or the dataclass refused a value; tyro would print a box.
        SystemExit: tyro printed help, or an error of an unknown form.
    """
    import tyro

    from ._usage import check_switches, refuse
    from ._values import Unfit, registry

    check_switches(options, argv)
    _join_lines_of_help(options)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), registry(), _legible_width():
            return tyro.cli(
                options,
                prog=prog,
                args=list(argv),
                **({} if default is None else {"default": default}),
                # tyro would drop the example from the docstring.
                description=_wrapped(_docstring(options)),
            )
    except SystemExit as stop:
        cause = stop.__context__
        while cause is not None:
            if isinstance(cause, Unfit):  # the function that converts a word does not know the option's name
                option = re.search(r"Error\s+parsing[\s│]+(--[\w.-]+)", told.getvalue())
                raise InputError(f"{option[1]}: {cause}" if option else str(cause)) from None
            if isinstance(cause, FastbertError):
                raise cause from None
            cause = cause.__context__
        if stop.code:
            refuse(options, prog, argv, told.getvalue(), default)
        sys.stderr.write(told.getvalue())
        raise


@contextlib.contextmanager
def _legible_width() -> Iterator[None]:
    """Makes the terminal at least 40 columns wide for tyro, which breaks words below that, and never ends below 8."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(max(shutil.get_terminal_size().columns, 40))
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _docstring(options: type) -> str:
    """The docstring of a command; under ``python -OO``, which strips docstrings, it is read from the source."""
    if sys.flags.optimize < 2:
        return inspect.cleandoc(options.__doc__ or "")
    return ast.get_docstring(parse_python(inspect.getsource(options)).body[0]) or ""


def _wrapped(text: str) -> str:
    """Wraps the paragraphs of a text at the width of the terminal, as tyro does with options.

    tyro joins lines unless they begin with a space, so all lines of a paragraph but the first do.
    """
    lines = [""]
    for line in text.split("\n"):
        if lines[-1] and line and not line.startswith(" "):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    fill = textwrap.TextWrapper(
        shutil.get_terminal_size().columns,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    ).fill
    return "\n".join(line if line.startswith(" ") else fill(line) for line in lines[1:])


def _join_lines_of_help(options: type) -> None:
    """Joins the lines of options' docstrings: tyro would keep the line breaks, since the later lines are indented."""
    import docstring_parser

    described = {}
    for owner in reversed(options.__mro__[:-1]):
        described |= {found.arg_name: found.description for found in docstring_parser.parse_from_object(owner).params}
    for field in dataclasses.fields(options):
        if described.get(field.name):
            field.metadata = {"help": " ".join(described[field.name].split()), **field.metadata}
        if dataclasses.is_dataclass(field.default_factory):
            _join_lines_of_help(field.default_factory)


def explain(error: BaseException, command: str = "") -> tuple[str, int]:
    """An error of a command as one sentence, and the exit status: 2 for bad input, 1 for a bug of ours."""
    if isinstance(error, FastbertError):
        return str(error), EXIT_BAD_INPUT
    if _is_out_of_processes(error):
        return "no more processes or threads may be started: see `ulimit -u`, or the container's limit", EXIT_BAD_INPUT
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename is not None else reason, EXIT_BAD_INPUT
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # From a command line or a directory in another encoding; TensorBoard refuses such names.
        return f"expected names and texts in UTF-8, got {error.object[:100]!r}", EXIT_BAD_INPUT
    # Rust libraries (safetensors, tokenizers) report the operating system's error as text.
    reported = re.search(r"\b(?:code: |os error )(\d+)\b", str(error))
    if reported and int(reported[1]) in NO_ROOM:
        return os.strerror(int(reported[1])), EXIT_BAD_INPUT
    if _is_out_of_memory(error):
        asked = re.search(r"allocate ([\d.]+ \w+)", str(error))
        what = "not enough memory" + (" on the GPU" if "CUDA" in str(error) else "")
        what += f": {asked[1]} more could not be had" if asked else ""
        return f"{what}; try {LESS_MEMORY[command]}" if command in LESS_MEMORY else what, EXIT_BAD_INPUT
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("fastbert"):
        package = error.name.partition(".")[0]
        return f"the package {package}, which fastbert needs, is not installed for {sys.executable}", EXIT_BAD_INPUT
    what = f"internal error, please report it: {type(error).__name__}: {error}"
    return f"{what} (FASTBERT_DEBUG=1 shows the traceback)", EXIT_FAILURE


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory could not be had: by Python and numpy, and by torch, which this module does not import."""
    said = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and any(text in str(error) for text in said))


def _is_out_of_processes(error: BaseException) -> bool:
    """Whether the system lets this user or container start no more processes or threads: as `os.fork`, Python's
    threads and tokenizers report it."""
    said = ("can't start new thread", "unable to start watchdog thread", "ThreadPoolBuildError")
    return str(error) == str(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))) or any(
        text in str(error) for text in said
    )


def _is_of_output(error: BaseException) -> bool:
    """Whether a command could not print: there is no room where standard output goes."""
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in NO_ROOM:
        return False
    try:
        sys.stdout.flush()  # what could not be written is still there
    except OSError:
        _discard(sys.stdout)
        return True
    return False


def _fail(message: str, status: int) -> int:
    try:
        print(f"fastbert: {message}", file=sys.stderr, flush=True)
    except OSError:  # a full disk: the status still tells
        _discard(sys.stderr)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, 1 for a bug, 2 for bad input, 130 if interrupted, 141 if the reader
    of standard output has ended."""
    argv = sys.argv[1:] if argv is None else list(argv)
    _mend_streams()
    status = EXIT_BROKEN_PIPE
    with contextlib.suppress(BrokenPipeError):  # the reader (head, less) has ended, which is not an error
        status = _main(argv)
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        # If the command itself failed because of the full disk, it has reported that.
        status = status or _fail(f"standard output: {error.strerror}", EXIT_BAD_INPUT)
    return status


def _discard(stream: TextIO) -> None:
    """Sends what a stream could not write to the null device: Python flushes again when it ends, and if that fails, the
    status is 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _mend_streams() -> None:
    """Replaces standard streams that the process was started without (``>&-``, some daemons), which are None in Python,
    by the null device. Those that do not block (a parent such as Node.js sets that) are made to: Python loses what it
    cannot write at once."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
        with contextlib.suppress(OSError):  # a stream that is no file, as in tests and notebooks
            os.set_blocking(getattr(sys, name).fileno(), True)


def _main(argv: list[str]) -> int:
    debug = os.environ.get("FASTBERT_DEBUG", "") not in ("", "0")
    try:
        return _answer(argv)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich exits with 1 if the reader has ended
            return EXIT_BROKEN_PIPE
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else _fail(str(stop.code), 1)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        if debug:
            raise
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BaseException as error:
        # A panic in a library that is written in Rust is no Exception.
        if debug or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        # A run of several processes prints one sentence, from the process that failed.
        if getattr(error, "told_by_another_rank", False):
            return EXIT_BAD_INPUT
        if _is_of_output(error):
            return _fail(f"standard output: {error.strerror}", EXIT_BAD_INPUT)
        return _fail(*explain(error, next((word for word in argv if word in COMMANDS), "")))


def _shown(error: UnicodeEncodeError) -> tuple[str | bytes, int]:
    """The error handler for printing: bytes of file names that are not UTF-8 are printed unchanged, and other
    characters that the terminal's encoding lacks as escapes."""
    one = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    try:
        return codecs.lookup_error("surrogateescape")(one)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(one)


def _encode_output() -> None:
    """Makes everything printable: files and pipes are in UTF-8 whatever the locale is, a terminal gets its own
    encoding. Reconfiguring flushes the stream, so a full disk may be reported here."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        codecs.register_error(__name__, _shown)
        sys.stdout.reconfigure(encoding=encoding, errors=__name__)


def _answer(argv: list[str]) -> int:
    _encode_output()
    if argv[:1] == ["help"] and argv[1:2]:
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else EXIT_BAD_INPUT
    if argv[0] in ("-V", "--version"):
        from .. import __version__

        print(f"fastbert {__version__}")
        return 0
    if argv[0].startswith("--local_rank="):  # deepspeed's launcher puts it before the command
        argv = argv[1:]
    command = argv[0] if argv else ""
    if command not in COMMANDS:
        return _fail(f"no such command: {command}; known are {', '.join(COMMANDS)}", EXIT_BAD_INPUT)
    if sys.platform == "win32":  # which lacks file locks and some of the signals that a run relies on
        return _fail("expected Linux or macOS, got Windows: run the commands in WSL", EXIT_BAD_INPUT)
    start_no_more_threads_than_cores()
    run_command(command, argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
