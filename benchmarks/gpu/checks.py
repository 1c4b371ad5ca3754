"""Correctness on the GPU itself: the test grid, equal bits over many runs, unwritten memory, compute-sanitizer.

``python benchmarks/gpu/checks.py`` runs every op once at a small size, forward and backward: what compute-sanitizer is
given, since under it a whole grid would take hours.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import fp8_kernels
import torch
from kernels import DROPOUT, where

from fastbert import fp8, ops
from fastbert.train.precision import why_no_fp8

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest(dry: bool, files: tuple[str, ...], words: str = "", timeout: float = 150) -> dict:
    """Runs tests in a process of their own, or some where pytest-xdist is there: most of their time on a GPU goes into
    compiling kernels. In a dry run a few tests, without a GPU in Triton's interpreter.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-o", "addopts=--import-mode=importlib"]
    command += [str(REPOSITORY / name) for name in files]
    words = "dropout_has" if dry and words != "to_the_end" else words
    if not dry and importlib.util.find_spec("xdist"):
        command += ["-n", str(min(os.cpu_count() or 1, 14))]
    command += ["-k", words] if words else []
    paths = [str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **({"TRITON_INTERPRET": "1"} if where(dry)[0] == "cpu" else {}),
    }
    # Files, not pipes, which a worker that outlives pytest would keep open.
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as out:
        tests = subprocess.Popen(command, env=variables, stdout=out, stderr=errors, cwd=REPOSITORY)
        status = _wait(tests, timeout)
        said = [file.read() for file in (errors, out) if file.seek(0) == 0]
    lines = "".join(said).strip().splitlines() or ["no output"]
    if status is None:
        return {"error": f"not done after {timeout:g} s", "tail": lines[-300:]}
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    row = {"summary": lines[-1], "failed": failed, "rc": status}
    # The failures, or why no test was run, so that a lent machine need not be asked again.
    return row | ({"tail": lines[-300:]} if status else {})


def _wait(tests: subprocess.Popen, timeout: float) -> int | None:
    """The exit status of pytest, or None where it had to be stopped; interrupted, it tells what has failed so far."""
    try:
        return tests.wait(timeout)
    except subprocess.TimeoutExpired:
        tests.send_signal(signal.SIGINT)
    try:
        tests.wait(20)
    except subprocess.TimeoutExpired:
        tests.kill()
        tests.wait()
    return None


def kernel_tests(dry: bool) -> dict:
    """Every op against fp64, every gradient, twice to the same bits."""
    names = ("kernels", "encoder", "fp8", "second_derivatives")
    return pytest(dry, tuple(f"tests/triton_backend/test_triton_{name}.py" for name in names))


def step_tests(dry: bool) -> dict:
    """The captured step against the step that is not, and that nothing in it waits."""
    files = ("tests/triton_backend/test_triton_step.py", "tests/triton_backend/test_triton_kernels.py")
    return pytest(dry, files, "step or replays")


def command_tests(dry: bool) -> dict:
    """`fastbert pretrain`, `finetune`, `predict` and the others compute on the GPU, and come to their ends."""
    if not importlib.util.find_spec("tyro"):
        return {"skipped": "fastbert's commands need tyro, which is not installed here"}
    return pytest(dry, ("tests/cli/test_device.py",), "to_the_end")


def optimizer_tests(dry: bool) -> dict:
    files = ("tests/triton_backend/test_triton_optimizer.py", "tests/triton_backend/test_triton_kernels.py")
    return pytest(dry, tuple(f for f in files if (REPOSITORY / f).exists()), "adamw or lamb or optimizer or step")


