"""python scripts.py: runs the scripts that it is told, each in a fork of a process that has imported what they import.

A line of standard input is a JSON list: the file of what is printed (that of errors lies beside it), the script, its
arguments. The answer is a line with the exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback

import stand_in_gpu  # noqa: F401  (before torch)
import test_triton_replay  # noqa: F401
import test_triton_step  # noqa: F401
import torch._dynamo  # noqa: F401


def run(out: str, script: str, arguments: list[str]) -> None:
    """In the fork, of which this is the end."""
    code = 1
    for number, name in ((1, out), (2, f"{out}.errors")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    try:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for line in sys.stdin:
        out, script, *arguments = json.loads(line)
        child = os.fork()
        if not child:
            run(out, script, arguments)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


main()
