"""Finds the rows that name an agent, in the tables that both ledger and archive have."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from angelia.errors import InvalidArgument
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS, SESSIONS, Table

NAMING = (RECEIPTS, SESSIONS, AUDIT)
_PROJECTIONS = {RECEIPTS.name: ("mail", "receipts"), SESSIONS.name: ("keys", "sessions")}
_COLUMNS = {
    RECEIPTS.name: ("sender_nhi", "recipient_nhi"),
    SESSIONS.name: ("agent_a_nhi", "agent_b_nhi"),
    AUDIT.name: ("actor_nhi", "object_nhi"),
}


def asked_about(work: JobContext) -> str:
    """The handle in `--agent`; raises InvalidArgument without one."""
    agent = work.options.get("agent")
    if not agent:
        raise InvalidArgument("of which agent?", hint="--agent HANDLE")
    return str(agent)


def in_ledger(work: JobContext, table: Table) -> str:
    """The statement that selects the ledger's rows that name an agent, its parameter."""
    if table is AUDIT:
        return work.sql("audit")["about_agent"]
    slice_name, projection = _PROJECTIONS[table.name]
    first, second = _COLUMNS[table.name]
    return f"SELECT * FROM ({work.sql(slice_name)[projection]}) AS r WHERE {first} = $1 OR {second} = $1"  # noqa: S608


def about(table: Table, agent: str) -> Column:
    """The condition for rows of a table that name an agent."""
    first, second = _COLUMNS[table.name]
    named = f.col(first).eqNullSafe(agent) | f.col(second).eqNullSafe(agent)
    if table is AUDIT:
        said = f.map_values(f.from_json("detail", "map<string,string>"))
        named |= f.coalesce(f.array_contains(said, agent), f.lit(False))
    return named
