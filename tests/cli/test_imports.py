"""A command loads what it uses: each module that it does not use is time before the first line of output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.running import Angelia

# Modules of the server, the pipeline, the tests and other programs, which no command of an agent needs.
HEAVY = {
    "adbc_driver_manager",
    "asyncpg",
    "deltalake",
    "grpc",
    "hiredis",
    "jwt",
    "markdown_it",
    "matplotlib",
    "numpy",
    "obstore",
    "pandas",
    "prometheus_client",
    "py4j",
    "pyarrow",
    "pygments",
    "pyspark",
    "redis",
    "rich",
    "starlette",
    "structlog",
    "uvicorn",
    "yaml",
}
_SCRIPT = """
import os, sys
from angelia.cli.main import run
code = run(sys.argv[1:])
sys.stdout.flush()
os.write(int(os.environ["TOLD"]), "\\n".join(sys.modules).encode())
sys.exit(code)
"""


def modules_of(*argv: str, code: int = 0, **environ: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a command."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, *argv],
        env={**os.environ, **environ, "TOLD": str(writing)},
        pass_fds=[writing],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(writing)
    with os.fdopen(reading) as told:
        modules = set(told.read().split())
    said, _ = child.communicate(timeout=60)
    assert child.returncode == code, said
    return modules


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_help_loads_nothing_but_the_command_line(shell: Path) -> None:
    loaded = modules_of("--help")
    assert not packages(loaded) & {*HEAVY, "httpx", "cryptography", "msgspec", "asyncio", "sqlite3"}
    assert not [name for name in loaded if name.startswith(("angelia.client", "angelia.mailbox", "angelia.settings"))]


def test_completion_of_an_agent_loads_no_cryptography(shell: Path) -> None:
    words = {"_ANGELIA_COMPLETE": "bash_complete", "COMP_WORDS": "angelia mail send --as ", "COMP_CWORD": "4"}
    assert not packages(modules_of(**words)) & {*HEAVY, "httpx", "cryptography", "asyncio", "sqlite3"}


def test_a_verb_on_the_own_mailbox_loads_no_client(shell: Path, angelia: Angelia) -> None:
    assert angelia("agent", "new", "bob").code == 0
    loaded = modules_of("mail", "inbox")
    assert not packages(loaded) & {*HEAVY, "httpx", "asyncio"}
    assert not [name for name in loaded if name.startswith("angelia.client")]


@pytest.mark.parametrize(
    "verb",
    [
        ["mail", "send", "{me}", "hi"],
        ["mail", "receive"],
        ["agent", "show"],
        ["room", "list"],
        ["dm", "read"],
        ["queue", "push", "{me}", "1"],
        ["queue", "pop", "{me}"],
        ["queue", "list"],
    ],
)
def test_a_verb_that_speaks_to_the_server_loads_httpx_and_no_more(
    live: str, shell: Path, angelia: Angelia, verb: list[str]
) -> None:
    me = f"lean-{shell.name[-20:].strip('_-').replace('_', '-')}-{os.getpid()}"
    assert angelia("agent", "new", me, "--register").code == 0
    loaded = modules_of(*(word.format(me=me) for word in verb))
    assert "httpx" in loaded
    assert not packages(loaded) & {*HEAVY, "asyncio"}


def test_sending_loads_neither_receiving_nor_channels(live: str, shell: Path, angelia: Angelia) -> None:
    me = f"lean-sender-{os.getpid()}"
    assert angelia("agent", "new", me, "--register").code == 0
    loaded = modules_of("mail", "send", me, "hi")
    unused = "client.mail_receiving client.channel_rosters client.verbs mailbox.inbox mailbox.channels mailbox.rosters"
    assert not loaded & {f"angelia.{name}" for name in unused.split()}
