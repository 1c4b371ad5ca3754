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
import textwrap
from pathlib import Path

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
    return None


def commit() -> str | None:
    """The commit of these sources, by the function that the package uses in a checkout; the package itself needs torch,
    which a build has not."""
    spec = importlib.util.spec_from_file_location("fastbert_environment", ROOT / "fastbert" / "_environment.py")
    environment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(environment)
    return environment.commit_of_checkout()


def first_error(output: str) -> str:
    """The beginning of the first error that cmake or a compiler reports, as one line; "" where there is none. pip shows
    nobody the output of an installation that succeeds, and one without the extension does."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if re.search(r"\berror\b", line, re.IGNORECASE):
            return textwrap.shorten(" ".join(lines[number : number + 8]), 200, placeholder=" ...")
    return ""


def run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        found = first_error(done.stdout)
        cause = f": {found}" if found else ""
        raise BuildError(f"{what} failed when fastbert was installed (`pip install -v` shows its output){cause}")


def build(target: Path, work: Path) -> None:
    """Configures and compiles in `work`; leaves the shared library at `target`."""
    import pybind11

    work.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
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
            f"-DFASTBERT_CUDA={'ON' if os.environ.get('FASTBERT_NO_CUDA', '0') in ('', '0') else 'OFF'}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ],
        "configuring the C++ extension with cmake",
    )
    run(["cmake", "--build", str(work)], "compiling the C++ extension")
    (built,) = (work / "lib").glob("_C.*")
    # Moved into place, never written over: a process may have the old one mapped.
    partial = target.with_suffix(".partial")
    shutil.copy2(built, partial)
    partial.replace(target)


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        reason = missing_tool()
        if reason is None:
            try:
                build(target, Path(self.build_temp).resolve() / "cmake")
            except BuildError as error:
                reason = str(error)
        if reason is not None:
            print(f"fastbert: installing without the C++ kernels: {reason}", file=sys.stderr)
            target.unlink(missing_ok=True)
        info = target.parent / "_build_info.json"
        info.parent.mkdir(parents=True, exist_ok=True)  # an editable installation without the kernels has none yet
        info.write_text(json.dumps({"extension": reason is None, "reason": reason, "commit": commit()}) + "\n")

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        info = json.loads((Path(self.build_lib) / "fastbert" / "_build_info.json").read_text())
        # Sources go on to other commits.
        (ROOT / "fastbert" / "_build_info.json").write_text(json.dumps({**info, "commit": None}) + "\n")

    def get_outputs(self) -> list[str]:
        found = [Path(path) for path in super().get_outputs()]
        info = [path.parent / "_build_info.json" for path in found]
        return [str(path) for path in (*found, *info) if path.exists()]


class BuildPython(build_py):
    """Leaves out what an in-place build put into the source tree: the wheel gets what this build makes."""

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        files = super().find_data_files(package, src_dir)
        return [f for f in files if not f.endswith(".so") and Path(f).name != "_build_info.json"]


setup(
    # Optional, so that setuptools too goes on where no library came out.
    ext_modules=[Extension("fastbert._C", sources=[], optional=True)],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildPython},
)
