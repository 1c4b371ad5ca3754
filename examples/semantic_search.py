"""Search in a text file by meaning, one text a line.

    python examples/semantic_search.py --model all-MiniLM-L6-v2 notes.txt "how do I renew my passport"
    python examples/semantic_search.py --model all-MiniLM-L6-v2 notes.txt < questions.txt

Prints, for every question, the lines that are nearest to it: cosine, line number, text. With ``--index FILE.npy`` the
vectors are kept there and used again as long as neither the text nor the way of computing them has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from fastbert import SentenceEncoder
from fastbert.errors import FastbertError, InputError

WINDOW = 4096  # lines encoded at a time, so that memory holds their vectors and not their hidden states


def read_texts(path: Path) -> list[tuple[int, str]]:
    """(line number, text) of every line that is not blank."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected a text file in UTF-8, got {error}") from error
    texts = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise InputError(f"{path}: expected lines of text, got none")
    return texts


def encode_all(encoder: SentenceEncoder, texts: Iterable[str]) -> np.ndarray:
    """(N, H) float32 vectors of length 1.

    Every model has the prompts "document", for texts, and "query", for questions; empty where it was trained without.
    Its default prompt, which may be the other one, then stands before neither.
    """
    texts, parts = iter(texts), []
    while window := list(islice(texts, WINDOW)):
        parts.append(encoder.encode(window, prompt_name="document", normalize=True))
    return np.concatenate(parts)


def index(encoder: SentenceEncoder, texts: list[tuple[int, str]], maker: str, path: Path | None) -> np.ndarray:
    """The texts' vectors: from the index where it is of these texts and made likewise, else computed and kept there."""
    mark = hashlib.sha256(json.dumps([maker, texts]).encode()).hexdigest()
    beside = None if path is None else path.with_name(path.name + ".json")
    if path is not None:
        try:
            if json.loads(beside.read_text()) == {"of": mark, "written": path.stat().st_mtime_ns}:
                kept = np.load(path, mmap_mode="r")
                if kept.shape == (len(texts), encoder.dim):
                    return kept
        except (OSError, ValueError, EOFError):  # none yet, or a damaged one: it is made anew
            pass
    if path is None:
        return encode_all(encoder, (text for _, text in texts))
    with whole(path) as file:  # where it cannot be written is told before the long work
        vectors = encode_all(encoder, (text for _, text in texts))
        np.save(file, vectors)
        beside.unlink(missing_ok=True)
    with whole(beside) as file:  # the mark last: an index that was cut short is not taken for one
        # The time tells a file that another program, such as `fastbert encode`, has put in its place.
        file.write(json.dumps({"of": mark, "written": path.stat().st_mtime_ns}).encode())
    return vectors


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name once it is whole."""
    if path.is_dir():
        raise InputError(f"{path}: expected a file to write, got a directory")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")  # another search may write the same index
    try:
        with open(unfinished, "wb") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def made_by(model: Path, precision: str, index: Path | None) -> str:
    """What decides about vectors besides the texts: another model may come to lie where the first one was."""
    own = [] if index is None else [index.resolve(), index.resolve().with_name(index.name + ".json")]
    files = sorted(file for file in model.resolve().rglob("*") if file.is_file() and file not in own)
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return json.dumps([precision, states])


def search(encoder: SentenceEncoder, vectors: np.ndarray, questions: list[str], top: int) -> list[list[tuple]]:
    """For each question its nearest rows, as (cosine, row): the best first, and of equally near ones the first."""
    scores = encoder.encode(questions, prompt_name="query", normalize=True) @ vectors.T
    return [[(float(row[i]), int(i)) for i in nearest(row, top)] for row in scores]


def nearest(scores: np.ndarray, top: int) -> np.ndarray:
    """The places of the ``top`` highest of the scores (N,). Only these are sorted, since to sort all of a
    million takes as long as to compute them."""
    found = np.arange(len(scores))
    if top < len(scores):
        least = np.partition(scores, -top)[-top]
        found = np.flatnonzero(scores >= least)  # more than ``top`` if some are equal
    return found[np.argsort(-scores[found], kind="stable")][:top]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the texts, one a line")
    parser.add_argument("questions", nargs="*", help="what to look for; lines of standard input where none is given")
    parser.add_argument("--model", type=Path, required=True, help="a sentence-transformers or BERT directory")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--precision", choices=("fp32", "bf16", "int8"), default="fp32")
    parser.add_argument("--index", type=Path, metavar="FILE.npy", help="keeps the vectors between runs")
    args = parser.parse_intermixed_args(arguments)  # options may stand between the file and the questions
    if args.top < 1:
        parser.error(f"--top must be at least 1, got {args.top}")
    if args.index is not None and args.index.suffix != ".npy":
        parser.error(f"--index must be a .npy file, got {args.index}")
    if args.index is not None and args.index.resolve() == args.file.resolve():
        parser.error(f"--index must be another file than the texts, got {args.index} for both")
    return args


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # one that cannot write every letter shows others by their numbers
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):  # as the file is read, whatever the locale is
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    try:
        texts = read_texts(args.file)
        encoder = SentenceEncoder.from_pretrained(args.model, precision=args.precision)
        vectors = index(encoder, texts, made_by(args.model, args.precision, args.index), args.index)
        for question in args.questions or (line.strip() for line in sys.stdin or ()):
            if not question:
                continue
            print(f"? {question}")
            for score, row in search(encoder, vectors, [question], args.top)[0]:
                number, text = texts[row]
                print(f"{score:7.4f}  line {number}: {text}", flush=True)
    except BrokenPipeError:  # the reader (head, less) has gone; Python would complain of it once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # what a shell shows for a program that SIGPIPE ended
    except (FastbertError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except UnicodeDecodeError as error:
        print(f"error: standard input: expected UTF-8, got {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
