"""Locations of archives: the server's own, the simulated one beside it, and any other that is named."""

from __future__ import annotations

import shlex
from pathlib import Path

from angelia.settings import Settings
from angelia.stores.objects import Objects


def named(url: str) -> Objects:
    """An archive by its directory, relative or with a ~, or by its URL."""
    return Objects.at(url if "://" in url else str(Path(url).expanduser().resolve()))


def own(settings: Settings) -> Objects:
    """The server's own archive."""
    return named(settings.lake_root)


def simulated(settings: Settings) -> Objects:
    """The default archive of simulated fleets."""
    return own(settings).beside("simulated")


def flag(objects: Objects, settings: Settings) -> str:
    """The flag that names an archive, with a blank before it; empty for the server's own."""
    if objects.root == own(settings).root:
        return ""
    if objects.root == simulated(settings).root:
        return " --simulated"
    return f" --lake {shlex.quote(objects.url)}"
