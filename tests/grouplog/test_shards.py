"""Shards: one for a message at a node, of a manifest that its sender signed, and how a lost one is stored again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from angelia.envelope.json_form import to_text
from angelia.errors import (
    BadManifest,
    BadShard,
    Conflict,
    DamagedRecord,
    InvalidArgument,
    NoMessage,
    NotMember,
    ShardConflict,
    Unprocessable,
)
from angelia.grouplog.model.documents import EntryDocument, NewNodes, NewRoster, NodeDocument
from angelia.grouplog.model.frames import MEDIA, FrameReader, Held, Hello, LogMessage, Status, Type
from angelia.grouplog.model.groups import LogFloor
from angelia.grouplog.model.ids import base58
from angelia.grouplog.model.pieces import Manifest, NodeReceipt
from angelia.grouplog.model.records import Record
from angelia.grouplog.subscriptions import Begin, LogSubscriber
from grouplog.open_logs import GROUP, Key, Log, Snapshot, check_families, opened
from log_clients import LogClient, agent_of, served

NODES = [Key(b"node %d" % number) for number in range(6)]
HERE, OTHERS = NODES[0], NODES[1:]  # the node of the test, and five more


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    """A log of a group with six nodes."""
    async with opened(tmp_path, nodes=NODES) as log:
        yield log


def snapshot(log: Log, *nodes: Key, seq: int = 7, data: bytes = bytes(range(250)) * 20, level: int = 2) -> Snapshot:
    """A snapshot of the first member with a shard for each of five nodes: without the node of the test, unless they
    are given."""
    places = [node.public for node in nodes or OTHERS]
    return Snapshot.coded(GROUP, log.senders[0], log.keys[0].sign, places, seq=seq, data=data, level=level)


def with_own_place(log: Log) -> Snapshot:
    """A snapshot whose first shard is for the node of the test."""
    return snapshot(log, *NODES[:5])


async def put(log: Log, piece: LogMessage, index: int, by: int = 0) -> Status:
    _, status = await log.service.put_shard(log.group, log.members[by], piece, index)
    return status


def changed(log: Log, found: Snapshot, **changes: object) -> Snapshot:
    """The same shards with another manifest of the same sender."""
    manifest = msgspec.structs.replace(Manifest.decode(found.manifest), **changes).encode(log.keys[0].sign)
    return Snapshot(
        found.group,
        found.sender,
        found.seq,
        found.level,
        found.watermark,
        found.data,
        found.shape,
        manifest,
        found.shards,
    )


async def list_nodes(log: Log, *nodes: Key) -> None:
    documents = [NodeDocument(id=to_text(node.public), url="https://node.example") for node in nodes]
    await log.service.replace_nodes(
        log.group, log.members[0], NewNodes(epoch=log.group.row.nodes.epoch, nodes=documents)
    )


async def keep_members(log: Log, *numbers: int) -> None:
    """Removes all members but these."""
    entries = [
        EntryDocument(binding=member.binding, public_key=to_text(member.public_key), admin=True)
        for member in (log.members[number] for number in numbers)
    ]
    await log.service.replace_roster(
        log.group, log.members[0], NewRoster(epoch=log.group.row.roster.epoch, roster=entries)
    )


# What is stored.


async def test_a_shard_is_stored_with_its_manifest_and_read_again_by_its_index(log: Log) -> None:
    found = with_own_place(log)
    assert await put(log, found.message(0), 0) is Status.STORED
    assert await log.service.shard(log.group, found.sender, found.seq, 0) == found.message(0)
    assert await log.service.held_shard(log.group, found.sender, found.seq) == Held(0, found.manifest)
    assert check_families(log.rocks, log.group.ordinal) == {(found.sender, 7): found.message(0).record}


async def test_a_stored_shard_is_answered_with_a_receipt_under_the_key_of_the_node(log: Log) -> None:
    found = with_own_place(log)
    signature, _ = await log.service.put_shard(log.group, log.members[0], found.message(0), 0)
    receipt = NodeReceipt(HERE.public, 0, hashlib.sha256(found.shards[0]).digest(), signature)
    assert receipt.holds(GROUP, found.sender, found.seq, found.level)


async def test_the_same_shard_again_is_a_duplicate_with_the_same_receipt(log: Log) -> None:
    found = with_own_place(log)
    first, _ = await log.service.put_shard(log.group, log.members[0], found.message(0), 0)
    assert await log.service.put_shard(log.group, log.members[0], found.message(0), 0) == (first, Status.DUPLICATE)


async def test_a_stored_shard_is_published_once(log: Log) -> None:
    subscriber = LogSubscriber(log.group, log.members[1], Hello({}, {}))
    await log.spool.run(Begin(log.spool.subscriptions, subscriber))
    found = with_own_place(log)
    for _ in range(2):
        await put(log, found.message(0), 0)
    assert list(subscriber.queue) == [(found.sender, found.seq)]
    subscriber.iterator = None


async def test_a_superseded_shard_is_not_stored_and_has_no_receipt(log: Log) -> None:
    found = with_own_place(log)
    await log.delete(found.level + 1, {found.sender: found.seq})
    answer = await log.service.put_shard(log.group, log.members[0], found.message(0), 0)
    assert answer == (b"", Status.SUPERSEDED)
    assert log.rows() == {}
    assert log.group.floors() == [LogFloor(found.sender, found.level + 1, found.seq)]


async def test_a_shard_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, nodes=NODES) as log:
        found = with_own_place(log)
        await put(log, found.message(0), 0)
    async with opened(tmp_path, nodes=NODES) as log:
        assert await log.service.shard(log.group, found.sender, found.seq, 0) == found.message(0)
        assert await put(log, found.message(0), 0) is Status.DUPLICATE


# What is refused.


async def test_a_body_with_another_index_than_the_path_is_refused(log: Log) -> None:
    found = snapshot(log)
    with pytest.raises(BadShard):
        await put(log, found.message(1), 0)
    assert log.rows() == {}


async def test_a_whole_message_is_no_shard(log: Log) -> None:
    whole = LogMessage(log.senders[0], 7, Record(2, b"a whole snapshot").encode())
    with pytest.raises(BadShard):
        await put(log, whole, 0)
    assert log.rows() == {}


async def test_a_manifest_with_a_wrong_signature_is_refused(log: Log) -> None:
    found = snapshot(log)
    found.manifest = found.manifest[:-64] + bytes(64)
    with pytest.raises(BadManifest):
        await put(log, found.message(0), 0)
    assert log.rows() == {}


async def test_a_manifest_that_another_member_signed_is_refused(log: Log) -> None:
    places = [node.public for node in OTHERS]
    forged = Snapshot.coded(GROUP, log.senders[0], log.keys[1].sign, places)
    with pytest.raises(BadManifest):
        await put(log, forged.message(0), 0, by=1)
    assert log.rows() == {}


async def test_a_shard_without_a_manifest_is_refused(log: Log) -> None:
    found = snapshot(log)
    found.manifest = b""
    with pytest.raises(BadManifest):
        await put(log, found.message(0), 0)
    assert log.rows() == {}


@pytest.mark.parametrize(
    "change",
    [{"group": bytes(32)}, {"sender": b"another!"}, {"seq": 8}],
    ids=["group", "sender", "seq"],
)
async def test_a_signed_manifest_of_another_message_is_refused(log: Log, change: dict[str, object]) -> None:
    found = changed(log, snapshot(log), **change)
    with pytest.raises(BadManifest):
        await put(log, found.message(0), 0)
    assert log.rows() == {}


@pytest.mark.parametrize("change", [{"level": 3}, {"data_shards": 2}], ids=["level", "data shards"])
async def test_a_shard_with_other_numbers_than_its_manifest_is_refused(log: Log, change: dict[str, object]) -> None:
    found = changed(log, snapshot(log), **change)
    with pytest.raises(Unprocessable):
        await put(log, found.message(0), 0)
    assert log.rows() == {}


async def test_a_shard_that_names_fewer_shards_in_all_than_its_manifest_is_refused(log: Log) -> None:
    found = snapshot(log)
    record = Record(found.level, found.shards[0], 0, 3, 4, found.manifest).encode()
    with pytest.raises(Unprocessable):
        await put(log, LogMessage(found.sender, found.seq, record), 0)
    assert log.rows() == {}


@pytest.mark.parametrize("number", [0, 2499, -1], ids=["first byte", "in the middle", "last byte"])
async def test_a_shard_with_a_changed_byte_is_not_of_its_manifest(log: Log, number: int) -> None:
    found = snapshot(log)
    wrong = bytearray(found.shards[0])
    wrong[number % len(wrong)] ^= 1
    found.shards = [bytes(wrong), *found.shards[1:]]
    with pytest.raises(BadShard):
        await put(log, found.message(0), 0)
    assert log.rows() == {}


async def test_the_bytes_of_another_index_are_refused(log: Log) -> None:
    found = snapshot(log)
    found.shards = [found.shards[1], *found.shards[1:]]
    with pytest.raises(BadShard):
        await put(log, found.message(0), 0)


async def test_a_cut_shard_is_refused(log: Log) -> None:
    found = snapshot(log)
    found.shards = [found.shards[0][:-1], *found.shards[1:]]
    with pytest.raises(BadShard):
        await put(log, found.message(0), 0)


async def test_the_append_route_takes_no_shards_also_good_ones(log: Log) -> None:
    found = with_own_place(log)
    with pytest.raises(InvalidArgument):
        await log.service.append(log.group, log.members[0], [found.message(0)])
    assert log.rows() == {}


async def test_a_stranger_stores_no_shard_also_with_a_good_manifest(log: Log) -> None:
    found, member = with_own_place(log), log.members[1]
    await keep_members(log, 0)
    with pytest.raises(NotMember):
        await log.service.put_shard(log.group, member, found.message(0), 0)
    assert log.rows() == {}


# Which shard a node takes.


async def test_a_node_takes_no_other_shard_than_that_of_its_place(log: Log) -> None:
    found = with_own_place(log)
    with pytest.raises(BadShard):
        await put(log, found.message(1), 1)
    assert log.rows() == {}
    assert await put(log, found.message(0), 0) is Status.STORED


@pytest.mark.parametrize("index", range(5))
async def test_a_node_without_a_place_takes_any_shard(log: Log, index: int) -> None:
    found = snapshot(log)
    assert await put(log, found.message(index), index) is Status.STORED
    assert await log.service.shard(log.group, found.sender, found.seq, index) == found.message(index)


async def test_a_second_shard_of_a_message_is_a_conflict_and_the_first_stays(log: Log) -> None:
    found = snapshot(log)
    await put(log, found.message(1), 1)
    with pytest.raises(ShardConflict) as caught:
        await put(log, found.message(0), 0)
    assert caught.value.members["stored_digest"] == hashlib.sha256(found.message(1).record).hexdigest()
    assert caught.value.members["sent_digest"] == hashlib.sha256(found.message(0).record).hexdigest()
    assert log.rows() == {(found.sender, found.seq): found.message(1).record}


async def test_the_same_index_of_another_snapshot_under_the_id_is_a_conflict(log: Log) -> None:
    first, second = with_own_place(log), snapshot(log, *NODES[:5], data=b"another object" * 400)
    await put(log, first.message(0), 0)
    with pytest.raises(ShardConflict):
        await put(log, second.message(0), 0)
    assert log.rows() == {(first.sender, first.seq): first.message(0).record}


async def test_a_shard_is_no_replacement_of_a_whole_message_nor_the_other_way(log: Log) -> None:
    found, data = with_own_place(log), b"stored whole"
    await log.put(found.sender, found.seq, found.level, data)
    with pytest.raises(Conflict):
        await put(log, found.message(0), 0)
    other = snapshot(log, *NODES[:5], seq=8)
    await put(log, other.message(0), 0)
    with pytest.raises(Conflict):
        await log.put(other.sender, other.seq, other.level, data)
    assert log.rows()[found.sender, 8] == other.message(0).record


# Repair.


async def test_a_shard_is_repaired_by_another_member_than_its_sender(log: Log) -> None:
    found = with_own_place(log)
    assert await put(log, found.message(0), 0, by=2) is Status.STORED
    assert log.rows() == {(found.sender, found.seq): found.message(0).record}


async def test_a_shard_of_a_member_that_was_removed_is_repaired(log: Log) -> None:
    places = [node.public for node in NODES[:5]]
    found = Snapshot.coded(GROUP, log.senders[2], log.keys[2].sign, places)
    await keep_members(log, 0, 1)
    assert await put(log, found.message(0), 0) is Status.STORED


async def test_a_manifest_signed_before_its_sender_changed_its_key_still_counts(log: Log) -> None:
    found = with_own_place(log)
    entry = EntryDocument(binding=log.members[0].binding, public_key=to_text(Key(b"new").public), admin=True)
    await log.service.replace_roster(log.group, log.members[0], NewRoster(epoch=1, roster=[entry]))
    assert await put(log, found.message(0), 0) is Status.STORED


@pytest.mark.parametrize("at", [0, 1, 3, 4, -1], ids=["format", "kind", "flags", "digest", "data"])
async def test_a_damaged_shard_is_replaced_by_the_same_one(log: Log, at: int) -> None:
    found = with_own_place(log)
    await put(log, found.message(0), 0)
    log.damage(found.sender, found.seq, at)
    assert await put(log, found.message(0), 0, by=1) is Status.STORED
    assert check_families(log.rocks, log.group.ordinal) == {(found.sender, found.seq): found.message(0).record}
    assert await put(log, found.message(0), 0) is Status.DUPLICATE


async def test_a_damaged_shard_is_replaced_by_one_of_another_index(log: Log) -> None:
    found = snapshot(log)
    await put(log, found.message(0), 0)
    log.damage(found.sender, found.seq)
    assert await put(log, found.message(1), 1) is Status.STORED
    assert await log.service.shard(log.group, found.sender, found.seq, 1) == found.message(1)


async def test_a_repaired_shard_is_not_published_again_nor_listed_as_damaged_nor_counted_twice(log: Log) -> None:
    found = with_own_place(log)
    await put(log, found.message(0), 0)
    log.damage(found.sender, found.seq)
    with pytest.raises(DamagedRecord):
        await log.service.shard(log.group, found.sender, found.seq, 0)
    subscriber = LogSubscriber(log.group, log.members[1], Hello({found.sender: found.seq - 1}, {}))
    await log.spool.run(Begin(log.spool.subscriptions, subscriber))
    await put(log, found.message(0), 0)
    assert list(subscriber.queue) == []
    assert (await log.service.storage(log.group)).corrupt == []
    assert log.group.stored_bytes == log.true_bytes()
    subscriber.iterator = None


async def test_under_a_newer_node_list_a_shard_takes_the_place_of_one_whose_nodes_left_too(log: Log) -> None:
    found = snapshot(log)
    await put(log, found.message(0), 0)
    await list_nodes(log, HERE, *OTHERS[2:])
    assert await put(log, found.message(1), 1) is Status.STORED
    assert log.rows() == {(found.sender, found.seq): found.message(1).record}
    assert log.group.stored_bytes == log.true_bytes()


async def test_under_a_newer_node_list_a_shard_of_another_manifest_is_still_a_conflict(log: Log) -> None:
    found, other = snapshot(log), snapshot(log, data=b"another object" * 400)
    await put(log, found.message(0), 0)
    await list_nodes(log, HERE)
    with pytest.raises(ShardConflict):
        await put(log, other.message(1), 1)
    assert log.rows() == {(found.sender, found.seq): found.message(0).record}


async def test_under_a_newer_node_list_that_keeps_their_nodes_a_second_shard_is_a_conflict(log: Log) -> None:
    found = snapshot(log)
    await put(log, found.message(0), 0)
    await list_nodes(log, HERE, *OTHERS[:2])
    with pytest.raises(ShardConflict):
        await put(log, found.message(1), 1)


# What is read.


async def test_a_shard_of_an_index_that_the_node_does_not_have_is_no_message(log: Log) -> None:
    found = snapshot(log)
    await put(log, found.message(1), 1)
    for index in (0, 2, 4, 5, 254):
        with pytest.raises(NoMessage):
            await log.service.shard(log.group, found.sender, found.seq, index)


async def test_a_message_that_is_stored_whole_has_no_shard(log: Log) -> None:
    await log.put(log.senders[0], 7, level=2)
    with pytest.raises(NoMessage):
        await log.service.held_shard(log.group, log.senders[0], 7)
    with pytest.raises(NoMessage):
        await log.service.shard(log.group, log.senders[0], 7, 0)


async def test_a_shard_is_among_the_messages_of_a_backfill(log: Log) -> None:
    found = with_own_place(log)
    await put(log, found.message(0), 0)
    assert await log.all_ids() == [(found.sender, found.seq)]
    assert await log.service.message(log.group, found.sender, found.seq) == found.message(0)


@pytest.mark.parametrize("at", [0, 4, -1], ids=["format", "digest", "data"])
async def test_a_damaged_shard_is_an_error_that_names_it(log: Log, at: int) -> None:
    found = with_own_place(log)
    await put(log, found.message(0), 0)
    log.damage(found.sender, found.seq, at)
    with pytest.raises(DamagedRecord) as caught:
        await log.service.shard(log.group, found.sender, found.seq, 0)
    assert caught.value.members == {"sender": found.sender.hex(), "seq": found.seq}
    (corrupt,) = (await log.service.storage(log.group)).corrupt
    assert (corrupt.sender, corrupt.seq) == (found.sender.hex(), found.seq)


# Over HTTP.


@pytest.fixture
async def client(log: Log) -> AsyncIterator[httpx.AsyncClient]:
    async with served(log) as client:
        yield client


@pytest.fixture
def alice(client: httpx.AsyncClient) -> LogClient:
    """The first member."""
    return LogClient(client, agent_of(0), GROUP, 1)


@pytest.fixture
def bob(client: httpx.AsyncClient) -> LogClient:
    return LogClient(client, agent_of(1), GROUP, 2)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def place(found: Snapshot, index: int) -> str:
    return f"/shards/{found.sender.hex()}/{found.seq}/{index}"


async def send(member: LogClient, found: Snapshot, index: int, path: str = "") -> httpx.Response:
    return await member.call("PUT", path or place(found, index), found.message(index).encode(), MEDIA)


async def test_a_shard_is_201_and_then_200_each_with_a_receipt_that_verifies(log: Log, alice: LogClient) -> None:
    found = with_own_place(log)
    for status in (201, 200):
        answer = await send(alice, found, 0)
        assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA)
        ((type_, signature),) = FrameReader().feed(answer.content)
        assert type_ == Type.RECEIPT
        receipt = NodeReceipt(HERE.public, 0, hashlib.sha256(found.shards[0]).digest(), signature)
        assert receipt.holds(GROUP, found.sender, found.seq, found.level)


async def test_a_shard_and_its_manifest_are_read_by_any_member(log: Log, alice: LogClient, bob: LogClient) -> None:
    found = with_own_place(log)
    assert (await send(alice, found, 0)).status_code == 201
    assert (await bob.call("GET", place(found, 0))).content == found.message(0).encode()
    held = await bob.call("GET", f"/shards/{found.sender.hex()}/{found.seq}")
    assert held.content == Held(0, found.manifest).encode()
    assert code(await bob.call("GET", place(found, 1))) == (404, "no_message")
    assert code(await bob.call("GET", f"/shards/{found.sender.hex()}/8")) == (404, "no_message")


async def test_each_fault_of_a_shard_has_its_status_and_code(log: Log, alice: LogClient) -> None:
    found = snapshot(log)
    assert code(await send(alice, found, 0, place(found, 1))) == (422, "bad_shard")
    wrong = snapshot(log)
    wrong.shards = [bytes(len(wrong.shards[0])), *wrong.shards[1:]]
    assert code(await send(alice, wrong, 0)) == (422, "bad_shard")
    unsigned = snapshot(log)
    unsigned.manifest = unsigned.manifest[:-1] + bytes((unsigned.manifest[-1] ^ 1,))
    assert code(await send(alice, unsigned, 0)) == (422, "bad_manifest")
    assert log.rows() == {}
    assert (await send(alice, found, 0)).status_code == 201
    assert code(await send(alice, found, 1)) == (409, "shard_conflict")


@pytest.mark.parametrize("index", ["255", "256", "-1", "x", "00000"])
async def test_an_index_in_a_path_is_a_small_number(log: Log, alice: LogClient, index: str) -> None:
    found = snapshot(log)
    path = f"/shards/{found.sender.hex()}/{found.seq}/{index}"
    assert code(await send(alice, found, 0, path)) == (400, "invalid_argument")
    assert code(await alice.call("GET", path)) == (400, "invalid_argument")


async def test_a_body_of_another_message_than_the_path_is_refused(log: Log, alice: LogClient) -> None:
    found = snapshot(log)
    answer = await send(alice, found, 0, f"/shards/{found.sender.hex()}/8/0")
    assert code(answer) == (400, "invalid_argument")
    assert log.rows() == {}


async def test_the_route_for_appends_refuses_a_shard(log: Log, alice: LogClient) -> None:
    answer = await alice.append(with_own_place(log).message(0))
    assert (answer.status_code, answer.json()["at"]) == (400, 0)
    assert log.rows() == {}


async def test_a_damaged_shard_is_500_with_its_id_until_a_member_repairs_it(
    log: Log, alice: LogClient, bob: LogClient
) -> None:
    found = with_own_place(log)
    await send(alice, found, 0)
    log.damage(found.sender, found.seq)
    for path in (place(found, 0), f"/shards/{found.sender.hex()}/7", f"/messages/{found.sender.hex()}/7"):
        answer = await alice.call("GET", path)
        assert code(answer) == (500, "corrupt_record"), path
        assert (answer.json()["sender"], answer.json()["seq"]) == (found.sender.hex(), 7), path
    assert (await send(bob, found, 0)).status_code == 201
    assert (await alice.call("GET", place(found, 0))).content == found.message(0).encode()


async def test_a_problem_names_no_group(log: Log, alice: LogClient) -> None:
    answer = await alice.call("GET", f"/shards/{alice.sender.hex()}/7")
    assert base58(GROUP) not in answer.text
