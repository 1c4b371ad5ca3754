"""cuBLASLt's calls without a GPU: a stand-in for the library does on the CPU what it is told, and writes down what.

It follows NVIDIA's documentation, not this package: columns first, biases along rows, its own numbers for epilogues.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from close import assert_close
from second_derivative_cases import check

import fastbert
from fastbert import _native, ops, reference
from fastbert.errors import BackendError
from fastbert.ops import _cublaslt, _cuda_linear
from fastbert.ops._cublaslt import Epilogue, multiply

if torch.cuda.is_available():
    pytest.skip("the real library is there (benchmarks/gpu tests it)", allow_module_level=True)
if _native.why_missing() or not hasattr(_native.extension(), "cublaslt_load"):
    pytest.skip(f"no loader: {_native.why_missing()}", allow_module_level=True)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("no g++")
    out = tmp_path_factory.mktemp("fake") / "libcublasLt.so.13"
    source = Path(__file__).with_name("fake_cublaslt.cpp")
    done = subprocess.run(
        ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", source, "-o", out], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def log(library, monkeypatch, tmp_path):
    """Reads what the library was told since the last time."""
    path = tmp_path / "log"
    monkeypatch.setenv("FASTBERT_CUBLASLT", str(library))
    monkeypatch.setenv("FAKE_CUBLASLT_LOG", str(path))
    assert _cublaslt.why_missing() is None

    def read() -> list[str]:
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    return read


def _header_folders() -> list[Path]:
    """Folders that cuBLASLt's header can be read with: of the toolkit and of a torch that was built for CUDA."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    wheels = [folder for place in sys.path for folder in Path(place).glob("nvidia/*/include")]
    folders = [*wheels, toolkit]  # a wheel's headers with the wheel's; nvcc's own are in the toolkit alone
    needed = ("cublasLt.h", "crt/host_defines.h")
    return folders if all(any((folder / name).exists() for folder in folders) for name in needed) else []


