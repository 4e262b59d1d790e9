"""Where the chain of the archive begins: of what left it after its time the last hash is kept; the rest verifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from angelia.audit.model import Floor
from angelia.pipeline.lake.commit import find
from angelia.pipeline.lake.tables import AUDIT
from angelia.stores.objects import Objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POSITION, _HASH = "angelia.chain.position", "angelia.chain.entryHash"  # properties of the table


def archive_floor(objects: Objects) -> Floor:
    """The last entry that left the archive; position 0 while none has."""
    found = find(objects, AUDIT)
    kept = {} if found is None else found.metadata().configuration
    return Floor(int(kept[_POSITION]), kept[_HASH]) if _POSITION in kept else Floor()


def properties(raised: Floor) -> Mapping[str, str]:
    """As the table keeps it."""
    return {_POSITION: str(raised.position), _HASH: raised.entry_hash}


def floor_above(old: DataFrame, first: int | None) -> Floor | None:
    """The last entry of old days that comes before the first of the rest; None when there is none.

    Events are sealed in the order of their commits, which is nearly that of their times: around midnight an old event
    can come behind a younger one. It stays until that one goes, so that no hole is left."""
    from pyspark.sql import functions as f

    before = old if first is None else old.where(f.col("position") < first)
    last = before.agg(f.max("position").alias("position"), f.max_by("entry_hash", "position").alias("hash")).collect()[
        0
    ]
    return None if last["position"] is None else Floor(last["position"], bytes(last["hash"]).hex())
