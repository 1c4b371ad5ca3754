"""RELIABILITY 10, 11 and 29: what a stranger's file must not be able to do, in processes with little memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pretraining_runs as runs
import pytest
import safetensors.torch
import torch

import fastbert
from fastbert import BertConfig
from fastbert.errors import CheckpointError, InputError
from fastbert.train import checkpoint
from fastbert.weights.reading import read_state_dict

# Runs pieces of code in turn, with only so many MiB more of memory than `import` took.
_BOUNDED = """
import json, resource, sys
import torch, fastbert, fastbert.models, fastbert.weights.reading
from fastbert.errors import FastbertError
import fastbert.data.corpus, fastbert.train.config
torch.set_num_threads(1)
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
limit = size + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before, told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
for name, (code, arguments) in json.loads(sys.argv[2]).items():
    try:
        exec(code, {"arguments": arguments, "fastbert": fastbert, "torch": torch})
        said = "accepted"
    except FastbertError as error:
        said = str(error)
    told[name] = said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps(told))
"""


def bounded(pieces: dict[str, tuple[str, list[str]]], mib: int = 400) -> dict[str, tuple[str, float]]:
    """Of each piece of code the message of our error that it ends in, and by how many MiB the process grew until then.

    One process does all: an import takes longer than most of them.
    """
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    command = [sys.executable, "-c", _BOUNDED, str(mib), json.dumps(pieces)]
    done = subprocess.run(command, capture_output=True, text=True, env=runs.environment(), timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert not [said for said, _ in told.values() if "\n" in said]
    return told


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": 10**9, "num_attention_heads": 10**3},
        {"vocab_size": 10**12},
        {"max_position_embeddings": 10**12},
        {"intermediate_size": 10**12},
        {"type_vocab_size": 10**12},
        {"num_attention_heads": 10**9},
        {"id2label": None, "num_labels": 10**12},
    ],
    ids=lambda value: next(iter(value)),
)
def test_absurd_sizes_are_refused_before_memory_is_asked_for(tmp_path, changes):
    small = {"vocab_size": 30, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    BertConfig(**small).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"config\.json: "):
        BertConfig.from_pretrained(tmp_path)


_LOAD = "fastbert.models.BertForPreTraining.from_pretrained(arguments[0])"
_READ = "for document in fastbert.data.corpus.read_documents([arguments[0]]): pass"
_MILLION = """
config = fastbert.BertConfig(vocab_size=30, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
fastbert.BertModel(config)(torch.ones(1, 10**6, dtype=torch.int64))
"""


def _long_line(path: Path, size: int) -> Path:
    """A file of one line of that many bytes."""
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(b"words 42" * (1 << 17))
    return path


def test_neither_memory_nor_patience_is_lost_on_sizes(tmp_path):
    """RELIABILITY 10 and 29: a configuration that is refused outright and one that is only far larger than its file, a
    sequence of a million tokens, a line of text without an end; all in 400 MiB."""
    pieces = {"tokens": (_MILLION, [])}
    for name, changes in (("hidden", {"hidden_size": 10**9}), ("layers", {"num_hidden_layers": 10**3})):
        home = tmp_path / name
        home.mkdir()
        weights = {"bert.embeddings.LayerNorm.weight": torch.ones(8)}
        safetensors.torch.save_file(weights, home / "model.safetensors")
        (home / "config.json").write_text(json.dumps({"model_type": "bert"} | changes))
        pieces[name] = (_LOAD, [str(home)])
    files = [_long_line(tmp_path / name, 50 << 20) for name in ("line.txt", "line.jsonl", "line.txt.gz")]
    pieces |= {path.name: (_READ, [str(path)]) for path in files}
    told = bounded(pieces)
    assert "config.json" in told["hidden"][0]
    assert "got weights of 8" in told["layers"][0]
    assert "1000000" in told["tokens"][0].replace(",", "")
    assert "512" in told["tokens"][0]
    for path in files:
        assert f"{path}:1: expected lines of at most" in told[path.name][0]
    assert all(grown < 100 for _, grown in told.values()), told


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", ["line.txt", "line.jsonl", "line.txt.gz"])
def test_a_line_of_a_gigabyte_is_refused(tmp_path, name):
    path = _long_line(tmp_path / name, 1 << 30)
    said, grown = bounded({"line": (_READ, [str(path)])})["line"]
    print(f"{name}: {grown:.0f} MiB more")
    assert f"{path}:1: expected lines of at most" in said
    assert grown < 100


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "weights.safetensors", "optimizer.safetensors", "state.json", "rng.pkl"]
)
def test_a_pickle_in_a_checkpoint_is_never_run(tmp_path, name):
    """Neither under a name that is read nor under one that is not; nor if the manifest vouches for it."""
    import hashlib
    import pickle

    target = tmp_path / "payload-was-here"
    path = checkpoint.save(tmp_path / "c", 1, {"w": torch.ones(3)}, {})
    data = pickle.dumps(Payload(target))
    (path / name).write_bytes(data)
    with pytest.raises(CheckpointError):
        checkpoint.load(path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    if name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
    else:
        assert checkpoint.load(path)[1] == {}
    assert not target.exists()


def test_no_load_path_of_ours_can_unpickle():
    """`pickle` and `torch.load` without weights_only do not occur in what reads files."""
    package = Path(fastbert.__file__).parent
    guilty = []
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            loads = "torch.load(" in line and "weights_only=True" not in line
            unsafe = any(
                word in line for word in ("pickle.load", "yaml.load(", "yaml.unsafe_load", "trust_remote_code=True")
            )
            if loads or unsafe:
                guilty.append(f"{path.relative_to(package)}:{number}: {line.strip()}")
    assert not guilty


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_cannot_lead_out_of_its_directory(tmp_path, kind, name):
    home, suffix = tmp_path / "model", Path(name).suffix
    home.mkdir()
    outside = tmp_path / f"secret{suffix}"
    if suffix == ".bin":
        torch.save({"w": torch.ones(2)}, outside)
    else:
        safetensors.torch.save_file({"w": torch.ones(2)}, outside)
    shard = {"parent": f"../secret{suffix}", "absolute": str(outside), "link": f"linked{suffix}"}[kind]
    (home / f"linked{suffix}").symlink_to(outside)
    (home / f"{name}.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(CheckpointError, match="its own directory"):
        read_state_dict(home)


_NO_NETWORK = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError(f"the network was asked: {args}")
socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
import pkgutil, fastbert
for module in pkgutil.walk_packages(fastbert.__path__, "fastbert."):
    name = module.name
    if "peers" in name or "triton" in name or name.endswith("__main__"):
        continue
    try:
        __import__(name)
    except ImportError as error:  # an extra that is not installed
        print(name, error)
print("imported")
"""


def test_importing_asks_nothing_of_the_network(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _NO_NETWORK], capture_output=True, text=True, env=runs.environment(), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("imported\n")
    assert "the network was asked" not in done.stdout


def test_a_name_that_is_no_directory_is_not_looked_for_elsewhere(monkeypatch, tmp_path):
    import socket

    def refuse(*_args, **_kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, CheckpointError), match="bert-base-uncased"):
        fastbert.BertModel.from_pretrained("bert-base-uncased")
