"""Where archives lie: the server's own, beside it that of simulated fleets, and whatever else is named."""

from __future__ import annotations

import shlex
from pathlib import Path

from angelia.settings import Settings
from angelia.stores.objects import Objects


def named(url: str) -> Objects:
    """A directory, relative or with a ~, or the URL of a place."""
    return Objects.at(url if "://" in url else str(Path(url).expanduser().resolve()))


def own(settings: Settings) -> Objects:
    """The server's own archive."""
    return named(settings.lake_root)


def simulated(settings: Settings) -> Objects:
    """Where simulated fleets go that nobody names a place for."""
    return own(settings).beside("simulated")


def flag(objects: Objects, settings: Settings) -> str:
    """How a command is told of an archive, with a blank before it; nothing for the server's own."""
    if objects.root == own(settings).root:
        return ""
    if objects.root == simulated(settings).root:
        return " --simulated"
    return f" --lake {shlex.quote(objects.url)}"
