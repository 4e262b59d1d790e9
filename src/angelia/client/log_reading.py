"""Reading a group log: all nodes are asked for what this device lacks, since each of them may withhold something."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from angelia.client.api_errors import Unreachable
from angelia.client.exchange import BadAnswer, Exchange, Request, Response
from angelia.client.log_completions import tell_completions
from angelia.client.log_editions import collect_editions
from angelia.client.log_nodes import OpenLog, ask_nodes, frames_of, node_request
from angelia.errors import AngeliaError, DamagedRecord, InvalidArgument, Unavailable
from angelia.grouplog import api
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import CURSOR_BYTES, Backfill, End, Hello, Hole, LogMessage, Type
from angelia.mailbox.log_application import LogEntry
from angelia.mailbox.log_replica import NodeFault, Taken

_LIMIT = 2_000
_PAGE_BYTES = 4 << 20
# A node may have nothing new on many pages, but pages of which nothing holds are no honest node's.
_USELESS_PAGES = 3
_MOST_PAGES = 2_000  # in one look: the next look goes on with what is still lacking
_MOST_UNTRUE = 100
_DAMAGED = DamagedRecord("the node's copy is damaged")


@dataclass(frozen=True, slots=True)
class Missing:
    """Messages of a sender that some node or member vouches for, and that no node handed out."""

    sender: str
    sender_id: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a look at all nodes brought. `untrue` names what nodes handed out and what did not hold: nothing of that was
    applied. `unread` are the nodes that could not be read, each with the reason."""

    entries: list[LogEntry] = field(default_factory=list)
    snapshots: int = 0
    untrue: list[NodeFault] = field(default_factory=list)
    unread: dict[bytes, AngeliaError] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    incomplete: list[tuple[str, int, int, int]] = field(
        default_factory=list
    )  # sender, seq, shards there, shards needed
    earlier: int = 0


@dataclass(slots=True)
class _Reader:
    """How far one node is read."""

    node: EditionNode
    cursor: bytes = b""
    done: bool = False
    pages: int = 0
    useless: int = 0


def sync(log: OpenLog) -> Exchange[Synced]:
    """Fetches what this device lacks from all nodes, opens it, and applies it to the state. Mail is looked at for a new
    edition first: nodes may have been replaced."""
    yield from look_for_editions(log)
    taken, unread = yield from read_nodes(log)
    yield from tell_completions(log)
    untrue = [*taken.untrue, *taken.strangers]
    log.untrue.extend(untrue)
    if log.heard is not None:
        log.heard += taken.entries
    return Synced(
        entries=taken.entries,
        snapshots=taken.snapshots,
        untrue=untrue[:_MOST_UNTRUE],
        unread=unread,
        missing=missing(log),
        incomplete=[(name_of(log, sender), seq, have, need) for sender, seq, have, need in log.replica.incomplete()],
        earlier=taken.earlier,
    )


def look_for_editions(log: OpenLog) -> Exchange[bool]:
    """Takes over editions that came by mail. Returns whether this group has another one now. A server that is away
    keeps nothing from being read."""
    before = log.replica.edition
    with contextlib.suppress(Unreachable, Unavailable):
        yield from collect_editions(log.mailbox)
    return log.replica.refresh() != before


def read_nodes(log: OpenLog) -> Exchange[tuple[Taken, dict[bytes, AngeliaError]]]:
    """Reads all nodes; once more if a new edition may open what could not be opened. Returns what came, and the nodes
    that could not be read."""
    taken, unread = yield from _read_nodes(log)
    if taken.later and (yield from look_for_editions(log)):
        again, unread = yield from _read_nodes(log)
        taken.untrue, taken.strangers, taken.earlier = [], [], 0
        taken.add(again)
    return taken, unread


def missing(log: OpenLog) -> list[Missing]:
    """The gaps below what was received: a later message, or a snapshot, vouches for what is missing there. What of this
    agent's own waits to be sent is not missing."""
    found, own = list[Missing](), log.replica.me.sender
    for sender, received in log.replica.received:
        waiting = log.replica.waiting() if sender == own else set[int]()
        for first, last in received.missing():
            for start, end in _without(first, last, sorted(waiting)):
                found.append(Missing(name_of(log, sender), sender, start, end))
    return found


