"""Turns a run's rows about CUDA kernels into the file by which `fastbert` chooses them on that GPU.

    python benchmarks/gpu/record.py OUTDIR

OUTDIR is what benchmarks/gpu/run.sh wrote. The file goes to fastbert/measured/<gpu>.json: for each kernel the
milliseconds of ours and of what serves instead, and the ratio (of dense layers that of whole layers with them, if it is
smaller); a kernel that failed, or whose result was another, is left out and so not chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]
import cuda_kernels  # noqa: E402
import watch  # noqa: E402

from fastbert.hardware import gpu_slug  # noqa: E402
from fastbert.ops import _cuda  # noqa: E402

# Products in bfloat16 that differ by more than this are not two roundings of one result.
MOST_DIFFERENCE = 0.02


def chosen(rows: list[dict]) -> dict:
    """{kernel: {"ours ms", "other ms", "gain"}} of the last good rows of each."""
    good = {row["name"]: row for row in rows if "error" not in row}
    out = {}
    for name in cuda_kernels.CHOICES:
        ours, other = (good.get(f"cuda {name} {side}") for side in cuda_kernels.SIDES)
        if ours is None or other is None:
            continue
        if not ours.get("equal", True) or ours.get("difference", 0.0) > MOST_DIFFERENCE:
            continue
        gain = other["ms"] / ours["ms"]
        if name in cuda_kernels.IN_LAYERS:
            of_layers = [good.get(f"cuda layers {side}") for side in cuda_kernels.SIDES]
            if None in of_layers:
                continue
            gain = min(gain, of_layers[1]["ms"] / of_layers[0]["ms"])
        out[name] = {"ours ms": ours["ms"], "other ms": other["ms"], "gain": round(gain, 3)}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--to", type=Path, default=_cuda.MEASURED)
    options = parser.parse_args()
    rows = watch.rows(options.out / "results.jsonl")
    about = next((row for row in reversed(rows) if row["name"].startswith("environment")), {})
    gpu = about.get("gpu", "none")
    if gpu == "none":
        sys.exit("a record needs a run on a GPU, got one without")
    rows = watch.of_gpu(rows, gpu)
    record = {
        "gpu": gpu,
        **{key: about.get(key) for key in ("date", "commit", "torch", "triton")},
        "rows": chosen(rows),
    }
    options.to.mkdir(parents=True, exist_ok=True)
    path = options.to / f"{gpu_slug(gpu)}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    for name, row in record["rows"].items():
        verdict = "chosen" if row["gain"] >= _cuda.LEAST_GAIN else "not chosen"
        print(f"{name}: {row['ours ms']:.3f} ms beside {row['other ms']:.3f} ms, {row['gain']:.2f} times: {verdict}")
    print(path)


if __name__ == "__main__":
    main()
