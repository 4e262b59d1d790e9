"""Makes commits survive a power cut, before rows are removed elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from angelia.pipeline.lake.tables import Table
from angelia.stores.objects import Objects


def settle(objects: Objects, table: Table, uris: Iterable[str]) -> None:
    """Syncs files of a table, its log and their directories to disk. An object store is durable when it answers."""
    if objects.remote:
        return
    log = Path(objects.table(table.name), "_delta_log")
    files = [Path(uri) for uri in uris]
    if log.is_dir():
        files += [path for path in log.iterdir() if path.is_file()]
    directories = {path.parent for path in files}
    for path in [*files, *sorted(directories | {log.parent, log.parent.parent})]:
        if path.exists():
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