def _without(first: int, last: int, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The parts of a range between numbers."""
    for number in numbers:
        if first <= number <= last:
            if first < number:
                yield first, number - 1
            first = number + 1
    if first <= last:
        yield first, last


def name_of(log: OpenLog, sender: bytes) -> str:
    member = log.replica.edition.by_sender(sender)
    return sender.hex() if member is None else member.handle


def hello(log: OpenLog, exclude: bytes | None = None) -> Hello:
    received = log.replica.received
    return Hello(received.vector, received.have, exclude)


def _read_nodes(log: OpenLog) -> Exchange[tuple[Taken, dict[bytes, AngeliaError]]]:
    readers = [_Reader(node) for node in log.nodes]
    taken, unread = Taken(), dict[bytes, AngeliaError]()
    while open_ := {one.node.id: one for one in readers if not one.done}:
        # With each round more is known, so the next pages leave out what another node has sent meanwhile.
        lacking = hello(log)

        def page(node: EditionNode, lacking: Hello = lacking, open_: dict[bytes, _Reader] = open_) -> Request:
            wanted = Backfill(lacking, _LIMIT, _PAGE_BYTES, open_[node.id].cursor)
            return node_request(api.BACKFILL, node, log.gid, body=wanted.encode())

        outcomes = yield from ask_nodes(log, [one.node for one in open_.values()], page)
        arrived: list[tuple[bytes, LogMessage]] = []
        for id_, outcome in outcomes.items():
            try:
                messages, holes = _turn(open_[id_], outcome)
            except AngeliaError as error:
                unread[id_] = error
                open_[id_].done = True
                continue
            arrived += ((id_, message) for message in messages)
            taken.untrue += [NodeFault(id_, hole.sender, hole.seq, _DAMAGED) for hole in holes]
        came = log.replica.take_in(arrived)
        taken.add(came)
        for id_, reader in open_.items():
            if not reader.done:
                reader.useless = reader.useless + 1 if _is_useless(id_, arrived, came) else 0
                if reader.useless == _USELESS_PAGES:
                    unread[id_] = BadAnswer("the node hands out what its senders have not written")
                    reader.done = True
    return taken, unread


def _turn(reader: _Reader, outcome: Response | AngeliaError) -> tuple[Sequence[LogMessage], Sequence[Hole]]:
    """Takes a page of a node, and notes where the next one begins."""
    if isinstance(outcome, AngeliaError):
        raise outcome
    messages, holes, end = page_of(outcome, reader.cursor, _LIMIT)
    reader.pages += 1
    if reader.pages > _MOST_PAGES:
        raise BadAnswer("the node's pages do not come to an end")
    reader.cursor, reader.done = end.cursor, not end.has_more
    return messages, holes


def _is_useless(node: bytes, arrived: Sequence[tuple[bytes, LogMessage]], came: Taken) -> bool:
    """Whether nothing holds of what a node handed out."""
    sent = sum(id_ == node for id_, _ in arrived)
    return 0 < sent <= sum(one.node == node for one in (*came.untrue, *came.strangers))


def page_of(answer: Response, after: bytes, limit: int) -> tuple[Sequence[LogMessage], Sequence[Hole], End]:
    """Parses the page behind a cursor; BadAnswer if it is none. Its rows rise, and the next page begins behind them, so
    the pages of a node that invents none come to an end."""
    messages, holes = list[LogMessage](), list[Hole]()
    frames, last = frames_of(answer, limit + 1), after
    try:
        if not frames or frames[-1][0] != Type.END:
            raise InvalidArgument("it has no end frame")
        for type_, body in frames[:-1]:
            if type_ not in (Type.MESSAGE, Type.HOLE):
                raise InvalidArgument(f"it has a frame of type {type_}")
            if body[:CURSOR_BYTES] <= last:
                raise InvalidArgument("its rows do not rise")
            last = body[:CURSOR_BYTES]
            if type_ == Type.MESSAGE:
                messages.append(LogMessage.decode(body))
            else:
                holes.append(Hole.decode(body))
        end = End.decode(frames[-1][1])
    except InvalidArgument as error:
        raise BadAnswer(f"the page of a node cannot be read: {error.message}") from error
    if end.has_more and (end.cursor != last or len(frames) == 1):
        raise BadAnswer("the node's pages do not come to an end")
    return messages, holes, end
