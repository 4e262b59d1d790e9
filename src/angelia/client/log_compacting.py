"""Compaction: a snapshot goes to the nodes, and once enough of them have signed for it, all forget what it replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from angelia.client import clock
from angelia.client.exchange import BadAnswer, Exchange, Request, Response
from angelia.client.log_completions import tell_completion, tell_completions
from angelia.client.log_nodes import OpenLog, ask_nodes, frames_of, node_request
from angelia.client.log_reading import sync
from angelia.client.log_writing import append_to, deliver, learn_own_seq
from angelia.errors import AngeliaError, NotDurable
from angelia.grouplog import api
from angelia.grouplog.model import placement
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import LogMessage, Type
from angelia.grouplog.model.pieces import Manifest, NodeReceipt
from angelia.grouplog.model.records import WHOLE
from angelia.mailbox.log_replica import OwnMessage


@dataclass(frozen=True, slots=True)
class Compacted:
    """A snapshot that is durable. `forgotten_by` are the nodes that have forgotten what it replaced; `pending` those
    that have not, each with the reason: they are told again by whatever uses the log next."""

    level: int
    seq: int
    size: int
    confirmed_by: list[bytes]
    forgotten_by: list[bytes] = field(default_factory=list)
    pending: dict[bytes, AngeliaError] = field(default_factory=dict)


def compact(log: OpenLog, level: int | None = None) -> Exchange[Compacted]:
    """Takes a snapshot now, and has the nodes forget what it replaces. Without a level it is the one that is due, or 1.

    NotDurable if too few nodes have it: then nothing is forgotten, and the next call goes on with the same snapshot."""
    yield from sync(log)
    yield from learn_own_seq(log)
    yield from deliver(log)
    done = None
    for own in log.snapshots.unfinished_snapshots():
        done = yield from _finish(log, own)
    if done is not None and level in (None, done.level):
        return done
    due = log.snapshots.due_level_now()
    own = log.snapshots.capture(level or due or 1)
    return (yield from _finish(log, own))


def compact_if_due(log: OpenLog) -> Exchange[Compacted | None]:
    """Takes the snapshot that is due, if it is this member's turn."""
    yield from tell_completions(log)
    level = log.snapshots.due_level(clock.now())
    return None if level is None else (yield from compact(log, level))


def _finish(log: OpenLog, own: OwnMessage) -> Exchange[Compacted]:
    receipts = yield from (_store_shards(log, own) if own.manifest else _store_whole(log, own))
    edition = log.replica.edition
    needed = Manifest.decode(own.manifest).shape.needed_receipts if own.manifest else edition.min_copies
    if len(receipts) < needed:
        raise NotDurable(
            f"{len(receipts)} nodes have stored the snapshot, and {needed} must",
            hint="nothing was forgotten; `angelia log compact` goes on with this snapshot when they are back",
        )
    document = log.snapshots.complete(own, receipts, clock.now())
    done, pending = yield from tell_completion(log, document, log.nodes)
    return Compacted(own.level, own.seq, len(own.ciphertext), [one.node for one in receipts], done, pending)


def _store_whole(log: OpenLog, own: OwnMessage) -> Exchange[list[NodeReceipt]]:
    """Stores a snapshot whole, on the nodes where it belongs or on the next ones."""
    edition, sender = log.replica.edition, log.replica.me.sender
    ranked = iter(placement.ranked(edition.node_ids, edition.group, sender, own.seq))
    wanted = placement.copies(edition.config, own.level, len(edition.nodes))
    digest, message = sha256(own.ciphertext).digest(), LogMessage(sender, own.seq, own.record)
    receipts: list[NodeReceipt] = []
    while targets := [node for node, _ in zip(ranked, range(wanted - len(receipts)), strict=False)]:
        outcomes = yield from append_to(log, {node: [message] for node in targets})
        for node, outcome in outcomes.items():
            if not isinstance(outcome, AngeliaError):
                receipts += _checked(log, own, NodeReceipt(node, WHOLE, digest, outcome[0].receipt))
    return receipts


def _store_shards(log: OpenLog, own: OwnMessage) -> Exchange[list[NodeReceipt]]:
    """Stores each shard on the node that the manifest names for it; if that is away, on one that has none."""
    manifest, shards = Manifest.decode(own.manifest), own.shards()
    edition, sender = log.replica.edition, log.replica.me.sender
    named = [place.node for place in manifest.places]
    ranked = placement.ranked(edition.node_ids, edition.group, sender, own.seq)
    spare = iter([node for node in ranked if node not in named])
    receipts: list[NodeReceipt] = []
    wanted = {index: node for index, node in enumerate(named) if node in edition.node_ids}
    left = set(range(len(shards)))
    if len(wanted) < len(named):  # nodes have left since
        wanted |= dict(zip([index for index in sorted(left) if index not in wanted], spare, strict=False))
    while wanted:
        by_node = {node: index for index, node in wanted.items()}

        def request(node: EditionNode, by_node: dict[bytes, int] = by_node) -> Request:
            index = by_node[node.id]
            body = LogMessage(sender, own.seq, shards[index]).encode()
            return node_request(api.PUT_SHARD, node, log.gid, sender.hex(), own.seq, index, body=body)

        outcomes = yield from ask_nodes(log, [node for node in log.nodes if node.id in by_node], request)
        for node, outcome in outcomes.items():
            index = by_node[node]
            signature = receipt_of(outcome)
            found = _checked(log, own, NodeReceipt(node, index, manifest.places[index].digest, signature))
            receipts += found
            left -= {index} if found else set()
        wanted = dict(zip(sorted(left), spare, strict=False))
    return receipts


def receipt_of(outcome: Response | AngeliaError) -> bytes:
    """The signature in the answer to a stored shard; nothing if there is none."""
    if isinstance(outcome, Response):
        try:
            for type_, body in frames_of(outcome, 1):
                if type_ == Type.RECEIPT:
                    return body
        except BadAnswer:
            return b""
    return b""


def _checked(log: OpenLog, own: OwnMessage, receipt: NodeReceipt) -> list[NodeReceipt]:
    """The receipt, if its node signed it: an answer alone proves nothing."""
    edition = log.replica.edition
    holds = len(receipt.signature) == 64 and receipt.holds(edition.group, log.replica.me.sender, own.seq, own.level)
    return [receipt] if holds else []
