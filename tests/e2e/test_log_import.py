"""Kill a node again and again while an old log is imported over HTTP: every row is there once, with its bytes."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from angelia.grouplog.model.frames import MEDIA, LogMessage
from angelia.grouplog.model.records import Record
from http_agents import Agent
from log_clients import LogClient, new_group
from spool_process import SpoolProcess

BATCH = 1_000  # rows of one request
SENDERS = [bytes((number,)) * 8 for number in range(1, 8)]


def old_log(batches: int) -> list[LogMessage]:
    """Rows of an old log; some begin as a record of the new format would."""
    chance = random.Random(7)
    return [
        LogMessage(
            SENDERS[number % len(SENDERS)],
            number // len(SENDERS) + 1,
            Record(0, chance.choice((b"", b"\2\0\0\0", b"\2\1\1\0")) + chance.randbytes(100)).encode(),
        )
        for number in range(batches * BATCH)
    ]


class Importer:
    """An admin that imports a file, and asks the node where to go on after each fault."""

    def __init__(self, member: LogClient, rows: Sequence[LogMessage]) -> None:
        self._member = member
        self._rows = rows
        self._source = hashlib.sha256(b"".join(row.encode() for row in rows)).hexdigest()
        self.done = 0
        self.interrupted = 0  # requests that a kill left without an answer

    async def send_next(self) -> None:
        """Sends the next rows, until the node has taken them or says that it has them."""
        body = b"".join(row.encode() for row in self._rows[self.done : self.done + BATCH])
        path = f"/import?source={self._source}&before={self.done}"
        while True:
            try:
                answer = await self._member.call("POST", path, body, MEDIA)
            except httpx.TransportError:
                self.interrupted += 1
                await asyncio.sleep(0.05)
                continue
            if answer.status_code in (200, 409):
                assert answer.json()["rows"] >= self.done, "rows that were acknowledged are gone"
                self.done = answer.json()["rows"]
                return
            assert answer.json()["code"] in ("stale", "starting"), answer.text
            await asyncio.sleep(0.05)


async def everything(member: LogClient) -> list[LogMessage]:
    found: list[LogMessage] = []
    cursor = b""
    while True:
        messages, end = await member.backfill(limit=5_000, cursor=cursor)
        found += messages
        if not end.has_more:
            return found
        cursor = end.cursor


@pytest.fixture
def node(disk_directory: Path) -> Iterator[SpoolProcess]:
    node = SpoolProcess(disk_directory / f"import-{secrets.token_hex(4)}")
    yield node
    node.stop()


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=[pytest.mark.chaos, pytest.mark.timeout(600)])], ids=str)
async def test_kills_during_an_import_leave_every_row_once(node: SpoolProcess, kills: int) -> None:
    url, chance = node.start(), random.Random()
    rows = old_log(2 * kills + 2)
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        member = LogClient(client, Agent(), new_group())
        assert (await member.create()).status_code == 201
        importer = Importer(member, rows)
        for number in range(kills):
            await importer.send_next()
            sending = asyncio.create_task(importer.send_next())
            await asyncio.wait([sending], timeout=chance.uniform(0.0, 0.08) if number else 0.005)
            node.kill()
            await asyncio.to_thread(node.start)
            await sending
        while importer.done < len(rows):
            await importer.send_next()
        found = await everything(member)
    assert importer.interrupted
    assert sorted((row.sender, row.seq) for row in found) == sorted((row.sender, row.seq) for row in rows)
    assert {row.record[2] for row in found} == {0}
    assert {(row.sender, row.seq): row.record for row in found} == {(row.sender, row.seq): row.record for row in rows}
    assert node.stop() == 0
