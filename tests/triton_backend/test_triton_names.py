"""What `import triton` finds where triton is not installed: nothing."""

from importlib.machinery import PathFinder
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", ["triton", "deepspeed", "onnx", "pyarrow", "wandb"])
def test_no_folder_beside_the_tests_is_taken_for_an_optional_package(package):
    """Both are on sys.path in every test, and Python imports a folder of any name as a package without modules."""
    assert PathFinder.find_spec(package, [str(REPO / "tests"), str(REPO / "benchmarks")]) is None
