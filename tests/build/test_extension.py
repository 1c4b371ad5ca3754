"""The extension is there where it can be, and the package works and says why where it is not."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
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


def test_an_extension_of_other_sources_is_not_called(tmp_path):
    """As after `git pull` in an editable installation: functions take other arguments, of which some would fit."""
    if _native.why_missing():
        pytest.skip(_native.why_missing())
    shutil.copytree(REPO / "csrc", tmp_path / "csrc")
    # Python writes and renames files in __pycache__ meanwhile, for other tests.
    shutil.copytree(Path(_native.__file__).parent, tmp_path / "fastbert", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", "from fastbert import _native; print(_native.why_missing())"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def why() -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    assert why() == "None"
    with open(tmp_path / "csrc" / "include" / "optimizer.h", "a") as header:
        header.write("// another argument\n")
    assert why() == (
        "the C++ extension was built from other sources than this fastbert (build it again: `pip install .`, or "
        "`python setup.py build_ext --inplace` in a checkout)"
    )


@pytest.fixture
def setup_py(monkeypatch):
    """setup.py as a module."""
    setuptools = pytest.importorskip("setuptools")
    pytest.importorskip("pybind11")
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    spec = importlib.util.spec_from_file_location("setup_py", REPO / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MISSING_HEADERS = """-- Detecting CXX compile features - done
CMake Error at /tmp/pip-build-env-8jx2k1qz/overlay/lib/python3.11/site-packages/cmake/data/share/cmake-4.4/Modules/FindPackageHandleStandardArgs.cmake:290 (message):
  Could NOT find Python (missing: Python_INCLUDE_DIRS Development.Module)
Call Stack (most recent call first):
  /tmp/pip-build-env-8jx2k1qz/overlay/lib/python3.11/site-packages/cmake/data/share/x.cmake:1 (find)
"""  # noqa: E501


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (MISSING_HEADERS, "Could NOT find Python (missing: Python_INCLUDE_DIRS Development.Module)"),
        ("[1/2]\nnvcc fatal   : Unsupported gpu architecture 'compute_90a'\n",
         "nvcc fatal : Unsupported gpu architecture 'compute_90a'"),
        ("a.cpp:3:1: error: expected ';'\n", "a.cpp:3:1: error: expected ';'"),
        ("CMake Error at CMakeLists.txt:3 (project):\n  No CMAKE_CXX_COMPILER\n",
         "CMake Error at CMakeLists.txt:3 (project): No CMAKE_CXX_COMPILER"),
        ("all is well\n", ""),
    ],
)  # fmt: skip
def test_what_a_failed_build_says_first(setup_py, output, found):
    assert setup_py.first_error(output) == found


def test_missing_headers_are_named(setup_py, monkeypatch, tmp_path):
    monkeypatch.delenv("FASTBERT_NO_EXTENSION", raising=False)
    monkeypatch.setattr(setup_py.sysconfig, "get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr(setup_py.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert setup_py.missing_tool().startswith("Python's headers (Debian's package python3-dev) were not found")
    (tmp_path / "Python.h").touch()
    assert setup_py.missing_tool() is None


def test_an_nvcc_that_fails_costs_only_the_cuda_kernels(setup_py, monkeypatch, tmp_path):
    monkeypatch.delenv("FASTBERT_NO_CUDA", raising=False)
    tried = []

    def compile_in(work, cuda):
        tried.append(cuda)
        if cuda:
            raise setup_py.BuildError("compiling the C++ extension failed: nvcc fatal")
        (work / "lib").mkdir()
        (work / "lib" / "_C.so").touch()

    monkeypatch.setattr(setup_py, "compile_in", compile_in)
    reason = setup_py.build(tmp_path / "fastbert" / "_C.so", tmp_path / "work")
    assert (tried, reason) == ([True, False], "compiling the C++ extension failed: nvcc fatal")
    assert (tmp_path / "fastbert" / "_C.so").is_file()
    monkeypatch.setattr(setup_py, "compile_in", lambda work, cuda: compile_in(work, True))
    with pytest.raises(setup_py.BuildError):
        setup_py.build(tmp_path / "fastbert" / "_C.so", tmp_path / "work")


def test_a_wheel_has_no_file_of_an_earlier_build(source):
    """pip builds in the checkout, whose build directory keeps modules that have been removed since."""
    code = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    environment, names = {**os.environ, "FASTBERT_NO_EXTENSION": "1"}, []
    for _ in range(2):
        command = [sys.executable, "-c", code, str(source.parent)]
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with zipfile.ZipFile(source.parent / done.stdout.split()[-1]) as wheel:
            names.append(set(wheel.namelist()))
        (source / "fastbert" / "svg.py").unlink(missing_ok=True)
        (source / "fastbert" / "recipes" / "day.yaml").unlink(missing_ok=True)
    assert names[0] - names[1] == {"fastbert/svg.py", "fastbert/recipes/day.yaml"}
    assert "fastbert/py.typed" in names[1]


def test_all_package_data_is_there():
    """setuptools says nothing of a pattern that no file matches."""
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert [p for p in settings["fastbert"] if not any((REPO / "fastbert").glob(p))] == []


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
    pytest.param(
        {"CXX": "no-such-compiler"},
        "the C++ compiler 'no-such-compiler' named by CXX was not found",
        marks=pytest.mark.slow,
    ),
    (
        {"CXX": "false"},
        "configuring the C++ extension with cmake failed when fastbert was installed (`pip install -v` shows its "
        "output): The C++ compiler",
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


def test_the_kernels_of_another_checkout_are_not_this_ones(tmp_path):
    """The finder of an editable installation names its own for the sources that Python was started beside."""
    ignore = shutil.ignore_patterns("*.so", "_build_info.json", "__pycache__")
    shutil.copytree(Path(fastbert.__file__).parent, tmp_path / "fastbert", ignore=ignore)
    there = tmp_path / "elsewhere" / "fastbert" / "_C.py"
    there.parent.mkdir(parents=True)
    there.write_text("interface = ''\n")
    code = (
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'fastbert._C':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(there)!r})\n"
        "sys.meta_path.append(Finder)\n"
        "from fastbert import _native; print(_native.why_missing())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr
    place = tmp_path / "fastbert"
    assert done.stdout.startswith(f"Python took fastbert from {place}, where the C++ extension is not built, and not")


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
