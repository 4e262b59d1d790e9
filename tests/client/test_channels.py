"""Channels through a client: what of a server's word is believed, and what a member does that others cannot undo."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from angelia.channels.model import ChannelPolicy
from angelia.client import AsyncClient, BadAnswer, Client, transport
from angelia.client.channel_reading import Tail, Unopened
from angelia.envelope import json_form
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.refusals import IdConflict, WrongRecipient
from angelia.envelope.rosters import Member, Roster, UntrustedRoster, roster_document, sign_roster
from angelia.envelope.sealing import ChannelKey, Edition, EpochKey
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope, decode
from angelia.errors import (
    EpochStale,
    InvalidArgument,
    KeyNotFound,
    OffsetGone,
    RateLimited,
    Unavailable,
    VersionConflict,
)
from angelia.keys.model import link_document
from angelia.mailbox import identity
from angelia.mailbox.channels import ChannelMessage, EpochLeapt, EpochWentBack
from angelia.mailbox.mailbox import Mailbox
from client.letters import now
from client.recorder import Recorder
from held_keys import held_keys

CHANNEL = UUID("c9a3a2e0-1234-5678-9abc-def012345678")
PATH = f"/v1/channels/{CHANNEL}"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.001)


@pytest.fixture
def alice(boxes: Callable[[str], Mailbox]) -> Mailbox:
    """The owner of the channel, who has signed its roster."""
    box = boxes("alice")
    box.rosters.pin(signed(box), now())
    return box


@pytest.fixture
def bob(boxes: Callable[[str], Mailbox], alice: Mailbox) -> Mailbox:
    """Has joined alice's channel, may publish in it, and they know each other's keys."""
    box = boxes("bob")
    know(box, alice)
    know(alice, box)
    box.channels.join(CHANNEL, "alice/news", now())
    pinned = alice.rosters.pinned(CHANNEL)
    assert pinned is not None
    box.rosters.pin(pinned, now())
    return box


PUBLISHERS = ("bob", "carol", "dave")
READERS = (*(f"member-{number:02}" for number in range(12)), "unknown")
OPEN: dict[str, Any] = {"policy": "open", "roster_version": 2}  # how the server shows the channel once it is open


def signed(owner: Mailbox, after: Roster | None = None, policy: str = "allowlist") -> Roster:
    """The roster of the channel, or the next one."""
    return sign_roster(
        owner.identity.pair,
        channel_id=CHANNEL,
        owner_nhi="alice",
        channel_name="news",
        policy=policy,
        members=[Member(one, one in PUBLISHERS, may_subscribe=True) for one in (*PUBLISHERS, *READERS)],
        issued_at=unix_ms(now()),
        **({} if after is None else {"version": after.version + 1, "prev_roster_hash": after.hash}),  # type: ignore[arg-type]
    )


@pytest.fixture
def opened(alice: Mailbox, bob: Mailbox) -> None:
    """The channel is open: its owner signed that, and the server says who may what."""
    roster = signed(alice, alice.rosters.pinned(CHANNEL), "open")
    for box in (alice, bob):
        box.rosters.pin(roster, now())


@pytest.fixture
def client(recorder: Recorder, bob: Mailbox) -> Iterator[Client]:
    with Client(recorder.url, identity=bob) as client:
        yield client


def know(one: Mailbox, other: Mailbox) -> None:
    link = other.own_keys.newest()
    assert link is not None
    one.pinned_keys.pin_first(link, now())


def edition(box: Mailbox) -> Edition:
    """The roster that a mailbox has."""
    roster = box.rosters.pinned(CHANNEL)
    assert roster is not None
    return roster.edition


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
        "roster_version": 1,
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

    def come(
        self, *, sender: Mailbox | None = None, epoch: int = 1, named: UUID = CHANNEL, made_under: int = 2
    ) -> None:
        sender = sender or self.alice
        known = sender.pinned_keys.bundle("bob", now(), max_age=None)
        assert known is not None
        roster = self.alice.rosters.pinned(CHANNEL)
        assert roster is not None
        body = ChannelKey(named, epoch, self.key, Edition(roster.signer_id, made_under)).encode()
        envelope = sender.outbox.seal(known.bundle, body, now=now(), control=True, channel_id=CHANNEL)
        assert self.bob.receive(envelope.wire, now=now()).control

    def told(self, *, may_give_key: bool = True, sender: str = "alice", **channel: object) -> None:
        giver = {"nhi": sender, "may_give_key": may_give_key}
        self.recorder.tell("GET", f"{PATH}/publishers/{sender}", giver)
        self.recorder.tell("GET", PATH, shown(**{"epoch_key_id": str(self.key.key_id), **OPEN, **channel}))

    @property
    def kept(self) -> bool:
        return self.bob.channels.key(CHANNEL, self.key.key_id, now()) is not None


@pytest.fixture
def brought(recorder: Recorder, alice: Mailbox, bob: Mailbox, opened: None) -> Brought:
    return Brought(recorder, alice, bob)


def test_a_key_is_believed_when_its_sender_may_give_it_out(client: Client, brought: Brought, bob: Mailbox) -> None:
    brought.told()
    brought.come()
    assert client.channels.take_keys(bob) == 1
    assert brought.kept
    assert [one.sender for one in held_keys(bob, CHANNEL)] == ["alice"]
    assert bob.inbox.controls() == []
    assert client.channels.take_keys(bob) == 0


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
    assert client.channels.take_keys(bob) == 0
    assert not brought.kept
    assert bob.inbox.controls() == []


def test_a_key_of_a_channel_that_is_gone_or_was_left_is_dropped(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox
) -> None:
    recorder.tell("GET", PATH, problem("not_found"), status=404)
    brought.come()
    assert client.channels.take_keys(bob) == 0
    brought.come()
    bob.channels.leave(CHANNEL, now())
    assert client.channels.take_keys(bob) == 0
    assert bob.inbox.controls() == []


@pytest.mark.parametrize("present", [{"epoch": 3, "epoch_key_id": str(uuid4())}, {"epoch": 2, "epoch_key_id": None}])
def test_a_key_that_the_channel_had_is_kept_for_what_it_opens_whatever_became_of_its_sender(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox, present: dict[str, Any]
) -> None:
    brought.told(may_give_key=False, **present)
    recorder.tell("GET", f"{PATH}/epochs/2", epoch(2, brought.key.key_id))
    brought.come(epoch=2)
    assert client.channels.take_keys(bob) == 1
    assert brought.kept
    assert (bob.channels.present_key(CHANNEL, brought.key.key_id) is None) is (present["epoch"] == 3)


@pytest.mark.parametrize(("maker", "kept"), [("alice", True), ("carol", False), (None, False)])
def test_the_present_key_may_also_come_from_who_made_it(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox, maker: str | None, kept: bool
) -> None:
    """The rules may refuse its maker by now, and the epoch is about to close."""
    brought.told(may_give_key=False)
    recorder.tell("GET", f"{PATH}/epochs/1", epoch(1, brought.key.key_id) | {"made_by": maker})
    brought.come()
    client.channels.take_keys(bob)
    assert brought.kept is kept


@pytest.mark.parametrize("known", [True, False])
def test_a_key_that_the_channel_never_had_is_not_kept(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox, known: bool
) -> None:
    brought.told(epoch=3, epoch_key_id=str(uuid4()))
    if known:
        recorder.tell("GET", f"{PATH}/epochs/2", epoch(2, uuid4()))
    brought.come(epoch=2)
    assert client.channels.take_keys(bob) == 0
    assert not brought.kept


def epoch(number: int, key_id: UUID) -> dict[str, Any]:
    return {"epoch": number, "key_id": str(key_id), "made_by": None, "made_at": now().isoformat()}


def test_a_key_that_the_server_does_not_count_as_sent_is_confirmed(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox
) -> None:
    brought.told(key_epoch=0)
    recorder.tell("POST", f"{PATH}/key", problem("rate_limited"), status=429)
    brought.come()
    assert client.channels.take_keys(bob) == 1  # whatever the server says to it
    assert [one.json() for one in recorder.asked("POST", f"{PATH}/key")] == [{"epoch": 1}]
    recorder.told.clear()
    brought.told(key_epoch=1)
    brought.come()
    assert client.channels.take_keys(bob) == 1
    assert len(recorder.asked("POST", f"{PATH}/key")) == 1


def test_more_keys_than_fit_in_one_look_are_all_taken(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought.told()
    for _ in range(3):
        brought.come()
    few = bob.inbox.controls
    monkeypatch.setattr(bob.inbox, "controls", lambda **where: few(**where)[:1])
    assert client.channels.take_keys(bob) == 3


def test_a_server_that_is_away_leaves_the_key_for_the_next_time(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox
) -> None:
    recorder.tell("GET", PATH, problem("unavailable"), status=503)
    brought.come()
    with pytest.raises(Unavailable):
        client.channels.take_keys(bob)
    assert len(bob.inbox.controls()) == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, problem("not_found")), (200, {}), (403, problem("forbidden")), (429, problem("rate_limited"))],
)
def test_what_is_said_of_one_channels_roster_takes_no_key_away_nor_those_of_others(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox, status: int, said: dict[str, object]
) -> None:
    other = uuid4()
    bob.channels.join(other, "alice/other", now())
    recorder.tell("GET", f"/v1/channels/{other}", shown(channel_id=str(other), channel_name="other"))
    recorder.tell("GET", f"/v1/channels/{other}/roster", said, status=status)
    known = brought.alice.pinned_keys.bundle("bob", now(), max_age=None)
    assert known is not None
    body = ChannelKey(other, 1, EpochKey.generate()).encode()
    bob.receive(
        brought.alice.outbox.seal(known.bundle, body, now=now(), control=True, channel_id=other).wire, now=now()
    )
    brought.told()
    brought.come()
    assert client.channels.take_keys(bob) == 1
    assert brought.kept
    assert len(bob.inbox.controls()) == 1  # for when the truth is told


@pytest.mark.parametrize(("sender", "kept"), [("alice", True), ("dave", True), ("unknown", False), ("mallory", False)])
def test_where_a_roster_decides_the_server_has_no_say_in_who_gives_the_key(
    client: Client,
    recorder: Recorder,
    alice: Mailbox,
    bob: Mailbox,
    boxes: Callable[[str], Mailbox],
    sender: str,
    kept: bool,
) -> None:
    box = alice if sender == "alice" else boxes(sender)
    if box is not alice:
        know(box, bob)
        know(bob, box)
    brought = Brought(recorder, alice, bob)
    brought.told(sender=sender, may_give_key=not kept, policy="allowlist", roster_version=1)
    brought.come(sender=box, made_under=1)
    client.channels.take_keys(bob)
    assert brought.kept is kept
    assert recorder.asked("GET", f"{PATH}/publishers/{sender}") == []


@pytest.mark.parametrize(
    ("told", "made_under"),
    [
        ({}, 2),  # by a roster that the server does not show
        ({"epoch_key_id": str(uuid4())}, 1),
        ({"epoch": 2, "epoch_key_id": None}, 1),
        ({"epoch": 3, "epoch_key_id": str(uuid4())}, 1),
    ],
)
def test_a_listed_publishers_key_waits_for_a_server_that_tells_the_truth(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, told: dict[str, Any], made_under: int
) -> None:
    closed = {"policy": "allowlist", "roster_version": 1}
    brought = Brought(recorder, alice, bob)
    brought.told(**closed, **told)
    brought.come(made_under=made_under)
    assert client.channels.take_keys(bob) == 0
    assert bob.channels.present_key(CHANNEL, brought.key.key_id) is None
    recorder.told.clear()
    if made_under == 2:
        first = alice.rosters.pinned(CHANNEL)
        assert first is not None
        second = signed(alice, first)
        recorder.tell("GET", f"{PATH}/roster", msgspec.to_builtins(roster_document(second)))
        closed["roster_version"] = 2
    brought.told(**closed)
    assert client.channels.take_keys(bob) == 1
    assert bob.channels.present_key(CHANNEL, brought.key.key_id) is not None


def test_keys_that_cannot_be_judged_keep_no_others_from_being_taken(
    client: Client, recorder: Recorder, brought: Brought, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = uuid4()
    bob.channels.join(other, "alice/other", now())
    recorder.tell("GET", f"/v1/channels/{other}", problem("not_found"), status=404)
    known = brought.alice.pinned_keys.bundle("bob", now(), max_age=None)
    assert known is not None
    for _ in range(3):
        body = ChannelKey(other, 1, EpochKey.generate(), Edition(uuid4(), 1)).encode()
        lost = brought.alice.outbox.seal(known.bundle, body, now=now(), control=True, channel_id=other)
        bob.receive(lost.wire, now=now())
    brought.told()
    brought.come()
    few = bob.inbox.controls
    monkeypatch.setattr(bob.inbox, "controls", lambda **where: few(**where)[:2])
    assert client.channels.take_keys(bob) == 1
    assert brought.kept
    assert len(recorder.asked("GET", f"/v1/channels/{other}")) == 1


# Publishing.


@pytest.fixture
def key(bob: Mailbox) -> EpochKey:
    """The channel's first key, which bob has."""
    key = EpochKey.generate()
    bob.channels.keep(ChannelKey(CHANNEL, 1, key, edition(bob)), "alice", now())
    return key


