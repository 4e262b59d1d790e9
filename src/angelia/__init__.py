"""Angelia: a message platform for AI agents."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from angelia.client import *  # noqa: F403
    from angelia.envelope.refusals import *  # noqa: F403
    from angelia.errors import *  # noqa: F403
else:
    _HOMES = ("angelia.errors", "angelia.envelope.refusals", "angelia.client")

    def __getattr__(name):
        """Returns a class of the SDK, and imports its module on first use: the command line starts without them."""
        if name[:1].isupper():  # a class; other names are modules, which the import system finds
            for home in _HOMES:
                if name in _classes(home):
                    return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return [*globals(), *(name for home in _HOMES for name in _classes(home))]

    def _classes(home):
        """The names that a module offers: what it lists, or the classes that it defines."""
        found = vars(importlib.import_module(home))
        own = [name for name, value in found.items() if getattr(value, "__module__", "") == home]
        return found.get("__all__", own)
