"""A full disk is called a full disk; reads go on, nothing acknowledged is lost, and room is all that it takes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import redis

from angelia.cli.errors import exit_code
from angelia.errors import AngeliaError
from angelia.mailbox.outbox_message import OutboxStatus
from angelia.runtime_file import read_runtime
from channel_agents import Talker
from http_agents import Agent
from server_process import ServerProcess
from small_disks import SmallDisk, small_disk

LIMITS = "register=off,identity=off,keys=off,bundles=off,send=off,receive=off,unproven=off"
LEFT = r"[01]\.\d MiB"  # the stores go on writing a little


@pytest.fixture(scope="module")
def disk(directory: Path) -> Iterator[SmallDisk]:
    with small_disk(directory, 160) as disk:
        yield disk


@pytest.fixture(scope="module")
def server(disk: SmallDisk, directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(disk.path / "data", limits=LIMITS)
    server.log = directory / "small-disk.log"
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("megabytes", "told"),
    [(40, "PostgreSQL has no room in {}"), (52, "the disk of {} is full")],
)
def test_a_first_start_or_token_without_room_names_the_directory_and_what_is_left(
    directory: Path, megabytes: int, told: str
) -> None:
    with small_disk(directory, megabytes) as disk:
        server = ServerProcess(disk.path / "data")
        server.log = directory / f"no-room-{megabytes}.log"
        with pytest.raises(AssertionError, match=r"start_failed"):
            server.start()
        offline = _angelia(server, "token", "create", "--role", "admin", "--offline")
    assert (offline.returncode, offline.stdout) == (1, "")
    for said in (server.log.read_text(), offline.stderr):
        assert told.format(disk.path / "data/postgres") in said
        assert re.search(r"\d\.\d MiB left", said)


@pytest.fixture
def alice(server: ServerProcess, tmp_path: Path) -> Iterator[Talker]:
    alice = Talker(server, tmp_path, "alice")
    yield alice
    alice.close()


@pytest.fixture
def bob(server: ServerProcess, tmp_path: Path, alice: Talker) -> Iterator[Talker]:
    bob = Talker(server, tmp_path, "bob")
    bob.allow(alice)
    alice.client.keys.find(alice.mailbox, bob.name)
    yield bob
    bob.close()


def until(happens: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(AngeliaError) as told:
        act()
    return told.value.code


def deliver(person: Talker) -> None:
    """Send what waits in an outbox, when its time comes."""
    until(lambda: person.client.mail.deliver_outbox(person.mailbox) is not None and not stored(person))


def stored(person: Talker) -> bool:
    return any(row.status is OutboxStatus.STORED for row in person.mailbox.outbox.page(10))


def test_a_full_disk_is_called_so_reads_go_on_and_room_is_enough(
    disk: SmallDisk, server: ServerProcess, alice: Talker, bob: Talker
) -> None:
    url, pid = server.start_url, server.pid_of("server")
    alice.client.mail.send(alice.mailbox, bob.name, b"before")
    with disk.filled(leaving=1 << 20):
        until(lambda: httpx.get(f"{url}/health").status_code == 503, 5)
        with pytest.raises(AngeliaError) as told:
            alice.client.mail.send(alice.mailbox, bob.name, b"meanwhile")
        assert (getattr(told.value, "status", None), told.value.code) == (507, "disk_full")
        assert exit_code(told.value) == 1
        assert stored(alice), "what was not taken stays in the outbox"
        old = httpx.post(f"{url}/register", json={"public_key": Agent().public_text})
        assert (old.status_code, old.json()) == (503, {"error": "the server's disk is full"})
        assert int(old.headers["retry-after"]) > 0
        health = httpx.get(f"{url}/health").json()
        assert health["status"] == "degraded"
        assert health["checks"]["disk"]["status"] == "fail"
        assert re.search(LEFT, health["checks"]["disk"]["message"])
        assert {health["checks"][store]["status"] for store in ("postgres", "redis")} == {"pass"}
        # Reads go on: mail is handed out and opened, only its acknowledgment waits.
        received = bob.client.mail.receive(bob.mailbox)
        assert [one.body for one in received.messages] == [b"before"]
        assert received.unacknowledged is not None
        assert received.unacknowledged.code == "disk_full"
        finding = _doctor(server)["disk"]
        assert finding["state"] == "fail"
        assert str(server.data_dir) in finding["detail"]
        assert re.search(LEFT, finding["detail"])
        line = _logged(server, "the disk is full")[-1]
        assert (line["level"], line["directory"]) == ("error", str(server.data_dir / "postgres"))
        assert re.fullmatch(LEFT, line["left"])
    until(lambda: httpx.get(f"{url}/health").status_code == 200, 5)
    deliver(alice)
    assert [one.body for one in bob.client.mail.receive(bob.mailbox).messages] == [b"meanwhile"]
    assert server.pid_of("server") == pid


def test_tokens_go_on_reading_on_a_full_disk(
    disk: SmallDisk, server: ServerProcess, alice: Talker, bob: Talker
) -> None:
    url, admin = server.start_url, bearer((server.data_dir / "admin.token").read_text().strip())
    operator, reader = token(url, admin, role="admin"), token(url, admin, role="read-write", agent=bob.name)
    alice.client.mail.send(alice.mailbox, bob.name, b"before")
    with disk.filled(leaving=1 << 20):
        until(lambda: httpx.get(f"{url}/health").status_code == 503, 5)
        for path in ("/v1/audit/chain", "/v1/settings", "/v1/tokens"):
            assert httpx.get(url + path, headers=operator).status_code == 200
        polled = httpx.get(f"{url}/v1/messages", headers=reader)
        assert (polled.status_code, len(polled.json()["messages"])) == (200, 1)
        refused = httpx.post(f"{url}/v1/tokens", headers=operator, json={"role": "read-only"})
        assert (refused.status_code, refused.json()["code"]) == (507, "disk_full")
    until(lambda: httpx.get(f"{url}/health").status_code == 200, 5)


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def token(url: str, admin: dict[str, str], **wanted: str) -> dict[str, str]:
    """A token that was never used, so that no process knows it."""
    made = httpx.post(f"{url}/v1/tokens", headers=admin, json=wanted)
    assert made.status_code == 201, made.text
    return bearer(made.json()["token"])


def test_a_hot_tier_that_cannot_write_its_journal_stops_nothing(
    disk: SmallDisk, server: ServerProcess, alice: Talker, bob: Talker
) -> None:
    runtime = read_runtime(server.data_dir)
    assert runtime is not None
    with redis.Redis.from_url(runtime.redis_url, decode_responses=True) as hot:
        with disk.filled():
            # Each signed request leaves a nonce in the journal, and the last page of it has an end.
            until(lambda: alice.client.agents.me() is not None and hot.config_get("appendonly") == {"appendonly": "no"})
            assert [one.body for one in bob.client.mail.receive(bob.mailbox).messages] == []
            assert refused(lambda: alice.client.mail.send(alice.mailbox, bob.name, b"meanwhile")) == "disk_full"
        deliver(alice)
        assert [one.body for one in bob.client.mail.receive(bob.mailbox, wait=10).messages] == [b"meanwhile"]
        until(lambda: hot.config_get("appendonly") == {"appendonly": "yes"})


def test_a_ledger_that_dies_on_a_full_disk_is_away_for_that_reason_and_comes_back_with_room(
    disk: SmallDisk, server: ServerProcess, alice: Talker, bob: Talker
) -> None:
    with disk.filled():
        os.kill(server.pid_of("postgres"), signal.SIGKILL)
        codes = {refused(lambda: alice.client.mail.send(alice.mailbox, bob.name, b"again")) for _ in range(3)}
        assert codes == {"disk_full"}
    until(lambda: httpx.get(f"{server.start_url}/health", timeout=10).status_code == 200)
    deliver(alice)
    assert len(bob.client.mail.receive(bob.mailbox).messages) == 3


def _doctor(server: ServerProcess) -> dict[str, dict[str, str]]:
    said = _angelia(server, "doctor", "--json").stdout
    return {one["name"]: one for one in map(json.loads, said.splitlines())}


def _angelia(server: ServerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    angelia = Path(sys.executable).parent / "angelia"
    environ = os.environ | {"ANGELIA_DATA_DIR": str(server.data_dir)}
    return subprocess.run((angelia, *words), env=environ, capture_output=True, text=True, check=False)


def _logged(server: ServerProcess, words: str) -> list[dict[str, str]]:
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if words in line["event"]]
