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

    def __getattr__(name):
        """Returns a class of the SDK, and imports its module on first use: the command line starts without them."""
        if name[:1].isupper():  # a class; other names are modules, which the import system finds
            for home in ("angelia.errors", "angelia.envelope.refusals", "angelia.client"):
                if hasattr(module := importlib.import_module(home), name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
