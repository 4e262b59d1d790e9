"""For jobs that rewrite tables: tells after a crash what a run did, and removes files that no table has."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from angelia.errors import AngeliaError
from angelia.pipeline.lake.commit import ROWS, RUN, Mark, is_done
from angelia.pipeline.lake.listing import files, find
from angelia.pipeline.lake.tables import DAY, Table
from angelia.stores.objects import Objects

_APPEND_ONLY = "delta.appendOnly"


class StoreRefuses(AngeliaError):
    """The store does not let files of the archive be removed"""

    code = "archive_locked"


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """What a run changed in a table: how many rows it was about, and the files that it removed."""

    rows: int
    gone: list[str]


def change(objects: Objects, table: Table, run: str) -> CommittedChange:
    """What a run changed in a table in its one commit, by the log, so that it is known after a crash."""
    found = find(objects, table)
    said = [] if found is None else [one for one in found.history() if one.get(RUN) == run]
    if not said:
        return CommittedChange(0, [])
    done = actions(objects, table, said[0]["version"])
    return CommittedChange(int(said[0][ROWS]), [one["remove"]["path"] for one in done if "remove" in one])


def is_done_by(objects: Objects, table: Table, mark: Mark, run: str) -> bool:
    """Whether a run has made its commit. The version alone does not tell: an archive may have seen more runs than a
    ledger that is new or was restored."""
    found = find(objects, table)
    return found is not None and is_done(found, mark) and bool(change(objects, table, run).gone)


def actions(objects: Objects, table: Table, version: int) -> list[dict[str, Any]]:
    """The actions of one commit, from the log."""
    path = objects.path(f"{objects.table(table.name)}/_delta_log/{version:020}.json")
    with objects.filesystem().open_input_stream(path) as opened:
        return [json.loads(line) for line in opened.read().splitlines()]


def open_up(objects: Objects, table: Table, said: Mapping[str, str] | None = None) -> None:
    """Allows the removal of rows also in an append-only table. The properties in `said` are written first, and stay."""
    lifted = {_APPEND_ONLY: "false"} if _APPEND_ONLY in table.configuration else {}
    _set(objects, table, {**(said or {}), **lifted})


def close_again(objects: Objects, table: Table) -> None:
    """Restores the table's own properties; idempotent, so it is called after a crash as well."""
    _set(objects, table, table.configuration)


def _set(objects: Objects, table: Table, properties: Mapping[str, str]) -> None:
    found = find(objects, table)
    if found is not None and properties.items() - found.metadata().configuration.items():
        found.alter.set_table_properties(dict(properties), raise_if_not_exists=False)


def leftovers(objects: Objects, table: Table, writing: Callable[[], Collection[str]]) -> list[str]:
    """Files in the table's directory that its present version does not have: removed before, or of a write that never
    ended. Files of runs that are `writing`, whose names begin with the run's id, are left out.

    Without a log there are none, since the table's files are unknown."""
    root = objects.path(objects.table(table.name))
    listed = objects.filesystem().get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    # In this order: the run that wrote a listed file is still open, or has committed it by now.
    sparing = writing()
    if find(objects, table) is None:
        return []
    present = {file.path for file in files(objects, table)}
    below_root = (one.path.removeprefix(root).lstrip("/") for one in listed if one.type == fs.FileType.File)
    return [
        path
        for path in below_root
        if path.startswith(f"{DAY}=")
        and path not in present
        and not any(path.rpartition("/")[2].startswith(run) for run in sparing)
    ]


def delete(objects: Objects, table: Table, paths: Collection[str]) -> None:
    """Deletes files; one that is gone was deleted before a crash."""
    filesystem, root = objects.filesystem(), objects.path(objects.table(table.name))
    for path in paths:
        try:
            filesystem.delete_file(f"{root}/{path}")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreRefuses(
                f"the store does not let a file of {table.name} be removed: {error}",
                hint="is the bucket under object lock, or may the key not delete? docs/retention.md; then run it again",
            ) from error
