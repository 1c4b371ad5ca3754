"""RELIABILITY 28: a package without its extension, without a compiler and Triton, trains on the reference."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pretraining_runs as runs

import fastbert

_TRAIN = """
import sys
for name in ("triton", "pybind11", "cmake", "ninja"):
    sys.modules[name] = None  # as if it were not installed
# An editable installation would find what the copy lacks.
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in repr(finder)]
import fastbert
from fastbert import _native
from fastbert.ops import _dispatch
from fastbert.train.config import PretrainConfig
from fastbert.train.pretrain import pretrain
assert fastbert.__file__.startswith(sys.argv[2]), fastbert.__file__
assert _native.why_missing()
result = pretrain(PretrainConfig.from_yaml(sys.argv[1]), quiet=True)
losses = [row["loss"] for row in result.history if row["kind"] == "train"]
assert len(losses) == 5 and losses[-1] < losses[0], losses
# Of 8-bit products the CPU path is torch's own.
print({row["backend"] for row in _dispatch.table() if row["op"] != "linear_fp8"})
"""


def test_five_steps_without_extension_compiler_or_triton(tmp_path):
    package = Path(fastbert.__file__).parent
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "_build_info.json")
    shutil.copytree(package, tmp_path / "bare" / "fastbert", ignore=left_out)
    data = runs.prepare_data(tmp_path / "data")
    options = tmp_path / "options.yaml"
    options.write_text(runs.config(data, tmp_path / "run", steps=5, accumulate=1, eval_every=1000).to_yaml())
    bare = runs.environment() | {"PYTHONPATH": str(tmp_path / "bare"), "PATH": "", "CXX": "no-such-compiler"}
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN, str(options), str(tmp_path / "bare")],
        capture_output=True,
        text=True,
        env=bare,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "{'reference'}\n"
