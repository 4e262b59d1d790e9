"""Opening an envelope: cheap checks first, both signatures always, and no plaintext before the replay row is there."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from angelia.envelope import json_form, sealing, wire
from angelia.envelope.bundles import DEFAULT_SUITES, Link
from angelia.envelope.receipts import ReceiptStatus
from angelia.envelope.refusals import (
    Expired,
    FutureEnvelope,
    IdConflict,
    Malformed,
    NotAllowed,
    OpenFailed,
    Replayed,
    SignatureFailed,
    StaleEnvelope,
    SuiteRefused,
    UnknownKey,
    UnknownSigner,
    WrongRecipient,
)
from angelia.envelope.sealing import ChannelKey, Control, EpochKey, Letter
from angelia.envelope.wire import Compression, Envelope, Suite
from angelia.errors import AngeliaError, DiskFull, NotFound, RateLimited
from angelia.mailbox import identity, inbox, open_failures
from angelia.mailbox.database import SQL
from angelia.mailbox.drafts import Draft
from angelia.mailbox.envelope_files import EnvelopeFiles
from angelia.mailbox.inbox import Opened, ReadState
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.private_files import CannotWrite, UnsafeFile
from angelia.mailbox.time_window import DeliveryProfile
from forged_envelopes import forged

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CHANNEL = uuid.UUID(int=7)
MS, MINUTE, DAY = timedelta(milliseconds=1), timedelta(minutes=1), timedelta(days=1)

Send = Callable[..., bytes]
Agent = Callable[[str], Mailbox]


def files(box: Mailbox, name: str) -> list[str]:
    return sorted(path.stem for path in (box.directory / name).iterdir())


def rows(box: Mailbox, table: str) -> int:
    with box.database.transaction() as tx:
        return int(tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608


def untouched(box: Mailbox) -> bool:
    return not any(rows(box, table) for table in ("replay_state", "inbox", "failures")) and not (
        files(box, "inbox") or files(box, "dead") or list(box.directory.glob("receipts_*"))
    )


@pytest.mark.parametrize("profile", DeliveryProfile)
def test_what_is_sealed_opens_once(bob: Mailbox, send: Send, profile: DeliveryProfile) -> None:
    sealed = send(body=b"deploy at 18:00")
    opened = bob.receive(sealed, now=NOW, profile=profile)
    assert opened.body == b"deploy at 18:00"
    assert (opened.message.sender, opened.message.recipient, opened.control) == ("alice", "bob", False)
    with pytest.raises(Replayed) as refused:
        bob.receive(sealed, now=NOW + 12 * MINUTE)
    assert "opened 12m ago" in refused.value.message
    assert opened.message.replay_key[:12] in refused.value.hint
    assert rows(bob, "inbox") == rows(bob, "replay_state") == 1


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("padme", [False, True])
def test_it_opens_however_it_was_packed(bob: Mailbox, send: Send, compression: Compression, padme: bool) -> None:
    body = b"the same again, " * 100
    assert bob.receive(send(body=body, compression=compression, padme=padme), now=NOW).body == body


def test_the_message_is_in_the_inbox_and_its_file_proves_itself_before_it_is_returned(bob: Mailbox, send: Send) -> None:
    sealed = send()
    opened = bob.receive(sealed, now=NOW)
    key = opened.message.replay_key
    assert bob.inbox.message(key).status is ReadState.UNREAD
    assert (bob.directory / "inbox" / f"{key}.agl").read_bytes() == sealed
    assert bob.verify() == []


def test_plaintext_stands_nowhere_on_the_disk(bob: Mailbox, send: Send, home: Path) -> None:
    marker = b"a marker that must be found nowhere"
    bob.receive(send(body=marker), now=NOW)
    bob.inbox.read(bob.inbox.page().messages[0].replay_key, NOW)
    on_disk = [path for path in home.rglob("*") if path.is_file()]
    assert len(on_disk) > 8
    assert [path for path in on_disk if marker in path.read_bytes()] == []


def test_a_receipt_says_it_was_delivered_and_the_sender_can_check_it(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    receipt = bob.receive(send(), now=NOW).receipt
    assert receipt is not None
    assert receipt.status is ReceiptStatus.DELIVERED
    alice.check_receipt(receipt)
    with pytest.raises(SignatureFailed):
        alice.check_receipt(dataclasses.replace(receipt, status=ReceiptStatus.READ))
    assert bob.receipts().receipts == (receipt,)


# Re-spelled copies.


def test_a_copy_in_json_is_the_same_envelope_however_it_is_spelled(bob: Mailbox, send: Send) -> None:
    sealed = send()
    fields = json_form.to_fields(wire.decode(sealed))
    spelled = [
        json_form.encode(wire.decode(sealed)),
        json.dumps(dict(reversed(fields.items()))).encode(),
        b" \n\t" + json.dumps(fields, indent=4).encode() + b"\r\n",
        json.dumps(fields).replace('"suite"', '"s\\u0075ite"').encode(),
    ]
    assert bob.receive(spelled[2], now=NOW).body == b"hello"
    for again in [*spelled, sealed]:
        with pytest.raises(Replayed):
            bob.receive(again, now=NOW)
    assert rows(bob, "inbox") == 1


def test_a_copy_with_more_in_it_is_no_envelope(bob: Mailbox, send: Send) -> None:
    sealed = send()
    fields = json_form.to_fields(wire.decode(sealed))
    padded = {**fields, "signature_ed25519": fields["signature_ed25519"] + "=="}
    newline = {**fields, "signature_ed25519": fields["signature_ed25519"] + "\n"}
    for respelled in (sealed + b"\0", b" " + sealed, *map(json.dumps, ({**fields, "x": 1}, padded, newline))):
        with pytest.raises(Malformed):
            bob.receive(respelled if isinstance(respelled, bytes) else respelled.encode(), now=NOW)
    assert untouched(bob)


def test_what_is_too_big_is_refused_before_it_is_read(bob: Mailbox) -> None:
    for content in (b"AGLE" + bytes(wire.MAX_ENVELOPE), b"{" + b" " * json_form.MAX_JSON, b"", b"{", b"AGLE"):
        with pytest.raises(Malformed):
            bob.receive(content, now=NOW)
    assert untouched(bob)


# For whom, and by whom.


def test_an_envelope_for_bob_is_nothing_to_carol(agent: Agent, bob: Mailbox, send: Send) -> None:
    carol = agent("carol")
    with pytest.raises(WrongRecipient):
        carol.receive(send(), now=NOW)
    assert untouched(carol)


def test_an_envelope_to_another_key_or_of_another_type_is_refused_before_any_crypto(
    alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    envelope = wire.decode(send())
    for changes in (
        {"key_id": uuid.uuid4()},
        {"suite": Suite.ML_KEM, "wrapped_key": envelope.header.wrapped_key[:1088]},
    ):
        with pytest.raises(UnknownKey):
            bob.receive(forged(envelope, alice, **changes), now=NOW)
    assert untouched(bob)


def test_a_suite_outside_the_mask_of_its_time_is_refused(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    with_suite_1 = DEFAULT_SUITES | Suite.ML_KEM.bit
    link = bob.key_rotation.begin(NOW + DAY, suites=with_suite_1)
    bob.key_rotation.finish(NOW + DAY)
    alice.pinned_keys.advance("bob", [link], NOW + DAY)
    without = bob.key_rotation.begin(NOW + 2 * DAY, suites=DEFAULT_SUITES)
    bob.key_rotation.finish(NOW + 2 * DAY)
    separate = next(e.key for e in link.bundle.kem_keys if e.key.kind.name == "ML_KEM_768")

    def sealed(created_at: datetime) -> bytes:
        letter = Letter(
            recipient="bob",
            key=separate,
            body=b"by suite 1",
            message_id=uuid.uuid4(),
            created_at=int(created_at.timestamp() * 1000),
        )
        return sealing.seal(letter, "alice", alice.identity.pair).wire

    late = NOW + 2 * DAY + MINUTE
    assert without.bundle.suites == DEFAULT_SUITES
    assert bob.receive(sealed(NOW + DAY + MINUTE), now=late).body == b"by suite 1"
    assert bob.receive(sealed(NOW + DAY - 5 * MINUTE), now=late).body == b"by suite 1"
    assert bob.receive(sealed(NOW + 2 * DAY + 5 * MINUTE), now=late).body == b"by suite 1"
    for at in (NOW + DAY - 5 * MINUTE - MS, NOW + 2 * DAY + 5 * MINUTE + MS):
        with pytest.raises(SuiteRefused):
            bob.receive(sealed(at), now=late)


def test_the_signer_is_looked_up_by_sender_and_id_so_no_valid_pair_speaks_for_another(
    agent: Agent, bob: Mailbox, send: Send, introduce: Callable[[Mailbox, Mailbox], None]
) -> None:
    mallory = agent("mallory")
    introduce(mallory, bob)
    spoofed = forged(wire.decode(send()), mallory, sender_key_id=mallory.identity.pair.public.signer_id)
    with pytest.raises(UnknownSigner) as refused:
        bob.receive(spoofed, now=NOW)
    assert refused.value.agent == "alice"
    assert untouched(bob)


def test_claiming_an_allowed_pair_without_its_keys_opens_nothing(
    agent: Agent, bob: Mailbox, send: Send, introduce: Callable[[Mailbox, Mailbox], None]
) -> None:
    mallory = agent("mallory")
    introduce(mallory, bob)
    bob.allowlist.deny("mallory")
    with pytest.raises(SignatureFailed):
        bob.receive(forged(wire.decode(send()), mallory), now=NOW)
    known = mallory.pinned_keys.bundle("bob", NOW)
    assert known is not None
    honest = mallory.outbox.seal(known.bundle, b"as myself", now=NOW).wire
    with pytest.raises(NotAllowed):
        bob.receive(honest, now=NOW)
    assert untouched(bob)


def test_an_empty_allowlist_is_nobody(bob: Mailbox, send: Send) -> None:
    bob.allowlist.deny("alice")
    assert bob.allowlist.entries() == []
    with pytest.raises(NotAllowed):
        bob.receive(send(), now=NOW)
    assert untouched(bob)


def test_a_stranger_is_refused_without_asking_for_its_keys(agent: Agent, bob: Mailbox) -> None:
    stranger, link = agent("stranger"), bob.own_keys.newest()
    assert link is not None
    stranger.pinned_keys.pin_first(link, NOW)
    with pytest.raises(NotAllowed):
        bob.receive(stranger.outbox.seal(link.bundle, b"hi", now=NOW).wire, now=NOW)
    assert untouched(bob)


def test_an_imported_entry_that_is_not_pinned_yet_asks_for_its_keys(agent: Agent, bob: Mailbox) -> None:
    friend, link = agent("friend"), bob.own_keys.newest()
    assert link is not None
    friend.pinned_keys.pin_first(link, NOW)
    listed = [{"fingerprint": friend.identity.pair.public.fingerprint, "nhi": "friend"}]
    bob.allowlist.import_json(json.dumps(listed).encode(), NOW)
    sealed = friend.outbox.seal(link.bundle, b"hi", now=NOW).wire
    with pytest.raises(UnknownSigner):
        bob.receive(sealed, now=NOW)
    newest = friend.own_keys.newest()
    assert newest is not None
    bob.pinned_keys.pin_first(newest, NOW)
    assert bob.receive(sealed, now=NOW).body == b"hi"


@pytest.mark.parametrize("half", ["ed25519", "ml_dsa"])
def test_one_good_signature_is_not_enough(bob: Mailbox, send: Send, half: str) -> None:
    envelope = wire.decode(send())
    spoiled = bytearray(getattr(envelope.signatures, half))
    spoiled[7] ^= 1
    signatures = dataclasses.replace(envelope.signatures, **{half: bytes(spoiled)})
    changed = wire.assemble(envelope.header, envelope.head, envelope.ciphertext, envelope.tag, signatures)
    with pytest.raises(SignatureFailed):
        bob.receive(changed.wire, now=NOW)
    assert untouched(bob)
    assert bob.receive(envelope.wire, now=NOW).body == b"hello"


# Time.


def test_the_window_comes_before_the_replay_state_and_leaves_it_alone(bob: Mailbox, send: Send) -> None:
    sealed = send()
    for now, profile, refusal in (
        (NOW - 5 * MINUTE - MS, DeliveryProfile.RELAY, FutureEnvelope),
        (NOW + 5 * MINUTE + MS, DeliveryProfile.DIRECT, StaleEnvelope),
        (NOW + 7 * DAY, DeliveryProfile.RELAY, Expired),
    ):
        with pytest.raises(refusal):
            bob.receive(sealed, now=now, profile=profile)
    assert untouched(bob)
    assert bob.receive(sealed, now=NOW + 7 * DAY - MS).body == b"hello"


@pytest.mark.parametrize("later", [DAY + MINUTE, 3 * DAY, 7 * DAY - MS])
def test_a_replay_days_later_is_still_refused_though_pruning_went_on(
    bob: Mailbox, send: Send, later: timedelta
) -> None:
    sealed = send()
    bob.receive(sealed, now=NOW)
    bob.prune(NOW + later)
    with pytest.raises(Replayed):
        bob.receive(sealed, now=NOW + later)


def test_after_the_row_is_gone_the_envelope_has_long_expired(bob: Mailbox, send: Send) -> None:
    sealed = send(ttl_seconds=60)
    bob.receive(sealed, now=NOW)
    assert bob.prune(NOW + 2 * DAY).rows == 1
    with pytest.raises(Expired):
        bob.receive(sealed, now=NOW + 2 * DAY)


def test_a_clock_that_ran_ahead_and_was_put_right_lets_no_replay_in(bob: Mailbox, send: Send) -> None:
    sealed = send()
    bob.receive(sealed, now=NOW)
    assert bob.prune(NOW + 30 * DAY).rows == 1
    with pytest.raises(Expired, match="no longer remembers"):
        bob.receive(sealed, now=NOW + MINUTE)
    later = send(now=NOW + MINUTE)
    assert bob.receive(later, now=NOW + MINUTE).body == b"hello"


def test_a_clock_set_back_accepts_nothing_twice_and_prunes_nothing(bob: Mailbox, send: Send) -> None:
    sealed = send()
    bob.receive(sealed, now=NOW + 2 * DAY)
    bob.notices.take()
    with pytest.raises(Replayed):
        bob.receive(sealed, now=NOW)
    assert any("nothing is pruned" in notice.text for notice in bob.notices.take())
    assert rows(bob, "replay_state") == 1


# Ids.


def test_the_same_id_with_other_content_is_a_conflict_and_the_first_stands(bob: Mailbox, send: Send) -> None:
    shared = uuid.uuid4()
    first, second = send(body=b"first", message_id=shared), send(body=b"second", message_id=shared)
    bob.receive(first, now=NOW)
    with pytest.raises(IdConflict):
        bob.receive(second, now=NOW)
    assert [bob.inbox.read(message.replay_key, NOW).body for message in bob.inbox.page().messages] == [b"first"]
    assert files(bob, "dead") == [wire.decode(second).replay_key]
    assert bob.verify() == []


def test_a_conflict_that_comes_twice_keeps_nothing_from_the_caller(bob: Mailbox, send: Send) -> None:
    shared = uuid.uuid4()
    first, second, third = (send(body=body, message_id=shared) for body in (b"first", b"second", b"third"))
    other = send(body=b"other")
    outcomes = bob.receive_many([first, second, second, third, other], now=NOW)
    assert [type(one) for one in outcomes] == [Opened, IdConflict, IdConflict, IdConflict, Opened]
    assert len(files(bob, "inbox")) == len(files(bob, "dead")) == 2
    assert bob.verify() == []


def test_a_message_that_was_sealed_again_by_the_senders_next_pair_is_not_opened_twice(
    alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    first = send()
    assert bob.receive(first, now=NOW).body == b"hello"
    link, at = alice.key_rotation.begin(NOW, signer=True), NOW + timedelta(minutes=10)
    alice.key_rotation.finish(NOW)
    bob.pinned_keys.advance("alice", [link], NOW)
    known = alice.pinned_keys.bundle("bob", NOW, max_age=None)
    assert known is not None
    again = alice.outbox.reseal(alice.outbox.page()[0].replay_key, known.bundle, at)
    assert again.header.sender_key_id != wire.decode(first).header.sender_key_id
    with pytest.raises(IdConflict):
        bob.receive(again.wire, now=at)


Heard = Callable[[Mailbox, Link, UUID], object]
WAYS: dict[str, tuple[bool, Heard]] = {
    "its revocation is heard of": (True, lambda box, link, old: box.pinned_keys.advance("alice", [link], NOW, [old])),
    "a relay only says that it was revoked": (
        False,
        lambda box, link, old: box.pinned_keys.advance("alice", [link], NOW, [old]),
    ),
    "an operator pins the next one": (True, lambda box, link, _: box.pinned_keys.trust(link, NOW)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_message_is_not_opened_twice_whatever_is_heard_of_the_pair_that_signed_it_first(
    alice: Mailbox, bob: Mailbox, send: Send, way: str
) -> None:
    emergency, hear = WAYS[way]
    first, old = send(), alice.identity.pair.public.signer_id
    bob.receive(first, now=NOW)
    link, at = alice.key_rotation.begin(NOW, signer=True, emergency=emergency), NOW + 10 * MINUTE
    alice.key_rotation.finish(NOW)
    hear(bob, link, old)
    bob.allowlist.allow("alice", NOW)
    known = alice.pinned_keys.bundle("bob", NOW, max_age=None)
    assert known is not None
    again = alice.outbox.reseal(wire.decode(first).replay_key, known.bundle, at)
    with pytest.raises(IdConflict):
        bob.receive(again.wire, now=at)
    bob.delete(wire.decode(first).replay_key, at)
    with pytest.raises(IdConflict):
        bob.receive(again.wire, now=at)
    assert rows(bob, "replay_state") == 1


def test_an_id_that_an_unknown_sender_used_is_not_used_again(bob: Mailbox, send: Send) -> None:
    used = uuid.uuid4()
    bob.receive(send(message_id=used), now=NOW)
    with bob.database.transaction() as tx:  # as of a pair that was forgotten before names were kept
        tx.execute("UPDATE replay_state SET sender_nhi = NULL, sender_fp = 'forgotten'")
    with pytest.raises(IdConflict):
        bob.receive(send(message_id=used), now=NOW)
    assert bob.receive(send(), now=NOW).body == b"hello"


def test_what_was_claimed_has_its_receipt_whatever_becomes_of_the_others(
    bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = uuid.uuid4()
    first, second = (send(body=body, message_id=shared) for body in (b"first", b"second"))

    def rename(*names: str, src_dir_fd: int, dst_dir_fd: int) -> None:
        if src_dir_fd != dst_dir_fd:
            raise OSError(5, "Input/output error")
        real(*names, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    real = os.rename
    monkeypatch.setattr(os, "rename", rename)
    opened, refused = bob.receive_many([first, second], now=NOW)
    assert isinstance(opened, Opened)
    assert opened.body == b"first"
    assert isinstance(refused, CannotWrite)  # nothing is said of it, so that it comes again
    (receipt,) = bob.receipts().receipts
    assert receipt.replay_key == wire.decode(first).replay_key


def test_what_was_committed_reaches_the_caller_although_no_receipt_could_be_written(bob: Mailbox, send: Send) -> None:
    (bob.directory / f"receipts_{NOW:%Y-%m-%d}.jsonl").mkdir()
    opened = bob.receive(send(), now=NOW)
    assert (opened.body, opened.receipt) == (b"hello", None)


@pytest.mark.parametrize("deleted", ["before it is put away", "after it was put away"])
def test_an_envelope_that_is_refused_while_its_message_is_deleted_is_not_kept(
    alice: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    known, shared = alice.pinned_keys.bundle("bob", NOW, max_age=None), uuid.uuid4()
    assert known is not None
    first, second = (
        alice.outbox.seal(known.bundle, b"destroy me", now=NOW, message_id=shared, one_time_key=one)
        for one in bob.own_keys.make_one_time_keys(2, NOW)
    )
    bob.receive(first.wire, now=NOW)

    def refuse() -> None:
        with pytest.raises(IdConflict):
            bob.receive(second.wire, now=NOW)

    def delete() -> None:
        bob.delete(first.replay_key, NOW)

    verb, act, meanwhile = ("move", refuse, delete) if deleted.startswith("before") else ("remove", delete, refuse)
    real = getattr(EnvelopeFiles, verb)

    def interrupted(*args: object) -> None:
        monkeypatch.undo()  # once
        meanwhile()
        real(*args)

    monkeypatch.setattr(EnvelopeFiles, verb, interrupted)
    act()
    assert files(bob, "dead") == files(bob, "inbox") == []
    with bob.database.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM kem_keys WHERE usage = 'one_time'").fetchone() == (0,)


@pytest.mark.parametrize("encode", [lambda one: one.wire, json_form.encode])
def test_a_message_that_lives_longer_than_this_mailbox_makes_them_opens_to_its_end(
    home: Path, alice: Mailbox, bob: Mailbox, encode: Callable[[Envelope], bytes]
) -> None:
    with Mailbox(home, identity.load(home, "alice", lambda: ""), NOW, ttl_max=30 * 86_400) as patient:
        known = patient.pinned_keys.bundle("bob", NOW, max_age=None)
        assert known is not None
        long = patient.outbox.seal(known.bundle, b"long", now=NOW, ttl_seconds=30 * 86_400)
    assert bob.receive(encode(long), now=NOW + 30 * DAY - MS).body == b"long"


def test_no_server_may_keep_a_message_longer_than_a_month(bob: Mailbox, send: Send) -> None:
    made = wire.decode(send())
    longer = dataclasses.replace(made.header, ttl_seconds=30 * 86_400 + 1)
    assert len(wire.encode_head(longer, ttl_max=1 << 31)) == len(made.head)
    changed = wire.encode_head(longer, ttl_max=1 << 31) + made.wire[len(made.head) :]
    with pytest.raises(Malformed, match="ttl_seconds"):
        bob.receive(changed, now=NOW)
    assert untouched(bob)


def test_an_id_from_before_a_migration_is_denied_for_a_day(bob: Mailbox, send: Send) -> None:
    known = uuid.uuid4()
    with bob.database.transaction() as tx:
        tx.execute(SQL["add_legacy"], (str(known), "2026-11-15T12:00:00.000000Z"))
    sealed = send(message_id=known)
    with pytest.raises(Replayed, match="migrated"):
        bob.receive(sealed, now=NOW + DAY - MS)
    assert bob.receive(sealed, now=NOW + DAY).body == b"hello"


# One-time keys.


def twice(sender: Mailbox, seal: Callable[[], bytes]) -> tuple[bytes, bytes]:
    """Two messages to one one-time key, of a sender that does not remember having used it."""
    first = seal()
    with sender.database.transaction() as tx:
        tx.execute("DELETE FROM spent_one_time")
    return first, seal()


def test_a_one_time_key_goes_with_its_message(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    one, other = bob.own_keys.make_one_time_keys(2, NOW)
    sealed, second = twice(alice, lambda: send(one_time_key=one))
    assert rows(bob, "kem_keys") == 2
    assert bob.receive(sealed, now=NOW).body == b"hello"
    assert rows(bob, "kem_keys") == 1
    with pytest.raises(Replayed):
        bob.receive(sealed, now=NOW)
    with pytest.raises(UnknownKey):
        bob.receive(second, now=NOW)
    assert bob.receive(send(one_time_key=other), now=NOW).body == b"hello"
    assert rows(bob, "inbox") == rows(bob, "replay_state") == 2


def test_two_messages_to_one_one_time_key_in_one_batch_are_one_message(
    alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    (one,) = bob.own_keys.make_one_time_keys(1, NOW)
    sealed, second = twice(alice, lambda: send(one_time_key=one))
    opened, refused = bob.receive_many([sealed, second], now=NOW)
    assert isinstance(opened, Opened)
    assert isinstance(refused, UnknownKey)
    assert rows(bob, "inbox") == rows(bob, "replay_state") == 1
    assert files(bob, "dead") == [wire.decode(second).replay_key]


# Failures.


def unopenable(alice: Mailbox, sealed: bytes) -> bytes:
    """Well formed and well signed, but its content does not authenticate."""
    envelope = wire.decode(sealed)
    spoiled = dataclasses.replace(envelope, tag=bytes(16))
    return forged(spoiled, alice)


def test_what_an_allowed_sender_signed_and_cannot_be_opened_is_kept_apart_and_counted(
    alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    bad = unopenable(alice, send())
    with pytest.raises(OpenFailed) as refused:
        bob.receive(bad, now=NOW)
    assert (refused.value.message, refused.value.hint) == ("The envelope cannot be opened", "")
    assert files(bob, "dead") == [wire.decode(bad).replay_key]
    assert rows(bob, "failures") == 1
    assert rows(bob, "inbox") == rows(bob, "replay_state") == 0
    receipt = bob.refuse(wire.decode(bad), "open_failed", NOW)
    assert (receipt.status, receipt.reason) == (ReceiptStatus.FAILED, "open_failed")
    alice.check_receipt(receipt)


def test_after_ten_failures_in_an_hour_a_sender_is_not_tried_any_more(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    good = send()
    for at in range(open_failures.MOST):
        with pytest.raises(OpenFailed):
            bob.receive(unopenable(alice, send()), now=NOW + at * MINUTE)
    with pytest.raises(RateLimited) as limited:
        bob.receive(good, now=NOW + 59 * MINUTE)
    assert limited.value.retry_after
    assert bob.receive(good, now=NOW + 60 * MINUTE).body == b"hello"


def test_the_same_bad_envelope_again_is_one_failure(alice: Mailbox, bob: Mailbox, send: Send) -> None:
    bad = unopenable(alice, send())
    for _ in range(open_failures.MOST + 2):
        with pytest.raises(OpenFailed):
            bob.receive(bad, now=NOW)
    assert rows(bob, "failures") == 1


def test_a_forgery_leaves_no_trace_and_costs_the_sender_nothing(
    agent: Agent, alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    mallory = agent("mallory")
    bad = wire.decode(unopenable(alice, send()))
    for _ in range(open_failures.MOST + 1):
        with pytest.raises(SignatureFailed):
            bob.receive(forged(bad, mallory), now=NOW)
    assert untouched(bob)
    assert bob.receive(send(), now=NOW).body == b"hello"


# Many at once.


def test_many_are_opened_in_one_transaction_and_each_has_its_own_outcome(
    alice: Mailbox, bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, other = send(body=b"one"), send(body=b"two")
    contents = [good, b"junk", good, unopenable(alice, send()), json_form.encode(wire.decode(other)), send(to="bob")]
    commits = 0
    commit = bob.database._commit

    def counted(connection: object) -> None:
        nonlocal commits
        commits += 1
        commit(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(bob.database, "_commit", counted)
    outcomes = bob.receive_many(contents, now=NOW)
    kinds = [type(one) for one in outcomes]
    assert kinds == [Opened, Malformed, Replayed, OpenFailed, Opened, Opened]
    assert commits == 2  # one for all that opened, one that counts the failure
    assert len(bob.receipts().receipts) == 3


def test_a_batch_under_one_signature_verifies_it_once_and_each_member_alone(
    alice: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = bob.own_keys.newest()
    assert link is not None
    envelopes = alice.outbox.seal_many([Draft(recipient=link.bundle, body=bytes([n])) for n in range(9)], NOW)
    alone = envelopes.pop(3)
    assert bob.receive(alone.wire, now=NOW).body == b"\x03"
    verified = 0
    real = type(alice.identity.pair.public).verify

    def counted(*arguments: object) -> bool:
        nonlocal verified
        verified += 1
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(alice.identity.pair.public), "verify", counted)
    outcomes = bob.receive_many([one.wire for one in envelopes], now=NOW)
    assert [one.body for one in outcomes if isinstance(one, Opened)] == [bytes([n]) for n in range(9) if n != 3]
    assert verified == 0  # the root was seen a moment ago
    with pytest.raises(Replayed):
        bob.receive(alone.wire, now=NOW)


def test_nothing_to_receive_is_no_work(bob: Mailbox) -> None:
    assert bob.receive_many([], now=NOW) == []


# Control messages.


def test_a_control_message_is_not_mail_but_is_not_lost_either(bob: Mailbox, send: Send) -> None:
    body = bytes([Control.GROUP_KEY]) + b"key of a group"
    opened = bob.receive(send(body=body, control=True), now=NOW)
    assert opened.control
    assert opened.body == body
    assert bob.inbox.page().messages == ()
    (waiting,) = bob.inbox.controls(Control.GROUP_KEY)
    assert waiting.body == body
    assert waiting.message.acked_at is None
    with pytest.raises(NotFound, match="control message"):
        bob.inbox.read(waiting.message.replay_key, NOW)
    assert len(bob.inbox.controls(Control.GROUP_KEY)) == 1
    bob.inbox.mark_handled(waiting.message.replay_key)
    assert bob.inbox.controls(Control.GROUP_KEY) == []


def test_only_control_messages_are_handled(bob: Mailbox, send: Send) -> None:
    key = bob.receive(send(), now=NOW).message.replay_key
    bob.inbox.mark_handled(key)
    assert bob.inbox.message(key).status is ReadState.UNREAD


def channel_key(channel: uuid.UUID = CHANNEL) -> bytes:
    return ChannelKey(channel, 1, EpochKey.generate()).encode()


def test_controls_of_one_kind_are_shown_a_page_at_a_time_and_others_do_not_hide_them(
    bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = bytes([Control.GROUP_KEY])
    for number in range(5):
        for body in (group + bytes(56), group + bytes(5_000), channel_key()):  # the first is as long as a channel's
            bob.receive(send(body=body, control=True, channel_id=CHANNEL), now=NOW + number * MINUTE)
    with monkeypatch.context() as small:
        small.setattr(inbox, "_CONTROLS_AT_ONCE", 2)
        first = bob.inbox.controls()
    assert [(one.body[0], one.message.received_at) for one in first] == [(1, NOW), (1, NOW + MINUTE)]
    for one in first:
        bob.inbox.mark_handled(one.message.replay_key)
    assert [one.message.received_at for one in bob.inbox.controls()] == [NOW + n * MINUTE for n in (2, 3, 4)]
    monkeypatch.setattr(inbox, "_CONTROL_BYTES_AT_ONCE", 10_000)
    assert sum(len(one.body) for one in bob.inbox.controls(Control.GROUP_KEY)) < 15_100


def test_no_sender_has_more_than_a_hundred_controls_that_nobody_handled(
    agent: Agent, introduce: Callable[[Mailbox, Mailbox], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_CONTROLS", 3)
    alice, bob, carol = agent("alice"), agent("bob"), agent("carol")
    for sender in (alice, carol):
        introduce(sender, bob)

    def come(sender: Mailbox) -> Opened:
        known = sender.pinned_keys.bundle("bob", NOW, max_age=None)
        assert known is not None
        return bob.receive(sender.outbox.seal(known.bundle, channel_key(), now=NOW, control=True).wire, now=NOW)

    first, *_ = [come(alice) for _ in range(3)]
    with pytest.raises(RateLimited, match="3 control messages of alice wait"):
        come(alice)
    come(carol)
    bob.inbox.mark_handled(first.message.replay_key)
    come(alice)


def test_a_stranger_may_bring_the_key_of_a_joined_channel_and_nothing_else(bob: Mailbox, send: Send) -> None:
    bob.allowlist.deny("alice")
    bob.channels.join(CHANNEL, "alice/news", NOW)
    junk = bytes([Control.GROUP_KEY]) + bytes(900_000)
    with pytest.raises(NotAllowed):
        bob.receive(send(body=junk, control=True, channel_id=CHANNEL), now=NOW)
    assert untouched(bob)
    assert bob.receive(send(body=channel_key(), control=True, channel_id=CHANNEL), now=NOW).control


def test_a_control_message_that_was_handled_is_gone_once_it_cannot_come_again(bob: Mailbox, send: Send) -> None:
    handled, waiting = (
        bob.receive(send(body=channel_key(), control=True, channel_id=CHANNEL), now=NOW).message for _ in range(2)
    )
    mail = bob.receive(send(), now=NOW).message
    bob.inbox.mark_handled(handled.replay_key)
    bob.inbox.read(mail.replay_key, NOW)
    bob.prune(handled.expires_at + 5 * MINUTE)
    assert files(bob, "inbox") == sorted(one.replay_key for one in (handled, waiting, mail))
    bob.prune(handled.expires_at + 5 * MINUTE + MS)
    assert files(bob, "inbox") == sorted(one.replay_key for one in (waiting, mail))
    assert (rows(bob, "inbox"), rows(bob, "controls")) == (2, 1)
    assert bob.verify() == []


# The file beside the row.


def test_a_planted_file_of_the_same_name_stops_the_message_and_is_not_overwritten(bob: Mailbox, send: Send) -> None:
    sealed = send()
    path = bob.directory / "inbox" / f"{wire.decode(sealed).replay_key}.agl"
    path.write_bytes(b"something else")
    with pytest.raises(UnsafeFile, match="something else"):
        bob.receive(sealed, now=NOW)
    assert path.read_bytes() == b"something else"
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(UnsafeFile):
        bob.receive(sealed, now=NOW)
    assert rows(bob, "replay_state") == 0
    path.unlink()
    assert bob.receive(sealed, now=NOW).body == b"hello"


def test_a_full_disk_returns_no_plaintext_and_the_message_opens_later(
    bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = send()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=str(bob.directory / "inbox")) as told:
        bob.receive(sealed, now=NOW)
    assert "room" in told.value.hint
    monkeypatch.undo()
    assert untouched(bob)
    assert bob.receive(sealed, now=NOW).body == b"hello"


def test_every_refusal_is_of_our_family(bob: Mailbox) -> None:
    (outcome,) = bob.receive_many([b"junk"], now=NOW)
    assert isinstance(outcome, AngeliaError)
