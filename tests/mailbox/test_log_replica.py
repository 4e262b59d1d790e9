"""A group on one device: state and vector move together, own numbers are never reused, and nothing false is applied."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import ClassVar

import msgspec
import pytest

from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.sealing import EpochKey
from angelia.errors import AngeliaError, Conflict, TooLarge
from angelia.grouplog.model.editions import GroupEdition
from angelia.grouplog.model.frames import LogMessage
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.pieces import Manifest
from angelia.grouplog.model.records import Record
from angelia.grouplog.model.snapshots import Snapshot, compactors
from angelia.grouplog.model.updates import Update
from angelia.mailbox import identity, log_replica
from angelia.mailbox.database import MailboxTx
from angelia.mailbox.log_application import LogApplication, LogEntry
from angelia.mailbox.log_journal import Journal
from angelia.mailbox.log_own_snapshots import OwnSnapshots
from angelia.mailbox.log_replica import MAX_BODY, LogReplica, OwnMessage, OwnSeqUnknown, Taken, opened_replica
from angelia.mailbox.mailbox import Mailbox
from log_members import accept, first_edition, following, node_of, sent, share, with_member, without

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
KEY, SECOND = EpochKey.of(b"\x11" * 32), EpochKey.of(b"\x22" * 32)
NODE, OTHER_NODE = node_of(1).id, node_of(2).id
NODES = [node_of(number) for number in range(1, 6)]


class Refusal(Exception):
    """The application cannot do this now"""


class Notes(LogApplication):
    """Counts how often each body was applied. `refuses` are bodies at which it fails, after it has written."""

    name: ClassVar[str] = "notes"

    def __init__(self, *refuses: bytes) -> None:
        self.refuses = set(refuses)

    def prepare(self, tx: MailboxTx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS notes (body BLOB PRIMARY KEY, times INTEGER NOT NULL)")

    def apply(self, tx: MailboxTx, entry: LogEntry) -> None:
        self._add(tx, entry.body)

    def snapshot(self, tx: MailboxTx) -> bytes:
        return msgspec.msgpack.encode([body for (body,) in tx.execute("SELECT body FROM notes ORDER BY body")])

    def merge(self, tx: MailboxTx, content: bytes) -> None:
        for body in msgspec.msgpack.decode(content, type=list[bytes]):
            if not tx.execute("SELECT 1 FROM notes WHERE body = ?", (body,)).fetchall():
                self._add(tx, body)

    def _add(self, tx: MailboxTx, body: bytes) -> None:
        tx.execute(
            "INSERT INTO notes VALUES (?, 1) ON CONFLICT (body) DO UPDATE SET times = times + 1",
            (body,),
        )
        if body in self.refuses:
            raise Refusal


def notes(replica: LogReplica) -> dict[bytes, int]:
    """How often each body was applied."""
    with replica.database.transaction() as tx:
        return dict(tx.execute("SELECT body, times FROM notes").fetchall())


def once(bodies: Iterable[bytes]) -> dict[bytes, int]:
    return dict.fromkeys(bodies, 1)


@pytest.fixture
def edition(alice: Mailbox, bob: Mailbox) -> GroupEdition:
    """A group of Alice and Bob on five nodes; both have its key."""
    edition = first_edition("team", [alice, bob], NODES, key=KEY, min_copies=2)
    share(edition, KEY, alice, bob)
    log_replica.make_first(alice.logs, edition)
    return edition


Open = Callable[..., LogReplica]


@pytest.fixture
def open_log(edition: GroupEdition) -> Iterator[Open]:
    """Opens the group of a mailbox, as a new process does."""
    opened: list[LogReplica] = []

    def make(box: Mailbox, application: LogApplication | None = None) -> LogReplica:
        opened.append(opened_replica(box.logs, edition, application or Notes()))
        return opened[-1]

    yield make
    for one in opened:
        one.database.close()


@pytest.fixture
def alices(alice: Mailbox, open_log: Open) -> LogReplica:
    return open_log(alice)


@pytest.fixture
def bobs(bob: Mailbox, open_log: Open) -> LogReplica:
    replica = open_log(bob)
    replica.learn_own_seq()
    return replica


def written(replica: LogReplica, *bodies: bytes) -> list[LogMessage]:
    """Writes updates, and returns them as nodes have them."""
    replica.write(bodies, NOW)
    sent = replica.queued()[-len(bodies) :]
    replica.settle(one.seq for one in sent)
    return [LogMessage(replica.me.sender, one.seq, one.record) for one in sent]


def take(replica: LogReplica, *messages: LogMessage, node: bytes = NODE) -> Taken:
    return replica.take_in((node, message) for message in messages)


def lines(count: int) -> list[bytes]:
    return [b"line %d" % number for number in range(1, count + 1)]


# What was received.


def test_after_1_2_and_5_the_vector_is_2_and_stays_so_over_a_restart(
    bob: Mailbox, alices: LogReplica, bobs: LogReplica, open_log: Open
) -> None:
    first, second, third, fourth, fifth = written(alices, *lines(5))
    sender = alices.me.sender
    take(bobs, first, second, fifth)
    for replica in (bobs, open_log(bob)):
        assert replica.received.vector == {sender: 2}
        assert replica.received.have == {sender: [(5, 5)]}
        assert list(replica.received.of(sender).missing()) == [(3, 4)]
    take(open_log(bob), fourth, third)
    assert open_log(bob).received.vector == {sender: 5}
    assert open_log(bob).received.have == {}


@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_with_repeats_and_restarts_each_message_is_applied_once(
    bob: Mailbox, alices: LogReplica, bobs: LogReplica, open_log: Open, seed: int
) -> None:
    order, bodies = Random(seed), lines(40)
    messages = written(alices, *bodies)
    arrived: set[int] = set()
    replica = bobs
    for _ in range(12):
        page = order.choices(messages, k=8)
        take(replica, *page)
        arrived |= {one.seq for one in page}
        assert notes(replica) == once(bodies[seq - 1] for seq in arrived)
        prefix = next(seq for seq in range(50) if seq + 1 not in arrived)
        assert replica.received.vector.get(alices.me.sender, 0) == prefix
        if order.random() < 0.3:
            replica = open_log(bob)
    take(replica, *messages)
    assert notes(replica) == once(bodies)
    assert replica.received.vector == {alices.me.sender: 40}


def test_the_same_message_from_two_nodes_is_applied_once(alices: LogReplica, bobs: LogReplica) -> None:
    (message,) = written(alices, b"one")
    taken = bobs.take_in([(NODE, message), (OTHER_NODE, message)])
    assert [entry.body for entry in taken.entries] == [b"one"]
    assert take(bobs, message).entries == []
    assert notes(bobs) == {b"one": 1}


def test_an_update_says_who_wrote_it_and_when(alices: LogReplica, bobs: LogReplica) -> None:
    (entry,) = take(bobs, *written(alices, b"one")).entries
    assert (entry.sender, entry.sender_id, entry.seq, entry.written_at) == ("alice", alices.me.sender, 1, NOW)
    assert entry.text == "one"
    assert "one" not in repr(entry).replace("alice", "")


# State and vector.


def test_state_and_vector_stay_as_they_were_when_the_application_fails(
    bob: Mailbox, alices: LogReplica, bobs: LogReplica, open_log: Open
) -> None:
    messages = written(alices, *lines(5))
    take(bobs, messages[0])
    failing = open_log(bob, Notes(b"line 4"))
    with pytest.raises(Refusal):
        take(failing, *messages)
    for replica in (failing, open_log(bob)):
        assert notes(replica) == {b"line 1": 1}
        assert (replica.received.vector, replica.received.have) == ({alices.me.sender: 1}, {})
    mended = open_log(bob)
    assert len(take(mended, *messages).entries) == 4
    assert notes(mended) == once(lines(5))


def test_an_own_update_that_the_application_refuses_was_never_written(alice: Mailbox, open_log: Open) -> None:
    failing = open_log(alice, Notes(b"no"))
    with pytest.raises(Refusal):
        failing.write([b"yes", b"no"], NOW)
    assert (failing.queued(), notes(failing), failing.received.vector) == ([], {}, {})
    assert [entry.seq for entry in failing.write([b"yes"], NOW)] == [1]


def test_a_database_belongs_to_the_application_that_made_it(bob: Mailbox, bobs: LogReplica, open_log: Open) -> None:
    with pytest.raises(Conflict) as refused:
        open_log(bob, Journal())
    assert "notes" in str(refused.value)
    assert "journal" in str(refused.value.hint)
    open_log(bob, Notes())


# What is not true.


def altered(message: LogMessage, at: int = -1) -> LogMessage:
    """The message with one bit of its ciphertext changed, in a record that is sound."""
    data = bytearray(message.record[20:])
    data[at] ^= 1
    return LogMessage(message.sender, message.seq, Record(message.record[2], bytes(data)).encode())


def refused(replica: LogReplica, message: LogMessage) -> AngeliaError:
    """Takes in what must not be applied. Returns the error by which it is named."""
    before = notes(replica), replica.received.vector, replica.received.have
    taken = take(replica, message)
    assert (notes(replica), replica.received.vector, replica.received.have) == before
    assert taken.entries == []
    (untrue,) = taken.untrue
    assert (untrue.node, untrue.sender, untrue.seq) == (NODE, message.sender, message.seq)
    return untrue.error


def test_an_altered_message_is_named_and_the_true_one_is_applied(alices: LogReplica, bobs: LogReplica) -> None:
    (message,) = written(alices, b"true")
    refused(bobs, altered(message))
    refused(bobs, LogMessage(message.sender, 1, message.record[:-1]))
    refused(bobs, LogMessage(message.sender, 1, b""))
    taken = bobs.take_in([(NODE, altered(message)), (OTHER_NODE, message)])
    assert [one.node for one in taken.untrue] == [NODE]
    assert [entry.body for entry in taken.entries] == [b"true"]


def test_a_message_under_another_number_sender_or_level_is_named(alices: LogReplica, bobs: LogReplica) -> None:
    (message,) = written(alices, b"true")
    refused(bobs, LogMessage(message.sender, 2, message.record))
    refused(bobs, LogMessage(bobs.me.sender, 1, message.record))
    refused(bobs, LogMessage(message.sender, 1, Record(1, message.record[20:]).encode()))


def test_a_message_of_another_group_is_named(
    alice: Mailbox, bob: Mailbox, alices: LogReplica, bobs: LogReplica
) -> None:
    other = first_edition("other", [alice, bob], NODES, key=KEY)
    share(other, KEY, alice)
    place = GroupPlace(other.group, alices.me.sender, 1, 0)
    sealed = alice.logs.seal(other, place, Update(0, b"elsewhere").encode())
    refused(bobs, LogMessage(alices.me.sender, 1, Record(0, sealed).encode()))


def test_a_member_that_poses_as_another_is_named_by_the_message(
    bob: Mailbox, alices: LogReplica, bobs: LogReplica, edition: GroupEdition
) -> None:
    place = GroupPlace(edition.group, alices.me.sender, 1, 0)
    posed = bob.logs.seal(edition, place, Update(0, b"as Alice").encode())
    refused(bobs, LogMessage(alices.me.sender, 1, Record(0, posed).encode()))


def test_a_message_of_a_stranger_is_not_applied_and_the_mail_may_tell_who_it_is(
    bob: Mailbox, bobs: LogReplica, edition: GroupEdition
) -> None:
    place = GroupPlace(edition.group, b"stranger", 1, 0)
    sealed = bob.logs.seal(edition, place, Update(0, b"of none").encode())
    taken = take(bobs, LogMessage(b"stranger", 1, Record(0, sealed).encode()))
    assert (taken.entries, taken.later) == ([], True)
    assert (notes(bobs), bobs.received.vector) == ({}, {})


def test_what_a_removed_member_writes_after_its_removal_is_named_and_not_applied(
    alice: Mailbox, alices: LogReplica, bobs: LogReplica, edition: GroupEdition
) -> None:
    before, after = written(bobs, *lines(2))
    take(alices, before)
    known = log_replica.highest_received(alice.logs, edition, bobs.me.sender)
    assert known == 1
    ann, bob = edition.members
    gone = msgspec.structs.replace(bob, admin=False, until=known)
    share(following(edition, SECOND, members=(ann,), past=(gone,), epoch=2), SECOND, alice)
    alices.refresh()
    taken = take(alices, before, after)
    assert [(one.node, one.seq) for one in taken.untrue] == [(NODE, 2)]
    assert notes(alices) == once(lines(1))


@pytest.mark.parametrize(
    "watermark",
    [{"bob": MAX_SEQ}, {"bob": 1_000_003}, {"alice": 5}, {"stranger": 1}],
    ids=["all that can be", "a million more than are known", "more of ours than we wrote", "of a stranger"],
)
def test_a_snapshot_that_claims_what_cannot_be_is_named_and_changes_nothing(
    alices: LogReplica, bobs: LogReplica, watermark: dict[str, int]
) -> None:
    take(alices, *written(bobs, *lines(2)))
    names = {"alice": alices.me.sender, "bob": bobs.me.sender, "stranger": b"stranger"}
    snapshot = Snapshot({names[name]: seq for name, seq in watermark.items()}, msgspec.msgpack.encode([b"false"]))
    sealed = bobs.sealed(3, 1, snapshot.encode(0))
    vector = alices.received.vector
    taken = take(alices, LogMessage(bobs.me.sender, 3, Record(1, sealed).encode()))
    assert len(taken.untrue) == 1
    assert (alices.received.vector, notes(alices)) == (vector, once(lines(2)))


@pytest.mark.parametrize("level", [0, 1])
def test_a_body_that_is_no_update_and_no_snapshot_is_named(
    alice: Mailbox, alices: LogReplica, bobs: LogReplica, edition: GroupEdition, level: int
) -> None:
    sealed = alice.logs.seal(edition, GroupPlace(edition.group, alices.me.sender, 1, level), b"short")
    refused(bobs, LogMessage(alices.me.sender, 1, Record(level, sealed).encode()))


def test_a_message_under_a_key_that_has_not_come_waits_for_it(
    alice: Mailbox, bob: Mailbox, alices: LogReplica, bobs: LogReplica, edition: GroupEdition
) -> None:
    second = following(edition, SECOND, epoch=2)
    alice.logs.publish(second, SECOND, NOW)
    alices.refresh()
    (message,) = written(alices, b"under the second key")
    taken = take(bobs, message)
    assert (taken.entries, taken.untrue, taken.later) == ([], [], True)
    assert bobs.received.vector == {}
    accept(bob, sent(second, SECOND), alice, NOW)
    bobs.refresh()
    assert [entry.body for entry in take(bobs, message).entries] == [b"under the second key"]


# Own messages.


def test_own_messages_are_in_the_state_at_once_and_count_once_enough_nodes_have_them(alices: LogReplica) -> None:
    alices.write(lines(3), NOW)
    assert notes(alices) == once(lines(3))
    assert alices.received.vector == {}
    alices.settle([2])
    assert (alices.received.vector, alices.received.have) == ({}, {alices.me.sender: [(2, 2)]})
    alices.settle([1, 3])
    assert alices.received.vector == {alices.me.sender: 3}
    assert alices.queued() == []


def test_what_was_not_settled_is_sent_again_after_a_restart_with_the_same_bytes(
    alice: Mailbox, alices: LogReplica, open_log: Open
) -> None:
    alices.write(lines(3), NOW)
    alices.settle([2])
    queued = alices.queued()
    assert [one.seq for one in queued] == [1, 3]
    assert open_log(alice).queued() == queued


def test_a_number_is_never_used_again(alice: Mailbox, alices: LogReplica, open_log: Open) -> None:
    seqs: list[int] = []
    replica = alices
    for number in range(6):
        seqs += [entry.seq for entry in replica.write(lines(2), NOW)]
        if number % 2:
            replica.settle(seqs)
        if number % 3 == 2:
            seqs.append(OwnSnapshots(replica).capture(1).seq)
        replica = open_log(alice)
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_new_database_of_an_old_member_writes_only_once_it_knows_what_it_wrote(
    bob: Mailbox, alices: LogReplica, open_log: Open
) -> None:
    replica = open_log(bob)
    assert not replica.knows_own_seq
    with pytest.raises(OwnSeqUnknown):
        replica.write([b"too early"], NOW)
    assert notes(replica) == {}
    replica.learn_own_seq()
    assert [entry.seq for entry in replica.write([b"first"], NOW)] == [1]


def test_own_messages_that_another_device_wrote_are_applied_and_gone_behind(
    alice: Mailbox, alices: LogReplica, open_log: Open
) -> None:
    messages = written(alices, *lines(3))
    directory = alice.logs.path(alices.edition.group)
    alices.database.close()
    for path in directory.parent.glob(f"{directory.name}*"):
        path.unlink()
    again = open_log(alice)
    take(again, *messages)
    assert notes(again) == once(lines(3))
    again.learn_own_seq()
    assert [entry.seq for entry in again.write([b"next"], NOW)] == [4]


def test_a_member_that_was_removed_and_added_again_begins_anew_and_what_waited_is_sent_again(
    alice: Mailbox, bob: Mailbox, alices: LogReplica, bobs: LogReplica, edition: GroupEdition
) -> None:
    before = bobs.me.sender
    (first,) = written(bobs, b"on enough nodes")
    bobs.settle([first.seq])
    bobs.write([b"waits"], NOW)
    gone = without(edition, "bob", SECOND)
    back = with_member(gone, bob, SECOND)
    for one in (gone, back):
        alice.logs.publish(one, SECOND, NOW)
        accept(bob, sent(one, SECOND), alice, NOW)
    assert bobs.refresh() == alices.refresh() == back
    assert bobs.me.sender != before
    (waiting,) = bobs.queued()
    bobs.settle([1])
    (message,) = written(bobs, b"written since")
    assert (waiting.seq, message.seq) == (1, 2)
    resent = LogMessage(bobs.me.sender, 1, waiting.record)
    assert [entry.body for entry in take(alices, first, resent, message).entries] == [
        b"on enough nodes",
        b"waits",
        b"written since",
    ]
    assert bobs.received.vector == {before: 1, bobs.me.sender: 2}


def test_a_member_that_came_back_begins_anew_once_in_whichever_process_first(
    alice: Mailbox, bob: Mailbox, bobs: LogReplica, open_log: Open, edition: GroupEdition
) -> None:
    other = open_log(bob)
    bobs.write([b"waits"], NOW)
    gone = without(edition, "bob", SECOND)
    # One who removes a member may also keep that it ever was one.
    back = msgspec.structs.replace(with_member(gone, bob, SECOND), past=())
    for one in (gone, back):
        alice.logs.publish(one, SECOND, NOW)
        accept(bob, sent(one, SECOND), alice, NOW)
    bobs.refresh()
    (waiting,) = bobs.queued()
    bobs.write([b"written since"], NOW)
    other.refresh()
    late = open_log(bob)  # with the edition of before
    for replica in (bobs, other, late):
        assert replica.queued()[0] == waiting
        assert [one.seq for one in replica.queued()] == [1, 2]


def test_an_own_message_that_a_node_hands_out_counts_only_once_it_is_settled(alices: LogReplica) -> None:
    alices.write([b"one"], NOW)
    (own,) = alices.queued()
    taken = take(alices, LogMessage(alices.me.sender, 1, own.record))
    assert (taken.entries, taken.untrue) == ([], [])
    assert (alices.received.vector, notes(alices)) == ({}, {b"one": 1})
    assert alices.queued() == [own]


def test_an_own_number_that_nodes_have_with_other_bytes_is_named_as_a_conflict(
    alice: Mailbox, alices: LogReplica, edition: GroupEdition
) -> None:
    place = GroupPlace(edition.group, alices.me.sender, 1, 0)
    elsewhere = alice.logs.seal(edition, place, Update(0, b"of another device").encode())
    alices.write([b"of this one"], NOW)
    error = refused(alices, LogMessage(alices.me.sender, 1, Record(0, elsewhere).encode()))
    assert isinstance(error, Conflict)


def test_an_update_that_no_node_takes_is_refused_before_anything_is_written(alices: LogReplica) -> None:
    with pytest.raises(TooLarge):
        alices.write([b"small", bytes(MAX_BODY + 1)], NOW)
    assert (alices.queued(), notes(alices)) == ([], {})
    alices.write([bytes(MAX_BODY)], NOW)
    assert len(alices.queued()[0].ciphertext) == 1 << 20


def test_a_member_that_used_up_its_numbers_is_told_so(bobs: LogReplica) -> None:
    bobs.database.write("write_meta", "next_seq", str(MAX_SEQ))
    assert [entry.seq for entry in bobs.write([b"the last"], NOW)] == [MAX_SEQ]
    with pytest.raises(Conflict):
        bobs.write([b"one too many"], NOW)


# Snapshots.


def shards(replica: LogReplica, own: OwnMessage) -> list[LogMessage]:
    return [LogMessage(replica.me.sender, own.seq, record) for record in own.shards()]


def captured(replica: LogReplica, level: int = 2) -> OwnMessage:
    """A snapshot of the state, which is made large enough to be cut into shards."""
    if level >= 2:
        written(replica, bytes(6_000))
    return OwnSnapshots(replica).capture(level)


def complete(replica: LogReplica, own: OwnMessage) -> None:
    OwnSnapshots(replica).complete(own, (), NOW)


def opened_snapshot(replica: LogReplica, own: OwnMessage) -> Snapshot:
    place = GroupPlace(replica.edition.group, replica.me.sender, own.seq, own.level)
    return Snapshot.decode(replica.logs.unseal(replica.edition, place, own.ciphertext))


def test_a_lone_shard_is_not_received(bob: Mailbox, alices: LogReplica, bobs: LogReplica, open_log: Open) -> None:
    written(alices, *lines(5))
    pieces = shards(alices, captured(alices))
    for piece in pieces[:2]:
        taken = take(bobs, piece)
        assert (taken.snapshots, taken.untrue) == (0, [])
    assert bobs.incomplete() == [(alices.me.sender, 7, 2, 3)]
    assert (bobs.received.vector, bobs.received.have, notes(bobs)) == ({}, {}, {})
    assert open_log(bob).received.vector == {}


def test_a_snapshot_brings_state_and_vector_once_enough_shards_came(alices: LogReplica, bobs: LogReplica) -> None:
    written(alices, *lines(5))
    pieces = shards(alices, captured(alices))
    assert take(bobs, pieces[4], pieces[1], pieces[3]).snapshots == 1
    assert notes(bobs) == once([*lines(5), bytes(6_000)])
    assert bobs.received.vector == {alices.me.sender: 7}
    assert bobs.incomplete() == []
    assert take(bobs, *pieces).snapshots == 0


def test_a_snapshot_that_a_later_one_covers_is_not_called_incomplete(alices: LogReplica, bobs: LogReplica) -> None:
    first = captured(alices)
    complete(alices, first)
    take(bobs, shards(alices, first)[0])
    assert len(bobs.incomplete()) == 1
    written(alices, *lines(5))
    second = captured(alices)
    assert take(bobs, *shards(alices, second)[:3]).snapshots == 1
    assert bobs.received.contains(alices.me.sender, first.seq)
    assert bobs.incomplete() == []


def test_a_snapshot_counts_only_if_it_was_merged(
    bob: Mailbox, alices: LogReplica, bobs: LogReplica, open_log: Open
) -> None:
    written(alices, *lines(5))
    pieces = shards(alices, captured(alices))
    failing = open_log(bob, Notes(b"line 3"))
    with pytest.raises(Refusal):
        take(failing, *pieces[:3])
    assert (failing.received.vector, notes(failing)) == ({}, {})
    mended = open_log(bob)
    assert take(mended, *pieces[:3]).snapshots == 1
    assert notes(mended) == once([*lines(5), bytes(6_000)])


def test_updates_that_a_snapshot_contains_are_not_applied_again(alices: LogReplica, bobs: LogReplica) -> None:
    messages = written(alices, *lines(5))
    own = captured(alices, 1)
    take(bobs, messages[1], messages[4])
    take(bobs, LogMessage(alices.me.sender, own.seq, own.record))
    assert take(bobs, *messages).entries == []
    assert notes(bobs) == once(lines(5))
    assert bobs.received.vector == {alices.me.sender: 6}


def test_a_snapshot_of_less_than_was_received_takes_nothing_back(alices: LogReplica, bobs: LogReplica) -> None:
    early = written(alices, *lines(3))
    own = captured(alices, 1)
    complete(alices, own)
    late = written(alices, b"late")
    take(bobs, *early, *late)
    take(bobs, LogMessage(alices.me.sender, own.seq, own.record))
    assert notes(bobs) == once([*lines(3), b"late"])
    assert bobs.received.vector == {alices.me.sender: 5}


def test_a_snapshot_does_not_claim_what_has_not_arrived_between(alices: LogReplica, bobs: LogReplica) -> None:
    messages = written(alices, *lines(5))
    take(bobs, messages[0], messages[3])
    assert opened_snapshot(bobs, captured(bobs, 1)).watermark == {alices.me.sender: 1}


def test_own_messages_that_wait_are_not_in_the_watermark(alices: LogReplica) -> None:
    written(alices, *lines(2))
    alices.write([b"waits"], NOW)
    snapshot = opened_snapshot(alices, captured(alices, 1))
    assert snapshot.watermark == {alices.me.sender: 2}
    assert b"waits" in msgspec.msgpack.decode(snapshot.content)


def test_watermark_and_content_are_of_one_instant_while_messages_come(alices: LogReplica, bobs: LogReplica) -> None:
    bodies = lines(120)
    messages = written(alices, *bodies)
    receiving = threading.Thread(target=lambda: [take(bobs, one) for one in messages])
    counts = [consistent(bobs, bodies, alices.me.sender)]
    receiving.start()
    while receiving.is_alive():
        counts.append(consistent(bobs, bodies, alices.me.sender))
    receiving.join()
    counts.append(consistent(bobs, bodies, alices.me.sender))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 120)


def consistent(replica: LogReplica, bodies: Sequence[bytes], sender: bytes) -> int:
    """Takes a snapshot now. Returns how far its watermark is, which is exactly what it contains."""
    snapshot = opened_snapshot(replica, captured(replica, 1))
    count = snapshot.watermark.get(sender, 0)
    assert set(msgspec.msgpack.decode(snapshot.content)) == set(bodies[:count])
    return count


def test_a_snapshot_of_this_agent_counts_once_it_is_complete(
    alice: Mailbox, alices: LogReplica, open_log: Open
) -> None:
    written(alices, *lines(2))
    own = captured(alices, 1)
    assert alices.received.vector == {alices.me.sender: 2}
    again = open_log(alice)
    assert OwnSnapshots(again).unfinished_snapshots() == [own]
    complete(again, own)
    assert again.received.vector == {alices.me.sender: 3}
    assert OwnSnapshots(again).unfinished_snapshots() == []


def test_a_completion_is_kept_until_every_node_has_carried_it_out(
    alice: Mailbox, alices: LogReplica, open_log: Open
) -> None:
    written(alices, *lines(2))
    document = OwnSnapshots(alices).complete(captured(alices, 1), (), NOW)
    listed = alices.edition.node_ids
    OwnSnapshots(alices).completed_by(document, listed[:4])
    again = OwnSnapshots(open_log(alice))
    assert again.open_completions() == [(document, set(listed[:4]))]
    again.completed_by(document, listed[4:])
    assert again.open_completions() == []


def test_a_shard_that_is_altered_or_of_another_message_is_named(alices: LogReplica, bobs: LogReplica) -> None:
    own = captured(alices)
    manifest, (one, *_) = Manifest.decode(own.manifest), own.shards()
    pieces = [Record(2, bytes(manifest.shard_length), 0, 3, 5, own.manifest).encode()]
    pieces.append(Record(1, one[-manifest.shard_length :], 0, 3, 5, own.manifest).encode())
    pieces.append(
        Record(2, one[-manifest.shard_length :], 0, 3, 5, own.manifest[:-1] + bytes((own.manifest[-1] ^ 1,))).encode()
    )
    for piece in pieces:
        refused(bobs, LogMessage(alices.me.sender, own.seq, piece))
    refused(bobs, LogMessage(alices.me.sender, own.seq + 1, one))
    refused(bobs, LogMessage(bobs.me.sender, own.seq, one))
    assert bobs.incomplete() == []


def test_a_snapshot_with_another_watermark_than_its_manifest_is_named(
    alice: Mailbox, alices: LogReplica, bobs: LogReplica
) -> None:
    own = captured(alices)
    manifest = msgspec.structs.replace(Manifest.decode(own.manifest), watermark_digest=bytes(32))
    false = OwnMessage(own.seq, own.level, own.ciphertext, manifest.encode(alice.logs.sign), b"")
    *first, last = shards(alices, false)[:3]
    assert take(bobs, *first).untrue == []
    refused(bobs, last)


# When it is this agent's turn.


def test_the_first_in_rank_snapshots_at_once_and_each_other_after_30_seconds_more(
    alices: LogReplica, bobs: LogReplica
) -> None:
    messages = written(alices, *lines(20))
    replicas = [alices, bobs]
    take(bobs, *messages[:19])
    assert [OwnSnapshots(one).due_level(NOW) for one in (bobs,)] == [None]
    take(bobs, messages[19])
    ranked = compactors([one.me.sender for one in replicas], 1, alices.received.vector)
    first, second = sorted(replicas, key=lambda one: ranked.index(one.me.sender))
    assert OwnSnapshots(first).due_level(NOW) == 1
    assert OwnSnapshots(second).due_level(NOW) is None
    assert OwnSnapshots(second).due_level(NOW + timedelta(seconds=29)) is None
    assert OwnSnapshots(second).due_level(NOW + timedelta(seconds=30)) == 1


def test_how_long_a_snapshot_is_due_is_known_over_a_restart(
    alice: Mailbox, bob: Mailbox, alices: LogReplica, bobs: LogReplica, open_log: Open
) -> None:
    take(bobs, *written(alices, *lines(20)))
    for one in (alices, bobs):
        OwnSnapshots(one).due_level(NOW)
    after = NOW + timedelta(seconds=30)
    assert [OwnSnapshots(open_log(box)).due_level(after) for box in (alice, bob)] == [1, 1]


def test_no_snapshot_is_due_after_one_until_twenty_more_updates(alices: LogReplica, bobs: LogReplica) -> None:
    take(bobs, *written(alices, *lines(30)))
    own = captured(alices, 1)
    complete(alices, own)
    take(bobs, LogMessage(alices.me.sender, own.seq, own.record))
    for one in (alices, bobs):
        assert OwnSnapshots(one).due_level_now() is None
    take(bobs, *written(alices, *(b"more %d" % number for number in range(19))))
    assert [OwnSnapshots(one).due_level_now() for one in (alices, bobs)] == [None, None]
    take(bobs, *written(alices, b"the twentieth"))
    assert [OwnSnapshots(one).due_level_now() for one in (alices, bobs)] == [1, 1]


# Crashes.


def test_a_kill_at_any_step_between_writing_and_settling_loses_nothing(
    home: Path, alice: Mailbox, bob: Mailbox, edition: GroupEdition, tmp_path: Path
) -> None:
    bob_reads = GroupPlace(edition.group, alice.logs.me(edition).sender, 0, 0)
    alice.close()
    command = [sys.executable, __file__, str(home), str(tmp_path / "runs")]
    tests = Path(__file__).parents[1]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(tests)})
    assert ran.returncode == 0, ran.stderr
    runs = int(ran.stdout)
    assert runs >= 5
    outcomes = set()
    for number in range(runs):
        copy = tmp_path / "runs" / str(number)
        with Mailbox(copy, identity.load(copy, "alice", lambda: ""), NOW) as box:
            replica = opened_replica(box.logs, edition, Notes())
            applied, queued = notes(replica), replica.queued()
            settled = replica.received.vector.get(replica.me.sender, 0)
            assert applied in ({}, once([b"one", b"two"]))
            assert settled + len(queued) == len(applied), "what is in the state is on its way, or settled"
            for own in queued:
                place = GroupPlace(edition.group, bob_reads.sender, own.seq, 0)
                body = Update.decode(bob.logs.unseal(edition, place, own.ciphertext)).content
                assert body == (b"one", b"two")[own.seq - 1]
            replica.settle(own.seq for own in queued)
            (entry,) = replica.write([b"next"], NOW)
            assert entry.seq == len(applied) + 1
            outcomes.add((len(applied), settled))
            replica.database.close()
    assert outcomes == {(0, 0), (2, 0), (2, 2)}


def _crash(home: Path, runs: Path) -> int:
    """Runs a writer that is killed right before each of its steps that touch the disk. Returns the number of runs."""
    import crashing  # it stands beside this file, which runs as a program here

    def write(copy: Path, _: str) -> Callable[[], object]:
        box = crashing.opened(copy, "alice")
        replica = opened_replica(box.logs, box.logs.find("team"), Notes())

        def written_and_settled() -> None:
            replica.write([b"one", b"two"], NOW)
            replica.settle([1, 2])

        return written_and_settled

    vars(crashing)["write"] = write
    step, done = 0, False
    while not done:
        copy = runs / str(step)
        shutil.copytree(home, copy, symlinks=True)
        done = crashing.run("write", copy, "", step)
        step += 1
    return step


if __name__ == "__main__":
    print(_crash(Path(sys.argv[1]), Path(sys.argv[2])))
