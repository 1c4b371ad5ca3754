"""The machine and the versions with which a figure was measured."""

from __future__ import annotations

import datetime
import functools
import platform
import time

from .. import hardware


class Clock:
    """Measures time from its creation on."""

    def __init__(self) -> None:
        self._began, self._worked = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        """The seconds, and the processor seconds of this process, which are fewer if the machine is shared."""
        return {"seconds": time.monotonic() - self._began, "processor_seconds": time.process_time() - self._worked}


@functools.cache
def _here() -> tuple:
    from .. import __version__, _environment, _native

    isa = _native.isa() or f"none: {_native.why_missing()}"
    return __version__, _environment.commit(), hardware.processor_name(), hardware.num_cores(), isa


def device() -> str:
    """The name of the device that computes."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else _here()[2]


def made_by() -> dict:
    """The version, commit, device, threads and time, for the result of one job."""
    import torch

    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    version, commit, *_ = _here()
    return {"version": version, "commit": commit, "device": device(), "threads": torch.get_num_threads(), "date": now}


def description() -> dict:
    """The versions and the machine of a whole run."""
    import torch

    _, _, processor, cores, isa = _here()
    system = " ".join((platform.system(), platform.machine(), *platform.libc_ver()))
    machine = {"processor": processor, "cores": cores, "instructions": isa, "system": system}
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {**made_by(), **machine, "gpus": gpus, "torch": torch.__version__}
