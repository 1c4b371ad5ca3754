"""The largest memory of a process, for the scripts that tests start in one of their own.

`getrusage` does not tell it: its peak survives `exec`, so a script's begins at that of the pytest that started it, and
what the script takes below that is not seen.
"""

from __future__ import annotations

import re
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_mib() -> float:
    """The largest resident memory of this process since its program began, in MiB."""
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)[1]) / 1024