def test_a_message_is_sealed_under_the_present_key_and_sent_as_bytes(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", published(7), status=201)
    posted = client.channels.publish(bob, CHANNEL, b"hello", ttl_seconds=60)
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
    client.channels.publish(bob, CHANNEL, b"once")
    first, second = recorder.asked("POST", f"{PATH}/publish")
    assert first.body == second.body


def test_a_stale_epoch_is_tried_once_more_and_no_more(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", problem("epoch_stale"), status=409)
    with pytest.raises(EpochStale):
        client.channels.publish(bob, CHANNEL, b"again and again")
    assert len(recorder.asked("POST", f"{PATH}/publish")) == 2


def test_after_a_removal_the_next_publisher_makes_the_next_key(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", problem("epoch_stale"), status=409)
    recorder.tell("GET", PATH, shown(epoch_key_id=None))
    recorder.tell("POST", f"{PATH}/epoch", shown(epoch=2))
    recorder.tell("GET", f"{PATH}/subscribers", page([]))
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    assert client.channels.publish(bob, CHANNEL, b"under the next key").channel.epoch == 2
    (asked,) = recorder.asked("POST", f"{PATH}/epoch")
    assert asked.json()["epoch"] == 2
    new = UUID(asked.json()["epoch_key_id"])
    assert new != key.key_id
    assert decode(recorder.asked("POST", f"{PATH}/publish")[-1].body).header.key_id == new
    assert [one.epoch for one in held_keys(bob, CHANNEL)] == [2, 1]


def test_a_key_is_here_before_a_server_hears_of_it(client: Client, recorder: Recorder, bob: Mailbox) -> None:
    """Otherwise a crash, or a lost answer, would leave a channel under a key that nobody has."""
    recorder.tell("GET", PATH, shown(epoch_key_id=None))
    recorder.tell("POST", f"{PATH}/epoch", problem("unavailable"), status=503)
    with pytest.raises(Unavailable):
        client.channels.publish(bob, CHANNEL, b"x")
    named = {UUID(one.json()["epoch_key_id"]) for one in recorder.asked("POST", f"{PATH}/epoch")}
    assert named == {one.key_id for one in held_keys(bob, CHANNEL)}


def test_a_day_after_a_leave_the_next_publish_changes_the_key(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    old = (now() - timedelta(hours=25)).isoformat()
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), epoch_at=old, left_at=now().isoformat()))
    recorder.tell("POST", f"{PATH}/epoch", shown(epoch=2))
    recorder.tell("GET", f"{PATH}/subscribers", page([]))
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    client.channels.publish(bob, CHANNEL, b"x")
    assert len(recorder.asked("POST", f"{PATH}/epoch")) == 1


def test_a_new_key_is_offered_to_all_before_anything_is_published_under_it(
    client: Client, recorder: Recorder, bob: Mailbox
) -> None:
    """Also by who was told of nobody that lacks it."""
    recorder.tell("GET", PATH, shown(epoch_key_id=None, without_key=None))
    recorder.tell("POST", f"{PATH}/epoch", shown(epoch=2))
    recorder.tell("GET", f"{PATH}/subscribers", page(["alice"]))
    recorder.tell("POST", "/v1/messages/batch", {"results": [taken()]})
    recorder.tell("POST", f"{PATH}/keys", {"noted": 1})
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    client.channels.publish(bob, CHANNEL, b"x")
    asked = [one.path.removeprefix(PATH) for one in recorder.seen if one.method == "POST"]
    assert asked == ["/epoch", "/v1/messages/batch", "/keys", "/publish"]
    assert recorder.asked("POST", f"{PATH}/keys")[0].json() == {"epoch": 2, "subscribers": ["alice"]}


def test_a_publisher_to_whom_the_key_was_sent_asks_for_it_and_makes_no_other(
    client: Client, recorder: Recorder, bob: Mailbox
) -> None:
    long_ago = (now() - timedelta(hours=1)).isoformat()
    recorder.tell("GET", PATH, shown(epoch_key_id=str(uuid4()), epoch_at=long_ago, key_epoch=1))
    recorder.tell("GET", "/v1/messages", b"")
    recorder.tell("POST", f"{PATH}/key", subscription())
    with pytest.raises(KeyNotFound):
        client.channels.publish(bob, CHANNEL, b"x")
    assert [one.json() for one in recorder.asked("POST", f"{PATH}/key")] == [{"epoch": 0}]
    assert recorder.asked("POST", f"{PATH}/epoch") == []


def test_nothing_is_sealed_for_a_server_that_goes_back_to_an_earlier_epoch(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    later = EpochKey.generate()
    bob.channels.keep(ChannelKey(CHANNEL, 2, later, edition(bob)), "bob", now())
    bob.channels.retire_before(CHANNEL, 2, now())
    recorder.tell("GET", PATH, shown(epoch=1, epoch_key_id=str(key.key_id)))
    with pytest.raises(EpochWentBack, match="epoch 1; it was at epoch 2 before"):
        client.channels.publish(bob, CHANNEL, b"for those who were removed")
    assert recorder.asked("POST", f"{PATH}/publish") == []


def test_a_key_that_never_reached_the_server_stops_nothing(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    """It was made here, and the server did not hear of it."""
    bob.channels.keep(ChannelKey(CHANNEL, 2, EpochKey.generate(), edition(bob)), "bob", now())
    recorder.tell("GET", PATH, shown(epoch=1, epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    client.channels.publish(bob, CHANNEL, b"x")


def test_an_epoch_that_a_server_made_up_stops_nothing_once_it_tells_the_truth(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch=10**12))
    recorder.tell("POST", f"{PATH}/epoch", {"epoch": 10**12 + 1})
    with pytest.raises(EpochLeapt):
        client.channels.publish(bob, CHANNEL, b"x")
    recorder.told.clear()
    recorder.tell("GET", PATH, shown(epoch=1, epoch_key_id=str(key.key_id)))
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    assert client.channels.publish(bob, CHANNEL, b"x").envelope.header.key_id == key.key_id


def test_an_epoch_that_changes_while_the_key_is_given_out_is_tried_once_more(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
    recorder.tell("GET", f"{PATH}/subscribers", page(["bob"]))
    recorder.tell("POST", f"{PATH}/keys", problem("version_conflict"), status=409)
    recorder.tell("POST", f"{PATH}/keys", {"noted": 1})
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    client.channels.publish(bob, CHANNEL, b"x")
    recorder.told[("POST", f"{PATH}/keys")] = []
    recorder.tell("POST", f"{PATH}/keys", problem("version_conflict"), status=409)
    with pytest.raises(VersionConflict):
        client.channels.share_key(bob, CHANNEL)


def subscription(**values: object) -> dict[str, Any]:
    at = now().isoformat()
    return {
        "subscription_id": str(uuid4()),
        "channel_id": str(CHANNEL),
        "subscriber_nhi": "bob",
        "status": "active",
        "last_offset": 0,
        "last_consumed_at": None,
        "key_epoch": 0,
        "asked_at": None,
        "created_at": at,
        "updated_at": at,
        **values,
    }


# Other mail.


def test_only_control_messages_are_taken_for_a_channel_and_other_mail_is_put_back(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, opened: None
) -> None:
    bob.allowlist.allow("alice", now())
    ordinary = mail_to_bob(alice, b"about the channel")
    recorder.tell("GET", PATH, shown(**OPEN, epoch_key_id=str(uuid4())))
    recorder.tell("GET", "/v1/messages", leased(ordinary))
    recorder.tell("GET", "/v1/messages", b"")
    nacked = {"results": [{"replay_key": ordinary.replay_key, "state": "queued", "attempts": 0}]}
    recorder.tell("POST", "/v1/messages/nack", nacked)
    with pytest.raises(KeyNotFound):
        client.channels.publish(bob, CHANNEL, b"x")
    (put_back,) = recorder.asked("POST", "/v1/messages/nack")
    (said,) = put_back.json()["nacks"]
    assert (said["replay_key"], said["retry_after"], said["counted"]) == (ordinary.replay_key, 0, False)
    assert recorder.asked("POST", "/v1/messages/acknowledge") == []
    assert not bob.inbox.page().messages


def test_mail_that_is_put_back_is_not_looked_at_in_circles(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, opened: None
) -> None:
    recorder.tell("GET", PATH, shown(**OPEN, epoch_key_id=str(uuid4())))
    for _ in range(3):
        recorder.tell("GET", "/v1/messages", leased(mail_to_bob(alice, b"x")))
    recorder.tell("GET", "/v1/messages", b"")
    recorder.tell("POST", "/v1/messages/nack", problem("unavailable"), status=500)
    with pytest.raises(KeyNotFound):
        client.channels.publish(bob, CHANNEL, b"x")
    asked = [(one.method, one.path) for one in recorder.seen]
    assert asked.count(("GET", "/v1/messages")) == 4
    assert asked.index(("POST", "/v1/messages/nack")) > 4  # while they are leased, nobody is handed them again


def mail_to_bob(sender: Mailbox, body: bytes) -> Envelope:
    known = sender.pinned_keys.bundle("bob", now(), max_age=None)
    assert known is not None
    return sender.outbox.seal(known.bundle, body, now=now(), channel_id=CHANNEL)


def leased(envelope: Envelope) -> bytes:
    return struct.pack(">I32sI", 1, bytes(32), len(envelope.wire)) + envelope.wire


# Giving out the key.


def test_a_server_that_wants_to_be_asked_more_slowly_is_asked_more_slowly(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey, boxes: Callable[[str], Mailbox]
) -> None:
    carol = boxes("carol")
    link = carol.own_keys.newest()
    assert link is not None
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
    recorder.tell("GET", f"{PATH}/subscribers", page(["carol"]))
    slowly = {"retry-after": "1"}
    recorder.tell("GET", "/v1/keys/bundle/carol", problem("rate_limited"), status=429, headers=slowly)
    recorder.tell(
        "GET", "/v1/keys/bundle/carol", {**json.loads(msgspec.json.encode(link_document(link))), "bundle_id": "00"}
    )
    recorder.tell("POST", "/v1/messages/batch", {"results": [taken()]})
    recorder.tell("POST", f"{PATH}/keys", {"noted": 1})
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    began = time.monotonic()
    assert client.channels.publish(bob, CHANNEL, b"x").unreached == {}
    assert time.monotonic() - began >= 1


def test_nobody_waits_for_a_server_for_ever_and_then_nothing_is_published(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
    recorder.tell("GET", f"{PATH}/subscribers", page(["carol"]))
    later = {"retry-after": "3600"}
    recorder.tell("GET", "/v1/keys/bundle/carol", problem("rate_limited"), status=429, headers=later)
    with pytest.raises(RateLimited):
        client.channels.publish(bob, CHANNEL, b"x")
    assert recorder.asked("POST", f"{PATH}/publish") == []


def test_a_relay_that_is_away_keeps_a_message_from_going_out_under_a_key_that_nobody_has(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
    recorder.tell("GET", f"{PATH}/subscribers", page(["alice"]))
    recorder.tell("POST", "/v1/messages/batch", problem("unavailable"), status=503)
    with pytest.raises(Unavailable):
        client.channels.publish(bob, CHANNEL, b"x")
    assert recorder.asked("POST", f"{PATH}/publish") == []
    assert bob.channels.key_share_retries.waiting(CHANNEL, 1, now()) == {}


def test_who_cannot_be_reached_is_told_of_and_not_sealed_to_again_for_a_while(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
    recorder.tell("GET", f"{PATH}/subscribers", page(["alice"]))
    refused = {"problem": {"code": "queue_full", "title": "alice has no room", "status": 429}}
    recorder.tell("POST", "/v1/messages/batch", {"results": [refused]})
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    for _ in range(3):
        unreached = client.channels.publish(bob, CHANNEL, b"x").unreached
        assert [(name, error.code, error.message) for name, error in unreached.items()] == [
            ("alice", "queue_full", "alice has no room")
        ]
    assert len(recorder.asked("POST", "/v1/messages/batch")) == 1
    assert len(bob.outbox.page()) == 1
    bob.channels.retire_before(CHANNEL, 2, now())
    assert bob.channels.key_share_retries.waiting(CHANNEL, 1, now()) == {}


def test_what_was_sent_and_does_not_count_is_not_sent_again_with_every_message(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
    recorder.tell("GET", f"{PATH}/subscribers", page(["alice"]))
    recorder.tell("POST", "/v1/messages/batch", {"results": [taken()]})
    recorder.tell("POST", f"{PATH}/keys", {"noted": 0})
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    for _ in range(3):
        assert client.channels.publish(bob, CHANNEL, b"x").unreached == {}
    assert len(recorder.asked("POST", "/v1/messages/batch")) == 1


def test_a_key_lives_as_long_as_the_mailbox_lets_mail_live(
    recorder: Recorder, tmp_path: Path, alice: Mailbox, bob: Mailbox
) -> None:
    key = EpochKey.generate()
    with Mailbox(tmp_path, identity.load(tmp_path, "alice", lambda: ""), now(), ttl_max=3600) as short:
        short.channels.keep(ChannelKey(CHANNEL, 1, key, edition(short)), "alice", now())
        recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
        recorder.tell("GET", f"{PATH}/subscribers", page(["bob"]))
        recorder.tell("POST", "/v1/messages/batch", {"results": [taken()]})
        recorder.tell("POST", f"{PATH}/keys", {"noted": 1})
        with Client(recorder.url, identity=short) as client:
            assert client.channels.share_key(short, CHANNEL).sent == ["bob"]
    (sent,) = recorder.asked("POST", "/v1/messages/batch")[0].envelopes()
    assert sent.header.ttl_seconds == 3600


def test_nobody_but_the_owner_makes_the_key_of_an_open_channel(
    client: Client, recorder: Recorder, bob: Mailbox, opened: None
) -> None:
    recorder.tell("GET", PATH, shown(**OPEN, epoch_key_id=str(uuid4())))
    recorder.tell("GET", "/v1/messages", b"")
    with pytest.raises(KeyNotFound):
        client.channels.publish(bob, CHANNEL, b"x")
    assert recorder.asked("POST", f"{PATH}/epoch") == []


def test_hundreds_of_subscribers_cost_few_signatures_and_few_requests(
    recorder: Recorder, alice: Mailbox, boxes: Callable[[str], Mailbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.client.channel_sharing._SEALED_TOGETHER", 8)
    names = [f"member-{number:02}" for number in range(12)]
    for name in names:
        know(alice, boxes(name))
    key = EpochKey.generate()
    alice.channels.keep(ChannelKey(CHANNEL, 1, key, edition(alice)), "alice", now())
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=13))
    recorder.tell("GET", f"{PATH}/subscribers", page([*names[:7], "unknown"], following="unknown"))
    recorder.tell("GET", f"{PATH}/subscribers", page([*names[7:], "alice"]))
    recorder.tell("GET", "/v1/keys/bundle/unknown", problem("key_not_found"), status=404)
    recorder.tell("POST", "/v1/messages/batch", {"results": [taken() for _ in range(7)]})
    refused = {"problem": {"code": "queue_full", "title": "full", "status": 429}}
    recorder.tell("POST", "/v1/messages/batch", {"results": [refused, *(taken() for _ in range(4))]})
    recorder.tell("POST", f"{PATH}/keys", {"noted": 7})
    with Client(recorder.url, identity=alice) as client:
        shared = client.channels.share_key(alice, CHANNEL)
    assert set(shared.failed) == {"unknown", names[7]}
    noted = [one.json()["subscribers"] for one in recorder.asked("POST", f"{PATH}/keys")]
    assert [sorted(some) for some in noted] == [names[:7], sorted(["alice", *names[8:]])]
    batches = [one.envelopes() for one in recorder.asked("POST", "/v1/messages/batch")]
    assert [len(some) for some in batches] == [7, 5]
    for some in batches:
        assert len({one.signatures.ml_dsa for one in some}) == 1
        headers = [one.header for one in some]
        assert {(one.control, one.channel_id, int(one.suite)) for one in headers} == {(True, CHANNEL, 2)}


def test_pages_of_subscribers_that_never_end_are_no_answer(
    client: Client, recorder: Recorder, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=str(key.key_id), without_key=1))
    recorder.tell("GET", f"{PATH}/subscribers", page([], following="same"))
    with pytest.raises(BadAnswer):
        client.channels.publish(bob, CHANNEL, b"x")
    assert len(recorder.asked("GET", f"{PATH}/subscribers")) == 2


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
            "envelope": json.loads(json_form.encode(envelope)),
        }
        for offset, envelope in placed
    ]
    return {"messages": rows, "first_offset": 1, "next_offset": 9, "has_more": False, "roster_version": 1, **values}


def test_a_server_cannot_show_a_message_twice_nor_rewrite_what_was_read(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    one, other = (alice.channels.seal(CHANNEL, key, text, now()) for text in (b"one", b"other"))
    elsewhere = alice.channels.seal(uuid4(), key, b"elsewhere", now())
    recorder.tell("GET", f"{PATH}/messages", messages((1, one), (2, one), (3, elsewhere)))
    recorder.tell("GET", f"{PATH}/messages", messages((1, other)))
    recorder.tell("GET", f"{PATH}/messages", messages((1, one)))
    first, twice, wrong = client.channels.read(bob, CHANNEL).messages
    assert isinstance(first, ChannelMessage)
    assert isinstance(twice, Unopened)
    assert isinstance(twice.error, IdConflict)
    assert isinstance(wrong, Unopened)
    assert isinstance(wrong.error, WrongRecipient)
    (rewritten,) = client.channels.read(bob, CHANNEL).messages
    assert isinstance(rewritten, Unopened)
    assert isinstance(rewritten.error, IdConflict)
    assert client.channels.read(bob, CHANNEL).messages == [first]


def test_a_publisher_whose_keys_cannot_be_had_hides_nobody_elses_messages(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey, boxes: Callable[[str], Mailbox]
) -> None:
    carol, dave = boxes("carol"), boxes("dave")
    one, two, three, four = (
        who.channels.seal(CHANNEL, key, body, now())
        for who, body in ((alice, b"one"), (carol, b"two"), (dave, b"three"), (alice, b"four"))
    )
    recorder.tell("GET", f"{PATH}/messages", messages((1, one), (2, two), (3, three), (4, four)))
    recorder.tell("GET", "/v1/keys/bundle/carol", problem("authorization_denied"), status=403)
    recorder.tell("GET", "/v1/keys/bundle/dave", problem("rate_limited"), status=429)
    told = [
        one.body if isinstance(one, ChannelMessage) else one.error.code
        for one in client.channels.read(bob, CHANNEL).messages
    ]
    assert told == [b"one", "authorization_denied", "rate_limited", b"four"]


def test_a_key_that_cannot_be_asked_for_hides_nothing_that_opens(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    closed = alice.channels.seal(CHANNEL, EpochKey.generate(), b"closed", now())
    recorder.tell(
        "GET", f"{PATH}/messages", messages((1, alice.channels.seal(CHANNEL, key, b"one", now())), (2, closed))
    )
    recorder.tell("GET", PATH, problem("rate_limited"), status=429)
    first, second = client.channels.read(bob, CHANNEL).messages
    assert isinstance(first, ChannelMessage)
    assert isinstance(second, Unopened)


def test_an_owner_whose_mailbox_missed_the_making_of_its_channel_takes_its_keys_all_the_same(
    recorder: Recorder, alice: Mailbox
) -> None:
    recorder.tell("GET", PATH, shown(epoch_key_id=None, epoch=0))
    recorder.tell("POST", f"{PATH}/epoch", shown(epoch=1))
    recorder.tell("GET", f"{PATH}/subscribers", page([]))
    recorder.tell("POST", f"{PATH}/publish", published(), status=201)
    with Client(recorder.url, identity=alice) as client:
        client.channels.publish(alice, CHANNEL, b"the first")
    assert alice.channels.name(CHANNEL) == "alice/news"


def test_what_is_lost_is_counted_from_where_the_reader_stood(client: Client, recorder: Recorder, bob: Mailbox) -> None:
    recorder.tell("GET", f"{PATH}/messages", problem("offset_gone", offset=3, first_offset=5), status=410)
    following = Tail(bob, CHANNEL)
    assert client.channels.follow(following) == []
    assert (following.lost, following.after) == ((3, 4), 4)


def test_a_server_that_leads_a_reader_back_is_no_way_on(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", f"{PATH}/messages", problem("offset_gone", first_offset=5), status=410)
    following = Tail(bob, CHANNEL, 4)
    with pytest.raises(OffsetGone):
        client.channels.follow(following)
    recorder.told.clear()
    five = alice.channels.seal(CHANNEL, key, b"five", now())
    for repeated in ([(4, five)], [(5, five), (5, five)]):
        recorder.tell("GET", f"{PATH}/messages", messages(*repeated))
        with pytest.raises(BadAnswer, match="earlier messages"):
            client.channels.follow(following)
    assert following.after == 4


def test_what_is_no_envelope_is_no_answer(client: Client, recorder: Recorder, bob: Mailbox) -> None:
    broken = messages()
    at = now().isoformat()
    row = {"offset": 1, "replay_key": "", "accepted_at": at, "expires_at": at, "envelope": {"version": 1}}
    recorder.tell("GET", f"{PATH}/messages", {**broken, "messages": [row]})
    with pytest.raises(BadAnswer):
        client.channels.read(bob, CHANNEL)


def test_who_follows_goes_on_from_page_to_page_and_hears_of_what_is_gone(
    client: Client, recorder: Recorder, alice: Mailbox, bob: Mailbox, key: EpochKey
) -> None:
    recorder.tell("GET", f"{PATH}/messages", problem("offset_gone", first_offset=5), status=410)
    five, six = (alice.channels.seal(CHANNEL, key, text, now()) for text in (b"five", b"six"))
    recorder.tell("GET", f"{PATH}/messages", messages((5, five)))
    recorder.tell("GET", f"{PATH}/messages", messages((6, six)))
    recorder.tell("GET", PATH, shown())
    heard = []
    for one in client.channels.tail(bob, CHANNEL, after_offset=0):
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
        async for one in client.channels.tail(bob, CHANNEL):
            assert isinstance(one, ChannelMessage)
            assert one.body == b"one"
            break


def test_an_offset_that_is_gone_is_an_error_to_who_asked_for_it(
    client: Client, recorder: Recorder, bob: Mailbox
) -> None:
    recorder.tell("GET", f"{PATH}/messages", problem("offset_gone", first_offset=5), status=410)
    with pytest.raises(OffsetGone) as gone:
        client.channels.read(bob, CHANNEL, after_offset=1)
    assert gone.value.members == {"first_offset": 5}


def test_a_channel_is_found_by_what_people_call_it(client: Client, recorder: Recorder, bob: Mailbox) -> None:
    recorder.tell("GET", "/v1/channels", {"channels": [], "next": None})
    own = shown(owner_nhi="bob", channel_name="team/news", roster_version=0)
    other = {**own, "channel_id": str(uuid4())}
    recorder.tell("GET", "/v1/channels", {"channels": [other], "next": None})
    recorder.tell("GET", f"/v1/channels/{other['channel_id']}", other)
    assert str(client.channels.find(bob, "team/news").channel_id) == other["channel_id"]
    asked = [one.query for one in recorder.asked("GET", "/v1/channels")]
    assert asked == ["owner=team&name=news", "owner=bob&name=team%2Fnews"]


@pytest.mark.parametrize(
    ("joined", "lie"),
    [
        ("alice/old", {"owner_nhi": "mallory", "channel_name": "old"}),  # another owner would be believed
        ("alice/old", {"channel_name": "other"}),
        (None, {}),  # alice/news is a channel that has a roster
    ],
)
def test_a_channel_without_a_roster_takes_no_other_name(
    client: Client, recorder: Recorder, bob: Mailbox, joined: str | None, lie: dict[str, Any]
) -> None:
    other = uuid4()
    if joined is not None:
        bob.channels.join(other, joined, now())
    recorder.tell("GET", f"/v1/channels/{other}", shown(channel_id=str(other), roster_version=0, **lie))
    with pytest.raises(UntrustedRoster):
        client.channels.find(bob, other)


def test_a_channel_that_the_server_made_otherwise_gets_no_key(recorder: Recorder, alice: Mailbox) -> None:
    recorder.tell("POST", "/v1/channels", shown(channel_name="other", roster_version=1), status=201)
    with Client(recorder.url, identity=alice) as client, pytest.raises(UntrustedRoster):
        client.channels.create(alice, "other", ChannelPolicy.PRIVATE)
    assert held_keys(alice, CHANNEL) == []


def test_a_policy_is_changed_by_its_name(recorder: Recorder, alice: Mailbox) -> None:
    recorder.tell("GET", PATH, shown())
    recorder.tell("PUT", f"{PATH}/roster", shown(policy="private", roster_version=2))
    with Client(recorder.url, identity=alice) as client:
        assert client.channels.update(alice, CHANNEL, policy="private").policy is ChannelPolicy.PRIVATE
        with pytest.raises(InvalidArgument, match="'closed' is no policy of a channel"):
            client.channels.update(alice, CHANNEL, policy="closed")
    assert [one.json()["policy"] for one in recorder.asked("PUT", f"{PATH}/roster")] == ["private"]
