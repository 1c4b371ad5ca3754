"""Builds the extension fastbert._C with CMake; without a compiler the package is installed without it, and says so.

FASTBERT_NO_EXTENSION=1 leaves it out on purpose, FASTBERT_NO_CUDA=1 its GPU kernels, which are built where nvcc is
there. Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildError(Exception):
    """Why the extension cannot be built, in words for the person who installs."""


def missing_tool() -> str | None:
    """The first thing that a build needs and this machine lacks, or None."""
    if os.environ.get("FASTBERT_NO_EXTENSION", "0") not in ("", "0"):
        return "FASTBERT_NO_EXTENSION was set when fastbert was installed"
    compiler = os.environ.get("CXX")
    if compiler and not shutil.which(compiler.split()[0]):
        return f"the C++ compiler {compiler!r} named by CXX was not found when fastbert was installed"
    if not compiler and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "no C++ compiler (g++ or clang++) was found when fastbert was installed"
    for tool in ("cmake", "ninja"):
        if not shutil.which(tool):
            return f"{tool} was not found when fastbert was installed"
    if importlib.util.find_spec("pybind11") is None:
        return "the Python package pybind11 was not found when fastbert was installed"
    if not any(Path(sysconfig.get_path(name), "Python.h").is_file() for name in ("include", "platinclude")):
        return "Python's headers (Debian's package python3-dev) were not found when fastbert was installed"
    return None


def module(name: str) -> ModuleType:
    """A module of the package by itself; the package needs torch, which a build has not."""
    spec = importlib.util.spec_from_file_location(f"fastbert{name}", ROOT / "fastbert" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def first_error(output: str) -> str:
    """The beginning of the first error that cmake or a compiler reports, as one line; "" where there is none. pip shows
    nobody the output of an installation that succeeds, and one without the extension does."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE):
            told = " ".join(lines[number : number + 8]).partition("Call Stack")[0]
            # The place in one of CMake's own files takes the room of what is missing.
            told = re.sub(r"^CMake Error at \S*/Modules/\S+ \(message\):", "", told)
            return textwrap.shorten(told, 200, placeholder=" ...")
    return ""


def run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        found = first_error(done.stdout)
        cause = f": {found}" if found else ""
        raise BuildError(f"{what} failed when fastbert was installed (`pip install -v` shows its output){cause}")


def build(target: Path, work: Path) -> str | None:
    """Configures and compiles in `work`; leaves the shared library at `target`. Returns why it has no kernels for GPUs
    although nvcc is there: an nvcc that cannot compile them does not cost the others."""
    work.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    wanted, reason = os.environ.get("FASTBERT_NO_CUDA", "0") in ("", "0"), None
    try:
        compile_in(work, cuda=wanted)
    except BuildError as error:
        if not wanted:
            raise
        reason = str(error)
        compile_in(work, cuda=False)
    (built,) = (work / "lib").glob("_C.*")
    # Moved into place, never written over: a process may have the old one mapped.
    partial = target.with_suffix(".partial")
    shutil.copy2(built, partial)
    partial.replace(target)
    return reason


def compile_in(work: Path, cuda: bool) -> None:
    """Configures and compiles the extension in `work`, with the kernels for GPUs or without."""
    import pybind11

    # A kept CMakeCache names the ninja and the pybind11 of an isolated build that pip has deleted since.
    (work / "CMakeCache.txt").unlink(missing_ok=True)
    run(
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(work),
            "-G",
            "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={work / 'lib'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DFASTBERT_CUDA={'ON' if cuda else 'OFF'}",
            f"-DFASTBERT_INTERFACE={module('_interface').interface(ROOT / 'csrc')}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ],
        "configuring the C++ extension with cmake",
    )
    run(["cmake", "--build", str(work)], "compiling the C++ extension")


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        reason, cuda_reason = missing_tool(), None
        if reason is None:
            try:
                cuda_reason = build(target, Path(self.build_temp).resolve() / "cmake")
            except BuildError as error:
                reason = str(error)
        if reason is not None:
            print(f"fastbert: installing without the C++ kernels: {reason}", file=sys.stderr)
            target.unlink(missing_ok=True)
        if cuda_reason is not None:
            print(f"fastbert: installing without the CUDA kernels: {cuda_reason}", file=sys.stderr)
        info = target.parent / "_build_info.json"
        info.parent.mkdir(parents=True, exist_ok=True)  # an editable installation without the kernels has none yet
        told = {"extension": reason is None, "reason": reason, "commit": module("_environment").commit_of_checkout()}
        info.write_text(json.dumps({**told, "cuda_reason": cuda_reason}) + "\n")

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        info = json.loads((Path(self.build_lib) / "fastbert" / "_build_info.json").read_text())
        if not info["extension"]:  # one of an earlier build would be loaded
            for old in (ROOT / "fastbert").glob(f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"):
                old.unlink()
        # Sources go on to other commits.
        (ROOT / "fastbert" / "_build_info.json").write_text(json.dumps({**info, "commit": None}) + "\n")

    def get_outputs(self) -> list[str]:
        found = [Path(path) for path in super().get_outputs()]
        info = [path.parent / "_build_info.json" for path in found]
        return [str(path) for path in (*found, *info) if path.exists()]


class BuildPython(build_py):
    """Leaves out what an in-place build put into the source tree, and what an earlier build left where this one
    collects its files: the wheel gets what this build makes of the files that there are."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "fastbert", ignore_errors=True)
        super().run()

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        files = super().find_data_files(package, src_dir)
        return [f for f in files if not f.endswith(".so") and Path(f).name != "_build_info.json"]


setup(
    # Optional, so that setuptools too goes on where no library came out.
    ext_modules=[Extension("fastbert._C", sources=[], optional=True)],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildPython},
)
