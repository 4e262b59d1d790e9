"""Whether envelopes may be accepted and delivered, by the keys that they are sealed to and signed with.

Each function checks many envelopes at once; the caller decides what to do with the outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from angelia.envelope.ids import KeyType
from angelia.envelope.refusals import InvalidKey, SuiteRefused
from angelia.envelope.signing import VerifyingPair, parse_pair
from angelia.envelope.times import moment
from angelia.envelope.wire import Header
from angelia.errors import AngeliaError, KeyNotFound, KeyRevoked, KeyStale
from angelia.keys import store
from angelia.keys.model import KEM_TYPES, ONE_TIME_USE, TYPE_NAMES, KeyRecord, KeyStatus
from angelia.keys.service import answer_of, no_bundle
from angelia.stores.ledger import Tx

_HALVES = {TYPE_NAMES[KeyType.ED25519], TYPE_NAMES[KeyType.ML_DSA_65]}


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether the key that an envelope is sealed to is good. A one-time key is still to be spent; the error for a stale
    key carries the present bundle, which `stale` looks up."""

    refusal: AngeliaError | None = None
    one_time: bool = False
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Signed:
    """The claim that an agent signed something: the agent, its signing pair, and the time."""

    agent: str
    signer_id: UUID
    at: datetime

    @classmethod
    def envelope(cls, header: Header) -> Signed:
        return cls(header.sender_nhi, header.sender_key_id, moment(header.created_at))


class EnvelopeKeys(NamedTuple):
    """The keys of an accepted envelope, by which it is checked again before delivery."""

    recipient: str
    key_id: UUID
    sender: str
    signer_id: UUID
    accepted_at: datetime


async def standings(tx: Tx, headers: Sequence[Header], now: datetime) -> list[Standing]:
    """For each envelope, whether it is sealed in a suite that its recipient accepts, and to a key that is good."""
    found = await store.standings(tx, [(h.recipient_nhi, h.key_id, moment(h.created_at)) for h in headers])
    unknown = [
        (header.recipient_nhi, header.key_id, header.sender_nhi)
        for header, (_, record) in zip(headers, found, strict=True)
        if record is None
    ]
    issued = await store.one_time_issued(tx, unknown, now - ONE_TIME_USE) if unknown else {}
    return [
        _standing(header, mask, record, issued.get((header.recipient_nhi, header.key_id)), now)
        for header, (mask, record) in zip(headers, found, strict=True)
    ]


async def spend_one_time(tx: Tx, headers: Sequence[Header], now: datetime) -> list[AngeliaError | None]:
    """Marks the one-time keys of envelopes as used, in the transaction that stores them; each key serves one envelope.
    Returns one outcome per envelope: None, or an error without a bundle, since the rules on reading keys are not asked
    here."""
    wanted = [(h.recipient_nhi, h.key_id, h.sender_nhi) for h in headers]
    spent = await store.spend_one_time(tx, wanted, now, now - ONE_TIME_USE)
    outcomes: list[AngeliaError | None] = []
    for recipient, key_id, _ in wanted:
        outcomes.append(None if (recipient, key_id) in spent else bare_stale(recipient))
        spent.discard((recipient, key_id))
    return outcomes


async def stale(tx: Tx, recipients: Iterable[str]) -> dict[str, AngeliaError]:
    """The errors for stale keys of recipients, with the present bundle, so that the sender can seal again without
    another request. Only for senders that may read the recipient's keys."""
    errors: dict[str, AngeliaError] = {}
    for recipient in recipients:
        newest = await store.newest(tx, recipient)
        if newest is None:
            errors[recipient] = no_bundle(recipient)
            continue
        error = bare_stale(recipient)
        error.hint = "seal the message again, to the bundle that comes with this answer"
        error.members = msgspec.to_builtins(await answer_of(tx, newest))
        errors[recipient] = error
    return errors


def bare_stale(recipient: str) -> KeyStale:
    """The same error without the bundle, for all other senders."""
    return KeyStale(f"this key of {recipient} is no longer the one to seal to", hint="fetch its bundle and seal again")


async def signers(tx: Tx, signed: Sequence[Signed], accepted_at: datetime) -> list[VerifyingPair | AngeliaError]:
    """For each claim the signing pair to verify it with, or why there is none."""
    halves = await store.signers(tx, list({(one.agent, one.signer_id) for one in signed}))
    return [_signer(one, halves.get((one.agent, one.signer_id), {}), accepted_at) for one in signed]


async def with_revoked_keys(tx: Tx, held: Sequence[EnvelopeKeys]) -> set[int]:
    """The places of the envelopes that must not be delivered, because a key of theirs was revoked since."""
    return await store.with_revoked_keys(tx, held)


def _standing(
    header: Header, mask: int | None, record: KeyRecord | None, one_time_type: str | None, now: datetime
) -> Standing:
    recipient, wanted = header.recipient_nhi, KEM_TYPES.get(header.suite)
    if mask is None:
        return Standing(no_bundle(recipient))
    if wanted is None or not mask & header.suite.bit:
        return Standing(SuiteRefused(f"{recipient} does not take suite {int(header.suite)}"))
    if record is None:
        return Standing(one_time=True) if one_time_type == wanted else Standing(stale=True)
    if record.status is KeyStatus.REVOKED:
        hint = "fetch its bundle and seal the message again"
        return Standing(KeyRevoked(f"this key of {recipient} was revoked", hint=hint))
    if record.key_type != wanted or not record.takes_envelope_of(moment(header.created_at), now):
        return Standing(stale=True)
    return Standing()


def _signer(signed: Signed, halves: dict[str, KeyRecord], accepted_at: datetime) -> VerifyingPair | AngeliaError:
    if halves.keys() != _HALVES:
        return KeyNotFound(f"{signed.agent} has no such signing pair", hint="publish them: angelia key publish")
    ed25519, ml_dsa = halves[TYPE_NAMES[KeyType.ED25519]], halves[TYPE_NAMES[KeyType.ML_DSA_65]]
    if not ed25519.signs_envelope_of(signed.at, accepted_at):
        if ed25519.revoked_at is not None:
            return KeyRevoked(f"this signing pair of {signed.agent} was revoked")
        return KeyStale(f"this signing pair of {signed.agent} was replaced", hint="sign with the present one")
    pair = parse_pair(ed25519.public_key, ml_dsa.public_key)
    if pair.signer_id != signed.signer_id:
        return InvalidKey(f"what is stored of this signing pair of {signed.agent} is damaged")
    return pair
