"""The examples in the documentation of queues work when pasted."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.pasting import refused
from live_agents import Person
from server_process import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "queues.md").read_text("utf-8")
WORKERS = (DOCS / "python.md").read_text("utf-8").split("## A worker")[1].split("## ")[0]
EXAMPLES = re.findall(r"^## ([^\n]*)$|```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


def examples() -> list[tuple[str, str]]:
    """Each example with the heading above it."""
    found, heading = [], ""
    for title, script in EXAMPLES:
        heading = title or heading
        if script:
            found.append((heading, script))
    return found


@pytest.mark.parametrize(("heading", "script"), examples(), ids=[heading for heading, _ in examples()])
def test_an_example_of_python_runs(
    server: ServerProcess, join: Callable[..., Person], heading: str, script: str
) -> None:
    bob = join("bob", publishes=False)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
    told = script.replace('"bob"', f'"{bob.name}"').replace("http://localhost:8080", server.start_url)
    ended = subprocess.run(
        [sys.executable, "-c", told],
        env=environ | {"ANGELIA_HOME": str(bob.home), "ANGELIA_URL": server.start_url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("flavour", [0, 1], ids=["blocking", "awaited"])
def test_a_worker_stops_with_ctrl_c_and_loses_nothing(
    server: ServerProcess, join: Callable[..., Person], flavour: int
) -> None:
    bob, queue = join("bob", publishes=False), f"jobs-{secrets.token_hex(4)}"
    script = re.findall(r"```python\n(.*?)```", WORKERS, re.DOTALL)[flavour]
    child = subprocess.Popen(
        [sys.executable, "-c", script.replace('"bob"', f'"{bob.name}"').replace('"jobs"', f'"{queue}"')],
        env=os.environ | {"ANGELIA_HOME": str(bob.home), "ANGELIA_URL": server.start_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    bob.client.queues.push_many(queue, ["one", "two"])
    assert [child.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    bob.client.queues.push(queue, "three")
    left = [one.data for one in bob.client.queues.pop(queue, group="resizer", batch=9)]
    assert left in (["three"], ["two", "three"]), "what was in hand at that moment is given back"


def test_every_command_of_the_page_is_one_that_the_grammar_takes() -> None:
    found = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    wanted = [re.sub(r"\s+#.*", "", line) for line in found if line.startswith("angelia")]
    assert len(wanted) > 15
    assert [why for line in wanted if (why := refused(line))] == []
    quoted = re.findall(r"`(angelia queue [^`]*)`", PAGE)
    assert [why for command in quoted if (why := refused(command))] == []
