"""Finds the cause of an error in one line of Spark's report, which holds Java's and Python's stacks."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

from angelia.errors import AngeliaError

_LONGEST = 300
_TRACEBACK = "Traceback (most recent call last):"
_OURS = re.compile(r"(angelia(?:\.\w+)+)\.(\w+): (.+)")
_CLASS = re.compile(r"^(?:Caused by: |: )?(?:[\w$]+\.)+[\w$]+(?:: |$)")
_CLUTTER = re.compile(r"^\[[A-Z_.]+\] |\.? SQLSTATE: .*$")
_JAVA_IS_GONE = "Answer from Java side is empty"


def telling(error: BaseException) -> str:
    """The line that names the cause."""
    if isinstance(error, AngeliaError):
        return error.message[:_LONGEST]
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if _JAVA_IS_GONE in lines[0]:
        return "Spark's Java process ended in the middle of it"
    raised = list(_raised(lines))
    if raised:
        ours = _OURS.fullmatch(raised[-1])
        return (ours[3] if ours else raised[-1])[:_LONGEST]
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    said = causes[-1] if causes else lines[0].strip()
    return _CLUTTER.sub("", _CLASS.sub("", said) or said)[:_LONGEST].rstrip(".")


def raised_by_us(error: BaseException) -> AngeliaError | None:
    """The AngeliaError that one of Spark's Python processes raised; None if it was another error."""
    raised = list(_raised(str(error).splitlines()))
    ours = _OURS.fullmatch(raised[-1].rstrip()) if raised else None
    if ours is None:
        return None
    try:
        kind = getattr(importlib.import_module(ours[1]), ours[2], None)
    except ImportError:
        return None
    if not (isinstance(kind, type) and issubclass(kind, AngeliaError) and kind.__init__ is AngeliaError.__init__):
        return None
    return kind(ours[3][:_LONGEST])


def _raised(lines: list[str]) -> Iterator[str]:
    """The last line of each Python stack; of chained errors, the last is the one that was raised."""
    inside = False
    for line in lines:
        if _TRACEBACK in line:
            inside = True
        elif inside and line and not line[0].isspace():
            inside = False
            yield line
