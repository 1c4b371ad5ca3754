"""The processors that a container may use, as Linux's control groups say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import fastbert
from fastbert import hardware


def files(root, content: dict[str, str]) -> str:
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


V1 = "9:name=systemd:/\n4:memory:/a/b\n2:cpuset:/c\n1:cpu,cpuacct:/docker/0123\n0::/\n"
CPU = "sys/fs/cgroup/cpu/"


@pytest.mark.parametrize(
    ("content", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        # The group of a service, with a limit of its own and one of the group above it.
        (
            {
                "proc/self/cgroup": "0::/system.slice/x.service\n",
                "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/system.slice/x.service/cpu.max": "400000 100000\n",
            },
            2.0,
        ),
        # A path of the machine, which the container does not see; the mount is its own group.
        ({"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ({"proc/self/cgroup": V1, CPU + "cpu.cfs_quota_us": "-1\n", CPU + "cpu.cfs_period_us": "100000\n"}, None),
        ({"proc/self/cgroup": V1, CPU + "cpu.cfs_quota_us": "300000\n", CPU + "cpu.cfs_period_us": "100000\n"}, 3.0),
        (
            {
                "proc/self/cgroup": V1,
                CPU + "docker/0123/cpu.cfs_quota_us": "20000\n",
                CPU + "docker/0123/cpu.cfs_period_us": "10000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": V1, CPU + "cpu.cfs_quota_us": "100000\n"}, None),
    ],
)
def test_what_the_groups_say(tmp_path, content, quota):
    assert hardware.processor_quota(files(tmp_path, content)) == quota


def test_this_system_is_read():
    quota = hardware.processor_quota()
    assert quota is None or quota > 0


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (0.1, 1), (1.0, 1), (1.5, 2), (64.0, 8)])
def test_cores(monkeypatch, quota, cores):
    monkeypatch.setattr(hardware, "_seen_cores", lambda: 8)
    monkeypatch.setattr(hardware, "processor_quota", lambda: quota)
    assert hardware.num_cores() == cores


CHILD = """
import sys
from fastbert import hardware
quota, siblings = eval(sys.argv[1]), sys.argv[2:]
hardware._seen_cores, hardware.processor_quota, hardware._lines = lambda: 8, lambda: quota, lambda path: siblings
from fastbert.cli.main import main
main(["doctor", "--json"])
"""


@pytest.mark.parametrize(
    ("quota", "siblings", "given", "threads"),
    [(1.5, [], None, 2), (1.5, [], "3", 3), (5, ["0,4"], None, None), (3, ["0-1"], None, 3), (None, [], None, None)],
)
def test_a_command_starts_as_many_threads(quota, siblings, given, threads):
    """A setting stays, and torch's own choice does where it is no more: a thread for each of four physical cores."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {} if given is None else {"OMP_NUM_THREADS": given}
    code = CHILD + "import os\nprint('threads', os.environ.get('OMP_NUM_THREADS'))"
    command = [sys.executable, "-c", code, str(quota), *siblings]
    place = os.path.dirname(os.path.dirname(fastbert.__file__))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=place)
    assert done.stdout.endswith(f"threads {threads}\n"), done.stderr


def test_more_threads_than_the_quota_are_noted(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(hardware, "processor_quota", lambda: 0.5)
    try:
        for count, noted in ((2, True), (1, False)):
            torch.set_num_threads(count)
            told = (
                "2 threads, and this container may use the time of 0.5 processors, so that threads wait for each other"
            )
            assert any(f"{told}: set OMP_NUM_THREADS=1" in note for note in fastbert.environment()["notes"]) == noted
    finally:
        torch.set_num_threads(before)
