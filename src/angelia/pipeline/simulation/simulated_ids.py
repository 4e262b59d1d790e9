"""Recognises simulated rows by how their ids were made; names do not count, since an agent may be called sim-1."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from angelia.pipeline.lake.tables import AUDIT, RECEIPTS, Table


def simulated(table: Table) -> Column:
    """The condition for simulated rows of a table."""
    return {RECEIPTS.name: _receipt, AUDIT.name: _event}[table.name]()


def _receipt() -> Column:
    """The replay key of a simulated receipt is the hash of two numbers, of which its two ids show all but four bits
    each; the 256 possibilities are tried only for rows that look simulated."""
    first, second = (f.regexp_replace(name, "-", "") for name in ("receipt_id", "message_id"))
    nibbles = f.sequence(f.lit(0), f.lit(15))

    def made_of(one: Column) -> Column:
        return f.exists(
            nibbles,
            lambda other: (
                f.sha2(f.concat_ws(" ", _number(first, one), _number(second, other)), 256) == f.col("replay_key")
            ),
        )

    likely = f.col("receipt_wire").isNull() & f.col("sender_nhi").startswith("sim-")
    return f.when(likely, f.exists(nibbles, made_of)).otherwise(False)


def _event() -> Column:
    """The id of a simulated event is that of its message, with one of two bits changed in the last digit."""
    own, message = f.col("event_id"), f.col("message_id")
    same = f.substring(own, 1, 35) == f.substring(message, 1, 35)
    differing = _digit(own).bitwiseXOR(_digit(message))
    return f.coalesce(same & differing.isin(1, 2), f.lit(False))


def _number(digits: Column, hidden: Column) -> Column:
    """The signed number of an id's first 16 digits, with a guess at the digit that the version hides."""
    whole = f.concat(f.substring(digits, 1, 12), f.hex(hidden), f.substring(digits, 14, 3))
    return f.conv(whole, 16, -10)


def _digit(id_: Column) -> Column:
    return f.conv(f.substring(id_, 36, 1), 16, 10).cast("int")
