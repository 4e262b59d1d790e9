"""Keeps simulated rows apart from real ones. An archive that `simulate` makes is marked in every table; in one of an
earlier release simulated rows may be in real tables, which the log tells."""

from __future__ import annotations

from angelia.errors import Conflict
from angelia.pipeline.lake import archive_locations
from angelia.pipeline.lake.commit import is_simulated
from angelia.pipeline.lake.listing import find
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS, TABLES, Table
from angelia.settings import Settings
from angelia.stores.objects import Objects

APP_ID = "simulate"  # of commits of simulated rows
REMOVED = "remove simulated"  # of the commit that removes them, with the version of the last one that it removed


def mixed(objects: Objects) -> list[Table]:
    """Tables of an archive of real rows that have simulated ones as well."""
    return [] if is_simulated(objects) else [table for table in (RECEIPTS, AUDIT) if left_in(objects, table)]


def left_in(objects: Objects, table: Table) -> int | None:
    """The version of the last commit of simulated rows that are still in a table."""
    found = find(objects, table)
    written = None if found is None else found.transaction_version(APP_ID)
    if found is None or written is None or written <= (found.transaction_version(REMOVED) or 0):
        return None
    return written


def is_empty(objects: Objects) -> bool:
    """Whether an archive was never written to."""
    return all(find(objects, table) is None for table in TABLES.values())


def only_real(objects: Objects, settings: Settings, job: str) -> None:
    """Raises Conflict for a simulated archive, in jobs about real messages."""
    if not is_simulated(objects):
        return
    if objects.root == archive_locations.own(settings).root:
        hint = "set ANGELIA_LAKE, or lake in angelia.toml, to the server's own"
    else:
        hint = f"leave --lake out: angelia pipeline run {job}"
    raise Conflict(f"the archive at {objects.root} is a simulated one", hint=hint)


def only_one_kind(objects: Objects, settings: Settings, *tables: Table) -> None:
    """Raises Conflict for an archive whose tables have both real and simulated rows."""
    both = ", ".join(table.name for table in mixed(objects) if table in tables)
    if both:
        raise Conflict(f"the archive at {objects.root} holds simulated rows in {both}", hint=removal(objects, settings))


def removal(objects: Objects, settings: Settings) -> str:
    """The command that removes simulated rows from an archive."""
    return f"angelia pipeline run {REMOVED}{archive_locations.flag(objects, settings)}"
