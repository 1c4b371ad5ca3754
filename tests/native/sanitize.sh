#!/usr/bin/env bash
# Runs the tests of the kernels under AddressSanitizer and UndefinedBehaviorSanitizer; fails where there is a report.
#
#     tests/native/sanitize.sh [arguments of pytest]      # default: all tests of ops and of the native optimisers
#
# PYTHON names another interpreter. The extension is built in a temporary place (CMake option FASTBERT_SANITIZE).
# Leaks are not looked for: Python and torch keep much until they exit.
set -euo pipefail

repo=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$repo"
mkdir "$work/tree" "$work/reports"
git ls-files -co --exclude-standard -z -- csrc fastbert tests benchmarks CMakeLists.txt pyproject.toml |
    xargs -0 cp --parents -t "$work/tree"
cmake -S "$work/tree" -B "$work/build" -G Ninja -DFASTBERT_SANITIZE=ON -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$work/tree/fastbert" \
    -DPython_EXECUTABLE="$(command -v "$python")" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >"$work/log" ||
    { cat "$work/log"; exit 1; }
cmake --build "$work/build" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

# The sanitizer must be the first library of the process, which is Python's, and libstdc++ must be there when it starts:
# it looks for the functions that throw.
cxx=${CXX:-g++}
preload="$("$cxx" -print-file-name=libasan.so) $("$cxx" -print-file-name=libstdc++.so.6)"
options="detect_leaks=0:halt_on_error=0:print_stacktrace=1:log_path=$work/reports/report"

# What compiles or starts processes has nothing to do with the kernels' memory, and takes minutes here. Where memory
# ends, the sanitizer ends the process, and a limit of the address space is one for its own tables too.
[ $# -gt 0 ] || set -- tests/ops tests/optim/test_native_optimizers.py \
    -k "not opcheck and not compile and not import_the_compiler and not no_memory"
cd "$work/tree"
status=0
LD_PRELOAD=$preload ASAN_OPTIONS=$options UBSAN_OPTIONS=$options PYTHONPATH=$work/tree PYTHONMALLOC=malloc \
    "$python" -m pytest -q -p no:cacheprovider "$@" || status=$?

reports=$(cat "$work"/reports/* 2>/dev/null | grep -cE "ERROR: AddressSanitizer|runtime error:" || true)
cat "$work"/reports/* 2>/dev/null | head -200 || true
echo "sanitizer reports: $reports; pytest: $([ "$status" = 0 ] && echo passed || echo "failed ($status)")"
[ "$status" = 0 ] && [ "$reports" = 0 ]
