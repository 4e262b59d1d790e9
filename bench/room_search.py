"""Search over a million messages of rooms, as served, beside PostgreSQL's full-text search over the same rows.

Queries are one to three words of a message, as a reader would remember it: a third over all rooms, a third in the room
of that message, a third over the last two hours."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import UUID

import asyncpg
import msgspec

from angelia.runtime_file import Runtime
from fleet import Line
from harness import Result, milliseconds
from room_rows import Corpus, fill, fill_peer, sizes
from served import server

MESSAGES, LIMIT = 1_000_000, 20
RECENT_MS = 2 * 3_600_000


Times = defaultdict[str, list[float]]  # how long queries took, by kind


@dataclass(frozen=True)
class Query:
    """A search."""

    kind: str
    words: str
    room: UUID | None
    after: int

    def request(self, host: str) -> bytes:
        asked = {"q": self.words, "limit": str(LIMIT)}
        asked |= {} if self.room is None else {"room": str(self.room)}
        asked |= {"after": str(self.after)} if self.after else {}
        return f"GET /find?{urlencode(asked)} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()


def main(*, quick: bool) -> list[Result]:
    count = 600 if quick else 6_000
    with server(limits="find=off") as served:
        corpus, url = Corpus.made(), served.runtime.database_url
        asyncio.run(fill(url, corpus, MESSAGES))
        asyncio.run(fill_peer(url))
        ours, peer = asyncio.run(_measure(served.runtime, corpus, count))
        our_bytes, live_bytes, peer_bytes = asyncio.run(sizes(url))
    results = [
        _compared(kind, ours[kind], peer[kind]) for kind in ("all rooms", "in a room", "last two hours", "all queries")
    ]
    note = f"lower is better; the peer's lexemes and index; ours rewritten without free space {live_bytes / 1e6:.0f} MB"
    sizes_of = (f"{our_bytes / 1e6:.0f} MB", f"{peer_bytes / 1e6:.0f} MB")
    return [*results, Result("size of the index / full text", *sizes_of, our_bytes / peer_bytes, note)]


def _compared(kind: str, ours: list[float], peer: list[float]) -> Result:
    note = (
        f"lower is better; p50 {milliseconds(_share(ours, 0.5))} over {milliseconds(_share(peer, 0.5))}, "
        f"mean {milliseconds(sum(ours) / len(ours))} over {milliseconds(sum(peer) / len(peer))}, {len(ours)} queries"
    )
    mine, other = _share(ours, 0.99), _share(peer, 0.99)
    return Result(f"search, {kind}, p99 / full text", milliseconds(mine), milliseconds(other), mine / other, note)


def _share(times: list[float], share: float) -> float:
    return sorted(times)[int(share * (len(times) - 1))]


async def _measure(runtime: Runtime, corpus: Corpus, count: int) -> tuple[Times, Times]:
    ours, peer = Times(list), Times(list)
    line, connection = await Line.open(runtime), await asyncpg.connect(runtime.database_url)
    host = runtime.url.removeprefix("http://")
    for query in _queries(corpus, count):
        began = time.perf_counter()
        status, body = await line.ask(query.request(host))
        found = time.perf_counter()
        rows = await _ask_peer(connection, query)
        ended = time.perf_counter()
        assert status == 200, body
        assert [one["body"] for one in msgspec.json.decode(body)["results"]] == [row["body"] for row in rows], query
        for kind in (query.kind, "all queries"):
            ours[kind].append(found - began)
            peer[kind].append(ended - found)
    await connection.close()
    return ours, peer


async def _ask_peer(connection: asyncpg.Connection, query: Query) -> list[asyncpg.Record]:
    """Each kind has a statement of its own, which is planned for its values."""
    statement = "SELECT room_id, ts, noise, author, body FROM peer WHERE words @@ plainto_tsquery('simple', $1)"
    if query.room is not None:
        return await connection.fetch(
            f"{statement} AND room_id = $2 ORDER BY ts DESC LIMIT $3", query.words, query.room, LIMIT
        )
    if query.after:
        return await connection.fetch(
            f"{statement} AND ts > $2 ORDER BY ts DESC LIMIT $3", query.words, query.after, LIMIT
        )
    return await connection.fetch(f"{statement} ORDER BY ts DESC LIMIT $2", query.words, LIMIT)


def _queries(corpus: Corpus, count: int) -> list[Query]:
    chance, queries = random.Random(3), []
    for number in range(count):
        room, words = chance.choice(corpus.sample)
        asked = " ".join(chance.sample(words, min(len(words), chance.choice((1, 2, 2, 3)))))
        kind = ("all rooms", "in a room", "last two hours")[number % 3]
        after = time.time_ns() // 1_000_000 - RECENT_MS if kind == "last two hours" else 0
        queries.append(Query(kind, asked, room if kind == "in a room" else None, after))
    return queries
