"""The CPU time of `angelia pipeline run analytics --simulated` over a month of 1,000 agents, compared with DuckDB.

It is run as a user runs it, as a command beside a running server: Python, Java and Spark's workers, from start to end.
DuckDB counts the same from the same files in a Python process of its own. Before each run the archive is put back as
it was after `simulate`, since analytics computes a day only once.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import cpu_time
from angelia.pipeline.lake import listing
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.stores.objects import Objects
from harness import Result, compared
from served import ANGELIA, server

AGENTS = 1_000
_COUNTS = Path(__file__).with_name("duckdb_counts.py")
_RUN = (ANGELIA, "pipeline", "run")


def main(*, quick: bool) -> list[Result]:
    rounds = 3 if quick else 5
    ours: list[float] = []
    peer: list[float] = []
    with server() as served:
        environ = {"ANGELIA_DATA_DIR": str(served.data_dir)}
        made = cpu_time.of_command(*_RUN, "simulate", "--months", "1", "--agents", str(AGENTS), environ=environ)
        lake, kept = served.data_dir / "lake-simulated", served.data_dir.with_name("kept")
        shutil.copytree(lake, kept)
        for _ in range(rounds):
            ours.append(cpu_time.of_command(*_RUN, "analytics", "--simulated", environ=environ))
            shutil.rmtree(lake)
            shutil.copytree(kept, lake)
            files = [file.uri for file in listing.files(Objects.at(str(lake)), RECEIPTS)]
            peer.append(cpu_time.of_command(sys.executable, str(_COUNTS), *files))
    note = f"lower is better; CPU of all processes; `simulate` took {_seconds(made)}"
    return [compared(f"analytics of a month of {AGENTS:,} agents / DuckDB", ours, peer, _seconds, note)]


def _seconds(value: float) -> str:
    return f"{value:.1f} s"
