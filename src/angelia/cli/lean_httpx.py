"""Imports httpx without its command line, which loads rich and pygments where they are installed. That takes 30 ms
of each command that speaks to a server, and 140 ms where Python keeps no bytecode."""

from __future__ import annotations

import sys
from contextlib import suppress

_COMMAND_LINE = "httpx._main"


def load() -> None:
    """Imports httpx, if it is not there yet; `import httpx` finds it from then on.

    httpx takes an ImportError of its command line for a missing extra and does without; and None in `sys.modules` is
    Python's own word for a module that cannot be imported. It stands there during this import only. Should httpx ever
    need the module, the import that follows this one is an ordinary one. The SDK does not do this: it is a guest in its
    process, and httpx may have other users there."""
    if "httpx" in sys.modules or _COMMAND_LINE in sys.modules:
        return
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]
    try:
        with suppress(ImportError):
            import httpx  # noqa: F401
    finally:
        del sys.modules[_COMMAND_LINE]
