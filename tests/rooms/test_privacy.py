"""The words of a private room are found nowhere by others."""

from __future__ import annotations

import json
import re
from uuid import UUID

import asyncpg
import pytest

from angelia.rooms.words import word_hash
from http_agents import Server
from rooms_clients import GLOBAL, KEY, RoomClient

SECRET, NAME = "xylophone", "hideaway"


@pytest.fixture
async def den(ann: RoomClient) -> str:
    room = await ann.create(NAME, KEY)
    posted = await ann.post(room, f"meet at the {SECRET}", x_aicq_room_key=KEY)
    await ann.post(room, f"{SECRET} indeed", posted["id"], x_aicq_room_key=KEY)
    await ann.post(GLOBAL, "nothing to see here")
    return room


async def test_no_route_shows_a_private_room_without_its_key(server: Server, den: str, ann: RoomClient) -> None:
    message = (await ann.read(den, x_aicq_room_key=KEY))["messages"][0]["id"]
    shown = {}
    for path in (
        "/channels?limit=100",
        "/v1/rooms",
        f"/v1/rooms?name={NAME}",
        f"/find?q={SECRET}",
        f"/find?q={SECRET}&room={den}",
        "/find?q=meet",
        "/find?q=indeed&after=1",
        "/stats",
        "/metrics",
        "/api",
        f"/room/{GLOBAL}",
        f"/who/{ann.id}",
    ):
        answer = await server.get(path)
        assert answer.status_code == 200, path
        shown[path] = answer.text.replace(path.removeprefix("/find?q="), "")
    for path in (f"/room/{den}", f"/v1/rooms/{den}", f"/v1/rooms/{den}/threads/{message}", f"/v1/rooms/{den}/stream"):
        answer = await server.get(path)
        assert answer.status_code == 403, path
        shown[path] = answer.text
    for path, text in shown.items():
        if path.startswith("/find"):
            assert json.loads(text)["results"] == [] or SECRET not in path, path
            assert json.loads(text)["total"] == 0, path
        else:
            assert SECRET not in text, path
            assert NAME not in text or NAME in path, path
            assert den not in text or den in path, path
    stats = json.loads(shown["/stats"])
    assert (stats["total_channels"], stats["total_messages"]) == (1, 1)


async def test_no_line_of_the_log_has_the_words_or_the_key(
    den: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "a key that is not the one"
    await server.get(f"/room/{den}", headers={"x-aicq-room-key": wrong})
    await server.get(f"/room/{den}", headers={"x-aicq-room-key": KEY})
    logged = capsys.readouterr()
    assert f"/room/{den}" in logged.out + logged.err, "requests are logged"
    for text in (SECRET, KEY, wrong, NAME):
        assert text not in logged.out + logged.err


async def test_the_index_has_no_word_of_a_private_room(den: str, server: Server) -> None:
    connection = await asyncpg.connect(server.database_url)
    words = await connection.fetch("SELECT unnest(words) AS word FROM room_unpacked")
    assert word_hash("nothing") in {row["word"] for row in words}
    assert not {word_hash(SECRET), word_hash("meet"), word_hash("indeed")} & {row["word"] for row in words}
    places = await connection.fetch("SELECT place FROM room_entries WHERE room_id = $1", UUID(den))
    assert [row["place"] for row in places] == [None, None]
    await connection.close()


async def test_the_key_is_kept_as_a_salted_hash_of_its_own(ann: RoomClient, server: Server) -> None:
    rooms = [await ann.create("den", KEY), await ann.create("den", KEY)]
    connection = await asyncpg.connect(server.database_url)
    rows = await connection.fetch(
        "SELECT key_salt, key_hash FROM rooms WHERE room_id = ANY ($1::uuid[])", [UUID(room) for room in rooms]
    )
    await connection.close()
    assert len({row["key_hash"] for row in rows}) == 2
    assert all(KEY.encode() not in row["key_hash"] + row["key_salt"] for row in rows)


async def test_all_of_a_long_key_counts(ann: RoomClient, server: Server) -> None:
    key = "k" * 72 + "a"
    room = await ann.create("den", key)
    assert (await server.get(f"/room/{room}", headers={"x-aicq-room-key": key})).status_code == 200
    assert (await server.get(f"/room/{room}", headers={"x-aicq-room-key": key[:72] + "b"})).status_code == 403
    assert (await server.get(f"/room/{room}", headers={"x-aicq-room-key": key + "k" * 300})).status_code == 403


async def test_a_key_of_other_letters_opens_the_room_by_its_bytes(ann: RoomClient, server: Server) -> None:
    key = "schlüssel für alle"
    room = await ann.create("den", key)
    answer = await server.get(f"/room/{room}", headers={b"x-aicq-room-key": key.encode()})
    assert answer.status_code == 200


async def test_a_request_for_an_unknown_spelling_of_a_room_opens_nothing(den: str, server: Server) -> None:
    for spelling in (den.upper(), den.replace("-", ""), f"{{{den}}}", f"urn:uuid:{den}"):
        answer = await server.get(f"/room/{spelling}", headers={"x-aicq-room-key": KEY})
        assert (answer.status_code, answer.json()) == (400, {"error": "invalid room ID format"})
    assert re.fullmatch(r"[0-9a-f-]{36}", den)
