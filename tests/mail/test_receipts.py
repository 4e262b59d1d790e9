"""Receipts: what became of each message, whose word that is, and that there is no way back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.receipts import Receipt, ReceiptStatus, check_receipt, parse_receipt, receipt_document
from angelia.envelope.receipts import ReceiptDocument as Document
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import TTL_MAX, Envelope
from angelia.errors import Conflict, KeyRevoked, MessageExpired, ReceiptArchived
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import Reason
from angelia.mail.acknowledgement import Acknowledged
from angelia.mail.model import (
    ARCHIVE_MARGIN,
    Attested,
    DeliveryStatus,
    ReceiptBacklog,
    ReceiptRecord,
    closed_before,
    final_before,
)
from angelia.mail.receipts import waiting
from http_agents import Server
from keyholder import now_ms
from mail_agents import Correspondent, random_key
from mail_office import PostOffice, told

DELIVERED, READ, FAILED = ReceiptStatus.DELIVERED, ReceiptStatus.READ, ReceiptStatus.FAILED
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


async def hand_in(server: Server, who: Correspondent, receipt: Receipt) -> httpx.Response:
    return await who.post(server, "/v1/receipts", receipt_document(receipt))


async def acknowledged(server: Server, who: Correspondent, **how: Any) -> None:
    (got,) = await who.poll(server)
    (done,) = await who.ack(server, got, **how)
    assert done["acknowledged"], done


# Whose word it is.


async def test_a_message_that_waits_is_pending(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    envelope = await alice.sent(server, bob)
    receipt = await alice.receipt_of(server, envelope.replay_key)
    assert (receipt["status"], receipt["attested_by"], receipt["receipt"]) == ("pending", "relay", None)
    assert (receipt["delivered_at"], receipt["acknowledged_at"], receipt["read_at"]) == (None, None, None)
    assert unix_ms(datetime.fromisoformat(receipt["sent_at"])) == envelope.header.created_at


async def test_an_acknowledgment_without_a_receipt_is_the_relays_word(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    await acknowledged(server, bob)
    receipt = await alice.receipt_of(server, envelope.replay_key)
    assert (receipt["status"], receipt["attested_by"], receipt["receipt"]) == ("delivered", "relay", None)


async def test_a_signed_receipt_comes_to_the_sender_so_that_it_can_check_it_itself(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    await acknowledged(server, bob, receipts=[bob.receipt(envelope, READ)])
    told = await alice.receipt_of(server, envelope.replay_key)
    assert (told["status"], told["attested_by"]) == ("read", "recipient")
    assert told["read_at"] is not None
    document = msgspec.convert(told["receipt"], Document)
    check_receipt(parse_receipt(document), bob.pair.public)


async def test_an_acknowledgment_does_not_take_the_recipients_word_away(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    assert (await hand_in(server, bob, bob.receipt(envelope))).status_code == 200
    await acknowledged(server, bob)
    receipt = await alice.receipt_of(server, envelope.replay_key)
    assert (receipt["status"], receipt["attested_by"]) == ("delivered", "recipient")
    assert receipt["receipt"]["status"] == "delivered"
    assert receipt["acknowledged_at"] is not None


async def test_a_recipient_may_sign_later_what_the_relay_said_before(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    await acknowledged(server, bob)
    answer = await hand_in(server, bob, bob.receipt(envelope))
    assert (answer.json()["status"], answer.json()["attested_by"]) == ("delivered", "recipient")


async def test_a_hundred_messages_are_acknowledged_with_their_receipts_in_one_request(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    agent = await office.agent(alice)
    made = [alice.seal(bob, created_at=unix_ms(now)) for _ in range(100)]
    await office.mail.send_many(agent, made, now)
    got = await bob.poll(server, max_messages=100)
    assert len(got) == 100
    done = await bob.ack(server, *got, receipts=[bob.receipt(one.envelope, READ) for one in got])
    assert all(one["acknowledged"] for one in done)
    page = (await alice.get(server, "/v1/receipts?status=read&limit=1000")).json()
    assert len(page["receipts"]) == 100


async def test_failed_takes_a_waiting_message_out_of_the_queue_with_its_reason(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    envelope = await alice.sent(server, bob)
    answer = await hand_in(server, bob, bob.receipt(envelope, FAILED, reason="no such key here"))
    assert (answer.json()["status"], answer.json()["failure_reason"]) == ("failed", "no such key here")
    assert await bob.poll(server) == []
    (dead,) = (await bob.get(server, "/v1/dead-letters")).json()["dead_letters"]
    assert dead["reason"] == "no such key here"
    assert await told(connection, "message_failed") == [("message_failed", "bob", "alice")]


# No way back.


async def test_read_may_come_before_the_acknowledgment_and_stays(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    assert (await hand_in(server, bob, bob.receipt(envelope, READ))).json()["status"] == "read"
    await acknowledged(server, bob)
    receipt = await alice.receipt_of(server, envelope.replay_key)
    assert (receipt["status"], receipt["receipt"]["status"]) == ("read", "read")
    assert receipt["acknowledged_at"] is not None


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([DELIVERED, READ], []),
        ([READ], [DELIVERED, FAILED]),
        ([FAILED], [DELIVERED, READ]),
        ([DELIVERED, FAILED], [DELIVERED, READ]),
        ([DELIVERED, READ], [FAILED]),
    ],
)
async def test_a_receipt_goes_on_and_never_back(
    server: Server,
    alice: Correspondent,
    bob: Correspondent,
    steps: list[ReceiptStatus],
    refused: list[ReceiptStatus],
) -> None:
    envelope = await alice.sent(server, bob)
    for step in steps:
        answer = await hand_in(server, bob, bob.receipt(envelope, step))
        assert (answer.status_code, answer.json()["status"]) == (200, step.name.lower())
    for step in refused:
        answer = await hand_in(server, bob, bob.receipt(envelope, step))
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert (await alice.receipt_of(server, envelope.replay_key))["status"] == steps[-1].name.lower()


async def test_the_same_receipt_again_changes_nothing(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    envelope = await alice.sent(server, bob)
    receipt = bob.receipt(envelope, READ)
    first, again = await hand_in(server, bob, receipt), await hand_in(server, bob, receipt)
    assert (again.status_code, again.json()) == (200, first.json())
    assert len(await told(connection, "message_read")) == 1


async def test_what_expired_stays_expired(
    office: PostOffice, server: Server, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now - MINUTE, ttl_seconds=30)
    await office.background.expire(now)
    for step in ReceiptStatus:
        assert (await hand_in(server, bob, bob.receipt(envelope, step))).status_code == 409
    assert (await office.receipt(alice, envelope)).status is DeliveryStatus.EXPIRED


async def test_what_was_delivered_does_not_expire(
    office: PostOffice, server: Server, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    """The recipient said that it has the message and never acknowledged it: the envelope goes, the word stays."""
    kept = {step: await office.sent(alice, bob, now - MINUTE, ttl_seconds=600) for step in (DELIVERED, READ)}
    for step, envelope in kept.items():
        assert (await hand_in(server, bob, bob.receipt(envelope, step))).status_code == 200
    await office.background.expire(now + 10 * MINUTE)
    assert [(await office.receipt(alice, one)).status for one in kept.values()] == [
        DeliveryStatus.DELIVERED,
        DeliveryStatus.READ,
    ]


def _row(status: DeliveryStatus) -> ReceiptRecord:
    values: dict[str, Any] = dict.fromkeys(ReceiptRecord.__struct_fields__)
    return ReceiptRecord(**(values | {"status": status, "attested_by": Attested.RELAY}))


@given(st.lists(st.sampled_from(DeliveryStatus), max_size=6))
def test_whatever_is_tried_a_receipt_only_moves_along_the_states(tried: list[DeliveryStatus]) -> None:
    allowed = {
        DeliveryStatus.PENDING: {
            DeliveryStatus.DELIVERED,
            DeliveryStatus.READ,
            DeliveryStatus.EXPIRED,
            DeliveryStatus.FAILED,
        },
        DeliveryStatus.DELIVERED: {DeliveryStatus.READ, DeliveryStatus.FAILED},
        DeliveryStatus.READ: set(),
        DeliveryStatus.EXPIRED: set(),
        DeliveryStatus.FAILED: set(),
    }
    status = DeliveryStatus.PENDING
    for step in tried:
        if step in allowed[status]:
            _row(status).check_step(step)
            status = step
        else:
            with pytest.raises(Conflict):
                _row(status).check_step(step)


# What cannot be believed.


async def forged(bob: Correspondent, carol: Correspondent, envelope: Envelope, how: str) -> Receipt:
    real = bob.receipt(envelope)
    if how == "another pair":
        return replace(carol.receipt(envelope), recipient_nhi="bob", signer_id=bob.pair.public.signer_id)
    if how == "another's id":
        return replace(real, signer_id=carol.pair.public.signer_id)
    if how == "another status":
        return replace(real, status=READ)
    if how == "another time":
        return replace(real, time_ms=real.time_ms - 1)
    if how == "another reason":
        return replace(real, reason="x")
    return replace(real, signatures=replace(real.signatures, ml_dsa=carol.receipt(envelope).signatures.ml_dsa))


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("another pair", "signature_verification_failed"),
        ("another's id", "key_not_found"),
        ("another status", "signature_verification_failed"),
        ("another time", "signature_verification_failed"),
        ("another reason", "signature_verification_failed"),
        ("one signature", "signature_verification_failed"),
    ],
)
async def test_a_receipt_whose_signatures_do_not_hold_changes_nothing(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent, how: str, code: str
) -> None:
    envelope = await alice.sent(server, bob)
    receipt = await forged(bob, carol, envelope, how)
    assert (await hand_in(server, bob, receipt)).json()["code"] == code
    (got,) = await bob.poll(server)
    (done,) = await bob.ack(server, got, receipts=[receipt])
    assert (done["acknowledged"], done["problem"]["code"]) == (False, code)
    assert (await alice.receipt_of(server, envelope.replay_key))["status"] == "pending"


async def test_a_receipt_is_its_recipients_own_and_of_the_message_that_it_names(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    envelope, other = await alice.sent(server, bob), await alice.sent(server, carol)
    # Signed well, about a message that carol never got.
    answer = await hand_in(server, carol, carol.receipt(envelope))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    # Handed in by another than who signed it.
    assert (await hand_in(server, alice, bob.receipt(envelope))).json()["code"] == "invalid_argument"
    # The id of one message under the key of another.
    crossed = replace(other, header=replace(other.header, message_id=envelope.header.message_id))
    answer = await hand_in(server, carol, carol.receipt(crossed))
    assert answer.json()["code"] == "invalid_argument"
    # A receipt of one message in the acknowledgment of another.
    (got,) = await bob.poll(server)
    (done,) = await bob.ack(server, got, receipts=[bob.receipt(other)])
    assert done["problem"]["code"] == "invalid_argument"


async def test_a_receipt_from_the_future_is_refused(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    envelope = await alice.sent(server, bob)
    for at in (now_ms() + 301_000, 2**53, 2**64 - 1):
        answer = await hand_in(server, bob, bob.receipt(envelope, at=at))
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert (await hand_in(server, bob, bob.receipt(envelope, at=now_ms() + 290_000))).status_code == 200


async def test_a_receipt_signed_by_a_stolen_pair_is_refused(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    signed = bob.receipt(envelope, at=unix_ms(now))
    link = bob.rotation(at=unix_ms(now + SECOND), signer=True, grace=False)
    await bob.accepted(  # type: ignore[arg-type]
        office, link, reason=Reason.EMERGENCY, emergency=Emergency("stolen", now, None)
    )
    with pytest.raises(KeyRevoked):
        await office.receipts.take(await office.agent(bob), receipt_document(signed), now + MINUTE)


NO_RECEIPTS: list[Any] = [
    {"status": "pending"},
    {"status": "expired"},
    {"replay_key": "0" * 63},
    {"replay_key": "G" * 64},
    {"reason": "x" * 1025},
    {"reason": "ü" * 600},
    {"time_ms": -1},
    {"time_ms": 2**64},
    {"sender_nhi": "Al ice"},
    {"signature_ed25519": "!"},
    {"more": 1},
]


async def test_what_is_no_receipt_is_refused(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    for change in NO_RECEIPTS:
        envelope = await alice.sent(server, bob)
        document = msgspec.to_builtins(receipt_document(bob.receipt(envelope))) | change
        answer = await bob.post(server, "/v1/receipts", document)
        assert answer.status_code == 400, answer.text


async def test_a_reason_that_no_text_column_holds_is_refused(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    answer = await hand_in(server, bob, bob.receipt(envelope, FAILED, reason="nul\0nul"))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


# Lists.


async def test_sender_and_recipient_list_their_own_newest_first_page_by_page(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    sent = [
        (await office.sent(who, to, now - (9 - n) * SECOND)).replay_key
        for n, (who, to) in enumerate([(alice, bob), (bob, alice), (alice, alice), (carol, bob), (alice, carol)])
    ]
    seen: list[str] = []
    cursor, pages = "", 0
    while cursor is not None:
        page = (await alice.get(server, f"/v1/receipts?limit=2{cursor}")).json()
        seen += [one["replay_key"] for one in page["receipts"]]
        cursor = f"&cursor={page['next']}" if page["next"] else None  # type: ignore[assignment]
        pages += 1
    assert (seen, pages) == ([sent[4], sent[2], sent[1], sent[0]], 2)
    # Whoever wrote it and whoever got it, and nobody else.
    assert (await carol.get(server, f"/v1/receipts/{sent[0]}")).status_code == 404
    assert (await bob.get(server, f"/v1/receipts/{sent[0]}")).status_code == 200
    assert (await alice.get(server, f"/v1/receipts/{random_key()}")).status_code == 404


async def test_what_was_sent_and_what_was_received_are_listed_apart_on_demand(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    there, back, own = [
        (await office.sent(who, to, now - (9 - n) * SECOND)).replay_key
        for n, (who, to) in enumerate([(alice, bob), (bob, alice), (alice, alice)])
    ]
    for side, expected in (("sent", [own, there]), ("received", [own, back])):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await alice.get(server, f"/v1/receipts?side={side}&limit=1{cursor}")).json()
            seen += [one["replay_key"] for one in page["receipts"]]
            cursor = f"&cursor={page['next']}" if page["next"] else None
        assert seen == expected
    assert (await alice.get(server, "/v1/receipts?side=both")).status_code == 400


async def test_a_list_by_status_and_time(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    by_status = {}
    for n, status in enumerate(("pending", "delivered", "read", "failed")):
        envelope = await office.sent(alice, bob, now - (60 - n) * SECOND)
        by_status[status] = envelope.replay_key
        if status != "pending":
            await hand_in(server, bob, bob.receipt(envelope, ReceiptStatus[status.upper()]))
    gone = await office.sent(alice, bob, now - 100 * SECOND, ttl_seconds=10)
    by_status["expired"] = gone.replay_key
    await office.background.expire(now)
    for status, key in by_status.items():
        for who in (alice, bob):
            page = (await who.get(server, f"/v1/receipts?status={status}")).json()
            assert [one["replay_key"] for one in page["receipts"]] == [key]
    since = (now - 58 * SECOND).isoformat().replace("+00:00", "Z")
    page = (await alice.get(server, f"/v1/receipts?since={since}")).json()
    assert [one["replay_key"] for one in page["receipts"]] == [by_status["failed"], by_status["read"]]


# The archive.


async def test_a_receipt_that_comes_after_the_archive_took_the_row_is_told_so(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    envelope = await alice.sent(server, bob)
    await acknowledged(server, bob)
    await connection.execute("DELETE FROM delivery_receipts")
    answer = await hand_in(server, bob, bob.receipt(envelope, READ))
    assert (answer.status_code, answer.json()["code"]) == (410, "receipt_archived")
    assert (await alice.get(server, f"/v1/receipts/{envelope.replay_key}")).status_code == 404


async def test_a_receipt_from_before_its_message_is_refused(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    early = bob.receipt(envelope, at=envelope.header.created_at - 301_000)
    answer = await hand_in(server, bob, early)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    (got,) = await bob.poll(server)
    (refused,) = await bob.ack(server, got, receipts=[early])
    assert refused["problem"]["code"] == "invalid_argument"


@pytest.mark.parametrize(("ttl", "days"), [(604_800, 30), (2_592_000, 31)])
def test_a_receipt_settles_an_hour_before_the_archive_may_take_it(ttl: int, days: int) -> None:
    sent = datetime(2026, 10, 1, 12, tzinfo=UTC)
    leaves = datetime(2026, 10, 2, tzinfo=UTC) + timedelta(days=days)
    settles = leaves - timedelta(hours=1)
    assert not sent < final_before(settles - SECOND, ttl)
    assert sent < final_before(settles, ttl)
    assert not sent < closed_before(leaves - SECOND, ttl)
    assert sent < closed_before(leaves, ttl)


@pytest.mark.parametrize(("late", "taken"), [(-SECOND, True), (0 * SECOND, False)])
async def test_a_late_receipt_is_taken_as_long_as_its_row_is_safe_from_the_archive(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, late: timedelta, taken: bool
) -> None:
    envelope = await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    await office.ack(bob, got, now)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    read = midnight + timedelta(days=31) - ARCHIVE_MARGIN + late
    document = receipt_document(bob.receipt(envelope, READ, at=unix_ms(now)))
    recipient = await office.agent(bob)
    if taken:
        assert (await office.receipts.take(recipient, document, read)).status is DeliveryStatus.READ
        return
    with pytest.raises(ReceiptArchived, match="about to leave for the archive"):
        await office.receipts.take(recipient, document, read)
    assert (await office.receipt(alice, envelope)).status is DeliveryStatus.DELIVERED


async def test_a_message_is_not_acknowledged_when_its_receipt_may_soon_leave_for_the_archive(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now, ttl_seconds=60)
    (got,) = await office.poll(bob, now)
    late = now + MINUTE + timedelta(hours=23)
    assert isinstance(await office.ack(bob, got, late), MessageExpired)
    assert isinstance(await office.ack(bob, got, late - SECOND), Acknowledged)


async def test_what_may_leave_for_the_archive_is_counted_with_how_late_it_is(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    leaves = midnight + timedelta(days=31)
    late = midnight + timedelta(days=13) - now
    async with office.ledger.reading() as tx:
        assert await waiting(tx, leaves - SECOND, TTL_MAX) == ReceiptBacklog(0, None)
        assert await waiting(tx, leaves + timedelta(days=12), TTL_MAX) == ReceiptBacklog(1, late)
