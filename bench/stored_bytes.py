"""The bytes that one agent and one message take in the hot tier and in the ledger: the figures that `simulate` uses.

Each is the growth of a store, divided by the number of new agents or messages. Tables are compacted first, and include
their indexes. The bytes of the envelope or signed receipt are subtracted, and shown as the peer.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Sequence

import asyncpg
import redis

from angelia.envelope.media_type import MEDIA_TYPE
from angelia.runtime_file import Runtime
from fleet import Line, Member, enroll
from harness import Result
from mail_load import BODY, RECIPIENTS, SENDERS, receipt, receive_all
from served import ANGELIA, server

BUNDLES_A_YEAR, ONE_TIME_KEYS = 122, 100  # one bundle every three days; the SDK's stock of one-time keys
PUBLISHERS = 10  # as many as may register from one address in an hour
_KEYS = ("agents", "key_records", "bundles", "one_time_keys")
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relkind = 'r' AND relname ~ ('^(' || $1 || ')(_[0-9]+|_default)?$')
"""


def main(*, quick: bool) -> list[Result]:
    agents, messages = (500, 1_024) if quick else (2_000, 8_192)
    with server() as served:
        runtime = served.runtime
        before = _sizes(runtime)
        members = enroll(runtime, [f"agent-{n}" for n in range(agents)])
        asyncio.run(_read_bundles(runtime, members))
        enrolled = _sizes(runtime)
        hot_agent, bundle = _growth(before, enrolled, agents, "hot", *_KEYS)
        _publish_one_time_keys(runtime)
        one_time_key = _growth(enrolled, _sizes(runtime), PUBLISHERS * ONE_TIME_KEYS, "hot", "one_time_keys")[1]
        senders = enroll(runtime, [f"sender-{n}" for n in range(SENDERS)])
        recipients = enroll(runtime, [f"recipient-{n}" for n in range(RECIPIENTS)])
        empty = _sizes(runtime)
        envelopes = [senders[n % SENDERS].seal(recipients[n % RECIPIENTS], BODY) for n in range(messages)]
        receipts = {one.replay_key: receipt(recipients[n % RECIPIENTS], one) for n, one in enumerate(envelopes)}
        requests = [(senders[n % SENDERS], one.wire) for n, one in enumerate(envelopes)]
        asyncio.run(_send(runtime, requests))
        waiting = _growth(empty, _sizes(runtime), messages, "hot", "envelopes")
        asyncio.run(receive_all(runtime, recipients, receipts))
        (stored,) = _growth(empty, _sizes(runtime), messages, "delivery_receipts")
        sizes = asyncio.run(_fetch(runtime, "SELECT avg(octet_length(receipt_wire)) FROM delivery_receipts"))
    wire = sum(len(one.wire) for one in envelopes) / messages
    signed = float(str(sizes))
    year = BUNDLES_A_YEAR * bundle + ONE_TIME_KEYS * one_time_key
    return [
        _result("hot bytes of a waiting message", waiting[0] - wire, wire, "its envelope"),
        _result("ledger bytes of a waiting message", waiting[1] - wire, wire, "its envelope"),
        _result("ledger bytes of a receipt", stored - signed, signed, "the signed receipt"),
        _result("hot bytes of an agent", hot_agent, bundle, "an agent with one bundle in the ledger"),
        _result("ledger bytes of an agent's year", year, bundle, "an agent with one bundle"),
        _result("ledger bytes of a one-time key", one_time_key, bundle, "an agent with one bundle"),
    ]


def _result(what: str, ours: float, beside: float, name: str) -> Result:
    return Result(what, f"{ours:,.0f} bytes", f"{beside:,.0f} bytes", ours / beside, f"lower is better; beside {name}")


def _growth(before: dict[str, int], after: dict[str, int], count: int, first: str, *tables: str) -> list[float]:
    """Returns the growth in bytes per one of `count` items: of the first store, and of the tables together."""
    growth = {name: (after[name] - before[name]) / count for name in after}
    return [growth[first], *([sum(growth[name] for name in tables)] if tables else [])]


def _sizes(runtime: Runtime) -> dict[str, int]:
    with redis.Redis.from_url(runtime.redis_url) as hot:
        sizes = {"hot": int(hot.info("memory")["used_memory"])}
    for table in (*_KEYS, "envelopes", "delivery_receipts"):
        asyncio.run(_fetch(runtime, f"VACUUM FULL {table}"))
        sizes[table] = int(str(asyncio.run(_fetch(runtime, _SIZE, table))))
    return sizes


async def _fetch(runtime: Runtime, statement: str, *values: object) -> object:
    connection = await asyncpg.connect(runtime.database_url)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()


async def _send(runtime: Runtime, requests: Sequence[tuple[Member, bytes]]) -> None:
    line = await Line.open(runtime)
    for sender, wire in requests:
        status, body = await line.ask(sender.request(runtime.url, "POST", "/v1/messages", wire, MEDIA_TYPE))
        assert status == 201, body
    line.writer.close()


async def _read_bundles(runtime: Runtime, members: Sequence[Member]) -> None:
    """Each agent reads the bundle of the next, so that the hot tier has every bundle and every agent's limits."""
    line = await Line.open(runtime)
    for reader, other in zip(members, [*members[1:], members[0]], strict=True):
        status, body = await line.ask(reader.request(runtime.url, "GET", f"/v1/keys/bundle/{other.handle}"))
        assert status == 200, body
    line.writer.close()


def _publish_one_time_keys(runtime: Runtime) -> None:
    """Registers agents as the command line does, each with its stock of one-time keys."""
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "ANGELIA_HOME": home, "ANGELIA_URL": runtime.url}
        for number in range(PUBLISHERS):
            command = [ANGELIA, "agent", "new", f"publisher-{number}", "--register"]
            subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
