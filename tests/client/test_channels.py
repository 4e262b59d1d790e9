"""Channels through a client: what of a server's word is believed, and what a member does that others cannot undo."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from angelia.client import AsyncClient, BadAnswer, Client, attempts
from angelia.client.channel_reading import Unopened
from angelia.envelope import jsonform
from angelia.envelope.media import MEDIA_TYPE
from angelia.envelope.refusals import IdConflict, WrongRecipient
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.envelope.wire import Envelope, decode
from angelia.errors import EpochStale, KeyNotFound, OffsetGone, Unavailable
from angelia.mailbox import identity
from angelia.mailbox.box import Mailbox
from angelia.mailbox.channels import ChannelMessage
from client.recorder import Recorder

CHANNEL = UUID("c9a3a2e0-1234-5678-9abc-def012345678")
PATH = f"/v1/channels/{CHANNEL}"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_PAUSE", 0.001)


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Callable[[str], Mailbox]]:
    made: list[Mailbox] = []

    def make(name: str) -> Mailbox:
        box = Mailbox(tmp_path, identity.create(tmp_path, name), now())
        box.own.first_bundle(now())
        box.own.finish_rotation(now())
        made.append(box)
        return box

    yield make
    for box in made:
        box.close()


@pytest.fixture
def alice(boxes: Callable[[str], Mailbox]) -> Mailbox:
    """The owner of the channel."""
    return boxes("alice")


@pytest.fixture
def bob(boxes: Callable[[str], Mailbox], alice: Mailbox) -> Mailbox:
    """Has joined alice's channel, and they know each other's keys."""
    box = boxes("bob")
    know(box, alice)
    know(alice, box)
    box.channels.join(CHANNEL, "alice/news", now())
    return box


@pytest.fixture
def client(recorder: Recorder, bob: Mailbox) -> Iterator[Client]:
    with Client(recorder.url, identity=bob) as client:
        yield client


def now() -> datetime:
    return datetime.now(UTC)


def know(one: Mailbox, other: Mailbox) -> None:
    link = other.own.newest()
    assert link is not None
    one.trust.pin_first(link, now())


def shown(**values: object) -> dict[str, Any]:
    """A channel as a server shows it."""
    at = now().isoformat()
    return {
        "channel_id": str(CHANNEL),
        "owner_nhi": "alice",
        "channel_name": "news",
        "policy": "allowlist",
        "retention_seconds": 604_800,
        "max_message_size_bytes": 1_048_576,
        "max_subscribers": 10_000,
        "epoch": 1,
        "epoch_key_id": None,
        "epoch_at": at,
        "left_at": None,
        "first_offset": 1,
        "next_offset": 1,
        "total_messages": 0,
        "total_subscribers": 1,
        "created_at": at,
        "updated_at": at,
        "may_subscribe": True,
        "may_publish": True,
        "subscription": None,
        "without_key": 0,
        **values,
    }


def published(offset: int = 1) -> dict[str, Any]:
    at = now().isoformat()
    return {
        "message_id": str(uuid4()),
        "replay_key": "0" * 64,
        "offset": offset,
        "accepted_at": at,
        "expires_at": at,
        "later": "members of a newer server are ignored",
    }


def problem(code: str, **members: object) -> dict[str, object]:
    return {"title": code, "status": 409, "code": code, "request_id": "r", **members}


# Keys that come by mail.


class Brought:
    """A key that came to bob as mail, and what a server says about it."""

    def __init__(self, recorder: Recorder, alice: Mailbox, bob: Mailbox) -> None:
        self.recorder, self.alice, self.bob = recorder, alice, bob
        self.key = EpochKey.generate()

    def come(self, *, sender: Mailbox | None = None, epoch: int = 1, named: UUID = CHANNEL) -> None:
        sender = sender or self.alice
        known = sender.trust.bundle("bob", now(), max_age=None)
        assert known is not None
        body = ChannelKey(named, epoch, self.key).encode()
        envelope = sender.outbox.seal(known.link, body, now=now(), control=True, channel_id=CHANNEL)
        assert self.bob.receive(envelope.wire, now=now()).control

    def told(self, *, may_give_key: bool = True, sender: str = "alice", **channel: object) -> None:
        giver = {"nhi": sender, "may_give_key": may_give_key}
        self.recorder.tell("GET", f"{PATH}/publishers/{sender}", giver)
        self.recorder.tell("GET", PATH, shown(**{"epoch_key_id": str(self.key.key_id), **channel}))

    @property
    def kept(self) -> bool:
        return self.bob.channels.key(CHANNEL, self.key.key_id, now()) is not None


@pytest.fixture
def brought(recorder: Recorder, alice: Mailbox, bob: Mailbox) -> Brought:
    return Brought(recorder, alice, bob)


def test_a_key_is_believed_when_its_sender_may_give_it_out(client: Client, brought: Brought, bob: Mailbox) -> None:
    brought.told()
    brought.come()
    assert client.take_keys(bob) == 1
    assert brought.kept
    assert [one.sender for one in bob.channels.keys(CHANNEL)] == ["alice"]
    assert bob.inbox.controls() == []
    assert client.take_keys(bob) == 0


@pytest.mark.parametrize(
    ("told", "come"),
    [
        ({"may_give_key": False}, {}),
        ({}, {"epoch": 2}),  # of an epoch that is not yet
        ({"epoch_key_id": str(uuid4())}, {}),  # not the channel's present key
        ({}, {"named": uuid4()}),  # the envelope says another channel than the message
        ({}, {"epoch": 0}),
    ],
)
def test_any_other_key_is_not_and_is_asked_about_once(
    client: Client, brought: Brought, bob: Mailbox, told: dict[str, Any], come: dict[str, Any]
) -> None:
    brought.told(**told)
    brought.come(**come)
    assert client.take_keys(bob) == 0
    assert not brought.kept
    assert bob.inbox.controls() == []


def test_a_key_of_a_channel_that_is_gone_or_was_left_is_dropped(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox
) -> None:
    recorder.tell("GET", f"{PATH}/publishers/alice", problem("not_found"), status=404)
    brought.come()
    assert client.take_keys(bob) == 0
    brought.come()
    bob.channels.leave(CHANNEL, now())
    assert client.take_keys(bob) == 0
    assert bob.inbox.controls() == []


def test_a_late_key_of_an_earlier_epoch_is_kept_for_what_it_opens(
    client: Client, brought: Brought, bob: Mailbox
) -> None:
    brought.told(epoch=3, epoch_key_id=str(uuid4()))
    brought.come(epoch=2)
    assert client.take_keys(bob) == 1
    assert brought.kept


def test_a_server_that_is_away_leaves_the_key_for_the_next_time(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox
) -> None:
    recorder.tell("GET", f"{PATH}/publishers/alice", problem("unavailable"), status=503)
    brought.come()
    with pytest.raises(Unavailable):
        client.take_keys(bob)
    assert len(bob.inbox.controls()) == 1


# Publishing.


@pytest.fixture
def key(bob: Mailbox) -> EpochKey:
    """The channel's first key, which bob has."""
    key = EpochKey.generate()
    bob.channels.keep(ChannelKey(CHANNEL, 1, key), "alice", now())
    return key


