"""What became of mail, over HTTP: receipts and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.api import Access, Answer, Call, Moment, PageSize, Role, Route, cursor_after, parse_cursor
from angelia.api.route import declared
from angelia.envelope.receipts import ReceiptDocument
from angelia.errors import Denied
from angelia.mail import receipts as receipts_service
from angelia.mail.dead_letters import DeadLetters
from angelia.mail.model import Queued, ReceiptAnswer, Side, Status, parse_replay_key
from angelia.mail.receipts import Receipts
from angelia.mail.routes import RECEIVE


class ReceiptQuery(msgspec.Struct, frozen=True):
    """`side` asks for what the caller sent, or for what it received, alone."""

    status: Status | None = None
    since: Moment | None = None
    side: Side | None = None
    cursor: str | None = None
    limit: PageSize = 50


class ReceiptPage(msgspec.Struct, frozen=True):
    """Receipts of what the caller sent and received, newest first."""

    receipts: list[ReceiptAnswer]
    next: str | None


class DeadLetterQuery(msgspec.Struct, frozen=True):
    """`agent` is for operators; everybody else sees their own."""

    agent: str | None = None
    cursor: str | None = None
    limit: PageSize = 50


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be delivered; its content stays sealed."""

    replay_key: str
    message_id: UUID
    sender: str
    recipient: str
    priority: int
    wire_bytes: int
    dead_at: datetime | None
    reason: str | None
    expires_at: datetime


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Dead letters, newest first."""

    dead_letters: list[DeadLetter]
    next: str | None


def routes(receipts: Receipts, dead_letters: DeadLetters) -> list[Route]:
    return [*_receipt_routes(receipts), *_dead_letter_routes(dead_letters)]


def _receipt_routes(receipts: Receipts) -> list[Route]:
    async def one(call: Call) -> Answer:
        found = await receipts.one(call.agent, parse_replay_key(call.path("replay_key")))
        return Answer(body=receipts_service.answer(found))

    async def page(call: Call) -> Answer:
        query = call.query(ReceiptQuery)
        before = parse_cursor(query.cursor)
        found = await receipts.page(call.agent, query.status, query.since, before, query.limit + 1, query.side)
        shown, more = found[: query.limit], len(found) > query.limit
        following = cursor_after(shown[-1].sent_at, shown[-1].receipt_id) if more else None
        return Answer(body=ReceiptPage([receipts_service.answer(row) for row in shown], following))

    async def take(call: Call) -> Answer:
        row = await receipts.take(call.agent, call.json(ReceiptDocument), call.now)
        return Answer(body=receipts_service.answer(row))

    return [
        declared(
            "GET", "/v1/receipts", page, Access.AGENT, "Receipts of what the caller sent and received",
            {200: ReceiptPage}, query=ReceiptQuery, rule=RECEIVE,
        ),
        declared(
            "POST", "/v1/receipts", take, Access.AGENT, "Hand in a signed receipt",
            {200: ReceiptAnswer}, takes=ReceiptDocument, rule=RECEIVE,
        ),
        declared(
            "GET", "/v1/receipts/{replay_key}", one, Access.AGENT, "The receipt of one message",
            {200: ReceiptAnswer}, rule=RECEIVE,
        ),
    ]  # fmt: skip


def _dead_letter_routes(dead_letters: DeadLetters) -> list[Route]:
    async def page(call: Call) -> Answer:
        query = call.query(DeadLetterQuery)
        own = query.agent is None or (call.caller.agent is not None and query.agent in _names(call))
        if not own and call.caller.role < Role.ADMIN:
            raise Denied("only an operator sees another agent's dead letters", hint="leave out `agent` for your own")
        name = call.agent.handle if own or query.agent is None else query.agent
        found = await dead_letters.page(name, _parse_dead_cursor(query.cursor), query.limit + 1)
        shown, more = found[: query.limit], len(found) > query.limit
        following = _dead_cursor(shown[-1]) if more else None
        return Answer(body=DeadLetterPage([_dead_letter(row) for row in shown], following))

    async def requeue(call: Call) -> Answer:
        operator = call.caller.role >= Role.ADMIN
        owner = None if operator else call.agent.handle
        key = parse_replay_key(call.path("replay_key"))
        return Answer(body=_dead_letter(await dead_letters.requeue(key, owner, call.caller.known_as, call.now)))

    return [
        declared(
            "GET", "/v1/dead-letters", page, Access.READ, "Messages that could not be delivered",
            {200: DeadLetterPage}, query=DeadLetterQuery, rule=RECEIVE,
        ),
        declared(
            "POST", "/v1/dead-letters/{replay_key}/requeue", requeue, Access.WRITE, "Try a dead letter again",
            {200: DeadLetter}, rule=RECEIVE,
        ),
    ]  # fmt: skip


def _names(call: Call) -> Sequence[str]:
    return call.agent.handle, str(call.agent.id)


def _dead_letter(row: Queued) -> DeadLetter:
    return DeadLetter(
        replay_key=row.replay_key.hex(),
        message_id=row.message_id,
        sender=row.sender,
        recipient=row.recipient,
        priority=int(row.priority),
        wire_bytes=row.wire_bytes,
        dead_at=row.dead_at,
        reason=row.dead_reason,
        expires_at=row.expires_at,
    )


def _dead_cursor(row: Queued) -> str:
    assert row.dead_at is not None, "it is dead"
    return cursor_after(row.dead_at, UUID(bytes=row.mref))


def _parse_dead_cursor(text: str | None) -> tuple[datetime, bytes] | None:
    found = parse_cursor(text)
    return None if found is None else (found[0], found[1].bytes)
