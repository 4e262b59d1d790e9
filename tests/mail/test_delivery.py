"""Receiving: who gets what and when, what becomes of leases, and what recipients and senders may say to it."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from angelia.envelope import sealing
from angelia.envelope import wire as wire_form
from angelia.envelope.ids import KeyType
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import ReceiptStatus, receipt_document
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope, Priority
from angelia.errors import Conflict, KeyRevoked, LeaseLost, MessageExpired, NotFound, Unavailable
from angelia.mail import delivery as delivery_module
from angelia.mail import store
from angelia.mail.acknowledgement import Acknowledged, Nacked
from angelia.mail.api import AckItem, ReceiveQuery
from angelia.mail.hot_store import arrivals
from angelia.mail.model import DeliveryStatus
from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect
from angelia.stores import wake as wake_module
from http_agents import Server
from mail_agents import Correspondent, random_key
from mail_office import PostOffice, left, told

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def bodies(who: Correspondent, got: list[Any]) -> list[bytes]:
    return [sealing.unseal(wire_form.decode(one.wire), who.kem[KeyType.XWING]) for one in got]


# The order.


async def test_mail_comes_by_priority_and_then_as_it_arrived(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for n, priority in enumerate((1, 0, 3, 1, 2, 3)):
        # A sender that dates its messages back jumps no queue.
        made = unix_ms(now) - 1000 * n
        await office.sent(alice, bob, now, str(n).encode(), priority=Priority(priority), created_at=made)
    assert bodies(bob, await office.poll(bob, now)) == [b"2", b"5", b"4", b"0", b"3", b"1"]


async def test_a_poll_takes_at_most_what_it_asks_for_and_says_whether_more_waits(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    for _ in range(12):
        await alice.sent(server, bob)
    seen = []
    for query in ("", "?max_messages=1", "?max_messages=1", ""):
        answer = (await bob.get(server, f"/v1/messages{query}")).json()
        seen.append((len(answer["messages"]), answer["has_more"]))
    assert seen == [(10, True), (1, True), (1, False), (0, False)]


async def test_a_poll_for_high_priority_leaves_the_rest_alone(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for priority in Priority:
        await office.sent(alice, bob, now, bytes([priority]), priority=priority)
    assert bodies(bob, await office.poll(bob, now, min_priority=2)) == [b"\3", b"\2"]
    assert await office.poll(bob, now, min_priority=2) == []
    assert bodies(bob, await office.poll(bob, now)) == [b"\1", b"\0"]


@pytest.mark.parametrize("filtered", ["correlation_id", "channel_id"])
async def test_a_poll_for_a_conversation_or_a_channel_leases_nobody_elses_mail(
    server: Server, alice: Correspondent, bob: Correspondent, filtered: str
) -> None:
    ours, other = uuid4(), uuid4()
    await alice.sent(server, bob, b"unrelated")
    await alice.sent(server, bob, b"theirs", **{filtered: other})
    await alice.sent(server, bob, b"first", **{filtered: ours})
    await alice.sent(server, bob, b"urgent", **{filtered: ours}, priority=Priority.HIGH)
    got = await bob.poll(server, **{filtered: ours})
    assert [bob.opened(one) for one in got] == [b"urgent", b"first"]
    assert await bob.poll(server, **{filtered: ours}) == []
    rest = await bob.poll(server)
    assert [(bob.opened(one), one.attempt) for one in rest] == [(b"unrelated", 1), (b"theirs", 1)]
    for one in (*got, *rest):
        assert (await bob.ack(server, one))[0]["acknowledged"]


async def test_a_conversation_whose_first_answers_are_in_hands_gives_the_next_ones(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "MOST_AT_ONCE", 2)  # how many are looked at in one go
    agent, thread = await office.agent(bob), uuid4()
    for n in range(5):
        await office.sent(alice, bob, now, str(n).encode(), correlation_id=thread)
    seen = []
    for most in (1, 1, 2, 2):
        got = await office.delivery.receive(agent, ReceiveQuery(max_messages=most, correlation_id=thread), now)
        seen.append((bodies(bob, got.messages), got.has_more))
    assert [got for got, _ in seen] == [[b"0"], [b"1"], [b"2", b"3"], [b"4"]]
    assert [more for _, more in seen[:3]] == [True, True, True]


async def test_filters_and_priority_go_together(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    thread = uuid4()
    for priority in Priority:
        await office.sent(alice, bob, now, bytes([priority]), priority=priority, correlation_id=thread)
    assert bodies(bob, await office.poll(bob, now, correlation_id=thread, min_priority=1)) == [b"\3", b"\2", b"\1"]


OUT_OF_BOUNDS: list[Any] = [
    "max_messages=0",
    "max_messages=101",
    "wait_timeout_seconds=31",
    "wait_timeout_seconds=-1",
    "min_priority=4",
    "lease_seconds=4",
    "lease_seconds=301",
    "channel_id=general",
    f"channel_id={uuid4()}&correlation_id={uuid4()}",
]


async def test_a_poll_outside_the_bounds_is_refused(server: Server, bob: Correspondent) -> None:
    for query in OUT_OF_BOUNDS:
        answer = await bob.get(server, f"/v1/messages?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


async def test_who_asks_for_a_conversation_and_a_channel_is_told_what_to_do(server: Server, bob: Correspondent) -> None:
    answer = await bob.get(server, f"/v1/messages?channel_id={uuid4()}&correlation_id={uuid4()}")
    assert (answer.status_code, answer.json()["hint"]) == (400, "ask twice, once with each")


async def test_the_binary_form_of_a_page(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    sent = [await alice.sent(server, bob, bytes([n])) for n in range(3)]
    answer = await bob.get(server, "/v1/messages?max_messages=2", accept=MEDIA_TYPE)
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert (answer.headers["angelia-has-more"], answer.headers["cache-control"]) == ("1", "no-store")
    content, found = answer.content, []
    while content:
        attempt, token, length = struct.unpack_from(">I32sI", content)
        found.append((attempt, token.hex(), wire_form.decode(content[40 : 40 + length])))
        content = content[40 + length :]
    assert [(attempt, one.wire) for attempt, _, one in found] == [(1, one.wire) for one in sent[:2]]
    acks = [{"replay_key": one.replay_key, "lease_token": token} for _, token, one in found]
    done = await bob.post(server, "/v1/messages/acknowledge", {"acks": acks})
    assert all(one["acknowledged"] for one in done.json()["results"])


async def test_a_poll_writes_nothing_to_the_ledger(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now, correlation_id=(thread := uuid4()))
    reader: PostOffice = await another(read_only=True)
    assert len(await reader.poll(bob, now)) == 1
    assert await reader.poll(bob, now) == []
    assert len(await reader.poll(bob, now + MINUTE, correlation_id=thread)) == 1


# Leases.


async def test_a_message_in_somebodys_hands_is_given_to_nobody_until_the_lease_runs_out(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    (first,) = await office.poll(bob, now, lease_seconds=30)
    assert await office.poll(bob, now + 29 * SECOND) == []
    (second,) = await office.poll(bob, now + 30 * SECOND)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.token != second.token
    assert first.wire == second.wire


async def test_what_comes_back_takes_its_old_place(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for n in range(3):
        await office.sent(alice, bob, now, str(n).encode())
    await office.poll(bob, now, max_messages=2)
    assert bodies(bob, await office.poll(bob, now + MINUTE)) == [b"0", b"1", b"2"]


async def test_two_that_poll_at_once_never_get_the_same_message(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    elsewhere: PostOffice = await another()
    await asyncio.gather(*(office.sent(alice, bob, now) for _ in range(60)))
    polls = await asyncio.gather(
        *(place.poll(bob, now, max_messages=7) for _ in range(8) for place in (office, elsewhere))
    )
    got = [one.row.replay_key for poll in polls for one in poll]
    assert (len(got), len(set(got))) == (60, 60)


# Acknowledging.


async def test_an_acknowledgment_is_one_transaction_and_leaves_the_id_known(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now + SECOND)
    assert isinstance(await office.ack(bob, got, now + 3 * SECOND), Acknowledged)
    assert await left(connection) == {"envelopes": 0, "sent_ids": 1, "delivery_receipts": 1}
    receipt = await office.receipt(alice, envelope)
    assert (receipt.status, receipt.attested_by, receipt.delivery_attempts) == ("delivered", "relay", 1)
    assert (receipt.delivered_at, receipt.acknowledged_at) == (now + SECOND, now + 3 * SECOND)
    events = await connection.fetch(
        "SELECT event_type, xmin::text = (SELECT xmin::text FROM delivery_receipts) AS together FROM audit_events"
        " WHERE event_type ~ 'received|acknowledged' ORDER BY event_type"
    )
    assert [tuple(one) for one in events] == [("message_acknowledged", True), ("message_received", True)]


async def test_acknowledging_again_is_no_error_and_no_second_event(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    done = await asyncio.gather(*(office.ack(bob, got, now + n * SECOND) for n in range(5)))
    assert sum(isinstance(one, Acknowledged) for one in done) == 1
    assert done.count(None) == 4
    assert len(await told(connection, "message_acknowledged")) == 1


async def test_two_acknowledgments_of_one_message_in_one_request_are_both_told_yes(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    await alice.sent(server, bob)
    (got,) = await bob.poll(server)
    assert [one["acknowledged"] for one in await bob.ack(server, got, got)] == [True, True]


async def test_a_lease_that_ran_out_does_not_refuse_an_acknowledgment(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    assert isinstance(await office.ack(bob, got, now + 10 * MINUTE), Acknowledged)
    assert await office.poll(bob, now + 11 * MINUTE) == []


async def test_a_hot_tier_that_forgot_the_lease_does_not_refuse_an_acknowledgment(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    await office.forget_everything()
    assert isinstance(await office.ack(bob, got, now + SECOND), Acknowledged)
    # When it was handed over is forgotten as well; what is known is when it was there at the latest.
    assert (await office.receipt(alice, envelope)).delivered_at == now + SECOND


async def test_a_hot_tier_that_is_away_does_not_refuse_an_acknowledgment(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> None:
        raise Unavailable

    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    monkeypatch.setattr(office.hot, "run", fail)
    assert isinstance(await office.ack(bob, got, now), Acknowledged)


async def test_a_token_of_an_old_lease_is_refused_while_somebody_else_has_the_message(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    (old,) = await office.poll(bob, now)
    (new,) = await office.poll(bob, now + MINUTE)
    lost = await office.ack(bob, old, now + MINUTE)
    assert isinstance(lost, LeaseLost)
    assert lost.hint
    assert isinstance(await office.nack(bob, old, now + MINUTE), LeaseLost)
    # When that lease ran out as well, nobody is disturbed any more.
    assert isinstance(await office.ack(bob, old, now + 2 * MINUTE), Acknowledged)
    assert await office.ack(bob, new, now + 2 * MINUTE) is None


async def test_a_token_of_another_message_is_refused_for_both_verbs(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    for _ in range(2):
        await alice.sent(server, bob)
    one, other = await bob.poll(server)
    one.lease_token, other.lease_token = other.lease_token, one.lease_token
    acked = await bob.ack(server, one, other)
    nacked = await bob.nack(server, one, other)
    assert [done["problem"]["code"] for done in (*acked, *nacked)] == ["lease_lost"] * 4
    assert await bob.poll(server) == []


async def test_nobody_settles_another_agents_message(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    await alice.sent(server, bob)
    (got,) = await bob.poll(server)
    for thief in (carol, alice):
        assert (await thief.ack(server, got))[0]["problem"]["code"] == "not_found"
        assert (await thief.nack(server, got))[0]["problem"]["code"] == "not_found"
    assert (await bob.ack(server, got))[0]["acknowledged"]


async def test_results_come_per_message_and_a_wrong_one_hinders_no_other(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    for _ in range(3):
        await alice.sent(server, bob)
    got = await bob.poll(server)
    got[1].replay_key = random_key()
    done = await bob.ack(server, *got)
    assert [one["acknowledged"] for one in done] == [True, False, True]
    assert [one["replay_key"] for one in done] == [one.replay_key for one in got]
    assert done[1]["problem"]["code"] == "not_found"


async def test_a_fault_of_the_ledger_hits_the_acknowledgment_that_caused_it(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "CREATE FUNCTION choke() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF OLD.priority = 3 THEN RAISE 'no'; END IF; RETURN OLD; END $$;"
        "CREATE TRIGGER choke BEFORE DELETE ON envelopes FOR EACH ROW EXECUTE FUNCTION choke()"
    )
    for priority in (1, 3, 1):
        await alice.sent(server, bob, priority=Priority(priority))
    got = sorted(await bob.poll(server), key=lambda one: one.envelope.header.priority)
    assert [one["acknowledged"] for one in await bob.ack(server, *got)] == [True, True, False]


async def test_what_expired_or_was_withdrawn_cannot_be_acknowledged(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now, ttl_seconds=60)
    (got,) = await office.poll(bob, now)
    await office.background.expire(now + MINUTE)
    assert isinstance(await office.ack(bob, got, now + MINUTE), MessageExpired)
    envelope = await office.sent(alice, bob, now)
    await office.withdraw(alice, envelope, now)
    ack = AckItem(replay_key=envelope.replay_key, lease_token=str(got.token))
    (done,) = await office.acknowledgements.acknowledge(await office.agent(bob), [ack], now)
    assert isinstance(done, Conflict)


async def test_an_acknowledgment_without_a_lease_is_a_recipients_word_as_well(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    """The recipient sees its waiting messages by name, too; whoever has one may say so."""
    envelope = await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    await office.nack(bob, got, now)
    assert isinstance(await office.ack(bob, got, now), Acknowledged)
    assert (await office.receipt(alice, envelope)).status is DeliveryStatus.DELIVERED


# Giving back.


async def test_a_message_that_is_given_back_waits_longer_each_time_and_is_dead_at_the_fifth(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = await office.sent(alice, bob, now)
    waits, at = [], now
    for attempt in range(1, 6):
        (got,) = await office.poll(bob, at)
        assert got.attempt == attempt
        done = await office.nack(bob, got, at, reason="the disk is full")
        assert isinstance(done, Nacked)
        if done.retry_at is None:
            break
        waits.append(done.retry_at - at)
        assert await office.poll(bob, done.retry_at - timedelta(milliseconds=1)) == []
        at = done.retry_at
    assert waits == [1 * SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND]
    assert attempt == 5
    assert await office.poll(bob, at + 10 * MINUTE) == []
    receipt = await office.receipt(alice, envelope)
    assert (receipt.status, receipt.failure_reason) == (DeliveryStatus.FAILED, "the disk is full")
    assert (receipt.delivery_attempts, receipt.attested_by) == (5, "relay")
    assert await told(connection, "message_dead_lettered") == [("message_dead_lettered", "bob", "alice")]


async def test_a_lease_that_ran_out_counts_as_an_attempt(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    for n in range(5):
        (got,) = await office.poll(bob, now + n * MINUTE)
    assert got.attempt == 5
    assert await office.nack(bob, got, now + 4 * MINUTE) == Nacked(None)


async def test_a_recipient_may_say_when_it_wants_to_try_again(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    await alice.sent(server, bob)
    (got,) = await bob.poll(server)
    (done,) = await bob.nack(server, got, retry_after=0)
    assert done["state"] == "queued"
    (again,) = await bob.poll(server)
    assert again.attempt == 2
    (done,) = await bob.nack(server, again, retry_after=3600, reason="after lunch")
    wait = datetime.fromisoformat(done["retry_at"]).timestamp() - time.time()
    assert 3590 < wait <= 3600
    assert await bob.poll(server) == []


async def test_a_message_that_is_put_off_without_counting_never_becomes_a_dead_letter(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = await office.sent(alice, bob, now)
    at, hour = now, timedelta(hours=1)
    for _ in range(10):
        (got,) = await office.poll(bob, at)
        assert got.attempt == 1
        done = await office.nack(bob, got, at, reason="not allowed", retry_after=3600, counted=False)
        assert done == Nacked(at + hour)
        assert await office.poll(bob, at + hour - timedelta(milliseconds=1)) == []
        at += hour
    assert (await office.receipt(alice, envelope)).status is DeliveryStatus.PENDING
    assert await told(connection, "message_dead_lettered") == []


async def test_what_does_not_count_leaves_the_attempts_as_they_are(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    at = now
    for attempt, counted in ((1, True), (2, False), (2, True), (3, True), (4, True), (5, False), (5, False), (5, True)):
        (got,) = await office.poll(bob, at)
        assert got.attempt == attempt
        done = await office.nack(bob, got, at, reason="full", counted=counted)
        at += MINUTE
    assert done == Nacked(None)
    receipt = await office.receipt(alice, envelope)
    assert (receipt.status, receipt.delivery_attempts) == (DeliveryStatus.FAILED, 5)


async def test_what_was_put_off_was_given_so_that_it_is_not_withdrawn_and_its_lease_still_settles_it(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    await office.nack(bob, got, now, retry_after=3600, counted=False)
    with pytest.raises(Conflict, match="given the message already"):
        await office.withdraw(alice, envelope, now)
    assert isinstance(await office.ack(bob, got, now + MINUTE), Acknowledged)


async def test_without_a_time_a_message_is_put_off_as_one_that_is_given_back(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    assert await office.nack(bob, got, now, counted=False) == Nacked(now + SECOND)


async def test_only_whoever_has_the_lease_puts_a_message_off(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    (old,) = await office.poll(bob, now)
    (new,) = await office.poll(bob, now + MINUTE)
    at = now + MINUTE
    assert isinstance(await office.nack(bob, old, at, counted=False), LeaseLost)
    assert isinstance(await office.nack(bob, new, at, counted=False), Nacked)
    assert isinstance(await office.nack(bob, new, at, counted=False), LeaseLost)


async def test_a_message_is_put_off_over_http(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    await alice.sent(server, bob)
    for _ in range(6):
        (got,) = await bob.poll(server)
        assert got.attempt == 1
        (done,) = await bob.nack(server, got, retry_after=0, counted=False)
        assert (done["state"], "problem" in done) == ("queued", False)
    (again,) = await bob.nack(server, got, counted=False)
    assert again["problem"]["code"] == "lease_lost"
    (got,) = await bob.poll(server)
    (done,) = await bob.nack(server, got, retry_after=3600, counted=False)
    assert 3590 < datetime.fromisoformat(done["retry_at"]).timestamp() - time.time() <= 3600
    assert (await bob.get(server, "/v1/dead-letters")).json()["dead_letters"] == []


async def test_giving_back_what_was_given_back_or_settled_is_refused(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    assert isinstance(await office.nack(bob, got, now), Nacked)
    assert isinstance(await office.nack(bob, got, now), LeaseLost)
    (again,) = await office.poll(bob, now + SECOND)
    await office.ack(bob, again, now + SECOND)
    assert isinstance(await office.nack(bob, again, now + SECOND), NotFound)


NO_NACKS: list[Any] = [
    {"retry_after": -1},
    {"retry_after": 3601},
    {"reason": "x" * 1025},
    {"replay_key": "A" * 64},
    {"replay_key": "0" * 63},
    {"replay_key": "0" * 64 + "\n"},
    {"lease_token": "0" * 64 + "\n"},
    {"counted": 0},
    {"more": 1},
]


async def test_what_is_no_nack_is_refused(server: Server, bob: Correspondent) -> None:
    for item in NO_NACKS:
        whole = {"replay_key": "0" * 64, "lease_token": "0" * 64, **item}
        answer = await bob.post(server, "/v1/messages/nack", {"nacks": [whole]})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


async def test_one_ack_that_cannot_be_read_refuses_all_of_them(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    (got,) = await bob.poll(server)
    good = {"replay_key": got.replay_key, "lease_token": got.lease_token}
    for bad in ({**good, "replay_key": got.replay_key + "\n"}, {**good, "lease_token": got.lease_token + "\n"}):
        answer = await bob.post(server, "/v1/messages/acknowledge", {"acks": [good, bad]})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert (await alice.receipt_of(server, envelope.replay_key))["status"] == "pending"


# Dead letters.


async def test_an_owner_sees_its_dead_letters_and_an_operator_everybodys(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    envelope, died = await office.dead(alice, bob, now - 5 * MINUTE)
    (mine,) = (await bob.get(server, "/v1/dead-letters")).json()["dead_letters"]
    assert mine["replay_key"] == envelope.replay_key
    assert (mine["sender"], mine["recipient"], mine["reason"]) == ("alice", "bob", "cannot be read")
    assert datetime.fromisoformat(mine["dead_at"]) == died
    assert "envelope" not in mine
    assert (await alice.get(server, "/v1/dead-letters")).json()["dead_letters"] == []
    operators = await server.get("/v1/dead-letters?agent=bob", headers=server.admin)
    assert operators.json()["dead_letters"] == [mine]
    for url in ("/v1/dead-letters?agent=bob", f"/v1/dead-letters?agent={bob.id}"):
        assert (await carol.get(server, url)).status_code == 403
        assert (await bob.get(server, url)).json()["dead_letters"] == [mine]
    assert (await server.get("/v1/dead-letters", headers=server.admin)).status_code == 403
    assert (await server.get("/v1/dead-letters?agent=nobody", headers=server.admin)).status_code == 404


async def test_dead_letters_come_newest_first_page_by_page(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    dead = [(await office.dead(alice, bob, now - (60 - n) * MINUTE))[0].replay_key for n in range(5)]
    seen, cursor = [], ""
    for _ in range(3):
        page = (await bob.get(server, f"/v1/dead-letters?limit=2{cursor}")).json()
        seen += [one["replay_key"] for one in page["dead_letters"]]
        cursor = f"&cursor={page['next']}"
    assert seen == dead[::-1]
    assert page["next"] is None


async def test_a_requeued_dead_letter_starts_again_at_the_end_of_its_queue(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope, died = await office.dead(alice, bob, now)
    await office.sent(alice, bob, died, b"came meanwhile")
    await office.requeue(bob, envelope, died + MINUTE)
    got = await office.poll(bob, died + MINUTE)
    assert [(one.row.replay_key.hex() == envelope.replay_key, one.attempt) for one in got] == [(False, 1), (True, 1)]
    assert isinstance(await office.ack(bob, got[1], died + MINUTE), Acknowledged)
    # Its sender was told that it failed, and that stays; when it arrived after all is told as well.
    receipt = await office.receipt(alice, envelope)
    assert (receipt.status, receipt.acknowledged_at) == (DeliveryStatus.FAILED, died + MINUTE)
    assert await told(connection, "message_requeued") == [("message_requeued", "bob", "bob")]


async def test_only_owner_and_operator_requeue_and_only_what_is_dead(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    envelope, _ = await office.dead(alice, bob, now - 5 * MINUTE)
    url = f"/v1/dead-letters/{envelope.replay_key}/requeue"
    for other in (alice, carol):
        assert (await other.post(server, url)).status_code == 404
    assert (await server.post(url, headers=server.admin)).status_code == 200
    again = await bob.post(server, url)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    (got,) = await bob.poll(server)
    await bob.ack(server, got)
    assert (await bob.post(server, url)).status_code == 404
    assert (await bob.post(server, f"/v1/dead-letters/{random_key()}/requeue")).status_code == 404


async def test_a_dead_letter_past_its_time_cannot_be_requeued(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope, _ = await office.dead(alice, bob, now, ttl_seconds=600)
    with pytest.raises(MessageExpired):
        await office.requeue(bob, envelope, now + 10 * MINUTE)


async def test_a_requeued_message_whose_script_was_lost_is_found_by_the_reconcile_tick(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> bool:
        raise Unavailable

    envelope, died = await office.dead(alice, bob, now)
    await office.background.reconcile(died + MINUTE)
    with monkeypatch.context() as lost:
        lost.setattr(office.queues, "enqueue", fail)
        await office.requeue(bob, envelope, died + 10 * MINUTE)
    assert await office.poll(bob, died + 11 * MINUTE) == []
    await office.background.reconcile(died + 11 * MINUTE)
    assert len(await office.poll(bob, died + 11 * MINUTE)) == 1


# Withdrawing.


async def test_a_sender_withdraws_a_message_that_nobody_was_given(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    envelope = await alice.sent(server, bob)
    url = f"/v1/messages/{envelope.replay_key}"
    assert (await alice.delete(server, url)).status_code == 204
    assert await bob.poll(server) == []
    receipt = await alice.receipt_of(server, envelope.replay_key)
    assert (receipt["status"], receipt["failure_reason"]) == ("failed", "withdrawn")
    assert (await alice.delete(server, url)).status_code == 204  # said again
    assert await told(connection, "message_withdrawn") == [("message_withdrawn", "alice", "bob")]
    # It was sent once: the same bytes do not bring it back.
    assert (await alice.mail(server, envelope)).status_code == 200
    assert await bob.poll(server) == []


async def test_there_is_no_recall_after_the_first_lease(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    assert len(await office.poll(bob, now)) == 1
    for at in (now, now + MINUTE):  # in its hands, and back in the queue
        with pytest.raises(Conflict):
            await office.withdraw(alice, envelope, at)
    (again,) = await office.poll(bob, now + MINUTE)
    assert again.attempt == 2  # a refused withdrawal is no attempt
    await office.nack(bob, again, now + MINUTE)
    with pytest.raises(Conflict):
        await office.withdraw(alice, envelope, now + MINUTE)
    with pytest.raises(Conflict):
        await office.withdraw(alice, envelope, now + 2 * MINUTE)


async def test_neither_what_is_settled_nor_what_is_dead_nor_what_is_requeued_can_be_withdrawn(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    acked = await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    await office.ack(bob, got, now)
    dead, died = await office.dead(alice, bob, now)
    for envelope in (acked, dead):
        with pytest.raises(Conflict):
            await office.withdraw(alice, envelope, died)
    await office.requeue(bob, dead, died)
    with pytest.raises(Conflict):
        await office.withdraw(alice, dead, died)
    expired = await office.sent(alice, bob, now, ttl_seconds=60)
    await office.background.expire(now + MINUTE)
    with pytest.raises(MessageExpired):
        await office.withdraw(alice, expired, now + MINUTE)


async def test_a_message_that_its_recipient_says_it_has_cannot_be_withdrawn(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    taken = await bob.post(server, "/v1/receipts", _document(bob, envelope))
    assert taken.status_code == 200, taken.text
    assert (await alice.delete(server, f"/v1/messages/{envelope.replay_key}")).status_code == 409


def _document(who: Correspondent, envelope: Any) -> object:
    return receipt_document(who.receipt(envelope, ReceiptStatus.READ))


async def test_nobody_else_withdraws(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    for other in (bob, carol):
        assert (await other.delete(server, f"/v1/messages/{envelope.replay_key}")).status_code == 404
    assert len(await bob.poll(server)) == 1


async def test_a_message_that_may_not_be_delivered_at_the_moment_can_be_withdrawn(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    rule = await office.policy.add("op", PolicyRuleBody(Effect.DENY, Action.SEND, "alice", "bob"), now)
    assert await office.poll(bob, now) == []
    await office.withdraw(alice, envelope, now + SECOND)
    await office.policy.remove("op", rule.rule_id, now)
    assert await office.poll(bob, now + 5 * MINUTE) == []


async def test_a_withdrawal_that_fails_half_way_is_no_attempt_and_can_be_repeated(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> None:
        raise Unavailable

    envelope = await office.sent(alice, bob, now)
    with monkeypatch.context() as away:
        away.setattr("angelia.mail.service.store.lock", fail)
        with pytest.raises(Unavailable):
            await office.withdraw(alice, envelope, now)
    (got,) = await office.poll(bob, now)
    assert got.attempt == 1


async def test_a_withdrawal_that_failed_half_way_works_the_next_time(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> None:
        raise Unavailable

    envelope = await office.sent(alice, bob, now)
    with monkeypatch.context() as away:
        away.setattr("angelia.mail.service.store.lock", fail)
        with pytest.raises(Unavailable):
            await office.withdraw(alice, envelope, now)
    await office.withdraw(alice, envelope, now + SECOND)
    assert await office.poll(bob, now + MINUTE) == []


async def test_of_a_withdrawal_and_a_poll_at_once_exactly_one_wins(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    elsewhere: PostOffice = await another()

    async def withdraw(envelope: Any) -> bool:
        try:
            await office.withdraw(alice, envelope, now)
        except Conflict:
            return False
        return True

    for _ in range(12):
        envelope = await office.sent(alice, bob, now)
        withdrawn, got = await asyncio.gather(withdraw(envelope), elsewhere.poll(bob, now))
        # Nobody may win when the poll saw it kept back for the withdrawal that then found it given; never both.
        assert withdrawn is not bool(got)
        for one in got:
            await office.ack(bob, one, now)


async def test_two_withdrawals_at_once_are_both_told_yes(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    elsewhere: PostOffice = await another()
    envelope = await office.sent(alice, bob, now)
    await asyncio.gather(office.withdraw(alice, envelope, now), elsewhere.withdraw(alice, envelope, now))
    assert (await office.receipt(alice, envelope)).failure_reason == "withdrawn"


# How a message stands.


async def test_sender_and_recipient_see_how_a_message_stands_and_only_the_recipient_its_bytes(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    url = f"/v1/messages/{envelope.replay_key}"
    hers, his = (await alice.get(server, url)).json(), (await bob.get(server, url)).json()
    assert (hers["status"], hers["state"], hers["recipient"]) == ("pending", "queued", "bob")
    assert "envelope" not in hers
    assert his.pop("envelope")["message_id"] == str(envelope.header.message_id)
    assert his == hers
    assert (await carol.get(server, url)).status_code == 404
    (got,) = await bob.poll(server)
    await bob.ack(server, got)
    assert "state" not in (await alice.get(server, url)).json()
    assert "envelope" not in (await bob.get(server, url)).json()


NO_KEYS: list[Any] = ["x", "0" * 63, "A" * 64, "0" * 64 + "%0a", "..%2f"]


async def test_a_name_that_is_no_replay_key_is_refused_before_any_lookup(server: Server, alice: Correspondent) -> None:
    for key in NO_KEYS:
        for method, url in (("GET", "/v1/messages/"), ("DELETE", "/v1/messages/"), ("GET", "/v1/receipts/")):
            answer = await server.send_signed(alice, method, url + key)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


# Waiting.


async def test_a_long_poll_wakes_when_mail_comes_and_does_not_look_for_it(
    office: PostOffice,
    another,
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    waits: asyncio.Queue[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (delivery_module, wake_module):
        monkeypatch.setattr(module, "RECHECK_SECONDS", 60.0)
    elsewhere: PostOffice = await another()
    polls = []
    next_ = office.delivery._next

    async def counted(*args: Any) -> Any:
        polls.append(await next_(*args))
        return polls[-1]

    monkeypatch.setattr(office.delivery, "_next", counted)
    waiting = asyncio.create_task(office.poll(bob, now, wait_timeout_seconds=30))
    async with asyncio.timeout(10):
        assert await waits.get() > 15  # no look before that is over, or mail comes
        assert len(polls) == 2  # once, and once more when it listens
        began = time.monotonic()
        await elsewhere.sent(alice, bob, now)
        (got,) = await waiting
    assert time.monotonic() - began < 0.5
    assert got.attempt == 1


async def test_a_long_poll_gets_what_came_just_before_it_listened(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (delivery_module, wake_module):
        monkeypatch.setattr(module, "RECHECK_SECONDS", 60.0)
    for _ in range(5):
        waiting = asyncio.create_task(office.poll(bob, now, wait_timeout_seconds=20))
        await asyncio.sleep(0)
        await office.sent(alice, bob, now)
        async with asyncio.timeout(3):
            (got,) = await waiting
        await office.ack(bob, got, now)


async def test_a_long_poll_wakes_when_a_lease_or_a_back_off_ends(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (delivery_module, wake_module):
        monkeypatch.setattr(module, "RECHECK_SECONDS", 60.0)
    await office.sent(alice, bob, now)
    await office.poll(bob, now, lease_seconds=0.3)
    async with asyncio.timeout(5):
        (got,) = await office.poll(bob, now, wait_timeout_seconds=20)
    await office.nack(bob, got, now, retry_after=0.4)
    async with asyncio.timeout(5):
        (again,) = await office.poll(bob, now, wait_timeout_seconds=20)
    assert again.attempt == 3


async def test_a_long_poll_for_an_answer_wakes_for_it_and_not_for_other_mail(
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    waits: asyncio.Queue[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (delivery_module, wake_module):
        monkeypatch.setattr(module, "RECHECK_SECONDS", 60.0)
    thread = uuid4()
    waiting = asyncio.create_task(office.poll(bob, now, wait_timeout_seconds=20, correlation_id=thread))
    await asyncio.wait_for(waits.get(), 10)
    await office.sent(alice, bob, now, b"other")
    await asyncio.wait_for(waits.get(), 10)  # it has looked, and waits again
    await office.sent(alice, bob, now, b"the answer", correlation_id=thread)
    async with asyncio.timeout(3):
        assert bodies(bob, await waiting) == [b"the answer"]
    assert bodies(bob, await office.poll(bob, now)) == [b"other"]


async def test_a_long_poll_without_mail_ends_in_time(office: PostOffice, bob: Correspondent, now: datetime) -> None:
    began = time.monotonic()
    assert await office.poll(bob, now, wait_timeout_seconds=0.3) == []
    assert 0.25 < time.monotonic() - began < 2


async def test_a_server_that_stops_answers_those_who_wait(
    office: PostOffice, bob: Correspondent, now: datetime, waits: asyncio.Queue[float]
) -> None:
    waiting = asyncio.create_task(office.poll(bob, now, wait_timeout_seconds=30))
    await asyncio.wait_for(waits.get(), 10)
    office.wake.stop()
    async with asyncio.timeout(2):
        assert await waiting == []


async def test_whoever_goes_away_at_whatever_moment_takes_no_message_along(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    """Cancelled after each number of steps of the event loop: the message is given to the next one at once."""
    await office.sent(alice, bob, now)
    finished = 0
    for steps in range(60):
        leaving = asyncio.create_task(office.poll(bob, now, wait_timeout_seconds=5))
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        (first,) = await asyncio.gather(leaving, return_exceptions=True)
        if isinstance(first, list):
            finished += 1
            (got,) = first
        else:
            (got,) = await office.poll(bob, now)
        assert got.attempt == 1, f"lost after {steps} steps"
        await office.queues.put_back("bob", [got.token], now, uncounted=True)


async def test_a_wait_that_is_given_up_when_mail_comes_takes_no_message_along(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, waits: asyncio.Queue[float]
) -> None:
    for steps in range(0, 40, 2):
        leaving = asyncio.create_task(office.poll(bob, now, wait_timeout_seconds=5))
        await asyncio.wait_for(waits.get(), 10)
        await office.sent(alice, bob, now)
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        (first,) = await asyncio.gather(leaving, return_exceptions=True)
        # A second later: it was given back at the time of whoever waited, which has gone on.
        (got,) = first if isinstance(first, list) else await office.poll(bob, now + SECOND)
        assert got.attempt == 1, f"lost after {steps} steps"
        await office.ack(bob, got, now)


async def test_what_a_poll_that_goes_away_had_leased_comes_back_all_at_once(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    """Cancelled after each number of steps of the event loop, while another poll looks: it never gets a part of them,
    which newer mail could pass."""
    for _ in range(4):
        await office.sent(alice, bob, now)
    for steps in range(60):
        leaving = asyncio.create_task(office.poll(bob, now))
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        while not (claimed := await office.queues.claim("bob", 10, 0, now, now + MINUTE)).messages:
            if leaving.done() and not leaving.cancelled():
                break  # it had them before it was told to go
        held = [one.token for one in claimed.messages] or [one.token for one in await leaving]
        assert len(held) == 4, steps
        await asyncio.gather(leaving, return_exceptions=True)
        await office.queues.put_back("bob", held, now, uncounted=True)


# What is not handed over.


async def test_an_expired_message_is_not_handed_over_even_before_the_tick(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    thread = uuid4()
    for _ in range(2):
        await office.sent(alice, bob, now, ttl_seconds=60, correlation_id=thread)
    end = now + MINUTE
    assert await office.poll(bob, end, correlation_id=thread) == []
    assert await office.poll(bob, end) == []
    assert len(await office.poll(bob, end - timedelta(milliseconds=1), correlation_id=thread)) == 2


async def test_mail_to_a_key_that_was_revoked_since_is_not_handed_over(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    await office.revoke(bob, now + SECOND, now + SECOND, signer=False)
    assert await office.poll(bob, now + 2 * SECOND) == []


async def test_mail_that_a_stolen_pair_signed_is_not_handed_over_and_what_it_signed_before_is(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now, b"before")
    await office.sent(alice, bob, now + 10 * SECOND, b"after")
    await office.revoke(alice, now + MINUTE, now + 10 * SECOND, signer=True)
    assert bodies(bob, await office.poll(bob, now + MINUTE)) == [b"before"]


async def test_ghosts_do_not_hide_what_stands_behind_them(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    for _ in range(12):
        await office.sent(alice, bob, now)
    await connection.execute("DELETE FROM envelopes")  # settled, and their scripts lost
    await office.sent(alice, bob, now, b"real")
    assert bodies(bob, await office.poll(bob, now, max_messages=5)) == [b"real"]


async def test_a_hot_copy_is_never_handed_over_on_its_own_word(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    await office.sent(alice, bob, now)
    await connection.execute("UPDATE envelopes SET state = 'dead', dead_at = accepted_at")
    assert await office.poll(bob, now) == []
    assert await office.hot._redis.keys("ang:mail:*") == []


async def test_a_ledger_that_fails_during_a_poll_gives_the_messages_back(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> None:
        raise Unavailable

    await office.sent(alice, bob, now)
    with monkeypatch.context() as away:
        away.setattr("angelia.mail.delivery.store.claimable", fail)
        with pytest.raises(Unavailable):
            await office.poll(bob, now)
    (got,) = await office.poll(bob, now)
    assert got.attempt == 1


async def test_a_dead_letter_whose_key_was_revoked_since_is_not_tried_again(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope, died = await office.dead(alice, bob, now)
    await office.revoke(alice, died + MINUTE, now, signer=True)
    with pytest.raises(KeyRevoked):
        await office.requeue(bob, envelope, died + MINUTE)


async def test_what_was_accepted_before_a_pair_was_stolen_is_believed_also_when_it_is_tried_again(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope, died = await office.dead(alice, bob, now)
    await office.revoke(alice, died + 2 * MINUTE, died + MINUTE, signer=True)
    await office.requeue(bob, envelope, died + 3 * MINUTE)
    (got,) = await office.poll(bob, died + 3 * MINUTE)
    assert got.wire == envelope.wire


async def test_a_page_stops_before_it_gets_too_large(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "_PAGE_BYTES", 12_000)
    for _ in range(5):
        await office.sent(alice, bob, now)
    agent = await office.agent(bob)
    sizes = []
    while (got := await office.delivery.receive(agent, ReceiveQuery(), now)).messages:
        sizes.append((len(got.messages), got.has_more))
        assert {one.attempt for one in got.messages} == {1}
    assert sizes == [(2, True), (2, True), (1, False)]


async def test_the_flood_of_somebody_blocked_does_not_keep_others_mail_away(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    for _ in range(30):
        await office.sent(alice, bob, now)
    await office.sent(carol, bob, now, b"behind them")
    assert (await bob.put(server, "/v1/blocks/alice", None)).status_code == 204
    assert bodies(bob, await office.poll(bob, now, max_messages=2)) == [b"behind them"]


async def test_a_copy_that_is_not_what_the_ledger_has_is_not_handed_over(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    envelope = await office.sent(alice, bob, now)
    (copy,) = await office.hot._redis.keys("ang:mail:*:env:*")
    await office.hot._redis.set(copy, b"something else")
    (got,) = await office.poll(bob, now)
    assert got.wire == envelope.wire


async def test_an_ack_never_ends_the_message_that_was_sealed_again_under_its_id(
    office: PostOffice,
    another: Callable[[], Any],
    alice: Correspondent,
    bob: Correspondent,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere: PostOffice = await another()
    first = await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    settle, again = store.settle, list[Envelope]()

    async def late(*args: Any) -> Any:
        """Between the read of the ack and its commit the key is revoked, and the message sealed again under its id."""
        if not again:
            await elsewhere.revoke(bob, now + SECOND, now)
            await elsewhere.background.fail_revoked(now + 2 * SECOND)
            again.append(alice.seal(bob, created_at=unix_ms(now + 3 * SECOND), message_id=first.header.message_id))
            assert (await elsewhere.send(alice, again[0], now + 3 * SECOND)).new
        return await settle(*args)

    with monkeypatch.context() as slow:
        slow.setattr(store, "settle", late)
        assert isinstance(await office.ack(bob, got, now + 3 * SECOND), Conflict)
    assert [one.row.replay_key.hex() for one in await office.poll(bob, now + 100 * SECOND)] == [again[0].replay_key]


async def test_the_first_message_after_a_start_of_the_hot_tier_wakes_a_recipient_of_the_same_process(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    """Its script is not in the server's cache, and the claim of the recipient that was rung must not pass it."""
    assert await office.poll(bob, now) == []  # the scripts of a poll are known
    await office.hot._redis.script_flush()
    office.hot._line.close()  # type: ignore[union-attr] # as a restart does
    waiting = asyncio.create_task(office.poll(bob, now, wait_timeout_seconds=30))
    async with asyncio.timeout(10):
        while not office.wake.heard_since(arrivals("bob")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    envelope = alice.seal(bob, created_at=unix_ms(now))
    async with asyncio.timeout(3):  # less than the five seconds of the next look
        await office.send(alice, envelope, now)
        (got,) = await waiting
    assert got.row.replay_key.hex() == envelope.replay_key
