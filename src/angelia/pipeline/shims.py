"""Scripts that Spark starts in place of a program: in the user's cache, where the next run finds them."""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import platformdirs

# Spark puts a zip of PySpark before the installed one, which is the same code. But Python keeps no bytecode of a zip,
# so that each of the four or five kinds of processes of a job compiled it again: 0.65 CPU-seconds each, against 0.15.
_PYTHON = """\
#!/bin/sh
# The installed PySpark, instead of Spark's zip of it.
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
    case $place in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept=$kept${{kept:+:}}$place ;;
    esac
done
unset IFS
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def python() -> Path:
    """A Python for the processes of Spark's on this machine: this one, with the installed PySpark."""
    return script("python", _PYTHON.format(python=shlex.quote(sys.executable)))


def script(name: str, text: str) -> Path:
    """Makes a program of that name, in a directory `bin`: in the user's cache, or in a new directory for this process
    if the cache cannot be written."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    target = Path(platformdirs.user_cache_dir("angelia")) / name / digest / "bin" / name
    try:
        _write(target, text)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix=f"angelia-{name}-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        target = home / "bin" / name
        _write(target, text)
    return target


def _write(target: Path, text: str) -> None:
    """Writes a file atomically, unless it exists."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = target.with_name(f"{target.name}.{os.getpid()}")
    made.write_text(text, "utf-8")
    made.chmod(0o700)
    made.rename(target)
