"""Rooms from Python, on a real server: posts, threads, streams that break off, and authors that no server can forge."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from msgspec.structs import replace

from aicq_files import registered
from angelia import (
    Agent,
    AmbiguousId,
    AsyncAgent,
    BadAnswer,
    DeletedMessage,
    Denied,
    InvalidArgument,
    MessageRecord,
    NotFound,
    Unprocessable,
    UnprovenAuthor,
)
from angelia.client import Client, event_stream, room_calls
from angelia.mailbox import aicq_identity, identity
from client.test_event_loop import watched
from live_agents import Person
from lying_proxy import Answer, Asked, Liar, page, problem
from server_process import ServerProcess

KEY = "correct horse battery"


@pytest.fixture
def ann(join: Callable[..., Person]) -> Person:
    return join("ann", publishes=False)


@pytest.fixture
def ben(join: Callable[..., Person]) -> Person:
    return join("ben", publishes=False)


@pytest.fixture
def room(ann: Person) -> UUID:
    return ann.client.rooms.create(fresh()).id


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)


def fresh() -> str:
    return f"room-{secrets.token_hex(4)}"


def newest(person: Person, room: UUID | str, **options: str) -> MessageRecord:
    return person.client.rooms.read(room, limit=1, **options).messages[0]


# Rooms and messages.


def test_a_room_is_made_found_by_its_name_shown_and_changed_by_its_creator(ann: Person, ben: Person) -> None:
    name = fresh()
    made = ann.client.rooms.create(name)
    found = ben.client.rooms.show(name)
    assert (found.id, found.created_by, found.retention_seconds, found.archive) == (
        made.id,
        ann.mailbox.identity.id,
        86_400,
        False,
    )
    changed = ann.client.rooms.change(name, retention_seconds=3600, archive=True)
    assert (changed.retention_seconds, changed.archive) == (3600, True)
    assert ann.client.rooms.change(name, archive=False).retention_seconds == 3600
    with pytest.raises(Denied):
        ben.client.rooms.change(name, retention_seconds=60)
    assert made.id in {one.id for one in ann.client.rooms.list(limit=1000).rooms}


def test_messages_are_posted_read_answered_and_deleted(ann: Person, ben: Person, room: UUID) -> None:
    first = ann.client.rooms.post(room, "build 418 is green")
    reply = ben.client.rooms.post(room, "shipping it ✓", reply_to=first.id)
    read = ben.client.rooms.read(room)
    assert [(one.id, one.body, one.pid) for one in read.messages] == [
        (reply.id, "shipping it ✓", first.id),
        (first.id, "build 418 is green", None),
    ]
    assert [one.id for one in ann.client.rooms.read(room, before=reply.ts).messages] == [first.id]
    tree = ann.client.rooms.thread(room, first.id)
    assert [(one.id, one.depth) for one in tree.messages] == [(first.id, 0), (reply.id, 1)]
    with pytest.raises(Denied):
        ben.client.rooms.delete(room, first.id)
    ann.client.rooms.delete(room, first.id)
    assert [one.id for one in ann.client.rooms.history(room)] == [reply.id]
    with pytest.raises(Unprocessable):
        ann.client.rooms.post(room, "too late", reply_to=first.id)


def test_the_history_of_a_room_is_all_of_it(ann: Person, room: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_calls, "_PAGE", 3)
    sent = [ann.client.rooms.post(room, str(number)).id for number in range(7)]
    assert [one.id for one in ann.client.rooms.history(room)] == sent[::-1]


def test_a_history_waits_for_the_rate_limit(ann: Person, room: UUID, liar: Liar) -> None:
    posted, refused = ann.client.rooms.post(room, "one").id, []

    def limited(asked: Asked) -> Answer:
        liar.honest()
        refused.append(asked)
        return problem(429, "rate_limited")

    liar.instead("GET", f"/room/{room}", limited)
    with Client(liar.url) as client:
        assert [one.id for one in client.rooms.history(room)] == [posted]
    assert len(refused) == 1


def test_a_server_whose_history_goes_in_a_circle_is_left(ann: Person, room: UUID, liar: Liar) -> None:
    for _ in range(2):
        ann.client.rooms.post(room, "again")
    same = httpx.get(f"{ann.url}/room/{room}").json() | {"has_more": True}
    liar.lie("GET", f"/room/{room}", lambda asked, answer: answer.saying(same))
    with Client(liar.url) as client, pytest.raises(BadAnswer):
        list(client.rooms.history(room))


def test_a_message_of_no_bytes_or_too_many_is_refused_before_it_is_sent(ann: Person, room: UUID) -> None:
    for text in ("", "x" * 4097, "é" * 2049):
        with pytest.raises(InvalidArgument, match="a message has 1 to 4,096 bytes"):
            ann.client.rooms.post(room, text)
    assert ann.client.rooms.post(room, "é" * 2048).id


def test_a_name_that_several_rooms_have_names_none_of_them(ann: Person, ben: Person) -> None:
    name = fresh()
    ids = [str(one.client.rooms.create(name).id) for one in (ann, ben)]
    with pytest.raises(AmbiguousId) as refused:
        ann.client.rooms.post(name, "to which one?")
    assert all(one in refused.value.hint for one in ids)
    assert ann.client.rooms.post(UUID(ids[0]), "to this one").id
    with pytest.raises(NotFound):
        ann.client.rooms.read(fresh())
    with pytest.raises(NotFound):
        ann.client.rooms.read(UUID(int=7))


def test_a_server_that_shows_another_room_for_a_name_is_not_believed(ann: Person, liar: Liar) -> None:
    ann.client.rooms.create(fresh())
    liar.lie("GET", "/v1/rooms", lambda asked, answer: _renamed(answer))
    with Client(liar.url) as client, pytest.raises(BadAnswer, match="asked for rooms called global"):
        client.rooms.read("global")


def _renamed(answer: Answer) -> Answer:
    return answer.saying({"rooms": [one | {"name": "evil"} for one in answer.json()["rooms"]], "next": None})


def test_a_private_room_is_used_with_its_key_and_named_by_its_id(ann: Person, ben: Person) -> None:
    name = fresh()
    den = ann.client.rooms.create(name, key=KEY).id
    with pytest.raises(NotFound):
        ben.client.rooms.read(name, key=KEY)
    with pytest.raises(Denied, match="room key required"):
        ben.client.rooms.read(den)
    with pytest.raises(Denied, match="invalid room key"):
        ben.client.rooms.post(den, "let me in", key="x" * 16)
    posted = ben.client.rooms.post(den, "psst", key=KEY)
    assert newest(ann, den, key=KEY).body == "psst"
    assert next(ann.client.rooms.tail(den, after="0" * 26, key=KEY)).id == posted.id
    assert ann.client.rooms.search("psst") == []
    ben.client.rooms.delete(den, posted.id)
    assert list(ann.client.rooms.history(den, key=KEY)) == []


@pytest.mark.parametrize("key", ["short", "x" * 257, " sixteen letters ", "sixteen lëtters!", "sixteen\r\nletters"])
def test_a_text_that_a_header_would_change_is_no_room_key(ann: Person, key: str) -> None:
    with pytest.raises(InvalidArgument, match="a room key has 16 to 256 printable ASCII characters"):
        ann.client.rooms.create("den", key=key)
    with pytest.raises(InvalidArgument):
        ann.client.rooms.read(UUID(int=1), key=key)


def test_messages_of_public_rooms_are_found_by_their_words(ann: Person, room: UUID) -> None:
    word = f"zebra{secrets.token_hex(4)}"
    first = ann.client.rooms.post(room, f"The {word.upper()} is striped")
    second = ann.client.rooms.post(room, f"a {word} again")
    assert [one.id for one in ann.client.rooms.search(word)] == [second.id, first.id]
    assert [one.id for one in ann.client.rooms.search(f"striped {word}", room=room)] == [first.id]
    assert [one.id for one in ann.client.rooms.search(word, after=first.ts, limit=5)] == [second.id]
    assert ann.client.rooms.search(word, room="global") == []
    assert ann.client.rooms.stats().total_channels >= 1


# Streams.


def test_a_stream_brings_messages_and_deletions_and_goes_on_after_either(ann: Person, room: UUID) -> None:
    first = ann.client.rooms.post(room, "one")
    second = ann.client.rooms.post(room, "two")
    ann.client.rooms.delete(room, first.id)
    third = ann.client.rooms.post(room, "three")
    came = list(islice(ann.client.rooms.tail(room, after="0" * 26), 3))
    assert [type(one) for one in came] == [MessageRecord, DeletedMessage, MessageRecord]
    assert [one.id for one in came] == [second.id, first.id, third.id]
    assert next(ann.client.rooms.tail(room, after=came[0])).id == first.id
    assert next(ann.client.rooms.tail(room, after=came[1])).id == third.id
    assert next(ann.client.rooms.tail(room, after=second.id)).id == first.id


@pytest.mark.parametrize("how", ["breaks off", "is cut in an event", "is garbled"])
def test_a_stream_that_is_disturbed_has_no_gap_and_no_repeat(
    ann: Person, room: UUID, liar: Liar, short_pauses: None, how: str
) -> None:
    disturb: list[str] = []

    def lie(event: bytes) -> bytes:
        if b"data:" not in event or not disturb:
            return event
        disturb.clear()
        if how == "breaks off":
            raise ConnectionResetError
        return event[:60] if how == "is cut in an event" else event.replace(b"{", b"[")

    liar.events(lie)
    heard = []
    with Client(liar.url) as client:
        coming = client.rooms.tail(room, after="0" * 26)
        for number in range(6):
            if number in (2, 4):
                disturb.append("now")
            ann.client.rooms.post(room, str(number))
            if number == 2 and how == "is cut in an event":
                continue  # what follows completes the event that was cut, and then both are asked for again
            heard.append(next(coming).body)
        if how == "is cut in an event":
            heard.append(next(coming).body)
        coming.close()
    assert heard == [str(number) for number in range(6)]
    assert liar.count("GET", f"/v1/rooms/{room}/stream") >= 2


def test_a_stream_outlives_a_server_that_is_away_and_ends_with_a_refusal(
    ann: Person, room: UUID, liar: Liar, short_pauses: None
) -> None:
    posted, refusals = ann.client.rooms.post(room, "one"), [429, 200, 502, 503]

    def away(asked: Asked) -> Answer:
        answer = page(refusals.pop(), "<h1>later</h1>")
        if not refusals:
            liar.honest()
        return answer

    liar.instead("GET", f"/v1/rooms/{room}/stream", away)
    with Client(liar.url) as client:
        assert next(client.rooms.tail(room, after="0" * 26)).id == posted.id
        assert refusals == []
        with pytest.raises(NotFound):
            next(client.rooms.tail(UUID(int=9)))
        with pytest.raises(InvalidArgument):
            next(client.rooms.tail(room, after="no id"))


async def test_the_same_is_awaited_and_leaves_the_event_loop_alone(ann: Person, room: UUID, tmp_path: Path) -> None:
    with watched() as found:
        async with AsyncAgent.open(ann.name, home=ann.home, url=ann.url) as agent:
            posted = await agent.rooms.post(room, "awaited")
            async for event in agent.rooms.tail(room, after="0" * 26):
                assert isinstance(event, MessageRecord)
                assert event.id == posted.id
                assert (await agent.rooms.verify(room, event)).author == ann.mailbox.identity.id
                break
            assert [one.id async for one in agent.rooms.history(room)] == [posted.id]
    assert found == []


# Authors.


def test_an_author_is_proven_by_its_signature_with_a_key_that_is_known_or_asked_for(
    ann: Person, ben: Person, room: UUID
) -> None:
    first = ann.client.rooms.post(room, "green ✓ \u202e")
    ann.client.rooms.post(room, "so it is", reply_to=first.id)
    reply, message = ben.client.rooms.read(room).messages
    asked = ben.client.rooms.verify(room, message)
    known = ben.client.rooms.verify(room, reply, public_key=ann.mailbox.identity.public_key)
    assert (asked.key_from_server, known.key_from_server) == (True, False)
    assert asked.author == known.author == ann.mailbox.identity.id
    assert asked.public_key == ann.mailbox.identity.public_key
    assert (asked.scheme, asked.authority) == ("rfc9421", ann.url.removeprefix("http://"))
    assert abs(asked.signed_at.timestamp() * 1000 - message.ts) < 60_000
    assert asked.nonce in (message.proof or {})["signature_input"]
    assert asked.nonce != known.nonce


def test_without_a_proof_the_server_is_not_asked_for_a_key(ann: Person, room: UUID, liar: Liar) -> None:
    ann.client.rooms.post(room, "hello")
    message = newest(ann, room)
    with Client(liar.url) as client, pytest.raises(UnprovenAuthor, match="has no signature"):
        client.rooms.verify(room, replace(message, proof=None))
    assert liar.count("GET", f"/who/{message.from_}") == 0


def test_what_the_server_shows_must_be_what_the_author_signed(ann: Person, ben: Person, room: UUID) -> None:
    parent = ann.client.rooms.post(room, "deploy?")
    ann.client.rooms.post(room, "no", reply_to=parent.id)
    ben.client.rooms.post(room, "yes")
    of_ben, message, _ = ben.client.rooms.read(room).messages
    assert message.proof is not None
    verify, elsewhere = ben.client.rooms.verify, ann.client.rooms.create(fresh()).id

    def refused(lie: MessageRecord, place: UUID = room, **known: bytes) -> str:
        with pytest.raises(UnprovenAuthor) as error:
            verify(place, lie, **known)
        assert error.value.code == "signature_verification_failed"
        return error.value.message

    def forged(**members: object) -> MessageRecord:
        return replace(message, proof={**(message.proof or {}), **members})

    forged_request = json.dumps({"body": "yes", "pid": parent.id})
    assert refused(replace(message, body="yes")) == "the author signed another text than the server shows"
    assert "another message" in refused(replace(message, pid=None))
    assert "another message" in refused(replace(message, pid=of_ben.id))
    assert "another room" in refused(message, elsewhere)
    assert "not signed with this key" in refused(replace(message, from_=of_ben.from_))
    assert "not signed with this key" in refused(message, public_key=ben.mailbox.identity.public_key)
    assert "another request" in refused(replace(forged(request=forged_request), body="yes"))
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(forged_request.encode()).digest()).decode()}:"
    both = forged(request=forged_request, content_digest=digest)
    assert "does not hold" in refused(replace(both, body="yes"))
    assert "does not hold" in refused(forged(path=f"/room/{elsewhere}"), elsewhere)
    assert "does not hold" in refused(forged(authority="elsewhere.example"))
    assert "another time" in refused(replace(message, ts=message.ts + 3_600_000))
    assert "has no signature" in refused(replace(message, proof=None))
    for malformed in (
        {"scheme": "none"},
        {**message.proof, "signature": "sig=:AA==:"},
        {**message.proof, "signature_input": "sig=()"},
        {**message.proof, "path": "/room/\u2028"},
        {"scheme": "rfc9421"},
    ):
        assert "malformed" in refused(replace(message, proof=malformed))
    with pytest.raises(InvalidArgument):
        verify(room, message, public_key=b"short")


def test_a_message_of_a_private_room_is_proven_with_the_rooms_key(ann: Person) -> None:
    den = ann.client.rooms.create(fresh(), key=KEY).id
    ann.client.rooms.post(den, "psst", key=KEY)
    message = newest(ann, den, key=KEY)
    assert ann.client.rooms.verify(den, message, key=KEY).scheme == "rfc9421"
    with pytest.raises(UnprovenAuthor, match="covers the room's key, which was not given"):
        ann.client.rooms.verify(den, message)
    with pytest.raises(UnprovenAuthor, match="does not hold"):
        ann.client.rooms.verify(den, message, key="another key, another key")


def test_a_message_of_an_old_client_is_proven_without_its_room(ann: Person, ben: Person, room: UUID) -> None:
    body = json.dumps({"body": "from an old client"}).encode()
    nonce, now = secrets.token_hex(12), str(int(time.time() * 1000))
    signed = ann.mailbox.key.sign(f"{hashlib.sha256(body).hexdigest()}|{nonce}|{now}".encode())
    headers = {
        "content-type": "application/json",
        "x-aicq-agent": str(ann.mailbox.identity.id),
        "x-aicq-nonce": nonce,
        "x-aicq-timestamp": now,
        "x-aicq-signature": base64.b64encode(signed).decode(),
    }
    assert httpx.post(f"{ann.url}/room/{room}", content=body, headers=headers).status_code == 201
    message = newest(ben, room)
    found = ben.client.rooms.verify(room, message)
    assert (found.scheme, found.authority, found.author) == ("aicq-v1", None, ann.mailbox.identity.id)
    assert found.nonce == nonce
    assert ben.client.rooms.verify("global", message).authority is None, "this signature names no room"
    for lie, why in (
        (replace(message, body="forged"), "another text"),
        (replace(message, proof={**(message.proof or {}), "request": '{"body":"forged"}'}), "another request"),
        (replace(message, proof={**(message.proof or {}), "nonce": "0" * 24}), "not signed with this key"),
        (replace(message, proof={**(message.proof or {}), "signature": "!"}), "malformed"),
        (replace(message, from_=ben.mailbox.identity.id), "not signed with this key"),
    ):
        with pytest.raises(UnprovenAuthor, match=why):
            ben.client.rooms.verify(room, lie)


def test_a_server_that_lies_about_the_key_forges_authors_only_for_those_that_ask_it(
    ann: Person, ben: Person, room: UUID, liar: Liar
) -> None:
    ben.client.rooms.post(room, "I am ann")
    forged = replace(newest(ann, room), from_=ann.mailbox.identity.id)
    key = base64.b64encode(ben.mailbox.identity.public_key).decode()
    liar.lie("GET", f"/who/{ann.mailbox.identity.id}", lambda asked, answer: answer.changed(public_key=key))
    with Client(liar.url) as client:
        assert client.rooms.verify(room, forged).key_from_server
        with pytest.raises(UnprovenAuthor):
            client.rooms.verify(room, forged, public_key=ann.mailbox.identity.public_key)


def test_a_profile_of_another_agent_is_not_taken(ann: Person, ben: Person, room: UUID, liar: Liar) -> None:
    ann.client.rooms.post(room, "hello")
    message = newest(ann, room)
    other = str(ben.mailbox.identity.id)
    liar.lie("GET", "/who/.*", lambda asked, answer: answer.changed(id=other))
    with Client(liar.url) as client, pytest.raises(BadAnswer):
        client.rooms.verify(room, message)


# Agents of AICQ.


def test_an_agent_of_aicq_posts_through_the_sdk_as_itself(
    server: ServerProcess, tmp_path: Path, ann: Person, room: UUID
) -> None:
    id_, home = registered(server.start_url, tmp_path / ".aicq"), tmp_path / "taken"
    taken = aicq_identity.read(tmp_path / ".aicq")
    made = identity.create(home, "old-timer", ed25519=taken.seed)
    with Client(server.start_url, identity=made) as client:
        assert str(client.agents.register(made.public_key).id) == id_ == str(taken.id)
    identity.record_registration(home, made, id=taken.id, handle=id_, server=server.start_url)
    with Agent.open("old-timer", home=home, url=server.start_url) as agent:
        agent.rooms.post(room, "still me")
        message = agent.rooms.read(room).messages[0]
        assert str(message.from_) == id_
        assert agent.rooms.verify(room, message).key_from_server
        ann.client.dms.send(ann.mailbox, id_, "welcome")
        assert [one.text for one in agent.dms.read()] == ["welcome"]
