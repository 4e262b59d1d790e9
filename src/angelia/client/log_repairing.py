"""Repair: shards are made again by any member, and whole messages are stored again by their sender."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from angelia.client.exchange import Exchange, Request
from angelia.client.log_checking import Checked, CheckFault, Finding, Id, MessageCopies, check
from angelia.client.log_compacting import receipt_of
from angelia.client.log_completions import tell_completions
from angelia.client.log_nodes import OpenLog, ask_nodes, node_request, record_of
from angelia.client.log_reading import name_of
from angelia.client.log_writing import append_to, deliver
from angelia.errors import AngeliaError, BadEncoding
from angelia.grouplog import api
from angelia.grouplog.model import coding, placement
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import LogMessage
from angelia.grouplog.model.pieces import Manifest, NodeReceipt
from angelia.grouplog.model.records import Kind, Record


@dataclass(frozen=True, slots=True)
class Repaired:
    """One piece that was stored again: a shard by its index, a whole message without one."""

    sender: str
    seq: int
    index: int | None
    node: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was stored again, and what could not be. `before` is the check that came first."""

    repaired: list[Repaired]
    left: list[Finding]
    before: Checked


def repair(log: OpenLog) -> Exchange[Repair]:
    """Checks all nodes, and stores again what is damaged, missing or on too few nodes.

    Shards of any member's snapshot are made again. A whole message is stored again only by its sender: nodes take it
    from no other member."""
    yield from deliver(log)
    before = yield from check(log)
    repaired, own = list[Repaired](), log.replica.me.sender
    wrong = {(one.sender_id, one.seq) for one in before.findings if one.fault is not CheckFault.CONFLICT}
    for id_ in sorted(wrong):
        held = before.held[id_]
        if len(held.whole) + len(held.shards) != 1:
            continue  # nothing is left, or it cannot be said which is right
        if held.shards:
            with contextlib.suppress(BadEncoding):  # its sender is at fault: it is among what is left
                repaired += yield from _repair_shards(log, id_, held)
        elif id_[0] == own:
            repaired += yield from _repair_whole(log, id_, held, before)
    yield from tell_completions(log)
    again = yield from check(log)
    return Repair(repaired=repaired, left=again.findings, before=before)


def _repair_shards(log: OpenLog, id_: Id, held: MessageCopies) -> Exchange[list[Repaired]]:
    (packed,) = held.shards
    manifest, by_index = Manifest.decode(packed), held.shards[packed]
    shards = yield from _fetch_shards(log, id_, manifest, by_index)
    if len(shards) < manifest.data_shards:
        return []
    ciphertext = coding.decode(shards, manifest.shape, manifest.length, manifest.digest)
    pieces = coding.encode(ciphertext, manifest.shape)
    listed, busy = log.replica.edition.node_ids, held.nodes
    named = [place.node for place in manifest.places]
    ranked = placement.ranked(listed, log.replica.edition.group, *id_)
    spare = iter([node for node in ranked if node not in busy and node not in named])
    wanted: dict[bytes, int] = {}
    for index, place in enumerate(manifest.places):
        if index in by_index:
            continue
        target = place.node if place.node in listed else next(spare, None)
        if target is not None:
            wanted[target] = index

    def request(node: EditionNode) -> Request:
        index = wanted[node.id]
        record = Record(manifest.level, pieces[index], index, manifest.data_shards, len(pieces), packed)
        body = LogMessage(*id_, record.encode()).encode()
        return node_request(api.PUT_SHARD, node, log.gid, id_[0].hex(), id_[1], index, body=body)

    outcomes = yield from ask_nodes(log, [node for node in log.nodes if node.id in wanted], request)
    done = []
    for node, outcome in outcomes.items():
        index = wanted[node]
        receipt = NodeReceipt(node, index, manifest.places[index].digest, receipt_of(outcome))
        if len(receipt.signature) == 64 and receipt.holds(log.replica.edition.group, *id_, manifest.level):
            done.append(Repaired(name_of(log, id_[0]), id_[1], index, node))
    return done


def _fetch_shards(
    log: OpenLog, id_: Id, manifest: Manifest, by_index: dict[int, set[bytes]]
) -> Exchange[dict[int, bytes]]:
    """Fetches shards until there are enough, each checked against the manifest."""
    shards: dict[int, bytes] = {}
    left = {min(nodes): index for index, nodes in by_index.items()}
    while left and len(shards) < manifest.data_shards:
        some = dict(list(left.items())[: manifest.data_shards - len(shards)])
        left = {node: index for node, index in left.items() if node not in some}

        def request(node: EditionNode, some: dict[bytes, int] = some) -> Request:
            return node_request(api.SHARD_DATA, node, log.gid, id_[0].hex(), id_[1], some[node.id])

        outcomes = yield from ask_nodes(log, [node for node in log.nodes if node.id in some], request)
        for node, outcome in outcomes.items():
            record = record_of(outcome)
            if record is not None and record.kind is Kind.SHARD and manifest.fits(some[node], record.data):
                shards[some[node]] = record.data
    return shards


def _repair_whole(log: OpenLog, id_: Id, held: MessageCopies, before: Checked) -> Exchange[list[Repaired]]:
    ((digest, holders),) = held.whole.items()
    edition = log.replica.edition
    wanted = placement.copies(edition.config, held.level, len(edition.nodes))
    away = [*held.bad, *placement.ranked(edition.node_ids, edition.group, *id_)]
    candidates = [node for node in dict.fromkeys(away) if node not in holders and node not in before.unread]
    missing = max(wanted - len(holders), len(held.bad))
    message = yield from _fetch_whole(log, id_, digest, holders)
    if message is None:
        return []
    outcomes = yield from append_to(log, {node: [message] for node in candidates[:missing]})
    name = name_of(log, id_[0])
    return [
        Repaired(name, id_[1], None, node)
        for node, outcome in outcomes.items()
        if not isinstance(outcome, AngeliaError)
    ]


def _fetch_whole(log: OpenLog, id_: Id, digest: bytes, holders: Iterable[bytes]) -> Exchange[LogMessage | None]:
    for node in log.nodes:
        if node.id in holders:
            outcomes = yield from ask_nodes(
                log, [node], lambda node: node_request(api.READ, node, log.gid, id_[0].hex(), id_[1])
            )
            record = record_of(outcomes[node.id])
            if record is not None and record.kind is Kind.FULL and sha256(record.data).digest() == digest:
                return LogMessage(*id_, record.encode())
    return None