def test_numbers_are_those_of_nvidias_header(tmp_path):
    """They are written down in csrc/cublaslt.cpp, which is built where there is no header."""
    folders = _header_folders()
    if not folders or not shutil.which("g++"):
        pytest.skip("no cublasLt.h with the headers that it needs, or no g++")
    csrc = Path(__file__).resolve().parents[2] / "csrc"
    names = {
        "COMPUTE_32F": "CUBLAS_COMPUTE_32F",
        "R_32F": "CUDA_R_32F",
        "R_16F": "CUDA_R_16F",
        "R_16BF": "CUDA_R_16BF",
        "MAX_WORKSPACE": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
        **{name: f"CUBLASLT_MATMUL_DESC_{name}" for name in ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER")},
        **{f"AUX_{name}": f"CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_{name}" for name in ("POINTER", "LD")},
        "BIAS_TYPE": "CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE",
        **{name: f"CUBLASLT_EPILOGUE_{name}" for name in ("DEFAULT", "BIAS", "GELU_AUX_BIAS", "DGELU_BGRAD", "BGRADB")},
    }
    checks = [f"int({ours}) == int({theirs})" for ours, theirs in names.items()]
    checks += [
        "sizeof(Algo) == sizeof(cublasLtMatmulAlgo_t)",
        "sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t)",
    ]
    for ours, theirs in (("workspace", "workspaceSize"), ("state", "state"), ("waves", "wavesCount")):
        checks.append(f"offsetof(Heuristic, {ours}) == offsetof(cublasLtMatmulHeuristicResult_t, {theirs})")
    source = tmp_path / "numbers.cpp"
    source.write_text(
        f'#include <cstddef>\n#include "{csrc / "cublaslt.cpp"}"\n#include <cublasLt.h>\n'
        "namespace fastbert { namespace cublaslt {\n"
        + "".join(f'static_assert({check}, "");\n' for check in checks)
        + "} }\n"
    )
    include = [f"-I{folder}" for folder in (csrc / "include", *folders)]
    done = subprocess.run(
        ["g++", "-std=c++17", "-w", "-fsyntax-only", *include, source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_loaded_says_why(monkeypatch, tmp_path):
    # In a process of its own: the first library that loads stays.
    bad = tmp_path / "libcublasLt.so.13"
    bad.write_text("no library")
    code = "from fastbert.ops import _cublaslt; print(_cublaslt.why_missing())"
    # The package under test, and not the source tree that a run may start in.
    package = os.path.dirname(os.path.dirname(fastbert.__file__))
    environment = {**os.environ, "FASTBERT_CUBLASLT": str(bad), "PYTHONPATH": package}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{bad}: it does not load")
    monkeypatch.delenv("FASTBERT_CUBLASLT", raising=False)
    # Where torch was built for CUDA, the process has the real one mapped, without a GPU too.
    monkeypatch.setattr(_cublaslt, "_mapped", lambda: None)
    assert "torch has loaded no libcublasLt" in _cublaslt.why_missing()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_products(log, dtype, transposed):
    """Three different sizes: a swapped one shows."""
    rows, cols, inner = 5, 16, 7
    a = torch.randn(*((inner, rows) if transposed[0] else (rows, inner))).to(dtype)
    b = torch.randn(*((cols, inner) if transposed[1] else (inner, cols))).to(dtype)
    x, y = a.t() if transposed[0] else a, b.t() if transposed[1] else b
    truth, same = x.double() @ y.double(), x @ y
    out = multiply(a, b, torch.full((rows, cols), float("nan"), dtype=dtype), transposed=transposed)
    assert_close(out, truth, same)
    code = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}[dtype]
    shape = f"ld={inner if transposed[1] else cols},{rows if transposed[0] else inner},{cols}"
    assert log() == [
        f"1 {transposed[1]:d}{transposed[0]:d} beta=0 {shape} types={code},{code},{code} workspace=33554432"
    ]


def test_a_shape_is_described_once_and_its_pointers_each_time(log):
    first = [torch.randn(6, 8), torch.randn(16, 8), torch.randn(16)]
    second = [torch.randn_like(t) for t in first]
    for a, b, bias in (first, second, first):
        out = multiply(a, b, torch.empty(6, 16), transposed=(False, True), epilogue=Epilogue.BIAS, bias=bias)
        torch.testing.assert_close(out, a @ b.t() + bias)


def test_a_product_that_the_library_does_not_have(log):
    for _ in range(2):
        with pytest.raises(
            BackendError, match=r"cuBLASLt cannot multiply \(3, 8\) by \(8, 24\) in float32 with epilogue "
        ):
            multiply(torch.randn(3, 8), torch.randn(8, 24), torch.empty(3, 24))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_feed_forward_block(log, dtype):
    shapes = [(2, 5, 8), (32, 8), (32,), (16, 32)]
    leaves = [torch.randn(shape).to(dtype) for shape in shapes]
    dout = torch.randn(2, 5, 16).to(dtype)

    def run(function, kind):
        given = [leaf.detach().to(kind, copy=True).requires_grad_() for leaf in leaves]
        out = function(*given).mul_(1)  # in place, as a caller may
        out.backward(dout.to(kind))
        return [out.detach(), *(leaf.grad for leaf in given)]

    def plain(x, w1, b1, w2):
        with ops.backend("reference"):
            return ops.mlp(x, w1, b1, w2, "tanh")

    ours = run(lambda *given: _cuda_linear._mlp(*given)[0], dtype)
    truth, same = run(plain, torch.float64), run(plain, dtype)
    for i, what in enumerate(("out", "dx", "dw1", "db1", "dw2")):
        assert_close(ours[i], truth[i], same[i], gradient=i > 0, what=what)
    # Bias and GELU, with its input kept; a plain product; the GELU's derivative with the bias's sums; three plain ones.
    assert [line.split()[0] for line in log()] == ["164", "1", "208", "1", "1", "1"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dense_layer(log, dtype):
    leaves = [torch.randn(3, 5, 8).to(dtype), torch.randn(16, 8).to(dtype), torch.randn(16).to(dtype)]
    dout = torch.randn(3, 5, 16).to(dtype)

    def run(function, kind):
        given = [leaf.detach().to(kind, copy=True).requires_grad_() for leaf in leaves]
        out = function(*given).mul_(1)  # in place, as a caller may
        out.backward(dout.to(kind))
        return [out.detach(), *(leaf.grad for leaf in given)]

    ours = run(_cuda_linear._linear, dtype)
    truth, same = run(reference.linear, torch.float64), run(reference.linear, dtype)
    for i, what in enumerate(("out", "dx", "dweight", "dbias")):
        assert_close(ours[i], truth[i], same[i], gradient=i > 0, what=what)
    assert [line.split()[0] for line in log()] == ["4", "512", "1"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_second_derivatives(log, dtype):
    check(_cuda_linear._linear, [(5, 8), (16, 8), (16,)], dtype, truth=reference.linear)
    of_block = [(5, 8), (16, 8), (16,), (8, 16)]
    check(lambda *x: _cuda_linear._mlp(*x)[0], of_block, dtype, truth=lambda *x: ops.mlp(*x, "tanh"), scale=0.3)


def test_opcheck(log):
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    x, w1, b1, w2 = (torch.randn(shape, requires_grad=True) for shape in ((5, 8), (16, 8), (16,), (8, 16)))
    torch.library.opcheck(torch.ops.fastbert.cublaslt_mlp, (x, w1, b1, w2), test_utils=utils)
    torch.library.opcheck(torch.ops.fastbert.cublaslt_linear, (x, w1, b1), test_utils=utils)


def test_who_serves_a_block():
    arguments = (torch.randn(5, 8), torch.randn(16, 8), torch.randn(16), torch.randn(8, 16), "tanh")
    assert not ops.is_fused("mlp", *arguments)
    with ops.backend("cuda"), pytest.raises(BackendError, match="mlp: backend 'cuda' was asked for by name but cannot"):
        ops.mlp(*arguments)
