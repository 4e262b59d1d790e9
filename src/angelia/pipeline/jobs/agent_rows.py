"""Finds the rows that name an agent, in the tables that both ledger and archive have."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as f

from angelia.errors import InvalidArgument
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake.tables import (
    AUDIT,
    QUEUE_DEAD_LETTERS,
    QUEUE_MESSAGES,
    RECEIPTS,
    ROOMS,
    SESSIONS,
    Table,
)

NAMING = (RECEIPTS, SESSIONS, ROOMS, QUEUE_MESSAGES, QUEUE_DEAD_LETTERS, AUDIT)
_PROJECTIONS = {RECEIPTS.name: ("mail", "receipts"), SESSIONS.name: ("keys", "sessions")}
_COLUMNS = {
    RECEIPTS.name: ("sender_nhi", "recipient_nhi"),
    SESSIONS.name: ("agent_a_nhi", "agent_b_nhi"),
    AUDIT.name: ("actor_nhi", "object_nhi"),
}


@dataclass(frozen=True, slots=True)
class AgentNames:
    """What rows call an agent: by its handle, and by its id in rooms, and in audit events and queues from before it
    claimed the handle. It has an id if it ever registered."""

    handle: str
    id: str | None


def asked_about(work: JobContext) -> str:
    """The handle or id in `--agent`; raises InvalidArgument without one."""
    agent = work.options.get("agent")
    if not agent:
        raise InvalidArgument("of which agent?", hint="--agent HANDLE")
    return str(agent)


def names_of(work: JobContext, database: Database, agent: str) -> AgentNames:
    """The names of the agent with this handle or id; of one that never registered, what was asked for."""
    row = database.row(work.sql("agents")["agent_names"], agent)
    return AgentNames(agent, None) if row is None else AgentNames(row["handle"], row["id"])


def in_ledger(work: JobContext, table: Table) -> str:
    """The statement that selects the ledger's rows that name an agent, whose handle is its parameter."""
    if table is AUDIT:
        return work.sql("audit")["about_agent"]
    if table is ROOMS:
        return work.sql("rooms")["rooms_about_agent"]
    if table in (QUEUE_MESSAGES, QUEUE_DEAD_LETTERS):
        return work.sql("queues")[f"{table.name}_about_agent"]
    slice_name, projection = _PROJECTIONS[table.name]
    first, second = _COLUMNS[table.name]
    return f"SELECT * FROM ({work.sql(slice_name)[projection]}) AS r WHERE {first} = $1 OR {second} = $1"  # noqa: S608


def about(table: Table, agent: AgentNames) -> Column:
    """The condition for rows of a table that name an agent."""
    if table is ROOMS:
        return f.lit(False) if agent.id is None else f.col("author") == agent.id
    if table in (QUEUE_MESSAGES, QUEUE_DEAD_LETTERS):
        return f.coalesce(f.col("producer").isin(agent.handle, agent.id or agent.handle), f.lit(False))
    first, second = (f.col(name) for name in _COLUMNS[table.name])
    if table is not AUDIT:
        return first.eqNullSafe(agent.handle) | second.eqNullSafe(agent.handle)
    said = f.map_values(f.from_json("detail", "map<string,string>"))
    named = f.lit(False)
    for name in (agent.handle, agent.id or agent.handle):
        within = f.coalesce(f.array_contains(said, name), f.lit(False))
        named = named | first.eqNullSafe(name) | second.eqNullSafe(name) | within
    return named
