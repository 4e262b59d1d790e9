"""The server is blind: what was sealed is found nowhere on its machine, in no form that a search can find."""

from __future__ import annotations

import asyncio
import base64
import gzip
import secrets
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio

from angelia.channels.model import ChannelPolicy
from angelia.envelope.wire import Compression
from angelia.runtime_file import read_runtime
from channel_agents import Talker
from mail_agents import Correspondent
from remote_server import RemoteServer
from server_process import ServerProcess


def forms(marker: bytes) -> dict[str, bytes]:
    """How a marker could lie around: as it is, in hex, and in base64 whatever stands before it."""
    shifted = {f"base64, {pad} before": base64.b64encode(bytes(pad) + marker)[4 * bool(pad) : -4] for pad in range(3)}
    return {"plain": marker, "hex": marker.hex().encode(), "utf-16": marker.decode().encode("utf-16-le"), **shifted}


def test_the_forms_are_found_where_they_are() -> None:
    marker = b"MARKER-" + secrets.token_hex(16).encode()
    for before in (b"", b"x", b"xy"):
        encoded = base64.b64encode(before + marker + b"after")
        assert any(form in encoded for form in forms(marker).values())


async def test_planted_markers_are_found_nowhere_on_the_servers_machine(directory: Path, tmp_path: Path) -> None:
    process = ServerProcess(
        directory / f"blind-{secrets.token_hex(4)}", log_level="debug", limits="register=off,identity=off"
    )
    process.start()
    markers = [b"MARKER-" + secrets.token_hex(16).encode() for _ in range(8)]
    try:
        async with RemoteServer(process) as server:
            await server.hot_tier_is_old_enough()
            alice, bob = Correspondent(), Correspondent()
            alice.authority = bob.authority = server.authority
            await alice.join(server, "alice")
            await bob.join(server, "bob")
            await _live(server, alice, bob, markers[:6])
            await asyncio.to_thread(_talk, process, tmp_path, *(marker.decode() for marker in markers[6:]))
            found = [*await _in_ledger(process, markers), *await _in_hot_tier(process, markers)]
    finally:
        process.stop()
    found += _in_files(process.data_dir, markers)
    found += _in_files(process.log, markers)
    assert found == []


async def _live(server: RemoteServer, alice: Correspondent, bob: Correspondent, markers: list[bytes]) -> None:
    """Every way that a message can go: read, given back, refused, left lying, too large for a copy, compressed."""
    read, given_back, unread, large, compressed, malformed = markers
    await alice.sent(server, bob, read)
    (got,) = await bob.poll(server)
    assert bob.opened(got) == read
    await bob.ack(server, got, receipts=[bob.receipt(got.envelope)])
    await alice.sent(server, bob, given_back)
    (got,) = await bob.poll(server)
    await bob.nack(server, got, reason="not now", retry_after=600)
    await alice.sent(server, bob, large + secrets.token_bytes(100_000))
    await alice.sent(server, bob, compressed * 50, compression=Compression.GZIP)
    envelope = alice.seal(bob, malformed)
    broken = envelope.wire[:-1] + bytes([envelope.wire[-1] ^ 1])
    assert (await alice.mail_binary(server, broken)).status_code == 400
    await alice.sent(server, bob, unread)


def _talk(process: ServerProcess, homes: Path, read: str, unread: str) -> None:
    """In a channel: a message that a subscriber opened, and one after the key has changed."""
    carol, dora = Talker(process, homes, "carol"), Talker(process, homes, "dora")
    try:
        channel = carol.creates(ChannelPolicy.ALLOWLIST, dora)
        dora.subscribes(channel)
        carol.says(channel, read)
        assert dora.hears(channel) == [read]
        carol.client.channels.disallow(carol.mailbox, channel, dora.name)
        carol.says(channel, unread)
    finally:
        carol.close()
        dora.close()


async def _in_ledger(process: ServerProcess, markers: list[bytes]) -> list[str]:
    runtime = read_runtime(process.data_dir)
    assert runtime is not None
    connection = await asyncpg.connect(runtime.database_url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        rows = {
            table["tablename"]: await connection.fetch(f'SELECT t::text AS t FROM "{table["tablename"]}" AS t')  # noqa: S608
            for table in tables
        }
    finally:
        await connection.close()
    assert sum(map(len, rows.values())) > 20, "there is something to look at"
    return [
        f"{name} ({form})"
        for name, found in rows.items()
        for row in found
        for marker in markers
        for form, text in forms(marker).items()
        if text in row["t"].encode()
    ]


async def _in_hot_tier(process: ServerProcess, markers: list[bytes]) -> list[str]:
    runtime = read_runtime(process.data_dir)
    assert runtime is not None
    found, looked = [], 0
    async with redis.asyncio.Redis.from_url(runtime.redis_url) as hot:
        async for key in hot.scan_iter():
            content = key + (await hot.dump(key) or b"") + await _value(hot, key)
            looked += 1
            found += [f"{key!r} ({form})" for one in markers for form, text in forms(one).items() if text in content]
    assert looked > 3, "there is something to look at"
    return found


async def _value(hot: redis.asyncio.Redis, key: bytes) -> bytes:
    kind = await hot.type(key)
    if kind == b"string":
        return await hot.get(key) or b""
    if kind == b"hash":
        return b" ".join(part for pair in (await hot.hgetall(key)).items() for part in pair)
    if kind == b"zset":
        return b" ".join(await hot.zrange(key, 0, -1))
    return b""


def _in_files(root: Path, markers: list[bytes]) -> list[str]:
    """Every file, the write-ahead log and the servers' own logs among them."""
    paths = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    found = []
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content += gzip.decompress(content)
        found += [f"{path} ({form})" for one in markers for form, text in forms(one).items() if text in content]
    return found


@pytest.mark.parametrize("place", ["ledger", "files"])
async def test_a_marker_that_is_there_is_found(directory: Path, tmp_path: Path, place: str, connection) -> None:
    """The search itself: it would find what it looks for."""
    marker = b"MARKER-" + secrets.token_hex(16).encode()
    if place == "files":
        (tmp_path / "log").write_bytes(b"x" + base64.b64encode(b"a" + marker + b"zz"))
        assert _in_files(tmp_path, [marker])
    else:
        row = await connection.fetchval("SELECT row($1::bytea)::text", marker)
        assert any(text in row.encode() for text in forms(marker).values())