def cases(device: str, tokens: int, columns: int) -> dict[str, tuple[Callable, list[torch.Tensor]]]:
    """Every op with dropout as (function, leaves)."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    heads = max(columns // 64, 1)
    width = columns // heads
    lengths = [0, *range(1, 512, 37)]
    bounds = [0]
    while bounds[-1] < tokens:
        bounds.append(min(bounds[-1] + lengths[len(bounds) % len(lengths)], tokens))
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device=device)
    labels = torch.randint(3000, (tokens // 8,), generator=generator).to(device)
    labels[::7] = -100
    ids = torch.randint(0, 50, (tokens,), generator=generator).to(device)
    types, positions = (ids > 25).long(), torch.arange(tokens, device=device) % 64
    weight, bias = random(columns), random(columns)

    def embedding(word, token_type, position):
        return ops.embedding(ids, types, positions, word, token_type, position, weight, bias, 1e-12, dropout=DROPOUT)

    found = {
        "attention": (
            lambda q, k, v: ops.attention(q, k, v, cu_seqlens, 512, dropout=DROPOUT),
            [random(tokens, heads, width) for _ in "qkv"],
        ),
        "layer_norm": (
            lambda x, r: ops.layer_norm(x, weight, bias, 1e-12, x_bias=bias, residual=r, dropout=DROPOUT),
            [random(tokens, columns), random(tokens, columns)],
        ),
        "gelu": (lambda x, b: ops.gelu(x, b), [random(tokens, columns), bias]),
        "cross_entropy": (lambda x: ops.cross_entropy(x, labels), [random(tokens // 8, 3000)]),
        "embedding": (embedding, [random(60, columns), random(2, columns), random(64, columns)]),
        "dropout": (lambda x: ops.dropout(x, DROPOUT), [random(tokens, columns)]),
    }
    if why_no_fp8(torch.device(device)) is None:
        found["feed-forward in 8 bits"] = (_eight_bits(random, tokens, columns), [random(tokens, columns), bias])
    return found


def _eight_bits(random: Callable, tokens: int, columns: int) -> Callable:
    """LayerNorm and a feed-forward block that hand each other 8 bits, after the step that makes their scales."""
    up, down = (torch.nn.Parameter(random(*shape)) for shape in ((4 * columns, columns), (columns, 4 * columns)))
    norm, between = torch.nn.Parameter(random(columns)), random(4 * columns)
    policy = fp8_kernels.policy([up, down], norm)

    def block(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        with fp8.use(policy):
            return fp8_kernels.block(ops.layer_norm(x, norm, bias, 1e-12), up, between, down)

    bits(block, [random(tokens, columns), random(columns)])
    policy.scales.end_step()
    return block


def bits(function: Callable, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Result and gradients."""
    given = [leaf.detach().requires_grad_() for leaf in leaves]
    out = function(*given)
    generator = torch.Generator(out.device).manual_seed(1)
    out.backward(torch.randn(out.shape, generator=generator, device=out.device).to(out.dtype))
    return [out.detach(), *(leaf.grad for leaf in given)]


def repeats(dry: bool) -> dict:
    """250 runs of every op, each to the bits of the first."""
    runs = 2 if dry else 250
    different = {}
    for name, (function, leaves) in cases(where(dry)[0], 64 if dry else 8192, 64 if dry else 768).items():
        first = bits(function, leaves)
        same = torch.ones((), dtype=torch.bool, device=first[0].device)
        for _ in range(runs - 1):
            again = bits(function, leaves)
            for a, b in zip(first, again, strict=True):
                same &= (a == b).all()  # NaN, which no result should have, counts as different
        different[name] = not bool(same)
    return {"runs": runs, "different": [name for name, bad in different.items() if bad], "ops": list(different)}


def unwritten_memory(dry: bool) -> dict:
    """Every op again while new memory holds NaN: the same bits, so nothing is read that was not written."""
    different = []
    for name, (function, leaves) in cases(where(dry)[0], 64 if dry else 8192, 64 if dry else 768).items():
        clean = bits(function, leaves)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        try:
            filled = bits(function, leaves)
        finally:
            torch.use_deterministic_algorithms(False)
        if not all(torch.equal(a, b) for a, b in zip(clean, filled, strict=True)):
            different.append(name)
    return {"different": different}


def sanitizer(tool: str, dry: bool) -> dict:
    """The reduced grid of `main` under compute-sanitizer."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    own = [sys.executable, str(Path(__file__).resolve())]
    if dry:
        done = subprocess.run([*own, f"--{where(dry)[0]}"], capture_output=True, text=True, timeout=120)
        return {"skipped": "a dry run has its ops without it", "rc": done.returncode, "out": done.stdout.strip()[-200:]}
    if found is None:
        return {"skipped": "compute-sanitizer is not on PATH and not in /usr/local/cuda/bin"}
    # Blocks of their own, not pieces of the allocator's: a read past the end would stay inside one.
    variables = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [found, "--tool", tool, "--error-exitcode", "9", "--print-limit", "5", *own]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=75)
    except subprocess.TimeoutExpired:
        return {"skipped": f"{tool} of the reduced grid took over 75 s"}
    lines = (done.stdout + done.stderr).strip().splitlines()
    return {
        "rc": done.returncode,
        "summary": lines[-1] if lines else "",
        "tail": lines[-30:] if done.returncode else [],
    }


def main() -> None:
    device = "cpu" if "--cpu" in sys.argv else "cuda"
    for function, leaves in cases(device, 136, 128).values():
        bits(function, leaves)
    if device == "cuda":
        torch.cuda.synchronize()
    print("every op ran once")


if __name__ == "__main__":
    main()
