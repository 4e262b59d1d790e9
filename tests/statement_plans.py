"""The plans of statements as the ledger's connections make them: once, for any values."""

from __future__ import annotations

import re

import asyncpg

from angelia.stores.ledger import SESSION

_PLAN = """
CREATE OR REPLACE FUNCTION pg_temp.plan(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN RETURN QUERY EXECUTE 'EXPLAIN (GENERIC_PLAN, COSTS OFF) ' || statement; END $$
"""


async def generic_plan(connection: asyncpg.Connection, statement: str) -> str:
    for name, value in SESSION.items():
        await connection.execute(f"SET {name} = '{value}'")
    await connection.execute(_PLAN)
    return "\n".join(row[0] for row in await connection.fetch("SELECT pg_temp.plan($1)", statement))


def read_whole(plan: str) -> list[str]:
    """The steps of a plan that read a whole table, or a whole index without a limit. The version of the rules is a
    table of one row; and an empty table has one page, which is read whole whatever the index."""
    return [
        line.strip()
        for line in plan.splitlines()
        if "Seq Scan" in line and not re.search("policy_version|_default", line)
    ]


def indexes(plan: str) -> set[str]:
    """The indexes that a plan looks rows up in; those of partitions without number or day."""
    found = re.findall(r"Index (?:Only )?Scan (?:Backward )?using (\w+)|Bitmap Index Scan on (\w+)", plan)
    return {re.sub(r"_(\d|\d{8}|default)_", "_", one or other) for one, other in found}
