"""Completions: nothing is deleted on the word of a member alone. A snapshot must be proven durable, and be the one that
the completion names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from angelia.envelope.json_form import to_text
from angelia.errors import (
    AbsurdWatermark,
    AngeliaError,
    BadLevel,
    BadManifest,
    Denied,
    InvalidArgument,
    NotDurable,
    NotMember,
)
from angelia.grouplog import store
from angelia.grouplog.model import vectors
from angelia.grouplog.model.documents import (
    CompletionDocument,
    DeletionResult,
    EntryDocument,
    FloorDocument,
    NewNodes,
    NewRoster,
    NodeDocument,
)
from angelia.grouplog.model.frames import LogMessage, Status
from angelia.grouplog.model.groups import GroupConfig, LogFloor
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.pieces import Completion, NodeReceipt
from angelia.grouplog.model.records import WHOLE
from angelia.http.answers import STATUS
from grouplog.open_logs import GROUP, Key, Log, Snapshot, check_families, full, opened
from log_clients import LogClient, agent_of, served

NODES = [Key(b"node %d" % number) for number in range(5)]
HERE, OTHERS = NODES[0], NODES[1:]  # the node of the test, and four more
UNLISTED = Key(b"a node of another group")
SEQ = 7  # of the snapshot
SEEN = 9  # messages of the second member
FARTHEST = 1_000_000  # above what a node has seen


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    """A log of a group with five nodes and two copies. The first member has six messages, the second has nine."""
    async with opened(tmp_path, nodes=NODES, config=GroupConfig(min_copies=2)) as log:
        await fill(log)
        yield log


async def fill(log: Log) -> None:
    for sender, last in ((log.senders[0], SEQ - 1), (log.senders[1], SEEN)):
        await log.append(*((sender, seq, full(seq)) for seq in range(1, last + 1)))


def watermark_of(log: Log) -> dict[bytes, int]:
    return {log.senders[0]: SEQ - 1, log.senders[1]: 5}


def whole(log: Log, *, seq: int = SEQ, level: int = 2, watermark: Mapping[bytes, int] | None = None) -> Snapshot:
    """A snapshot of the first member that is stored whole."""
    covered = watermark_of(log) if watermark is None else watermark
    return Snapshot(GROUP, log.senders[0], seq, level, covered, b"all that was said so far")


def coded(log: Log, nodes: Sequence[Key] = NODES, **other: Any) -> Snapshot:
    """A snapshot of the first member in shards, three of them with data unless it is said."""
    other.setdefault("watermark", watermark_of(log))
    return Snapshot.coded(GROUP, log.senders[0], log.keys[0].sign, [node.public for node in nodes], seq=SEQ, **other)


async def store_whole(log: Log, snapshot: Snapshot) -> None:
    assert await log.append((snapshot.sender, snapshot.seq, snapshot.message().record)) == [Status.STORED]


async def store_shard(log: Log, snapshot: Snapshot, index: int = 0) -> None:
    _, status = await log.service.put_shard(log.group, log.members[0], snapshot.message(index), index)
    assert status is Status.STORED


def copies(snapshot: Snapshot, *nodes: Key) -> list[NodeReceipt]:
    return [snapshot.receipt(node) for node in nodes]


def pieces(snapshot: Snapshot, count: int) -> list[NodeReceipt]:
    """The receipts of the first nodes, each for its own shard."""
    return [snapshot.receipt(node, index) for index, node in enumerate(NODES[:count])]


def complete(
    log: Log,
    snapshot: Snapshot,
    receipts: Sequence[NodeReceipt],
    *,
    watermark: Mapping[bytes, int] | None = None,
    key: Key | None = None,
    manifest: bytes | None = None,
    **changes: Any,
) -> CompletionDocument:
    """The completion of a snapshot as the second member signs it; all that it says can be changed before."""
    covered = snapshot.watermark if watermark is None else watermark
    said = Completion(
        group=snapshot.group,
        level=snapshot.level,
        sender=snapshot.sender,
        seq=snapshot.seq,
        digest=snapshot.digest,
        watermark_digest=vectors.digest(covered),
        receipts=receipts,
        signer=log.senders[1],
    )
    signed = msgspec.structs.replace(said, **changes).signed((key or log.keys[1]).sign)
    return CompletionDocument.of(signed, covered, snapshot.manifest if manifest is None else manifest)


async def delete(log: Log, document: CompletionDocument, by: int = 0) -> DeletionResult:
    return await log.service.delete(log.group, log.members[by], document)


def floors(log: Log) -> set[LogFloor]:
    found = set(store.floors(log.rocks, log.group.ordinal))
    assert found == set(log.group.floors())
    return found


def expected_floors(log: Log, level: int = 2) -> set[LogFloor]:
    return {LogFloor(sender, level, seq) for sender, seq in watermark_of(log).items()}


@contextmanager
def refused(log: Log, error: type[AngeliaError]) -> Iterator[None]:
    """Asserts that a completion is refused so, and that nothing goes, and no floor is left."""
    before = log.rows(), floors(log)
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    assert (log.rows(), floors(log)) == before
    assert store.pending_deletion(log.rocks, log.group.id) is None


async def remove_member(log: Log, number: int) -> None:
    entries = [
        EntryDocument(binding=member.binding, public_key=to_text(member.public_key), admin=True)
        for member in log.members
        if member is not log.members[number]
    ]
    await log.service.replace_roster(log.group, log.members[0], NewRoster(epoch=1, roster=entries))


# A snapshot that is stored whole.


async def test_a_snapshot_with_enough_copies_replaces_what_is_under_its_watermark(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    result = await delete(log, complete(log, snapshot, copies(snapshot, *NODES[:2])))
    assert set(result.floors) == {FloorDocument.of(floor) for floor in expected_floors(log)}
    assert floors(log) == expected_floors(log)
    kept = {(log.senders[1], seq) for seq in range(6, SEEN + 1)} | {(snapshot.sender, SEQ)}
    assert set(check_families(log.rocks, log.group.ordinal)) == kept


async def test_the_receipt_that_an_append_returned_counts(log: Log) -> None:
    snapshot = whole(log)
    message = LogMessage(snapshot.sender, SEQ, snapshot.message().record)
    (answer,) = await log.service.append(log.group, log.members[0], [message])
    own = msgspec.structs.replace(snapshot.receipt(HERE), signature=answer.receipt)
    await delete(log, complete(log, snapshot, [own, snapshot.receipt(OTHERS[0])]))
    assert floors(log) == expected_floors(log)


async def test_a_node_that_holds_no_copy_takes_the_word_of_those_that_do(log: Log) -> None:
    snapshot = whole(log)
    await delete(log, complete(log, snapshot, copies(snapshot, *OTHERS[:2])))
    assert floors(log) == expected_floors(log)


async def test_any_member_may_bring_a_completion_that_another_signed(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    await delete(log, complete(log, snapshot, copies(snapshot, *NODES[:2])), by=2)
    assert floors(log) == expected_floors(log)


async def test_fewer_copies_than_the_group_wants_are_refused(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    for receipts in ([], copies(snapshot, HERE), copies(snapshot, OTHERS[0])):
        with refused(log, NotDurable):
            await delete(log, complete(log, snapshot, receipts))


def wrong_receipts(snapshot: Snapshot) -> dict[str, NodeReceipt]:
    """Receipts of a whole snapshot that do not count besides that of the node itself."""
    good = snapshot.receipt(OTHERS[0])
    return {
        "an unlisted node": snapshot.receipt(UNLISTED),
        "the same node again": snapshot.receipt(HERE),
        "another level": Snapshot(GROUP, snapshot.sender, SEQ, 1, {}, snapshot.data).receipt(OTHERS[0]),
        "another seq": Snapshot(GROUP, snapshot.sender, SEQ + 1, 2, {}, snapshot.data).receipt(OTHERS[0]),
        "another sender": Snapshot(GROUP, b"another!", SEQ, 2, {}, snapshot.data).receipt(OTHERS[0]),
        "another group": Snapshot(bytes(32), snapshot.sender, SEQ, 2, {}, snapshot.data).receipt(OTHERS[0]),
        "other bytes": Snapshot(GROUP, snapshot.sender, SEQ, 2, {}, b"other").receipt(OTHERS[0]),
        "a shard": msgspec.structs.replace(good, index=0),
        "a signature of another node": msgspec.structs.replace(good, node=OTHERS[1].public),
        "no signature": msgspec.structs.replace(good, signature=bytes(64)),
    }


WRONG = (
    "an unlisted node",
    "the same node again",
    "another level",
    "another seq",
    "another sender",
    "another group",
    "other bytes",
    "a shard",
    "a signature of another node",
    "no signature",
)


@pytest.mark.parametrize("fault", WRONG)
async def test_a_receipt_that_proves_no_further_copy_does_not_count(log: Log, fault: str) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, [snapshot.receipt(HERE), wrong_receipts(snapshot)[fault]]))


async def test_a_receipt_that_does_not_count_takes_nothing_from_those_that_do(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    wrong = wrong_receipts(snapshot)["other bytes"]
    await delete(log, complete(log, snapshot, [wrong, *copies(snapshot, *NODES[:2])]))
    assert floors(log) == expected_floors(log)


async def test_the_receipt_of_a_node_that_left_the_list_does_not_count_any_more(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    left = [NodeDocument(id=to_text(node.public), url="https://node.example") for node in (HERE, *OTHERS[1:])]
    await log.service.replace_nodes(log.group, log.members[0], NewNodes(epoch=1, nodes=left))
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, copies(snapshot, HERE, OTHERS[0])))


# Who says it.


async def test_a_completion_of_a_signer_that_was_never_a_member_is_refused(log: Log) -> None:
    snapshot, stranger = whole(log), Key(b"stranger")
    await store_whole(log, snapshot)
    document = complete(log, snapshot, copies(snapshot, *NODES[:2]), signer=b"stranger", key=stranger)
    with refused(log, NotMember):
        await delete(log, document)


async def test_a_completion_of_a_signer_that_was_removed_is_refused(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    document = complete(log, snapshot, copies(snapshot, *NODES[:2]))
    await remove_member(log, 1)
    with refused(log, NotMember):
        await delete(log, document)


async def test_a_completion_that_another_key_signed_than_its_signers_is_refused(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    with refused(log, Denied):
        await delete(log, complete(log, snapshot, copies(snapshot, *NODES[:2]), key=log.keys[2]))


@pytest.mark.parametrize("change", ["watermark", "level", "seq", "receipts"])
async def test_a_completion_that_was_changed_after_it_was_signed_is_refused(log: Log, change: str) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    document = complete(log, snapshot, copies(snapshot, *NODES[:3]))
    changes: dict[str, Any] = {
        "watermark": {**document.watermark, log.senders[1].hex(): SEEN},
        "level": 3,
        "seq": SEQ + 1,
        "receipts": document.receipts[:2],
    }
    with refused(log, Denied):
        await delete(log, msgspec.structs.replace(document, **{change: changes[change]}))


# Which snapshot it is about.


@pytest.mark.parametrize("level", [1, 3, 15])
async def test_a_completion_of_another_level_than_the_stored_snapshot_is_refused(log: Log, level: int) -> None:
    await store_whole(log, whole(log, level=2))
    claimed = whole(log, level=level)
    with refused(log, BadLevel):
        await delete(log, complete(log, claimed, copies(claimed, *OTHERS[:2])))


@pytest.mark.parametrize("level", [0, 16, 255])
async def test_a_completion_of_a_level_that_no_snapshot_has_is_refused(log: Log, level: int) -> None:
    claimed = whole(log, level=level)
    with refused(log, BadLevel):
        await delete(log, complete(log, claimed, copies(claimed, *OTHERS[:2])))


@pytest.mark.parametrize("above", [0, 1], ids=["its own seq", "more"])
async def test_a_watermark_that_covers_the_snapshot_itself_is_refused(log: Log, above: int) -> None:
    snapshot = whole(log, watermark={log.senders[0]: SEQ + above})
    await store_whole(log, snapshot)
    with refused(log, InvalidArgument):
        await delete(log, complete(log, snapshot, copies(snapshot, *NODES[:2])))


async def test_a_node_that_should_hold_a_copy_and_has_none_deletes_nothing_though_the_receipts_are_enough(
    log: Log,
) -> None:
    snapshot = whole(log)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, copies(snapshot, *NODES)))


async def test_a_node_whose_copy_is_damaged_deletes_nothing_though_the_receipts_are_enough(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    log.damage(snapshot.sender, SEQ)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, copies(snapshot, *NODES)))


async def test_a_copy_that_is_stored_again_after_damage_counts(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    log.damage(snapshot.sender, SEQ)
    await store_whole(log, snapshot)
    await delete(log, complete(log, snapshot, copies(snapshot, *NODES)))
    assert floors(log) == expected_floors(log)


@pytest.mark.parametrize("own", [True, False], ids=["with its own receipt", "with those of others"])
async def test_a_node_that_holds_other_bytes_under_the_id_deletes_nothing(log: Log, own: bool) -> None:
    await log.put(log.senders[0], SEQ, level=2, data=b"not that snapshot")
    snapshot = whole(log)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, copies(snapshot, *(NODES if own else OTHERS))))


# A snapshot in shards.


async def test_of_five_shards_with_three_of_data_four_receipts_are_needed(log: Log) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, pieces(snapshot, 3)))
    await delete(log, complete(log, snapshot, pieces(snapshot, 4)))
    assert floors(log) == expected_floors(log)
    assert log.rows()[snapshot.sender, SEQ] == snapshot.message(0).record


async def test_of_shards_without_spare_ones_all_receipts_are_needed(log: Log) -> None:
    snapshot = coded(log, data_shards=5)
    await store_shard(log, snapshot)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, pieces(snapshot, 4)))
    await delete(log, complete(log, snapshot, pieces(snapshot, 5)))
    assert floors(log) == expected_floors(log)


def wrong_pieces(snapshot: Snapshot) -> dict[str, NodeReceipt]:
    """Receipts of a coded snapshot that do not count besides those of its first three nodes."""
    good = snapshot.receipt(NODES[3], 3)
    lower = Snapshot(GROUP, snapshot.sender, SEQ, 1, {}, snapshot.data, snapshot.shape, b"", snapshot.shards)
    return {
        "an unlisted node": snapshot.receipt(UNLISTED, 3),
        "a node that counts already": snapshot.receipt(NODES[2], 3),
        "an index that counts already": snapshot.receipt(NODES[3], 2),
        "another level": lower.receipt(NODES[3], 3),
        "the whole object": snapshot.receipt(NODES[3], WHOLE),
        "an index beyond the last": msgspec.structs.replace(good, index=5),
        "the bytes of another index": msgspec.structs.replace(good, digest=snapshot.receipt(NODES[3], 4).digest),
        "a signature of another node": msgspec.structs.replace(good, node=NODES[4].public),
        "no signature": msgspec.structs.replace(good, signature=bytes(64)),
    }


WRONG_PIECES = (
    "an unlisted node",
    "a node that counts already",
    "an index that counts already",
    "another level",
    "the whole object",
    "an index beyond the last",
    "the bytes of another index",
    "a signature of another node",
    "no signature",
)


@pytest.mark.parametrize("fault", WRONG_PIECES)
async def test_a_receipt_that_proves_no_further_shard_does_not_count(log: Log, fault: str) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, [*pieces(snapshot, 3), wrong_pieces(snapshot)[fault]]))


async def test_a_node_that_the_manifest_names_and_that_has_no_shard_deletes_nothing(log: Log) -> None:
    snapshot = coded(log)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, pieces(snapshot, 5)))
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, pieces(snapshot, 5)[1:]))  # also if none claims that it has one


async def test_a_node_that_the_manifest_does_not_name_needs_no_shard(tmp_path: Path) -> None:
    nodes = [Key(b"a sixth node"), *NODES]
    async with opened(tmp_path, nodes=nodes, config=GroupConfig(min_copies=2)) as log:
        await fill(log)
        snapshot = coded(log)
        await delete(log, complete(log, snapshot, pieces(snapshot, 4)))
        assert floors(log) == expected_floors(log)


async def test_a_node_whose_shard_is_damaged_deletes_nothing_though_the_receipts_are_enough(log: Log) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    log.damage(snapshot.sender, SEQ)
    for receipts in (pieces(snapshot, 5), pieces(snapshot, 5)[1:]):
        with refused(log, NotDurable):
            await delete(log, complete(log, snapshot, receipts))


async def test_a_node_that_holds_a_shard_of_another_object_under_the_id_deletes_nothing(log: Log) -> None:
    await store_shard(log, coded(log, data=b"another object" * 400))
    snapshot = coded(log)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, pieces(snapshot, 5)[1:]))


async def test_a_node_that_holds_the_message_whole_deletes_nothing_for_a_completion_of_shards(log: Log) -> None:
    snapshot = coded(log)
    await log.put(snapshot.sender, SEQ, snapshot.level, snapshot.data)
    with refused(log, NotDurable):
        await delete(log, complete(log, snapshot, pieces(snapshot, 5)[1:]))


async def test_the_shard_of_a_completion_is_not_passed_off_as_a_whole_snapshot(log: Log) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    claimed = Snapshot(GROUP, snapshot.sender, SEQ, 2, snapshot.watermark, snapshot.data)
    with refused(log, NotDurable):
        await delete(log, complete(log, claimed, copies(claimed, *OTHERS)))


# The manifest of a completion.


async def test_a_manifest_of_another_watermark_is_refused(log: Log) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    more = {**snapshot.watermark, log.senders[1]: SEEN}
    with refused(log, BadManifest):
        await delete(log, complete(log, snapshot, pieces(snapshot, 5), watermark=more))


async def test_a_manifest_that_the_sender_did_not_sign_is_refused(log: Log) -> None:
    places = [node.public for node in OTHERS]
    forged = Snapshot.coded(GROUP, log.senders[0], log.keys[1].sign, places, watermark=watermark_of(log))
    receipts = [forged.receipt(node, index) for index, node in enumerate(OTHERS)]
    with refused(log, BadManifest):
        await delete(log, complete(log, forged, receipts))


async def test_a_manifest_that_is_not_the_one_of_the_signed_digest_is_refused(log: Log) -> None:
    snapshot, other = coded(log), coded(log, data=b"another object" * 400)
    await store_shard(log, snapshot)
    with refused(log, BadManifest):
        await delete(log, complete(log, snapshot, pieces(snapshot, 5), manifest=other.manifest))


async def test_a_manifest_of_another_message_is_refused(log: Log) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    with refused(log, BadManifest):
        await delete(log, complete(log, snapshot, pieces(snapshot, 5), seq=SEQ + 1))


async def test_a_manifest_of_another_level_is_refused(log: Log) -> None:
    snapshot = coded(log, level=2)
    claimed = coded(log, level=3)
    receipts = pieces(claimed, 5)[1:]
    with refused(log, BadLevel):
        await delete(log, complete(log, snapshot, receipts, level=3))


@pytest.mark.parametrize("manifest", [b"\0", b"no manifest at all" * 20], ids=["a byte", "noise"])
async def test_noise_in_place_of_a_manifest_is_refused(log: Log, manifest: bytes) -> None:
    snapshot = coded(log)
    noise = Snapshot(GROUP, snapshot.sender, SEQ, 2, snapshot.watermark, b"", snapshot.shape, manifest)
    with refused(log, BadManifest):
        await delete(log, complete(log, noise, pieces(snapshot, 5)))


async def test_the_snapshot_of_a_member_that_was_removed_may_still_be_completed(log: Log) -> None:
    places = [node.public for node in NODES]
    covered = {log.senders[2]: SEQ - 1, log.senders[1]: 5}
    snapshot = Snapshot.coded(GROUP, log.senders[2], log.keys[2].sign, places, watermark=covered)
    await log.service.put_shard(log.group, log.members[2], snapshot.message(0), 0)
    await remove_member(log, 2)
    await delete(log, complete(log, snapshot, pieces(snapshot, 4)))
    assert floors(log) == {LogFloor(sender, 2, seq) for sender, seq in covered.items()}


# Watermarks far above what is known.


async def complete_up_to(log: Log, up_to: int) -> None:
    """Completes the snapshot with a watermark for the second member alone."""
    snapshot = whole(log, watermark={log.senders[1]: up_to})
    await delete(log, complete(log, snapshot, copies(snapshot, *OTHERS[:2])))


async def test_a_watermark_a_million_above_what_is_known_is_taken(log: Log) -> None:
    await complete_up_to(log, SEEN + FARTHEST)
    assert floors(log) == {LogFloor(log.senders[1], 2, SEEN + FARTHEST)}


@pytest.mark.parametrize("up_to", [SEEN + FARTHEST + 1, MAX_SEQ], ids=["one more", "the largest"])
async def test_a_watermark_further_above_is_absurd(log: Log, up_to: int) -> None:
    with refused(log, AbsurdWatermark):
        await complete_up_to(log, up_to)
    assert STATUS[AbsurdWatermark.code] == 422


async def test_an_absurd_watermark_of_one_member_deletes_nothing_of_the_others(log: Log) -> None:
    snapshot = whole(log, watermark={**watermark_of(log), log.senders[2]: FARTHEST + 1})
    with refused(log, AbsurdWatermark):
        await delete(log, complete(log, snapshot, copies(snapshot, *OTHERS[:2])))


async def test_a_floor_is_not_raised_a_million_at_a_time_by_repeating(log: Log) -> None:
    await complete_up_to(log, SEEN + FARTHEST)
    with refused(log, AbsurdWatermark):
        await complete_up_to(log, SEEN + FARTHEST + 1)


async def test_a_floor_is_not_raised_a_million_at_each_start_of_the_node(tmp_path: Path) -> None:
    for _ in range(2):
        async with opened(tmp_path, nodes=NODES, config=GroupConfig(min_copies=2)) as log:
            await fill(log)  # superseded the second time
            await complete_up_to(log, SEEN + FARTHEST)
    async with opened(tmp_path, nodes=NODES, config=GroupConfig(min_copies=2)) as log:
        with refused(log, AbsurdWatermark):
            await complete_up_to(log, SEEN + FARTHEST + 1)


async def test_a_floor_is_not_raised_by_appends_that_it_supersedes(log: Log) -> None:
    await complete_up_to(log, SEEN + FARTHEST)
    assert await log.put(log.senders[1], SEEN + FARTHEST) is Status.SUPERSEDED
    with refused(log, AbsurdWatermark):
        await complete_up_to(log, SEEN + FARTHEST + 1)


# Who gets a floor.


async def test_senders_that_were_never_members_get_no_floor(log: Log) -> None:
    snapshot = whole(log, watermark={**watermark_of(log), b"stranger": 3, bytes(8): MAX_SEQ})
    await store_whole(log, snapshot)
    await delete(log, complete(log, snapshot, copies(snapshot, *NODES[:2])))
    assert floors(log) == expected_floors(log)


async def test_a_member_that_was_removed_gets_a_floor_since_its_messages_are_still_there(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    await remove_member(log, 1)
    document = complete(log, snapshot, copies(snapshot, *NODES[:2]), signer=log.senders[0], key=log.keys[0])
    await delete(log, document)
    assert floors(log) == {LogFloor(sender, 2, seq) for sender, seq in snapshot.watermark.items()}


async def test_a_member_with_a_watermark_of_nothing_gets_no_floor(log: Log) -> None:
    snapshot = whole(log, watermark={**watermark_of(log), log.senders[2]: 0})
    await store_whole(log, snapshot)
    await delete(log, complete(log, snapshot, copies(snapshot, *NODES[:2])))
    assert floors(log) == expected_floors(log)


# Again, and later.


async def test_the_same_completion_again_changes_nothing(log: Log) -> None:
    snapshot = whole(log)
    await store_whole(log, snapshot)
    document = complete(log, snapshot, copies(snapshot, *NODES[:2]))
    await delete(log, document)
    after = log.rows(), floors(log)
    assert await delete(log, document) == DeletionResult(floors=[], ranges=0, points=0)
    assert (log.rows(), floors(log)) == after


async def test_the_completion_of_a_snapshot_that_a_higher_one_replaced_is_accepted(log: Log) -> None:
    first, second = whole(log, level=1), whole(log, seq=SEQ + 1, level=2, watermark={log.senders[0]: SEQ})
    for snapshot in (first, second):
        await store_whole(log, snapshot)
    await delete(log, complete(log, second, copies(second, *NODES[:2])))
    assert (first.sender, SEQ) not in log.rows()
    await delete(log, complete(log, first, copies(first, *NODES[:2])))
    assert floors(log) == {LogFloor(log.senders[0], 2, SEQ), LogFloor(log.senders[1], 1, 5)}
    kept = {(log.senders[1], seq) for seq in range(6, SEEN + 1)} | {(second.sender, SEQ + 1)}
    assert set(check_families(log.rocks, log.group.ordinal)) == kept


async def test_a_replaced_snapshot_still_needs_its_receipts(log: Log) -> None:
    first, second = whole(log, level=1), whole(log, seq=SEQ + 1, level=2, watermark={log.senders[0]: SEQ})
    for snapshot in (first, second):
        await store_whole(log, snapshot)
    await delete(log, complete(log, second, copies(second, *NODES[:2])))
    with refused(log, NotDurable):
        await delete(log, complete(log, first, copies(first, HERE)))


# Over HTTP.


@pytest.fixture
async def bob(log: Log) -> AsyncIterator[LogClient]:
    async with served(log) as client:
        yield LogClient(client, agent_of(1), GROUP, 2)


async def post(member: LogClient, document: CompletionDocument) -> httpx.Response:
    return await member.call("POST", "/deletions", msgspec.json.encode(document))


async def test_a_deletion_answers_its_floors_and_what_it_removed(log: Log, bob: LogClient) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    answer = await post(bob, complete(log, snapshot, pieces(snapshot, 4)))
    assert answer.status_code == 200
    told = answer.json()
    named = {(floor["sender"], floor["level"], floor["seq"]) for floor in told["floors"]}
    assert named == {(floor.sender.hex(), floor.level, floor.seq) for floor in expected_floors(log)}
    assert (told["ranges"], told["points"]) == (2, 0)
    held = (await bob.call("GET", "/vector")).json()
    assert held["floors"] == told["floors"]


async def test_each_refusal_of_a_completion_has_its_status_and_code(log: Log, bob: LogClient) -> None:
    snapshot = coded(log)
    await store_shard(log, snapshot)
    receipts = pieces(snapshot, 5)
    absurd = whole(log, seq=SEQ + 1, watermark={log.senders[2]: MAX_SEQ})
    answers = {
        (412, "not_durable"): complete(log, snapshot, receipts[:3]),
        (422, "bad_manifest"): complete(log, snapshot, receipts, watermark={log.senders[1]: SEEN}),
        (422, "bad_level"): complete(log, snapshot, receipts, level=3),
        (422, "absurd_watermark"): complete(log, absurd, copies(absurd, *OTHERS[:2])),
        (403, "not_member"): complete(log, snapshot, receipts, signer=b"stranger"),
        (403, "authorization_denied"): complete(log, snapshot, receipts, key=log.keys[2]),
    }
    for expected, document in answers.items():
        answer = await post(bob, document)
        assert (answer.status_code, answer.json()["code"]) == expected
    assert floors(log) == set()
