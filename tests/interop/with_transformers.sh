#!/usr/bin/env bash
# The tests that hold us to transformers, under another version of it than the one installed:
#
#     tests/interop/with_transformers.sh '4.57.*' [pytest arguments]
#
# The version and what it needs go to a directory of their own (FASTBERT_TRANSFORMERS_DIR, kept between runs, else a
# temporary one) that comes before the environment on the path; the environment itself is not touched.
set -euo pipefail
if [ $# -lt 1 ]; then
    echo "usage: $0 VERSION [pytest arguments]" >&2
    exit 2
fi
version=$1
shift
cd "$(dirname "$0")/../.."
directory=${FASTBERT_TRANSFORMERS_DIR:-}
if [ -z "$directory" ]; then
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
fi
if [ ! -d "$directory/transformers" ]; then
    numpy=$(python -c 'import numpy; print(numpy.__version__)')
    python -m pip install --quiet --target "$directory" "transformers==$version" "numpy==$numpy"
fi
export PYTHONPATH="$directory:$PWD${PYTHONPATH:+:$PYTHONPATH}"
python - "$version" <<'PYTHON'
import sys
import tokenizers, transformers
from packaging.specifiers import SpecifierSet

wanted = SpecifierSet(f"=={sys.argv[1]}")
assert transformers.__version__ in wanted, f"expected transformers {wanted}, got {transformers.__version__}"
print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}")
PYTHON
if [ $# -eq 0 ]; then
    set -- tests/interop tests/weights tests/models/test_{parity_bert_model,parity_heads,habits,refusals,loading_options,dtypes,mask_gradients,gpt,generate,sinusoidal}.py
fi
python -m pytest -p no:cacheprovider -rs "$@"
