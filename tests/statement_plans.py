"""The plans of statements as the ledger makes them for the hot path: once, for any values."""

from __future__ import annotations

import re

import asyncpg

from angelia.stores.ledger import PLANNED_ONCE

_PLAN = """
CREATE OR REPLACE FUNCTION pg_temp.plan(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN RETURN QUERY EXECUTE 'EXPLAIN (GENERIC_PLAN, COSTS OFF) ' || statement; END $$
"""
_SCAN = re.compile(r"(Seq Scan|Index (?:Only )?Scan(?: Backward)? using|Bitmap Index Scan) ?(?:on )?(.*)")


async def generic_plan(connection: asyncpg.Connection, statement: str) -> str:
    await connection.execute(PLANNED_ONCE)
    await connection.execute(_PLAN)
    return "\n".join(row[0] for row in await connection.fetch("SELECT pg_temp.plan($1)", statement))


def unbounded(plan: str) -> list[str]:
    """The steps of a plan that read a whole table or a whole index, because they look for nothing in it. The version of
    the rules is a table of one row."""
    lines = [line.strip() for line in plan.splitlines()]
    return [
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if _SCAN.search(line) and not following.startswith("Index Cond:") and "policy_version" not in line
    ]


def indexes(plan: str) -> set[str]:
    """The indexes that a plan looks rows up in; those of partitions without number or day."""
    found = re.findall(r"Index (?:Only )?Scan (?:Backward )?using (\w+)|Bitmap Index Scan on (\w+)", plan)
    return {re.sub(r"_(\d|\d{8}|default)_", "_", one or other) for one, other in found}
