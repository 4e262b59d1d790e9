"""Requests to the spool nodes of a group, several at once. A node that does not answer is left alone for a while."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from angelia.api import Operation
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import BadAnswer, Exchange, Request, Response, together
from angelia.client.operation_requests import answer_of, request_for
from angelia.client.transport import origin
from angelia.errors import AngeliaError, InvalidArgument
from angelia.grouplog.model import records
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import MEDIA, FrameReader, LogMessage, Type
from angelia.grouplog.model.ids import base58
from angelia.grouplog.model.records import Record
from angelia.mailbox.log_application import LogEntry
from angelia.mailbox.log_own_snapshots import OwnSnapshots
from angelia.mailbox.log_replica import LogReplica, NodeFault
from angelia.mailbox.mailbox import Mailbox

LEFT_ALONE = 5.0  # seconds for which a node that did not answer is not asked again
_TRIES = 2
_MOST_UNTRUE = 100
Outcome: TypeAlias = Response | AngeliaError


@dataclass(eq=False)
class OpenLog:
    """A group log that is open on this device."""

    mailbox: Mailbox
    replica: LogReplica
    snapshots: OwnSnapshots
    silent: dict[bytes, tuple[float, AngeliaError]] = field(default_factory=dict)
    heard: list[LogEntry] | None = None  # what was applied for a follower, also by what it does beside
    untrue: deque[NodeFault] = field(default_factory=lambda: deque(maxlen=_MOST_UNTRUE))  # of nodes, newest last

    @property
    def gid(self) -> str:
        return base58(self.replica.edition.group)

    @property
    def nodes(self) -> tuple[EditionNode, ...]:
        return self.replica.edition.nodes


def node_request(operation: Operation[Any], node: EditionNode, *segments: object, **how: Any) -> Request:
    """Returns a request to one node. Frames are asked for where the operation answers them."""
    if operation.media == MEDIA:
        how["accept"] = MEDIA
    if MEDIA in operation.reads:
        how["content_type"] = MEDIA
    return request_for(operation, *segments, url=origin(node.url), tries=_TRIES, **how)


def ask_nodes(
    log: OpenLog, nodes: Iterable[EditionNode], make: Callable[[EditionNode], Request]
) -> Exchange[dict[bytes, Outcome]]:
    """Asks several nodes at once. Returns for each, by its id, the answer or the error."""
    outcomes: dict[bytes, Outcome] = {}
    asked: list[tuple[EditionNode, Request]] = []
    now = time.monotonic()
    for node in nodes:
        since, error = log.silent.get(node.id, (0.0, None))
        if error is not None and now - since < LEFT_ALONE:
            outcomes[node.id] = error
            continue
        try:
            asked.append((node, make(node)))
        except InvalidArgument as unusable:  # its address
            outcomes[node.id] = unusable
    answers = yield from together([request for _, request in asked])
    for (node, _), answer in zip(asked, answers, strict=True):
        log.silent.pop(node.id, None)
        if isinstance(answer, OSError):
            raise answer  # of the key file, not of the network
        if isinstance(answer, Unreachable):
            log.silent[node.id] = time.monotonic(), answer
        outcomes[node.id] = answer
    return outcomes


def read(operation: Operation[Any], outcomes: dict[bytes, Outcome]) -> dict[bytes, Any]:
    """Decodes JSON answers. An answer that cannot be read becomes its node's error."""
    found: dict[bytes, Any] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, Response):
            try:
                found[node] = answer_of(operation, outcome)
            except BadAnswer as error:
                outcomes[node] = error
    return found


def frames_of(answer: Response, most: int) -> list[tuple[int, bytes]]:
    """Cuts an answer into its frames; BadAnswer if it is cut short or has more of them than it may have."""
    reader = FrameReader()
    try:
        found = list(islice(reader.feed(answer.body), most + 1))
    except InvalidArgument as error:
        raise BadAnswer(f"the answer to {answer.path} cannot be read: {error.message}") from error
    if len(found) > most:
        raise BadAnswer(f"the answer to {answer.path} has more than was asked for")
    if not reader.empty:
        raise BadAnswer(f"the answer to {answer.path} is cut short")
    return found


def record_of(outcome: Outcome) -> Record | None:
    """The record in the answer to a request for one message; None if there is none that is sound."""
    if isinstance(outcome, AngeliaError):
        return None
    try:
        ((type_, body),) = frames_of(outcome, 1)
        return records.decode(LogMessage.decode(body).record) if type_ == Type.MESSAGE else None
    except (AngeliaError, ValueError):
        return None
