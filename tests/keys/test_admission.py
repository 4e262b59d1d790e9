"""Whether a relay may take an envelope: the key that it is sealed to, and the pair that signed it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from angelia.envelope.bundles import Link
from angelia.envelope.ids import KeyType
from angelia.envelope.refusals import InvalidKey, SuiteRefused
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import moment, unix_ms
from angelia.envelope.wire import Compression, Header, Priority, Suite
from angelia.errors import AngeliaError, InvalidArgument, KeyNotFound, KeyRevoked, KeyStale
from angelia.keys import admission
from angelia.keys.admission import Signed, bare_stale, signers, stale, standing
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import DESTROY_AFTER, ONE_TIME_USE, Reason
from angelia.stores.ledger import Tx
from angelia.stores.sql import blocks
from keyholder import KeyHolder, KeySlice

MS, CACHE, SKEW = timedelta(milliseconds=1), timedelta(seconds=3_600), timedelta(seconds=300)
NEUTRAL = b"\x01" + bytes(31)
# The parts of keys, in the smallest statements that have them.
_, PARTS = blocks(Path(admission.__file__).with_name("parts.sql"))
ENVELOPE = "SELECT $1::varchar AS recipient, $2::uuid AS key_id, $3::varchar AS sender, $4::timestamptz AS made_at"
STANDING = f"SELECT k.* FROM ({ENVELOPE}) AS w CROSS JOIN LATERAL ({PARTS['standing']}) AS k"  # noqa: S608
WANTED = ENVELOPE.replace("made_at", "at, $5::timestamptz AS issued_since")
SPEND = f"WITH wanted AS ({WANTED}), spent AS ({PARTS['spend_one_time']}) SELECT * FROM spent"  # noqa: S608


@pytest.fixture
async def alice(keys_slice: KeySlice, now: datetime) -> KeyHolder:
    return await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now)


@pytest.fixture
async def bob(keys_slice: KeySlice, now: datetime) -> KeyHolder:
    return await KeyHolder().enter(keys_slice, "bob", now)


def header(
    created: datetime,
    key_id: UUID | None = None,
    *,
    suite: Suite = Suite.XWING,
    sender: str = "bob",
    sender_key: UUID | None = None,
    recipient: str = "alice",
) -> Header:
    return Header(
        suite=suite,
        message_id=uuid4(),
        created_at=unix_ms(created),
        ttl_seconds=60,
        priority=Priority.NORMAL,
        compression=Compression.NONE,
        key_id=key_id or uuid4(),
        sender_key_id=sender_key or uuid4(),
        sender_nhi=sender,
        recipient_nhi=recipient,
        nonce=os.urandom(12),
        wrapped_key=b"",
    )


async def admit(tx: Tx, what: Header, at: datetime) -> None:
    """What a relay does with one envelope: ask how its key stands, and spend it if it serves once."""
    names = (what.recipient_nhi, what.key_id, what.sender_nhi)
    row = await tx.fetchrow(STANDING, *names, moment(what.created_at))
    assert row is not None
    found = standing(row, what, at)
    refusal = found.refusal
    if found.stale:
        refusal = (await stale(tx, [what.recipient_nhi]))[what.recipient_nhi]
    if found.one_time and not await tx.fetch(SPEND, *names, at, at - ONE_TIME_USE):
        refusal = bare_stale(what.recipient_nhi)
    if refusal is not None:
        raise refusal


async def admitted(keys_slice: KeySlice, what: Header, at: datetime) -> None:
    async with keys_slice.ledger.transaction() as tx:
        await admit(tx, what, at)


async def signing(keys_slice: KeySlice, what: Header, accepted_at: datetime) -> VerifyingPair:
    async with keys_slice.ledger.transaction() as tx:
        (found,) = await signers(tx, [Signed.envelope(what)], accepted_at)
    if isinstance(found, AngeliaError):
        raise found
    return found


async def refuses(keys_slice: KeySlice, what: Header, at: datetime, error: type[AngeliaError]) -> AngeliaError:
    with pytest.raises(error) as refused:
        await admitted(keys_slice, what, at)
    return refused.value


def xwing(holder: KeyHolder) -> UUID:
    return holder.kem[KeyType.XWING].public.key_id


# The key that it is sealed to.


async def test_active_keys_take_envelopes_of_their_own_suite(
    keys_slice: KeySlice, alice: KeyHolder, now: datetime
) -> None:
    ml_kem = alice.kem[KeyType.ML_KEM_768].public.key_id
    await admitted(keys_slice, header(now, xwing(alice)), now)
    await admitted(keys_slice, header(now, ml_kem, suite=Suite.ML_KEM), now)
    await refuses(keys_slice, header(now, ml_kem), now, KeyStale)
    await refuses(keys_slice, header(now, xwing(alice), suite=Suite.ML_KEM), now, KeyStale)


async def test_who_has_no_bundle_gets_no_sealed_mail(keys_slice: KeySlice, now: datetime) -> None:
    await KeyHolder().exist(keys_slice, "bare", now)
    for name in ("bare", "nobody"):
        await refuses(keys_slice, header(now, recipient=name), now, KeyNotFound)


async def test_a_suite_must_be_in_the_recipients_mask_of_that_time(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().exist(keys_slice, "alice", now)
    await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now - CACHE))), now=now)
    old = xwing(alice)
    await refuses(keys_slice, header(now, old, suite=Suite.ML_KEM), now, SuiteRefused)
    for suite in (Suite.CHANNEL, Suite.SESSION):
        await refuses(keys_slice, header(now, old, suite=suite), now, SuiteRefused)
    alice.kem = {KeyType.ML_KEM_768: KeyHolder(KeyType.ML_KEM_768).kem[KeyType.ML_KEM_768]}
    link = Link(alice.bundle(at=unix_ms(now)))
    await alice.accepted(keys_slice, link, reason=Reason.ON_DEMAND)
    # What was sealed before the change still comes in, what is sealed after it does not.
    await admitted(keys_slice, header(now - MS, old), now)
    await refuses(keys_slice, header(now, old), now, SuiteRefused)
    await refuses(keys_slice, header(now - MS, alice.kem_ids[0], suite=Suite.ML_KEM), now, SuiteRefused)
    await admitted(keys_slice, header(now, alice.kem_ids[0], suite=Suite.ML_KEM), now)


async def test_a_rotated_key_takes_what_an_hour_old_copy_sealed_and_nothing_later(
    keys_slice: KeySlice, alice: KeyHolder, now: datetime
) -> None:
    old = xwing(alice)
    await alice.rotated(keys_slice, now)
    last = now + CACHE
    await admitted(keys_slice, header(last, old), last)
    await refuses(keys_slice, header(last + MS, old), last + MS, KeyStale)
    await admitted(keys_slice, header(now, old), now + DESTROY_AFTER - MS)
    await refuses(keys_slice, header(now, old), now + DESTROY_AFTER, KeyStale)
    await keys_slice.keys.end_grace(now + DESTROY_AFTER)
    await refuses(keys_slice, header(now, old), now, KeyStale)


async def test_who_sealed_to_an_old_key_is_told_the_present_bundle(
    keys_slice: KeySlice, alice: KeyHolder, now: datetime
) -> None:
    await alice.rotated(keys_slice, now)
    error = await refuses(keys_slice, header(now), now, KeyStale)
    assert alice.last is not None
    assert error.members["bundle_id"] == alice.last.bundle_hash.hex()
    assert isinstance(error.members["bundle"], dict)
    assert error.members["bundle"]["bundle_version"] == 2


async def test_a_revoked_key_takes_nothing_from_that_moment(
    keys_slice: KeySlice, alice: KeyHolder, now: datetime
) -> None:
    await keys_slice.keys.revoke(await alice.record(keys_slice), xwing(alice), now, None)
    error = await refuses(keys_slice, header(now - CACHE, xwing(alice)), now, KeyRevoked)
    assert error.code == "key_revoked"


async def test_a_key_of_somebody_else_is_not_the_recipients(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    await refuses(keys_slice, header(now, xwing(bob)), now, KeyStale)


async def test_a_time_that_no_calendar_has_is_the_senders_error(
    keys_slice: KeySlice, alice: KeyHolder, now: datetime
) -> None:
    far = header(now, xwing(alice))
    object.__setattr__(far, "created_at", (1 << 53) - 1)
    await refuses(keys_slice, far, now, InvalidArgument)


# One-time keys.


async def issued(keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime, count: int = 1) -> list[UUID]:
    made = alice.one_time_keys(count, unix_ms(now))
    await keys_slice.keys.add_one_time_keys(await alice.record(keys_slice), made, now)
    requester, found = await bob.record(keys_slice), []
    for _ in range(count):
        answer = await keys_slice.keys.bundle_with_one_time_key("alice", requester, now)
        assert answer.one_time_key is not None
        found.append(answer.one_time_key.key_id)
    return found


async def test_a_one_time_key_is_spent_once_even_when_raced(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime, connection: asyncpg.Connection
) -> None:
    (key,) = await issued(keys_slice, alice, bob, now)
    racing = [admitted(keys_slice, header(now, key), now) for _ in range(8)]
    done = await asyncio.gather(*racing, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["KeyStale"] * 7 + ["NoneType"]
    assert await connection.fetchval("SELECT used_at FROM one_time_keys") == now
    error = await refuses(keys_slice, header(now, key), now, KeyStale)
    assert "bundle" in error.members


async def test_a_one_time_key_serves_its_requester_only(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    (key,) = await issued(keys_slice, alice, bob, now)
    await KeyHolder().enter(keys_slice, "carol", now)
    await refuses(keys_slice, header(now, key, sender="carol"), now, KeyStale)
    await refuses(keys_slice, header(now, key, recipient="bob"), now, KeyStale)
    await refuses(keys_slice, header(now, key, suite=Suite.ML_KEM), now, KeyStale)
    await admitted(keys_slice, header(now, key), now)


async def test_a_one_time_key_is_good_for_3900_seconds_and_not_a_millisecond_more(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    first, second = await issued(keys_slice, alice, bob, now, 2)
    last = now + ONE_TIME_USE
    assert timedelta(seconds=3_900) == ONE_TIME_USE
    await refuses(keys_slice, header(last, first), last + MS, KeyStale)
    await admitted(keys_slice, header(last, second), last)


async def test_a_key_that_nobody_was_given_admits_nobody(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    (made,) = alice.one_time_keys(1, unix_ms(now))
    await keys_slice.keys.add_one_time_keys(await alice.record(keys_slice), [made], now)
    await refuses(keys_slice, header(now, made.key.key_id), now, KeyStale)


async def test_a_refused_or_rolled_back_envelope_spends_no_key(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    (key,) = await issued(keys_slice, alice, bob, now)
    for fault in (RuntimeError("killed"), InvalidArgument("the queue is full")):
        with contextlib.suppress(type(fault)):
            async with keys_slice.ledger.transaction() as tx:
                await admit(tx, header(now, key), now)
                raise fault
    await admitted(keys_slice, header(now, key), now)


async def test_an_issued_key_outlives_a_new_pair_and_not_an_emergency(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    first, second = await issued(keys_slice, alice, bob, now, 2)
    await alice.rotated(keys_slice, now, signer=True)
    await admitted(keys_slice, header(now, first), now)
    link = alice.rotation(at=unix_ms(now), signer=True, grace=False)
    await alice.accepted(keys_slice, link, reason=Reason.EMERGENCY, emergency=Emergency("stolen", now, None))
    await refuses(keys_slice, header(now, second), now, KeyStale)


# The pair that signed it.


async def test_the_pair_is_the_senders_own(
    keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    by_bob = header(now, sender_key=bob.pair.public.signer_id)
    assert await signing(keys_slice, by_bob, now) == bob.pair.public
    for wrong in (
        header(now, sender_key=alice.pair.public.signer_id),
        header(now, sender="alice", sender_key=bob.pair.public.signer_id),
        header(now, sender="nobody", sender_key=bob.pair.public.signer_id),
        header(now, sender_key=xwing(bob)),
        header(now, sender_key=bob.key_id),
    ):
        with pytest.raises(KeyNotFound):
            await signing(keys_slice, wrong, now)


async def test_a_replaced_pair_signs_what_was_made_within_300_seconds(
    keys_slice: KeySlice, bob: KeyHolder, now: datetime
) -> None:
    old = bob.pair
    await bob.rotated(keys_slice, now, signer=True)
    last = now + SKEW
    assert await signing(keys_slice, header(last, sender_key=old.public.signer_id), last + DESTROY_AFTER) == old.public
    with pytest.raises(KeyStale):
        await signing(keys_slice, header(last + MS, sender_key=old.public.signer_id), last)
    await keys_slice.keys.end_grace(now + DESTROY_AFTER)
    assert await signing(keys_slice, header(now, sender_key=old.public.signer_id), now) == old.public, "for history"
    assert await signing(keys_slice, header(now, sender_key=bob.pair.public.signer_id), now) == bob.pair.public


async def test_a_revoked_pair_is_refused_iff_the_relay_accepted_it_since_the_compromise(
    keys_slice: KeySlice, bob: KeyHolder, now: datetime
) -> None:
    old, since = bob.pair, now - timedelta(hours=3)
    link = bob.rotation(at=unix_ms(now), signer=True, grace=False)
    await bob.accepted(keys_slice, link, reason=Reason.EMERGENCY, emergency=Emergency("stolen", since, None))
    by_old = header(since, sender_key=old.public.signer_id)
    assert await signing(keys_slice, by_old, since - MS) == old.public
    for accepted_at in (since, now):
        with pytest.raises(KeyRevoked):
            await signing(keys_slice, by_old, accepted_at)


async def test_a_pair_whose_stored_bytes_were_changed_does_not_load(
    keys_slice: KeySlice, bob: KeyHolder, now: datetime, connection: asyncpg.Connection
) -> None:
    by_bob = header(now, sender_key=bob.pair.public.signer_id)
    other = KeyHolder().pair.public
    for key_type, raw in (("ed25519", other.ed25519), ("ml_dsa_65", other.ml_dsa), ("ed25519", NEUTRAL)):
        await connection.execute("UPDATE key_records SET public_key = $1 WHERE key_type = $2", raw, key_type)
        with pytest.raises(InvalidKey):
            await signing(keys_slice, by_bob, now)
        original = bob.pair.public.ed25519 if key_type == "ed25519" else bob.pair.public.ml_dsa
        await connection.execute("UPDATE key_records SET public_key = $1 WHERE key_type = $2", original, key_type)
    assert await signing(keys_slice, by_bob, now) == bob.pair.public


async def test_a_bundle_whose_stored_bytes_were_changed_is_no_ground_for_the_next(
    keys_slice: KeySlice, bob: KeyHolder, now: datetime, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "UPDATE bundles SET bundle = jsonb_set(bundle, '{signer,ed25519_public_key}', to_jsonb($1::text))",
        "AQ" + "A" * 41,
    )
    with pytest.raises(InvalidKey):
        await bob.accepted(keys_slice, Link(bob.bundle(at=unix_ms(now))))
