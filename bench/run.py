"""Runs the benchmarks and prints one table: `./dev bench [names] [--full]`; quick by default."""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path

import psutil

from harness import Result, show

NOT_BENCHMARKS = {"run", "harness", "fleet", "ledger_rows"}


def main(arguments: list[str]) -> None:
    quick = "--full" not in arguments
    here = Path(__file__).parent
    known = sorted(path.stem for path in here.glob("*.py") if path.stem not in NOT_BENCHMARKS)
    names = [argument for argument in arguments if not argument.startswith("-")] or known
    results: list[Result] = []
    for name in names:
        if name not in known:
            raise SystemExit(f"error: there is no benchmark {name}\nhint: there are {', '.join(known)}")
        print(f"{name} …", file=sys.stderr, flush=True)
        results += importlib.import_module(name).main(quick=quick)
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {'quick' if quick else 'full'}")
    show(results)


if __name__ == "__main__":
    main(sys.argv[1:])
