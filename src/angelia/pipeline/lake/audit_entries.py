"""Entries of the audit chain that the archive has, found by their position and without Spark."""

from __future__ import annotations

import pyarrow.parquet as pq

from angelia.pipeline.lake.commit import find
from angelia.pipeline.lake.tables import AUDIT
from angelia.stores.objects import Objects


def entry_hash(objects: Objects, position: int) -> str | None:
    """The hash of the entry at a position; None if the archive does not have it."""
    for uri in files_within(objects, position - 1, position):
        with objects.filesystem().open_input_file(objects.path(uri)) as opened:
            rows = pq.read_table(opened, columns=["position", "entry_hash"], filters=[("position", "=", position)])
        if rows.num_rows:
            return bytes(rows["entry_hash"][0].as_py()).hex()
    return None


def files_within(objects: Objects, after: int, last: int) -> list[str]:
    """The files of the archive that have entries behind one position, up to another."""
    table = find(objects, AUDIT)
    if table is None:
        return []
    found = table.get_add_actions(flatten=True)
    held = zip(*(found.column(name).to_pylist() for name in ("path", "min.position", "max.position")), strict=True)
    root = objects.table(AUDIT.name)
    return [f"{root}/{path}" for path, least, most in held if most > after and least <= last]
