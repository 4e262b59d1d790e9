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
        """A class of the SDK, whose module is loaded when it is asked for: the command line starts without them."""
        if name[:1].isupper():  # as classes are written; any other name is a module, which the import system looks for
            for home in ("angelia.errors", "angelia.envelope.refusals", "angelia.client"):
                if hasattr(module := importlib.import_module(home), name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
