"""A server that others reach is closed from its first second; the refused start says how, in words to paste."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from s3_servers import free_port
from server_process import ServerProcess

# As after `./dev run`, which puts nothing on the path.
WITHOUT_US = os.pathsep.join(
    place for place in os.environ["PATH"].split(os.pathsep) if not (Path(place) / "angelia").exists()
)


@pytest.fixture
def server(directory: Path) -> Iterator[ServerProcess]:
    port = free_port()
    reach = {"host": "0.0.0.0", "public_url": f"http://127.0.0.1:{port}"}  # noqa: S104
    server = ServerProcess(directory / f"reachable-{secrets.token_hex(4)}", port=port, **reach)
    server.environ["PATH"] = WITHOUT_US
    yield server
    if server.process is not None:
        server.stop()


def test_the_hint_of_a_refused_reachable_start_leads_to_one_that_allows_nothing(server: ServerProcess) -> None:
    with pytest.raises(AssertionError, match="can be reached from elsewhere"):
        server.start()
    hint = re.findall(r"^hint: `(.*)`, then start again$", server.log.read_text(), re.MULTILINE)[-1]
    environ = {"PATH": WITHOUT_US} | {
        name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "HOME", "TMPDIR")
    }
    pasted = subprocess.run(
        ["sh", "-c", f"{hint} -q"], env=environ, capture_output=True, text=True, timeout=60, check=True
    )

    url = server.start().url
    bearer = {"authorization": f"Bearer {pasted.stdout.strip()}"}
    assert httpx.get(f"{url}/v1/policies").status_code == 401
    rules = httpx.get(f"{url}/v1/policies", headers=bearer)
    assert (rules.status_code, rules.json()["policies"]) == (200, [])
    events = httpx.get(f"{url}/v1/audit/events", headers=bearer).json()["events"]
    assert {e["actor"] for e in events if e["event_type"] == "token_created"} == {"offline", "angelia"}
