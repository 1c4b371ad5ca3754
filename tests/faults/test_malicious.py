"""RELIABILITY 10, 11 and 29: what a stranger's file must not be able to do, in processes with little memory."""

from __future__ import annotations

import ast
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import peak_memory
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
from peak_memory import peak_mib
torch.set_num_threads(1)
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
limit = size + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before, told = peak_mib(), {}
for name, (code, arguments) in json.loads(sys.argv[2]).items():
    try:
        exec(code, {"arguments": arguments, "fastbert": fastbert, "torch": torch})
        said = "accepted"
    except FastbertError as error:
        said = str(error)
    told[name] = said, peak_mib() - before
print(json.dumps(told))
"""


def bounded(pieces: dict[str, tuple[str, list[str]]], mib: int = 400) -> dict[str, tuple[str, float]]:
    """Of each piece of code the message of our error that it ends in, and by how many MiB the process grew until then.

    One process does all: an import takes longer than most of them.
    """
    if not peak_memory.STATUS.exists():
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
    # Peaks since the start: of the million tokens 12 MiB were measured, 8 of them the ids, of configurations nothing
    # more, and 38 with a line, of which 16 MiB are read. A float for each token and hidden unit would be 31 MiB.
    limits = {name: 48 if name in {path.name for path in files} else 24 for name in told}
    assert all(grown < limits[name] for name, (_, grown) in told.items()), told


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", ["line.txt", "line.jsonl", "line.txt.gz"])
def test_a_line_of_a_gigabyte_is_refused(tmp_path, name):
    path = _long_line(tmp_path / name, 1 << 30)
    said, grown = bounded({"line": (_READ, [str(path)])})["line"]
    print(f"{name}: {grown:.0f} MiB more")
    assert f"{path}:1: expected lines of at most" in said
    assert grown < 48


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


_UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "shelve", "marshal"}
_SAFE_YAML = {"safe_load", "safe_load_all", "SafeLoader", "CSafeLoader"}
# Values under these names let a file bring code with it, unless they are False.
_PERMISSIONS = {"allow_pickle", "trust_remote_code"}


def _runs_what_it_reads(node: ast.AST) -> bool:
    """Whether a node of a program can unpickle, or run what else a file says."""

    def is_constant(value: ast.AST, expected: bool) -> bool:
        return isinstance(value, ast.Constant) and value.value is expected

    match node:
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] in _UNPICKLERS for alias in names)
        case ast.ImportFrom(module="torch" | "torch.serialization" | "yaml", names=names):
            return any("load" in alias.name.lower() and alias.name not in _SAFE_YAML for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] in _UNPICKLERS
        case ast.keyword(arg=name, value=value) if name in _PERMISSIONS:
            return not is_constant(value, False)
        case ast.Dict(keys=keys, values=values):
            named = zip(keys, values, strict=True)
            return any(
                isinstance(key, ast.Constant) and key.value in _PERMISSIONS and not is_constant(value, False)
                for key, value in named
            )
        case ast.Call(func=function, args=arguments, keywords=keywords):
            name = ast.unparse(function)
            if name in ("torch.load", "torch.serialization.load"):
                return not any(each.arg == "weights_only" and is_constant(each.value, True) for each in keywords)
            imports = name in ("__import__", "import_module", "importlib.import_module")
            return imports and isinstance(arguments[0], ast.Constant) and arguments[0].value in _UNPICKLERS
        case ast.Attribute(value=ast.Name(id="yaml"), attr=name):
            return "load" in name.lower() and name not in _SAFE_YAML
        case ast.Attribute(attr="read_pickle"):
            return True
    return False


def _unpickling_lines(source: str) -> list[str]:
    lines = source.splitlines()
    found = {node.lineno for node in ast.walk(ast.parse(source)) if _runs_what_it_reads(node)}
    return [f"{number}: {lines[number - 1].strip()}" for number in sorted(found)]


def test_no_load_path_of_ours_can_unpickle():
    """Neither `pickle` and its kin nor `torch.load` without weights_only nor a permission for a file's code occurs."""
    package = Path(fastbert.__file__).parent
    paths = list(package.rglob("*.py"))
    assert any("torch.load(" in path.read_text(encoding="utf-8") for path in paths)
    assert not [f"{p.relative_to(package)}:{line}" for p in paths for line in _unpickling_lines(p.read_text("utf-8"))]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import json, shelve as store",
        "from dill import load",
        "from joblib.numpy_pickle import load",
        "    import marshal",
        'module = importlib.import_module("cPickle")',
        'module = __import__("pickle")',
        "frame = pandas.read_pickle(path)",
        "state = torch.load(path)",
        "state = torch.load(path, weights_only=False)",
        "state = torch.load(path, weights_only=safe)",
        "from torch import load",
        "values = np.load(path, allow_pickle=True)",
        "values = np.load(path, allow_pickle=option)",
        "model = AutoModel.from_pretrained(path, trust_remote_code=True)",
        'options = {"trust_remote_code": True}',
        "options = yaml.load(text, Loader=yaml.Loader)",
        "options = yaml.full_load(text)",
        "loads = yaml.unsafe_load_all",
        "from yaml import unsafe_load",
        "class Strict(yaml.FullLoader): pass",
    ],
)
def test_what_can_unpickle_is_found(line):
    assert _unpickling_lines(f"if True:\n  pass\n{line}" if line[0] != " " else f"def f():\n\n{line}")[0][:2] == "3:"


def test_what_cannot_unpickle_is_not_found():
    source = """
import json, yaml, picklescan
from yaml import safe_load
from .pickle import table
state = torch.load(path, map_location="cpu", weights_only=True)
values = np.load(path, mmap_mode="r"), np.load(path, allow_pickle=False)
options = yaml.safe_load(text), yaml.SafeLoader(text), {"trust_remote_code": False}
module = importlib.import_module("json"), json.load(file), "pickle"
"""
    assert _unpickling_lines(source) == []


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
