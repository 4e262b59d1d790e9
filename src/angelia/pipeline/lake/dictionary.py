"""The data dictionary: writes a page of Markdown for each table of the archive into a directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from angelia.pipeline.lake import tables
from angelia.pipeline.lake.tables import (
    ANALYTICS,
    AUDIT,
    DAY,
    LOG_CHECKS,
    LOG_FINDINGS,
    QUEUE_DEAD_LETTERS,
    QUEUE_MESSAGES,
    RECEIPTS,
    ROOMS,
    SESSIONS,
    TABLES,
    Table,
)

_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp (µs, UTC)",
}
# The app transaction of a table's commits, and its version.
_COMMITS = {
    RECEIPTS.name: "`archive receipts`, with the number of the run (`simulate` in a simulated archive)",
    AUDIT.name: "`archive audit`, with the last position that is archived",
    SESSIONS.name: "`archive sessions`, with the number of the run",
    ROOMS.name: "`archive rooms`, with the number of the run",
    QUEUE_MESSAGES.name: "`archive queues`, with the number of the run",
    QUEUE_DEAD_LETTERS.name: "`archive queues, dead letters`, with the number of the run",
    **{table.name: "`analytics`, with the number of the run" for table in ANALYTICS},
    **{table.name: "`verify logs`, with the number of the run" for table in LOG_CHECKS},
}
_EXAMPLES = {
    RECEIPTS.name: "SELECT status, count(*) FROM delivery_receipts WHERE sender_nhi = 'alice' GROUP BY status",
    ROOMS.name: "SELECT timestamp_millis(ts) AS posted_at, author, body FROM rooms WHERE room_name = 'build-talk' "
    "ORDER BY ts",
    QUEUE_MESSAGES.name: "SELECT created_at, ended, CAST(payload AS STRING) AS payload FROM queue_messages "
    "WHERE queue = 'orders' AND key_id IS NULL ORDER BY created_at",
    QUEUE_DEAD_LETTERS.name: "SELECT queue, error, count(*) FROM queue_dead_letters GROUP BY queue, error",
    LOG_FINDINGS.name: "SELECT kind, group_id, sender, seq, last_seq, nodes, detail FROM log_findings "
    "WHERE checked_at = (SELECT max(checked_at) FROM log_groups)",
    AUDIT.name: "SELECT position, event_type FROM audit_events WHERE object_nhi = 'alice' ORDER BY position",
}
_COUNTED = "SELECT day, count(*) AS rows FROM {name} GROUP BY day ORDER BY day"
_PAGE = """\
# {name}

{about}

Partitioned by `{day}`: files lie under `{name}/{day}=YYYY-MM-DD/`. {more}

Commits carry the app transaction {commits}.

| column | type | always there | |
|---|---|---|---|
{columns}

```sh
angelia pipeline sql "{example}"
```

```python
import polars as pl
pl.scan_delta("…/lake/{name}").filter(pl.col("{day}") >= pl.date(2026, 10, 1)).head().collect()
```
"""


def page(table: Table) -> str:
    """The page of a table."""
    meanings = [*(column.about for column in table.columns), "the day that the row belongs to, UTC; the partition"]
    rows = [_row(field, about) for field, about in zip(table.schema, meanings, strict=True)]
    if table in LOG_CHECKS:
        more = ["Each check adds its rows."]
    else:
        more = [] if table in ANALYTICS else [f"Rows are told apart by `{table.id}`."]
    if table.configuration.get("delta.appendOnly") == "true":
        more.append("Rows are only added (`delta.appendOnly`).")
    return _PAGE.format(
        name=table.name,
        about=table.about,
        day=DAY,
        more=" ".join(more) or "A day is replaced whole when it is computed again.",
        commits=_COMMITS[table.name],
        columns="\n".join(rows),
        example=_EXAMPLES.get(table.name, _COUNTED.format(name=table.name)),
    )


def index() -> str:
    rows = [f"| [{table.name}]({table.name}.md) | {table.about} |" for table in TABLES.values()]
    marked = (
        f"In a simulated archive every table has one column more, `{tables.SIMULATED}`, which is true in every row, "
        f"and the property `{tables.SIMULATED_PROPERTY}`."
    )
    made = "Made from the code by `python -m angelia.pipeline.lake.dictionary docs/tables`."
    head = f"# Tables of the archive\n\n{made}\n\n{marked}\n"
    return "\n".join([head, "| table | |", "|---|---|", *rows]) + "\n"


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    return {"README.md": index(), **{f"{table.name}.md": page(table) for table in TABLES.values()}}


def _row(field: pa.Field, about: str) -> str:
    always = "" if field.nullable else "yes"
    return f"| `{field.name}` | {_type(field.type)} | {always} | {about} |"


def _type(type: pa.DataType) -> str:
    if pa.types.is_list(type):
        return f"list of {_type(type.value_type)}"
    return _TYPES[type]


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, "utf-8")
