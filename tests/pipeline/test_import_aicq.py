"""The import of an AICQ server: everything once, whatever is killed when; and old clients go on as before."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicq_servers import BORN, Aicq
from angelia.cli.main import run as run_command
from angelia.errors import AngeliaError, InvalidArgument, Unavailable
from angelia.pipeline.aicq.rows import free_times, room_of, uuid_of
from angelia.pipeline.jobs.import_aicq import JOB, import_aicq
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.runs import AtWork, JobRun
from angelia.rooms.model import MessageId
from angelia.rooms.words import found_by
from angelia.settings import Settings
from angelia.stores.objects import Objects
from http_agents import Agent
from killed_jobs import Died, dies_at
from rooms_clients import GLOBAL, KEY, RoomClient

STEPS = ["planned", "writing agents", "agents", "writing rooms", "rooms", "writing messages", "messages", "writing dms",
         "dms", "recording", "done"]  # fmt: skip
_LEDGER = {
    "agents": "SELECT * FROM agents ORDER BY id",
    "rooms": "SELECT room_id, name, key_hash, created_by, last_ts, last_active, message_count, sweep_at FROM rooms "
    "WHERE room_id <> '00000000-0000-0000-0000-000000000001' ORDER BY room_id",
    "global": "SELECT last_ts, message_count FROM rooms WHERE room_id = '00000000-0000-0000-0000-000000000001'",
    "entries": "SELECT room_id, ts, noise, author, body, about, depth, place IS NOT NULL FROM room_entries "
    "ORDER BY room_id, ts",
    "words": "SELECT room_id, ts, array(SELECT unnest(words) ORDER BY 1) FROM room_unpacked "
    "JOIN room_entries USING (place, ts) ORDER BY 1, 2",
    "dms": "SELECT * FROM dms ORDER BY recipient, ts",
    "inboxes": "SELECT * FROM dm_inboxes ORDER BY agent_id",
    "events": "SELECT event_type, object_nhi FROM audit_events WHERE event_type <> 'archive_run' ORDER BY 1, 2",
}

# A process that imports, and kills itself at a step.
_KILLED = """
import os, signal, sys
from contextlib import ExitStack
from datetime import UTC, datetime
from angelia.pipeline.jobs.import_aicq import import_aicq
from angelia.pipeline.jobs.job_context import JobContext
from angelia.settings import Settings
from angelia.stores.objects import Objects

