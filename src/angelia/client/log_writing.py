"""Writing to a group log: each update goes to the nodes where it belongs, or to the next ones if those are away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from angelia.client import clock
from angelia.client.api_errors import ApiError
from angelia.client.exchange import BadAnswer, Exchange, Request, Response
from angelia.client.log_completions import tell_completions
from angelia.client.log_nodes import OpenLog, ask_nodes, frames_of, node_request, record_of
from angelia.client.log_reading import read_nodes
from angelia.errors import AngeliaError, Conflict, RateLimited
from angelia.grouplog import api
from angelia.grouplog.model import placement
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import LogMessage, Result, Status, Type
from angelia.grouplog.model.groups import MAX_BATCH
from angelia.mailbox.log_application import LogEntry
from angelia.mailbox.log_replica import OwnMessage, OwnSeqUnknown

_BATCH_BYTES = 15 << 20
_LONGEST_WAIT = 30.0  # seconds to wait for a node that takes no more now


@dataclass(frozen=True, slots=True)
class Appended:
    """Updates that were written. `waiting` of this agent's are on this device only, or on too few nodes: they are sent
    again by whatever uses the log next. `failures` says why, by node."""

    entries: list[LogEntry]
    waiting: int
    failures: dict[bytes, AngeliaError]

    @property
    def durable(self) -> bool:
        return self.waiting == 0


@dataclass(slots=True)
class _Delivery:
    """One update on its way: the nodes that have it, and those to try next, the best first."""

    message: OwnMessage
    wanted: int
    next: Iterator[bytes]
    held: set[bytes] = field(default_factory=set)

    def targets(self) -> list[bytes]:
        return list(islice(self.next, max(0, self.wanted - len(self.held))))


def append(log: OpenLog, *contents: bytes | str) -> Exchange[Appended]:
    """Writes updates. They are durable on this device before they leave it, and applied to its state at once."""
    log.replica.refresh()
    yield from learn_own_seq(log)
    bodies = [one.encode() if isinstance(one, str) else one for one in contents]
    entries = log.replica.write(bodies, clock.now())
    waiting, failures = yield from deliver(log)
    yield from tell_completions(log)
    return Appended(entries, waiting, failures)


def deliver(log: OpenLog) -> Exchange[tuple[int, dict[bytes, AngeliaError]]]:
    """Sends the updates that not enough nodes have. Returns how many still wait, and why, by node."""
    failures: dict[bytes, AngeliaError] = {}
    waiting, after = 0, 0
    while batch := log.replica.queued(after, MAX_BATCH):
        after = batch[-1].seq
        deliveries = [_delivery(log, message) for message in batch]
        split = False
        while not split and (wanted := _by_node(deliveries)):
            outcomes = yield from _send(log, wanted)
            for node, outcome in outcomes.items():
                if isinstance(outcome, AngeliaError):
                    failures[node] = outcome
                    split |= isinstance(outcome, Conflict) and (yield from _is_split(log, node, wanted[node]))
                else:
                    _note(log, node, wanted[node], outcome, failures)
        durable = [one.message.seq for one in deliveries if len(one.held) >= one.wanted and not split]
        if durable:
            log.replica.settle(durable)
        waiting += len(batch) - len(durable)
    return waiting, failures


def _note(
    log: OpenLog,
    node: bytes,
    deliveries: Sequence[_Delivery],
    results: Sequence[Result],
    failures: dict[bytes, AngeliaError],
) -> None:
    """Notes which updates a node has. One that is superseded counts if a snapshot that contains it was applied here."""
    own = log.replica.received.of(log.replica.me.sender)
    for delivery, result in zip(deliveries, results, strict=True):
        if result.status is not Status.SUPERSEDED or result.seq in own:
            delivery.held.add(node)
        else:
            failures[node] = Conflict(f"a snapshot has replaced update {result.seq:,}, which it may not contain")


def _is_split(log: OpenLog, node: bytes, deliveries: Sequence[_Delivery]) -> Exchange[bool]:
    """Whether a node that refuses a number has another update of this agent under it. Its word alone proves nothing."""
    sender = log.replica.me.sender
    for delivery in deliveries:
        message = delivery.message
        outcomes = yield from ask_nodes(
            log,
            [one for one in log.nodes if one.id == node],
            lambda one, seq=message.seq: node_request(api.READ, one, log.gid, sender.hex(), seq),  # type: ignore[misc]
        )
        if (record := record_of(outcomes[node])) is not None and log.replica.is_another_own(message, record):
            return True
    return False


def learn_own_seq(log: OpenLog) -> Exchange[None]:
    """Reads how far this agent has written, if this device does not know it. So many nodes must answer that none of its
    messages can be on the others alone; only what opens counts, since a node may invent numbers."""
    if log.replica.knows_own_seq:
        return
    edition = log.replica.edition
    _, unread = yield from read_nodes(log)
    if len(unread) >= placement.copies(edition.config, 0, len(edition.nodes)):
        for error in unread.values():
            if isinstance(error, ApiError) and error.status < 500:
                raise error
        raise OwnSeqUnknown(
            f"{len(unread)} nodes do not answer, and what this agent wrote before may be on them alone",
            hint="this device has to know that before it writes; try again when they are back",
        )
    log.replica.learn_own_seq()


def _delivery(log: OpenLog, message: OwnMessage) -> _Delivery:
    edition = log.replica.edition
    nodes = placement.ranked(edition.node_ids, edition.group, log.replica.me.sender, message.seq)
    return _Delivery(message, placement.copies(edition.config, 0, len(nodes)), iter(nodes))


def _by_node(deliveries: Sequence[_Delivery]) -> dict[bytes, list[_Delivery]]:
    """What each node is to get next."""
    wanted: dict[bytes, list[_Delivery]] = {}
    for delivery in deliveries:
        for node in delivery.targets():
            wanted.setdefault(node, []).append(delivery)
    return wanted


def _send(log: OpenLog, wanted: dict[bytes, list[_Delivery]]) -> Exchange[dict[bytes, list[Result] | AngeliaError]]:
    """Sends each node its messages, in as many requests as they take."""
    results: dict[bytes, list[Result] | AngeliaError] = {node: [] for node in wanted}
    parts = {node: list(_parts(log, deliveries)) for node, deliveries in wanted.items()}
    for number in range(max(map(len, parts.values()))):
        bodies = {
            node: bodies[number]
            for node, bodies in parts.items()
            if number < len(bodies) and not isinstance(results[node], AngeliaError)
        }
        for node, outcome in (yield from append_to(log, bodies)).items():
            before = results[node]
            results[node] = outcome if isinstance(outcome, AngeliaError) else [*before, *outcome]  # type: ignore[misc]
    return results


def append_to(
    log: OpenLog, bodies: dict[bytes, list[LogMessage]]
) -> Exchange[dict[bytes, list[Result] | AngeliaError]]:
    """Appends messages to nodes. One that takes no more now is waited for."""
    results: dict[bytes, list[Result] | AngeliaError] = {}
    wait, waited = 0, 0.0
    while left := {id_: sent for id_, sent in bodies.items() if id_ not in results}:

        def request(node: EditionNode, left: dict[bytes, list[LogMessage]] = left, wait: int = wait) -> Request:
            body = b"".join(message.encode() for message in left[node.id])
            return node_request(api.APPEND, node, log.gid, body=body, after=wait)

        outcomes = yield from ask_nodes(log, [node for node in log.nodes if node.id in left], request)
        waited += wait
        wait = 0
        for id_, outcome in outcomes.items():
            if isinstance(outcome, RateLimited) and waited + (outcome.retry_after or 1) <= _LONGEST_WAIT:
                wait = max(wait, outcome.retry_after or 1)
            else:
                results[id_] = outcome if isinstance(outcome, AngeliaError) else _results(outcome, left[id_])
    return results


def _results(answer: Response, sent: Sequence[LogMessage]) -> list[Result] | AngeliaError:
    try:
        found = [Result.decode(body) for type_, body in frames_of(answer, len(sent)) if type_ == Type.RESULT]
        if [(one.sender, one.seq) for one in found] != [(one.sender, one.seq) for one in sent]:
            raise BadAnswer("the node answers for other messages than it was sent")
    except AngeliaError as error:
        return error
    return found


def _parts(log: OpenLog, deliveries: Sequence[_Delivery]) -> Iterator[list[LogMessage]]:
    """Cuts what a node is to get into requests."""
    part, size, sender = list[LogMessage](), 0, log.replica.me.sender
    for delivery in deliveries:
        record = delivery.message.record
        if part and size + len(record) > _BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(LogMessage(sender, delivery.message.seq, record))
        size += len(record) + 32
    if part:
        yield part
