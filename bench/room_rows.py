"""Fills rooms with millions of messages, as posts would, and the peer's table with the same rows.

Words follow Zipf's law, as in natural texts: the second is half as frequent as the first, and so on."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import asyncpg

from angelia.rooms.word_index_store import PART_MESSAGES, SQL
from angelia.rooms.words import found_by, room_hash, word_hash

VOCABULARY, ROOMS = 50_000, 100
DAY_MS = 80_000_000  # a little less than a day: no message expires during a run
_CHUNK = 50_000
_PEER = """
CREATE TABLE peer AS SELECT room_id, ts, noise, author, body, to_tsvector('simple', body) AS words FROM room_entries;
CREATE INDEX ON peer USING gin (words);
CREATE INDEX ON peer (ts);
CREATE INDEX ON peer (room_id, ts);
"""


@dataclass
class Corpus:
    """Messages of random words, half of them in one room and the rest in all."""

    words: list[str]
    rooms: list[UUID] = field(default_factory=list)
    sample: list[tuple[UUID, list[str]]] = field(default_factory=list)  # rooms and words of some messages

    @classmethod
    def made(cls, seed: int = 7) -> Corpus:
        chance, made = random.Random(seed), set[str]()
        while len(made) < VOCABULARY:
            syllables = chance.randint(2, 4)
            made.add("".join(chance.choice("bcdfghjklmnpqrstvwxz") + chance.choice("aeiou") for _ in range(syllables)))
        words = sorted(made)
        chance.shuffle(words)
        return cls(words)


async def fill(url: str, corpus: Corpus, count: int) -> None:
    """Inserts messages of the last day, and waits until the server has packed and merged them."""
    chance, connection = random.Random(11), await asyncpg.connect(url)
    corpus.rooms = [await _room(connection, f"room-{n}") for n in range(ROOMS)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(VOCABULARY)))
    hashes = [word_hash(word) for word in corpus.words]
    assert found_by(corpus.words[0], corpus.rooms[0]) == [hashes[0], room_hash(corpus.rooms[0])]
    begins = time.time_ns() // 1_000_000 - DAY_MS
    await connection.execute("SELECT setval('room_places_day', $1)", count + 1)
    for first in range(1, count + 1, _CHUNK):
        entries, unpacked = [], []
        for place in range(first, min(first + _CHUNK, count + 1)):
            room = corpus.rooms[0] if chance.random() < 0.5 else chance.choice(corpus.rooms)
            chosen = chance.choices(range(VOCABULARY), cum_weights=weights, k=chance.randint(4, 40))
            ts = begins + place * DAY_MS // (count + 1)
            words = [corpus.words[one] for one in chosen]
            entries.append((room, ts, os.urandom(10), room, " ".join(words), place))
            unpacked.append((place, ts, [*{hashes[one] for one in chosen}, room_hash(room)]))
            if chance.random() < 0.002:
                corpus.sample.append((room, words))
        columns = ["room_id", "ts", "noise", "author", "body", "place"]
        await connection.copy_records_to_table("room_entries", records=entries, columns=columns)
        await connection.copy_records_to_table("room_unpacked", records=unpacked, columns=["place", "ts", "words"])
    while await _at_work(connection):  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    for table in ("room_entries", "room_words", "room_unpacked", "room_parts"):
        await connection.execute(f"VACUUM ANALYZE {table}")
    await connection.close()


async def _at_work(connection: asyncpg.Connection) -> bool:
    """Whether the server still packs messages into the index, or merges parts of it."""
    waiting = await connection.fetchval("SELECT count(*) FROM room_unpacked")
    return waiting >= PART_MESSAGES or await connection.fetchrow(SQL["mergeable"], 8) is not None


async def fill_peer(url: str) -> None:
    """Makes the peer's table of the same rows, with an index for full-text search, and those for times and rooms."""
    connection = await asyncpg.connect(url)
    await connection.execute(_PEER)
    await connection.execute("VACUUM ANALYZE peer")
    await connection.close()


async def sizes(url: str) -> tuple[int, int, int]:
    """Bytes of our index, as it is and rewritten without free space; and of the peer's for full-text search: the
    lexemes of its rows, and the index of them."""
    connection = await asyncpg.connect(url)
    measure = "SELECT pg_total_relation_size('room_words') + pg_total_relation_size('room_parts')"
    ours = await connection.fetchval(measure)
    await connection.execute("VACUUM FULL room_words")
    live = await connection.fetchval(measure)
    peer = await connection.fetchval(
        "SELECT pg_relation_size('peer_words_idx') + (SELECT sum(pg_column_size(words)) FROM peer)"
    )
    await connection.close()
    return int(ours), int(live), int(peer)


async def _room(connection: asyncpg.Connection, name: str) -> UUID:
    made: UUID = await connection.fetchval(
        "INSERT INTO rooms (room_id, name, is_private, created_at, last_active)"
        " VALUES ($1, $2, false, now(), now()) RETURNING room_id",
        uuid4(),
        name,
    )
    return made
