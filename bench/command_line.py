"""The CPU time of `angelia mail send` on the command line, compared with a Python interpreter that does nothing.

A whole send: it looks up keys, seals, stores the message durably, signs the request, sends it to a running server and
prints the answer. The server's own CPU time for it is in the note.
"""

from __future__ import annotations

import sys
import tempfile

import cpu_time
from harness import Result, compared
from served import ANGELIA, server


def main(*, quick: bool) -> list[Result]:
    rounds = 9 if quick else 25
    ours: list[float] = []
    bare: list[float] = []
    servers: list[float] = []
    with server() as served, tempfile.TemporaryDirectory() as home:
        environ = {"ANGELIA_HOME": home, "ANGELIA_DATA_DIR": str(served.data_dir)}
        for name in ("alice", "bob"):
            cpu_time.of_command(ANGELIA, "agent", "new", name, "--register", environ=environ)
        for _ in range(rounds + 1):
            bare.append(cpu_time.of_command(sys.executable, "-c", "pass"))
            before = served.cost()
            ours.append(cpu_time.of_command(ANGELIA, "mail", "send", "bob", "hi", "--as", "alice", environ=environ))
            servers.append((served.cost() - before).server)
    # The first round compiles modules.
    note = f"lower is better; CPU; the server took {_ms(sorted(servers[1:])[rounds // 2])} more"
    return [compared("`angelia mail send` / `python -c pass`", ours[1:], bare[1:], _ms, note)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"
