"""What the analytics job counts, counted by DuckDB and kept in its memory.

As a program, it reads the Parquet files that its arguments name. It imports nothing else, so that a process of its own
is as cheap as it can be.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import duckdb

CORES = 2
PERCENTILES = """
SELECT day, priority, count(*), quantile_disc(epoch_us(delivered_at) - epoch_us(accepted_at), [0.5, 0.95, 0.99])
FROM read_parquet($files, hive_partitioning = true) WHERE status = 'delivered' GROUP BY ALL
"""
WHOLE = (
    PERCENTILES,
    """
SELECT day, hour(sent_at), priority, count(*), count(*) FILTER (status = 'delivered'),
  count(*) FILTER (status = 'expired'), count(*) FILTER (status = 'failed'), count(*) FILTER (status = 'pending'),
  sum(delivery_attempts), sum(wire_bytes)
FROM read_parquet($files, hive_partitioning = true) GROUP BY ALL
""",
    """
SELECT day, bucket, count(*), sum(wire_bytes) FROM read_parquet($files, hive_partitioning = true) GROUP BY ALL
""",
    """
SELECT day, agent, sum(sent), sum(sent_bytes), sum(delivered), sum(expired), sum(failed), sum(received),
  sum(received_bytes)
FROM (
  SELECT day, sender_nhi AS agent, 1 AS sent, wire_bytes AS sent_bytes, (status = 'delivered')::int AS delivered,
    (status = 'expired')::int AS expired, (status = 'failed')::int AS failed, 0 AS received, 0 AS received_bytes
  FROM read_parquet($files, hive_partitioning = true)
  UNION ALL
  SELECT day, recipient_nhi, 0, 0, 0, 0, 0, 1, wire_bytes FROM read_parquet($files, hive_partitioning = true)
) GROUP BY ALL
""",
)


def asked(files: Sequence[str], question: str) -> None:
    """Lets DuckDB answer a question over Parquet files; there must be rows. They stay in DuckDB: as Python objects they
    would cost more than the question."""
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {CORES}")
        connection.execute(f"CREATE TEMP TABLE answer AS {question}", {"files": files})
        assert connection.sql("SELECT 1 FROM answer LIMIT 1").fetchall()


if __name__ == "__main__":
    for one in WHOLE:
        asked(sys.argv[1:], one)
