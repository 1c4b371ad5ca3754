#!/bin/bash
# Everything that fastbert has to show on a GPU, in one command; installs nothing from outside.
#
#     benchmarks/gpu/run.sh OUTDIR [--only PART,PART] [--budget SECONDS] [--lengths FILE.csv] [--dry-run]
#
# Builds the extension where it is not built yet, then runs the parts, the most important first: ceilings, training and
# finetuning (beside transformers), profile, checks, kernels, peers (training by other systems), latency (small batches
# in inference), inference, sanitizer, settings, memory. Rows are appended to OUTDIR/results.jsonl as they come, so a
# killed run keeps what it has; run again, it goes on with what is missing. What crashes, hangs or breaks the device is a
# row that says so, and the rest goes on in another process. At the end, and after every part, OUTDIR/<gpu>/<date>.json
# and .md hold all of it, and a run on a GPU puts the two into benchmarks/results too.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p "$1"
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
# Of this Python: one of another does not load.
if ! [ -e "fastbert/_C$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" ]; then
    # The GPU's parts do not need it: where it cannot be built, the run goes on and says so.
    timeout 180 python3 setup.py build_ext --inplace >"$1/build.log" 2>&1 || echo "the extension was not built: see $1/build.log"
fi
exec python3 benchmarks/gpu/watch.py --spent "$SECONDS" "$@"
