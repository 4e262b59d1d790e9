"""The audit chain of the archive, read without Spark: where it begins, and its entries by position.

Entries leave the archive when their retention ends; the hash of the last one that left is kept, so that the rest
verifies.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.parquet as pq

from angelia.audit.model import Floor
from angelia.pipeline.lake.listing import TableFile, files, find
from angelia.pipeline.lake.tables import AUDIT
from angelia.stores.objects import Objects

_POSITION, _HASH = "angelia.chain.position", "angelia.chain.entryHash"  # properties of the table


def archive_floor(objects: Objects) -> Floor:
    """The last entry that left the archive; position 0 if none has."""
    found = find(objects, AUDIT)
    kept = {} if found is None else found.metadata().configuration
    return Floor(int(kept[_POSITION]), kept[_HASH]) if _POSITION in kept else Floor()


def properties(raised: Floor) -> Mapping[str, str]:
    """A floor as properties of the table."""
    return {_POSITION: str(raised.position), _HASH: raised.entry_hash}


def entry_hash(objects: Objects, position: int) -> str | None:
    """The hash of the entry at a position; None if the archive does not have it."""
    for file in files_within(objects, position - 1, position):
        with objects.filesystem().open_input_file(objects.path(file.uri)) as opened:
            rows = pq.read_table(opened, columns=["position", "entry_hash"], filters=[("position", "=", position)])
        if rows.num_rows:
            return bytes(rows["entry_hash"][0].as_py()).hex()
    return None


def files_within(objects: Objects, after: int, last: int) -> list[TableFile]:
    """The files that have entries after one position, up to another."""
    return [file for file in files(objects, AUDIT) if file.most > after and file.least <= last]
