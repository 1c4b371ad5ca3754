"""The extension is there where it can be, and the package works and says why where it is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import fastbert
from fastbert import _native
from fastbert.errors import BackendError

REPO = Path(__file__).resolve().parents[2]
BUILD_TOOLS = ("setuptools", "pybind11")
SOURCES = ("setup.py", "pyproject.toml", "CMakeLists.txt", "MANIFEST.in", "constraints.txt", "LICENSE", "README.md")

# Runs without torch's import elsewhere deciding anything: a child that imports fastbert from the given directory.
_USE = """
import sys, json
sys.path.insert(0, sys.argv[1])
# An editable installation's finder would bring the extension that is not in this directory.
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in finder.__module__]
import fastbert, torch
from fastbert import _native
from fastbert.errors import BackendError
out = fastbert.ops.gelu(torch.tensor([1.0]), torch.tensor([0.5]))
try:
    with fastbert.backend("cpu"):
        fastbert.ops.gelu(torch.tensor([1.0]))
    refused = None
except BackendError as error:
    refused = str(error)
environment = fastbert.environment()
print(json.dumps([fastbert.__file__, float(out), _native.why_missing(), refused, environment["notes"]]))
"""


def _compiler() -> bool:
    return any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def test_the_extension_was_built():
    if os.environ.get("FASTBERT_NO_EXTENSION", "0") not in ("", "0"):
        pytest.skip("FASTBERT_NO_EXTENSION is set")
    if not _compiler():
        pytest.skip("no C++ compiler")
    assert _native.why_missing() is None


def test_a_function_that_an_old_build_lacks_is_one_sentence():
    if _native.why_missing():
        pytest.skip(_native.why_missing())
    extension = _native.extension()
    assert hasattr(extension, "gemm")
    assert not hasattr(extension, "of_tomorrow")
    with pytest.raises(BackendError, match=r"expected a function 'of_tomorrow' in it, got none \(build it again"):
        extension.of_tomorrow()


def test_an_unknown_level_is_one_sentence():
    if _native.why_missing():
        pytest.skip(_native.why_missing())
    child = [sys.executable, "-c", "import fastbert.ops"]
    environment = {**os.environ, "FASTBERT_CPU_ISA": "sse9"}
    root = Path(fastbert.__file__).parents[1]
    done = subprocess.run(child, env=environment, capture_output=True, text=True, cwd=root, check=False)
    assert "InputError: FASTBERT_CPU_ISA must be one of scalar" in done.stderr
    assert done.stderr.rstrip().endswith("got 'sse9'")


@pytest.mark.parametrize("level", [] if _native.why_missing() else _native.extension().supported_isas())
def test_the_level_can_be_forced(level):
    code = "from fastbert import _native; print(_native.isa())"
    environment = {**os.environ, "FASTBERT_CPU_ISA": level}
    root = Path(fastbert.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == level


@pytest.fixture
def source(tmp_path):
    """A copy of what a build reads, without what an in-place build may have left."""
    for tool in BUILD_TOOLS:
        pytest.importorskip(tool)
    ignore = shutil.ignore_patterns("*.so", "_build_info.json", "__pycache__")
    shutil.copytree(REPO / "fastbert", tmp_path / "source" / "fastbert", ignore=ignore)
    shutil.copytree(REPO / "csrc", tmp_path / "source" / "csrc")
    for name in SOURCES:
        if (REPO / name).exists():
            shutil.copy2(REPO / name, tmp_path / "source" / name)
    return tmp_path / "source"


def _install(source: Path, **environment) -> tuple[Path, str]:
    target = source.parent / "installed"
    command = [sys.executable, "-m", "pip", "install", "-v", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(target), str(source)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target, done.stdout + done.stderr


def _use(target: Path):
    command = [sys.executable, "-c", _USE, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=target.parent, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


NOT_BUILT = [
    ({"FASTBERT_NO_EXTENSION": "1"}, "FASTBERT_NO_EXTENSION was set"),
    ({"CXX": "no-such-compiler"}, "the C++ compiler 'no-such-compiler' named by CXX was not found"),
    (
        {"CXX": "false"},
        "configuring the C++ extension with cmake failed when fastbert was installed (`pip install -v` shows its "
        "output): CMake Error at",
    ),
]


@pytest.mark.parametrize(("environment", "reason"), NOT_BUILT)
def test_without_a_compiler_the_package_installs_and_says_why(source, environment, reason):
    target, said = _install(source, **environment)
    assert f"fastbert: installing without the C++ kernels: {reason}" in said
    assert not list((target / "fastbert").glob("*.so"))
    file, out, missing, refused, notes = _use(target)
    assert Path(file).is_relative_to(target)
    assert out == pytest.approx(1.5 * 0.9331927987, abs=1e-6)  # 1.5 Phi(1.5), from a table of the normal distribution
    assert missing.startswith(reason)
    assert reason in refused
    assert any(reason in note for note in notes)


def test_a_source_distribution_has_what_a_build_reads(source):
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    made = source.parent / "made"
    done = subprocess.run([sys.executable, "-c", code, made], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = made.iterdir()
    with tarfile.open(archive) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    csrc = {str(path.relative_to(source)) for path in (source / "csrc").rglob("*") if path.is_file()}
    assert "csrc/bindings.cpp" in csrc
    assert csrc | {"setup.py", "CMakeLists.txt", "constraints.txt", "fastbert/_native.py"} <= packed


def test_sources_that_hide_the_installed_package_are_named(tmp_path):
    ignore = shutil.ignore_patterns("*.so", "_build_info.json", "__pycache__")
    shutil.copytree(Path(fastbert.__file__).parent, tmp_path / "checkout" / "fastbert", ignore=ignore)
    (tmp_path / "installed" / "fastbert").mkdir(parents=True)
    code = "from fastbert import _native; print(_native.why_missing())"

    def run() -> tuple[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
        command = [sys.executable, "-S", "-c", code]  # -S: without what else is installed
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path / "checkout")
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    assert run()[0].startswith("the C++ extension was not built")
    (tmp_path / "installed" / "fastbert" / "_C.so").touch()
    reason, warned = run()
    assert reason == warned
    assert reason.startswith(f"Python took fastbert from {tmp_path / 'checkout' / 'fastbert'}, where")
    assert f"and not the installed one in {tmp_path / 'installed' / 'fastbert'}: start it in another" in reason


def test_an_installed_package_knows_the_commit_of_its_sources(source):
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True)
    made = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    target, _ = _install(source, FASTBERT_NO_EXTENSION="1")
    assert _commit_of(target) == made
    # A checkout whose git does not answer is of no known commit, whatever an earlier build has recorded.
    (target / ".git").write_text("gitdir: nowhere")
    assert _commit_of(target) == "None"


def _commit_of(place: Path) -> str:
    code = f"import sys; sys.path.insert(0, {str(place)!r}); from fastbert import _environment as e; print(e.commit())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place.parent, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow  # pip makes a wheel for .ci/run, which imports it; this compiles once more
def test_a_wheel_carries_the_extension(source):
    if not (_compiler() and shutil.which("cmake") and shutil.which("ninja")):
        pytest.skip("no C++ compiler, cmake or ninja")
    target, _ = _install(source, FASTBERT_NO_EXTENSION="0")
    assert len(list((target / "fastbert").glob("_C.*"))) == 1
    _, out, missing, refused, _ = _use(target)
    assert missing is None
    assert refused is None
    assert out == pytest.approx(1.5 * 0.9331927987, abs=1e-6)
