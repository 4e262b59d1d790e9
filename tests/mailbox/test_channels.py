"""Channels in the mailbox: keys that are kept and destroyed, messages that open where they stand, and nowhere else."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from angelia.envelope import sealing
from angelia.envelope.refusals import (
    Expired,
    FutureEnvelope,
    IdConflict,
    Malformed,
    NotAllowed,
    SignatureFailed,
    UnknownKey,
    WrongRecipient,
)
from angelia.envelope.sealing import ChannelKey, EpochKey, Letter
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Compression, Envelope, decode
from angelia.errors import QueueFull
from angelia.mailbox import database, identity
from angelia.mailbox.channels import ChannelMessage, EpochLeapt, EpochWentBack, PlacedEnvelope
from angelia.mailbox.database import FILE, SCHEMA
from angelia.mailbox.key_share_retries import KeyShareFailure
from angelia.mailbox.mailbox import Mailbox
from held_keys import held_keys

CHANNEL = UUID("c9a3a2e0-1234-5678-9abc-def012345678")
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LONGEST = timedelta(days=30)  # that any server lets a message live


@pytest.fixture
def key() -> EpochKey:
    return EpochKey.generate()


@pytest.fixture
def members(alice: Mailbox, bob: Mailbox, key: EpochKey) -> tuple[Mailbox, Mailbox]:
    """Both have the key of epoch 1."""
    for box in (alice, bob):
        box.channels.join(CHANNEL, "alice/news", NOW)
        box.channels.keep(ChannelKey(CHANNEL, 1, key), "alice", NOW)
    return alice, bob


def opened(box: Mailbox, offset: int, envelope: Envelope, now: datetime = NOW) -> ChannelMessage:
    (outcome,) = box.channels.open_many(CHANNEL, [PlacedEnvelope(offset, envelope)], now)
    if not isinstance(outcome, ChannelMessage):
        raise outcome
    return outcome


def test_what_one_member_seals_the_other_opens(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    alice, bob = members
    envelope = alice.channels.seal(CHANNEL, key, b"to all", NOW)
    message = opened(bob, 7, envelope)
    assert (message.body, message.offset, message.sender) == (b"to all", 7, "alice")
    assert message.sender_fingerprint == alice.identity.pair.public.fingerprint


def test_a_message_opens_again_where_it_stands_as_long_as_it_is_not_committed(
    members: tuple[Mailbox, Mailbox], key: EpochKey
) -> None:
    alice, bob = members
    envelope = alice.channels.seal(CHANNEL, key, b"again", NOW)
    assert opened(bob, 1, envelope) == opened(bob, 1, envelope)


def test_a_message_at_a_second_offset_is_refused(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    alice, bob = members
    envelope = alice.channels.seal(CHANNEL, key, b"once", NOW)
    opened(bob, 1, envelope)
    with pytest.raises(IdConflict):
        opened(bob, 2, envelope)
    resealed = alice.channels.seal(CHANNEL, key, b"once", NOW, message_id=envelope.header.message_id)
    with pytest.raises(IdConflict):
        opened(bob, 2, resealed)
    assert opened(bob, 1, envelope).body == b"once"


def test_another_message_at_an_offset_that_was_opened_is_refused(
    members: tuple[Mailbox, Mailbox], key: EpochKey
) -> None:
    alice, bob = members
    opened(bob, 1, alice.channels.seal(CHANNEL, key, b"first", NOW))
    with pytest.raises(IdConflict):
        opened(bob, 1, alice.channels.seal(CHANNEL, key, b"rewritten", NOW))


def test_a_page_has_an_outcome_for_each(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    alice, bob = members
    good = alice.channels.seal(CHANNEL, key, b"good", NOW)
    stranger = alice.channels.seal(CHANNEL, EpochKey.generate(), b"closed", NOW)
    elsewhere = alice.channels.seal(uuid4(), key, b"elsewhere", NOW)
    page = [PlacedEnvelope(1, good), PlacedEnvelope(2, stranger), PlacedEnvelope(3, elsewhere), PlacedEnvelope(4, good)]
    kinds = [type(one) for one in bob.channels.open_many(CHANNEL, page, NOW)]
    assert kinds == [ChannelMessage, UnknownKey, WrongRecipient, IdConflict]


def test_members_cannot_pose_as_each_other(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    """Bob has the key; he writes in Alice's name, with his own pair and with hers named."""
    alice, bob = members
    post = Letter(channel_id=CHANNEL, key=key, body=b"alice says", message_id=uuid4(), created_at=unix_ms(NOW))
    forged = sealing.seal(post, "alice", bob.identity.pair)
    with pytest.raises(SignatureFailed):
        opened(alice, 1, dataclasses.replace(forged, header=renamed(forged, alice)))
    assert opened(alice, 1, alice.channels.seal(CHANNEL, key, b"alice herself", NOW)).body == b"alice herself"


