"""Runs the benchmarks and prints one table: `./dev bench [names] [--full] [--only SECTION,…]`; quick by default.

`--only` takes sections of the benchmarks that have some, as `./dev bench mail --only latency`.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import psutil

from harness import Result, show

NOT_BENCHMARKS = {
    "run",
    "harness",
    "bare_insert",
    "bare_uvicorn",
    "cpu_time",
    "duckdb_counts",
    "empty_routes",
    "fleet",
    "ledger_rows",
    "log_open",
    "log_seed",
    "log_targets",
    "mail_load",
    "queue_http",
    "queue_load",
    "queue_peers",
    "queue_service",
    "reaped",
    "room_rows",
    "served",
}


def main(arguments: list[str]) -> None:
    here = Path(__file__).parent
    known = sorted(path.stem for path in here.glob("*.py") if path.stem not in NOT_BENCHMARKS)
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measures Angelia beside peers and raw limits.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(known)}; all without")
    parser.add_argument("--full", action="store_true", help="larger loads and more rounds")
    parser.add_argument("--only", default="", metavar="SECTION,…", help="these sections of a benchmark")
    chosen = parser.parse_args(arguments)
    for name in chosen.names:
        if name not in known:
            raise SystemExit(f"error: there is no benchmark {name}\nhint: there are {', '.join(known)}")
    results: list[Result] = []
    for name in chosen.names or known:
        print(f"{name} …", file=sys.stderr, flush=True)
        module = importlib.import_module(name)
        results += module.main(quick=not chosen.full, **_sections(module, chosen.only))
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {'full' if chosen.full else 'quick'}")
    show(results)


def _sections(module: ModuleType, only: str) -> dict[str, Sequence[str]]:
    if not only:
        return {}
    sections, chosen = getattr(module, "SECTIONS", ()), only.split(",")
    for section in chosen:
        if section not in sections:
            there = f"there are {', '.join(sections)}" if sections else "it has none"
            raise SystemExit(f"error: {module.__name__} has no section {section}\nhint: {there}")
    return {"only": chosen}


if __name__ == "__main__":
    main(sys.argv[1:])
