"""A GPU for a torch without CUDA: what runs on it takes every way of the host's that it takes beside a real one.

Imported before torch, in a process of its own, it loads the library that FASTBERT_STAND_IN_GPU names (stand_in_gpu.cpp,
as `build` makes it). Then ``torch.cuda`` finds a device of capability 9.0 for each process of a launcher; Triton's
kernels run in its interpreter; a CUDA graph is the list of what was called under it, none of it done before the first
replay; gloo takes NCCL's place. What of a GPU is not there: its speed, its arithmetic, its asynchrony, and the kernels
of csrc/cuda.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

ENVIRONMENT = "FASTBERT_STAND_IN_GPU"
_SOURCE = Path(__file__).with_suffix(".cpp")
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


def _torch() -> Path:
    return Path(importlib.util.find_spec("torch").origin).parent


def build(library: Path) -> None:
    """Compiles the device. Raises CalledProcessError, with what the compiler says."""
    includes = [f"-I{_torch() / 'include' / part}" for part in ("", "torch/csrc/api/include")]
    options = ["-shared", "-fPIC", "-std=c++20", "-O1", "-w", "-DAT_PER_OPERATOR_HEADERS", f"-L{_torch() / 'lib'}"]
    command = [COMPILER, *options, *includes, str(_SOURCE), "-o", str(library), "-lc10", "-ltorch_cpu"]
    subprocess.run(command, check=True, capture_output=True, text=True)


if os.environ.get(ENVIRONMENT):
    assert "torch" not in sys.modules, "torch has asked for a GPU already"
    for _name in (*sorted(p.name for p in (_torch() / "lib").glob("libgomp*")), "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(_torch() / "lib" / _name), ctypes.RTLD_GLOBAL)
    _library = ctypes.CDLL(os.environ[ENVIRONMENT], ctypes.RTLD_GLOBAL)
    _library.stand_in_gpu_begin()
    os.environ["TRITON_INTERPRET"] = "1"  # read as triton is imported, and by its decorator: see the end

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    _RANK, _COUNT = (int(os.environ.get(name, value)) for name, value in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))

    # Of torch's own class, which its compiler takes for a constant.
    _PROPERTIES = object.__new__(torch.cuda._CudaDeviceProperties)
    vars(_PROPERTIES).update(
        name="a stand-in", major=9, minor=0, total_memory=80 << 30, multi_processor_count=4, warp_size=32,
        shared_memory_per_block_optin=227 << 10, L2_cache_size=50 << 20,
    )  # fmt: skip

    class Stream:
        cuda_stream = 0

        def __init__(self, *_args, **_options) -> None:
            self.device = torch.device("cuda", _current)

        def wait_stream(self, _other) -> None: ...
        def wait_event(self, _event) -> None: ...
        def synchronize(self) -> None:
            synchronize()

    class Event:
        def __init__(self, *_args, **_options) -> None:
            self._time = 0.0

        def record(self, stream=None) -> None:
            assert (stream or Stream()).device.index == _RANK, "the moment of another device"
            self._time = time.perf_counter()

        def elapsed_time(self, later: Event) -> float:
            return (later._time - self._time) * 1e3

        def query(self) -> bool:
            return True

        def wait(self, _stream=None) -> None: ...
        def synchronize(self) -> None:
            synchronize()

    _current = _RANK

    def _stream_of(device=None) -> Stream:
        with Device(_current if device is None else device):
            return Stream()

    class Device:
        """The current device, of all threads; memory is on that of the process's rank alone."""

        def __init__(self, device) -> None:
            index = device if isinstance(device, int) else torch.device(device).index
            self._index = _current if index is None or index < 0 else index

        def __enter__(self) -> None:
            global _current
            self._before, _current = _current, self._index

        def __exit__(self, *_error) -> None:
            global _current
            _current = self._before

    _capture: Recorder | None = None

    def synchronize(device=None) -> None:
        with Device(_current if device is None else device):
            assert _current == _RANK, "the wait is for another device"
        assert _capture is None, "the host waits for a stream that is captured"

    _pools: dict[tuple, weakref.WeakSet] = {}  # the graphs of each memory pool
    _handles = itertools.count(1)

    class CUDAGraph:
        # The generator's state: up to torch 2.10 created with the first graph, written at each capture and replay.
        _graphs, _state = weakref.WeakSet(), None

        def __init__(self, *_args, **_options) -> None:
            self.calls: list = []

        def replay(self) -> None:
            assert _capture is None, "a replay while a graph is captured"
            CUDAGraph._state.fill_(0)
            for call in self.calls:
                call()

        def capture_begin(self, pool=None, **_options) -> None:
            global _capture
            assert _capture is None, "two captures at a time"
            assert _current == _RANK, "a stream of another device is captured"
            if not CUDAGraph._graphs:
                CUDAGraph._state = torch.empty(1, device="cpu")
            CUDAGraph._graphs.add(self)
            CUDAGraph._state.fill_(0)
            if pool is not None:
                graphs = _pools.setdefault(pool, weakref.WeakSet([self]))
                assert graphs, "a memory pool is used again that has no graph any more"
                graphs.add(self)
            _capture = Recorder()
            _library.stand_in_gpu_capture(1)
            _capture.__enter__()

        def capture_end(self) -> None:
            global _capture
            recorder, _capture = _capture, None
            recorder.__exit__(None, None, None)
            _library.stand_in_gpu_capture(0)
            recorder.put_back()
            self.calls = recorder.calls

    class Recorder(TorchDispatchMode):
        """Takes down every operator's call. Its result must be there for the next; what it wrote to is put back, and
        what it made is gone until a replay."""

        def __init__(self) -> None:
            super().__init__()
            self.calls: list = []
            self.computing = False
            self._before: dict[int, tuple] = {}

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            for x in given:
                self._keep(x)
            self.computing = True
            try:
                results = function(*args, **kwargs)
            finally:
                self.computing = False
            taken = {x.untyped_storage().data_ptr() for x in given}
            made = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
            for x in made:
                self._keep(x, born=True)
            fresh = [x.untyped_storage().data_ptr() not in taken for x in made]

            def again() -> None:
                with torch.no_grad():
                    new = [x for x in tree_leaves(function(*args, **kwargs)) if isinstance(x, torch.Tensor)]
                    for to, value, is_fresh in zip(made, new, fresh, strict=True):
                        if is_fresh:
                            to.detach().copy_(value.detach())

            self.calls.append(again)
            return results

        def _keep(self, x: torch.Tensor, born: bool = False) -> None:
            memory = x.untyped_storage()
            if x.is_cuda and memory.nbytes() and memory.data_ptr() not in self._before:
                # What is born in a capture is not written before the first replay.
                data = b"\xff" * memory.nbytes() if born else ctypes.string_at(memory.data_ptr(), memory.nbytes())
                self._before[memory.data_ptr()] = (memory, data)

        def put_back(self) -> None:
            for place, (_, data) in self._before.items():
                ctypes.memmove(place, data, len(data))

    @contextlib.contextmanager
    def graph(held: CUDAGraph, **options):
        held.capture_begin(pool=options.get("pool"))
        try:
            yield
        finally:
            held.capture_end()

    # get_device_name and get_device_capability stay torch's own, which its compiler knows and does not look into.
    _FOUND = {
        "device_count": _COUNT,
        "get_device_properties": _PROPERTIES,
        "mem_get_info": (79 << 30, 80 << 30),
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
        **dict.fromkeys(
            ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 1 << 20
        ),
        **dict.fromkeys(("_lazy_init", "init", "set_device", "empty_cache", "reset_peak_memory_stats"), None),
        **dict.fromkeys(("manual_seed", "manual_seed_all", "_sleep"), None),
    }
    for _name, _value in _FOUND.items():
        setattr(torch.cuda, _name, lambda *_args, _value=_value, **_options: _value)
    torch.cuda.current_device = torch._C._cuda_getDevice = lambda: _current
    torch.cuda.current_stream = torch.cuda.default_stream = _stream_of
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()
    torch.cuda.graph_pool_handle = lambda: (0, next(_handles))
    torch.cuda.is_current_stream_capturing = lambda: _capture is not None
    torch.cuda.synchronize, torch.cuda.graph, torch.cuda.CUDAGraph = synchronize, graph, CUDAGraph
    torch.cuda.Stream, torch.cuda.Event, torch.cuda.device = Stream, Event, Device
    torch.cuda.default_generators = (torch.Generator("cuda"),)
    torch.version.cuda = "12.8"
    torch._C._cuda_getCurrentRawStream = lambda _device: 0
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_args: None
    # Backward ends before torch's thread of the device has let go of it, which as Python ends would abort the process.
    atexit.register(time.sleep, 0.2)

    # torch's own storages cannot be made on the device by hand.
    def _bytes(storage) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def _to(storage, device, non_blocking=False):
        same = torch.device(device) == storage.device
        return storage if same else _bytes(storage).to(device).untyped_storage()

    torch.storage._to = _to
    torch.UntypedStorage.clone = lambda storage: _bytes(storage).clone().untyped_storage()

    import torch.distributed as dist
    from torch._C._distributed_c10d import _create_work_from_future

    class Group(dist.ProcessGroup):
        """NCCL's place, and gloo's: gloo on the host's memory. Calls end before they return."""

        pg_name = group_name = "stand_in"

        def __init__(self, store, rank: int, size: int, timeout) -> None:
            super().__init__(rank, size)
            self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

        def getBackendName(self) -> str:
            return self.pg_name

        def barrier(self, opts=None):
            return self._gloo.barrier()

        def _call(self, name: str, results, *given):
            def on_host(value):
                if isinstance(value, (list, tuple)):
                    return [on_host(x) for x in value]
                return torch.ops.stand_in_gpu.on_host(value.detach()) if isinstance(value, torch.Tensor) else value

            getattr(self._gloo, name)(on_host(results), *map(on_host, given)).wait()
            future = torch.futures.Future()
            future.set_result(results)
            return _create_work_from_future(future)

    for _name in ("allreduce", "broadcast", "reduce", "allgather", "_allgather_base", "_reduce_scatter_base"):
        setattr(Group, _name, functools.partialmethod(Group._call, _name))
    Group.all_gather_single, Group.reduce_scatter_single = Group._allgather_base, Group._reduce_scatter_base
    dist.Backend.register_backend("stand_in", Group, devices=["cuda"])
    _join = dist.init_process_group

    def _init_process_group(backend=None, *args, **options):
        _join(backend and backend.replace("nccl", "stand_in"), *args, **options)

    dist.init_process_group = _init_process_group

    import interpreter
    import triton
    from triton.runtime.interpreter import GridExecutor

    interpreter.quicken()
    for _correct in (interpreter.round_casts, interpreter.multiply_bf16):
        _correct(SimpleNamespace(setattr=setattr))

    _launch = GridExecutor.__call__

    def _pointers(executor, args, kwargs):
        def on_host(value):
            if isinstance(value, tuple):
                return tuple(map(on_host, value))
            if not isinstance(value, torch.Tensor):
                return value
            if not value.is_cuda or value.device.index != _current:
                raise ValueError(f"pointer of {executor.fn} cannot be accessed from Triton: it is on {value.device}")
            return torch.ops.stand_in_gpu.on_host(value.detach())

        return [on_host(value) for value in args], {name: on_host(value) for name, value in kwargs.items()}

    def _start(executor, *args, **kwargs) -> None:
        if _capture is None or _capture.computing:
            _launch(executor, *args, **kwargs)
        else:
            _pointers(executor, args, kwargs)
            _capture.calls.append(lambda: _launch(executor, *args, **kwargs))

    GridExecutor._init_args_hst = _pointers
    GridExecutor._restore_args_dev = lambda *_args: None  # the memory is the same
    GridExecutor.__call__ = _start
    triton.knobs.runtime.interpret = True
    del os.environ["TRITON_INTERPRET"]  # what is asked of the environment is whether there is no GPU