def test_a_message_is_sealed_under_the_present_key_and_sent_as_bytes(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", published(7), status=201)
    posted = client.publish(bob, CHANNEL, b"hello", ttl_seconds=60)
    assert posted.published.offset == 7
    (sent,) = recorder.asked("POST", f"{PATH}/publish")
    assert sent.headers["content-type"] == MEDIA_TYPE
    envelope = decode(sent.body)
    assert (envelope.header.key_id, envelope.header.ttl_seconds) == (key.key_id, 60)
    assert b"hello" not in sent.body


def test_a_lost_answer_is_asked_for_again_with_the_same_bytes(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", problem("unavailable"), status=503)
    recorder.tell("POST", f"{PATH}/publish", published(), status=200)
    client.publish(bob, CHANNEL, b"once")
    first, second = recorder.asked("POST", f"{PATH}/publish")
    assert first.body == second.body


def test_a_stale_epoch_is_tried_once_more_and_no_more(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", problem("epoch_stale"), status=409)
    with pytest.raises(EpochStale):
        client.publish(bob, CHANNEL, b"again and again")
    assert len(recorder.asked("POST", f"{PATH}/publish")) == 2


def test_after_a_removal_the_next_publisher_makes_the_next_key(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", problem("epoch_stale"), status=409)
    recorder.tell("GET", PATH, shown(epoch_key_id=None))
    recorder.tell("POST", f"{PATH}/epoch", shown(epoch=2))
    recorder.tell("GET", PATH, shown(epoch=2, epoch_key_id=str(uuid4())))
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    client.publish(bob, CHANNEL, b"under the next key")
    (asked,) = recorder.asked("POST", f"{PATH}/epoch")
    assert asked.json()["epoch"] == 2
    new = UUID(asked.json()["epoch_key_id"])
    assert new != key.key_id
    assert decode(recorder.asked("POST", f"{PATH}/publish")[-1].body).header.key_id == new
    assert [one.epoch for one in bob.channels.keys(CHANNEL)] == [2, 1]


def test_a_key_is_here_before_a_server_hears_of_it(client: Client, recorder: Recorder, bob: Mailbox) -> None:
    """Otherwise a crash, or a lost answer, would leave a channel under a key that nobody has."""
    recorder.tell("GET", PATH, shown(epoch_key_id=None))
    recorder.tell("POST", f"{PATH}/epoch", problem("unavailable"), status=503)
    with pytest.raises(Unavailable):
        client.publish(bob, CHANNEL, b"x")
    named = {UUID(one.json()["epoch_key_id"]) for one in recorder.asked("POST", f"{PATH}/epoch")}
    assert named == {one.key_id for one in bob.channels.keys(CHANNEL)}


def test_a_day_after_a_leave_the_next_publish_changes_the_key(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    old = (now() - timedelta(hours=25)).isoformat()
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), epoch_at=old, left_at=now().isoformat()))
    recorder.tell("POST", f"{PATH}/epoch", shown(epoch=2))
    recorder.tell("GET", PATH, shown(epoch=2, epoch_key_id=str(uuid4())))
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    client.publish(bob, CHANNEL, b"x")
    assert len(recorder.asked("POST", f"{PATH}/epoch")) == 1


def test_nobody_but_the_owner_makes_the_key_of_an_open_channel(
    client: Client, recorder: Recorder, bob: Mailbox
) -> None:
    recorder.tell("GET", PATH, shown(policy="open", epoch_key_id=str(uuid4())))
    recorder.tell("GET", "/v1/messages", b"")
    with pytest.raises(KeyNotFound):
        client.publish(bob, CHANNEL, b"x")
    assert recorder.asked("POST", f"{PATH}/epoch") == []


def test_hundreds_of_subscribers_cost_few_signatures_and_few_requests(
    recorder: Recorder, alice: Mailbox, boxes: Callable[[str], Mailbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.client.channel_keys._SEALED_TOGETHER", 8)
    names = [f"member-{number:02}" for number in range(12)]
    for name in names:
        know(alice, boxes(name))
    key = EpochKey.generate()
    alice.channels.keep(ChannelKey(CHANNEL, 1, key), "alice", now())
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=13))
    recorder.tell("GET", f"{PATH}/subscribers", page([*names[:7], "unknown"], following="unknown"))
    recorder.tell("GET", f"{PATH}/subscribers", page([*names[7:], "alice"]))
    recorder.tell("GET", "/v1/keys/bundle/unknown", problem("key_not_found"), status=404)
    recorder.tell("POST", "/v1/messages/batch", {"results": [taken() for _ in range(7)]})
    refused = {"problem": {"code": "queue_full", "title": "full", "status": 429}}
    recorder.tell("POST", "/v1/messages/batch", {"results": [refused, *(taken() for _ in range(4))]})
    recorder.tell("POST", f"{PATH}/keys", {"noted": 7})
    with Client(recorder.url, identity=alice) as client:
        shared = client.share_key(alice, CHANNEL)
    assert set(shared.failed) == {"unknown", names[7]}
    noted = [one.json()["subscribers"] for one in recorder.asked("POST", f"{PATH}/keys")]
    assert [sorted(some) for some in noted] == [names[:7], sorted(["alice", *names[8:]])]
    batches = [one.json()["messages"] for one in recorder.asked("POST", "/v1/messages/batch")]
    assert [len(some) for some in batches] == [7, 5]
    for some in batches:
        assert len({one["signature_ml_dsa"] for one in some}) == 1
        assert {(one["control"], one["channel_id"], one["suite"]) for one in some} == {(True, str(CHANNEL), 2)}


def page(names: list[str], following: str | None = None) -> dict[str, object]:
    at = now().isoformat()
    rows = [{"subscriber_nhi": name, "status": "active", "key_epoch": 0, "created_at": at} for name in names]
    return {"subscribers": rows, "next": following}


def taken() -> dict[str, object]:
    at = now().isoformat()
    answer = {"message_id": str(uuid4()), "replay_key": "0" * 64, "status": "queued", "enqueued_at": at}
    return {"message": {**answer, "expires_at": at}, "new": True}


# Reading.


def messages(*placed: tuple[int, Envelope], **values: object) -> dict[str, object]:
    at = now().isoformat()
    rows = [
        {
            "offset": offset,
            "replay_key": envelope.replay_key,
            "accepted_at": at,
            "expires_at": at,
            "envelope": json.loads(jsonform.encode(envelope)),
        }
        for offset, envelope in placed
    ]
    return {"messages": rows, "first_offset": 1, "next_offset": 9, "has_more": False, **values}


def test_a_server_cannot_show_a_message_twice_nor_rewrite_what_was_read(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    one, other = (alice.channels.seal(CHANNEL, key, text, now()) for text in (b"one", b"other"))
    elsewhere = alice.channels.seal(uuid4(), key, b"elsewhere", now())
    recorder.tell("GET", f"{PATH}/messages", messages((1, one), (2, one), (3, elsewhere)))
    recorder.tell("GET", f"{PATH}/messages", messages((1, other)))
    recorder.tell("GET", f"{PATH}/messages", messages((1, one)))
    first, twice, wrong = client.read_channel(bob, CHANNEL).messages
    assert isinstance(first, ChannelMessage)
    assert isinstance(twice, Unopened)
    assert isinstance(twice.error, IdConflict)
    assert isinstance(wrong, Unopened)
    assert isinstance(wrong.error, WrongRecipient)
    (rewritten,) = client.read_channel(bob, CHANNEL).messages
    assert isinstance(rewritten, Unopened)
    assert isinstance(rewritten.error, IdConflict)
    assert client.read_channel(bob, CHANNEL).messages == [first]


def test_what_is_no_envelope_is_no_answer(client: Client, recorder: Recorder, bob: Mailbox) -> None:
    broken = messages()
    at = now().isoformat()
    row = {"offset": 1, "replay_key": "", "accepted_at": at, "expires_at": at, "envelope": {"version": 1}}
    recorder.tell("GET", f"{PATH}/messages", {**broken, "messages": [row]})
    with pytest.raises(BadAnswer):
        client.read_channel(bob, CHANNEL)


def test_who_follows_goes_on_from_page_to_page_and_hears_of_what_is_gone(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", f"{PATH}/messages", problem("offset_gone", first_offset=5), status=410)
    five, six = (alice.channels.seal(CHANNEL, key, text, now()) for text in (b"five", b"six"))
    recorder.tell("GET", f"{PATH}/messages", messages((5, five)))
    recorder.tell("GET", f"{PATH}/messages", messages((6, six)))
    recorder.tell("GET", PATH, shown())
    heard = []
    for one in client.tail(bob, CHANNEL, after_offset=0):
        assert isinstance(one, ChannelMessage)
        heard.append((one.offset, one.body))
        if len(heard) == 2:
            break
    assert heard == [(5, b"five"), (6, b"six")]
    asked = [one.query for one in recorder.asked("GET", f"{PATH}/messages")]
    assert ["after_offset=0" in asked[0], "after_offset=4" in asked[1], "after_offset=5" in asked[2]] == [True] * 3


async def test_the_asynchronous_client_follows_too(
    recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown())
    recorder.tell("GET", f"{PATH}/messages", messages((1, alice.channels.seal(CHANNEL, key, b"one", now()))))
    async with AsyncClient(recorder.url, identity=bob) as client:
        async for one in client.tail(bob, CHANNEL):
            assert isinstance(one, ChannelMessage)
            assert one.body == b"one"
            break


def test_an_offset_that_is_gone_is_an_error_to_who_asked_for_it(
    client: Client, recorder: Recorder, bob: Mailbox
) -> None:
    recorder.tell("GET", f"{PATH}/messages", problem("offset_gone", first_offset=5), status=410)
    with pytest.raises(OffsetGone) as gone:
        client.read_channel(bob, CHANNEL, after_offset=1)
    assert gone.value.members == {"first_offset": 5}


def test_a_channel_is_found_by_what_people_call_it(client: Client, recorder: Recorder, bob: Mailbox) -> None:
    recorder.tell("GET", "/v1/channels", {"channels": [], "next": None})
    recorder.tell("GET", "/v1/channels", {"channels": [shown()], "next": None})
    recorder.tell("GET", PATH, shown())
    assert client.find_channel(bob, "team/news").channel_id == CHANNEL
    asked = [one.query for one in recorder.asked("GET", "/v1/channels")]
    assert asked == ["owner=team&name=news", "owner=bob&name=team%2Fnews"]
