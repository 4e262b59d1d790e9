"""Mail on its way out: durable before it is sent, the same bytes each time, sealed again only on purpose."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from angelia.envelope import sealing, wire
from angelia.envelope.bundles import DEFAULT_SUITES, Bundle, Link, UntrustedBundle
from angelia.envelope.refusals import Expired, Malformed, SignatureFailed, UnknownSigner
from angelia.envelope.wire import Compression, Envelope, Priority, Suite
from angelia.errors import Conflict, KeyRevoked, KeyStale, NotFound
from angelia.keys.model import ONE_TIME_LIFE
from angelia.mailbox import identity
from angelia.mailbox.drafts import Draft
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus
from angelia.mailbox.retry_rules import MOST_RESEALS, SealStands

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

Agent = Callable[[str], Mailbox]


def bundle_of(box: Mailbox) -> Bundle:
    link = box.own_keys.newest()
    assert link is not None
    return link.bundle


@pytest.fixture
def sealed(alice: Mailbox, bob: Mailbox) -> Envelope:
    return alice.outbox.seal(bundle_of(bob), b"hello", now=NOW)


def kept(box: Mailbox, replay_key: str) -> bool:
    with box.database.transaction() as tx:
        query = "SELECT body, body_nonce FROM outbox WHERE replay_key = ?"
        return any(tx.execute(query, (replay_key,)).fetchone())


def test_the_bytes_are_on_disk_before_anybody_can_send_them(home: Path, alice: Mailbox, sealed: Envelope) -> None:
    key = sealed.replay_key
    assert (alice.directory / "outbox" / f"{key}.agl").read_bytes() == sealed.wire
    alice.close()
    with Mailbox(home, identity.load(home, "alice", lambda: ""), NOW) as again:
        assert again.outbox.wire(key) == sealed.wire
        row = again.outbox.message(key[:8])
        assert (row.recipient, row.status, row.attempts, row.resealable) == ("bob", OutboxStatus.STORED, 0, True)
        assert row.message_id == sealed.header.message_id


def test_what_is_wished_for_is_in_the_header(alice: Mailbox, bob: Mailbox) -> None:
    ids = [uuid.uuid4() for _ in range(3)]
    header = alice.outbox.seal(
        bundle_of(bob),
        b"x" * 500,
        now=NOW,
        ttl_seconds=60,
        priority=Priority.CRITICAL,
        compression=Compression.ZSTD,
        padme=True,
        correlation_id=ids[0],
        channel_id=ids[1],
        message_id=ids[2],
    ).header
    assert (header.ttl_seconds, header.priority, header.compression) == (60, Priority.CRITICAL, Compression.ZSTD)
    assert [header.correlation_id, header.channel_id, header.message_id] == ids
    assert (header.suite, header.sender_nhi, header.recipient_nhi) == (Suite.XWING, "alice", "bob")


def test_a_batch_is_durable_under_one_signature(alice: Mailbox, bob: Mailbox) -> None:
    drafts = [Draft(recipient=bundle_of(bob), body=bytes([n])) for n in range(5)]
    envelopes = alice.outbox.seal_many(drafts, NOW)
    assert len({envelope.signatures for envelope in envelopes}) == 1
    assert [alice.outbox.wire(one.replay_key) for one in envelopes] == [one.wire for one in envelopes]
    with pytest.raises(Malformed):
        alice.outbox.seal_many([], NOW)


# To whom.


def test_only_the_bundle_that_was_checked_last_is_sealed_to(alice: Mailbox, bob: Mailbox, agent: Agent) -> None:
    old = bundle_of(bob)
    link = bob.key_rotation.begin(NOW)
    bob.key_rotation.finish(NOW)
    with pytest.raises(UntrustedBundle):
        alice.outbox.seal(link.bundle, b"not followed yet", now=NOW)
    alice.pinned_keys.advance("bob", [link], NOW)
    with pytest.raises(UntrustedBundle):
        alice.outbox.seal(old, b"stale", now=NOW)
    with pytest.raises(UnknownSigner):
        alice.outbox.seal(bundle_of(agent("carol")), b"not pinned", now=NOW)
    assert alice.outbox.page() == []
    assert list((alice.directory / "outbox").iterdir()) == []


def test_an_expired_bundle_is_refused_with_what_to_do(alice: Mailbox, bob: Mailbox) -> None:
    alice.outbox.seal(bundle_of(bob), b"in time", now=NOW + 30 * DAY - SECOND)
    with pytest.raises(KeyStale) as refused:
        alice.outbox.seal(bundle_of(bob), b"too late", now=NOW + 30 * DAY)
    assert "expired" in refused.value.message
    assert "bob runs `angelia key publish`" in refused.value.hint


def test_a_bundle_from_the_future_is_refused(alice: Mailbox, bob: Mailbox) -> None:
    alice.outbox.seal(bundle_of(bob), b"clocks differ", now=NOW - DAY)
    with pytest.raises(KeyStale, match="later than now"):
        alice.outbox.seal(bundle_of(bob), b"too much", now=NOW - DAY - SECOND)


def test_a_revoked_key_is_refused(alice: Mailbox, bob: Mailbox) -> None:
    bundle = bundle_of(bob)
    alice.pinned_keys.advance("bob", [Link(bundle)], NOW, revoked=[bundle.kem_keys[0].key.key_id])
    with pytest.raises(KeyRevoked):
        alice.outbox.seal(bundle, b"no", now=NOW)


def test_the_stronger_suite_is_chosen(alice: Mailbox, bob: Mailbox) -> None:
    link = bob.key_rotation.begin(NOW, suites=DEFAULT_SUITES | Suite.ML_KEM.bit)
    bob.key_rotation.finish(NOW)
    alice.pinned_keys.advance("bob", [link], NOW)
    assert alice.outbox.seal(link.bundle, b"x", now=NOW).header.suite is Suite.XWING


def test_a_one_time_key_must_be_the_recipients_and_young(alice: Mailbox, bob: Mailbox, agent: Agent) -> None:
    (one,) = bob.own_keys.make_one_time_keys(1, NOW)
    (foreign,) = agent("carol").own_keys.make_one_time_keys(1, NOW)
    for bad in (foreign, dataclasses.replace(one, created_at=one.created_at + 1)):
        with pytest.raises(SignatureFailed):
            alice.outbox.seal(bundle_of(bob), b"x", now=NOW, one_time_key=bad)
    with pytest.raises(KeyStale):
        alice.outbox.seal(bundle_of(bob), b"x", now=NOW + 30 * DAY, one_time_key=one)
    header = alice.outbox.seal(bundle_of(bob), b"x", now=NOW, one_time_key=one).header
    assert header.key_id == one.key.key_id


# How far it has come.


def test_the_content_is_kept_until_it_is_not_needed_any_more(alice: Mailbox, sealed: Envelope) -> None:
    key = sealed.replay_key
    assert kept(alice, key)
    assert alice.outbox.mark(key, OutboxStatus.QUEUED)
    assert kept(alice, key)
    assert alice.outbox.mark(key, OutboxStatus.DELIVERED)
    assert not kept(alice, key)
    assert alice.outbox.mark(key, OutboxStatus.READ)


@pytest.mark.parametrize("end", [OutboxStatus.DELIVERED, OutboxStatus.READ, OutboxStatus.FAILED])
def test_what_the_recipient_signs_clears_the_content(alice: Mailbox, sealed: Envelope, end: OutboxStatus) -> None:
    assert alice.outbox.mark(sealed.replay_key, end)
    assert not kept(alice, sealed.replay_key)
    assert alice.outbox.message(sealed.replay_key).status is end


def test_news_that_comes_twice_or_late_changes_nothing(alice: Mailbox, sealed: Envelope) -> None:
    key = sealed.replay_key
    assert alice.outbox.mark(key, OutboxStatus.READ)
    for late in (
        OutboxStatus.READ,
        OutboxStatus.DELIVERED,
        OutboxStatus.QUEUED,
        OutboxStatus.FAILED,
        OutboxStatus.EXPIRED,
        OutboxStatus.STORED,
        OutboxStatus.RESEALED,
    ):
        assert not alice.outbox.mark(key, late)
    assert alice.outbox.message(key).status is OutboxStatus.READ
    assert not alice.outbox.mark("0" * 64, OutboxStatus.QUEUED)


@pytest.mark.parametrize("said", [OutboxStatus.DELIVERED, OutboxStatus.EXPIRED, OutboxStatus.FAILED])
@pytest.mark.parametrize("signed", [OutboxStatus.DELIVERED, OutboxStatus.READ, OutboxStatus.FAILED])
def test_a_servers_word_is_kept_beside_the_content_and_the_recipients_ends_it(
    alice: Mailbox, sealed: Envelope, said: OutboxStatus, signed: OutboxStatus
) -> None:
    key = sealed.replay_key
    alice.outbox.mark(key, OutboxStatus.QUEUED)
    assert alice.outbox.record_report(key, said, "because", NOW)
    assert not alice.outbox.record_report(key, said, "because", NOW + MINUTE)
    row = alice.outbox.message(key)
    assert (row.status, row.reported, row.reported_reason, row.reported_at) == (
        OutboxStatus.QUEUED,
        said,
        "because",
        NOW,
    )
    assert kept(alice, key)
    assert [one.replay_key for one in alice.outbox.unsettled(NOW + DAY)] == [key]
    assert alice.outbox.mark(key, signed)
    assert (alice.outbox.message(key).status, alice.outbox.message(key).reported) == (signed, None)
    assert not kept(alice, key)


def test_an_envelope_that_was_replaced_may_fail_and_the_message_goes_on(
    alice: Mailbox, bob: Mailbox, sealed: Envelope
) -> None:
    again = alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW + HOUR).replay_key
    assert not alice.outbox.mark(sealed.replay_key, OutboxStatus.FAILED)
    assert alice.outbox.message(again).status is OutboxStatus.STORED
    assert kept(alice, again)


def test_a_try_that_is_further_away_than_any_pause_is_due(alice: Mailbox, bob: Mailbox) -> None:
    key = alice.outbox.seal(bundle_of(bob), b"hello", now=NOW).replay_key
    assert alice.outbox.due(NOW - 4 * MINUTE) == []
    assert [row.replay_key for row in alice.outbox.due(NOW - 6 * MINUTE)] == [key]
    again = alice.outbox.reseal(key, bundle_of(bob), NOW + HOUR).replay_key
    assert alice.outbox.due(NOW - HOUR) == []
    assert [row.replay_key for row in alice.outbox.due(NOW - DAY)] == [again]


def test_what_the_sender_knows_to_be_untrue_is_called_so(alice: Mailbox, sealed: Envelope) -> None:
    row, end = alice.outbox.message(sealed.replay_key), NOW + 7 * DAY
    assert row.contradiction(OutboxStatus.EXPIRED, "", end - 10 * MINUTE)
    assert row.contradiction(OutboxStatus.EXPIRED, "", end) is None
    assert row.contradiction(OutboxStatus.FAILED, "withdrawn", NOW)
    assert row.contradiction(OutboxStatus.FAILED, "key_revoked", NOW) is None
    alice.withdrawals.request(row.replay_key, NOW)
    assert alice.outbox.message(row.replay_key).contradiction(OutboxStatus.FAILED, "withdrawn", NOW) is None


def test_what_a_server_refused_is_not_tried_again_until_somebody_says_so(alice: Mailbox, sealed: Envelope) -> None:
    key = sealed.replay_key
    alice.outbox.refuse(key, OutboxStatus.FAILED, "authorization_denied", NOW)
    assert alice.outbox.due(NOW + DAY) == []
    assert kept(alice, key)
    assert alice.outbox.retry_now(NOW + DAY) == 1
    assert [row.replay_key for row in alice.outbox.due(NOW + DAY)] == [key]
    assert alice.outbox.retry_now(NOW + 7 * DAY) == 0


def test_the_outbox_says_why_a_message_waits(alice: Mailbox, sealed: Envelope) -> None:
    alice.outbox.retry_later(sealed.replay_key, NOW, "the server is full")
    assert alice.outbox.message(sealed.replay_key).last_error == "the server is full"
    alice.outbox.mark(sealed.replay_key, OutboxStatus.QUEUED)
    assert alice.outbox.message(sealed.replay_key).last_error == ""


def test_the_content_goes_a_day_after_the_end_of_a_message_by_this_clock(alice: Mailbox, bob: Mailbox) -> None:
    short = alice.outbox.seal(bundle_of(bob), b"short", now=NOW, ttl_seconds=60).replay_key
    queued = alice.outbox.seal(bundle_of(bob), b"queued", now=NOW, ttl_seconds=60).replay_key
    alice.outbox.mark(queued, OutboxStatus.QUEUED)
    for at in (HOUR, 2 * HOUR, DAY, DAY + HOUR, DAY + HOUR + MINUTE):
        alice.receive_many([], now=NOW + at)
        assert kept(alice, short)
    alice.receive_many([], now=NOW + DAY + 2 * HOUR)
    assert alice.outbox.message(short).status is OutboxStatus.EXPIRED
    assert alice.outbox.message(queued).status is OutboxStatus.QUEUED  # only the relay knows
    assert not kept(alice, short)
    assert not kept(alice, queued)
    assert alice.outbox.due(NOW + DAY) == []


def test_tries_are_further_and_further_apart_but_never_more_than_five_minutes(alice: Mailbox, sealed: Envelope) -> None:
    key, at, waits = sealed.replay_key, NOW, []
    assert alice.outbox.due(NOW) == []
    assert [row.replay_key for row in alice.outbox.due(NOW + SECOND)] == [key]
    for _ in range(12):
        again = alice.outbox.retry_later(key, at)
        waits.append((again - at) // SECOND)
        at = again
    assert waits[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert set(waits[9:]) == {300}
    assert alice.outbox.message(key).attempts == 12
    alice.outbox.mark(key, OutboxStatus.QUEUED)
    assert alice.outbox.due(NOW + DAY) == []
    with pytest.raises(Conflict):
        alice.outbox.retry_later(key, NOW)


def test_sent_mail_is_listed_newest_first_page_by_page(alice: Mailbox, bob: Mailbox) -> None:
    keys = [alice.outbox.seal(bundle_of(bob), b"x", now=NOW + n * MINUTE).replay_key for n in range(3)]
    first = alice.outbox.page(limit=2)
    rest = alice.outbox.page(limit=2, after=first[-1].replay_key)
    assert [row.replay_key for row in first + rest] == keys[::-1]
    with pytest.raises(NotFound):
        alice.outbox.message("0" * 8)


# Sealing again.


def test_a_message_is_sealed_again_for_new_keys_under_its_own_id(alice: Mailbox, bob: Mailbox) -> None:
    old = alice.outbox.seal(
        bundle_of(bob), b"text " * 99, now=NOW, priority=Priority.HIGH, compression=Compression.GZIP, padme=True
    )
    link = bob.key_rotation.begin(NOW, emergency=True)
    bob.key_rotation.finish(NOW)
    alice.pinned_keys.advance("bob", [link], NOW)
    new = alice.outbox.reseal(old.replay_key, link.bundle, NOW + HOUR)
    assert new.header.message_id == old.header.message_id
    assert new.header.expires_at == old.header.expires_at
    assert (new.header.priority, new.header.compression) == (Priority.HIGH, Compression.GZIP)
    assert len(new.ciphertext) == len(old.ciphertext)
    assert alice.outbox.message(old.replay_key).status is OutboxStatus.RESEALED
    assert not kept(alice, old.replay_key)
    assert kept(alice, new.replay_key)
    assert bob.receive(new.wire, now=NOW + HOUR).body == b"text " * 99


def test_a_message_whose_key_is_active_or_in_grace_is_not_sealed_again(
    alice: Mailbox, bob: Mailbox, sealed: Envelope
) -> None:
    alice.outbox.mark(sealed.replay_key, OutboxStatus.QUEUED)
    with pytest.raises(SealStands):
        alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW)
    link = bob.key_rotation.begin(NOW)
    bob.key_rotation.finish(NOW)
    alice.pinned_keys.advance("bob", [link], NOW)
    with pytest.raises(SealStands):
        alice.outbox.reseal(sealed.replay_key, link.bundle, NOW + MINUTE)
    assert kept(alice, sealed.replay_key)


def test_a_message_under_a_one_time_key_is_sealed_again_only_for_a_newer_bundle(alice: Mailbox, bob: Mailbox) -> None:
    (one,) = bob.own_keys.make_one_time_keys(1, NOW)
    old = alice.outbox.seal(bundle_of(bob), b"x", now=NOW, one_time_key=one)
    with pytest.raises(SealStands):
        alice.outbox.reseal(old.replay_key, bundle_of(bob), NOW)
    link = bob.key_rotation.begin(NOW, emergency=True)
    bob.key_rotation.finish(NOW)
    alice.pinned_keys.advance("bob", [link], NOW)
    assert alice.outbox.reseal(old.replay_key, link.bundle, NOW).header.message_id == old.header.message_id


def test_a_one_time_key_that_is_handed_out_twice_is_refused_the_second_time(
    alice: Mailbox, bob: Mailbox, sealed: Envelope
) -> None:
    one, other = bob.own_keys.make_one_time_keys(2, NOW)
    alice.outbox.seal(bundle_of(bob), b"first", now=NOW, one_time_key=one)
    draft = Draft(recipient=bundle_of(bob), body=b"second", one_time_key=one)
    again: list[Callable[[], object]] = [
        lambda: alice.outbox.seal(bundle_of(bob), b"second", now=NOW, one_time_key=one),
        lambda: alice.outbox.seal_many([draft], NOW),
        lambda: alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW + 10 * MINUTE, one_time_key=one),
    ]
    for attempt in again:
        with pytest.raises(UntrustedBundle, match="used before"):
            attempt()
    assert len(alice.outbox.page()) == len(list((alice.directory / "outbox").iterdir())) == 2
    assert alice.outbox.message(sealed.replay_key).resealable
    alice.outbox.seal(bundle_of(bob), b"second", now=NOW, one_time_key=other)


def test_a_one_time_key_is_remembered_until_it_is_too_old_to_be_used(alice: Mailbox, bob: Mailbox) -> None:
    (one,) = bob.own_keys.make_one_time_keys(1, NOW)
    alice.outbox.seal(bundle_of(bob), b"first", now=NOW, one_time_key=one)
    for at, error in ((NOW + ONE_TIME_LIFE - SECOND, UntrustedBundle), (NOW + ONE_TIME_LIFE + HOUR, KeyStale)):
        alice.prune(at)
        with pytest.raises(error):
            alice.outbox.seal(bundle_of(bob), b"second", now=at, one_time_key=one)
    with alice.database.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM spent_one_time").fetchone() == (0,)


def test_a_message_is_sealed_again_five_times_at_most_over_its_whole_life(
    alice: Mailbox, bob: Mailbox, sealed: Envelope
) -> None:
    key = sealed.replay_key
    for n in range(1, MOST_RESEALS + 1):
        key = alice.outbox.reseal(key, bundle_of(bob), NOW + n * HOUR).replay_key
        assert alice.outbox.message(key).reseals == n
    with pytest.raises(SealStands, match="5 times"):
        alice.outbox.reseal(key, bundle_of(bob), NOW + DAY)
    assert kept(alice, key)
    assert alice.outbox.mark(
        sealed.replay_key, OutboxStatus.DELIVERED
    )  # a receipt of the first envelope is one of the message
    assert alice.outbox.message(key).status is OutboxStatus.DELIVERED
    assert not kept(alice, key)


def test_the_few_envelopes_that_a_message_has_are_spread_over_a_day(alice: Mailbox, bob: Mailbox) -> None:
    key, at = alice.outbox.seal(bundle_of(bob), b"x", now=NOW).replay_key, NOW
    while alice.outbox.message(key).reseals < MOST_RESEALS:
        while at <= alice.outbox.message(key).created_at + 5 * MINUTE:
            at = alice.outbox.retry_later(key, at)
        key = alice.outbox.reseal(key, bundle_of(bob), at).replay_key
    assert DAY / 4 < at - NOW < 2 * DAY


def test_where_mail_lives_shorter_than_usual_nobody_has_to_say_so(home: Path, alice: Mailbox, bob: Mailbox) -> None:
    long = alice.outbox.seal(bundle_of(bob), b"of before", now=NOW)
    with Mailbox(home, identity.load(home, "alice", lambda: ""), NOW, ttl_max=3_600) as hasty:
        assert hasty.outbox.seal(bundle_of(bob), b"hello", now=NOW).header.ttl_seconds == 3_600
        (many,) = hasty.outbox.seal_many([Draft(recipient=bundle_of(bob), body=b"hello")], NOW)
        assert many.header.ttl_seconds == 3_600
        with pytest.raises(Malformed, match="ttl_seconds"):
            hasty.outbox.seal(bundle_of(bob), b"hello", now=NOW, ttl_seconds=3_601)
        again = hasty.outbox.reseal(long.replay_key, bundle_of(bob), NOW + HOUR)
        assert again.header.ttl_seconds == 3_600
    assert long.header.ttl_seconds == 7 * 86_400


def test_a_message_is_sealed_again_once_and_only_while_its_content_is_there(
    alice: Mailbox, bob: Mailbox, sealed: Envelope
) -> None:
    alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW + HOUR)
    for _ in range(2):
        with pytest.raises(Conflict):
            alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW + HOUR)
    assert len(alice.outbox.page()) == 2


def test_a_message_that_is_deleted_while_it_is_sealed_again_is_gone_with_the_new_envelope(
    alice: Mailbox, bob: Mailbox, sealed: Envelope, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = sealing.seal

    def meanwhile(*arguments: Any, **named: Any) -> Envelope:
        alice.delete(sealed.replay_key, NOW)
        return seal(*arguments, **named)

    monkeypatch.setattr(sealing, "seal", meanwhile)
    with pytest.raises(Conflict, match="deleted"):
        alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW + 10 * MINUTE)
    assert alice.outbox.page() == []
    assert list((alice.directory / "outbox").iterdir()) == []


def test_a_message_that_is_delivered_while_it_is_sealed_again_is_not_sealed_again(
    alice: Mailbox, bob: Mailbox, sealed: Envelope, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = alice.outbox._resealable

    def meanwhile(*arguments: Any) -> tuple[OutboxMessage, Envelope]:
        found = checked(*arguments)
        alice.outbox.mark(sealed.replay_key, OutboxStatus.DELIVERED)
        return found

    monkeypatch.setattr(alice.outbox, "_resealable", meanwhile)
    with pytest.raises(Conflict, match="its content is not kept any more"):
        alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW + HOUR)


def test_a_message_is_never_sealed_again_for_somebody_else_or_after_its_time(
    alice: Mailbox, bob: Mailbox, sealed: Envelope, agent: Agent, introduce: Callable[[Mailbox, Mailbox], None]
) -> None:
    carol = agent("carol")
    introduce(alice, carol)
    with pytest.raises(UntrustedBundle):
        alice.outbox.reseal(sealed.replay_key, bundle_of(carol), NOW + HOUR)
    with pytest.raises(Expired):
        alice.outbox.reseal(sealed.replay_key, bundle_of(bob), NOW + 7 * DAY)
    assert alice.outbox.message(sealed.replay_key).status is OutboxStatus.STORED


def test_a_file_that_was_changed_is_not_sent(alice: Mailbox, sealed: Envelope) -> None:
    path = alice.directory / "outbox" / f"{sealed.replay_key}.agl"
    path.write_bytes(sealed.wire + b"!")
    from angelia.mailbox.private_files import UnsafeFile

    with pytest.raises(UnsafeFile):
        alice.outbox.wire(sealed.replay_key)
    path.write_bytes(sealed.wire)
    assert wire.decode(alice.outbox.wire(sealed.replay_key)).header == sealed.header


def test_what_a_person_carries_is_not_sent_through_a_relay_as_well(alice: Mailbox, sealed: Envelope) -> None:
    assert [row.replay_key for row in alice.outbox.due(NOW + HOUR)] == [sealed.replay_key]
    alice.outbox.hand_over(sealed.replay_key)
    assert alice.outbox.due(NOW + HOUR) == []
    assert alice.outbox.message(sealed.replay_key).status is OutboxStatus.STORED


def test_what_the_relay_has_is_followed_until_a_day_after_its_end(alice: Mailbox, sealed: Envelope) -> None:
    assert alice.outbox.unsettled(NOW) == []
    for status in (OutboxStatus.QUEUED, OutboxStatus.DELIVERED):
        alice.outbox.mark(sealed.replay_key, status)
        assert [row.status for row in alice.outbox.unsettled(NOW + 8 * DAY - SECOND)] == [status]
        assert alice.outbox.unsettled(NOW + 8 * DAY) == []
    alice.outbox.mark(sealed.replay_key, OutboxStatus.READ)
    assert alice.outbox.unsettled(NOW) == []