def renamed(envelope: Envelope, to: Mailbox) -> object:
    return dataclasses.replace(envelope.header, sender_key_id=to.identity.pair.public.signer_id)


def test_messages_of_strangers_are_not_opened_before_their_keys_are_known(
    members: tuple[Mailbox, Mailbox], key: EpochKey, agent: Callable[[str], Mailbox]
) -> None:
    _, bob = members
    carol = agent("carol")
    carol.channels.keep(ChannelKey(CHANNEL, 1, key), "alice", NOW)
    envelope = carol.channels.seal(CHANNEL, key, b"who is this", NOW)
    with pytest.raises(NotAllowed):
        opened(bob, 1, envelope)
    link = carol.own_keys.newest()
    assert link is not None
    bob.pinned_keys.pin_first(link, NOW)
    # Pinned is enough: who subscribes wants to hear all who publish.
    assert opened(bob, 1, envelope).body == b"who is this"


def test_messages_have_their_time(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    alice, bob = members
    envelope = alice.channels.seal(CHANNEL, key, b"short", NOW, ttl_seconds=60)
    with pytest.raises(Expired):
        opened(bob, 1, envelope, NOW + timedelta(seconds=60))
    with pytest.raises(FutureEnvelope):
        opened(bob, 1, envelope, NOW - timedelta(seconds=301))
    assert opened(bob, 1, envelope, NOW + timedelta(seconds=59)).body == b"short"


def test_nothing_comes_back_after_its_place_was_forgotten(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    alice, bob = members
    envelope = alice.channels.seal(CHANNEL, key, b"short", NOW, ttl_seconds=60)
    opened(bob, 1, envelope)
    bob.prune(NOW + timedelta(days=2))
    assert bob.database.row("channel_opened", str(CHANNEL), 1) is None
    # A clock that was set back would find it fresh.
    with pytest.raises(Expired):
        opened(bob, 2, envelope)


def test_keys_are_kept_under_the_local_key_and_bound_to_their_id(alice: Mailbox, key: EpochKey) -> None:
    alice.channels.keep(ChannelKey(CHANNEL, 1, key), "bob", NOW)
    assert alice.channels.key(CHANNEL, key.key_id, NOW) == key
    assert alice.channels.key(uuid4(), key.key_id, NOW) is None
    held = held_keys(alice, CHANNEL)
    assert [(one.key_id, one.epoch, one.sender) for one in held] == [(key.key_id, 1, "bob")]
    files = [path.read_bytes() for path in alice.directory.glob(f"{FILE}*")]
    assert not any(key.secret in content for content in files)


def test_a_key_that_was_replaced_lives_until_nothing_under_it_can_be_read(
    members: tuple[Mailbox, Mailbox], key: EpochKey
) -> None:
    alice, bob = members
    late = alice.channels.seal(CHANNEL, key, b"the last of the old", NOW)
    new = EpochKey.generate()
    bob.channels.keep(ChannelKey(CHANNEL, 2, new), "alice", NOW)
    bob.channels.retire_before(CHANNEL, 2, NOW)
    assert opened(bob, 1, late, NOW + timedelta(days=6)).body == b"the last of the old"
    over = NOW + LONGEST + timedelta(seconds=301)
    assert bob.channels.key(CHANNEL, key.key_id, over) is None
    # It is destroyed an hour after the clock has shown that its time is over.
    for at in (over, over + timedelta(hours=2), over + timedelta(hours=4)):
        bob.receive_many([], now=at)
    assert [one.epoch for one in held_keys(bob, CHANNEL)] == [2]
    assert bob.channels.key(CHANNEL, new.key_id, over) == new


def test_who_leaves_keeps_no_key_for_long_and_who_comes_back_has_it_again(
    members: tuple[Mailbox, Mailbox], key: EpochKey
) -> None:
    _, bob = members
    bob.channels.leave(CHANNEL, NOW)
    assert bob.channels.key(CHANNEL, key.key_id, NOW + LONGEST + timedelta(hours=1)) is None
    bob.channels.join(CHANNEL, "alice/news", NOW)
    assert bob.channels.key(CHANNEL, key.key_id, NOW + LONGEST + timedelta(hours=1)) == key


@pytest.mark.parametrize("epoch", [0, 2**53, 2**64 - 1])
def test_an_impossible_epoch_is_refused(alice: Mailbox, key: EpochKey, epoch: int) -> None:
    with pytest.raises(Malformed):
        alice.channels.keep(ChannelKey(CHANNEL, epoch, key), "bob", NOW)


# Mail that brings keys.


def test_to_join_is_to_agree_to_the_mail_that_brings_the_key(
    alice: Mailbox, bob: Mailbox, key: EpochKey, send: Callable[..., bytes]
) -> None:
    bob.allowlist.deny("alice")
    body = ChannelKey(CHANNEL, 1, key).encode()
    brought = send(body=body, control=True, channel_id=CHANNEL)
    with pytest.raises(NotAllowed):
        bob.receive(brought, now=NOW)
    bob.channels.join(CHANNEL, "alice/news", NOW)
    assert bob.receive(brought, now=NOW).body == body
    assert [one.body for one in bob.inbox.controls()] == [body]
    # Only keys, and only of channels that were joined.
    for other in ({"channel_id": CHANNEL}, {"control": True}, {"control": True, "channel_id": uuid4()}):
        with pytest.raises(NotAllowed):
            bob.receive(send(body=body, **other), now=NOW)
    bob.channels.leave(CHANNEL, NOW)
    with pytest.raises(NotAllowed):
        bob.receive(send(body=body, control=True, channel_id=CHANNEL), now=NOW)


def test_only_what_is_as_long_as_a_key_is_expected_from_strangers(
    bob: Mailbox, key: EpochKey, send: Callable[..., bytes]
) -> None:
    bob.channels.join(CHANNEL, "alice/news", NOW)
    body = ChannelKey(CHANNEL, 1, key).encode()
    assert bob.channels.expects(decode(send(body=body, control=True, channel_id=CHANNEL)))
    for other in (
        {"body": body + b"x"},
        {"body": b"\x02" + b"A" * 900_000},
        {"body": body, "padme": True},
        {"body": b"\0" * 10_000, "compression": Compression.GZIP},
        {"body": body, "control": False},
        {"body": body, "channel_id": uuid4()},
    ):
        envelope = decode(send(**{"control": True, "channel_id": CHANNEL, **other}))
        assert not bob.channels.expects(envelope), other


# Keys that were replaced.


def test_a_key_that_was_replaced_opens_and_does_not_seal(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    _, bob = members
    assert bob.channels.present_key(CHANNEL, key.key_id) == key
    bob.channels.retire_before(CHANNEL, 2, NOW)
    assert bob.channels.present_key(CHANNEL, key.key_id) is None
    assert bob.channels.key(CHANNEL, key.key_id, NOW) == key
    # Neither a second copy nor coming back makes it the present one again.
    bob.channels.keep(ChannelKey(CHANNEL, 1, key), "alice", NOW)
    bob.channels.leave(CHANNEL, NOW)
    bob.channels.join(CHANNEL, "alice/news", NOW)
    assert bob.channels.present_key(CHANNEL, key.key_id) is None


def test_a_server_goes_forward_only(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    _, bob = members
    bob.channels.retire_before(CHANNEL, 3, NOW)  # its key was made here, and the server took it
    assert bob.channels.present_key(CHANNEL, key.key_id) is None
    bob.channels.leave(CHANNEL, NOW)
    with pytest.raises(EpochWentBack):
        bob.channels.check_epoch(CHANNEL, 2)
    bob.channels.check_epoch(CHANNEL, 4)
    # A believed key tells the same.
    other = uuid4()
    bob.channels.keep(ChannelKey(other, 5, key), "alice", NOW)
    with pytest.raises(EpochWentBack):
        bob.channels.check_epoch(other, 4)


def test_an_epoch_without_a_key_is_only_a_word(members: tuple[Mailbox, Mailbox], key: EpochKey) -> None:
    _, bob = members
    bob.channels.check_epoch(CHANNEL, 1_000)
    bob.channels.check_epoch(CHANNEL, 1)
    with pytest.raises(EpochLeapt):
        bob.channels.check_epoch(CHANNEL, 10**12)
    assert held_keys(bob, CHANNEL)[0].epoch == 1


def test_who_cannot_be_reached_is_tried_after_a_minute_then_ever_more_seldom_up_to_an_hour(bob: Mailbox) -> None:
    retries, at, waits = bob.channels.key_share_retries, NOW, []
    for _ in range(8):
        retries.back_off(CHANNEL, 1, {"carol": QueueFull("no room")}, at)
        assert retries.waiting(CHANNEL, 1, at) == {"carol": KeyShareFailure("queue_full", "no room")}
        minutes = next(m for m in range(100) if not retries.waiting(CHANNEL, 1, at + timedelta(minutes=m)))
        waits.append(minutes)
        at += timedelta(minutes=minutes)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert retries.waiting(CHANNEL, 2, NOW) == {}
    retries.await_confirmation(CHANNEL, 1, ["dave"], at)
    assert retries.waiting(CHANNEL, 1, at)["dave"] is None


# Mailboxes of before.


def made_since_version_1() -> list[tuple[str, str]]:
    """What to drop: indexes first."""
    renamed = dict(re.findall(r"ALTER TABLE (\w+) RENAME TO (\w+)", _later_schemas()))
    made = re.findall(r"CREATE (?:UNIQUE )?(INDEX|TABLE) (\w+)", _later_schemas())
    return sorted({(kind, renamed.get(name, name)) for kind, name in made})


def added_since_version_1() -> list[tuple[str, str]]:
    """Which columns to drop of tables that are older."""
    made = {name for _, name in made_since_version_1()}
    added = re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", _later_schemas())
    return [(table, column) for table, column in added if table not in made]


def _later_schemas() -> str:
    return "".join((Path(database.__file__).parent / name).read_text() for name in database._SCHEMAS[1:])


def test_a_mailbox_of_version_1_gets_the_tables_and_keeps_what_it_had(
    alice: Mailbox, bob: Mailbox, key: EpochKey, send: Callable[..., bytes], home: Path
) -> None:
    bob.receive(send(body=b"from before"), now=NOW)
    bob.close()
    path = bob.directory / FILE
    with sqlite3.connect(path) as old:
        for kind, name in made_since_version_1():
            old.execute(f"DROP {kind} {name}")
        for table, column in added_since_version_1():
            old.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        old.execute("ALTER TABLE bundles ADD COLUMN revoked TEXT NOT NULL DEFAULT '[]'")
        old.execute("PRAGMA user_version = 1")
    old.close()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as again:
        assert held_keys(again, CHANNEL) == []
        again.channels.keep(ChannelKey(CHANNEL, 1, key), "alice", NOW)
        (message,) = again.inbox.page().messages
        assert again.inbox.read(message.replay_key, NOW).body == b"from before"
    with sqlite3.connect(path) as upgraded:
        assert upgraded.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    upgraded.close()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as once_more:
        assert once_more.channels.key(CHANNEL, key.key_id, NOW) == key