url, lake, last = sys.argv[1:]
import_aicq(JobContext(
    settings=Settings(), database_url=url, objects=Objects.at(lake), now=datetime.now(UTC), stack=ExitStack(),
    step=lambda name, run: os.kill(os.getpid(), signal.SIGKILL) if name == last else None,
))
"""

Importing = Callable[..., JobReport]


@pytest.fixture
def aicq() -> Aicq:
    return Aicq()


@pytest.fixture
def importing(
    database_url: str, redis_url: str, tmp_path: Path, aicq: Aicq, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Importing]:
    """`importing()` saves the AICQ server in SQLite and Redis, and imports it. It starts no Spark."""
    with ExitStack() as stack:

        def done(*, source: str = "", dry_run: bool = False, step: Any = None, **options: str) -> JobReport:
            monkeypatch.setenv("AICQ_DATABASE_URL", source or aicq.save_sqlite(tmp_path / "aicq.db"))
            monkeypatch.setenv("AICQ_REDIS_URL", aicq.save_redis(redis_url))
            work = JobContext(
                settings=Settings(),
                database_url=database_url,
                objects=Objects.at(str(tmp_path / "lake")),
                now=datetime.now(UTC),
                stack=stack,
                dry_run=dry_run,
                options=options,
            )
            work.step = step or work.step
            return import_aicq(work)

        yield done


async def ledger(connection: asyncpg.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [tuple(row) for row in await connection.fetch(query)] for name, query in _LEDGER.items()}


def skipped(report: JobReport, kind: str) -> dict[str, int]:
    found: dict[str, int] = report.figures[kind]["skipped"]
    return found


def furnished(aicq: Aicq) -> tuple[Agent, Agent, str, str]:
    """Two agents, a public and a private room, with messages and a thread in both and in the global one; and a DM."""
    ann, bob = aicq.register("ann", email="ann@example.org"), aicq.register("bob")
    lounge, vault = aicq.room("lounge", ann), aicq.room("vault", bob, key=KEY)
    for room in (GLOBAL, lounge, vault):
        first = aicq.post(room, ann, f"umbrella of {room[-4:]}", ago=90_000)
        second = aicq.post(room, bob, "it rains", ago=80_000, pid=first)
        aicq.post(room, ann, "still", ago=70_000, pid=second)
    aicq.dm(ann, bob, "c2VhbGVk")
    return ann, bob, lounge, vault


# The journey.


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_old_clients_go_on_where_they_were(
    importing: Importing, aicq: Aicq, empty_database: str, start: Any, kind: str
) -> None:
    ann, bob, lounge, vault = furnished(aicq)
    source = "" if kind == "sqlite" else await aicq.save_postgres(empty_database)
    report = await asyncio.to_thread(importing, source=source)
    assert [report.figures[what]["imported"] for what in ("agents", "rooms", "messages", "dms")] == [2, 2, 9, 1]
    assert report.rows == 14

    server = await start()
    client, other = RoomClient(server, ann), RoomClient(server, bob)
    assert (await server.get(f"/who/{ann.id}")).json()["name"] == "ann"
    posted = await client.post(lounge, "and now here")
    page = await other.read(lounge)
    assert [one["body"] for one in page["messages"]] == [
        "and now here", "still", "it rains", f"umbrella of {lounge[-4:]}"
    ]  # fmt: skip
    assert page["messages"][0]["id"] == posted["id"]

    old = json.loads(aicq.sets[f"room:{lounge}:messages"][1][1])
    assert page["messages"][2] == {name: old[name] for name in ("id", "from", "body", "pid", "ts")}
    await other.post(lounge, "an answer to an old one", pid=old["id"])
    thread = (await server.get(f"/v1/rooms/{lounge}/threads/{old['pid']}")).json()
    assert [one["body"] for one in thread["messages"]] == [
        f"umbrella of {lounge[-4:]}", "it rains", "still", "an answer to an old one"
    ]  # fmt: skip

    assert (await server.get(f"/room/{vault}", headers={"x-aicq-room-key": "another key of it"})).status_code == 403
    opened = await other.read(vault, x_aicq_room_key=KEY)
    assert [one["body"] for one in opened["messages"]] == ["still", "it rains", f"umbrella of {vault[-4:]}"]
    assert sorted(await client.find("umbrella")) == sorted([f"umbrella of {GLOBAL[-4:]}", f"umbrella of {lounge[-4:]}"])
    (dm,) = (await client.ask("GET", "/dm")).json()["messages"]
    assert (dm["from"], dm["body"]) == (bob.id, "c2VhbGVk")
    listed = {one["id"]: one for one in (await server.get("/channels")).json()["channels"]}
    assert listed[GLOBAL]["message_count"] == 3
    assert listed[lounge]["message_count"] == 5
    details = (await server.get(f"/v1/rooms/{lounge}")).json()
    assert details["created_by"] == ann.id
    assert datetime.fromisoformat(details["created_at"]).replace(microsecond=0) == BORN.replace(microsecond=0)
    assert (await client.ask("DELETE", f"/room/{lounge}/{old['pid']}")).status_code == 204


async def test_a_client_pages_through_an_imported_room_without_gap_or_repeat(
    importing: Importing, aicq: Aicq, start: Any
) -> None:
    ann = aicq.register("ann")
    bodies = [f"message {n}" for n in range(1_203)]
    for n, body in enumerate(bodies):
        aicq.post(GLOBAL, ann, body, ago=5_000_000 - n // 3)  # three share a millisecond
    await asyncio.to_thread(importing)
    reader = RoomClient(await start(), ann)
    seen: list[dict[str, Any]] = []
    while True:
        before = f"&before={seen[-1]['ts']}" if seen else ""
        page = await reader.read(GLOBAL, f"?limit=200{before}")
        seen += page["messages"]
        if not page["has_more"]:
            break
    assert [one["body"] for one in seen] == _in_order_of_ids(aicq)[::-1]
    assert all(later["ts"] > earlier["ts"] for later, earlier in pairwise(seen))


async def test_what_is_imported_while_a_server_serves_stays_between_what_is_posted(
    importing: Importing, aicq: Aicq, start: Any, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    for n in range(1_100):
        aicq.post(GLOBAL, ann, f"old {n}", ago=2_000 - n)
    writer = await RoomClient.registered(await start())
    loop = asyncio.get_running_loop()

    def step(name: str, _run: JobRun) -> None:
        if name in ("rooms", "messages"):
            asyncio.run_coroutine_threadsafe(writer.post(GLOBAL, "new"), loop).result()

    await asyncio.to_thread(importing, step=step)
    rows = await connection.fetch("SELECT ts, body FROM room_entries ORDER BY ts")
    assert Counter(row["body"][:3] for row in rows) == {"old": 1_100, "new": 4}
    last_ts, count = await connection.fetchrow("SELECT last_ts, message_count FROM rooms WHERE room_id = $1", GLOBAL)
    assert (last_ts, count) == (rows[-1]["ts"], 1_104)


# Once.


async def test_a_second_run_finds_everything_there(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    furnished(aicq)
    await asyncio.to_thread(importing)
    before = await ledger(connection)
    again = await asyncio.to_thread(importing)
    assert again.rows == 0
    assert [again.figures[what]["there"] for what in ("agents", "rooms", "messages", "dms")] == [2, 3, 9, 1]
    assert await ledger(connection) == before


async def test_a_later_run_brings_what_came_since(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann, _, lounge, _ = furnished(aicq)
    first = aicq.post(lounge, ann, "twin", ago=50_000)
    twin = aicq.post(lounge, ann, "twin of that", ago=50_000)
    moved = max(first, twin)  # the later one of a millisecond gets another id
    await asyncio.to_thread(importing)
    cat = aicq.register("cat")
    aicq.post(lounge, cat, "an answer", ago=40_000, pid=moved)
    aicq.post(GLOBAL, cat, "hello", ago=40_000)
    report = await asyncio.to_thread(importing)
    assert [report.figures[what]["imported"] for what in ("agents", "rooms", "messages", "dms")] == [1, 0, 2, 0]
    counts = await connection.fetch("SELECT message_count FROM rooms WHERE NOT is_private ORDER BY room_id")
    assert [row["message_count"] for row in counts] == [4, 6]
    depth, parent = await connection.fetchrow(
        "SELECT e.depth, p.body FROM room_entries AS e JOIN room_entries AS p "
        "ON p.room_id = e.room_id AND e.about = substr(int8send(p.ts), 3) || p.noise WHERE e.body = 'an answer'"
    )
    assert (depth, parent) == (1, "twin" if moved == first else "twin of that")


async def test_what_was_deleted_or_acknowledged_here_does_not_come_back(
    importing: Importing, aicq: Aicq, start: Any
) -> None:
    ann, _, lounge, _ = furnished(aicq)
    await asyncio.to_thread(importing)
    client = RoomClient(await start(), ann)
    gone = (await client.read(lounge))["messages"][0]["id"]
    assert (await client.ask("DELETE", f"/room/{lounge}/{gone}")).status_code == 204
    (dm,) = (await client.ask("GET", "/dm")).json()["messages"]
    url = f"/v1/dms/{dm['id']}"
    assert (await client.server.send_signed(ann, "DELETE", url)).status_code == 204
    assert (await asyncio.to_thread(importing)).rows == 0
    assert gone not in [one["id"] for one in (await client.read(lounge))["messages"]]
    assert (await client.ask("GET", "/dm")).json()["messages"] == []


async def test_each_run_goes_on_behind_the_one_that_died(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    furnished(aicq)
    for step in STEPS:
        with pytest.raises(Died):
            await asyncio.to_thread(importing, step=dies_at(step))
    assert (await asyncio.to_thread(importing)).rows == 0
    await _is_whole(connection, aicq)


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[pytest.mark.chaos] * (step != "writing messages")) for step in STEPS]
)
async def test_a_killed_process_leaves_whole_batches(
    importing: Importing,
    aicq: Aicq,
    connection: asyncpg.Connection,
    database_url: str,
    redis_url: str,
    tmp_path: Path,
    step: str,
) -> None:
    furnished(aicq)
    source = {"AICQ_DATABASE_URL": aicq.save_sqlite(tmp_path / "aicq.db"), "AICQ_REDIS_URL": aicq.save_redis(redis_url)}
    command = [sys.executable, "-c", _KILLED, database_url, str(tmp_path / "lake"), step]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **source}, stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == -signal.SIGKILL, said.decode()
    done = STEPS.index(step)
    assert await connection.fetchval("SELECT count(*) FROM agents") == (2 if done >= STEPS.index("agents") else 0)
    assert await connection.fetchval("SELECT count(*) FROM dms") == (1 if done >= STEPS.index("dms") else 0)
    await asyncio.to_thread(importing)
    await _is_whole(connection, aicq)


async def test_of_two_at_once_one_imports_and_the_other_is_told(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    furnished(aicq)
    refused: list[AngeliaError] = []

    def meanwhile(name: str, _run: JobRun) -> None:
        if name in ("planned", "writing messages"):
            with pytest.raises(AtWork) as told:
                importing()
            refused.append(told.value)

    await asyncio.to_thread(importing, step=meanwhile)
    assert len(refused) == 4  # three rooms
    await _is_whole(connection, aicq)


async def _is_whole(connection: asyncpg.Connection, aicq: Aicq) -> None:
    """Everything is there once, with what belongs to it."""
    found = await ledger(connection)
    assert sorted(str(row[0]) for row in found["agents"]) == sorted(aicq.agents)
    assert found["global"] == [(max(ts for ts, _ in aicq.sets[f"room:{GLOBAL}:messages"]), 3)]
    assert {str(row[0]): row[6] for row in found["rooms"]} == {
        id_: row[-1] for id_, row in aicq.rooms.items() if id_ != GLOBAL
    }
    for room in found["rooms"]:
        times = [ts for ts, _ in aicq.sets[f"room:{room[0]}:messages"]]
        assert (room[4], room[7]) == (max(times), min(times) + 86_400_000)
    bodies = [
        json.loads(member)["body"] for key, set_ in aicq.sets.items() if key.startswith("room") for _, member in set_
    ]
    assert Counter(row[4] for row in found["entries"]) == Counter(bodies)
    assert Counter(row[6] for row in found["entries"]) == {0: 3, 1: 3, 2: 3}
    public = [row for row in found["entries"] if row[7]]
    assert len(public) == 6
    assert found["words"] == [(row[0], row[1], sorted(found_by(row[4], row[0]))) for row in public]
    assert [row[2] for row in found["inboxes"]] == [1]
    assert Counter(row[0] for row in found["events"]) == {"agent_registered": 2, "room_created": 2}
    states = await connection.fetch("SELECT state FROM pipeline_runs")
    assert "done" in {row["state"] for row in states} <= {"done", "failed"}


# What is imported, and what is left out.


async def test_keys_that_registration_refuses_are_left_out_and_named(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    text = base64.b64encode(bytes(range(32))).decode()
    spare = text[:-2] + chr(ord(text[-2]) + 1) + "="
    bad = [aicq.register(key=key) for key in ("", "AAAA", spare, base64.b64encode(bytes(32)).decode())]
    aicq.post(GLOBAL, bad[0], "from an agent without a key")
    room = aicq.room("orphan", bad[0])
    aicq.register("\x07 ann \N{SNOWMAN}" + "x" * 100, email="no address")
    report = await asyncio.to_thread(importing)
    why = "invalid public_key: must be base64-encoded Ed25519 public key (32 bytes)"
    assert skipped(report, "agents") == {why: 4}
    assert {one["id"] for one in report.figures["agents"]["listed"]} == {agent.id for agent in bad}
    assert skipped(report, "messages") == {"its author was not imported": 1}
    row = await connection.fetchrow("SELECT handle, id::text, name, email, registered_at, aicq_signatures FROM agents")
    assert row["handle"] == row["id"]
    assert (row["name"].startswith("ann \N{SNOWMAN}xxx"), len(row["name"].encode())) == (True, 100)
    assert (row["email"], row["registered_at"], row["aicq_signatures"]) == ("", BORN, True)
    assert await connection.fetchval("SELECT created_by FROM rooms WHERE room_id = $1", room) is None


async def test_an_agent_that_is_here_already_keeps_its_id_and_gets_what_was_its_own(
    importing: Importing, aicq: Aicq, start: Any
) -> None:
    ann, bob, lounge, _ = furnished(aicq)
    server = await start()
    old = ann.id
    await server.register(ann)
    report = await asyncio.to_thread(importing)
    assert report.figures["mapped"] == {old: ann.id}
    client = RoomClient(server, ann)
    page = await client.read(lounge)
    assert [one["from"] for one in page["messages"]] == [ann.id, bob.id, ann.id]
    assert (await server.get(f"/v1/rooms/{lounge}")).json()["created_by"] == ann.id
    assert len((await client.ask("GET", "/dm")).json()["messages"]) == 1


async def test_an_id_that_another_key_has_here_is_refused(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection, start: Any
) -> None:
    taken = await (await start()).register(name="first")
    aicq.register("second", id=taken.id)
    aicq.post(GLOBAL, taken, "who said that?")
    report = await asyncio.to_thread(importing)
    assert skipped(report, "agents") == {"its id belongs to an agent with another key": 1}
    assert skipped(report, "messages") == {"its author was not imported": 1}
    assert await connection.fetchval("SELECT name FROM agents WHERE id = $1", taken.id) == "first"


async def test_an_agent_that_has_a_new_key_since_is_still_the_same(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann, *_ = furnished(aicq)
    await asyncio.to_thread(importing)
    await connection.execute(
        """WITH former AS (
             INSERT INTO agent_former_keys SELECT key_id, public_key, id, now(), now() FROM agents WHERE id = $1
           ) UPDATE agents SET public_key = $2, key_id = gen_random_uuid() WHERE id = $1""",
        uuid.UUID(ann.id),
        Agent().public_key,
    )
    report = await asyncio.to_thread(importing)
    assert (report.rows, report.figures["mapped"], skipped(report, "agents")) == (0, {}, {})


async def test_a_private_room_needs_a_hash_that_can_be_verified(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    good = aicq.room("good", key=KEY)
    aicq.room("dear", hashed=aicq.rooms[good][3].replace("$04$", "$31$"))
    aicq.room("other", hashed="5f4dcc3b5aa765d61d8327deb882cf99")
    none = aicq.room("none")
    aicq.rooms[none][2] = True
    aicq.post(none, ann, "lost")
    report = await asyncio.to_thread(importing)
    assert skipped(report, "rooms") == {"it is private, and the hash of its key is none of bcrypt": 3}
    assert skipped(report, "messages") == {"its room was not imported": 1}
    assert await connection.fetchval("SELECT count(*) FROM rooms") == 2
    assert await connection.fetchval("SELECT count(*) FROM room_unpacked") == 0


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("name", "no name at all", "name must be 1-50 characters, alphanumeric with hyphens and underscores only"),
        ("created_at", None, "one of its times is none"),
        ("message_count", -1, "its message_count is no count"),
        ("id", "12345", "its id is no UUID"),
    ],
)
def test_a_room_that_cannot_be_one_is_left_out_with_the_reason(column: str, value: object, why: str) -> None:
    row = {"id": GLOBAL, "name": "x", "is_private": False, "key_hash": None, "created_by": None, "created_at": BORN,
           "last_active_at": BORN, "message_count": 0}  # fmt: skip
    with pytest.raises(InvalidArgument) as refused:
        room_of({**row, column: value})
    assert refused.value.message == why


async def test_a_room_that_imitates_the_global_one_gets_another_name(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    imitation = aicq.room("Global")
    report = await asyncio.to_thread(importing)
    name = await connection.fetchval("SELECT name FROM rooms WHERE room_id = $1", imitation)
    assert name == f"Global-{imitation[:8]}"
    assert report.figures["renamed"] == {imitation: name}


async def test_messages_under_other_spellings_of_a_room_belong_to_it(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    room = aicq.room("lounge")
    spellings = [room, room.upper(), room.replace("-", ""), f"{{{room}}}", f"urn:uuid:{room}"]
    for n, spelt in enumerate(spellings * 2):
        aicq.post(room, ann, f"{n}", ago=1_000 - n, spelt=spelt)
    await asyncio.to_thread(importing)
    rows = await connection.fetch("SELECT body FROM room_entries WHERE room_id = $1 ORDER BY ts", room)
    assert [row["body"] for row in rows] == [f"{n}" for n in range(10)]
    assert await connection.fetchval("SELECT message_count FROM rooms WHERE room_id = $1", room) == 10


async def test_messages_that_share_a_millisecond_move_and_their_answers_follow(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    ids = sorted(aicq.post(GLOBAL, ann, "twin", ago=5_000) for _ in range(3))
    aicq.post(GLOBAL, ann, "answer", ago=4_000, pid=ids[2])
    await asyncio.to_thread(importing)
    rows = await connection.fetch("SELECT ts, noise, about, depth FROM room_entries ORDER BY ts")
    old = [MessageId.parse(id_) for id_ in ids]
    assert [(row["ts"], row["noise"]) for row in rows[:3]] == [
        (id_.ts + n, id_.noise) for n, id_ in enumerate(old) if id_
    ]
    assert (rows[3]["about"], rows[3]["depth"]) == (MessageId(rows[2]["ts"], rows[2]["noise"]).packed, 1)


async def test_a_time_that_is_taken_here_is_left_to_who_has_it(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    aicq.post(GLOBAL, ann, "imported", ago=5_000)
    taken = [aicq.now_ms - 5_000 + n for n in (0, 1, 2)]
    await connection.executemany(
        "INSERT INTO room_entries (room_id, ts, noise, author, body) VALUES ($1, $2, $3, gen_random_uuid(), 'here')",
        [(GLOBAL, ts, os.urandom(10)) for ts in taken],
    )
    await asyncio.to_thread(importing)
    assert await connection.fetchval("SELECT ts FROM room_entries WHERE body = 'imported'") == taken[-1] + 1


async def test_an_id_whose_clock_was_read_a_moment_earlier_stays(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    ids = [MessageId(aicq.now_ms - 5_000 - apart, os.urandom(10)) for apart in (3, 3_600_000)]
    for id_ in ids:
        aicq.post(GLOBAL, ann, "said", ago=5_000, id=str(id_))
    await asyncio.to_thread(importing)
    rows = await connection.fetch("SELECT ts, noise FROM room_entries ORDER BY ts")
    assert [tuple(row) for row in rows] == [ids[0], (aicq.now_ms - 5_000, ids[1].noise)]


async def test_messages_that_a_post_would_not_take_are_left_out_and_counted(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    key = f"room:{GLOBAL}:messages"
    aicq.post(GLOBAL, ann, "\N{SNOWMAN}" * 1_366)
    aicq.post(GLOBAL, ann, "x" * 4_096)
    aicq.post(GLOBAL, ann, "")
    aicq.post(GLOBAL, ann, "a\0b")
    aicq.post(GLOBAL, ann, "too late", ago=86_400_000 + 1_000)
    aicq.post(GLOBAL, ann, "too early", ago=-3_600_000)
    aicq.post(GLOBAL, str(uuid.uuid4()), "from nowhere")
    aicq.post(GLOBAL, ann, "no id", id="7")
    aicq.post(str(uuid.uuid4()), ann, "no room")
    aicq.add(key, aicq.now_ms, "{")
    aicq.add(key, aicq.now_ms, '{"id":"\\ud800","from":"","body":"","ts":1}')
    never = {"id": str(MessageId(7, bytes(10))), "from": ann.id, "body": "x", "ts": -7}
    aicq.add(key, aicq.now_ms, json.dumps(never))
    aicq.add("room:lobby:messages", aicq.now_ms, "{}")
    report = await asyncio.to_thread(importing)
    assert skipped(report, "messages") == {
        "body too long (max 4096 bytes)": 1,
        "body is required": 1,
        "its body is no text": 1,
        "it has expired": 2,
        "its time is in the future": 1,
        "its author was not imported": 1,
        "its id is no ULID": 1,
        "its room was not imported": 1,
        "it is no message in JSON": 2,
    }
    assert await connection.fetchval("SELECT body FROM room_entries") == "x" * 4_096


async def test_an_answer_to_what_is_gone_keeps_the_id_and_one_to_the_future_has_none(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann = aicq.register("ann")
    gone = MessageId(aicq.now_ms - 90_000_000, os.urandom(10))
    aicq.post(GLOBAL, ann, "of the past", ago=9_000, pid=str(gone))
    later = aicq.post(GLOBAL, ann, "later", ago=7_000)
    aicq.post(GLOBAL, ann, "of the future", ago=8_000, pid=later)
    await asyncio.to_thread(importing)
    rows = await connection.fetch("SELECT body, about, depth FROM room_entries ORDER BY ts")
    assert [tuple(row) for row in rows] == [
        ("of the past", gone.packed, 1),
        ("of the future", None, 0),
        ("later", None, 0),
    ]


async def test_direct_messages_keep_their_order_and_their_limits(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    ann, bob, eve = aicq.register("ann"), aicq.register("bob"), aicq.register(key="none")
    for n in range(3):
        aicq.dm(ann, bob, f"{n}", ago=1_000)
    aicq.dm(ann, bob, "x" * 8_193)
    aicq.dm(ann, bob, "old", ago=7 * 86_400_000 + 1_000)
    aicq.dm(ann, eve, "from eve")
    aicq.dm(eve, ann, "to eve")
    report = await asyncio.to_thread(importing)
    assert skipped(report, "dms") == {
        "body too long (max 8192 bytes)": 1,
        "it has expired": 1,
        "its author was not imported": 1,
        "its recipient was not imported": 1,
    }
    held, last_ts = await connection.fetchrow("SELECT held, last_ts FROM dm_inboxes")
    times = [row["ts"] for row in await connection.fetch("SELECT ts FROM dms ORDER BY ts")]
    assert (held, times, last_ts) == (3, [aicq.now_ms - 1_000 + n for n in range(3)], times[-1])


def test_of_an_overfull_inbox_the_newest_come(
    importing: Importing, aicq: Aicq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.pipeline.aicq.conversations.MOST_HELD", 3)
    ann = aicq.register("ann")
    for n in range(5):
        aicq.dm(ann, ann, f"{n}", ago=1_000 - n)
    report = importing()
    assert (report.figures["dms"]["imported"], skipped(report, "dms")) == (3, {"its inbox has 3 newer ones": 2})


@given(st.lists(st.integers(0, 30), max_size=20).map(sorted), st.sets(st.integers(0, 40)))
def test_each_message_gets_the_first_free_time_in_its_order(wished: list[int], taken: set[int]) -> None:
    def asked(times: Any) -> dict[int, int]:
        return {at: next(free for free in range(at, 99) if free not in taken) for at in times if at in taken}

    expected: list[int] = []
    for at in wished:
        expected.append(next(free for free in range(at, 99) if free not in taken and free not in expected))
    assert free_times(wished, asked) == expected


@pytest.mark.parametrize("text", ["", "{}", "1_34567812345678123456781234567812"[:32], "x" * 32, None, 7])
def test_what_is_no_uuid_is_none(text: object) -> None:
    with pytest.raises(InvalidArgument):
        uuid_of(text)


# How it is run.


async def test_a_dry_run_counts_what_the_run_then_does_and_writes_nothing(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    furnished(aicq)
    aicq.register(key="none")
    before = await ledger(connection)
    foreseen = await asyncio.to_thread(importing, dry_run=True)
    assert (foreseen.state, foreseen.rows) == ("dry run", 14)
    assert await ledger(connection) == before
    assert await connection.fetchval("SELECT count(*) FROM pipeline_runs") == 0
    assert (await asyncio.to_thread(importing)).figures == foreseen.figures


async def test_the_run_its_report_and_its_event_are_in_the_ledger(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection
) -> None:
    furnished(aicq)
    report = await asyncio.to_thread(importing)
    assert report.summary == "2 agents, 2 rooms, 9 messages, 1 direct message(s) imported; 1 were there, 0 left out"
    row = await connection.fetchrow("SELECT job, state, row_count, report FROM pipeline_runs")
    assert (row["job"], row["state"], row["row_count"]) == (JOB, "done", 14)
    assert json.loads(row["report"]) == report.figures
    detail = await connection.fetchval("SELECT detail FROM audit_events WHERE event_type = 'archive_run'")
    assert json.loads(detail) == {
        "run": report.runs[0], "job": JOB, "agents": 2, "rooms": 2, "messages": 9, "dms": 1
    }  # fmt: skip


def test_without_redis_it_imports_agents_and_rooms(
    importing: Importing, aicq: Aicq, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnished(aicq)
    monkeypatch.setattr(Aicq, "save_redis", lambda *_: "")
    report = importing()
    assert [report.figures[what]["imported"] for what in ("agents", "rooms", "messages", "dms")] == [2, 2, 0, 0]


def test_the_command_reports_in_one_line(
    aicq: Aicq, database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    furnished(aicq)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("AICQ_REDIS_URL", aicq.save_redis(redis_url))
    monkeypatch.setenv("ANGELIA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ANGELIA_LAKE", str(tmp_path / "lake"))
    command = ["pipeline", "run", "import", "aicq", "--database", aicq.save_sqlite(tmp_path / "aicq.db")]
    assert run_command(command[:4]) != 0
    assert "which AICQ? (invalid_argument)\nhint: --database aicq.db, or" in capsys.readouterr().err
    assert run_command([*command, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "dry run"
    assert run_command(command) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (report["job"], report["state"], report["rows"]) == (JOB, "done", 14)
    assert said.err.endswith(
        ": 2 agents, 2 rooms, 9 messages, 1 direct message(s) imported; 1 were there, 0 left out\n"
    )


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"database": "postgres://u:secret@h/aicq"}, "--database has a password, which others see",
         "set AICQ_DATABASE_URL instead"),
        ({"database": "postgres://u@h/aicq?password=s"}, "--database has a password, which others see",
         "set AICQ_DATABASE_URL instead"),
        ({"database": "host=h password=secret"}, "--database has a password, which others see",
         "set AICQ_DATABASE_URL instead"),
        ({"source": "host=h password = secret"}, "AICQ_DATABASE_URL is a connection string, and not a URL",
         "as in postgres://user@host/aicq, or the path of a file"),
        ({"database": "postgres://[bad/db"}, "--database is no URL",
         "as in postgres://user@host/aicq, or the path of a file"),
        ({"source": "mysql://u:secret@h/aicq"}, "mysql:// is no URL of a PostgreSQL",
         "--database names AICQ's PostgreSQL, as in postgres://user@host/aicq, or the file of its SQLite"),
        ({"redis": "redis://:secret@h"}, "--redis has a password, which others see", "set AICQ_REDIS_URL instead"),
        ({"database": "/no/such"}, "/no/such cannot be read as a database of AICQ: unable to open database file",
         "--database names AICQ's PostgreSQL, as in postgres://user@host/aicq, or the file of its SQLite"),
        ({"redis": "host:6379"}, "--redis is no URL of a Redis", "as in redis://host:6379"),
    ],
)  # fmt: skip
async def test_what_cannot_be_imported_is_answered_with_the_way_on(
    importing: Importing, connection: asyncpg.Connection, options: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await asyncio.to_thread(importing, **options)
    assert refused.value.message.startswith(message)
    assert refused.value.hint == hint
    assert "secret" not in refused.value.message
    assert await connection.fetchval("SELECT count(*) FROM pipeline_runs") == 0


def test_a_database_of_something_else_is_named(importing: Importing, empty_database: str, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="cannot be read as a database of AICQ: no such table: agents"):
        importing(database=str(tmp_path / "other.db"))
    with pytest.raises(InvalidArgument, match="that PostgreSQL cannot be read as a database of AICQ"):
        importing(source=empty_database)


@pytest.mark.parametrize("option", ["database", "redis"])
async def test_an_aicq_that_does_not_answer_is_told_from_the_ledger_and_nothing_is_written(
    importing: Importing, aicq: Aicq, connection: asyncpg.Connection, option: str
) -> None:
    furnished(aicq)
    before = await ledger(connection)
    url = {"database": "postgres://nobody@127.0.0.1:1/aicq", "redis": "redis://127.0.0.1:1"}[option]
    with pytest.raises(Unavailable, match=r"AICQ's .*refused") as told:
        await asyncio.to_thread(importing, **{option: url})
    assert url not in told.value.message
    assert await ledger(connection) == before
    assert await connection.fetchval("SELECT count(*) FROM pipeline_runs") == 0


def test_a_url_that_the_driver_repeats_is_not_printed(importing: Importing) -> None:
    with pytest.raises(AngeliaError, match="IPv6") as told:
        importing(source="postgres://u:secret@[bad/aicq")
    assert "secret" not in told.value.message


def test_a_report_lists_the_first_ids_that_changed(
    importing: Importing, aicq: Aicq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.pipeline.jobs.import_aicq.MOST_LISTED", 1)
    ann = aicq.register("ann")
    for name in ("global", "Global"):
        aicq.room(name, ann)
    assert len(importing().figures["renamed"]) == 1


def _in_order_of_ids(aicq: Aicq) -> list[str]:
    members = sorted(member for _, member in aicq.sets[f"room:{GLOBAL}:messages"])
    return [json.loads(member)["body"] for member in members]
