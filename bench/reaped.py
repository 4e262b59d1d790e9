"""Runs a command (its arguments), waits for it and for every process that it leaves behind, and prints the CPU seconds
of all of them together.

Spark's Java process outlives the Python process that started it. Here such processes become children of this one, as
if it were init; so each is waited for, and no CPU time is lost.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    status = subprocess.run(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode
    try:
        while True:
            os.wait()
    except ChildProcessError:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(spent.ru_utime + spent.ru_stime)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
