#!/bin/bash
# Everything that fastbert has to show on a GPU, in one command; installs nothing.
#
#     benchmarks/gpu/run.sh OUTDIR [--only ceilings,tests,training,kernels,inference] [--lengths FILE.csv] [--dry-run]
#
# Results are appended to OUTDIR/results.jsonl as they come, the most important first, so a killed run keeps what it
# has; run again, it goes on with what is missing.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p "$1"
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec python3 benchmarks/gpu/suite.py "$@"
