"""Files that a stranger may hand over, broken in every way, and what reads them.

Run as a script it does any number of cases, on any number from the first on:

    python tests/fuzz.py --cases 1000000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import mmap
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import unigram
from tokenizers import normalizers

from fastbert import BertConfig
from fastbert.data.manifest import Manifest, SpecialIds
from fastbert.data.shard_writer import ShardWriter
from fastbert.data.shards import ShardSet
from fastbert.data.tokenizer import load_tokenizer
from fastbert.errors import FastbertError
from fastbert.train import checkpoint
from fastbert.train.config import PretrainConfig
from fastbert.weights.reading import read_state_dict
from fastbert.weights.tensor_bundle import index_bytes, read_bundle, write_data

# What tends to break readers of numbers.
_NUMBERS = [0, 1, -1, 7, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**9, 10**30, 1e308, -0.5]
_VALUES = [*_NUMBERS, None, True, "", "..", "../../etc/passwd", "/", "\0", "x" * 300, [], {}, [[[]]], {"a": {}}]
_PIECES = [b"\0" * 8, b"\xff" * 8, b"[" * 50, b"{" * 50, b'"', b"\\u0000", b"../", b"1e999", b"\x80\x04", b"NaN"]


@dataclass(frozen=True)
class Target:
    """One file that is broken, the directory it lies in, and what reads it."""

    name: str
    file: Path
    good: bytes
    read: Callable[[], object]


def targets(home: Path) -> list[Target]:
    """Whole directories of every kind; each has one file that is going to be broken."""
    tensors = {f"layer.{i}.weight": torch.randn(3, 4) for i in range(4)} | {"half": torch.ones(5).bfloat16()}
    made = []

    def add(name: str, folder: str, file: str, read: Callable[[Path], object], build: Callable[[Path], object]) -> None:
        directory = home / folder
        directory.mkdir()
        build(directory)
        path = directory / file
        made.append(Target(name, path, path.read_bytes(), lambda: read(directory)))

    def shards(d: Path) -> None:
        writer = ShardWriter(d, "train", 100)
        writer.add([np.arange(5, 9), np.arange(10, 17)])
        entries = tuple(writer.close())
        manifest = Manifest(100, SpecialIds(0, 1, 2, 3, 4), "0" * 64, {"train": entries}, writer.files)
        (d / "manifest.json").write_text(manifest.dumps())

    def index(d: Path) -> None:
        safetensors.torch.save_file(tensors, d / "a.safetensors")
        weight_map = {"weight_map": dict.fromkeys(tensors, "a.safetensors")}
        (d / "model.safetensors.index.json").write_text(json.dumps(weight_map))

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "the", "é"]

    def tokenizer(d: Path) -> None:
        (d / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        load_tokenizer(d).save(str(d / "tokenizer.json"))

    def sentencepiece(d: Path) -> None:
        whole = unigram.make()
        whole.normalizer = normalizers.Precompiled(unigram.charsmap({"\t": " "}))
        held = json.loads(whole.to_str())
        held["model"]["vocab"] = held["model"]["vocab"][:12]
        held["added_tokens"][-1]["id"] = 12
        (d / "tokenizer.json").write_text(json.dumps(held))

    def bundle(d: Path) -> None:
        with open(d / "bert.ckpt.data-00000-of-00001", "wb") as file:
            entries = write_data(tensors, file)
        (d / "bert.ckpt.index").write_bytes(index_bytes(entries))

    saved = {"w": torch.randn(4, 4), "optimizer.exp_avg.w": torch.randn(4, 4)}
    config = BertConfig(vocab_size=30, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    weights = "model.safetensors"
    add("safetensors", "st", weights, read_state_dict, lambda d: safetensors.torch.save_file(tensors, d / weights))
    add("index", "index", "model.safetensors.index.json", read_state_dict, index)
    pickle = "pytorch_model.bin"
    add("pickle", "pickle", pickle, read_state_dict, lambda d: torch.save(tensors, d / pickle))
    add("config", "config", "config.json", BertConfig.from_pretrained, config.save_pretrained)
    add("tokenizer.json", "tok", "tokenizer.json", load_tokenizer, tokenizer)
    add("tokenizer.json of a Unigram", "unigram", "tokenizer.json", load_tokenizer, sentencepiece)
    add("vocab.txt", "vocab", "vocab.txt", lambda d: load_tokenizer(d / "vocab.txt"), tokenizer)
    for part in ("manifest.json", "state.json", "weights.safetensors", "optimizer.safetensors"):
        add(
            f"checkpoint {part}",
            part,
            f"step_1/{part}",
            lambda d: checkpoint.load(d / "step_1"),
            lambda d: checkpoint.save(d, 1, saved, {}),
        )
    add("shards manifest", "sm", "manifest.json", lambda d: ShardSet.open(d).sentence_lengths, shards)
    add("shards index", "si", "train/shard-00000.idx", lambda d: ShardSet.open(d).sentence_lengths, shards)
    options = PretrainConfig(data="x", out="y").to_yaml()
    recipe = "c.yaml"

    def write_recipe(d: Path) -> None:
        (d / recipe).write_text(options)

    add("yaml", "y", recipe, lambda d: PretrainConfig.from_yaml(d / recipe), write_recipe)
    add("tensorflow", "tf", "bert.ckpt.index", lambda d: read_bundle(d / "bert.ckpt"), bundle)
    return made


def broken(good: bytes, draw: random.Random) -> bytes:
    """The bytes with one to four things done to them."""
    data = good
    if draw.random() < 0.5 and (changed := _changed_json(good, draw)) is not None:
        data = changed
    else:
        for _ in range(draw.randint(1, 4)):
            data = draw.choice([_flip, _cut, _splice, _insert, _number])(bytearray(data), draw)
    return bytes(data)


def _flip(data: bytearray, draw: random.Random) -> bytearray:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return data


def _cut(data: bytearray, draw: random.Random) -> bytearray:
    return data[: draw.randrange(len(data) + 1)]


def _splice(data: bytearray, draw: random.Random) -> bytearray:
    first, last = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    place = draw.randrange(len(data) + 1)
    return data[:place] + data[first : min(last, first + 64)] + data[place:]


def _insert(data: bytearray, draw: random.Random) -> bytearray:
    place = draw.randrange(len(data) + 1)
    return data[:place] + draw.choice(_PIECES) + data[place + draw.choice([0, 8]) :]


def _number(data: bytearray, draw: random.Random) -> bytearray:
    """A little-endian integer of eight bytes in place of what is there: lengths, offsets, counts."""
    place = draw.choice([0, draw.randrange(max(len(data), 1))])
    data[place : place + 8] = (int(draw.choice(_NUMBERS[:10])) % 2**64).to_bytes(8, "little")
    return data


def _changed_json(good: bytes, draw: random.Random) -> bytes | None:
    """A value, or a key, somewhere in a JSON file, or in the header of a safetensors file, is another."""
    front = b""
    if good[:1] not in b"{[" and good[8:9] == b"{":
        front, body = good[:8], good[8 : 8 + int.from_bytes(good[:8], "little")]
        rest = good[8 + len(body) :]
    else:
        body, rest = good, b""
    try:
        tree = json.loads(body)
    except ValueError:
        return None
    places = list(_places(tree)) if isinstance(tree, dict | list) else []
    if not places:
        return None
    for _ in range(draw.randint(1, 3)):
        holder, key = draw.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            if isinstance(holder, dict) and draw.random() < 0.3:
                holder[str(draw.choice(_VALUES))] = holder.pop(key)
            else:
                holder[key] = draw.choice(_VALUES)
    text = json.dumps(tree).encode()
    return (len(text).to_bytes(8, "little") if front else b"") + text + rest


def _places(tree):
    for key, value in list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list) and value:
            yield from _places(value)


def run(cases: int, first: int = 0, report: Callable[[str], None] = lambda _: None) -> dict:
    """Does the cases in a copy of this process, so that even a crash is told; returns counts and memory.

    Returns:
        refused, accepted: cases that ended in one of our errors, or were read.
        growth_mib: by how much the copy's largest memory grew.
        failure: number and traceback of the cases that ended otherwise, the first of each kind; absent without any.
    """
    note = mmap.mmap(-1, 1 << 16)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            note[8:8] = b""
            _work(cases, first, note, report)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    result = json.loads(bytes(note[8:]).split(b"\0")[0] or b"{}")
    if os.waitstatus_to_exitcode(status):
        at = int.from_bytes(note[:8], "little")
        result.setdefault("failure", f"case {at}: the process died with status {status}")
    return result


def _work(cases: int, first: int, note: mmap.mmap, report: Callable[[str], None]) -> None:
    logging.disable(logging.WARNING)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    home, counts = Path(tempfile.mkdtemp(dir=place, prefix="fastbert-fuzz-")), {"refused": 0, "accepted": 0}
    torch.manual_seed(0)
    try:
        known = targets(home)
        for target in known:
            target.read()  # whole, each can be read; else nothing would be proven
        failures: dict[str, str] = {}  # the first of each kind
        before, began = _memory(), time.monotonic()
        for number in range(first, first + cases):
            note[:8] = number.to_bytes(8, "little")
            target, draw = known[number % len(known)], random.Random(number)
            target.file.write_bytes(broken(target.good, draw))
            try:
                target.read()
                counts["accepted"] += 1
            except FastbertError as error:
                counts["refused"] += 1
                if "\n" in str(error):
                    failures.setdefault("not one line", f"case {number}, {target.name}: not one line: {error}")
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = f"case {number}, {target.name}: {traceback.format_exc()}"
                failures.setdefault(f"{type(error).__name__} {place.filename}:{place.lineno}", text)
            finally:
                target.file.write_bytes(target.good)
            if number % 50_000 == 49_999:
                report(f"{number + 1 - first} cases in {time.monotonic() - began:.0f} s, {counts}")
        if failures:
            counts["failure"] = "\n".join(text[-3000:] for text in list(failures.values())[:8])
        counts["growth_mib"] = (_memory() - before) / 1024
    finally:
        shutil.rmtree(home, ignore_errors=True)
    text = json.dumps(counts).encode()[: len(note) - 16]
    note[8 : 8 + len(text)] = text


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    result = run(options.cases, options.first, lambda line: print(line, flush=True))
    print(json.dumps(result, indent=1), f"{time.monotonic() - began:.0f} s")
    return bool(result.get("failure"))


if __name__ == "__main__":
    sys.exit(main())
